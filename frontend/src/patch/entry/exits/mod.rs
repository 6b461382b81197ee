//! Branches at the ends of functions: each `ret`, and each jump to another function, leads to a stub that calls the
//! hook of sleds first. Return addresses stay unchanged.
//!
//! - `pieces` finds the pieces of a function, `marks` the possible targets of jumps and exceptions.
//! - `ends` finds ends, and room for branches.
//! - `stubs` makes the targets of these.
//!
//! A function with an end without room is recorded all the same: the next record ends it, as with sleds.
//!
//! Not here: branches at beginnings (`entry`), and the hook.
//!
//! **Invariant**: leave an end whole if anything about it is unsure.

mod ends;
mod marks;
mod pieces;
mod stubs;

use std::io;
use std::ops::Range;

use iced_x86::{Code, Instruction};
use rftrace_format::branches::Branch;

use self::ends::{End, Room, Search};
use self::marks::Marks;
use self::pieces::{Piece, pieces};
use self::stubs::Area;
use super::functions::Functions;
use super::stubs::{GoesOn, Wanted};
use super::writing::Made;
use crate::patch::debugger;
use crate::patch::entry_outcome::WholeReason;
use crate::patch::module::Image;
use crate::patch::named::{Function, Module};
use crate::patch::poke::Pages;
use crate::patch::sites::Site;
use crate::patch::switches::Switch;
use crate::patch::unwind::Reader;
use crate::patch::unwinder;

/// The ends of the chosen functions of a module.
#[derive(Debug, Default)]
pub(super) struct Exits {
    /// For each piece, the places of the functions that have it.
    owners: Vec<Vec<usize>>,
    /// Each with the place of its piece.
    ends: Vec<(usize, End)>,
    /// The pieces with an end without room.
    are_incomplete: Vec<bool>,
}

/// Stubs of the ends; beginnings lead to them already.
pub(super) struct LaidExits {
    exits: Exits,
    area: Area,
}

/// The ends of functions with branches.
pub(super) struct MadeExits {
    area: Area,
    /// The pieces of each function.
    pieces: Vec<Vec<usize>>,
    are_incomplete: Vec<bool>,
    /// The branches, each with the place of its piece, ascending.
    branches: Vec<(usize, Branch)>,
}

impl Exits {
    /// Finds them. The displaced code of branches at beginnings may become longer.
    pub(super) fn find(
        module: &Module<'_>,
        functions: &Functions,
        chosen: &[Function<'_>],
        wanted: &mut [Wanted],
    ) -> Self {
        let marks = Marks::of(module.image, functions);
        let search = Search { module, functions, marks: &marks };
        let mut found = Self::default();
        for (place, piece) in pieces(module, functions, chosen).into_iter().enumerate() {
            let ends = search.ends(&piece, beginning(&piece, chosen, wanted));
            found.ends.extend(ends.ends.into_iter().map(|end| (place, end)));
            found.are_incomplete.push(ends.is_incomplete);
            found.owners.push(piece.owners);
        }
        found
    }

    /// Makes the stubs of ends, and leads beginnings with an end in them there. `pages` are those of this process.
    pub(super) fn lay(
        mut self,
        image: &Image<'_>,
        wanted: &mut [Wanted],
        pages: &[Pages],
    ) -> Result<LaidExits, (WholeReason, io::Error)> {
        let area = make_stubs(image, &self.ends, self.owners.len(), pages)?;
        for (idx, (piece, end)) in self.ends.iter().enumerate() {
            if end.room == Room::Beginning {
                let own = self.owners[*piece].first().and_then(|&owner| wanted.get_mut(owner));
                let is_led = area.stub(idx).zip(own).is_some_and(|(stub, wanted)| lead(wanted, end, stub));
                self.are_incomplete[*piece] |= !is_led;
            }
        }
        Ok(LaidExits { exits: self, area })
    }
}

impl LaidExits {
    /// Makes branches to the stubs, for functions with one at their beginning, by `made`. `put` writes a list, and
    /// returns for each branch whether it is in the code, now or later.
    pub(super) fn make(
        self,
        image: &Image<'_>,
        made: &[Made],
        put: impl FnOnce(&[Option<Branch>]) -> Vec<bool>,
    ) -> MadeExits {
        let Self { exits: Exits { owners, ends, mut are_incomplete }, area } = self;
        let is_made = |piece: usize| owners[piece].iter().any(|&owner| made[owner].is_ok());
        let branch =
            |(idx, (piece, end)): (usize, &(usize, End))| area.branch(idx, end, image).filter(|_| is_made(*piece));
        let branches: Vec<Option<Branch>> = ends.iter().enumerate().map(branch).collect();
        let are_put = put(&branches);
        for ((piece, end), is_put) in ends.iter().zip(&are_put) {
            are_incomplete[*piece] |= end.room != Room::Beginning && !is_put;
        }
        let mut pieces = vec![Vec::new(); made.len()];
        for (piece, owners) in owners.iter().enumerate() {
            owners.iter().for_each(|&owner| pieces[owner].push(piece));
        }
        let put = ends.iter().zip(branches).zip(are_put).filter(|(_, is_put)| *is_put);
        let branches = put.filter_map(|(((piece, _), branch), _)| Some((*piece, branch?))).collect();
        MadeExits { area, pieces, are_incomplete, branches }
    }
}

impl MadeExits {
    /// The switches of a function's ends, by its place among the chosen ones.
    pub(super) fn switches(&self, function: usize, site: Site) -> impl Iterator<Item = Switch> {
        self.pieces[function].iter().filter_map(move |&piece| self.area.switch(piece, site))
    }

