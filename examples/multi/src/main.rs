//! The host's side: starts a guest, asks it things, and traces itself.
//!
//!     rftrace-example-multi TRACE OFFSET -- QEMU ARGUMENTS…
//!
//! The guest is the example kernel with `mode=serve`: it answers each `?` by a line with its time stamp counter. As the answer
//! is made after the question and before it arrives, each one bounds how far the guest's counter is from the host's. The middle
//! of what all answers allow goes to the file OFFSET, the trace to the directory TRACE.
//!
//! Where the guest runs under KVM, KVM's events tell the offset exactly; TCG has none.

extern crate rftrace as _; // links the tracer
use rftrace_frontend as rftrace;

use std::arch::x86_64::_rdtsc;
use std::env;
use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::ops::RangeInclusive;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

/// How often the guest is asked.
const QUESTIONS: usize = 20;
/// QEMU's status when the kernel says that all was well.
const SUCCESS: i32 = 33;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [trace, offset_file, separator, program, rest @ ..] = arguments.as_slice() else {
        return Err("usage: rftrace-example-multi TRACE OFFSET -- QEMU ARGUMENTS…".into());
    };
    if separator != "--" {
        return Err(format!("`--` was expected instead of {separator}").into());
    }
    let events = rftrace::init(1_000_000, false);
    rftrace::enable();
    let offsets = converse(program, rest);
    rftrace::disable();
    let offsets = offsets?;
    rftrace::dump_full_uftrace(events, trace, "rftrace-example-multi")?;
    let (least, greatest) = offsets.into_inner();
    if least > greatest {
        return Err(format!("the guest's counter does not run as the host's does: {least} > {greatest}").into());
    }
    let middle = least + (greatest - least) / 2;
    fs::write(offset_file, format!("{middle}\n"))?;
    eprintln!("guest's ticks = host's ticks + {middle}, right to {} ticks", (greatest - least) / 2 + 1);
    Ok(())
}

/// The other side of the guest's serial port.
struct Guest {
    qemu: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// Starts the guest, asks it and ends it. Returns which offsets are possible.
#[inline(never)]
fn converse(program: &str, arguments: &[String]) -> Result<RangeInclusive<i64>> {
    let mut guest = start(program, arguments)?;
    let (mut least, mut greatest) = (i64::MIN, i64::MAX);
    for _ in 0..QUESTIONS {
        let range = ask(&mut guest)?;
        least = least.max(*range.start());
        greatest = greatest.min(*range.end());
        rest();
    }
    end(guest)?;
    Ok(least..=greatest)
}

#[inline(never)]
fn start(program: &str, arguments: &[String]) -> Result<Guest> {
    let mut qemu = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{program}: {error}"))?;
    let (Some(questions), Some(answers)) = (qemu.stdin.take(), qemu.stdout.take()) else {
        return Err("no pipes".into());
    };
    let mut guest = Guest { qemu, questions, answers: BufReader::new(answers) };
    while read_line(&mut guest)? != "ready" {}
    Ok(guest)
}

/// One question: the guest's counter minus the host's, at least and at most.
#[inline(never)]
fn ask(guest: &mut Guest) -> Result<RangeInclusive<i64>> {
    let before = ticks();
    guest.questions.write_all(b"?")?;
    guest.questions.flush()?;
    let line = read_line(guest)?;
    let after = ticks();
    let answer: i64 = line.parse().map_err(|_| format!("the guest has answered: {line}"))?;
    Ok(answer - after..=answer - before)
}

#[inline(never)]
fn read_line(guest: &mut Guest) -> Result<String> {
    let mut line = String::new();
    if guest.answers.read_line(&mut line)? == 0 {
        return Err(format!("the guest has ended: {}", guest.qemu.wait()?).into());
    }
    Ok(line.trim().to_owned())
}

/// A host's pause between two questions.
#[inline(never)]
fn rest() {
    thread::sleep(Duration::from_millis(1));
}

#[inline(never)]
fn end(mut guest: Guest) -> Result<()> {
    guest.questions.write_all(b"q")?;
    guest.questions.flush()?;
    let status = guest.qemu.wait()?;
    if status.code() == Some(SUCCESS) { Ok(()) } else { Err(format!("the guest: {status}").into()) }
}

#[inline(always)]
fn ticks() -> i64 {
    // SAFETY: every 64-bit x86 processor has it.
    unsafe { _rdtsc() }.cast_signed()
}
