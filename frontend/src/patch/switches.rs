//! Switches of stubs: a byte for each. With 0, the stub leads straight on to the function, with 1 to the hook. Stubs
//! for functions of other modules have a word each behind the bytes: the function's address. Switches of sleds: a word
//! for each, its target.
//!
//! So switching changes memory beside the code, and never the code: one byte or word is stored, and a thread in a stub
//! has seen it before or after.
//!
//! No system call is needed, so a program without its rights can be switched too; and each process has bytes of its
//! own, as the pages are private.
//!
//! Not here: the readers of the switches (`entry::stubs`, `entry::sleds`), and the times of switching (`control`).

use std::io;
use std::iter;
use std::ptr;
use std::slice;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize};

use super::memory::{map_code, map_data};
use super::sites::Site;
use crate::elf::file::page_size;

/// The switch of a stub, or of a sled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Switch {
    /// The site of its choice.
    pub(super) site: Site,
    /// Once on, it stays on: its target ends calls begun meanwhile.
    pub(super) is_for_ends: bool,
    what: Switched,
}

/// Memory of a switch.
#[derive(Clone, Copy, Debug)]
enum Switched {
    Byte(&'static AtomicU8),
    /// A target of jumps without a look at a switch.
    Way {
        word: &'static AtomicUsize,
        off: usize,
        on: usize,
    },
}

/// The bytes of a module's switches, all off.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bytes(&'static [AtomicU8]);

impl Bytes {
    /// Returns the size in bytes of the pages for this number of bytes.
    pub(super) fn pages_bytes(n_bytes: usize) -> usize {
        n_bytes.next_multiple_of(usize::try_from(page_size()).unwrap_or(4096))
    }

    /// Maps so many at `start`, a page's beginning, and in the pages behind them `code`, their reader. Both stay for
    /// ever.
    pub(super) fn map_before(code: &[u8], start: usize, n_bytes: usize) -> io::Result<Self> {
        let pages_bytes = Self::pages_bytes(n_bytes);
        let memory = map_data(start, pages_bytes)?;
        if let Err(error) = map_code(start + pages_bytes, code) {
            // SAFETY: what was just mapped; nobody knows of it.
            unsafe { libc::munmap(memory, pages_bytes) };
            return Err(error);
        }
        // SAFETY: so many bytes were just mapped there, zeroed and writable, and are never unmapped.
        Ok(Self(unsafe { slice::from_raw_parts(memory.cast::<AtomicU8>(), n_bytes) }))
    }

    /// Returns the switch of `site`, byte number `idx`.
    pub(super) fn switch(self, idx: usize, site: Site, is_for_ends: bool) -> Option<Switch> {
        Some(Switch { site, is_for_ends, what: Switched::Byte(self.0.get(idx)?) })
    }

    /// Returns the number of bytes for so many stubs, with words for functions of other modules or without.
    pub(super) fn number(n_switches: usize, have_ways: bool) -> usize {
        if have_ways { way_at(n_switches, n_switches) } else { n_switches }
    }

    /// Returns the target word of the stub number `idx` of `n_switches`, if they have any.
    pub(super) fn way(self, n_switches: usize, idx: usize) -> Option<&'static AtomicUsize> {
        let at = way_at(n_switches, idx);
        let bytes = self.0.get(at..at.checked_add(size_of::<usize>())?)?;
        let place = bytes.as_ptr().cast_mut().cast::<usize>();
        // SAFETY: so many bytes are there for ever, and are used only as a word.
        place.is_aligned().then(|| unsafe { AtomicUsize::from_ptr(place) })
    }
}

impl Switch {
    /// Returns the switch of `site` by a word with one of two targets.
    pub(super) fn of_way(word: &'static AtomicUsize, (off, on): (usize, usize), site: Site, is_for_ends: bool) -> Self {
        Self { site, is_for_ends, what: Switched::Way { word, off, on } }
    }

    /// Switches it on, for good if it is not added to the others.
    pub(super) fn switch_on(&self) {
        self.switch(true);
    }

    fn is_on(&self) -> bool {
        match self.what {
            Switched::Byte(byte) => byte.load(Relaxed) != 0,
            Switched::Way { word, on, .. } => word.load(Relaxed) == on,
        }
    }

    fn switch(&self, is_on: bool) {
        match self.what {
            Switched::Byte(byte) => byte.store(is_on.into(), Release),
            Switched::Way { word, off, on } => word.store(if is_on { on } else { off }, Release),
        }
    }
}

/// Returns the place of that word, behind the first switch.
pub(super) fn way_at(n_switches: usize, idx: usize) -> usize {
    n_switches.next_multiple_of(size_of::<usize>()) + idx * size_of::<usize>()
}

/// Some switches, and those added before.
#[derive(Debug)]
struct Part {
    switches: Vec<Switch>,
    next: Option<&'static Self>,
}

static LAST: AtomicPtr<Part> = AtomicPtr::new(ptr::null_mut());

fn parts() -> impl Iterator<Item = &'static Part> {
    // SAFETY: null, or what `add` has leaked.
    let last: Option<&'static Part> = unsafe { LAST.load(Acquire).as_ref() };
    iter::successors(last, |part| part.next)
}

/// Adds permanent switches. Only one thread does at a time.
pub(super) fn add(switches: Vec<Switch>) {
    let part = Box::leak(Box::new(Part { switches, next: parts().next() }));
    LAST.store(part, Release);
}

/// Switches all stubs, in the order of their addition: on, if `is_on` returns true for their sites. Only one thread
/// does at a time.
pub(super) fn set(is_on: impl Fn(&Site) -> bool) {
    for switch in parts().flat_map(|part| &part.switches) {
        let wanted = is_on(&switch.site);
        let is_kept = switch.is_for_ends && !wanted;
        // A switch in the wanted state is not written: its page may be one that a parent and its children share.
        if !is_kept && switch.is_on() != wanted {
            switch.switch(wanted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_begins_goes_off_and_its_ends_do_not() {
        let bytes = Bytes(Vec::leak((0..4).map(|_| AtomicU8::new(0)).collect()));
        let site = |child_ip| Site { address: 0, child_ip, module: 0, has_arguments: true };
        let kinds = [(0, 1, true), (1, 1, false), (2, 2, true), (3, 2, false)];
        add(kinds
            .into_iter()
            .filter_map(|(idx, child_ip, is_end)| bytes.switch(idx, site(child_ip), is_end))
            .collect());
        assert!(bytes.switch(4, site(3), false).is_none());
        for (chosen, expected) in
            [(vec![1], [1, 1, 0, 0]), (vec![2], [1, 0, 1, 1]), (vec![], [1, 0, 1, 0]), (vec![1, 2], [1; 4])]
        {
            set(|site| chosen.contains(&site.child_ip));
            assert_eq!(bytes.0.iter().map(|byte| byte.load(Relaxed)).collect::<Vec<_>>(), expected, "{chosen:?}");
        }
    }
}
