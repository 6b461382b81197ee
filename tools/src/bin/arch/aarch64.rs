//! aarch64.

/// The dynamic linker.
pub(super) const INTERPRETER: &[u8; 27] = b"/lib/ld-linux-aarch64.so.1\0";

/// Where such a program begins; build.rs says so to the linker. The stack is aligned to 16 bytes, as ever.
macro_rules! start {
    ($name:ident, $main:ident) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() -> ! {
            std::arch::naked_asm!("mov x29, #0", "bl {main}", "brk #1", main = sym $main)
        }
    };
}
pub(crate) use start;
