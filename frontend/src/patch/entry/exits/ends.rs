//! Ends of a piece of a function, and the room there for a branch.
//!
//! | kind | room |
//! |---|---|
//! | E | it lies in the instructions displaced for the branch at the function's beginning, or directly behind |
//! | J | a jump to another function, as long as a branch; a conditional one goes elsewhere |
//! | P | a `ret` or a short jump, and padding behind it |
//! | D | instructions before it are displaced, which touch no memory but the stack |
//!
//! Not here: the written bytes (`stubs`).

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use rftrace_format::branches::CONDITION_BYTES;

use super::marks::Marks;
use super::pieces::{Piece, is_part, jumps_to};
use crate::patch::entry::functions::{BRANCH_BYTES, Functions, is_filler, is_linkage, is_untouchable};
use crate::patch::named::Module;

/// The way of the written bytes to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// The copy of the function's beginning has it.
    Beginning,
    /// A branch at this address.
    Branch(usize),
    /// The distance of the conditional jump is changed.
    Condition,
}

/// An end of a function.
#[derive(Clone, Debug)]
pub(super) struct End {
    /// It returns, or jumps to another function.
    pub(super) instruction: Instruction,
    /// Instructions before it in its stub.
    pub(super) displaced: Vec<Instruction>,
    pub(super) room: Room,
}

/// Ends of a piece.
#[derive(Debug, Default)]
pub(super) struct Ends {
    pub(super) ends: Vec<End>,
    /// True if there are others, or may be.
    pub(super) is_incomplete: bool,
}

/// Effect of an instruction on the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    GoesOn,
    Ends,
    /// It may end the function.
    MayEnd,
}

/// Looks for the ends of pieces of a module.
#[derive(Clone, Copy)]
pub(super) struct Search<'a> {
    pub(super) module: &'a Module<'a>,
    pub(super) functions: &'a Functions,
    pub(super) marks: &'a Marks,
}

impl Search<'_> {
    /// Finds the ends of a piece. `beginning`: the instructions displaced for the branch at a function's beginning; it may become longer.
    pub(super) fn ends(self, piece: &Piece, beginning: Option<&mut Vec<Instruction>>) -> Ends {
        let mut found = Ends::default();
        if piece.instructions.iter().any(Instruction::is_invalid) {
            found.is_incomplete = true;
            return found;
        }
        let mut none = Vec::new();
        let mut windows = Windows { search: self, piece, used: piece.start, beginning: beginning.unwrap_or(&mut none) };
        windows.used = windows.beginning_end();
        for place in 0..piece.instructions.len() {
            match self.does(piece, place) {
                Does::GoesOn => {}
                Does::MayEnd => found.is_incomplete = true,
                Does::Ends => match windows.end(place) {
                    Some(end) => found.ends.push(end),
                    None => found.is_incomplete = true,
                },
            }
        }
        found
    }

    fn does(self, piece: &Piece, place: usize) -> Does {
        let instruction = &piece.instructions[place];
        match instruction.flow_control() {
            FlowControl::Return if instruction.mnemonic() == Mnemonic::Ret => Does::Ends,
            FlowControl::Return => Does::MayEnd,
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
                let Some(target) = jumps_to(instruction) else { return Does::MayEnd };
                let is_loop = instruction.is_loop() || instruction.is_loopcc() || instruction.is_jcx_short();
                match self.leaves(piece, target) {
                    Does::Ends if is_loop => Does::MayEnd,
                    does => does,
                }
            }
            FlowControl::IndirectBranch => self.indirect(piece, place),
            _ => Does::GoesOn,
        }
    }

    /// Returns the effect of a jump to an address.
    fn leaves(self, piece: &Piece, target: usize) -> Does {
        if (piece.start..piece.end).contains(&target) {
            return Does::GoesOn;
        }
        match self.functions.range_at(target) {
            _ if is_linkage(self.module.image, target) => Does::Ends,
            Some(range) if is_part(self.module, range, target) => Does::GoesOn,
            Some(range) if range.start == target => Does::Ends,
            // Back from a part.
            Some(_) if !piece.is_beginning => Does::GoesOn,
            _ => Does::MayEnd,
        }
    }

    /// A jump by a register or memory: to another function, or by a table.
    fn indirect(self, piece: &Piece, place: usize) -> Does {
        let instruction = &piece.instructions[place];
        let is_memory = instruction.op0_kind() == OpKind::Memory;
        if is_memory && instruction.is_ip_rel_memory_operand() {
            return Does::Ends;
        }
        if is_memory && instruction.memory_index() != Register::None
            || by_table(&piece.instructions[..place], instruction)
        {
            return Does::GoesOn;
        }
        // The hook uses memory below the stack pointer.
        let is_below = is_memory && instruction.memory_base() == Register::RSP;
        // Some place of the function is named: it may go there.
        let is_unsure = is_below || self.marks.names_any(piece.start + 1, piece.end);
        if is_unsure { Does::MayEnd } else { Does::Ends }
    }
}

/// True if the register of a jump comes from a table.
fn by_table(before: &[Instruction], jump: &Instruction) -> bool {
    /// Compilers put no more between.
    const MOST: usize = 8;

    let last = before.iter().rev().take(MOST);
    let straight = last.take_while(|instruction| {
        !matches!(instruction.flow_control(), FlowControl::Return | FlowControl::UnconditionalBranch)
    });
    let register = jump.op0_register();
    let mut loads =
        straight.filter(|instruction| instruction.op_count() == 2 && instruction.op1_kind() == OpKind::Memory);
    jump.op0_kind() == OpKind::Register
        && loads.any(|load| {
            let has_index = load.memory_index() != Register::None;
            let is_address =
                load.mnemonic() == Mnemonic::Mov && load.op0_register() == register && load.memory_index_scale() == 8;
            has_index && (load.mnemonic() == Mnemonic::Movsxd || is_address)
        })
}

