//! Copies of what is there at a moment, from which traces are made while the program goes on: of a stream what threads are writing to
//! (the rest is in the spool), of a ring all that it holds.
//!
//! Nobody waits while a ring is copied, so chunks are taken meanwhile. A chunk is looked at before and after it was packed: if another
//! thread has taken it, what was packed is dropped. The newest come first. As the oldest are taken first, what is dropped are the
//! oldest: those that are left have no gap.
//!
//! Not here: what a dump is made for (the recorder decides), and how it becomes a directory (`save`).

use std::collections::HashMap;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::fence;
use std::time::{Duration, Instant};

use rftrace::abi::{chunk_state, lease};

use super::collect::{Banks, Collected, Progress, Watched};
use super::file::slot_state;
use super::open::OpenFunctions;
use super::spool::Spool;
use crate::backend::Chunk;
use crate::clock::ClockPair;

/// A call of a function that is watched: it was made, or took long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The process.
    pub pid: u32,
    /// The number of the watch.
    pub number: u64,
    /// When, in ticks.
    pub tsc: u64,
    /// How many such calls there were since that nobody is told of.
    pub n_more: u64,
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

/// What was copied of a ring.
#[derive(Debug, Default)]
pub(super) struct Copied {
    /// When the oldest chunk of each thread was taken, by the tracer's numbers.
    oldest: HashMap<u32, u64>,
    newest_index: u64,
}

impl Banks {
    /// Makes a dump of what is recorded of a process, which goes on meanwhile: what was recorded until now or, of a ring, until `tsc`. Returns
    /// whether there was room for it on the disk.
    pub fn dump(&mut self, pid: u32, reason: &str, tsc: Option<u64>) -> bool {
        let is_it = |&number: &usize| self.slot(number).state.load(Acquire) == slot_state::IN_USE;
        let found = (0..self.slots.len()).filter(is_it).find(|&number| self.slot(number).pid.load(Relaxed) == pid);
        let Some(number) = found else { return false };
        let mut watched = self.slots[number].take().unwrap_or_else(|| self.watch(number));
        let until = tsc.unwrap_or_else(|| ClockPair::now().tsc);
        let reason = Some(reason.to_owned());
        let is_made = match self.is_ring {
            true => self.dump_ring(number, &mut watched, until, reason),
            false => self.copy_stream(number, &mut watched, until, reason),
        };
        self.slots[number] = Some(watched);
        is_made
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
                n_more: noticed.n_more.swap(0, Relaxed),
            });
            noticed.tsc.store(0, Release);
        }
        notices
    }

    /// Whether something was noticed in a process.
    pub(super) fn is_noticed(&self, number: usize) -> bool {
        let slot = self.slot(number);
        // Up to 1 it is being written.
        self.is_ring && slot.state.load(Acquire) == slot_state::IN_USE && slot.noticed.tsc.load(Acquire) > 1
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
        if self.is_ring {
            self.dump_ring(number, watched, wanted, None);
        } else {
            self.copy_stream(number, watched, wanted, None);
        }
        let _ = slot.snapshot_tsc.compare_exchange(wanted, 0, AcqRel, Relaxed);
    }

    /// Copies what threads are writing to. Returns whether there was room.
    fn copy_stream(&mut self, number: usize, watched: &mut Watched, wanted: u64, reason: Option<String>) -> bool {
        // It counts as what the trace of it takes.
        if !watched.spool.may_go_on(self.taken_bytes, self.most_bytes) {
            return false;
        }
        self.taken_bytes += watched.spool.n_chunks * self.layout.chunk_bytes() as u64;
        watched.spool.flush();
        watched.looked = None;
        watched.look(self.slot(number).mapped_at.load(Relaxed));
        let mut tail = Spool::new(self.folder.join(format!("tail-{}-{wanted}", watched.pid)));
        self.copy_chunks(number, &mut tail);
        tail.flush();
        let last_thread = watched.spool.last_thread.max(tail.last_thread);
        if tail.failed.is_some() {
            return false;
        }
        let collected = self.collected(number, watched, last_thread);
        self.snapshots.push(Collected { tail: Some(tail.path), end_tsc: wanted, reason, ..collected });
        true
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

    /// Copies a ring into a file of its own. Returns whether there was room.
    fn dump_ring(&mut self, number: usize, watched: &mut Watched, until: u64, reason: Option<String>) -> bool {
        if self.dumped_bytes >= self.most_bytes {
            return false;
        }
        let slot = self.slot(number);
        let mut copy = Spool::new(self.folder.join(format!("tail-{}-{until}-{}", watched.pid, self.dumped_bytes)));
        // First what is about to be lost.
        let copied = self.copy_ring(number, &mut copy, true);
        copy.flush();
        if copy.failed.is_some() || copy.n_chunks == 0 {
            return false;
        }
        watched.open = OpenFunctions::of_process(watched.pid, slot.threads_at.load(Relaxed));
        watched.looked = None;
        watched.look(slot.mapped_at.load(Relaxed));
        let mut collected = self.collected(number, watched, copy.last_thread);
        self.tell_of_ring(number, &mut collected, watched, &copied);
        self.snapshots.push(Collected { tail: Some(copy.path), end_tsc: until, is_cut: true, reason, ..collected });
        true
    }

    /// Packs all that is in a ring, of a process that may go on, into a dump or into its spool.
    pub(super) fn copy_ring(&mut self, number: usize, spool: &mut Spool, is_dump: bool) -> Copied {
        let mut looks = self.looks(number);
        looks.sort_unstable_by_key(|look| std::cmp::Reverse(look.index));
        let mut copied = Copied { newest_index: looks.first().map_or(0, |look| look.index), ..Copied::default() };
        drop_mislabelled(&mut looks);
        let chunk_bytes = self.layout.chunk_bytes() as u64;
        for look in looks {
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
        // A handler's chunk, taken while its thread was about to take number 8.
        let nested = [look(9, 6, 1, 81), look(8, 6, 1, 80), look(6, 5, 1, 60)];
        let mut looks = nested.to_vec();
        drop_mislabelled(&mut looks);
        assert_eq!(looks, nested);
    }
}
