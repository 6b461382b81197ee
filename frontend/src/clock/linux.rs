//! The clocks of Linux, and the rate of the processor's counter as it is known there.

use super::tsc::{self, TscSource};
use rftrace_format::system;

/// CLOCK_MONOTONIC.
#[cfg(feature = "std")]
pub(crate) fn monotonic_nanos() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// CLOCK_MONOTONIC has the best rate: it is finer, and follows the time of the network.
#[cfg(feature = "std")]
pub(crate) fn exact_rate() -> Option<(u64, TscSource)> {
    None
}

/// Returns the frequency of the time stamp counter and its source; the most exact source comes first.
pub(crate) fn tsc_hz() -> Option<(u64, TscSource)> {
    let kernel = || {
        let khz = system::read("/sys/devices/system/cpu/cpu0/tsc_freq_khz").ok()?;
        let khz: u64 = str::from_utf8(&khz).ok()?.trim().parse().ok()?;
        khz.checked_mul(1000).filter(|&hz| hz > 0)
    };
    tsc::exact_hz().or_else(|| Some((kernel()?, TscSource::Kernel))).or_else(tsc::nominal_hz)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_has_the_rate_of_a_processor() {
        if let Some((hz, source)) = tsc_hz() {
            assert!((100_000_000..100_000_000_000).contains(&hz), "{hz} {source:?}");
        }
        if std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default().contains("nonstop_tsc") {
            assert!(tsc::is_invariant());
        }
    }
}
