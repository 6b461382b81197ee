//! Slots of the global offset table: reading and writing them.
//!
//! **Invariant**: a slot is written by one aligned store of eight bytes.

use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use super::poke::Pages;

/// A slot of a loaded module.
pub(super) fn value<'a>(place: usize) -> &'a AtomicUsize {
    // SAFETY: relocations of that kind name eight aligned bytes that can be read; the module stays loaded while they are used.
    unsafe { AtomicUsize::from_ptr(place as *mut usize) }
}

/// Stores a word in pages that may be read-only after relocation, and keeps them so.
pub(super) fn store(all: &[Pages], place: usize, word: usize) -> io::Result<()> {
    let gone = || io::Error::other("the data of a module are not mapped");
    let pages = all.iter().find(|pages| pages.range.contains(&place)).ok_or_else(gone)?;
    let pages = pages.cut_to(&(place..place + size_of::<usize>())).ok_or_else(gone)?;
    pages.make_writable()?;
    value(place).store(word, SeqCst);
    let mut refusal = None;
    pages.restore(&mut refusal);
    refusal.map_or(Ok(()), Err)
}
