//! The directory of a recording.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf, absolute};

use anyhow::{Context, Result, bail};
use rftrace_format::files::{GAPS, INFO, RESOURCES};
use rftrace_format::gaps;
use rftrace_format::opener::{self, MOST_TEXT};
use rftrace_format::recording::{Entry, FOLDER, JOINED, PART_FILE, STREAM, snapshot, snapshot_number};
use rftrace_format::resources::{self, BlockHead};
use rftrace_format::store::{self, Owned};
use tempfile::TempDir;

use super::cost;
use super::run::{self, Ended};

/// The marker file of an anonymous recording, among those of processes.
const ANONYMOUS: &str = "anonymous";

/// A directory that is being written. Dropping it removes a temporary one.
#[derive(Debug)]
pub struct Output {
    /// Nobody else writes there meanwhile.
    owned: Owned,
    dir: PathBuf,
    work: PathBuf,
    /// The temporary directory, if it is one.
    temporary: Option<TempDir>,
}

impl Output {
    /// Makes the directory, and moves an older trace away.
    pub fn prepare(wanted: Option<&Path>, is_live: bool) -> Result<Self> {
        let temporary = (is_live && wanted.is_none()).then(make_temporary).transpose()?;
        let dir = wanted.or(temporary.as_ref().map(TempDir::path)).unwrap_or(Path::new("uftrace.data"));
        // The program may change its working directory.
        let dir = absolute(dir).with_context(|| format!("the path `{}` is invalid", dir.display()))?;
        let owned = Owned::take_anew(&dir).with_context(|| format!("cannot record to {} (--output)", dir.display()))?;
        let work = dir.join(FOLDER);
        let reserve = |_| Ended::reserve(&work).and_then(|()| cost::reserve(&work));
        Owned::within(&work).and_then(reserve).and_then(|()| run::register(&work)).with_context(|| {
            format!("cannot make the directory {}; choose another one with --output", work.display())
        })?;
        Ok(Self { owned, dir, work, temporary })
    }

    /// Returns the directory of an unfinished or unconverted recording; `None` if there is no recording in it.
    ///
    /// # Errors
    ///
    /// The recording still runs.
    pub fn left_in(dir: &Path) -> Result<Option<Self>> {
        let dir = absolute(dir).with_context(|| format!("the path `{}` is invalid", dir.display()))?;
        let Some(work) = [FOLDER, STREAM].map(|name| dir.join(name)).into_iter().find(|work| work.is_dir()) else {
            return Ok(None);
        };
        let owned = Owned::take(&dir).with_context(|| format!("cannot write to {}", dir.display()))?;
        if let Some(pid) = run::living(&work).first() {
            bail!(
                "cannot write to {}: process {pid} records to this directory; wait for its end, or kill it",
                dir.display()
            );
        }
        Ok(Some(Self { owned, dir, work, temporary: None }))
    }

    /// Follows a moved directory. Returns its old and its new path, if it was moved.
    ///
    /// # Errors
    ///
    /// The directory, or the recording in it, was deleted.
    pub fn follow(&mut self) -> Result<Option<(PathBuf, PathBuf)>> {
        let before = self.dir.clone();
        let deleted = || format!("the recording in {} is lost", before.display());
        let moved = self.owned.follow().with_context(deleted)?;
        if let Some(moved) = &moved {
            self.work = moved.join(self.work.strip_prefix(&self.dir).unwrap_or(&self.work));
            self.dir.clone_from(moved);
        }
        if !self.work.is_dir() {
            bail!("{}: {} was deleted during the recording", deleted(), self.work.display());
        }
        Ok(moved.map(|moved| (before, moved)))
    }

