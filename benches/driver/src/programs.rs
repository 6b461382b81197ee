//! Real programs: how much longer they take.

use std::env;

use crate::modes::{Mode, Programs};
use crate::requirement::Requirement;
use crate::stats::Table;

const MODES: [Mode; 8] = [
    Mode::Untraced,
    Mode::Off,
    Mode::OffPatched,
    Mode::OffPublished,
    Mode::On,
    Mode::OnPatched,
    Mode::OnPublished,
    Mode::OnUftrace,
];
const COLUMNS: [&str; 4] =
    ["ripgrep, CPU time", "ripgrep, wall clock", "serde_json, CPU time", "serde_json, wall clock"];
/// The search pattern: some 30,000 lines.
const PATTERN: &str = "fn [a-z_]+";

/// ripgrep searches a tree with two threads; serde_json parses a large text.
pub fn run(programs: &Programs, rounds: usize) -> Result<Vec<Requirement>, String> {
    let tree = env::var("RIPGREP_TREE").map_err(|_| "RIPGREP_TREE does not name what ripgrep searches")?;
    let ripgrep = ["--no-config", "--threads=2", "--line-number", PATTERN, &tree];
    // So that the tree is in the page cache.
    programs.run_ripgrep(Mode::Untraced, &ripgrep)?;
    let mut table = Table::new(&MODES, COLUMNS);
    for round in 0..rounds {
        for place in 0..MODES.len() {
            let mode = MODES[(place + round) % MODES.len()];
            let results = [programs.run_ripgrep(mode, &ripgrep)?, programs.run(mode, &["json"])?];
            for (number, result) in results.iter().enumerate() {
                let seconds = result.first().map_or([f64::NAN; 2], |line| [line[0], line[1]]);
                table.add(mode, 2 * number, seconds[0]);
                table.add(mode, 2 * number + 1, seconds[1]);
            }
        }
    }
    println!("## Real programs\n");
    println!("Seconds untraced, below it the factors by which they grow: median over {rounds} rounds (quartiles).");
    println!("CPU time is that of the program, without uftrace's writer.\n");
    table.print(|mode, column| match mode {
        Mode::Untraced => table.sample(mode, column),
        _ => table.ratio(mode, Mode::Untraced, column),
    });
    Ok(Vec::new())
}
