//! The sums of allocations and releases up to some time, in total and for each stack.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::rc::Rc;

use rftrace_format::resources::Resource;
use rftrace_read::Result;

use crate::live::{Change, Live, Place, Until, follow};
use crate::merge::Event;
use crate::recording::Recording;

/// The sums of a resource. Descriptors and threads count as blocks of one byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// The number of allocated blocks.
    pub allocations: u64,
    /// The size of these blocks in bytes.
    pub allocated: u64,
    /// The number of temporary blocks: the same thread released each before its next allocation.
    pub temporary: u64,
    /// The number of released blocks.
    pub releases: u64,
    /// The number of blocks that were not released.
    pub blocks: u64,
    /// The size of these blocks in bytes.
    pub bytes: u64,
    /// The number of failed releases: the resource did not exist.
    pub failures: u64,
}

impl Sums {
    /// Adds others to these.
    pub(crate) fn add(&mut self, other: &Self) {
        self.allocations += other.allocations;
        self.allocated = self.allocated.saturating_add(other.allocated);
        self.temporary += other.temporary;
        self.releases += other.releases;
        self.blocks += other.blocks;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.failures += other.failures;
    }
}

/// A descriptor or thread that was not released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The number of the descriptor or thread.
    pub what: u64,
    /// The process, by its number in the recording.
    pub process: u32,
    /// The path of a file.
    pub detail: Option<Rc<str>>,
}

/// Descriptors that are there as long as a program runs: a program that makes one of these means it to stay.
pub(crate) const STANDARD: RangeInclusive<u64> = 0..=2;

/// The sums of the allocations and releases of a resource.
#[derive(Debug)]
pub struct Account {
    /// The resource.
    pub resource: Resource,
    /// The total sums.
    pub total: Sums,
    /// The sums of each stack, by the number of the stack.
    pub stacks: Vec<Sums>,
    /// The sums of each process, by its number in the recording.
    pub processes: HashMap<u32, Sums>,
    /// The maximum number of bytes at one time, in living processes.
    pub peak: u64,
    /// The time of that maximum: ticks and events since the beginning.
    pub peak_at: (u64, u64),
    /// Some of the unreleased descriptors and threads of each stack.
    pub held: HashMap<u32, Vec<Held>>,
    /// The number of unreleased descriptors of stdin, stdout and stderr, by stack.
    pub standard: HashMap<u32, u64>,
    /// The number of releases of blocks that a forked process inherited from its parent.
    pub inherited: u64,
    /// The number of releases without an allocation: it came before the recording, or from an unrecorded function.
    pub unknown: u64,
    /// The number of allocations at the address of an unreleased block.
    pub doubled: u64,
}

/// A block of memory.
struct Block {
    bytes: u64,
    stack: u32,
}

/// The state while events come.
struct Counting {
    account: Account,
    /// The block that a thread has taken last.
    last: HashMap<(u32, u32), u64>,
    /// Bytes in processes that have not ended.
    now: u64,
    of_process: HashMap<u32, u64>,
    /// The details of things that are there.
    details: HashMap<Place, Rc<str>>,
    /// Processes by their last events, the first one last.
    ends: Vec<(u64, u32)>,
    n_events: u64,
}

impl Account {
    /// One of nothing.
    pub(crate) fn empty(resource: Resource) -> Self {
        Self {
            resource,
            total: Sums::default(),
            stacks: Vec::new(),
            processes: HashMap::new(),
            peak: 0,
            peak_at: (0, 0),
            held: HashMap::new(),
            standard: HashMap::new(),
            inherited: 0,
            unknown: 0,
            doubled: 0,
        }
    }

