//! Functions without recorded entries, identified by their exits.

use std::collections::VecDeque;

use rftrace_read::{Error, Result, Task, Trace};

use crate::stack::Step;
use crate::walk::walk;

/// The maximum number of named ones; a broken file may claim any number.
const MAX: usize = 1 << 20;

/// A reader of a task's functions without recorded entries, in the order of the task's [`Step::Assume`]s.
///
/// The first request reads the task's records once more; few tasks need that.
#[derive(Debug)]
pub struct AssumedFunctions<'t> {
    trace: &'t Trace,
    task: &'t Task,
    found: Option<VecDeque<Option<(u64, u64)>>>,
}

impl<'t> AssumedFunctions<'t> {
    /// Creates the reader for one of the trace's tasks.
    pub fn new(trace: &'t Trace, task: &'t Task) -> Self {
        Self { trace, task, found: None }
    }

    /// Returns the next function: an address in it, and the time of the exit with that address. `None` if no exit
    /// identifies it.
    ///
    /// # Errors
    ///
    /// The task's `.dat` file cannot be read.
    pub fn next_function(&mut self) -> Result<Option<(u64, u64)>> {
        let found = match &mut self.found {
            Some(found) => found,
            None => self.found.insert(find(self.trace, self.task)?),
        };
        Ok(found.pop_front().flatten())
    }
}

fn find(trace: &Trace, task: &Task) -> Result<VecDeque<Option<(u64, u64)>>> {
    let mut found = VecDeque::new();
    let mut open = Vec::new();
    walk(trace, task, |step, _| {
        match *step {
            Step::Assume { .. } => {
                open.push(Some(found.len()).filter(|&idx| idx < MAX));
                if found.len() < MAX {
                    found.push_back(None);
                }
            }
            Step::Enter { .. } => open.push(None),
            Step::Leave(ended) => {
                let place = open.pop().flatten().and_then(|idx| found.get_mut(idx));
                if let (Some(place), Some(addr)) = (place, ended.addr) {
                    *place = Some((addr, ended.end_ns));
                }
            }
            Step::StrayExit { .. } | Step::Event { .. } | Step::Lost { .. } => {}
        }
        Ok::<_, Error>(())
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rftrace_read::{Kind, Record};

    use super::*;

    #[test]
    fn their_exits_name_them() {
        let dir = tempfile::tempdir().unwrap();
        let mut info = b"Ftrace!\0\x04\0\0\0\x28\0\x01\x02".to_vec();
        for word in [0_u64, 0, 1024] {
            info.extend(word.to_le_bytes());
        }
        fs::write(dir.path().join("info"), info).unwrap();
        fs::write(dir.path().join("task.txt"), "TASK timestamp=0.000000001 tid=7 pid=7\n").unwrap();
        // Three functions are open at the first record. Of the outermost one no exit tells.
        let records = [
            (Kind::Entry, 10, 3, 0x400),
            (Kind::Exit, 20, 3, 0x400),
            (Kind::Exit, 30, 2, 0x300),
            (Kind::Exit, 40, 1, 0x200),
        ];
        let records = records.map(|(kind, time_ns, depth, addr)| {
            Record { time_ns, kind, has_payload: false, payload_at: 0, depth, addr }.encode()
        });
        fs::write(dir.path().join("7.dat"), records.concat()).unwrap();
        let trace = Trace::open(dir.path()).unwrap();
        let mut functions = AssumedFunctions::new(&trace, &trace.tasks()[0]);
        let found: Vec<_> = (0..4).map(|_| functions.next_function().unwrap()).collect();
        assert_eq!(found, [None, Some((0x200, 40)), Some((0x300, 30)), None]);
    }
}
