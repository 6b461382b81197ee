//! Uses of slots for anything except calls. A function's address taken out of a slot is followed: compilers take it
//! into a register before a loop, and call it from there.

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, OpKind, Register,
};

use super::module::Image;
use super::ways::{Does, never_uses};

/// Registers preserved by functions.
const KEPT: [Register; 6] = [Register::RBX, Register::RBP, Register::R12, Register::R13, Register::R14, Register::R15];
/// Registers for arguments.
const ARGUMENTS: [Register; 6] =
    [Register::RDI, Register::RSI, Register::RDX, Register::RCX, Register::R8, Register::R9];
/// Registers for results.
const RESULTS: [Register; 2] = [Register::RAX, Register::RDX];

/// Instructions that call, or jump to, the contents of a slot; the slot's place follows.
const CALLS: [[u8; 2]; 2] = [[0xff, 0x15], [0xff, 0x25]];
const OPERAND_BYTES: usize = 4;
/// Bytes before the operand of `mov` from a slot to a register.
const LOAD_BYTES: usize = 3;
/// `cmp qword [rip + …], imm8`, without the operands.
const COMPARE: [u8; 3] = [0x48, 0x83, 0x3d];

/// True if calls authenticate the contents of a slot.
pub(super) fn authenticates_slots(_image: &Image<'_>) -> bool {
    false
}

/// Returns the slots with other uses in the code than calls, jumps and tests for such a function. Bytes that only look
/// like such a use count.
pub(super) fn used_otherwise(image: &Image<'_>, slots: &[usize]) -> Vec<usize> {
    /// The number of bytes behind an instruction's operand with the slot: a number for comparison.
    const BEHIND: [usize; 4] = [0, 1, 2, 4];

    let mut slots = slots.to_vec();
    slots.sort_unstable();
    let (Some(&first), Some(&last)) = (slots.first(), slots.last()) else { return slots };
    let mut used = Vec::new();
    for (start, code) in image.texts() {
        for (at, operand) in code.windows(OPERAND_BYTES).enumerate() {
            let [a, b, c, d] = *operand else { break };
            let distance = i32::from_le_bytes([a, b, c, d]) as isize;
            let named = (start + at + OPERAND_BYTES).wrapping_add_signed(distance);
            if named > last || named + BEHIND[3] < first || at < LOAD_BYTES || !names_by_place(code[at - 1]) {
                continue;
            }
            let before = &code[..at];
            for behind in BEHIND {
                let Ok(place) = slots.binary_search(&(named + behind)) else { continue };
                let is_harmless = match behind {
                    0 => {
                        CALLS.iter().any(|call| before.ends_with(call))
                            || is_only_called(image, start + at - LOAD_BYTES)
                    }
                    _ => behind == 1 && before.ends_with(&COMPARE) && code.get(at + OPERAND_BYTES) == Some(&0),
                };
                if !is_harmless {
                    used.push(slots[place]);
                }
            }
        }
    }
    used
}

/// True for a byte (`ModRM`) of an operand relative to its instruction's place.
fn names_by_place(byte: u8) -> bool {
    byte & 0xc7 == 0x05
}

/// Returns true if the instruction at `at` takes an address out of a slot for calls only.
fn is_only_called(image: &Image<'_>, at: usize) -> bool {
    let decode = |at: usize| {
        let (start, code) = image.text(at)?;
        Some(Decoder::with_ip(64, &code[at - start..], at as u64, DecoderOptions::NONE).decode())
    };
    let Some(first) = decode(at).filter(|first| first.code() == Code::Mov_r64_rm64) else { return false };
    follow(&first, decode)
}

fn follow(first: &Instruction, decode: impl Fn(usize) -> Option<Instruction>) -> bool {
    let register = first.op0_register();
    let mut info = InstructionInfoFactory::new();
    never_uses(first.next_ip() as usize, |at| decode(at).map(|instruction| does(&instruction, register, &mut info)))
}

