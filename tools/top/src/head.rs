//! The lines above the table.

use rftrace_tui::text::{clean, count};

use crate::sums::Interval;
use crate::table::{Table, a_second, percent};
use crate::tick::Tick;

/// The observed process.
#[derive(Clone, Debug)]
pub struct Watched {
    /// The name of its program.
    pub program: String,
    /// The PID of the process.
    pub pid: u32,
}

/// Two lines, and whether the second one tells of losses: the process, for how long; threads, how much is recorded, how much was dropped,
/// and what it costs here.
pub(crate) fn lines(watched: &Watched, table: &Table) -> ([String; 2], bool) {
    let Watched { program, pid } = watched;
    let Tick { interval, n_dropped, n_process_threads, own_nanos } = table.shown();
    let &Interval { nanos, n_records, n_deep, n_threads, .. } = interval;
    let since = table.whole().interval.nanos / 1_000_000_000;
    let of = if table.is_whole() {
        "since the beginning".to_owned()
    } else {
        format!("the last {}.{:03} s", nanos / 1_000_000_000, nanos / 1_000_000 % 1000)
    };
    let first = format!(
        "rftrace top: {} (PID {pid}) for {}:{:02}:{:02}; {of}; waits count as time",
        clean(program),
        since / 3600,
        since / 60 % 60,
        since % 60
    );
    let mut dropped = match n_dropped {
        0 => "none dropped".to_owned(),
        &n_dropped => {
            format!(
                "dropped {} records ({} %)",
                count(n_dropped),
                percent(n_dropped, n_records.saturating_add(n_dropped))
            )
        }
    };
    if n_deep > 0 {
        dropped += &format!(", {} calls too deep", count(n_deep));
    }
    let threads = match *n_process_threads {
        0 => n_threads.to_string(),
        // Some of those that were seen may be over.
        of => format!("{n_threads} of {}", of.max(n_threads)),
    };
    let second = format!(
        "{threads} threads seen, {} calls/s, {} records/s, {dropped}; rftrace takes {} % of a processor",
        count(a_second(table.n_calls(), nanos)),
        count(a_second(n_records, nanos)),
        percent(*own_nanos, nanos)
    );
    ([first, second], *n_dropped > 0 || n_deep > 0)
}
