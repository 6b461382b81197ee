//! Directories with records and no trace: the recording goes on, was interrupted, or is kept as a stream. This module
//! makes a temporary trace elsewhere, and changes nothing in the directory.
//!
//! Not here: the trace that replaces the recording (`join`), and the messages (the commands).

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rftrace_format::files::INFO;
use rftrace_format::opener::{self, MOST_TEXT};
use rftrace_format::recording::{Entry, FOLDER, PART_FILE, Part, STREAM};
use rftrace_format::store;
use rftrace_frontend::bank::Extent;
use tempfile::TempDir;

use super::banks::BankRecording;
use super::output::bytes_in;
use super::run::Ended;
use super::{parts, run, schedule};

/// The stage of a directory on its way to a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The process with this PID records to it.
    Recorded(u32),
    /// Its recorder has ended without making a trace.
    Left,
    /// The records are kept unconverted.
    Kept,
}

impl Stage {
    /// Returns the stage of a directory, and the folder with the records; `None` for a trace, or for other contents.
    #[must_use]
    pub fn of(dir: &Path) -> Option<(Self, PathBuf)> {
        if dir.join(INFO).exists() {
            return None;
        }
        let work = dir.join(FOLDER);
        if work.is_dir() {
            let living = store::living_recorder(&work).or_else(|| run::living(&work).first().copied());
            return Some((living.map_or(Self::Left, Self::Recorded), work));
        }
        let stream = dir.join(STREAM);
        stream.is_dir().then_some((Self::Kept, stream))
    }
}

/// The number of tries to read a recording that is just being made a trace of, and the pause in between.
const TRIES: usize = 10;
const PAUSE: Duration = Duration::from_millis(20);

/// A temporary trace, which is removed with this value, and at any other end of this process.
#[derive(Debug)]
pub struct Lent {
    dir: PathBuf,
    /// Its place.
    folder: TempDir,
    /// Bytes of it.
    bytes: u64,
    errors: Vec<String>,
    /// Closed when this process ends.
    _guard: Option<ChildStdin>,
}

impl Lent {
    /// Makes a trace of the records on the disk; `None` for a directory at none of these stages. It passes the
    /// approximate size in bytes and the path to `tell`.
    ///
    /// # Errors
    ///
    /// No records are on the disk yet, there is no room, or a file cannot be read.
    pub fn of(dir: &Path, tell: impl FnOnce(u64, &Path)) -> Result<Option<Self>> {
        let Some((stage, work)) = Stage::of(dir) else { return Ok(None) };
        let mut tell = Some(tell);
        let mut tries = 0;
        loop {
            let lent = Self::make(dir, stage, &work, |bytes, place| {
                tell.take().into_iter().for_each(|tell| tell(bytes, place))
            });
            // It has become a trace meanwhile, or is about to.
            if lent.is_err() && Stage::of(dir).is_none() && dir.join(INFO).exists() {
                return Ok(None);
            }
            tries += 1;
            if lent.is_ok() || tries > TRIES || !matches!(stage, Stage::Recorded(_)) {
                return lent.map(Some);
            }
            thread::sleep(PAUSE);
        }
    }

