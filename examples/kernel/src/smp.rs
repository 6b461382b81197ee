//! Cores: what each has for itself, and the start of the second one.

use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};

use crate::arch::clock::{self, Rates};
use crate::arch::cores;
use crate::arch::interrupts::{InterruptStacks, Tables};
use crate::tasks::{self, N_TASKS, Task};

pub const N_CORES: usize = 2;

/// A core's own data. A register of the core points to it.
#[repr(C)]
pub struct Core {
    /// Its own address.
    this: AtomicPtr<Core>,
    pub number: usize,
    /// The number of the task that runs.
    pub current: AtomicUsize,
    pub n_ticks: AtomicU64,
    pub has_started: AtomicBool,
    pub has_finished: AtomicBool,
    tables: Tables,
    pub tasks: [Task; N_TASKS],
    interrupt_stacks: Exclusive<InterruptStacks>,
}

/// Memory of which Rust code only knows the address: what uses it is the processor, or a task.
#[repr(transparent)]
pub struct Exclusive<T>(UnsafeCell<T>);

// SAFETY: see above; whoever uses the memory by its address says why that is sound.
unsafe impl<T> Sync for Exclusive<T> {}

impl<T> Exclusive<T> {
    pub const fn new(content: T) -> Self {
        Self(UnsafeCell::new(content))
    }

    #[inline(always)]
    pub fn get(&self) -> *mut T {
        self.0.get()
    }
}

pub static CORES: [Core; N_CORES] = [Core::new(0), Core::new(1)];

impl Core {
    const fn new(number: usize) -> Self {
        Self {
            this: AtomicPtr::new(ptr::null_mut()),
            number,
            current: AtomicUsize::new(0),
            n_ticks: AtomicU64::new(0),
            has_started: AtomicBool::new(false),
            has_finished: AtomicBool::new(false),
            tables: Tables::new(),
            tasks: [const { Task::new() }; N_TASKS],
            interrupt_stacks: Exclusive::new(InterruptStacks::new()),
        }
    }

    /// Makes the core that runs this one, and its code the idle task.
    pub fn init_this(&'static self) {
        self.this.store(ptr::from_ref(self).cast_mut(), Relaxed);
        cores::set_this(self);
        self.tables.load(&self.interrupt_stacks);
        tasks::become_idle_task(self);
    }
}

/// The core that runs this. Its tasks stay there.
#[inline(always)]
pub fn this_core() -> &'static Core {
    cores::this()
}

/// Starts the second core, which goes to `second_core_main` in main.rs.
///
/// # Panics
///
/// When it does not come.
pub fn start_second(rates: Rates) {
    let core = &CORES[1];
    cores::start(core.number, core.tasks[0].stack_end(), rates);
    let end = clock::ticks() + 5 * rates.counter_hz;
    while !core.has_started.load(Acquire) {
        assert!(clock::ticks() < end, "the second core does not start: {}", cores::SECOND_CORE_REMEDY);
        cores::relax();
    }
}

/// Stops the other core for ever, if it runs.
pub fn stop_other(core: &Core) {
    let other = &CORES[1 - core.number];
    if other.has_started.load(Acquire) {
        cores::stop(other.number);
    }
}
