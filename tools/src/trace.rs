//! A trace directory.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result, read_file};
use crate::events::EventNames;
use crate::info::Info;
use crate::merge::Merged;
use crate::perf::{self, Switch, Switches};
use crate::records::Records;
use crate::session::{Session, SymbolLoader};
use crate::symbols::Symbol;
use crate::tasks::{self, TaskLine};
use crate::tree::CallTree;
use crate::warning::{Warning, Warnings};

/// A trace directory whose metadata has been read. Records are read from their files when they are asked for.
#[derive(Debug)]
pub struct Trace {
    dir: PathBuf,
    info: Info,
    tasks: Vec<Task>,
    sessions: Vec<Session>,
    events: EventNames,
    switches: Switches,
    warnings: Warnings,
}

/// A thread of the traced program.
#[derive(Debug, Clone)]
pub struct Task {
    tid: u32,
    pid: u32,
    /// The sessions this task ran in, with when each began, in order of time.
    sessions: Vec<(u64, usize)>,
    process_name: Arc<str>,
    name: Option<String>,
}

impl Task {
    /// The thread's number.
    pub fn tid(&self) -> u32 {
        self.tid
    }

    /// The number of the process it belongs to.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The file name of the program that its process ran last; empty, if the trace does not tell.
    pub fn process_name(&self) -> &str {
        &self.process_name
    }

    /// The thread's name; that of the process, if the trace has none, as uftrace's do.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.process_name)
    }
}

impl Trace {
    /// Reads the metadata of the trace in `dir`: `info`, `task.txt`, the maps, the symbols, the event names, and the
    /// context switches.
    ///
    /// # Errors
    ///
    /// One of these files is missing (symbols and event names may be) or malformed.
    pub fn open(dir: &Path) -> Result<Self> {
        let info = Info::read(&dir.join("info"))?;
        let mut warnings = Warnings::default();

        let path = dir.join("task.txt");
        let lines = tasks::parse(&path, &read_file(&path)?, &mut warnings)?;
        let mut processes = Processes::default();
        let mut sessions = Vec::new();
        let mut exe_names = Vec::new();
        let mut idx_of_sid = HashMap::new();
        let mut loader = SymbolLoader::default();
        for line in lines {
            match line {
                TaskLine::Session { time_ns, pid, sid, exe_name } => {
                    let idx = match idx_of_sid.get(&sid) {
                        Some(&idx) => idx,
                        None => {
                            sessions.push(Session::read(dir, &sid, &mut loader)?);
                            exe_names.push(exe_name);
                            idx_of_sid.insert(sid, sessions.len() - 1);
                            sessions.len() - 1
                        }
                    };
                    processes.sessions.entry(pid).or_default().push((time_ns, idx));
                }
                TaskLine::Task { tid, pid, name } => {
                    processes.add_task(tid, pid);
                    if !name.is_empty() {
                        processes.names.insert(tid, name);
                    }
                }
                TaskLine::Fork { time_ns, pid, ppid } => {
                    processes.parents.entry(pid).or_insert((time_ns, ppid));
                    processes.add_task(pid, pid);
                }
                TaskLine::Dlopen { time_ns, sid, base, path } => match idx_of_sid.get(&sid) {
                    Some(&idx) => sessions[idx].add_library(dir, time_ns, base, path, &mut loader)?,
                    None => warnings.add(Warning::UnknownLine, 1),
                },
            }
        }
        warnings.merge(&loader.warnings);

        let events = match read_file(&dir.join("events.txt")) {
            Ok(bytes) => EventNames::parse(&bytes, &mut warnings),
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => EventNames::default(),
            Err(error) => return Err(error),
        };
        let switches = match info.features() & perf::FEATURE {
            0 => Switches::default(),
            _ => Switches::read(dir, &mut warnings)?,
        };
        let tasks = processes.into_tasks(info.tids(), &exe_names, &mut warnings);
        Ok(Self { dir: dir.to_owned(), info, tasks, sessions, events, switches, warnings })
    }

    /// The directory that was opened.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What the `info` file says.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// The tasks: first those of `info` in its order, then those that only `task.txt` knows.
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// The names of events.
    pub fn events(&self) -> &EventNames {
        &self.events
    }

    /// Flaws that were met in [`Trace::open`]. Readers of records have their own.
    pub fn warnings(&self) -> &Warnings {
        &self.warnings
    }

    /// The records of one of the trace's tasks, in order of time.
    pub fn records<'t>(&'t self, task: &'t Task) -> Records<'t> {
        Records::new(self, task)
    }

