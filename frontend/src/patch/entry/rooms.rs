//! Compilers' room for a branch at the beginning of functions, by their lists.
//!
//! Not here: whether the room is large enough (`functions`), as an option of the compiler sets its size.

use iced_x86::{Decoder, DecoderOptions, Mnemonic};

use crate::elf::patchable::patchable_lists;
use crate::patch::module::Image;

/// Bytes of the landing pad (`endbr64`) in front of the room.
const LANDING_PAD_BYTES: usize = 4;
/// The maximum before a function: compilers take no larger number.
const MOST_BEFORE: usize = 255;

/// Addresses of NOPs, ascending.
#[derive(Debug, Default)]
pub(super) struct Rooms(Vec<usize>);

impl Rooms {
    /// Reads a module's list. `place` returns the place in memory of an address in its file.
    pub(super) fn of(image: &Image<'_>, file: &[u8], place: impl Fn(u64) -> Option<usize>) -> Self {
        let mut found = Vec::new();
        for list in patchable_lists(file) {
            let (start, end) = (place(list.start), place(list.end));
            // The dynamic linker has made addresses of them.
            let words = start.zip(end).and_then(|(start, end)| image.bytes(start..end)).unwrap_or_default();
            let words = words.as_chunks().0.iter().map(|&word| u64::from_le_bytes(word) as usize);
            // Where hooks are called they are listed too.
            found.extend(words.filter(|&address| are_nops(image, address, 1)));
        }
        found.sort_unstable();
        Self(found)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if the function at `start` has one.
    pub(super) fn has(&self, image: &Image<'_>, start: usize) -> bool {
        let behind = self.0.partition_point(|&room| room <= start + LANDING_PAD_BYTES);
        let Some(&room) = self.0[..behind].last() else { return false };
        // A part of it may lie before the function, and nothing but it.
        room >= start || start - room <= MOST_BEFORE && are_nops(image, room, start - room)
    }
}

/// True if nothing but NOPs stands there, at least so many bytes.
pub(super) fn are_nops(image: &Image<'_>, address: usize, bytes: usize) -> bool {
    let Some((text, code)) = image.text(address) else { return false };
    let decoder = Decoder::with_ip(64, &code[address - text..], address as u64, DecoderOptions::NONE);
    let mut instructions = decoder.into_iter().take_while(|instruction| (instruction.ip() as usize) < address + bytes);
    instructions.all(|instruction| instruction.mnemonic() == Mnemonic::Nop)
}
