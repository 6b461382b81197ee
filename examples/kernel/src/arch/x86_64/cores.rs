//! Cores: which one runs this, starting and stopping the second one.

use core::arch::asm;
use core::hint::spin_loop;
use core::ptr;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Release;

use super::apic;
use super::clock::{self, Rates};
use crate::smp::Core;

/// The model-specific register with GS base.
const GS_BASE: u32 = 0xc000_0101;

/// Remedy for a kernel that is run with one core.
pub const SECOND_CORE_REMEDY: &str = "run qemu-system-x86_64 with -smp 2, or use cores=1";

/// Makes the core that runs this one.
pub fn set_this(core: &'static Core) {
    let pointer = ptr::from_ref(core) as u64;
    // SAFETY: nothing but `this` uses GS.
    unsafe {
        asm!(
            "wrmsr",
            in("ecx") GS_BASE,
            in("eax") pointer as u32,
            in("edx") (pointer >> 32) as u32,
            options(nostack, preserves_flags),
        );
    }
}

/// The core that runs this, as [`set_this`] was told.
#[inline(always)]
pub fn this() -> &'static Core {
    let core: *const Core;
    // SAFETY: GS base points to a static, whose first field is its own address.
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

/// Waits a moment for what another core does.
#[inline(always)]
pub fn relax() {
    spin_loop();
}

/// Starts another core, which goes to `second_core_main` in main.rs on the stack that ends at `stack_end`.
pub fn start(number: usize, stack_end: u64, rates: Rates) {
    SECOND_CORE_STACK.store(stack_end, Release);
    let code = &raw const core_trampoline;
    let bytes = &raw const core_trampoline_end as usize - code as usize;
    // SAFETY: nothing else uses this page, and it is mapped.
    unsafe { ptr::copy_nonoverlapping(code, TRAMPOLINE as *mut u8, bytes) };
    // As the Intel SDM has it, volume 3, 9.4.4: the second message is for processors that have missed the first.
    apic::send_init(number);
    clock::wait_micros(rates, 10_000);
    apic::send_start(number, TRAMPOLINE);
    clock::wait_micros(rates, 200);
    apic::send_start(number, TRAMPOLINE);
}

/// Stops another core for ever.
pub fn stop(number: usize) {
    apic::send_nmi(number);
}
