//! Compatibility of a program that this one begins with our libraries: musl's dynamic linker ends a program that is to load one of the GNU C
//! library, and that of another class complains.
//!
//! Not here: the environment of that program (`environment`).
//!
//! **Invariant**: nothing here takes memory or a lock. It runs in the child of a `vfork`, too.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rftrace_format::recording::MUSL;

use crate::arch::MACHINE;

/// The longest path.
const PATH_BYTES: usize = 4096;

/// A program as functions name it that begin one.
pub(crate) enum Program {
    /// A path, or a name that is looked for in `PATH`.
    Named(*const c_char),
    /// A path from a folder on; an empty one is the open file itself.
    Below(c_int, *const c_char),
    Open(c_int),
}

impl Program {
    /// True if it may be given our libraries. An unreadable one may.
    ///
    /// # Safety
    ///
    /// The path is null, or a text that ends with a NUL.
    pub(crate) unsafe fn takes_libraries(&self) -> bool {
        // SAFETY: by this function's contract.
        let found = unsafe {
            match *self {
                Self::Open(file) => return takes_libraries(file),
                Self::Below(_, path) | Self::Named(path) if path.is_null() => None,
                Self::Below(folder, path) if path.read() == 0 => return takes_libraries(folder),
                Self::Below(folder, path) => open(folder, path),
                Self::Named(name) => find(CStr::from_ptr(name)),
            }
        };
        found.is_none_or(|file| takes_libraries(file.as_raw_fd()))
    }
}

/// # Safety
///
/// The path is a text that ends with a NUL.
unsafe fn open(folder: c_int, path: *const c_char) -> Option<OwnedFd> {
    // A pipe that nobody writes to would keep this waiting.
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    // SAFETY: the caller's path.
    let file = unsafe { libc::openat(folder, path, flags) };
    // SAFETY: it is nobody else's.
    (file >= 0).then(|| unsafe { OwnedFd::from_raw_fd(file) })
}

/// Opens a program as `execvp` finds it.
fn find(name: &CStr) -> Option<OwnedFd> {
    if name.to_bytes().contains(&b'/') {
        // SAFETY: a text that ends with a NUL.
        return unsafe { open(libc::AT_FDCWD, name.as_ptr()) };
    }
    // SAFETY: a name that ends with a NUL.
    let folders = unsafe { libc::getenv(c"PATH".as_ptr()) };
    // SAFETY: a text of the environment.
    let folders = if folders.is_null() { c"/bin:/usr/bin" } else { unsafe { CStr::from_ptr(folders) } };
    let in_folder = |folder: &[u8]| {
        let mut path = [0; PATH_BYTES];
        let parts = [folder, if folder.is_empty() { b"" } else { b"/" }, name.to_bytes()];
        let mut end = 0;
        for part in parts {
            path.get_mut(end..PATH_BYTES - 1)?.get_mut(..part.len())?.copy_from_slice(part);
            end += part.len();
        }
        // SAFETY: zeros follow.
        unsafe { open(libc::AT_FDCWD, path.as_ptr().cast()) }
    };
    folders.to_bytes().split(|&byte| byte == b':').find_map(in_folder)
}

/// As many bytes of a file as there are.
fn read(file: c_int, at: u64, into: &mut [u8]) -> usize {
    // SAFETY: so many bytes may be written there.
    let read = unsafe { libc::pread(file, into.as_mut_ptr().cast::<c_void>(), into.len(), at.cast_signed()) };
    usize::try_from(read).unwrap_or(0)
}

fn takes_libraries(file: c_int) -> bool {
    /// How often the program of a script may be another script, for the system.
    const MOST_SCRIPTS: usize = 4;
    const CLASS: usize = 4;
    const MACHINE_AT: usize = 18;

    let mut head = [0; 256];
    let mut n_read = read(file, 0, &mut head);
    let mut interpreter = None;
    for _ in 0..MOST_SCRIPTS {
        let Some(script) = head[..n_read].strip_prefix(b"#!") else { break };
        let line = script.split(|&byte| byte == b'\n' || byte == 0).next().unwrap_or_default().trim_ascii_start();
        let path = line.split(u8::is_ascii_whitespace).next().unwrap_or_default();
        let mut text = [0; 256];
        text[..path.len()].copy_from_slice(path);
        // SAFETY: it is shorter, so zeros follow.
        interpreter = unsafe { open(libc::AT_FDCWD, text.as_ptr().cast()) };
        n_read = interpreter.as_ref().map_or(0, |file| read(file.as_raw_fd(), 0, &mut head));
    }
    let file = interpreter.as_ref().map_or(file, AsRawFd::as_raw_fd);
    let is_elf = n_read >= size_of::<libc::Elf64_Ehdr>() && head.starts_with(b"\x7fELF");
    let is_own = head[CLASS] == libc::ELFCLASS64 && head[MACHINE_AT..MACHINE_AT + 2] == MACHINE.to_le_bytes();
    !is_elf || is_own && !has_musl(file, &head)
}

/// True if the dynamic linker of a program of our class is musl's.
fn has_musl(file: c_int, head: &[u8; 256]) -> bool {
    const MOST_SEGMENTS: u64 = 128;
    const SEGMENT_BYTES: usize = size_of::<libc::Elf64_Phdr>();

    // SAFETY: it has so many bytes, and any are a header.
    let header: libc::Elf64_Ehdr = unsafe { head.as_ptr().cast::<libc::Elf64_Ehdr>().read_unaligned() };
    for number in 0..u64::from(header.e_phnum).min(MOST_SEGMENTS) {
        let mut bytes = [0; SEGMENT_BYTES];
        let at = header.e_phoff.wrapping_add(number * SEGMENT_BYTES as u64);
        if read(file, at, &mut bytes) < SEGMENT_BYTES {
            return false;
        }
        // SAFETY: as above.
        let segment: libc::Elf64_Phdr = unsafe { bytes.as_ptr().cast::<libc::Elf64_Phdr>().read_unaligned() };
        if segment.p_type == libc::PT_INTERP {
            let mut name = [0; 256];
            let n_read = read(file, segment.p_offset, &mut name);
            return name[..n_read].windows(MUSL.len()).any(|part| part == MUSL);
        }
    }
    false
}
