//! Differences between processors. The code for the begin and the end of traced threads is assembly, as this crate may
//! be instrumented, and its functions would be a part of the trace. Some features of the tracer exist on a few
//! processors only.

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(target_arch = "riscv64", path = "riscv64.rs")]
mod processor;

pub(crate) use processor::HAS_VALUES;
pub(super) use processor::{thread_exit, thread_start};
