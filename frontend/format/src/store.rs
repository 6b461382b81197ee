//! Ownership of trace directories: the check whether a directory may be written to, a lock against other writers, and
//! the list of files that belong to a trace. All writers of traces open their files through an [`Owned`] directory.
//!
//! The lock is `flock` on the directory itself. It leaves no file, follows a moved directory, and ends with its
//! process.
//!
//! Not here: the content of the files, and their order.

extern crate std;

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Error, ErrorKind, Read, Result};
use std::path::{Path, PathBuf};

use crate::files::{File as TraceFile, INFO, MAGIC, RESOURCES};
use crate::recording::{Entry, FOLDER, PART_FILE, SPOOL, STREAM, snapshot_number};
use crate::resources;
use crate::{opener, system};

/// The name of the list of chosen functions that are not recorded. It exists only if nothing was recorded.
pub const BRANCHES: &str = "entry-branches.txt";
/// The beginning of the names of unfinished dumps.
pub const DUMP: &str = ".dump-";
/// The name of `info` in a trace whose end has not arrived over the network.
pub const INCOMPLETE_INFO: &str = "info.incomplete";

/// The beginning of names of folders about to be removed.
const REMOVED: &str = ".rftrace-removed-";
/// The temporary name of a file that replaces another one once it is complete.
const NEW: &str = ".rftrace-new";
/// Other files of ours and of uftrace, beside those with a kind.
const OTHERS: [&str; 5] = [BRANCHES, INCOMPLETE_INFO, PART_FILE, "room", "default.opts"];

/// The contents of a directory, for a writer of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// The directory is empty or absent.
    Nothing,
    /// The directory holds a trace, a recording, or a part of one, maybe with other files.
    Trace,
    /// The directory holds other files, such as this one.
    Other(String),
}

impl Contents {
    /// Returns the contents of the directory `dir`.
    ///
    /// # Errors
    ///
    /// The directory cannot be read.
    pub fn of(dir: &Path) -> Result<Self> {
        let names = match names_in(dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::Nothing),
            names => names?,
        };
        let foreign = names.iter().find(|name| !is_ours(dir, name));
        Ok(match foreign {
            None if names.is_empty() => Self::Nothing,
            Some(foreign) if !names.iter().any(|name| tells_of_trace(dir, name)) => Self::Other(foreign.clone()),
            _ => Self::Trace,
        })
    }
}

/// A directory to which this process may write a trace. No other process can take it meanwhile.
#[derive(Debug)]
pub struct Owned {
    path: PathBuf,
    /// The directory, even after a move. `None` for a folder within an owned one.
    #[cfg(unix)]
    lock: Option<File>,
}

impl Owned {
    /// Takes a directory, and makes it if it is absent.
    ///
    /// # Errors
    ///
    /// The directory holds something other than a trace, another process writes to it, or it cannot be made.
    pub fn take(path: &Path) -> Result<Self> {
        make(path)?;
        let owned = Self::lock(path)?;
        admit(path).map(|()| owned)
    }

    /// Takes a directory for a new trace. An older trace moves to `PATH.old`, and replaces the one there. Other files
    /// stay.
    ///
    /// # Errors
    ///
    /// The errors of [`take`](Self::take); or the older trace cannot be moved.
    pub fn take_anew(path: &Path) -> Result<Self> {
        let owned = Self::take(path)?;
        if Contents::of(path)? == Contents::Nothing {
            return Ok(owned);
        }
        let old = older(path);
        let failed = |error: Error| {
            let reason = format!("cannot move the earlier trace to {}: {error}", old.display());
            Error::new(error.kind(), reason)
        };
        if old.symlink_metadata().is_ok() {
            Self::take(&old).and_then(|old| old.remove()).map_err(failed)?;
        }
        fs::rename(path, &old).map_err(failed)?;
        // The lock has gone with it.
        let owned = make(path).and_then(|()| Self::lock(path))?;
        for name in names_in(&old)?.iter().filter(|name| !is_ours(&old, name)) {
            fs::rename(old.join(name), path.join(name)).map_err(failed)?;
        }
        Ok(owned)
    }

