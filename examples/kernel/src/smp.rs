//! Cores: what each has for itself, and the start of the second one.

use core::arch::asm;
use core::cell::UnsafeCell;
use core::hint::spin_loop;
use core::ptr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};

use crate::apic;
use crate::clock::{self, Rates};
use crate::interrupts::{InterruptStacks, Tables};
use crate::tasks::{self, N_TASKS, Task};

pub const N_CORES: usize = 2;

/// What a core has for itself. GS base of the core points to it.
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

    /// Makes the core that runs this one, and what it runs the idle task.
    pub fn init_this(&'static self) {
        const GS_BASE: u32 = 0xc000_0101;
        let pointer = ptr::from_ref(self);
        self.this.store(pointer.cast_mut(), Relaxed);
        // SAFETY: nothing but `this_core` uses GS.
        unsafe {
            asm!(
                "wrmsr",
                in("ecx") GS_BASE,
                in("eax") pointer as u32,
                in("edx") (pointer as u64 >> 32) as u32,
                options(nostack, preserves_flags),
            );
        }
        self.tables.load(&self.interrupt_stacks);
        tasks::become_idle_task(self);
    }
}

/// The core that runs this. What runs on it stays there.
#[inline(always)]
pub fn this_core() -> &'static Core {
    let core: *const Core;
    // SAFETY: `init_this` has stored the address of a static where GS base points to.
    unsafe {
        asm!("mov {}, gs:[0]", out(reg) core, options(nostack, preserves_flags, readonly));
        &*core
    }
}

/// Where boot.s finds the stack of the second core.
#[unsafe(no_mangle)]
static SECOND_CORE_STACK: AtomicU64 = AtomicU64::new(0);

/// A page below 1 MiB for the first code of the second core; boot.s knows it too.
const TRAMPOLINE: usize = 0x8000;

unsafe extern "C" {
    static core_trampoline: u8;
    static core_trampoline_end: u8;
}

/// Starts the second core, which goes to `second_core_main` in main.rs.
///
/// # Panics
///
/// When it does not come.
pub fn start_second(rates: Rates) {
    let core = &CORES[1];
    SECOND_CORE_STACK.store(core.tasks[0].stack_end(), Release);
    let code = &raw const core_trampoline;
    let bytes = &raw const core_trampoline_end as usize - code as usize;
    // SAFETY: nothing else uses this page, and it is mapped.
    unsafe { ptr::copy_nonoverlapping(code, TRAMPOLINE as *mut u8, bytes) };
    // As the Intel SDM has it, volume 3, 9.4.4: the second message is for processors that have missed the first.
    apic::send_init(core.number);
    clock::wait_micros(rates, 10_000);
    apic::send_start(core.number, TRAMPOLINE);
    clock::wait_micros(rates, 200);
    if !core.has_started.load(Acquire) {
        apic::send_start(core.number, TRAMPOLINE);
    }
    let end = clock::ticks() + 5 * rates.tsc_hz;
    while !core.has_started.load(Acquire) {
        assert!(
            clock::ticks() < end,
            "the second core does not start: run qemu-system-x86_64 with -smp 2, or use cores=1"
        );
        spin_loop();
    }
}

/// Stops the other core for ever, if it runs.
pub fn stop_other(core: &Core) {
    let other = &CORES[1 - core.number];
    if other.has_started.load(Acquire) {
        apic::send_nmi(other.number);
    }
}
