//! Differences between processors: where their calling conventions have values, and the numbers that DWARF has for their registers.
//!
//! Sources: the DWARF chapters of System V ABI for AMD64, and DWARF for the Arm 64-bit Architecture.

use super::entry::{Source, Stores};
use super::{entry_aarch64, entry_x86_64, returned};
use crate::debug::object::File;

/// A processor whose programs have values.
#[derive(Debug)]
pub(super) struct Processor {
    architecture: object::Architecture,
    /// DWARF numbers of the registers with integers, by the arguments' order.
    integers: &'static [u16],
    /// That of the first register with a floating-point number, of eight.
    first_vector: u16,
    pub(super) frame_pointer: u16,
    /// Where compilers may have frames without frame pointer.
    pub(super) stack_pointer: Option<u16>,
    /// True if code is nothing but room for a branch and a landing pad: debug information describes such a function from behind the room on.
    pub(super) is_room: fn(&[u8]) -> bool,
    /// Follows the code of a function, from its address on, that is not optimised.
    pub(super) stores: fn(&[u8], u64) -> Stores,
    /// True if the code of a function, from its address on, always returns the address of its result's memory. `None`: by the calling convention no
    /// function does.
    pub(super) returns_address: Option<fn(&[u8], u64) -> bool>,
    /// How structures are returned by C and C++.
    pub(super) structures: Structures,
}

/// How structures are returned that are not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Structures {
    /// Two words at the most, each by what is in it (System V ABI for AMD64, 3.2.3).
    ByWord,
    /// In registers for floating-point numbers if it is nothing but one to four of one size, each in one; else as two words at the most (Procedure Call Standard for
    /// the Arm 64-bit Architecture, 6.9).
    Homogeneous,
}

/// Vector registers with arguments.
const N_VECTORS: u16 = 8;
/// Of stack words as many may have numbers.
const MAX_STACK_WORDS: u64 = 20;

const ALL: [Processor; 2] = [
    Processor {
        architecture: object::Architecture::X86_64,
        // rdi, rsi, rdx, rcx, r8 and r9; xmm0; rbp
        integers: &[5, 4, 1, 2, 8, 9],
        first_vector: 17,
        frame_pointer: 6,
        stack_pointer: None,
        is_room: entry_x86_64::is_room,
        stores: entry_x86_64::stores,
        returns_address: Some(returned::returns_first_argument),
        structures: Structures::ByWord,
    },
    Processor {
        architecture: object::Architecture::Aarch64,
        // x0 to x7; v0; x29
        integers: &[0, 1, 2, 3, 4, 5, 6, 7],
        first_vector: 64,
        frame_pointer: 29,
        stack_pointer: Some(31),
        is_room: entry_aarch64::is_room,
        stores: entry_aarch64::stores,
        // It is given in x8, which nobody keeps.
        returns_address: None,
        structures: Structures::Homogeneous,
    },
];

impl Processor {
    /// That of a file's programs.
    pub(super) fn of(file: &File<'_>) -> Option<&'static Self> {
        ALL.iter().find(|processor| processor.architecture == file.architecture())
    }

    /// The argument that is in a register when its function is entered, by DWARF's number of it.
    pub(super) fn in_register(&self, register: gimli::Register) -> Option<Source> {
        let integer = self.integers.iter().position(|&number| number == register.0);
        let vector = register.0.checked_sub(self.first_vector).filter(|&number| number < N_VECTORS);
        integer.map(|place| Source::Integer(place as u8 + 1)).or(vector.map(|number| Source::Float(number as u8 + 1)))
    }

    /// The number of the argument for the tracer that is there.
    pub(super) fn number(&self, source: Source) -> Option<u8> {
        match source {
            Source::Integer(number) => Some(number),
            Source::Stack(word) if word < MAX_STACK_WORDS => Some(self.integers.len() as u8 + 1 + word as u8),
            _ => None,
        }
    }

    /// The last argument that is in a register for integers.
    pub(super) fn last_in_register(&self) -> u8 {
        self.integers.len() as u8
    }
}
