//! `rftrace recv`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use rftrace_net::Address;
use rftrace_net::receive::{ReceiveOptions, Server};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use super::size::parse_size;
use super::time::parse_timeout;

const EXAMPLES: &str = "\
Examples:
  rftrace recv -o traces                          then, on the same machine:
    rftrace send uftrace.data 127.0.0.1
    rftrace record --to uftrace://127.0.0.1 ./program
    uftrace record --host 127.0.0.1 ./program
  rftrace recv --once --listen 127.0.0.1:0        one trace, at a port that the system chooses and the first line tells
  rftrace recv --unix /run/user/1000/traces       only this user reaches it

uftrace's protocol has neither passwords nor encryption. From other machines traces come by ssh, which has both:
  ssh -N -L 8090:127.0.0.1:8090 RECEIVER          on the machine that sends; then as above";

/// Receives traces that `rftrace` or `uftrace` sends, a directory for each.
///
/// Nothing that a peer sends is believed: directories are new ones below DIR, files have names that a trace has, and a peer that
/// sends nonsense or too much loses its connection, without harm to the others. A trace without its end has no file `info`, so that
/// nobody takes it for complete. Ends by Ctrl-C or SIGTERM.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RecvArgs {
    /// Where to listen: an address of this machine alone. Port 0 is one that the system chooses.
    #[arg(long, value_name = "HOST[:PORT]", default_value = "127.0.0.1:8090", conflicts_with = "unix")]
    listen: Address,
    /// Listen on a socket in the file system instead.
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
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
    /// How long it may be silent between messages: uftrace sends while the program runs, which may have nothing to tell.
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
    let address = args.unix.map_or(args.listen, Address::Unix);
    let server = Server::bind(&address, options).map_err(whole)?;
    for signal in [SIGINT, SIGTERM] {
        let stop = server.stop().map_err(whole)?;
        pipe::register(signal, stop.into_socket()).context("cannot handle signals")?;
    }
    say!("rftrace: listening on {}; traces go to {}", server.address().map_err(whole)?, args.output.display());
    let n_complete = server.run(&|received| say!("rftrace: {received}")).map_err(whole)?;
    if args.once && n_complete == 0 {
        bail!("no complete trace has come");
    }
    Ok(())
}

fn parse_peers(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number @ 1..=1024) => Ok(number),
        _ => Err("1 to 1024 are possible".to_owned()),
    }
}
