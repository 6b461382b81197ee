//! `rftrace recv`.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder};
use std::io::{self, stdin};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use indicatif::HumanCount;
use rftrace_frontend::{Image, ImportOptions, Imported};
use rftrace_net::line::{self, Came};
use rftrace_net::receive::{ReceiveOptions, Received, Server};
use rftrace_net::{Address, PORT, Token, UFTRACE_PORT};
use rftrace_record::output::Output;
use rftrace_record::parts::Joined;
use rftrace_record::{join, run};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::pipe;

use super::common::shell_word;
use super::quantity::{parse_size, parse_timeout};

/// A group in `--help`.
const LIMITS: &str = "Limits: --max-size 1G --max-peers 4";

/// A group in `--help`.
const KERNELS: &str = "Kernels: --serial /dev/ttyS0 --binary kernel.elf";

const EXAMPLES: &str = "\
Examples:
  rftrace recv -o traces                          then, on the same machine:
    rftrace record --to 127.0.0.1 ./program       during the run
    rftrace send uftrace.data 127.0.0.1
    uftrace record --host 127.0.0.1 ./program
  rftrace recv --once --listen 127.0.0.1:0        one trace, at a free port: see its first line
  rftrace recv --unix /run/user/1000/traces       only for this user
  rftrace recv --serial /dev/ttyS0 --binary kernel.elf
                                                  a kernel, by a serial line
  rftrace recv --binary kernel.elf
    qemu-system-x86_64 -kernel kernel.elf -serial tcp:127.0.0.1:8091
                                                  a kernel, by a connection

Nothing is encrypted (no TLS). Use ssh for traces from other machines:
  ssh -N -L 8091:127.0.0.1:8091 RECEIVER          on the sender; then as above
In a trusted network a token is enough, 32 bytes on both sides:
  head -c 32 /dev/urandom > token; chmod 600 token
  rftrace recv --listen 0.0.0.0 --token-file token
  rftrace record --to RECEIVER --token-file token ./program";

/// Receives traces of `rftrace` or `uftrace`, each to its own directory.
///
/// Peer input is untrusted: directories are new, file names are those of traces, and a peer with bad or too much input is disconnected
/// without harm to the others. A trace without its end has no file `info`; a broken recording becomes a trace with a note. The first bytes
/// tell the protocol. It ends at Ctrl-C or SIGTERM.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RecvArgs {
    /// Address to listen on; can be given several times [default: 127.0.0.1:8091, and uftrace's 127.0.0.1:8090 if it is free].
    ///
    /// Without a token only addresses of this machine are allowed. Port 0 is any free port.
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with = "unix")]
    listen: Vec<Address>,
    /// Listen on a socket in the file system instead.
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// Ask peers for the token in this file: then other machines may connect.
    ///
    /// The file has 32 bytes, readable only by its owner. uftrace has no token.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Directory for traces: each gets a new directory below it, by the name of the sender, or a number.
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    output: PathBuf,
    /// Size limit for one peer; with K, M or G.
    #[arg(long, value_name = "SIZE", default_value = "8G", value_parser = parse_size, help_heading = LIMITS)]
    max_size: usize,
    /// Highest number of peers at a time. A new peer replaces one without a message so far; otherwise it is refused.
    #[arg(long, value_name = "NUMBER", default_value_t = 16, value_parser = parse_peers, help_heading = LIMITS)]
    max_peers: usize,
    /// Longest silence before and within a message. A message may take this time and one second for each 16 KiB: 500ms, 30s, 5m.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_timeout, help_heading = LIMITS)]
    timeout: Duration,
    /// Longest silence of uftrace between messages: it sends while its program runs.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_timeout, help_heading = LIMITS)]
    idle: Duration,
    /// End after one complete trace.
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    kernel: KernelArgs,
}

/// Options for a kernel's records from a line: one trace, which is made when the line ends, or by Ctrl-C or SIGTERM.
#[derive(Args)]
struct KernelArgs {
    /// Read a kernel's records (`kernel::Stream`, `kernel::write_image`), or those of `rftrace ctl PID pipe --rfs`, from stdin.
    #[arg(long, conflicts_with_all = ["listen", "unix", "token_file", "once", "serial"], help_heading = KERNELS)]
    stdin: bool,
    /// Read them from a serial port or a named pipe. Set the speed of the port with `stty`.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["listen", "unix", "token_file", "once"], help_heading = KERNELS)]
    serial: Option<PathBuf>,
    /// ELF file of the kernel, for the names of its functions.
    #[arg(long, value_name = "ELF", help_heading = KERNELS)]
    binary: Option<PathBuf>,
}

