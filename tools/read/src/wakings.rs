//! `perf-cpu<N>.dat`: wakings of threads, beside the context switches.

use std::collections::HashSet;

use rftrace_format::perf::{self, Waking};

use crate::error::Result;
use crate::switches::each_file;
use crate::task::Task;
use crate::trace::Trace;
use crate::warning::Warnings;

impl Trace {
    /// Reads the wakings of the trace's threads by threads that the recording followed, in order of time. `None` if wakings
    /// were not recorded.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or has too many.
    pub fn wakings(&self) -> Result<Option<Vec<Waking>>> {
        if !self.has_switches() {
            return Ok(None);
        }
        let tids: HashSet<u32> = self.tasks().iter().map(Task::tid).collect();
        let (mut wakings, mut are_recorded) = (Vec::new(), false);
        // Opening the trace has told of what is wrong with the files.
        each_file(self.dir(), &mut Warnings::default(), |header, body, _| {
            match header.kind {
                perf::WAKING => wakings.extend(Waking::decode(body).filter(|waking| tids.contains(&waking.tid))),
                perf::SWITCH => are_recorded |= header.flags & perf::WITH_WAKINGS != 0,
                _ => {}
            }
            wakings.len()
        })?;
        wakings.sort_by_key(|waking| waking.time_ns);
        Ok(are_recorded.then_some(wakings))
    }
}
