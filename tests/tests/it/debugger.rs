//! gdb sees the true frames of a traced program: in every thread, live and in a core file, and amid the tracer's slow
//! paths; `up` and `finish` work.

use std::path::Path;
use std::process::Command;

use rftrace_tests::{CProgram, Run, require};

use crate::strikes::tracer_symbols;

const BUILDS: [&[&str]; 2] = [&["-O1", "-foptimize-sibling-calls"], &["-O2", "-mfentry"]];

/// Returns gdb's output for `commands` on a program, and on a core file if that is given.
fn gdb(program: &Path, core: Option<&Path>, commands: &[&str]) -> (Run, String) {
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-q", "-batch"]);
    for setting in ["set pagination off", "set debuginfod enabled off", "set width 0"] {
        gdb.args(["-ex", setting]);
    }
    for command in commands {
        gdb.args(["-ex", command]);
    }
    gdb.arg(program).args(core);
    // It fails when the last commands come too late.
    let run = Run::of_any(&mut gdb);
    let text = run.stdout.clone();
    (run, text)
}

/// The functions of each backtrace in gdb's output, innermost first, without the tracer's.
fn backtraces(text: &str) -> Vec<Vec<&str>> {
    let mut backtraces: Vec<Vec<&str>> = Vec::new();
    let mut last = None;
    for line in text.lines().filter(|line| line.starts_with('#')) {
        // #1  0x0000555555571d3a in middle (x=1) at file:43
        let (number, rest) = line[1..].split_once(' ').unwrap();
        let rest = rest.trim();
        let name = rest.split_once(" in ").filter(|(addr, _)| addr.starts_with("0x")).map_or(rest, |(_, rest)| rest);
        let name = name.split(" (").next().unwrap();
        let number: usize = number.parse().unwrap();
        if number == 0 || last.is_none_or(|last| number != last + 1) {
            backtraces.push(Vec::new());
        }
        last = Some(number);
        if !name.contains("rftrace_") && !["mcount", "__fentry__"].contains(&name) {
            backtraces.last_mut().unwrap().push(name);
        }
    }
    backtraces
}

/// Checks `thread apply all bt` while the main thread is in `stop_here`.
fn check_all_threads(text: &str, what: &str) {
    let backtraces = backtraces(text);
    assert_eq!(backtraces.len(), 4, "{what}: threads in\n{text}");
    for backtrace in &backtraces[..3] {
        let own: Vec<&str> = backtrace.iter().copied().skip_while(|&name| name != "wait_here").collect();
        let expected = ["wait_here", "inner", "plain", "outer", "thread", "start_thread"];
        assert_eq!(own.get(..6), Some(&expected[..]), "{what}:\n{text}");
        assert!(own.len() <= 7, "{what}:\n{text}");
    }
    assert_eq!(backtraces[3], ["stop_here", "middle", "first", "main"], "{what}:\n{text}");
}

#[test]
fn it_shows_all_threads_live_and_in_a_core_file() {
    if !require(&["gcc", "gdb"]) {
        return;
    }
    for arguments in BUILDS {
        let program = CProgram::new(&["debugged.c"]).with(arguments).build();
        let what = format!("{arguments:?}");
        let commands = ["break stop_here", "run", "thread apply all bt", "generate-core-file core"];
        let (run, text) = gdb(&program.path, None, &commands);
        check_all_threads(&text, &format!("{what} live"));
        let (_, text) = gdb(&program.path, Some(&run.path("core")), &["echo \\n", "thread apply all bt"]);
        // gdb shows the frame it is in when it opens the file.
        let (_, text) = text.split_once("\nThread ").expect("a list of threads");
        check_all_threads(text, &format!("{what} core"));
    }
}

#[test]
fn up_and_finish_go_through_the_trampoline() {
    if !require(&["gcc", "gdb"]) {
        return;
    }
    for arguments in BUILDS {
        let program = CProgram::new(&["debugged.c"]).with(arguments).build();
        let commands = ["break stop_here", "run", "up", "up", "up", "info symbol $pc", "finish", "bt", "continue"];
        let (run, text) = gdb(&program.path, None, &commands);
        let lines: Vec<&str> = text.lines().collect();
        // Up from stop_here: middle, the trampoline, first.
        assert!(lines.iter().any(|line| line.starts_with("first + ")), "{arguments:?}:\n{text}");
        // Which has returned now, and whose exit is yet to be recorded.
        assert_eq!(backtraces(&text).last(), Some(&vec!["main"]), "{arguments:?}:\n{text}");
        assert!(text.contains("Value returned is $1 = 42"), "{arguments:?}:\n{text}");
        assert!(lines.contains(&"42"), "{arguments:?}: it does not go on:\n{text}");
        let _ = run.trace("trace");
    }
}

#[test]
fn it_sees_through_slow_paths() {
    if !require(&["gcc", "gdb"]) {
        return;
    }
    for arguments in BUILDS {
        let program = CProgram::new(&["debugged.c"]).with(arguments).build();
        // The first calls of the threads and of main.
        let symbols = tracer_symbols(&program.path);
        let names = symbols.lines().filter_map(|line| line.split(' ').nth(2));
        let slow = names.filter(|name| name.starts_with("_ZN15rftrace_backend") || *name == "rftrace_call_saved");
        let breakpoints: Vec<String> = slow.map(|name| format!("break {name}")).collect();
        let mut commands: Vec<&str> = breakpoints.iter().map(String::as_str).collect();
        commands.push("run");
        commands.extend(["bt", "continue"].repeat(40));
        let (_, text) = gdb(&program.path, None, &commands);
        let backtraces = backtraces(&text);
        let in_tracer = text.lines().filter(|line| line.starts_with("#0") && line.contains("rftrace_")).count();
        assert!(in_tracer >= 10, "{arguments:?}:\n{text}");
        for backtrace in backtraces {
            let own: Vec<&str> = backtrace.iter().copied().filter(|name| !name.contains("clone")).collect();
            let known: [&[&str]; 9] = [
                &["thread", "start_thread"],
                &["outer", "thread", "start_thread"],
                &["inner", "plain", "outer", "thread", "start_thread"],
                &["tail", "inner", "plain", "outer", "thread", "start_thread"],
                &["wait_here", "inner", "plain", "outer", "thread", "start_thread"],
                &["first", "main"],
                &["start", "main"],
                &["save", "main"],
                &["main"],
            ];
            assert!(known.contains(&&own[..]), "{arguments:?}: {own:?} in\n{text}");
        }
    }
}
