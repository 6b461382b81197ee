//! A signal strikes a thread at each step of the tracer, and while the handler is at work another thread goes through the
//! whole buffer. What the interrupted hook writes afterwards must not land in what the other one has taken.

// Miri would need hours; it sees chunks change hands in `threads.rs`.
#![cfg(not(miri))]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use rftrace_model::abi::{
    ADDRESS_SHIFT, MIN_CHUNK_BYTES, RETURN_STACK_ENTRIES, WANTED_CHUNKS, init, kind, records_per_chunk,
};
use rftrace_model::arch::{self, Call};
use rftrace_model::lab::{self, Lab, Options};
use rftrace_model::steer;

/// The callers: three threads, and the handler on the first.
const STRUCK: usize = 0;
const OTHER: usize = 1;
const THIRD: usize = 2;
const HANDLER: usize = 3;

/// Calls of the struck thread, at the most: enough for some chunks.
const CALLS: usize = 60;

thread_local! {
    static THREAD: Cell<usize> = const { Cell::new(STRUCK) };
    /// Steps until the signal comes.
    static AFTER: Cell<Option<usize>> = const { Cell::new(None) };
    static MEANWHILE: Cell<fn(&Lab)> = const { Cell::new(|_| ()) };
    /// Outer calls take the slow path of their hook.
    static IS_SLOW: Cell<bool> = const { Cell::new(false) };
    /// Calls that the handler makes before that.
    static HANDLER_CALLS: Cell<usize> = const { Cell::new(3) };
    /// Calls that the other threads make in the meantime.
    static OTHER_CALLS: Cell<[usize; 2]> = const { Cell::new([0; 2]) };
    static LAB: RefCell<Option<Rc<Lab>>> = const { RefCell::new(None) };
}

/// Before each atomic operation of the tracer.
fn at_point(_address: usize) {
    let due = AFTER.get();
    AFTER.set(due.and_then(|after| after.checked_sub(1)));
    if due == Some(0) {
        // The handler's calls are not taken back.
        LAB.with_borrow(|lab| lab.as_deref().expect("a tracer").control().filter.min_ticks.store(0, Relaxed));
        // The first of these calls may need a chunk, or the last.
        let n_calls = HANDLER_CALLS.get();
        for i in 0..n_calls {
            call(HANDLER, i);
        }
        LAB.with_borrow(|lab| MEANWHILE.get()(lab.as_deref().expect("a tracer")));
        THREAD.set(STRUCK);
        if n_calls > 0 {
            call(HANDLER, n_calls);
        }
    }
}

/// Calls function number `i` of `who`, which calls another one.
fn call(who: usize, i: usize) {
    let mut stack = [0usize; 64];
    // Handlers lie below what they interrupt.
    let top = if who == HANDLER { 20 } else { 60 };
    nest(&mut stack[..=top], 2, |level| address(who, i, level));
}

/// Calls so many functions, one in the other, and returns from them.
fn nest(stack: &mut [usize], n_levels: usize, address: impl Fn(usize) -> u64) {
    let top = stack.len() - 1;
    let base = stack.as_mut_ptr();
    for level in 0..n_levels {
        let slot = base.wrapping_add(top - level * 8);
        // SAFETY: in the stack, which has eight words for each level.
        unsafe { slot.write(0x5000 + level) };
        let parent_loc = slot.expose_provenance();
        let child_ip = address(level) as usize;
        let mut call = Call { parent_loc, child_ip, stack_pointer: parent_loc, frame_pointer: 0, static_chain: 0 };
        if IS_SLOW.get() && level == 0 {
            // As a nested function of GCC's has it.
            call = Call { frame_pointer: parent_loc - 8, static_chain: parent_loc, ..call };
        }
        // SAFETY: the slot of the frame that is being entered.
        unsafe { arch::entry(call) };
    }
    for level in (0..n_levels).rev() {
        let slot = base.wrapping_add(top - level * 8);
        // SAFETY: in the stack, which has eight words for each level.
        if unsafe { slot.read() } == arch::trampoline() {
            assert_eq!(arch::exit(slot.addr(), 0), 0x5000 + level, "a wrong return");
        }
    }
}

fn address(who: usize, i: usize, level: usize) -> u64 {
    // A word of 0 is none.
    (who << 24 | (i * 2 + level + 1) << 4) as u64
}

