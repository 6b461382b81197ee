//! The first instruction of a function, as it runs elsewhere: operands relative to its place are encoded anew, all else stays as it is.
//!
//! Source: Arm ARM, "A64 instruction set encoding".

use crate::patch::instructions::{is_call, is_conditional, is_test_of_bit, named_page, named_place, target};

/// `x16`; a call may change it on its way to a function.
const X16: u32 = 16;

/// Copy of an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Copied {
    pub(super) words: Vec<u32>,
    /// True for the unchanged instruction; it may move the stack pointer or sign the return address.
    pub(super) is_as_it_was: bool,
}

/// Copies the instruction at an address to `place`, with the function's continuation at `back`. `None` if it has to
/// stay in place: calls and exceptions, which publish their place, and words that are no instruction.
pub(super) fn copy(word: u32, from: usize, place: usize, back: usize) -> Option<Copied> {
    let changed = |words| Some(Copied { words, is_as_it_was: false });
    let register = word & 0x1f;
    if is_conditional(word) {
        // The copy, b back, b target: it jumps over the one in between.
        let target = target(word, from)?;
        let short = with_distance(word, 2);
        return changed(vec![short, branch(place + 4, back)?, branch(place + 8, target)?]);
    }
    match word {
        // adr, adrp
        _ if word & 0x1f00_0000 == 0x1000_0000 => {
            let address = named_place(word, from).or_else(|| named_page(word, from))?;
            changed(to_register(register, address, place)?.to_vec())
        }
        // ldr, ldrsw, prfm of a literal; of a vector register with the bit 26
        _ if word & 0x3b00_0000 == 0x1800_0000 => {
            let address = named_place(word, from)?;
            let is_vector = word >> 26 & 1 == 1;
            // From [x16]: ldr of so many bytes, ldrsw, prfm.
            let from_register = match (word >> 30, is_vector) {
                (0, false) => 0xb940_0000,
                (1, false) => 0xf940_0000,
                (2, false) => 0xb980_0000,
                (3, false) => 0xf980_0000,
                (0, true) => 0xbd40_0000,
                (1, true) => 0xfd40_0000,
                (2, true) => 0x3dc0_0000,
                _ => return None,
            };
            let [page, add] = to_register(X16, address, place)?;
            changed(vec![page, add, from_register | X16 << 5 | register])
        }
        // b
        _ if word >> 26 == 0b00_0101 => changed(vec![branch(place, target(word, from)?)?]),
        // bl, blr and their kind with authentication
        _ if is_call(word) || word & 0xfe9f_f000 == 0xd61f_0000 && word >> 21 & 3 == 1 => None,
        // svc, brk and their kind; permanently undefined ones
        _ if word & 0xff00_0000 == 0xd400_0000 || word >> 16 == 0 => None,
        // Signing with the program counter (PAuth_LR): registers, and pacm.
        _ if word & 0xffff_8000 == 0xdac1_8000 || word == 0xd503_24ff => None,
        // bti j, bti jc: jumped to by a table.
        _ if word & 0xffff_ffbf == 0xd503_249f => None,
        _ => Some(Copied { words: vec![word], is_as_it_was: true }),
    }
}

/// `b`, if it reaches.
pub(super) fn branch(from: usize, to: usize) -> Option<u32> {
    let distance = to.wrapping_sub(from).cast_signed() >> 2;
    (-(1 << 25)..1 << 25).contains(&distance).then_some(0x1400_0000 | distance as u32 & 0x3ff_ffff)
}

/// `adrp` and `add`: an address into a register, if `adrp` reaches.
pub(super) fn to_register(register: u32, address: usize, place: usize) -> Option<[u32; 2]> {
    Some([page_of(register, address, place)?, 0x9100_0000 | (address as u32 & 0xfff) << 10 | register << 5 | register])
}

/// `adrp`, if it reaches.
pub(super) fn page_of(register: u32, address: usize, place: usize) -> Option<u32> {
    let pages = (address >> 12).cast_signed() - (place >> 12).cast_signed();
    let fields = (pages as u32 & 3) << 29 | (pages as u32 >> 2 & 0x7_ffff) << 5;
    (-(1 << 20)..1 << 20).contains(&pages).then_some(0x9000_0000 | fields | register)
}

