//! Events per second of one thread, and of two threads on two processors.

use crate::modes::{Mode, Programs};
use crate::requirement::{Limit, Requirement};
use crate::stats::{Sample, Table};

const MODES: [Mode; 4] = [Mode::Floor, Mode::On, Mode::OnPatched, Mode::OnPublished];
const WORKLOADS: [&str; 2] = ["leaf", "fib"];

/// By wall clock, from the first thread's start to the last one's end; CPU time beside it.
pub fn run(programs: &Programs, rounds: usize) -> Result<Vec<Requirement>, String> {
    const COLUMNS: [&str; 4] = ["leaf, one thread", "leaf, two threads", "fib, one thread", "fib, two threads"];
    const RATIOS: [&str; 4] = ["leaf", "fib", "by CPU time: leaf", "fib"];
    let mut speeds = Table::new(&MODES, COLUMNS);
    let mut ratios = Table::new(&MODES, RATIOS);
    for round in 0..rounds {
        for (workload_idx, workload) in WORKLOADS.iter().enumerate() {
            for place in 0..MODES.len() {
                let mode = MODES[(place + round) % MODES.len()];
                let workload = if mode == Mode::Floor { "floor" } else { workload };
                let turns = programs.run(mode, &["two-threads", workload, mode.state()])?;
                let median = |value: fn(&[f64; 4]) -> f64| {
                    turns.iter().filter_map(|turn| turn.first_chunk()).map(value).collect::<Sample>().median()
                };
                // Two events per call; the program prints nanoseconds.
                speeds.add(mode, 2 * workload_idx, 2e3 / median(|[one, ..]| *one));
                speeds.add(mode, 2 * workload_idx + 1, 2e3 / median(|[_, two, ..]| *two));
                ratios.add(mode, workload_idx, median(|[one, two, ..]| one / two));
                ratios.add(mode, WORKLOADS.len() + workload_idx, median(|[_, _, one, two]| one / two));
            }
        }
    }
    println!("## Threads\n");
    println!("Million events per second, by wall clock: median over {rounds} rounds (quartiles).");
    println!("What was recorded while a thread waited for its processor does not count.\n");
    speeds.print(|mode, column| speeds.sample(mode, column));
    let ratios = |what: &str, limit, mode| {
        let measured = RATIOS.iter().enumerate().map(|(column, name)| (*name, ratios.sample(mode, column))).collect();
        Requirement::new(format!("{what}: two threads / one"), limit, measured)
    };
    Ok(vec![
        ratios("4. on", Limit::AtLeast(1.9), Mode::On),
        ratios("4. on, patched", Limit::AtLeast(1.9), Mode::OnPatched),
        ratios("(two `rdtsc`, two stores)", Limit::None, Mode::Floor),
        ratios("(on, 0.3.2)", Limit::None, Mode::OnPublished),
    ])
}
