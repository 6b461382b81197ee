//! The unwinder's room for its tables: it copies rows of its table on the program's stack, which may be a small one.
//!
//! Code that needs more is unwound by frame pointers, as code without unwind information.

use framehop::AllocationPolicy;
use gimli::{
    EvaluationStorage, Piece, Reader, ReaderOffset, Register, RegisterRule, UnwindContextStorage, UnwindTableRow, Value,
};

/// How framehop is to be used: without an allocation, and with this much room.
pub(crate) struct Room;

/// Of a row: the return address and what a function of either ABI saves, ten vector registers of Windows among it; what a signal has saved are seventeen, and
/// no file of Debian 12's that was looked at has more than eighteen.
const REGISTERS: usize = 20;
/// The rules at the beginning of a function, those that hold, and those that are remembered to hold again.
const ROWS: usize = 4;
/// The most values on an expression's stack. Those that linkers and the C library write need five.
const VALUES: usize = 16;

impl<O: ReaderOffset> UnwindContextStorage<O> for Room {
    type Rules = [(Register, RegisterRule<O>); REGISTERS];
    type Stack = [UnwindTableRow<O, Self>; ROWS];
}

impl<R: Reader> EvaluationStorage<R> for Room {
    type Stack = [Value; VALUES];
    /// Expressions of unwind information call no others.
    type ExpressionStack = [(R, R); 1];
    type Result = [Piece<R>; 1];
}

impl AllocationPolicy for Room {
    type GimliUnwindContextStorage<O: ReaderOffset> = Self;
    type GimliEvaluationStorage<R: Reader> = Self;
}
