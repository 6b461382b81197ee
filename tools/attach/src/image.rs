//! The tracer for processes without a library for it: this process maps and relocates its segments, and asks nothing in
//! the other one for more than system calls. It is found again by its name.

use std::mem::offset_of;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, bail};
use nix::libc;
use object::elf::PF_W;
use object::read::elf::ElfFile64;
use object::{Object, ObjectSegment, ObjectSymbol, ObjectSymbolTable, RelocationTarget, SegmentFlags};
use rftrace::abi::{Control, Outside, Switch, enabled};

use super::borrowed::{Borrowed, Gadgets};
use super::library::{close, memory_file};
use super::names::{self, OUTSIDE};
use super::process::{Map, Module, Process};

/// A library that needs no other one, with nothing in it but the tracer.
static FILE: &[u8] = include_bytes!(env!("RFTRACE_OUTSIDE"));

const PAGE_BYTES: u64 = 4096;
/// The reach of a jump, less the code on both sides of it.
const REACH: u64 = (1 << 31) - (64 << 20);
/// Below a program nothing grows; above it the heap does.
const LEAST_BELOW: u64 = 64 << 20;

/// The image in a process.
#[derive(Debug)]
pub(crate) struct Image {
    module: Module,
    base: u64,
}

/// The file.
struct Parsed(ElfFile64<'static>);

impl Parsed {
    fn new() -> Result<Self> {
        Ok(Self(
            ElfFile64::parse(FILE)
                .context("this rftrace lacks the tracer for programs that are linked statically or use musl")?,
        ))
    }

    /// Segments with their ranges, in whole pages, and whether they can be written.
    fn segments(&self) -> Vec<(Range<u64>, bool, bool)> {
        let segments = self.0.segments().map(|segment| {
            let start = segment.address() & !(PAGE_BYTES - 1);
            let range = start..(segment.address() + segment.size()).next_multiple_of(PAGE_BYTES);
            let SegmentFlags::Elf { p_flags, .. } = segment.flags() else { return (range, false, false) };
            let has = |flag| p_flags & flag != object::elf::ProgramFlags(0);
            (range, has(PF_W), has(object::elf::PF_X))
        });
        segments.collect()
    }

    /// All of it in its file, as at this address. `resolve` tells the addresses of functions elsewhere, 0 if there are
    /// none.
    fn relocated(&self, base: u64, resolve: impl Fn(&str) -> u64) -> Result<Vec<u8>> {
        let end = self.0.segments().map(|segment| segment.address() + segment.file_range().1).max().unwrap_or(0);
        let mut bytes = vec![0; end as usize];
        for segment in self.0.segments() {
            let data = segment.data()?;
            bytes[segment.address() as usize..][..data.len()].copy_from_slice(data);
        }
        let symbols = self.0.dynamic_symbol_table().context("the tracer's file has no dynamic symbols")?;
        for (offset, relocation) in self.0.dynamic_relocations().into_iter().flatten() {
            let value = match relocation.target() {
                RelocationTarget::Symbol(index) => {
                    let symbol = symbols.symbol_by_index(index)?;
                    if symbol.is_definition() { base + symbol.address() } else { resolve(symbol.name()?) }
                }
                _ => base,
            };
            let value = value.wrapping_add_signed(relocation.addend());
            bytes[offset as usize..][..size_of::<u64>()].copy_from_slice(&value.to_le_bytes());
        }
        Ok(bytes)
    }
}

impl Image {
    /// The tracer that is there already.
    ///
    /// # Errors
    ///
    /// It is another one.
    pub(crate) fn find(process: &Process, maps: &[Map]) -> Result<Option<Self>> {
        let Some(text) = maps.iter().find(|map| names::is_outside(&map.path) && map.is_executable) else {
            return Ok(None);
        };
        let image = Self::at(text.file().2)?;
        let is_same = image.module.texts.iter().all(|text| {
            let bytes = process.bytes(text.start, text.end - text.start);
            // The bytes behind the last instruction are zero.
            let own = Parsed::new().ok().and_then(|file| file.relocated(0, |_| 0).ok()).unwrap_or_default();
            let own = own.get((text.start - image.base) as usize..).unwrap_or_default();
            let own = &own[..own.len().min(bytes.len())];
            !own.is_empty() && bytes.starts_with(own)
        });
        if !is_same {
            bail!(
                "process {} holds the tracer of another version of rftrace: attach by that version, or restart the process",
                process.pid
            );
        }
        Ok(Some(image))
    }

    fn at(base: u64) -> Result<Self> {
        let texts = Parsed::new()?.segments().into_iter().filter(|&(.., is_code)| is_code);
        let texts = texts.map(|(range, ..)| base + range.start..base + range.end).collect();
        Ok(Self { module: Module::new(FILE.to_vec(), base, texts)?, base })
    }

    /// Has a thread map it, within reach of some functions and not below `lowest`. `resolve` tells the addresses of functions of an unwinder, or 0.
    pub(crate) fn map(
        thread: &mut Borrowed<'_>,
        process: &Process,
        functions: &[Range<u64>],
        lowest: u64,
        resolve: impl Fn(&str) -> u64,
    ) -> Result<Self> {
        let file = Parsed::new()?;
        let segments = file.segments();
        let n_bytes = segments.iter().map(|(range, ..)| range.end).max().unwrap_or(0);
        let first_written = segments.iter().find(|&&(_, is_written, _)| is_written).map_or(n_bytes, |it| it.0.start);
        let private = libc::MAP_PRIVATE | libc::MAP_FIXED;
        let base = reserve(thread, process, functions, n_bytes, lowest)?;
        let bytes = file.relocated(base, resolve)?;
        let (number, memory) = memory_file(thread, process, OUTSIDE)?;
        let (read_only, written) = bytes.split_at(bytes.len().min(first_written as usize));
        let copied = memory.write_all_at(read_only, 0).and_then(|()| memory.set_len(first_written));
        copied.with_context(|| format!("cannot write the tracer into process {}", process.pid))?;
        let (written_segments, mut others): (Vec<_>, Vec<_>) = segments.into_iter().partition(|it| it.1);
        for (range, ..) in written_segments {
            let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
            let arguments = [base + range.start, range.end - range.start, protection];
            thread.system_call(libc::SYS_mprotect, &arguments)?;
        }
        process.write(base + first_written, written)?;
        let image = Self::at(base)?;
        // A forked child finds the switch off.
        let switch = image.outside(process, offset_of!(Outside, switch));
        thread.system_call(libc::SYS_madvise, &[switch, PAGE_BYTES, libc::MADV_WIPEONFORK as u64])?;
        // Code last: if it is there, so are all other parts.
        others.sort_by_key(|&(.., is_code)| is_code);
        for (range, _, is_code) in others {
            let protection = libc::PROT_READ | if is_code { libc::PROT_EXEC } else { 0 };
            let arguments =
                [base + range.start, range.end - range.start, protection as u64, private as u64, number, range.start];
            thread.system_call(libc::SYS_mmap, &arguments)?;
        }
        close(thread, number)?;
        Ok(image)
    }

    /// Its code.
    pub(crate) fn texts(&self) -> Vec<Range<u64>> {
        self.module.texts.clone()
    }

    /// The address of a function of it.
    pub(crate) fn function(&self, name: &str) -> Result<u64> {
        self.module.function(name)
    }

    /// Returns the code for a borrowed thread.
    pub(crate) fn gadgets(&self) -> Result<Gadgets> {
        Ok(Gadgets {
            syscall: self.function("rftrace_outside_call")?,
            restorer: self.function("rftrace_outside_restorer")?,
            errno: 0,
        })
    }

    /// The beginning of its unwind information. The bytes behind it are zero, and end it.
    pub(crate) fn unwind_information(&self) -> Option<u64> {
        Some(self.section(".eh_frame")?.0)
    }

    /// The address of a section, and its bytes.
    pub(crate) fn section(&self, name: &str) -> Option<(u64, Vec<u8>)> {
        let (range, bytes) = self.module.section(name)?;
        Some((self.base + range.start, bytes))
    }

    /// The address of its arguments.
    pub(crate) fn told(&self) -> Result<u64> {
        self.function("rftrace_outside")
    }

    /// A word of its arguments, or of its reports.
    pub(crate) fn outside(&self, process: &Process, offset: usize) -> u64 {
        self.told().ok().and_then(|at| process.word(at + offset as u64)).unwrap_or(0)
    }

    /// Writes a word of its arguments.
    pub(crate) fn tell(&self, process: &Process, offset: usize, word: u64) -> Result<()> {
        Ok(process.write(self.told()? + offset as u64, &word.to_le_bytes())?)
    }

    /// Its control block.
    pub(crate) fn control(&self, process: &Process) -> u64 {
        self.outside(process, offset_of!(Outside, control))
    }

    /// True if it records now.
    pub(crate) fn is_on(&self, process: &Process) -> bool {
        let at = self.outside(process, offset_of!(Outside, switch)) + offset_of!(Switch, enabled) as u64;
        process.word(at).is_some_and(|word| word as u32 & enabled::MASK != u32::from(enabled::OFF))
    }

    /// Threads it could not record.
    pub(crate) fn n_untraced_threads(&self, process: &Process) -> u32 {
        let at = self.control(process) + offset_of!(Control, n_untraced_threads) as u64;
        process.word(at).map_or(0, |word| word as u32)
    }
}

/// Has a thread take so many bytes of addresses, not usable yet, within reach of some functions and not below `lowest`.
pub(crate) fn reserve(
    thread: &mut Borrowed<'_>,
    process: &Process,
    functions: &[Range<u64>],
    n_bytes: u64,
    lowest: u64,
) -> Result<u64> {
    let wanted = place(process, functions, n_bytes, lowest)?;
    // Old systems take the address for a wish.
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let arguments = [wanted, n_bytes, libc::PROT_NONE as u64, flags as u64, u64::MAX, 0];
    let found = thread
        .system_call(libc::SYS_mmap, &arguments)
        .with_context(|| format!("cannot map memory for the tracer in process {}", process.pid))?;
    if found != wanted {
        thread.system_call(libc::SYS_munmap, &[found, n_bytes])?;
        bail!("process {} has no free addresses for the tracer near its code", process.pid);
    }
    Ok(found)
}

/// The place of so many free bytes within a jump of all functions, both ways: below the program, or far above it. With
/// `lowest` as the lower limit it lies right above the limit, except for the room in which the heap grows.
fn place(process: &Process, functions: &[Range<u64>], n_bytes: u64, lowest: u64) -> Result<u64> {
    const LOWEST: u64 = 1 << 20;

    let maps = process.maps()?;
    let first = functions.iter().map(|range| range.start).min().unwrap_or(lowest);
    let last = functions.iter().map(|range| range.end).max().unwrap_or(lowest);
    let reached = last.saturating_sub(REACH).max(LOWEST).max(lowest)..first.saturating_add(REACH);
    let mut gaps: Vec<Range<u64>> = Vec::new();
    let mut end = LOWEST;
    for map in &maps {
        gaps.push(end..map.range.start);
        end = end.max(map.range.end);
    }
    // The range of programs' memory, whatever the kernel's is.
    gaps.push(end..1 << 46);
    let gaps = gaps.into_iter().map(|gap| gap.start.max(reached.start)..gap.end.min(reached.end));
    let gaps: Vec<Range<u64>> =
        gaps.filter(|gap| gap.end.saturating_sub(gap.start) >= n_bytes + 2 * PAGE_BYTES).collect();
    let top = |gap: &Range<u64>| (gap.end - n_bytes - PAGE_BYTES) & !(PAGE_BYTES - 1);
    let below = gaps.iter().filter(|gap| gap.end <= first && gap.end - gap.start >= LEAST_BELOW).map(top).max();
    let heap = maps.iter().rfind(|map| map.path == "[heap]").map(|map| map.range.end).or_else(|| process.heap_start());
    let heap_grows = |gap: &Range<u64>| heap.is_none_or(|heap| gap.contains(&heap));
    let above = gaps.iter().find(|gap| lowest != 0 && !heap_grows(gap));
    let above = above.map(|gap| (gap.start + PAGE_BYTES).next_multiple_of(PAGE_BYTES));
    let found = below.or(above).or_else(|| gaps.iter().map(top).max());
    found.with_context(|| format!("process {} has no free addresses for the tracer near its code", process.pid))
}
