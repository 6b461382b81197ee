//! Finding the calls of the hook in the modules' code, on riscv64: `auipc ra` and `jalr ra`, or `jal ra` for a near
//! hook, to it or to an entry of the procedure linkage table with a jump there.
//!
//! Instructions begin at multiples of two, so each of these places is examined. Apparent calls outside of known
//! functions are left alone and counted.

use object::elf::{R_RISCV_64, R_RISCV_JUMP_SLOT, RelocationType};

use super::{Found, Site, Targets};
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
pub(in crate::patch) const SLOT_RELOCATIONS: [RelocationType; 2] = [R_RISCV_JUMP_SLOT, R_RISCV_64];

/// Bytes of half an instruction.
const HALF: usize = size_of::<u16>();

unsafe extern "C" {
    fn _mcount();
}

/// A call of the hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::patch) struct Call {
    pub(in crate::patch) address: usize,
    /// Its bytes.
    len: usize,
}

impl Call {
    pub(in crate::patch) fn site(self, module: usize) -> Site {
        Site { address: self.address, child_ip: self.address + self.len, module, has_arguments: false }
    }
}

impl Targets {
    /// Adds the entries of the procedure linkage table with a jump through one of the slots: `auipc t3`,
    /// `ld t3, n(t3)`, `jalr t1, t3`.
    pub(in crate::patch) fn add_linkage(&mut self, address: usize, code: &[u8]) {
        for (place, first, second) in instructions(address, code) {
            let is_entry = first & 0xfff == 0xe17 && second & 0xf_ffff == 0xe_3e03;
            let slot = from_pair(place, first, second);
            if is_entry && self.slots.iter().any(|&(known, _)| known == slot) {
                self.functions.push((place, Hook));
            }
        }
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
    for (place, first, second) in instructions(address, code) {
        let (target, len) = match (first & 0xfff, second & 0xf_ffff) {
            (0x0ef, _) => (jump_target(place, first), 4),              // jal ra
            (0x097, 0x0_80e7) => (from_pair(place, first, second), 8), // auipc ra, jalr ra, n(ra)
            _ => continue,
        };
        if !targets.functions.iter().any(|&(known, _)| known == target) {
            continue;
        }
        match function_start(place) {
            Some(_) => found.calls.push(Call { address: place, len }),
            None => found.n_unconfirmed += 1,
        }
    }
    found
}

/// Returns all possible places of instructions in code, with the word there and the next one; 0 at the end of the code.
fn instructions(start: usize, code: &[u8]) -> impl Iterator<Item = (usize, u32, u32)> {
    let word = |at: usize| code.get(at..).and_then(<[u8]>::first_chunk).copied().map_or(0, u32::from_le_bytes);
    (0..code.len()).step_by(HALF).map(move |at| (start + at, word(at), word(at + size_of::<u32>())))
}

/// Returns the common address of `auipc` and an instruction with an immediate of twelve bits.
fn from_pair(place: usize, first: u32, second: u32) -> usize {
    let upper = (first & 0xffff_f000).cast_signed() as isize;
    place.wrapping_add_signed(upper + (second.cast_signed() >> 20) as isize)
}

/// Returns the target of `jal`.
fn jump_target(place: usize, word: u32) -> usize {
    let sign = (word.cast_signed() >> 31 << 20) as isize;
    let rest = (word >> 12 & 0xff) << 12 | (word >> 20 & 1) << 11 | (word >> 21 & 0x3ff) << 1;
    place.wrapping_add_signed(sign + rest.cast_signed() as isize)
}
