//! The switch of recording: on after `enable`, and while a [`Recorder`] lives on any thread.
//!
//! The wanted state is one word. After a change, a thread brings the tracer in line and checks the word again. So with
//! several switching threads, the last one finds all changes, and nobody waits: a signal handler may switch too.
//!
//! A late thread cannot switch off a recording wanted and switched on by another thread since.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use crate::backend;
use crate::patch;

/// The number of guards in the low half, the flags, and above them the number of changes.
static WANTED: AtomicU64 = AtomicU64::new(0);

const GUARD: u64 = 1;
const GUARDS: u64 = (1 << 30) - 1;
/// `enable` was called, and no `disable` since.
const ENABLED: u64 = 1 << 30;
/// `disable` was called, and neither `enable` nor `record` since.
const DISABLED: u64 = 1 << 31;
/// A guard was the last to switch recording on.
const BY_GUARD: u64 = 1 << 32;
const CHANGE: u64 = 1 << 33;

/// A guard: recording stays on while it lives. [`Tracer::record`](crate::Tracer::record) returns it.
#[derive(Debug)]
#[must_use = "recording ends when the guard is dropped: keep it, `let _recording = tracer.record();`"]
pub struct Recorder {
    is_counted: bool,
}

impl Recorder {
    /// Creates a guard. With `is_counted` it keeps recording on.
    #[inline(always)]
    pub(crate) fn new(is_counted: bool) -> Self {
        if is_counted {
            change(|wanted| (wanted + GUARD) & !DISABLED | BY_GUARD);
            apply();
        }
        Self { is_counted }
    }
}

impl Drop for Recorder {
    #[inline(always)]
    fn drop(&mut self) {
        if self.is_counted && !change(|wanted| wanted - GUARD) {
            apply();
        }
    }
}

/// Starts recording.
#[inline(always)]
pub(crate) fn enable() {
    change(|wanted| (wanted | ENABLED) & !(DISABLED | BY_GUARD));
    apply();
}

/// Stops recording, in spite of guards.
#[inline(always)]
pub(crate) fn disable() {
    change(disabled);
    apply();
}

/// Stops recording, and leaves patched sites as they are.
#[inline(always)]
pub(crate) fn disable_tracer() {
    change(disabled);
    backend::disable();
}

/// Returns true if a guard was the last to switch recording on, and no guard is left.
pub(crate) fn guard_is_gone() -> bool {
    WANTED.load(SeqCst) & (BY_GUARD | GUARDS) == BY_GUARD
}

fn disabled(wanted: u64) -> u64 {
    (wanted | DISABLED) & !ENABLED
}

/// Runs `work` while recording pauses.
#[inline(always)]
pub(crate) fn paused<T>(work: impl FnOnce() -> T) -> T {
    let was_on = backend::is_enabled();
    backend::disable();
    let result = work();
    // It may have been switched off meanwhile, and may be at this moment.
    if was_on && backend::unrecorded(|| is_on(WANTED.load(SeqCst))) {
        backend::enable();
        if !backend::unrecorded(|| is_on(WANTED.load(SeqCst))) {
            apply();
        }
    }
    result
}

/// Brings the tracer in line with the wanted state.
#[inline(always)]
fn apply() {
    loop {
        let wanted = backend::unrecorded(|| WANTED.load(SeqCst));
        let is_done = if is_on(wanted) {
            patch::enable();
            true
        } else {
            // Nothing but these functions: others would be recorded.
            let stopping = backend::begin_disable();
            let wanted = backend::unrecorded(|| WANTED.load(SeqCst));
            !is_on(wanted) && patch::end_disable(stopping)
        };
        if is_done && backend::unrecorded(|| WANTED.load(SeqCst) == wanted) {
            return;
        }
    }
}

/// Changes the wanted state. Returns true if recording is wanted. Nothing of this is recorded itself.
#[inline(always)]
fn change(new: impl Fn(u64) -> u64) -> bool {
    backend::unrecorded(|| {
        let mut before = WANTED.load(SeqCst);
        loop {
            let after = new(before).wrapping_add(CHANGE);
            match WANTED.compare_exchange_weak(before, after, SeqCst, SeqCst) {
                Ok(_) => return is_on(after),
                Err(now) => before = now,
            }
        }
    })
}

#[inline(always)]
fn is_on(wanted: u64) -> bool {
    wanted & DISABLED == 0 && wanted & (ENABLED | GUARDS) != 0
}
