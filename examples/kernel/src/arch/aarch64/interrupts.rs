//! The table of vectors, and the handlers of interrupts.
//!
//! A handler is a function that an assembly stub calls, and which is traced into the trace of the task that it has interrupted. There are
//! two kinds of stubs, as kernels have them:
//!
//! - That of the timer saves all registers on the stack of the core's handlers (SP_EL1), far from the tasks' stacks, and its handler may
//!   exchange them for another task's.
//! - That of page faults and system calls stays on the interrupted stack (SP_EL0). Further interrupts may come in, and other tasks run.

use core::arch::{asm, global_asm, naked_asm};
use core::mem::offset_of;

use super::{clock, gic, memory, semihosting};
use crate::options::Timer;
use crate::println;
use crate::smp;
use crate::tasks;

/// Numbers of calls by `svc`.
const SYSTEM_CALL: u32 = 0;
const YIELD: u32 = 1;
const RAISE_TIMER: u32 = 2;

/// The registers of a task that is interrupted, or does not run, as the stubs save them.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Frame {
    x0_to_x30: [u64; 31],
    sp: u64,
    ip: u64,
    state: u64,
}

impl Frame {
    /// EL1 with SP_EL0, all interrupts let in.
    const TASK_STATE: u64 = 0b0100;
    /// In the state: interrupts are kept out.
    const NO_INTERRUPTS: u64 = 1 << 7;
    pub const NONE: Self = Self { x0_to_x30: [0; 31], sp: 0, ip: 0, state: 0 };

    /// That of a task which begins: it calls `entry` on the stack that ends at `stack_end`.
    pub fn of_new_task(entry: extern "C" fn(), stack_end: u64) -> Self {
        let mut frame = Self { sp: stack_end, ip: begin as *const () as u64, state: Self::TASK_STATE, ..Self::NONE };
        frame.x0_to_x30[19] = entry as *const () as u64;
        frame
    }
}

/// Where a task begins: calls its first function, which is in x19. Not traced, as it does not return.
#[unsafe(naked)]
unsafe extern "C" fn begin() {
    naked_asm!(
        "bl {tell_core}", "blr x19", "bl {end}", "brk #0",
        tell_core = sym tasks::tell_core,
        end = sym tasks::end,
    )
}

/// Tables for a core's processor: nothing but the table of vectors, which all cores share.
pub struct Tables;

/// The tracer takes calls that are at most 16 KiB apart to be on one stack, and this one is far from all others.
#[repr(C, align(16))]
pub struct InterruptStacks {
    _distance: [u8; 32 * 1024],
    handlers: [u8; 32 * 1024],
    _distance_above: [u8; 32 * 1024],
}

impl InterruptStacks {
    pub const fn new() -> Self {
        let none = [0; 32 * 1024];
        Self { _distance: none, handlers: none, _distance_above: none }
    }
}

unsafe extern "C" {
    static vectors: u8;
}

impl Tables {
    pub const fn new() -> Self {
        Self
    }

    /// Sets the vectors of this core, and the stack of its handlers. `stacks` must not be another core's.
    pub fn load(&'static self, stacks: &'static smp::Exclusive<InterruptStacks>) {
        // SAFETY: computes an address within the structure.
        let end = unsafe { (&raw const (*stacks.get()).handlers).add(1) };
        // SAFETY: the vectors live as long as the kernel. No handler runs, so nothing is on the other stack.
        unsafe {
            asm!(
                "msr vbar_el1, {vectors}",
                "isb",
                "mov {before}, sp",
                "msr spsel, #1",
                "mov sp, {end}",
                "msr spsel, #0",
                "mov sp, {before}",
                vectors = in(reg) &raw const vectors,
                end = in(reg) end,
                before = out(reg) _,
                options(nostack, preserves_flags),
            );
        }
        gic::init();
    }
}

/// Nothing is to be prepared once for all cores.
pub fn init() {}

