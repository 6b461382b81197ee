//! Uses of slots for anything except calls, on aarch64. A function's address loaded from a slot is followed.
//!
//! Code gets to a slot by its page, taken into a register (`adrp`), and by the distance from there in a load. So pages
//! near slots are followed, and the loaded values.

use std::collections::BTreeSet;

use object::elf;

use super::instructions::{is_call, is_conditional, named_page, named_place, registers, target};
use super::module::Image;
use super::ways::{Does, never_uses};

const WORD: usize = size_of::<u32>();
/// The reach of a load from a page: so many times eight bytes.
const REACH: usize = 0xfff << 3;
/// The largest access to memory with the distance in it.
const LARGEST: usize = 16;

/// True if calls by the linkage table authenticate the contents of a slot (`-z pac-plt`): on processors without signatures the instruction does
/// nothing.
pub(super) fn authenticates_slots(image: &Image<'_>) -> bool {
    // SAFETY: asks for a number.
    let has_signatures = unsafe { libc::getauxval(libc::AT_HWCAP) } & libc::HWCAP_PACA != 0;
    has_signatures && image.has_dynamic(elf::DT_AARCH64_PAC_PLT)
}

/// Returns the slots with other uses in the code than calls, jumps and tests for such a function. A call of a function
/// with its own address goes unnoticed.
pub(super) fn used_otherwise(image: &Image<'_>, slots: &[usize]) -> Vec<usize> {
    let slots = slots.iter().copied().collect();
    image.texts().flat_map(|(start, code)| Text { start, words: code.as_chunks().0 }.used(&slots)).collect()
}

/// Some code. None of it goes on elsewhere, as far as is followed.
struct Text<'c> {
    start: usize,
    words: &'c [[u8; WORD]],
}

impl Text<'_> {
    fn word(&self, at: usize) -> Option<u32> {
        Some(u32::from_le_bytes(*self.words.get(at.checked_sub(self.start)? / WORD)?))
    }

    fn used(&self, slots: &BTreeSet<usize>) -> BTreeSet<usize> {
        let mut used = BTreeSet::new();
        for (idx, &word) in self.words.iter().enumerate() {
            let (at, word) = (self.start + idx * WORD, u32::from_le_bytes(word));
            if let Some(place) = named_place(word, at) {
                used.extend(slots.range(place..place.saturating_add(LARGEST)));
            }
            let Some(page) = named_page(word, at) else { continue };
            let mut near = slots.range(page..=page.saturating_add(REACH)).peekable();
            if near.peek().is_some() && !self.finds_loads(at, page, slots, &mut used) {
                used.extend(near);
            }
        }
        used
    }

    /// Finds the uses of slots by code with their page from `at`. Returns true if it has no other use for the page.
    fn finds_loads(&self, at: usize, page: usize, slots: &BTreeSet<usize>, used: &mut BTreeSet<usize>) -> bool {
        let Some(register) = self.word(at).map(|word| word & 0x1f) else { return false };
        never_uses(at + WORD, |at| {
            let word = self.word(at)?;
            let Some((distance, bytes, to)) = access(word, register) else {
                return Some(does(word, at, register, true));
            };
            let place = page + distance;
            let is_called = bytes == size_of::<usize>() && to.is_some_and(|to| self.is_only_called(at, to));
            if !(is_called && slots.contains(&place)) {
                used.extend(slots.range((place + 1).saturating_sub(size_of::<usize>())..place + bytes));
            }
            Some(goes_on(at, to != Some(register)))
        })
    }

    /// Returns true if the address loaded into a register at `at` is for calls only.
    fn is_only_called(&self, at: usize, register: u32) -> bool {
        never_uses(at + WORD, |at| Some(does(self.word(at)?, at, register, false)))
    }
}

/// Returns an instruction's access at a distance from a register: the distance, the number of bytes, and the general
/// register that gets them. `add` is an access to the byte there. `None` for others.
fn access(word: u32, base: u32) -> Option<(usize, usize, Option<u32>)> {
    let (distance, to) = ((word >> 10 & 0xfff) as usize, word & 0x1f);
    if word >> 5 & 0x1f != base {
        return None;
    }
    match word {
        // add, of 64 bits
        _ if word & 0xffc0_0000 == 0x9100_0000 => Some((distance, 1, Some(to))),
        // ldr, str and their kind, with a distance without a sign
        _ if word & 0x3b00_0000 == 0x3900_0000 => {
            let (is_vector, is_store) = (word >> 26 & 1 == 1, word >> 22 & 3 == 0);
            let shift = if is_vector && word >> 23 & 1 == 1 { 4 } else { word >> 30 };
            // A register that is stored at a place relative to itself is told of by `does`.
            (is_vector || !is_store || to != base)
                .then(|| (distance << shift, 1 << shift, (!is_vector && !is_store).then_some(to)))
        }
        _ => None,
    }
}

fn goes_on(at: usize, is_kept: bool) -> Does {
    Does::Keeps { next: is_kept.then_some(at + WORD), target: None }
}

