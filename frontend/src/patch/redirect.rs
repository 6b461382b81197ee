//! Redirection of calls in a running program without the tracer at its start. Its slots of the global offset table for
//! the hooks get the addresses of the tracer's hooks. Slots of functions that take or release a resource get recording
//! functions.
//!
//! Later all slots get their old values again. No code is changed.
//!
//! Not here: loading the tracer into such a program (`rftrace-attach`), and the recording functions
//! (`rftrace-preload-resources`).
//!
//! **Invariant**: write a slot by one aligned store of eight bytes, so a thread with a call through it finds the one or
//! the other address. A slot with a value from outside this module belongs to another writer, and is not restored.
//!
//! **Invariant**: redirect a slot only if it leads to the replaced function, or will at its first call, and serves only
//! calls: a function has one address everywhere. Exempt are the C library's own slots, as it compares no such
//! addresses.
//!
//! **Invariant**: a slot with the stub of a library call keeps that target, and the stub leads to the recording
//! function: the call is recorded first, then the resource. So each of the two can end without the other.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::io;
use std::mem;
use std::slice;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rftrace_format::interposed::Interposed;

use super::installed::{Slot as LibraryCall, library_call, library_calls};
use super::module::{Image, Slot, with_modules};
use super::pointers::used_otherwise;
use super::poke::Pages;
use super::sites::Hook;
use super::slots::{store, value};

/// The addresses of the tracer's hooks. A caller that loads the tracer behind the C library knows them; a symbol lookup
/// would find the hooks of the C library.
#[derive(Clone, Copy, Debug)]
pub struct Hooks {
    /// The address of `mcount`.
    pub mcount: usize,
    /// The address of `__fentry__`.
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

/// The new targets of slots.
#[derive(Clone, Copy, Debug)]
pub struct Targets {
    /// The hooks.
    pub hooks: Hooks,
    /// The recording functions, all in one library, and the replaced functions.
    pub interposed: &'static [Interposed],
}

impl Targets {
    /// Creates the targets from the hooks and the text `told` of another library: `address:number` in hexadecimal
    /// digits, the place of its [`Interposed`] list. A text of another form stands for an empty list.
    ///
    /// # Safety
    ///
    /// The list of that length exists at that address, and stays.
    #[must_use]
    pub unsafe fn new(hooks: Hooks, told: &str) -> Self {
        let number = |digits| usize::from_str_radix(digits, 16).ok().filter(|&number| number != 0);
        let place = told.split_once(':').and_then(|(address, length)| number(address).zip(number(length)));
        let interposed = match place {
            // SAFETY: by this function's contract.
            Some((address, length)) => unsafe { slice::from_raw_parts(address as *const Interposed, length) },
            None => &[],
        };
        Self { hooks, interposed }
    }

    /// True if a module is the tracer's own.
    fn are_in(self, image: &Image<'_>) -> bool {
        image.contains(self.hooks.mcount) || self.interposed.first().is_some_and(|one| image.contains(one.function))
    }
}

/// The result of a redirection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Redirected {
    /// The number of slots with hooks as targets.
    pub n_hooks: usize,
    /// The number of slots with recording functions as targets.
    pub n_interposed: usize,
    /// The functions not redirected everywhere, by module: the module uses the address for more than calls, or the slot
    /// leads elsewhere.
    pub left_out: Vec<(String, String)>,
}

/// A written slot.
#[derive(Clone, Copy, Debug)]
struct Written {
    /// Its value before.
    before: usize,
    to: usize,
    is_hook: bool,
}

/// By place.
static WRITTEN: Mutex<BTreeMap<usize, Written>> = Mutex::new(BTreeMap::new());

fn written() -> MutexGuard<'static, BTreeMap<usize, Written>> {
    WRITTEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes all slots, including those rewritten by the dynamic linker since.
///
/// # Errors
///
/// The system refuses a change. Other slots may have changed.
pub fn redirect(targets: Targets) -> io::Result<Redirected> {
    let mut written = written();
    let mut redirected = Redirected::default();
    let all = Pages::all()?;
    let mut write = |place: usize, to: usize, is_hook: bool| -> io::Result<()> {
        let held = value(place).load(SeqCst);
        if held == to {
            return Ok(());
        }
        store(&all, place, to)?;
        written.entry(place).and_modify(|slot| slot.before = held).or_insert(Written { before: held, to, is_hook });
        Ok(())
    };
    with_images(targets, |image| {
        for (place, hook) in image.hook_slots() {
            write(place, targets.hooks.of(hook), true)?;
        }
        for (place, to) in examine(image, targets.interposed, &mut redirected.left_out) {
            write(place, to, false)?;
        }
        Ok(())
    })?;
    let n_hooks = written.values().filter(|slot| slot.is_hook).count();
    let n_led = library_calls().filter(|slot| slot.is_led()).count();
    Ok(Redirected { n_hooks, n_interposed: written.len() - n_hooks + n_led, ..redirected })
}