/// Lets interrupts in.
#[inline(always)]
pub fn enable() {
    // SAFETY: the vectors are in place.
    unsafe { asm!("msr daifclr, #2", options(nostack, preserves_flags)) }
}

/// Keeps interrupts out.
#[inline(always)]
pub fn disable() {
    // SAFETY: whoever waits for an interrupt lets them in again.
    unsafe { asm!("msr daifset, #2", options(nostack, preserves_flags)) }
}

/// Nothing more is done on this core.
pub fn halt() -> ! {
    disable();
    loop {
        // SAFETY: waits.
        unsafe { asm!("wfi", options(nomem, nostack, preserves_flags)) }
    }
}

/// Runs `work` while interrupts are off on this core.
#[inline(always)]
pub fn without<T>(work: impl FnOnce() -> T) -> T {
    let mask: u64;
    // SAFETY: reads the mask.
    unsafe { asm!("mrs {}, daif", out(reg) mask, options(nostack, preserves_flags)) };
    disable();
    let result = work();
    if mask & Frame::NO_INTERRUPTS == 0 {
        enable();
    }
    result
}

/// Gives the core to the next task, as the timer does.
#[inline(always)]
pub fn yield_core() {
    // SAFETY: the stub keeps all registers. The compiler must read again any memory that other tasks change in the meantime.
    unsafe { asm!("svc #{}", const YIELD) }
}

/// Runs the timer's handler at a certain place.
#[inline(always)]
pub fn raise_timer() {
    // SAFETY: as in `yield_core`.
    unsafe { asm!("svc #{}", const RAISE_TIMER) }
}

/// Calls the kernel as a program would.
#[inline(always)]
pub fn call_system() {
    // SAFETY: as in `yield_core`.
    unsafe { asm!("svc #{}", const SYSTEM_CALL) }
}

/// Has the timer interrupt this core again and again, every `n_ticks` of its clock.
pub fn start_timer(_handler: Timer, n_ticks: u32) {
    clock::start_timer(n_ticks.into());
}

/// Stops the timer of this core.
pub fn stop_timer() {
    clock::stop_timer();
}

/// The stub of a handler `fn(&mut Frame) -> u64`, on the stack of the core's handlers: saves the interrupted task's registers as a
/// [`Frame`], which the handler may exchange, and goes on with the thread pointer that it returns. `$before` and `$after` may use x19 to
/// x28.
macro_rules! stub {
    ($(#[$doc:meta])* $name:ident, $handler:path, [$($before:literal),*], [$($after:literal),*] $(, $operand:ident = $value:expr)*) => {
        $(#[$doc])*
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                "sub sp, sp, #{frame_bytes}",
                "stp x0, x1, [sp]", "stp x2, x3, [sp, #16]", "stp x4, x5, [sp, #32]", "stp x6, x7, [sp, #48]",
                "stp x8, x9, [sp, #64]", "stp x10, x11, [sp, #80]", "stp x12, x13, [sp, #96]", "stp x14, x15, [sp, #112]",
                "stp x16, x17, [sp, #128]", "stp x18, x19, [sp, #144]", "stp x20, x21, [sp, #160]", "stp x22, x23, [sp, #176]",
                "stp x24, x25, [sp, #192]", "stp x26, x27, [sp, #208]", "stp x28, x29, [sp, #224]",
                "mrs x0, sp_el0",
                "stp x30, x0, [sp, #240]",
                "mrs x0, elr_el1",
                "mrs x1, spsr_el1",
                "stp x0, x1, [sp, #{ip}]",
                $($before,)*
                "mov x0, sp",
                "bl {handler}",
                // The thread pointer is that of the next task before its registers are.
                "msr tpidr_el0, x0",
                $($after,)*
                "7:",
                "ldp x0, x1, [sp, #{ip}]",
                "msr elr_el1, x0",
                "msr spsr_el1, x1",
                "ldp x30, x0, [sp, #240]",
                "msr sp_el0, x0",
                "ldp x28, x29, [sp, #224]", "ldp x26, x27, [sp, #208]", "ldp x24, x25, [sp, #192]",
                "ldp x22, x23, [sp, #176]", "ldp x20, x21, [sp, #160]", "ldp x18, x19, [sp, #144]", "ldp x16, x17, [sp, #128]",
                "ldp x14, x15, [sp, #112]", "ldp x12, x13, [sp, #96]", "ldp x10, x11, [sp, #80]", "ldp x8, x9, [sp, #64]",
                "ldp x6, x7, [sp, #48]", "ldp x4, x5, [sp, #32]", "ldp x2, x3, [sp, #16]", "ldp x0, x1, [sp]",
                "add sp, sp, #{frame_bytes}",
                "eret",
                handler = sym $handler,
                frame_bytes = const size_of::<Frame>(),
                ip = const offset_of!(Frame, ip),
                $($operand = const $value,)*
            )
        }
    };
}

