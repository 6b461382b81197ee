//! The word of a site on aarch64.
//!
//! | form | as compiled | on | off |
//! |---|---|---|---|
//! | [`Call`](Form::Call) | `bl` | as compiled | `nop` |
//! | [`Entry`](Form::Entry) | `nop` | `b`, to a stub | as compiled |
//!
//! A call never becomes another branch, so it keeps its target: the hook itself, an entry of the procedure linkage
//! table, or a veneer of the linker's. A stub lies within reach.
//!
//! `B`, `BL` and `NOP` may be changed into each other while other cores execute them (Arm ARM, "Concurrent modification
//! and execution of instructions"): each executes one or the other. A word is stored at once, so there is one step, and
//! nothing in between.

use std::io;

use super::poke::Writer;
use super::states::State;

/// Kind of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A call of the hook.
    Call,
    /// The NOP at the beginning of a function, a compiler's room for a branch.
    Entry,
}

/// Bytes of an instruction.
pub(super) const MAX_BYTES: usize = 4;

/// The bytes of a site.
pub(super) type Bytes = [u8; MAX_BYTES];

pub(super) const NOP: u32 = 0xd503_201f;

impl Form {
    /// Returns true if the hook finds the function's arguments in the places of the calling convention. Not for a call:
    /// it has the return address in x0, and saved values of the other registers are elsewhere.
    pub(super) const fn has_arguments(self) -> bool {
        self.is_entry()
    }

    /// Bytes of the instruction.
    pub(super) const fn len(self) -> usize {
        MAX_BYTES
    }

    /// True if it is no call.
    pub(super) const fn is_entry(self) -> bool {
        matches!(self, Self::Entry)
    }

    /// None does: a word is written at once.
    pub(super) fn takes_two_bytes(self, _from: State, _to: State) -> bool {
        false
    }
}

/// The steps of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Word,
}

impl Step {
    pub(super) const ALL: [Self; 1] = [Self::Word];

    /// True if a site keeps its old state until this step is done.
    pub(super) fn is_first(self) -> bool {
        true
    }

    pub(super) fn is_last(self) -> bool {
        true
    }
}

/// Form of a site, and its bytes in all states.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) form: Form,
    pub(super) original: Bytes,
    /// Bytes while the site is on.
    pub(super) on: Bytes,
}

impl Shape {
    /// The bytes of the site in a state.
    pub(super) fn bytes(&self, state: State) -> Bytes {
        match state {
            State::Off => NOP.to_le_bytes(),
            State::On => self.on,
            _ => self.original,
        }
    }

    /// Returns the state of these bytes, if they have one: they may be another writer's, such as a debugger's
    /// breakpoint.
    pub(super) fn state(&self, bytes: &Bytes) -> Option<State> {
        [State::Plain, State::Off, State::On].into_iter().find(|&state| self.bytes(state) == *bytes)
    }

    /// Changes the site at an address.
    ///
    /// # Safety
    ///
    /// This is its shape, its module is loaded, and the writer can write to it.
    pub(super) unsafe fn write(
        &self,
        _step: Step,
        address: usize,
        (_from, to): (State, State),
        writer: Writer<'_>,
    ) -> io::Result<()> {
        // SAFETY: by this function's contract; a `nop`, and a `bl` or a `b`.
        unsafe { writer.word(address, u32::from_le_bytes(self.bytes(to))) }
    }

    /// Restores the site's earlier state.
    ///
    /// # Safety
    ///
    /// The contract of [`write`](Self::write).
    pub(super) unsafe fn go_back(&self, address: usize, state: State, writer: Writer<'_>) -> io::Result<()> {
        // SAFETY: by this function's contract.
        unsafe { writer.word(address, u32::from_le_bytes(self.bytes(state))) }
    }
}
