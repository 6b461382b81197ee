//! Results made of a whole trace, kept for later readers: in its directory or, if that is read-only, in the user's
//! cache.
//!
//! ```text
//! MAGIC, with the version
//! hash of the trace's state  u64
//! checksum of the rest       u64
//! the result
//! ```
//!
//! Numbers are little-endian. The checksum of a very large file ([`KeptFile`]) is 0: it has its own for each part.
//!
//! Not here: making these results (places in records in `index`, sums in the crates for views).

use std::env;
use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rftrace_format::files::{
    File as TraceFile, INDEX_BLOCKS, INDEX_GRAPH, INDEX_GRAPH_BLOCKS, INDEX_PAGE, INDEX_REPORT,
};

use crate::files;
use crate::index::hash;
use crate::trace::Trace;

/// The first bytes; the last one of them is the version.
const MAGIC: &[u8; 16] = b"rftrace-kept\0\0\0\x09";

/// Fewer than a million records are read as quickly without.
pub(crate) const MIN_BYTES: u64 = 16 << 20;

/// The largest readable file.
pub(crate) const MAX_FILE_BYTES: u64 = 256 << 20;

/// The maximum size of the user's cache.
const MAX_CACHE_BYTES: u64 = 1 << 30;

/// Returns a checksum that detects accidental damage, not forgery.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u64 {
    hash(bytes)
}

/// The kinds of kept results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kept {
    /// The sums of a graph.
    Graph,
    /// The rows of a report.
    Report,
    /// The sums of the reports of the trace's parts, a [`KeptFile`]. They do not depend on choices or shown tasks.
    Blocks,
    /// The sums of the graphs of the trace's parts, a [`KeptFile`]. They do not depend on choices or shown tasks.
    GraphBlocks,
    /// All calls of a trace, merged below the width of a pixel, a [`KeptFile`].
    Page,
}

impl Kept {
    fn file(self) -> &'static str {
        match self {
            Self::Graph => INDEX_GRAPH,
            Self::Report => INDEX_REPORT,
            Self::Blocks => INDEX_BLOCKS,
            Self::GraphBlocks => INDEX_GRAPH_BLOCKS,
            Self::Page => INDEX_PAGE,
        }
    }

    /// True if it serves parts of the trace, whatever is chosen.
    fn is_of_parts(self) -> bool {
        matches!(self, Self::Blocks | Self::GraphBlocks)
    }
}

impl Trace {
    /// Returns true if results are kept: the trace is long, all of it is shown, and [`Trace::use_index`] was called.
    pub fn keeps(&self) -> bool {
        !self.is_chosen() && self.may_keep()
    }

    /// Returns true if the trace is long, and a result of all its records can be kept.
    fn may_keep(&self) -> bool {
        self.keeps_indices() && !self.has_sources() && self.records_bytes() >= MIN_BYTES
    }

    /// Returns true if results of this kind are kept.
    pub fn keeps_this(&self, what: Kept) -> bool {
        if what.is_of_parts() { self.may_keep() } else { self.keeps() }
    }

    /// Returns the total size of all tasks' records in bytes.
    pub fn records_bytes(&self) -> u64 {
        let length = |task| fs::metadata(self.dat_file(task)).map_or(0, |file| file.len());
        self.tasks().iter().map(length).sum()
    }

    /// Returns the kept result, if neither the trace nor its shown part has changed since it was made.
    pub fn kept(&self, what: Kept) -> Option<Vec<u8>> {
        if !self.keeps_this(what) {
            return None;
        }
        let stamp = self.stamp(what);
        let read = |path: &Path| {
            let mut bytes = files::read(path, MAX_FILE_BYTES).ok()?;
            let (own_stamp, rest) = bytes.strip_prefix(MAGIC)?.split_first_chunk()?;
            let (sum, rest) = rest.split_first_chunk()?;
            let fits = u64::from_le_bytes(*own_stamp) == stamp && u64::from_le_bytes(*sum) == hash(rest);
            let n_before = bytes.len() - rest.len();
            fits.then(|| bytes.split_off(n_before))
        };
        read(&self.dir().join(what.file())).or_else(|| read(&cache_file(self.dir(), what.file())?))
    }

    /// Stores a result. If that fails, the next reader makes it again.
    pub fn keep(&self, what: Kept, bytes: &[u8]) {
        if !self.keeps_this(what) || bytes.len() as u64 > MAX_FILE_BYTES - 32 {
            return;
        }
        let (stamp, sum) = (self.stamp(what).to_le_bytes(), hash(bytes).to_le_bytes());
        let whole = [MAGIC.as_slice(), &stamp, &sum, bytes].concat();
        keep(&self.dir().join(what.file()), cache_file(self.dir(), what.file()).as_deref(), &whole);
    }

    /// Returns a kept file for reading part by part, if the trace has not changed since it was made. The result begins
    /// at [`KeptFile::START`] and is unchecked.
    pub fn kept_file(&self, what: Kept) -> Option<File> {
        if !self.keeps_this(what) {
            return None;
        }
        let stamp = self.stamp(what);
        let open = |path: &Path| {
            let file = files::open(path).ok()?;
            let mut start = [0; MAGIC.len() + 8];
            file.read_exact_at(&mut start, 0).ok()?;
            start.strip_prefix(MAGIC).is_some_and(|own| own == stamp.to_le_bytes()).then_some(file)
        };
        open(&self.dir().join(what.file())).or_else(|| open(&cache_file(self.dir(), what.file())?))
    }