    /// Takes a folder in an owned directory, for a part, a dump or facts. It makes the folder if it is absent.
    ///
    /// # Errors
    ///
    /// The folder cannot be made.
    pub fn within(path: &Path) -> Result<Self> {
        make_last(path)?;
        Ok(Self {
            path: path.to_owned(),
            #[cfg(unix)]
            lock: None,
        })
    }

    /// Returns the directory's path at the time when it was taken.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the file `name` for the directory's owner, and replaces an existing one.
    ///
    /// # Errors
    ///
    /// The errors of the system.
    pub fn create(&self, name: impl AsRef<Path>) -> Result<File> {
        create(&self.path.join(name))
    }

    /// Writes a file, which replaces an existing one when it is complete.
    ///
    /// # Errors
    ///
    /// The errors of the system, and of `fill`.
    pub fn replace(&self, name: &str, fill: impl FnOnce(&mut io::BufWriter<File>) -> Result<()>) -> Result<()> {
        let new = self.path.join(NEW);
        let written = create(&new).and_then(|file| {
            let mut out = io::BufWriter::new(file);
            fill(&mut out)?;
            io::Write::flush(&mut out)?;
            fs::rename(&new, self.path.join(name))
        });
        written.inspect_err(|_| {
            // It is of no use; that it is there matters less than why.
            let _ = fs::remove_file(&new);
        })
    }

    /// Removes the files of the trace in the directory, `info` first. Folders and other files stay.
    ///
    /// # Errors
    ///
    /// The errors of the system.
    pub fn clear(&self) -> Result<()> {
        if !tells_of_trace(&self.path, INFO) {
            return Ok(());
        }
        let mut names = names_in(&self.path)?;
        names.sort_by_key(|name| name != INFO);
        let files = names.iter().filter(|name| TraceFile::of(name).is_some()).map(|name| self.path.join(name));
        files.filter(|path| !is_folder(path)).try_for_each(fs::remove_file)
    }

    /// Removes all files of ours, and the directory.
    fn remove(&self) -> Result<()> {
        remove_ours(&self.path)?;
        match fs::remove_dir(&self.path) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
                let name = names_in(&self.path)?.into_iter().next().unwrap_or_default();
                let reason = format!(
                    "the directory contains `{name}`, no file of a trace; move `{name}` elsewhere, or choose another directory"
                );
                Err(Error::new(ErrorKind::DirectoryNotEmpty, reason))
            }
            removed => removed,
        }
    }
}

#[cfg(unix)]
impl Owned {
    fn lock(path: &Path) -> Result<Self> {
        /// Somebody may move the directory each time.
        const TRIES: usize = 10;

        for _ in 0..TRIES {
            #[allow(clippy::disallowed_methods, reason = "a folder")]
            let dir = File::open(path)?;
            // Where the file system knows no locks there are none.
            if let Err(fs::TryLockError::WouldBlock) = dir.try_lock() {
                return Err(owned_by_other(path, &dir));
            }
            if is_same(&dir, path) {
                let other = living_recorder(&path.join(FOLDER)).filter(|&pid| pid != std::process::id());
                return match other {
                    Some(pid) => Err(recorded_by(pid)),
                    None => Ok(Self { path: path.to_owned(), lock: Some(dir) }),
                };
            }
        }
        Err(Error::new(ErrorKind::ResourceBusy, "another process keeps moving the directory; choose another directory"))
    }

    /// Follows a moved directory. Returns its new path, or `None` if it was not moved.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if it was deleted.
    pub fn follow(&mut self) -> Result<Option<PathBuf>> {
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::MetadataExt;

        let Some(dir) = self.lock.as_ref().filter(|dir| !is_same(dir, &self.path)) else { return Ok(None) };
        let deleted = || Error::new(ErrorKind::NotFound, "the directory was deleted while it was written to");
        if dir.metadata()?.nlink() == 0 {
            return Err(deleted());
        }
        let place = fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd()))?;
        if !is_same(dir, &place) {
            return Err(deleted());
        }
        self.path.clone_from(&place);
        Ok(Some(place))
    }
}

