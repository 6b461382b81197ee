//! The way from QEMU to [`kernel_main`](crate::kernel_main), and the command line.

use core::arch::global_asm;
use core::ffi::{CStr, c_char};

/// The argument of [`kernel_main`](crate::kernel_main).
pub type Info = &'static StartInfo;

global_asm!(include_str!("boot.s"), options(raw));

/// The boot protocol's data (`struct hvm_start_info` in Xen's public/arch-x86/hvm/start_info.h).
#[repr(C)]
pub struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    n_modules: u32,
    modules: u64,
    /// Physical address of the command line, which ends with a 0.
    command_line: u64,
}

const MAGIC: u32 = 0x336e_c578;

/// The kernel's command line.
///
/// # Panics
///
/// When `info` is not what the boot protocol promises.
pub fn command_line(info: Info) -> &'static str {
    assert!(info.magic == MAGIC, "not started by the PVH boot protocol: use qemu-system-x86_64 -kernel");
    if info.command_line == 0 {
        return "";
    }
    // SAFETY: by the protocol a string that ends with a 0. All physical memory is mapped where it lies, and nothing writes there.
    let line = unsafe { CStr::from_ptr(info.command_line as *const c_char) };
    line.to_str().expect("the command line is not UTF-8")
}
