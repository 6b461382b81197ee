//! Proof that a function returns the address that it was given in its first register: that of a result in memory. Conventions say so, but
//! compilers change them for functions that nobody else calls.
//!
//! It is proven if each return has, just before it, taken the result from where nothing but that address was ever stored.

use std::collections::HashSet;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};

/// The longest function that is looked at.
pub(super) const MAX_BYTES: u64 = 1 << 16;

/// True if the function whose whole code this is, at `address`, always returns its first argument.
pub(super) fn returns_first_argument(code: &[u8], address: u64) -> bool {
    let all: Vec<Instruction> = Decoder::with_ip(64, code, address, DecoderOptions::NONE).into_iter().collect();
    let Some(targets) = targets(&all, address..address.saturating_add(code.len() as u64)) else { return false };
    let copies = Copies::of(&all, &targets);
    let mut n_returns = 0;
    for (idx, instruction) in all.iter().enumerate() {
        if instruction.flow_control() == FlowControl::Return {
            n_returns += 1;
            if !copies.is_returned(&all[..=idx], &targets) {
                return false;
            }
        }
    }
    n_returns > 0
}

/// Where jumps go; `None` if one leaves the function, or may go anywhere.
fn targets(all: &[Instruction], code: std::ops::Range<u64>) -> Option<HashSet<u64>> {
    let mut targets = HashSet::new();
    for instruction in all {
        match instruction.flow_control() {
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
                let target = instruction.near_branch_target();
                if !code.contains(&target) {
                    return None;
                }
                targets.insert(target);
            }
            FlowControl::IndirectBranch | FlowControl::XbeginXabortXend => return None,
            _ => {}
        }
    }
    Some(targets)
}

/// Where only the first argument is.
struct Copies {
    registers: Vec<Register>,
    /// By their distance from rbp.
    slots: Vec<i64>,
}

impl Copies {
    /// Those that are made before the first jump, and never stored over.
    fn of(all: &[Instruction], targets: &HashSet<u64>) -> Self {
        /// Registers that calls keep.
        const KEPT: [Register; 5] = [Register::RBX, Register::R12, Register::R13, Register::R14, Register::R15];

        let mut copies = Self { registers: Vec::new(), slots: Vec::new() };
        let mut info = InstructionInfoFactory::new();
        let mut is_given = true;
        for instruction in all {
            let is_straight =
                matches!(instruction.flow_control(), FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall);
            if !is_straight || targets.contains(&instruction.ip()) {
                break;
            }
            if instruction.mnemonic() == Mnemonic::Mov && instruction.op1_kind() == OpKind::Register {
                let source = instruction.op1_register();
                let is_copy = is_given && source == Register::RDI || copies.registers.contains(&source);
                match (slot(instruction), instruction.op0_register()) {
                    (Some(place), _) if is_copy => copies.slots.push(place),
                    (None, register) if is_copy && KEPT.contains(&register) => copies.registers.push(register),
                    _ => {}
                }
            }
            let is_call = instruction.flow_control() != FlowControl::Next;
            is_given &= !is_call && !writes(instruction, &mut info).contains(&Register::RDI);
        }
        let mut n_writes = |register| {
            let own =
                all.iter().filter(|it| it.mnemonic() != Mnemonic::Pop && writes(it, &mut info).contains(&register));
            own.count()
        };
        copies.registers.retain(|&register| n_writes(register) == 1);
        let is_free = |place: i64| {
            let own = all.iter().filter(|it| is_stored_over(it, place, &mut info));
            own.count() == 1
        };
        let mut is_free = is_free;
        copies.slots.retain(|&place| is_free(place));
        copies
    }

    /// True if the last of these, a return, has a copy in rax on all ways.
    fn is_returned(&self, all: &[Instruction], targets: &HashSet<u64>) -> bool {
        let mut info = InstructionInfoFactory::new();
        for instruction in all.iter().rev() {
            if matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall) {
                return false;
            }
            if writes(instruction, &mut info).contains(&Register::RAX) {
                let is_move = instruction.mnemonic() == Mnemonic::Mov && instruction.op0_register() == Register::RAX;
                return is_move
                    && match instruction.op1_kind() {
                        OpKind::Register => self.registers.contains(&instruction.op1_register()),
                        OpKind::Memory => slot(instruction).is_some_and(|place| self.slots.contains(&place)),
                        _ => false,
                    };
            }
            // A jump from elsewhere has something else there.
            if targets.contains(&instruction.ip()) {
                return false;
            }
        }
        false
    }
}

