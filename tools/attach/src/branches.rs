//! Branches at functions' beginnings, and hooks in XRay's sleds: this module writes them into a process, and removes
//! them, while all its threads are stopped.
//!
//! The library in the process has prepared them, or this process if there is none (`stubs`), while the threads ran: the
//! targets of the branches exist. The pass that changes code is here. A thread that stands within the bytes of a branch
//! goes on in the copy of the original instructions. A function stays unchanged if a thread sleeps in it that cannot be
//! stopped (`sleepers`).
//!
//! Not here: the choice of functions for a branch, and the copies (`rftrace-frontend`).
//!
//! **Invariant**: code changes only while all threads are stopped or asleep, and the place of each thread stays valid.
//!
//! **Invariant**: only bytes are changed that equal those for which the branch was prepared, in a module that existed
//! then; or the branch itself.
//!
//! **Invariant**: a single system call writes a whole branch, even if this process ends at any moment. So each function
//! is either unchanged or has its branch, and does the same in both cases.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::libc::{pid_t, user_regs_struct};
use rftrace_format::branches::{BRANCH_BYTES, Branch, ENTRY_BYTES, MOST_DISPLACED_BYTES};

use super::borrowed::Borrowed;
use super::library::Library;
use super::process::{Map, Process};
use super::sys::{self, words};
use super::world::World;

/// More functions than any program has.
const MOST_BRANCHES: u64 = 1 << 24;
const PAGE_BYTES: u64 = 4096;
const SYSCALL_BYTES: u64 = 2;
/// The part of a stack to look at: code interrupted by a signal's handler lies near.
const STACK_BYTES: u64 = 64 << 20;
const PAUSE: Duration = Duration::from_millis(1);

/// The reason why a function has no branch although one was prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoBranch {
    /// Its bytes have changed.
    Changed,
    /// A signal handler has interrupted its first instructions, and does not return.
    Interrupted,
    /// A thread that cannot be stopped goes on in its first instructions.
    Asleep,
    /// No memory is available for the target of the branch.
    Unreachable,
}

impl std::fmt::Display for NoBranch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Changed => "changed by somebody else",
            Self::Interrupted => "a signal interrupted a thread in its first instructions at each attempt",
            Self::Asleep => "a thread sleeps in the kernel and returns into its first instructions",
            Self::Unreachable => "no executable memory within reach",
        })
    }
}

/// Result of a pass.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// Threads that went on elsewhere.
    pub(crate) n_moved: usize,
    /// Functions without a branch.
    pub(crate) left_out: Vec<(u64, NoBranch)>,
    /// The longest time for which threads were stopped.
    pub(crate) stopped: Duration,
}

impl Written {
    /// Adds the result of a later pass.
    pub(crate) fn add(&mut self, later: Self) {
        self.n_moved += later.n_moved;
        self.left_out = later.left_out;
        self.stopped = self.stopped.max(later.stopped);
    }
}

/// Branches of a recording.
#[derive(Debug, Default)]
pub(crate) struct OwnBranches {
    pub(crate) written: Written,
    /// Report on functions chosen for a hook.
    pub(crate) told: String,
}

impl OwnBranches {
    /// How many threads were moved, and for how long all were stopped.
    pub(crate) fn stopped(&self) -> (usize, Duration) {
        (self.written.n_moved, self.written.stopped)
    }
}

/// Branches prepared in a process, by address.
#[derive(Debug)]
pub(crate) struct Branches(Vec<Branch>);

impl Branches {
    /// All branches ever prepared by the library there.
    pub(crate) fn prepared(process: &Process, library: &Library) -> Result<Self> {
        let place = library.function("rftrace_attach_branches")?;
        let (address, number) = process.word(place).zip(process.word(place + 8)).unwrap_or((0, 0));
        if number > MOST_BRANCHES {
            bail!("cannot read the tracer's list of functions in process {}", process.pid);
        }
        let bytes = process.bytes(address, number * ENTRY_BYTES as u64);
        let entries = bytes.as_chunks::<ENTRY_BYTES>().0;
        let branches: Vec<Branch> = entries.iter().filter_map(Branch::decode).collect();
        if branches.len() as u64 != number {
            bail!("cannot read the tracer's list of functions in process {}", process.pid);
        }
        Ok(Self::of(branches))
    }

    /// These branches; their targets exist.
    pub(crate) fn of(mut branches: Vec<Branch>) -> Self {
        branches.sort_by_key(|branch| (branch.function, branch.stub));
        Self(branches)
    }

