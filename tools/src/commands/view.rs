//! `rftrace view`.

use anyhow::{Result, bail};
use clap::Args;
use rftrace_page::Server;
use rftrace_read::Error;

use super::browser;
use super::choice::{NamesArg, ShownArgs};
use super::common::{DirArg, PlainArgs, print};
use super::counters::Counters;
use super::page;
use super::site::{self, PERFETTO_PORT, Site};

const EXAMPLES: &str = "\
Examples:
  rftrace view mytrace                        opens the browser, until Ctrl-C
  rftrace view --from 1ms --to 2ms mytrace    a part of the trace
  rftrace view --perfetto mytrace             in https://ui.perfetto.dev
  rftrace dump --html mytrace -o trace.html   as a file
  rftrace view --no-open --port 8000 mytrace  for another machine: ssh -L 8000:127.0.0.1:8000";

/// Shows a trace in the browser: timeline, flame graph, call tree, functions.
///
/// The server listens to this machine alone, and its address has a random token; only the user can read the file with the address. It ends at
/// Ctrl-C. The browser holds the whole trace, 24 bytes a call. Of a long trace it loads the visible part, by an index of eight bytes a call:
/// `index-page` in the trace directory.
///
/// With --perfetto and --firefox the page comes from the network and reads the trace from this server.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ViewArgs {
    #[command(flatten)]
    dir: DirArg,
    /// Port of the server [default: any free port].
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Open https://ui.perfetto.dev instead, with the trace from this machine. Its page reads only from port 9001.
    #[arg(long, conflicts_with = "firefox")]
    perfetto: bool,
    /// Open https://profiler.firefox.com instead, with the trace from this machine.
    #[arg(long)]
    firefox: bool,
    /// Start no browser.
    #[arg(long)]
    no_open: bool,
    /// Highest number of calls in the browser's memory. Of larger traces it loads the visible part.
    #[arg(long, value_name = "CALLS", default_value_t = 10_000_000, conflicts_with_all = ["perfetto", "firefox"])]
    max_calls: u64,
    #[command(flatten)]
    shown: ShownArgs,
    #[command(flatten)]
    names: NamesArg,
    #[command(flatten)]
    _plain: PlainArgs,
}

/// Runs it.
pub(crate) fn run(args: ViewArgs) -> Result<()> {
    let site = match (args.perfetto, args.firefox) {
        (true, _) => Some(Site::Perfetto),
        (_, true) => Some(Site::Firefox),
        _ => None,
    };
    if let Some(port) = args.port.filter(|&port| args.perfetto && port != PERFETTO_PORT) {
        bail!("--port {port}: https://ui.perfetto.dev reads only from port {PERFETTO_PORT}; leave out --port");
    }
    let port = args.port.unwrap_or(0);
    let (server, url) = match site {
        None => {
            let server = match Counters::alone(&args.dir.clone().path(), &args.shown.range)? {
                Some(counters) => Server::bind(page::page_without_calls(&counters)?, port)?,
                None => {
                    let mut trace = args.shown.open(&args.dir.path())?;
                    args.names.apply(&mut trace);
                    page::serve(&mut trace, args.shown.range.tids(), port, args.max_calls)?
                }
            };
            let url = server.url();
            (server, url)
        }
        Some(site) => {
            // Exports choose times and tasks themselves.
            let trace = args.shown.open_whole_time(&args.dir.path())?;
            let server = site::serve(site, &args.shown, &trace, port)?;
            let url = site.address(&server.url());
            (server, url)
        }
    };
    print(|out| writeln!(out, "{url}").map_err(Error::Write))?;
    say!("rftrace: serving the trace until Ctrl-C");
    if !args.no_open
        && let Err(error) = browser::open(&url, &server)
    {
        say!("rftrace: cannot start a browser: {error:#}; open the address yourself");
    }
    Ok(server.run()?)
}

/// Runs it for a trace that was just recorded, as a process of its own, which gets this one's signals. Returns when it has ended.
#[cfg(target_os = "linux")]
pub(crate) fn show(dir: &std::path::Path) -> Result<()> {
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use anyhow::Context as _;
    use rftrace_record::run::pass_on;

    let program = std::env::current_exe().context("cannot find the program rftrace itself")?;
    // It is `cargo rftrace` by its first argument alone.
    pass_on(Command::new(program).arg0("rftrace").args(["view", "--"]).arg(dir)).map(drop)
}
