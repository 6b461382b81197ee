//! The save at exit of a program without a save of its own, with one line on stderr.
//!
//! The C library calls `.fini_array` after all `atexit` functions of the program, so their order is the program's own,
//! and a save in them comes first.
//!
//! A thread of this module does the work. It blocks signals, so a full disk or a closed stderr ends nothing, and it has
//! a stack of its own. The program's output and exit status stay.
//!
//! Not here: programs that end by a signal, `abort` or `_exit`, and those of 0.3, whose functions have no directory.

use std::path::Path;
use std::process;
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use super::save::{SaveOptions, absolute, has_saved_to};
use super::{AtExit, Tracer, alone, switch};
use crate::Error;
use crate::backend;
use crate::bank::writer::without_signals;
use crate::host::linux::is_at_work;

/// The work at exit; null before the first buffer with a save at exit. Nothing else here refers to the tracer: the
/// tools link this crate without it.
static AT_EXIT: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// The C library runs this array backwards, and the linker sorts it by number: this is after the destructors of the
/// program.
#[used]
#[unsafe(link_section = ".fini_array.00100")]
static END: extern "C" fn() = end;

extern "C" fn end() {
    // Read without a call: recording may be on, and a debug build has calls for atomics.
    // SAFETY: null or `run`. Installing another buffer at this moment writes the same word.
    let at_exit = unsafe { *(&raw const AT_EXIT as *const Option<fn()>) };
    if let Some(run) = at_exit {
        run();
    }
}

impl AtExit {
    /// Creates the save of unsaved events to `directory` at exit.
    #[inline(never)]
    pub(super) fn new(directory: &Path) -> Self {
        AT_EXIT.store((run as fn()) as *mut (), Relaxed);
        let directory = absolute(directory);
        Self { pid: process::id(), directory, was_free: is_free() }
    }
}

/// Returns true without a filter of system calls. A filter of the program's own may kill it for opening a file.
fn is_free() -> bool {
    // SAFETY: the call takes no pointer.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP) == 0 }
}

fn run() {
    backend::unrecorded(|| {
        let Some((tracer, at_exit)) = Tracer::get().and_then(|it| Some((it, it.at_exit.as_ref()?))) else { return };
        switch::disable_tracer();
        if !tracer.was_enabled() || at_exit.was_free && !is_free() {
            return;
        }
        // A signal handler that ends the program amid work of this crate: this thread's locks are never released.
        let is_amid = is_at_work();
        let work = move || {
            backend::unrecorded(|| {
                let line = if is_amid { Some(amid()) } else { save(tracer, at_exit) };
                line.as_deref().into_iter().for_each(tell);
            });
        };
        let begun = without_signals(|| thread::Builder::new().name("rftrace-exit".to_owned()).spawn(work));
        if let Ok(thread) = begun {
            let _ = thread.join();
        }
    });
}

fn amid() -> String {
    "the program ended within a call of rftrace; its events are lost".to_owned()
}

/// Saves the unsaved events. Returns the line for stderr.
fn save(tracer: &Tracer, at_exit: &AtExit) -> Option<String> {
    // A save on another thread goes first.
    let alone = alone();
    if tracer.n_unsaved(&alone) == 0 {
        return None;
    }
    let AtExit { pid, ref directory, .. } = *at_exit;
    let shown = directory.display();
    let (own, is_saved) = (process::id(), has_saved_to(directory));
    if pid != own || is_saved {
        let events = tracer.unsaved(&alone);
        let line = if pid != own {
            format!("the forked process {own} ended without a save; its {events} events are lost")
        } else {
            format!("the program ended without another save; {events} new events are lost, {shown} has the last save")
        };
        return (events > 0).then_some(line);
    }
    match tracer.write(&alone, &SaveOptions::new().directory(directory).what_fits(true)) {
        Ok(saved) => {
            let loss = saved.loss().map_or(String::new(), |why| format!("; incomplete: {why}"));
            Some(format!("the program ended without a save; {} events are in {shown}{loss}", saved.events))
        }
        Err(Error::NoEvents { .. } | Error::Replaced) => None,
        Err(error) => {
            let (events, why) = (tracer.n_unsaved(&alone), error.with_remedy());
            Some(format!("the program ended without a save, and {events} events are lost: {why}"))
        }
    }
}

/// Writes a line to stderr. Not by `std`, whose lock another thread may hold.
fn tell(line: &str) {
    let line = format!("rftrace: {line}\n");
    // SAFETY: the text's own bytes.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}
