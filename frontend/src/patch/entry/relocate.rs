//! The first instructions of a function, in a copy elsewhere.
//!
//! Each becomes an instruction with the same effect from its new place; behind the last one the function goes on in its
//! own place. A call becomes a push of its return address in the function, and a jump: callees never return to a copy,
//! so unwinders see the function itself.

use iced_x86::{Code, Encoder, FlowControl, Instruction, MemoryOperand, OpKind, Register};

/// A copy of instructions.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Copied {
    pub(super) code: Vec<u8>,
    pub(super) rows: Vec<Row>,
    /// The return address of a displaced call. It stands in the word named by the caller of [`copy`].
    pub(super) returns_to: Option<usize>,
}

/// An instruction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// Its place in the copy.
    pub(super) at: usize,
    /// The address of its original in the function.
    pub(super) original: usize,
    /// Bytes on the stack beyond the function's own.
    pub(super) pushed: u8,
}

/// Copies instructions to `place`. `word` is the address of the word for the return address of a call among them. `None` if
/// they cannot run there.
pub(super) fn copy(instructions: &[Instruction], place: usize, word: usize) -> Option<Copied> {
    let mut copy = Copied { code: Vec::new(), rows: Vec::new(), returns_to: None };
    let (last, _) = instructions.split_last()?;
    for instruction in instructions {
        let at = instruction.ip() as usize;
        match instruction.flow_control() {
            FlowControl::Next | FlowControl::Return => copy.append(place, instruction, at)?,
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
                // loop and jrcxz reach 127 bytes only.
                let is_short = instruction.is_loop() || instruction.is_loopcc() || instruction.is_jcx_short();
                if is_short || instruction.code() == Code::Xbegin_rel32 {
                    return None;
                }
                let mut near = *instruction;
                near.as_near_branch();
                copy.append(place, &near, at)?;
            }
            // A jump through a pointer, at the end.
            FlowControl::IndirectBranch => copy.append(place, instruction, at)?,
            FlowControl::Call | FlowControl::IndirectCall if instruction == last => {
                let jump = jump_for_call(instruction)?;
                let operand = MemoryOperand::with_base_displ_size(Register::RIP, word as i64, 8);
                copy.append(place, &Instruction::with1(Code::Push_rm64, operand).ok()?, at)?;
                copy.append(place, &jump, at)?;
                copy.rows.last_mut()?.pushed = 8;
                copy.returns_to = Some(instruction.next_ip() as usize);
            }
            _ => return None,
        }
    }
    if !matches!(
        last.flow_control(),
        FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::Return
            | FlowControl::Call
            | FlowControl::IndirectCall
    ) {
        let back = last.next_ip();
        copy.append(place, &Instruction::with_branch(Code::Jmp_rel32_64, back).ok()?, back as usize)?;
    }
    Some(copy)
}

impl Copied {
    /// A jump to `target`, in place of a copy of the code there. `word` is the address of a word with the target.
    pub(super) fn jump(target: usize, place: usize, word: usize) -> Option<Self> {
        let mut copy = Self::default();
        let operand = MemoryOperand::with_base_displ_size(Register::RIP, word as i64, 8);
        copy.append(place, &Instruction::with1(Code::Jmp_rm64, operand).ok()?, target)?;
        Some(copy)
    }

    /// Appends an instruction, with its original at `original`.
    pub(super) fn append(&mut self, place: usize, instruction: &Instruction, original: usize) -> Option<()> {
        let mut encoder = Encoder::new(64);
        encoder.encode(instruction, (place + self.code.len()) as u64).ok()?;
        self.rows.push(Row { at: self.code.len(), original, pushed: 0 });
        self.code.append(&mut encoder.take_buffer());
        Some(())
    }
}

