//! Sending of a kernel's records while it runs: each full chunk is sent and then free again. So the length of the trace
//! is not limited by the buffer.
//!
//! Not here: the format (`image`).

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use rftrace::abi::{chunk_state, lease};

use super::send::{BANK, Machine, PACKER, stop, write_head, write_open_functions};
use crate::backend::{self, Chunk};
use crate::image::write::Writer;

/// A sender for the records of a buffer from [`install_streamed`](super::install_streamed).
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
/// Each call passes a complete image to `out` (`docs/image-format.md`). A reader that has missed one goes on with the
/// next. Other text may come between calls, and none within one.
#[derive(Clone, Copy, Debug)]
pub struct Stream<'a> {
    machine: Machine<'a>,
}

impl<'a> Stream<'a> {
    /// Creates the sender for a kernel on this machine.
    #[must_use]
    pub const fn new(machine: Machine<'a>) -> Self {
        Self { machine }
    }

    /// Sends the full chunks, in pieces of up to 512 bytes, and gives them back to the tracer. Returns their number.
    ///
    /// It does nothing while another call is at work, on another core or in the code that this one has interrupted.
    /// Recording goes on, except for the calling task during the call.
    ///
    /// # Errors
    ///
    /// The first error of `out`, which is not called again. The next call repeats a partly sent chunk.
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

    /// Stops recording and sends the remaining records and the end. Like [`write_image`](super::write_image) it waits
    /// for no lock, so panic handlers may call it.
    ///
    /// # Errors
    ///
    /// The first error of `out`, which is not called again.
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

/// Returns true if nobody will write into a chunk any more. A chunk of an interrupted hook is left until its last
/// write.
fn is_full(chunk: &Chunk<'_>) -> bool {
    let taken_tsc = chunk.header.taken_tsc.load(Relaxed);
    match lease::state(chunk.header.lease.load(Acquire)) {
        chunk_state::FULL => true,
        chunk_state::WAITING => chunk.records.iter().all(|record| record.read(taken_tsc).is_some()),
        _ => false,
    }
}

/// Gives a chunk back after its records were sent.
fn make_free(chunk: &Chunk<'_>, lease: u64) {
    // The next taker sets the thread when all else is there.
    chunk.header.tid.store(0, Relaxed);
    let free = lease::new(lease::index(lease), chunk_state::FREE);
    let _ = chunk.header.lease.compare_exchange(lease, free, AcqRel, Relaxed);
}
