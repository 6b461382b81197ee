//! Stack use of a function, by its instructions: whether it looks at its return address, goes on on another stack, or
//! makes a system call that returns twice.
//!
//! Registers are followed from its first instruction on, each as a distance from the place of the return address. Where
//! ways meet, only the values common to all of them are kept.
//!
//! **Limit**: writes to memory are not followed. So a stack pointer from memory leads to another stack, though a
//! compiler may have kept its own there.

use std::collections::BTreeMap;
use std::ops::Range;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};

/// Known value of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Unknown,
    /// A number.
    Number(u64),
    /// The caller's `rbp`.
    CallersFrame,
    /// So far from the return address.
    Stack(i64),
    /// Somewhere on this stack.
    OnStack,
}

const N_REGISTERS: usize = 16;
const RAX: usize = 0;
const RSP: usize = 4;
const RBP: usize = 5;
const RDI: usize = 7;
/// Registers preserved by a call.
const KEPT: [usize; 7] = [3, RSP, RBP, 12, 13, 14, 15];

type Values = [Value; N_REGISTERS];

/// Conduct of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Conduct {
    /// It reads its own return address.
    pub(super) reads_return_address: bool,
    /// It reads that of its caller: by the frame pointer, or from right above its own.
    pub(super) reads_callers: bool,
    /// It takes its stack pointer from somewhere, or has computed it.
    pub(super) changes_stack: bool,
    /// It makes a process or a thread, or ends a signal's handler.
    pub(super) returns_twice: bool,
    /// It may return as functions do.
    pub(super) returns: bool,
    /// Its callees, and its jump targets with nothing on the stack.
    pub(super) calls: Vec<usize>,
    pub(super) goes_on_at: Vec<usize>,
}

impl Conduct {
    /// Returns the stack use of the function in a range. `code_at` returns the code from an address on; `is_part`
    /// returns true for a part of a function moved out of it.
    pub(super) fn of<'c>(
        code_at: impl Fn(usize) -> Option<&'c [u8]>,
        function: &Range<usize>,
        is_part: impl Fn(usize) -> bool,
    ) -> Self {
        let mut values = [Value::Unknown; N_REGISTERS];
        (values[RSP], values[RBP]) = (Value::Stack(0), Value::CallersFrame);
        let mut walk = Walk {
            code_at,
            function,
            is_part,
            known: BTreeMap::from([(function.start, values)]),
            todo: vec![function.start],
            table: None,
            is_aligned: false,
            found: Self::default(),
            info: InstructionInfoFactory::new(),
        };
        while let Some(start) = walk.todo.pop() {
            walk.block(start);
        }
        walk.found.calls.sort_unstable();
        walk.found.calls.dedup();
        walk.found
    }
}

struct Walk<'a, C, P> {
    code_at: C,
    function: &'a Range<usize>,
    is_part: P,
    /// Known registers at the beginning of each way.
    known: BTreeMap<usize, Values>,
    todo: Vec<usize>,
    /// Known registers at the targets of a table of jumps, such as that of a `switch`: somewhere behind the jump, with
    /// the same stack.
    table: Option<Values>,
    /// True if it has aligned its stack, and has a copy of its return address there, for debuggers.
    is_aligned: bool,
    found: Conduct,
    info: InstructionInfoFactory,
}

