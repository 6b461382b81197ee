//! Facts about the processor beyond the tracer's own reach.

#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(not(target_arch = "aarch64"), path = "nothing.rs")]
mod processor;

pub(crate) use processor::tell_tracer;
