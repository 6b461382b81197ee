//! Interruptions between two steps of a hook, at each of them in turn: calls of another thread, or of a signal handler.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use rftrace_model::abi::{
    ADDRESS_SHIFT, ChunkHeader, LEFT_BUCKET_BYTES, MIN_CHUNK_BYTES, ThreadBlock, chunk_state, kind, lease,
};
use rftrace_model::arch::{self, Call};
use rftrace_model::lab::{self, Lab, Options};
use rftrace_model::steer;

/// The action between two steps; its argument is the address that the next one is about.
type Between = Box<dyn FnMut(usize)>;

thread_local! {
    static THREAD: Cell<usize> = const { Cell::new(0) };
    static BETWEEN: RefCell<Option<Between>> = const { RefCell::new(None) };
}

fn at_point(address: usize) {
    // The action has steps too.
    let Some(mut between) = BETWEEN.take() else { return };
    between(address);
    BETWEEN.set(Some(between));
}

/// Does `work` as the thread with this number.
fn on_thread<T>(number: usize, work: impl FnOnce() -> T) -> T {
    let before = THREAD.replace(number);
    let result = work();
    THREAD.set(before);
    result
}

/// Runs `work`, with `between` before each step of the tracer.
fn with_between<T>(between: impl FnMut(usize) + 'static, work: impl FnOnce() -> T) -> T {
    BETWEEN.set(Some(Box::new(between)));
    let result = work();
    BETWEEN.set(None);
    result
}

fn try_out(scenario: fn()) {
    let _alone = lab::alone();
    steer::try_out(move || {
        steer::set_identity(Some(|| THREAD.get()));
        steer::at_each_point(Some(at_point));
        scenario();
    });
}

fn new_lab(n_chunks: usize) -> Lab {
    let options = Options { buffer_bytes: n_chunks * MIN_CHUNK_BYTES, n_blocks: 4, n_left_buckets: 16, ring: false };
    let lab = Lab::new(options);
    lab.enable();
    lab
}

/// Memory for stacks; its start is that of a page.
fn stacks(words: usize) -> usize {
    let memory: &'static mut [usize] = Box::leak(vec![0; words + 512].into_boxed_slice());
    memory.as_mut_ptr().expose_provenance().next_multiple_of(4096)
}

/// Calls a function with a frame pointer, whose caller's slot is `caller` (0 for none).
fn enter(slot: usize, function: usize, caller: usize, parent_ip: usize) {
    let call = Call {
        parent_loc: slot,
        child_ip: function,
        stack_pointer: slot - 32,
        frame_pointer: slot - 8,
        static_chain: 0,
    };
    // SAFETY: all in the memory of the stacks.
    unsafe {
        (slot as *mut usize).write(parent_ip);
        ((slot - 8) as *mut usize).write(caller.saturating_sub(8));
        arch::entry(call);
    }
}

/// Returns. Tells where the function goes on.
fn leave(slot: usize, caller: usize) -> usize {
    // SAFETY: in the memory of the stacks.
    let mut ip = unsafe { *(slot as *const usize) };
    while ip == arch::trampoline() {
        ip = arch::exit(slot, caller.saturating_sub(8));
    }
    ip
}

/// Leaves a frame by a jump, so that the tracer knows that there are such.
fn jump(top: usize) {
    enter(top - 64, 0x41_0010, 0, 0x6001);
    enter(top - 192, 0x41_0020, top - 64, 0x6002);
    enter(top - 320, 0x41_0030, top - 192, 0x6003);
    enter(top - 192, 0x41_0040, top - 64, 0x6004);
    assert_eq!([leave(top - 192, top - 64), leave(top - 64, 0)], [0x6004, 0x6001]);
}

/// A coroutine goes on on another thread, from a function whose stack lies beside its own and which calls once more meanwhile.
#[test]
fn a_frame_that_runs_is_not_taken_for_an_older_one_with_its_slot() {
    try_out(|| {
        let mut n_struck = 0;
        for at in 0.. {
            let _lab = new_lab(64);
            THREAD.set(0);
            let base = stacks(4096);
            jump(base + 20_000);
            let [first, second] = [base + 4_000, base + 8_000];
            // The function that resumes the first coroutine runs on the second one.
            enter(second - 64, 0x40_0010, 0, 0x5001);
            enter(second - 192, 0x40_0020, second - 64, 0x5002);
            enter(first - 64, 0x40_0030, 0, 0x5003);
            let (step, called) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
            let was_called = Rc::clone(&called);
            let between = move |_| {
                step.set(step.get() + 1);
                if step.get() == at + 1 {
                    was_called.set(true);
                    on_thread(0, || {
                        assert_eq!(leave(second - 192, second - 64), 0x5002);
                        enter(second - 192, 0x40_0040, second - 64, 0x5999);
                    });
                }
            };
            with_between(between, || on_thread(1, || enter(first - 192, 0x40_0050, first - 64, 0x5004)));
            if !called.get() {
                break;
            }
            n_struck += 1;
            assert_eq!(leave(second - 192, second - 64), 0x5999, "struck at step {at}");
            assert_eq!(leave(second - 64, 0), 0x5001, "struck at step {at}");
            assert_eq!(on_thread(1, || [leave(first - 192, first - 64), leave(first - 64, 0)]), [0x5004, 0x5003]);
        }
        assert!(n_struck > 100, "{n_struck} steps");
    });
}

