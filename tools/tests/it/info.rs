//! Completions and manual pages, made of the arguments.

use std::process::Command;

/// Exit code, stdout and stderr.
fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_rftrace")).args(args).output().expect("the command starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
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
