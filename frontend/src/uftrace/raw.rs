//! Only the records of a trace, in one file, as `dump_trace` of 0.3 writes them.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use rftrace_format::events::USER_EVENTS;
use rftrace_format::record::{Kind, Record};
use rftrace_format::store;

use super::directory::{Recording, Totals, filled};
use super::task::{EventIds, encode_event};
use crate::Error;
use crate::decode::{self, Event, EventKind};

/// Writes only the records, the tasks one after the other in one file. With several tasks, each begins with an EVENT
/// record with the id [`USER_EVENTS`]`.start` plus the thread's id.
pub(crate) fn write(recording: &Recording<'_>, path: &Path) -> Result<Totals, Error> {
    let window = recording.window(&|_| false);
    let mut totals = Totals::default();
    let no_names = EventIds::default();
    let fill = |out: &mut BufWriter<File>| {
        for task in recording.tasks {
            if recording.tasks.len() > 1 {
                let nanos = recording.clock.nanos(recording.start_tsc);
                let addr = USER_EVENTS.start + u64::from(task.tid);
                let begin =
                    Record { time_ns: nanos, kind: Kind::Event, has_payload: false, payload_at: 0, depth: 0, addr };
                out.write_all(&begin.encode())?;
            }
            let before = totals.n_events;
            decode::decode(task, &window, |event: Event| {
                match event.kind {
                    EventKind::Entry | EventKind::Exit => {
                        totals.n_events += 1;
                        out.write_all(&encode_event(event, recording.clock.nanos(event.tsc), &no_names))
                    }
                    // The file has no names for other events, and an id would be taken for a thread's.
                    EventKind::Lost(n) => {
                        totals.n_lost = totals.n_lost.saturating_add(n);
                        Ok(())
                    }
                    EventKind::Gap | EventKind::Core(_) | EventKind::DidNotReturn => Ok(()),
                }
            })?;
            totals.n_threads += usize::from(totals.n_events > before);
        }
        Ok(())
    };
    let created = store::create_output(path, &[]);
    created.and_then(|file| filled(file, fill)).map_err(|source| Error::Write { path: path.to_owned(), source })?;
    Ok(totals)
}
