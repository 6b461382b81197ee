//! What branches lead to in a process that has no library to make it: found by its files, laid out and written from here. It stays, and is found again
//! by its name.
//!
//! | memory | |
//! |---|---|
//! | can be written | a byte for each stub, its switch; a word that is not 0 where the unwinder knows of the stubs; room for the unwinder |
//! | code | the stubs |
//! | read-only | a [`Header`]; the branches; unwind information of the stubs |
//!
//! Not here: which functions there are, and what a stub is (`rftrace-frontend`); when branches are written (`branches`).
//!
//! **Invariant**: the part that tells of the stubs is mapped last. So what is told of is there.

use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use nix::libc::{self, pid_t};
use rftrace::abi::REGISTRATION_WORDS;
use rftrace_format::branches::{Branch, ENTRY_BYTES};
use rftrace_frontend::patch::{OutsideArea, OutsideBranches};

use super::borrowed::Borrowed;
use super::branches::{Branches, NoBranch, OwnBranches, Written};
use super::image::Image;
use super::jumps::Hooked;
use super::library::{close, memory_file};
use super::names::{self, STUBS};
use super::process::{Map, Process};
use super::sys::words;

const PAGE_BYTES: u64 = 4096;
const WORD: u64 = size_of::<u64>() as u64;
/// More functions than any program has.
const MOST_BRANCHES: u64 = 1 << 24;

/// What the part that tells of the stubs begins with.
#[derive(Clone, Copy, Debug)]
struct Header {
    /// Where the switches are, and how many.
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

    /// Where it is said that the unwinder knows of them. Behind it is the room for that.
    fn is_told_at(self) -> u64 {
        self.switches + self.n_switches.next_multiple_of(WORD)
    }

    /// What is before the code, in whole pages.
    fn written_bytes(n_switches: u64) -> u64 {
        (n_switches.next_multiple_of(WORD) + (1 + REGISTRATION_WORDS as u64) * WORD).next_multiple_of(PAGE_BYTES)
    }
}

/// Stubs that are in a process.
#[derive(Debug)]
struct Stubs {
    header: Header,
    branches: Vec<Branch>,
    /// Their unwind information.
    frames: u64,
}

impl Stubs {
    /// All that recorders have left there.
    fn all(process: &Process, maps: &[Map]) -> Result<Vec<Self>> {
        let tables = maps.iter().filter(|map| names::is_stubs(&map.path) && !map.is_executable);
        let read = |map: &Map| {
            let header = Header::decode(&process.bytes(map.range.start, Header::BYTES))?;
            let bytes = header.n_branches.checked_mul(ENTRY_BYTES as u64).filter(|_| header.n_branches < MOST_BRANCHES);
            let bytes = process.bytes(map.range.start + Header::BYTES, bytes?);
            let branches: Option<Vec<Branch>> = bytes.as_chunks::<ENTRY_BYTES>().0.iter().map(Branch::decode).collect();
            let branches = branches.filter(|branches| branches.len() as u64 == header.n_branches)?;
            let frames = map.range.start + Header::BYTES + bytes.len() as u64;
            Some(Self { header, branches, frames })
        };
        let all: Option<Vec<Self>> = tables.map(read).collect();
        all.with_context(|| format!("what process {} tells of its functions cannot be read", process.pid))
    }

    /// Has a thread map new ones, all off. Returns them, and functions that get none.
    fn map(
        thread: &mut Borrowed<'_>,
        process: &Process,
        area: &OutsideArea,
        hook: u64,
    ) -> Result<Option<(Self, Vec<u64>)>> {
        let maps = process.maps()?;
        let mapped: Vec<Range<usize>> =
            maps.iter().map(|map| map.range.start as usize..map.range.end as usize).collect();
        let n_switches = area.n_functions() as u64;
        let written_bytes = Header::written_bytes(n_switches);
        for switches in area.places(written_bytes as usize, &mapped) {
            let laid = area.lay(switches, switches + written_bytes as usize, hook as usize);
            let (switches, code_bytes) = (switches as u64, laid.code.len() as u64);
            let header = Header { switches, n_switches, n_branches: laid.branches.len() as u64 };
            let mut file = laid.code;
            file.extend(header.encode());
            file.extend(laid.branches.iter().flat_map(Branch::encode));
            let frames = switches + written_bytes + file.len() as u64;
            file.extend(laid.frames);
            if !reserve(thread, switches, written_bytes + file.len() as u64)? {
                continue;
            }
            let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
            thread.system_call(libc::SYS_mprotect, &[switches, written_bytes, protection])?;
            let (number, memory) = memory_file(thread, process, STUBS)?;
            memory.write_all_at(&file, 0).context("it has no memory for the tracer")?;
            let parts = [(0, code_bytes, libc::PROT_EXEC), (code_bytes, file.len() as u64 - code_bytes, 0)];
            for (at, n_bytes, further) in parts {
                let protection = (libc::PROT_READ | further) as u64;
                let flags = (libc::MAP_PRIVATE | libc::MAP_FIXED) as u64;
                let arguments = [switches + written_bytes + at, n_bytes, protection, flags, number, at];
                thread.system_call(libc::SYS_mmap, &arguments)?;
            }
            close(thread, number)?;
            return Ok(Some((Self { header, branches: laid.branches, frames }, laid.unreachable)));
        }
        Ok(None)
    }

