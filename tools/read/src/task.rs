//! The threads of a trace, and their processes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rftrace_format::text::base_name;

use crate::warning::{Warning, Warnings};

/// A thread of the traced program.
#[derive(Debug, Clone)]
pub struct Task {
    pub(crate) tid: u32,
    pid: u32,
    /// The sessions this task ran in, with when each began, in order of time.
    pub(crate) sessions: Arc<[(u64, usize)]>,
    process_name: Arc<str>,
    name: Option<String>,
    /// True if `info` or its own line in `task.txt` lists it as recorded: a fork alone may have no records.
    pub(crate) is_listed: bool,
}

impl Task {
    /// Returns the thread's id.
    pub fn tid(&self) -> u32 {
        self.tid
    }

    /// Returns the id of its process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the file name of its process's last program; empty if the trace does not name it.
    pub fn process_name(&self) -> &str {
        &self.process_name
    }

    /// Returns the thread's name, or that of the process if the trace has none, such as a trace of uftrace.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.process_name)
    }
}

/// Tasks, processes and sessions by `task.txt`.
#[derive(Default)]
pub(crate) struct Processes {
    /// Sessions of each process, with when they began.
    pub(crate) sessions: HashMap<u32, Vec<(u64, usize)>>,
    /// The time of each process's fork, and its parent.
    pub(crate) parents: HashMap<u32, (u64, u32)>,
    /// Each task's process, and the tasks in the order they are mentioned.
    pids: HashMap<u32, u32>,
    tids: Vec<u32>,
    /// The last name of each named task.
    pub(crate) names: HashMap<u32, String>,
    /// The tasks with lines of their own.
    pub(crate) listed: HashSet<u32>,
}

impl Processes {
    pub(crate) fn add_task(&mut self, tid: u32, pid: u32) {
        if self.pids.insert(tid, pid).is_none() {
            self.tids.push(tid);
        }
    }

    pub(crate) fn into_tasks(mut self, announced: &[u32], exe_names: &[String], warnings: &mut Warnings) -> Vec<Task> {
        self.sessions.values_mut().for_each(|own| own.sort_by_key(|&(since, _)| since));
        let inherited = self.inherited();
        let mut seen = HashSet::new();
        let tids = announced.iter().chain(&self.tids).copied().filter(|&tid| seen.insert(tid));
        let announced: HashSet<u32> = announced.iter().copied().collect();
        let mut of_pid = HashMap::new();
        tids.map(|tid| {
            let pid = self.pids.get(&tid).copied().unwrap_or_else(|| {
                warnings.add(Warning::UnknownTask, 1);
                tid
            });
            let (sessions, process_name): &(Arc<[_]>, Arc<str>) = of_pid.entry(pid).or_insert_with(|| {
                let own = self.sessions.get(&pid).into_iter().flatten();
                let mut sessions: Vec<(u64, usize)> = inherited.get(&pid).into_iter().chain(own).copied().collect();
                sessions.sort_by_key(|&(since, _)| since);
                let exe_name = sessions.last().and_then(|&(_, idx)| exe_names.get(idx)).map_or("", String::as_str);
                (sessions.into(), base_name(exe_name).into())
            });
            let name = self.names.get(&tid).cloned();
            let is_listed = announced.contains(&tid) || self.listed.contains(&tid);
            Task { tid, pid, sessions: Arc::clone(sessions), process_name: Arc::clone(process_name), name, is_listed }
        })
        .collect()
    }

    /// Returns, for each forked process, the time of the fork and the session of its parent. Sessions are in order of
    /// time.
    fn inherited(&self) -> HashMap<u32, (u64, usize)> {
        let mut found: HashMap<u32, Option<usize>> = HashMap::new();
        let mut path = Vec::new();
        for &pid in self.parents.keys() {
            // Up to a process of which it is known. A file may claim that processes are each other's parents.
            let mut next = Some(pid);
            while let Some(pid) = next.filter(|pid| !found.contains_key(pid)) {
                found.insert(pid, None);
                path.push(pid);
                next = self.parents.get(&pid).map(|&(_, parent)| parent);
            }
            // And back.
            while let Some(pid) = path.pop() {
                let Some(&(forked, parent)) = self.parents.get(&pid) else { continue };
                let own = self.sessions.get(&parent).map_or(&[][..], Vec::as_slice);
                let last = own.partition_point(|&(since, _)| since <= forked).checked_sub(1).map(|last| own[last]);
                // One from before the parent was forked is of an older process with its number.
                let since = self.parents.get(&parent).map_or(0, |&(since, _)| since);
                let of_parent = last.filter(|&(time, _)| time >= since).or_else(|| {
                    let session = found.get(&parent).copied().flatten();
                    session.map(|session| (since, session)).or(last)
                });
                found.insert(pid, of_parent.map(|(_, session)| session));
            }
        }
        let began = |(&pid, session): (&u32, &Option<usize>)| Some((pid, (self.parents.get(&pid)?.0, (*session)?)));
        found.iter().filter_map(began).collect()
    }
}
