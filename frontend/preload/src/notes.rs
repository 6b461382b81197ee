//! Telling `rftrace record` what cannot be written: a process may not be able to write any file when it ends.
//!
//! The notes are in memory that `rftrace record` shares with all processes: text, each note with a NUL behind it.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicU8, AtomicU32};
use std::{ptr, slice};

use rftrace_format::passed::Passed;

/// The state of this process at its beginning.
#[derive(Debug)]
struct Beginning {
    /// The notes; empty if they are not there.
    notes: &'static [AtomicU8],
    user: u32,
    /// The device and number of the root directory.
    root: Option<(u64, u64)>,
}

static BEGINNING: OnceLock<Beginning> = OnceLock::new();

/// A note begins at a multiple of this.
const NOTE_BYTES: usize = 512;

/// Looks for the notes, while the process can still reach them.
pub(crate) fn begin(notes: Option<&Passed>) {
    BEGINNING.get_or_init(|| Beginning { notes: notes.and_then(map).unwrap_or_default(), user: user(), root: root() });
}

/// Tells `rftrace record` that a program has obeyed the filter, and which of its rules match anything there.
pub(crate) fn tell_of_rules(rules: &Passed, in_effect: &[bool]) {
    let Ok(file) = rules.open(File::options().write(true)) else { return };
    let matched = (1..).zip(in_effect).filter(|&(_, &is_matched)| is_matched);
    for place in [0].into_iter().chain(matched.map(|(place, _)| place)) {
        // It only loses what the user is told.
        let _ = file.write_all_at(&[1], place);
    }
}

fn map(notes: &Passed) -> Option<&'static [AtomicU8]> {
    let file = notes.open(File::options().read(true).write(true)).ok()?;
    let bytes = usize::try_from(file.metadata().ok()?.len()).ok()?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, wherever there is room.
    let memory = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    // SAFETY: so many bytes were mapped, and stay so; others change them as atomics.
    (memory != libc::MAP_FAILED).then(|| unsafe { slice::from_raw_parts(memory.cast(), bytes) })
}

/// True if this process has another root directory than at its beginning: paths mean something else then.
pub(crate) fn is_elsewhere() -> bool {
    BEGINNING.get().is_some_and(|beginning| beginning.root != root())
}

/// Why nothing can be written to the folder then.
pub(crate) fn elsewhere(folder: &Path) -> String {
    format!("the process has changed its root directory (chroot), and {} is outside of it", folder.display())
}

/// Why nothing may be written to the folder, if this process runs as another user than at its beginning.
pub(crate) fn other_user(folder: &Path) -> Option<String> {
    let (user, folder) = (user(), folder.display());
    BEGINNING.get().filter(|beginning| beginning.user != user)?;
    Some(format!("the process now runs as user {user}, who may not write to {folder}: start it as that user"))
}

/// Puts a note of this process behind the others; the first one counts. One that finds no room is not told. Takes no memory.
pub(crate) fn tell(problem: &str) {
    /// The process that has told something.
    static TOLD: AtomicU32 = AtomicU32::new(0);

    let Some(beginning) = BEGINNING.get() else { return };
    let pid = std::process::id();
    if TOLD.swap(pid, Relaxed) == pid {
        return;
    }
    // The last byte stays 0. What does not fit is cut off.
    let mut text = [0; NOTE_BYTES - 1];
    let _ = write!(&mut text[..], "process {pid}: {problem}");
    for note in beginning.notes.chunks_exact(NOTE_BYTES) {
        if note[0].compare_exchange(0, text[0], AcqRel, Acquire).is_ok() {
            return note[1..].iter().zip(&text[1..]).for_each(|(place, &byte)| place.store(byte, Relaxed));
        }
    }
}

fn user() -> u32 {
    // SAFETY: the call takes nothing.
    unsafe { libc::geteuid() }
}

fn root() -> Option<(u64, u64)> {
    fs::metadata("/").ok().map(|meta| (meta.dev(), meta.ino()))
}