stub!(
    /// Entered by an interrupt: the timer's, or the message to stop.
    interrupt_stub,
    timer,
    [
        "mov x19, #{controller}",
        "ldr w20, [x19, #{acknowledge}]",
        "and w21, w20, #1023",
        "cmp w21, #{timer_number}",
        "b.eq 3f",
        "cmp w21, #{stop}",
        "b.ne 7f", // The controller found no interrupt after all.
        "2:",
        "wfi",
        "b 2b",
        "3:"
    ],
    ["str w20, [x19, #{end_of_interrupt}]"],
    controller = gic::CORE_INTERFACE,
    acknowledge = gic::ACKNOWLEDGE,
    end_of_interrupt = gic::END_OF_INTERRUPT,
    timer_number = gic::TIMER,
    stop = gic::STOP
);
stub!(
    /// Entered by [`raise_timer`].
    raised_timer_stub,
    timer,
    [],
    []
);
stub!(
    /// Entered by [`yield_core`].
    yield_stub,
    yielded,
    [],
    []
);

/// The stub of a handler `fn(address, ip, state)` of page faults or system calls, on the interrupted stack. Registers that functions keep
/// need not be saved.
macro_rules! stub_on_same_stack {
    ($(#[$doc:meta])* $name:ident, $handler:path) => {
        $(#[$doc])*
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                "msr spsel, #0",
                "sub sp, sp, #192",
                "stp x0, x1, [sp]", "stp x2, x3, [sp, #16]", "stp x4, x5, [sp, #32]", "stp x6, x7, [sp, #48]",
                "stp x8, x9, [sp, #64]", "stp x10, x11, [sp, #80]", "stp x12, x13, [sp, #96]", "stp x14, x15, [sp, #112]",
                "stp x16, x17, [sp, #128]", "stp x18, x29, [sp, #144]",
                "mrs x0, far_el1",
                "mrs x1, elr_el1",
                "mrs x2, spsr_el1",
                "stp x30, x1, [sp, #160]",
                "str x2, [sp, #176]",
                "bl {handler}",
                // From here to `eret` an interrupt would change what is restored.
                "msr daifset, #2",
                "ldr x2, [sp, #176]",
                "ldp x30, x1, [sp, #160]",
                "msr elr_el1, x1",
                "msr spsr_el1, x2",
                "ldp x18, x29, [sp, #144]", "ldp x16, x17, [sp, #128]",
                "ldp x14, x15, [sp, #112]", "ldp x12, x13, [sp, #96]", "ldp x10, x11, [sp, #80]", "ldp x8, x9, [sp, #64]",
                "ldp x6, x7, [sp, #48]", "ldp x4, x5, [sp, #32]", "ldp x2, x3, [sp, #16]", "ldp x0, x1, [sp]",
                "add sp, sp, #192",
                "eret",
                handler = sym $handler,
            )
        }
    };
}

