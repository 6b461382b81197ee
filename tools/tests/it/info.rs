//! `rftrace info`, and what is made of the arguments: completions and manual pages.

use std::process::Command;

use crate::dir::{A, Files, MAIN, entry, event, exit, lost};

/// Exit code, stdout and stderr.
fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_rftrace")).args(args).output().expect("the command starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn all_facts() {
    const LOSS: u64 = 1_000_001;
    let mut files = Files::new(&[
        (7, &[entry(1_000, 0, MAIN), entry(2_000, 1, A), exit(3_000, 1, A), exit(5_000, 0, MAIN)]),
        (8, &[entry(2_000, 0, A), event(2_500, 1, LOSS), lost(2_600, 3), exit(4_000, 0, A)]),
    ]);
    files.0.insert("events.txt".into(), format!("EVENT: {LOSS} rftrace:lost_12_calls\n").into());
    files.0.insert("clock.txt".into(), "tsc_hz=2500000000\ntsc_hz_source=measured\n".into());
    files.0.insert("record.txt".into(), "full=1\noverwritten=0\nuntraced_threads=2\n".into());
    let task_txt = String::from_utf8(files.0["task.txt"].clone()).unwrap();
    files.0.insert("task.txt".into(), task_txt.replace("tid=8 pid=7", "tid=8 pid=7 comm=\"worker one\"").into());
    let dir = files.write();

    let (code, stdout, stderr) = run(&["info", dir.path().to_str().unwrap()]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    let squeezed: Vec<String> =
        stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for line in [
        "program /bin/prog",
        "command line prog",
        "Threads: 2 with 8 records of 3 calls",
        "7 7 4 2 0 0.000 us 4.000 us prog",
        "7 8 4 1 15 1.000 us 3.000 us worker one",
        "Lost calls, nested more than 1023 levels deep: 12",
        "Lost threads, which were too many at a time: 2",
        "400000 403000 6 /bin/prog",
        "TSC frequency (Hz) 2500000000",
        "measured by measured",
    ] {
        assert!(squeezed.iter().any(|found| found == line), "{line:?} in\n{stdout}");
    }
    assert!(stdout.contains("The buffer was full before the end") && stdout.contains("--buffer"), "{stdout}");
}

#[test]
fn what_is_not_known_is_left_out() {
    let dir = Files::new(&[(7, &[entry(1, 0, MAIN), exit(2, 0, MAIN)])]).write();
    let (code, stdout, _) = run(&["info", dir.path().to_str().unwrap()]);
    assert_eq!(code, Some(0));
    for absent in ["Clock", "Machine", "Lost calls", "exit status", "overwritten"] {
        assert!(!stdout.contains(absent), "{absent} in\n{stdout}");
    }
    let (code, stdout, stderr) = run(&["info", "/nonexistent"]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    assert!(stderr.contains("is this a trace directory?"), "{stderr}");
}

#[test]
fn every_command_has_an_example_completions_and_a_page() {
    let (_, help, _) = run(&["--help"]);
    let commands: Vec<&str> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(commands.contains(&"info") && commands.contains(&"replay"), "{help}");

    let dir = tempfile::tempdir().unwrap();
    let (code, _, stderr) = run(&["man", dir.path().to_str().unwrap()]);
    assert_eq!(code, Some(0), "{stderr}");
    let page = |name: &str| std::fs::read_to_string(dir.path().join(format!("{name}.1"))).expect(name);
    for shell in ["bash", "zsh", "fish"] {
        let (code, script, _) = run(&["completions", shell]);
        assert_eq!(code, Some(0));
        assert!(commands.iter().all(|command| script.contains(command)), "{shell}");
    }
    for command in commands {
        let (code, help, _) = run(&[command, "--help"]);
        assert_eq!(code, Some(0));
        assert!(help.contains(&format!("\n  rftrace {command} ")), "an example in {help}");
        assert!(page(&format!("rftrace-{command}")).contains(".SH EXAMPLES\n.nf\n"), "{command}");
    }
    #[cfg(target_os = "linux")]
    assert!(page("cargo-rftrace").contains("cargo rftrace run \\-\\-release"), "{}", page("cargo-rftrace"));
    page("rftrace");

    let (code, _, stderr) = run(&["man", "/dev/null/pages"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("/dev/null/pages"), "{stderr}");
    assert_eq!(run(&["completions", "sh"]).0, Some(2));
}
