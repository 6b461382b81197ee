//! The clocks of a system other than Linux, such as Hermit: those of its standard library.

use std::sync::OnceLock;
use std::time::Instant;

use super::tsc::{self, TscSource};

#[cfg(target_os = "hermit")]
unsafe extern "C" {
    safe fn sys_get_processor_frequency() -> u16;
}

/// Nanoseconds since this function was first called.
pub(crate) fn monotonic_nanos() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the rate of the time stamp counter, from the processor or else from the kernel. A measurement is no help:
/// kernels compute their clock from the counter by their own rate, in whole microseconds.
pub(crate) fn exact_rate() -> Option<(u64, TscSource)> {
    tsc::exact_hz().or_else(|| Some((kernel_hz()?, TscSource::Kernel)))
}

/// Returns the same: there is no other source.
pub(crate) fn tsc_hz() -> Option<(u64, TscSource)> {
    exact_rate()
}

/// The frequency of the kernel's clock; it knows MHz.
#[cfg(target_os = "hermit")]
fn kernel_hz() -> Option<u64> {
    Some(u64::from(sys_get_processor_frequency()) * 1_000_000).filter(|&hz| hz > 0)
}

#[cfg(not(target_os = "hermit"))]
fn kernel_hz() -> Option<u64> {
    None
}
