//! Panics, backtraces and debuggers through functions whose return addresses the tracer has replaced.

use std::process::Command;

use rftrace_tests::traces::{outline_of_tree, trees};
use rftrace_tests::{CProgram, Profile, Run, require, rust_program};

#[test]
fn rust_panics_end_their_functions() {
    if !require(&["nightly"]) {
        return;
    }
    for profile in Profile::ALL {
        let run = rust_program("panics", profile).run(&[]);
        let mut lines = run.stdout.lines();
        // The numbers caught and passed, the panic that ended the thread, and the destructors, all of which ran.
        assert_eq!(lines.next(), Some("40 0 true 6"), "{profile:?}");
        assert_eq!(lines.next(), Some("49"), "{profile:?}");

        let trace = run.trace("trace");
        // Unoptimised, the closure is a function.
        let (closure, indent) = match profile {
            Profile::Debug => ("  catcher::{closure#0}\n", "  "),
            Profile::Release => ("", ""),
        };
        let calls = format!("catcher\n{closure}  {indent}outer\n    {indent}middle\n      {indent}thrower\n");
        let expected = format!("{calls}after\n{calls}after\n");
        let outlines: Vec<String> = trees(&trace).iter().map(|tree| outline_of_tree(tree, "panics::")).collect();
        assert_eq!(outlines[0].replace("main::{closure#0}\n", ""), expected, "{profile:?}");
        assert_eq!(outlines.len(), 2, "{profile:?}");
        let in_thread = outlines[1].lines().map(str::trim).filter(|line| !line.starts_with("main")).collect::<Vec<_>>();
        assert_eq!(in_thread, ["outer", "middle", "thrower"], "{profile:?}");

        let loud = outline_of_tree(&trees(&run.trace("loud"))[0], "panics::loud");
        assert_eq!(loud.lines().filter(|line| line.trim().is_empty()).count(), 50, "{profile:?}");
        let after = outline_of_tree(&trees(&run.trace("loud"))[0], "panics::after");
        assert_eq!(after, "\n", "{profile:?}: what follows is traced and not nested in what was left");
    }
}

#[test]
fn rust_backtraces_go_through() {
    if !require(&["nightly"]) {
        return;
    }
    for profile in Profile::ALL {
        let run = rust_program("panics", profile).run(&[]);
        let frames: Vec<&str> =
            run.stdout.lines().filter_map(|line| line.trim().split_once(": ")).map(|(_, name)| name).collect();
        let own: Vec<&&str> = frames.iter().filter(|name| name.starts_with("panics::")).collect();
        assert_eq!(
            own,
            [&"panics::backtrace3", &"panics::backtrace2", &"panics::backtrace1", &"panics::main"],
            "{profile:?}"
        );
        assert!(frames.contains(&"_start") || frames.contains(&"main"), "{profile:?}: it ends early: {frames:?}");
    }
}

#[test]
fn c_backtraces_go_through() {
    if !require(&["gcc"]) {
        return;
    }
    for (arguments, with_tail_calls) in [(&["-O0"][..], true), (&["-O2"], false), (&["-O2", "-mfentry"], false)] {
        let run = CProgram::new(&["backtrace.c"]).with(arguments).with(&["-rdynamic"]).build().run(&[]);
        let nested = "print_backtrace nested3 nested2 plain nested1";
        let caller = if with_tail_calls { "tail2 tail1 caller" } else { "caller" };
        let lines: Vec<String> = run
            .stdout
            .lines()
            .map(|line| {
                let names = line.split_whitespace().filter(|name| !name.starts_with("rftrace_"));
                names.collect::<Vec<_>>().join(" ")
            })
            .collect();
        assert_eq!(lines[0], format!("{nested} main"), "{arguments:?}");
        assert_eq!(lines[1], format!("{nested} {caller} main"), "{arguments:?}");
        assert_eq!(lines[2], "print_backtrace nested3 recurse recurse recurse recurse main", "{arguments:?}");
        assert!(lines[3].starts_with(&format!("{nested} thread")), "{arguments:?}: {}", lines[3]);
    }
}

#[test]
fn debuggers_see_the_frames() {
    if !require(&["gcc", "gdb"]) {
        return;
    }
    for arguments in [&["-O0"][..], &["-O2"], &["-O2", "-mfentry"], &["-O2", "-static"]] {
        let program = CProgram::new(&["backtrace.c"]).with(arguments).with(&["-pthread"]).build();
        let mut gdb = Command::new("gdb");
        gdb.args(["-q", "-nx", "-batch", "-ex", "set debuginfod enabled off", "-ex", "break print_backtrace"]);
        // Three stops in main, one in a thread, which is then left by two functions.
        gdb.args(["-ex", "run", "-ex", "bt"]);
        gdb.args(["-ex", "continue", "-ex", "bt"].repeat(3));
        gdb.args(["-ex", "finish", "-ex", "finish", "-ex", "bt"]);
        let run = Run::of(gdb.arg(&program.path));

        let mut stacks: Vec<Vec<&str>> = Vec::new();
        for line in run.stdout.lines().filter(|line| line.starts_with('#')) {
            let (number, frame) = line.split_once(' ').unwrap();
            if number == "#0" {
                stacks.push(Vec::new());
            }
            let frame = frame.split_once(" in ").map_or(frame, |(_, frame)| frame).trim();
            let name = frame.split(' ').next().unwrap();
            if !name.starts_with("rftrace_") {
                stacks.last_mut().unwrap().push(name);
            }
        }
        let nested = ["nested3", "nested2", "plain", "nested1"];
        let caller: &[&str] = if arguments == ["-O0"] { &["tail2", "tail1", "caller"] } else { &["caller"] };
        let stopped = ["print_backtrace"];
        let expected = [
            [&stopped[..], &nested, &["main"]].concat(),
            [&stopped[..], &nested, caller, &["main"]].concat(),
            [&stopped[..], &["nested3"], &["recurse"; 4], &["main"]].concat(),
            [&stopped[..], &nested, &["thread"]].concat(),
            [&nested[1..], &["thread"]].concat(),
        ];
        assert_eq!(stacks.len(), expected.len(), "{arguments:?}: {}{}", run.stdout, run.stderr);
        for (stack, expected) in stacks.iter().zip(&expected) {
            assert!(stack.starts_with(expected), "{arguments:?}: {stack:?} and not {expected:?}");
        }
    }
}
