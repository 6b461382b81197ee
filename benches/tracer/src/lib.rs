//! Parts of a measured program: the functions of a tracer, chosen by a feature, and clocks.

#[cfg(not(any(feature = "ours", feature = "published")))]
mod none;

#[cfg(not(any(feature = "ours", feature = "published")))]
pub use none::{Events, disable, dump_full_uftrace, enable, init};
// The backend defines `mcount`.
#[cfg(feature = "ours")]
use ours as _;
#[cfg(feature = "ours")]
pub use ours_frontend::{Events, disable, dump_full_uftrace, enable, init};
#[cfg(feature = "published")]
use published as _;
#[cfg(feature = "published")]
pub use published_frontend::{Events, disable, dump_full_uftrace, enable, init};

/// Bytes of the buffer that one event takes.
pub const EVENT_BYTES: usize = if cfg!(feature = "ours") { 16 } else { 40 };

/// CPU time of this thread, in nanoseconds: what other programs take of the processor does not count.
pub fn thread_nanos() -> u64 {
    nanos(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time of all threads of this program.
pub fn process_nanos() -> u64 {
    nanos(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Time since some moment.
pub fn wall_nanos() -> u64 {
    nanos(libc::CLOCK_MONOTONIC)
}

fn nanos(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Traces a whole program, where the environment says `RFTRACE_BENCH=on`, into a ring of a million events, and prints
/// the seconds that it took: CPU time of all threads, wall clock.
pub fn whole_program<T>(program: impl FnOnce() -> T) -> T {
    let _events = init(1 << 20, true);
    let (cpu, wall) = (process_nanos(), wall_nanos());
    if std::env::var_os("RFTRACE_BENCH").is_some_and(|state| state == "on") {
        enable();
    }
    let result = program();
    disable();
    let (cpu, wall) = (process_nanos() - cpu, wall_nanos() - wall);
    println!("result {} {}", cpu as f64 / 1e9, wall as f64 / 1e9);
    result
}
