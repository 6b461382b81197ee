//! The bytes of a call site: the forms of a call to a hook, and its possible bytes.
//!
//! | form | as compiled | on | off | in between |
//! |---|---|---|---|---|
//! | [`Direct`](Form::Direct) | `E8 rel32` | `E9 rel32` | `0F 1F 44 00 00` | `A9 imm32` |
//! | [`Prefixed`](Form::Prefixed) | `67 E8 rel32` | `67 E9 rel32` | `67 0F 1F 44 00 00` | `67 A9 imm32` |
//! | [`Indirect`](Form::Indirect) | `FF 15 disp32` | as `Prefixed` | as `Prefixed` | as `Prefixed` |
//!
//! On is a jump to the site's stub, off a NOP. In between is `test eax, imm32`, which changes flags only; they are dead
//! at a call.
//!
//! A change goes opcode to `A9`, then the four bytes behind it, unused meanwhile, then the opcode to its new value. All
//! instructions of a site have one length, so a thread may stand before or behind it at any time. Each of these steps
//! changes one significant byte, except the first of `Indirect`, which changes two.
//!
//! Linkers make `67 E8` of `FF 15` if the hook is within reach. The prefix has no effect on these instructions (Intel
//! SDM volume 2, 2.1.1: it concerns addresses of operands in memory).

use std::io;

use super::poke::{OPERAND_BYTES, Opcode, Writer};
use super::states::State;

/// The encoding of a call to a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `call rel32`, to the hook or an entry of the procedure linkage table.
    Direct,
    /// The same with an address-size prefix.
    Prefixed,
    /// `call [rip + disp32]`, through the global offset table.
    Indirect,
}

/// The longest form.
pub(super) const MAX_BYTES: usize = 6;

/// The opcode in between: `test eax, imm32`.
const NEUTRAL: u8 = 0xa9;
const CALL: u8 = 0xe8;
const JUMP: u8 = 0xe9;
const PREFIX: u8 = 0x67;
/// `nop dword ptr [rax + rax + 0]`, Intel's NOP of five bytes.
const NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];
/// The bytes of a site. Those behind its length are 0.
pub(super) type Bytes = [u8; MAX_BYTES];

impl Form {
    /// Returns true if the hook finds the function's arguments in the places of the calling convention: it keeps all
    /// registers, so prologues leave them there.
    pub(super) const fn has_arguments(self) -> bool {
        true
    }

    /// Bytes of the instruction.
    pub(super) const fn len(self) -> usize {
        self.opcode_at() + 1 + OPERAND_BYTES
    }

    /// The offset of the opcode, in all states except `FF 15`.
    pub(super) const fn opcode_at(self) -> usize {
        match self {
            Self::Direct => 0,
            Self::Prefixed | Self::Indirect => 1,
        }
    }

    /// The offset of the four bytes behind the opcode.
    pub(super) const fn operand_at(self) -> usize {
        self.opcode_at() + 1
    }

    /// True for a function's first instruction without effect, in place of a call. Not here: `entry` handles these.
    pub(super) const fn is_entry(self) -> bool {
        false
    }

    /// True if a change between these states begins or ends with two bytes at once.
    pub(super) fn takes_two_bytes(self, from: State, to: State) -> bool {
        self == Self::Indirect && (from == State::Plain || to == State::Plain)
    }
}

/// The steps of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Neutral,
    Operand,
    Opcode,
}

impl Step {
    pub(super) const ALL: [Self; 3] = [Self::Neutral, Self::Operand, Self::Opcode];

    /// True if a site keeps its old state until this step is done.
    pub(super) fn is_first(self) -> bool {
        self == Self::Neutral
    }

    pub(super) fn is_last(self) -> bool {
        self == Self::Opcode
    }
}

/// Form of a site, and its bytes in all states.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) form: Form,
    pub(super) original: Bytes,
    /// From the end of the instruction to the stub.
    pub(super) to_stub: i32,
    /// From the end of the instruction to the thunk.
    pub(super) to_thunk: i32,
}