#[cfg(not(unix))]
impl Owned {
    fn lock(path: &Path) -> Result<Self> {
        Ok(Self { path: path.to_owned() })
    }
}

#[cfg(unix)]
impl Drop for Owned {
    fn drop(&mut self) {
        // A child that was forked meanwhile has it open, too.
        let _ = self.lock.as_ref().map(File::unlock);
    }
}

/// Makes a directory to which several processes may add traces, if it is absent.
///
/// # Errors
///
/// The directory holds something other than traces, or cannot be made.
pub fn admit(path: &Path) -> Result<()> {
    make(path)?;
    match Contents::of(path)? {
        Contents::Other(name) => {
            let reason =
                format!("the directory contains `{name}` and is no trace; choose another directory, or a new one");
            Err(Error::new(ErrorKind::InvalidInput, reason))
        }
        _ => Ok(()),
    }
}

/// Makes a file with room for a short text, which can then be written while the disk is full.
///
/// # Errors
///
/// The errors of the system.
pub fn reserve(path: &Path) -> Result<()> {
    const ROOM: usize = 4096;

    write(path, [b'\n'; ROOM])
}

/// Writes a text into a [reserved](reserve) file. Empty lines follow it.
///
/// # Errors
///
/// The errors of the system.
pub fn fill(path: &Path, text: &str) -> Result<()> {
    let mut file = for_this_user().create(true).truncate(false).open(path)?;
    io::Write::write_all(&mut file, text.as_bytes())
}

/// Changes the path of a file whose directory was moved.
pub fn moved(path: &mut PathBuf, from: &Path, to: &Path) {
    if let Ok(rest) = path.strip_prefix(from) {
        *path = to.join(rest);
    }
}

/// Returns the path to which an older trace in `dir` is moved.
#[must_use]
pub fn older(dir: &Path) -> PathBuf {
    let mut old = dir.as_os_str().to_owned();
    old.push(".old");
    PathBuf::from(old)
}

/// Creates a file with access for this user alone. An existing file is emptied and keeps its owner.
///
/// # Errors
///
/// The errors of the system.
pub fn create(path: &Path) -> Result<File> {
    for_this_user().create(true).truncate(true).open(path)
}

/// Creates a new file with access for this user alone.
///
/// # Errors
///
/// [`ErrorKind::AlreadyExists`], and those of the system.
pub fn create_new(path: &Path) -> Result<File> {
    for_this_user().create_new(true).open(path)
}

/// Opens a file for appending, and creates it with access for this user alone if it is absent.
///
/// # Errors
///
/// The errors of the system.
pub fn append(path: &Path) -> Result<File> {
    for_this_user().append(true).create(true).open(path)
}

fn for_this_user() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Writes a file with access for this user alone.
///
/// # Errors
///
/// The errors of the system.
pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> Result<()> {
    create(path).and_then(|mut file| io::Write::write_all(&mut file, bytes.as_ref()))
}

/// Creates an output file that a user names.
///
/// # Errors
///
/// Those of [`check_output`], and those of the system.
pub fn create_output(path: &Path, sources: &[&Path]) -> Result<File> {
    check_output(path, sources).and_then(|()| File::create(path))
}

/// Checks an output file that a user names.
///
/// # Errors
///
/// [`ErrorKind::InvalidInput`] for a file of a trace, and for a link to a file in one of the directories `sources`.
pub fn check_output(path: &Path, sources: &[&Path]) -> Result<()> {
    // A link may lead into a trace.
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let dir = real.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = real.file_name().unwrap_or_default().to_string_lossy();
    let tells = |dir: &Path| names_in(dir).is_ok_and(|names| names.iter().any(|name| tells_of_trace(dir, name)));
    let is_work = dir.ancestors().any(|dir| dir.file_name().is_some_and(|name| name == FOLDER) || is_stream(dir));
    let has =
        |dir: &Path| names_in(dir).is_ok_and(|names| names.iter().any(|name| is_same_file(&dir.join(name), &real)));
    if is_work || is_ours(dir, &name) && tells(dir) || sources.iter().any(|dir| has(dir)) {
        let reason = "this name is that of a file of a trace; choose another name, or another directory";
        return Err(Error::new(ErrorKind::InvalidInput, reason));
    }
    Ok(())
}

