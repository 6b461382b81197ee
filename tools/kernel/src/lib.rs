//! Records of Linux's [ftrace](https://docs.kernel.org/trace/ftrace.html): binary pages, formats of events, the calls in them.
//!
//! Not here: files and directories, tracefs (`rftrace-record`), and how the kernel's calls come among a program's
//! (`rftrace-read`).
//!
//! # Overview
//!
//! - [`page`]: sub-buffers of the ring buffer, read and written. A page has a time, and events with times relative to it.
//! - [`format`](mod@format): fields of an event and their offsets, by the text that the kernel gives.
//! - [`header`]: `kernel_header`, with the formats of the events in a trace directory, as uftrace has it.
//! - [`names`]: the kernel's functions, and names of system calls.
//! - [`nest`]: from the events of a task to calls that lie within one another.
//! - [`convert`]: from a kernel's records to the contents of `kernel-cpu<N>.dat`: calls with an entry and an exit each, with
//!   times of the trace's clock.
//!
//! # Limits
//!
//! Without the tracer `function_graph` the kernel does not tell when functions end. The ends are assumed then; [`nest`] says how.
//! All input is untrusted: wrong lengths end a page, and are counted.

pub mod convert;
pub mod format;
pub mod header;
pub mod names;
pub mod nest;
pub mod page;
