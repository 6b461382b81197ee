//! Calls of QEMU itself (Semihosting for AArch32 and AArch64), which answers them when it is run with `-semihosting`.

use core::arch::asm;

const WRITE_BYTE: u32 = 0x03;
const EXIT: u32 = 0x18;

/// `hlt #0xf000`.
const CALL: u32 = 0xd45e_0000;

fn call<T>(operation: u32, argument: &T) {
    // SAFETY: none of the operations writes to the kernel's memory; they read what the argument is.
    unsafe {
        asm!(
            "hlt #0xf000",
            inlateout("x0") operation as usize => _,
            in("x1") argument,
            options(nostack, preserves_flags, readonly),
        );
    }
}

/// True if an exception of this class, at this address, means that nobody answers.
pub fn is_refused(class: u64, ip: u64) -> bool {
    const UNKNOWN_INSTRUCTION: u64 = 0;
    // SAFETY: the processor has just tried to execute it.
    class == UNKNOWN_INSTRUCTION && unsafe { (ip as *const u32).read() } == CALL
}

/// Writes to QEMU's semihosting console: what its option `chardev` of `-semihosting-config` names. By single bytes, as QEMU 7.2 has whole
/// buffers written to its own standard output instead.
pub fn write(bytes: &[u8]) {
    for byte in bytes {
        call(WRITE_BYTE, byte);
    }
}

/// Ends QEMU.
pub fn exit(status: usize) {
    const APPLICATION_EXIT: usize = 0x2_0026;

    call(EXIT, &[APPLICATION_EXIT, status]);
}
