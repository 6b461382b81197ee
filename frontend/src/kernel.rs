//! Tracing of kernels and other code without an operating system. This module gives the tracer static memory, starts
//! and stops recording, and sends the trace as an image.
//!
//! On another machine `rftrace import` makes a directory of the image, and `rftrace replay` shows it.
//!
//! The module uses no allocation, no lock and no dependency except `core`. With `default-features = false` the crate
//! consists of this module alone:
//!
//! ```toml
//! [dependencies]
//! rftrace = "0.3.3"
//! rftrace-frontend = { version = "0.3.3", default-features = false }
//! ```
//!
//! ```ignore
//! extern crate rftrace as _; // links the tracer
//! use rftrace_frontend::kernel::{self, Machine, Mode};
//!
//! // `buffer` and `left` are static memory, such as from a linker section or a cell that gives it away once.
//! kernel::install(buffer, left, Mode::Ring)?;
//! kernel::enable();
//! work();
//! kernel::disable();
//! let machine = Machine { name: "kernel", load_address: 0, tsc_hz: None, wall_nanos: None };
//! kernel::write_image(&machine, |bytes| serial_port.send(bytes))?;
//! ```
//!
//! On the host: `rftrace import IMAGE --binary kernel.elf`.
//!
//! # Requirements
//!
//! The line to the host must pass all 256 values of a byte, without translation of line ends. The host skips everything
//! before the image, so log text may precede it. Text within the image destroys it.
//!
//! # Memory for thread blocks
//!
//! A tracer for a target without operating system (`target_os = "none"`) keeps the data of each thread in thread-local
//! storage. For other targets, as in a test of this module on Linux, [`install`] takes an eighth of the buffer for it,
//! and room for two threads at least.

use core::fmt;
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;

use rftrace::abi::{Bank, InitArgs, LEFT_BUCKET_BYTES, LeftCell, ThreadBlock, init};

use crate::arch;
use crate::backend;
use crate::clock::tsc;

pub use crate::mode::Mode;
pub use send::{Machine, write_image};
pub use stream::Stream;

mod send;
mod stream;

/// The maximum number of blocks from the buffer, for a tracer without its own.
const MAX_BLOCKS: usize = 256;

/// The reason why the tracer refused its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InstallError {
    /// The tracer already has its memory.
    AlreadyInstalled,
    /// The kernel runs with a shadow stack (CET), so the tracer cannot hook returns.
    ShadowStack,
    /// The buffer is smaller than the minimum.
    BufferTooSmall {
        /// The given size in bytes.
        bytes: usize,
        /// The minimum in bytes.
        minimum: usize,
    },
}

impl fmt::Display for InstallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadyInstalled => {
                write!(f, "the tracer has a buffer already; a kernel can install one buffer only")
            }
            Self::ShadowStack => {
                write!(
                    f,
                    "the tracer cannot record returns of a kernel with a shadow stack (CET); switch it off (IA32_S_CET)"
                )
            }
            Self::BufferTooSmall { bytes, minimum } => {
                write!(f, "a trace buffer of {bytes} bytes is too small; the minimum is {minimum}")
            }
        }
    }
}

impl core::error::Error for InstallError {}

/// Gives the tracer its memory, once in the life of the kernel. Recording is off at first.
///
/// `buffer` takes records, 16 bytes for each entry and exit, at any alignment. The tracer divides it into chunks of 512
/// bytes to 64 KiB, at least 64 of them in a large buffer.
///
/// Chunks begin at multiples of their size, so a buffer that does not loses up to one chunk (an alignment of 64 KiB
/// always suffices). A thread holds one or two chunks.
///
/// `left` takes the frames of functions that a `longjmp` or a switch of stacks leaves without a return:
/// [`LEFT_BUCKET_BYTES`] for 64 frames. If it is empty, these frames stay on the return stacks of their threads.
///
/// This function clears both.
///
/// # Errors
///
/// [`InstallError`]; the tracer does not use the memory then.
#[inline]
pub fn install(buffer: &'static mut [u8], left: &'static mut [u8], mode: Mode) -> Result<(), InstallError> {
    install_for(buffer, left, mode == Mode::Ring, ptr::null())
}

