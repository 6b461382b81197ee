//! The directory of a received trace. The peer is untrusted: names are checked, and this module alone makes files, only
//! in the new directory.

use std::collections::{HashSet, VecDeque};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{Mode, mkdirat};
use rftrace_format::files::{self, File as TraceFile, INFO};
use rftrace_format::text::Shown;

use crate::error::{Error, Result};
use crate::protocol::Part;

/// The longest name of a directory that is taken from a peer.
const MAX_NAME_CHARS: usize = 64;
/// Files of one trace.
const MAX_FILES: usize = 1 << 16;
/// Those that are open at a time, for each peer.
const MAX_OPEN: usize = 16;
/// So many directories of one name.
const MAX_SAME: u32 = 100_000;
/// Names of files that were left out are kept up to here, to be said.
const MAX_NAMED: usize = 4;
pub(crate) use rftrace_format::store::INCOMPLETE_INFO;

/// Where traces go.
#[derive(Debug)]
pub(crate) struct Root {
    dir: OwnedFd,
    path: PathBuf,
}

impl Root {
    /// Opens the directory, which is made if it does not exist.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        fs::create_dir_all(path).map_err(Error::at(path))?;
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let dir = open(path, flags, Mode::empty()).map_err(io::Error::from).map_err(Error::at(path))?;
        Ok(Self { dir, path: path.to_owned() })
    }

    /// Makes a new directory, by this name if it can be one and nothing has it.
    pub(crate) fn make(&self, wanted: &[u8]) -> Result<Store> {
        let wanted = str::from_utf8(wanted).ok().filter(|name| is_dir_name(name));
        let name = |number: u32| match (wanted, number) {
            (Some(name), 1) => name.to_owned(),
            (Some(name), number) => format!("{name}-{number}"),
            (None, number) => number.to_string(),
        };
        for name in (1..MAX_SAME).map(name) {
            let path = self.path.join(&name);
            match mkdirat(&self.dir, name.as_str(), Mode::S_IRWXU) {
                Err(Errno::EEXIST) => {}
                Err(error) => return Err(Error::at(&path)(error.into())),
                Ok(()) => {
                    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
                    let dir = openat(&self.dir, name.as_str(), flags, Mode::empty());
                    let dir = dir.map_err(io::Error::from).map_err(Error::at(&path))?;
                    return Ok(Store::new(dir, path));
                }
            }
        }
        let full = io::Error::new(io::ErrorKind::AlreadyExists, "too many directories have this name");
        Err(Error::at(&self.path)(full))
    }
}

/// True if a directory may have the name that a peer wants.
fn is_dir_name(name: &str) -> bool {
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=MAX_NAME_CHARS).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(is_safe)
}

/// A new directory, and what was written to it.
#[derive(Debug)]
pub(crate) struct Store {
    dir: OwnedFd,
    path: PathBuf,
    made: HashSet<String>,
    /// The files used last, at most [`MAX_OPEN`].
    open: VecDeque<(String, File)>,
    /// The file of the next contents; `None` if they are left out.
    current: Option<String>,
    info: Option<Vec<u8>>,
    pub(crate) bytes: u64,
    /// Names of files that are none of a trace, as they may be shown.
    pub(crate) left_out: Vec<String>,
    pub(crate) n_left_out: usize,
}