/// Returns the effect of an instruction on a register with a function's address, or with a page, which is no argument
/// and no result.
fn does(word: u32, at: usize, register: u32, is_page: bool) -> Does {
    let (read, written) = registers(word);
    let (is_read, is_written) = (read.contains(&Some(register)), written.contains(&Some(register)));
    let called = goes_on(at, (19..=28).contains(&register));
    // br, blr, ret: the register, whether the other one is a modifier
    let (goes_to, has_modifier) = (word >> 5 & 0x1f, word >> 24 & 1 == 1);
    let is_modifier = has_modifier && word & 0x1f == register;
    match word >> 21 {
        0x6b0 | 0x6b8 if goes_to == register && !is_modifier => Does::ENDS,
        0x6b0 | 0x6b8 => Does::Uses,
        0x6b1 | 0x6b9 if goes_to == register && !is_modifier => called,
        0x6b1 | 0x6b9 if goes_to == register || is_modifier || !is_page && register <= 7 => Does::Uses,
        0x6b1 | 0x6b9 => called,
        0x6b2 if !is_page && register <= 1 => Does::Uses,
        0x6b2 => Does::ENDS,
        _ if is_call(word) && !is_page && register <= 7 => Does::Uses,
        _ if is_call(word) => called,
        // svc; brk and its kind, and what is none
        _ if word & 0xffe0_001f == 0xd400_0001 && register <= 8 => Does::Uses,
        _ if word & 0xffe0_0000 == 0xd420_0000 || word >> 16 == 0 => Does::ENDS,
        // cbz, cbnz: whether there is such a function. Where there is none no value is followed.
        _ if is_read && word & 0x7f00_0000 == 0x3400_0000 => goes_on(at, true),
        _ if is_read && word & 0x7f00_0000 == 0x3500_0000 => Does::Keeps { next: None, target: target(word, at) },
        _ if is_read => Does::Uses,
        _ if is_conditional(word) => Does::Keeps { next: Some(at + WORD), target: target(word, at) },
        _ if word & 0xfc00_0000 == 0x1400_0000 => Does::Keeps { next: None, target: target(word, at) },
        _ => goes_on(at, !is_written),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: usize = 0x1000;
    const SLOT: usize = 0x4010;
    /// `adrp x20, 0x4000`, `adrp x2`, `adrp x8`; `ldr` of the slot's contents to `x20`, `x2`, and from `x8` to `x9`
    const PAGE: [u32; 3] = [0xf000_0014, 0xf000_0002, 0xf000_0008];
    const LOAD: [u32; 3] = [0xf940_0a94, 0xf940_0842, 0xf940_0909];
    const RET: u32 = 0xd65f_03c0;

    fn is_used(code: &[u32]) -> bool {
        let words: Vec<_> = code.iter().map(|word| word.to_le_bytes()).collect();
        let used = Text { start: START, words: &words }.used(&BTreeSet::from([SLOT, SLOT + 32]));
        used.contains(&SLOT)
    }

    #[test]
    fn what_is_called_only() {
        // 1: mov x0, x19; blr x20; cbnz x0, 1b
        assert!(!is_used(&[PAGE[0], LOAD[0], 0xaa13_03e0, 0xd63f_0280, 0xb5ff_ffc0, RET]));
        // blr x2; bl: where arguments are, and not any more behind it
        assert!(!is_used(&[PAGE[1], LOAD[1], 0xd63f_0040, 0x9400_0000, RET]));
        // br x2
        assert!(!is_used(&[PAGE[1], LOAD[1], 0xd61f_0040]));
        // ldr of another slot, from the same page; blr x9
        assert!(!is_used(&[PAGE[2], LOAD[2], 0xd63f_0120, PAGE[2], 0xf940_0d09, 0xd63f_0120, RET]));
        // cbz x20, 1f; blr x20; 1: ret
        assert!(!is_used(&[PAGE[0], LOAD[0], 0xb400_0054, 0xd63f_0280, RET]));
        // add x8, x8, #32: the address of something else; mov x20, #0
        assert!(!is_used(&[PAGE[2], LOAD[2], 0x9100_8108, 0xaa08_03e0, RET]));
        assert!(!is_used(&[PAGE[0], LOAD[0], 0xd280_0014, 0xaa14_03e0, RET]));
    }

    #[test]
    fn all_else_is_a_use() {
        // str x20, [sp]; mov x0, x20; cmp x20, x0; add x3, x20, #1; tbz x20, #1, .+8; br x3
        for word in [0xf900_03f4, 0xaa14_03e0, 0xeb00_029f, 0x9100_0683, 0x3608_0054, 0xd61f_0060] {
            assert!(is_used(&[PAGE[0], LOAD[0], word, RET, RET]), "{word:#x}");
            // Behind a branch.
            assert!(is_used(&[PAGE[0], LOAD[0], 0xb500_0040, RET, word, RET, RET]), "{word:#x}");
        }
        // bl, svc: an argument
        assert!(is_used(&[PAGE[1], LOAD[1], 0x9400_0000, RET]));
        assert!(is_used(&[PAGE[1], LOAD[1], 0xd400_0001, RET]));
        // Instructions that look like the last page there is (adrp x0, and adr x0).
        assert!(!is_used(&[0xf0ff_ffc0, 0xd503_201f]) && !is_used(&[0x1080_0000, RET]));
        // The code ends.
        assert!(is_used(&[PAGE[0], LOAD[0]]));
        // add x8, x8, #16; ldr w9, [x8, #20]; str x9, [x8, #16]; ldr q9, [x8, #16]; mov x0, x8
        for word in [0x9100_4108, 0xb940_1509, 0xf900_0909, 0x3dc0_0509, 0xaa08_03e0] {
            assert!(is_used(&[PAGE[2], word, RET]), "{word:#x}");
        }
        // ldr x3 and adr x3 of the slot
        assert!(is_used(&[0x5800_0003 | (SLOT - START) as u32 >> 2 << 5, RET]));
        assert!(is_used(&[0x1000_0003 | (SLOT - START) as u32 >> 2 << 5, RET]));
    }
}
