//! The commands' outputs for the golden traces: `tests/golden`.

use std::env;
use std::path::Path;
use std::process::Command;
use std::thread;

use rftrace_tests::golden::{check, names};

use crate::perfetto;

/// The output of a command, its messages, and its status if that is not 0.
fn shell(command: &str, dir: &Path) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_rftrace")).parent().expect("a folder");
    let path = format!("{}:{}", program.display(), env::var("PATH").expect("a search path"));
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).current_dir(dir).env("PATH", path).envs([("LC_ALL", "C.UTF-8"), ("TZ", "UTC")]);
    let output = shell.env_remove("NO_COLOR").output().expect("a shell");
    let mut text = if output.stdout.starts_with(b"\n") && command.contains("--perfetto") {
        packets(&output.stdout)
    } else {
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    for line in String::from_utf8_lossy(&output.stderr).lines() {
        text.push_str(&format!("! {line}\n"));
    }
    if !output.status.success() {
        text.push_str(&format!("? {}\n", output.status.code().expect("an exit status")));
    }
    text
}

/// The packets of Perfetto's format, one a line, without absent fields.
fn packets(bytes: &[u8]) -> String {
    let line = |packet| {
        let text = format!("{packet:?}\n").replace("Some(", "(");
        text.split(", ").filter(|field| !field.ends_with(": None")).collect::<Vec<_>>().join(", ")
    };
    perfetto::parse(bytes).iter().map(line).collect()
}

#[test]
fn outputs_are_as_before() {
    let differences: String = thread::scope(|scope| {
        let names = names().into_iter().filter(|name| name != "tui");
        let checks: Vec<_> = names.map(|name| scope.spawn(move || check(&name, shell).err())).collect();
        checks.into_iter().filter_map(|check| check.join().expect("no panic")).collect()
    });
    assert!(differences.is_empty(), "{differences}\nWhere this is right: UPDATE=1");
}