impl Store {
    fn new(dir: OwnedFd, path: PathBuf) -> Self {
        Self {
            dir,
            path,
            made: HashSet::new(),
            open: VecDeque::new(),
            current: None,
            info: None,
            bytes: 0,
            left_out: Vec::new(),
            n_left_out: 0,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    /// Makes a folder in the directory.
    pub(crate) fn make_folder(&self, name: &str) -> Result<Self> {
        let path = self.path.join(name);
        mkdirat(&self.dir, name, Mode::S_IRWXU).map_err(io::Error::from).map_err(Error::at(&path))?;
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let dir = openat(&self.dir, name, flags, Mode::empty()).map_err(io::Error::from).map_err(Error::at(&path))?;
        Ok(Self::new(dir, path))
    }

    /// True if a file was made.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.made.contains(name)
    }

    /// Adds to a file, which is made with its first bytes.
    pub(crate) fn append(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        self.make_if_new(name)?;
        self.current = Some(name.to_owned());
        self.write(bytes)
    }

    pub(crate) fn n_files(&self) -> usize {
        self.made.len()
    }

    /// Begins a part: the next contents belong to it.
    pub(crate) fn begin(&mut self, part: Part) -> Result<()> {
        let (name, is_whole) = match part {
            Part::Task(tid) => (files::records(tid), false),
            Part::Kernel(processor) => (files::kernel(processor), false),
            Part::Perf(processor) => (files::perf(processor), false),
            Part::File(name) => match file_name(&name)? {
                Some(name) => (name.to_owned(), true),
                None => {
                    self.current = None;
                    self.n_left_out += 1;
                    if self.left_out.len() < MAX_NAMED {
                        self.left_out.push(shown(&name));
                    }
                    return Ok(());
                }
            },
        };
        let is_new = !self.made.contains(&name);
        if !is_new && is_whole {
            return Err(Error::Twice(name));
        }
        self.make_if_new(&name)?;
        self.current = Some(name);
        Ok(())
    }

    fn make_if_new(&mut self, name: &str) -> Result<()> {
        if self.made.contains(name) {
            return Ok(());
        }
        if self.made.len() >= MAX_FILES {
            return Err(Error::TooManyFiles(MAX_FILES));
        }
        self.use_file(name, OFlag::O_CREAT | OFlag::O_EXCL)?;
        self.made.insert(name.to_owned());
        Ok(())
    }

    /// Some of what belongs there.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(name) = self.current.take() else { return Ok(()) };
        let written = match self.open.iter_mut().find(|(open, _)| *open == name) {
            Some((_, file)) => file.write_all(bytes),
            None => {
                return self.use_file(&name, OFlag::empty()).and_then(|()| {
                    self.current = Some(name);
                    self.write(bytes)
                });
            }
        };
        written.map_err(Error::at(&self.path.join(&name)))?;
        self.bytes += bytes.len() as u64;
        self.current = Some(name);
        Ok(())
    }

    /// Keeps `info` until the end.
    pub(crate) fn keep_info(&mut self, info: Vec<u8>) {
        self.info = Some(info);
    }

    /// The trace is complete: writes `info`.
    pub(crate) fn finish(&mut self) -> Result<()> {
        let info = self.info.take().ok_or(Error::NoInfo)?;
        self.write_info(INFO, &info).inspect_err(|_| {
            // A directory with a part of `info` would look like a trace.
            let _ = fs::remove_file(self.path.join(INFO));
        })
    }

    /// The end will not come: `info`, if it has, gets a name that makes no trace of the directory. Returns whether it is there.
    pub(crate) fn give_up(&mut self) -> bool {
        self.info.take().is_some_and(|info| self.write_info(INCOMPLETE_INFO, &info).is_ok())
    }

    fn write_info(&mut self, name: &str, info: &[u8]) -> Result<()> {
        self.use_file(name, OFlag::O_CREAT | OFlag::O_EXCL)?;
        self.made.insert(name.to_owned());
        self.current = Some(name.to_owned());
        self.write(info)
    }

    /// Opens a file of the directory, and lets go the one that was opened first if there are too many.
    fn use_file(&mut self, name: &str, new: OFlag) -> Result<()> {
        let file = self.open_file(name, new)?;
        if self.open.len() >= MAX_OPEN {
            self.open.pop_front();
        }
        self.open.push_back((name.to_owned(), file));
        Ok(())
    }

    /// Opens a file of the directory to add to it.
    pub(crate) fn open_file(&self, name: &str, new: OFlag) -> Result<File> {
        let flags = OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | new;
        let file = openat(&self.dir, name, flags, Mode::S_IRUSR | Mode::S_IWUSR);
        file.map(File::from).map_err(io::Error::from).map_err(Error::at(&self.path.join(name)))
    }
}

