//! The functions of a module, and which of their instructions gives way to a branch.
//!
//! All code of the module is looked at for branches. That an indirect jump leads to a function's first instruction from within is not proven wrong.

use std::collections::BTreeSet;

use super::relocate::{is_call, target};
use crate::patch::entry_outcome::WholeReason;
use crate::patch::frames::{self, Range};
use crate::patch::module::Image;

const WORD: usize = size_of::<u32>();
/// `bti c`, `bti jc`
const LANDING_PADS: [u32; 2] = [0xd503_245f, 0xd503_24df];
/// `paciasp`, `pacibsp`: landing pads too.
const SIGNING: [u32; 2] = [0xd503_233f, 0xd503_237f];

/// A module's functions, and what is known of where its code branches to.
#[derive(Debug)]
pub(super) struct Functions {
    ranges: Vec<Range>,
    /// What is branched to or has a name, ascending.
    targets: Vec<usize>,
    /// Functions that branch to their own beginning.
    looping: BTreeSet<usize>,
}

/// What a branch takes the place of: sp is the CFA there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Displaced {
    pub(super) at: usize,
    pub(super) word: u32,
    /// The instruction in front of it, if that has signed the return address. It stays, as it is where indirect calls may land.
    pub(super) signed_by: Option<u32>,
}

impl Functions {
    /// Looks at all code of a module. `labels` are further addresses that somebody may jump to, such as those of symbols.
    pub(super) fn of(image: &Image<'_>, labels: impl Iterator<Item = usize>) -> Self {
        let mut found = Self { ranges: frames::ranges(image), targets: labels.collect(), looping: BTreeSet::new() };
        found.ranges.retain(|range| image.text(range.start).is_some_and(|(_, code)| !code.is_empty()));
        for (address, code) in image.texts() {
            found.look_at(address, code);
        }
        found.targets.sort_unstable();
        found.targets.dedup();
        found
    }

    fn look_at(&mut self, address: usize, code: &[u8]) {
        let mut later = self.ranges.iter().peekable();
        let mut around = None;
        for (idx, bytes) in code.as_chunks::<WORD>().0.iter().enumerate() {
            let from = address + idx * WORD;
            while let Some(range) = later.next_if(|range| range.start <= from) {
                around = Some(range);
            }
            let word = u32::from_le_bytes(*bytes);
            let Some(to) = target(word, from) else { continue };
            self.targets.push(to);
            // A call of itself is none.
            if let Some(range) = around.filter(|range| from < range.end && to == range.start && !is_call(word)) {
                self.looping.insert(range.start);
            }
        }
    }

    /// The functions: beginning and end.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (usize, usize)> {
        self.ranges.iter().filter(|range| range.is_function).map(|range| (range.start, range.end))
    }

    /// What is to give way in a function.
    pub(super) fn displaced(&self, image: &Image<'_>, start: usize, end: usize) -> Result<Displaced, WholeReason> {
        if self.looping.contains(&start) {
            return Err(WholeReason::Loop);
        }
        let (text, code) = image.text(start).ok_or(WholeReason::Unreadable)?;
        let code = &code[start - text..];
        let own = &code[..end.saturating_sub(start).min(code.len())];
        if takes_registers(own) {
            return Err(WholeReason::Registers);
        }
        let word = |at: usize| own.get(at..)?.first_chunk().map(|&bytes| u32::from_le_bytes(bytes));
        let first = word(0).filter(|_| start.is_multiple_of(WORD)).ok_or(WholeReason::Short)?;
        let is_signing = SIGNING.contains(&first);
        if !is_signing && !LANDING_PADS.contains(&first) {
            return Ok(Displaced { at: start, word: first, signed_by: None });
        }
        let at = start + WORD;
        if self.targets.binary_search(&at).is_ok() {
            return Err(WholeReason::Target);
        }
        let second = word(WORD).ok_or(WholeReason::Short)?;
        Ok(Displaced { at, word: second, signed_by: is_signing.then_some(first) })
    }
}

/// Whether code uses x16 or x17 and has not set them. Calls may change them on their way, and stubs do: so this is a part of another function, or one
/// that only its own kind calls. The code is read from its beginning to its end, whatever it branches to.
fn takes_registers(code: &[u8]) -> bool {
    let mut unset = [16, 17].map(|register| (register, true));
    for bytes in code.as_chunks::<WORD>().0 {
        let (read, written) = registers(u32::from_le_bytes(*bytes));
        for (register, is_unset) in &mut unset {
            if *is_unset && read.contains(&Some(*register)) {
                return true;
            }
            *is_unset &= !written.contains(&Some(*register));
        }
        if unset.iter().all(|(_, is_unset)| !is_unset) {
            return false;
        }
    }
    false
}

/// The general registers that an instruction reads and writes, by the groups of instructions. One that may be either is both.
fn registers(word: u32) -> ([Option<u32>; 4], [Option<u32>; 3]) {
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
            // What to prefetch is no register.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn takes(code: &[u32]) -> bool {
        takes_registers(&code.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())
    }

    #[test]
    fn parts_take_registers() {
        // mov x0, x16; add x0, x17, #1; str x16, [x0]; ldr x0, [x17]; stp x16, x17, [sp, #-16]!; br x16; cbz x17, .; cmp x0, x16; blr x17; madd x0, x1, x2, x16
        for word in [
            0xaa10_03e0,
            0x9100_0620,
            0xf900_0010,
            0xf940_0220,
            0xa9bf_47f0,
            0xd61f_0200,
            0xb400_0011,
            0xeb10_001f,
            0xd63f_0220,
            0x9b02_4020,
        ] {
            assert!(takes(&[0xd503_201f, word]), "{word:#x}");
        }
    }

    #[test]
    fn functions_set_them_first() {
        // adrp x16, .; ldr x17, [x16]; add x16, x16, #0; br x17: an entry of the procedure linkage table
        assert!(!takes(&[0x9000_0010, 0xf940_0211, 0x9100_0210, 0xd61f_0220]));
        // mov x16, x0; mov x17, sp; ldp x16, x17, [sp]; mrs x16, tpidr_el0, each of which sets one
        for (word, then) in [(0xaa00_03f0, 0xaa10_03e0), (0x9100_03f1, 0xaa11_03e0), (0xd53b_d050, 0xaa10_03e0)] {
            assert!(!takes(&[word, then]), "{word:#x}");
        }
        assert!(!takes(&[0xa940_47f0, 0xaa10_03e0, 0xaa11_03e0]));
        // stp x29, x30, [sp, #-0x110]!; fmov d16, d17; add v16.4s, v17.4s, v16.4s; b .+64; mov w0, #0x10; sub sp, sp, #0x440
        assert!(!takes(&[0xa9af_7bfd, 0x1e60_4230, 0x4eb0_8630, 0x1400_0010, 0x5280_0200, 0xd111_03ff]));
        assert!(!takes(&[]));
    }
}
