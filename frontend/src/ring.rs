//! The choice of a ring's chunks for a copy while threads take and fill chunks.
//!
//! A copy is valid only if its chunk has the same owner before and after it. The newest chunks come first. Threads take
//! the oldest chunks first, except a thread that lost its processor shortly before taking one.
//!
//! So behind a dropped chunk no older chunk of its thread is copied either.
//!
//! Not here: the targets of the copies (`bank/dump.rs`, `tracer/dump.rs`).

use core::sync::atomic::Ordering::{Acquire, Relaxed};
use core::sync::atomic::fence;
use std::collections::{HashMap, HashSet};

use rftrace::abi::{chunk_state, lease};

use crate::backend::Chunk;

/// A chunk by its header, while nobody takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// Its number among all.
    pub(crate) place: usize,
    pub(crate) index: u64,
    prev_index: u64,
    tid: u32,
    pub(crate) taken_tsc: u64,
}

impl Look {
    /// Looks at a chunk. `None` for a chunk without records, or one being taken.
    pub(crate) fn at(place: usize, chunk: &Chunk<'_>) -> Option<Self> {
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

    /// Returns true if the chunk is the same as before, so reads of it are right.
    pub(crate) fn is_still(&self, chunk: &Chunk<'_>) -> bool {
        // The reads of the chunk come before this.
        fence(Acquire);
        Self::at(self.place, chunk) == Some(*self)
    }
}

/// Outcome of a copy of a ring.
#[derive(Debug, Default)]
pub(crate) struct Copied {
    /// The time at which the oldest chunk of each thread was taken, by the tracer's numbers.
    pub(crate) oldest: HashMap<u32, u64>,
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "for banks"))]
    pub(crate) newest_index: u64,
}

/// Outcome for a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Copied,
    /// It was [not the same](Look::is_still) any more.
    Lost,
    /// It was not copied, and the copy ends.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "for banks"))]
    Enough,
}

/// Copies chunks through `take`, the newest first, of each thread without a gap.
pub(crate) fn copy(mut looks: Vec<Look>, mut take: impl FnMut(&Look) -> Taken) -> Copied {
    looks.sort_unstable_by_key(|look| std::cmp::Reverse(look.index));
    let mut copied = Copied { newest_index: looks.first().map_or(0, |look| look.index), ..Copied::default() };
    drop_mislabelled(&mut looks);
    let mut linked = Linked::default();
    for look in looks {
        if !linked.takes(&look) {
            continue;
        }
        match take(&look) {
            Taken::Copied => {
                linked.add(&look);
                copied.oldest.insert(look.tid, look.taken_tsc);
            }
            Taken::Lost => {}
            Taken::Enough => break,
        }
    }
    copied
}

/// Each thread's chunks up to its newest one without a gap. They come newest first.
#[derive(Debug, Default)]
struct Linked {
    /// By thread: the index of the chunk before the oldest one here.
    before: HashMap<u32, u64>,
    indices: HashSet<u64>,
}

impl Linked {
    /// Returns true if no chunk is missing between this one and the thread's next newer one. That one may continue this
    /// chunk, a chunk still to come, or a present one that another thread has left.
    fn takes(&self, look: &Look) -> bool {
        self.before.get(&look.tid).is_none_or(|before| *before <= look.index || self.indices.contains(before))
    }

    fn add(&mut self, look: &Look) {
        self.before.insert(look.tid, look.prev_index);
        self.indices.insert(look.index);
    }
}

/// Leaves out chunks of a thread held up while it took them: they have the number of the new taking, but otherwise the
/// old thread's data. Each chunk names its thread's previous one, so a chunk with a later previous one is of this kind.
/// `looks` are by number, the latest first.
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

    /// Returns the indices of the copied chunks, with one lost meanwhile.
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
