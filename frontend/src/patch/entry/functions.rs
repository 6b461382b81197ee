//! The functions of a module, and their first instructions as room for a branch.
//!
//! All code of the module is decoded: targets of jumps stay in place. An indirect jump into a function's first five
//! bytes is not ruled out; the tables named by a function with such jumps are read.

use std::collections::BTreeSet;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, RflagsBits};

use crate::patch::entry_outcome::WholeReason;
use crate::patch::frames::{self, Range};
use crate::patch::module::Image;

/// Bytes of a branch.
pub(super) const BRANCH_BYTES: usize = 5;
/// The longest instruction.
const LONGEST: usize = 15;

/// A module's functions, and the known targets of its code's jumps.
#[derive(Debug)]
pub(super) struct Functions {
    pub(super) ranges: Vec<Range>,
    /// Targets of jumps, calls and pointers, ascending.
    pub(super) targets: Vec<usize>,
    /// Places named other than by jumps and calls: by tables of jumps, or by their addresses. Ascending.
    pub(super) named: Vec<usize>,
    /// Functions with a jump to their own beginning.
    looping: BTreeSet<usize>,
}

/// A function with room for a branch.
#[derive(Debug)]
pub(super) struct Room {
    /// Instructions overwritten by the branch, wholly or in part.
    pub(super) instructions: Vec<Instruction>,
}

impl Functions {
    /// Examines all code of a module. `labels` are further possible targets of jumps, such as the addresses of symbols.
    pub(super) fn of(image: &Image<'_>, labels: impl Iterator<Item = usize>) -> Self {
        let mut found = Self {
            ranges: frames::ranges(image),
            targets: labels.collect(),
            named: Vec::new(),
            looping: BTreeSet::new(),
        };
        found.ranges.retain(|range| image.text(range.start).is_some_and(|(_, code)| !code.is_empty()));
        for (address, code) in image.texts() {
            found.decode(image, address, code);
        }
        found.named.sort_unstable();
        found.targets.extend_from_slice(&found.named);
        found.targets.sort_unstable();
        found.targets.dedup();
        found
    }

    /// Returns the described range around an address.
    pub(super) fn range_at(&self, address: usize) -> Option<&Range> {
        range_at(&self.ranges, address)
    }

    /// The functions: beginning and end.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (usize, usize)> {
        self.ranges.iter().filter(|range| range.is_function).map(|range| (range.start, range.end))
    }

    /// Decodes a segment: described parts piece by piece, the rest as it comes.
    fn decode(&mut self, image: &Image<'_>, address: usize, code: &[u8]) {
        let end = address + code.len();
        let mut pieces = Vec::new();
        let mut at = address;
        for range in &self.ranges {
            if range.start < at || range.end > end {
                continue;
            }
            if at < range.start {
                pieces.push((at, range.start));
            }
            pieces.push((range.start, range.end));
            at = range.end;
        }
        if at < end {
            pieces.push((at, end));
        }
        for (start, end) in pieces {
            self.decode_piece(image, start, &code[start - address..end - address]);
        }
    }

    fn decode_piece(&mut self, image: &Image<'_>, start: usize, code: &[u8]) {
        let end = start + code.len();
        let mut tables = BTreeSet::new();
        let mut jumps_by_table = false;
        for instruction in Decoder::with_ip(64, code, start as u64, DecoderOptions::NONE) {
            if instruction.is_invalid() {
                continue;
            }
            if instruction.is_ip_rel_memory_operand() {
                let address = instruction.ip_rel_memory_address() as usize;
                if image.text(address).is_some() {
                    self.named.push(address);
                } else {
                    tables.insert(address);
                }
            } else if instruction.op_kinds().any(|kind| kind == OpKind::Memory) && instruction.memory_displ_size() >= 4
            {
                // A table of addresses in a program that lies at a fixed place.
                tables.insert(instruction.memory_displacement64() as usize);
            }
            match instruction.flow_control() {
                FlowControl::IndirectBranch => jumps_by_table |= !instruction.is_ip_rel_memory_operand(),
                FlowControl::Call if instruction.op0_kind() == OpKind::NearBranch64 => {
                    self.targets.push(instruction.near_branch_target() as usize);
                }
                FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch | FlowControl::XbeginXabortXend
                    if instruction.op0_kind() == OpKind::NearBranch64 =>
                {
                    let target = instruction.near_branch_target() as usize;
                    self.targets.push(target);
                    if target == start {
                        self.looping.insert(start);
                    }
                }
                _ => {}
            }
            // Immediate addresses, in programs at a fixed place.
            if instruction.op_count() == 2
                && matches!(instruction.op1_kind(), OpKind::Immediate32 | OpKind::Immediate32to64)
            {
                let address = instruction.immediate(1) as usize;
                if image.text(address).is_some() {
                    self.named.push(address);
                }
            }
        }
        if jumps_by_table {
            for table in tables {
                self.read_table(image, table, start..end);
            }
        }
    }

    /// Takes the targets of a table of jumps within `function`, or parts of functions: distances from the table, or
    /// addresses.
    fn read_table(&mut self, image: &Image<'_>, table: usize, function: std::ops::Range<usize>) {
        const MOST: usize = 4096;
        let is_within = |ranges: &[Range], target: usize| {
            function.contains(&target) || range_at(ranges, target).is_some_and(|range| !range.is_function)
        };
        for idx in 0..MOST {
            let at = table.wrapping_add(4 * idx);
            let Some(bytes) = image.bytes(at..at.saturating_add(4)) else { break };
            let distance = bytes.try_into().map_or(0, i32::from_le_bytes) as isize;
            let target = table.wrapping_add_signed(distance);
            if !is_within(&self.ranges, target) {
                break;
            }
            self.named.push(target);
        }
        for idx in 0..MOST {
            let at = table.wrapping_add(8 * idx);
            let Some(bytes) = image.bytes(at..at.saturating_add(8)) else { break };
            let target = bytes.try_into().map_or(0, u64::from_le_bytes) as usize;
            if !is_within(&self.ranges, target) {
                break;
            }
            self.named.push(target);
        }
    }

    /// The room for a branch at the function's beginning.
    pub(super) fn room(&self, image: &Image<'_>, start: usize, end: usize) -> Result<Room, WholeReason> {
        if self.looping.contains(&start) {
            return Err(WholeReason::Loop);
        }
        let (text, code) = image.text(start).ok_or(WholeReason::Unreadable)?;
        let code = &code[start - text..];
        let own = end.saturating_sub(start).min(code.len());
        if takes_flags(start, &code[..own]) {
            return Err(WholeReason::Part);
        }
        let mut decoder = Decoder::with_ip(64, &code[..own.min(2 * LONGEST)], start as u64, DecoderOptions::NONE);
        let mut instructions: Vec<Instruction> = Vec::new();
        let mut bytes = 0;
        while bytes < BRANCH_BYTES {
            let goes_on =
                |last: &Instruction| matches!(last.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch);
            if instructions.last().is_some_and(|last| !goes_on(last)) || !decoder.can_decode() {
                break;
            }
            let instruction = decoder.decode();
            if instruction.is_invalid() || is_untouchable(&instruction) {
                return Err(WholeReason::Instruction);
            }
            bytes += instruction.len();
            instructions.push(instruction);
        }
        if bytes < BRANCH_BYTES && !(bytes == own && self.is_padding(start, &code[own..], BRANCH_BYTES - bytes, end)) {
            return Err(WholeReason::Short);
        }
        let inside = self.targets.partition_point(|&target| target <= start);
        if self.targets.get(inside).is_some_and(|&target| target < start + bytes.max(BRANCH_BYTES)) {
            return Err(WholeReason::Target);
        }
        Ok(Room { instructions })
    }

    /// Returns true if so many bytes behind a function with its end at `end` are there for alignment only.
    fn is_padding(&self, start: usize, code: &[u8], bytes: usize, end: usize) -> bool {
        let after = self.ranges.partition_point(|range| range.start <= start);
        let next = self.ranges.get(after).map_or(usize::MAX, |range| range.start);
        let gap = next.saturating_sub(end).min(code.len());
        let mut decoder = Decoder::with_ip(64, &code[..gap.min(bytes + LONGEST)], end as u64, DecoderOptions::NONE);
        let mut found = 0;
        while found < bytes && decoder.can_decode() {
            let instruction = decoder.decode();
            if !is_filler(&instruction) {
                return false;
            }
            found += instruction.len();
        }
        found >= bytes && gap >= bytes
    }
}

