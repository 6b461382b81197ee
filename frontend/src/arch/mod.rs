//! Facts about the processor that the tracer cannot find out by itself.

#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(not(target_arch = "aarch64"), path = "nothing.rs")]
mod processor;

pub(crate) use processor::tell_tracer;