impl<'c, C: Fn(usize) -> Option<&'c [u8]>, P: Fn(usize) -> bool> Walk<'_, C, P> {
    /// Follows instructions up to the end of a way, or to the beginning of another one.
    fn block(&mut self, start: usize) {
        let Some(code) = (self.code_at)(start) else { return };
        let mut values = self.known[&start];
        let mut decoder = Decoder::with_ip(64, code, start as u64, DecoderOptions::NONE);
        while decoder.can_decode() {
            let instruction = decoder.decode();
            let at = instruction.ip() as usize;
            if instruction.is_invalid() || at != start && self.known.contains_key(&at) {
                if !instruction.is_invalid() {
                    self.way(at, &values);
                }
                return;
            }
            self.look_at(&instruction, &values);
            let next = instruction.next_ip() as usize;
            match instruction.flow_control() {
                FlowControl::Next => values = self.behind(&instruction, &values),
                FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend => {
                    self.jump(&instruction, &values);
                    self.way(next, &values);
                    return;
                }
                FlowControl::UnconditionalBranch => {
                    self.jump(&instruction, &values);
                    return self.by_table(next);
                }
                FlowControl::IndirectBranch => {
                    self.found.returns |= values[RSP] == Value::Stack(0);
                    let mut others = [Value::Unknown; N_REGISTERS];
                    (others[RSP], others[RBP]) = (values[RSP], values[RBP]);
                    self.table = Some(others);
                    return self.by_table(next);
                }
                FlowControl::Call | FlowControl::IndirectCall => {
                    if instruction.op0_kind() == OpKind::NearBranch64 {
                        self.found.calls.push(instruction.near_branch_target() as usize);
                    }
                    // Code behind a call that does not return belongs to something else.
                    if !self.function.contains(&next) && self.function.contains(&at) {
                        return;
                    }
                    for (register, value) in values.iter_mut().enumerate() {
                        if !KEPT.contains(&register) {
                            *value = Value::Unknown;
                        }
                    }
                }
                FlowControl::Return => {
                    self.found.returns |= values[RSP] == Value::Stack(0);
                    return self.by_table(next);
                }
                FlowControl::Interrupt | FlowControl::Exception => return,
            }
        }
    }

    /// Notes the target of a jump.
    fn jump(&mut self, instruction: &Instruction, values: &Values) {
        if instruction.op0_kind() == OpKind::NearBranch64 {
            let target = instruction.near_branch_target() as usize;
            let is_own = self.function.contains(&target) && target != self.function.start || (self.is_part)(target);
            match is_own {
                true => self.way(target, values),
                false => self.found.goes_on_at.push(target),
            }
        }
    }

    /// Notes the continuation of a way.
    fn way(&mut self, at: usize, values: &Values) {
        if !self.function.contains(&at) && !(self.is_part)(at) && !self.known.contains_key(&at) {
            return;
        }
        let before = self.known.get(&at);
        let joined = before.map_or(*values, |before| std::array::from_fn(|idx| join(before[idx], values[idx])));
        if before != Some(&joined) {
            self.known.insert(at, joined);
            self.todo.push(at);
        }
    }

    /// Follows the code behind the end of a way, a possible target of a table.
    fn by_table(&mut self, at: usize) {
        if let Some(values) = self.table.filter(|_| self.function.contains(&at) && !self.known.contains_key(&at)) {
            self.way(at, &values);
        }
    }

    /// Notes the effects of an instruction.
    fn look_at(&mut self, instruction: &Instruction, values: &Values) {
        let is_return = instruction.flow_control() == FlowControl::Return;
        let found = &mut self.found;
        for memory in self.info.info(instruction).used_memory() {
            let is_read = matches!(memory.access(), OpAccess::Read | OpAccess::ReadWrite | OpAccess::CondRead);
            if !is_read || is_return || memory.index() != Register::None {
                continue;
            }
            let Some(base) = number(memory.base()) else { continue };
            let distance = memory.displacement().cast_signed();
            let n_bytes = memory.memory_size().size() as i64;
            match values[base] {
                Value::Stack(from) if instruction.mnemonic() == Mnemonic::Push && base != RSP => {
                    self.is_aligned |= from.wrapping_add(distance) == 0;
                }
                Value::Stack(from) => {
                    let first = from.wrapping_add(distance);
                    found.reads_return_address |= first < 8 && first.saturating_add(n_bytes) > 0;
                    found.reads_callers |= first == 8;
                }
                Value::CallersFrame => found.reads_callers |= distance == 8,
                _ => {}
            }
        }
        if instruction.mnemonic() == Mnemonic::Syscall {
            /// `rt_sigreturn`, `vfork`, `clone3`; and `clone`, unless it shares no memory: that is a `fork`.
            const CALLS: [u64; 3] = [15, 58, 435];
            const CLONE: u64 = 56;
            const CLONE_VM: u64 = 0x100;
            let is_fork = matches!(values[RDI], Value::Number(flags) if flags & CLONE_VM == 0);
            let is_such = |call| CALLS.contains(&call) || call == CLONE && !is_fork;
            found.returns_twice |= matches!(values[RAX], Value::Number(call) if is_such(call));
        }
        let is_on_stack = |value| matches!(value, Value::Stack(_) | Value::OnStack);
        if instruction.flow_control() == FlowControl::Next && is_on_stack(values[RSP]) {
            let after = self.behind(instruction, values);
            let is_computed = instruction.mnemonic() == Mnemonic::Mov
                && instruction.op0_register() == Register::RSP
                && after[RSP] == Value::OnStack;
            self.found.changes_stack |= !is_on_stack(after[RSP]) || is_computed;
        }
    }

    /// Returns the registers behind an instruction that goes on at the next one.
    fn behind(&mut self, instruction: &Instruction, values: &Values) -> Values {
        let mut after = *values;
        apply(instruction, &mut after, &mut self.info);
        // `lea rsp, [r10 - 8]`, or `lea rsp, [r13 - 16]` before the caller's r13 is popped, where the register comes from that stack.
        let distance = instruction.memory_displacement64().cast_signed();
        let is_end = self.is_aligned
            && instruction.mnemonic() == Mnemonic::Lea
            && instruction.op0_register() == Register::RSP
            && matches!(distance, -8 | -16);
        if is_end && after[RSP] == Value::Unknown {
            after[RSP] = Value::Stack(distance.wrapping_add(8));
        }
        after
    }
}

