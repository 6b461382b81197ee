//! Facts kept beside a spool, from which a trace can be made when the recorder is gone, or while it is at work.
//!
//! Words of 8 bytes, little-endian: a magic and the version of the layout; bytes of the bank; bytes of the spool that belong to this; its
//! records; ticks and nanoseconds of a moment; ticks per second, 0 if not stated exactly. While the rest does not change, these are written in
//! their place. Then blobs, each a word with its length before it: the header of the slot; its table of threads; maps of different times and
//! names of threads, each with a NUL behind it; the source of the ticks per second; libraries that were unloaded and marks, as in the journal;
//! the missing parts of the recording, if any, and behind them the status that the process ended with, 4 bytes.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Write as _};
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::slice;
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

use rftrace::abi::{self, Bank};

use super::collect::{Banks, Options, Watched};
use super::collected::{Collected, Rate};
use super::facts::Facts;
use super::file::{Slot, TEXT_AT, TEXT_BYTES, THREADS_AT, VERSION};
use super::history::History;
use super::spool::{about_file, facts_folder};
use crate::clock::ClockPair;
use crate::host::linux::thread_table::{Entry, MAX_THREADS, TABLE_BYTES};
use rftrace_format::opener::{self, MOST_TEXT};
use rftrace_format::store;

/// `\x93RFA\r\n\x1a\n`.
const MAGIC: u64 = u64::from_le_bytes(*b"\x93RFA\r\n\x1a\n");
/// Words before the blobs.
const N_WORDS: usize = 8;

/// The part of a spool to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All of it: its recorder has ended.
    All,
    /// The part that its recorder has described: the recorder may be at work.
    Described,
}

impl Banks {
    /// Writes beside a spool what the slot says, so that a trace can be made of both when this recorder is not there any more. Where
    /// that cannot be written the trace is made at the end, as ever.
    pub(super) fn keep_about(&self, number: usize, watched: &mut Watched) {
        let n_bytes = TEXT_AT + (self.slot(number).text_bytes.load(Acquire) as usize).min(TEXT_BYTES);
        let n_threads = (watched.spool.last_thread as usize + 1).min(MAX_THREADS);
        let now = ClockPair::now();
        let spool = &watched.spool;
        let rate = self.rate.as_ref();
        let words = [
            MAGIC,
            VERSION,
            self.layout.buffer_bytes as u64,
            spool.file_bytes(),
            spool.n_records,
            now.tsc,
            now.nanos,
            rate.map_or(0, |rate| rate.hz),
        ];
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut about = words.clone();
        for (start, n_bytes) in [(0, n_bytes), (THREADS_AT, n_threads * size_of::<Entry>())] {
            about.extend((n_bytes as u64).to_le_bytes());
            // SAFETY: within the slot. What a process changes meanwhile is any bytes, and is checked when it is read.
            about.extend_from_slice(unsafe { slice::from_raw_parts(self.at(number, start).cast_const(), n_bytes) });
        }
        // The recorder's beat is no news.
        let beat = words.len() + size_of::<u64>() + offset_of!(Slot, bank) + offset_of!(Bank, beat);
        about[beat..beat + size_of::<u64>()].fill(0);
        let maps = watched.maps.all().flat_map(|maps| maps.iter().copied().chain([0])).collect();
        let names =
            watched.names.iter().flat_map(|(tid, name)| [tid.to_string().as_bytes(), b" ", name, b"\0"].concat());
        let source = rate.map(|rate| rate.source.clone().into_bytes()).unwrap_or_default();
        for blob in [maps, names.collect::<Vec<u8>>(), source, watched.told.encode()] {
            push(&mut about, &blob);
        }
        let described = hash_of(&about[words.len()..]);
        let file = about_file(&watched.spool.path);
        if watched.described == Some(described) && put_at_beginning(&file, &words).is_ok() {
            return;
        }
        // At once: a recorder that is killed now leaves the file before.
        let new = file.with_extension("about-new");
        let written = store::write(&new, &about).and_then(|()| fs::rename(&new, file));
        watched.described = written.is_ok().then_some(described);
    }

