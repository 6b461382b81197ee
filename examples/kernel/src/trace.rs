//! Tracing of a kernel: gives the tracer memory, switches it on and off, and sends the records.

use core::cell::UnsafeCell;
use core::convert::Infallible;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicBool, AtomicU64};

use rftrace_frontend::kernel::{self, Machine, Mode, Stream};

use crate::arch::clock::{self, Rates};
use crate::arch::serial;

/// For the newest records of all tasks, 16 bytes each; older ones are overwritten.
const BUFFER_BYTES: usize = 1 << 20;

/// The tracer asks for no alignment, but wastes nothing with this one.
#[repr(C, align(65536))]
struct Buffer {
    bytes: UnsafeCell<[u8; BUFFER_BYTES]>,
    is_taken: AtomicBool,
}

// SAFETY: the memory is given away once.
unsafe impl Sync for Buffer {}

static BUFFER: Buffer = Buffer { bytes: UnsafeCell::new([0; BUFFER_BYTES]), is_taken: AtomicBool::new(false) };
/// True if records are sent while the kernel runs.
static IS_STREAMED: AtomicBool = AtomicBool::new(false);
static COUNTER_HZ: AtomicU64 = AtomicU64::new(0);
static WALL_NANOS: AtomicU64 = AtomicU64::new(0);

/// Gives the tracer its memory.
///
/// # Panics
///
/// The second time.
pub fn install(rates: Rates, is_streamed: bool) {
    assert!(!BUFFER.is_taken.swap(true, AcqRel), "the trace buffer was given away already");
    // SAFETY: nobody else has a reference to it, as this line is reached once.
    let buffer = unsafe { &mut *BUFFER.bytes.get() };
    // No function is left without returning here, by longjmp or the like, so there is no memory for such.
    let installed = if is_streamed {
        kernel::install_streamed(buffer, &mut [])
    } else {
        kernel::install(buffer, &mut [], Mode::Ring)
    };
    if let Err(error) = installed {
        panic!("{error}");
    }
    IS_STREAMED.store(is_streamed, Relaxed);
    COUNTER_HZ.store(rates.counter_hz, Relaxed);
}

/// Starts recording. Inlined, as is [`stop`]: what runs while recording is on is recorded.
#[inline(always)]
pub fn start() {
    WALL_NANOS.store(clock::wall_nanos(), Relaxed);
    kernel::enable();
}

/// Stops recording.
#[inline(always)]
pub fn stop() {
    kernel::disable();
}

/// Has the trace tell on which core the task that runs is. Here tasks stay on their core; elsewhere it is told at each switch.
#[inline(always)]
pub fn set_core(number: usize) {
    kernel::set_core(number as u32);
}

/// The task that runs ends, in the trace too: nothing that it does from now on is recorded.
#[inline(always)]
pub fn end_task() {
    kernel::end_thread();
}

/// Sends what has filled a part of the buffer, if that is to be done while the kernel runs. Inlined, so that it is no call in the trace; what it does
/// is not recorded.
#[inline(always)]
pub fn poll() {
    if IS_STREAMED.load(Relaxed) {
        let Ok(_) = Stream::new(machine()).poll(as_stream);
    }
}

/// Sends what was recorded and is not sent yet, if the tracer has its memory. Neither locks nor memory are needed, so a panic handler may call it.
pub fn send() {
    if !BUFFER.is_taken.load(Acquire) {
        return;
    }
    let Ok(()) = if IS_STREAMED.load(Relaxed) {
        Stream::new(machine()).finish(as_stream)
    } else {
        kernel::write_image(&machine(), |bytes| {
            serial::send_image(bytes);
            Ok::<(), Infallible>(())
        })
    };
}

fn as_stream(bytes: &[u8]) -> Result<(), Infallible> {
    serial::send_streamed(bytes);
    Ok(())
}

#[inline(always)]
fn machine() -> Machine<'static> {
    Machine {
        name: "rftrace-example-kernel",
        // The kernel runs where it was linked to.
        load_address: 0,
        tsc_hz: Some(COUNTER_HZ.load(Relaxed)).filter(|&hz| hz != 0),
        wall_nanos: Some(WALL_NANOS.load(Relaxed)).filter(|&nanos| nanos != 0),
    }
}
