//! `rftrace send`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use indicatif::{HumanBytes, HumanCount};
use rftrace_net::{Protocol, To, Token};

use super::quantity::parse_timeout;

const EXAMPLES: &str = "\
Examples:
  rftrace send uftrace.data 127.0.0.1              to `rftrace recv` on this machine
  rftrace send uftrace.data unix:/run/user/1/rx    to `rftrace recv --unix`
  rftrace send uftrace.data uftrace://desk         to `uftrace recv` on another machine

Nothing is encrypted. Without a token, receivers listen to their own machine alone; use ssh:
  ssh -N -L 8091:127.0.0.1:8091 desk &
  rftrace send uftrace.data 127.0.0.1";

/// Sends a trace to `rftrace recv` or `uftrace recv`.
///
/// Any complete trace directory can be sent, of rftrace or uftrace. Snapshots in it are traces of their own.
///
/// A trace contains the command line with its secrets, the name of the machine, paths, and texts of arguments; never the environment.
/// `rftrace record --anonymous` leaves these out, and so does `rftrace dump --anonymous --uftrace -o DIR` for a trace that is there.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SendArgs {
    /// Trace directory.
    dir: PathBuf,
    /// Address of the receiver: HOST, HOST:PORT or unix:PATH; with `uftrace://` in front for uftrace's protocol. The default port is
    /// 8091, and 8090 for uftrace.
    #[arg(value_name = "HOST[:PORT]")]
    to: To,
    /// File with the receiver's token.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Longest wait for the receiver: 500ms, 30s, 5m.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_timeout)]
    timeout: Duration,
}

/// Sends it.
pub(crate) fn run(args: &SendArgs) -> Result<()> {
    super::unfinished::refuse(&args.dir)?;
    let token = read_token(args.token_file.as_deref(), &args.to)?;
    let sent = send(&args.dir, &args.to, token.as_ref(), args.timeout)?;
    say!("{sent}");
    Ok(())
}

/// The token in a file, if there is one.
pub(crate) fn read_token(file: Option<&Path>, to: &To) -> Result<Option<Token>> {
    if file.is_some() && to.protocol == Protocol::Uftrace {
        bail!("--token-file: uftrace's protocol has no token; use an address without uftrace://");
    }
    // The error's text has that of its source.
    file.map(Token::read).transpose().map_err(|error| anyhow!("{error}"))
}

/// Sends a trace, and returns what is to be said of it.
pub(crate) fn send(dir: &Path, to: &To, token: Option<&Token>, timeout: Duration) -> Result<String> {
    let sent = rftrace_net::send::send(dir, to, token, timeout);
    // The error's text has that of its source.
    let sent = sent.map_err(|error| anyhow!("cannot send the trace to {to}: {error}"))?;
    Ok(format!("sent to {to}: {} files, {}", HumanCount(sent.files as u64), HumanBytes(sent.bytes)))
}
