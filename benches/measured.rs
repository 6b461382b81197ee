// The program that is measured, the same for every tracer. Included by the packages' main.rs, which bring
// `rftrace_frontend` and `EVENT_BYTES`.
//
//   cost WORKLOAD STATE THREADS   prints the nanoseconds per call of each batch
//   count WORKLOAD STATE CALLS    makes so many calls and ends, for an instruction counter
//   dump DIRECTORY                records 20 million events of 8 threads and saves them
//
// Results are the lines that begin with `result `: frontends may print too.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

/// Events of the ring that costs are measured with.
const RING_EVENTS: usize = 1 << 20;
/// Calls that go once around the ring, with some to spare.
const WARM_UP_CALLS: u64 = RING_EVENTS as u64 * 5 / 8;
/// Batches of one run.
const BATCHES: usize = 15;

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
        ["cost", workload, state, threads] => cost(workload, state, number(threads) as usize),
        ["count", workload, state, calls] => count(workload, state, number(calls)),
        ["dump", directory] => dump(directory),
        _ => {
            eprintln!("usage: cost leaf|fib|floor on|off|first THREADS | count leaf|fib on|off CALLS | dump DIRECTORY");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn number(text: &str) -> u64 {
    text.parse().expect("a number")
}

/// A function that does as little as a function can.
#[inline(never)]
fn leaf(n: u64) -> u64 {
    n ^ 1
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

/// Makes about `calls` calls; returns how many.
#[inline(always)]
fn work(workload: &str, calls: u64) -> u64 {
    match workload {
        "leaf" => {
            let mut sum = 0;
            for n in 0..calls {
                sum ^= leaf(n);
            }
            black_box(sum);
            calls
        }
        "fib" => {
            let n = (1..).find(|&n| fib_calls(n + 1) > calls).unwrap_or(1);
            black_box(fib(black_box(n)));
            fib_calls(n)
        }
        other => panic!("no workload {other}"),
    }
}

/// `on`: a ring that was filled once; `off`: initialised, not recording; `first`: the first pass through a new buffer.
fn cost(workload: &str, state: &str, threads: usize) {
    if workload == "floor" {
        return floor();
    }
    let calls = match state {
        "on" => 40_000,
        "first" => RING_EVENTS as u64 / (2 * (BATCHES as u64 + 1)),
        _ => 1_000_000,
    };
    // Threads that share the machine with others seldom run at the same time for a whole batch.
    let batches = if threads == 1 { BATCHES } else { 4 * BATCHES };
    let _events = rftrace_frontend::init(RING_EVENTS, state != "first");
    if state != "off" {
        rftrace_frontend::enable();
    }
    let gate = Gate::default();
    let one_thread = || {
        if state != "first" {
            work(workload, WARM_UP_CALLS);
        }
        let batch = |number| {
            gate.pass(number * threads);
            let (start, cpu_start) = (Instant::now(), cpu_nanos());
            let calls = work(workload, calls);
            Batch { start, end: Instant::now(), cpu: cpu_nanos() - cpu_start, calls }
        };
        (1..=batches).map(batch).collect::<Vec<Batch>>()
    };
    let per_thread: Vec<Vec<Batch>> = thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(one_thread)).collect();
        let own = one_thread();
        others.into_iter().map(|other| other.join().expect("a thread panicked")).chain([own]).collect()
    });
    rftrace_frontend::disable();
    for number in 0..batches {
        let batch: Vec<&Batch> = per_thread.iter().map(|batches| &batches[number]).collect();
        if at_the_same_time(&batch) {
            let sum: f64 = batch.iter().map(|batch| batch.cpu as f64 / batch.calls as f64).sum();
            println!("result {}", sum / threads as f64);
        }
    }
}

/// What one thread has measured.
struct Batch {
    start: Instant,
    end: Instant,
    /// Nanoseconds of CPU time.
    cpu: u64,
    calls: u64,
}

/// Whether every thread had a processor all the time, and the others ran beside it. (If one had to wait for a
/// processor, the other one was alone.)
fn at_the_same_time(batches: &[&Batch]) -> bool {
    let start = batches.iter().map(|batch| batch.start).max().expect("there is a thread");
    let end = batches.iter().map(|batch| batch.end).min().expect("there is a thread");
    let together = end.saturating_duration_since(start).as_nanos() as f64;
    let has_processor = |batch: &&Batch| {
        let elapsed = (batch.end - batch.start).as_nanos() as f64;
        elapsed <= 1.1 * batch.cpu as f64 && elapsed <= 1.25 * together
    };
    batches.iter().all(has_processor)
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

/// The least that a record of entry and exit can cost: two time stamps and two stores of 16 bytes into a ring.
fn floor() {
    let mut ring = vec![[0u64; 2]; RING_EVENTS];
    for batch in 0..=BATCHES {
        let pairs = RING_EVENTS as u64 / 2;
        let start = cpu_nanos();
        for pair in ring.chunks_exact_mut(2) {
            // SAFETY: every x86-64 processor has the instruction.
            pair[0] = black_box([unsafe { std::arch::x86_64::_rdtsc() }, 1]);
            // SAFETY: as above.
            pair[1] = black_box([unsafe { std::arch::x86_64::_rdtsc() }, 2]);
        }
        let nanos = cpu_nanos() - start;
        black_box(&mut ring);
        // The first pass touches new memory.
        if batch > 0 {
            println!("result {}", nanos as f64 / pairs as f64);
        }
    }
}

fn count(workload: &str, state: &str, calls: u64) {
    // A buffer for all of them: emptying a piece of the ring is one instruction that callgrind counts once a byte.
    let _events = rftrace_frontend::init(RING_EVENTS, false);
    if state == "on" {
        rftrace_frontend::enable();
    }
    let calls = work(workload, calls);
    rftrace_frontend::disable();
    println!("result {calls}");
}

fn dump(directory: &str) {
    std::fs::create_dir_all(directory).expect("the directory cannot be made");
    let events = rftrace_frontend::init(DUMP_EVENTS, false);
    rftrace_frontend::enable();
    thread::scope(|scope| {
        for _ in 0..DUMP_THREADS {
            scope.spawn(|| work("leaf", DUMP_CALLS));
        }
    });
    rftrace_frontend::disable();
    let resident = status_kib("VmRSS:");
    // The highest resident size begins anew.
    std::fs::write("/proc/self/clear_refs", "5").expect("the peak cannot be reset");
    let start = Instant::now();
    rftrace_frontend::dump_full_uftrace(events, directory, "measured").expect("saving failed");
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

/// CPU time of this thread: what other programs take of the processor does not count.
fn cpu_nanos() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
