//! All sites of the program, and the stubs of functions that call no hook: finding, choosing and switching them.
//!
//! All is done under one lock, which a thread may hold when a signal handler of its own comes along: then only the
//! tracer itself is switched, see [`lock`](super::lock).
//!
//! **Invariant**: code is written to only from within `dl_iterate_phdr`, which keeps libraries from being unloaded, and only
//! if none was loaded or unloaded since the sites were found. Only bytes that are what this module knows are changed.
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

/// Finds all sites, those of libraries that were opened since too, and makes NOPs of them; jumps, if recording is on.
pub(crate) fn install() -> PatchedSites {
    INSTALLED.store(true, Relaxed);
    HAS_SWITCHES.store(true, Relaxed);
    let counts = locked(|engine| {
        engine.apply(present_goal(), kinds());
        engine.counts()
    });
    counts.unwrap_or_default()
}

/// Gives functions with room for a branch their stubs, also those of libraries that were opened since. If recording is on, they branch there.
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

/// Which sites are changed.
fn kinds() -> Kinds {
    Kinds { calls: INSTALLED.load(Relaxed), entries: ENTRIES.load(Relaxed) }
}

fn has_sites() -> bool {
    kinds() != Kinds::default()
}

/// True if there is anything to switch: sites that were ever patched, or stubs.
///
/// This may run while recording is on, so not even a function of the standard library is called: it would be traced where it
/// is not inlined.
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

/// Switches the chosen sites and stubs on, also sites of libraries that were loaded since. The returned value holds the lock until the tracer
/// itself is on: nobody may switch it off in between.
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

/// Chooses which sites and stubs are switched on, from now on and, if they are on, at once. Other sites stay NOPs.
pub(crate) fn select(selection: impl Fn(&Site) -> bool + Send + 'static) {
    locked(|engine| {
        engine.select(Box::new(selection));
        if has_sites() {
            engine.apply(engine.goal(), kinds());
        }
    });
}

/// Adds the switches of stubs that were made. If recording is on, the chosen ones are switched on.
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

/// All sites that are there now, patched or not, by address within a module.
pub(crate) fn sites() -> Vec<Site> {
    locked(Engine::sites).unwrap_or_default()
}

/// Makes all calls of the hooks what they were.
pub(crate) fn undo() {
    locked(|engine| {
        if INSTALLED.swap(false, Relaxed) {
            engine.apply(if has_sites() { engine.goal() } else { Goal::Plain }, kinds());
        }
    });
}

/// If this thread has the lock it will never go on with what it was at: the sites stay what they are.
pub(crate) fn abandon() {
    let held = LOCK.of_this_thread();
    if held.is_new() {
        INSTALLED.store(false, Relaxed);
        ENTRIES.store(false, Relaxed);
        held.release();
    }
}

/// How many sites there are, and what they are.
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

/// Runs `work` under the lock. Returns `None` without doing so if this thread has it already: `work` would find what the
/// interrupted code has half done.
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
