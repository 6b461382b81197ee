//! Answers to recorded processes about functions' values, and their reports on filter rules that match anything.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::memfd::{MFdFlags, memfd_create};
use rftrace_format::passed::Passed;
use rftrace_format::recording::{TYPES, TYPES_END, TypesLine};

/// A socket that answers questions of recorded processes about functions' values.
#[derive(Debug)]
pub struct Types {
    socket: PathBuf,
    /// The folder of the socket. Processes are told the folder: its path may be longer than a socket's.
    folder: File,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The most bytes of a question.
const MOST_ASKED: u64 = 1 << 20;

/// How long a process may take to ask.
const PATIENCE: Duration = Duration::from_secs(5);

impl Types {
    /// Starts to answer at a socket in the folder `work`. `answer` returns [lines](TypesLine) for a path and a
    /// build-id.
    ///
    /// # Errors
    ///
    /// The socket cannot be made.
    pub fn begin(work: &Path, mut answer: impl FnMut(&str, Option<&str>) -> String + Send + 'static) -> Result<Self> {
        let socket = work.join(TYPES);
        let failed = || format!("cannot make the socket {}", socket.display());
        #[expect(clippy::disallowed_methods, reason = "a folder")]
        let folder = File::open(work).with_context(failed)?;
        let _ = fs::remove_file(&socket);
        let listener =
            UnixListener::bind(format!("/proc/self/fd/{}/{TYPES}", folder.as_raw_fd())).with_context(failed)?;
        let is_over = Arc::<AtomicBool>::default();
        let told = Arc::clone(&is_over);
        let thread = thread::Builder::new().name("types".to_owned()).spawn(move || {
            for stream in listener.incoming() {
                if told.load(Relaxed) {
                    return;
                }
                // A process that does not wait for the answer does without.
                let _ = stream.and_then(|stream| serve(stream, &mut answer));
            }
        });
        let thread = Some(thread.context("cannot start a thread for types")?);
        Ok(Self { socket, folder, is_over, thread })
    }

    /// Returns the socket's folder for other processes. It is valid while this process lives.
    ///
    /// # Errors
    ///
    /// The system does not report it.
    pub fn passed(&self) -> Result<Passed> {
        Passed::of(&self.folder).context("cannot share the socket for types with the program")
    }
}

impl Drop for Types {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        // Whoever connects wakes the thread.
        if UnixStream::connect(format!("/proc/self/fd/{}/{TYPES}", self.folder.as_raw_fd())).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
        let _ = fs::remove_file(&self.socket);
    }
}

fn serve(mut stream: UnixStream, answer: &mut impl FnMut(&str, Option<&str>) -> String) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut asked = String::new();
    (&stream).take(MOST_ASKED).read_to_string(&mut asked)?;
    for line in asked.lines() {
        if let Some(TypesLine::Module { build_id, path }) = TypesLine::parse(line) {
            stream.write_all(answer(path, build_id).as_bytes())?;
        }
    }
    stream.write_all(TYPES_END.as_bytes())
}

/// A memory that all recorded processes share: a byte for each rule, preceded by one that is set once a process applies
/// the filter.
#[derive(Debug)]
pub struct RuleEffects {
    memory: File,
    rules: Vec<String>,
}

impl RuleEffects {
    /// Makes the memory for these rules, in the order of
    /// [`Filter::optional_rules`](rftrace_frontend::Filter::optional_rules).
    ///
    /// # Errors
    ///
    /// The system has no memory for it.
    pub fn create(rules: Vec<String>) -> Result<Self> {
        let memory = memfd_create("rftrace-rules", MFdFlags::MFD_CLOEXEC).context("no memory for the filter rules")?;
        let mut memory = File::from(memory);
        memory.write_all(&vec![0; rules.len() + 1]).context("no memory for the filter rules")?;
        Ok(Self { memory, rules })
    }

    /// Returns the file for other processes. It is valid while this process lives.
    ///
    /// # Errors
    ///
    /// The system does not report it.
    pub fn passed(&self) -> Result<Passed> {
        Passed::of(&self.memory).context("cannot share the filter rules with the program")
    }

    /// Adds the report of a process that applies the rules: for each rule, whether it matches anything there.
    ///
    /// # Errors
    ///
    /// The memory cannot be written.
    pub fn add(&self, in_effect: &[bool]) -> Result<()> {
        let matched = (1..).zip(in_effect).filter(|&(_, &is_matched)| is_matched).map(|(place, _)| place);
        let mut places = [0].into_iter().chain(matched);
        places
            .try_for_each(|place| self.memory.write_all_at(&[1], place))
            .context("cannot write the list of matched filter rules")
    }

    /// Returns the rules that matched nothing in any process; none if no process has applied them.
    ///
    /// # Errors
    ///
    /// The memory cannot be read.
    pub fn without_effect(&self) -> Result<Vec<&str>> {
        let mut bytes = vec![0; self.rules.len() + 1];
        self.memory.read_exact_at(&mut bytes, 0).context("cannot read the list of matched filter rules")?;
        let Some((&1, matched)) = bytes.split_first() else { return Ok(Vec::new()) };
        Ok(self.rules.iter().zip(matched).filter(|&(_, &matched)| matched == 0).map(|(rule, _)| &**rule).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn rules_of_several_processes() {
        let effects = RuleEffects::create(["a", "b", "c"].map(str::to_owned).into()).unwrap();
        assert!(effects.without_effect().unwrap().is_empty(), "nobody has looked");
        for matched in [&[0_u64, 1][..], &[0, 3], &[0]] {
            let file = effects.passed().unwrap().open(File::options().write(true)).unwrap();
            matched.iter().for_each(|&place| file.write_all_at(&[1], place).unwrap());
        }
        assert_eq!(effects.without_effect().unwrap(), ["b"]);
    }

    #[test]
    fn types_are_answered_at_their_path() {
        let dir = tempfile::tempdir().unwrap();
        // Longer than a socket's path may be.
        let work = dir.path().join("long".repeat(40));
        fs::create_dir(&work).unwrap();
        let types = Types::begin(&work, |path, build_id| format!("# {path} {build_id:?}\n")).unwrap();
        for _ in 0..2 {
            let asked = [("/a b".to_owned(), Some("ab".to_owned()))];
            let answer = rftrace_frontend::ask_values(&types.passed().unwrap(), &asked).unwrap();
            assert_eq!(answer, "# /a b Some(\"ab\")\n");
        }
        drop(types);
        assert!(!work.join(TYPES).exists());
    }
}