/// The words of records that function number `i` of `who` makes.
fn words(who: usize, i: usize) -> [u64; 4] {
    let [outer, inner] = [0, 1].map(|level| address(who, i, level) << ADDRESS_SHIFT);
    [outer | kind::ENTRY, inner | kind::ENTRY, inner | kind::EXIT, outer | kind::EXIT]
}

/// Strikes at each step. `meanwhile` happens on another thread, as long as the handler is at work. `check` gets what was
/// recorded of a thread and what it did.
fn strike_everywhere(ring: bool, n_chunks: usize, meanwhile: fn(&Lab), check: fn(&[u64], &[u64]) -> bool) {
    let _alone = lab::alone();
    steer::set_identity(Some(|| THREAD.get()));
    steer::at_each_point(Some(at_point));
    MEANWHILE.set(meanwhile);
    let (mut after, mut struck) = (0, true);
    while struck {
        let options = Options { buffer_bytes: n_chunks * MIN_CHUNK_BYTES, n_blocks: 3, n_left_buckets: 1, ring };
        LAB.take();
        let lab = Rc::new(Lab::new(options));
        LAB.set(Some(Rc::clone(&lab)));
        lab.enable();
        // The place where they end in the buffer matters.
        OTHER_CALLS.set([80 + after % 29, after % 2]);
        AFTER.set(Some(after));
        let mut n_struck_calls = 0;
        let mut n_more = 5;
        while n_struck_calls < CALLS && n_more > 0 {
            call(STRUCK, n_struck_calls);
            n_struck_calls += 1;
            // Not so many that what happened is overwritten.
            n_more -= usize::from(AFTER.get().is_none());
        }
        struck = AFTER.take().is_none();
        lab.disable();
        for segments in lab.segments().values() {
            let records = segments.iter().flat_map(|segment| &segment.records);
            let start = lab.control().cycle_start_tsc.load(Relaxed);
            let since = records.filter(|(tsc, word)| *tsc >= start && word & kind::MASK != kind::RESYNC);
            let found: Vec<u64> = since.map(|(_, word)| *word).collect();
            let caller = |word: u64| (word >> (ADDRESS_SHIFT + 24)) as usize;
            let is_own = |word: &u64| caller(*word) != HANDLER;
            let own: Vec<u64> = found.iter().copied().filter(is_own).collect();
            let who = own.first().map_or(STRUCK, |word| caller(*word));
            let all_own = found.iter().all(|word| caller(*word) == who || who == STRUCK && !is_own(word));
            assert!(all_own, "struck after {after} steps: records of another thread");
            let n_calls = if who == STRUCK { n_struck_calls } else { OTHER_CALLS.get()[who - 1] };
            let did: Vec<u64> = (0..n_calls).flat_map(|i| words(who, i)).collect();
            // A handler may need more than the smallest buffers have.
            let any_lost = lab.control().n_lost_no_chunk.load(Relaxed) != 0;
            assert!(
                any_lost || check(&own, &did),
                "struck after {after} steps: thread {who} did not do this: {own:x?}"
            );
        }
        after += 1;
    }
    steer::at_each_point(None);
    steer::set_identity(None);
    assert!(after > 1_000, "hardly a step was there to strike at");
}

/// The second thread goes through the largest of the buffers below, then the third one may want a chunk.
fn make_calls(_lab: &Lab) {
    const { assert!(80 * 4 > 8 * records_per_chunk(MIN_CHUNK_BYTES)) };
    for (who, n_calls) in [OTHER, THIRD].into_iter().zip(OTHER_CALLS.get()) {
        THREAD.set(who);
        (0..n_calls).for_each(|i| call(who, i));
    }
}

#[test]
fn a_late_record_stays_in_its_chunk_of_a_ring() {
    strike_everywhere(true, 8, make_calls, |found, did| did.ends_with(found));
}

#[test]
fn a_late_record_stays_in_its_chunk_of_the_smallest_ring() {
    strike_everywhere(true, 4, make_calls, |found, did| did.ends_with(found));
}

/// Handlers fill further chunks before the struck hook goes on, as under a storm of interrupts.
#[test]
fn a_late_record_stays_in_its_chunk_of_a_ring_in_a_storm() {
    HANDLER_CALLS.set(2 * records_per_chunk(MIN_CHUNK_BYTES) / 4 + 8);
    strike_everywhere(true, 8, make_calls, |found, did| {
        // The ring passes over the chunk that waits for a record, not over those that came after it.
        let mut rest = did.iter();
        found.iter().all(|word| rest.any(|done| done == word)) && (found.is_empty() || rest.next().is_none())
    });
}

