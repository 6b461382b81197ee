//! Input and output ports.

use core::arch::asm;

/// Writes a byte to a port.
///
/// # Safety
///
/// The device's reaction breaks nothing that Rust relies on.
#[inline(always)]
pub unsafe fn write(port: u16, value: u8) {
    // SAFETY: by this function's contract.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nostack, preserves_flags)) }
}

/// Writes many bytes to one port.
///
/// # Safety
///
/// As for [`write`].
pub unsafe fn write_all(port: u16, bytes: &[u8]) {
    // SAFETY: by this function's contract; the direction flag is clear by the ABI.
    unsafe {
        asm!(
            "rep outsb",
            in("dx") port,
            inout("rsi") bytes.as_ptr() => _,
            inout("rcx") bytes.len() => _,
            options(nostack, preserves_flags, readonly),
        );
    }
}

/// Reads a byte from a port.
///
/// # Safety
///
/// As for [`write`].
#[inline(always)]
pub unsafe fn read(port: u16) -> u8 {
    let value;
    // SAFETY: by this function's contract.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nostack, preserves_flags)) }
    value
}