impl Shape {
    /// The bytes of the site in a state.
    pub(super) fn bytes(&self, state: State) -> Bytes {
        let (opcode, operand) = match state {
            State::Plain => return self.original,
            State::On => (JUMP, self.to_stub.to_le_bytes()),
            State::Thunk => (CALL, self.to_thunk.to_le_bytes()),
            State::Off => {
                let [opcode, operand @ ..] = NOP;
                (opcode, operand)
            }
            State::Between => {
                let operand_at = self.form.operand_at();
                (NEUTRAL, std::array::from_fn(|idx| self.original[operand_at + idx]))
            }
        };
        let mut bytes = [0; MAX_BYTES];
        if self.form.opcode_at() == 1 {
            bytes[0] = PREFIX;
        }
        bytes[self.form.opcode_at()] = opcode;
        bytes[self.form.operand_at()..self.form.len()].copy_from_slice(&operand);
        bytes
    }

    /// Returns the state of these bytes, if they have one: they may be another writer's, such as a debugger's
    /// breakpoint.
    pub(super) fn state(&self, bytes: &Bytes) -> Option<State> {
        let states = [State::Plain, State::On, State::Off, State::Thunk];
        let whole = states.into_iter().find(|&state| self.is_possible(state) && self.bytes(state) == *bytes);
        let opcode_at = self.form.opcode_at();
        let is_between = bytes[..=opcode_at] == self.bytes(State::Between)[..=opcode_at];
        whole.or_else(|| is_between.then_some(State::Between))
    }

    fn is_possible(&self, state: State) -> bool {
        state != State::Thunk || self.form == Form::Indirect
    }

    /// Returns the bytes for a neutral opcode, at the site's beginning or at its opcode.
    pub(super) fn neutral(&self, from: State) -> Opcode {
        if self.form == Form::Indirect && from == State::Plain {
            Opcode::Two([PREFIX, NEUTRAL])
        } else {
            Opcode::One(NEUTRAL)
        }
    }

    /// Returns the opcode to write at last.
    pub(super) fn opcode(&self, to: State) -> Opcode {
        let bytes = self.bytes(to);
        if self.form == Form::Indirect && to == State::Plain {
            Opcode::Two([bytes[0], bytes[1]])
        } else {
            Opcode::One(bytes[self.form.opcode_at()])
        }
    }

    /// Does one step of a change of the site at an address.
    ///
    /// # Safety
    ///
    /// This is its shape, its module is loaded, the writer can write to it, the steps before were done and seen by all threads.
    pub(super) unsafe fn write(
        &self,
        step: Step,
        address: usize,
        (from, to): (State, State),
        writer: Writer<'_>,
    ) -> io::Result<()> {
        // SAFETY: by this function's contract; the order is that above.
        unsafe {
            match step {
                Step::Neutral => writer.opcode(address, self.form.opcode_at(), self.neutral(from)),
                Step::Operand => {
                    let (place, operand) = (address + self.form.operand_at(), self.operand(to));
                    // On the way back it may never have changed.
                    if *(place as *const [u8; OPERAND_BYTES]) == operand {
                        Ok(())
                    } else {
                        writer.operand(place, operand)
                    }
                }
                Step::Opcode => writer.opcode(address, self.form.opcode_at(), self.opcode(to)),
            }
        }
    }

    /// Undoes the first step.
    ///
    /// # Safety
    ///
    /// The contract of [`write`](Self::write).
    pub(super) unsafe fn go_back(&self, address: usize, state: State, writer: Writer<'_>) -> io::Result<()> {
        // SAFETY: by this function's contract. The operand is that of the old state, whichever of the two opcodes a thread sees.
        unsafe { writer.opcode(address, self.form.opcode_at(), self.opcode(state)) }
    }

    /// Returns the bytes to write behind the opcode.
    pub(super) fn operand(&self, to: State) -> [u8; OPERAND_BYTES] {
        let bytes = self.bytes(to);
        std::array::from_fn(|idx| bytes[self.form.operand_at() + idx])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Code, Decoder, DecoderOptions};

    const SHAPES: [Shape; 3] = [
        shape(Form::Direct, [0xe8, 1, 2, 3, 4, 0]),
        shape(Form::Prefixed, [0x67, 0xe8, 1, 2, 3, 4]),
        shape(Form::Indirect, [0xff, 0x15, 1, 2, 3, 4]),
    ];
    const STATES: [State; 5] = [State::Plain, State::On, State::Off, State::Thunk, State::Between];