/// Removes a folder after renaming it. So a killed process leaves the whole folder or none of this name: half of a
/// trace's sources would pass for all of them. The next removal deletes the rest.
///
/// # Errors
///
/// The errors of the system.
pub fn remove_at_once(folder: &Path) -> Result<()> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let removed = folder.with_file_name(format!("{REMOVED}{}", name.trim_start_matches('.')));
    match fs::remove_dir_all(&removed) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::rename(folder, &removed).and_then(|()| fs::remove_dir_all(&removed))
}

/// Returns the start time of a process, as the system reports it; `None` if the process has ended. A process lives as
/// long as any of its threads.
#[must_use]
pub fn start_time(pid: u32) -> Option<String> {
    // A thread's: emulators make up what a process reads of itself.
    let stat = system::read(format!("/proc/{pid}/task/{pid}/stat")).ok()?;
    // The command, in parentheses, may contain anything.
    let behind = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let behind = String::from_utf8_lossy(&stat[behind..]);
    let fields: Vec<&str> = behind.split_ascii_whitespace().collect();
    let &[state, .., n_threads, _, started] = fields.get(..20)? else { return None };
    let is_over = matches!(state, "Z" | "X") && n_threads.parse::<u32>().ok()? <= 1;
    (!is_over).then(|| started.to_owned())
}

/// Returns the PID of the living recorder that has its entry in the folder `work`.
#[must_use]
pub fn living_recorder(work: &Path) -> Option<u32> {
    names_in(work).ok()?.iter().find_map(|name| match Entry::of(name)? {
        Entry::Recorder { pid, started } => Some(pid).filter(|&pid| start_time(pid).as_deref() == Some(started)),
        _ => None,
    })
}

#[cfg(unix)]
fn recorded_by(pid: u32) -> Error {
    let name = system::read_text(format!("/proc/{pid}/comm")).unwrap_or_default();
    let reason = format!(
        "process {pid} ({}) records to this directory; wait for its end, or choose another directory",
        name.trim()
    );
    Error::new(ErrorKind::ResourceBusy, reason)
}

/// The error with the owner of a directory's lock, from the system's list of locks: `1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE 0 EOF`.
#[cfg(unix)]
fn owned_by_other(path: &Path, dir: &File) -> Error {
    use std::os::unix::fs::MetadataExt;

    let inode = dir.metadata().map_or(0, |meta| meta.ino()).to_string();
    let locks = system::read_text("/proc/locks").unwrap_or_default();
    let owner = |line: &str| {
        let mut words = line.split_ascii_whitespace().skip_while(|word| *word != "FLOCK").skip(3);
        let pid = words.next()?.parse().ok().filter(|&pid| pid != 0);
        pid.filter(|_| words.next().and_then(|place| place.rsplit(':').next()) == Some(&inode))
    };
    let pid = living_recorder(&path.join(FOLDER)).or_else(|| locks.lines().find_map(owner));
    let unknown = "another process, perhaps in a container, records to this directory; wait for its end, or choose another directory";
    pid.map_or_else(|| Error::new(ErrorKind::ResourceBusy, unknown), recorded_by)
}

#[cfg(unix)]
fn is_same(dir: &File, path: &Path) -> bool {
    dir.metadata().ok().map(place).is_some_and(|own| fs::metadata(path).ok().map(place) == Some(own))
}

#[cfg(unix)]
fn is_same_file(one: &Path, other: &Path) -> bool {
    let place = |path| fs::metadata(path).ok().map(place);
    place(one).is_some_and(|one| place(other) == Some(one))
}

#[cfg(unix)]
fn place(meta: fs::Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;

    (meta.dev(), meta.ino())
}

#[cfg(not(unix))]
fn is_same_file(_: &Path, _: &Path) -> bool {
    false
}

/// `ENOTDIR` on Linux and Hermit.
const NOT_A_DIRECTORY: i32 = 20;

/// Makes a directory for this user alone, and those above it.
fn make(path: &Path) -> Result<()> {
    if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty() && !above.is_dir()) {
        fs::create_dir_all(above).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => Error::from_raw_os_error(NOT_A_DIRECTORY),
            _ => error,
        })?;
    }
    make_last(path)
}

