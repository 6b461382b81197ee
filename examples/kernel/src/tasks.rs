//! Tasks: their stacks, their thread-local storage, and the switch between them.
//!
//! Each core has two tasks and the idle one, as which it came here. They stay on their core.
//!
//! The tracer keeps what it knows of a task in thread-local storage, as the compiler and linker lay it out (the ELF TLS ABI, see
//! `arch::tls`): a copy of the program's TLS template at a certain distance from the thread pointer, a register. So every task has such a
//! copy, and the thread pointer is switched with the stack. That is all a kernel has to do for the tracer, and it must be so before a
//! task's first function runs while recording is on.

use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use crate::arch::clock::{self, Rates};
use crate::arch::interrupts::{self, Frame};
use crate::arch::tls;
use crate::options::{Options, Timer};
use crate::smp::{self, Core, Exclusive};
use crate::trace;
use crate::work;

/// Tasks of a core. The first is the idle one.
pub const N_TASKS: usize = 3;
const IDLE: usize = 0;

/// The timer of each core: whether its handler is a [`Timer::Iret`], and ticks of its clock between interrupts; 0 for no timer.
static IS_IRET_TIMER: AtomicBool = AtomicBool::new(false);
static TIMER_PERIOD: AtomicU32 = AtomicU32::new(0);
/// When the tasks' work is to end, by the processor's counter.
static END: AtomicU64 = AtomicU64::new(0);

const STACK_BYTES: usize = 64 * 1024;
/// Room for the TLS template, which is little more than the tracer's block of 33 KiB.
const TLS_BYTES: usize = 40 * 1024;

#[repr(C, align(64))]
struct Stack([u8; STACK_BYTES]);

#[repr(C, align(64))]
struct Tls([u8; TLS_BYTES]);

/// A task, for good: there are as many as there are places.
#[repr(C, align(64))]
pub struct Task {
    stack: Exclusive<Stack>,
    tls: Exclusive<Tls>,
    /// Its registers while it does not run. Used only by its core, in handlers with interrupts off.
    frame: UnsafeCell<Frame>,
    /// The value of the thread pointer while it runs.
    thread_pointer: AtomicU64,
    is_ready: AtomicBool,
    n_system_calls: AtomicU64,
    /// Its rounds, and how many of them had a wrong result.
    pub n_rounds: AtomicU64,
    pub n_wrong: AtomicU64,
}

// SAFETY: see `frame`; all other fields are atomics, or only their addresses are used.
unsafe impl Sync for Task {}

unsafe extern "C" {
    // Made by the linker script.
    static tls_template: u8;
    static tls_template_end: u8;
    static tls_bytes: u8;
}

impl Task {
    pub const fn new() -> Self {
        Self {
            stack: Exclusive::new(Stack([0; STACK_BYTES])),
            tls: Exclusive::new(Tls([0; TLS_BYTES])),
            frame: UnsafeCell::new(Frame::NONE),
            thread_pointer: AtomicU64::new(0),
            is_ready: AtomicBool::new(false),
            n_system_calls: AtomicU64::new(0),
            n_rounds: AtomicU64::new(0),
            n_wrong: AtomicU64::new(0),
        }
    }

    /// The upper end of its stack.
    pub fn stack_end(&self) -> u64 {
        self.stack.get() as u64 + STACK_BYTES as u64
    }

    /// Makes its thread-local storage, which no task uses yet.
    fn make_tls(&self) {
        let template = &raw const tls_template;
        let initialised = &raw const tls_template_end as usize - template as usize;
        let bytes = &raw const tls_bytes as usize;
        let room = ptr::slice_from_raw_parts_mut(self.tls.get().cast::<u8>(), TLS_BYTES);
        // SAFETY: the linker script says where the template is; this task's room is zero from the start.
        let thread_pointer = unsafe { tls::lay_out(room, align_of::<Tls>(), template, initialised, bytes) };
        self.thread_pointer.store(thread_pointer, Relaxed);
    }

