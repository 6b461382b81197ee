//! Time: the processor's time stamp counter, the conversion of its ticks to nanoseconds, and dates. The clocks of the system are
//! read in `host`.

#[cfg(all(feature = "std", any(test, not(target_os = "linux"))))]
pub(crate) mod calendar;
#[cfg(feature = "import")]
mod conversion;
pub(crate) mod tsc;

#[cfg(feature = "import")]
pub(crate) use self::conversion::ClockPair;
#[cfg(all(feature = "import", target_os = "linux"))]
pub(crate) use self::conversion::from_start;
#[cfg(feature = "std")]
pub(crate) use self::conversion::{ticks_in, utc_offset_nanos};
