//! Finding the calls of the hook in the modules' code, on aarch64: `bl` to it, or to an entry of the procedure linkage
//! table with a jump there.
//!
//! Instructions are four bytes and begin at multiples of four, so each word is one. Data between functions may look
//! like a call: words outside of known functions are left alone and counted.

use object::elf::{R_AARCH64_GLOB_DAT, R_AARCH64_JUMP_SLOT, RelocationType};

use super::{Found, Targets};
use crate::patch::code::{Bytes, Form};

/// Target of a site: `_mcount`, or `mcount`, the same function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::patch) struct Hook;

impl Hook {
    pub(in crate::patch) const ALL: [Self; 1] = [Self];

    /// The address of the function called by compiled code.
    pub(in crate::patch) fn address(self) -> usize {
        _mcount as *const () as usize
    }

    /// The hook with this name.
    pub(in crate::patch) fn named(name: &[u8]) -> Option<Self> {
        matches!(name, b"mcount" | b"_mcount").then_some(Self)
    }
}

/// The relocations of a slot of the global offset table with a function's address.
pub(in crate::patch) const SLOT_RELOCATIONS: [RelocationType; 2] = [R_AARCH64_JUMP_SLOT, R_AARCH64_GLOB_DAT];

const WORD: usize = size_of::<u32>();
const PAGE: usize = 1 << 12;

unsafe extern "C" {
    fn _mcount();
}

/// A call of the hook, or an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::patch) struct Call {
    pub(in crate::patch) address: usize,
    pub(in crate::patch) form: Form,
    pub(in crate::patch) original: Bytes,
}

impl Targets {
    /// Adds the entries of the procedure linkage table with a jump through one of the slots.
    pub(in crate::patch) fn add_linkage(&mut self, address: usize, code: &[u8]) {
        let slots: Vec<usize> = self.slots.iter().map(|&(slot, _)| slot).collect();
        self.functions.extend(linkage(address, words(code), &slots).into_iter().map(|entry| (entry, Hook)));
    }
}

/// Finds the calls in `code` at `address`. `function_start` returns the beginning of the function around an address.
pub(in crate::patch) fn find(
    address: usize,
    code: &[u8],
    targets: &Targets,
    mut function_start: impl FnMut(usize) -> Option<usize>,
) -> Found {
    let mut found = Found::default();
    for (place, original) in calls(address, words(code), &targets.functions) {
        match function_start(place) {
            Some(_) => found.calls.push(Call { address: place, form: Form::Call, original }),
            None => found.n_unconfirmed += 1,
        }
    }
    found
}

fn words(code: &[u8]) -> &[[u8; WORD]] {
    code.as_chunks().0
}

/// Returns the places and targets of calls of one of the targets in code.
fn calls(start: usize, code: &[[u8; WORD]], targets: &[(usize, Hook)]) -> impl Iterator<Item = (usize, Bytes)> {
    code.iter().enumerate().filter_map(move |(number, &bytes)| {
        let word = u32::from_le_bytes(bytes);
        let address = start + number * WORD;
        let target = address.wrapping_add_signed(((word as i32) << 6 >> 4) as isize);
        let is_call = word >> 26 == 0x25 && targets.iter().any(|&(known, _)| known == target); // bl
        is_call.then_some((address, bytes))
    })
}

/// Returns the entries of the procedure linkage table with a jump through one of the slots: `adrp x16`,
/// `ldr x17, [x16, #n]`, `add`, `br x17`, and maybe `bti c` before.
fn linkage(start: usize, code: &[[u8; WORD]], slots: &[usize]) -> Vec<usize> {
    const BTI_C: u32 = 0xd503_245f;
    let mut found = Vec::new();
    for (number, pair) in code.windows(2).enumerate() {
        let [page, load] = [pair[0], pair[1]].map(u32::from_le_bytes);
        if page & 0x9f00_001f != 0x9000_0010 || load & 0xffc0_03ff != 0xf940_0211 {
            continue;
        }
        let address = start + number * WORD;
        let pages = ((page >> 5 & 0x7_ffff) << 2 | page >> 29 & 3) as i32;
        let pages = (pages << 11 >> 11) as isize;
        let slot = (address & !(PAGE - 1)).wrapping_add_signed(pages * PAGE as isize);
        if slots.contains(&slot.wrapping_add((load >> 10 & 0xfff) as usize * size_of::<u64>())) {
            found.push(address);
            let before = number.checked_sub(1).and_then(|number| code.get(number));
            if before.is_some_and(|word| u32::from_le_bytes(*word) == BTI_C) {
                found.push(address - WORD);
            }
        }
    }
    found
}
