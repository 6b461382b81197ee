//! Beginning of a library that somebody starts as a program: its dynamic linker, and its first instructions.

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
mod processor;

/// Dynamic linker that loads the library if somebody starts it as a program. The C library itself has one too.
#[used]
#[unsafe(link_section = ".interp")]
static INTERPRETER: [u8; processor::INTERPRETER.len()] = *processor::INTERPRETER;

pub(crate) use processor::start;
