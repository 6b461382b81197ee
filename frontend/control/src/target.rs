//! The target processes of a command, and its execution for each.

use crate::recording::Recording;
use crate::rules::Rules;

/// The target processes of a command.
pub(crate) struct Target<'a> {
    recording: &'a dyn Recording,
    pids: Vec<u32>,
}

impl<'a> Target<'a> {
    pub(crate) fn find(recording: &'a dyn Recording, pid: u32) -> Result<Self, String> {
        let all = recording.processes();
        let pids: Vec<u32> =
            if pid == recording.recorder() { all } else { all.into_iter().filter(|&known| known == pid).collect() };
        if pids.is_empty() {
            return Err(match pid == recording.recorder() {
                true => format!(
                    "recorder {pid} has no process to control now; its processes have just begun, or have ended"
                ),
                false => format!("recorder {} does not record process {pid}, or has stopped it", recording.recorder()),
            });
        }
        Ok(Self { recording, pids })
    }

    pub(crate) fn recording(&self) -> &'a dyn Recording {
        self.recording
    }

    /// Returns true if one of the processes has a thread with this number.
    pub(crate) fn has_thread(&self, id: u32) -> bool {
        self.pids.iter().any(|&pid| self.recording.has_thread(pid, id))
    }

    /// Runs it for one process. If several processes disagree, the user has to name one.
    pub(crate) fn one(&self, what: impl Fn(&dyn Recording, u32) -> Result<String, String>) -> Result<String, String> {
        let mut all = self.pids.iter().map(|&pid| what(self.recording, pid));
        let first = all.next().unwrap_or_else(|| Ok(String::new()))?;
        if all.any(|other| other.as_ref() != Ok(&first)) {
            let pids: Vec<String> = self.pids.iter().map(u32::to_string).collect();
            return Err(format!("processes {} have different values; name one of them", pids.join(", ")));
        }
        Ok(first)
    }

    /// Runs it for each process. Failures follow the answers; it fails if all processes fail.
    pub(crate) fn each(&self, what: impl Fn(&dyn Recording, u32) -> Result<String, String>) -> Result<String, String> {
        let several = self.pids.len() > 1;
        let (mut text, mut problems) = (String::new(), Vec::new());
        for &pid in &self.pids {
            match what(self.recording, pid) {
                Ok(told) => text += &told,
                Err(problem) if several => problems.push(format!("process {pid}: {problem}")),
                Err(problem) => problems.push(problem),
            }
        }
        match (problems.len() == self.pids.len(), problems.is_empty()) {
            (true, _) => Err(problems.join("; ")),
            (false, true) => Ok(text),
            (false, false) => Err(format!("{}; the other processes have carried out the command", problems.join("; "))),
        }
    }

    /// Sends each process a request for a change.
    pub(crate) fn change(&self, request: &str) -> Result<String, String> {
        self.each(|recording, pid| recording.ask(pid, request).map(line))
    }

    /// Changes the filter of each process, as a whole.
    pub(crate) fn change_rules(&self, change: impl Fn(&mut Rules) -> Result<(), String>) -> Result<String, String> {
        self.each(|recording, pid| {
            let mut new = rules(recording, pid)?;
            change(&mut new)?;
            let new = new.to_string();
            let answer = recording.ask(pid, &format!("filter {new}"))?;
            Ok(if new.is_empty() { "everything is recorded\n".to_owned() } else { chosen(&answer) })
        })
    }

    pub(crate) fn set_depth(&self, levels: &str) -> Result<String, String> {
        let number =
            levels.parse::<u32>().map_err(|_| "a depth is a number of levels; 0 means all levels".to_owned())?;
        self.change_rules(|rules| {
            rules.set("depth", (number > 0).then(|| number.to_string()));
            Ok(())
        })
    }
}

/// The rules in force in a process.
pub(crate) fn rules(recording: &dyn Recording, pid: u32) -> Result<Rules, String> {
    Ok(Rules::parse(&recording.rules(pid).ok_or_else(|| gone(pid))?))
}

pub(crate) fn gone(pid: u32) -> String {
    format!("process {pid} has ended")
}

/// Formats the outcome of a filter from a process's answer: two numbers, and rules without a match on further lines.
fn chosen(answer: &str) -> String {
    let mut lines = answer.lines();
    let (n_recorded, n_functions) = lines.next().and_then(|line| line.split_once(' ')).unwrap_or(("?", "?"));
    let without: Vec<&str> = lines.collect();
    let without = match without.is_empty() {
        true => String::new(),
        false => format!("; without effect: {}", without.join(", ")),
    };
    format!("{n_recorded} of {n_functions} functions are recorded{without}\n")
}

fn line(text: String) -> String {
    if text.is_empty() || text.ends_with('\n') { text } else { text + "\n" }
}