    /// Sums the events of a resource, of one process if `pid` names one. The tracer's own allocations are left out.
    ///
    /// # Errors
    ///
    /// Those of [`Recording::events`]; or there are too many blocks at one time.
    pub fn of(recording: &Recording, resource: Resource, until: Until, pid: Option<u32>) -> Result<Self> {
        let mut ends: Vec<(u64, u32)> =
            recording.processes().iter().map(|(&number, process)| (process.last, number)).collect();
        ends.sort_unstable_by(|a, b| b.cmp(a));
        let mut counting = Counting {
            account: Self { stacks: vec![Sums::default(); recording.n_stacks()], ..Self::empty(resource) },
            last: HashMap::new(),
            now: 0,
            of_process: HashMap::new(),
            details: HashMap::new(),
            ends,
            n_events: 0,
        };
        let live = follow(recording, resource, until, pid, |live, event| {
            counting.add(live, event);
            Ok(())
        })?;
        if !resource.has_bytes() {
            counting.look_at(&live);
        }
        counting.account.unknown += live.n_early();
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
            Change::Nothing => {}
            Change::Taken { replaced, is_odd } => {
                if let Some(before) = replaced {
                    self.release(event, &before, false);
                    self.account.doubled += u64::from(is_odd);
                }
                self.take(event);
                self.last.insert(thread, event.address);
            }
            Change::TakenAndGivenBack => {
                self.take(event);
                self.release(event, &Block { bytes: event.bytes, stack: event.stack }, false);
            }
            Change::GivenBack(block) => {
                let is_temporary = self.last.remove(&thread) == Some(event.address);
                self.release(event, &block, is_temporary);
            }
            Change::Inherited => {
                self.last.remove(&thread);
                self.account.inherited += 1;
            }
            Change::Unknown => {
                self.last.remove(&thread);
                self.account.unknown += 1;
            }
            Change::Failed => self.sums(event.process, event.stack).into_iter().for_each(|sums| sums.failures += 1),
        }
    }

    /// Tells some of what is still there, in order.
    fn look_at(&mut self, live: &Live<'_, Block>) {
        /// So many of each stack.
        const MOST: usize = 8;

        let mut all: Vec<(Place, u32)> = live.all().map(|(place, block)| (place, block.stack)).collect();
        all.sort_unstable();
        for (place, stack) in all {
            if self.account.resource == Resource::File && STANDARD.contains(&place.1) {
                *self.account.standard.entry(stack).or_default() += 1;
            }
            let held = self.account.held.entry(stack).or_default();
            if held.len() < MOST {
                let detail = self.details.get(&place).cloned();
                held.push(Held { what: place.1, process: place.0, detail });
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
        if let Some(detail) = &event.detail {
            self.details.insert((event.process, event.address), Rc::clone(detail));
        }
        self.now = self.now.saturating_add(event.bytes);
        let of_process = self.of_process.entry(event.process).or_default();
        *of_process = of_process.saturating_add(event.bytes);
        if self.now > self.account.peak {
            (self.account.peak, self.account.peak_at) = (self.now, (event.ticks, self.n_events));
        }
    }

    fn release(&mut self, event: &Event, &Block { bytes, stack }: &Block, is_temporary: bool) {
        let process = event.process;
        if !self.details.is_empty() {
            self.details.remove(&(process, event.address));
        }
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

#[cfg(test)]
mod tests {
    use rftrace_format::resources::{BlockHead, Kind, MAGIC, Unit};

    use super::*;

    /// The units of an allocation that began earlier.
    fn taken(kind: Kind, [began, ticks]: [u64; 2], what: u64) -> Vec<Unit> {
        vec![[kind.word(ticks), what], [Kind::More.word(1), 0], [Kind::More.word(began), 0]]
    }

    fn given_back(kind: Kind, ticks: u64, what: u64) -> Vec<Unit> {
        vec![[kind.word(ticks), what]]
    }

    /// The account of a process' events.
    fn account(resource: Resource, events: &[Vec<Unit>]) -> Account {
        let units: Vec<Unit> = [vec![[Kind::Process.word(1), 7], [Kind::More.word(0), 0]]]
            .iter()
            .chain(events)
            .flatten()
            .copied()
            .collect();
        let head = BlockHead { units: units.len() as u32, process: 1, tid: 7, taken: 1 };
        let words = units.as_flattened().iter().flat_map(|word| word.to_le_bytes());
        let bytes: Vec<u8> = MAGIC.iter().copied().chain(head.encode()).chain(words).collect();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let recording = Recording::open(file.path()).unwrap();
        assert_eq!(recording.resources(), [resource]);
        Account::of(&recording, resource, Until::End, None).unwrap()
    }

    #[track_caller]
    fn check(account: &Account, [allocations, releases, blocks, odd]: [u64; 4]) {
        let Sums { allocations: taken, releases: given_back, blocks: there, .. } = account.total;
        assert_eq!([taken, given_back, there, account.unknown + account.doubled], [allocations, releases, blocks, odd]);
    }

    #[test]
    fn threads_may_be_given_up_before_they_are_told_and_joined_after_their_number_is_used_again() {
        use Kind::{PthreadCreate, PthreadDetach, PthreadJoin};

        // It detaches itself while its creator has not come back.
        let detached = [given_back(PthreadDetach, 10, 5), taken(PthreadCreate, [8, 20], 5)];
        check(&account(Resource::Thread, &detached), [1, 1, 0, 0]);
        // The detached thread was another one, which began unseen before this one.
        let other = [given_back(PthreadDetach, 10, 5), taken(PthreadCreate, [12, 20], 5)];
        check(&account(Resource::Thread, &other), [1, 0, 1, 1]);
        // Another one gets the number before the thread that has joined the first one says so.
        let joined =
            [taken(PthreadCreate, [8, 10], 5), taken(PthreadCreate, [15, 20], 5), given_back(PthreadJoin, 25, 5)];
        check(&account(Resource::Thread, &joined), [2, 1, 1, 0]);
        let both = [&joined[..], &[given_back(PthreadJoin, 30, 5)]].concat();
        check(&account(Resource::Thread, &both), [2, 2, 0, 0]);
        check(&account(Resource::Thread, &[given_back(PthreadJoin, 30, 5)]), [0, 0, 0, 1]);
    }

    #[test]
    fn descriptors_are_replaced_and_closed_in_ranges() {
        use Kind::{Close, CloseRange, Dup2, NotOpen, Open};

        let first: Vec<Vec<Unit>> = (3..7).map(|fd| taken(Open, [fd, fd], fd)).collect();
        let replaced = [&first[..], &[taken(Dup2, [20, 21], 4)]].concat();
        check(&account(Resource::File, &replaced), [5, 1, 4, 0]);
        // One that was opened again was closed by somebody who was not seen.
        check(&account(Resource::File, &[&first[..], &[taken(Open, [20, 21], 4)]].concat()), [5, 1, 4, 1]);
        let range = vec![[CloseRange.word(30), 4], [Kind::More.word(5), 0]];
        let all = account(
            Resource::File,
            &[&replaced[..], &[range, given_back(Close, 31, 3), given_back(Close, 32, 0)]].concat(),
        );
        check(&all, [5, 4, 1, 1]);
        assert_eq!(all.held[&0].iter().map(|held| held.what).collect::<Vec<u64>>(), [6]);
        let failed = vec![[NotOpen.word(30), 9], [Kind::More.word(0), 0]];
        assert_eq!(account(Resource::File, &[failed]).total, Sums { failures: 1, ..Sums::default() });
    }
}
