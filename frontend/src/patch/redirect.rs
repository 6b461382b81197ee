//! Calls of the hooks in a program that was started without the tracer, and runs: the slots of the global offset table through
//! which they go get the tracer's hooks, and later what they held before. No code is changed.
//!
//! Not here: how the tracer comes into such a program (`rftrace-attach`).
//!
//! **Invariant**: a slot is written by one aligned store of eight bytes, so a thread that calls through it finds the one or the other.
//! A slot that holds what nobody has put there on behalf of this module is somebody else's, and is not restored.

use std::ffi::{c_int, c_void};
use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::module::Image;
use super::poke::Pages;
use super::sites::Hook;

/// Where the hooks are: whoever loads the tracer behind the C library knows, while its own symbols lead to the C library's.
#[derive(Clone, Copy, Debug)]
pub struct Hooks {
    /// The address of `mcount`.
    pub mcount: usize,
    /// That of `__fentry__`.
    pub fentry: usize,
}

impl Hooks {
    fn of(self, hook: Hook) -> usize {
        match hook {
            Hook::Mcount => self.mcount,
            Hook::Fentry => self.fentry,
        }
    }
}

/// A slot that has a hook.
#[derive(Clone, Copy, Debug)]
struct Slot {
    place: usize,
    /// What it held.
    before: usize,
    hook: usize,
}

static SLOTS: Mutex<Vec<Slot>> = Mutex::new(Vec::new());

fn slots() -> MutexGuard<'static, Vec<Slot>> {
    SLOTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes the hooks into all slots for them, also where the dynamic linker has written since. Returns how many slots have one.
///
/// # Errors
///
/// The system does not let a slot be changed. Others may have been.
pub fn redirect(hooks: Hooks) -> io::Result<usize> {
    let mut slots = slots();
    let all = Pages::all()?;
    with_slots(hooks, |place, hook| {
        let held = value(place).load(SeqCst);
        if held == hook {
            return Ok(());
        }
        store(&all, place, hook)?;
        match slots.iter_mut().find(|slot| slot.place == place) {
            Some(slot) => slot.before = held,
            None => slots.push(Slot { place, before: held, hook }),
        }
        Ok(())
    })?;
    Ok(slots.len())
}

/// Makes all slots what they were. Those of modules that are gone are forgotten.
///
/// # Errors
///
/// The system does not let a slot be changed: it is tried again the next time.
pub fn restore(hooks: Hooks) -> io::Result<()> {
    let mut slots = slots();
    let all = Pages::all()?;
    with_slots(hooks, |place, _| {
        let Some(slot) = slots.iter().find(|slot| slot.place == place) else { return Ok(()) };
        if value(place).load(SeqCst) == slot.hook { store(&all, place, slot.before) } else { Ok(()) }
    })?;
    slots.clear();
    Ok(())
}

/// Calls `change` with each slot for a hook of each module but the tracer's own, and with the hook. Modules stay loaded meanwhile.
fn with_slots(hooks: Hooks, mut change: impl FnMut(usize, usize) -> io::Result<()>) -> io::Result<()> {
    struct Walk<'a> {
        hooks: Hooks,
        change: &'a mut dyn FnMut(usize, usize) -> io::Result<()>,
        result: io::Result<()>,
    }

    unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _bytes: usize, walk: *mut c_void) -> c_int {
        // SAFETY: `dl_iterate_phdr` passes a module, and what it was given.
        let (info, walk) = unsafe { (&*info, &mut *walk.cast::<Walk<'_>>()) };
        // SAFETY: this is the callback, which returns behind the last use of the result.
        let Some(image) = (unsafe { Image::new(info) }) else { return 0 };
        if image.contains(walk.hooks.mcount) {
            return 0;
        }
        for (place, hook) in image.hook_slots() {
            let done = (walk.change)(place, walk.hooks.of(hook));
            if done.is_err() {
                walk.result = done;
                return 1;
            }
        }
        0
    }

    let mut walk = Walk { hooks, change: &mut change, result: Ok(()) };
    // SAFETY: the callback takes a pointer to a `Walk`, which lives until the call returns.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut walk).cast()) };
    walk.result
}

/// A slot of a module that is loaded.
pub(super) fn value<'a>(place: usize) -> &'a AtomicUsize {
    // SAFETY: relocations of that kind name eight aligned bytes that can be read; the module stays loaded while they are used.
    unsafe { AtomicUsize::from_ptr(place as *mut usize) }
}

/// Stores a word in pages that may be read-only after relocation, and stay so.
pub(super) fn store(all: &[Pages], place: usize, word: usize) -> io::Result<()> {
    let gone = || io::Error::other("a module's data are not mapped");
    let pages = all.iter().find(|pages| pages.range.contains(&place)).ok_or_else(gone)?;
    let pages = pages.cut_to(&(place..place + size_of::<usize>())).ok_or_else(gone)?;
    pages.make_writable()?;
    value(place).store(word, SeqCst);
    let mut refusal = None;
    pages.restore(&mut refusal);
    refusal.map_or(Ok(()), Err)
}