/// Gives the tracer its memory, like [`install`], for a buffer that a [`Stream`] empties while it is filled. The length
/// of the trace is not limited by the buffer. A thread without a free chunk does not wait; its calls are counted and
/// not recorded.
///
/// # Errors
///
/// [`InstallError`]; the tracer does not use the memory then.
#[inline]
pub fn install_streamed(buffer: &'static mut [u8], left: &'static mut [u8]) -> Result<(), InstallError> {
    install_for(buffer, left, false, &raw const send::BANK)
}

#[inline]
fn install_for(
    buffer: &'static mut [u8],
    left: &'static mut [u8],
    is_ring: bool,
    bank: *const Bank,
) -> Result<(), InstallError> {
    let n_bytes = buffer.len();
    let too_small = InstallError::BufferTooSmall { bytes: n_bytes, minimum: MINIMUM_BYTES };
    if n_bytes < MINIMUM_BYTES {
        return Err(too_small);
    }
    if backend::control().chunk_bytes.load(Relaxed) != 0 {
        return Err(InstallError::AlreadyInstalled);
    }
    buffer.fill(0);
    left.fill(0);
    let (blocks, buffer) = split_blocks(buffer);
    let left = aligned(left, align_of::<LeftCell>());
    let has_left = left.len() >= LEFT_BUCKET_BYTES;
    let args = InitArgs {
        buffer: buffer.as_mut_ptr(),
        buffer_bytes: buffer.len(),
        blocks: if blocks.is_empty() { ptr::null_mut() } else { blocks.as_mut_ptr() },
        blocks_bytes: blocks.len(),
        left: if has_left { left.as_mut_ptr() } else { ptr::null_mut() },
        left_bytes: if has_left { left.len() } else { 0 },
        overwriting: u8::from(is_ring),
        bank,
        thread_start: None,
        thread_start_key: 0,
    };
    arch::tell_tracer();
    // SAFETY: the slices are the only references to this memory, for ever, and were given up to this function, which
    // cleared them.
    match unsafe { backend::initialize(&args) } {
        init::OK => Ok(()),
        init::ALREADY_DONE => Err(InstallError::AlreadyInstalled),
        init::SHADOW_STACK => Err(InstallError::ShadowStack),
        _ => Err(too_small),
    }
}

/// The minimum size of a buffer, at any address.
const MINIMUM_BYTES: usize = backend::minimum_bytes()
    + if BLOCKS_IN_BUFFER { 2 * size_of::<ThreadBlock>() + align_of::<ThreadBlock>() } else { 0 };

/// True if the tracer needs memory for thread blocks.
const BLOCKS_IN_BUFFER: bool = !cfg!(target_os = "none");

/// Takes the memory for thread blocks, if it is needed, from the buffer.
#[inline]
fn split_blocks(buffer: &'static mut [u8]) -> (&'static mut [u8], &'static mut [u8]) {
    if !BLOCKS_IN_BUFFER {
        return (&mut [], buffer);
    }
    let buffer = aligned(buffer, align_of::<ThreadBlock>());
    let n_blocks = (buffer.len() / 8 / size_of::<ThreadBlock>()).clamp(2, MAX_BLOCKS);
    buffer.split_at_mut_checked(n_blocks * size_of::<ThreadBlock>()).unwrap_or_default()
}

