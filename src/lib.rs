//! The backend of rftrace, a function tracer for programs and kernels whose compiler put a call to
//! `mcount` into every function.
//!
//! Linking this crate gives a program the functions `mcount` and `__fentry__`. They do nothing until a
//! frontend (the crate [`rftrace-frontend`](https://docs.rs/rftrace-frontend)) hands over a buffer and switches
//! tracing on; from then on every function entry and exit is stored in the buffer with its time stamp.
//!
//! ```toml
//! [dependencies]
//! rftrace = "0.3.3"
//! rftrace-frontend = "0.3.3"
//! ```
//!
//! ```ignore
//! extern crate rftrace as _; // links the tracer
//!
//! fn main() {
//!     let events = rftrace_frontend::init(1_000_000, false);
//!     rftrace_frontend::enable();
//!     work();
//!     rftrace_frontend::dump_full_uftrace(events, "trace", "program").unwrap();
//! }
//! ```
//!
//! Build the program with `RUSTFLAGS="-Z instrument-mcount"` on nightly, or C code with `gcc -pg`.
//!
//! # How it works
//!
//! The tracer itself lives in `staticlib/`: a `no_std` library without dependencies, allocation or OS, which
//! this crate's build script compiles apart from the program, so that it is never instrumented, may be built for
//! another target (a kernel's, without vector registers) and shares no symbol with the program's own copy of `core`.
//! This crate holds what the tracer and its frontends agree on: the [`abi`].
//!
//! # Features
//!
//! - `backend` (default): builds and links the tracer. A frontend that only needs the [`abi`] switches it off.
//! - `interruptsafe`: for kernels that trace their interrupt handlers.
//! - `autokernel`: says nothing new. For Hermit targets the tracer is always built for `x86_64-unknown-none`, `interruptsafe`.
//! - `buildcore`: compiles `core` from source (`-Z build-std=core`, needs nightly and the component `rust-src`).
//!
//! The environment variable `RFTRACE_TARGET_TRIPLE` names another target for the tracer: a triple, or the path of a
//! target specification.
//!
//! # For other build scripts
//!
//! The package `links` the name `rftrace`: the build script of a direct dependent finds the archive's path in
//! `DEP_RFTRACE_ARCHIVE`.

#![no_std]

pub mod abi;
