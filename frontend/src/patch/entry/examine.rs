//! The examination of functions for a branch.

use iced_x86::Instruction;

use super::functions::{BRANCH_BYTES, Functions};
use crate::patch::entry_outcome::WholeReason;
use crate::patch::named::{Function, Module};
use crate::patch::wanted;

/// Returns the instructions replaced by a branch, or the reason against it.
pub(super) fn examine(
    module: &Module<'_>,
    functions: &Functions,
    function: &Function<'_>,
    call_sites: &[usize],
) -> Result<Vec<Instruction>, WholeReason> {
    let Function { start, end, .. } = *function;
    if module.raw_name(function).is_some_and(|name| wanted::is_special(name) || wanted::is_of_unwinder(name)) {
        return Err(WholeReason::Special);
    }
    let first = call_sites.partition_point(|&site| site < start);
    if call_sites.get(first).is_some_and(|&site| site < end) {
        return Err(WholeReason::CallsHook);
    }
    let room = functions.room(module.image, start, end)?;
    let displaced: usize = room.instructions.iter().map(Instruction::len).sum();
    module.check_unchanged(start..start + displaced.max(BRANCH_BYTES))?;
    Ok(room.instructions)
}
