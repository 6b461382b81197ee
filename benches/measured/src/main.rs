//! The program that is measured, the same for every tracer.
//!
//! ```text
//! cost WORKLOAD STATE THREADS   prints, of each batch, nanoseconds per call: CPU time, and wall clock of all together
//! count WORKLOAD STATE CALLS    makes so many calls and ends, for an instruction counter; prints how many
//! json                          parses a large text, see `bench_tracer::whole_program`
//! dump DIRECTORY                records 20 million events of 8 threads and saves them
//! ```
//!
//! Results are the lines that begin with `result `: frontends may print too.

mod json;

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use bench_tracer::{EVENT_BYTES, thread_nanos, wall_nanos};

/// Events of the ring that costs are measured with.
const RING_EVENTS: usize = 1 << 20;
/// Calls that go once around the ring, with some to spare.
const WARM_UP_CALLS: u64 = RING_EVENTS as u64 * 5 / 8;
/// Batches of one run.
const BATCHES: usize = 31;
/// Open functions below which calls are counted, not recorded.
const DEEPEST: u64 = 1023;

/// Threads of the dump.
const DUMP_THREADS: usize = 8;
/// Calls that each of them makes: two events each.
const DUMP_CALLS: u64 = 1_250_000;
/// Room for these 20 million events, and for the few calls around them.
const DUMP_EVENTS: usize = 20_100_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["cost", "floor", _, threads] => cost(Workload::Floor, "off", number(threads) as usize),
        ["cost", workload, state, threads] => cost(Workload::new(workload), state, number(threads) as usize),
        ["count", workload, state, calls] => count(Workload::new(workload), state, number(calls)),
        ["json"] => json::measure(),
        ["dump", directory] => dump(directory),
        _ => {
            eprintln!("usage: cost WORKLOAD on|off THREADS | count WORKLOAD on|off CALLS | json | dump DIRECTORY");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn number(text: &str) -> u64 {
    text.parse().expect("a number")
}

/// What a batch does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Workload {
    /// Two time stamps and two stores of 16 bytes into a ring: the least that a record of entry and exit can cost.
    Floor,
    Leaf,
    LeafInC,
    Fib,
    FibInC,
    /// The functions of build.rs in turn.
    Hundred,
    /// The leaf below more open functions than are recorded.
    Deep,
}

impl Workload {
    fn new(name: &str) -> Self {
        match name {
            "leaf" => Self::Leaf,
            "leaf-c" => Self::LeafInC,
            "fib" => Self::Fib,
            "fib-c" => Self::FibInC,
            "hundred" => Self::Hundred,
            "deep" => Self::Deep,
            other => panic!("no workload {other}"),
        }
    }

    /// Makes about `calls` calls; returns how many.
    #[inline(always)]
    fn work(self, calls: u64) -> u64 {
        match self {
            Self::Floor => unreachable!("has a loop of its own"),
            Self::Leaf => leaves(calls),
            Self::LeafInC => {
                black_box(leaf_in_c(calls));
                calls
            }
            Self::Fib => {
                let n = fib_argument(calls);
                black_box(fib(black_box(n)));
                fib_calls(n)
            }
            Self::FibInC => {
                let n = fib_argument(calls);
                black_box(fib_in_c(n));
                fib_calls(n)
            }
            Self::Hundred => {
                let mut n = 1;
                for _ in 0..calls / 100 {
                    n = HUNDRED.iter().fold(n, |n, function| function(n));
                }
                black_box(n);
                calls / 100 * 100
            }
            Self::Deep => below(DEEPEST, calls),
        }
    }

    /// Calls of one batch: about a millisecond, less than the system gives to a thread at a time.
    fn batch_calls(self, state: &str) -> u64 {
        match (self, state) {
            (Self::Floor, _) => RING_EVENTS as u64 / 16,
            // Those on the way down do not count.
            (Self::Deep, _) => 300_000,
            (_, "on") => 40_000,
            (Self::Hundred, _) => 40_000,
            _ => 300_000,
        }
    }
}

