//! The folder of `rftrace ctl PID --dir DIR`, with ftrace's names as files. A program sets a value by writing to a file
//! and closing it; the file then shows the value in force. `trace_pipe` and `trace_marker` are FIFOs. The folder
//! disappears with the command.
//!
//! Not here: the meaning of the names (`names`), and the connection to a recorder (`client`).

use std::collections::{HashMap, VecDeque};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use rftrace_format::opener::{self, MOST_TEXT};

use crate::client::Client;
use crate::names::NAMES;

const PIPE: &str = "trace_pipe";
const MARKER: &str = "trace_marker";
/// It shows the present contents of memory, and would be out of date at once.
const NOT_A_FILE: &str = "trace";

/// State of the recorder with changes from elsewhere, read again and again.
const CHANGING: [&str; 3] = ["tracing_on", "current_tracer", "stats"];
/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// The maximum number of watched files with replaced names.
const N_REPLACED: usize = 64;
/// Flag: a file outside the folder is watched no longer; nix has no name for it.
const EXCL_UNLINK: AddWatchFlags = AddWatchFlags::from_bits_retain(nix::libc::IN_EXCL_UNLINK);

/// A function that makes a new connection to a recorder.
pub type Connect = fn(u32) -> io::Result<Client>;

/// Maintains a folder with the files until the recorder ends or `is_over` becomes true. It passes messages about
/// refused values to `tell`.
///
/// # Errors
///
/// The folder exists and is not empty, or cannot be made.
pub fn serve(
    pid: u32,
    connect: Connect,
    dir: &Path,
    is_over: &AtomicBool,
    mut tell: impl FnMut(&str),
) -> io::Result<()> {
    let mut folder = Folder::make(dir, pid, connect)?;
    folder.show_all()?;
    // Where calls are never shown, a reader is not kept waiting.
    let no_pipe = connect(pid)?.ask(&["pipe"])?.err();
    if let Some(problem) = &no_pipe {
        fs::write(dir.join(PIPE), format!("# {problem}\n"))?;
    }
    // Files that were replaced are looked at by themselves.
    folder.inotify.add_watch(dir, AddWatchFlags::IN_CLOSE_WRITE | EXCL_UNLINK)?;
    for (name, work) in [(PIPE, pass_on as fn(u32, Connect, &Path)), (MARKER, take_marks)] {
        if name == PIPE && no_pipe.is_some() {
            continue;
        }
        let path = dir.join(name);
        mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR)?;
        // It waits for others, and ends with this process.
        thread::Builder::new().name(name.to_owned()).spawn(move || work(pid, connect, &path))?;
    }
    tell(&format!("{} has ftrace's files for process {pid}; Ctrl-C removes them", dir.display()));
    let mut looked = Instant::now();
    while !is_over.load(Relaxed) {
        let rest = LOOK.saturating_sub(looked.elapsed());
        let timeout = PollTimeout::try_from(rest).unwrap_or(PollTimeout::ZERO);
        match poll(&mut [PollFd::new(folder.inotify.as_fd(), PollFlags::POLLIN)], timeout) {
            Err(Errno::EINTR) => continue,
            waited => _ = waited?,
        }
        let events = match folder.inotify.read_events() {
            Err(Errno::EAGAIN) => Vec::new(),
            events => events?,
        };
        let mut written: Vec<_> = events.into_iter().map(|event| (event.wd, event.name)).collect();
        written.dedup();
        for (watch, name) in written {
            let written = match name {
                Some(name) => folder.read(&name.to_string_lossy()),
                None => folder.read_replaced(watch)?,
            };
            let Some((name, text)) = written else { continue };
            if let Some(problem) = folder.set(name, &text)? {
                tell(&format!("{name}: {problem}"));
            }
        }
        if looked.elapsed() >= LOOK {
            looked = Instant::now();
            for name in CHANGING {
                folder.show(name)?;
            }
        }
        if folder.has_ended {
            tell(&format!("the recording of process {pid} has ended"));
            break;
        }
    }
    Ok(())
}

/// The folder. Dropping this removes it.
struct Folder {
    dir: PathBuf,
    pid: u32,
    connect: Connect,
    client: Client,
    has_ended: bool,
    /// Text of each file when it was last written or read here.
    found: HashMap<&'static str, Vec<u8>>,
    inotify: Inotify,
    /// The latest ones, the oldest first.
    replaced: VecDeque<Replaced>,
}

/// A file with its name taken by another one. A process with this file open still writes to it.
struct Replaced {
    name: &'static str,
    file: File,
    watch: WatchDescriptor,
}

impl Folder {
    fn make(dir: &Path, pid: u32, connect: Connect) -> io::Result<Self> {
        let client = connect(pid)?;
        match DirBuilder::new().mode(0o700).create(dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && fs::read_dir(dir)?.next().is_none() => {}
            made => made?,
        }
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let (found, replaced) = (HashMap::new(), VecDeque::new());
        Ok(Self { dir: dir.to_owned(), pid, connect, client, has_ended: false, found, inotify, replaced })
    }

