//! x86-64: operations without a form in Rust, and the facts about a frame in a function's code.

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

/// The largest alignment of a frame for [`frames`]: a page.
pub(crate) const MAX_REALIGN_BYTES: usize = 4096;

/// The frame of a function, and its caller's if the caller keeps a frame pointer.
///
/// `parent_loc` is the place where the hook expects the return address, `child_ip` lies in the function's prologue. In
/// `frame_pointer` (rbp) mcount finds the function's own frame, `__fentry__` still the caller's.
///
/// In a function with a realigned stack GCC may set up the frame like this: the return address at `[rbp + 8]` is a
/// copy, and `static_chain` (r10) tells the place of the true one:
///
/// ```text
///   lea r10, [rsp + 8]; and rsp, -32; push [r10 - 8]; push rbp; mov rbp, rsp; push r10; …; call mcount
/// ```
pub(crate) fn frames(parent_loc: usize, child_ip: usize, frame_pointer: usize, static_chain: usize) -> (usize, usize) {
    if frame_pointer.wrapping_add(8) != parent_loc {
        return (parent_loc, frame_pointer.wrapping_add(8));
    }
    // SAFETY: directly below the slot of the running function, above its stack pointer.
    let caller_frame = unsafe { *(frame_pointer as *const usize) };
    let true_loc = static_chain.wrapping_sub(8);
    let distance = true_loc.wrapping_sub(parent_loc);
    let is_copy = distance != 0 && distance <= MAX_REALIGN_BYTES && realigns(child_ip);
    (if is_copy { true_loc } else { parent_loc }, caller_frame.wrapping_add(8))
}

/// True if the prologue up to `child_ip` has GCC's beginning of a realigned frame: `lea r10, [rsp + 8]` and an `and` of
/// rsp with a constant.
fn realigns(child_ip: usize) -> bool {
    /// These bytes, the last one first; the two forms of the `and` differ in one bit.
    const CODE: u64 = 0xe481_4808_2454_8d4c;
    const FORMS: u64 = 0x0002_0000_0000_0000;
    /// Bytes of the longest prologue. It is looked for in the same, mapped page.
    const LONGEST: usize = 64;
    const PAGE: usize = 4096;

    let earliest = child_ip.saturating_sub(LONGEST).max(child_ip & !(PAGE - 1));
    let latest = child_ip.saturating_sub(size_of::<u64>());
    (earliest..=latest).any(|place| {
        // SAFETY: code of the running function or before it, in a mapped page.
        let code = unsafe { (place as *const u64).read_unaligned() };
        code & !FORMS == CODE
    })
}

/// The time stamp counter.
pub(crate) fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction; programs cannot trace themselves under a kernel that forbids
    // it to them (CR4.TSD).
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The address of the return trampoline T.
pub(crate) fn trampoline() -> usize {
    address_of!(".Lrftrace_trampoline")
}

/// The address of T3, the return address of functions with an entry branch.
#[cfg(not(target_os = "none"))]
pub(crate) fn entry_trampoline() -> usize {
    address_of!(".Lrftrace_entry_trampoline")
}

/// The address of T4, the return address of functions with a recorded result.
#[cfg(not(target_os = "none"))]
pub(crate) fn values_trampoline() -> usize {
    address_of!(".Lrftrace_values_trampoline")
}

/// True if an address is T, T2, T3 or T4: an old word on a stack may also be a return address of their slow paths.
pub(crate) fn is_trampoline(address: usize) -> bool {
    let paired: usize = address_of!(".Lrftrace_trampolines");
    #[cfg(not(target_os = "none"))]
    if address == entry_trampoline() || address == values_trampoline() {
        return true;
    }
    address == trampoline() || address == paired
}

/// Fills memory with zeros, without the compiler's call of `memset`.
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

/// Runs `work`, perhaps foreign code, and keeps all vector and x87 state.
///
/// `rftrace_call_saved` keeps the registers used by the tracer itself, xmm0-15. A C library may use wider registers, or
/// clear their upper halves (`vzeroupper`), in which the traced function's arguments may be.
#[cfg(target_feature = "sse")]
pub(crate) fn keeping_vectors(work: impl FnOnce()) {
    /// x87, SSE, AVX and the three parts of AVX-512 (Intel SDM volume 1, 13.1). Tile registers hold no arguments.
    const COMPONENTS: u32 = 0b1110_0111;
    /// The end of the last component in the standard format.
    const AREA_BYTES: usize = 2688;
    /// CPUID leaf 1, ecx: the system has switched xsave on.
    const OSXSAVE: u32 = 1 << 27;

    #[repr(C, align(64))]
    struct Area([MaybeUninit<u8>; AREA_BYTES]);

    // SAFETY: all processors with 64 bits have the instruction. Newer compilers know it.
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
    // SAFETY: restores the state saved above; the compiler is told that all these registers change.
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

/// Stops the program: no return is possible from its state.
pub(crate) fn abort() -> ! {
    // SAFETY: raises an invalid-opcode exception.
    unsafe { asm!("ud2", options(noreturn, nostack, nomem)) }
}
