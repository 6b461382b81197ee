//! The data of an interval.

use std::collections::HashMap;

use crate::sums::{Interval, Sum};

/// An interval, and facts about the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tick {
    /// The recorded calls.
    pub interval: Interval,
    /// The number of calls and returns for which there was no room.
    pub n_dropped: u64,
    /// The number of the process's threads at the end of the interval; 0 if the process has ended.
    pub n_process_threads: u64,
    /// The processor time of this process in nanoseconds.
    pub own_nanos: u64,
}

impl Tick {
    /// Appends the next interval, for the case that this one was not shown.
    pub fn append(&mut self, next: Self) {
        let Interval { nanos, functions, n_records, n_deep, n_threads } = next.interval;
        let own = &mut self.interval;
        let mut sums: HashMap<u64, Sum> = std::mem::take(&mut own.functions).into_iter().collect();
        for (address, sum) in functions {
            *sums.entry(address).or_default() += sum;
        }
        own.functions = sums.into_iter().collect();
        own.nanos += nanos;
        own.n_records += n_records;
        own.n_deep = own.n_deep.saturating_add(n_deep);
        own.n_threads = own.n_threads.max(n_threads);
        self.n_dropped = self.n_dropped.saturating_add(next.n_dropped);
        self.n_process_threads = next.n_process_threads;
        self.own_nanos += next.own_nanos;
    }
}
