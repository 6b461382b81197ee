//! The functions of rftrace-frontend 0.3, with their signatures.

use std::io;

use crate::tracer::{Config, SaveOptions, Tracer, switch};
use crate::{Error, Mode};

/// The handle of the trace buffer, returned by [`init`]. [`dump_full_uftrace`] and [`dump_trace`] take it.
#[derive(Clone, Copy, Debug)]
pub struct Events {
    tracer: &'static Tracer,
}

/// Gives the tracer a buffer for `max_event_count` entries and exits, 16 bytes each. Recording is off at first.
///
/// With `overwriting`, the buffer is a ring of the most recent events. Otherwise recording stops when the buffer is
/// used up. [`Config::install`] does the same and returns errors.
///
/// A program may call it again while recording is off, for a buffer of another size or mode. Unwritten records of the
/// old buffer are lost, and a dump with its `Events` fails.
///
/// # Panics
///
/// While recording is on; if the size is below the minimum (about 160 events); if the system has no memory for the
/// buffer. The panic message is that of the [`Error`](crate::Error).
#[must_use]
pub fn init(max_event_count: usize, overwriting: bool) -> &'static mut Events {
    let mode = if overwriting { Mode::Ring } else { Mode::Stop };
    let config = Config::new().capacity_events(max_event_count).mode(mode);
    match config.discard_unsaved(true).save_at_exit(false).install() {
        Ok(tracer) => Box::leak(Box::new(Events { tracer })),
        Err(error) => panic!("{error}"),
    }
}

/// Starts recording, on all threads. It does nothing before [`init`], and when the buffer is used up.
#[inline(always)]
pub fn enable() {
    switch::enable();
}

/// Stops recording, on all threads. In the trace, open functions end at this moment.
#[inline(always)]
pub fn disable() {
    switch::disable();
}

/// Stops recording, writes the trace to the directory `out_dir`, and empties the buffer. `rftrace replay OUT_DIR` shows
/// it.
///
/// Creates `out_dir` if it is absent, and replaces an older trace in it. The trace includes the symbols of the program
/// and its libraries. `binary_name` is the program's name on systems that do not report its path (Hermit).
///
/// # Errors
///
/// An [`io::Error`] that wraps an [`Error`](crate::Error): the buffer holds no events, or a file could not be written.
/// The buffer keeps its records then. A trace without its end is none: a line on stderr has the reason.
#[inline(always)]
pub fn dump_full_uftrace(events: &mut Events, out_dir: &str, binary_name: &str) -> io::Result<()> {
    save_and_tell(events.tracer, &SaveOptions::new().directory(out_dir).binary_name(binary_name))?;
    Ok(())
}

/// Saves for a caller who gets no [`Saved`](crate::Saved): a line on stderr says why the end is lost.
///
/// # Errors
///
/// The errors of [`Tracer::save_with`].
#[doc(hidden)]
#[inline(always)]
#[expect(clippy::print_stderr, reason = "the only way to tell")]
pub fn save_and_tell(tracer: &Tracer, options: &SaveOptions<'_>) -> Result<(), Error> {
    let saved = tracer.save_with(options)?;
    if let Some(loss) = saved.loss() {
        eprintln!("rftrace: the trace in {} is incomplete: {loss}", saved.path.display());
    }
    Ok(())
}

/// Stops recording, writes only the records to the file `outfile`, and empties the buffer.
///
/// The file holds records of uftrace's `.dat` files, 16 bytes each, little-endian:
///
/// ```c
/// struct uftrace_record {
///     uint64_t time;        // nanoseconds of CLOCK_MONOTONIC
///     uint64_t type:   2;   // 0 entry, 1 exit, 3 event
///     uint64_t more:   1;   // 0
///     uint64_t magic:  3;   // 5
///     uint64_t depth:  10;
///     uint64_t addr:   48;  // an address in the function
/// };
/// ```
///
/// With several threads, their records follow one another. An event record, whose `addr` is 1,000,000 plus the thread's
/// id, precedes those of each thread.
///
/// # Errors
///
/// The errors of [`dump_full_uftrace`].
#[inline(always)]
pub fn dump_trace(events: &mut Events, outfile: &str) -> io::Result<()> {
    save_and_tell(events.tracer, &SaveOptions::new().records_only(outfile))?;
    Ok(())
}
