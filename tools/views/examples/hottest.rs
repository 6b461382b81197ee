//! Opens a trace and prints the ten functions that most time was spent in: `cargo run -p rftrace-views --example hottest -- DIR`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rftrace_read::{Error, Result, Trace};
use rftrace_views::{Field, Report};

fn main() -> Result<()> {
    let dir = std::env::args_os().nth(1).map_or_else(|| "uftrace.data".into(), PathBuf::from);
    let summary = print_hottest(&dir, &mut io::stdout().lock())?;
    if !summary.warnings.is_empty() {
        eprintln!("{}", summary.warnings);
    }
    Ok(())
}

/// Writes a line for each of the hottest functions, and returns what else is to be known of the trace.
pub(crate) fn print_hottest(dir: &Path, out: &mut dyn Write) -> Result<rftrace_read::Summary> {
    let trace = Trace::open(dir)?;
    let mut report = Report::read(&trace)?;
    report.sort(&[Field::Own]);
    let all_ns = report.self_ns().max(1);
    for row in report.rows().iter().take(10) {
        let percent = u128::from(row.self_ns) * 100 / all_ns;
        writeln!(out, "{percent:3} %  {:12} ns in {:8} calls  {}", row.self_ns, row.calls, row.name)
            .map_err(Error::Write)?;
    }
    Ok(report.summary().clone())
}
