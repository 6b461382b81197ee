//! `rftrace send`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, anyhow};
use clap::Args;
use indicatif::{HumanBytes, HumanCount};
use rftrace_net::Address;

use super::time::parse_timeout;

const EXAMPLES: &str = "\
Examples:
  rftrace send uftrace.data desk:8090              to the port of another machine
  rftrace send uftrace.data unix:/run/user/1/rx    to `rftrace recv --unix` on this one

Receivers of rftrace listen to their own machine alone. To reach one by ssh:
  ssh -N -L 8090:127.0.0.1:8090 desk &
  rftrace send uftrace.data 127.0.0.1";

/// Sends a trace to `rftrace recv` or `uftrace recv`.
///
/// Any complete trace directory can be sent, of rftrace or uftrace, by uftrace's protocol. Snapshots in it are traces of their own.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SendArgs {
    /// The trace directory.
    dir: PathBuf,
    /// Where the receiver listens: HOST, HOST:PORT or unix:PATH. The port is 8090 if it is left out.
    #[arg(value_name = "HOST[:PORT]")]
    to: Address,
    /// How long the receiver may take for anything: 500ms, 30s, 5m.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_timeout)]
    timeout: Duration,
}

/// Sends it.
pub(crate) fn run(args: &SendArgs) -> Result<()> {
    super::unfinished::refuse(&args.dir)?;
    let sent = send(&args.dir, &args.to, args.timeout)?;
    say!("{sent}");
    Ok(())
}

/// Sends a trace, and returns what is to be said of it.
pub(crate) fn send(dir: &Path, to: &Address, timeout: Duration) -> Result<String> {
    let sent = rftrace_net::send::send(dir, to, timeout);
    // The error's text has that of its source.
    let sent = sent.map_err(|error| anyhow!("the trace was not sent to {to}: {error}"))?;
    Ok(format!("sent to {to}: {} files, {}", HumanCount(sent.files as u64), HumanBytes(sent.bytes)))
}
