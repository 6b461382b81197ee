//! The decision to record a call while recording is filtered. The assembly has the same for nested calls with a simple
//! choice.
//!
//! The [`state`] in the return-stack entry of an entered function decides about the calls in it. Jumps and switches of
//! stacks move entries, so they need no further care.

use core::sync::atomic::Ordering::Relaxed;

use crate::abi::{ADDRESS_SHIFT, action, enabled, site_slot, state};
use crate::control_block::{CONTROL, SWITCH};

/// The part of a state passed on to the entries of the calls in it. OUT is no part of it: with OUT there are no such
/// entries.
#[allow(dead_code, reason = "for the assembly of some processors")]
pub(crate) const PASSED_ON: u64 = state::IN | state::DEPTH_MASK;

/// The [`action`] for a function.
pub(crate) fn action(child_ip: usize) -> u8 {
    if SWITCH.state(Relaxed) != enabled::FILTERED {
        return action::RECORD;
    }
    let filter = &CONTROL.filter;
    let sites = filter.sites.load(Relaxed);
    if !sites.is_null() {
        let mut slot = site_slot(child_ip, filter.sites_mask.load(Relaxed));
        loop {
            // SAFETY: the table has as many slots as its mask says, and stays mapped.
            let word = unsafe { &*sites.wrapping_add(slot) }.load(Relaxed);
            if word == 0 {
                break;
            }
            if word >> ADDRESS_SHIFT == child_ip as u64 {
                return word as u8;
            }
            slot = slot.wrapping_add(1) & filter.sites_mask.load(Relaxed);
        }
    }
    filter.default_action.load(Relaxed)
}

/// Pauses or resumes the recording of new calls: while it is paused no depth is small enough.
#[allow(dead_code, reason = "not all processors have values")]
pub(crate) fn pause(is_paused: bool) {
    let filter = &CONTROL.filter;
    filter.paused.store(u8::from(is_paused), Relaxed);
    let limit = if is_paused { 0 } else { filter.depth.load(Relaxed) };
    filter.depth_limit.store(limit, Relaxed);
}

/// True while [`pause`]d.
#[allow(dead_code, reason = "not all processors have values")]
pub(crate) fn is_paused() -> bool {
    CONTROL.filter.paused.load(Relaxed) != 0
}

/// The state of a function called by the innermost open one, with the state `caller`; `None`: it is not recorded, nor
/// is its return hooked. From it on `levels` levels are recorded, if not 0.
pub(crate) fn state(action: u8, levels: u32, caller: u64) -> Option<u64> {
    if SWITCH.state(Relaxed) != enabled::FILTERED {
        return Some(0);
    }
    let filter = &CONTROL.filter;
    let outer = caller & state::MASK;
    let decisive = u64::from(filter.decisive.load(Relaxed));
    let wanted = u64::from(filter.wanted.load(Relaxed));
    let limit = u64::from(filter.depth_limit.load(Relaxed));
    let is_in = outer & decisive == wanted;
    let (is_in, depth) = match action {
        action::SKIP => return None,
        action::NOT_INTO => return (outer & state::OUT == 0).then_some(state::HIDDEN | state::OUT),
        // The depth counts from the outermost one.
        action::INTO | action::INTO_VALUES if outer & (state::IN | state::OUT) == 0 => (true, 0),
        _ => (is_in, outer & state::DEPTH_MASK),
    };
    let is_into = matches!(action, action::INTO | action::INTO_VALUES);
    let within = if is_into { state::IN } else { outer & state::IN };
    let depth = match u64::from(levels).wrapping_mul(state::DEPTH_ONE) {
        0 => depth,
        levels => limit.saturating_sub(levels),
    };
    let is_recorded = is_in && depth < limit;
    is_recorded.then_some(within | depth.wrapping_add(state::DEPTH_ONE))
}
