//! What is kept beside a spool, so that a trace can be made of both when their recorder is not there any more.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::slice;
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

use rftrace::abi;

use super::collect::{Banks, Collected, Options, Watched};
use super::file::{TEXT_AT, TEXT_BYTES, THREADS_AT};
use super::spool::about_file;
use crate::host::linux::thread_table::{Entry, MAX_THREADS, TABLE_BYTES};

impl Banks {
    /// Writes beside a spool what the slot says, so that a trace can be made of both when this recorder is not there any more. Where
    /// that cannot be written the trace is made at the end, as ever.
    pub(super) fn keep_about(&self, number: usize, watched: &Watched) {
        let n_bytes = TEXT_AT + (self.slot(number).text_bytes.load(Acquire) as usize).min(TEXT_BYTES);
        let n_threads = (watched.spool.last_thread as usize + 1).min(MAX_THREADS);
        let mut about = Vec::new();
        about.extend((self.layout.buffer_bytes as u64).to_le_bytes());
        about.extend((n_bytes as u64).to_le_bytes());
        for (start, n_bytes) in [(0, n_bytes), (THREADS_AT, n_threads * size_of::<Entry>())] {
            // SAFETY: within the slot. What a process changes meanwhile is any bytes, and is checked when it is read.
            about.extend_from_slice(unsafe { slice::from_raw_parts(self.at(number, start).cast_const(), n_bytes) });
        }
        // At once: who is killed now leaves the one before.
        let file = about_file(&watched.spool.path);
        let new = file.with_extension("about-new");
        let _ = fs::write(&new, about).and_then(|()| fs::rename(&new, file));
    }

    /// What a recorder has collected in `spool` that was not there at the end: as far as that goes. `file` is empty memory.
    ///
    /// # Errors
    ///
    /// Those of the system; what belongs to the spool is not there, or cut.
    pub fn recover(file: File, spool: &Path) -> io::Result<Collected> {
        let about = fs::read(about_file(spool))?;
        let bad = || io::Error::new(io::ErrorKind::InvalidData, format!("{}: it is cut", about_file(spool).display()));
        let (head, rest) = about.split_first_chunk::<16>().ok_or_else(bad)?;
        let [buffer_bytes, n_bytes] =
            [0, 8].map(|at| u64::from_le_bytes(head[at..at + 8].try_into().unwrap_or_default()));
        let (first, threads) = rest.split_at_checked(n_bytes as usize).ok_or_else(bad)?;
        let is_right = first.len() >= TEXT_AT && first.len() <= THREADS_AT && threads.len() <= TABLE_BYTES;
        if !is_right || !(abi::MIN_CHUNK_BYTES as u64..1 << 44).contains(&buffer_bytes) {
            return Err(bad());
        }
        let folder = spool.parent().unwrap_or(spool);
        let options = Options {
            buffer_bytes: buffer_bytes as usize,
            n_slots: 1,
            patience: Duration::ZERO,
            most_bytes: 0,
            is_ring: false,
        };
        let banks = Self::new(file, folder, options)?;
        for (start, bytes) in [(0, first), (THREADS_AT, threads)] {
            // SAFETY: so much room is there, and nobody else has the memory.
            unsafe { banks.at(0, start).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        }
        let mut watched = banks.watch(0);
        watched.spool.path = spool.to_owned();
        watched.spool.n_bytes = fs::metadata(spool)?.len();
        Ok(banks.collected(0, &watched, (threads.len() / size_of::<Entry>()) as u32))
    }
}
