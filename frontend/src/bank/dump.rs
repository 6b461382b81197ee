//! Copies of what is there at a moment, from which traces are made while the program goes on: of a stream what threads are writing to
//! (the rest is in the spool), of a ring all that it holds.
//!
//! Nobody waits while a ring is copied, so chunks are taken meanwhile. A chunk is looked at before and after it was packed: if another
//! thread has taken it, what was packed is dropped. The newest come first. The oldest are taken first, but for a thread that lost its
//! processor while it was about to take one: so of what is older than a dropped chunk nothing of its thread is copied either.
//!
//! Not here: what a dump is made for (the recorder decides), and how it becomes a directory (`save`).

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::fence;
use std::time::{Duration, Instant};

use rftrace::abi::{chunk_state, lease};

use super::collect::{Banks, Progress, Watched};
use super::collected::{Collected, Dump};
use super::file::slot_state;
use super::open::OpenFunctions;
use super::spool::Spool;
use crate::backend::Chunk;
use crate::clock::{ClockPair, ticks_in};

/// A call of a function that is watched: it was made, or took long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The process.
    pub pid: u32,
    /// The number of the watch.
    pub number: u64,
    /// When, in ticks.
    pub tsc: u64,
    /// In which thread, by the tracer's numbers, if that is known.
    pub thread: Option<u32>,
    /// How long the call lasted, in ticks; 0 if it has only begun.
    pub lasted_ticks: u64,
    /// How many such calls there were since that nobody is told of.
    pub n_more: u64,
}

/// Why there is no dump.
#[derive(Debug)]
pub enum NoDump {
    /// No such process is recorded.
    NoProcess,
    /// What is recorded is [only passed on](Banks::keep_nothing).
    NothingKept,
    /// Dumps hold as much as they may together.
    NoRoom,
    /// Nothing was recorded.
    Nothing,
    /// What was copied could not be written.
    Failed(io::Error),
}

/// A chunk as its header tells, while nobody takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    place: usize,
    index: u64,
    prev_index: u64,
    tid: u32,
    taken_tsc: u64,
}

impl Look {
    /// Looks at a chunk. `None`: it holds nothing, or is being taken.
    fn at(place: usize, chunk: &Chunk<'_>) -> Option<Self> {
        let header = chunk.header;
        let lease = header.lease.load(Acquire);
        let tid = header.tid.load(Acquire);
        (lease::state(lease) != chunk_state::FREE && tid != 0).then(|| Self {
            place,
            index: lease::index(lease),
            prev_index: header.prev_index.load(Relaxed),
            tid,
            taken_tsc: header.taken_tsc.load(Relaxed),
        })
    }
}

/// Of each thread's chunks those that lead up to its newest one without a gap. They come newest first.
#[derive(Debug, Default)]
struct Linked {
    /// What each thread had before the oldest of them.
    before: HashMap<u32, u64>,
    indices: HashSet<u64>,
}

impl Linked {
    /// Whether what the next newer chunk of the thread goes on from is this one, or one that is there, of another thread that had left it, or
    /// one that is still to come.
    fn takes(&self, look: &Look) -> bool {
        self.before.get(&look.tid).is_none_or(|before| *before <= look.index || self.indices.contains(before))
    }

    fn add(&mut self, look: &Look) {
        self.before.insert(look.tid, look.prev_index);
        self.indices.insert(look.index);
    }
}

/// What was copied of a ring.
#[derive(Debug, Default)]
pub(super) struct Copied {
    /// When the oldest chunk of each thread was taken, by the tracer's numbers.
    oldest: HashMap<u32, u64>,
    newest_index: u64,
}

