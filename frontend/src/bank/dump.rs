//! Copies at a moment, for traces of a running program: for a stream the chunks in use (the rest is in the spool), for
//! a ring all of its contents.
//!
//! Not here: the choice of a ring's chunks for a copy during writes (`ring`), the reason of a dump (from the recorder),
//! and its directory (`save`).

use std::fs;
use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use rftrace::abi::{chunk_state, lease};

use super::collect::{Banks, Progress, Watched};
use super::collected::{Collected, Dump};
use super::handover::{self, slot_state};
use super::open::OpenFunctions;
use super::spool::Spool;
use crate::clock::{ClockPair, ticks_in};
use crate::ring::{self, Copied, Look, Taken};

/// A notice of a watched function's call: it was made, or took long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The process.
    pub pid: u32,
    /// The number of the watch.
    pub number: u64,
    /// The time in ticks.
    pub tsc: u64,
    /// The thread, by the tracer's number, if it is known.
    pub thread: Option<u32>,
    /// The duration of the call in ticks; 0 for a call at its beginning.
    pub lasted_ticks: u64,
    /// The number of later matches without a notice.
    pub n_more: u64,
}

/// The reason why there is no dump.
#[derive(Debug)]
pub enum NoDump {
    /// No such process is recorded.
    NoProcess,
    /// Records are [only passed on](Banks::keep_nothing).
    NothingKept,
    /// The dumps have reached their maximum size.
    NoRoom,
    /// Nothing was recorded.
    Nothing,
    /// The copy could not be written.
    Failed(io::Error),
}

impl Banks {
    /// Returns the snapshots requested by processes since the last call. [Discard](Collected::discard) them before the
    /// end of their process.
    pub fn snapshots(&mut self) -> Vec<Collected> {
        std::mem::take(&mut self.snapshots)
    }

