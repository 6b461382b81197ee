//! The functions of rftrace-frontend 0.3, with their signatures.

use std::io;

use crate::Mode;
use crate::tracer::{Config, SaveOptions, Tracer, switch};

/// The trace buffer that [`init`] has given to the tracer.
#[derive(Clone, Copy, Debug)]
pub struct Events {
    tracer: &'static Tracer,
}

/// Gives the tracer a buffer for `max_event_count` entries and exits, 16 bytes each. Recording is off at first.
///
/// It may be called again while recording is off, for a buffer of another size or mode; what was not written of the one before is
/// gone, and writing with its `Events` is an error then.
///
/// If `overwriting`, the buffer is a ring that keeps the most recent events; otherwise recording stops when it is
/// used up. [`Config::install`] does the same without panicking.
///
/// # Panics
///
/// While recording is on, when the size is below the minimum (about 160 events) or when there is no memory for it.
/// The message is that of the [`Error`](crate::Error).
#[must_use]
pub fn init(max_event_count: usize, overwriting: bool) -> &'static mut Events {
    let mode = if overwriting { Mode::Ring } else { Mode::Stop };
    match Config::new().capacity_events(max_event_count).mode(mode).install() {
        Ok(tracer) => Box::leak(Box::new(Events { tracer })),
        Err(error) => panic!("{error}"),
    }
}

/// Starts recording, in all threads. Does nothing before [`init`] and when the buffer is used up.
#[inline(always)]
pub fn enable() {
    switch::enable();
}

/// Stops recording, in all threads.
#[inline(always)]
pub fn disable() {
    switch::disable();
}

/// Stops recording, writes what was recorded as a uftrace directory and empties the buffer.
///
/// `out_dir` is created when absent; an older trace in it is replaced. Symbols of the program and its libraries are
/// written too. `binary_name` names the program where the system cannot tell its path (on Hermit).
///
/// # Errors
///
/// An [`Error`](crate::Error) inside of an [`io::Error`]: nothing was recorded, or a file could not be written; then
/// what was recorded is kept.
#[inline(always)]
pub fn dump_full_uftrace(events: &mut Events, out_dir: &str, binary_name: &str) -> io::Result<()> {
    events.tracer.save_with(&SaveOptions::new().directory(out_dir).binary_name(binary_name))?;
    Ok(())
}

/// Stops recording, writes only the records to the file `outfile` and empties the buffer.
///
/// The records are those of uftrace's `.dat` files: 16 bytes each, little-endian.
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
/// With several threads their records follow one another, each thread's behind an event record whose `addr` is
/// 1,000,000 plus the thread's id.
///
/// # Errors
///
/// As those of [`dump_full_uftrace`].
#[inline(always)]
pub fn dump_trace(events: &mut Events, outfile: &str) -> io::Result<()> {
    events.tracer.save_with(&SaveOptions::new().records_only(outfile))?;
    Ok(())
}