impl Banks {
    /// Makes a dump of what is there of a process, which goes on meanwhile: of its ring what was recorded until now, or until the moment
    /// that it is made for and what is wanted after that; of a stream all until now. It is among the [`snapshots`](Self::snapshots) then.
    /// Returns how many bytes of a ring it holds.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn dump(&mut self, pid: u32, dump: Dump) -> Result<u64, NoDump> {
        if self.keeps_nothing {
            return Err(NoDump::NothingKept);
        }
        let began = |&number: &usize| self.slot(number).first_tsc.load(Relaxed);
        let is_it = |&number: &usize| {
            let slot = self.slot(number);
            slot.state.load(Acquire) == slot_state::IN_USE
                && slot.pid.load(Relaxed) == pid
                && dump.tsc.is_none_or(|tsc| began(&number) <= tsc)
        };
        // Of several programs that the process has run the one that ran then.
        let found = (0..self.slots.len()).filter(is_it).max_by_key(began);
        let number = found.ok_or(NoDump::NoProcess)?;
        let mut watched = self.slots[number].take().unwrap_or_else(|| self.watch(number));
        let now = ClockPair::now().tsc;
        let made = if self.is_ring {
            let until = dump.tsc.map_or(now, |tsc| now.min(tsc.saturating_add(ticks_in(dump.after))));
            self.dump_ring(number, &mut watched, until, Some(dump))
        } else {
            self.copy_stream(number, &mut watched, now, Some(dump)).map(|()| 0)
        };
        self.slots[number] = Some(watched);
        made
    }

    /// A dump is not there any more that held so many bytes of a ring.
    pub fn forget_dump(&mut self, n_bytes: u64) {
        self.dumped_bytes = self.dumped_bytes.saturating_sub(n_bytes);
    }

    /// Processes that are not given up when they have ended, until this says otherwise: dumps are to be made of them.
    pub fn hold(&mut self, pids: Vec<u32>) {
        self.held = pids;
    }

    /// What was noticed in processes since this was asked before, one call in each. A process that has ended is not given up before.
    pub fn notices(&mut self) -> Vec<Notice> {
        let mut notices = Vec::new();
        for number in (0..self.slots.len()).filter(|&number| self.is_noticed(number)) {
            let slot = self.slot(number);
            let noticed = &slot.noticed;
            notices.push(Notice {
                pid: slot.pid.load(Relaxed),
                number: noticed.number.load(Relaxed),
                tsc: noticed.tsc.load(Relaxed),
                thread: u32::try_from(noticed.thread.load(Relaxed)).ok().filter(|&thread| thread != 0),
                lasted_ticks: noticed.lasted.load(Relaxed),
                n_more: noticed.n_more.swap(0, Relaxed),
            });
            noticed.tsc.store(0, Release);
        }
        notices
    }

    /// How many calls were noticed since this was asked before that nobody is told of, and come with no [notice](Self::notices).
    pub fn n_more_noticed(&self) -> u64 {
        let rest = |number| {
            let slot = self.slot(number);
            let is_in_use = self.is_ring && slot.state.load(Acquire) == slot_state::IN_USE;
            if is_in_use && slot.noticed.tsc.load(Acquire) == 0 { slot.noticed.n_more.swap(0, Relaxed) } else { 0 }
        };
        (0..self.slots.len()).map(rest).sum()
    }

    /// Whether something was noticed in a process.
    fn is_noticed(&self, number: usize) -> bool {
        let slot = self.slot(number);
        // Up to 1 it is being written.
        self.is_ring && slot.state.load(Acquire) == slot_state::IN_USE && slot.noticed.tsc.load(Acquire) > 1
    }

    /// Whether something is to be told of a process, or a dump is to be made of it.
    pub(super) fn is_held(&self, number: usize, pid: u32) -> bool {
        let n_more = || self.is_ring && self.slot(number).noticed.n_more.load(Relaxed) > 0;
        self.is_noticed(number) || n_more() || self.held.contains(&pid)
    }

    /// For how long nothing was recorded in each process that has begun, by what was seen when this was asked before.
    pub fn quiet_for(&mut self) -> Vec<(u32, Duration)> {
        let mut quiet = Vec::new();
        for number in 0..self.slots.len() {
            let Some(mut watched) = self.slots[number].take() else { continue };
            let progress = self.progress(number);
            let since = match watched.progress {
                Some((before, since)) if before == progress => since,
                _ => Instant::now(),
            };
            watched.progress = Some((progress, since));
            if progress.newest_index > 0 {
                quiet.push((watched.pid, since.elapsed()));
            }
            self.slots[number] = Some(watched);
        }
        quiet
    }

    /// Copies what is there of a process, if it has asked for that.
    pub(super) fn take_snapshot(&mut self, number: usize, watched: &mut Watched) {
        let slot = self.slot(number);
        let wanted = slot.snapshot_tsc.load(Acquire);
        if wanted == 0 {
            return;
        }
        // Who asked for it is told nothing: there is none then.
        if self.is_ring {
            let _ = self.dump_ring(number, watched, wanted, None);
        } else {
            let _ = self.copy_stream(number, watched, wanted, None);
        }
        let _ = slot.snapshot_tsc.compare_exchange(wanted, 0, AcqRel, Relaxed);
    }

    fn copy_stream(
        &mut self,
        number: usize,
        watched: &mut Watched,
        wanted: u64,
        dump: Option<Dump>,
    ) -> Result<(), NoDump> {
        // It counts as what the trace of it takes.
        if !watched.spool.may_go_on(self.taken_bytes, self.most_bytes) {
            return Err(NoDump::NoRoom);
        }
        self.taken_bytes += watched.spool.n_chunks * self.layout.chunk_bytes() as u64;
        watched.spool.flush();
        watched.looked = None;
        watched.look(self.slot(number).mapped_at.load(Relaxed));
        let mut tail = Spool::new(self.folder.join(format!("tail-{}-{wanted}", watched.pid)));
        self.copy_chunks(number, &mut tail);
        tail.flush();
        let last_thread = watched.spool.last_thread.max(tail.last_thread);
        if let Some(error) = tail.failed {
            return Err(NoDump::Failed(error));
        }
        let collected = self.collected(number, watched, last_thread);
        self.snapshots.push(Collected { tail: Some(tail.path), end_tsc: wanted, dump, ..collected });
        Ok(())
    }

    /// Writes what is in chunks, which stay as they are: only the recorder makes one free, so no other records come into it meanwhile.
    fn copy_chunks(&mut self, number: usize, tail: &mut Spool) {
        let chunk_bytes = self.layout.chunk_bytes();
        for place in 0..self.layout.n_chunks() {
            let chunk = self.chunk(number, place);
            let now = chunk.header.lease.load(Acquire);
            if now == 0 {
                break;
            }
            if lease::state(now) != chunk_state::FREE && chunk.header.tid.load(Acquire) != 0 {
                tail.write(&chunk, &mut self.packer);
                self.taken_bytes += chunk_bytes as u64;
            }
        }
    }

    /// Copies a ring into a file of its own. Returns how many bytes of it.
    fn dump_ring(
        &mut self,
        number: usize,
        watched: &mut Watched,
        until: u64,
        dump: Option<Dump>,
    ) -> Result<u64, NoDump> {
        if self.dumped_bytes >= self.most_dumped_bytes {
            return Err(NoDump::NoRoom);
        }
        let (slot, before) = (self.slot(number), self.dumped_bytes);
        self.n_dumps += 1;
        let mut copy = Spool::new(self.folder.join(format!("tail-{}-{until}-{}", watched.pid, self.n_dumps)));
        // First what is about to be lost.
        let copied = self.copy_ring(number, &mut copy, true);
        copy.flush();
        let n_bytes = self.dumped_bytes - before;
        if let Some(error) = copy.failed {
            self.forget_dump(n_bytes);
            let _ = fs::remove_file(&copy.path);
            return Err(NoDump::Failed(error));
        }
        if copy.n_chunks == 0 {
            return Err(NoDump::Nothing);
        }
        watched.open = OpenFunctions::of_process(watched.pid, slot.threads_at.load(Relaxed));
        watched.looked = None;
        watched.look(slot.mapped_at.load(Relaxed));
        let mut collected = self.collected(number, watched, copy.last_thread);
        self.tell_of_ring(number, &mut collected, watched, &copied);
        self.snapshots.push(Collected { tail: Some(copy.path), end_tsc: until, is_cut: true, dump, ..collected });
        Ok(n_bytes)
    }

    /// Packs all that is in a ring, of a process that may go on, into a dump or into its spool.
    pub(super) fn copy_ring(&mut self, number: usize, spool: &mut Spool, is_dump: bool) -> Copied {
        let mut looks = self.looks(number);
        looks.sort_unstable_by_key(|look| std::cmp::Reverse(look.index));
        let mut copied = Copied { newest_index: looks.first().map_or(0, |look| look.index), ..Copied::default() };
        drop_mislabelled(&mut looks);
        let chunk_bytes = self.layout.chunk_bytes() as u64;
        let mut linked = Linked::default();
        for look in looks {
            if !linked.takes(&look) {
                continue;
            }
            if !is_dump && !spool.may_go_on(self.taken_bytes, self.most_bytes) {
                break;
            }
            let chunk = self.chunk(number, look.place);
            let is_same = || {
                // What was read of the chunk was read before.
                fence(Acquire);
                Look::at(look.place, &chunk) == Some(look)
            };
            if spool.write_if(&chunk, &mut self.packer, is_same).is_some() {
                linked.add(&look);
                copied.oldest.insert(look.tid, look.taken_tsc);
                *(if is_dump { &mut self.dumped_bytes } else { &mut self.taken_bytes }) += chunk_bytes;
            }
        }
        copied
    }

    /// Says what is known of a ring beside its chunks.
    pub(super) fn tell_of_ring(&self, number: usize, collected: &mut Collected, watched: &Watched, copied: &Copied) {
        let begun_at = self.slot(number).first_index.load(Relaxed) + self.layout.n_chunks() as u64;
        collected.n_overwritten = copied.newest_index.saturating_sub(begun_at);
        let [.., own] = self.texts(number);
        let open = OpenFunctions::of_text(&own).or_later(&watched.open);
        // Which were open at a fork is right as long as all is there.
        if collected.n_overwritten > 0 {
            collected.open.clear();
        }
        collected.open.extend(open.known_since(&copied.oldest));
    }

    /// All chunks that hold something.
    fn looks(&self, number: usize) -> Vec<Look> {
        let mut looks = Vec::new();
        let mut place = 0;
        while place < self.layout.n_chunks() {
            let chunk = self.chunk(number, place);
            if chunk.header.lease.load(Relaxed) == 0 {
                // Behind it may be others: threads that take some may overtake each other.
                let Some(next) = self.next_with_memory(number, place + 1) else { break };
                place = next;
                continue;
            }
            looks.extend(Look::at(place, &chunk));
            place += 1;
        }
        looks
    }

    fn progress(&self, number: usize) -> Progress {
        let looks = self.looks(number);
        let n_records = |look: &Look| {
            let chunk = self.chunk(number, look.place);
            let is_written = lease::state(chunk.header.lease.load(Relaxed)) == chunk_state::FULL;
            if is_written { 0 } else { chunk.records.partition_point(|record| record.read(look.taken_tsc).is_some()) }
        };
        Progress {
            newest_index: looks.iter().map(|look| look.index).max().unwrap_or(0),
            n_records: looks.iter().map(n_records).sum(),
        }
    }
}