/// A frame pointer that is none names a frame which runs on another thread. That one returns, and calls again, meanwhile.
#[test]
fn a_frame_is_not_taken_over_by_a_wrong_name() {
    try_out(|| {
        let mut n_struck = 0;
        for (at, n_rounds) in (0..).flat_map(|at| [(at, 1), (at, 2)]) {
            let _lab = new_lab(64);
            THREAD.set(0);
            let base = stacks(4096);
            jump(base + 20_000);
            let top = base + 8_000;
            enter(top - 64, 0x40_0010, 0, 0x5001);
            enter(top - 192, 0x40_0020, top - 64, 0x5002);
            let (step, called) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
            let was_called = Rc::clone(&called);
            let between = move |_| {
                step.set(step.get() + 1);
                if step.get() > at && was_called.get() < n_rounds {
                    let round = was_called.get();
                    was_called.set(round + 1);
                    let before = if round == 0 { 0x5002 } else { 0x5900 + round - 1 };
                    on_thread(0, || {
                        assert_eq!(leave(top - 192, top - 64), before);
                        enter(top - 192, 0x40_0040, top - 64, 0x5900 + round);
                        // A call below shows whether the frame is still this thread's.
                        enter(top - 400, 0x40_0060, top - 192, 0x5800);
                        assert_eq!(leave(top - 400, top - 192), 0x5800);
                    });
                }
            };
            with_between(between, || on_thread(1, || enter(top - 4_000, 0x40_0050, top - 192, 0x5004)));
            if called.get() < n_rounds {
                break;
            }
            n_struck += 1;
            assert_eq!(leave(top - 192, top - 64), 0x5900 + n_rounds - 1, "struck at step {at}");
            assert_eq!(leave(top - 64, 0), 0x5001, "struck at step {at}");
            assert_eq!(on_thread(1, || leave(top - 4_000, 0)), 0x5004);
        }
        assert!(n_struck > 100, "{n_struck} steps");
    });
}

/// An entry is moved to and fro for so long that whoever looks for it finds it neither here nor there.
#[test]
fn a_return_is_found_however_often_its_entry_moves() {
    const MOVES: usize = 3_000;
    try_out(|| {
        let lab = Rc::new(new_lab(4_096));
        let base = stacks(16_384);
        let [frame, own, other] = [base + 16_000, base + 40_000, base + 8_000];
        // A third thread has called the function, and has left it.
        on_thread(2, || {
            jump(base + 60_000);
            enter(base + 64_000, 0x40_0010, 0, 0x5001);
            enter(frame, 0x40_0020, 0, 0x5002);
            enter(base + 64_000 - 128, 0x40_0030, base + 64_000, 0x5003);
        });
        enter(own, 0x40_0040, 0, 0x5004);
        // Another one wrongly takes it for the caller of its own, again and again.
        let block = on_thread(1, || {
            enter(other, 0x40_0050, 0, 0x5005);
            arch::thread_block()
        });
        let n_moves = Rc::new(Cell::new(0));
        let is_held = Cell::new(false);
        let (counter, control) = (Rc::clone(&n_moves), Rc::clone(&lab));
        let between = move |address: usize| {
            let table = control.control().left.load(Relaxed).addr();
            let in_table = address.wrapping_sub(table) < 16 * LEFT_BUCKET_BYTES;
            let on_stack = address.wrapping_sub(block.addr()) < size_of::<ThreadBlock>();
            if counter.get() == MOVES || !(in_table && !is_held.get() || on_stack && is_held.get()) {
                return;
            }
            counter.set(counter.get() + 1);
            on_thread(1, || {
                if in_table {
                    enter(frame - 128, 0x40_0060, frame, 0x5006);
                } else {
                    enter(other - 128, 0x40_0070, other, 0x5007);
                }
            });
            is_held.set(in_table);
        };
        assert_eq!(with_between(between, || leave(frame, 0)), 0x5002);
        assert_eq!(leave(own, 0), 0x5004);
    });
}

