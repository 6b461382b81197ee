//! Marks of the program: texts at moments of the recording.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use super::Alone;
use crate::backend;
use crate::bank::client;
use crate::clock::ClockPair;
use crate::host;
use crate::uftrace::directory::Mark;

/// The marks of a buffer, the oldest first.
static MARKS: Mutex<VecDeque<Mark>> = Mutex::new(VecDeque::new());

/// The maximum number of marks in memory. Newer ones replace the oldest.
const MOST: usize = 1 << 16;

/// Marks the present moment on the calling thread. The trace shows the text among the thread's calls, as an event
/// `mark:TEXT`. It does nothing while recording is off.
///
/// A text takes at most 1 KiB. The trace shows 200 characters of it, with `_` for blanks. The program keeps the last
/// 65,536 marks.
///
/// Marks resemble Linux's [`trace_marker`](https://docs.kernel.org/trace/ftrace.html). A call takes about a
/// microsecond. Never call it in a signal handler.
///
/// ```no_run
/// rftrace_frontend::mark("the second phase begins");
/// ```
#[inline(always)]
pub fn mark(text: &str) {
    if backend::is_enabled() {
        backend::unrecorded_as(|thread| keep(thread, text));
    }
}

/// Marks the present moment, on no thread in particular.
#[cfg(all(feature = "control", target_os = "linux"))]
pub(super) fn of_nobody(text: &str) {
    keep(None, text);
}

fn keep(thread: Option<u32>, text: &str) {
    // A forking thread finds the lock free.
    let _at_work = host::at_work();
    let mut marks = MARKS.lock().unwrap_or_else(PoisonError::into_inner);
    if client::tell_mark(thread, text) {
        return;
    }
    if marks.len() >= MOST {
        marks.pop_front();
    }
    marks.push_back(Mark::of_text(ClockPair::now().tsc, thread, text));
}

/// Returns the marks.
pub(super) fn all(_alone: &Alone) -> Vec<Mark> {
    MARKS.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
}

/// Removes the marks at the beginning of a new recording.
pub(super) fn forget(_alone: &Alone) {
    MARKS.lock().unwrap_or_else(PoisonError::into_inner).clear();
}
