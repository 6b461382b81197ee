//! Counts of each task's records.

use rftrace_read::{Kind, OVERWRITTEN, Record, Result, Summary, Task, Trace, Warnings};
use serde::{Deserialize, Serialize};

/// Counts of the records of one task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TaskStats {
    /// The task's id.
    pub tid: u32,
    /// The id of its process.
    pub pid: u32,
    /// The number of records.
    pub records: u64,
    /// The number of function entries.
    pub calls: u64,
    /// The number of calls lost by the tracer.
    pub lost_calls: u64,
    /// The number of those beyond the deepest recorded level.
    pub deep_calls: u64,
    /// True if the beginning was overwritten, as in a ring buffer.
    pub overwritten: bool,
    /// The time of the first record in nanoseconds.
    pub first_ns: u64,
    /// The time of the last record in nanoseconds.
    pub last_ns: u64,
    /// The flaws in single records. Flaws in their sequence are not counted here.
    pub warnings: Warnings,
}

impl TaskStats {
    /// Reads all records of a task and counts them.
    ///
    /// # Errors
    ///
    /// The task's `.dat` file cannot be read.
    pub fn read(trace: &Trace, task: &Task) -> Result<Self> {
        let mut stats = Self::new(task);
        let mut records = trace.records(task);
        for record in &mut records {
            stats.add(trace, &record?);
        }
        stats.warnings.merge(records.warnings());
        Ok(stats)
    }

    /// Adds these counts to a summary of all tasks.
    pub fn add_to(&self, summary: &mut Summary) {
        summary.records = summary.records.saturating_add(self.records);
        summary.deep_calls = summary.deep_calls.saturating_add(self.deep_calls);
        summary.overwritten |= self.overwritten;
        summary.warnings.merge(&self.warnings);
    }

    /// Creates counts of 0 for a task.
    pub fn new(task: &Task) -> Self {
        Self {
            tid: task.tid(),
            pid: task.pid(),
            records: 0,
            calls: 0,
            lost_calls: 0,
            deep_calls: 0,
            overwritten: false,
            first_ns: 0,
            last_ns: 0,
            warnings: Warnings::default(),
        }
    }

    /// Counts the next record of the task.
    pub fn add(&mut self, trace: &Trace, record: &Record) {
        if self.records == 0 {
            self.first_ns = record.time_ns;
        }
        self.last_ns = record.time_ns;
        self.records += 1;
        match record.kind {
            Kind::Entry => self.calls += 1,
            Kind::Exit => {}
            Kind::Lost => self.lost_calls = self.lost_calls.saturating_add(record.addr),
            Kind::Event => match trace.events().known(record.addr) {
                Some(OVERWRITTEN) => self.overwritten = true,
                Some(name) => {
                    self.lost_calls = self.lost_calls.saturating_add(lost_calls(name));
                    self.deep_calls = self.deep_calls.saturating_add(lost_calls(name));
                }
                None => {}
            },
        }
    }
}

/// The number in the name of an event such as `rftrace:lost_12_calls`; 0 in others.
fn lost_calls(event: &str) -> u64 {
    let rest = event.strip_prefix("rftrace:lost_");
    let number = rest.and_then(|rest| rest.strip_suffix("_calls").or_else(|| rest.strip_suffix("_call")));
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::lost_calls;

    #[test]
    fn losses_by_name() {
        for (name, count) in [
            ("rftrace:lost_1_call", 1),
            ("rftrace:lost_12_calls", 12),
            ("rftrace:lost_x_calls", 0),
            ("rftrace:core_1", 0),
            ("linux:lost_3_calls", 0),
        ] {
            assert_eq!(lost_calls(name), count, "{name}");
        }
    }
}
