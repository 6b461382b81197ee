//! A program that traces itself, with the kernel below it when that is instrumented too: it prints, sleeps, and has
//! threads that do both.
//!
//! On Hermit the trace goes to the folder `trace` of the host's shared folder, which the kernel has mounted as `/root`;
//! elsewhere to the current folder.

#[cfg(target_os = "hermit")]
use hermit as _; // links the kernel

extern crate rftrace as _; // links the tracer

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use rftrace_frontend::{Config, SaveOptions};

const DIRECTORY: &str = if cfg!(target_os = "hermit") { "/root/trace" } else { "trace" };

/// How long each nap takes: long enough that the kernel goes idle and its timer wakes it up.
const NAP: Duration = Duration::from_millis(20);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tracer = Config::new().capacity_events(500_000).install()?;
    {
        let _recording = tracer.record();
        application();
    }
    let saved = tracer.save_with(&SaveOptions::new().directory(DIRECTORY).binary_name("hermitrust"))?;
    println!("{} events of {} threads are in {}", saved.events, saved.threads, saved.path.display());
    Ok(())
}

#[inline(never)]
fn application() {
    say("hello");
    nap();
    threads();
    say("good bye");
}

#[inline(never)]
fn threads() {
    let workers: Vec<_> = (1..=2).map(|number| thread::spawn(move || worker(number))).collect();
    for worker in workers {
        worker.join().expect("a worker panicked");
    }
}

#[inline(never)]
fn worker(number: u64) {
    let sum = work(3 * number);
    nap();
    say(&format!("worker {number}: {sum}"));
}

/// Calls itself, `depth` levels deep.
#[inline(never)]
fn work(depth: u64) -> u64 {
    if depth == 0 { 0 } else { depth + black_box(work(depth - 1)) }
}

#[inline(never)]
fn nap() {
    let start = Instant::now();
    thread::sleep(NAP);
    let slept = start.elapsed();
    assert!(slept >= NAP, "slept for {slept:?} only");
}

#[inline(never)]
fn say(text: &str) {
    println!("{text}");
}
