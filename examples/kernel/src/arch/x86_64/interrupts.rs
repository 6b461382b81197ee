//! Segments, the interrupt table, and the handlers of interrupts.
//!
//! Two kinds of handlers are traced:
//!
//! - Functions that an assembly stub calls, as C kernels have them: the timer's, which may switch tasks. The stub saves all
//!   registers and runs on a stack of its own, so that a red zone of the interrupted code survives.
//! - `extern "x86-interrupt"` functions, which are entered by the interrupt itself and return by `iretq`: a software interrupt,
//!   the page fault, which has an error code, and by option the timer's.
//!
//! A traced handler records into the trace of the task that it has interrupted.

use core::arch::{asm, global_asm, naked_asm};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

use super::{apic, memory, tls};
use crate::options::Timer;
use crate::smp;
use crate::tasks;

/// The segments of boot.s, which all cores keep.
const CODE_SELECTOR: u16 = 8;
const DATA_SELECTOR: u16 = 16;
const TASK_SELECTOR: u16 = 24;

const NMI: usize = 2;
const DOUBLE_FAULT: usize = 8;
const PAGE_FAULT: usize = 14;
/// The timer, with a stub.
const TIMER_VECTOR: u8 = 0x20;
/// The timer, with an `extern "x86-interrupt"` function.
const IRET_TIMER_VECTOR: u8 = 0x21;
const YIELD_VECTOR: u8 = 0x22;
const SYSTEM_CALL_VECTOR: u8 = 0x80;
const SPURIOUS_VECTOR: u8 = 0xff;

/// Stacks of the task state segment, from 1; 0 leaves the interrupted stack in use.
const INTERRUPTED_STACK: u64 = 0;
const TIMER_STACK: u64 = 1;
const FAULT_STACK: u64 = 2;

/// Interrupt gates keep further interrupts off, trap gates do not.
const INTERRUPT_GATE: u64 = 0x8e;
const TRAP_GATE: u64 = 0x8f;

/// The registers of a task that does not run, as the stubs push them.
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
    const INTERRUPTS: u64 = 1 << 9;
    const RBX: usize = 13;
    pub const NONE: Self = Self { r15_to_rax: [0; 15], ip: 0, cs: 0, flags: 0, sp: 0, ss: 0 };

    /// That of a task which begins: it calls `entry` on the stack that ends at `stack_end`.
    pub fn of_new_task(entry: extern "C" fn(), stack_end: u64) -> Self {
        let (cs, ss) = (CODE_SELECTOR.into(), DATA_SELECTOR.into());
        let ip = begin as *const () as u64;
        let mut frame = Self { ip, cs, ss, flags: Self::INTERRUPTS | 2, sp: stack_end, ..Self::NONE };
        frame.r15_to_rax[Self::RBX] = entry as *const () as u64;
        frame
    }
}

/// Where a task begins: calls its first function, which is in rbx. Not traced, as it does not return.
#[unsafe(naked)]
unsafe extern "C" fn begin() {
    naked_asm!(
        "call {tell_core}", "call rbx", "call {end}", "ud2",
        tell_core = sym tasks::tell_core,
        end = sym tasks::end,
    )
}

/// Tables for a core's processor: its segments, and the ends of its interrupt stacks.
pub struct Tables {
    segments: [AtomicU64; 5],
    /// The task state segment, of which only the interrupt stacks are used.
    task_state: [AtomicU32; 26],
}

/// An interrupt's stack has no red zone that it could hurt, and is far from all others: the tracer takes calls that are at
/// most 16 KiB apart to be on one stack.
#[repr(C, align(16))]
pub struct InterruptStacks {
    _distance: [u8; 32 * 1024],
    timer: [u8; 32 * 1024],
    _distance_between: [u8; 32 * 1024],
    fault: [u8; 32 * 1024],
    _distance_above: [u8; 32 * 1024],
}

impl InterruptStacks {
    pub const fn new() -> Self {
        let none = [0; 32 * 1024];
        Self { _distance: none, timer: none, _distance_between: none, fault: none, _distance_above: none }
    }
}

/// The table of handlers: two words for each of 256 vectors.
static HANDLERS: [AtomicU64; 512] = [const { AtomicU64::new(0) }; 512];

/// The operand of `lgdt` and `lidt`.
#[repr(C, packed)]
struct Pointer {
    limit: u16,
    base: u64,
}

fn pointer_to(table: &[AtomicU64]) -> Pointer {
    Pointer { limit: (size_of_val(table) - 1) as u16, base: table.as_ptr() as u64 }
}

impl Tables {
    pub const fn new() -> Self {
        Self { segments: [const { AtomicU64::new(0) }; 5], task_state: [const { AtomicU32::new(0) }; 26] }
    }