/// The name of a file as a peer says it, if that is one of a trace; `None` if it is harmless, but no file of a trace.
///
/// # Errors
///
/// [`Error::FileName`] for what is no name in a directory.
fn file_name(name: &[u8]) -> Result<Option<&str>> {
    let is_path = name.contains(&b'/') || name.contains(&0) || name == b"." || name == b"..";
    if is_path {
        return Err(Error::FileName(shown(name)));
    }
    let Ok(name) = str::from_utf8(name) else { return Ok(None) };
    let is_safe = |c: char| c.is_alphanumeric() || (' '..='~').contains(&c);
    if name.starts_with('.') || !name.chars().all(is_safe) {
        return Ok(None);
    }
    let is_sid = |name: &str| {
        let sid = name.strip_prefix("sid-").and_then(|rest| rest.strip_suffix(".map"));
        sid.is_some_and(|sid| sid.len() == 16 && sid.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')))
    };
    let is_taken = match TraceFile::of(name) {
        Some(TraceFile::Map) => is_sid(name),
        Some(TraceFile::Info | TraceFile::Records(_) | TraceFile::Perf(_) | TraceFile::Kernel(_)) | None => false,
        // It is of the files of the sender, by their times.
        Some(TraceFile::Index) => false,
        Some(_) => true,
    };
    Ok(is_taken.then_some(name))
}

/// A peer's text as a terminal may show it.
pub(crate) fn shown(text: &[u8]) -> String {
    const MAX_CHARS: usize = 80;

    let text = String::from_utf8_lossy(text);
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", Shown::new(&text[..end])),
        None => Shown::new(&text).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_directories() {
        for name in ["a", "uftrace.data", "A-1_b.c", &"x".repeat(64)] {
            assert!(is_dir_name(name), "{name}");
        }
        for name in ["", ".", "..", ".x", "/", "a/b", "../x", "a b", "ä", "a\0", "a\n", &"x".repeat(65)] {
            assert!(!is_dir_name(name), "{name}");
        }
    }

    #[test]
    fn names_of_files() {
        for name in [
            "task.txt",
            "task",
            "events.txt",
            "sid-0123456789abcdef.map",
            "prog.sym",
            "libstdc++.so.6.sym",
            "my prog.dbg",
            "clock.txt",
            "record.txt",
            "extern.dat",
            "kernel_header",
            "kallsyms",
        ] {
            assert_eq!(file_name(name.as_bytes()).unwrap(), Some(name));
        }
        for name in [
            "info",
            "7.dat",
            "perf-cpu0.dat",
            "kernel-cpu0.dat",
            "default.opts",
            "sid-x.map",
            "sid-0123456789ABCDEF.map",
            ".sym",
            ".x.sym",
            "a\n.sym",
            "\u{1b}[2J.sym",
            "",
        ] {
            assert_eq!(file_name(name.as_bytes()).unwrap(), None, "{name}");
        }
        assert_eq!(file_name(b"\xff.sym").unwrap(), None);
        for name in ["../x.sym", "/x.sym", "a/b.sym", "..", ".", "x\0.sym"] {
            assert!(matches!(file_name(name.as_bytes()), Err(Error::FileName(_))), "{name}");
        }
    }

    #[test]
    fn what_is_there_is_never_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path()).unwrap();
        std::os::unix::fs::symlink("/tmp", folder.path().join("b")).unwrap();
        let names: Vec<_> = [&b"a"[..], b"a", b"a", b"b", b"../x", b"/etc"]
            .map(|name| root.make(name).unwrap().path().file_name().unwrap().to_owned())
            .into();
        assert_eq!(names, ["a", "a-2", "a-3", "b-2", "1", "2"]);

        let mut store = root.make(b"c").unwrap();
        std::os::unix::fs::symlink(folder.path().join("outside"), store.path().join("7.dat")).unwrap();
        assert!(store.begin(Part::Task(7)).is_err());
        fs::write(store.path().join("task.txt"), "mine").unwrap();
        assert!(store.begin(Part::File(b"task.txt".to_vec())).is_err());
        assert!(!folder.path().join("outside").exists());
        assert_eq!(fs::read(store.path().join("task.txt")).unwrap(), b"mine");
    }

    #[test]
    fn more_files_than_are_open_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Root::open(folder.path()).unwrap().make(b"a").unwrap();
        for _ in 0..2 {
            for tid in 0..40 {
                store.begin(Part::Task(tid)).unwrap();
                store.write(&tid.to_le_bytes()).unwrap();
                store.write(&tid.to_le_bytes()).unwrap();
            }
        }
        assert!(store.open.len() <= MAX_OPEN);
        for tid in 0..40_u32 {
            let found = fs::read(store.path().join(files::records(tid))).unwrap();
            assert_eq!(found, tid.to_le_bytes().repeat(4));
        }
        assert_eq!((store.n_files(), store.bytes), (40, 640));
    }

    #[test]
    fn texts_of_others_cannot_do_anything_to_a_terminal() {
        assert_eq!(shown(b"a\x1b[2J\n"), "a\\u{1b}[2J\\n");
        assert_eq!(shown(&[b'x'; 1000]), format!("{}…", "x".repeat(80)));
    }
}
