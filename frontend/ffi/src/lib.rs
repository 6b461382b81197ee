//! The functions of `rftrace_frontend_ffi.h`: rftrace for C programs. `rftrace replay DIR` shows their traces.
//!
//! The header documents the functions. Each is a thin wrapper of a function in [`rftrace_frontend`]. An error becomes a
//! return value and a text.

extern crate rftrace as _; // the tracer itself

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt::Display;
use std::ptr;

#[cfg(target_os = "linux")]
use rftrace_frontend::StreamOptions;
use rftrace_frontend::{Config, Error, Filter, Mode, SaveOptions, Tracer, save_and_tell};

thread_local! {
    /// The text of the last error of this thread.
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// The handle of the trace buffer, a result of `rftrace_init`. C programs only pass it on.
#[derive(Debug)]
pub struct Events {
    tracer: &'static Tracer,
}

fn set_last_error(error: impl Display) {
    // A path in the text may hold anything but a NUL.
    let text = CString::new(error.to_string()).unwrap_or_default();
    // A thread that is ending has no place for it any more.
    let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = text);
}

/// Gives the tracer a buffer for `max_event_count` entries and exits, 16 bytes each; with `overwriting` a ring. Returns
/// NULL on failure.
#[unsafe(no_mangle)]
pub extern "C" fn rftrace_init(max_event_count: usize, overwriting: bool) -> *mut Events {
    let mode = if overwriting { Mode::Ring } else { Mode::Stop };
    // As in 0.3: the directory is known at the dump only.
    let config = Config::new().capacity_events(max_event_count).mode(mode);
    events(config.discard_unsaved(true).save_at_exit(false).install())
}

/// Gives the tracer a buffer of `buffer_bytes` bytes, and writes records to a folder in the directory `out_dir` while
/// the program runs. Returns NULL on failure.
///
/// # Safety
///
/// `out_dir` is NULL or NUL-terminated.
#[cfg(target_os = "linux")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rftrace_init_stream(out_dir: *const c_char, buffer_bytes: usize) -> *mut Events {
    // SAFETY: by this function's contract.
    let Some(out_dir) = (unsafe { text(out_dir) }) else { return events(Err(Error::MissingPath)) };
    events(Config::new().capacity_bytes(buffer_bytes).directory(&*out_dir).stream(StreamOptions::new()).install())
}

fn events(installed: Result<&'static Tracer, Error>) -> *mut Events {
    match installed {
        // Never freed: its owner may ask it at any time, and learns that its buffer was replaced.
        Ok(tracer) => Box::into_raw(Box::new(Events { tracer })),
        Err(error) => {
            set_last_error(error);
            ptr::null_mut()
        }
    }
}

/// Starts recording, on all threads.
#[unsafe(no_mangle)]
pub extern "C" fn rftrace_enable() {
    rftrace_frontend::enable();
}

/// Stops recording, on all threads.
#[unsafe(no_mangle)]
pub extern "C" fn rftrace_disable() {
    rftrace_frontend::disable();
}

/// Stops recording and writes the trace to a directory. Returns 0, or -1 on failure.
///
/// # Safety
///
/// `events` is NULL or a result of [`rftrace_init`]. The other arguments are NULL or NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rftrace_dump_full_uftrace(
    events: *mut Events,
    out_dir: *const c_char,
    binary_name: *const c_char,
) -> i64 {
    // SAFETY: by this function's contract.
    let tracer = unsafe { stopped(events) };
    // SAFETY: as above.
    let (out_dir, name) = unsafe { (text(out_dir), text(binary_name)) };
    status(match (tracer, out_dir) {
        (Some(tracer), Some(out_dir)) => {
            let name = name.unwrap_or_default();
            save_and_tell(tracer, &SaveOptions::new().directory(&out_dir).binary_name(&name))
        }
        (None, _) => Err(Error::NotInitialized),
        (_, None) => Err(Error::MissingPath),
    })
}

/// Stops recording and writes only the records to the file `outfile`. Returns 0, or -1 on failure.
///
/// # Safety
///
/// `events` is NULL or a result of [`rftrace_init`]; `outfile` is NULL or NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rftrace_dump_trace(events: *mut Events, outfile: *const c_char) -> i64 {
    // SAFETY: by this function's contract.
    let (tracer, outfile) = unsafe { (stopped(events), text(outfile)) };
    status(match (tracer, outfile) {
        (Some(tracer), Some(outfile)) => save_and_tell(tracer, &SaveOptions::new().records_only(&outfile)),
        (None, _) => Err(Error::NotInitialized),
        (_, None) => Err(Error::MissingPath),
    })
}

/// Marks the present moment in the trace with a text.
///
/// # Safety
///
/// `mark` is NULL or NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rftrace_mark(mark: *const c_char) {
    // SAFETY: by this function's contract.
    if let Some(mark) = unsafe { text(mark) } {
        rftrace_frontend::mark(&mark);
    }
}

