//! The backend of rftrace, a function tracer for programs and kernels. The compiler puts a call to `mcount` into every
//! function; this crate links the tracer behind these calls.
//!
//! Linking this crate adds the hooks `mcount` and `__fentry__` to a program. They do nothing until a frontend (the
//! crate [`rftrace-frontend`](https://docs.rs/rftrace-frontend)) gives the tracer a buffer and starts recording. From
//! then on each function entry and exit takes one record of 16 bytes in the buffer, with its time stamp.
//!
//! # Example
//!
//! ```toml
//! [dependencies]
//! rftrace = { git = "https://github.com/hermit-os/rftrace" }
//! rftrace-frontend = { git = "https://github.com/hermit-os/rftrace" }
//! ```
//!
//! ```ignore
//! extern crate rftrace as _; // links the tracer
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let tracer = rftrace_frontend::Config::new().directory("trace").install()?;
//!     {
//!         let _recording = tracer.record();
//!         work();
//!     }
//!     tracer.save()?;
//!     Ok(())
//! }
//!
//! #[inline(never)]
//! fn work() {
//!     println!("at work");
//! }
//! ```
//!
//! Build a Rust program with `RUSTFLAGS="-Z instrument-mcount" cargo +nightly run --target x86_64-unknown-linux-gnu`,
//! or C code with `gcc -pg`. After the run, `rftrace replay trace` shows every call.
//!
//! # How it works
//!
//! The tracer lives in `staticlib/`: a `no_std` library without dependencies, allocation or OS. The build script of
//! this crate compiles it apart from the program. So the tracer is never instrumented, can be built for another target
//! (a kernel's, without vector registers) and shares no symbol with the program's copy of `core`. This crate itself
//! holds the interface of the tracer and its frontends: the module [`abi`].
//!
//! # Features
//!
//! - `backend` (default): builds and links the tracer. A frontend that only needs the [`abi`] switches it off.
//! - `interruptsafe`: for kernels that trace their interrupt handlers. A return keeps every register.
//! - `threadhook`: for kernels that locate a task's state themselves, see [`abi::ThreadArea`].
//! - `outside`: also builds the tracer that `rftrace record -p` puts into a running process (x86-64 Linux).
//! - `autokernel`: has no effect. For Hermit targets the build script always builds an `interruptsafe` tracer for
//!   `x86_64-unknown-none`.
//! - `buildcore`: compiles `core` from source (`-Z build-std=core`; needs nightly and the component `rust-src`).
//!
//! The environment variable `RFTRACE_TARGET_TRIPLE` sets another target for the tracer: a triple, or the path of a
//! target specification.
//!
//! # For other build scripts
//!
//! The package `links` the name `rftrace`. The build script of a direct dependent finds the path of the tracer's
//! archive in the variable `DEP_RFTRACE_ARCHIVE`.

#![no_std]

pub mod abi;
