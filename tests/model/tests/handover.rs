//! A recorder and the threads of a process share a slot, under shuttle: each request is answered once, no signal comes to another program, each
//! slot has one process, no copy that is wanted is forgotten.
//!
//! Not here: chunks, which are emptied and copied in `threads.rs`.

#![cfg(not(miri))]

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use rftrace_model::lab;
use rftrace_model::slot::{Phase, Slot};
use rftrace_model::steer;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::thread;

/// Tries so many schedules, the same each time, with a switch before any atomic operation.
fn explore(scenario: fn()) {
    const SCHEDULES: usize = 2_000;
    let _alone = lab::alone();
    steer::at_each_point(Some(|_| _ = shuttle::sync::atomic::AtomicBool::new(false).load(SeqCst)));
    let config = shuttle::Config::new;
    shuttle::Runner::new(RandomScheduler::new_from_seed(1, SCHEDULES), config()).run(scenario);
    shuttle::Runner::new(PctScheduler::new_from_seed(1, 3, SCHEDULES), config()).run(scenario);
    steer::at_each_point(None);
}

const N_REQUESTS: usize = 3;

#[test]
fn a_request_is_answered_once() {
    explore(|| {
        let slot = Arc::new(Slot::default());
        let n_begun: Arc<[AtomicUsize]> = (0..N_REQUESTS).map(|_| AtomicUsize::new(0)).collect();
        let is_over = Arc::new(AtomicBool::new(false));
        let process = || {
            let (slot, n_begun, is_over) = (Arc::clone(&slot), Arc::clone(&n_begun), Arc::clone(&is_over));
            thread::spawn(move || {
                while !is_over.load(SeqCst) {
                    if let Some((number, n_bytes)) = slot.begin() {
                        n_begun[n_bytes as usize - 1].fetch_add(1, SeqCst);
                        slot.finish(number, n_bytes + 100);
                    }
                    thread::yield_now();
                }
            })
        };
        let threads = [process(), process()];
        for request in 1..=N_REQUESTS as u32 {
            let number = slot.ask(request).expect("none is open");
            // The first and the last are waited for.
            let is_taken_back = request == 2 && slot.take_back(number);
            let mut phase = slot.phase(number);
            while !is_taken_back && !matches!(phase, Phase::Answered(_)) {
                assert_ne!(phase, Phase::Gone);
                thread::yield_now();
                phase = slot.phase(number);
            }
            if !is_taken_back {
                assert_eq!(phase, Phase::Answered(request + 100), "the answer to another request");
            }
            let expected = usize::from(!is_taken_back);
            assert_eq!(n_begun[request as usize - 1].load(SeqCst), expected, "taken back: {is_taken_back}");
        }
        is_over.store(true, SeqCst);
        threads.into_iter().for_each(|thread| thread.join().expect("a thread of the process"));
        let total: usize = n_begun.iter().map(|n| n.load(SeqCst)).sum();
        assert!((N_REQUESTS - 1..=N_REQUESTS).contains(&total), "{total} answers");
    });
}

/// A signal would kill another program, or be meant for another handler.
fn no_signal_comes_after(exec_nanos: Option<u64>) {
    let slot = Arc::new(Slot::default());
    slot.set_signal(10);
    let is_another = Arc::new(AtomicBool::new(false));
    let (recorded, becomes) = (Arc::clone(&slot), Arc::clone(&is_another));
    let process = thread::spawn(move || {
        recorded.refuse(exec_nanos);
        while recorded.is_sending() {
            thread::yield_now();
        }
        becomes.store(true, SeqCst);
    });
    for _ in 0..3 {
        slot.send(|signal| {
            thread::yield_now();
            assert_eq!((signal, is_another.load(SeqCst)), (10, false), "a signal to another program");
        });
    }
    process.join().expect("the process");
    assert!(!slot.send(|_| panic!("a signal to another program")));
}

#[test]
fn no_signal_comes_to_another_program() {
    explore(|| no_signal_comes_after(Some(1)));
}

#[test]
fn no_signal_comes_to_another_handler() {
    explore(|| no_signal_comes_after(None));
}

#[test]
fn a_slot_has_one_process() {
    explore(|| {
        let slots: Arc<[Slot; 2]> = Arc::default();
        let take = || {
            let slots = Arc::clone(&slots);
            thread::spawn(move || slots.iter().position(Slot::take))
        };
        let taken = [take(), take(), take()].map(|process| process.join().expect("a process"));
        let has = |place| taken.iter().filter(|&&taken| taken == place).count();
        assert_eq!([Some(0), Some(1), None].map(has), [1, 1, 1], "{taken:?}");
    });
}

#[test]
fn no_wanted_copy_is_forgotten() {
    explore(|| {
        let slot = Arc::new(Slot::default());
        let (n_begun, n_done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        for moment in 1..=2 {
            let (slot, n_begun, n_done) = (Arc::clone(&slot), Arc::clone(&n_begun), Arc::clone(&n_done));
            thread::spawn(move || {
                let before = n_begun.load(SeqCst);
                slot.want_copy(moment);
                while slot.is_copy_wanted() {
                    thread::yield_now();
                }
                assert!(n_begun.load(SeqCst) > before, "moment {moment} was not copied");
                n_done.fetch_add(1, SeqCst);
            });
        }
        while n_done.load(SeqCst) < 2 {
            slot.copy_if_wanted(|_| _ = n_begun.fetch_add(1, SeqCst));
            thread::yield_now();
        }
    });
}