    /// Returns the names of plain files.
    fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|name| name.name).filter(|&name| ![PIPE, MARKER, NOT_A_FILE].contains(&name))
    }

    fn show_all(&mut self) -> io::Result<()> {
        Self::names().try_for_each(|name| self.show(name))
    }

    /// Writes the value in force to a file.
    fn show(&mut self, name: &'static str) -> io::Result<()> {
        let known = NAMES.iter().find(|known| known.name == name);
        let text = if known.is_some_and(|it| it.is_read) { self.ask(&["get", name]) } else { Ok(Vec::new()) };
        let text = text.unwrap_or_else(|problem| format!("# {problem}\n").into_bytes());
        // A writer of the file is not disturbed as long as nothing has changed.
        if self.has_ended || self.found.get(name) == Some(&text) {
            return Ok(());
        }
        let path = self.dir.join(name);
        if known.is_some_and(|it| it.is_set)
            && let Some(found) = self.found.get(name)
            && let Ok(file) = opener::open(&path)
        {
            let mut old = Replaced::new(name, file, &self.inotify)?;
            // Somebody has written it meanwhile: it will be set.
            if old.read()? != *found {
                return Ok(self.inotify.rm_watch(old.watch)?);
            }
            if self.replaced.len() == N_REPLACED
                && let Some(oldest) = self.replaced.pop_front()
            {
                self.inotify.rm_watch(oldest.watch)?;
            }
            self.replaced.push_back(old);
        }
        // By another name: nothing seems to be set by this.
        let new = self.dir.join(format!(".{name}"));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&text)?;
        // Closed by the name that nobody sets.
        drop(file);
        fs::rename(new, path)?;
        self.found.insert(name, text);
        Ok(())
    }

    /// Returns the text written to the file of a name; the file stays.
    fn read(&mut self, name: &str) -> Option<(&'static str, Vec<u8>)> {
        let name = Self::names().find(|&known| known == name)?;
        let text = opener::read(&self.dir.join(name), MOST_TEXT).unwrap_or_default();
        self.found.insert(name, text.clone());
        Some((name, text))
    }

    /// Returns the text written to a file since replaced.
    fn read_replaced(&mut self, watch: WatchDescriptor) -> io::Result<Option<(&'static str, Vec<u8>)>> {
        let Some(old) = self.replaced.iter_mut().find(|old| old.watch == watch) else { return Ok(None) };
        Ok(Some((old.name, old.read()?)))
    }

    /// Sets the written text. Returns the problem on failure.
    fn set(&mut self, name: &'static str, text: &[u8]) -> io::Result<Option<String>> {
        let text = String::from_utf8_lossy(text);
        let words = ["set", name].into_iter().chain(text.lines());
        let asked = self.ask(&words.collect::<Vec<_>>());
        // A name changes others.
        self.show_all()?;
        Ok(asked.err())
    }

    fn ask(&mut self, words: &[&str]) -> Result<Vec<u8>, String> {
        let mut asked = self.client.ask(words);
        let is_gone = asked.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::InvalidInput);
        // A client that is silent for long gives way to others.
        if is_gone && let Ok(client) = (self.connect)(self.pid) {
            self.client = client;
            asked = self.client.ask(words);
        }
        asked.unwrap_or_else(|error| {
            self.has_ended |= error.kind() != io::ErrorKind::InvalidInput;
            Err(error.to_string())
        })
    }
}

impl Replaced {
    /// Starts the watch of a file.
    fn new(name: &'static str, file: File, inotify: &Inotify) -> io::Result<Self> {
        // The file itself, whatever its name is then.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let watch = inotify.add_watch(path.as_str(), AddWatchFlags::IN_CLOSE_WRITE)?;
        Ok(Self { name, file, watch })
    }

    fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        self.file.rewind()?;
        self.file.read_to_end(&mut text)?;
        Ok(text)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        for name in Self::names().chain([PIPE, MARKER]) {
            let _ = fs::remove_file(self.dir.join(name));
            let _ = fs::remove_file(self.dir.join(format!(".{name}")));
        }
        // Only if nothing else is in it.
        let _ = fs::remove_dir(&self.dir);
    }
}

/// Writes calls to whoever reads the FIFO, one after the other.
fn pass_on(pid: u32, connect: Connect, path: &Path) {
    // Opening waits for a reader.
    while let Ok(mut to) = File::options().write(true).open(path) {
        let Ok(mut client) = connect(pid) else { return };
        if !matches!(client.ask(&["pipe"]), Ok(Ok(_))) {
            return;
        }
        let mut from = client.into_stream();
        // A reader that is gone is a broken pipe.
        let is_over = loop {
            match from.fill_buf() {
                Ok([]) | Err(_) => break true,
                Ok(bytes) => {
                    let n_bytes = bytes.len();
                    if to.write_all(bytes).is_err() {
                        break false;
                    }
                    from.consume(n_bytes);
                }
            }
        };
        if is_over {
            return;
        }
    }
}

/// Makes a mark of each line.
fn take_marks(pid: u32, connect: Connect, path: &Path) {
    // It also is one of those who write, so that there is no end.
    let Ok(from) = File::options().read(true).write(true).open(path) else { return };
    let Ok(mut client) = connect(pid) else { return };
    for line in BufReader::new(from).lines().map_while(Result::ok) {
        if client.ask(&["mark", &line]).is_err() {
            // A client that is silent for long gives way to others.
            let Ok(new) = connect(pid) else { return };
            client = new;
            if client.ask(&["mark", &line]).is_err() {
                return;
            }
        }
    }
}
