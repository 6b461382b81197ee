//! Waiting for a chunk, as long as it pays, of a buffer that somebody empties while it is filled.
//!
//! Waiting is spinning: a system call might end a confined program. It ends when a chunk is free, when recording is
//! switched off, or when the other side has done nothing for [`Bank::wait_ticks`]. From then on, until the other side
//! does something again, nobody waits, and calls are lost. After a lost call nobody even looks for a chunk for some
//! time: a look takes as long as the buffer is large.

use core::hint;
use core::sync::atomic::Ordering::Relaxed;

use crate::abi::{Bank, enabled};
use crate::arch;
use crate::chunk::Owned;
use crate::control_block::{CONTROL, SWITCH};

/// Ticks without a look for a chunk after one in vain: a fraction of a millisecond.
const NONE_TICKS: u64 = 1 << 18;

/// Turns of waiting between two looks.
const TURNS: u32 = 64;

/// True if nobody looks for a chunk now.
pub(crate) fn is_given_up() -> bool {
    let until = CONTROL.none_until_tsc.load(Relaxed);
    until != 0 && arch::ticks() < until
}

/// Finds a chunk to write into. `None`: recording is off, or the call is lost.
pub(crate) fn claim(bank: &Bank) -> Option<Owned> {
    if is_given_up() {
        return None;
    }
    let mut beat = bank.beat.load(Relaxed);
    let mut since = arch::ticks();
    loop {
        let chunk = Owned::claim();
        if chunk.is_some() || SWITCH.state(Relaxed) == enabled::OFF {
            return chunk;
        }
        let (now, next) = (arch::ticks(), bank.beat.load(Relaxed));
        if next != beat {
            (beat, since) = (next, now);
        }
        let waited_for = now.saturating_sub(since);
        if waited_for >= bank.wait_ticks.load(Relaxed) || beat == CONTROL.beat_given_up.load(Relaxed) {
            CONTROL.beat_given_up.store(beat, Relaxed);
            CONTROL.none_until_tsc.store(now.saturating_add(NONE_TICKS), Relaxed);
            return None;
        }
        for _ in 0..TURNS {
            hint::spin_loop();
        }
    }
}
