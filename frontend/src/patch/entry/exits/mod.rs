//! Branches at the ends of functions: each `ret`, and each jump to another function, leads to a stub that calls the hook of sleds first. Return
//! addresses stay unchanged.
//!
//! - `pieces` finds the pieces of a function, `marks` the places at which somebody may arrive.
//! - `ends` finds ends, and room for branches.
//! - `stubs` makes the targets of these.
//!
//! A function that has an end without room is recorded all the same: what follows tells of that end, as with sleds.
//!
//! Not here: branches at beginnings (`entry`), and the hook.
//!
//! **Invariant**: an end is left whole where anything about it is unsure.

mod ends;
mod marks;
mod pieces;
mod stubs;

use std::io;
use std::ops::Range;

use iced_x86::{Code, Instruction};

use self::ends::{End, Room, Search};
use self::marks::Marks;
use self::pieces::{Piece, pieces};
use self::stubs::Area;
use super::functions::Functions;
use super::stubs::{Area as BeginningsArea, GoesOn, Wanted, hook_with_ends};
use super::writing::{Made, make, write};
use crate::patch::debugger;
use crate::patch::entry_outcome::WholeReason;
use crate::patch::module::Image;
use crate::patch::named::{Function, Module};
use crate::patch::poke::Pages;
use crate::patch::sites::Site;
use crate::patch::stubs::distance;
use crate::patch::switches::Switch;
use crate::patch::unwind::Reader;
use crate::patch::unwinder;

/// `jmp` by four bytes.
const JUMP: u8 = 0xe9;
const DISTANCE_BYTES: usize = size_of::<i32>();

/// The ends of the chosen functions of a module.
#[derive(Debug, Default)]
pub(super) struct Exits {
    /// The places of the functions that have a piece, for each piece.
    owners: Vec<Vec<usize>>,
    /// Each with the place of its piece.
    ends: Vec<(usize, End)>,
    /// Which pieces have ends without room.
    are_incomplete: Vec<bool>,
}

/// Stubs made for the ends.
pub(super) struct MadeExits {
    area: Area,
    /// The pieces of each function.
    pieces: Vec<Vec<usize>>,
    are_incomplete: Vec<bool>,
}

impl Exits {
    /// Finds them. What is displaced for branches at beginnings may become longer.
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

    /// Makes the stubs of beginnings and ends, and the branches to them. Returns which functions have one at the beginning.
    pub(super) fn make(
        self,
        image: &Image<'_>,
        mut wanted: Vec<Wanted>,
    ) -> Result<(Vec<Made>, BeginningsArea, MadeExits), (WholeReason, io::Error)> {
        let Self { owners, ends, mut are_incomplete } = self;
        let pages = Pages::all().map_err(|error| (WholeReason::NotWritable, error))?;
        let area = make_stubs(image, &ends, owners.len(), &pages)?;
        for (idx, (piece, end)) in ends.iter().enumerate() {
            if end.room == Room::Beginning {
                let own = owners[*piece].first().and_then(|&owner| wanted.get_mut(owner));
                let is_led = area.stub(idx).zip(own).is_some_and(|(stub, wanted)| lead(wanted, end, stub));
                are_incomplete[*piece] |= !is_led;
            }
        }
        let (made, beginnings) = make(image, &wanted, hook_with_ends())?;
        let is_made = |piece: usize| owners[piece].iter().any(|&owner| made[owner].is_ok());
        let branch =
            |(idx, (piece, end)): (usize, &(usize, End))| branch(end, area.stub(idx)?).filter(|_| is_made(*piece));
        let branches: Vec<_> = ends.iter().enumerate().map(branch).collect();
        // Where none could be written, none was.
        let are_written = write(&branches, &pages).unwrap_or_else(|_| vec![false; branches.len()]);
        for ((piece, end), is_written) in ends.iter().zip(are_written) {
            are_incomplete[*piece] |= end.room != Room::Beginning && !is_written;
        }
        let mut pieces = vec![Vec::new(); wanted.len()];
        for (piece, owners) in owners.iter().enumerate() {
            owners.iter().for_each(|&owner| pieces[owner].push(piece));
        }
        Ok((made, beginnings, MadeExits { area, pieces, are_incomplete }))
    }
}

impl MadeExits {
    /// The switches of a function's ends, by its place among the chosen ones.
    pub(super) fn switches(&self, function: usize, site: Site) -> impl Iterator<Item = Switch> {
        self.pieces[function].iter().filter_map(move |&piece| self.area.switch(piece, site))
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

/// Has the copy of a function's beginning lead to the stub of an end. Returns false if the end is not there.
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

/// Returns the address and the bytes to write for an end.
fn branch(end: &End, stub: usize) -> Option<(usize, Vec<u8>)> {
    let (at, opcode) = match end.room {
        Room::Beginning => return None,
        Room::Branch(at) => (at, vec![JUMP]),
        Room::Distance(at) => (at, Vec::new()),
    };
    let behind = at + opcode.len() + DISTANCE_BYTES;
    Some((at, [opcode, distance(behind, stub).to_le_bytes().to_vec()].concat()))
}

/// Makes stubs that unwinders and debuggers know.
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
