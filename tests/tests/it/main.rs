//! Programs in C, C++ and Rust trace themselves; their traces, results, registers and messages are compared with what they
//! must be. One binary, so that fixtures are built once and everything runs side by side.

extern crate rftrace as _; // the tracer itself

mod aarch64;
mod aarch64_record;
mod archive;
mod attach;
mod buffers;
mod calls;
mod cargo_rftrace;
mod conformance;
mod control;
mod control_flow;
mod cycles;
mod debugger;
mod deep;
mod descriptors;
mod dumps;
mod entry_branches;
mod filters;
mod full;
mod functracer;
mod images;
mod interrupted;
mod kernel;
mod known_work;
mod kvm;
mod library_calls;
mod merge;
mod misuse;
mod names;
mod own_streams;
mod patched;
mod record;
mod record_limits;
mod record_places;
mod recorded_programs;
mod registers;
mod resources;
mod rust_at_large;
mod samplers;
mod sanitizers;
mod storm;
mod streaming;
mod strikes;
mod subbuild;
mod switching;
mod ten_traces;
mod threads;
mod time;
mod top;
mod types;
mod uftrace;
mod unfinished;
mod unwinding;
mod values;
