//! What memory that a borrowed thread has for a while begins with: whose it is, for the recorder after one that was killed.
//!
//! Not here: how it is found and removed (`left`).

use std::ops::Range;

use anyhow::Result;
use nix::libc::pid_t;

use super::process::Process;
use super::sys;

/// What memory of a borrowed thread begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) thread: pid_t,
    /// The signals that it has blocked by itself, and while it is borrowed.
    pub(crate) masks: [u64; 2],
}

impl Owner {
    /// `\x93RFO\r\n\x1a\n`.
    const MAGIC: u64 = u64::from_le_bytes(*b"\x93RFO\r\n\x1a\n");
    /// Bytes at the beginning of the memory.
    pub(crate) const BYTES: u64 = 64;

    pub(crate) fn write(&self, process: &Process, memory: u64) -> Result<()> {
        let words = [Self::MAGIC, u64::from(self.thread.cast_unsigned()), self.masks[0], self.masks[1]];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Ok(process.write(memory, &bytes)?)
    }

    pub(crate) fn read(process: &Process, memory: u64) -> Option<Self> {
        let words: Vec<u64> = sys::words(&process.bytes(memory, 32)).collect();
        let &[Self::MAGIC, thread, own, borrowed] = words.as_slice() else { return None };
        Some(Self { thread: pid_t::try_from(thread).ok()?, masks: [own, borrowed] })
    }

    /// Whether a thread with this stack pointer and these blocked signals may be in a call that it was borrowed for: on its memory, or in a handler
    /// that has interrupted that.
    pub(crate) fn is_at_work(&self, memory: &Range<u64>, rsp: u64, blocked: u64) -> bool {
        let [own, borrowed] = self.masks;
        let is_known = own & borrowed != borrowed;
        memory.contains(&rsp) || is_known && blocked & borrowed == borrowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_at_work() {
        let memory = 0x1000..0x2000;
        let owner = Owner { thread: 7, masks: [1, !4] };
        assert!(owner.is_at_work(&memory, 0x1800, 0));
        assert!(owner.is_at_work(&memory, 0x9000, !4));
        assert!(!owner.is_at_work(&memory, 0x9000, 1));
        // Of one that blocks all anyway only the stack tells.
        let owner = Owner { thread: 7, masks: [!0, !4] };
        assert!(!owner.is_at_work(&memory, 0x9000, !0));
    }
}
