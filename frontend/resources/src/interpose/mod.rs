//! The functions that take the place of those that give out something and take it back.
//!
//! Each is a jump to one with the same arguments and two more: the stack and frame pointer at its first instruction, from where its callers
//! are found. So no frame of this library is on the stack above them.
//!
//! - `allocator` has those for memory, which are the quickest; `files`, `threads` and `libraries` have the others.
//! - `confined` has those by which a program forbids itself system calls.
//! - `specified` has those that a user has specified, whatever they are.
//! - `calls` is how those are recorded.

use std::arch::naked_asm;

/// A function that jumps to another one, with the stack and the frame pointer behind its own arguments, of which there are so many. Its other name is
/// this library's alone (`originals::own`).
macro_rules! with_registers {
    ($name:ident, $to:ident, 0) => {
        with_registers!($name, $to, "rdi", "rsi");
    };
    ($name:ident, $to:ident, 1) => {
        with_registers!($name, $to, "rsi", "rdx");
    };
    ($name:ident, $to:ident, 2) => {
        with_registers!($name, $to, "rdx", "rcx");
    };
    ($name:ident, $to:ident, 3) => {
        with_registers!($name, $to, "rcx", "r8");
    };
    ($name:ident, $to:ident, 4) => {
        with_registers!($name, $to, "r8", "r9");
    };
    ($name:ident, $to:ident, $sp:literal, $bp:literal) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            super::naked_asm!(
                concat!(".globl rftrace_own_", stringify!($name)),
                concat!(".hidden rftrace_own_", stringify!($name)),
                concat!("rftrace_own_", stringify!($name), ":"),
                concat!("mov ", $sp, ", rsp"),
                concat!("mov ", $bp, ", rbp"),
                "jmp {to}",
                to = sym $to
            )
        }
    };
}

/// Functions with arguments, as many as the number says. Each is recorded by the function in braces, which gets what stands behind its
/// name, the registers, and what calls the original.
macro_rules! interpose {
    ($($n:tt $arguments:tt -> $result:ty { $work:ident $about:tt } $($name:ident)+;)+) => {
        $($(interpose_one!($name, $n $arguments -> $result { $work $about });)+)+
    };
}

macro_rules! interpose_one {
    ($name:ident, $n:tt ($($argument:ident: $type:ty),*) -> $result:ty { $work:ident ($($about:expr),*) }) => {
        const _: () = {
            extern "C-unwind" fn from($($argument: $type,)* sp: usize, bp: usize) -> $result {
                $work($($about,)* Registers { sp, bp }, || {
                    let function = originals::get(Original::$name);
                    if function.is_null() {
                        return Missing::missing();
                    }
                    type Function = extern "C-unwind" fn($($type),*) -> $result;
                    // SAFETY: a function of this name has this type; it gets the caller's arguments.
                    let function = unsafe { transmute::<*mut c_void, Function>(function) };
                    function($($argument),*)
                })
            }
            with_registers!($name, from, $n);
        };
    };
}

mod allocator;
mod calls;
mod confined;
mod files;
mod libraries;
mod specified;
mod threads;

pub(crate) use self::specified::{Known, specified};
