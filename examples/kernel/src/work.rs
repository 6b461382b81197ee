//! The tasks' work. Each task computes a known result: a wrong one shows that an interrupt or the tracer has changed a
//! register or flag.

use core::hint::black_box;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU64};

use crate::arch::{interrupts, memory};
use crate::options::{Mode, Options};
use crate::smp::{self, N_CORES};
use crate::tasks::{self, N_TASKS};
use crate::trace;

unsafe extern "C" {
    /// See canary.s of the processor.
    safe fn canary(rounds: u64) -> u64;
}

/// Set when the tasks shall end after the present round.
static IS_OVER: AtomicBool = AtomicBool::new(false);
/// True for a long run: its rounds are larger, and go on until `IS_OVER`.
static IS_LONG: AtomicBool = AtomicBool::new(false);
/// True if functions that interrupts enter themselves may be used.
static HAS_IRET_HANDLERS: AtomicBool = AtomicBool::new(false);

/// Rounds of a short run.
static N_ROUNDS: AtomicU64 = AtomicU64::new(0);

/// Tasks, by what they do.
type Entries = [extern "C" fn(); N_TASKS - 1];

/// Returns the functions for the tasks of each core.
pub fn choose(options: &Options) -> [Entries; N_CORES] {
    N_ROUNDS.store(options.n_rounds.into(), Relaxed);
    IS_LONG.store(options.mode != Mode::Tree, Relaxed);
    HAS_IRET_HANDLERS.store(options.with_iret_handlers, Relaxed);
    let second = if options.mode == Mode::Panic { panicking } else { paging };
    [[recursion, second], [sorting, paging]]
}

/// Has the tasks end.
pub fn end() {
    IS_OVER.store(true, Relaxed);
}

/// Does the same again and again, and counts how often the result was wrong. In between other tasks have their turn.
#[inline(always)]
fn repeat(is_right: impl Fn(u64) -> bool) {
    let task = tasks::current();
    loop {
        let round = task.n_rounds.load(Relaxed) + 1;
        if !is_right(round) {
            task.n_wrong.fetch_add(1, Relaxed);
        }
        task.n_rounds.store(round, Relaxed);
        let is_enough = if IS_LONG.load(Relaxed) { IS_OVER.load(Relaxed) } else { round == N_ROUNDS.load(Relaxed) };
        if is_enough {
            return;
        }
        interrupts::yield_core();
        trace::poll();
    }
}

/// Many calls, and the registers and flags of assembly code.
extern "C" fn recursion() {
    repeat(|_| {
        let is_long = IS_LONG.load(Relaxed);
        if !is_long {
            interrupts::raise_timer();
        }
        let (number, result) = if is_long { (15, 610) } else { (3, 2) };
        fibonacci(number) == result && canary(10) == 0
    });
}

#[inline(never)]
fn fibonacci(number: u64) -> u64 {
    // The compiler sees through the sum otherwise, and makes a loop of it.
    if number < 2 { number } else { black_box(fibonacci(number - 1) + fibonacci(number - 2)) }
}

/// Calls in which memory changes: the multiples of a number modulo a prime are 0, 1, 2, … once they are sorted.
extern "C" fn sorting() {
    repeat(|_| {
        let mut numbers = [0; 251];
        let prime = if IS_LONG.load(Relaxed) { 251 } else { 5 };
        let numbers = &mut numbers[..prime];
        for (idx, number) in numbers.iter_mut().enumerate() {
            *number = idx * 3 % prime;
        }
        sort(numbers);
        numbers.iter().enumerate().all(|(idx, &number)| idx == number) && canary(10) == 0
    });
}

#[inline(never)]
fn sort(numbers: &mut [usize]) {
    let Some((&mut pivot, rest)) = numbers.split_first_mut() else {
        return;
    };
    let mut n_smaller = 0;
    for idx in 0..rest.len() {
        if rest[idx] < pivot {
            rest.swap(idx, n_smaller);
            n_smaller += 1;
        }
    }
    numbers.swap(0, n_smaller);
    let (smaller, larger) = numbers.split_at_mut(n_smaller);
    sort(smaller);
    sort(&mut larger[1..]);
    // As above.
    black_box(());
}

/// Page faults and system calls.
extern "C" fn paging() {
    let core = smp::this_core();
    let page = core.number * N_TASKS + core.current.load(Relaxed);
    repeat(|round| {
        if HAS_IRET_HANDLERS.load(Relaxed) {
            memory::unmap(page);
            // SAFETY: this task's own page. Touching it maps it, with what it held.
            let before = unsafe { memory::word(page).read_volatile() };
            // SAFETY: as above.
            unsafe { memory::word(page).write_volatile(round) };
            interrupts::call_system();
            if before != round - 1 || tasks::n_system_calls() != round {
                return false;
            }
        }
        checksum(b"123456789") == 0xcbf4_3926
    });
}

/// CRC-32, whose check value is in every description of it.
#[inline(never)]
fn checksum(bytes: &[u8]) -> u32 {
    let mut sum = u32::MAX;
    for &byte in bytes {
        sum = add_to_checksum(sum, byte);
    }
    !sum
}

#[inline(never)]
fn add_to_checksum(sum: u32, byte: u8) -> u32 {
    let mut sum = sum ^ u32::from(byte);
    for _ in 0..8 {
        sum = sum >> 1 ^ if sum & 1 == 1 { 0xedb8_8320 } else { 0 };
    }
    sum
}

/// Works for some rounds, then panics deep inside.
extern "C" fn panicking() {
    repeat(|round| {
        if round == 10 {
            descend(3);
        }
        checksum(b"123456789") == 0xcbf4_3926
    });
}

#[inline(never)]
fn descend(levels: u32) -> u32 {
    if levels == 0 {
        panic!("as the command line wants it");
    }
    1 + descend(black_box(levels - 1))
}
