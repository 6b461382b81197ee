//! Makes the targets of branches and sleds, and writes the branches while this is the only thread.
//!
//! Not here: the choice of functions (`mod`).

use std::io;
use std::ops::Range;

use rftrace_format::branches::Branch;

use super::functions::BRANCH_BYTES;
use super::sleds::Thunks;
use super::stubs::{Area, Wanted};
use crate::elf::sleds::Sled;
use crate::patch::debugger;
use crate::patch::entry_outcome::{EntryWay, WholeReason};
use crate::patch::module::Image;
use crate::patch::poke::{Pages, ProcMem};
use crate::patch::stubs::distance;
use crate::patch::unwind::Reader;
use crate::patch::unwinder;

/// Outcome for a function: it has its branch, or why not.
pub(super) type Made = Result<(), WholeReason>;

/// Makes the stubs of a hook, and then the branches. Returns for each function whether it has one, or the reason
/// against it.
pub(super) fn make(
    image: &Image<'_>,
    wanted: &[Wanted],
    hook: usize,
) -> Result<(Vec<Made>, Area), (WholeReason, io::Error)> {
    let not_writable = |error| (WholeReason::NotWritable, error);
    let pages = Pages::all().map_err(not_writable)?;
    let area = make_stubs(image, wanted, hook, &pages)?;
    let branches = wanted.iter().enumerate().map(|(idx, function)| {
        let mut branch = vec![0xe9];
        branch.extend_from_slice(&distance(function.name + BRANCH_BYTES, area.stubs.stub(idx)?).to_le_bytes());
        Some((function.name, branch))
    });
    let branches: Vec<_> = branches.collect();
    let are_written = write(&branches, &pages).map_err(not_writable)?;
    let made = branches.iter().zip(are_written).map(|(branch, is_written)| match branch {
        None => Err(WholeReason::Instruction),
        Some(_) => is_written.then_some(()).ok_or(WholeReason::NotWritable),
    });
    Ok((made.collect(), area))
}

/// Writes branches while this is the only thread. Returns for each whether it was written.
pub(super) fn write_branches(branches: &[Option<Branch>], pages: &[Pages]) -> Vec<bool> {
    let code = |branch: &Branch| (branch.function as usize, branch.branched()[..branch.n_changed()].to_vec());
    let codes: Vec<_> = branches.iter().map(|branch| branch.as_ref().map(code)).collect();
    // Where none could be written, none was.
    write(&codes, pages).unwrap_or_else(|_| vec![false; branches.len()])
}

/// Leads sleds to the hooks. Returns for each whether it leads there.
pub(super) fn lead_sleds(image: &Image<'_>, sleds: &[Sled]) -> Result<(Vec<bool>, Thunks), (WholeReason, io::Error)> {
    let not_writable = |error| (WholeReason::NotWritable, error);
    let pages = Pages::all().map_err(not_writable)?;
    let thunks = make_thunks(image, sleds, EntryWay::Itself, &pages)?;
    let code = |sled: &Sled| Some((sled.address as usize, thunks.code(sled)?.to_vec()));
    let codes: Vec<_> = sleds.iter().map(code).collect();
    Ok((write(&codes, &pages).map_err(not_writable)?, thunks))
}

/// Makes thunks for these sleds, known to unwinders and debuggers. `pages` are those of this process.
pub(super) fn make_thunks(
    image: &Image<'_>,
    sleds: &[Sled],
    way: EntryWay,
    pages: &[Pages],
) -> Result<Thunks, (WholeReason, io::Error)> {
    let mapped: Vec<Range<usize>> = pages.iter().map(|pages| pages.range.clone()).collect();
    let module = image.start()..image.end();
    let thunks = Thunks::new(&module, sleds, way, &mapped).map_err(|error| (WholeReason::NoStubs, error))?;
    let (range, (frames, description)) = (thunks.range(), thunks.frames());
    debugger::register(&(range.end..range.end), &range, &frames);
    unwinder::register_section(range.start, frames, &[description]);
    Ok(thunks)
}

/// Writes code, given as addresses and bytes, in a module that stays loaded, and while there is one thread. `pages` are
/// those of this process. Returns for each whether it was written; an error if none was.
pub(super) fn write(code: &[Option<(usize, Vec<u8>)>], pages: &[Pages]) -> io::Result<Vec<bool>> {
    let start = code.iter().flatten().map(|(address, _)| *address).min().unwrap_or(0);
    let end = code.iter().flatten().map(|(address, bytes)| address + bytes.len()).max().unwrap_or(0);
    let text = start..end;
    let pages: Vec<Pages> = pages.iter().filter_map(|pages| pages.cut_to(&text)).collect();
    let is_writable = pages.iter().try_for_each(Pages::make_writable);
    let file = if is_writable.is_err() { Some(ProcMem::open()?) } else { None };
    let write = |address: usize, bytes: &[u8]| match &file {
        Some(file) => file.write(address, bytes),
        None => {
            // SAFETY: code of a module that stays loaded, which was made writable and which no thread runs: this is the
            // only one. It lies within a function, or in what is unused behind it.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len());
            }
            Ok(())
        }
    };
    let written = write_each(code, write);
    let mut refusal = None;
    pages.iter().for_each(|pages| pages.restore(&mut refusal));
    written
}

/// The same, by `write`.
fn write_each(
    code: &[Option<(usize, Vec<u8>)>],
    write: impl Fn(usize, &[u8]) -> io::Result<()>,
) -> io::Result<Vec<bool>> {
    let mut failed = None;
    let mut is_written =
        |(address, bytes): &(usize, Vec<u8>)| write(*address, bytes).map_err(|error| failed = Some(error)).is_ok();
    let done: Vec<bool> = code.iter().map(|code| code.as_ref().is_some_and(&mut is_written)).collect();
    match failed {
        Some(error) if !done.contains(&true) => Err(error),
        _ => Ok(done),
    }
}

/// Makes stubs known to unwinders and debuggers. `pages` are those of this process.
pub(super) fn make_stubs(
    image: &Image<'_>,
    wanted: &[Wanted],
    hook: usize,
    pages: &[Pages],
) -> Result<Area, (WholeReason, io::Error)> {
    let mapped: Vec<Range<usize>> = pages.iter().map(|pages| pages.range.clone()).collect();
    let module = image.start()..image.end();
    let area = Area::new(&module, wanted, hook, &mapped).map_err(|error| (WholeReason::NoStubs, error))?;
    let (range, (frames, descriptions)) = (area.stubs.range(), area.stubs.frames(Reader::Unwinder));
    unwinder::register_section(range.start, frames, &descriptions);
    debugger::register(&range, &(range.start..range.start), &area.stubs.frames(Reader::Debugger).0);
    Ok(area)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_written_counts_as_left_out() {
        let code = [Some((1, vec![0])), None, Some((2, vec![0])), Some((3, vec![0]))];
        let refused = |which: &'static [usize]| {
            move |address: usize, _: &[u8]| match which.contains(&address) {
                true => Err(io::Error::from(io::ErrorKind::PermissionDenied)),
                false => Ok(()),
            }
        };
        assert_eq!(write_each(&code, refused(&[2])).unwrap(), [true, false, false, true]);
        assert!(write_each(&code, refused(&[1, 2, 3])).is_err());
        assert_eq!(write_each(&code[1..2], refused(&[])).unwrap(), [false]);
    }
}
