//! Guest and host on one timeline: traces, KVM's events, and what perf recorded.

mod clock;
mod counters;
mod directory;
mod kvm;
mod lines;
mod offsets;
mod perf;
mod sink;
mod stage;
mod timeline;

pub use clock::{ClockFile, TscClock};
pub use timeline::{Merge, MergeOptions};