fn does(instruction: &Instruction, register: Register, info: &mut InstructionInfoFactory) -> Does {
    let keeps = |next: bool, target: bool| Does::Keeps {
        next: next.then_some(instruction.next_ip() as usize),
        target: target.then_some(instruction.near_branch_target() as usize),
    };
    let goes_there = instruction.op0_kind() == OpKind::Register && instruction.op0_register() == register;
    match instruction.flow_control() {
        // Nobody knows whether a register is an argument, or a table's entry leads back.
        FlowControl::Call | FlowControl::IndirectCall if ARGUMENTS.contains(&register) => Does::Uses,
        FlowControl::IndirectCall if !goes_there && reads(instruction, register, info) => Does::Uses,
        FlowControl::Call | FlowControl::IndirectCall => keeps(KEPT.contains(&register), false),
        FlowControl::IndirectBranch if goes_there => Does::ENDS,
        FlowControl::IndirectBranch | FlowControl::XbeginXabortXend => Does::Uses,
        FlowControl::Return if RESULTS.contains(&register) => Does::Uses,
        FlowControl::Return | FlowControl::Interrupt | FlowControl::Exception => Does::ENDS,
        FlowControl::UnconditionalBranch => keeps(false, true),
        FlowControl::ConditionalBranch => keeps(true, true),
        FlowControl::Next if reads(instruction, register, info) => Does::Uses,
        FlowControl::Next => keeps(!writes(instruction, register, info), false),
    }
}

/// True if an instruction takes the value of a register, or changes only a part of it.
fn reads(instruction: &Instruction, register: Register, info: &mut InstructionInfoFactory) -> bool {
    let used = info.info(instruction).used_registers().iter();
    used.filter(|used| used.register().full_register() == register)
        .any(|used| used.access() != OpAccess::Write || used.register().size() < 4)
}

fn writes(instruction: &Instruction, register: Register, info: &mut InstructionInfoFactory) -> bool {
    info.info(instruction).used_registers().iter().any(|used| used.register().full_register() == register)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns true if the first of these instructions takes an address for calls only.
    fn is_called(code: &[u8]) -> bool {
        const START: u64 = 0x1000;
        let decode = |at: usize| {
            let code = code.get(at.checked_sub(START as usize)?..).filter(|code| !code.is_empty())?;
            Some(Decoder::with_ip(64, code, at as u64, DecoderOptions::NONE).decode())
        };
        follow(&decode(START as usize).unwrap(), decode)
    }

    /// `mov rbx, [rip+0]`
    const TO_RBX: [u8; 7] = [0x48, 0x8b, 0x1d, 0, 0, 0, 0];
    /// `mov rax, [rip+0]`
    const TO_RAX: [u8; 7] = [0x48, 0x8b, 0x05, 0, 0, 0, 0];

    #[test]
    fn loops_that_call_it_only_call() {
        // 1: mov edi, 1; call rbx; test eax, eax; jne 1; pop rbx; ret
        let code = [&TO_RBX[..], &[0xbf, 1, 0, 0, 0, 0xff, 0xd3, 0x85, 0xc0, 0x75, 0xf5, 0x5b, 0xc3]].concat();
        assert!(is_called(&code));
        // jmp rax
        assert!(is_called(&[&TO_RAX[..], &[0xff, 0xe0]].concat()));
        // call rax; mov [rdi], rax; ret: the result.
        assert!(is_called(&[&TO_RAX[..], &[0xff, 0xd0, 0x48, 0x89, 0x07, 0xc3]].concat()));
    }

    #[test]
    fn all_else_is_a_use() {
        let cases: [&[u8]; 9] = [
            &[0x48, 0x89, 0x1f],                         // mov [rdi], rbx
            &[0x48, 0x89, 0xdf],                         // mov rdi, rbx
            &[0x53],                                     // push rbx
            &[0x48, 0x39, 0xd8],                         // cmp rax, rbx
            &[0xb3, 1],                                  // mov bl, 1
            &[0xff, 0x13],                               // call [rbx]
            &[0xff, 0xe0],                               // jmp rax
            &[0x75, 0x01, 0xc3, 0x48, 0x89, 0x1f],       // jne 1; ret; 1: mov [rdi], rbx
            &[0xff, 0xd0, 0x48, 0x89, 0x1f, 0x5b, 0xc3], // call rax; mov [rdi], rbx
        ];
        for case in cases {
            assert!(!is_called(&[&TO_RBX[..], case, &[0xc3]].concat()), "{case:x?}");
        }
        // ret: it is the result.
        assert!(!is_called(&[&TO_RAX[..], &[0xc3]].concat()));
        // mov rdi, [rip+0]; call rax: an argument.
        assert!(!is_called(&[0x48, 0x8b, 0x3d, 0, 0, 0, 0, 0xff, 0xd0, 0xc3]));
        // The code ends.
        assert!(!is_called(&TO_RBX));
    }
}
