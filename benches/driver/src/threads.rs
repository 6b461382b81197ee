//! Events per second of one thread, and of two threads on two processors.

use crate::modes::{Mode, Programs};
use crate::requirement::{Limit, Requirement};
use crate::stats::{Sample, Table};

const MODES: [Mode; 4] = [Mode::Floor, Mode::On, Mode::OnPatched, Mode::OnPublished];
const WORKLOADS: [&str; 2] = ["leaf", "fib"];

/// By wall clock, from the first thread's start to the last one's end; CPU time beside it.
pub fn run(programs: &Programs, rounds: usize) -> Result<Vec<Requirement>, String> {
    const COLUMNS: [&str; 4] = ["leaf, one thread", "leaf, two threads", "fib, one thread", "fib, two threads"];
    let [mut wall, mut cpu] = [const { COLUMNS }; 2].map(|names| Table::new(&MODES, names));
    for round in 0..rounds {
        for (workload_idx, workload) in WORKLOADS.iter().enumerate() {
            for place in 0..2 * MODES.len() {
                let place = (place + round) % (2 * MODES.len());
                let (mode, threads) = (MODES[place / 2], place % 2 + 1);
                let workload = if mode == Mode::Floor { "floor" } else { workload };
                let batches = programs.run(mode, &["cost", workload, mode.state(), &threads.to_string()])?;
                let median = |number: usize| {
                    batches.iter().filter_map(|batch| batch.get(number)).copied().collect::<Sample>().median()
                };
                let column = 2 * workload_idx + threads - 1;
                // Two events per call; the program prints nanoseconds.
                cpu.add(mode, column, 2e3 * threads as f64 / median(0));
                wall.add(mode, column, 2e3 / median(1));
            }
        }
    }
    println!("## Threads\n");
    println!("Million events per second, by wall clock: median over {rounds} rounds (quartiles).");
    println!("What was recorded while a thread waited for its processor does not count.\n");
    wall.print(|mode, column| wall.sample(mode, column));
    let ratios = |what: &str, limit, mode| {
        let ratio = |table: &Table<4>, column| table.between(mode, column + 1, column);
        let measured = vec![
            ("leaf", ratio(&wall, 0)),
            ("fib", ratio(&wall, 2)),
            ("by CPU time: leaf", ratio(&cpu, 0)),
            ("fib", ratio(&cpu, 2)),
        ];
        Requirement::new(format!("{what}: two threads / one"), limit, measured)
    };
    Ok(vec![
        ratios("4. on", Limit::AtLeast(1.9), Mode::On),
        ratios("4. on, patched", Limit::AtLeast(1.9), Mode::OnPatched),
        ratios("(two `rdtsc`, two stores)", Limit::None, Mode::Floor),
        ratios("(on, 0.3.2)", Limit::None, Mode::OnPublished),
    ])
}