/// Returns the jump to a call's target, behind the push of the return address.
fn jump_for_call(call: &Instruction) -> Option<Instruction> {
    match call.code() {
        Code::Call_rel32_64 => Instruction::with_branch(Code::Jmp_rel32_64, call.near_branch_target()).ok(),
        Code::Call_rm64 => {
            // The push has moved rsp.
            let uses_rsp = match call.op0_kind() {
                OpKind::Register => call.op0_register() == Register::RSP,
                _ => call.memory_base() == Register::RSP,
            };
            let mut jump = *call;
            jump.set_code(Code::Jmp_rm64);
            (!uses_rsp).then_some(jump)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    const FROM: u64 = 0x40_1000;
    const TO: usize = 0x10_0000;
    const WORD: usize = 0xf_ff00;

    fn decode(code: &[u8], at: u64) -> Vec<Instruction> {
        Decoder::with_ip(64, code, at, DecoderOptions::NONE).into_iter().collect()
    }

    fn copied(code: &[u8]) -> Option<(Vec<Instruction>, Copied)> {
        let copy = copy(&decode(code, FROM), TO, WORD)?;
        let instructions = decode(&copy.code, TO as u64);
        assert_eq!(instructions.len(), copy.rows.len());
        for (instruction, row) in instructions.iter().zip(&copy.rows) {
            assert_eq!(instruction.ip() as usize, TO + row.at);
        }
        Some((instructions, copy))
    }

    #[test]
    fn what_follows_is_jumped_to() {
        // push rbp; mov rbp, rsp; sub rsp, 16
        let (code, copy) = copied(&[0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x10]).unwrap();
        assert_eq!(copy.code[..8], [0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x10]);
        assert_eq!(code.last().unwrap().near_branch_target(), FROM + 8);
        let originals: Vec<usize> = copy.rows.iter().map(|row| row.original - FROM as usize).collect();
        assert_eq!(originals, [0, 1, 4, 8]);
    }

    #[test]
    fn addresses_stay() {
        // lea rax, [rip + 0x100]; je +0x20 (short)
        let (code, _) = copied(&[0x48, 0x8d, 0x05, 0, 1, 0, 0, 0x74, 0x20]).unwrap();
        assert_eq!(code[0].ip_rel_memory_address(), FROM + 7 + 0x100);
        assert_eq!(code[1].near_branch_target(), FROM + 9 + 0x20);
        assert_eq!(code[1].len(), 6);
        assert_eq!(code[2].near_branch_target(), FROM + 9);
    }

    #[test]
    fn ends_need_no_way_back() {
        // xor eax, eax; ret
        assert_eq!(copied(&[0x31, 0xc0, 0xc3]).unwrap().1.code, [0x31, 0xc0, 0xc3]);
        // jmp +0
        assert_eq!(copied(&[0xeb, 0]).unwrap().0[0].near_branch_target(), FROM + 2);
        // jmp [rip + 0x10]
        assert_eq!(copied(&[0xff, 0x25, 0x10, 0, 0, 0]).unwrap().0[0].ip_rel_memory_address(), FROM + 0x16);
    }

    #[test]
    fn calls_return_to_the_function() {
        // push rax; call +0x10
        let (code, copy) = copied(&[0x50, 0xe8, 0x10, 0, 0, 0]).unwrap();
        assert_eq!(copy.returns_to, Some(FROM as usize + 6));
        assert_eq!((code[1].code(), code[1].ip_rel_memory_address()), (Code::Push_rm64, WORD as u64));
        assert_eq!((code[2].code(), code[2].near_branch_target()), (Code::Jmp_rel32_64, FROM + 0x16));
        // push rax; call [rip + 0x20]
        let (code, copy) = copied(&[0x50, 0xff, 0x15, 0x20, 0, 0, 0]).unwrap();
        assert_eq!(copy.returns_to, Some(FROM as usize + 7));
        assert_eq!((code[2].code(), code[2].ip_rel_memory_address()), (Code::Jmp_rm64, FROM + 0x27));
        // call [rsp + 8]: the push would move what it reads.
        assert_eq!(copied(&[0x90, 0xff, 0x54, 0x24, 8]), None);
    }

    #[test]
    fn what_does_not_reach_is_left() {
        // jrcxz +0x10; loop +0x10; xbegin +0x10
        for code in [&[0xe3, 0x10][..], &[0xe2, 0x10], &[0xc7, 0xf8, 0x10, 0, 0, 0]] {
            assert_eq!(copied(code), None);
        }
    }
}