    fn make(dir: &Path, stage: Stage, work: &Path, tell: impl FnOnce(u64, &Path)) -> Result<Self> {
        let place = place();
        let guard = Guard::new(&place);
        let mut builder = tempfile::Builder::new();
        let made = builder.prefix("rftrace-").permissions(Permissions::from_mode(0o700)).tempdir_in(&place);
        let remedy = "choose another directory with the variable TMPDIR";
        let folder =
            made.with_context(|| format!("cannot make a temporary directory in {}; {remedy}", place.display()))?;
        let guard = guard.and_then(|guard| guard.watch(folder.path()));
        let extent = if matches!(stage, Stage::Recorded(_)) { Extent::Described } else { Extent::All };
        let banks = BankRecording::of(work, extent)?;
        let bytes = banks.as_ref().map_or(0, BankRecording::bytes_in_trace);
        tell(bytes, &place);
        let parts = folder.path().join("parts");
        // Under its own name, for messages about it.
        let trace = folder.path().join(dir.canonicalize()?.file_name().unwrap_or("trace".as_ref()));
        for path in [&parts, &trace] {
            fs::create_dir(path).with_context(|| format!("cannot make the directory {}", path.display()))?;
        }
        if let Some(banks) = &banks {
            let room = room_in(&place);
            if room < bytes {
                bail!(
                    "not enough room to unpack the recording: it needs about {} MiB in {}, which has {} MiB; {remedy}",
                    bytes >> 20,
                    place.display(),
                    room >> 20
                );
            }
            banks.copy(&parts)?;
        }
        for entry in fs::read_dir(work).with_context(|| format!("cannot read {}", work.display()))?.flatten() {
            let (name, path) = (entry.file_name(), entry.path());
            let is_whole = match name.to_str().and_then(Entry::of) {
                Some(Entry::Part { .. }) => {
                    let told = Part::parse(&opener::read(&path.join(PART_FILE), MOST_TEXT).unwrap_or_default());
                    // Just now it may be made of the content of `banks`.
                    told.is_some_and(|part| !banks.as_ref().is_some_and(|banks| banks.has(&part)))
                }
                Some(Entry::Error { .. }) => true,
                _ => false,
            };
            if is_whole {
                let path = path.canonicalize()?;
                symlink(&path, parts.join(name)).with_context(|| format!("cannot link {}", path.display()))?;
            }
        }
        let ended = Ended::kept_in(work);
        let unread = banks.as_ref().map(|banks| banks.unread().to_vec()).unwrap_or_default();
        let n_unread = unread.len() as u64;
        let mut joined = parts::join(&parts, &trace, ended.as_ref(), unread)?;
        joined.damaged += n_unread;
        if joined.processes == 0 {
            let why = match stage {
                Stage::Recorded(_) => "no records are on the disk yet",
                Stage::Left | Stage::Kept => "no records are on the disk",
            };
            bail!("{}", joined.errors.iter().fold(why.to_owned(), |why, error| format!("{why}; {error}")));
        }
        let has_schedule = stage == Stage::Kept && schedule::put(&schedule::files_in(work)?, &trace)?;
        joined.keep(has_schedule, &trace)?;
        let _ = fs::remove_dir_all(&parts);
        let bytes = bytes_in(&trace)?;
        Ok(Self { dir: trace, folder, bytes, errors: joined.errors, _guard: guard })
    }

    /// Returns the path of the trace.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the size of the trace in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the losses of the recording, each with the reason.
    #[must_use]
    pub fn errors(&self) -> &[String] {
        &self.errors
    }

    /// Removes the trace.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub fn remove(self) -> std::io::Result<()> {
        self.folder.close()
    }
}

/// A folder on a disk, as far as one is known: files in `/tmp` are often in memory.
fn place() -> PathBuf {
    let wanted = std::env::var_os("TMPDIR").filter(|place| !place.is_empty()).map(PathBuf::from);
    wanted.unwrap_or_else(|| {
        let on_disk = Path::new("/var/tmp");
        if on_disk.is_dir() { on_disk.to_owned() } else { std::env::temp_dir() }
    })
}

/// Free bytes for this user.
fn room_in(place: &Path) -> u64 {
    nix::sys::statvfs::statvfs(place).map_or(u64::MAX, |found| found.blocks_available() * found.fragment_size())
}

/// Has a folder removed at any end of this process.
struct Guard(ChildStdin);

impl Guard {
    /// A guard for a folder in a place, made later: the folder may not be there without its guard.
    fn new(place: &Path) -> Option<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", "read -r name && { read -r _; rm -rf -- \"$1/$name\"; }", "sh"]).arg(place);
        // The terminal's signals are not for it.
        shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        shell.spawn().ok()?.stdin.map(Self)
    }

    /// Begins. The folder goes when the returned value is closed.
    fn watch(mut self, folder: &Path) -> Option<ChildStdin> {
        let name = [folder.file_name()?.as_bytes(), b"\n"].concat();
        self.0.write_all(&name).ok()?;
        Some(self.0)
    }
}
