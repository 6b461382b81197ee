//! The scenarios of `tests/scenarios`: one trial for each scenario, way and option that are chosen. With the variable `ALL`, all are.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::Arguments;
use rftrace_tests::scenarios::Family;
use rftrace_tests::trials::trial;

fn main() -> ExitCode {
    let all = std::env::var_os("ALL").is_some();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut trials = Vec::new();
    for entry in fs::read_dir(folder).expect("the folder of the scenarios") {
        let file = entry.expect("the folder can be read").path();
        if file.extension().is_none_or(|end| end != "toml") {
            continue;
        }
        let family = Arc::new(Family::read(&file).unwrap_or_else(|error| panic!("{error}")));
        let stem = file.file_stem().expect("a file").to_string_lossy();
        for (number, (way, option)) in family.chosen(all) {
            let name = format!("{stem}-{}/{}/{option}", family.name(number), way.name);
            let family = Arc::clone(&family);
            trials.push(trial(name, move || {
                if way.require(&family.source) {
                    family.run(number, (way, option));
                }
            }));
        }
    }
    trials.sort_by(|one, other| one.name().cmp(other.name()));
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
