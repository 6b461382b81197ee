//! Calls of which somebody is told: that a function was called, or that a call of it took long. What is done then is not done here: a
//! hook leaves a note, and the program goes on.

use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

use crate::abi::{ValueSite, Watch, enabled};
use crate::arch;
use crate::control_block::{CONTROL, SWITCH};

/// [`Noticed::tsc`](crate::abi::Noticed::tsc) while it is written.
const WRITING: u64 = 1;

/// A call has begun, and is recorded.
#[cold]
pub(crate) fn begun(site: &ValueSite) {
    for watch in watches(site).filter(|watch| watch.on_return == 0) {
        let number = watch.n_calls.fetch_add(1, Relaxed).wrapping_add(1);
        if watch.nth == 0 || number == watch.nth {
            tell(watch);
        }
    }
}

/// A call that began at `entered` has returned, and that is recorded.
#[cold]
pub(crate) fn returned(site: &ValueSite, entered: u64) {
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
            tell(watch);
        }
    }
}

/// Whether any return is looked at.
pub(crate) fn has_returns(site: &ValueSite) -> bool {
    watches(site).any(|watch| watch.on_return != 0)
}

fn watches(site: &ValueSite) -> impl Iterator<Item = &Watch> {
    let first = site.watches;
    // SAFETY: so many are there, and stay mapped.
    (0..site.n_watches).map(move |place| unsafe { &*first.wrapping_add(place) })
}

/// Leaves a note, unless there is one that nobody has seen. Not while recording is off, as in the child of a fork that is not recorded.
fn tell(watch: &Watch) {
    if SWITCH.state(Relaxed) == enabled::OFF {
        return;
    }
    // SAFETY: null, or memory that stays mapped; it consists of atomics.
    let Some(noticed) = (unsafe { CONTROL.filter.noticed.load(Relaxed).as_ref() }) else { return };
    if noticed.tsc.compare_exchange(0, WRITING, AcqRel, Relaxed).is_ok() {
        noticed.number.store(watch.number, Relaxed);
        noticed.tsc.store(arch::ticks(), Release);
    } else {
        noticed.n_more.fetch_add(1, Relaxed);
    }
}