include!(concat!(env!("OUT_DIR"), "/hundred.rs"));

unsafe extern "C" {
    safe fn leaf_in_c(calls: u64) -> u64;
    safe fn fib_in_c(n: u64) -> u64;
}

/// A function that does as little as a function can.
#[inline(never)]
fn leaf(n: u64) -> u64 {
    n ^ 1
}

#[inline(always)]
fn leaves(calls: u64) -> u64 {
    let mut sum = 0;
    for n in 0..calls {
        sum ^= leaf(n);
    }
    black_box(sum);
    calls
}

/// Two calls per result. Hidden from the optimiser, which would make a loop of the second call.
#[inline(never)]
fn fib(n: u64) -> u64 {
    if n < 2 { n } else { fib(n - 1) + black_box(fib(n - 2)) }
}

/// Calls that `fib(n)` makes, itself included.
fn fib_calls(n: u64) -> u64 {
    let (mut last, mut calls) = (1, 1);
    for _ in 1..n {
        (last, calls) = (calls, last + calls + 1);
    }
    calls
}

/// The largest `n` whose `fib(n)` makes at most `calls` calls.
fn fib_argument(calls: u64) -> u64 {
    (1..).find(|&n| fib_calls(n + 1) > calls).unwrap_or(1)
}

/// Calls the leaf below so many open functions.
#[inline(never)]
fn below(levels: u64, calls: u64) -> u64 {
    if levels == 0 { leaves(calls) } else { black_box(below(levels - 1, calls)) }
}

/// `on`: a ring that was filled once; `off`: initialised, not recording.
fn cost(workload: Workload, state: &str, threads: usize) {
    let calls = workload.batch_calls(state);
    // Threads that share the machine with others seldom run at the same time for a whole batch.
    let batches = if threads == 1 { BATCHES } else { 2 * BATCHES };
    let _events = bench_tracer::init(RING_EVENTS, true);
    if state == "on" {
        bench_tracer::enable();
    }
    let gate = Gate::default();
    let one_thread = |place: usize| {
        if threads > 1 {
            pin(place);
        }
        let mut ring = vec![[0; 2]; if workload == Workload::Floor { RING_EVENTS } else { 0 }];
        let mut next = 0;
        let mut work = |calls: u64| {
            if workload != Workload::Floor {
                return workload.work(calls);
            }
            let events = ring.len().min(2 * calls as usize);
            if next + events > ring.len() {
                next = 0;
            }
            next += events;
            stamps(&mut ring[next - events..next])
        };
        work(WARM_UP_CALLS);
        let batch = |number| {
            gate.pass(number * threads);
            let (start, cpu_start) = (wall_nanos(), thread_nanos());
            let calls = work(calls);
            Batch { cpu: thread_nanos() - cpu_start, start, end: wall_nanos(), calls }
        };
        (1..=batches).map(batch).collect::<Vec<Batch>>()
    };
    let per_thread: Vec<Vec<Batch>> = thread::scope(|scope| {
        let one_thread = &one_thread;
        let others: Vec<_> = (1..threads).map(|place| scope.spawn(move || one_thread(place))).collect();
        let own = one_thread(0);
        others.into_iter().map(|other| other.join().expect("a thread panicked")).chain([own]).collect()
    });
    bench_tracer::disable();
    for number in 0..batches {
        let batch: Vec<&Batch> = per_thread.iter().map(|batches| &batches[number]).collect();
        if at_the_same_time(&batch) {
            let cpu: f64 = batch.iter().map(|batch| batch.cpu as f64 / batch.calls as f64).sum();
            let calls: u64 = batch.iter().map(|batch| batch.calls).sum();
            println!("result {} {}", cpu / threads as f64, extent(&batch) as f64 / calls as f64);
        }
    }
}

