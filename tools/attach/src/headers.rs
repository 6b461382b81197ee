//! The tracer's code, and stubs, for an unwinder that asks the C library for modules (`dl_iterate_phdr`) and cannot be
//! told of more: LLVM's libunwind in a program linked statically with musl.
//!
//! musl looks up the program headers each time: by the auxiliary vector on the first thread's stack. The recorder makes
//! a copy of them. In the copy the header of the stack, unused after the beginning, becomes one of the tracer's code
//! and all stubs, and the table of unwind information becomes a copy with their functions in it. So there are as many
//! headers as before. Added stubs need another copy.
//!
//! **Invariant**: one word of the program changes, while all threads are stopped, and when all it leads to exists. It
//! stays, as the tracer does: a thread may have read it, and return addresses of the tracer are found there.

use std::ops::Range;

use anyhow::{Context, Result, bail};
use nix::libc::{self, pid_t};

use super::borrowed::Borrowed;
use super::image::{self, Image};
use super::process::{Map, Process};
use super::stubs::Stubs;
use super::sys::words;
use super::world::World;

/// A program header: type and flags, offset in the file, address twice, bytes in the file, bytes, alignment.
type Header = [u64; 7];
const ADDRESS: usize = 2;
const SAME_ADDRESS: usize = 3;
const FILE_BYTES: usize = 4;
const BYTES: usize = 5;

/// A function in a table of unwind information: its beginning, and the place of its description.
type Row = (u64, u64);
/// Such a table as all linkers write it: version 1; four bytes to the unwind information, from there; the number of functions in four bytes; then rows of twice four
/// bytes, from the table's beginning. They are sorted.
const KIND: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
const HEAD_BYTES: u64 = 12;
const ROW_BYTES: u64 = 8;

/// The program headers of a program.
#[derive(Debug)]
pub(crate) struct Headers {
    pid: pid_t,
    /// The place from which the C library reads the address of the headers.
    told_at: u64,
    /// True if the address is already that of a copy.
    is_told: bool,
    /// Base of addresses in them.
    base: u64,
    headers: Vec<Header>,
    table: Table,
}

/// A table of unwind information.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Table {
    /// The beginning of this information.
    information: u64,
    rows: Vec<Row>,
}

impl Headers {
    /// The headers of a statically linked program.
    ///
    /// # Errors
    ///
    /// They are not as linkers write them.
    pub(crate) fn find(process: &Process) -> Result<Self> {
        let pid = process.pid;
        Self::read(process).with_context(|| {
            format!(
                "cannot record process {pid}, which can throw exceptions: its unwinder (LLVM's libunwind) has to find the tracer by the \
                 program headers, and rftrace cannot extend these"
            )
        })
    }

    fn read(process: &Process) -> Result<Self> {
        let told = |key| process.auxiliary(key).context("the auxiliary vector lacks their address");
        let [at, n_headers, n_bytes] = [told(libc::AT_PHDR)?, told(libc::AT_PHNUM)?, told(libc::AT_PHENT)?];
        let maps = process.maps()?;
        let base = base(process, &maps, at)?.context("no mapped file contains them")?;
        let bytes = process.bytes(at, n_headers * n_bytes);
        let headers: Vec<Header> = bytes.chunks_exact(size_of::<Header>()).filter_map(header).collect();
        if n_bytes != size_of::<Header>() as u64 || headers.len() as u64 != n_headers {
            bail!("the memory of the process lacks them");
        }
        of_type(&headers, libc::PT_GNU_STACK).context("the program lacks PT_GNU_STACK")?;
        let table = of_type(&headers, libc::PT_GNU_EH_FRAME).context("the program lacks PT_GNU_EH_FRAME")?;
        let table_at = base.wrapping_add(table[ADDRESS]);
        let table = Table::parse(&process.bytes(table_at, table[BYTES]), table_at)
            .context("the section .eh_frame_hdr has an unknown form")?;
        let told_at = told_at(process)?.context("the auxiliary vector is not on the stack")?;
        let is_told = process.word(told_at) != Some(at);
        Ok(Self { pid: process.pid, told_at, is_told, base, headers, table })
    }

    /// The lowest address for the tracer: below the program no unwinder looks for its code.
    pub(crate) fn lowest(&self) -> u64 {
        self.base
    }

    /// Has the C library tell of the tracer's code and of stubs, if it does not yet.
    pub(crate) fn tell(
        &self,
        thread: &mut Borrowed<'_>,
        process: &Process,
        image: &Image,
        stubs: &[Stubs],
        late: &mut Vec<pid_t>,
    ) -> Result<()> {
        if self.is_told && stubs.iter().all(|stubs| stubs.are_told(process)) {
            return Ok(());
        }
        let (at, table) = image.section(".eh_frame_hdr").context("the tracer lacks the section .eh_frame_hdr")?;
        let own = Table::parse(&table, at).context("the tracer's section .eh_frame_hdr has an unknown form")?;
        let texts: Vec<Range<u64>> = image.texts().into_iter().chain(stubs.iter().map(Stubs::text)).collect();
        let rows = own.rows.into_iter().chain(stubs.iter().flat_map(|stubs| stubs.rows(process))).collect::<Vec<Row>>();
        let n_rows = (self.table.rows.len() + rows.len()) as u64;
        let n_bytes = size_of_val(&*self.headers) as u64 + HEAD_BYTES + n_rows * ROW_BYTES;
        let at = image::reserve(thread, process, &texts, n_bytes, self.base)?;
        let copy = self.with_code(at, &texts, &rows);
        let copy =
            copy.with_context(|| format!("the tracer is more than 2 GiB away from the code of process {}", self.pid))?;
        thread.system_call(libc::SYS_mprotect, &[at, n_bytes, (libc::PROT_READ | libc::PROT_WRITE) as u64])?;
        process.write(at, &copy)?;
        thread.system_call(libc::SYS_mprotect, &[at, n_bytes, libc::PROT_READ as u64])?;
        let world = World::whole(process, thread.thread, late)?;
        process.write(self.told_at, &at.to_le_bytes())?;
        drop(world);
        stubs.iter().try_for_each(|stubs| stubs.note_told(process))
    }

