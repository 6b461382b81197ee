//! Time: the processor's time stamp counter, the conversion of its ticks to nanoseconds, and dates; and the
//! clocks of the system, by `linux` or `hermit`.

#[cfg(all(feature = "std", any(test, not(target_os = "linux"))))]
pub(crate) mod calendar;
#[cfg(feature = "import")]
mod conversion;
#[cfg(all(feature = "std", not(target_os = "linux")))]
mod hermit;
#[cfg(all(feature = "import", target_os = "linux"))]
mod linux;
pub(crate) mod tsc;

#[cfg(feature = "import")]
pub(crate) use self::conversion::ClockPair;
#[cfg(all(feature = "import", target_os = "linux"))]
pub(crate) use self::conversion::from_start;
#[cfg(feature = "std")]
pub(crate) use self::conversion::{ticks_in, utc_offset_nanos};
#[cfg(all(feature = "std", not(target_os = "linux")))]
pub(crate) use self::hermit::{exact_rate, monotonic_nanos, tsc_hz};
#[cfg(all(feature = "import", target_os = "linux"))]
pub(crate) use self::linux::tsc_hz;
#[cfg(all(feature = "std", target_os = "linux"))]
pub(crate) use self::linux::{exact_rate, monotonic_nanos};