/// Checks the records in the new cycle.
#[test]
fn a_late_record_stays_in_its_chunk_when_the_buffer_is_emptied() {
    let empty_and_call = |lab: &Lab| {
        // The frontend waits until nobody is taking a chunk.
        if lab.control().shared.n_takers.load(SeqCst) == 0 {
            lab.disable();
            lab.reset();
            lab.enable();
        }
        make_calls(lab);
    };
    strike_everywhere(false, 8, empty_and_call, |found, did| {
        found.is_empty() || did.windows(found.len()).any(|part| part == found)
    });
}

/// A new buffer takes the place of the one in use, which is large enough for all calls before.
#[test]
fn a_late_record_stays_in_its_buffer_when_that_is_replaced() {
    let replace_and_call = |lab: &Lab| {
        lab.disable();
        // The frontend tries again as long as somebody is taking a chunk.
        let status = lab.replace_buffer(9 * MIN_CHUNK_BYTES, true);
        assert_eq!(status == init::OK, lab.control().shared.n_takers.load(SeqCst) == 0);
        lab.enable();
        make_calls(lab);
    };
    strike_everywhere(false, 16, replace_and_call, |found, did| {
        found.is_empty() || did.windows(found.len()).any(|part| part == found)
    });
}

/// A hook takes the records of a short call back. A handler fills further chunks meanwhile, and other threads go through the ring: what the hook
/// writes must not land in what they have taken, and no chunk is left with a record to be written.
#[test]
fn what_is_taken_back_is_in_the_own_chunk() {
    let _alone = lab::alone();
    steer::set_identity(Some(|| THREAD.get()));
    steer::at_each_point(Some(at_point));
    MEANWHILE.set(make_calls);
    // The handler's calls end beside the record, in its chunk, and have that given up.
    for n_handler_calls in [1, 5, 6, 7, 2 * records_per_chunk(MIN_CHUNK_BYTES) / 4 + 8] {
        HANDLER_CALLS.set(n_handler_calls);
        let (mut after, mut struck) = (0, true);
        while struck {
            let options = Options { buffer_bytes: 8 * MIN_CHUNK_BYTES, n_blocks: 3, n_left_buckets: 1, ring: true };
            LAB.take();
            let lab = Rc::new(Lab::new(options));
            LAB.set(Some(Rc::clone(&lab)));
            lab.filter(true);
            lab.enable();
            call(STRUCK, 0);
            let min_ticks = &lab.control().filter.min_ticks;
            min_ticks.store(1_000_000, Relaxed);
            THREAD.set(STRUCK);
            OTHER_CALLS.set([80 + after % 29, after % 2]);
            AFTER.set(Some(after));
            call(STRUCK, 1);
            call(STRUCK, 2);
            struck = AFTER.take().is_none();
            min_ticks.store(0, Relaxed);
            (3..6).for_each(|i| call(STRUCK, i));
            lab.disable();
            assert_eq!(lab.n_waiting(), 0, "{n_handler_calls} calls, struck after {after} steps");
            for segments in lab.segments().values() {
                let records = segments.iter().flat_map(|segment| &segment.records);
                let words_of = records.map(|(_, word)| *word).filter(|word| word & kind::MASK != kind::RESYNC);
                // Without what the filter passes on.
                let found: Vec<u64> =
                    words_of.map(|word| word >> ADDRESS_SHIFT << ADDRESS_SHIFT | word & kind::MASK).collect();
                let caller = |word: u64| (word >> (ADDRESS_SHIFT + 24)) as usize;
                let own: Vec<u64> = found.iter().copied().filter(|word| caller(*word) != HANDLER).collect();
                let who = own.first().map_or(STRUCK, |word| caller(*word));
                assert!(
                    own.iter().all(|word| caller(*word) == who),
                    "struck after {after} steps: records of another thread"
                );
                let calls = if who == STRUCK { 3..6 } else { 0..OTHER_CALLS.get()[who - 1] };
                let did: Vec<u64> = calls.flat_map(|i| words(who, i)).collect();
                let is_right = match who {
                    // Short calls are recorded as wholes or not at all.
                    STRUCK => own.ends_with(&did) && is_balanced(&own[..own.len() - did.len()]),
                    _ => did.ends_with(&own),
                };
                assert!(
                    is_right,
                    "{n_handler_calls} calls, struck after {after} steps: thread {who} did not do this: {own:x?}"
                );
            }
            after += 1;
        }
        assert!(after > 50, "hardly a step was there to strike at");
    }
    HANDLER_CALLS.set(3);
    steer::at_each_point(None);
    steer::set_identity(None);
}

