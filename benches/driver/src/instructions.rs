//! Instructions per call: a figure without noise.

use crate::modes::{Mode, Programs};
use crate::requirement::Requirement;
use crate::stats::Table;

const MODES: [Mode; 10] = [
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
];
const COLUMNS: [&str; 4] = ["leaf, Rust", "fib, Rust", "leaf, C", "hundred functions"];
const WORKLOADS: [&str; 4] = ["leaf", "fib", "leaf-c", "hundred"];

/// By the difference of two runs.
pub fn run(programs: &Programs) -> Result<Vec<Requirement>, String> {
    let mut table = Table::new(&MODES, COLUMNS);
    for mode in MODES {
        for (column, workload) in WORKLOADS.iter().enumerate() {
            if mode.is_filtered() && *workload != "hundred" {
                continue;
            }
            let run = |calls: &str| -> Result<(f64, f64), String> {
                let arguments = ["count", workload, mode.state(), calls];
                let made = programs.run(mode, &arguments)?.concat().into_iter().sum();
                Ok((made, programs.instructions(mode, &arguments)? as f64))
            };
            let ((few, few_instructions), (many, many_instructions)) = (run("100000")?, run("400000")?);
            table.add(mode, column, (many_instructions - few_instructions) / (many - few));
        }
    }
    println!("## Instructions\n");
    println!("Instructions per call, by callgrind, recording into a new buffer.\n");
    table.print(|mode, column| table.sample(mode, column));
    Ok(Vec::new())
}