/// The word in the frame that an instruction has as its operand.
fn slot(instruction: &Instruction) -> Option<i64> {
    let is_memory = (0..instruction.op_count()).any(|operand| instruction.op_kind(operand) == OpKind::Memory);
    let is_slot = is_memory
        && instruction.memory_base() == Register::RBP
        && instruction.memory_index() == Register::None
        && instruction.memory_size().size() == 8;
    is_slot.then(|| instruction.memory_displacement64().cast_signed())
}

/// The registers, as a whole, that an instruction writes to.
fn writes(instruction: &Instruction, info: &mut InstructionInfoFactory) -> Vec<Register> {
    let used = info.info(instruction).used_registers().iter();
    used.filter(|used| is_write(used.access())).map(|used| used.register().full_register()).collect()
}

/// True if it stores to a byte of a word of the frame. Other stores by the stack pointer may hit it too.
fn is_stored_over(instruction: &Instruction, place: i64, info: &mut InstructionInfoFactory) -> bool {
    info.info(instruction).used_memory().iter().filter(|used| is_write(used.access())).any(|used| {
        let at = used.displacement().cast_signed();
        let n_bytes = used.memory_size().size() as i64;
        used.base() == Register::RBP && (used.index() != Register::None || at < place + 8 && place < at + n_bytes)
    })
}

fn is_write(access: OpAccess) -> bool {
    matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_returned_is_followed() {
        let is_first = |code: &[u8]| returns_first_argument(code, 0x1000);
        // push rbx; mov rbx, rdi; call; mov rax, rbx; pop rbx; ret
        let kept = [0x53, 0x48, 0x89, 0xfb, 0xe8, 0, 0, 0, 0, 0x48, 0x89, 0xd8, 0x5b, 0xc3];
        assert!(is_first(&kept));
        // mov [rbp-8], rdi; call; mov rax, [rbp-8]; ret
        let stored = [0x48, 0x89, 0x7d, 0xf8, 0xe8, 0, 0, 0, 0, 0x48, 0x8b, 0x45, 0xf8, 0xc3];
        assert!(is_first(&stored));
        // The same, and mov dword ptr [rbp-4], edi before the return.
        let stored_over = [&stored[..9], &[0x89, 0x7d, 0xfc], &stored[9..]].concat();
        assert!(!is_first(&stored_over));
        // The same, and mov [rbp+rcx*4-64], eax, which may hit it.
        let may_be_stored_over = [&stored[..9], &[0x89, 0x44, 0x8d, 0xc0], &stored[9..]].concat();
        assert!(!is_first(&may_be_stored_over));
        // mov rbx, rdi behind the call.
        assert!(!is_first(&[0xe8, 0, 0, 0, 0, 0x48, 0x89, 0xfb, 0x48, 0x89, 0xd8, 0xc3]));
        // mov ebx, edi
        assert!(!is_first(&[0x89, 0xfb, 0x48, 0x89, 0xd8, 0xc3]));
        // mov rbx, rdi; inc rbx
        assert!(!is_first(&[0x48, 0x89, 0xfb, 0x48, 0xff, 0xc3, 0x48, 0x89, 0xd8, 0xc3]));
        // A jump between: mov rbx, rdi; je to ret; mov rax, rbx; ret
        assert!(!is_first(&[0x48, 0x89, 0xfb, 0x74, 0x03, 0x48, 0x89, 0xd8, 0xc3]));
        // One that leaves, one that goes anywhere, and no return at all.
        assert!(!is_first(&[&kept[..], &[0xeb, 0x70]].concat()));
        assert!(!is_first(&[&kept[..], &[0xff, 0xe0]].concat()));
        assert!(!is_first(&kept[..9]) && !is_first(&[]));
    }
}