/// Leaves out chunks whose thread was held up while it took them: they have the number of the new taking, but all else is the old
/// thread's. Each thread's chunk tells which one it had before, so where that has a later one, it is such a chunk. `looks` are by
/// number, the latest first.
fn drop_mislabelled(looks: &mut Vec<Look>) {
    let mut later: HashMap<u32, Look> = HashMap::new();
    let mut wrong = Vec::new();
    for &look in &*looks {
        if let Some(later) = later.insert(look.tid, look)
            && later.prev_index < look.index
            && later.taken_tsc < look.taken_tsc
        {
            wrong.push(later);
        }
    }
    looks.retain(|look| !wrong.contains(look));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_that_is_just_being_taken_is_left_out() {
        let look = |index, prev_index, tid, taken_tsc| Look { place: 0, index, prev_index, tid, taken_tsc };
        let right = [look(9, 8, 1, 90), look(8, 6, 1, 80), look(7, 0, 2, 70), look(6, 5, 1, 60)];
        let mut looks = right.to_vec();
        drop_mislabelled(&mut looks);
        assert_eq!(looks, right);
        // Number 10 has what was number 5: of a thread with later chunks.
        looks.insert(0, look(10, 4, 1, 50));
        drop_mislabelled(&mut looks);
        assert_eq!(looks, right);
        assert_eq!(linked(&looks, None), [9, 8, 7, 6]);
        // A handler's chunk, taken while its thread was about to take number 8.
        let nested = [look(9, 6, 1, 81), look(8, 6, 1, 80), look(6, 5, 1, 60)];
        let mut looks = nested.to_vec();
        drop_mislabelled(&mut looks);
        assert_eq!(looks, nested);
        assert_eq!(linked(&looks, None), [9, 8, 6]);
    }

    /// The indices of those that are copied, if one is lost meanwhile.
    fn linked(looks: &[Look], lost: Option<u64>) -> Vec<u64> {
        let mut linked = Linked::default();
        let mut copied = Vec::new();
        for look in looks {
            if linked.takes(look) && lost != Some(look.index) {
                linked.add(look);
                copied.push(look.index);
            }
        }
        copied
    }

    #[test]
    fn nothing_of_a_thread_is_older_than_what_was_lost_of_it() {
        let look = |index, prev_index, tid| Look { place: 0, index, prev_index, tid, taken_tsc: 10 * index };
        let looks = [look(9, 8, 1), look(8, 6, 1), look(7, 4, 2), look(6, 5, 1), look(5, 3, 1), look(4, 0, 2)];
        assert_eq!(linked(&looks, Some(6)), [9, 8, 7, 4]);
        assert_eq!(linked(&looks, Some(7)), [9, 8, 6, 5, 4], "all that is left of it");
        // Number 3 is gone. Thread 3 has gone on in what thread 2 had left, number 7.
        assert_eq!(linked(&[look(5, 3, 1), look(2, 0, 1)], None), [5]);
        assert_eq!(linked(&[look(9, 7, 3), look(7, 4, 2), look(6, 0, 3), look(4, 0, 2)], None), [9, 7, 6, 4]);
    }
}