/// The places for branches in a piece, one behind the other.
struct Windows<'a> {
    search: Search<'a>,
    piece: &'a Piece,
    /// End of the bytes in use.
    used: usize,
    beginning: &'a mut Vec<Instruction>,
}

impl Windows<'_> {
    /// Behind the instructions displaced for the branch at the beginning.
    fn beginning_end(&self) -> usize {
        let last = self.beginning.last().map(|last| last.next_ip() as usize);
        last.map_or(self.piece.start, |end| end.max(self.piece.start + BRANCH_BYTES))
    }

    /// Returns the end at an instruction's place, if there is room.
    fn end(&mut self, place: usize) -> Option<End> {
        let instruction = self.piece.instructions[place];
        let (start, end) = (instruction.ip() as usize, instruction.next_ip() as usize);
        let found = |displaced, room| Some(End { instruction, displaced, room });
        if start < self.beginning_end() {
            return found(Vec::new(), Room::Beginning);
        }
        let search = self.search;
        if instruction.flow_control() == FlowControl::ConditionalBranch {
            let is_long = instruction.len() == CONDITION_BYTES;
            let is_own = is_long && start >= self.used && self.is_unchanged(start, end);
            return if is_own { found(Vec::new(), Room::Condition) } else { None };
        }
        let bytes = instruction.len() + self.padding(end, BRANCH_BYTES.saturating_sub(instruction.len()));
        if bytes >= BRANCH_BYTES {
            let until = end.max(start + BRANCH_BYTES);
            return self.take(start, until).then(|| found(Vec::new(), Room::Branch(start))).flatten();
        }
        // Those before it.
        let mut displaced: Vec<Instruction> = Vec::new();
        let mut first = start;
        while end - first + (bytes - instruction.len()) < BRANCH_BYTES {
            let before = displaced.len() + 1;
            let previous = place.checked_sub(before).map(|place| self.piece.instructions[place])?;
            let arrives = search.marks.has_any(first, first + 1);
            if arrives || !search.marks.knows(self.piece.start) || !may_be_displaced(&previous, displaced.first()) {
                return None;
            }
            first = previous.ip() as usize;
            if first < self.beginning_end() {
                return self.extend_beginning(place).then(|| found(Vec::new(), Room::Beginning)).flatten();
            }
            displaced.insert(0, previous);
        }
        let until = end.max(first + BRANCH_BYTES);
        self.take(first, until).then(|| found(displaced, Room::Branch(first))).flatten()
    }

    /// Extends the copy of the beginning up to an end.
    fn extend_beginning(&mut self, place: usize) -> bool {
        let end = self.beginning_end();
        let more: Vec<Instruction> = self.piece.instructions[..=place]
            .iter()
            .copied()
            .filter(|instruction| instruction.ip() as usize >= end)
            .collect();
        let Some(first) = more.first().map(|first| first.ip() as usize) else { return false };
        let last = self.piece.instructions[place].next_ip() as usize;
        // The copy has no end yet, such as a call, which returns to the function: it goes on where this begins.
        let has_no_end =
            |last: &Instruction| matches!(last.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch);
        let goes_on = self.beginning.last().is_some_and(|last| has_no_end(last) && last.next_ip() as usize == first);
        let is_free = goes_on && !self.search.marks.has_any(end, last) && self.take(first, last);
        if is_free {
            self.beginning.extend(more);
        }
        is_free
    }

    /// Takes the bytes there, if they are free and unchanged.
    fn take(&mut self, start: usize, end: usize) -> bool {
        let is_free = start >= self.used && self.is_unchanged(start, end);
        if is_free {
            self.used = end;
        }
        is_free
    }

    fn is_unchanged(&self, start: usize, end: usize) -> bool {
        self.search.module.check_unchanged(start..end).is_ok()
    }

    /// Returns the number of bytes that follow for alignment only: at most `wanted`, and the rest of the last
    /// instruction.
    fn padding(&self, start: usize, wanted: usize) -> usize {
        /// The longest instruction.
        const LONGEST: usize = 15;

        let Some((text, code)) = self.search.module.image.text(start) else { return 0 };
        let code = code.get(start - text..).unwrap_or_default();
        let code = &code[..code.len().min(wanted + LONGEST)];
        let mut end = start;
        for instruction in Decoder::with_ip(64, code, start as u64, DecoderOptions::NONE) {
            let next = instruction.next_ip() as usize;
            if end >= start + wanted || !is_filler(&instruction) || self.search.marks.has_any(end, next) {
                break;
            }
            end = next;
        }
        end - start
    }
}

/// Returns true if an instruction may run elsewhere: no fault is expected at its place. `next` follows it.
fn may_be_displaced(instruction: &Instruction, next: Option<&Instruction>) -> bool {
    let names_memory = instruction.op_kinds().any(|kind| kind == OpKind::Memory);
    let is_harmless = matches!(instruction.mnemonic(), Mnemonic::Lea | Mnemonic::Nop);
    let has_frame = next.is_some_and(|next| next.mnemonic() == Mnemonic::Leave);
    let is_stack = match instruction.memory_base() {
        Register::RSP => true,
        Register::RBP => has_frame,
        _ => false,
    };
    let is_usual = instruction.flow_control() == FlowControl::Next && !is_untouchable(instruction);
    is_usual && !instruction.is_string_instruction() && (!names_memory || is_harmless || is_stack)
}