    /// Returns a file for a result too large for memory; `None` if the trace keeps none.
    pub fn keep_file(&self, what: Kept) -> Option<KeptFile> {
        if !self.keeps_this(what) {
            return None;
        }
        let open = |path: PathBuf, cache: Option<PathBuf>| {
            let file = create(&path).ok()?;
            Some(KeptFile { file, path: Some(path), cache, stamp: self.stamp(what) })
        };
        open(self.dir().join(what.file()), None).or_else(|| {
            let cached = cache_file(self.dir(), what.file())?;
            let cache = cached.parent()?.to_owned();
            let _ = fs::create_dir_all(&cache);
            open(cached, Some(cache))
        })
    }

    /// A hash of the trace's files, and of how they are shown.
    fn stamp(&self, what: Kept) -> u64 {
        let tids: Vec<_> = self.tasks().iter().map(|task| task.tid()).filter(|_| !what.is_of_parts()).collect();
        let shown = (self.demangle(), self.folds_inlined(), self.cost(), env!("CARGO_PKG_VERSION"));
        hash(format!("{:?} {tids:?} {shown:?}", states(self.dir(), |kind| kind != TraceFile::Index)).as_bytes())
    }
}

/// A file for a result. It is kept once it is finished; dropping it earlier removes it.
#[derive(Debug)]
pub struct KeptFile {
    file: File,
    /// Its path until it is complete.
    path: Option<PathBuf>,
    /// The cache folder, if the file is there. Its oldest files make room.
    cache: Option<PathBuf>,
    stamp: u64,
}

impl KeptFile {
    /// The offset of the result in bytes; the hash of the trace's state precedes it.
    pub const START: u64 = 32;

    /// Returns the file, for reading and writing from [`KeptFile::START`] on.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Marks the file as complete, so that later readers find it.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn finish(mut self) -> io::Result<File> {
        let file = self.file.try_clone()?;
        file.write_all_at(&[MAGIC.as_slice(), &self.stamp.to_le_bytes()].concat(), 0)?;
        self.path = None;
        if let Some(cache) = &self.cache {
            prune(cache, MAX_CACHE_BYTES);
        }
        Ok(file)
    }
}

impl Drop for KeptFile {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path);
        }
    }
}

/// Length and time of a file: they differ after a change.
pub(crate) fn state(file: &Metadata) -> [u64; 2] {
    let modified = file.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    [file.len(), modified.map_or(0, |since| since.as_nanos() as u64)]
}

/// Returns the states of a trace's files of some kinds.
fn states(dir: &Path, is_one: impl Fn(TraceFile) -> bool) -> Vec<(String, [u64; 2])> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if TraceFile::of(&name).is_some_and(&is_one)
            && let Ok(metadata) = fs::metadata(entry.path())
        {
            found.push((name, state(&metadata)));
        }
    }
    found.sort_unstable();
    found
}

/// Returns the hash of the files with the meaning of records.
pub(crate) fn metadata_hash(dir: &Path) -> u64 {
    let kinds = [TraceFile::Info, TraceFile::Tasks, TraceFile::OldTasks, TraceFile::Map, TraceFile::Symbols];
    let found = states(dir, |kind| kinds.contains(&kind) || kind == TraceFile::SourceLines);
    hash(format!("{found:?}").as_bytes())
}

/// Returns the place in the cache for a file of a read-only directory.
pub(crate) fn cache_file(dir: &Path, name: &str) -> Option<PathBuf> {
    let of_user = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = of_user("XDG_CACHE_HOME").or_else(|| Some(of_user("HOME")?.join(".cache")))?;
    let dir = dir.canonicalize().ok()?;
    Some(cache.join("rftrace").join(format!("{name}-{:016x}", hash(dir.as_os_str().as_encoded_bytes()))))
}

/// Keeps a file in the directory or, if that fails, in the cache. If both fail, later readers make it again.
pub(crate) fn keep(own: &Path, cached: Option<&Path>, bytes: &[u8]) {
    if write(own, bytes).is_ok() {
        return;
    }
    let Some((cached, cache)) = cached.and_then(|cached| Some((cached, cached.parent()?))) else { return };
    let _ = fs::create_dir_all(cache);
    let _ = write(cached, bytes);
    prune(cache, MAX_CACHE_BYTES);
}

/// Creates a file. An existing one may be a link to elsewhere, so it is removed first.
fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::options().read(true).write(true).create_new(true).open(path)
}

/// Writes a file anew.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let written = create(path)?.write_all(bytes);
    if written.is_err() {
        // The disk is full: a part of it is of no use.
        let _ = fs::remove_file(path);
    }
    written
}

/// Removes the oldest indices of a cache beyond `max_bytes` in all.
fn prune(cache: &Path, max_bytes: u64) {
    let mut found: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().as_encoded_bytes().starts_with(b"index-");
        // Not of what a link leads to.
        if let Ok(file) = entry.metadata()
            && is_ours
            && file.is_file()
        {
            found.push((file.modified().unwrap_or(UNIX_EPOCH), file.len(), entry.path()));
        }
    }
    found.sort_unstable_by(|a, b| b.cmp(a));
    let mut sum = 0;
    for (_, length, path) in found {
        sum += length;
        if sum > max_bytes {
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_oldest_go_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, length: usize, age: u64| {
            let path = dir.path().join(name);
            fs::write(&path, vec![0; length]).unwrap();
            let file = File::options().write(true).open(&path).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
        };
        file("index-1", 400, 5);
        file("index-graph-2", 400, 10);
        file("index-3", 400, 20);
        file("index-page-4", 100, 30);
        file("other", 4000, 40);
        fs::create_dir(dir.path().join("index-folder")).unwrap();
        let names = || {
            let mut names: Vec<_> = fs::read_dir(dir.path())
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        prune(dir.path(), 2000);
        assert_eq!(names().len(), 6);
        prune(dir.path(), 1000);
        assert_eq!(names(), ["index-1", "index-folder", "index-graph-2", "other"]);
    }
}
