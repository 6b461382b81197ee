//! Tasks: their stacks, their thread-local storage, and the switch between them.
//!
//! Each core has two tasks and the idle one, as which it came here. They stay on their core.
//!
//! The tracer keeps what it knows of a task in thread-local storage, as the compiler and linker lay it out (the ELF TLS
//! ABI, variant II): a copy of the program's TLS template directly below the address in FS base, and at that address the
//! address itself. So every task has such a copy, and FS base is switched with the stack. That is all a kernel has to do
//! for the tracer, and it must be so before a task's first function runs while recording is on.

use core::arch::{asm, naked_asm};
use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};

use crate::apic;
use crate::clock::{self, Rates};
use crate::interrupts;
use crate::options::{Options, Timer};
use crate::smp::{self, Core, Exclusive};
use crate::trace;
use crate::work;

/// The model-specific register with FS base.
pub const FS_BASE: u32 = 0xc000_0100;

/// Tasks of a core. The first is the idle one.
pub const N_TASKS: usize = 3;
const IDLE: usize = 0;

/// The timer of each core: its vector, and ticks of its clock between interrupts; 0 for no timer.
static TIMER_VECTOR: AtomicU8 = AtomicU8::new(0);
static TIMER_PERIOD: AtomicU32 = AtomicU32::new(0);
/// When the tasks' work is to end, by the time stamp counter.
static END: AtomicU64 = AtomicU64::new(0);

const STACK_BYTES: usize = 64 * 1024;
/// Room for the TLS template, which is little more than the tracer's block of 33 KiB.
const TLS_BYTES: usize = 40 * 1024;

/// The registers of a task that does not run, as the stubs of interrupts.rs push them.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Frame {
    r15_to_rax: [u64; 15],
    ip: u64,
    cs: u64,
    flags: u64,
    sp: u64,
    ss: u64,
}

impl Frame {
    /// In the flags: interrupts may come.
    pub const INTERRUPTS: u64 = 1 << 9;
    const RBX: usize = 13;
    const NONE: Self = Self { r15_to_rax: [0; 15], ip: 0, cs: 0, flags: 0, sp: 0, ss: 0 };
}

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
    /// The value of FS base while it runs.
    thread_pointer: AtomicU64,
    is_ready: AtomicBool,
    n_system_calls: AtomicU64,
    /// What it has done.
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
        // The template and the address above it have the same alignment.
        let bytes = (&raw const tls_bytes as usize).next_multiple_of(align_of::<Tls>());
        assert!(
            bytes + size_of::<u64>() <= TLS_BYTES,
            "the TLS template has {bytes} bytes: raise TLS_BYTES in tasks.rs"
        );
        let start = self.tls.get().cast::<u8>();
        let thread_pointer = start.wrapping_add(bytes).cast::<u64>();
        // SAFETY: both lie within this task's room, which is zero from the start, aligned, and not used yet.
        unsafe {
            ptr::copy_nonoverlapping(template, start, initialised);
            thread_pointer.write(thread_pointer as u64);
        }
        #[cfg(feature = "threadhook")]
        self.make_area(thread_pointer);
        self.thread_pointer.store(thread_pointer as u64, Relaxed);
    }

    /// Makes the tracer's area of this task, behind the thread pointer; the word after that leads to it.
    #[cfg(feature = "threadhook")]
    fn make_area(&self, thread_pointer: *mut u64) {
        use rftrace::abi::ThreadArea;

        let leads_there = thread_pointer.wrapping_add(1);
        let area = (leads_there.wrapping_add(1) as u64).next_multiple_of(align_of::<ThreadArea>() as u64);
        let end = self.tls.get() as u64 + TLS_BYTES as u64;
        assert!(
            area + size_of::<ThreadArea>() as u64 <= end,
            "the tracer's area does not fit: raise TLS_BYTES in tasks.rs"
        );
        // SAFETY: within this task's room, which is zero from the start and not used yet.
        unsafe { leads_there.write(area) };
    }

    /// Has it run `entry` when it is its turn.
    fn start(&self, entry: extern "C" fn()) {
        self.make_tls();
        let (cs, ss) = interrupts::SELECTORS;
        let ip = begin as *const () as u64;
        let mut frame = Frame { ip, cs, ss, flags: Frame::INTERRUPTS | 2, sp: self.stack_end(), ..Frame::NONE };
        frame.r15_to_rax[Frame::RBX] = entry as *const () as u64;
        // SAFETY: the task does not run yet.
        unsafe { self.frame.get().write(frame) };
        self.is_ready.store(true, Release);
    }
}

// What the tracer calls with the feature `threadhook`, see docs/kernels.md.
#[cfg(feature = "threadhook")]
core::arch::global_asm!(".globl rftrace_thread_area", "rftrace_thread_area:", "mov r11, fs:[8]", "ret");

/// Where a task begins: calls its first function, which is in rbx. Not traced, as it does not return.
#[unsafe(naked)]
unsafe extern "C" fn begin() {
    naked_asm!("call {tell_core}", "call rbx", "call {end}", "ud2", tell_core = sym tell_core, end = sym end)
}

/// Has the trace tell on which core the task runs.
extern "C" fn tell_core() {
    trace::set_core(smp::this_core().number);
}

/// The task has ended: another one goes on.
extern "C" fn end() -> ! {
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
    unsafe {
        asm!(
            "wrmsr",
            in("ecx") FS_BASE,
            in("eax") pointer as u32,
            in("edx") (pointer >> 32) as u32,
            options(nostack, preserves_flags),
        );
    }
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

/// Prepares the timers of all cores. The tasks' work ends so many seconds from now.
pub fn set_timer(options: &Options, rates: Rates) {
    let vector = match options.timer {
        Timer::Stub => interrupts::TIMER_VECTOR,
        Timer::Iret => interrupts::IRET_TIMER_VECTOR,
    };
    TIMER_VECTOR.store(vector, Relaxed);
    TIMER_PERIOD.store((rates.apic_hz / u64::from(options.timer_hz)) as u32, Relaxed);
    END.store(clock::ticks() + rates.tsc_hz * u64::from(options.seconds), Relaxed);
}

/// Starts this core's timer, if there is to be one.
pub fn start_timer() {
    let period = TIMER_PERIOD.load(Relaxed);
    if period != 0 {
        apic::start_timer(TIMER_VECTOR.load(Relaxed), period);
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

/// What the system call does.
#[inline(never)]
pub fn count_system_call() {
    current().n_system_calls.fetch_add(1, Relaxed);
}

/// System calls of the task that runs.
#[inline(always)]
pub fn n_system_calls() -> u64 {
    current().n_system_calls.load(Relaxed)
}
