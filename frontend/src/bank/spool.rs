//! The spool, a file with the chunks of a process: packed, one behind the other, in any order (`image/stored.rs` reads
//! it); and its path.
//!
//! Not here: the times of writing chunks, and the other files beside the spool (`collect`).

use std::convert::Infallible;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rftrace::abi::{self, ADDRESS_SHIFT, kind};
use rftrace_format::{recording, store};

use crate::backend::Chunk;
use crate::image;
use crate::image::packed::encode::Packer;
use crate::image::write::Writer;

/// The versions at the beginning of a spool, behind the magic number.
pub const SPOOL_VERSIONS: u64 = image::VERSION as u64 | (abi::VERSION as u64) << 32;

/// The number of packed bytes collected before a write.
const BLOCK_BYTES: usize = 128 << 10;

/// The folder of spools, even after it was moved.
#[derive(Clone, Debug)]
pub(crate) struct Folder(Arc<File>);

impl Folder {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        #[allow(clippy::disallowed_methods, reason = "a folder")]
        File::open(path).map(|file| Self(Arc::new(file)))
    }

    /// Returns a path of the folder that stays right after a move, while this lives.
    pub(super) fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }
}

/// The file with the chunks of a process.
#[derive(Debug, Default)]
pub(super) struct Spool {
    pub(super) path: PathBuf,
    file: Option<File>,
    /// The bytes in the file, and of pending writes.
    pub(super) n_bytes: u64,
    /// Chunks in it.
    pub(super) n_chunks: u64,
    /// Calls and returns in them.
    pub(super) n_records: u64,
    /// Packed chunks for one write, and the end of each.
    packed: Vec<u8>,
    ends: Vec<usize>,
    /// The highest number of a thread.
    pub(super) last_thread: u32,
    /// The error that stopped it.
    pub(super) failed: Option<io::Error>,
    pub(super) is_too_large: bool,
}

impl Spool {
    /// Creates a spool with this name in an open folder. Its file is made with the first chunk.
    pub(super) fn new(folder: &Folder, name: String) -> Self {
        Self { path: folder.path().join(name), ..Self::default() }
    }

    /// True if there is room for more.
    pub(super) fn may_go_on(&mut self, taken_bytes: u64, most_bytes: u64) -> bool {
        self.is_too_large |= taken_bytes >= most_bytes;
        self.failed.is_none() && !self.is_too_large
    }

    /// Takes a chunk, and writes it with the next [`flush`](Self::flush) at the latest. Returns the number of its
    /// records.
    pub(super) fn write(&mut self, chunk: &Chunk<'_>, packer: &mut Packer) -> usize {
        self.write_if(chunk, packer, || true).unwrap_or(0)
    }

    /// The same for a chunk that others may take meanwhile: `None` if it has changed during the packing. Nothing is
    /// taken then.
    pub(super) fn write_if(
        &mut self,
        chunk: &Chunk<'_>,
        packer: &mut Packer,
        is_same: impl FnOnce() -> bool,
    ) -> Option<usize> {
        let header = chunk.header;
        let mut last = header.tid.load(Relaxed);
        if header.n_adopted.load(Relaxed) > 0 {
            let taken_tsc = header.taken_tsc.load(Relaxed);
            for (_, word) in chunk.records.iter().filter_map(|record| record.read(taken_tsc)) {
                if word & (kind::MASK | kind::NEW_THREAD) == kind::RESYNC | kind::NEW_THREAD {
                    last = last.max(u32::try_from(word >> ADDRESS_SHIFT).unwrap_or(0));
                }
            }
        }
        let n_before = self.packed.len();
        let n_records = self.pack(chunk, packer);
        if !is_same() {
            self.packed.truncate(n_before);
            return None;
        }
        self.last_thread = self.last_thread.max(last);
        self.n_chunks += 1;
        self.n_records += n_records as u64;
        self.n_bytes += (self.packed.len() - n_before) as u64;
        self.ends.push(self.packed.len());
        if self.packed.len() >= BLOCK_BYTES {
            self.flush();
        }
        Some(n_records)
    }

    /// Packs a chunk behind those for the next write. Returns the number of its records.
    fn pack(&mut self, chunk: &Chunk<'_>, packer: &mut Packer) -> usize {
        let packed = &mut self.packed;
        let out = |bytes: &[u8]| {
            packed.extend_from_slice(bytes);
            Ok::<(), Infallible>(())
        };
        let Ok(mut writer) = if self.n_bytes == 0 { Writer::new(out) } else { Ok(Writer::going_on(out)) };
        let Ok(n_records) = writer.chunk(chunk, Some(packer));
        let Ok(()) = writer.flush();
        n_records
    }

    /// Returns the number of bytes in the file.
    pub(super) fn file_bytes(&self) -> u64 {
        self.n_bytes - self.packed.len() as u64
    }

    /// Writes the taken chunks to the file.
    pub(super) fn flush(&mut self) {
        if self.packed.is_empty() {
            return;
        }
        let start = self.file_bytes();
        if let Err(error) = self.append(start) {
            self.failed = Some(error);
            self.keep_whole(start);
        }
        self.packed.clear();
        self.ends.clear();
    }

    /// Keeps the chunks of a failed write that are there as a whole: one in part would count as damaged.
    fn keep_whole(&mut self, start: u64) {
        /// Room on the disk for the facts about the process.
        const ROOM_BYTES: u64 = 16 << 10;

        let Some(file) = &self.file else { return self.n_bytes = start };
        let length = || file.metadata().map_or(0, |meta| meta.len());
        let fits = length().saturating_sub(start + ROOM_BYTES);
        let whole = self.ends.iter().rev().map(|&end| end as u64).find(|&end| end <= fits).unwrap_or(0);
        let _ = file.set_len(start + whole);
        self.n_bytes = length().max(start);
    }

    fn append(&mut self, start: u64) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            file => file.insert(store::create_new(&self.path)?),
        };
        file.write_all_at(&self.packed, start)
    }
}

/// The file with the facts about a spool's process.
pub(crate) fn about_file(spool: &Path) -> PathBuf {
    spool.with_extension(recording::ABOUT)
}

/// Returns the folder of the facts about the program at its end, beside a kept spool.
pub(crate) fn facts_folder(spool: &Path) -> PathBuf {
    spool.with_extension("facts")
}

/// Returns the spools in a folder.
///
/// # Errors
///
/// The errors of the system.
pub fn spools(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(|name| name.starts_with(recording::SPOOL) && !name.contains('.')) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
