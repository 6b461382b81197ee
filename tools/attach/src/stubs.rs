//! Targets of branches in a process without a library to make them: this process finds the functions in its files, lays
//! the stubs out and writes them. They stay, and are found again by their name.
//!
//! | memory | |
//! |---|---|
//! | can be written | a byte for each stub, its switch; a word, not 0 if the unwinder knows of the stubs; room for the unwinder |
//! | code | the stubs |
//! | read-only | a [`Header`]; the branches; unwind information of the stubs |
//!
//! Not here: the functions, and the form of a stub (`rftrace-frontend`); the writing of branches (`branches`).
//!
//! **Invariant**: the part with the facts on the stubs is mapped last. So all they refer to exists.

use std::ops::Range;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use nix::libc::{self, pid_t};
use rftrace::abi::REGISTRATION_WORDS;
use rftrace_format::branches::{Branch, ENTRY_BYTES};
use rftrace_frontend::patch::{OutsideArea, OutsideBranches, Unnamed};

use super::borrowed::Borrowed;
use super::branches::{Branches, NoBranch, OwnBranches, Written};
use super::image::{self, Image};
use super::jumps::Hooked;
use super::library::{close, memory_file};
use super::names::{self, STUBS};
use super::process::{Map, Process};
use super::sys::words;
use super::wanted::Wanted;

const PAGE_BYTES: u64 = 4096;
const WORD: u64 = size_of::<u64>() as u64;
/// More functions than any program has.
const MOST_BRANCHES: u64 = 1 << 24;

/// Head of the part with the facts on the stubs.
#[derive(Clone, Copy, Debug)]
struct Header {
    /// The place of the switches, and their number.
    switches: u64,
    n_switches: u64,
    n_branches: u64,
}

impl Header {
    const BYTES: u64 = 3 * WORD;

    fn encode(self) -> Vec<u8> {
        [self.switches, self.n_switches, self.n_branches].into_iter().flat_map(u64::to_le_bytes).collect()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut words = words(bytes);
        Some(Self { switches: words.next()?, n_switches: words.next()?, n_branches: words.next()? })
    }

    /// The place of the word that tells whether the unwinder knows of them. The room for the unwinder is behind it.
    fn is_told_at(self) -> u64 {
        self.switches + self.n_switches.next_multiple_of(WORD)
    }

    /// Returns the bytes before the code, in whole pages.
    fn written_bytes(n_switches: u64) -> u64 {
        (n_switches.next_multiple_of(WORD) + (1 + REGISTRATION_WORDS as u64) * WORD).next_multiple_of(PAGE_BYTES)
    }
}

/// Stubs in a process.
#[derive(Debug)]
pub(crate) struct Stubs {
    header: Header,
    branches: Vec<Branch>,
    /// Their unwind information, to the end of its last page.
    frames: Range<u64>,
}

impl Stubs {
    /// All stubs left there by recorders.
    pub(crate) fn all(process: &Process, maps: &[Map]) -> Result<Vec<Self>> {
        let tables = maps.iter().filter(|map| names::is_stubs(&map.path) && !map.is_executable);
        let read = |map: &Map| {
            let header = Header::decode(&process.bytes(map.range.start, Header::BYTES))?;
            let bytes = header.n_branches.checked_mul(ENTRY_BYTES as u64).filter(|_| header.n_branches < MOST_BRANCHES);
            let bytes = process.bytes(map.range.start + Header::BYTES, bytes?);
            let branches: Option<Vec<Branch>> = bytes.as_chunks::<ENTRY_BYTES>().0.iter().map(Branch::decode).collect();
            let branches = branches.filter(|branches| branches.len() as u64 == header.n_branches)?;
            let frames = map.range.start + Header::BYTES + bytes.len() as u64..map.range.end;
            Some(Self { header, branches, frames })
        };
        let all: Option<Vec<Self>> = tables.map(read).collect();
        all.with_context(|| format!("cannot read the tracer's list of functions in process {}", process.pid))
    }

    /// Has a thread map new ones, all off, not below `lowest`. Returns their branches, and functions without one.
    fn map(
        thread: &mut Borrowed<'_>,
        process: &Process,
        area: &OutsideArea,
        hook: u64,
        lowest: u64,
    ) -> Result<Option<(Vec<Branch>, Vec<u64>)>> {
        let n_switches = area.n_functions() as u64;
        let written_bytes = Header::written_bytes(n_switches);
        let Some(room) = room(thread, process, area, written_bytes, lowest)? else { return Ok(None) };
        let (switches, code) = (room.start, room.start + written_bytes);
        let laid = area.lay(switches as usize, code as usize, hook as usize);
        let code_bytes = laid.code.len() as u64;
        let mut file = laid.code;
        file.extend(Header { switches, n_switches, n_branches: laid.branches.len() as u64 }.encode());
        file.extend(laid.branches.iter().flat_map(Branch::encode));
        file.extend(laid.frames);
        let end = (code + file.len() as u64).next_multiple_of(PAGE_BYTES);
        if end < room.end {
            thread.system_call(libc::SYS_munmap, &[end, room.end - end])?;
        }
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        thread.system_call(libc::SYS_mprotect, &[switches, written_bytes, protection])?;
        let (number, memory) = memory_file(thread, process, STUBS)?;
        memory
            .write_all_at(&file, 0)
            .with_context(|| format!("cannot write the tracer into process {}", process.pid))?;
        let parts = [(0, code_bytes, libc::PROT_EXEC), (code_bytes, file.len() as u64 - code_bytes, 0)];
        for (at, n_bytes, further) in parts {
            let protection = (libc::PROT_READ | further) as u64;
            let flags = (libc::MAP_PRIVATE | libc::MAP_FIXED) as u64;
            thread.system_call(libc::SYS_mmap, &[code + at, n_bytes, protection, flags, number, at])?;
        }
        close(thread, number)?;
        Ok(Some((laid.branches, laid.unreachable)))
    }