/// The part of `memory` from the first multiple of `alignment` on.
#[inline]
fn aligned(memory: &'static mut [u8], alignment: usize) -> &'static mut [u8] {
    let skipped = memory.as_ptr().align_offset(alignment);
    memory.get_mut(skipped..).unwrap_or_default()
}

/// Starts recording, on all processors. It does nothing before [`install`], and when the buffer is used up.
#[inline(always)]
pub fn enable() {
    backend::enable();
}

/// Stops recording, on all processors. In the trace, open functions end at this moment.
#[inline(always)]
pub fn disable() {
    backend::disable();
}

/// Sets the core of the calling task. Call it whenever a task begins to run on a core. The trace shows each change as
/// an event `rftrace:core_N`.
#[inline(always)]
pub fn set_core(core: u32) {
    backend::set_core(core);
}

/// Ends the calling task: its open functions end too, and the tracer records nothing more of it. The memory of its
/// block may then be cleared and used for another task.
#[inline(always)]
pub fn end_thread() {
    backend::end_thread();
}

/// Returns true while recording is on.
#[inline(always)]
#[must_use]
pub fn is_enabled() -> bool {
    backend::is_enabled()
}

/// Returns the frequency of the time stamp counter in Hz, as the hypervisor or the processor reports it: by CPUID leaf
/// 0x40000010 of KVM and VMware, by leaf 0x15, or by leaf 0x16 (rounded to MHz). `None` if none of them reports it.
#[must_use]
pub fn tsc_hz_from_cpuid() -> Option<u64> {
    tsc::exact_hz().or_else(tsc::nominal_hz).map(|(hz, _)| hz)
}

/// Returns the frequency of the time stamp counter in Hz, for a number of ticks and their duration by another clock,
/// such as a timer of known rate. `None` if `ticks` or `nanos` is 0.
#[must_use]
pub const fn tsc_hz_from_interval(ticks: u64, nanos: u64) -> Option<u64> {
    if ticks == 0 || nanos == 0 {
        return None;
    }
    let hz = ticks as u128 * 1_000_000_000 / nanos as u128;
    if hz == 0 || hz > u64::MAX as u128 { None } else { Some(hz as u64) }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use crate::image::MAX_NAME_BYTES;

    fn memory(n_bytes: usize) -> &'static mut [u8] {
        vec![1; n_bytes].leak()
    }

    #[test]
    fn a_small_buffer_is_refused() {
        let minimum = match install(memory(100), &mut [], Mode::Stop) {
            Err(InstallError::BufferTooSmall { bytes: 100, minimum }) => minimum,
            result => panic!("{result:?}"),
        };
        let message = install(memory(minimum - 1), &mut [], Mode::Stop).unwrap_err().to_string();
        assert!(message.contains(&(minimum - 1).to_string()) && message.contains(&minimum.to_string()), "{message}");
    }

    #[test]
    fn blocks_and_buffer_share_the_memory() {
        for (n_bytes, skipped) in [(MINIMUM_BYTES, 0), (MINIMUM_BYTES, 1), (1 << 20, 63), (1 << 30, 5)] {
            // Memory that is only reserved.
            // SAFETY: an anonymous mapping that nobody else has, and that stays.
            let memory: &'static mut [u8] = unsafe {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                let memory =
                    libc::mmap(ptr::null_mut(), n_bytes + 64, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
                assert_ne!(memory, libc::MAP_FAILED);
                core::slice::from_raw_parts_mut(memory.cast::<u8>().add(skipped), n_bytes)
            };
            let end = memory.as_ptr_range().end;
            let (blocks, buffer) = split_blocks(memory);
            assert!(blocks.as_ptr().cast::<ThreadBlock>().is_aligned());
            assert!((2..=MAX_BLOCKS).contains(&(blocks.len() / size_of::<ThreadBlock>())));
            assert_eq!(blocks.as_ptr_range().end, buffer.as_ptr());
            assert_eq!(buffer.as_ptr_range().end, end);
            assert!(buffer.len() >= backend::minimum_bytes(), "{}", buffer.len());
        }
    }

    #[test]
    fn a_frequency_from_an_interval() {
        assert_eq!(tsc_hz_from_interval(25_000_000, 10_000_000), Some(2_500_000_000));
        assert_eq!(tsc_hz_from_interval(u64::MAX, 1), None);
        assert_eq!(tsc_hz_from_interval(0, 1), None);
        assert_eq!(tsc_hz_from_interval(1, 0), None);
    }

    #[test]
    fn a_long_name_is_cut() {
        let name = "n".repeat(MAX_NAME_BYTES + 1);
        let machine = Machine { name: &name, load_address: 0, tsc_hz: Some(5), wall_nanos: Some(7) };
        let mut n_bytes = 0;
        let written = write_image(&machine, |bytes| {
            assert!(!bytes.is_empty() && bytes.len() <= 512);
            n_bytes += bytes.len();
            Ok::<(), ()>(())
        });
        assert!(written.is_ok() && n_bytes > MAX_NAME_BYTES);
        let mut n_calls = 0;
        let failed = write_image(&machine, |_| {
            n_calls += 1;
            Err("no line")
        });
        assert_eq!((failed, n_calls), (Err("no line"), 1));
    }
}
