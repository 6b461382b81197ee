//! Functions that call the hook at several places, as others were inlined into them.

use std::path::Path;
use std::process::Command;

use rftrace_read::Warning;
use rftrace_views::{Field, Report};

use crate::dir::{A, B, Dir, MAIN, entry, exit, lost, trace};

/// Behind the hook's first call in a function, and behind those of what was inlined.
const FIRST: u64 = 4;
const SECOND: u64 = 9;
const THIRD: u64 = 13;

/// `main` calls `a` twice. `a` has two inlined functions, one of them in a loop; it calls `b` between them, and itself.
fn inlined() -> Dir {
    let [main, first, second, third, b] = [MAIN + FIRST, A + FIRST, A + SECOND, A + THIRD, B + FIRST];
    trace(&[
        entry(10, 0, main),
        entry(20, 1, first),
        entry(30, 2, second),
        entry(40, 3, second),
        entry(50, 4, b),
        exit(60, 4, b),
        entry(70, 4, third),
        entry(80, 5, first),
        entry(85, 6, second),
        exit(90, 6, second),
        exit(90, 5, first),
        exit(100, 4, third),
        exit(100, 3, second),
        exit(100, 2, second),
        exit(100, 1, first),
        entry(110, 1, first),
        exit(120, 1, first),
        exit(130, 0, main),
    ])
}

/// Name, calls, total and own time.
fn rows(dir: &Dir, folds: bool) -> Vec<(String, u64, u64, u64)> {
    let mut trace = dir.open();
    trace.fold_inlined(folds);
    let mut report = Report::read(&trace).unwrap();
    report.sort(&[Field::Total]);
    let n_inlined = report.summary().warnings.count(Warning::InlinedCall);
    assert_eq!(n_inlined, if folds { 0 } else { 4 });
    report.rows().iter().map(|row| (row.name.clone(), row.calls, row.total_ns, row.self_ns)).collect()
}

#[test]
fn they_are_merged_on_request() {
    let row = |name: &str, calls, total_ns, self_ns| (name.to_owned(), calls, total_ns, self_ns);
    let dir = inlined();
    assert_eq!(rows(&dir, false), [row("main", 1, 120, 30), row("a", 7, 90, 80), row("b", 1, 10, 10)]);
    assert_eq!(rows(&dir, true), [row("main", 1, 120, 30), row("a", 3, 90, 80), row("b", 1, 10, 10)]);
    let mut trace = dir.open();
    trace.fold_inlined(true);
    let tree = trace_tree(&trace);
    assert_eq!(tree, "main\n  a\n    b\n    a\n  a\n");
}

fn trace_tree(trace: &rftrace_read::Trace) -> String {
    rftrace_views::CallTree::read(trace, &trace.tasks()[0]).unwrap().to_string()
}

/// Depths that count what is left out say how many functions are open, where that has to be found out.
#[test]
fn depths_behind_a_loss_are_those_of_what_is_left() {
    let [main, first, second, b] = [MAIN + FIRST, A + FIRST, A + SECOND, B + FIRST];
    let dir = trace(&[
        entry(10, 0, main),
        entry(20, 1, first),
        entry(30, 2, second),
        lost(35, 1),
        entry(40, 3, b),
        exit(50, 3, b),
        exit(60, 2, second),
        exit(60, 1, first),
        exit(70, 0, main),
    ]);
    let mut trace = dir.open();
    trace.fold_inlined(true);
    assert_eq!(trace_tree(&trace), "main\n  a\n    b\n");
}

fn rftrace(args: &[&str], dir: &Path) -> [String; 2] {
    let output = Command::new(env!("CARGO_BIN_EXE_rftrace")).args(args).arg(dir).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap())
}

#[test]
fn the_commands_tell_of_them_and_have_the_option() {
    let dir = inlined();
    let [_, message] = rftrace(&["report"], dir.path());
    assert!(
        message.contains("4 calls are of functions that were inlined") && message.contains("--fold-inlined"),
        "{message}"
    );
    let [text, message] = rftrace(&["report", "--fold-inlined"], dir.path());
    assert!(message.is_empty() && text.contains("           3  a\n"), "{text}{message}");
    let [text, _] = rftrace(&["replay", "--fold-inlined"], dir.path());
    assert_eq!(text.matches("a()").count(), 3, "{text}");
    let [text, _] = rftrace(&["dump", "--folded", "--fold-inlined"], dir.path());
    assert_eq!(text, "main 30\nmain;a 70\nmain;a;a 10\nmain;a;b 10\n");
}

#[test]
#[cfg(target_os = "linux")]
fn names_tell_of_functions_with_several_places() {
    use crate::import::{Kernel, image, utf8};

    let Some(kernel) = Kernel::build() else { return };
    let branch = kernel.functions["branch"];
    // Behind its only call, whether it begins with `endbr64` or not.
    let places = [0, 9, 13].map(|offset| branch + offset);
    let entries = (2_000..).zip(places).map(|(tsc, address)| (tsc, address, false));
    let exits = (3_000..).zip(places.into_iter().rev()).map(|(tsc, address)| (tsc, address, true));
    let (is_success, said) = kernel.import(&image(0, 2_000_000_000, &entries.chain(exits).collect::<Vec<_>>()), &[]);
    assert!(is_success, "{said}");
    let [_, said] = rftrace(&["symbols", "-b", utf8(&kernel.path("kernel.elf"))], &kernel.path("trace"));
    assert!(said.contains(": 1 functions call the tracer at several places"), "{said}");
    let [_, said] = rftrace(&["symbols", "-q", "-b", utf8(&kernel.path("kernel.elf"))], &kernel.path("trace"));
    assert!(said.is_empty(), "{said}");
}