    /// Their code.
    pub(crate) fn text(&self) -> Range<u64> {
        let branches = self.branches.len() as u64 * ENTRY_BYTES as u64;
        let Header { switches, n_switches, .. } = self.header;
        switches + Header::written_bytes(n_switches)..self.frames.start - branches - Header::BYTES
    }

    /// The beginning of each, and the place of its description.
    pub(crate) fn rows(&self, process: &Process) -> Vec<(u64, u64)> {
        let bytes = process.bytes(self.frames.start, self.frames.end - self.frames.start);
        rows(&bytes).into_iter().map(|(stub, at)| (stub, self.frames.start + at)).collect()
    }

    /// True if the program's unwinder knows of them.
    pub(crate) fn are_told(&self, process: &Process) -> bool {
        process.word(self.header.is_told_at()) != Some(0)
    }

    /// Notes that it knows them.
    pub(crate) fn note_told(&self, process: &Process) -> Result<()> {
        Ok(process.write(self.header.is_told_at(), &1u64.to_le_bytes())?)
    }

    /// Tells an unwinder of them, by its function for this, if it does not know them.
    pub(crate) fn tell(&self, thread: &mut Borrowed<'_>, process: &Process, registrar: u64) -> Result<()> {
        if self.are_told(process) {
            return Ok(());
        }
        thread.call(registrar, &[self.frames.start, self.header.is_told_at() + WORD])?;
        self.note_told(process)
    }

    /// Has them lead to the hook, or straight on.
    fn switch(&self, process: &Process, is_on: bool) -> Result<()> {
        let switches = vec![u8::from(is_on); self.header.n_switches as usize];
        Ok(process.write(self.header.switches, &switches)?)
    }
}

/// Has a thread take addresses for stubs, behind so many bytes for their switches, and for the facts on them.
fn room(
    thread: &mut Borrowed<'_>,
    process: &Process,
    area: &OutsideArea,
    written_bytes: u64,
    lowest: u64,
) -> Result<Option<Range<u64>>> {
    let n_bytes = written_bytes + area.most_bytes() as u64;
    if lowest != 0 {
        let start = image::reserve(thread, process, &[area.module()], n_bytes, lowest)?;
        return Ok(Some(start..start + n_bytes));
    }
    let maps = process.maps()?;
    let mapped: Vec<Range<usize>> = maps.iter().map(|map| map.range.start as usize..map.range.end as usize).collect();
    for start in area.places(written_bytes as usize, &mapped) {
        let room = start as u64..start as u64 + n_bytes;
        if reserve(thread, &room)? {
            return Ok(Some(room));
        }
    }
    Ok(None)
}

/// Has a thread take a range of addresses. Returns whether it was free.
fn reserve(thread: &mut Borrowed<'_>, range: &Range<u64>) -> Result<bool> {
    let n_bytes = range.end - range.start;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let arguments = [range.start, n_bytes, libc::PROT_NONE as u64, flags as u64, u64::MAX, 0];
    let Ok(found) = thread.system_call(libc::SYS_mmap, &arguments) else { return Ok(false) };
    if found != range.start {
        // Old systems take the address for a wish.
        thread.system_call(libc::SYS_munmap, &[found, n_bytes])?;
    }
    Ok(found == range.start)
}

/// The functions in a section `.eh_frame` with absolute addresses: the beginning of each, and the place of its
/// description in the section.
fn rows(section: &[u8]) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(&[n_bytes, common]) = section.get(at..at + 8).map(|head| head.as_chunks::<4>().0) {
        let n_bytes = u32::from_le_bytes(n_bytes) as usize;
        if n_bytes == 0 {
            break;
        }
        if let Some(&start) = section.get(at + 8..).and_then(<[u8]>::first_chunk).filter(|_| common != [0; 4]) {
            found.push((u64::from_le_bytes(start), at as u64));
        }
        at += 4 + n_bytes;
    }
    found
}

/// The functions of a process to get a branch.
#[derive(Debug, Default)]
pub(crate) struct Entries(Option<OutsideBranches>);