fn join(a: Value, b: Value) -> Value {
    let is_on_stack = |value| matches!(value, Value::Stack(_) | Value::OnStack);
    match (a, b) {
        _ if a == b => a,
        _ if is_on_stack(a) && is_on_stack(b) => Value::OnStack,
        _ => Value::Unknown,
    }
}

/// Returns the number of a general register, or of the one that contains this part.
fn number(register: Register) -> Option<usize> {
    register.full_register().is_gpr64().then(|| register.full_register().number())
}

/// Returns the registers behind an instruction that goes on at the next one.
fn apply(instruction: &Instruction, values: &mut Values, info: &mut InstructionInfoFactory) {
    let before = *values;
    let of = |register: Register| number(register).map_or(Value::Unknown, |register| before[register]);
    let is_whole = |register: Register| register.is_gpr64();
    let (first, second) = (instruction.op0_register(), instruction.op1_register());
    let is_register =
        |operand: u32| instruction.op_count() > operand && instruction.op_kind(operand) == OpKind::Register;
    let constant = || instruction.try_immediate(1).ok();
    let moved = |value: Value, distance: i64| match value {
        Value::Stack(from) => Value::Stack(from.wrapping_add(distance)),
        Value::OnStack => Value::OnStack,
        _ => Value::Unknown,
    };
    let somewhere =
        |value: Value| if matches!(value, Value::Stack(_) | Value::OnStack) { Value::OnStack } else { Value::Unknown };
    // Value of the register that is written, where more is known than that it is.
    let written = match instruction.mnemonic() {
        Mnemonic::Mov if is_register(0) && is_register(1) && is_whole(first) && is_whole(second) => of(second),
        Mnemonic::Mov if is_register(0) && (is_whole(first) || first.is_gpr32()) => {
            constant().map_or(Value::Unknown, Value::Number)
        }
        Mnemonic::Xor if is_register(0) && is_register(1) && first == second => Value::Number(0),
        Mnemonic::Lea if is_whole(first) && !instruction.is_ip_rel_memory_operand() => {
            match instruction.memory_index() {
                Register::None => {
                    moved(of(instruction.memory_base()), instruction.memory_displacement64().cast_signed())
                }
                _ => somewhere(of(instruction.memory_base())),
            }
        }
        Mnemonic::Add if is_register(0) && is_whole(first) => match constant() {
            Some(distance) => moved(of(first), distance.cast_signed()),
            None => somewhere(of(first)),
        },
        Mnemonic::Sub if is_register(0) && is_whole(first) => match constant() {
            Some(distance) => moved(of(first), distance.cast_signed().wrapping_neg()),
            None => somewhere(of(first)),
        },
        Mnemonic::And if is_register(0) && is_whole(first) => somewhere(of(first)),
        _ => Value::Unknown,
    };
    let depth = i64::from(instruction.stack_pointer_increment());
    for used in info.info(instruction).used_registers() {
        let is_written = matches!(
            used.access(),
            OpAccess::Write | OpAccess::ReadWrite | OpAccess::CondWrite | OpAccess::ReadCondWrite
        );
        if let Some(register) = number(used.register()).filter(|_| is_written) {
            let is_named = is_register(0) && number(first) == Some(register);
            values[register] = if is_named { written } else { Value::Unknown };
        }
    }
    match instruction.mnemonic() {
        Mnemonic::Pop if number(first) == Some(RSP) => {}
        Mnemonic::Leave => {
            values[RSP] = moved(before[RBP], 8);
            values[RBP] = Value::Unknown;
        }
        Mnemonic::Xchg if is_register(0) && is_register(1) => {
            if let (Some(a), Some(b)) = (number(first), number(second)) {
                (values[a], values[b]) = (before[b], before[a]);
            }
        }
        _ if instruction.is_stack_instruction() => values[RSP] = moved(before[RSP], depth),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: usize = 0x40_1000;

    fn conduct(code: &[u8]) -> Conduct {
        let code_at = |address: usize| code.get(address.checked_sub(START)?..);
        Conduct::of(code_at, &(START..START + code.len()), |_| false)
    }

    fn usual() -> Conduct {
        Conduct { returns: true, ..Conduct::default() }
    }

    #[test]
    fn return_addresses_that_are_read() {
        let reads = Conduct { reads_return_address: true, ..usual() };
        // setjmp: lea rdx, [rsp+8]; mov [rdi+48], rdx; mov rdx, [rsp]; mov [rdi+56], rdx; xor eax, eax; ret
        let setjmp = [
            0x48, 0x8d, 0x54, 0x24, 8, 0x48, 0x89, 0x57, 0x30, 0x48, 0x8b, 0x14, 0x24, 0x48, 0x89, 0x57, 0x38, 0x31,
            0xc0, 0xc3,
        ];
        assert_eq!(conduct(&setjmp), reads);
        // mcount: sub rsp, 56; mov rsi, [rsp+56]; mov rdi, [rbp+8]; add rsp, 56; ret
        let mcount =
            [0x48, 0x83, 0xec, 56, 0x48, 0x8b, 0x74, 0x24, 56, 0x48, 0x8b, 0x7d, 8, 0x48, 0x83, 0xc4, 56, 0xc3];
        assert_eq!(conduct(&mcount), Conduct { reads_callers: true, ..reads });
        // push rbp; mov rbp, rsp; mov rax, [rbp+16]; sub rsp, rax; mov rdi, rsp; leave; ret
        let of_any_size =
            [0x55, 0x48, 0x89, 0xe5, 0x48, 0x8b, 0x45, 16, 0x48, 0x29, 0xc4, 0x48, 0x89, 0xe7, 0xc9, 0xc3];
        assert_eq!(conduct(&of_any_size), Conduct { reads_callers: true, ..usual() });
    }

    #[test]
    fn stacks_that_are_left() {
        // longjmp: mov rsp, [rdi+48]; jmp [rdi+56]
        let changes = Conduct { changes_stack: true, ..Conduct::default() };
        assert_eq!(conduct(&[0x48, 0x8b, 0x67, 0x30, 0xff, 0x67, 0x38]), changes);
        // __builtin_eh_return: push rbp; mov rbp, rsp; mov rdx, [rbp+8]; lea rcx, [rbp+rax+8]; mov rbp, [rbp]; mov rsp, rcx; pop rcx; jmp rcx
        let throws = [
            0x55, 0x48, 0x89, 0xe5, 0x48, 0x8b, 0x55, 8, 0x48, 0x8d, 0x4c, 0x05, 8, 0x48, 0x8b, 0x6d, 0, 0x48, 0x89,
            0xcc, 0x59, 0xff, 0xe1,
        ];
        assert_eq!(conduct(&throws), Conduct { reads_return_address: true, ..changes });
        // lea r10, [rsp+8]; and rsp, -32; push [r10-8]; push rbp; mov rbp, rsp; push r10; pop r10; pop rbp; lea rsp, [r10-8]; ret
        let aligns = [
            0x4c, 0x8d, 0x54, 0x24, 8, 0x48, 0x83, 0xe4, 0xe0, 0x41, 0xff, 0x72, 0xf8, 0x55, 0x48, 0x89, 0xe5, 0x41,
            0x52, 0x41, 0x5a, 0x5d, 0x49, 0x8d, 0x62, 0xf8, 0xc3,
        ];
        assert_eq!(conduct(&aligns), usual());
        // push r13; lea r13, [rsp+16]; and rsp, -64; push [r13-8]; push rbp; mov rbp, rsp; push r13; pop r13; pop rbp; lea rsp, [r13-16]; pop r13; ret
        let aligns_with_chain = [
            0x41, 0x55, 0x4c, 0x8d, 0x6c, 0x24, 16, 0x48, 0x83, 0xe4, 0xc0, 0x41, 0xff, 0x75, 0xf8, 0x55, 0x48, 0x89,
            0xe5, 0x41, 0x55, 0x41, 0x5d, 0x5d, 0x49, 0x8d, 0x65, 0xf0, 0x41, 0x5d, 0xc3,
        ];
        assert_eq!(conduct(&aligns_with_chain), usual());
        // mov rbx, rsp; call +0; mov rsp, rbx; ret: calls keep rbx. The same with rcx, which they do not keep.
        let kept = [0x48, 0x89, 0xe3, 0xe8, 0, 0, 0, 0, 0x48, 0x89, 0xdc, 0xc3];
        let lost = [0x48, 0x89, 0xe1, 0xe8, 0, 0, 0, 0, 0x48, 0x89, 0xcc, 0xc3];
        assert_eq!([&kept, &lost].map(|code| conduct(code).changes_stack), [false, true]);
    }

    #[test]
    fn system_calls() {
        let twice = Conduct { returns_twice: true, ..usual() };
        // vfork: pop rdx; mov eax, 58; syscall; push rdx; ret
        let vfork = [0x5a, 0xb8, 58, 0, 0, 0, 0x0f, 5, 0x52, 0xc3];
        assert_eq!(conduct(&vfork), Conduct { reads_return_address: true, ..twice.clone() });
        // mov eax, 56; syscall; ret
        assert_eq!(conduct(&[0xb8, 56, 0, 0, 0, 0x0f, 5, 0xc3]), twice);
        // mov edi, CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | SIGCHLD before it: that is what fork does.
        assert_eq!(conduct(&[0xbf, 0x11, 0, 0x20, 1, 0xb8, 56, 0, 0, 0, 0x0f, 5, 0xc3]), usual());
    }

    #[test]
    fn where_it_goes() {
        // xor esi, esi; jmp +16
        let goes_on = conduct(&[0x31, 0xf6, 0xeb, 16]);
        assert_eq!(goes_on, Conduct { goes_on_at: vec![START + 20], ..Conduct::default() });
        // test edi, edi; je +6; call +0; ret; nop; pop rax; ret: on one way it takes its return address.
        let one_way = conduct(&[0x85, 0xff, 0x74, 7, 0xe8, 0, 0, 0, 0, 0xc3, 0x90, 0x58, 0xc3]);
        assert_eq!(one_way, Conduct { reads_return_address: true, calls: vec![START + 9], ..usual() });
    }
}
