//! Bash completes `cargo rftrace`, with and without cargo's own completions.

use std::process::Command;

use crate::cli::run;

/// The words that bash offers for each command line, with `setup` before the script. `None` where there is no bash.
fn offered(setup: &str, lines: &[&str]) -> Option<Vec<String>> {
    let (code, script, stderr) = run(&["completions", "bash", "cargo-rftrace"]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    // As readline calls what is registered.
    let mut program = format!(
        "{setup}\n{script}\n\
         offer() {{\n\
           COMP_WORDS=(\"$@\") COMP_CWORD=$(($# - 1)) COMP_LINE=\"$*\" COMPREPLY=()\n\
           COMP_POINT=${{#COMP_LINE}}\n\
           local name=$(complete -p \"$1\" | sed 's/.*-F \\([^ ]*\\).*/\\1/')\n\
           $name \"$1\" \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD - 1]}}\"\n\
           echo \"${{COMPREPLY[*]}}\"\n\
         }}\n"
    );
    for line in lines {
        program.push_str(&format!("offer {line}\n"));
    }
    let mut bash = Command::new("bash");
    let output = crate::import::text(bash.args(["--norc", "-c", &program]))?;
    Some(output.lines().map(str::to_owned).collect())
}

#[test]
fn bash_completes_the_options_of_rftrace() {
    let lines = [
        "cargo rftrace --boo",
        "cargo +nightly rftrace --no-sch",
        "cargo rftrace --limit 3 tes",
        "cargo-rftrace ben",
        "cargo rftrace run --relea",
    ];
    let Some(offered) = offered("", &lines) else { return };
    assert_eq!(offered, ["--bootstrap", "--no-schedule", "test", "bench", ""]);
}

#[test]
fn the_rest_is_for_cargos_own_completions() {
    let cargo = "_cargo() { COMPREPLY=(\"$1:$2:$3:${COMP_WORDS[*]}:$COMP_CWORD:$COMP_LINE\"); }";
    let lines = ["cargo buil", "cargo rftrace --ring run --relea", "cargo rftrace -o x t --li", "cargo rftra"];
    let Some(offered) = offered(cargo, &lines) else { return };
    assert_eq!(
        offered,
        [
            "cargo:buil:cargo:cargo buil:1:cargo buil",
            "cargo:--relea:run:cargo run --relea:2:cargo run --relea",
            "cargo:--li:t:cargo t --li:2:cargo t --li",
            "cargo:rftra:cargo:cargo rftra:1:cargo rftra",
        ]
    );
}

#[test]
fn other_shells_have_completions_for_it_too() {
    for (shell, text) in [("zsh", "#compdef cargo-rftrace"), ("fish", "complete -c cargo -n")] {
        let (code, script, _) = run(&["completions", shell, "cargo-rftrace"]);
        assert!(code == Some(0) && script.contains(text) && script.contains("bootstrap"), "{shell}");
    }
}