impl Entries {
    /// Looks for the wanted ones; none of them has its branch now. Nothing changes yet. `unnamed`: the facts on a
    /// program without symbol table.
    ///
    /// # Errors
    ///
    /// Sentences: a pattern is none.
    pub(crate) fn look_up(
        process: &Process,
        maps: &[Map],
        wanted: &Wanted,
        hooked: &[Hooked],
        unnamed: Option<&Unnamed>,
    ) -> Result<Self> {
        if wanted.branches.is_empty() {
            return Ok(Self(None));
        }
        let known: Vec<Branch> = Stubs::all(process, maps)?.into_iter().flat_map(|stubs| stubs.branches).collect();
        let hooks: Vec<(&'static str, u64)> = hooked.iter().map(|it| (it.hook, it.range.start)).collect();
        let folder = process.folder();
        let named = (&wanted.branches[..], &wanted.exceptions[..]);
        let linker = process.auxiliary(libc::AT_BASE).unwrap_or(0);
        Ok(Self(Some(OutsideBranches::look_up(&folder, named, &hooks, linker, &known, unnamed)?)))
    }

    /// All of them.
    pub(crate) fn functions(&self) -> &[Range<u64>] {
        self.0.as_ref().map_or(&[], OutsideBranches::functions)
    }

    /// Makes their stubs, all off, not below `lowest`.
    pub(crate) fn make(
        &self,
        thread: &mut Borrowed<'_>,
        process: &Process,
        image: &Image,
        lowest: u64,
    ) -> Result<Made<'_>> {
        let Some(found) = &self.0 else { return Ok(Made::default()) };
        let hook = image.function("rftrace_entry")?;
        let mut made = Made { found: Some(found), wanted: found.known().to_vec(), without: Vec::new() };
        for area in found.areas() {
            match Stubs::map(thread, process, area, hook, lowest)? {
                Some((branches, unreachable)) => {
                    made.wanted.extend(branches);
                    made.without.extend(unreachable);
                }
                None => made.without.extend(area.functions()),
            }
        }
        Ok(made)
    }
}

/// Functions with stubs.
#[derive(Debug, Default)]
pub(crate) struct Made<'a> {
    found: Option<&'a OutsideBranches>,
    wanted: Vec<Branch>,
    /// Functions without one.
    without: Vec<u64>,
}

impl Made<'_> {
    /// Writes the branches. `before` was mapped when they were looked for.
    pub(crate) fn write(
        self,
        thread: &mut Borrowed<'_>,
        process: &Process,
        before: &[Map],
        late: &mut Vec<pid_t>,
    ) -> Result<Option<OwnBranches>> {
        let Some(found) = self.found else { return Ok(None) };
        switch(process, true)?;
        let branches = Branches::of(self.wanted);
        let mut written = match branches.is_empty() {
            true => Written::default(),
            false => branches.write(process, thread, before, late)?,
        };
        written.left_out.extend(self.without.into_iter().map(|function| (function, NoBranch::Unreachable)));
        let program = process.program_path();
        Ok(Some(OwnBranches { written, told: found.outcome().lines(&program) }))
    }
}

/// All branches prepared by recorders in a process.
pub(crate) fn prepared(process: &Process) -> Result<Branches> {
    let all = Stubs::all(process, &process.maps()?)?;
    Ok(Branches::of(all.into_iter().flat_map(|stubs| stubs.branches).collect()))
}

/// Has all stubs lead to the hook, or straight on.
pub(crate) fn switch(process: &Process, is_on: bool) -> Result<()> {
    Stubs::all(process, &process.maps()?)?.iter().try_for_each(|stubs| stubs.switch(process, is_on))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_that_are_described() {
        let record = |id: u32, start: u64| {
            let bytes = [id.to_le_bytes().to_vec(), start.to_le_bytes().to_vec(), vec![0; 4]].concat();
            [(bytes.len() as u32).to_le_bytes().to_vec(), bytes].concat()
        };
        let section = [record(0, 0), record(0x18, 0x40_1000), record(0x2c, 0x40_2000)].concat();
        let filled = [&section[..], &[0; 40]].concat();
        assert_eq!(rows(&filled), [(0x40_1000, 20), (0x40_2000, 40)]);
        assert_eq!(rows(&section), rows(&filled));
        assert!(rows(&[]).is_empty());
    }

    #[test]
    fn headers_tell_where_things_are() {
        let header = Header { switches: 0x40_0000, n_switches: 9, n_branches: 7 };
        let encoded = header.encode();
        assert_eq!(encoded.len() as u64, Header::BYTES);
        let Header { switches, n_switches, n_branches } = Header::decode(&encoded).unwrap();
        assert_eq!((switches, n_switches, n_branches), (0x40_0000, 9, 7));
        assert!(Header::decode(&encoded[..16]).is_none());
        assert_eq!(header.is_told_at(), 0x40_0010);
        // The word, and the room behind it, are before the code.
        for n_switches in [1, 3959, 3960, 3961, 5000] {
            let end = Header { switches: 0, n_switches, n_branches: 0 }.is_told_at() + WORD * 17;
            assert!((end..end + PAGE_BYTES).contains(&Header::written_bytes(n_switches)), "{n_switches}");
        }
    }
}