    /// Has it run `entry` when it is its turn.
    fn start(&self, entry: extern "C" fn()) {
        self.make_tls();
        // SAFETY: the task does not run yet.
        unsafe { self.frame.get().write(Frame::of_new_task(entry, self.stack_end())) };
        self.is_ready.store(true, Release);
    }
}

/// Has the trace tell on which core the task runs.
pub extern "C" fn tell_core() {
    trace::set_core(smp::this_core().number);
}

/// The task has ended: another one goes on.
pub extern "C" fn end() -> ! {
    trace::end_task();
    current().is_ready.store(false, Release);
    loop {
        interrupts::yield_core();
    }
}

/// The task that runs.
#[inline(always)]
pub fn current() -> &'static Task {
    let core = smp::this_core();
    &core.tasks[core.current.load(Relaxed)]
}

/// Prepares a core's tasks.
pub fn create(core: &'static Core, entries: [extern "C" fn(); N_TASKS - 1]) {
    for (task, entry) in core.tasks[IDLE + 1..].iter().zip(entries) {
        task.start(entry);
    }
}

/// Makes what runs on this core its idle task.
pub fn become_idle_task(core: &'static Core) {
    core.tasks[IDLE].make_tls();
    let pointer = core.tasks[IDLE].thread_pointer.load(Relaxed);
    // SAFETY: the idle task's thread-local storage.
    unsafe { tls::set_thread_pointer(pointer) };
}

/// Runs this core's tasks until all have ended.
#[inline(never)]
pub fn run_all(core: &'static Core) {
    while core.tasks[IDLE + 1..].iter().any(|task| task.is_ready.load(Acquire)) {
        interrupts::yield_core();
    }
}

/// Switches from the interrupted task, whose registers are `frame`, to the next one. Returns its thread pointer, which the
/// stub sets: until then what is traced belongs to the interrupted task.
#[inline(never)]
pub fn switch(frame: &mut Frame) -> u64 {
    let core = smp::this_core();
    let current = core.current.load(Relaxed);
    let next = next_task(core, current);
    if next != current {
        // SAFETY: interrupts are off, and this is the core of both tasks.
        unsafe {
            core.tasks[current].frame.get().write(*frame);
            *frame = core.tasks[next].frame.get().read();
        }
        core.current.store(next, Relaxed);
    }
    core.tasks[next].thread_pointer.load(Relaxed)
}

/// The next task in turn that is ready; the idle one if there is none.
fn next_task(core: &Core, current: usize) -> usize {
    let mut task = current;
    for _ in 0..N_TASKS {
        task = (task + 1) % N_TASKS;
        if task != IDLE && core.tasks[task].is_ready.load(Relaxed) {
            return task;
        }
    }
    IDLE
}

/// Prepares the timers of all cores. The tasks' work ends so many seconds from `start`.
pub fn set_timer(options: &Options, rates: Rates, start: u64) {
    IS_IRET_TIMER.store(options.timer == Timer::Iret, Relaxed);
    TIMER_PERIOD.store((rates.timer_hz / u64::from(options.timer_hz)) as u32, Relaxed);
    END.store(start + rates.counter_hz * u64::from(options.seconds), Relaxed);
}

/// Starts this core's timer, if there is to be one.
pub fn start_timer() {
    let period = TIMER_PERIOD.load(Relaxed);
    if period != 0 {
        let handler = if IS_IRET_TIMER.load(Relaxed) { Timer::Iret } else { Timer::Stub };
        interrupts::start_timer(handler, period);
    }
}

/// Counts an interrupt of the timer.
#[inline(never)]
pub fn tick() {
    smp::this_core().n_ticks.fetch_add(1, Relaxed);
    if clock::ticks() >= END.load(Relaxed) {
        work::end();
    }
}

/// The work of the system call.
#[inline(never)]
pub fn count_system_call() {
    current().n_system_calls.fetch_add(1, Relaxed);
}

/// System calls of the task that runs.
#[inline(always)]
pub fn n_system_calls() -> u64 {
    current().n_system_calls.load(Relaxed)
}
