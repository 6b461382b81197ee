//! Running programs, and recorders attached to them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::recorder::rftrace;
use crate::tools;

/// Messages about an attached program without a processor.
pub const BUSY: [&str; 3] = ["was at a safe place to call the tracer", "nothing was recorded", "has had no processor"];

/// How often it is tried again then.
const TRIES: usize = 20;

/// A running program.
#[derive(Debug)]
pub struct Running {
    /// Its process, or that of its parent.
    pub child: Child,
    /// Its number: that of the child, or of the child's child.
    pid: u32,
    /// Its output, behind the first line.
    pub output: BufReader<ChildStdout>,
    /// It runs there.
    pub folder: TempDir,
}

impl Running {
    /// Starts a program with one argument, and waits for its first line, its number.
    pub fn begin(program: &Path, way: &str) -> Self {
        Self::begin_by(Command::new(program).arg(way))
    }

    /// As [`begin`](Self::begin), by a command.
    pub fn begin_by(command: &mut Command) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut child = command.current_dir(&folder).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let children = format!("/proc/{0}/task/{0}/children", child.id());
        let pid = match line.trim() {
            // In a new space of process numbers.
            "1" => fs::read_to_string(children).unwrap().trim().parse().unwrap(),
            own => own.parse().unwrap(),
        };
        assert!(pid == child.id() || line.trim() == "1");
        Self { child, pid, output, folder }
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The directory of the recorders.
    pub fn trace(&self) -> PathBuf {
        self.folder.path().join("trace")
    }

    /// A recorder of it, not yet started.
    pub fn recorder(&self, options: &[&str]) -> Command {
        let mut command = Command::new(rftrace());
        command.args(["record", "-o", "trace", "-p", &self.pid().to_string()]).args(options);
        command.current_dir(&self.folder).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Records it.
    pub fn record(&self, options: &[&str]) -> Output {
        self.recorder(options).output().unwrap()
    }

    /// Records something of it. Where others have the processors, it may not have run meanwhile, or no thread may be found where it can be
    /// borrowed: that is said, and may be tried again. Returns what is said.
    #[track_caller]
    pub fn record_some(&self, options: &[&str]) -> String {
        let mut told = String::new();
        for _ in 0..TRIES {
            let output = self.record(options);
            told = self::told(&output);
            if output.status.success() {
                return told;
            }
            assert!(BUSY.iter().any(|said| told.contains(said)), "{told}");
        }
        panic!("{TRIES} times: {told}");
    }

    /// Waits until a recorder has written some of the records.
    #[track_caller]
    pub fn wait_for_records(&self) {
        let has_records = |file: fs::DirEntry| {
            let is_spool = file.file_name().to_string_lossy().starts_with("spool-");
            is_spool && file.path().extension().is_none() && file.metadata().is_ok_and(|about| about.len() > 0)
        };
        let folder = self.trace().join(".recording");
        wait_for(|| fs::read_dir(&folder).is_ok_and(|files| files.flatten().any(has_records)), "records");
    }

    /// Begins to record, and waits until that has begun. As by [`record_some`](Self::record_some) it may be tried again.
    pub fn begin_recording(&self, options: &[&str]) -> Child {
        self.begin_recording_by(options, |_| ())
    }

    /// By a prepared recorder.
    pub fn begin_recording_by(&self, options: &[&str], prepare: impl Fn(&mut Command)) -> Child {
        let mut told = String::new();
        for _ in 0..TRIES {
            let mut recorder = self.recorder(options);
            prepare(&mut recorder);
            let mut recorder = recorder.spawn().unwrap();
            let mut reader = BufReader::new(recorder.stderr.take().unwrap());
            told.clear();
            while reader.read_line(&mut told).unwrap() > 0 {
                if told.contains("recording process") {
                    // The thread reads further messages of the recorder.
                    thread::spawn(move || reader.read_to_end(&mut Vec::new()));
                    return recorder;
                }
            }
            recorder.wait().unwrap();
            assert!(BUSY.iter().any(|said| told.contains(said)), "{told}");
        }
        panic!("{TRIES} times: {told}");
    }

    /// Gives it some input, and returns its answer, a line.
    pub fn ask(&mut self, input: &str) -> String {
        self.child.stdin.as_mut().unwrap().write_all(input.as_bytes()).unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    /// Has it come to its end. Returns its status and its output.
    pub fn end(mut self) -> (ExitStatus, String) {
        drop(self.child.stdin.take());
        let mut said = String::new();
        self.output.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap(), said)
    }

    /// The bytes of its code, and of its libraries', by their lines in its maps.
    pub fn code(&self) -> BTreeMap<String, Vec<u8>> {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid())).unwrap();
        let memory = fs::File::open(format!("/proc/{}/mem", self.pid())).unwrap();
        let texts =
            maps.lines().filter(|line| line.contains(" r-xp ") && line.contains(" /") && !line.contains("memfd"));
        let read = |line: &str| {
            let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
            let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).unwrap());
            let mut bytes = vec![0; (end - start) as usize];
            memory.read_exact_at(&mut bytes, start).unwrap();
            (line.to_owned(), bytes)
        };
        texts.map(read).collect()
    }
}

/// Has a recorder end, with success.
#[track_caller]
pub fn stop(mut recorder: Child) {
    tools::run(Command::new("kill").args(["-INT", &recorder.id().to_string()]));
    assert!(recorder.wait().unwrap().success());
}

/// Waits until something is so.
#[track_caller]
pub fn wait_for(is_so: impl Fn() -> bool, what: &str) {
    /// It does not take so long, whatever else the machine does.
    const LONG: Duration = Duration::from_secs(60);

    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LONG, "not within a minute: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// The messages of a recorder.
pub fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
