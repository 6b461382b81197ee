//! Sections of a process's text, each from one signal that switches to the next, or to its end: a header, its events, and its calls.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use rftrace_record::follow::{Happened, command_of, process_of};
use rftrace_record::resources::ResourceRecorder;
use rftrace_resources::{FunctracerText, Names, Recording, Section, functracer_header};

/// Destination of sections.
#[derive(Debug)]
pub(super) enum Place {
    Stdout,
    Folder(PathBuf),
}

/// All that was begun.
#[derive(Debug)]
pub(super) struct Sections {
    text: FunctracerText,
    place: Place,
    is_started: bool,
    is_verbose: bool,
    processes: BTreeMap<u32, Process>,
    /// Processes of threads: a thread that is gone cannot be asked.
    threads: BTreeMap<u32, u32>,
    /// Sections that have ended and were not written, in order.
    ended: Vec<Ended>,
}

#[derive(Debug, Default)]
struct Process {
    threads: BTreeSet<u32>,
    open: Option<Open>,
    /// The number of the next file to try, and of the next call.
    step: u32,
    index: u64,
}

/// A section.
#[derive(Debug)]
struct Open {
    from: u64,
    out: Out,
    lines: Vec<(u64, String)>,
}

#[derive(Debug)]
enum Out {
    /// The header, which was not written.
    Stdout(String),
    File(PathBuf, File),
}

#[derive(Debug)]
struct Ended {
    pid: u32,
    until: u64,
    section: Open,
}

impl Sections {
    pub(super) fn new(text: FunctracerText, place: Place, is_started: bool, is_verbose: bool) -> Self {
        let (processes, threads, ended) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        Self { text, place, is_started, is_verbose, processes, threads, ended }
    }

    /// Takes an event.
    pub(super) fn add(&mut self, happened: Happened, recorder: &ResourceRecorder) -> Result<()> {
        let now = recorder.now();
        match happened {
            Happened::Created(tid) => {
                let pid = process_of(tid).unwrap_or(tid);
                self.threads.insert(tid, pid);
                let is_new = !self.processes.contains_key(&pid);
                self.processes.entry(pid).or_default().threads.insert(tid);
                if is_new && self.is_started {
                    self.begin(pid, now)?;
                }
                let is_open = self.processes[&pid].open.is_some();
                if is_open && !is_new {
                    self.tell_begun(tid);
                }
                self.line(tid, now, || format!("Process/Thread {tid} ({}) was created", name_of(tid)));
            }
            Happened::Forked(tid, child) => {
                self.line(tid, now, || format!("Process/Thread {tid} ({}) has forked {child}", words_of(tid)));
            }
            Happened::Executed(tid) => {
                // The other threads are gone without a word.
                let pid = *self.threads.get(&tid).unwrap_or(&tid);
                self.threads.retain(|&thread, &mut process| process != pid || thread == tid);
                self.processes.entry(pid).or_default().threads = BTreeSet::from([tid]);
                self.line(tid, now, || format!("Process/Thread {tid} has executed: {}", words_of(tid)));
            }
            Happened::Exiting(tid, status) => {
                self.line(tid, now, || format!("Process/Thread {tid} has exited with code {status}"));
                self.forget(tid, now);
            }
            Happened::Detached(tid) => {
                self.line(tid, now, || format!("Process/Thread {tid} was detached"));
                self.forget(tid, now);
            }
            Happened::Killed(tid, signal) => {
                let pid = self.threads.remove(&tid).unwrap_or(tid);
                let text = format!("Process/Thread {tid} was killed by signal {signal}");
                if let Some(ended) = self.ended.iter_mut().rev().find(|ended| ended.pid == pid) {
                    ended.section.lines.push((ended.until, text));
                } else if let Some(open) = self.processes.get_mut(&pid).and_then(|process| process.open.as_mut()) {
                    open.lines.push((now, text));
                }
            }
            Happened::Signal(tid, signal) => {
                self.line(tid, now, || format!("Process/Thread {tid} received signal {signal}"));
            }
        }
        Ok(())
    }

    /// Begins and ends sections, of each process the other.
    pub(super) fn switch(&mut self, recorder: &ResourceRecorder, work: &Path) -> Result<()> {
        let living = self.processes.iter().filter(|(_, process)| !process.threads.is_empty());
        let pids: Vec<(u32, bool)> = living.map(|(&pid, process)| (pid, process.open.is_some())).collect();
        if pids.iter().any(|&(_, is_open)| !is_open) {
            recorder.pause(false);
        }
        let now = recorder.now();
        for &(pid, is_open) in &pids {
            let threads: Vec<u32> = self.processes[&pid].threads.iter().copied().collect();
            if is_open {
                self.finish(pid, now);
                threads.iter().for_each(|&tid| self.tell_ended(pid, tid));
            } else {
                self.begin(pid, now)?;
                threads.iter().filter(|&&tid| tid != pid).for_each(|&tid| self.tell_begun(tid));
            }
        }
        if !self.ended.is_empty() {
            let path = work.join("so-far");
            recorder.write_so_far(&path)?;
            self.write(&path)?;
            let _ = std::fs::remove_file(path);
        }
        recorder.pause(self.processes.values().all(|process| process.open.is_none()));
        Ok(())
    }

