//! What was taken and given back up to some time, in total and by each stack.

use std::collections::{HashMap, HashSet};

use rftrace_read::{Error, Result};

use crate::merge::Event;
use crate::own;
use crate::recording::Recording;

/// The most blocks of memory at a time: more are an error.
const MAX_LIVE: usize = 1 << 25;

/// Up to when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// The end.
    End,
    /// So many nanoseconds after the beginning.
    Nanos(u64),
    /// So many events.
    Events(u64),
}

/// Sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Blocks that were taken.
    pub allocations: u64,
    /// Their bytes.
    pub allocated: u64,
    /// Of these, blocks that the same thread gave back before it took another one.
    pub temporary: u64,
    /// Blocks that were given back.
    pub releases: u64,
    /// Blocks that are still there.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What was taken and given back.
#[derive(Debug, Default)]
pub struct Account {
    /// In total.
    pub total: Sums,
    /// By each stack.
    pub stacks: Vec<Sums>,
    /// By each process.
    pub processes: HashMap<u32, Sums>,
    /// The most bytes that were there at a time, in processes that had not ended.
    pub peak: u64,
    /// When that was, in ticks and events since the beginning.
    pub peak_at: (u64, u64),
    /// Releases of blocks that a forked process has from its parent.
    pub inherited: u64,
    /// Releases of blocks that nobody has taken: before the recording, or by an allocator that is not seen.
    pub unknown: u64,
    /// Allocations of blocks that were not given back.
    pub doubled: u64,
}

/// A block of memory.
struct Live {
    bytes: u64,
    stack: u32,
}

/// What is known while events come.
struct Counting<'r> {
    recording: &'r Recording,
    account: Account,
    live: HashMap<(u32, u64), Live>,
    /// Which stacks are the tracer's, and the blocks that it has taken.
    is_own: Vec<bool>,
    own: HashSet<(u32, u64)>,
    /// The block that a thread has taken last.
    last: HashMap<(u32, u32), u64>,
    /// Bytes in processes that have not ended.
    now: u64,
    of_process: HashMap<u32, u64>,
    /// Processes by their last events, the first one last.
    ends: Vec<(u64, u32)>,
    n_events: u64,
}

impl Account {
    /// Counts the events of a recording, of one process if that is wanted. What the tracer has taken for itself is left out.
    ///
    /// # Errors
    ///
    /// Those of [`Recording::events`]; or there are too many blocks at a time.
    pub fn of(recording: &Recording, until: Until, pid: Option<u32>) -> Result<Self> {
        let mut ends: Vec<(u64, u32)> =
            recording.processes().iter().map(|(&number, process)| (process.last, number)).collect();
        ends.sort_unstable_by(|a, b| b.cmp(a));
        let mut counting = Counting {
            recording,
            account: Self { stacks: vec![Sums::default(); recording.n_stacks()], ..Self::default() },
            live: HashMap::new(),
            is_own: own::stacks(recording),
            own: HashSet::new(),
            last: HashMap::new(),
            now: 0,
            of_process: HashMap::new(),
            ends,
            n_events: 0,
        };
        let is_wanted = |event: &Event| {
            pid.is_none_or(|pid| recording.processes().get(&event.process).is_some_and(|p| p.pid == pid))
        };
        let mut is_too_much = false;
        recording.events(|event| {
            let is_before = match until {
                Until::End => true,
                Until::Nanos(nanos) => recording.since_start(event.ticks) <= nanos,
                Until::Events(events) => counting.n_events < events,
            };
            if is_before && is_wanted(event) {
                counting.add(event);
                is_too_much = counting.live.len() + counting.own.len() > MAX_LIVE;
            }
            is_before && !is_too_much
        })?;
        if is_too_much {
            let reason = format!(
                "more than {MAX_LIVE} blocks of memory at the same time; look at one process (--pid), or an earlier time (--at)"
            );
            return Err(Error::Export(reason.into()));
        }
        Ok(counting.account)
    }
}

impl Counting<'_> {
    fn add(&mut self, event: &Event) {
        self.n_events += 1;
        while let Some(&(_, process)) = self.ends.last().filter(|(last, _)| *last < event.ticks) {
            self.now = self.now.saturating_sub(self.of_process.remove(&process).unwrap_or(0));
            self.ends.pop();
        }
        let thread = (event.process, event.tid);
        let place = (event.process, event.address);
        if event.kind.is_release() {
            if self.own.remove(&place) {
                return;
            }
            let is_last = self.last.remove(&thread) == Some(event.address);
            if !self.release(place, is_last) {
                let is_child =
                    self.recording.processes().get(&event.process).is_some_and(|process| process.parent != 0);
                *(if is_child { &mut self.account.inherited } else { &mut self.account.unknown }) += 1;
            }
            return;
        }
        if self.is_own.get(event.stack as usize) == Some(&true) {
            self.own.insert(place);
            return;
        }
        if self.live.contains_key(&place) {
            self.release(place, false);
            self.account.doubled += 1;
        }
        for sums in self.sums(event.process, event.stack) {
            sums.allocations += 1;
            sums.allocated = sums.allocated.saturating_add(event.bytes);
            sums.blocks += 1;
            sums.bytes = sums.bytes.saturating_add(event.bytes);
        }
        self.live.insert(place, Live { bytes: event.bytes, stack: event.stack });
        self.last.insert(thread, event.address);
        self.now = self.now.saturating_add(event.bytes);
        let of_process = self.of_process.entry(event.process).or_default();
        *of_process = of_process.saturating_add(event.bytes);
        if self.now > self.account.peak {
            (self.account.peak, self.account.peak_at) = (self.now, (event.ticks, self.n_events));
        }
    }

    /// A block is given back. Returns whether it was there.
    fn release(&mut self, place: (u32, u64), is_temporary: bool) -> bool {
        let Some(Live { bytes, stack }) = self.live.remove(&place) else { return false };
        for sums in self.sums(place.0, stack) {
            sums.releases += 1;
            sums.temporary += u64::from(is_temporary);
            sums.blocks -= 1;
            sums.bytes = sums.bytes.saturating_sub(bytes);
        }
        if let Some(of_process) = self.of_process.get_mut(&place.0) {
            *of_process = of_process.saturating_sub(bytes);
            self.now = self.now.saturating_sub(bytes);
        }
        true
    }

    fn sums(&mut self, process: u32, stack: u32) -> [&mut Sums; 3] {
        let Account { total, stacks, processes, .. } = &mut self.account;
        [total, &mut stacks[stack as usize], processes.entry(process).or_default()]
    }
}
