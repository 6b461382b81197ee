//! A program that traces itself: three nested functions, then threads.
//!
//! Built with `-Z instrument-mcount` (see `.cargo/config.toml`), it writes the trace to `trace/`.

extern crate rftrace as _; // links the tracer
use rftrace_frontend as rftrace;

use std::thread;

fn main() {
    println!("Hello from main");
    let events = rftrace::init(100_000, false);
    rftrace::enable();
    test1();
    threads();
    rftrace::disable();
    rftrace::dump_full_uftrace(events, "trace", "rftrace-example-rust").expect("saving the trace failed");
}

#[inline(never)]
fn test1() {
    test2();
}

#[inline(never)]
fn test2() {
    test3();
}

#[inline(never)]
fn test3() {
    println!("Hello from test3");
}

#[inline(never)]
fn threads() {
    let children: Vec<_> = (0..2).map(|number| thread::spawn(move || child(number))).collect();
    for child in children {
        child.join().expect("a child panicked");
    }
}

#[inline(never)]
fn child(number: u32) {
    println!("Hello from thread number {number}");
}
