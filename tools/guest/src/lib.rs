//! Guest and host on one timeline: traces, KVM's events, and what perf recorded.
//!
//! [`Merge::open`] looks at the sources, and finds how their clocks belong together; [`Merge::export`] and
//! [`Merge::write_directory`] write the timeline.
//!
//! Not here: other tools' formats (`rftrace-export`), and how a trace directory is read (`rftrace-read`).

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod alignment;
mod counters;
mod directory;
mod feed;
mod ids;
mod kvm;
mod kvm_feed;
mod offsets;
mod perf;
mod scan;
mod seconds;
mod sink;
mod source;
mod stage;
mod task_feed;
mod timeline;

pub use rftrace_format::clock::TscClock;
pub use timeline::{Merge, MergeOptions};
