//! The slow path of the entry hooks. It does the whole work of its hook, so the hook never has to try again.

use crate::abi::{ADDRESS_SHIFT, ThreadBlock, UNHOOKED, action, enabled, kind, state};
use crate::arch;
use crate::arch::values::{self, Site, Values, Wanted};
use crate::buffer;
use crate::busy;
use crate::control_block::SWITCH;
use crate::filter;
use crate::left;
use crate::moves;
use crate::observe::{Call, Happened, observe};
use crate::return_stack::{Entry, Open, ReturnStack, is_near};
use crate::thread;

use core::sync::atomic::Ordering::Relaxed;

/// A function was entered and the fast path could not record it.
///
/// `parent_loc` is the expected place of its return address, `child_ip` lies in the function, `stack_pointer` is its
/// stack pointer; the next two registers tell of its frame, see `arch::frames`; `registers` is the place of all saved
/// registers, for `values`.
pub(crate) extern "C" fn entry_slow(
    parent_loc: usize,
    child_ip: usize,
    stack_pointer: usize,
    frame_pointer: usize,
    further: usize,
    registers: usize,
) {
    enter(parent_loc, child_ip, stack_pointer, (frame_pointer, further), registers, Hook::Return);
}

/// The same for a function with an entry branch: its return must keep all registers.
#[cfg(not(target_os = "none"))]
#[allow(dead_code, reason = "not all processors have entry branches")]
pub(crate) extern "C" fn entry_slow_at_start(
    parent_loc: usize,
    child_ip: usize,
    stack_pointer: usize,
    frame_pointer: usize,
    further: usize,
    registers: usize,
) {
    enter(parent_loc, child_ip, stack_pointer, (frame_pointer, further), registers, Hook::KeepingReturn);
}

/// The same for a function with a sled at its beginning, or with branches at its ends: others tell of its return.
#[cfg(not(target_os = "none"))]
#[allow(dead_code, reason = "not all processors have sleds")]
pub(crate) extern "C" fn entry_slow_at_sled(
    parent_loc: usize,
    child_ip: usize,
    stack_pointer: usize,
    frame_pointer: usize,
    further: usize,
    registers: usize,
) {
    enter(parent_loc, child_ip, stack_pointer, (frame_pointer, further), registers, Hook::Sled);
}

/// The common part of all hooks. `on_return` is how the function returns if no interrupt has called it.
#[inline(always)]
fn enter(
    parent_loc: usize,
    child_ip: usize,
    stack_pointer: usize,
    (frame_pointer, further): (usize, usize),
    registers: usize,
    on_return: Hook,
) {
    if SWITCH.state(Relaxed) == enabled::OFF {
        return;
    }
    let action = filter::action(child_ip);
    if action == action::SKIP {
        return;
    }
    let Some(block) = thread::current_block().filter(|block| !buffer::is_excluded(block)) else {
        return;
    };
    // Changes of the stack are looked at when a call is recorded again. A filter has to know all open functions.
    if SWITCH.state(Relaxed) == enabled::ON && buffer::loses_call(block) {
        return;
    }
    let stack = ReturnStack::of(block);
    let entry_word = (child_ip as u64) << ADDRESS_SHIFT;
    let site = values::site(action, child_ip);
    if !arch::is_frame(parent_loc, child_ip, stack_pointer) {
        // No frame pointer, or an unknown frame: its return is not seen.
        return record_point(stack, action, child_ip, site);
    }
    let hook = match arch::interrupted(parent_loc, child_ip, stack.top_word()) {
        None => on_return,
        Some(arch::Interrupted::Hookable(stack_pointer)) => Hook::Interrupt { stack_pointer },
        Some(arch::Interrupted::Untouchable) => return record_point(stack, action, child_ip, site),
    };
    let (frame, caller) = arch::frames(parent_loc, child_ip, frame_pointer, further);
    let slot = arch::Slot::new(frame, parent_loc, child_ip, further);
    let open =
        stack.entries().filter_map(|entry| Some((entry.frame()?, (entry.exit_word() >> ADDRESS_SHIFT) as usize)));
    let caller_frame = arch::caller_frame(caller, open, left::nearest_above);
    if busy::begin_call(stack, frame, stack.find(caller_frame)) {
        settle(stack, &Call { frame, slot, stack_pointer, caller_frame });
    }
    let levels = before(stack, site);
    if let Some(state) = filter::state(action, levels, stack.state()) {
        if action == action::POINT {
            buffer::record(block, entry_word | kind::POINT);
        } else {
            let open = Opening { frame, slot, entry_word, state, hook };
            match Wanted::of_call(site, registers, stack_pointer, frame) {
                None => push(block, open, None, None),
                Some(wanted) => push_with_values(block, open, wanted),
            }
        }
    }
    busy::end(stack, frame);
}

