//! Records of Linux's [ftrace](https://docs.kernel.org/trace/ftrace.html): binary pages, formats of events, and the
//! calls in them.
//!
//! Not here: files and directories, tracefs (`rftrace-record`), and the merge with a program's calls (`rftrace-read`).
//!
//! # Overview
//!
//! - [`page`]: reads and writes pages, the sub-buffers of the ring buffer. A page has a time, and events with times
//!   relative to it.
//! - [`format`](mod@format): the fields of an event and their offsets, from the kernel's text.
//! - [`header`]: `kernel_header`, with the formats of the events in a trace directory, in uftrace's form.
//! - [`names`]: the kernel's functions, and the names of system calls.
//! - [`nest`]: nested calls from the events of a task.
//! - [`convert`]: the contents of `kernel-cpu<N>.dat` from a kernel's records: calls with an entry and an exit each,
//!   and times of the trace's clock.
//!
//! # Limits
//!
//! Without the tracer `function_graph` the kernel does not record when functions end. The ends are then assumed, see
//! [`nest`]. All input is untrusted: a wrong length ends a page, and is counted.
//!
//! # Example
//!
//! ```
//! use rftrace_kernel::format::Format;
//!
//! let text = "name: sys_exit\nID: 442\nformat:\n\tfield:long id;\toffset:8;\tsize:8;\tsigned:1;\n";
//! let format = Format::parse(text).expect("a format has a name and a number");
//! assert_eq!((format.name.as_str(), format.id), ("sys_exit", 442));
//! assert_eq!(format.field("id").map(|field| (field.offset, field.size)), Some((8, 8)));
//! ```

pub mod convert;
pub mod format;
pub mod header;
pub mod names;
pub mod nest;
pub mod page;
