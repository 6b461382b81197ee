//! `set_ftrace_pid` and `set_ftrace_notrace_pid`: the recorded threads of a process, by their numbers.
//!
//! Not here: the exclusion of threads in a process (`rftrace_frontend::Threads`).

use crate::recording::Recording;
use crate::target::Target;

/// The name of the only recorded threads.
pub(crate) const ONLY_PIDS: &str = "set_ftrace_pid";
/// The name of the excluded threads.
pub(crate) const NOT_PIDS: &str = "set_ftrace_notrace_pid";

/// The choice of recorded threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Threads {
    /// If there are any, only these.
    only: Vec<u32>,
    not: Vec<u32>,
}

impl Threads {
    /// Asks a process for its choice.
    pub(crate) fn of(recording: &dyn Recording, pid: u32) -> Result<Self, String> {
        Ok(Self::read(&recording.ask(pid, "threads")?))
    }

    /// Reads a process's answer: both lists, a slash between them.
    fn read(answer: &str) -> Self {
        let list = |text: &str| text.split(',').filter_map(|id| id.trim().parse().ok()).collect();
        let (only, not) = answer.split_once('/').unwrap_or((answer, ""));
        Self { only: list(only), not: list(not) }
    }

    fn request(&self) -> String {
        let list = |ids: &[u32]| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        format!("threads {}/{}", list(&self.only), list(&self.not))
    }

    fn of_name(&mut self, name: &str) -> &mut Vec<u32> {
        if name == ONLY_PIDS { &mut self.only } else { &mut self.not }
    }

    /// Returns the text in ftrace's form.
    pub(crate) fn shown(mut self, name: &str) -> String {
        let ids = self.of_name(name);
        if ids.is_empty() { "no pid\n".to_owned() } else { ids.iter().map(|id| format!("{id}\n")).collect() }
    }
}

/// Change of a list.
#[derive(Debug, Default, PartialEq, Eq)]
struct Change {
    /// True to keep the present entries.
    adds: bool,
    added: Vec<u32>,
    removed: Vec<u32>,
}

impl Change {
    fn read(name: &str, lines: &[&str]) -> Result<Self, String> {
        let text = lines.join(" ");
        let (adds, text) = match text.strip_prefix(">>") {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('>').unwrap_or(&text)),
        };
        let mut change = Self { adds, ..Self::default() };
        for word in text.replace("no pid", "").split_whitespace() {
            let (list, number) = match word.strip_prefix('!') {
                Some(number) => (&mut change.removed, number),
                None => (&mut change.added, word),
            };
            let id = number.parse::<u32>().ok().filter(|&id| id > 0);
            list.push(id.ok_or_else(|| format!("{name}: `{word}` is no thread id"))?);
        }
        // A change that only removes keeps the others.
        change.adds |= change.added.is_empty() && !change.removed.is_empty();
        Ok(change)
    }

    fn apply(&self, ids: &mut Vec<u32>) {
        if !self.adds {
            ids.clear();
        }
        for &id in &self.added {
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        ids.retain(|id| !self.removed.contains(id));
    }
}

/// Includes or excludes the threads in these lines, of one process or of all target processes.
pub(crate) fn set(target: &Target<'_>, name: &str, lines: &[&str]) -> Result<String, String> {
    let change = Change::read(name, lines)?;
    target.each(|recording, pid| {
        let mut threads = Threads::of(recording, pid)?;
        let before = threads.of_name(name).clone();
        // One that has ended since it was named may still be there.
        let unknown = change.added.iter().find(|id| !before.contains(id) && !target.has_thread(**id));
        if let Some(unknown) = unknown {
            return Err(format!("{name}: no such thread: {unknown}; /proc/{pid}/task lists the threads"));
        }
        change.apply(threads.of_name(name));
        recording.ask(pid, &threads.request()).map(|_| String::new())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_changed_as_the_lines_say() {
        let apply = |lines: &[&str]| {
            let mut ids = vec![1, 2];
            Change::read(ONLY_PIDS, lines).map(|change| {
                change.apply(&mut ids);
                ids
            })
        };
        assert_eq!(apply(&["3 4"]), Ok(vec![3, 4]));
        assert_eq!(apply(&["3 3"]), Ok(vec![3]));
        assert_eq!(apply(&[">3", "4"]), Ok(vec![3, 4]));
        assert_eq!(apply(&[">> 3", "2"]), Ok(vec![1, 2, 3]));
        assert_eq!(apply(&["!1"]), Ok(vec![2]));
        assert_eq!(apply(&[]), Ok(vec![]));
        assert_eq!(apply(&["no pid"]), Ok(vec![]));
        // As `>>` to a file has it.
        assert_eq!(apply(&["no pid", "7"]), Ok(vec![7]));
        assert_eq!(apply(&["x"]), Err("set_ftrace_pid: `x` is no thread id".to_owned()));
        assert!(apply(&["0"]).is_err() && apply(&["-1"]).is_err());
    }

    #[test]
    fn what_a_process_answers_is_read() {
        let threads = Threads { only: vec![1, 22], not: vec![3] };
        assert_eq!(threads.request(), "threads 1,22/3");
        assert_eq!(Threads::read("1,22/3"), threads);
        assert_eq!(Threads::read("/"), Threads::default());
        assert_eq!(threads.clone().shown(ONLY_PIDS), "1\n22\n");
        assert_eq!(Threads::default().shown(NOT_PIDS), "no pid\n");
    }
}
