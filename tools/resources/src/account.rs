//! What was taken and given back up to some time, in total and by each stack.

use std::collections::HashMap;

use rftrace_read::Result;

use crate::live::{Change, Live, Until, follow};
use crate::merge::Event;
use crate::recording::Recording;

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
struct Block {
    bytes: u64,
    stack: u32,
}

/// What is known while events come.
struct Counting {
    account: Account,
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
            account: Self { stacks: vec![Sums::default(); recording.n_stacks()], ..Self::default() },
            last: HashMap::new(),
            now: 0,
            of_process: HashMap::new(),
            ends,
            n_events: 0,
        };
        follow(recording, until, pid, |live, event| {
            counting.add(live, event);
            Ok(())
        })?;
        Ok(counting.account)
    }
}

impl Counting {
    fn add(&mut self, live: &mut Live<'_, Block>, event: &Event) {
        self.n_events += 1;
        while let Some(&(_, process)) = self.ends.last().filter(|(last, _)| *last < event.ticks) {
            self.now = self.now.saturating_sub(self.of_process.remove(&process).unwrap_or(0));
            self.ends.pop();
        }
        let thread = (event.process, event.tid);
        match live.follow(event, || Block { bytes: event.bytes, stack: event.stack }) {
            Change::Own => {}
            Change::Taken { doubled } => {
                if let Some(before) = doubled {
                    self.release(event.process, &before, false);
                    self.account.doubled += 1;
                }
                self.take(event);
                self.last.insert(thread, event.address);
            }
            Change::GivenBack(block) => {
                let is_temporary = self.last.remove(&thread) == Some(event.address);
                self.release(event.process, &block, is_temporary);
            }
            Change::Inherited => {
                self.last.remove(&thread);
                self.account.inherited += 1;
            }
            Change::Unknown => {
                self.last.remove(&thread);
                self.account.unknown += 1;
            }
        }
    }

    fn take(&mut self, event: &Event) {
        for sums in self.sums(event.process, event.stack) {
            sums.allocations += 1;
            sums.allocated = sums.allocated.saturating_add(event.bytes);
            sums.blocks += 1;
            sums.bytes = sums.bytes.saturating_add(event.bytes);
        }
        self.now = self.now.saturating_add(event.bytes);
        let of_process = self.of_process.entry(event.process).or_default();
        *of_process = of_process.saturating_add(event.bytes);
        if self.now > self.account.peak {
            (self.account.peak, self.account.peak_at) = (self.now, (event.ticks, self.n_events));
        }
    }

    fn release(&mut self, process: u32, &Block { bytes, stack }: &Block, is_temporary: bool) {
        for sums in self.sums(process, stack) {
            sums.releases += 1;
            sums.temporary += u64::from(is_temporary);
            sums.blocks -= 1;
            sums.bytes = sums.bytes.saturating_sub(bytes);
        }
        if let Some(of_process) = self.of_process.get_mut(&process) {
            *of_process = of_process.saturating_sub(bytes);
            self.now = self.now.saturating_sub(bytes);
        }
    }

    fn sums(&mut self, process: u32, stack: u32) -> [&mut Sums; 3] {
        let Account { total, stacks, processes, .. } = &mut self.account;
        [total, &mut stacks[stack as usize], processes.entry(process).or_default()]
    }
}