/// Receives until it is told to end.
pub(crate) fn run(args: RecvArgs) -> Result<()> {
    if args.kernel.stdin || args.kernel.serial.is_some() {
        return receive_line(&args);
    }
    let mut options = ReceiveOptions::new(&args.output);
    options.max_bytes = args.max_size as u64;
    options.max_peers = args.max_peers;
    options.timeout = args.timeout;
    options.idle = args.idle;
    options.once = args.once;
    // These errors' texts have those of their sources.
    let whole = |error: rftrace_net::Error| anyhow!("{error}");
    options.token = args.token_file.as_deref().map(Token::read).transpose().map_err(whole)?;
    options.mark = Some(run::mark());
    let server = listen(&args, options).map_err(whole)?;
    for signal in [SIGINT, SIGTERM] {
        let stop = server.stop().map_err(whole)?;
        pipe::register(signal, stop.into_socket()).context("cannot handle signals")?;
    }
    let addresses: Vec<String> = server.addresses().map_err(whole)?.iter().map(Address::to_string).collect();
    say!("rftrace: listening on {}; traces go to {}", addresses.join(" and "), args.output.display());
    let n_complete = server.run(&|received| say!("rftrace: {}", told(&received, &args))).map_err(whole)?;
    if args.once && n_complete == 0 {
        bail!("no complete trace has come");
    }
    Ok(())
}

/// Listens where it is wanted.
fn listen(args: &RecvArgs, options: ReceiveOptions) -> Result<Server, rftrace_net::Error> {
    let of_loopback = |port| Address::Tcp { host: "127.0.0.1".to_owned(), port };
    let wanted = args.unix.iter().cloned().map(Address::Unix).chain(args.listen.iter().cloned());
    let mut wanted: VecDeque<Address> = wanted.collect();
    let is_default = wanted.is_empty();
    let mut server = Server::bind(&wanted.pop_front().unwrap_or(of_loopback(PORT)), options)?;
    wanted.iter().try_for_each(|address| server.also(address))?;
    if is_default && let Err(error) = server.also(&of_loopback(UFTRACE_PORT)) {
        say!("rftrace: {error}; `uftrace record` needs --port {PORT} for this receiver");
    }
    Ok(server)
}

/// Describes the received data. A recording of programs that was sent while they ran becomes a trace first.
fn told(received: &Received, args: &RecvArgs) -> String {
    if let Some(image) = &received.image {
        return told_of_kernel(received, image, args);
    }
    let Some(dir) = received.dir.as_deref().filter(|_| received.processes.is_some()) else {
        return received.to_string();
    };
    match make_trace(dir) {
        Ok(Some(joined)) => {
            let calls = HumanCount(joined.events / 2);
            let errors: String = joined.errors.iter().map(|error| format!("; {error}")).collect();
            format!("{received}; calls: {calls}{errors}")
        }
        Ok(None) => format!("{received}; the recording has no calls"),
        Err(error) => format!(
            "{received}; cannot make a trace of it: {error:#}; `rftrace recover {}` tries again",
            shell_word(dir)
        ),
    }
}

/// Describes the records that a kernel has sent by a connection. A trace is made of any that have come, as of a line.
fn told_of_kernel(received: &Received, image: &Path, args: &RecvArgs) -> String {
    /// An image is in memory for that: one at a time.
    static ONE: Mutex<()> = Mutex::new(());

    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let peer = &received.peer;
    let why = received.ended.as_ref().err().map(|error| format!(" {error};")).unwrap_or_default();
    match import(image, &args.output, args.kernel.binary.as_deref()) {
        Ok((dir, imported)) => {
            // Nothing else is in it.
            let _ = received.dir.as_ref().map(fs::remove_dir);
            let warnings: String = imported.warnings.iter().map(|warning| format!("; {warning}")).collect();
            let (events, threads) = (HumanCount(imported.events), imported.threads);
            format!("{peer}: a kernel:{why} {events} events of {threads} threads lie in {}{warnings}", shell_word(&dir))
        }
        Err(error) => format!("{peer}: a kernel:{why} {error:#}"),
    }
}