    /// The branches wanted now.
    pub(crate) fn wanted(mut self) -> Self {
        self.0.retain(|branch| branch.is_wanted);
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The branches with their beginning in a range.
    fn within(&self, range: &Range<u64>) -> &[Branch] {
        let place = |address| self.0.partition_point(|branch| branch.function < address);
        &self.0[place(range.start)..place(range.end).max(place(range.start))]
    }

    /// The branch whose bytes contain an address, behind its beginning.
    fn around(&self, address: u64) -> Option<&Branch> {
        let near = self.within(&(address.saturating_sub(BRANCH_BYTES as u64 - 1)..address));
        near.iter().find(|branch| branch.moved(address).is_some())
    }

    /// True if any of them is in the code.
    pub(crate) fn are_there(&self, process: &Process) -> bool {
        self.0.iter().any(|branch| State::of(branch, &process.bytes(branch.function, LONGEST)) == State::Branched)
    }

    /// Writes them. `borrowed` is a thread that is stopped already; `before` was mapped when they were prepared.
    pub(crate) fn write(
        &self,
        process: &Process,
        borrowed: &mut Borrowed<'_>,
        before: &[Map],
        late: &mut Vec<pid_t>,
    ) -> Result<Written> {
        /// Passes in which a handler may come back.
        const TRIES: usize = 20;

        let mut written = Written::default();
        for n_tries in 1.. {
            let world = World::still(process, borrowed.thread, late)?;
            let maps = process.maps()?;
            let mut threads = Vec::new();
            for thread in world.stopped() {
                threads.push((thread, sys::registers(thread)?));
            }
            threads.push((borrowed.thread, borrowed.registers));
            let in_use = self.in_use(process, &threads, &world.sleepers, &maps);
            if !in_use.blocked.is_subset(&in_use.asleep) && n_tries < TRIES {
                drop(world);
                thread::sleep(PAUSE);
                continue;
            }
            let pages = self.pages(process, |branch, state| match state {
                _ if in_use.asleep.contains(&branch.function) => Err(Some(NoBranch::Asleep)),
                _ if in_use.blocked.contains(&branch.function) => Err(Some(NoBranch::Interrupted)),
                _ if !is_same_module(before, &maps, branch) => Err(Some(NoBranch::Changed)),
                State::Displaced => Ok(branch.branched()),
                State::Branched => Err(None),
                State::Other => Err(Some(NoBranch::Changed)),
            });
            // All steps that can fail come before a byte is changed.
            for &(thread, ref registers) in &in_use.moved {
                sys::set_registers(thread, registers)?;
                if thread == borrowed.thread {
                    borrowed.registers = *registers;
                }
            }
            pages.write(process).with_context(|| format!("cannot change the code of process {}", process.pid))?;
            written.n_moved = in_use.moved.len();
            written.left_out = pages.left_out;
            written.stopped = world.since.elapsed();
            return Ok(written);
        }
        Ok(written)
    }

    /// Takes them away, wherever they are, all threads being stopped.
    pub(crate) fn restore_in(&self, process: &Process) -> Result<()> {
        let pages = self.pages(process, |branch, state| match state {
            State::Branched => Ok(branch.displaced().to_vec()),
            State::Displaced | State::Other => Err(None),
        });
        pages.write(process).with_context(|| format!("cannot restore the code of process {}", process.pid))
    }

    /// The same, with the process's threads running, except for one that may be stopped already.
    pub(crate) fn restore(&self, process: &Process, stopped: Option<pid_t>, late: &mut Vec<pid_t>) -> Result<()> {
        if !self.are_there(process) {
            return Ok(());
        }
        let _world = World::still(process, stopped.unwrap_or(0), late)?;
        self.restore_in(process)
    }

    /// Finds the threads to be moved, and the functions to be left as they are.
    fn in_use(
        &self,
        process: &Process,
        threads: &[(pid_t, user_regs_struct)],
        sleepers: &[user_regs_struct],
        maps: &[Map],
    ) -> InUse {
        let mut in_use = InUse { moved: Vec::new(), blocked: BTreeSet::new(), asleep: BTreeSet::new() };
        for &(thread, registers) in threads {
            match self.around(registers.rip).map(|branch| (branch, branch.moved(registers.rip).flatten())) {
                None => {}
                Some((_, Some(copy))) => in_use.moved.push((thread, user_regs_struct { rip: copy, ..registers })),
                Some((branch, None)) => _ = in_use.blocked.insert(branch.function),
            }
            in_use.blocked.extend(self.on_stack(process, &registers, maps));
        }
        for registers in sleepers {
            // An interrupted system call begins again. The return address of a `vfork` may be in a register alone, as its child uses the stack too.
            let places = [registers.rip, registers.rip.wrapping_sub(SYSCALL_BYTES)];
            let told = [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8, registers.r9];
            let suspects = places.into_iter().chain(told).filter_map(|word| self.around(word));
            in_use.asleep.extend(suspects.map(|branch| branch.function));
            in_use.asleep.extend(self.on_stack(process, registers, maps));
        }
        in_use
    }

    /// The functions with a branch whose bytes contain an address on a thread's stack.
    fn on_stack(&self, process: &Process, registers: &user_regs_struct, maps: &[Map]) -> Vec<u64> {
        let Some((first, last)) = self.0.first().zip(self.0.last()) else { return Vec::new() };
        let all = first.function..last.function + BRANCH_BYTES as u64;
        let map = maps.iter().find(|map| map.range.contains(&registers.rsp));
        let n_bytes = map.map_or(0, |map| (map.range.end - registers.rsp).min(STACK_BYTES));
        let stack = process.bytes(registers.rsp, n_bytes);
        let suspects = words(&stack).filter(|word| all.contains(word)).filter_map(|word| self.around(word));
        suspects.map(|branch| branch.function).collect()
    }

    /// The pages that change. `becomes` tells the new bytes of a branch, or why they stay.
    fn pages(
        &self,
        process: &Process,
        becomes: impl Fn(&Branch, State) -> std::result::Result<Vec<u8>, Option<NoBranch>>,
    ) -> Pages {
        let mut pages = Pages::default();
        let mut rest = &self.0[..];
        while let Some(first) = rest.first() {
            let page = first.function & !(PAGE_BYTES - 1);
            let (own, others) = rest.split_at(rest.partition_point(|branch| branch.function < page + PAGE_BYTES));
            rest = others;
            // Instructions may reach into the next page; branches do not.
            let bytes = process.bytes(page, PAGE_BYTES + LONGEST);
            let mut after = bytes.clone();
            let mut changed: Option<Range<usize>> = None;
            for branch in own {
                let at = (branch.function - page) as usize;
                let state = State::of(branch, bytes.get(at..).unwrap_or_default());
                match becomes(branch, state) {
                    Ok(new) if at + branch.n_changed() <= PAGE_BYTES as usize => {
                        let end = at + branch.n_changed();
                        after[at..end].copy_from_slice(&new[..end - at]);
                        let before = changed.map_or(at..at, |range| range);
                        changed = Some(before.start..end);
                    }
                    Ok(_) => pages.leave_out(branch, NoBranch::Changed),
                    Err(Some(reason)) => pages.leave_out(branch, reason),
                    Err(None) => {}
                }
            }
            if let Some(range) = changed {
                let (before, after) = (bytes[range.clone()].to_vec(), after[range.clone()].to_vec());
                pages.changes.push(Change { address: page + range.start as u64, before, after });
            }
        }
        pages
    }
}

const LONGEST: u64 = MOST_DISPLACED_BYTES as u64;

/// State of a function's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The original bytes, as the branch was prepared for.
    Displaced,
    /// The branch, with its further bytes.
    Branched,
    Other,
}