    /// Tells the program's unwinder of them, if it does not know them.
    fn tell(&self, thread: &mut Borrowed<'_>, process: &Process, registrar: u64) -> Result<()> {
        let is_told_at = self.header.is_told_at();
        if process.word(is_told_at) != Some(0) {
            return Ok(());
        }
        thread.call(registrar, &[self.frames, is_told_at + WORD])?;
        Ok(process.write(is_told_at, &1u64.to_le_bytes())?)
    }

    /// Has them lead to the hook, or straight on.
    fn switch(&self, process: &Process, is_on: bool) -> Result<()> {
        let switches = vec![u8::from(is_on); self.header.n_switches as usize];
        Ok(process.write(self.header.switches, &switches)?)
    }
}

/// Has a thread take a range of addresses. Returns whether it was free.
fn reserve(thread: &mut Borrowed<'_>, start: u64, n_bytes: u64) -> Result<bool> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let arguments = [start, n_bytes, libc::PROT_NONE as u64, flags as u64, u64::MAX, 0];
    let Ok(found) = thread.system_call(libc::SYS_mmap, &arguments) else { return Ok(false) };
    if found != start {
        // Old systems take the address for a wish.
        thread.system_call(libc::SYS_munmap, &[found, n_bytes])?;
    }
    Ok(found == start)
}

/// The functions of a process that are to have a branch.
#[derive(Debug, Default)]
pub(crate) struct Entries(Option<OutsideBranches>);

impl Entries {
    /// Looks for those that patterns name, none of which has its branch. Nothing changes yet.
    ///
    /// # Errors
    ///
    /// Sentences: a pattern is none, or it cannot be known what functions do.
    pub(crate) fn look_up(process: &Process, maps: &[Map], patterns: &[String], hooked: &[Hooked]) -> Result<Self> {
        if patterns.is_empty() {
            return Ok(Self(None));
        }
        if !process.program(maps)?.has_symbols() {
            bail!(
                "process {} is linked statically, or uses musl as its C library, and its program has no symbol table: without names it is not known \
                 which functions return twice or throw exceptions, so -P needs it (no -s and strip)",
                process.pid
            );
        }
        let known: Vec<Branch> = Stubs::all(process, maps)?.into_iter().flat_map(|stubs| stubs.branches).collect();
        let hooks: Vec<(&'static str, u64)> = hooked.iter().map(|it| (it.hook, it.range.start)).collect();
        let folder = PathBuf::from(format!("/proc/{}", process.pid));
        let linker = process.auxiliary(libc::AT_BASE).unwrap_or(0);
        Ok(Self(Some(OutsideBranches::look_up(&folder, patterns, &hooks, linker, &known)?)))
    }

    /// All of them.
    pub(crate) fn functions(&self) -> &[Range<u64>] {
        self.0.as_ref().map_or(&[], OutsideBranches::functions)
    }

    /// Makes their stubs, and writes the branches. `before` was mapped when they were looked for; `registrar` is what the program's unwinder is told by, if it
    /// has one.
    pub(crate) fn write(
        &self,
        thread: &mut Borrowed<'_>,
        process: &Process,
        image: &Image,
        registrar: Option<u64>,
        before: &[Map],
        late: &mut Vec<pid_t>,
    ) -> Result<Option<OwnBranches>> {
        let Some(found) = &self.0 else { return Ok(None) };
        let hook = image.function("rftrace_entry")?;
        let mut wanted = found.known().to_vec();
        let mut without = Vec::new();
        for area in found.areas() {
            match Stubs::map(thread, process, area, hook)? {
                Some((stubs, unreachable)) => {
                    wanted.extend(stubs.branches);
                    without.extend(unreachable);
                }
                None => without.extend(area.functions()),
            }
        }
        for stubs in Stubs::all(process, &process.maps()?)? {
            if let Some(registrar) = registrar {
                stubs.tell(thread, process, registrar)?;
            }
            stubs.switch(process, true)?;
        }
        let branches = Branches::of(wanted);
        let mut written = match branches.is_empty() {
            true => Written::default(),
            false => branches.write(process, thread, before, late)?,
        };
        written.left_out.extend(without.into_iter().map(|function| (function, NoBranch::Unreachable)));
        let program = process.program_path();
        Ok(Some(OwnBranches { written, told: found.outcome().lines(&program) }))
    }
}

/// All branches that recorders have prepared in a process.
pub(crate) fn prepared(process: &Process) -> Result<Branches> {
    let all = Stubs::all(process, &process.maps()?)?;
    Ok(Branches::of(all.into_iter().flat_map(|stubs| stubs.branches).collect()))
}

/// Has all stubs lead straight on.
pub(crate) fn switch_off(process: &Process) -> Result<()> {
    Stubs::all(process, &process.maps()?)?.iter().try_for_each(|stubs| stubs.switch(process, false))
}

#[cfg(test)]
mod tests {
    use super::*;

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
