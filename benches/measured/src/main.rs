//! The program that is measured, the same for every tracer.
//!
//! ```text
//! cost WORKLOAD STATE          prints, of each batch, nanoseconds per call, CPU time
//! two-threads WORKLOAD STATE   prints, of each turn, nanoseconds per call of one thread and of two together by wall
//!                              clock, and the same by CPU time
//! count WORKLOAD STATE CALLS   makes so many calls and ends, for an instruction counter; prints how many
//! json                         parses a large text, see `bench_tracer::whole_program`
//! dump DIRECTORY               records 20 million events of 8 threads and saves them
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
        ["cost", workload, state] => cost(Workload::new(workload), state),
        ["two-threads", workload, state] => two_threads(Workload::new(workload), state),
        ["count", workload, state, calls] => count(Workload::new(workload), state, number(calls)),
        ["json"] => json::measure(),
        ["dump", directory] => dump(directory),
        _ => {
            eprintln!("usage: cost|two-threads WORKLOAD on|off | count WORKLOAD on|off CALLS | json | dump DIRECTORY");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn number(text: &str) -> u64 {
    text.parse().expect("a number")
}

/// The work of a batch.
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
            "floor" => Self::Floor,
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
fn cost(workload: Workload, state: &str) {
    let _events = begin(state);
    let mut worker = Worker::new(workload, state);
    let batches: Vec<Batch> = (0..BATCHES).map(|_| worker.batch()).collect();
    bench_tracer::disable();
    for batch in batches.iter().filter(|batch| batch.had_processor()) {
        println!("result {}", batch.cpu as f64 / batch.calls as f64);
    }
}

/// Two threads, each on a processor of its own, and each alone on it, in turns a batch long: a processor's speed
/// changes with what its neighbours do, and is about the same for the three batches of a turn.
fn two_threads(workload: Workload, state: &str) {
    let _events = begin(state);
    let gate = Gate::default();
    let one_thread = |place: usize| {
        pin(place);
        let mut worker = Worker::new(workload, state);
        let mut n_passed = 0;
        let mut meet = || {
            n_passed += 1;
            gate.pass(n_passed * 2);
        };
        let mut turn = || {
            let mut alone = None;
            for turn_of in 0..2 {
                meet();
                if turn_of == place {
                    alone = Some(worker.batch());
                }
            }
            meet();
            [alone.expect("each thread has its turn"), worker.batch()]
        };
        (0..BATCHES).map(|_| turn()).collect::<Vec<[Batch; 2]>>()
    };
    let per_thread = thread::scope(|scope| {
        let one_thread = &one_thread;
        let other = scope.spawn(move || one_thread(1));
        [one_thread(0), other.join().expect("a thread panicked")]
    });
    bench_tracer::disable();
    let [first, second] = per_thread;
    for ([first_alone, first], [second_alone, second]) in first.iter().zip(&second) {
        let alone = [first_alone, second_alone];
        let both = [first, second];
        if alone.iter().all(|batch| batch.had_processor()) && at_the_same_time(both) {
            let calls: u64 = both.iter().map(|batch| batch.calls).sum();
            let per_call = |nanos: [u64; 2]| nanos.iter().sum::<u64>() as f64 / calls as f64;
            let one = per_call(alone.map(Batch::wall));
            let two = per_call(both.map(Batch::wall)) / 2.0;
            let one_cpu = per_call(alone.map(|batch| batch.cpu));
            let two_cpu = per_call(both.map(|batch| batch.cpu)) / 2.0;
            println!("result {one} {two} {one_cpu} {two_cpu}");
        }
    }
}

/// Gives the tracer a ring, and records into it if `state` says so.
fn begin(state: &str) -> &'static mut bench_tracer::Events {
    let events = bench_tracer::init(RING_EVENTS, true);
    if state == "on" {
        bench_tracer::enable();
    }
    events
}

/// Does batches of a workload, for one thread.
struct Worker {
    workload: Workload,
    calls: u64,
    /// Where the floor's loop stores.
    ring: Vec<[u64; 2]>,
    next: usize,
}

impl Worker {
    /// The ring has been gone around once, the tracer's too.
    fn new(workload: Workload, state: &str) -> Self {
        let ring = vec![[0; 2]; if workload == Workload::Floor { RING_EVENTS } else { 0 }];
        let mut worker = Self { workload, calls: workload.batch_calls(state), ring, next: 0 };
        worker.work(WARM_UP_CALLS);
        worker
    }

    fn batch(&mut self) -> Batch {
        let (start, cpu_start) = (wall_nanos(), thread_nanos());
        let calls = self.work(self.calls);
        Batch { cpu: thread_nanos() - cpu_start, start, end: wall_nanos(), calls }
    }

    #[inline(always)]
    fn work(&mut self, calls: u64) -> u64 {
        if self.workload != Workload::Floor {
            return self.workload.work(calls);
        }
        let events = self.ring.len().min(2 * calls as usize);
        if self.next + events > self.ring.len() {
            self.next = 0;
        }
        self.next += events;
        stamps(&mut self.ring[self.next - events..self.next])
    }
}

/// Measurements of one thread, in nanoseconds.
struct Batch {
    start: u64,
    end: u64,
    cpu: u64,
    calls: u64,
}

impl Batch {
    fn wall(&self) -> u64 {
        self.end - self.start
    }

    /// True if the thread did not wait for its processor.
    fn had_processor(&self) -> bool {
        self.wall() as f64 <= 1.1 * self.cpu as f64
    }
}

/// True if both threads had a processor all the time, side by side. (If one had to wait for a processor, the
/// other one was alone.)
fn at_the_same_time(batches: [&Batch; 2]) -> bool {
    let [first, second] = batches;
    let together = first.end.min(second.end).saturating_sub(first.start.max(second.start)) as f64;
    batches.iter().all(|batch| batch.had_processor() && batch.wall() as f64 <= 1.25 * together)
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
    // A buffer for all of them, so that the hooks alone are counted.
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
