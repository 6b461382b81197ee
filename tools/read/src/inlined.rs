//! Calls of functions inlined into the recorded function.
//!
//! If the compiler inserts the call of the hook before it inlines a function, the outer function has several such
//! calls: its own at its beginning, and behind it those of the inlined functions. Each makes an entry; their exits come
//! with the exit of the whole function.

use rftrace_format::record::{Kind, Record};

/// Returns true if an entry at `addr`, in a function entered at `open`, is that of an inlined function. A recursive
/// call enters the function at its beginning again, so not behind `open`.
#[inline]
pub fn is_inlined(open: u64, addr: u64, same_function: impl FnOnce(u64, u64) -> bool) -> bool {
    addr > open && same_function(open, addr)
}

/// Leaves such entries and their exits out of a task's records.
#[derive(Debug, Clone, Default)]
pub(crate) struct Folding {
    open: Vec<Frame>,
    /// The number of folded calls of all frames.
    n_folded: u64,
}

#[derive(Debug, Clone)]
struct Frame {
    addr: u64,
    /// Left-out entries in it, with their exits still to come.
    n_folded: u64,
}

impl Folding {
    /// The maximum depth of open functions, and of the search for the function of an exit.
    const MAX_DEPTH: usize = 1 << 19;
    const MAX_SEARCH: usize = 1024;

    /// Returns the number of functions in memory.
    pub(crate) fn n_held(&self) -> usize {
        self.open.len()
    }

    /// Returns the record with its depth without left-out calls; `None` if it is left out itself.
    pub(crate) fn apply(&mut self, mut record: Record, same_function: impl Fn(u64, u64) -> bool) -> Option<Record> {
        let addr = record.addr;
        let innermost = self.open.last_mut().filter(|frame| is_inlined(frame.addr, addr, &same_function));
        match (record.kind, innermost) {
            (Kind::Entry, Some(frame)) => {
                frame.n_folded += 1;
                self.n_folded += 1;
                return None;
            }
            (Kind::Exit, Some(frame)) if frame.n_folded > 0 => {
                frame.n_folded -= 1;
                self.n_folded -= 1;
                return None;
            }
            (Kind::Entry, None) => {
                record.depth = self.without_folded(record.depth);
                if self.open.len() < Self::MAX_DEPTH {
                    self.open.push(Frame { addr, n_folded: 0 });
                }
            }
            (Kind::Exit, _) => {
                let matches = |frame: &Frame| same_function(frame.addr, addr);
                if let Some(n_missing) = self.open.iter().rev().take(Self::MAX_SEARCH).position(matches) {
                    let rest = self.open.split_off(self.open.len() - n_missing - 1);
                    self.n_folded -= rest.iter().map(|frame| frame.n_folded).sum::<u64>();
                }
                record.depth = self.without_folded(record.depth);
            }
            _ => {}
        }
        Some(record)
    }

    fn without_folded(&self, depth: u16) -> u16 {
        depth.saturating_sub(u16::try_from(self.n_folded).unwrap_or(u16::MAX))
    }
}
