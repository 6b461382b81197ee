//! A small kernel that traces itself with rftrace, for QEMU's machines, x86-64 and aarch64.
//!
//! It has what a kernel has that makes tracing hard: interrupts, tasks that are switched, a second core, a panic. What the
//! tracer needs of a kernel is in [`trace`], and thread-local storage in [`tasks`]; the rest is the kernel. README.md
//! tells how to run it, and how to do the same in another kernel.

#![no_std]
#![no_main]
#![cfg_attr(target_arch = "x86_64", feature(abi_x86_interrupt))]

extern crate rftrace as _; // the tracer: mcount

#[cfg_attr(target_arch = "x86_64", path = "arch/x86_64/mod.rs")]
#[cfg_attr(target_arch = "aarch64", path = "arch/aarch64/mod.rs")]
mod arch;
mod options;
mod serial;
mod serve;
mod smp;
mod tasks;
mod trace;
mod work;

use core::panic::PanicInfo;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicUsize};

use arch::clock::Rates;
use arch::{boot, clock, cores, interrupts};
use options::{Mode, Options};
use smp::{CORES, Core};

/// How QEMU is to end.
enum Exit {
    /// QEMU's status 33.
    Success,
    /// QEMU's status 35.
    Panic,
    /// QEMU's status 37.
    WrongResults,
}

/// Set when all is prepared and the tasks may run.
static MAY_START: AtomicBool = AtomicBool::new(false);

/// The first function of the first core, on the stack of boot.s.
#[unsafe(no_mangle)]
extern "C" fn kernel_main(info: boot::Info) -> ! {
    arch::serial::init();
    interrupts::init();
    let core = &CORES[0];
    core.init_this();

    let options = Options::parse(boot::command_line(info));
    let rates = clock::measure();
    arch::memory::init();
    trace::install(rates, options.is_streamed);
    if options.mode == Mode::Serve {
        serve();
    }
    let cores = &CORES[..options.n_cores];
    for (core, entries) in cores.iter().zip(work::choose(&options)) {
        tasks::create(core, entries);
    }
    if options.n_cores == 2 {
        smp::start_second(rates);
    }

    // The tasks' time begins here too: what is told of it is no shorter.
    let start = clock::ticks();
    if options.mode != Mode::Tree {
        tasks::set_timer(&options, rates, start);
    }
    trace::start();
    MAY_START.store(true, Release);
    run_tasks(core);
    while !cores.iter().all(|core| core.has_finished.load(Acquire)) {
        cores::relax();
    }
    trace::stop();
    let is_right = report(cores, clock::ticks() - start, rates);
    trace::send();
    arch::exit(if is_right { Exit::Success } else { Exit::WrongResults })
}

/// Answers what is asked by the console. No task or second core is needed.
fn serve() -> ! {
    println!("ready");
    trace::start();
    serve::serve();
    trace::stop();
    trace::send();
    arch::exit(Exit::Success)
}

/// The first function of the second core.
#[unsafe(no_mangle)]
extern "C" fn second_core_main() -> ! {
    let core = &CORES[1];
    core.init_this();
    core.has_started.store(true, Release);
    while !MAY_START.load(Acquire) {
        cores::relax();
    }
    run_tasks(core);
    interrupts::halt()
}

/// Runs the tasks of this core until they have ended. Everything from here on is traced.
#[inline(never)]
fn run_tasks(core: &'static Core) {
    trace::set_core(core.number);
    tasks::start_timer();
    tasks::run_all(core);
    interrupts::stop_timer();
    interrupts::disable();
    core.has_finished.store(true, Release);
}

/// Prints what the tasks have done. Returns whether all their results were right.
fn report(cores: &[Core], n_ticks: u64, rates: Rates) -> bool {
    let millis = n_ticks * 1000 / rates.counter_hz;
    let mut is_right = true;
    for core in cores {
        let n_interrupts = core.n_ticks.load(Relaxed);
        let hz = n_interrupts * 1000 / millis.max(1);
        println!("core {}: {n_interrupts} timer interrupts in {millis} ms, {hz} Hz", core.number);
        for (number, task) in core.tasks.iter().enumerate().skip(1) {
            let (n_rounds, n_wrong) = (task.n_rounds.load(Relaxed), task.n_wrong.load(Relaxed));
            println!("core {} task {number}: {n_rounds} rounds, {n_wrong} wrong", core.number);
            is_right &= n_rounds > 0 && n_wrong == 0;
        }
    }
    is_right
}

/// The trace is sent after a panic too. Functions that are open then end with it.
#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    /// The number of the core that panicked first, plus 1.
    static FIRST: AtomicUsize = AtomicUsize::new(0);

    trace::stop();
    interrupts::disable();
    let core = smp::this_core();
    match FIRST.compare_exchange(0, core.number + 1, AcqRel, Acquire) {
        Ok(_) => {}
        // Sending the trace has panicked.
        Err(first) if first == core.number + 1 => arch::exit(Exit::Panic),
        Err(_) => interrupts::halt(),
    }
    smp::stop_other(core);
    serial::force_free();
    println!("{info}");
    trace::send();
    arch::exit(Exit::Panic)
}
