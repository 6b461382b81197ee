//! Programs in C, C++ and Rust trace themselves; their traces, results, registers and messages are compared with what they
//! must be. One binary, so that fixtures are built once and everything runs side by side.

extern crate rftrace as _; // the tracer itself

mod archive;
mod calls;
mod conformance;
mod control_flow;
mod cycles;
mod debugger;
mod deep;
mod filters;
mod full;
mod images;
mod kernel;
mod kvm;
mod merge;
mod misuse;
mod names;
mod patched;
mod record;
mod registers;
mod rust_at_large;
mod samplers;
mod sanitizers;
mod storm;
mod strikes;
mod subbuild;
mod threads;
mod time;
mod uftrace;
mod unwinding;