/// Makes a trace of what has come of processes; `None` if there is nothing.
fn make_trace(dir: &Path) -> Result<Option<Joined>> {
    let Some(output) = Output::left_in(dir)? else { return Ok(None) };
    let joined = join::recover(&output)?.made()?;
    if joined.left_over == 0 {
        output.finish()?;
    }
    Ok((!joined.is_empty()).then_some(joined))
}

/// Stores what comes by a line or stdin, and makes a trace of it when that ends.
fn receive_line(args: &RecvArgs) -> Result<()> {
    let whole = |error: rftrace_net::Error| anyhow!("{error}");
    fs::create_dir_all(&args.output).with_context(|| format!("cannot make the directory {}", args.output.display()))?;
    let stored = args.output.join(format!("kernel-{}.img", std::process::id()));
    match args.kernel.serial {
        Some(_) => say!("rftrace: receiving to {}, until the line ends or Ctrl-C", stored.display()),
        None => say!("rftrace: receiving to {}, until the line ends or Ctrl-C", args.output.display()),
    }
    // Opening a pipe waits for its writer: until then signals end this program.
    let serial = args.kernel.serial.as_deref().map(line::open).transpose().map_err(whole)?;
    let is_over = Arc::<AtomicBool>::default();
    for signal in [SIGINT, SIGTERM] {
        flag::register(signal, Arc::clone(&is_over)).context("cannot handle signals")?;
    }
    let mut options = ReceiveOptions::new(&args.output);
    options.max_bytes = args.max_size as u64;
    options.mark = Some(run::mark());
    let received = match serial {
        Some(mut line) => line::receive(&mut line, &stored, options.max_bytes, &is_over).map(Came::Image),
        None => line::receive_either(&mut stdin().lock(), &stored, &options, &is_over),
    };
    // The received records become a trace even if no more can come.
    match received {
        Ok(Came::Programs(received)) => {
            say!("rftrace: {}", told(&received, args));
            return match received.ended {
                Ok(()) => Ok(()),
                Err(_) => bail!("no complete trace has come"),
            };
        }
        Ok(Came::Image(0)) => {
            let _ = fs::remove_file(&stored);
            bail!("no bytes have come");
        }
        Ok(_) => {}
        Err(error @ rftrace_net::Error::TooLarge(_)) => say!("rftrace: {error}"),
        Err(error) => return Err(whole(error)),
    }
    let (dir, imported) = import(&stored, &args.output, args.kernel.binary.as_deref())?;
    imported.warnings.iter().for_each(|warning| say!("rftrace: {warning}"));
    say!("rftrace: {} events of {} threads lie in {}", HumanCount(imported.events), imported.threads, shell_word(&dir));
    Ok(())
}

/// Makes a trace of an image in a new directory, and removes it.
fn import(image: &Path, parent: &Path, binary: Option<&Path>) -> Result<(PathBuf, Imported)> {
    let again =
        || format!("cannot make a trace of the received image (`rftrace import {}` tries again)", shell_word(image));
    let read = Image::read(image).with_context(again)?;
    let mut options = ImportOptions::default();
    options.binary = binary.map(Path::to_owned);
    let dir = new_directory(parent, read.name()).with_context(again)?;
    let imported = read.write_directory(&dir, &options).inspect_err(|_| {
        // If nothing is in it.
        let _ = fs::remove_dir(&dir);
    });
    let imported = imported.with_context(again)?;
    fs::remove_file(image).with_context(|| format!("cannot remove {}", image.display()))?;
    Ok((dir, imported))
}

/// A new directory by the name that a kernel gives itself, as far as that can be one.
fn new_directory(parent: &Path, name: &str) -> io::Result<PathBuf> {
    const MOST: usize = 64;

    let is_safe =
        |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)) && !name.starts_with('.');
    let name = if (1..=MOST).contains(&name.len()) && is_safe(name) { name } else { "kernel" };
    for number in 1..=100_000 {
        let dir = parent.join(if number == 1 { name.to_owned() } else { format!("{name}-{number}") });
        match DirBuilder::new().mode(0o700).create(&dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| dir),
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "too many directories have this name"))
}

fn parse_peers(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number @ 1..=1024) => Ok(number),
        _ => Err("the number must be from 1 to 1024".to_owned()),
    }
}
