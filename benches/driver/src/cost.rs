//! Nanoseconds per call.

use crate::modes::{Mode, Programs};
use crate::requirement::{Limit, Requirement};
use crate::stats::{Sample, Table};

/// Names of the columns, and of the workloads.
const COLUMNS: [&str; 6] =
    ["leaf, Rust", "fib, Rust", "leaf, C", "fib, C", "hundred functions", "leaf below 1023 calls"];
const WORKLOADS: [&str; 6] = ["leaf", "fib", "leaf-c", "fib-c", "hundred", "deep"];
/// Columns for the costs of a call.
const CALLS: [usize; 4] = [0, 1, 2, 3];
const HUNDRED: usize = 4;
const DEEP: usize = 5;

const MODES: [Mode; 12] = [
    Mode::Floor,
    Mode::Untraced,
    Mode::Nops,
    Mode::Off,
    Mode::OffPatched,
    Mode::OffPublished,
    Mode::On,
    Mode::OnPatched,
    Mode::Filtered,
    Mode::FilteredPatched,
    Mode::OnPublished,
    Mode::OnUftrace,
];

/// Measures all modes; returns the required ratios.
pub fn run(programs: &Programs, rounds: usize) -> Result<Vec<Requirement>, String> {
    let table = measure(programs, rounds, &MODES)?;
    let calls = |what, limit, mode, to| Requirement::new(what, limit, table.ratios(mode, to, &CALLS));
    let hundred = |what, limit, mode, to| Requirement::new(what, limit, table.ratios(mode, to, &[HUNDRED]));
    Ok(vec![
        calls("1. on / on, 0.3.2", Limit::AtMost(0.36), Mode::On, Mode::OnPublished),
        calls("1. on / on, uftrace", Limit::AtMost(0.27), Mode::On, Mode::OnUftrace),
        calls("2. on, patched / on, 0.3.2", Limit::AtMost(0.27), Mode::OnPatched, Mode::OnPublished),
        calls("2. on, patched / two `rdtsc`, two stores", Limit::AtMost(1.3), Mode::OnPatched, Mode::Floor),
        calls("(two `rdtsc`, two stores / on, 0.3.2)", Limit::None, Mode::Floor, Mode::OnPublished),
        calls("3. off, patched / NOPs", Limit::AtMost(1.02), Mode::OffPatched, Mode::Nops),
        calls("3. off / off, 0.3.2", Limit::AtMost(1.0), Mode::Off, Mode::OffPublished),
        hundred("6. one of a hundred / off", Limit::AtMost(1.05), Mode::Filtered, Mode::Off),
        hundred(
            "6. one of a hundred, patched / off, patched",
            Limit::AtMost(1.05),
            Mode::FilteredPatched,
            Mode::OffPatched,
        ),
    ])
}

/// Against an earlier commit.
pub fn compare(programs: &Programs, rounds: usize) -> Result<Vec<Requirement>, String> {
    const LIMIT: Limit = Limit::AtMost(1.03);
    let table = measure(programs, rounds, &[Mode::OffBefore, Mode::Off, Mode::OnBefore, Mode::On])?;
    let all: Vec<usize> = (0..WORKLOADS.len()).collect();
    Ok(vec![
        Requirement::new("off / off, before", LIMIT, table.ratios(Mode::Off, Mode::OffBefore, &CALLS)),
        Requirement::new("on / on, before", LIMIT, table.ratios(Mode::On, Mode::OnBefore, &all)),
    ])
}

fn measure(programs: &Programs, rounds: usize, modes: &[Mode]) -> Result<Table<6>, String> {
    let mut table = Table::new(modes, COLUMNS);
    for round in 0..rounds {
        for (column, workload) in WORKLOADS.iter().enumerate() {
            for place in 0..modes.len() {
                // Nobody is always the first.
                let mode = modes[(place + round) % modes.len()];
                if applies(mode, column) {
                    let workload = if mode == Mode::Floor { "floor" } else { workload };
                    let batches = programs.run(mode, &["cost", workload, mode.state()])?;
                    let sample: Sample = batches.iter().filter_map(|batch| batch.first()).copied().collect();
                    table.add(mode, column, sample.median());
                }
            }
        }
    }
    println!("## Cost of a call\n");
    println!("Nanoseconds per call, CPU time: median over {rounds} rounds (quartiles).\n");
    table.print(|mode, column| table.sample(mode, column));
    Ok(table)
}

/// True if a mode is measured in this column.
fn applies(mode: Mode, column: usize) -> bool {
    match column {
        HUNDRED => mode != Mode::Floor,
        // Others count these calls too, or stop the program.
        DEEP => matches!(mode, Mode::Untraced | Mode::On | Mode::OnPatched | Mode::OnBefore),
        _ => !mode.is_filtered(),
    }
}