/// True if entries and exits are those of whole calls, of which the ring may have lost the beginning.
fn is_balanced(words: &[u64]) -> bool {
    let mut open = Vec::new();
    let are_right = words.iter().all(|word| match word & kind::MASK {
        kind::ENTRY => {
            open.push(word >> ADDRESS_SHIFT);
            true
        }
        _ => open.pop().is_none_or(|address| address == word >> ADDRESS_SHIFT),
    });
    are_right && open.is_empty()
}

/// A buffer of smaller chunks takes the place of the one in use, and the handler goes on in it up to the end of a chunk. The struck hook must
/// not take what it has read of one buffer for the other one's.
#[test]
fn a_struck_hook_does_not_mix_two_buffers() {
    let _alone = lab::alone();
    steer::set_identity(Some(|| THREAD.get()));
    steer::at_each_point(Some(at_point));
    THREAD.set(STRUCK);
    HANDLER_CALLS.set(0);
    // With or without a chunk of the first buffer, in use or put aside.
    for first in [First::None, First::InUse, First::PutAside] {
        MEANWHILE.set(if first == First::PutAside { replace_and_put_aside } else { replace_by_smaller_chunks });
        let (mut after, mut struck) = (0, true);
        while struck {
            let buffer_bytes = WANTED_CHUNKS * 8 * MIN_CHUNK_BYTES;
            let options = Options { buffer_bytes, n_blocks: 3, n_left_buckets: 1, ring: false };
            LAB.take();
            let lab = Rc::new(Lab::new(options));
            LAB.set(Some(Rc::clone(&lab)));
            lab.enable();
            if first != First::None {
                call(STRUCK, 0);
            }
            if first == First::PutAside {
                call_and_put_aside(STRUCK, &lab);
            }
            HANDLED.take();
            IS_SLOW.set(true);
            AFTER.set(Some(after));
            let mut n_calls = 1;
            while n_calls < 4 {
                call(STRUCK, n_calls);
                n_calls += 1;
                if AFTER.get().is_none() && struck {
                    break;
                }
            }
            struck = AFTER.take().is_none();
            let is_replaced = HANDLED.get() > 0;
            let n_before = n_calls;
            IS_SLOW.set(false);
            (0..8).for_each(|i| call(STRUCK, n_before + i));
            lab.disable();
            // Functions open at the replacement of the buffer may be in either.
            let open: Vec<u64> = words(STRUCK, n_before - 1).into();
            let records = lab.segments().into_values().flatten().flat_map(|segment| segment.records);
            let found =
                records.map(|(_, word)| word).filter(|word| word & kind::MASK != kind::RESYNC && !open.contains(word));
            let handled = (0..HANDLED.get()).flat_map(|i| words(HANDLER, i));
            let put_aside = (first == First::PutAside).then(|| words(HANDLER, 0)[0]);
            let did: Vec<u64> =
                handled.chain(put_aside).chain((0..8).flat_map(|i| words(STRUCK, n_before + i))).collect();
            if is_replaced {
                assert_eq!(found.collect::<Vec<_>>(), did, "{first:?}, struck after {after} steps");
            }
            after += 1;
        }
        assert!(after > 100, "hardly a step was there to strike at");
    }
    HANDLER_CALLS.set(3);
    steer::at_each_point(None);
    steer::set_identity(None);
}

/// A thread's chunk of the first buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    None,
    InUse,
    PutAside,
}

thread_local! {
    /// Calls of the handler in the second buffer.
    static HANDLED: Cell<usize> = const { Cell::new(0) };
}

/// As another thread does it; then the handler's calls end a chunk.
fn replace_by_smaller_chunks(lab: &Lab) {
    lab.disable();
    let status = lab.replace_buffer(16 * MIN_CHUNK_BYTES, false);
    lab.enable();
    if status == init::OK {
        let n_calls = records_per_chunk(MIN_CHUNK_BYTES) / 4;
        (0..n_calls).for_each(|i| call(HANDLER, i));
        HANDLED.set(n_calls);
    }
}

