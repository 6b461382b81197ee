//! Operands and effects of aarch64 instructions, as far as code is read.
//!
//! Source: Arm ARM, "A64 instruction set encoding".

/// Returns the target of a branch or a call with a distance in it, with or without a condition.
pub(super) fn target(word: u32, from: usize) -> Option<usize> {
    let distance = match word {
        _ if word & 0x7c00_0000 == 0x1400_0000 => signed(word & 0x3ff_ffff, 26),
        _ if is_test_of_bit(word) => signed(word >> 5 & 0x3fff, 14),
        _ if is_conditional(word) => signed(word >> 5 & 0x7_ffff, 19),
        _ => return None,
    };
    Some(from.wrapping_add_signed(distance << 2))
}

/// True for a call with a distance in it.
pub(super) fn is_call(word: u32) -> bool {
    word >> 26 == 0b10_0101
}

/// Returns the address made by an instruction (`adr`), or its loaded literal's place: relative to itself.
pub(super) fn named_place(word: u32, from: usize) -> Option<usize> {
    let distance = signed(word >> 5 & 0x7_ffff, 19) << 2;
    match word {
        _ if word & 0x9f00_0000 == 0x1000_0000 => Some(from.wrapping_add_signed(distance | (word >> 29 & 3) as isize)),
        // ldr, ldrsw, prfm; of a vector register with the bit 26
        _ if word & 0x3b00_0000 == 0x1800_0000 => Some(from.wrapping_add_signed(distance)),
        _ => None,
    }
}

/// Returns the page whose address an instruction makes (`adrp`).
pub(super) fn named_page(word: u32, from: usize) -> Option<usize> {
    let pages = signed(word >> 5 & 0x7_ffff, 19) << 2 | (word >> 29 & 3) as isize;
    (word & 0x9f00_0000 == 0x9000_0000).then(|| (from & !0xfff).wrapping_add_signed(pages << 12))
}

/// b.cond, bc.cond; cbz, cbnz; tbz, tbnz
pub(super) fn is_conditional(word: u32) -> bool {
    word & 0xff00_0000 == 0x5400_0000 || word & 0x7e00_0000 == 0x3400_0000 || is_test_of_bit(word)
}

pub(super) fn is_test_of_bit(word: u32) -> bool {
    word & 0x7e00_0000 == 0x3600_0000
}