/// A handler forks, and in the child all goes on: the calling thread has its chunks, and nobody is counted who is not there.
#[test]
fn a_handler_may_fork() {
    try_out(|| {
        let mut n_struck = 0;
        for at in 0.. {
            let lab = new_lab(8);
            THREAD.set(0);
            let (top, other) = (stacks(512) + 2_048, stacks(512) + 2_048);
            call(top, MAIN);
            let (step, forked) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
            let has_forked = Rc::clone(&forked);
            let between = move |_| {
                step.set(step.get() + 1);
                if step.get() == at + 1 {
                    has_forked.set(true);
                    // SAFETY: on the only thread, and the buffer stays.
                    unsafe { rftrace_backend_forked(std::ptr::null()) };
                    // The handler goes on, and so do others.
                    (0..10).for_each(|_| call(top - 1_024, HANDLER));
                    on_thread(1, || (0..10).for_each(|_| call(other, OTHER)));
                }
            };
            with_between(between, || (0..20).for_each(|_| call(top, MAIN)));
            if !forked.get() {
                break;
            }
            n_struck += 1;
            assert!(lab.control().shared.is_quiet(), "struck at step {at}");
            let cursors = [0, 1].map(|number| {
                // SAFETY: the blocks of threads that have made calls.
                let block = on_thread(number, || unsafe { &*arch::thread_block() });
                let mask = block.chunk_mask.load(Relaxed);
                ((block.cursor.load(Relaxed) - 1) & !mask, block.tid.load(Relaxed))
            });
            assert_ne!(cursors[0].0, cursors[1].0, "struck at step {at}: two threads write into one chunk");
            for (chunk, tid) in cursors {
                // SAFETY: the cursor of a thread points into a chunk.
                let header = unsafe { &*(chunk as *const ChunkHeader) };
                let state = lease::state(header.lease.load(Relaxed));
                assert_eq!((state, header.tid.load(Relaxed)), (chunk_state::OWNED, tid), "struck at step {at}");
            }
            lab.disable();
            assert_own_records(&lab, at);
        }
        assert!(n_struck > 100, "{n_struck} steps");
    });
}

/// Handlers fill more than the chunk in which a hook has reserved a record, and the buffer is emptied meanwhile.
#[test]
fn a_late_record_is_in_no_chunk_of_another_thread() {
    try_out(|| {
        let mut n_struck = 0;
        for at in 0.. {
            let lab = Rc::new(new_lab(8));
            THREAD.set(0);
            let (top, other) = (stacks(512) + 2_048, stacks(512) + 2_048);
            let (step, struck) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
            let (was_struck, control) = (Rc::clone(&struck), Rc::clone(&lab));
            let between = move |_| {
                step.set(step.get() + 1);
                if step.get() == at + 1 {
                    was_struck.set(true);
                    (0..32).for_each(|_| call(top - 1_024, HANDLER));
                    if control.control().shared.is_quiet() {
                        control.disable();
                        control.reset();
                        control.enable();
                    }
                    on_thread(1, || (0..80).for_each(|_| call(other, OTHER)));
                }
            };
            with_between(between, || {
                (0..20).for_each(|_| {
                    if !struck.get() {
                        call(top, MAIN)
                    }
                })
            });
            if !struck.get() {
                break;
            }
            n_struck += 1;
            lab.disable();
            assert_own_records(&lab, at);
        }
        assert!(n_struck > 100, "{n_struck} steps");
    });
}

const MAIN: usize = 0x40_0000;
const HANDLER: usize = 0x80_0000;
const OTHER: usize = 0xc0_0000;

unsafe extern "C" {
    unsafe fn rftrace_backend_forked(args: *const rftrace_model::abi::InitArgs) -> u32;
}

/// Calls a function, which returns.
fn call(slot: usize, function: usize) {
    enter(slot, function, 0, 0x5000);
    assert_eq!(leave(slot, 0), 0x5000);
}

/// Checks that no thread's records are in a chunk of another one's.
fn assert_own_records(lab: &Lab, at: usize) {
    for segments in lab.segments().values() {
        let words = segments.iter().flat_map(|segment| &segment.records).map(|(_, word)| word);
        let calls = words.filter(|word| **word & kind::MASK != kind::RESYNC);
        let mut is_other: Vec<bool> = calls.map(|word| word >> ADDRESS_SHIFT == OTHER as u64).collect();
        is_other.dedup();
        assert!(is_other.len() < 2, "struck at step {at}: records of two threads in one chunk");
    }
}