/// Does the work due before the decision to record a call, as [`values::before`]. Nothing among hidden calls.
fn before(stack: ReturnStack<'_>, site: Option<Site>) -> u32 {
    if stack.state() & state::OUT == 0 { values::before(site) } else { 0 }
}

/// Records a function as a call without duration.
fn record_point(stack: ReturnStack<'_>, action: u8, child_ip: usize, site: Option<Site>) {
    let levels = before(stack, site);
    if filter::state(action, levels, stack.state()).is_some_and(|state| state & state::HIDDEN == 0) {
        buffer::record(stack.block(), (child_ip as u64) << ADDRESS_SHIFT | kind::POINT);
    }
}

/// Brings the return stack in line with the events before a call.
#[inline(always)]
fn settle(stack: ReturnStack<'_>, call: &Call) {
    moves::drop_gone(stack);
    match observe(stack, call, true) {
        Happened::Nested => {}
        happened => settle_more(stack, call, happened),
    }
}

/// The same after more than a call.
#[inline(never)]
fn settle_more<'a>(stack: ReturnStack<'a>, call: &Call, mut happened: Happened<'a>) {
    if let Happened::Resumed(frame) = happened {
        moves::take_over(Some(stack), frame, arch::reach(call.frame, frame, call.caller_frame));
        if moves::bring_back(stack, frame) {
            return;
        }
        happened = observe(stack, call, false);
    }
    match happened {
        Happened::Nested | Happened::Resumed(_) => {}
        Happened::TailCall(caller) | Happened::Jumped(caller) => {
            moves::leave_above(stack, Some(caller));
        }
        Happened::OtherStack => leave_unknown(stack, call),
    }
}

/// The caller is not known: it keeps no frame pointer, or is not traced.
///
/// Entries are dead if their frames lie within the running one, or equal this call's. Those further down, nearby, are
/// taken to have been left. Far away they are taken to be open: a signal handler on a stack of its own is called from
/// them.
#[cold]
fn leave_unknown(stack: ReturnStack<'_>, call: &Call) {
    let up_to_here = |entry: &Entry<'_>| entry.frame().map_or_else(|| entry.is_gone(), |frame| frame <= call.frame);
    let covered = |entry: &Entry<'_>| entry.frame().is_some_and(|frame| frame >= call.stack_pointer);
    if let Some(dead) = stack.entries().take_while(up_to_here).filter(covered).last() {
        moves::end(stack, dead);
    }
    let below =
        |entry: &Entry<'_>| entry.frame().map_or_else(|| entry.is_gone(), |frame| is_near(frame, call.stack_pointer));
    if let Some(outermost) = stack.entries().take_while(below).last() {
        moves::leave_above(stack, stack.below(outermost));
    }
}

/// How a function returns.
#[derive(Clone, Copy)]
enum Hook {
    Return,
    /// It keeps more registers.
    #[cfg(not(target_os = "none"))]
    KeepingReturn,
    /// A sled tells of it.
    #[cfg(not(target_os = "none"))]
    Sled,
    /// It has interrupted code with this stack pointer.
    Interrupt {
        stack_pointer: usize,
    },
}

