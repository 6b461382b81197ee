//! Helpers for the tests of rftrace as a whole: building small programs that trace themselves, running them, and looking
//! at their traces.
//!
//! - [`tools`]: what else a test needs, such as gcc, and what happens where that is missing.
//! - [`fixtures`]: the programs, built on demand. C and C++ sources are in `fixtures/c`, the Rust ones are the binaries of
//!   the package `fixtures/rust`.
//! - [`golden`]: traces that are kept, and the outputs of commands on them.
//! - [`recorder`], [`running`]: programs that `rftrace record` starts, and those that it attaches to.
//! - [`run`]: runs of programs, each in a folder of its own.
//! - [`scenarios`]: programs, and what their traces must show, as data.
//! - [`terminal`]: commands in a terminal.
//! - [`conformance`]: the suite of programs that other tracers run too.
//! - [`trials`]: tests of binaries that list their tests themselves.
//! - [`traces`]: traces that are checked when they are opened, outlines of calls, and what `uftrace` makes of them.
//!
//! Traces are read with `rftrace_read`, which shares no code with what writes them.

pub mod conformance;
pub mod fixtures;
pub mod golden;
pub mod messages;
pub mod recorder;
pub mod run;
pub mod running;
pub mod scenarios;
pub mod terminal;
pub mod tools;
pub mod traces;
pub mod trials;

pub use fixtures::{CProgram, Profile, Program, rust_program};
pub use run::Run;
pub use terminal::Terminal;
pub use tools::require;
pub use traces::{assert_same_lines, open, outline, outline_of};