stub_on_same_stack!(
    /// Entered by [`call_system`].
    system_call_stub,
    system_call
);
stub_on_same_stack!(
    /// Entered by an access to memory that is not mapped.
    page_fault_stub,
    page_fault
);

/// The timer's handler: counts, and switches to the next task.
extern "C" fn timer(frame: &mut Frame) -> u64 {
    clock::restart_timer();
    tasks::tick();
    tasks::switch(frame)
}

/// The handler of [`yield_core`].
extern "C" fn yielded(frame: &mut Frame) -> u64 {
    tasks::switch(frame)
}

/// Lets interrupts into a handler whose interrupted code let them in.
#[inline(always)]
fn enable_as_in(state: u64) {
    if state & Frame::NO_INTERRUPTS == 0 {
        enable();
    }
}

/// The handler of [`call_system`]. Further interrupts may come in.
extern "C" fn system_call(_address: usize, _ip: u64, state: u64) {
    enable_as_in(state);
    tasks::count_system_call();
}

/// Maps the page that was touched; the instruction then is tried again.
extern "C" fn page_fault(address: usize, ip: u64, state: u64) {
    enable_as_in(state);
    if !memory::map(address) {
        panic!("page fault at {ip:#x}: address {address:#x}");
    }
}

// The vectors (Arm ARM), 128 bytes each: four for code with SP_EL0, four for code with SP_EL1, which are handlers, and those of
// EL0, where there is no code.
global_asm!(
    ".section .text.vectors, \"ax\"",
    ".p2align 11",
    "vectors:",
    "b 3f",
    ".p2align 7",
    "b {interrupt_stub}",
    ".set vector, 2",
    ".rept 14",
    ".p2align 7",
    "mov x0, #vector",
    "b 2f",
    ".set vector, vector + 1",
    ".endr",
    "2:",
    "mrs x1, esr_el1",
    "mrs x2, elr_el1",
    "mrs x3, far_el1",
    "bl {unexpected_exception}",
    // By the class of the exception: a call, or an access to memory in EL1.
    "3:",
    "stp x0, x1, [sp, #-16]!",
    "mrs x0, esr_el1",
    "lsr x1, x0, #{class_shift}",
    "cmp x1, #{access}",
    "b.ne 4f",
    "ldp x0, x1, [sp], #16",
    "b {page_fault_stub}",
    "4:",
    "cmp x1, #{call}",
    "mov x1, x0",
    "mov x0, #0",
    "b.ne 2b",
    "and w0, w1, #0xffff",
    "cmp w0, #{raise_timer}",
    "b.eq 5f",
    "cmp w0, #{yield_core}",
    "ldp x0, x1, [sp], #16",
    "b.eq {yield_stub}",
    "b {system_call_stub}",
    "5:",
    "ldp x0, x1, [sp], #16",
    "b {raised_timer_stub}",
    ".text",
    class_shift = const CLASS_SHIFT,
    access = const 0x25,
    call = const 0x15,
    raise_timer = const RAISE_TIMER,
    yield_core = const YIELD,
    interrupt_stub = sym interrupt_stub,
    raised_timer_stub = sym raised_timer_stub,
    yield_stub = sym yield_stub,
    system_call_stub = sym system_call_stub,
    page_fault_stub = sym page_fault_stub,
    unexpected_exception = sym unexpected_exception,
);

/// The class of an exception, in its syndrome.
const CLASS_SHIFT: u32 = 26;

extern "C" fn unexpected_exception(vector: usize, syndrome: u64, ip: u64, address: u64) -> ! {
    if semihosting::is_refused(syndrome >> CLASS_SHIFT, ip) {
        println!("there is no semihosting to send the trace by, or to end: run qemu-system-aarch64 with -semihosting");
        halt();
    }
    panic!("exception by vector {vector}, syndrome {syndrome:#x}, at {ip:#x}, address {address:#x}");
}
