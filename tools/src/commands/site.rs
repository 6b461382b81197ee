//! `rftrace view --perfetto` and `--firefox`: the pages of others, with the trace from this machine.
//!
//! Not here: how the formats are written (`rftrace-export`), and the server (`rftrace-page`).

use std::fs::File;
use std::io::{BufWriter, Write};

use anyhow::{Context, Result};
use rftrace_export::{ExportOptions, Firefox, Perfetto, Sink, WallClock};
use rftrace_page::{Server, SharedFile};
use rftrace_read::{Error, Trace};

use super::choice::{ShownArgs, Time};
use super::common::print_warnings;
use super::counters::Counters;
use super::dump::export_with_progress;
use super::page::title;

/// The port that ui.perfetto.dev reads from; it may from no other one of this machine.
pub(super) const PERFETTO_PORT: u16 = 9001;

/// A page that shows traces, and gets them from where it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Site {
    Perfetto,
    Firefox,
}

impl Site {
    fn origin(self) -> &'static str {
        match self {
            Self::Perfetto => "https://ui.perfetto.dev",
            Self::Firefox => "https://profiler.firefox.com",
        }
    }

    /// The address of the page that shows what is at `url`.
    pub(super) fn address(self, url: &str) -> String {
        match self {
            Self::Perfetto => format!("{}/#!/?url={url}", self.origin()),
            Self::Firefox => format!("{}/from-url/{}", self.origin(), url.replace(':', "%3A").replace('/', "%2F")),
        }
    }
}

/// Writes a trace for a site, and listens for that.
pub(super) fn serve(site: Site, shown: &ShownArgs, trace: &Trace, port: u16) -> Result<Server> {
    let file = tempfile::tempfile().with_context(|| format!("cannot write to {}", std::env::temp_dir().display()))?;
    write(site, shown, trace, &file)?;
    let (name, kind, port) = match site {
        Site::Perfetto => ("trace.pftrace", "application/octet-stream", PERFETTO_PORT),
        Site::Firefox => ("profile.json", "application/json", port),
    };
    let shared = SharedFile { file, name, kind, origin: site.origin() };
    Server::bind_for(shared, port).with_context(|| format!("cannot listen on port {port} of this machine"))
}

fn write(site: Site, shown: &ShownArgs, trace: &Trace, file: &File) -> Result<()> {
    let times = shown.range.times(trace)?;
    let mut options = ExportOptions::default();
    options.from_ns = Some(times.start).filter(|&ns| ns > 0);
    options.to_ns = Some(times.end).filter(|&ns| ns < u64::MAX);
    options.tids = shown.range.tids().to_vec();
    options.check(trace)?;
    let (title, wall_clock) = (title(trace), WallClock::of(trace));
    let mut out = BufWriter::with_capacity(256 * 1024, file);
    let summary = {
        let mut sink: Box<dyn Sink + '_> = match site {
            Site::Perfetto => Box::new(Perfetto::new(&mut out, wall_clock)),
            Site::Firefox => {
                Firefox::<Vec<u8>>::check(trace, &options)?;
                let start_ns = Time::SinceStart(0).absolute(trace)?.max(options.from_ns.unwrap_or(0));
                Box::new(Firefox::new(&mut out, &title, start_ns, wall_clock))
            }
        };
        let counters = (site == Site::Perfetto).then(|| Counters::open(trace.dir())).transpose()?.flatten();
        export_with_progress(trace, &options, sink.as_mut(), false, counters.as_ref())?
    };
    out.flush().map_err(Error::Write)?;
    print_warnings(trace, &summary)
}

#[cfg(test)]
mod tests {
    use super::Site;

    #[test]
    fn addresses_of_pages() {
        let url = "http://127.0.0.1:9001/00ff/trace";
        assert_eq!(Site::Perfetto.address(url), "https://ui.perfetto.dev/#!/?url=http://127.0.0.1:9001/00ff/trace");
        let firefox = "https://profiler.firefox.com/from-url/http%3A%2F%2F127.0.0.1%3A9001%2F00ff%2Ftrace";
        assert_eq!(Site::Firefox.address(url), firefox);
    }
}
