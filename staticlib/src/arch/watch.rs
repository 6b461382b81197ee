//! Calls with an action: somebody is told of a call, or of a long one, of a function; or recording goes on or stops.
//! The reaction of somebody told is not here: a hook leaves a note, and the program goes on.

use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

use crate::abi::{ValueSite, Watch, enabled, watch};
use crate::arch;
use crate::control_block::{self, CONTROL, SWITCH};
use crate::filter;

/// [`Noticed::tsc`](crate::abi::Noticed::tsc) while it is written.
const WRITING: u64 = 1;

/// A call is about to begin: pauses recording from it on, or goes on with it.
#[cold]
pub(crate) fn before(site: &ValueSite) {
    for watch in watches(site) {
        match watch.action {
            watch::ON => filter::pause(false),
            watch::OFF => filter::pause(true),
            // No record will follow that it could wait for.
            watch::FINISH if filter::is_paused() => control_block::stop(),
            _ => {}
        }
    }
}

/// A call has begun in a thread, by its number, and is recorded.
#[cold]
pub(crate) fn begun(site: &ValueSite, thread: u32) {
    for watch in watches(site).filter(|watch| watch.on_return == 0) {
        match watch.action {
            watch::TELL => {
                let number = watch.n_calls.fetch_add(1, Relaxed).wrapping_add(1);
                if watch.nth == 0 || number == watch.nth {
                    tell(watch, thread, 0);
                }
            }
            watch::FINISH => control_block::stop(),
            _ => {}
        }
    }
}

/// A call that began at `entered` has returned, and its return is recorded.
#[cold]
pub(crate) fn returned(site: &ValueSite, thread: u32, entered: u64) {
    let ticks = arch::ticks().saturating_sub(entered);
    for watch in watches(site).filter(|watch| watch.on_return != 0) {
        let is_long = if watch.is_rising != 0 {
            // Of the first one nobody knows whether it is long.
            let longest = watch.least_ticks.fetch_max(ticks, Relaxed);
            longest != 0 && ticks > longest
        } else {
            ticks >= watch.least_ticks.load(Relaxed)
        };
        if is_long {
            tell(watch, thread, ticks);
        }
    }
}

/// True if any return is looked at.
pub(crate) fn has_returns(site: &ValueSite) -> bool {
    watches(site).any(|watch| watch.on_return != 0)
}

fn watches(site: &ValueSite) -> impl Iterator<Item = &Watch> {
    let first = site.watches;
    // SAFETY: so many are there, and stay mapped.
    (0..site.n_watches).map(move |place| unsafe { &*first.wrapping_add(place) })
}

/// Leaves a note, unless there is an unseen one. Not while recording is off, as in the unrecorded child of a fork.
fn tell(watch: &Watch, thread: u32, lasted: u64) {
    if SWITCH.state(Relaxed) == enabled::OFF {
        return;
    }
    // SAFETY: null, or mapped for good; it consists of atomics.
    let Some(noticed) = (unsafe { CONTROL.filter.noticed.load(Relaxed).as_ref() }) else { return };
    if noticed.tsc.compare_exchange(0, WRITING, AcqRel, Relaxed).is_ok() {
        noticed.number.store(watch.number, Relaxed);
        noticed.thread.store(thread.into(), Relaxed);
        noticed.lasted.store(lasted, Relaxed);
        noticed.tsc.store(arch::ticks(), Release);
    } else {
        noticed.n_more.fetch_add(1, Relaxed);
    }
}