    /// Makes these tables those of this core. `stacks` must not be another core's.
    pub fn load(&'static self, stacks: &'static smp::Exclusive<InterruptStacks>) {
        let stacks = stacks.get();
        // SAFETY: computes addresses within the structure.
        let ends = unsafe { [(&raw const (*stacks).timer).add(1), (&raw const (*stacks).fault).add(1)] };
        for (idx, end) in ends.into_iter().enumerate() {
            let end = end as u64;
            self.task_state[9 + 2 * idx].store(end as u32, Relaxed);
            self.task_state[10 + 2 * idx].store((end >> 32) as u32, Relaxed);
        }
        let base = self.task_state.as_ptr() as u64;
        let limit = size_of_val(&self.task_state) as u64 - 1;
        let values = [
            0,
            0x00af_9b00_0000_ffff,
            0x00cf_9300_0000_ffff,
            limit | (base & 0xff_ffff) << 16 | 0x89 << 40 | (base >> 24 & 0xff) << 56,
            base >> 32,
        ];
        for (segment, value) in self.segments.iter().zip(values) {
            segment.store(value, Relaxed);
        }
        let (segments, handlers) = (pointer_to(&self.segments), pointer_to(&HANDLERS));
        // SAFETY: the tables live as long as the kernel. The selectors in use mean the same as before.
        unsafe {
            asm!("lgdt [{}]", in(reg) &raw const segments, options(nostack, preserves_flags));
            asm!("ltr {:x}", in(reg) TASK_SELECTOR, options(nostack, preserves_flags));
            asm!("lidt [{}]", in(reg) &raw const handlers, options(nostack, preserves_flags));
        }
        apic::init(SPURIOUS_VECTOR);
    }
}

fn set_handler(vector: usize, handler: usize, stack: u64, gate: u64) {
    let handler = handler as u64;
    let low =
        handler & 0xffff | u64::from(CODE_SELECTOR) << 16 | stack << 32 | gate << 40 | (handler >> 16 & 0xffff) << 48;
    HANDLERS[2 * vector + 1].store(handler >> 32, Relaxed);
    HANDLERS[2 * vector].store(low, Relaxed);
}

/// Fills the table of handlers.
pub fn init() {
    apic::disable_pics();
    for vector in 0..32 {
        let stack = if vector == DOUBLE_FAULT { FAULT_STACK } else { INTERRUPTED_STACK };
        let stub = &raw const exception_stubs as usize + EXCEPTION_STUB_BYTES * vector;
        set_handler(vector, stub, stack, INTERRUPT_GATE);
    }
    set_handler(NMI, stop_core as *const () as usize, FAULT_STACK, INTERRUPT_GATE);
    set_handler(PAGE_FAULT, page_fault as *const () as usize, INTERRUPTED_STACK, INTERRUPT_GATE);
    let stubs: [(u8, unsafe extern "C" fn(), u64); 3] = [
        (TIMER_VECTOR, timer_stub, TIMER_STACK),
        (YIELD_VECTOR, yield_stub, TIMER_STACK),
        (SPURIOUS_VECTOR, spurious_stub, INTERRUPTED_STACK),
    ];
    for (vector, stub, stack) in stubs {
        set_handler(usize::from(vector), stub as *const () as usize, stack, INTERRUPT_GATE);
    }
    set_handler(usize::from(IRET_TIMER_VECTOR), iret_timer as *const () as usize, TIMER_STACK, INTERRUPT_GATE);
    set_handler(usize::from(SYSTEM_CALL_VECTOR), system_call as *const () as usize, INTERRUPTED_STACK, TRAP_GATE);
}

/// Lets interrupts in.
#[inline(always)]
pub fn enable() {
    // SAFETY: the table of handlers is in place.
    unsafe { asm!("sti", options(nostack)) }
}

/// Keeps interrupts out.
#[inline(always)]
pub fn disable() {
    // SAFETY: whoever waits for an interrupt lets them in again.
    unsafe { asm!("cli", options(nostack)) }
}

/// Nothing more is done on this core.
pub fn halt() -> ! {
    disable();
    loop {
        // SAFETY: waits; only an NMI may come, which does the same.
        unsafe { asm!("hlt", options(nomem, nostack, preserves_flags)) }
    }
}

/// Runs `work` while interrupts are off on this core.
#[inline(always)]
pub fn without<T>(work: impl FnOnce() -> T) -> T {
    let flags: u64;
    // SAFETY: reads the flags.
    unsafe { asm!("pushfq", "pop {}", out(reg) flags, options(preserves_flags)) };
    disable();
    let result = work();
    if flags & Frame::INTERRUPTS != 0 {
        enable();
    }
    result
}

/// Gives the core to the next task, as the timer does.
#[inline(always)]
pub fn yield_core() {
    // SAFETY: the stub keeps all registers. The compiler must read again any memory that other tasks change in the meantime.
    unsafe { asm!("int {}", const YIELD_VECTOR) }
}

/// Has the timer interrupt this core again and again, every `n_ticks` of its clock.
pub fn start_timer(handler: Timer, n_ticks: u32) {
    let vector = match handler {
        Timer::Stub => TIMER_VECTOR,
        Timer::Iret => IRET_TIMER_VECTOR,
    };
    apic::start_timer(vector, n_ticks);
}

