//! Threads.

use super::super::{ALL_BUILDS, Case, Fault, Seen};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::c("threads", "threads.c", "8 threads, 10,000 calls each", |seen| threads(seen, 8, 5_000))
            .with(&["-DN_THREADS=8", "-DAT_ONCE=8", "-DN_CALLS=5000"])
            .built(ALL_BUILDS),
        Case::c("2,000 threads", "threads.c", "one after the other", |seen| threads(seen, 2_000, 2))
            .with(&["-DN_THREADS=2000", "-DAT_ONCE=1", "-DN_CALLS=2"])
            .built(&["-O2"]),
        Case::c("2,000 threads, 16 at once", "threads.c", "16 at a time", |seen| threads(seen, 2_000, 2))
            .with(&["-DN_THREADS=2000", "-DAT_ONCE=16", "-DN_CALLS=2"])
            .built(&["-O2", "-O2 -mfentry"]),
        Case::c("saved amid calls", "save_amid.c", "saved while 60 threads call functions", saved_amid).ending_open(),
        Case::c("early thread", "early_thread.c", "recording begins amid calls of two threads", early_thread)
            .switching(),
    ]
}

fn threads(seen: &Seen, n_threads: usize, n_calls: usize) -> Result<(), Fault> {
    let worker = format!("worker\n{}", "  outer\n    inner\n".repeat(n_calls));
    seen.outlines(&[(&worker, n_threads)])
}

/// Functions open at the begin of recording are not in the trace, or are, if the tracer knows of them.
fn early_thread(seen: &Seen) -> Result<(), Fault> {
    let open = [("begins\n  leaf\n  leaf\n", 1), ("outer\n  inner\n    leaf\n    leaf\n  leaf\nleaf\n", 1)];
    seen.outlines(&open).or_else(|_| seen.outlines(&[("leaf\nleaf\n", 1), (&"leaf\n".repeat(4), 1)]))
}

fn saved_amid(seen: &Seen) -> Result<(), Fault> {
    if seen.tasks.len() != 60 {
        return Err(Fault::new("lost threads", format!("{} tasks", seen.tasks.len())));
    }
    let edges = seen.edges();
    let edge = |caller, callee| edges.get(&(caller, callee)).copied().unwrap_or(0);
    let n_pairs = edge("worker", "pair");
    let n_leaves = edge("pair", "leaf");
    // Each thread may be amid one when the trace ends.
    if edge("-", "worker") == 60
        && n_pairs >= 60
        && (2 * n_pairs - 120..=2 * n_pairs).contains(&n_leaves)
        && edges.len() == 3
    {
        Ok(())
    } else {
        Err(Fault::new("wrong tree", format!("{edges:?}")))
    }
}
