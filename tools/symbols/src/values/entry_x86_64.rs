//! x86-64: what the first instructions of a function do with its arguments.
//!
//! They are followed in a straight line. Of an instruction that is not understood nothing is believed that it might have changed.

use std::collections::HashMap;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};

use super::entry::{Frame, Source, Stored, Stores};

/// How many calls of others may come in between: that of the hook.
const MAX_CALLS: u32 = 1;

/// The argument registers of integers.
const INTEGERS: [Register; 6] =
    [Register::RDI, Register::RSI, Register::RDX, Register::RCX, Register::R8, Register::R9];

/// True if code is nothing but NOPs and landing pads (`endbr64`).
pub(super) fn is_room(code: &[u8]) -> bool {
    let decoder = Decoder::new(64, code, DecoderOptions::NONE);
    decoder.into_iter().all(|instruction| matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Endbr64))
}

/// Follows the code of a function that begins at `address`.
pub(super) fn stores(code: &[u8], address: u64) -> Stores {
    let mut state = State::new();
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let mut info = InstructionInfoFactory::new();
    let (mut instruction, mut n_calls) = (Instruction::default(), 0);
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        match instruction.flow_control() {
            FlowControl::Next => {}
            FlowControl::Call | FlowControl::IndirectCall if n_calls < MAX_CALLS => {
                (1..=6).for_each(|number| state.frame.stores.written_at(number, instruction.ip()));
                // The hook keeps arguments; an argument used behind another call comes from elsewhere.
                n_calls += 1;
                continue;
            }
            _ => break,
        }
        state.follow(&instruction, &mut info);
    }
    state.frame.stores
}

/// The known contents of registers and frame at an instruction.
struct State {
    registers: HashMap<Register, Stored>,
    frame: Frame,
    /// The known distances of rsp and rbp from the canonical frame address.
    rsp: Option<i64>,
    rbp: Option<i64>,
}

impl State {
    fn new() -> Self {
        let integers = (1..).zip(INTEGERS).map(|(number, register)| (register, Source::Integer(number), 8));
        let vectors = (0..8).map(|number| (Register::ZMM0 + number, Source::Float(number as u8 + 1), 16));
        let registers = integers
            .chain(vectors)
            .map(|(register, source, n_bytes)| (register, Stored { source: Some(source), n_bytes, is_bit: false }));
        Self { registers: registers.collect(), frame: Frame::default(), rsp: Some(-8), rbp: None }
    }

    fn follow(&mut self, instruction: &Instruction, info: &mut InstructionInfoFactory) {
        if self.follow_frame(instruction) || self.follow_copy(instruction) {
            return;
        }
        // A `bool` is cut down to its lowest bit.
        let bit = instruction.mnemonic() == Mnemonic::And
            && instruction.op0_kind() == OpKind::Register
            && matches!(instruction.op1_kind(), OpKind::Immediate8 | OpKind::Immediate8to32)
            && instruction.immediate(1) == 1;
        let info = info.info(instruction);
        let writes = |access| {
            matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
        };
        for used in info.used_registers().iter().filter(|used| writes(used.access())) {
            let register = used.register().full_register();
            self.register_written(register, instruction.ip());
            match self.registers.get_mut(&register) {
                Some(stored) if bit => {
                    *stored = Stored {
                        n_bytes: stored.n_bytes.min(instruction.op0_register().size() as u64),
                        is_bit: true,
                        ..*stored
                    };
                }
                _ => {
                    self.registers.remove(&register);
                }
            }
            match register {
                Register::RSP => self.rsp = None,
                Register::RBP => self.rbp = None,
                _ => {}
            }
        }
        for used in info.used_memory().iter().filter(|used| writes(used.access())) {
            let n_bytes = used.memory_size().size() as u64;
            let place = match used.index() {
                Register::None => self.place(used.base(), used.displacement().cast_signed()),
                _ => None,
            };
            match place {
                Some(place) => self.frame.put(place, Stored { source: None, n_bytes, is_bit: false }),
                // It may be anywhere in the frame, if it is not on the stack by its registers.
                None if matches!(used.base(), Register::RSP | Register::RBP) => self.frame.clear(),
                None => {}
            }
        }
    }

