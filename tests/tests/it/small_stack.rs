//! `rftrace record --resources` in handlers and threads with small stacks, where all callers are new: they live.

use std::process::Command;

use rftrace_tests::{CProgram, require};
use serde_json::Value;

use super::record::rftrace;
use super::resources::{functions, values_as_told};

#[test]
fn callers_are_found_on_small_stacks() {
    if !require(&["gcc"]) {
        return;
    }
    let program = CProgram::new(&["small_stack.c"]).without_hooks().without_library();
    // The checks of debug builds take 2 KiB more than users' builds, for which 8 are enough.
    let program =
        program.with(&["-g", "-O1", "-fno-builtin", "-pthread", "-fno-omit-frame-pointer", "-DBYTES=12288"]).build();
    for backtraces in ["none", "fp", "cfi"] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(rftrace());
        command.args([
            "record",
            "--no-schedule",
            "-q",
            "-o",
            "trace",
            "--backtraces",
            backtraces,
            "--resources",
            "memory,file",
        ]);
        let output = command.arg("--").arg(&program.path).current_dir(folder.path()).output().unwrap();
        assert!(output.status.success(), "{backtraces}: {output:?}");
        let found: Value = values_as_told(&folder, &[]).0;
        let stacks = found["stacks"].as_array().unwrap();
        for number in (1..=3).filter(|_| backtraces != "none") {
            for function in ["memory", "file"] {
                let callers = [
                    function.to_owned(),
                    format!("inner_{number}"),
                    format!("middle_{number}"),
                    format!("outer_{number}"),
                ];
                assert!(
                    stacks.iter().any(|stack| functions(stack).starts_with(&callers.each_ref().map(String::as_str))),
                    "{backtraces}, {callers:?}: {stacks:#?}"
                );
            }
        }
    }
}