/// Returns the range around an address, of ascending ranges.
fn range_at(ranges: &[Range], address: usize) -> Option<&Range> {
    let after = ranges.partition_point(|range| range.start <= address);
    ranges[..after].last().filter(|range| address < range.end)
}

/// True if an instruction is there for alignment only: `data16 cs nop` and `xchg ax, ax` too.
pub(super) fn is_filler(instruction: &Instruction) -> bool {
    matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Int3)
        || instruction.mnemonic() == Mnemonic::Xchg && instruction.op0_register() == instruction.op1_register()
}

/// Returns true if code uses flags before setting them. No caller passes flags to a function, and the hook does not
/// keep them: such code is a part of another function, or a function that only its own kind calls.
fn takes_flags(start: usize, code: &[u8]) -> bool {
    const STATUS: u32 =
        RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::CF | RflagsBits::PF;

    let mut unset = STATUS;
    for instruction in Decoder::with_ip(64, code, start as u64, DecoderOptions::NONE) {
        // A system call saves them, and that is all.
        if unset == 0 || !matches!(instruction.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch) {
            return false;
        }
        if instruction.rflags_read() & unset != 0 {
            return true;
        }
        unset &= !instruction.rflags_modified();
    }
    false
}

/// True if the code at `start` is an entry of the procedure linkage table: a jump through a slot.
pub(super) fn is_linkage(image: &Image<'_>, start: usize) -> bool {
    let Some((text, code)) = image.text(start) else { return false };
    let decoder = Decoder::with_ip(64, &code[start - text..], start as u64, DecoderOptions::NONE);
    let first = decoder.into_iter().find(|instruction| instruction.mnemonic() != Mnemonic::Endbr64);
    first.is_some_and(|first| first.code() == Code::Jmp_rm64 && first.is_ip_rel_memory_operand())
}

/// Returns true for instructions that stay in place: the system or the processor treats them by their place.
pub(super) fn is_untouchable(instruction: &Instruction) -> bool {
    let is_system_call = matches!(instruction.code(), Code::Syscall | Code::Sysenter);
    is_system_call || instruction.flow_control() == FlowControl::Interrupt || instruction.mnemonic() == Mnemonic::Ud2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_take_no_flags() {
        // test edi, edi; je +0; ret
        assert!(!takes_flags(0x1000, &[0x85, 0xff, 0x74, 0, 0xc3]));
        // mov eax, 1; je +0
        assert!(takes_flags(0x1000, &[0xb8, 1, 0, 0, 0, 0x74, 0]));
        // inc edi leaves CF as it is: adc eax, 0
        assert!(takes_flags(0x1000, &[0xff, 0xc7, 0x83, 0xd0, 0]));
        // call +0; jc +0: the callee's.
        assert!(!takes_flags(0x1000, &[0xe8, 0, 0, 0, 0, 0x72, 0]));
    }
}
