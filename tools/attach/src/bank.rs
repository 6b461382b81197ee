//! The memory of a recorder in a process that contains only the tracer: its mapping, its announcement to the tracer,
//! and its removal.

use std::mem::offset_of;
use std::ops::Range;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::libc;
use rftrace::abi::{
    Control, FilterControl, InitArgs, LEFT_BUCKET_BYTES, MAX_CHUNK_BYTES, MOST_THREADS, Outside as Told, ThreadBlock,
    init,
};

use super::borrowed::Borrowed;
use super::image::Image;
use super::library::map;
use super::process::{Map, Process};

/// The layout of a bank's file, for a reader that maps it as a whole.
#[derive(Clone, Debug)]
pub struct BankPlaces {
    /// The size of the file in bytes.
    pub n_bytes: u64,
    /// The range of the memory for the tracer's records.
    pub chunks: Range<u64>,
    /// The offset of the memory shared by tracer and recorder.
    pub bank: u64,
    /// The offset of the notices of calls.
    pub noticed: u64,
    /// The offset of the table with the system ids of the tracer's threads.
    pub threads: u64,
    /// The size of an entry in that table in bytes.
    pub thread_bytes: u64,
    /// The number of entries.
    pub n_threads: u64,
    /// True for a ring, which no recorder empties: new records replace the oldest.
    pub is_ring: bool,
}

/// Buckets of left frames, as for the library.
const LEFT_BUCKETS: usize = 512;

/// Maps the file of the bank with aligned chunks: at the addresses of the earlier bank of the tracer with this control
/// block, if that one was as large, so the memory left behind does not grow.
pub(crate) fn map_bank(
    thread: &mut Borrowed<'_>,
    process: &Process,
    control: u64,
    number: u64,
    places: &BankPlaces,
) -> Result<Range<u64>> {
    let start = match before(process, control, places) {
        Some(start) => start,
        None => reserve(thread, places.n_bytes)?,
    };
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
    let flags = flags | libc::MAP_NORESERVE;
    thread
        .system_call(libc::SYS_mmap, &[start, places.n_bytes, protection as u64, flags as u64, number, 0])
        .with_context(|| format!("cannot map the recorder's buffer in process {}", process.pid))?;
    thread.system_call(libc::SYS_madvise, &[start, places.n_bytes, libc::MADV_DONTDUMP as u64])?;
    Ok(start..start + places.n_bytes)
}

/// The place of a bank of this size that the tracer had and nobody has now.
fn before(process: &Process, control: u64, places: &BankPlaces) -> Option<u64> {
    let word = |offset: usize| process.word(control + offset as u64);
    let chunks = word(offset_of!(Control, chunks)).filter(|&chunks| chunks != 0)?;
    let n_bytes = word(offset_of!(Control, n_chunks))?.checked_mul(word(offset_of!(Control, chunk_bytes))?)?;
    let start = chunks.checked_sub(places.chunks.start)?;
    let range = start..start.checked_add(places.n_bytes)?;
    let is_hidden = |map: &Map| map.path.is_empty() && map.range.start <= range.start && range.end <= map.range.end;
    let is_same = n_bytes == places.chunks.end - places.chunks.start && places.chunks.end == places.n_bytes;
    (is_same && process.maps().ok()?.iter().any(is_hidden)).then_some(start)
}

/// Addresses for so many bytes, with aligned chunks.
fn reserve(thread: &mut Borrowed<'_>, n_bytes: u64) -> Result<u64> {
    let align = MAX_CHUNK_BYTES as u64;
    let reserved = map(thread, n_bytes + align, libc::PROT_NONE)?;
    let start = reserved.next_multiple_of(align);
    for rest in [reserved..start, start + n_bytes..reserved + n_bytes + align] {
        if !rest.is_empty() {
            thread.system_call(libc::SYS_munmap, &[rest.start, rest.end - rest.start])?;
        }
    }
    Ok(start)
}

/// Makes the bank private memory: nobody reads later writes of hooks there. The addresses stay taken.
pub(crate) fn hide_bank(thread: &mut Borrowed<'_>, bank: &Range<u64>) -> Result<()> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let flags = flags | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let arguments = [bank.start, bank.end - bank.start, protection as u64, flags as u64, u64::MAX, 0];
    thread
        .system_call(libc::SYS_mmap, &arguments)
        .context("cannot remove the recorder's buffer from the process")
        .map(drop)
}

/// Gives the tracer its memory.
pub(crate) fn record_into(
    thread: &mut Borrowed<'_>,
    process: &Process,
    image: &Image,
    places: &BankPlaces,
    bank: u64,
    tid_at: u64,
    is_new: bool,
) -> Result<()> {
    /// A thread that takes a chunk at this moment is done soon.
    const TRIES: usize = 100;
    const PAUSE: Duration = Duration::from_millis(1);

    image.tell(process, offset_of!(Told, table_entries), 0)?;
    image.tell(process, offset_of!(Told, tid_at), tid_at)?;
    image.tell(process, offset_of!(Told, table), bank + places.threads)?;
    let noticed = image.control(process) + (offset_of!(Control, filter) + offset_of!(FilterControl, noticed)) as u64;
    process.write(noticed, &(bank + places.noticed).to_le_bytes())?;
    image.tell(process, offset_of!(Told, table_stride), places.thread_bytes)?;
    image.tell(process, offset_of!(Told, table_entries), places.n_threads)?;
    let (blocks_bytes, left_bytes) = match is_new {
        true => (MOST_THREADS * size_of::<ThreadBlock>(), LEFT_BUCKETS * LEFT_BUCKET_BYTES),
        false => (0, 0),
    };
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let (blocks, left) = match is_new {
        true => (map(thread, blocks_bytes as u64, protection)?, map(thread, left_bytes as u64, protection)?),
        false => (0, 0),
    };
    if blocks != 0 {
        // As for the library: a thread's first call is not to touch 2 MiB. It may fail.
        let _ = thread.system_call(libc::SYS_madvise, &[blocks, blocks_bytes as u64, libc::MADV_NOHUGEPAGE as u64]);
    }
    let mut arguments = [0u8; size_of::<InitArgs>()];
    let mut put = |at: usize, word: u64| arguments[at..at + 8].copy_from_slice(&word.to_le_bytes());
    put(offset_of!(InitArgs, buffer), bank + places.chunks.start);
    put(offset_of!(InitArgs, buffer_bytes), places.chunks.end - places.chunks.start);
    put(offset_of!(InitArgs, blocks), blocks);
    put(offset_of!(InitArgs, blocks_bytes), blocks_bytes as u64);
    put(offset_of!(InitArgs, left), left);
    put(offset_of!(InitArgs, left_bytes), left_bytes as u64);
    // A ring is not emptied: the other parts of the bank are for the recorder.
    put(offset_of!(InitArgs, bank), if places.is_ring { 0 } else { bank + places.bank });
    arguments[offset_of!(InitArgs, overwriting)] = places.is_ring.into();
    let at = thread.room(arguments.len() as u64)?;
    process.write(at, &arguments)?;
    for _ in 0..TRIES {
        thread.call(image.function("rftrace_outside_begin")?, &[at])?;
        match (image.outside(process, offset_of!(Told, status)) as u32).wrapping_sub(1) {
            init::OK => return Ok(()),
            init::BUSY => thread::sleep(PAUSE),
            status => bail!("cannot start the tracer in process {} (status {status})", process.pid),
        }
    }
    bail!("cannot start the tracer in process {}: a thread was in its code at each attempt; try again", process.pid);
}
