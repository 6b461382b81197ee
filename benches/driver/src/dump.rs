//! Time and memory of saving 20 million events of 8 threads.

use std::fs;
use std::path::Path;

use crate::modes::{Mode, Programs};
use crate::requirement::{Limit, Requirement};
use crate::stats::Table;

const MODES: [Mode; 2] = [Mode::On, Mode::OnPublished];
const COLUMNS: [&str; 5] = ["time (s)", "million events", "buffer (MiB)", "resident before (MiB)", "peak (MiB)"];

/// Saves, and looks at what was saved.
pub fn run(programs: &Programs, rounds: usize) -> Result<Vec<Requirement>, String> {
    let mut table = Table::new(&MODES, COLUMNS);
    for round in 0..rounds {
        for place in 0..MODES.len() {
            let mode = MODES[(place + round) % MODES.len()];
            let folder = programs.folder()?;
            let path = folder.to_str().ok_or("the temporary folder's path is not Unicode")?;
            let result = programs.run(mode, &["dump", path])?.concat();
            let [seconds, buffer, before, peak] = result[..] else {
                return Err(format!("dump printed {} numbers instead of 4", result.len()));
            };
            let events = events(&folder)? as f64 / 1e6;
            let values = [seconds, events, buffer / 1024.0, before / 1024.0, peak / 1024.0];
            values.iter().enumerate().for_each(|(column, &value)| table.add(mode, column, value));
        }
    }
    println!("## Saving 20 million events of 8 threads\n");
    println!("Medians over {rounds} rounds (quartiles).\n");
    table.print(|mode, column| table.sample(mode, column));
    let requirement =
        |what, limit, mode, to, column| Requirement::new(what, limit, vec![("", table.ratio(mode, to, column))]);
    Ok(vec![
        requirement("5. time to save, 0.3.2 / ours", Limit::AtLeast(4.0), Mode::OnPublished, Mode::On, 0),
        requirement("5. peak memory, ours / 0.3.2", Limit::AtMost(0.45), Mode::On, Mode::OnPublished, 4),
    ])
}

/// Records in a trace directory.
fn events(directory: &Path) -> Result<u64, String> {
    let failed = |e: std::io::Error| format!("{}: {e}", directory.display());
    let mut bytes = 0;
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.path().extension().is_some_and(|extension| extension == "dat") {
            bytes += entry.metadata().map_err(failed)?.len();
        }
    }
    Ok(bytes / 16)
}
