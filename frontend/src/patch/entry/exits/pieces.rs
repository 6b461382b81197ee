//! The pieces of functions: their own range, and the parts moved out of it by a compiler (`.cold`).
//!
//! Not here: their ends (`ends`).

use std::collections::BTreeMap;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind};

use crate::patch::entry::functions::{Functions, is_linkage};
use crate::patch::frames::Range;
use crate::patch::module::Image;
use crate::patch::named::{Function, Module, is_cold};

/// A piece.
pub(super) struct Piece {
    pub(super) start: usize,
    pub(super) end: usize,
    /// True if a function begins with it.
    pub(super) is_beginning: bool,
    /// The places of its functions among the chosen ones: several may share a part.
    pub(super) owners: Vec<usize>,
    pub(super) instructions: Vec<Instruction>,
}

/// The pieces of the chosen functions, ascending.
pub(super) fn pieces(module: &Module<'_>, functions: &Functions, chosen: &[Function<'_>]) -> Vec<Piece> {
    let image = module.image;
    let mut found: BTreeMap<usize, Piece> = BTreeMap::new();
    for (owner, function) in chosen.iter().enumerate() {
        let mut ahead = vec![(function.start, function.end, true)];
        while let Some((start, end, is_beginning)) = ahead.pop() {
            let piece = found.entry(start).or_insert_with(|| {
                let instructions = decode(image, start, end);
                Piece { start, end, is_beginning, owners: Vec::new(), instructions }
            });
            if piece.owners.contains(&owner) {
                continue;
            }
            piece.owners.push(owner);
            let targets =
                piece.instructions.iter().filter_map(jumps_to).filter(|target| !(start..end).contains(target));
            let parts =
                targets.filter_map(|target| functions.range_at(target).filter(|range| is_part(module, range, target)));
            ahead.extend(parts.map(|range| (range.start, range.end, false)));
        }
    }
    found.into_values().collect()
}

/// True if a range is a part of a function, for a jump to `target` in it.
pub(super) fn is_part(module: &Module<'_>, range: &Range, target: usize) -> bool {
    let function = Function { start: range.start, end: range.end, symbol: module.symbol(range.start) };
    (!range.is_function || is_cold(module, &function)) && !is_linkage(module.image, target)
}

/// Returns the target of a direct jump.
pub(super) fn jumps_to(instruction: &Instruction) -> Option<usize> {
    let jumps = matches!(instruction.flow_control(), FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch);
    (jumps && instruction.op0_kind() == OpKind::NearBranch64).then(|| instruction.near_branch_target() as usize)
}

fn decode(image: &Image<'_>, start: usize, end: usize) -> Vec<Instruction> {
    let code = image.bytes(start..end).unwrap_or_default();
    Decoder::with_ip(64, code, start as u64, DecoderOptions::NONE).into_iter().collect()
}