impl Hook {
    /// The new return address of the function, if it is changed.
    fn trampoline(self) -> Option<usize> {
        match self {
            Self::Return => Some(arch::trampoline()),
            #[cfg(not(target_os = "none"))]
            Self::KeepingReturn => Some(arch::entry_trampoline()),
            #[cfg(not(target_os = "none"))]
            Self::Sled => None,
            Self::Interrupt { .. } => Some(arch::interrupt_trampoline()),
        }
    }

    /// The same for a recorded result: `usual`, or the trampoline that keeps all registers, if the function needs that.
    fn values_trampoline(self, usual: usize) -> usize {
        match self {
            #[cfg(not(target_os = "none"))]
            Self::KeepingReturn | Self::Sled => arch::entry_values_trampoline(),
            _ => usual,
        }
    }

    /// A number to distinguish its entry from others.
    fn sequence(self, frame: usize, now: u64) -> u64 {
        match self {
            Self::Return => arch::sequence(now),
            #[cfg(not(target_os = "none"))]
            Self::KeepingReturn | Self::Sled => arch::sequence(now),
            Self::Interrupt { stack_pointer } => {
                let had_interrupts = arch::keep_interrupts_off(frame);
                arch::interrupt_sequence(stack_pointer, had_interrupts)
            }
        }
    }
}

/// A function at its entry.
#[derive(Clone, Copy)]
struct Opening {
    frame: usize,
    slot: arch::Slot,
    entry_word: u64,
    state: u64,
    hook: Hook,
}

/// Records the entry of a function with the values of the call. They take a kilobyte of the stack.
#[cold]
#[inline(never)]
fn push_with_values(block: &ThreadBlock, opening: Opening, wanted: Wanted) {
    let mut values = Values::new();
    if opening.state & state::HIDDEN == 0 {
        values.read_arguments(wanted);
    }
    push(block, opening, Some(&values), wanted.trampoline().map(|usual| opening.hook.values_trampoline(usual)));
    if opening.state & state::HIDDEN == 0 {
        wanted.begun(block.tid.load(Relaxed));
    }
}

/// Records the entry of a function, and hooks its return, maybe by another trampoline than usual. A [`state::HIDDEN`]
/// one is only hooked.
fn push(block: &ThreadBlock, opening: Opening, values: Option<&Values>, trampoline: Option<usize>) {
    let Opening { frame, slot, entry_word, state, hook } = opening;
    let stack = ReturnStack::of(block);
    let is_hidden = state & state::HIDDEN != 0;
    if !stack.has_room() {
        if !is_hidden {
            buffer::record_lost_call(block);
        }
        return;
    }
    let n_records = values.map_or(0, Values::n_units).wrapping_add(1);
    let place = if is_hidden { None } else { buffer::reserve_many(block, n_records) };
    if place.is_none() && !is_hidden {
        return;
    }
    // The same order as in the assembly: reserve the entry, write it, publish it, hook.
    let entry = stack.reserve(frame, state & state::HIDDEN);
    let now = arch::ticks();
    if let Some(place) = place {
        place.write(now, entry_word | kind::ENTRY, values);
    }
    let sequence = hook.sequence(frame, now);
    let exit_word = entry_word | state | kind::EXIT;
    let parent_ip = slot.return_address();
    let Some(trampoline) = trampoline.or_else(|| hook.trampoline()) else {
        // T in the slot (the function was called by a jump) stands for the entry below.
        let unhooked = if slot.is_hooked() { 0 } else { UNHOOKED };
        return entry.publish(&Open { frame, parent_ip: parent_ip | unhooked, exit_word, sequence });
    };
    entry.publish(&Open { frame, parent_ip, exit_word, sequence });
    slot.set_return_address(trampoline);
}