fn make_last(path: &Path) -> Result<()> {
    // Hermit's kernel (0.11) panics when it is to make a directory that is there.
    if path.is_dir() {
        return Ok(());
    }
    #[cfg_attr(not(unix), expect(unused_mut, reason = "there is no mode"))]
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        // Somebody's file.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(Error::from_raw_os_error(NOT_A_DIRECTORY)),
        made => made,
    }
}

/// The names in a directory, in order. Hermit's has itself and the one above, too.
fn names_in(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        names.push(entry?.file_name().to_string_lossy().to_string());
    }
    names.retain(|name| name != "." && name != "..");
    names.sort();
    Ok(names)
}

fn is_folder(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|meta| meta.is_dir())
}

/// True if a file begins so.
fn begins_with(path: &Path, magic: &[u8]) -> bool {
    let mut start = Vec::new();
    let read = |file: File| file.take(magic.len() as u64).read_to_end(&mut start);
    opener::open(path).and_then(read).is_ok() && start == magic
}

/// Returns true for a stream kept by a recorder: others may use the folder's name, too.
fn is_stream(folder: &Path) -> bool {
    let is_spool = |names: Vec<String>| names.iter().any(|name| name.starts_with(SPOOL));
    folder.file_name().is_some_and(|name| name == STREAM) && names_in(folder).is_ok_and(is_spool)
}

/// True if this entry of a directory is a file or folder of a trace.
fn is_ours(dir: &Path, name: &str) -> bool {
    let path = dir.join(name);
    if !is_folder(&path) {
        return TraceFile::of(name).is_some() || OTHERS.contains(&name) || name == NEW;
    }
    let is_snapshot = || snapshot_number(name).is_some() && matches!(Contents::of(&path), Ok(Contents::Trace));
    name == FOLDER || name.starts_with(REMOVED) || name.starts_with(DUMP) || is_stream(&path) || is_snapshot()
}

/// Returns true if this entry shows a directory of a trace.
fn tells_of_trace(dir: &Path, name: &str) -> bool {
    let path = dir.join(name);
    match name {
        INFO => begins_with(&path, MAGIC),
        RESOURCES => begins_with(&path, resources::MAGIC),
        _ => is_folder(&path) && is_ours(dir, name),
    }
}

/// Removes the files of ours in a directory: without `info` the rest is no trace.
fn remove_ours(dir: &Path) -> Result<()> {
    let mut names = names_in(dir)?;
    names.sort_by_key(|name| name != INFO);
    for name in names.iter().filter(|name| is_ours(dir, name)) {
        let path = dir.join(name);
        if !is_folder(&path) {
            fs::remove_file(&path)?;
        } else if snapshot_number(name).is_some() {
            remove_ours(&path)?;
            match fs::remove_dir(&path) {
                Err(error) if error.kind() != ErrorKind::DirectoryNotEmpty => return Err(error),
                _ => {}
            }
        } else if name.starts_with(REMOVED) {
            fs::remove_dir_all(&path)?;
        } else {
            remove_at_once(&path)?;
        }
    }
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_replaced_unless_they_are_of_a_trace() {
        let dir = std::env::temp_dir().join(format!("rftrace-store-{}", std::process::id()));
        let trace = dir.join("trace");
        fs::create_dir_all(&trace).unwrap();
        write(&trace.join(crate::files::INFO), MAGIC).unwrap();
        write(&trace.join("notes"), "").unwrap();
        std::os::unix::fs::symlink(trace.join("notes"), dir.join("link")).unwrap();
        let refused = |path: &Path, sources: &[&Path]| create_output(path, sources).is_err();
        let output = dir.join("output");
        for sources in [&[][..], &[trace.as_path()], &[]] {
            assert!(!refused(&output, sources), "{sources:?}");
        }
        assert!(refused(&trace.join(crate::files::INFO), &[]));
        assert!(refused(&dir.join("link"), &[&trace]) && !refused(&dir.join("link"), &[]));
        fs::remove_dir_all(&dir).unwrap();
    }
}
