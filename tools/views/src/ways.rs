//! Rows of call paths, collected call by call.
//!
//! Not here: the source of calls (`paths`, `between`), and the graph (`graph`).

use std::borrow::Cow;

use rftrace_read::{Error, Kept, Record, Result, Trace};

use crate::collector::{CallSums, Collector, OffCpuTimes, TaskCalls};
use crate::keys::{Key, Keys, Last};
use crate::rows::CallTimes;
use crate::stack::{EndedCall, Step};

/// The maximum number of ways. Recursion with ever new ones could make any number of them.
pub(crate) const MAX_WAYS: usize = 1 << 20;

/// The number of names found without a look at their text.
const N_RECENT: usize = 1024;

/// The ways of one or more tasks.
pub(crate) struct Ways<'t> {
    trace: &'t Trace,
    pub(crate) keys: Keys,
    /// The sums of each way.
    pub(crate) sums: Vec<CallSums>,
    /// The places and numbers of recently used names, each at a place by its address.
    recent: Vec<((usize, usize), u32)>,
    pub(crate) nameless_calls: u64,
    /// True beyond the maximum number of ways. Further ways are not added.
    pub(crate) is_full: bool,
}

impl Ways<'_> {
    /// Returns the number of a name in the trace. For a recently used name it does not read the text.
    fn known_name(&mut self, known: &str) -> u32 {
        let key = (known.as_ptr().addr(), known.len());
        let place = (key.0 ^ key.0 >> 12) % N_RECENT;
        if self.recent[place].0 != key {
            self.recent[place] = (key, self.keys.name(known));
        }
        self.recent[place].1
    }

    fn way(&mut self, around: Option<usize>, last: Last<u32>) -> usize {
        let key = Key { around: around.map(|around| around as u32), last };
        if let Some(number) = self.keys.find(&key) {
            return number as usize;
        }
        self.is_full |= self.keys.len() >= MAX_WAYS;
        if self.is_full {
            return MAX_WAYS;
        }
        self.sums.push(CallSums::default());
        self.keys.push(key) as usize
    }

    /// Adds those of other tasks, read after these.
    pub(crate) fn merge(&mut self, mut other: Self) {
        let mut own: Vec<usize> = Vec::with_capacity(other.n_rows());
        for row in 0..other.n_rows() {
            let (around, last) = other.key(row);
            let idx = self.row_of(around.map(|around| own[around]), last);
            own.push(idx);
            self.add_sums(idx, other.take(row).0, None);
        }
        self.nameless_calls += other.nameless_calls;
        self.is_full |= other.is_full;
    }
}

impl<'t> Collector<'t> for Ways<'t> {
    const KEPT: Kept = Kept::GraphBlocks;
    const MAX_KEPT: usize = MAX_WAYS;

    fn new(trace: &'t Trace, _has_times: bool) -> Self {
        let recent = vec![Default::default(); N_RECENT];
        Self { trace, keys: Keys::default(), sums: Vec::new(), recent, nameless_calls: 0, is_full: false }
    }

    fn trace(&self) -> &'t Trace {
        self.trace
    }

    fn has_times(&self) -> bool {
        false
    }

    fn apply(&mut self, calls: &mut TaskCalls<'_>, step: &Step, _record: Option<&Record>) -> Result<()> {
        let around = calls.open.last().copied().flatten();
        match *step {
            Step::Assume { .. } => calls.open.push(Some(self.way(around, Last::Assumed))),
            Step::Enter { addr, time_ns } => {
                let name = match calls.functions.name(time_ns, addr) {
                    Cow::Borrowed(known) => self.known_name(known),
                    Cow::Owned(name) => {
                        self.nameless_calls += 1;
                        self.keys.name(&name)
                    }
                };
                calls.open.push(Some(self.way(around, Last::Called { name, addr })));
            }
            Step::Leave(ended) => {
                let Some((way, _)) = self.close(calls, &ended) else { return Ok(()) };
                self.add(way, CallSums::of(self.trace.cost(), &ended), true);
            }
            Step::Event { off_cpu: Some((kind, ns)), .. } => {
                let way = self.way(around, Last::OffCpu(kind));
                self.add(way, CallSums::of_off_cpu(ns), true);
            }
            Step::Event { .. } | Step::StrayExit { .. } | Step::Lost { .. } => {}
        }
        if self.is_full { Err(Error::Stopped) } else { Ok(()) }
    }

    fn enter_known(&mut self, calls: &mut TaskCalls<'_>, name: &str, addr: u64) {
        let name = self.keys.name(name);
        let around = calls.open.last().copied().flatten();
        calls.open.push(Some(self.way(around, Last::Called { name, addr })));
    }

    fn close(&mut self, calls: &mut TaskCalls<'_>, _ended: &EndedCall) -> Option<(usize, bool)> {
        // No way is within itself.
        calls.open.pop().flatten().map(|way| (way, true))
    }

    fn truncate(&mut self, calls: &mut TaskCalls<'_>, n_open: usize) {
        calls.open.truncate(n_open);
    }

    fn add(&mut self, row: usize, call: CallSums, _is_outermost: bool) {
        self.add_sums(row, call, None);
    }

    fn add_sums(&mut self, row: usize, sums: CallSums, _times: Option<Box<CallTimes>>) {
        if let Some(sum) = self.sums.get_mut(row) {
            sum.add(sums);
        }
    }

    fn add_uncounted(&mut self, nameless_calls: u64, _off_cpu: Option<OffCpuTimes>) {
        self.nameless_calls += nameless_calls;
    }

    fn row_of(&mut self, around: Option<usize>, last: Last<&str>) -> usize {
        let last = last.map(|name| self.keys.name(name));
        self.way(around, last)
    }

    fn n_rows(&self) -> usize {
        self.keys.len()
    }

    fn key(&self, row: usize) -> (Option<usize>, Last<&str>) {
        let key = &self.keys.all()[row];
        (key.around.map(|around| around as usize), self.keys.last(key))
    }

    fn take(&mut self, row: usize) -> (CallSums, Option<Box<CallTimes>>) {
        (std::mem::take(&mut self.sums[row]), None)
    }

    fn uncounted(&self) -> (u64, Option<OffCpuTimes>) {
        (self.nameless_calls, None)
    }
}
