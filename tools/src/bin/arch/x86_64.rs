//! x86-64.

/// The dynamic linker.
pub(super) const INTERPRETER: &[u8; 28] = b"/lib64/ld-linux-x86-64.so.2\0";

/// Where such a program begins; build.rs says so to the linker. The stack is aligned to 16 bytes, not as after a call.
macro_rules! start {
    ($name:ident, $main:ident) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() -> ! {
            std::arch::naked_asm!("xor ebp, ebp", "call {main}", "ud2", main = sym $main)
        }
    };
}
pub(crate) use start;
