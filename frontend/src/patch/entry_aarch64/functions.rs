//! The functions of a module, and the instruction of each that gives way to a branch.
//!
//! All code of the module is searched for branches, except the parts that the module's sections mark as data. An
//! indirect jump from within to a function's first instruction is not ruled out.

use std::collections::BTreeSet;

use crate::patch::entry_outcome::WholeReason;
use crate::patch::frames::{self, Range};
use crate::patch::instructions::{is_call, registers, target};
use crate::patch::module::Image;

const WORD: usize = size_of::<u32>();
/// `bti c`, `bti jc`
const LANDING_PADS: [u32; 2] = [0xd503_245f, 0xd503_24df];
/// `paciasp`, `pacibsp`: landing pads too.
const SIGNING: [u32; 2] = [0xd503_233f, 0xd503_237f];

/// A module's functions, and the known targets of branches in its code.
#[derive(Debug)]
pub(super) struct Functions {
    ranges: Vec<Range>,
    /// Addresses that have a name or are targets of branches, ascending.
    targets: Vec<usize>,
    /// Functions with a branch to their own beginning.
    looping: BTreeSet<usize>,
}

/// The instruction replaced by a branch: sp is the CFA there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Displaced {
    pub(super) at: usize,
    pub(super) word: u32,
    /// The instruction in front of it, if that has signed the return address. It stays, as a landing place of indirect
    /// calls.
    pub(super) signed_by: Option<u32>,
}

impl Functions {
    /// Examines all `code` of a module. `labels` are further possible targets of jumps, such as the addresses of
    /// symbols.
    pub(super) fn of(image: &Image<'_>, code: &[(usize, &[u8])], labels: impl Iterator<Item = usize>) -> Self {
        let mut found = Self { ranges: frames::ranges(image), targets: labels.collect(), looping: BTreeSet::new() };
        found.ranges.retain(|range| image.text(range.start).is_some_and(|(_, code)| !code.is_empty()));
        for &(address, code) in code {
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

    /// Returns the instruction of a function that gives way.
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

/// Returns true if code uses x16 or x17 before setting them. Calls may change them on their way, and stubs do: so such
/// code is a part of another function, or a function that only its own kind calls. The code is read from its beginning
/// to its end, in spite of branches.
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