/// Writes a trace of the buffer's present contents to a folder in the directory `out_dir`, while recording goes on.
/// Returns 0, or -1 on failure.
///
/// # Safety
///
/// `events` is NULL or a result of [`rftrace_init`]. The other arguments are NULL or NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rftrace_dump(events: *mut Events, out_dir: *const c_char, reason: *const c_char) -> i64 {
    // SAFETY: by this function's contract.
    let (tracer, out_dir, reason) = unsafe { (tracer(events), text(out_dir), text(reason)) };
    status(match (tracer, out_dir) {
        (Some(tracer), Some(out_dir)) => {
            tracer.dump_to(out_dir.as_ref(), reason.as_deref().unwrap_or("rftrace_dump")).map(drop)
        }
        (None, _) => Err(Error::NotInitialized),
        (_, None) => Err(Error::MissingPath),
    })
}

/// Replaces the filter: only calls that pass it are recorded. NULL or an empty text removes it. Returns the number of
/// recorded functions, or -1 on failure.
///
/// # Safety
///
/// `events` is NULL or a result of [`rftrace_init`]; `filter` is NULL or NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rftrace_set_filter(events: *mut Events, filter: *const c_char) -> i64 {
    // SAFETY: by this function's contract.
    let (tracer, filter) = unsafe { (tracer(events), text(filter).unwrap_or_default()) };
    let recorded = tracer.ok_or(Error::NotInitialized).and_then(|tracer| {
        if filter.trim().is_empty() {
            tracer.clear_filter();
            return Ok(tracer.functions().len());
        }
        tracer.set_filter(&Filter::parse(&filter)?).map(|selected| selected.n_recorded)
    });
    match recorded {
        Ok(n_recorded) => i64::try_from(n_recorded).unwrap_or(i64::MAX),
        Err(error) => status(Err(error)),
    }
}

/// A function that can be recorded, in the form for C programs.
#[derive(Debug)]
#[repr(C)]
pub struct FunctionInfo {
    name: *const c_char,
    module: *const c_char,
    address: usize,
    code_bytes: u64,
    recorded: bool,
}

/// Calls `visit` with `context` for each function that can be recorded. Returns the number of these functions, or -1 on
/// failure.
///
/// # Safety
///
/// `events` is NULL or a result of [`rftrace_init`]; `visit` may be called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rftrace_functions(
    events: *mut Events,
    visit: Option<unsafe extern "C" fn(context: *mut c_void, function: *const FunctionInfo)>,
    context: *mut c_void,
) -> i64 {
    // SAFETY: by this function's contract.
    let Some(tracer) = (unsafe { tracer(events) }) else {
        return status(Err(Error::NotInitialized));
    };
    let functions = tracer.functions();
    if let Some(visit) = visit {
        for function in &functions {
            // Names have no NUL in them.
            let c_text = |text: &str| CString::new(text).unwrap_or_default();
            let (name, module) = (c_text(&function.name), c_text(&function.module));
            let info = FunctionInfo {
                name: name.as_ptr(),
                module: module.as_ptr(),
                address: function.address,
                code_bytes: function.code_bytes,
                recorded: function.recorded,
            };
            // SAFETY: by this function's contract; all that it points to lives until it returns.
            unsafe { visit(context, &raw const info) };
        }
    }
    i64::try_from(functions.len()).unwrap_or(i64::MAX)
}

/// Returns the message of the last failure on this thread; an empty text before the first failure. It is valid until
/// the next failure.
#[unsafe(no_mangle)]
pub extern "C" fn rftrace_last_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

fn status(result: Result<(), Error>) -> i64 {
    match result {
        Ok(()) => 0,
        Err(error) => {
            set_last_error(error);
            -1
        }
    }
}

/// # Safety
///
/// `events` is NULL or points to live `Events`.
unsafe fn tracer(events: *const Events) -> Option<&'static Tracer> {
    // SAFETY: by this function's contract.
    unsafe { events.as_ref() }.map(|events| events.tracer)
}

/// Returns the tracer, after it has stopped recording. Inlined: this crate may be instrumented.
///
/// # Safety
///
/// As for [`tracer`].
#[inline(always)]
#[allow(clippy::cmp_null, reason = "`is_null` is not inlined where this crate is not optimised")]
unsafe fn stopped(events: *const Events) -> Option<&'static Tracer> {
    if events == ptr::null() {
        return None;
    }
    // SAFETY: by this function's contract.
    let tracer = unsafe { (*events).tracer };
    tracer.disable();
    Some(tracer)
}

/// # Safety
///
/// `text` is NULL or NUL-terminated.
unsafe fn text(text: *const c_char) -> Option<String> {
    // SAFETY: by this function's contract.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}
