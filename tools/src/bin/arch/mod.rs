//! How a library begins that somebody starts as a program: its dynamic linker, and its first instructions.

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
mod processor;

/// Who starts the library as a program has it loaded by this one, as the C library itself has.
#[used]
#[unsafe(link_section = ".interp")]
static INTERPRETER: [u8; processor::INTERPRETER.len()] = *processor::INTERPRETER;

pub(crate) use processor::start;