    /// Makes a dump of a running process: of its ring up to now, or up to its moment plus the requested time after it;
    /// of a stream up to now. It is then one of the [`snapshots`](Self::snapshots). Returns the number of bytes of a
    /// ring in it.
    ///
    /// # Errors
    ///
    /// The reason for the failure.
    pub fn dump(&mut self, pid: u32, dump: Dump) -> Result<u64, NoDump> {
        if self.keeps_nothing {
            return Err(NoDump::NothingKept);
        }
        let began = |&number: &usize| self.slot(number).first_tsc.load(Relaxed);
        let is_it = |&number: &usize| {
            let slot = self.slot(number);
            slot.state.load(Acquire) == slot_state::IN_USE
                && self.pid_in(number) == pid
                && dump.tsc.is_none_or(|tsc| began(&number) <= tsc)
        };
        // Of several programs that the process has run the one that ran then.
        let found = (0..self.n_seen()).filter(is_it).max_by_key(began);
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

    /// Writes all full chunks of a process's bank to the disk, if records go there. Returns whether the process exists.
    ///
    /// # Errors
    ///
    /// The records cannot be written.
    pub fn flush(&mut self, pid: u32) -> io::Result<bool> {
        let Some(number) = self.slot_of(pid) else { return Ok(false) };
        let mut watched = self.slots[number].take().unwrap_or_else(|| self.watch(number));
        if !self.is_ring {
            self.drain(number, &mut watched, false);
        }
        watched.spool.flush();
        self.keep_about(number, &mut watched);
        let problem = watched.spool.failed.as_ref().map(|error| io::Error::new(error.kind(), error.to_string()));
        self.slots[number] = Some(watched);
        problem.map_or(Ok(true), Err)
    }

    /// Forgets a removed dump with this number of bytes of a ring.
    pub fn forget_dump(&mut self, n_bytes: u64) {
        self.dumped_bytes = self.dumped_bytes.saturating_sub(n_bytes);
    }

    /// Sets the processes to keep after their end, for dumps of them. The next call replaces the list.
    pub fn hold(&mut self, pids: Vec<u32>) {
        self.held = pids;
    }

    /// Returns the notices of calls since the last query, one per process. An ended process is kept until then.
    pub fn notices(&mut self) -> Vec<Notice> {
        let mut notices = Vec::new();
        for number in (0..self.n_seen()).filter(|&number| self.is_noticed(number)) {
            let slot = self.slot(number);
            let noticed = &slot.noticed;
            notices.push(Notice {
                pid: self.pid_in(number),
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

    /// Returns the number of matches since the last query without a [notice](Self::notices).
    pub fn n_more_noticed(&self) -> u64 {
        let rest = |number| {
            let slot = self.slot(number);
            let is_in_use = self.is_ring && slot.state.load(Acquire) == slot_state::IN_USE;
            if is_in_use && slot.noticed.tsc.load(Acquire) == 0 { slot.noticed.n_more.swap(0, Relaxed) } else { 0 }
        };
        (0..self.n_seen()).map(rest).sum()
    }

    /// True if something was noticed in a process.
    fn is_noticed(&self, number: usize) -> bool {
        let slot = self.slot(number);
        // Up to 1 it is being written.
        self.is_ring && slot.state.load(Acquire) == slot_state::IN_USE && slot.noticed.tsc.load(Acquire) > 1
    }

    /// True if a notice of a process is to be read, or a dump of it is to be made.
    pub(super) fn is_held(&self, number: usize, pid: u32) -> bool {
        let n_more = || self.is_ring && self.slot(number).noticed.n_more.load(Relaxed) > 0;
        self.is_noticed(number) || n_more() || self.held.contains(&pid)
    }

    /// Returns the time without records for each process with a first record, as seen by these queries.
    pub fn quiet_for(&mut self) -> Vec<(u32, Duration)> {
        let mut quiet = Vec::new();
        for number in 0..self.n_seen() {
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

    /// Copies the recording of a process so far, on its request.
    pub(super) fn take_snapshot(&mut self, number: usize, watched: &mut Watched) {
        // A process hears of no failure of its snapshot: there is none then.
        handover::copy_if_wanted(&self.slot(number).snapshot_tsc, |wanted| {
            if self.is_ring {
                let _ = self.dump_ring(number, watched, wanted, None);
            } else {
                let _ = self.copy_stream(number, watched, wanted, None);
            }
        });
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
        let mut tail = Spool::new(&self.folder, format!("tail-{}-{wanted}", watched.pid));
        self.copy_chunks(number, &mut tail);
        tail.flush();
        let last_thread = watched.spool.last_thread.max(tail.last_thread);
        if let Some(error) = tail.failed {
            return Err(NoDump::Failed(error));
        }
        let collected = self.collected_now(number, watched, last_thread);
        self.snapshots.push(Collected { tail: Some(tail.path), end_tsc: wanted, dump, ..collected });
        Ok(())
    }

    /// Returns the recording of a process so far, with all its reports before its request.
    fn collected_now(&self, number: usize, watched: &mut Watched, last_thread: u32) -> Collected {
        self.read_journal(number, self.slot(number), &mut watched.told);
        self.collected(number, watched, last_thread)
    }

    /// Writes the contents of chunks; the chunks stay as they are. Only the recorder frees chunks, so no other records
    /// come into them meanwhile.
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
        let mut copy = Spool::new(&self.folder, format!("tail-{}-{until}-{}", watched.pid, self.n_dumps));
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
        watched.open.look_again(watched.pid, slot.threads_at.load(Relaxed));
        watched.looked = None;
        watched.look(slot.mapped_at.load(Relaxed));
        let mut collected = self.collected_now(number, watched, copy.last_thread);
        self.tell_of_ring(number, &mut collected, watched, &copied);
        self.snapshots.push(Collected { tail: Some(copy.path), end_tsc: until, is_cut: true, dump, ..collected });
        Ok(n_bytes)
    }

    /// Packs the contents of a ring into a dump or into its spool. The process may go on.
    pub(super) fn copy_ring(&mut self, number: usize, spool: &mut Spool, is_dump: bool) -> Copied {
        let chunk_bytes = self.layout.chunk_bytes() as u64;
        ring::copy(self.looks(number), |look| {
            if !is_dump && !spool.may_go_on(self.taken_bytes, self.most_bytes) {
                return Taken::Enough;
            }
            let chunk = self.chunk(number, look.place);
            if spool.write_if(&chunk, &mut self.packer, || look.is_still(&chunk)).is_none() {
                return Taken::Lost;
            }
            *(if is_dump { &mut self.dumped_bytes } else { &mut self.taken_bytes }) += chunk_bytes;
            Taken::Copied
        })
    }

    /// Adds the facts about a ring beside its chunks.
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

    /// Returns all chunks with records.
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