impl State {
    fn of(branch: &Branch, memory: &[u8]) -> Self {
        match memory.get(..branch.displaced().len()) {
            Some(bytes) if bytes == branch.displaced() => Self::Displaced,
            Some(bytes) if bytes == branch.branched() => Self::Branched,
            _ => Self::Other,
        }
    }
}

/// Code that the threads of a process use.
struct InUse {
    /// Threads within a branch, and their registers to go on with.
    moved: Vec<(pid_t, user_regs_struct)>,
    /// Functions to which something may come back in the first instructions.
    blocked: BTreeSet<u64>,
    /// The same for sleeping threads.
    asleep: BTreeSet<u64>,
}

/// A part of a page.
struct Change {
    address: u64,
    before: Vec<u8>,
    after: Vec<u8>,
}

#[derive(Default)]
struct Pages {
    changes: Vec<Change>,
    left_out: Vec<(u64, NoBranch)>,
}

impl Pages {
    /// A function with sleds counts by the one at its beginning.
    fn leave_out(&mut self, branch: &Branch, reason: NoBranch) {
        if branch.is_beginning() {
            self.left_out.push((branch.function, reason));
        }
    }

    /// Writes all of them; or none, if the system refuses one.
    fn write(&self, process: &Process) -> io::Result<()> {
        for (n_done, change) in self.changes.iter().enumerate() {
            if let Err(error) = process.write(change.address, &change.after) {
                for done in &self.changes[..n_done] {
                    process.write(done.address, &done.before)?;
                }
                return Err(error);
            }
        }
        Ok(())
    }
}

/// True if the file at a branch is the one mapped there before.
fn is_same_module(before: &[Map], now: &[Map], branch: &Branch) -> bool {
    let has = |map: &&Map| map.range.contains(&branch.function);
    let file = now.iter().find(has).map(Map::file);
    file.is_some() && before.iter().find(has).map(Map::file) == file
}