/// Returns the slots of a module for replaced functions, and their new values. Calls through slots with stubs of
/// library calls go there behind the stub.
fn examine(image: &Image<'_>, interposed: &[Interposed], left_out: &mut Vec<(String, String)>) -> Vec<(usize, usize)> {
    let mut slots = image.slots(|name| interposed.iter().find(|one| name_of(one) == name));
    // Those that hold it already were looked at before.
    let leads_there = |slot: &Slot<&Interposed>| value(slot.place).load(SeqCst) == slot.of.function;
    slots.retain(|slot| slot.place.is_multiple_of(mem::align_of::<usize>()) && !leads_there(slot));
    // Whoever made the stub has looked what else the slot serves.
    slots
        .retain(|Slot { place, of, .. }| !library_call(*place).is_some_and(|call| call.lead(of.original, of.function)));
    let path = image.name.to_string_lossy();
    let is_of_libc = path.ends_with("/libc.so.6");
    let others = slots.iter().filter(|slot| !slot.is_for_calls && !is_of_libc).map(|slot| slot.place);
    let pointed_to = used_otherwise(image, &others.collect::<Vec<_>>());
    let mut found = Vec::new();
    for Slot { place, of, is_for_calls, own } in slots {
        let held = value(place).load(SeqCst);
        // It leads back to the module until the first call.
        let is_unbound = is_for_calls && image.contains(held) && own != Some(held);
        if (held == of.original || is_unbound) && !pointed_to.contains(&place) {
            found.push((place, of.function));
        } else if held != 0 {
            left_out.push((path.clone().into_owned(), String::from_utf8_lossy(name_of(of)).into_owned()));
        }
    }
    found
}

fn name_of(interposed: &Interposed) -> &'static [u8] {
    // SAFETY: the library that tells of it has the text, and stays.
    unsafe { CStr::from_ptr(interposed.name as *const c_char) }.to_bytes()
}

/// Gives all slots their old values, and has the stubs of library calls lead to their old targets. Slots of unloaded
/// modules are forgotten.
///
/// # Errors
///
/// The system refuses a change. The next call tries again.
pub fn restore(targets: Targets) -> io::Result<()> {
    let mut written = written();
    library_calls().filter(|call| call.is_led()).for_each(|call| call.lead_back());
    let all = Pages::all()?;
    with_images(targets, |image| {
        let hooks = image.hook_slots().into_iter().map(|(place, _)| place);
        let others = image.slots(|name| targets.interposed.iter().find(|one| name_of(one) == name));
        for place in hooks.chain(others.into_iter().map(|slot| slot.place)) {
            let Some(slot) = written.get(&place) else { continue };
            if value(place).load(SeqCst) == slot.to {
                store(&all, place, slot.before)?;
            }
        }
        Ok(())
    })?;
    written.clear();
    Ok(())
}

/// Calls `change` with each module but the tracer's own. They stay loaded meanwhile.
fn with_images(targets: Targets, mut change: impl FnMut(&Image<'_>) -> io::Result<()>) -> io::Result<()> {
    let failed = with_modules(|info| {
        // SAFETY: it is what the callback gets, which returns behind the last use of the result.
        let image = unsafe { Image::new(info) }.filter(|image| !targets.are_in(image))?;
        change(&image).err()
    });
    failed.map_or(Ok(()), Err)
}

/// Leads the slots of library calls to their stubs again, including those rewritten by the dynamic linker meanwhile.
/// Returns their number.
///
/// # Errors
///
/// The system refuses a change. Other slots may have changed.
pub fn hook_library_calls() -> io::Result<usize> {
    fill_slots(|slot| (slot.function, slot.stub))
}

/// Gives the slots of library calls their old values.
///
/// # Errors
///
/// The system refuses a change. The next call tries again.
pub fn release_library_calls() -> io::Result<()> {
    fill_slots(|slot| (slot.stub, slot.function)).map(drop)
}

/// Writes the second address from `of` into slots with the first one. Returns the number of slots with the second one
/// then.
fn fill_slots(of: impl Fn(&LibraryCall) -> (usize, usize)) -> io::Result<usize> {
    let mut calls = library_calls().peekable();
    if calls.peek().is_none() {
        return Ok(0);
    }
    let pages = Pages::all()?;
    let mut n_filled = 0;
    for slot in calls {
        let (before, after) = of(slot);
        let held = value(slot.place).load(SeqCst);
        // Any other value is somebody else's.
        if held == before {
            store(&pages, slot.place, after)?;
        }
        n_filled += usize::from(held == before || held == after);
    }
    Ok(n_filled)
}
