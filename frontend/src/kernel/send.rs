//! Sends what was recorded as an image, and the parts of that.
//!
//! Not here: what it consists of (`image`), and what is sent while recording goes on (`stream`).

use core::hint;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use rftrace::abi::Bank;

use crate::backend;
use crate::clock::tsc::{self, TscSource};
use crate::image::packed::encode::Shared;
use crate::image::write::Writer;
use crate::image::{BYTE_ORDER, MAX_NAME_BYTES, flag, head};

/// How often [`write_image`] looks whether all processors have finished taking chunks. They need microseconds; one that
/// panicked meanwhile never will.
const QUIESCE_TRIES: u32 = 1_000_000;

/// Memory in which [`write_image`] packs records.
pub(super) static PACKER: Shared = Shared::new();

/// State for emptying the tracer's buffer while it is filled. Nobody waits for that.
pub(super) static BANK: Bank =
    Bank { beat: AtomicU64::new(0), wait_ticks: AtomicU64::new(0), n_lost: AtomicU64::new(0) };

/// Facts about the machine and the kernel in the image.
#[derive(Clone, Copy, Debug)]
pub struct Machine<'a> {
    /// The kernel's name in the trace, as that of its binary. Cut after 1024 bytes.
    pub name: &'a str,
    /// The virtual address at which the kernel's lowest loadable segment (`PT_LOAD`) lies while it runs; 0 for a kernel that
    /// runs at the addresses it was linked for. It is the link address of that segment plus what the loader added.
    pub load_address: u64,
    /// Frequency of the time stamp counter. `None`: [`tsc_hz_from_cpuid`](super::tsc_hz_from_cpuid) is asked; if that does not know it either, the
    /// import needs `--tsc-hz`.
    pub tsc_hz: Option<u64>,
    /// Nanoseconds since 1970 at the moment of the first [`enable`](super::enable), if the kernel has a clock. The trace keeps it beside the
    /// time stamp of that moment, so that it can be aligned with others.
    pub wall_nanos: Option<u64>,
}

/// Stops recording and passes the records to `out`, in pieces of up to 512 bytes, in the format of
/// `docs/image-format.md`. The records are kept.
///
/// Records are packed, into 2 to 4 bytes for each where chunks are large. A call while another one is at work, such as by a
/// panic handler when `out` has panicked, sends them as they are in memory, 16 bytes each.
///
/// It waits for no lock and takes no memory but 1 KiB of stack, so it may be called in a panic handler and in an interrupt. (It packs
/// in 51 KiB of zero-initialised static memory.) Where another processor was stopped in the middle of taking a chunk, it
/// goes on after about a million looks at it.
///
/// # Errors
///
/// The first one of `out`, which is not called again.
#[inline]
pub fn write_image<E>(machine: &Machine<'_>, out: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
    let is_quiet = stop();
    let mut writer = Writer::new(out)?;
    write_head(&mut writer, machine, is_quiet, false)?;
    write_open_functions(&mut writer)?;
    let mut packer = PACKER.take();
    for chunk in backend::chunks() {
        writer.chunk(&chunk, packer.as_deref_mut())?;
    }
    writer.finish()
}

/// Stops recording. Returns whether nobody is taking a chunk any more.
#[inline]
pub(super) fn stop() -> bool {
    backend::disable();
    let mut tries = 0;
    backend::quiesce(|| {
        hint::spin_loop();
        tries += 1;
        tries < QUIESCE_TRIES
    })
}

#[inline]
pub(super) fn write_head<E, F: FnMut(&[u8]) -> Result<(), E>>(
    writer: &mut Writer<F>,
    machine: &Machine<'_>,
    is_quiet: bool,
    is_streamed: bool,
) -> Result<(), E> {
    let name = machine.name.as_bytes();
    let name = name.get(..MAX_NAME_BYTES).unwrap_or(name);
    writer.head(&head_words(machine, name.len(), is_quiet, is_streamed), name)
}

/// First of all behind the head: recording is off, but the threads go on, and what returns is not known any more.
#[inline]
pub(super) fn write_open_functions<E, F: FnMut(&[u8]) -> Result<(), E>>(writer: &mut Writer<F>) -> Result<(), E> {
    for thread in backend::threads() {
        let n_open = backend::open_functions(thread).count();
        writer.open_functions(thread.tid.load(Relaxed), n_open, backend::open_functions(thread))?;
    }
    Ok(())
}

/// The words of the HEAD section.
#[inline]
fn head_words(machine: &Machine<'_>, name_bytes: usize, is_quiet: bool, is_streamed: bool) -> [u64; head::N_WORDS] {
    let control = backend::control();
    let told = machine.tsc_hz.filter(|&hz| hz > 0).map(|hz| (hz, TscSource::Kernel));
    let tsc_hz = told.or_else(tsc::exact_hz).or_else(tsc::nominal_hz);
    let flags = [
        (control.overwriting.load(Relaxed) != 0, flag::RING),
        (control.full.load(Relaxed) != 0, flag::FULL),
        (!is_quiet, flag::UNQUIET),
        (tsc::is_invariant(), flag::INVARIANT_TSC),
        (is_streamed, flag::STREAMED),
    ];
    let mut words = [0; head::N_WORDS];
    words[head::BYTE_ORDER] = BYTE_ORDER;
    words[head::CHUNK_BYTES] = control.chunk_bytes.load(Relaxed) as u64;
    words[head::N_CHUNKS] = control.n_chunks.load(Relaxed) as u64;
    words[head::N_CHUNKS_USED] = if is_streamed { 0 } else { backend::chunks().count() as u64 };
    words[head::LOAD_ADDRESS] = machine.load_address;
    words[head::FIRST_TSC] = control.cycle_start_tsc.load(Relaxed);
    words[head::STOP_TSC] = control.stop_tsc.load(Relaxed);
    words[head::WALL_NANOS] = machine.wall_nanos.unwrap_or(0);
    words[head::TSC_HZ] = tsc_hz.map_or(0, |(hz, _)| hz);
    words[head::TSC_HZ_SOURCE] = tsc_hz.map_or(0, |(_, source)| source.number());
    words[head::FLAGS] = flags.iter().filter(|(is_set, _)| *is_set).map(|&(_, bit)| bit).sum();
    words[head::N_OVERWRITTEN] = control.shared.n_overwritten.load(Relaxed);
    words[head::N_LOST_NO_CHUNK] = control.n_lost_no_chunk.load(Relaxed) + BANK.n_lost.load(Relaxed);
    words[head::N_UNTRACED_THREADS] = control.n_untraced_threads.load(Relaxed).into();
    words[head::SENT_TSC] = tsc::ticks();
    words[head::NAME_BYTES] = name_bytes as u64;
    words
}