/// What one thread has measured, in nanoseconds.
struct Batch {
    start: u64,
    end: u64,
    cpu: u64,
    calls: u64,
}

/// From the first thread's start to the last one's end.
fn extent(batches: &[&Batch]) -> u64 {
    let start = batches.iter().map(|batch| batch.start).min().expect("there is a thread");
    let end = batches.iter().map(|batch| batch.end).max().expect("there is a thread");
    end - start
}

/// Whether every thread had a processor all the time, and the others ran beside it. (If one had to wait for a
/// processor, the other one was alone.)
fn at_the_same_time(batches: &[&Batch]) -> bool {
    let start = batches.iter().map(|batch| batch.start).max().expect("there is a thread");
    let end = batches.iter().map(|batch| batch.end).min().expect("there is a thread");
    let together = end.saturating_sub(start) as f64;
    let has_processor = |batch: &&Batch| {
        let elapsed = (batch.end - batch.start) as f64;
        elapsed <= 1.1 * batch.cpu as f64 && elapsed <= 1.25 * together
    };
    batches.iter().all(has_processor)
}

/// Keeps this thread on the processor at that place among those it may use.
fn pin(place: usize) {
    // SAFETY: the sets are writable, and all zero bits are an empty one.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&allowed), &raw mut allowed);
        let mut processors = (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &allowed));
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processors.nth(place).expect("there is a processor for each thread"), &mut one);
        libc::sched_setaffinity(0, size_of_val(&one), &raw const one);
    }
}

/// Lets threads begin a batch at the same moment. They do not sleep: waking up takes longer than a batch.
#[derive(Default)]
struct Gate(AtomicUsize);

impl Gate {
    fn pass(&self, arrivals: usize) {
        self.0.fetch_add(1, Ordering::SeqCst);
        while self.0.load(Ordering::SeqCst) < arrivals {
            std::hint::spin_loop();
        }
    }
}

/// Fills a part of a ring; returns the number of pairs.
#[inline(never)]
fn stamps(part: &mut [[u64; 2]]) -> u64 {
    for pair in part.chunks_exact_mut(2) {
        // SAFETY: every x86-64 processor has the instruction.
        pair[0] = black_box([unsafe { std::arch::x86_64::_rdtsc() }, 1]);
        // SAFETY: as above.
        pair[1] = black_box([unsafe { std::arch::x86_64::_rdtsc() }, 2]);
    }
    black_box(&mut *part);
    part.len() as u64 / 2
}

fn count(workload: Workload, state: &str, calls: u64) {
    // A buffer for all of them: emptying a piece of the ring is one instruction that callgrind counts once a byte.
    let _events = bench_tracer::init(RING_EVENTS, false);
    if state == "on" {
        bench_tracer::enable();
    }
    let calls = workload.work(calls);
    bench_tracer::disable();
    println!("result {calls}");
}

fn dump(directory: &str) {
    std::fs::create_dir_all(directory).expect("the directory cannot be made");
    let events = bench_tracer::init(DUMP_EVENTS, false);
    bench_tracer::enable();
    thread::scope(|scope| {
        for _ in 0..DUMP_THREADS {
            scope.spawn(|| leaves(DUMP_CALLS));
        }
    });
    bench_tracer::disable();
    let resident = status_kib("VmRSS:");
    // The highest resident size begins anew.
    std::fs::write("/proc/self/clear_refs", "5").expect("the peak cannot be reset");
    let start = Instant::now();
    bench_tracer::dump_full_uftrace(events, directory, "measured").expect("saving failed");
    let seconds = start.elapsed().as_secs_f64();
    let peak = status_kib("VmHWM:");
    let buffer = DUMP_EVENTS * EVENT_BYTES / 1024;
    println!("result {seconds} {buffer} {resident} {peak}");
}

/// A line of /proc/self/status, in KiB.
fn status_kib(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("the kernel tells memory sizes");
    number(line.trim().trim_end_matches(" kB"))
}