/// The same, and the handler puts its chunk aside.
fn replace_and_put_aside(lab: &Lab) {
    replace_by_smaller_chunks(lab);
    if HANDLED.get() > 0 {
        call_and_put_aside(HANDLER, lab);
    }
}

/// A function returns while recording is off.
fn call_and_put_aside(who: usize, lab: &Lab) {
    let mut stack = [0usize; 64];
    let slot = stack.as_mut_ptr().wrapping_add(if who == HANDLER { 20 } else { 60 });
    // SAFETY: in the stack.
    unsafe { slot.write(0x5000) };
    let parent_loc = slot.expose_provenance();
    let child_ip = address(who, 0, 0) as usize;
    // SAFETY: the slot of the frame that is being entered.
    unsafe { arch::entry(Call { parent_loc, child_ip, stack_pointer: parent_loc, frame_pointer: 0, static_chain: 0 }) };
    lab.disable();
    assert_eq!(arch::exit(parent_loc, 0), 0x5000, "a wrong return");
    lab.enable();
}

/// Where a thread has its block in storage of its own an interrupt strikes its first hook at each step: it begins once, and all that both call
/// is recorded.
#[test]
fn a_thread_begins_once_whatever_interrupts_its_first_hook() {
    let _alone = lab::alone();
    steer::set_identity(Some(|| THREAD.get()));
    steer::at_each_point(Some(at_point));
    MEANWHILE.set(|_| ());
    THREAD.set(STRUCK);
    let (mut after, mut struck) = (0, true);
    while struck {
        let options = Options { buffer_bytes: 16 * MIN_CHUNK_BYTES, n_blocks: 1, n_left_buckets: 0, ring: false };
        LAB.take();
        let lab = Rc::new(Lab::new(options));
        lab.use_local_blocks();
        LAB.set(Some(Rc::clone(&lab)));
        lab.enable();
        AFTER.set(Some(after));
        (0..3).for_each(|i| call(STRUCK, i));
        struck = AFTER.take().is_none();
        lab.disable();
        let segments = lab.segments();
        assert_eq!(segments.len(), 1, "struck after {after} steps: the thread has two numbers");
        let mut found: Vec<u64> =
            segments.into_values().flatten().flat_map(|segment| segment.records).map(|(_, word)| word).collect();
        let handler = if struck { HANDLER_CALLS.get() + 1 } else { 0 };
        let own = (0..3).flat_map(|i| words(STRUCK, i));
        let mut did: Vec<u64> = own.chain((0..handler).flat_map(|i| words(HANDLER, i))).collect();
        found.sort_unstable();
        did.sort_unstable();
        assert_eq!(found, did, "struck after {after} steps");
        after += 1;
    }
    steer::at_each_point(None);
    steer::set_identity(None);
    assert!(after > 100, "hardly a step was there to strike at");
}

/// Calls beyond the last level are counted in the newest record, if that is one of lost calls. Another record that comes to
/// lie there when the chunk is used again is none.
#[test]
fn lost_calls_are_not_counted_in_other_records() {
    let _alone = lab::alone();
    THREAD.set(STRUCK);
    steer::set_identity(Some(|| THREAD.get()));
    let records_per_ring = 4 * records_per_chunk(MIN_CHUNK_BYTES);
    let mut stack = vec![0usize; 8 * (RETURN_STACK_ENTRIES + 3)];
    for n_between in 0..records_per_ring / 2 {
        let lab = Lab::new(Options { buffer_bytes: 4 * MIN_CHUNK_BYTES, n_blocks: 1, n_left_buckets: 1, ring: true });
        lab.enable();
        let deepest = RETURN_STACK_ENTRIES + 1;
        nest(&mut stack, deepest + 1, |level| address(HANDLER, 0, level));
        nest(&mut stack, n_between, |level| address(HANDLER, 0, level));
        nest(&mut stack, deepest + 1, |level| {
            if level == deepest {
                // The returns would overwrite what is to be seen.
                lab.disable();
            }
            address(HANDLER, 0, level)
        });
        let records = lab.segments().into_values().flatten().flat_map(|segment| segment.records);
        for (_, word) in records.filter(|(_, word)| word & kind::MASK != kind::LOST) {
            let is_true = (word >> ADDRESS_SHIFT).is_multiple_of(16);
            assert!(is_true, "{n_between} calls in between: {word:x}");
        }
    }
    steer::set_identity(None);
}