    /// Returns the recording in `spool` of a recorder that is at work, or that ended early. `file` is an empty file in
    /// memory.
    ///
    /// # Errors
    ///
    /// Those of the system; the data beside the spool is missing, cut, or of another version.
    pub fn recover(file: File, spool: &Path, extent: Extent) -> io::Result<Collected> {
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", about_file(spool).display()));
        let about = opener::read(&about_file(spool), MOST_TEXT).map_err(named)?;
        let bad =
            |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", about_file(spool).display()));
        let cut = || bad("it is cut");
        let (words, mut rest) = about.split_first_chunk::<{ 8 * N_WORDS }>().ok_or_else(cut)?;
        let words: Vec<u64> = words.as_chunks().0.iter().map(|&word| u64::from_le_bytes(word)).collect();
        let &[MAGIC, VERSION, buffer_bytes, file_bytes, n_records, tsc, nanos, hz] = words.as_slice() else {
            return Err(bad("another version of rftrace has written it: that one can make a trace of it"));
        };
        let [first, threads, maps, names, source, told] = [(); 6].map(|()| next(&mut rest));
        let problem = next(&mut rest).map(|problem| String::from_utf8_lossy(problem).into_owned());
        let status = next(&mut rest).and_then(|status| Some(i32::from_le_bytes(status.try_into().ok()?)));
        let (first, threads) = first.zip(threads).ok_or_else(cut)?;
        let ((maps, names), (source, told)) = maps.zip(names).zip(source.zip(told)).ok_or_else(cut)?;
        let is_right = first.len() >= TEXT_AT && first.len() <= THREADS_AT && threads.len() <= TABLE_BYTES;
        if !is_right || !(abi::MIN_CHUNK_BYTES as u64..1 << 44).contains(&buffer_bytes) {
            return Err(cut());
        }
        let folder = spool.parent().unwrap_or(spool);
        let options = Options {
            buffer_bytes: buffer_bytes as usize,
            n_slots: 1,
            patience: Duration::ZERO,
            most_bytes: 0,
            is_ring: false,
            dumped_bytes: 0,
        };
        let banks = Self::new(file, folder, options)?;
        for (start, bytes) in [(0, first), (THREADS_AT, threads)] {
            // SAFETY: so much room is there, and nobody else has the memory.
            unsafe { banks.at(0, start).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        }
        let mut watched = banks.watch(0);
        watched.maps = History::of(ended_by_nul(maps).map(<[u8]>::to_vec));
        watched.names = names_of(names);
        watched.told.add(told);
        watched.spool.path = spool.to_owned();
        watched.spool.n_records = n_records;
        watched.spool.n_bytes = match extent {
            Extent::All => fs::metadata(spool)?.len(),
            Extent::Described => file_bytes,
        };
        let source = String::from_utf8_lossy(source).into_owned();
        // They are written last; names are those of files as they are now, where they are not whole.
        let facts = Some(facts_folder(spool)).filter(|facts| facts.is_dir());
        let has_lost = facts.as_ref().is_some_and(|facts| !Facts::are_whole(facts));
        let lost = has_lost
            .then(|| "what was known of the program at its end is damaged: names are of its files now".to_owned());
        Ok(Collected {
            _folder: None,
            last: ClockPair { tsc, nanos },
            rate: (hz > 0).then_some(Rate { hz, source }),
            problem: problem.filter(|problem| !problem.is_empty()).or(lost),
            status,
            facts: facts.filter(|_| !has_lost),
            least_bytes: file_bytes,
            ..banks.collected(0, &watched, (threads.len() / size_of::<Entry>()) as u32)
        })
    }
}

/// Returns the described size of a spool in bytes, which it has at least; `None` if it cannot be read.
#[must_use]
pub fn told_bytes(spool: &Path) -> Option<u64> {
    let about = opener::read(&about_file(spool), MOST_TEXT).ok()?;
    let words: Vec<u64> = about.as_chunks().0.iter().take(4).map(|&word| u64::from_le_bytes(word)).collect();
    matches!(words.as_slice(), [MAGIC, VERSION, ..]).then(|| words.get(3).copied()).flatten()
}

/// Adds the end of its process to the data beside a spool that is kept: the missing parts of the recording, if any, and the status.
pub(super) fn keep_end(spool: &Path, problem: Option<&str>, status: Option<i32>) -> io::Result<()> {
    let mut blobs = Vec::new();
    if problem.is_some() || status.is_some() {
        push(&mut blobs, problem.unwrap_or_default().as_bytes());
    }
    if let Some(status) = status {
        push(&mut blobs, &status.to_le_bytes());
    }
    OpenOptions::new().append(true).open(about_file(spool))?.write_all(&blobs)
}

fn hash_of(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// Writes the words that a file begins with anew. Each is right by itself.
fn put_at_beginning(file: &Path, words: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).open(file)?.write_all_at(words, 0)
}

fn push(about: &mut Vec<u8>, blob: &[u8]) {
    about.extend((blob.len() as u64).to_le_bytes());
    about.extend(blob);
}

/// The blob that comes next.
fn next<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, after) = rest.split_first_chunk()?;
    let (blob, after) = after.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    *rest = after;
    Some(blob)
}

fn ended_by_nul(blob: &[u8]) -> impl Iterator<Item = &[u8]> {
    blob.strip_suffix(b"\0").into_iter().flat_map(|blob| blob.split(|&byte| byte == 0))
}

fn names_of(blob: &[u8]) -> HashMap<u32, Vec<u8>> {
    let name = |line: &[u8]| {
        let space = line.iter().position(|&byte| byte == b' ')?;
        Some((str::from_utf8(&line[..space]).ok()?.parse().ok()?, line[space + 1..].to_vec()))
    };
    ended_by_nul(blob).filter_map(name).collect()
}