    const fn shape(form: Form, original: Bytes) -> Shape {
        Shape { form, original, to_stub: 0x1122_3344, to_thunk: -2 }
    }

    /// Decodes the bytes: one instruction of the site's length.
    fn decode(shape: &Shape, bytes: &Bytes) -> Code {
        let mut decoder = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE);
        let instruction = decoder.decode();
        assert!(!instruction.is_invalid(), "{bytes:x?}");
        assert_eq!(instruction.len(), shape.form.len(), "{bytes:x?}");
        instruction.code()
    }

    fn write_opcode(shape: &Shape, bytes: &mut Bytes, opcode: Opcode) {
        match opcode {
            Opcode::One(byte) => bytes[shape.form.opcode_at()] = byte,
            Opcode::Two(two) => bytes[..2].copy_from_slice(&two),
        }
    }

    #[test]
    fn bytes_are_as_the_table_says() {
        let [direct, prefixed, indirect] = SHAPES;
        assert_eq!(direct.bytes(State::On), [0xe9, 0x44, 0x33, 0x22, 0x11, 0]);
        assert_eq!(direct.bytes(State::Off), [0x0f, 0x1f, 0x44, 0, 0, 0]);
        assert_eq!(prefixed.bytes(State::On), [0x67, 0xe9, 0x44, 0x33, 0x22, 0x11]);
        assert_eq!(prefixed.bytes(State::Off), [0x67, 0x0f, 0x1f, 0x44, 0, 0]);
        assert_eq!(indirect.bytes(State::Thunk), [0x67, 0xe8, 0xfe, 0xff, 0xff, 0xff]);
        assert_eq!(indirect.bytes(State::Plain), [0xff, 0x15, 1, 2, 3, 4]);
    }

    /// All changes from state to state, byte by byte: whatever a thread fetches, it is a harmless instruction of the same
    /// length.
    #[test]
    fn every_step_is_a_whole_instruction() {
        for shape in SHAPES {
            for (from, to) in STATES.into_iter().flat_map(|from| STATES.map(|to| (from, to))) {
                if from == to || to == State::Between || !shape.is_possible(from) || !shape.is_possible(to) {
                    continue;
                }
                let mut bytes = shape.bytes(from);
                write_opcode(&shape, &mut bytes, shape.neutral(from));
                assert_eq!(decode(&shape, &bytes), Code::Test_EAX_imm32);
                let operand = shape.operand(to);
                for (idx, byte) in operand.into_iter().enumerate() {
                    bytes[shape.form.operand_at() + idx] = byte;
                    assert_eq!(decode(&shape, &bytes), Code::Test_EAX_imm32);
                }
                write_opcode(&shape, &mut bytes, shape.opcode(to));
                let expected = match to {
                    State::Plain if shape.form == Form::Indirect => Code::Call_rm64,
                    State::Plain | State::Thunk => Code::Call_rel32_64,
                    State::On => Code::Jmp_rel32_64,
                    State::Off => Code::Nop_rm32,
                    State::Between => Code::Test_EAX_imm32,
                };
                assert_eq!(decode(&shape, &bytes), expected);
                assert_eq!(shape.state(&bytes), Some(to), "{shape:?} {from:?}");
            }
        }
    }

    #[test]
    fn any_operand_may_stand_in_between() {
        for shape in SHAPES {
            let mut bytes = shape.bytes(State::Between);
            bytes[shape.form.operand_at()..shape.form.len()].fill(0xee);
            assert_eq!(shape.state(&bytes), Some(State::Between));
        }
    }

    #[test]
    fn foreign_bytes_have_no_state() {
        for shape in SHAPES {
            for state in STATES.into_iter().filter(|&state| shape.is_possible(state)) {
                let mut bytes = shape.bytes(state);
                bytes[0] = 0xcc;
                assert_eq!(shape.state(&bytes), None);
            }
        }
    }

    #[test]
    fn only_pointers_take_two_bytes() {
        for shape in SHAPES {
            for (from, to) in STATES.into_iter().flat_map(|from| STATES.map(|to| (from, to))) {
                let two = [shape.neutral(from), shape.opcode(to)].iter().any(|write| matches!(write, Opcode::Two(_)));
                assert_eq!(two, shape.form.takes_two_bytes(from, to));
            }
        }
    }
}
