//! All sites of the program, and the stubs of functions without a hook: finding, choosing and switching them.
//!
//! One lock covers all of it. A signal handler may find the lock held by its own thread: then only the tracer itself is
//! switched, see [`lock`](super::lock).
//!
//! **Invariant**: write to code only from within `dl_iterate_phdr`, which prevents the unload of libraries, and only if
//! none was loaded or unloaded since the sites were found. Change only bytes with values known to this module.
//!
//! **Invariant**: no page stays writable, and from the first change to the last nothing is allocated.

use std::cell::UnsafeCell;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use super::change::{Goal, Kinds};
use super::engine::Engine;
use super::lock::{Held, LOCK};
use super::outcome::PatchedSites;
use super::sites::Site;
use super::switches::{self, Switch};
use crate::backend;

/// Finds all sites, including those of libraries opened since, and makes NOPs of them; jumps, if recording is on.
pub(crate) fn install() -> PatchedSites {
    INSTALLED.store(true, Relaxed);
    HAS_SWITCHES.store(true, Relaxed);
    let counts = locked(|engine| {
        engine.apply(present_goal(), kinds());
        engine.counts()
    });
    counts.unwrap_or_default()
}

/// Makes the stubs of functions with room for a branch, including those of libraries opened since. If recording is on,
/// they branch there.
#[cfg(target_arch = "aarch64")]
pub(super) fn install_entries() {
    ENTRIES.store(true, Relaxed);
    HAS_SWITCHES.store(true, Relaxed);
    locked(|engine| engine.apply(present_goal(), kinds()));
}

/// Runs `look` on the sites.
#[cfg(target_arch = "aarch64")]
pub(super) fn entries<T>(look: impl FnOnce(&Engine) -> T) -> Option<T> {
    locked(|engine| look(engine))
}

fn present_goal() -> Goal {
    if backend::is_enabled() { Goal::On } else { Goal::Off }
}

/// The changed kinds of sites.
fn kinds() -> Kinds {
    Kinds { calls: INSTALLED.load(Relaxed), entries: ENTRIES.load(Relaxed) }
}

fn has_sites() -> bool {
    kinds() != Kinds::default()
}

/// Returns true if there is anything to switch: sites patched at any time, or stubs.
///
/// This may run while recording is on, so it calls not even a function of the standard library: one that is not inlined
/// would be traced.
#[inline(always)]
pub(crate) fn has_switches() -> bool {
    #[cfg(target_arch = "x86_64")]
    let has_switches: u8;
    // SAFETY: reads one byte, which is 0 or 1.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "mov {has_switches}, byte ptr [{place}]",
            has_switches = out(reg_byte) has_switches,
            place = in(reg) &raw const HAS_SWITCHES,
            options(nostack, readonly, preserves_flags),
        );
    }
    #[cfg(target_arch = "aarch64")]
    let has_switches: u32;
    // SAFETY: reads one byte, which is 0 or 1.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            "ldrb {has_switches:w}, [{place}]",
            has_switches = out(reg) has_switches,
            place = in(reg) &raw const HAS_SWITCHES,
            options(nostack, readonly, preserves_flags),
        );
    }
    has_switches != 0
}

/// Switches the chosen sites and stubs on, including sites of libraries loaded since. The returned value holds the lock
/// until the tracer itself is on: nobody may switch it off in between.
pub(crate) fn switch_on() -> Held {
    let held = LOCK.take();
    if held.is_new() {
        // SAFETY: the lock was taken just now.
        let engine = unsafe { &mut *ENGINE.0.get() };
        if has_sites() {
            engine.apply(Goal::On, kinds());
        }
        if !engine.are_stubs_on() {
            engine.switch_stubs(true);
        }
    }
    held
}

/// Switches all sites and stubs off; not if the tracer is on, as another thread may have switched it on since.
pub(crate) fn switch_off() {
    locked(|engine| {
        if backend::is_enabled() {
            return;
        }
        if has_sites() {
            engine.apply(Goal::Off, kinds());
        }
        if engine.are_stubs_on() {
            engine.switch_stubs(false);
        }
    });
}

/// Sets the choice of sites and stubs to switch on, from now on and, if they are on, at once. Other sites stay NOPs.
pub(crate) fn select(selection: impl Fn(&Site) -> bool + Send + 'static) {
    locked(|engine| {
        engine.select(Box::new(selection));
        if has_sites() {
            engine.apply(engine.goal(), kinds());
        }
    });
}

/// Adds the switches of new stubs. If recording is on, the chosen ones are switched on.
pub(super) fn add_switches(added: Vec<Switch>) {
    if added.is_empty() {
        return;
    }
    HAS_SWITCHES.store(true, Relaxed);
    locked(|engine| {
        switches::add(added);
        engine.switch_stubs(backend::is_enabled());
    });
}

/// Returns all present sites, patched or not, by address within a module.
pub(crate) fn sites() -> Vec<Site> {
    locked(Engine::sites).unwrap_or_default()
}

/// Restores all calls of the hooks.
pub(crate) fn undo() {
    locked(|engine| {
        if INSTALLED.swap(false, Relaxed) {
            engine.apply(if has_sites() { engine.goal() } else { Goal::Plain }, kinds());
        }
    });
}

/// Ends the use of the lock if this thread has it, as the interrupted work will never go on: the sites stay as they
/// are.
pub(crate) fn abandon() {
    let held = LOCK.of_this_thread();
    if held.is_new() {
        INSTALLED.store(false, Relaxed);
        ENTRIES.store(false, Relaxed);
        held.release();
    }
}

/// Returns the number of sites, by state.
pub(crate) fn counts() -> PatchedSites {
    locked(|engine| engine.counts()).unwrap_or_default()
}

/// True while calls of the hooks are patched: from [`install`] until [`undo`].
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// True once the entries of functions are patched, where they are sites.
static ENTRIES: AtomicBool = AtomicBool::new(false);
static HAS_SWITCHES: AtomicBool = AtomicBool::new(false);
static ENGINE: Guarded = Guarded(UnsafeCell::new(Engine::new()));

/// Data under [`LOCK`].
struct Guarded(UnsafeCell<Engine>);

// SAFETY: only the holder of the lock uses it; its contents may go from thread to thread.
unsafe impl Sync for Guarded {}

/// Runs `work` under the lock. Returns `None` at once if this thread has it already: `work` would find a half-done
/// change of the interrupted code.
fn locked<T>(work: impl FnOnce(&mut Engine) -> T) -> Option<T> {
    struct ReleaseLater(Held);
    impl Drop for ReleaseLater {
        fn drop(&mut self) {
            self.0.release();
        }
    }
    let held = ReleaseLater(LOCK.take());
    // SAFETY: the lock was taken just now.
    held.0.is_new().then(|| work(unsafe { &mut *ENGINE.0.get() }))
}
