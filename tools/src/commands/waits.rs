//! `rftrace report --waits`.

use std::io::{self, Write};

use anyhow::{Result, bail};
use rftrace_read::{Error, Trace};
#[cfg(feature = "full")]
use rftrace_views::WaitRow;
use rftrace_views::Waits;

use super::common::{Format, cell, check_shown, print, print_warnings};
use super::stand_ins;

/// Shows the waits of a trace.
pub(super) fn show(trace: &Trace, format: Format, limit: usize) -> Result<()> {
    let dir = stand_ins::of_user(trace.dir());
    let Some(waits) = Waits::read(trace)? else {
        bail!(
            "{}: the trace has no context switches, so its waits are not known; record it without --no-schedule, where the kernel permits \
             perf events",
            dir.display()
        );
    };
    check_shown(trace, waits.summary())?;
    print(|out| match format {
        Format::Table => waits.write(limit, out),
        Format::Csv => write_csv(&waits, limit, out).map_err(Error::Write),
        #[cfg(feature = "full")]
        Format::Json => write_json(&waits, limit, out).map_err(Error::Write),
    })?;
    if !waits.has_wakings() && !waits.rows().is_empty() {
        say!(
            "rftrace: {}: the trace has no wakings, so it is not known who ended the waits; record it as root, outside of containers, where \
             tracefs is mounted",
            dir.display()
        );
    }
    print_warnings(trace, waits.summary())
}

fn write_csv(waits: &Waits, limit: usize, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "function,cause,waking-function,waking-thread,total,longest,waits")?;
    for row in waits.rows().iter().take(limit) {
        let [function, thread] = row.cause.waker();
        let texts = [row.function.as_deref(), Some(row.cause.word()), function, thread];
        let texts = texts.map(|text| cell(text.unwrap_or_default())).join(",");
        writeln!(out, "{texts},{},{},{}", row.times.total_ns, row.times.longest_ns, row.times.waits)?;
    }
    Ok(())
}

#[cfg(feature = "full")]
fn write_json(waits: &Waits, limit: usize, out: &mut dyn Write) -> io::Result<()> {
    let object = |row: &WaitRow| {
        let [function, thread] = row.cause.waker();
        let texts = [("function", row.function.as_deref()), ("waking-function", function), ("waking-thread", thread)];
        let texts = texts.into_iter().filter_map(|(key, text)| Some((key.to_owned(), text?.into())));
        let times = [("total", row.times.total_ns), ("longest", row.times.longest_ns), ("waits", row.times.waits)];
        let times = times.map(|(key, number)| (key.to_owned(), number.into()));
        let cause = [("cause".to_owned(), row.cause.word().into())];
        serde_json::Value::Object(texts.chain(cause).chain(times).collect())
    };
    let rows: Vec<_> = waits.rows().iter().take(limit).map(object).collect();
    serde_json::to_writer_pretty(&mut *out, &rows)?;
    writeln!(out)
}
