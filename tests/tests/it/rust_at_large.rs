//! Rust programs of all kinds: asynchronous ones, pools of threads, coroutines, test harnesses, in every way to build them.

use std::collections::BTreeMap;
use std::process::Command;

use rftrace_read::Trace;
use rftrace_tests::fixtures::{self, build_folder, crates_program, instrumenting_cargo};
use rftrace_tests::traces::{edges_where, outline_where, trees};
use rftrace_tests::{Profile, Program, Run, assert_same_lines, require, rust_program, tools};
use rftrace_views::CallTree;

/// The only task of a trace.
fn only_tree(trace: &Trace) -> CallTree {
    let mut trees = trees(trace);
    assert_eq!(trees.len(), 1, "one task is expected");
    trees.remove(0)
}

/// The name within the crate `prefix` names, also of a method; `None` if it is of another crate, or a closure.
fn own<'n>(name: &'n str, prefix: &str) -> Option<&'n str> {
    let name = name.strip_prefix(prefix)?;
    (!name.contains("{closure")).then_some(name)
}

/// The calls of fixtures/rust/src/bin/async_poll.rs. A future's poll is the closure in its function, which itself only
/// makes the future. `Pause::poll` is `pause`.
const POLLS: &str = "\
boxed
  outer
block_on
  outer::{closure#0}
    inner
    inner::{closure#0}
      leaf
      pause
  outer::{closure#0}
    inner::{closure#0}
      pause
      leaf
    inner
    inner::{closure#0}
      leaf
      pause
  outer::{closure#0}
    inner::{closure#0}
      pause
      leaf
    leaf
inner
inner
inner::{closure#0}
  leaf
  pause
inner::{closure#0}
  leaf
  pause
inner::{closure#0}
  pause
  leaf
inner::{closure#0}
  pause
  leaf
";

/// `text` without the lines whose names are not `kept`, what they call moving up.
fn without(text: &str, kept: impl Fn(&str) -> bool) -> String {
    let mut lines = String::new();
    let mut open: Vec<usize> = Vec::new();
    for line in text.lines() {
        let name = line.trim_start();
        let indent = line.len() - name.len();
        open.retain(|&above| above < indent);
        if kept(name) {
            lines += &format!("{:width$}{name}\n", "", width = 2 * open.len());
            open.push(indent);
        }
    }
    lines
}

#[test]
fn a_poll_calls_the_polls_of_what_it_awaits() {
    if !require(&["nightly"]) {
        return;
    }
    for profile in Profile::ALL {
        let run = rust_program("async_poll", profile).run(&[]);
        assert_eq!(run.stdout, "ok\n", "{profile:?}");
        let tree = only_tree(&run.trace("trace"));
        // Optimised, a poll may be part of the one that calls it.
        let kept = |name: &str| profile == Profile::Debug || ["boxed", "block_on", "leaf", "pause"].contains(&name);
        let shown = outline_where(&tree, |name| {
            let name = match name {
                "<async_poll::Pause as core::future::future::Future>::poll" => "pause",
                name => name.strip_prefix("async_poll::")?.split("::<").next()?,
            };
            kept(name).then_some(name)
        });
        assert_same_lines(&shown, &without(POLLS, kept), &format!("{profile:?}"));
    }
}

/// The calls of fixtures/rust/crates/src/bin/tokio_local.rs.
const TOKIO_POLLS: &str = "\
all
all::{closure#0}
  outer
  outer::{closure#0}
    inner
    inner::{closure#0}
all::{closure#0}
  outer::{closure#0}
    inner::{closure#0}
      leaf
    leaf
    inner
    inner::{closure#0}
all::{closure#0}
  outer::{closure#0}
    inner::{closure#0}
      leaf
  consumer
  producer
consumer::{closure#0}
producer::{closure#0}
  leaf
  leaf
consumer::{closure#0}
  leaf
producer::{closure#0}
  leaf
consumer::{closure#0}
  leaf
producer::{closure#0}
consumer::{closure#0}
  leaf
all::{closure#0}
  fails
fails::{closure#0}
fails::{closure#0}
  leaf
all::{closure#0}
";

#[test]
fn tokio_polls_tasks_in_their_order_on_one_thread() {
    if !require(&["nightly"]) {
        return;
    }
    for profile in Profile::ALL {
        let run = crates_program("tokio_local", profile).run(&[]);
        assert_eq!(run.stdout, "ok\n", "{profile:?}");
        let tree = only_tree(&run.trace("trace"));
        let tasks = ["leaf", "consumer::{closure#0}", "producer::{closure#0}", "fails::{closure#0}"];
        let kept = |name: &str| profile == Profile::Debug || tasks.contains(&name);
        let shown = outline_where(&tree, |name| name.strip_prefix("tokio_local::").filter(|name| kept(name)));
        assert_same_lines(&shown, &without(TOKIO_POLLS, kept), &format!("{profile:?}"));
    }
}

/// Compares how often functions were called by others; what is not listed, was not called.
fn assert_edges(trace: &Trace, prefix: &str, names: &[&str], expected: &[(&str, &str, u64)], what: &str) {
    let edges = edges_where(trace, |name| name.strip_prefix(prefix).filter(|name| names.contains(name)));
    let expected = expected.iter().map(|&(caller, callee, count)| ((caller.to_owned(), callee.to_owned()), count));
    assert_eq!(edges, expected.collect::<BTreeMap<_, _>>(), "{what}");
}

#[test]
fn tokio_tasks_that_move_between_threads_lose_no_call() {
    if !require(&["nightly"]) {
        return;
    }
    for profile in Profile::ALL {
        let run = crates_program("tokio_threads", profile).run(&[]);
        assert_eq!(run.stdout, "ok\n", "{profile:?}");
        let trace = run.trace("trace");
        // 200 tasks of 20 steps; 10 blocking calls; 100 messages, sent and received.
        let calls = [("-", "step", 4_200), ("-", "fails", 200), ("-", "blocks", 10), ("blocks", "step", 10)];
        assert_edges(&trace, "tokio_threads::", &["step", "fails", "blocks"], &calls, &format!("{profile:?}"));
        if profile == Profile::Debug {
            let worker = "worker::{closure#0}";
            let calls = [("-", worker, 4_200), (worker, "step", 4_000), (worker, "fails", 200), ("-", "step", 210)];
            assert_edges(&trace, "tokio_threads::", &["step", "fails", worker], &calls, "polls");
        }
        // The threads of the pool, some for blocking calls, and the one that waits.
        assert!(trace.tasks().len() > 5, "{profile:?}: {} threads", trace.tasks().len());
    }
}

#[test]
fn rayon_jobs_that_are_stolen_lose_no_call() {
    if !require(&["nightly"]) {
        return;
    }
    for profile in Profile::ALL {
        let run = crates_program("rayon_pool", profile).run(&[]);
        assert_eq!(run.stdout, "ok\n", "{profile:?}");
        let trace = run.trace("trace");
        let edges = edges_where(&trace, |name| own(name, "rayon_pool::"));
        let calls = |callee: &str| -> u64 {
            edges.iter().filter(|((_, name), _)| name == callee).map(|(_, count)| count).sum()
        };
        let edge = |caller: &str, callee: &str| edges.get(&(caller.to_owned(), callee.to_owned())).copied();
        assert_eq!([calls("fib"), calls("square"), calls("in_scope")], [1_973, 1_000, 50], "{profile:?}: {edges:?}");
        assert_eq!(edge("fib", "leaf"), Some(987), "{profile:?}");
        assert_eq!(edge("square", "leaf"), Some(1_000), "{profile:?}");
        assert_eq!(edge("in_scope", "leaf"), Some(50), "{profile:?}");
        assert_eq!(calls("leaf"), 987 + 1_000 + 50, "{profile:?}");
        assert!((1..=1_000).contains(&calls("fails")), "{profile:?}");
        // A job runs in a thread that waits for another one, or at the outermost level: in nothing that returns first.
        for (caller, callee) in edges.keys() {
            assert!(
                ["-", "fib"].contains(&caller.as_str()) || callee == "leaf",
                "{profile:?}: {caller} called {callee}"
            );
        }
    }
}

#[test]
fn scoped_threads_have_their_own_calls() {
    if !require(&["nightly"]) {
        return;
    }
    for profile in Profile::ALL {
        let run = rust_program("scoped", profile).run(&[]);
        assert_eq!(run.stdout, "ok\n", "{profile:?}");
        let trace = run.trace("trace");
        let outlines = trees(&trace).into_iter().map(|tree| outline_where(&tree, |name| own(name, "scoped::")));
        let mut outlines: Vec<String> = outlines.filter(|outline| !outline.is_empty()).collect();
        outlines.sort();
        let sender = format!("sender\n{}at_end\n", "  leaf\n".repeat(100));
        let receiver = format!("receiver\n{}", "  received\n    leaf\n".repeat(800));
        let mut expected = vec![sender; 8];
        expected.extend([receiver, "poisoner\n  leaf\n  fails\n".to_owned(), "recovers\n  leaf\n".to_owned()]);
        expected.sort();
        assert_eq!(outlines.len(), expected.len(), "{profile:?}: threads with functions of their own");
        for (outline, expected) in outlines.iter().zip(&expected) {
            assert_same_lines(outline, expected, &format!("{profile:?}"));
        }
    }
}

/// Runs a case of fixtures/rust/crates/src/bin/coroutines.rs and compares the calls of each task.
fn check_coroutines(case: &str, expected: &[&str]) {
    if !require(&["nightly"]) {
        return;
    }
    for profile in Profile::ALL {
        let run = crates_program("coroutines", profile).run(&[case]);
        assert_eq!(run.stdout, "ok\n", "{profile:?}");
        let trees = trees(&run.trace("trace"));
        assert_eq!(trees.len(), expected.len(), "{profile:?}: tasks");
        for (tree, expected) in trees.iter().zip(expected) {
            let outline = outline_where(tree, |name| own(name, "coroutines::"));
            assert_same_lines(&outline, expected, &format!("{profile:?}"));
        }
    }
}

// A coroutine's calls are in a task of its own, behind that of the thread on which it began, once for each call.

/// Two rounds, the first deeper than the second.
const BODY: &str = "\
body
  leaf
  nested
    nested
      nested
        pause
  leaf
  nested
    pause
  leaf
";

#[test]
fn a_coroutine_is_a_task() {
    check_coroutines("alone", &["alone\n  resume\n  leaf\n  resume\n  leaf\n  resume\n", BODY]);
}

#[test]
fn two_coroutines_in_turn() {
    check_coroutines("pair", &[&format!("pair\n{}", "  resume\n".repeat(6)), BODY, BODY]);
}

#[test]
fn a_coroutine_that_resumes_another_one() {
    check_coroutines(
        "generations",
        &[
            "generations\n  resume\n  leaf\n  resume\n",
            "generations::parent\n  resume\n  pause\n  resume\n",
            "deep_body\n  nested\n    nested\n      pause\n  leaf\n",
        ],
    );
}

/// A call on the stack of `resume` looks as if the coroutine was left: by its slots alone it is a call of `resume`.
#[test]
fn a_coroutine_that_calls_on_its_parents_stack() {
    check_coroutines(
        "parent_stack",
        &["parent_stack\n  resume\n    leaf\n  resume\n", "parent_stack::switches\n  pause\n  leaf\n"],
    );
}

#[test]
fn a_coroutine_that_moves_to_another_thread_and_back() {
    check_coroutines("moved", &["moved\n  resume\n  resume\n  leaf\n", BODY, "resume\n"]);
}

#[test]
fn a_coroutine_that_is_dropped_unwinds() {
    check_coroutines(
        "abandoned",
        &[
            "abandoned\n  resume\n  leaf\n  abandons\n    leaf\n",
            "guarded\n  guarded\n    pause\n    dropped\n  dropped\n",
        ],
    );
}

#[test]
fn a_panic_leaves_a_coroutine_and_what_resumed_it() {
    check_coroutines(
        "panics",
        &["panics\n  resume\n  panics::catches\n    resume\n    leaf\n", "panics::throws\n  pause\n  dropped\n"],
    );
}

#[test]
fn a_thousand_coroutines() {
    let nested: String = (1..10).map(|level| format!("{:width$}nested\n", "", width = 2 * level)).collect();
    let body = format!("deep_body\n{nested}{:20}pause\n  leaf\n", "");
    let mut expected = vec![body.as_str(); 1_000];
    let thread = format!("many\n{}", "  resume\n".repeat(2_000));
    expected.insert(0, &thread);
    check_coroutines("many", &expected);
}

/// The calls of fixtures/rust/src/bin/flavours.rs, up to those that need unwinding.
const FLAVOURS: &str = "\
many
  leaf
array
  leaf
wide
  leaf
recursive
  recursive
    recursive
      recursive
        recursive
          recursive
            leaf
square_area
circle_area
through_pointer
  leaf
through_c
  c_function
    leaf
with_guards
  leaf
  released
  released
";

const UNWINDING: &str = "\
unwinding::catches
  unwinding::passes
    unwinding::throws
      leaf
      released
    released
  leaf
";

/// Optimisation, link-time optimisation, codegen units, what a panic does.
const FLAVOURS_OF_BUILDS: [[&str; 4]; 9] = [
    ["0", "off", "256", "unwind"],
    ["0", "off", "16", "abort"],
    ["1", "thin", "16", "unwind"],
    ["2", "off", "16", "unwind"],
    ["2", "fat", "1", "abort"],
    ["3", "off", "16", "abort"],
    ["3", "thin", "4", "unwind"],
    ["3", "fat", "1", "unwind"],
    ["s", "off", "1", "unwind"],
];

/// Builds a program of the package `fixtures/rust` in one of these ways.
fn build(name: &str, [opt_level, lto, codegen_units, panic]: [&str; 4]) -> Program {
    let target_folder = build_folder("rust-flavours");
    let mut cargo = instrumenting_cargo("build");
    cargo.args(["--release", "--bin", name, "--target-dir"]).arg(&target_folder);
    cargo.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", opt_level).env("CARGO_PROFILE_RELEASE_LTO", lto);
    cargo.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", codegen_units).env("CARGO_PROFILE_RELEASE_PANIC", panic);
    // The program's dependencies are compiled as quickly as possible.
    cargo.args(["--config", r#"profile.release.package."*".opt-level=0"#]);
    cargo.args(["--config", r#"profile.release.package."*".codegen-units=16"#]);
    let messages = tools::text(cargo.arg("--message-format=json"));
    let [path] = &fixtures::executables(&messages)[..] else { panic!("one program was built") };
    // The next build replaces the file.
    Program::copy_of(path)
}

#[test]
fn the_same_calls_in_every_way_to_build() {
    if !require(&["nightly"]) {
        return;
    }
    for flavour in FLAVOURS_OF_BUILDS {
        let run = build("flavours", flavour).run(&[]);
        assert_eq!(run.stdout, "ok\n", "{flavour:?}");
        let outline = outline_where(&only_tree(&run.trace("trace")), |name| own(name, "flavours::"));
        let unwinding = if flavour.contains(&"unwind") { UNWINDING.repeat(2) } else { String::new() };
        assert_same_lines(&outline, &format!("{FLAVOURS}{unwinding}"), &format!("{flavour:?}"));
    }
}

#[test]
fn a_panic_hook_saves_before_the_program_ends() {
    if !require(&["nightly"]) {
        return;
    }
    const SIGABRT: i32 = 6;
    for (flavour, code, signal) in [
        (["3", "off", "16", "abort"], None, Some(SIGABRT)),
        (["0", "off", "16", "abort"], None, Some(SIGABRT)),
        (["2", "off", "16", "unwind"], Some(101), None),
    ] {
        let program = build("aborts", flavour);
        // The shell would tell of the abort in its own way, and `timeout` passes on no signal.
        let mut command = Command::new("sh");
        command.args(["-c", "\"$0\"; echo $?"]).arg(&program.path);
        let run = Run::of_any(&mut command);
        let expected = code.or(signal.map(|signal| 128 + signal)).unwrap();
        assert_eq!(run.stdout, format!("ok\n{expected}\n"), "{flavour:?}: {}", run.stderr);
        let outline = |name| outline_where(&only_tree(&run.trace(name)), |name| own(name, "aborts::"));
        assert_eq!(outline("before"), "leaf\n", "{flavour:?}");
        assert_eq!(outline("trace"), "middle\n  leaf\n  fails\n    leaf\n", "{flavour:?}");
    }
}

/// The calls of fixtures/rust/harness/tests/traced.rs in the thread of each test, and in those that one starts.
const TESTS: [&str; 13] = [
    "countdown\n  countdown\n    countdown\n      countdown\n        leaf\n",
    "countdown\n  countdown\n    countdown\n      leaf\n",
    "countdown\n  countdown\n    leaf\n",
    "countdown\n  leaf\n",
    "divide\n  leaf\n",
    "traced::does_not_panic\n  leaf\n",
    "traced::fails\n  divide\n    leaf\n",
    "traced::has_threads\n",
    "traced::panics\n  countdown\n    countdown\n      leaf\n  divide\n    leaf\n",
    "traced::panics_with_a_message\n  divide\n    leaf\n",
    "traced::panics_with_a_wrong_message\n  divide\n    leaf\n",
    "traced::returns\n  countdown\n    countdown\n      countdown\n        countdown\n          leaf\n",
    "traced::returns_an_error\n  divide\n    leaf\n",
];

const RESULTS: [&str; 9] = [
    "test does_not_panic - should panic ... FAILED",
    "test fails ... FAILED",
    "test has_threads ... ok",
    "test ignored ... ignored, an ignored test",
    "test panics - should panic ... ok",
    "test panics_with_a_message - should panic ... ok",
    "test panics_with_a_wrong_message - should panic ... FAILED",
    "test returns ... ok",
    "test returns_an_error ... FAILED",
];

#[test]
fn a_test_harness_is_traced() {
    if !require(&["nightly"]) {
        return;
    }
    let mut cargo = instrumenting_cargo("test");
    cargo.args(["--no-run", "--message-format=json", "--package", "rftrace-fixtures-harness", "--test", "traced"]);
    cargo.arg("--target-dir").arg(build_folder("rust-fixtures"));
    let [harness] = &fixtures::executables(&tools::text(&mut cargo))[..] else { panic!("one program was built") };
    for n_threads in ["1", "4"] {
        let run = Run::of_any(Command::new(harness).args(["--test-threads", n_threads]));
        assert_eq!(run.status.code(), Some(101), "{n_threads}: {}{}", run.stdout, run.stderr);
        let mut results: Vec<&str> = run.stdout.lines().filter(|line| line.contains(" ... ")).collect();
        results.sort_unstable();
        assert_eq!(results, RESULTS, "{n_threads}");
        assert!(run.stdout.contains("test result: FAILED. 4 passed; 4 failed; 1 ignored;"), "{n_threads}");

        let mut outlines: Vec<String> = Vec::new();
        for tree in trees(&run.trace("trace")) {
            let outline = outline_where(&tree, |name| {
                own(name, "rftrace_fixtures_harness::").or_else(|| {
                    let name = own(name, "traced::").map(|_| name)?;
                    (name != "traced::recording::save").then_some(name)
                })
            });
            // On one thread all tests run one after the other.
            for line in outline.lines().filter(|line| *line != "traced::main") {
                let line = line.strip_prefix(if outline.starts_with("traced::main\n") { "  " } else { "" }).unwrap();
                match outlines.last_mut() {
                    Some(last) if line.starts_with(' ') => *last += &format!("{line}\n"),
                    _ => outlines.push(format!("{line}\n")),
                }
            }
        }
        outlines.sort();
        assert_eq!(outlines.concat(), TESTS.concat(), "{n_threads} threads");
    }
}