    /// Ends all.
    pub(super) fn end(&mut self, now: u64) {
        let pids: Vec<u32> = self.processes.keys().copied().collect();
        pids.into_iter().for_each(|pid| self.finish(pid, now));
    }

    /// Writes the ended sections of this recording.
    pub(super) fn write(&mut self, recording: &Path) -> Result<()> {
        if self.ended.is_empty() {
            return Ok(());
        }
        let recording = Recording::open(recording)?;
        let mut names = Names::default();
        for Ended { pid, until, section: Open { from, out, lines } } in std::mem::take(&mut self.ended) {
            let index = self.processes.get(&pid).map_or(0, |process| process.index);
            let section = Section { pid, times: (from, until), first_index: index, lines: &lines };
            let mut write = |out: &mut dyn Write| self.text.write(&recording, &section, &mut names, out);
            let next = match out {
                Out::Stdout(header) => {
                    let mut out = BufWriter::new(io::stdout().lock());
                    let written = out.write_all(header.as_bytes()).map_err(rftrace_read::Error::Write);
                    let next = written.and_then(|()| write(&mut out));
                    match next.and_then(|next| out.flush().map(|()| next).map_err(rftrace_read::Error::Write)) {
                        // The reader has seen enough.
                        Err(rftrace_read::Error::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => continue,
                        next => next.context("cannot write to stdout")?,
                    }
                }
                Out::File(path, file) => {
                    let mut out = BufWriter::new(file);
                    let next = write(&mut out).with_context(|| format!("cannot write {}", path.display()))?;
                    out.flush().with_context(|| format!("cannot write {}", path.display()))?;
                    next
                }
            };
            if let Some(process) = self.processes.get_mut(&pid) {
                process.index = next;
            }
        }
        for path in names.changed() {
            say!("rftrace: cannot name functions of {path}: the file is missing, or differs from the recorded one");
        }
        Ok(())
    }

    fn begin(&mut self, pid: u32, now: u64) -> Result<()> {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let header = functracer_header(self.text.has_names, unix, pid, &name_of(pid));
        let process = self.processes.entry(pid).or_default();
        let out = match &self.place {
            Place::Stdout => Out::Stdout(header),
            Place::Folder(folder) => loop {
                let path = folder.join(format!("allocs-{pid}.{}.trace", process.step));
                match File::create_new(&path) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => process.step += 1,
                    file => {
                        let file = file.and_then(|mut file| file.write_all(header.as_bytes()).map(|()| file));
                        break Out::File(
                            path.clone(),
                            file.with_context(|| format!("cannot write {}", path.display()))?,
                        );
                    }
                }
            },
        };
        process.open = Some(Open { from: now, out, lines: Vec::new() });
        self.tell_begun(pid);
        Ok(())
    }

    fn finish(&mut self, pid: u32, now: u64) {
        if let Some(section) = self.processes.get_mut(&pid).and_then(|process| process.open.take()) {
            self.ended.push(Ended { pid, until: now, section });
        }
    }

    /// A thread is followed no more: with its last one a process' section ends.
    fn forget(&mut self, tid: u32, now: u64) {
        let Some(&pid) = self.threads.get(&tid) else { return };
        let Some(process) = self.processes.get_mut(&pid) else { return };
        process.threads.remove(&tid);
        if process.threads.is_empty() {
            self.finish(pid, now);
        }
        self.tell_ended(pid, tid);
    }

    fn line(&mut self, tid: u32, now: u64, text: impl FnOnce() -> String) {
        let pid = self.threads.get(&tid).copied().unwrap_or(tid);
        if let Some(open) = self.processes.get_mut(&pid).and_then(|process| process.open.as_mut()) {
            open.lines.push((now, text()));
        }
    }

    fn tell_begun(&self, tid: u32) {
        if self.is_verbose {
            say!("Started tracing {tid}");
        }
    }

    /// Prints the place of the section, open until now, of a thread's process.
    fn tell_ended(&self, pid: u32, tid: u32) {
        if !self.is_verbose {
            return;
        }
        let open = self.processes.get(&pid).and_then(|process| process.open.as_ref());
        let ended = self.ended.iter().rev().find(|ended| ended.pid == pid).map(|ended| &ended.section);
        match open.or(ended).map(|section| &section.out) {
            Some(Out::Stdout(_)) => say!("Stopped tracing {tid}, trace saved to stdout"),
            Some(Out::File(path, _)) => say!("Stopped tracing {tid}, trace saved to {}", path.display()),
            None => {}
        }
    }
}

/// The name by which a program was run.
fn name_of(tid: u32) -> String {
    command_of(tid).map_or_else(|| "<none>".to_owned(), |words| words[0].clone())
}

/// That and its arguments.
fn words_of(tid: u32) -> String {
    command_of(tid).map_or_else(|| "<none>".to_owned(), |words| words.join(" "))
}
