//! Guest and host on one timeline: traces, KVM's events, and perf's recordings.
//!
//! [`Merge::open`] reads the sources' metadata, and finds the relation between their clocks. [`Merge::export`] and
//! [`Merge::write_directory`] write the timeline.
//!
//! Not here: the formats of other tools (`rftrace-export`), and reading a trace directory (`rftrace-read`).

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
