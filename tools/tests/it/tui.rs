//! `rftrace tui`, and pagers, in a real terminal, which `script` makes.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rftrace_tests::Terminal;
use rftrace_tests::tools;

use crate::cli::{run, utf8};
use crate::dir::{A, Dir, MAIN, entry, exit, lost, trace};

fn sample() -> Dir {
    trace(&[entry(1, 0, MAIN), entry(2, 1, A), exit(3, 1, A), exit(5, 0, MAIN)])
}

/// Looks at a trace. `None` if there is no `script`.
fn tui(dir: &Dir) -> Option<Terminal> {
    let command = format!("{} tui {}", env!("CARGO_BIN_EXE_rftrace"), dir.path().display());
    Terminal::new(&command, &dir.file("pid"))
}

#[test]
fn keys_and_the_end() {
    let dir = sample();
    let Some(mut terminal) = tui(&dir) else { return };
    terminal.wait_for("main");
    terminal.press("R");
    terminal.wait_for("Calls");
    terminal.press("T");
    terminal.wait_for("DURATION");
    terminal.press("q");
    terminal.end("0");
}

#[test]
fn what_is_missing_is_said_at_the_end() {
    let dir = trace(&[entry(1, 0, MAIN), lost(2, 5), exit(5, 0, MAIN)]);
    let Some(mut terminal) = tui(&dir) else { return };
    terminal.wait_for("gaps:");
    terminal.press("q");
    terminal.wait_for("rftrace: 5 records were lost while tracing");
    terminal.end("0");
}

#[test]
fn a_signal() {
    let dir = sample();
    let Some(mut terminal) = tui(&dir) else { return };
    terminal.wait_for("main");
    let pid = fs::read_to_string(dir.file("pid")).expect("the shell has written it");
    let killed = Command::new("kill").args(["-TERM", pid.trim()]).status().expect("kill");
    assert!(killed.success());
    terminal.end("143");
}

/// When the terminal is gone, as a window that is closed, nobody ends it by a key.
#[test]
fn the_terminal_goes() {
    let dir = sample();
    let Some(mut terminal) = tui(&dir) else { return };
    terminal.wait_for("main");
    let pid = fs::read_to_string(dir.file("pid")).expect("the shell has written it");
    let process = Path::new("/proc").join(pid.trim());
    assert!(process.exists());
    let ended = Command::new("pkill").args(["-KILL", "-P", &terminal.child.id().to_string()]).status().expect("pkill");
    assert!(ended.success(), "`script` runs below `timeout`");
    terminal.child.wait().expect("it has ended");
    let is_over = || match fs::read_to_string(process.join("stat")) {
        // Nobody may be there to take its status.
        Ok(stat) => stat.contains(") Z "),
        Err(_) => true,
    };
    let start = Instant::now();
    while !is_over() {
        assert!(start.elapsed() < Duration::from_secs(30), "it goes on without its terminal");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn no_terminal() {
    let dir = sample();
    let (code, out, message) = run(&["tui", utf8(dir.path())]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(message.starts_with("rftrace: stdout is not a terminal: use `rftrace graph`"), "{message}");
}

/// The output of `replay` in a terminal.
fn replay(dir: &Dir, environment: &[(&str, &str)], options: &str) -> String {
    let mut command = Command::new("timeout");
    let replay = format!("{} replay {options} {}", env!("CARGO_BIN_EXE_rftrace"), dir.path().display());
    command.args(["60", "script", "--quiet", "--return", "--command", &replay, "/dev/null"]);
    command.env("TERM", "xterm").env("SHELL", "/bin/sh").env_remove("NO_COLOR").env_remove("PAGER");
    let output = command.envs(environment.iter().copied()).stdin(Stdio::null()).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}: {text}", output.status);
    text
}

#[test]
fn pagers() {
    if !tools::require(&["script", "timeout"]) {
        return;
    }
    let dir = sample();
    const GREY: &str = "} \u{1b}[90m/* main */\u{1b}[m";
    for (environment, options, has, has_not) in [
        (&[("PAGER", "sed 's/^/paged/'")][..], "", &["paged", GREY][..], "nothing"),
        (&[("PAGER", "sed 's/^/paged/'")], "--no-pager", &[GREY], "paged"),
        (&[("PAGER", "sed 's/^/paged/'"), ("NO_COLOR", "1")], "", &["paged", "} /* main */"], "\u{1b}["),
        (&[("PAGER", "")], "--color no", &["} /* main */"], "\u{1b}["),
        // One that reads nothing is no failure.
        (&[("PAGER", "true")], "", &[], "main"),
    ] {
        let text = replay(&dir, environment, options);
        assert!(
            has.iter().all(|part| text.contains(part)) && !text.contains(has_not),
            "{environment:?} {options}: {text:?}"
        );
    }
}