    fn register_written(&mut self, register: Register, address: u64) {
        if let Some(place) = INTEGERS.iter().position(|&own| own == register) {
            self.frame.stores.written_at(place as u8 + 1, address);
        }
    }

    /// Follows the instructions that make the frame.
    fn follow_frame(&mut self, instruction: &Instruction) -> bool {
        let is = |operand: u32, register| {
            instruction.op_kind(operand) == OpKind::Register && instruction.op_register(operand) == register
        };
        match instruction.mnemonic() {
            Mnemonic::Push => self.rsp = self.rsp.map(|rsp| rsp - 8),
            Mnemonic::Mov if is(0, Register::RBP) && is(1, Register::RSP) => {
                self.rbp = self.rsp;
                self.frame.stores.frame_pointer = self.frame.stores.frame_pointer.or(self.rbp);
            }
            Mnemonic::Sub | Mnemonic::Add if is(0, Register::RSP) && instruction.op1_kind() != OpKind::Register => {
                let by = instruction.immediate(1).cast_signed();
                let by = if instruction.mnemonic() == Mnemonic::Sub { -by } else { by };
                self.rsp = self.rsp.map(|rsp| rsp.wrapping_add(by));
            }
            _ => return false,
        }
        true
    }

    /// Copies between registers and the frame.
    fn follow_copy(&mut self, instruction: &Instruction) -> bool {
        let is_copy = matches!(
            instruction.mnemonic(),
            Mnemonic::Mov
                | Mnemonic::Movzx
                | Mnemonic::Movss
                | Mnemonic::Movsd
                | Mnemonic::Movaps
                | Mnemonic::Movups
                | Mnemonic::Movapd
                | Mnemonic::Movupd
                | Mnemonic::Movd
                | Mnemonic::Movq
        );
        let index = instruction.memory_index();
        if !is_copy
            || instruction.op_count() != 2
            || index != Register::None
            || instruction.segment_prefix() != Register::None
        {
            return false;
        }
        let place = self.place(instruction.memory_base(), instruction.memory_displacement64().cast_signed());
        let n_bytes = instruction.memory_size().size() as u64;
        let register = |operand| instruction.op_register(operand);
        let none = |n_bytes| Stored { source: None, n_bytes, is_bit: false };
        let known = |this: &Self, register: Register| {
            let size = register.size() as u64;
            // ah and its like are other bytes.
            let is_high = matches!(register, Register::AH | Register::BH | Register::CH | Register::DH);
            let stored = this.registers.get(&register.full_register()).copied().filter(|_| !is_high);
            stored.map_or_else(|| none(size), |stored| Stored { n_bytes: stored.n_bytes.min(size), ..stored })
        };
        match (instruction.op0_kind(), instruction.op1_kind()) {
            (OpKind::Register, OpKind::Register) => {
                self.register_written(register(0).full_register(), instruction.ip());
                let stored = known(self, register(1));
                self.set(register(0), stored);
            }
            (OpKind::Memory, OpKind::Register) => {
                let Some(place) = place else { return false };
                let stored = known(self, register(1));
                self.frame.put(place, Stored { n_bytes: stored.n_bytes.min(n_bytes), ..stored });
            }
            (OpKind::Register, OpKind::Memory) => {
                let Some(place) = place else { return false };
                let stored = match self.frame.get(place) {
                    Some(&stored) => Stored { n_bytes: stored.n_bytes.min(n_bytes), ..stored },
                    None if place >= 0 && place % 8 == 0 => {
                        Stored { source: Some(Source::Stack(place.cast_unsigned() / 8)), n_bytes, is_bit: false }
                    }
                    None => none(n_bytes),
                };
                self.register_written(register(0).full_register(), instruction.ip());
                self.set(register(0), stored);
            }
            _ => return false,
        }
        true
    }

    /// The distance of an operand from the canonical frame address.
    fn place(&self, base: Register, displacement: i64) -> Option<i64> {
        let base = match base {
            Register::RBP => self.rbp,
            Register::RSP => self.rsp,
            _ => None,
        };
        base.map(|base| base.wrapping_add(displacement))
    }

    fn set(&mut self, register: Register, stored: Stored) {
        let full = register.full_register();
        match full {
            Register::RSP => self.rsp = None,
            Register::RBP => self.rbp = None,
            _ => {}
        }
        self.registers.insert(full, stored);
    }
}