/// Stops the timer of this core.
pub fn stop_timer() {
    apic::stop_timer();
}

/// Runs the timer's handler at a certain place.
#[inline(always)]
pub fn raise_timer() {
    // SAFETY: as in `yield_core`.
    unsafe { asm!("int {}", const TIMER_VECTOR) }
}

/// Calls the kernel as a program would, by an interrupt.
#[inline(always)]
pub fn call_system() {
    // SAFETY: the handler keeps all registers.
    unsafe { asm!("int {}", const SYSTEM_CALL_VECTOR) }
}

/// The stub of a handler `fn(&mut Frame) -> u64`: saves the interrupted task's registers as a [`Frame`], which the handler may
/// exchange, and goes on with the thread pointer that it returns.
macro_rules! stub {
    ($(#[$doc:meta])* $name:ident, $handler:path) => {
        $(#[$doc])*
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                "push rax", "push rbx", "push rcx", "push rdx", "push rsi", "push rdi", "push rbp", "push r8",
                "push r9", "push r10", "push r11", "push r12", "push r13", "push r14", "push r15",
                "mov rdi, rsp",
                "cld",
                "call {handler}",
                // The thread pointer is that of the next task before its registers are.
                "mov rdx, rax",
                "shr rdx, 32",
                "mov ecx, {fs_base}",
                "wrmsr",
                "pop r15", "pop r14", "pop r13", "pop r12", "pop r11", "pop r10", "pop r9", "pop r8",
                "pop rbp", "pop rdi", "pop rsi", "pop rdx", "pop rcx", "pop rbx", "pop rax",
                "iretq",
                handler = sym $handler,
                fs_base = const tls::FS_BASE,
            )
        }
    };
}

stub!(
    /// Entered by the timer.
    timer_stub,
    timer
);
stub!(
    /// Entered by [`yield_core`].
    yield_stub,
    yielded
);

/// The timer's handler: counts, and switches to the next task.
extern "C" fn timer(frame: &mut Frame) -> u64 {
    apic::end_of_interrupt();
    tasks::tick();
    tasks::switch(frame)
}

/// The handler of [`yield_core`].
extern "C" fn yielded(frame: &mut Frame) -> u64 {
    tasks::switch(frame)
}

/// The frame that the processor pushes.
#[repr(C)]
struct InterruptFrame {
    ip: u64,
    cs: u64,
    flags: u64,
    sp: u64,
    ss: u64,
}

/// The timer's handler without stub: only counts.
extern "x86-interrupt" fn iret_timer(_frame: InterruptFrame) {
    apic::end_of_interrupt();
    tasks::tick();
}

/// The handler of [`call_system`]. Further interrupts may come in.
extern "x86-interrupt" fn system_call(_frame: InterruptFrame) {
    tasks::count_system_call();
}

/// Maps the page that was touched; the instruction then is tried again.
extern "x86-interrupt" fn page_fault(frame: InterruptFrame, error_code: u64) {
    let address: usize;
    // SAFETY: reads the register with the address. Interrupts come in only afterwards, whose tasks may cause page faults too.
    unsafe { asm!("mov {}, cr2", out(reg) address, options(nostack, nomem, preserves_flags)) };
    if frame.flags & Frame::INTERRUPTS != 0 {
        enable();
    }
    if !memory::map(address) {
        panic!("page fault at {:#x}: address {address:#x}, error code {error_code:#x}", frame.ip);
    }
}

/// Ends a core that another one has interrupted because of a panic.
#[unsafe(naked)]
unsafe extern "C" fn stop_core() {
    naked_asm!("2:", "cli", "hlt", "jmp 2b")
}

/// The controller found no interrupt after all.
#[unsafe(naked)]
unsafe extern "C" fn spurious_stub() {
    naked_asm!("iretq")
}

const EXCEPTION_STUB_BYTES: usize = 16;

unsafe extern "C" {
    static exception_stubs: u8;
}

// One stub for each exception that nothing handles: tells which it is, and where its frame lies.
global_asm!(
    ".section .text.exceptions, \"ax\"",
    ".p2align 4",
    "exception_stubs:",
    ".set vector, 0",
    ".rept 32",
    ".p2align 4",
    "mov edi, vector",
    "jmp 2f",
    ".set vector, vector + 1",
    ".endr",
    "2:",
    "mov rsi, rsp",
    "and rsp, -16",
    "cld",
    "call {unexpected_exception}",
    "ud2",
    ".text",
    unexpected_exception = sym unexpected_exception,
);

extern "C" fn unexpected_exception(vector: usize, words: &[u64; 6]) -> ! {
    // These exceptions push an error code below the frame.
    let has_error_code = matches!(vector, 8 | 10..=14 | 17 | 21 | 29 | 30);
    let [first, second, ..] = *words;
    if has_error_code {
        panic!("exception {vector} with error code {first:#x} at {second:#x}");
    }
    panic!("exception {vector} at {first:#x}");
}