    /// Has the trace made without personal facts, by this process or by a later recovery.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub fn mark_anonymous(&self) -> Result<()> {
        let path = self.work.join(ANONYMOUS);
        store::write(&path, "").with_context(|| format!("cannot write {}", path.display()))
    }

    /// True if the trace is to be without personal facts.
    #[must_use]
    pub fn is_anonymous(&self) -> bool {
        self.work.join(ANONYMOUS).exists()
    }

    /// Returns true if the directory holds an unconverted recording.
    pub fn is_kept(&self) -> bool {
        self.work.ends_with(STREAM)
    }

    /// Keeps the processes' files as they are.
    pub(crate) fn keep_stream(&mut self) -> Result<()> {
        let stream = self.dir.join(STREAM);
        move_to(&self.work, &stream)?;
        self.work = stream;
        Ok(())
    }

    /// Returns the directory for writers.
    #[must_use]
    pub fn owned(&self) -> &Owned {
        &self.owned
    }

    /// Returns the directory's path.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the folder to which processes write.
    pub fn work(&self) -> &Path {
        &self.work
    }

    /// Makes a new, empty folder to put the trace together in. The processes' files stay as they are until the trace is
    /// complete: a killed process's work can begin again.
    pub(crate) fn joined(&self) -> Result<PathBuf> {
        let joined = self.work.join(JOINED);
        match fs::remove_dir_all(&joined) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Owned::within(&joined).map(drop),
        }
        .with_context(|| format!("cannot make the directory {}", joined.display()))?;
        Ok(joined)
    }

    /// Takes the recorded resources to the folder of the trace, if there are any.
    pub(crate) fn link_resources(&self, joined: &Path) -> Result<bool> {
        let file = self.work.join(RESOURCES);
        // The recorder writes its kinds and the time, whatever it gets.
        let least = resources::MAGIC.len() + 3 * (BlockHead::BYTES + resources::UNIT_BYTES);
        let is_there = file.metadata().is_ok_and(|meta| meta.len() > least as u64);
        if is_there {
            link(&file, &joined.join(RESOURCES))?;
        }
        Ok(is_there)
    }

    /// Makes the trace from its folder: `info` comes last, without it there is no trace. Returns the snapshots, which
    /// are traces below it.
    pub(crate) fn publish(&self, joined: &Path) -> Result<Vec<PathBuf>> {
        let mut paths = entries(joined)?;
        paths.sort_by_key(|path| path.ends_with(INFO));
        for path in &paths {
            move_to(path, &self.dir.join(path.file_name().unwrap_or_default()))?;
        }
        self.take_snapshots()
    }

    /// Moves the snapshots not there yet into the directory, in the order of their taking. Returns all.
    pub(crate) fn take_snapshots(&self) -> Result<Vec<PathBuf>> {
        let nanos = |path: &PathBuf| match Entry::of(path.file_name()?.to_str()?)? {
            Entry::Snapshot { nanos, .. } => Some(nanos),
            _ => None,
        };
        let mut found = entries(&self.work)?;
        found.retain(|path| nanos(path).is_some() && path.join(INFO).is_file() && path.join(PART_FILE).is_file());
        found.sort_by_key(nanos);
        found.iter().try_for_each(|path| publish_snapshot(path, &self.dir).map(drop))?;
        let mut all = snapshots_in(&self.dir)?;
        all.sort();
        Ok(all.into_iter().map(|(_, path)| path).collect())
    }

    /// Removes the sources of the trace.
    pub fn finish(&self) -> Result<()> {
        store::remove_at_once(&self.work).with_context(|| format!("cannot remove {}", self.work.display()))
    }

    /// Removes the trace, and the directory if it holds nothing else. Snapshots stay.
    pub fn remove_trace(&self) -> Result<()> {
        self.owned.clear().with_context(|| format!("cannot remove the trace in {}", self.dir.display()))?;
        let _ = fs::remove_dir(&self.dir);
        Ok(())
    }

    /// Keeps all files, also in a temporary directory. Returns the folder to which processes wrote.
    pub fn keep(self) -> PathBuf {
        self.temporary.map(TempDir::keep);
        self.work
    }

    /// Removes all its files, as nothing was recorded.
    pub fn discard(&self) {
        let _ = fs::remove_dir_all(&self.work);
        // Only if nothing else is in it.
        let _ = fs::remove_dir(&self.dir);
    }
}

/// Moves a snapshot to its place in the directory of a trace, under the next number. Returns the place.
pub(crate) fn publish_snapshot(snapshot_dir: &Path, dir: &Path) -> Result<PathBuf> {
    let told = opener::read(&snapshot_dir.join(GAPS), MOST_TEXT).unwrap_or_default();
    let last = snapshots_in(dir)?.into_iter().map(|(number, _)| number).max().unwrap_or(0);
    let to = dir.join(snapshot(last + 1, gaps::dump_reason(&told).as_deref()));
    move_to(snapshot_dir, &to)?;
    fs::remove_file(to.join(PART_FILE)).with_context(|| format!("cannot change {}", to.display()))?;
    Ok(to)
}

/// The snapshots in the directory of a trace, by their numbers.
fn snapshots_in(dir: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let number = |path: &PathBuf| snapshot_number(path.file_name()?.to_str()?);
    Ok(entries(dir)?.into_iter().filter_map(|path| Some((number(&path)?, path))).collect())
}

/// A directory of this user alone, under an unforeseeable name.
fn make_temporary() -> Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    let made = builder.prefix("rftrace-live-").permissions(Permissions::from_mode(0o700)).tempdir();
    made.with_context(|| {
        format!(
            "cannot make a temporary directory in {}; choose another one with --output",
            std::env::temp_dir().display()
        )
    })
}

/// Returns the total size of the files in a folder in bytes.
pub fn bytes_in(dir: &Path) -> Result<u64> {
    let size = |path: PathBuf| {
        let meta = fs::symlink_metadata(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(if meta.is_file() { meta.len() } else { 0 })
    };
    entries(dir)?.into_iter().map(size).sum()
}

/// Lists the paths in a folder.
pub(crate) fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let reading = || format!("cannot read {}", dir.display());
    let entries = fs::read_dir(dir).with_context(reading)?;
    entries.map(|entry| Ok(entry.with_context(reading)?.path())).collect()
}

/// Gives a file a second place: a further name or, if the file system has none, a copy.
pub(crate) fn link(from: &Path, to: &Path) -> Result<()> {
    fs::hard_link(from, to)
        .or_else(|_| fs::copy(from, to).map(drop))
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

fn move_to(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).with_context(|| format!("cannot move {} to {}", from.display(), to.display()))
}
