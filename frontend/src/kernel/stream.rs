//! Sends the records of a kernel while it runs: full chunks, which are free again then. So a trace is as long as the line lives, and not as
//! the buffer.
//!
//! Not here: the format (`image`).

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use rftrace::abi::{chunk_state, lease};

use super::send::{BANK, Machine, PACKER, stop, write_head, write_open_functions};
use crate::backend::{self, Chunk};
use crate::image::write::Writer;

/// Sends the records of a buffer that was given by [`install_streamed`](super::install_streamed).
///
/// ```ignore
/// static STREAM: Stream = Stream::new(Machine { name: "kernel", load_address: 0, tsc_hz: None, wall_nanos: None });
///
/// // In an idle task, or by a timer:
/// STREAM.poll(|bytes| serial_port.send(bytes))?;
/// // At the end, also in a panic handler:
/// STREAM.finish(|bytes| serial_port.send(bytes))?;
/// ```
///
/// On the host: `rftrace recv --serial /dev/ttyS0 --binary kernel.elf`, or `--stdin`.
///
/// Each call passes an image by itself to `out` (`docs/image-format.md`): a reader that has missed something goes on with the next one. So
/// there may be other text between calls, and none within.
#[derive(Clone, Copy, Debug)]
pub struct Stream<'a> {
    machine: Machine<'a>,
}

impl<'a> Stream<'a> {
    /// For a kernel on this machine.
    #[must_use]
    pub const fn new(machine: Machine<'a>) -> Self {
        Self { machine }
    }

    /// Sends the chunks that are full, in pieces of up to 512 bytes, and gives them back to the tracer. Returns how many that were. It does nothing
    /// while another call is at work, on another core or in what this one has interrupted.
    ///
    /// Recording goes on, but for the task that calls this, until it is done.
    ///
    /// # Errors
    ///
    /// The first one of `out`, which is not called again. A chunk that was not sent as a whole is sent by the next call.
    #[inline]
    pub fn poll<E>(&self, out: impl FnMut(&[u8]) -> Result<(), E>) -> Result<usize, E> {
        backend::unrecorded(|| self.send_full(out))
    }

    fn send_full<E>(&self, out: impl FnMut(&[u8]) -> Result<(), E>) -> Result<usize, E> {
        let Some(mut packer) = PACKER.take() else { return Ok(0) };
        BANK.beat.fetch_add(1, Relaxed);
        let mut full = backend::chunks().filter(is_full).peekable();
        if full.peek().is_none() {
            return Ok(0);
        }
        let mut writer = Writer::new(out)?;
        write_head(&mut writer, &self.machine, true, true)?;
        let mut n_sent = 0;
        for chunk in full {
            let lease = chunk.header.lease.load(Acquire);
            writer.chunk(&chunk, Some(&mut packer))?;
            writer.flush()?;
            make_free(&chunk, lease);
            n_sent += 1;
        }
        Ok(n_sent)
    }

    /// Stops recording and sends all that is left, and the end. As [`write_image`](super::write_image) it waits for no lock, so it may be called in a
    /// panic handler.
    ///
    /// # Errors
    ///
    /// The first one of `out`, which is not called again.
    #[inline]
    pub fn finish<E>(&self, out: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let is_quiet = stop();
        let mut writer = Writer::new(out)?;
        write_head(&mut writer, &self.machine, is_quiet, true)?;
        write_open_functions(&mut writer)?;
        let mut packer = PACKER.take();
        for chunk in backend::chunks() {
            writer.chunk(&chunk, packer.as_deref_mut())?;
        }
        writer.finish()
    }
}

/// Returns true if nobody will write into a chunk any more. A chunk whose hook an interrupt has held up is left until that has written.
fn is_full(chunk: &Chunk<'_>) -> bool {
    let taken_tsc = chunk.header.taken_tsc.load(Relaxed);
    match lease::state(chunk.header.lease.load(Acquire)) {
        chunk_state::FULL => true,
        chunk_state::WAITING => chunk.records.iter().all(|record| record.read(taken_tsc).is_some()),
        _ => false,
    }
}

/// Gives a chunk back whose records were sent.
fn make_free(chunk: &Chunk<'_>, lease: u64) {
    // The next taker sets the thread when all else is there.
    chunk.header.tid.store(0, Relaxed);
    let free = lease::new(lease::index(lease), chunk_state::FREE);
    let _ = chunk.header.lease.compare_exchange(lease, free, AcqRel, Relaxed);
}
