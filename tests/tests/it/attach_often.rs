//! `rftrace record -p`: what `benches/attach.py` looks for in an hour, for some seconds.

use std::process::Command;

use rftrace_tests::{fixtures, require};

use crate::record::rftrace;

/// Threads in `malloc`, many functions that get branches under threads that call nothing else, and a server whose answers are checked: no
/// hang, no byte of code that stays changed, no wrong answer.
#[test]
fn nothing_hangs_or_stays_changed() {
    if !require(&["gcc", "python3"]) {
        return;
    }
    let mut bench = Command::new(fixtures::repository().join("benches/attach.py"));
    bench.arg(rftrace()).args(["--attaches", "2", "--minutes", "0.02", "--functions", "200", "--server", "1"]);
    let output = bench.output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{errors}{said}");
    for row in
        ["threads in `malloc`, slots", "threads in `malloc`, branches", "cycles for", "while attached to, branches"]
    {
        assert!(said.lines().any(|line| line.contains(row)), "{said}");
    }
}
