//! Parallel work on several tasks.
//!
//! Not here: the work itself, and workers that keep data from one task to the next (`rftrace_views`).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// The maximum number of threads.
const MAX_THREADS: usize = 16;

/// Calls `work` for each number below `n`, several at a time. Returns the results in order.
///
/// # Errors
///
/// The error of the lowest number that fails. No piece of work begins after a failure.
pub fn some_at_a_time<T: Send, E: Send>(n: usize, work: impl Fn(usize) -> Result<T, E> + Sync) -> Result<Vec<T>, E> {
    let n_threads = thread::available_parallelism().map_or(1, usize::from).min(n).clamp(1, MAX_THREADS);
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(n));
    // Each thread takes the next one that nobody has.
    let take = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= n {
                break;
            }
            let one = work(number);
            if one.is_err() {
                next.store(n, Ordering::Relaxed);
            }
            done.lock().unwrap_or_else(PoisonError::into_inner).push((number, one));
        }
    };
    thread::scope(|scope| {
        for _ in 1..n_threads {
            // Where there can be no more threads this one does all.
            let _ = thread::Builder::new().spawn_scoped(scope, take);
        }
        take();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, one)| one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_done_once_and_in_order() {
        for n in [0, 1, 2, 1000] {
            let times: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
            let square = |number: usize| {
                times[number].fetch_add(1, Ordering::Relaxed);
                Ok::<_, ()>(number * number)
            };
            assert_eq!(some_at_a_time(n, square), Ok((0..n).map(|number| number * number).collect()));
            assert!(times.iter().all(|times| times.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn one_that_fails_ends_the_others() {
        let begun = AtomicUsize::new(0);
        let failing = |number: usize| {
            begun.fetch_add(1, Ordering::Relaxed);
            if number < 5 { Ok(()) } else { Err(number) }
        };
        // Of those that are at work at the same time several may fail.
        assert!(some_at_a_time(1_000_000, failing).is_err_and(|number| number < 5 + MAX_THREADS));
        assert!(begun.into_inner() <= 5 + MAX_THREADS);
    }
}
