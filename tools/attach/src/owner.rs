//! The owner of a borrowed thread's memory, for the recorder after a killed one.
//!
//! The address names the thread from the beginning: a system call may go on alone when its recorder is killed, and the
//! memory it makes is known. The first words add the signals.
//!
//! Not here: how it is found and removed (`left`).

use std::ops::Range;

use anyhow::Result;
use nix::libc::pid_t;

use super::process::Process;
use super::sys;

/// Addresses for threads' memory, in ascending order of their numbers. Programs and the system place nothing there by themselves.
const PLACES: u64 = 0x2000_0000_0000;
/// Numbers of threads are below.
const MOST_THREADS: u64 = 1 << 22;
/// Bytes of addresses for each thread.
const OF_THREAD: u64 = 8 << 20;

/// The owner of such memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) thread: pid_t,
    /// The signals that the thread has blocked by itself, and those blocked while it is borrowed.
    pub(crate) masks: [u64; 2],
}

impl Owner {
    /// `\x93RFO\r\n\x1a\n`.
    const MAGIC: u64 = u64::from_le_bytes(*b"\x93RFO\r\n\x1a\n");
    /// Bytes at the beginning of the memory.
    pub(crate) const BYTES: u64 = 64;

    /// Addresses for the memory of a thread. One may be taken, by a killed recorder.
    pub(crate) fn places(thread: pid_t) -> impl Iterator<Item = u64> {
        let start = PLACES + u64::from(thread.cast_unsigned()) % MOST_THREADS * OF_THREAD;
        (start..start + OF_THREAD).step_by(2 << 20)
    }

    /// The owner by the address alone.
    fn of_place(memory: u64) -> Option<Self> {
        let thread = memory.checked_sub(PLACES)? / OF_THREAD;
        let thread = pid_t::try_from(thread).ok().filter(|_| thread < MOST_THREADS)?;
        // Nobody has used it.
        Self::places(thread).any(|place| place == memory).then_some(Self { thread, masks: [!0, 0] })
    }

    pub(crate) fn write(&self, process: &Process, memory: u64) -> Result<()> {
        let words = [Self::MAGIC, u64::from(self.thread.cast_unsigned()), self.masks[0], self.masks[1]];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Ok(process.write(memory, &bytes)?)
    }

    pub(crate) fn read(process: &Process, memory: u64) -> Option<Self> {
        let words: Vec<u64> = sys::words(&process.bytes(memory, 32)).collect();
        match *words.as_slice() {
            [Self::MAGIC, thread, own, borrowed] => {
                Some(Self { thread: pid_t::try_from(thread).ok()?, masks: [own, borrowed] })
            }
            [0, 0, 0, 0] => Self::of_place(memory),
            _ => None,
        }
    }

    /// True if a thread with this stack pointer and these blocked signals may be in a borrowed call: on its memory, or
    /// in a handler that has interrupted the call.
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
        // For a thread that blocks all anyway only the stack tells.
        let owner = Owner { thread: 7, masks: [!0, !4] };
        assert!(!owner.is_at_work(&memory, 0x9000, !0));
    }

    #[test]
    fn addresses_name_their_thread() {
        for thread in [1, 4711, (1 << 22) - 1] {
            let places: Vec<u64> = Owner::places(thread).collect();
            assert_eq!(places.len(), 4);
            for place in places {
                let owner = Owner::of_place(place).unwrap();
                assert_eq!(owner.thread, thread);
                assert!(owner.is_at_work(&(place..place + 4096), place, 0) && !owner.is_at_work(&(0..1), 7, !0));
                assert!(Owner::of_place(place + 4096).is_none());
            }
        }
        for other in [0x55d5_d138_2000, 0x7f45_320d_7000, 0x40_0000, PLACES + MOST_THREADS * OF_THREAD] {
            assert!(Owner::of_place(other).is_none(), "{other:x}");
        }
    }
}
