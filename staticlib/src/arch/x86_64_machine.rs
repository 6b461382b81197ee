//! x86-64: what no Rust can say, and what a function's code tells of its frame.

use core::arch::asm;
#[cfg(target_feature = "sse")]
use core::arch::x86_64::__cpuid;
#[cfg(target_feature = "sse")]
use core::mem::MaybeUninit;
use core::mem::size_of;

/// The address of a place in the assembly.
macro_rules! address_of {
    ($label:literal) => {{
        let address;
        // SAFETY: computes an address.
        unsafe {
            asm!(
                concat!("lea {address}, [rip + ", $label, "]"),
                address = out(reg) address,
                options(nostack, nomem, preserves_flags),
            );
        }
        address
    }};
}

/// The largest alignment of a frame that [`frames`] looks for: a page.
pub(crate) const MAX_REALIGN_BYTES: usize = 4096;

/// The frame of a function, and that of its caller if that keeps a frame pointer.
///
/// `parent_loc` is where the hook takes the return address to be, `child_ip` lies in the function's prologue. In
/// `frame_pointer` (rbp) mcount finds the function's own frame, `__fentry__` still the caller's.
///
/// In a function that realigns its stack GCC may set up the frame like this, so that the return address at `[rbp + 8]` is
/// a copy and `static_chain` (r10) tells where the true one is:
///
/// ```text
///   lea r10, [rsp + 8]; and rsp, -32; push [r10 - 8]; push rbp; mov rbp, rsp; push r10; …; call mcount
/// ```
pub(crate) fn frames(parent_loc: usize, child_ip: usize, frame_pointer: usize, static_chain: usize) -> (usize, usize) {
    if frame_pointer.wrapping_add(8) != parent_loc {
        return (parent_loc, frame_pointer.wrapping_add(8));
    }
    // SAFETY: directly below the slot of the running function, which is above its stack pointer.
    let caller_frame = unsafe { *(frame_pointer as *const usize) };
    let true_loc = static_chain.wrapping_sub(8);
    let distance = true_loc.wrapping_sub(parent_loc);
    let is_copy = distance != 0 && distance <= MAX_REALIGN_BYTES && realigns(child_ip);
    (if is_copy { true_loc } else { parent_loc }, caller_frame.wrapping_add(8))
}

/// True if the prologue that ends at `child_ip` has GCC's beginning of a realigned frame: `lea r10, [rsp + 8]` and an `and`
/// of rsp with a constant.
fn realigns(child_ip: usize) -> bool {
    /// These bytes, the last one first; the `and` has two forms, which differ in one bit.
    const CODE: u64 = 0xe481_4808_2454_8d4c;
    const FORMS: u64 = 0x0002_0000_0000_0000;
    /// Bytes of the longest prologue. It is looked for in the same page, which is mapped.
    const LONGEST: usize = 64;
    const PAGE: usize = 4096;

    let earliest = child_ip.saturating_sub(LONGEST).max(child_ip & !(PAGE - 1));
    let latest = child_ip.saturating_sub(size_of::<u64>());
    (earliest..=latest).any(|place| {
        // SAFETY: code of the running function or before it, in a page that is mapped.
        let code = unsafe { (place as *const u64).read_unaligned() };
        code & !FORMS == CODE
    })
}

/// The time stamp counter.
pub(crate) fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction; a kernel that forbids it to programs (CR4.TSD) cannot be
    // traced by them.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The address of the return trampoline T.
pub(crate) fn trampoline() -> usize {
    address_of!(".Lrftrace_trampoline")
}

/// The address of T3, which functions with an entry branch return to.
#[cfg(not(target_os = "none"))]
pub(crate) fn entry_trampoline() -> usize {
    address_of!(".Lrftrace_entry_trampoline")
}

/// The address of T4, which functions return to whose result is recorded.
#[cfg(not(target_os = "none"))]
pub(crate) fn values_trampoline() -> usize {
    address_of!(".Lrftrace_values_trampoline")
}

/// True if an address is that of T, T2, T3 or T4: an old word on a stack may also be a return address of their slow paths.
pub(crate) fn is_trampoline(address: usize) -> bool {
    let paired: usize = address_of!(".Lrftrace_trampolines");
    #[cfg(not(target_os = "none"))]
    if address == entry_trampoline() || address == values_trampoline() {
        return true;
    }
    address == trampoline() || address == paired
}

/// Fills memory with zeros, without the `memset` that the compiler would call.
///
/// # Safety
///
/// The `bytes` bytes from `start` on are writable and nobody else uses them.
pub(crate) unsafe fn zero(start: *mut u8, bytes: usize) {
    // SAFETY: by this function's contract; the direction flag is clear by the ABI.
    unsafe {
        asm!(
            "rep stosb",
            inout("rdi") start => _,
            inout("rcx") bytes => _,
            in("al") 0u8,
            options(nostack, preserves_flags),
        );
    }
}

/// Runs `work`, which may be foreign code, and keeps all vector and x87 state.
///
/// `rftrace_call_saved` keeps what the tracer itself can clobber, xmm0-15. A C library may use wider registers, or clear
/// their upper halves (`vzeroupper`), in which the traced function's arguments may be.
#[cfg(target_feature = "sse")]
pub(crate) fn keeping_vectors(work: impl FnOnce()) {
    /// x87, SSE, AVX and the three parts of AVX-512 (Intel SDM volume 1, 13.1). Tile registers hold no arguments.
    const COMPONENTS: u32 = 0b1110_0111;
    /// Where the last of these components ends in the standard format.
    const AREA_BYTES: usize = 2688;
    /// CPUID leaf 1, ecx: the system has switched xsave on.
    const OSXSAVE: u32 = 1 << 27;

    #[repr(C, align(64))]
    struct Area([MaybeUninit<u8>; AREA_BYTES]);

    // SAFETY: all processors with 64 bits have the instruction. Newer compilers know that.
    #[allow(unused_unsafe)]
    let features = unsafe { __cpuid(1) };
    if features.ecx & OSXSAVE == 0 {
        // Nothing wider than xmm is there.
        return work();
    }
    let mut area = Area([MaybeUninit::uninit(); AREA_BYTES]);
    let area: *mut u8 = area.0.as_mut_ptr().cast();
    // SAFETY: the area is large enough and aligned; its header, bytes 512 to 575, must be zero before it is filled.
    unsafe {
        zero(area.wrapping_add(512), 64);
        asm!("xsave64 [{area}]", area = in(reg) area, in("eax") COMPONENTS, in("edx") 0, options(nostack));
    }
    work();
    // SAFETY: restores what was saved above; the compiler is told that all these registers change.
    unsafe {
        asm!(
            "xrstor64 [{area}]",
            area = in(reg) area,
            inout("eax") COMPONENTS => _,
            inout("edx") 0 => _,
            clobber_abi("C"),
            options(nostack),
        );
    }
}

/// Runs `work`. Kernel code has no vector state.
#[cfg(not(target_feature = "sse"))]
pub(crate) fn keeping_vectors(work: impl FnOnce()) {
    work();
}

/// Stops the program: it is in a state from which no return is possible.
pub(crate) fn abort() -> ! {
    // SAFETY: raises an invalid-opcode exception.
    unsafe { asm!("ud2", options(noreturn, nostack, nomem)) }
}
