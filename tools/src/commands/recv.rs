//! `rftrace recv`.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use indicatif::HumanCount;
use rftrace_net::receive::{ReceiveOptions, Received, Server};
use rftrace_net::{Address, PORT, Token, UFTRACE_PORT};
use rftrace_record::output::Output;
use rftrace_record::parts::Joined;
use rftrace_record::{join, run};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use super::common::shell_word;
use super::size::parse_size;
use super::time::parse_timeout;

const EXAMPLES: &str = "\
Examples:
  rftrace recv -o traces                          then, on the same machine:
    rftrace record --to 127.0.0.1 ./program       while it runs
    rftrace send uftrace.data 127.0.0.1
    uftrace record --host 127.0.0.1 ./program
  rftrace recv --once --listen 127.0.0.1:0        one trace, at a port that the system chooses and the first line tells
  rftrace recv --unix /run/user/1000/traces       only this user reaches it

Nothing is encrypted (no TLS). From other machines traces come by ssh, which has passwords and encryption:
  ssh -N -L 8091:127.0.0.1:8091 RECEIVER          on the machine that sends; then as above
In a network where nobody listens a token is enough, 32 bytes that both ends have:
  head -c 32 /dev/urandom > token; chmod 600 token
  rftrace recv --listen 0.0.0.0 --token-file token
  rftrace record --to RECEIVER --token-file token ./program";

/// Receives traces that `rftrace` or `uftrace` sends, a directory for each.
///
/// Nothing that a peer sends is believed: directories are new ones below DIR, files have names that a trace has, and a peer that
/// sends nonsense or too much loses its connection, without harm to the others. A trace without its end has no file `info`, so that
/// nobody takes it for complete; of a recording that breaks off what came becomes a trace that says so. Both protocols are known by
/// their first bytes. Ends by Ctrl-C or SIGTERM.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RecvArgs {
    /// Where to listen, once or more: addresses of this machine alone, unless there is a token. Port 0 is one that the system chooses.
    /// By default 127.0.0.1:8091 and, where nobody else does, uftrace's 127.0.0.1:8090.
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with = "unix")]
    listen: Vec<Address>,
    /// Listen on a socket in the file system instead.
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// Ask peers for the token in this file: 32 bytes that only its owner can read. Then others than this machine may reach the receiver.
    /// uftrace has no token.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Where traces go: each to a new directory below it, by the name that the peer tells, or a number.
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    output: PathBuf,
    /// The most that a peer may send. With K, M or G.
    #[arg(long, value_name = "SIZE", default_value = "8G", value_parser = parse_size)]
    max_size: usize,
    /// The most peers at a time.
    #[arg(long, value_name = "NUMBER", default_value_t = 16, value_parser = parse_peers)]
    max_peers: usize,
    /// How long a peer may be silent within a message, and before its first one: 500ms, 30s, 5m.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_timeout)]
    timeout: Duration,
    /// How long uftrace may be silent between messages: it sends while the program runs, which may have nothing to tell.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_timeout)]
    idle: Duration,
    /// End when a complete trace has come.
    #[arg(long)]
    once: bool,
}

/// Receives until it is told to end.
pub(crate) fn run(args: RecvArgs) -> Result<()> {
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
    let n_complete = server.run(&|received| say!("rftrace: {}", told(&received))).map_err(whole)?;
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
        say!("rftrace: {error}: `uftrace record` finds this receiver by --port {PORT}");
    }
    Ok(server)
}

/// What is said of what has come. What was recorded of programs while they ran becomes a trace first.
fn told(received: &Received) -> String {
    let Some(dir) = received.dir.as_deref().filter(|_| received.processes.is_some()) else {
        return received.to_string();
    };
    match make_trace(dir) {
        Ok(Some(joined)) => {
            let calls = HumanCount(joined.events / 2);
            let errors: String = joined.errors.iter().map(|error| format!("; {error}")).collect();
            format!("{received}; calls: {calls}{errors}")
        }
        Ok(None) => format!("{received}; nothing was recorded"),
        Err(error) => format!(
            "{received}; no trace could be made of it, which `rftrace recover {}` tries again: {error:#}",
            shell_word(dir)
        ),
    }
}

/// Makes a trace of what has come of processes; `None` if there is nothing.
fn make_trace(dir: &Path) -> Result<Option<Joined>> {
    let Some(output) = Output::left_in(dir)? else { return Ok(None) };
    let joined = join::recover(&output)?;
    if joined.left_over == 0 {
        output.finish()?;
    }
    Ok((!joined.is_empty()).then_some(joined))
}

fn parse_peers(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number @ 1..=1024) => Ok(number),
        _ => Err("1 to 1024 are possible".to_owned()),
    }
}