/// A conditional branch over so many instructions.
fn with_distance(word: u32, distance: u32) -> u32 {
    let field = if is_test_of_bit(word) { 0x3fff } else { 0x7_ffff };
    word & !(field << 5) | distance << 5
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: usize = 0x40_1004;
    const PLACE: usize = 0x30_0030;

    #[track_caller]
    fn copied(word: u32) -> Vec<u32> {
        copy(word, FROM, PLACE, FROM + 4).unwrap().words
    }

    #[test]
    fn what_is_not_relative_stays() {
        // stp x29, x30, [sp, #-32]!; paciasp; ret; br x17; ldr x0, [x0]; ldxr x0, [x1]
        for word in [0xa9be_7bfd, 0xd503_233f, 0xd65f_03c0, 0xd61f_0220, 0xf940_0000, 0xc85f_7c20] {
            assert_eq!(copy(word, FROM, PLACE, FROM + 4), Some(Copied { words: vec![word], is_as_it_was: true }));
        }
    }

    #[test]
    fn addresses_are_the_same() {
        // adr x1, .+8; adrp x2, .+0x1000
        assert_eq!(copied(0x1000_0041), to_register(1, FROM + 8, PLACE).unwrap());
        assert_eq!(copied(0xb000_0002), to_register(2, 0x40_2000, PLACE).unwrap());
        // adrp x1, 0x401000 from 0x300030; add x1, x1, #0xc
        assert_eq!(to_register(1, 0x40_100c, PLACE).unwrap(), [0xb000_0801, 0x9100_3021]);
        assert_eq!(to_register(1, FROM + (1 << 33), FROM), None);
        // adr backwards: x3, .-1
        assert_eq!(copied(0x70ff_ffe3), to_register(3, FROM - 1, PLACE).unwrap());
    }

    #[test]
    fn literals_are_loaded_from_where_they_are() {
        let [page, add] = to_register(16, FROM + 8, PLACE).unwrap();
        // ldr w3, .+8; ldr x3; ldrsw x3; prfm #3; ldr s3; ldr d3; ldr q3
        let all = [0x1800_0043, 0x5800_0043, 0x9800_0043, 0xd800_0043, 0x1c00_0043, 0x5c00_0043, 0x9c00_0043];
        let loads = [0xb940_0203, 0xf940_0203, 0xb980_0203, 0xf980_0203, 0xbd40_0203, 0xfd40_0203, 0x3dc0_0203];
        for (word, load) in all.into_iter().zip(loads) {
            assert_eq!(copied(word), [page, add, load], "{word:#x}");
        }
    }

    #[test]
    fn branches_go_where_they_went() {
        // b .+16; b.eq .+16; cbz x5, .-8; tbnz w5, #3, .+16
        assert_eq!(copied(0x1400_0004), [branch(PLACE, FROM + 16).unwrap()]);
        let list = [(0x5400_0080, 0x5400_0040, 16), (0xb4ff_ffc5, 0xb400_0045, -8), (0x3718_0085, 0x3718_0045, 16)];
        for (word, short, distance) in list {
            let goes_to = FROM.wrapping_add_signed(distance);
            assert_eq!(target(word, FROM), Some(goes_to));
            let branches = [branch(PLACE + 4, FROM + 4).unwrap(), branch(PLACE + 8, goes_to).unwrap()];
            assert_eq!(copied(word), [short, branches[0], branches[1]], "{word:#x}");
        }
        assert_eq!(branch(0, 1 << 27), None);
        assert_eq!(branch(1 << 27, 0), Some(0x1600_0000));
    }

    #[test]
    fn some_stay_where_they_are() {
        // bl; blr x1; blraaz x1; svc; brk; udf; paciasppc; pacm; bti j
        for word in
            [0x9400_0000, 0xd63f_0020, 0xd63f_083f, 0xd400_0001, 0xd420_0000, 0, 0xdac1_a3fe, 0xd503_24ff, 0xd503_249f]
        {
            assert_eq!(copy(word, FROM, PLACE, FROM + 4), None, "{word:#x}");
        }
    }
}