/// Returns the general registers read and written by an instruction, by the groups of instructions. Uncertain ones are
/// both.
pub(super) fn registers(word: u32) -> ([Option<u32>; 4], [Option<u32>; 3]) {
    let field = |at: u32| Some(word >> at & 0x1f);
    let (d, n, a, m) = (field(0), field(5), field(10), field(16));
    match word >> 25 & 0xf {
        // Data processing with an immediate: adr, adrp; movz, movn; movk and bitfields, of which some keep bits of d; extr; others.
        0b1000 | 0b1001 => match word >> 23 & 7 {
            0 | 1 => ([None; 4], [d, None, None]),
            5 if word >> 29 & 3 == 3 => ([d, None, None, None], [d, None, None]),
            5 => ([None; 4], [d, None, None]),
            6 if word >> 29 & 3 == 1 => ([d, n, None, None], [d, None, None]),
            7 => ([n, m, None, None], [d, None, None]),
            _ => ([n, None, None, None], [d, None, None]),
        },
        // Branches, exceptions, system instructions.
        0b1010 | 0b1011 => match word >> 29 {
            // cbz, cbnz, tbz, tbnz
            1 | 5 => ([d, None, None, None], [None; 3]),
            // br, blr, ret: with authentication d is a modifier
            6 if word >> 25 & 1 == 1 => ([n, d, None, None], [None; 3]),
            // mrs; msr
            6 if word >> 20 & 0xfff == 0xd53 => ([None; 4], [d, None, None]),
            6 if word >> 22 & 0x3ff == 0b11_0101_0100 => ([d, None, None, None], [None; 3]),
            _ => ([None; 4], [None; 3]),
        },
        // Data processing with registers: with three sources; with a condition on an immediate; others.
        0b0101 | 0b1101 => match word >> 21 & 0xff {
            0b1101_1000..=0b1101_1111 => ([n, m, a, None], [d, None, None]),
            // ccmp, ccmn: no result, and an immediate or a register
            0b1101_0010 if word >> 11 & 1 == 1 => ([n, None, None, None], [None; 3]),
            0b1101_0010 => ([n, m, None, None], [None; 3]),
            // One source, where bit 30 is set: what stands for m is an opcode.
            // Signing has d in it too.
            0b1101_0110 if word >> 30 & 1 == 1 => ([n, d.filter(|_| m == Some(1)), None, None], [d, None, None]),
            _ => ([n, m, None, None], [d, None, None]),
        },
        // Loads and stores.
        0b0100 | 0b0110 | 0b1100 | 0b1110 => loads_and_stores(word, [d, n, a, m]),
        // Vectors: moves from general registers, and to them. Others have numbers of vectors there.
        0b0111 | 0b1111 => {
            let is_conversion = word >> 24 & 0x1f == 0b1_1110 && (word >> 21 & 1 == 0 || word >> 10 & 0x3f == 0);
            // dup, ins; umov, smov
            let (is_copy, has_general) = (word & 0xbfe0_8400 == 0x0e00_0400, word >> 11 & 0xf);
            match (is_conversion, is_copy, word >> 16 & 7, has_general) {
                // scvtf, ucvtf, fmov
                (true, _, 2 | 3 | 7, _) | (_, true, _, 1 | 3) => ([n, None, None, None], [None; 3]),
                (true, ..) | (_, true, _, 5 | 7) => ([None; 4], [d, None, None]),
                _ => ([None; 4], [None; 3]),
            }
        }
        // SVE and SME: whatever it is.
        0b0010 | 0b0000 => ([n, m, None, None], [None; 3]),
        _ => ([None; 4], [None; 3]),
    }
}

fn loads_and_stores(word: u32, [d, n, a, m]: [Option<u32>; 4]) -> ([Option<u32>; 4], [Option<u32>; 3]) {
    let is_vector = word >> 26 & 1 == 1;
    let general = |register: Option<u32>| register.filter(|_| !is_vector);
    let op = word >> 28 & 3;
    match op {
        // Literals.
        1 if word >> 24 & 3 == 0 => ([None; 4], [general(d), None, None]),
        // Pairs.
        2 if word >> 22 & 1 == 1 => ([n, None, None, None], [general(d), general(a), None]),
        2 => ([n, general(d), general(a), None], [None; 3]),
        // One register, at a distance or at that in m, or with an atomic operation on m.
        3 => {
            let has_m = word >> 24 & 1 == 0 && word >> 21 & 1 == 1;
            let is_atomic = has_m && word >> 10 & 3 == 0;
            let m = m.filter(|_| has_m);
            // The first operand of a prefetch is no register.
            let is_prefetch = word >> 30 == 3 && word >> 22 & 3 == 2;
            match is_atomic || word >> 22 & 3 != 0 {
                true if is_vector && word >> 22 & 1 == 0 => ([n, m, None, None], [None; 3]),
                true => ([n, m, None, None], [general(d).filter(|_| !is_prefetch), None, None]),
                false => ([n, m, general(d), None], [None; 3]),
            }
        }
        // Exclusive ones, compare-and-swap, several vectors: all are read.
        _ if is_vector => ([n, m.filter(|_| word >> 23 & 1 == 1), None, None], [None; 3]),
        _ if word >> 22 & 1 == 1 => ([n, m, d.filter(|_| word >> 21 & 1 == 1), None], [d, None, None]),
        _ => ([n, d, a, m], [None; 3]),
    }
}

/// The lowest bits of a field as a number.
fn signed(field: u32, bits: u32) -> isize {
    let unused = u32::BITS - bits;
    ((field << unused).cast_signed() >> unused) as isize
}
