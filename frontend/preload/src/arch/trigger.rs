//! Beginning to record when a function is first called.
//!
//! The function's first byte becomes a breakpoint. The handler puts the byte back, switches recording on, and lets the function
//! begin: so it is recorded itself, and costs nothing before.

use std::ffi::{c_int, c_void};
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize};
use std::thread;

use rftrace_frontend::Tracer;

/// The instruction `int3`.
const BREAKPOINT: u8 = 0xcc;

/// Where the breakpoint is; 0 if there is none.
static PLACE: AtomicUsize = AtomicUsize::new(0);
/// The byte that it took the place of.
static BYTE: AtomicU8 = AtomicU8::new(0);
/// A thread has come by.
static IS_HIT: AtomicBool = AtomicBool::new(false);
/// The byte is back.
static IS_GONE: AtomicBool = AtomicBool::new(false);

/// Has recording begin when the function `name` is called. `Err` says why that cannot be.
pub(crate) fn arm(tracer: &Tracer, name: &str) -> Result<(), String> {
    let functions = tracer.functions();
    let Some(function) = functions.iter().find(|function| function.name == name || function.full_name == name) else {
        let last = name.rsplit("::").next().unwrap_or(name);
        let similar: Vec<&str> =
            functions.iter().map(|f| &*f.name).filter(|name| name.contains(last)).take(5).collect();
        let hint = if similar.is_empty() { String::new() } else { format!("; similar names: {}", similar.join(", ")) };
        return Err(format!("--trigger: no function with a call of the tracer has the name `{name}`{hint}"));
    };
    // SAFETY: the first byte of a function's code.
    let byte = unsafe { (function.address as *const u8).read() };
    BYTE.store(byte, Release);
    PLACE.store(function.address, Release);
    poke(function.address, BREAKPOINT).map_err(|error| {
        PLACE.store(0, Release);
        format!("--trigger: cannot change the code of `{name}`: {error}")
    })
}

/// Handles a breakpoint at which the processor stopped. Returns whether it was this one.
pub(crate) fn hit(tracer: &Tracer, context: *mut c_void) -> bool {
    // SAFETY: the kernel passes the interrupted thread's registers.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let rip = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
    let place = rip.wrapping_sub(1) as usize;
    if place != PLACE.load(Acquire) || place == 0 {
        return false;
    }
    if IS_HIT.swap(true, AcqRel) {
        // Another thread was faster.
        while !IS_GONE.load(Acquire) {
            thread::yield_now();
        }
    } else {
        // In this order: who calls the function when the breakpoint is gone finds recording on.
        tracer.enable();
        let _ = poke(place, BYTE.load(Acquire));
        if tracer.patched_sites().patched > 0 {
            // The function may begin with its call, which was not itself.
            tracer.patch();
        }
        IS_GONE.store(true, Release);
    }
    *rip -= 1;
    true
}

/// True if there is a breakpoint.
pub(crate) fn is_armed() -> bool {
    PLACE.load(Acquire) != 0 && !IS_HIT.load(Acquire)
}

/// The signal of breakpoints.
pub(crate) const SIGNAL: c_int = libc::SIGTRAP;

/// Writes one byte of code, which need not be writable.
fn poke(place: usize, byte: u8) -> io::Result<()> {
    let memory = OpenOptions::new().write(true).open("/proc/thread-self/mem")?;
    memory.write_all_at(&[byte], place as u64)
}
