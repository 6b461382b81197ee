//! Recording in a program that was started without this library, and runs: what `rftrace record -p --resources` has a thread of it call, in this
//! order: [`rftrace_resources_attach`], then the tracer's library writes the slots, [`rftrace_resources_begin`], [`rftrace_resources_detach`].
//!
//! When the recorder leaves, this library stays, for a thread may be in it, and is used again. What it has begun to write then lies in private
//! memory.
//!
//! Not here: how this library comes into the program (`rftrace-attach`).

use std::ffi::{CStr, c_char, c_int};

use rftrace_format::resources::DETAILED;

use crate::identity;
use crate::modules;
use crate::pool::{self, Pool};
use crate::process;
use crate::slots;
use crate::specifications;
use crate::stacks::{self, Tracer};
use crate::state;
use crate::stubs;
use crate::thread;

/// The recorder's settings: lines of `key=value`.
#[derive(Default)]
struct Settings {
    /// `pool`: where the recorder's memory is.
    pool: Vec<u8>,
    /// `table`: where that of specified functions is; empty for none. `specified`: where their names are, as lines `NUMBER NAME`.
    table: Vec<u8>,
    specified: Vec<u8>,
    /// `tracer`: an address in the tracer's library, in hexadecimal digits.
    tracer: usize,
    /// `trampoline`, `thread`: the addresses of two of its functions.
    trampoline: usize,
    thread: usize,
    /// `backtraces`: how they are found.
    backtraces: Option<u8>,
}

impl Settings {
    fn parse(text: &[u8]) -> Self {
        let mut settings = Self::default();
        let number =
            |value| str::from_utf8(value).ok().and_then(|digits| usize::from_str_radix(digits, 16).ok()).unwrap_or(0);
        let with_nul = |value: &[u8]| [value, b"\0"].concat();
        for line in text.split(|&byte| byte == b'\n') {
            let Some(end) = line.iter().position(|&byte| byte == b'=') else { continue };
            let value = &line[end + 1..];
            match &line[..end] {
                b"pool" => settings.pool = with_nul(value),
                b"table" => settings.table = with_nul(value),
                b"specified" => settings.specified = value.to_owned(),
                b"tracer" => settings.tracer = number(value),
                b"trampoline" => settings.trampoline = number(value),
                b"thread" => settings.thread = number(value),
                b"backtraces" => settings.backtraces = value.first().copied(),
                _ => {}
            }
        }
        settings
    }
}

/// Prepares to record: maps the recorder's memory, and says which slots are to lead here. `answer` becomes text of `bytes` bytes at the most:
/// empty, or behind `error=` why nothing can be recorded. Returns whether it can.
///
/// # Safety
///
/// `settings` is a string, and so many bytes can be written to `answer`.
#[unsafe(no_mangle)]
unsafe extern "C" fn rftrace_resources_attach(settings: *const c_char, answer: *mut u8, bytes: usize) -> c_int {
    // SAFETY: by this function's contract.
    let settings = unsafe { CStr::from_ptr(settings) }.to_bytes();
    // SAFETY: by this function's contract.
    unsafe { answered(|| attach(&Settings::parse(settings)), answer, bytes) }
}

/// Records from now on.
///
/// # Safety
///
/// As of [`rftrace_resources_attach`].
#[unsafe(no_mangle)]
unsafe extern "C" fn rftrace_resources_begin(answer: *mut u8, bytes: usize) -> c_int {
    let begin = || {
        process::set_wanted(pool::present().map_or(0, Pool::wanted));
        Ok(())
    };
    // SAFETY: by this function's contract.
    unsafe { answered(begin, answer, bytes) }
}

/// Ends that. Does nothing if nothing is recorded.
///
/// # Safety
///
/// As of [`rftrace_resources_attach`].
#[unsafe(no_mangle)]
unsafe extern "C" fn rftrace_resources_detach(answer: *mut u8, bytes: usize) -> c_int {
    // SAFETY: by this function's contract.
    unsafe { answered(detach, answer, bytes) }
}

/// # Safety
///
/// So many bytes can be written to `answer`.
unsafe fn answered(work: impl FnOnce() -> Result<(), &'static str>, answer: *mut u8, bytes: usize) -> c_int {
    let result = thread::keeping_errno(work);
    let error = result.err().unwrap_or_default();
    let text = [if error.is_empty() { "" } else { "error=" }, error].concat();
    for (place, &byte) in text.as_bytes().iter().chain(b"\0").enumerate().take(bytes) {
        // SAFETY: by this function's contract.
        unsafe { answer.add(place).write(byte) };
    }
    c_int::from(result.is_ok())
}

fn attach(settings: &Settings) -> Result<(), &'static str> {
    // An earlier recorder has not detached.
    detach()?;
    let path = |bytes| CStr::from_bytes_with_nul(bytes).unwrap_or_default();
    let generation = process::attach(settings.tracer);
    let Some(pool) = process::map(path(&settings.pool)) else {
        return Err(
            "the process has no room for the recorder's memory of 64 MiB; raise its limit of addresses (ulimit -v)",
        );
    };
    let Settings { trampoline, thread, .. } = *settings;
    stacks::prepare(settings.backtraces, Some(Tracer { trampoline, thread }));
    if !settings.table.is_empty() {
        specifications::open(path(&settings.table));
    }
    identity::set_number_of(generation, pool.next_process());
    state::telling(modules::tell_again);
    let wanted = pool.wanted() & !DETAILED;
    let specified = match settings.specified.is_empty() {
        true => Vec::new(),
        false => stubs::make(&settings.specified, wanted).map_err(
            |_| "the system refuses the process code for the specified functions (a file in memory, mapped)",
        )?,
    };
    slots::find(wanted, specified);
    Ok(())
}

fn detach() -> Result<(), &'static str> {
    process::switch_off();
    if pool::close() { Ok(()) } else { Err("the recorder's memory stays in the process") }
}