    /// The branches at a function's ends.
    pub(super) fn branches(&self, function: usize) -> impl Iterator<Item = Branch> {
        let from = |place: usize| self.branches.partition_point(|&(piece, _)| piece < place);
        let own = self.pieces[function].iter().flat_map(move |&piece| &self.branches[from(piece)..from(piece + 1)]);
        own.map(|&(_, branch)| branch)
    }

    /// True if an end of the function is not seen.
    pub(super) fn is_late(&self, function: usize) -> bool {
        self.pieces[function].iter().any(|&piece| self.are_incomplete[piece])
    }
}

/// Returns the instructions displaced at the beginning of a function, if the piece begins it.
fn beginning<'w>(piece: &Piece, chosen: &[Function<'_>], wanted: &'w mut [Wanted]) -> Option<&'w mut Vec<Instruction>> {
    let owner = piece.owners.iter().copied().find(|&owner| chosen[owner].start == piece.start)?;
    match &mut wanted[owner].goes_on {
        GoesOn::Copy(instructions) => Some(instructions),
        GoesOn::Whole(_) => None,
    }
}

/// Leads the copy of a function's beginning to the stub of an end. Returns false if the end is not there.
fn lead(wanted: &mut Wanted, end: &End, stub: usize) -> bool {
    let GoesOn::Copy(instructions) = &mut wanted.goes_on else { return false };
    let is_it = |instruction: &&mut Instruction| instruction.ip() == end.instruction.ip();
    let Some(instruction) = instructions.iter_mut().find(is_it) else { return false };
    let code = if instruction.is_jcc_short_or_near() { instruction.code() } else { Code::Jmp_rel32_64 };
    let Ok(mut jump) = Instruction::with_branch(code, stub as u64) else { return false };
    // It stands for the end.
    jump.set_len(instruction.len());
    jump.set_ip(instruction.ip());
    *instruction = jump;
    true
}

/// Makes stubs known to unwinders and debuggers.
fn make_stubs(
    image: &Image<'_>,
    ends: &[(usize, End)],
    n_pieces: usize,
    pages: &[Pages],
) -> Result<Area, (WholeReason, io::Error)> {
    let mapped: Vec<Range<usize>> = pages.iter().map(|pages| pages.range.clone()).collect();
    let ends: Vec<(usize, &End)> = ends.iter().map(|(piece, end)| (*piece, end)).collect();
    let area = Area::new(&(image.start()..image.end()), &ends, n_pieces, &mapped);
    let area = area.map_err(|error| (WholeReason::NoStubs, error))?;
    let (range, (frames, descriptions)) = (area.range(), area.frames(Reader::Unwinder));
    if !range.is_empty() {
        unwinder::register_section(range.start, frames, &descriptions);
        debugger::register(&range, &(range.start..range.start), &area.frames(Reader::Debugger).0);
    }
    Ok(area)
}
