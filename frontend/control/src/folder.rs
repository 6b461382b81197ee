//! ftrace's names as files of a folder: `rftrace ctl PID --dir DIR`. What is written to a file is set when it is closed, and the file has what
//! holds then. `trace_pipe` and `trace_marker` are FIFOs. All of it goes with the command.
//!
//! Not here: what the names mean (`names`), and how a recorder is asked (`client`).

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::client::Client;
use crate::names::NAMES;

const PIPE: &str = "trace_pipe";
const MARKER: &str = "trace_marker";
/// It is what is in memory now, and would be old at once.
const NOT_A_FILE: &str = "trace";

/// What the recorder knows of itself, and others may change: looked at again and again.
const CHANGING: [&str; 3] = ["tracing_on", "current_tracer", "stats"];
/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// A connection to the recorder, made anew.
pub type Connect = fn(u32) -> io::Result<Client>;

/// Has a folder with files as long as the recorder is there and `is_over` says nothing else. What could not be set is told.
///
/// # Errors
///
/// The folder is there and not empty, or cannot be made.
pub fn serve(
    pid: u32,
    connect: Connect,
    dir: &Path,
    is_over: &AtomicBool,
    mut tell: impl FnMut(&str),
) -> io::Result<()> {
    let mut folder = Folder::make(dir, connect(pid)?)?;
    // Before what is in files may be changed.
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
    folder.show_all()?;
    // Where calls are never shown, who reads them is not kept waiting.
    let no_pipe = connect(pid)?.ask(&["pipe"])?.err();
    if let Some(problem) = &no_pipe {
        fs::write(dir.join(PIPE), format!("# {problem}\n"))?;
    }
    inotify.add_watch(dir, AddWatchFlags::IN_CLOSE_WRITE)?;
    for (name, work) in [(PIPE, pass_on as fn(u32, Connect, &Path)), (MARKER, take_marks)] {
        if name == PIPE && no_pipe.is_some() {
            continue;
        }
        let path = dir.join(name);
        mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR)?;
        // It waits for others, and ends with this process.
        thread::Builder::new().name(name.to_owned()).spawn(move || work(pid, connect, &path))?;
    }
    tell(&format!("{} has ftrace's files of process {pid}; Ctrl-C ends that, and removes them", dir.display()));
    let mut looked = Instant::now();
    while !is_over.load(Relaxed) {
        let rest = LOOK.saturating_sub(looked.elapsed());
        let timeout = PollTimeout::try_from(rest).unwrap_or(PollTimeout::ZERO);
        match poll(&mut [PollFd::new(inotify.as_fd(), PollFlags::POLLIN)], timeout) {
            Err(Errno::EINTR) => continue,
            waited => _ = waited?,
        }
        let events = match inotify.read_events() {
            Err(Errno::EAGAIN) => Vec::new(),
            events => events?,
        };
        let mut names: Vec<String> = events.into_iter().filter_map(|event| event.name?.into_string().ok()).collect();
        names.dedup();
        for name in names {
            if let Some(problem) = folder.set(&name)? {
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

/// The folder, which goes with this.
struct Folder {
    dir: PathBuf,
    client: Client,
    has_ended: bool,
    /// What each file had when it was last written or read here.
    found: HashMap<String, Vec<u8>>,
}

impl Folder {
    fn make(dir: &Path, client: Client) -> io::Result<Self> {
        match DirBuilder::new().mode(0o700).create(dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && fs::read_dir(dir)?.next().is_none() => {}
            made => made?,
        }
        Ok(Self { dir: dir.to_owned(), client, has_ended: false, found: HashMap::new() })
    }

    /// The names that plain files have.
    fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|name| name.name).filter(|&name| ![PIPE, MARKER, NOT_A_FILE].contains(&name))
    }

    fn show_all(&mut self) -> io::Result<()> {
        Self::names().try_for_each(|name| self.show(name))
    }

    /// Has a file hold what holds.
    fn show(&mut self, name: &str) -> io::Result<()> {
        let is_read = NAMES.iter().any(|known| known.name == name && known.is_read);
        let text = if is_read { self.ask(&["get", name]) } else { Ok(Vec::new()) };
        let text = text.unwrap_or_else(|problem| format!("# {problem}\n").into_bytes());
        let before = self.found.get(name);
        // Who is about to write it is not disturbed as long as nothing has changed.
        if !self.has_ended && before != Some(&text) {
            let path = self.dir.join(name);
            // Somebody has written it meanwhile: it will be set.
            if before.is_some_and(|before| fs::read(&path).is_ok_and(|now| now != *before)) {
                return Ok(());
            }
            // By another name: nothing seems to be set by this.
            let new = self.dir.join(format!(".{name}"));
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(&text)?;
            // Closed by the name that nobody sets.
            drop(file);
            fs::rename(new, path)?;
            self.found.insert(name.to_owned(), text);
        }
        Ok(())
    }

    /// Sets what a file has. Returns why not, if it was not.
    fn set(&mut self, name: &str) -> io::Result<Option<String>> {
        if !Self::names().any(|known| known == name) {
            return Ok(None);
        }
        let found = fs::read(self.dir.join(name)).unwrap_or_default();
        let text = String::from_utf8_lossy(&found).into_owned();
        // It has what was written.
        self.found.insert(name.to_owned(), found);
        let words = ["set", name].into_iter().chain(text.lines());
        let asked = self.ask(&words.collect::<Vec<_>>());
        // A name changes others.
        self.show_all()?;
        Ok(asked.err())
    }

    fn ask(&mut self, words: &[&str]) -> Result<Vec<u8>, String> {
        self.client.ask(words).unwrap_or_else(|error| {
            self.has_ended |= error.kind() != io::ErrorKind::InvalidInput;
            Err(error.to_string())
        })
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
        // Who reads no more is a broken pipe.
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

/// Makes a mark of each line that comes.
fn take_marks(pid: u32, connect: Connect, path: &Path) {
    // It also is one of those who write, so that there is no end.
    let Ok(from) = File::options().read(true).write(true).open(path) else { return };
    let Ok(mut client) = connect(pid) else { return };
    for line in BufReader::new(from).lines().map_while(Result::ok) {
        if client.ask(&["mark", &line]).is_err() {
            return;
        }
    }
}