    /// The bytes of a copy with further code for an address, the table behind the headers. `None` if it is too far from
    /// its targets.
    fn with_code(&self, at: u64, texts: &[Range<u64>], rows: &[Row]) -> Option<Vec<u8>> {
        let table_at = at + size_of_val(&*self.headers) as u64;
        let mut table = self.table.clone();
        table.rows.extend(rows);
        table.rows.sort_unstable();
        let table = table.bytes(table_at)?;
        let text = texts.iter().cloned().reduce(|a, b| a.start.min(b.start)..a.end.max(b.end))?;
        let mut headers = self.headers.clone();
        for header in &mut headers {
            let place = match type_of(header) {
                libc::PT_GNU_STACK => {
                    *header =
                        [u64::from(libc::PT_LOAD) | u64::from(libc::PF_R | libc::PF_X) << 32, 0, 0, 0, 0, 0, 4096];
                    header[BYTES] = text.end - text.start;
                    text.start
                }
                libc::PT_GNU_EH_FRAME => {
                    (header[FILE_BYTES], header[BYTES]) = (table.len() as u64, table.len() as u64);
                    table_at
                }
                libc::PT_PHDR => at,
                _ => continue,
            };
            header[ADDRESS] = place.wrapping_sub(self.base);
            header[SAME_ADDRESS] = header[ADDRESS];
        }
        let mut bytes: Vec<u8> = headers.as_flattened().iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend(table);
        Some(bytes)
    }
}

impl Table {
    /// The table at an address.
    fn parse(bytes: &[u8], at: u64) -> Option<Self> {
        let (head, rows) = bytes.split_at_checked(HEAD_BYTES as usize)?;
        let distances =
            |bytes: &[u8]| -> Vec<i32> { bytes.as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes)).collect() };
        let [_, information, n_rows] = distances(head)[..] else { return None };
        let rows = rows.get(..(n_rows.cast_unsigned() as usize).checked_mul(ROW_BYTES as usize)?)?;
        let from = |at: u64, distance: i32| at.wrapping_add_signed(distance.into());
        let rows = distances(rows).chunks_exact(2).map(|row| (from(at, row[0]), from(at, row[1]))).collect();
        head.starts_with(&KIND).then(|| Self { information: from(at + 4, information), rows })
    }

    /// Its bytes for an address, from which all is to be reached.
    fn bytes(&self, at: u64) -> Option<Vec<u8>> {
        let distance =
            |to: u64, from: u64| i32::try_from(to.wrapping_sub(from).cast_signed()).ok().map(i32::to_le_bytes);
        let mut bytes = KIND.to_vec();
        bytes.extend(distance(self.information, at + 4)?);
        bytes.extend(u32::try_from(self.rows.len()).ok()?.to_le_bytes());
        for &(function, description) in &self.rows {
            bytes.extend(distance(function, at)?);
            bytes.extend(distance(description, at)?);
        }
        Some(bytes)
    }
}

fn header(bytes: &[u8]) -> Option<Header> {
    let words: Vec<u64> = words(bytes).collect();
    words.try_into().ok()
}

fn type_of(header: &Header) -> u32 {
    header[0] as u32
}

fn of_type(headers: &[Header], wanted: u32) -> Option<&Header> {
    headers.iter().find(|header| type_of(header) == wanted)
}

/// Returns the base of addresses in the file with its headers at an address.
fn base(process: &Process, maps: &[Map], at: u64) -> Result<Option<u64>> {
    let Some(map) = maps.iter().find(|map| map.range.contains(&at)) else { return Ok(None) };
    Ok(process.module(maps, |path| path == map.path)?.map(|module| module.base()))
}

/// The place on the stack at which the system has told the address of the headers, among all else. The address may have
/// changed meanwhile.
fn told_at(process: &Process) -> Result<Option<u64>> {
    /// The first arguments and variables are below.
    const MOST_BYTES: u64 = 16 << 20;

    let told = process.told()?;
    let start = process.stack_start().context("cannot find the stack of the process")?;
    let stack: Vec<u64> = words(&process.bytes(start, MOST_BYTES)).collect();
    let is_same = |its: &[u64; 2], told: &[u64; 2]| its == told || its[0] == libc::AT_PHDR && told[0] == libc::AT_PHDR;
    let is_it = |window: &[u64]| window.as_chunks().0.iter().zip(&told).all(|(its, told)| is_same(its, told));
    let place = stack.windows(2 * told.len()).position(is_it);
    let pair = told.iter().position(|pair| pair[0] == libc::AT_PHDR);
    Ok(place.zip(pair).map(|(place, pair)| start + (place + 2 * pair + 1) as u64 * 8))
}