    /// The records of all tasks, in order of time.
    ///
    /// # Errors
    ///
    /// A `.dat` file cannot be read.
    pub fn merged(&self) -> Result<Merged<'_>> {
        Merged::new(self)
    }

    /// The time of the first record; `None` if there are no records.
    ///
    /// # Errors
    ///
    /// A `.dat` file cannot be read.
    pub fn start_ns(&self) -> Result<Option<u64>> {
        let mut start_ns = None;
        for task in &self.tasks {
            let first = self.records(task).next().transpose()?.map(|record| record.time_ns);
            start_ns = start_ns.into_iter().chain(first).min();
        }
        Ok(start_ns)
    }

    /// The calls of one of the trace's tasks.
    ///
    /// # Errors
    ///
    /// The task's `.dat` file cannot be read.
    pub fn call_tree(&self, task: &Task) -> Result<CallTree> {
        CallTree::read(self, task)
    }

    /// The name of the function around `addr`, as a task sees it at `time_ns`; the address in angle brackets, if unknown.
    pub fn function_name(&self, task: &Task, time_ns: u64, addr: u64) -> Cow<'_, str> {
        match self.symbol(task, time_ns, addr) {
            Some(symbol) => Cow::Borrowed(&symbol.name),
            None => Cow::Owned(format!("<{addr:x}>")),
        }
    }

    /// Whether two addresses lie in one function.
    pub(crate) fn same_function(&self, task: &Task, time_ns: u64, a: u64, b: u64) -> bool {
        let symbol = |addr| self.symbol(task, time_ns, addr).map(std::ptr::from_ref);
        a == b || symbol(a).is_some_and(|symbol_a| symbol(b) == Some(symbol_a))
    }

    /// Whether a function may lie at `addr`. Where no module is known, it may lie anywhere.
    pub(crate) fn may_be_code(&self, task: &Task, addr: u64) -> bool {
        let mut sessions = task.sessions.iter().filter_map(|&(_, idx)| self.sessions.get(idx)).peekable();
        sessions.peek().is_none() || sessions.any(|session| session.is_empty() || session.is_code(addr))
    }

    /// When a task got and lost processors.
    pub(crate) fn switches(&self, task: &Task) -> &[Switch] {
        self.switches.of_task(task.tid)
    }

    /// All sessions, in the order of `task.txt`.
    pub(crate) fn sessions(&self) -> &[Session] {
        &self.sessions
    }

    /// The index of the session in which a task is at `time_ns`.
    pub(crate) fn session_at(&self, task: &Task, time_ns: u64) -> Option<usize> {
        let after = task.sessions.partition_point(|&(since, _)| since <= time_ns);
        task.sessions.get(after.saturating_sub(1)).map(|&(_, idx)| idx)
    }

    fn symbol(&self, task: &Task, time_ns: u64, addr: u64) -> Option<&Symbol> {
        self.sessions.get(self.session_at(task, time_ns)?)?.symbol(time_ns, addr)
    }
}

/// What `task.txt` says of who belongs to whom.
#[derive(Default)]
struct Processes {
    /// Sessions of each process, with when they began.
    sessions: HashMap<u32, Vec<(u64, usize)>>,
    /// When each process was forked, and from which one.
    parents: HashMap<u32, (u64, u32)>,
    /// Each task's process, and the tasks in the order they are mentioned.
    pids: HashMap<u32, u32>,
    tids: Vec<u32>,
    /// The last name of each task that has one.
    names: HashMap<u32, String>,
}

impl Processes {
    fn add_task(&mut self, tid: u32, pid: u32) {
        if self.pids.insert(tid, pid).is_none() {
            self.tids.push(tid);
        }
    }

    fn into_tasks(self, announced: &[u32], exe_names: &[String], warnings: &mut Warnings) -> Vec<Task> {
        let mut seen = HashSet::new();
        let tids = announced.iter().chain(&self.tids).copied().filter(|&tid| seen.insert(tid));
        let mut of_pid = HashMap::new();
        tids.map(|tid| {
            let pid = self.pids.get(&tid).copied().unwrap_or_else(|| {
                warnings.add(Warning::UnknownTask, 1);
                tid
            });
            let (sessions, process_name): &(Vec<_>, Arc<str>) = of_pid.entry(pid).or_insert_with(|| {
                let sessions = self.sessions_of(pid);
                let exe_name = sessions.last().and_then(|&(_, idx)| exe_names.get(idx)).map_or("", String::as_str);
                (sessions, exe_name.rsplit('/').next().unwrap_or_default().into())
            });
            let name = self.names.get(&tid).cloned();
            Task { tid, pid, sessions: sessions.clone(), process_name: Arc::clone(process_name), name }
        })
        .collect()
    }

    /// The sessions of a process, beginning with those that it got from its parents when it was forked.
    fn sessions_of(&self, pid: u32) -> Vec<(u64, usize)> {
        let mut found = Vec::new();
        let mut seen = HashSet::new();
        let (mut pid, mut until) = (pid, u64::MAX);
        // A file may claim that processes are each other's parents.
        while seen.insert(pid) {
            let own = self.sessions.get(&pid).into_iter().flatten();
            found.extend(own.copied().filter(|&(since, _)| since <= until));
            let Some(&(forked, parent)) = self.parents.get(&pid) else { break };
            (pid, until) = (parent, until.min(forked));
        }
        found.sort_by_key(|&(since, _)| since);
        found
    }
}
