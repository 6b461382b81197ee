//! Sending of the records as an image, and the parts of an image.
//!
//! Not here: the image's format (`image`), and sending while recording goes on (`stream`).

use core::hint;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use rftrace::abi::Bank;

use crate::backend;
use crate::clock::tsc::{self, TscSource};
use crate::image::packed::encode::Shared;
use crate::image::write::Writer;
use crate::image::{BYTE_ORDER, MAX_NAME_BYTES, flag, head};

/// The number of times [`write_image`] checks that all processors have finished taking chunks. They need microseconds;
/// one after a panic meanwhile never will.
const QUIESCE_TRIES: u32 = 1_000_000;

/// The memory for packing records in [`write_image`].
pub(super) static PACKER: Shared = Shared::new();

/// The state for emptying the tracer's buffer while it is filled, without waits.
pub(super) static BANK: Bank =
    Bank { beat: AtomicU64::new(0), wait_ticks: AtomicU64::new(0), n_lost: AtomicU64::new(0) };

/// Facts about the machine and the kernel, for the image.
#[derive(Clone, Copy, Debug)]
pub struct Machine<'a> {
    /// The kernel's name in the trace, and of its binary. At most 1024 bytes are used.
    pub name: &'a str,
    /// The virtual address of the kernel's lowest loadable segment (`PT_LOAD`) at run time: its link address plus the
    /// loader's offset. 0 for a kernel at its link address.
    pub load_address: u64,
    /// The frequency of the time stamp counter in Hz. With `None`, [`tsc_hz_from_cpuid`](super::tsc_hz_from_cpuid)
    /// supplies it; if that returns `None` too, the import needs `--tsc-hz`.
    pub tsc_hz: Option<u64>,
    /// The time of the first [`enable`](super::enable) in nanoseconds since 1970, or `None` for a kernel without a
    /// clock. With it the trace can be aligned with others.
    pub wall_nanos: Option<u64>,
}

/// Stops recording and passes the records to `out`, in pieces of up to 512 bytes, in the format of
/// `docs/image-format.md`. The buffer keeps the records.
///
/// Records are packed, into 2 to 4 bytes each in large chunks. A second call during the first one, such as by a panic
/// handler when `out` has panicked, sends them unpacked, 16 bytes each.
///
/// The function waits for no lock and takes 1 KiB of stack, so panic handlers and interrupts may call it. (It packs in
/// 51 KiB of zero-initialised static memory.)
///
/// If another processor was stopped while it was taking a chunk, the function checks about a million times, then goes
/// on.
///
/// # Errors
///
/// The first error of `out`, which is not called again.
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

/// Stops recording. Returns true if no processor is taking a chunk any more.
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

/// Writes the open functions, first behind the head: recording is off, but the threads go on, and later returns are
/// unknown.
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
