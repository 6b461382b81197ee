//! Events reported by a process, or by others about it: unloaded libraries, and marks. They are texts at moments of a
//! recording, from the program or from outside, and events in the trace.
//!
//! Not here: a process's reports of them (`journal`), and marks of programs without a bank (`tracer/marks.rs`).

use serde::{Deserialize, Serialize};

use crate::clock::ClockPair;
use crate::host::linux::modules::Unloaded;
use crate::uftrace::directory::mark_name;

/// A text at a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marked {
    /// Its time in ticks.
    pub(crate) tsc: u64,
    /// Its thread, by the tracer's numbers; `None` for the main one.
    pub(crate) thread: Option<u32>,
    pub(crate) text: String,
}

/// The maximum length of a text in bytes; longer ones are cut.
pub(crate) const MOST_BYTES: usize = 1024;
/// Marks of a process, at the most.
pub(super) const MOST_MARKS: usize = 1 << 16;

impl Marked {
    /// One of now.
    pub(crate) fn now(thread: Option<u32>, text: &str) -> Self {
        Self { tsc: ClockPair::now().tsc, thread, text: text[..text.floor_char_boundary(MOST_BYTES)].to_owned() }
    }

    /// The name of its event.
    pub(super) fn event_name(&self) -> String {
        mark_name(&self.text)
    }

    /// Returns its bytes for [`decode`](Self::decode). In place of a library's first address is a number beyond all
    /// addresses.
    pub(super) fn encode(&self) -> Vec<u8> {
        let words = [self.tsc, u64::MAX, self.thread.unwrap_or(0).into()];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend((self.text.len() as u32).to_le_bytes());
        bytes.extend(self.text.as_bytes());
        bytes
    }

    /// Reads a mark; `None` for another kind of event, or invalid bytes.
    pub(super) fn decode(rest: &mut &[u8]) -> Option<Self> {
        let (words, after) = rest.split_first_chunk::<24>()?;
        let word = |at: usize| u64::from_le_bytes(words[at..at + 8].try_into().unwrap_or_default());
        let (length, after) = after.split_first_chunk()?;
        let (text, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        if word(8) != u64::MAX || text.len() > MOST_BYTES {
            return None;
        }
        *rest = after;
        let thread = u32::try_from(word(16)).ok().filter(|&thread| thread != 0);
        Some(Self { tsc: word(0), thread, text: String::from_utf8_lossy(text).into_owned() })
    }
}

/// The maximum number of kept unloaded libraries: endless unloading takes no more memory.
const MOST_LIBRARIES: usize = 1 << 16;

/// Events reported by a process, or by others about it.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// Libraries since unloaded.
    pub(super) unloaded: Vec<Unloaded>,
    pub(super) marks: Vec<Marked>,
    /// Number of events left out beyond the limit.
    pub(super) n_left_out: u64,
}

impl Told {
    /// Adds the events in untrusted `bytes`.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        loop {
            if let Some(mark) = Marked::decode(&mut rest) {
                if self.marks.len() < MOST_MARKS {
                    self.marks.push(mark);
                } else {
                    self.n_left_out += 1;
                }
                continue;
            }
            let Some(unloaded) = Unloaded::decode(&mut rest) else { return };
            // One library that comes and goes has one name.
            let has_room = self.unloaded.len() < MOST_LIBRARIES;
            match self.unloaded.last_mut() {
                Some(last) if last.is_same_load(&unloaded) => last.tsc = unloaded.tsc,
                _ if has_room => self.unloaded.push(unloaded),
                _ => self.n_left_out += 1,
            }
        }
    }
}
