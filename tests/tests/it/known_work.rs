//! Times of functions of known work: `rftrace report` shows what they take without being recorded, as what recording takes is subtracted.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use rftrace_tests::traces::uftrace;
use rftrace_tests::{CProgram, Program, Run, require};

use crate::record::{record, rftrace};

fn source() -> CProgram {
    CProgram::new(&["known_work.c"]).without_library().with(&["-O2"])
}

/// Returns the program's figures: nanoseconds a call of each function.
fn known(run: &Run) -> BTreeMap<String, f64> {
    let line = |line: &str| {
        let (name, nanos) = line.split_once(' ').expect("a name and a number");
        (name.to_owned(), nanos.parse().expect("a number"))
    };
    run.stdout.lines().map(line).collect()
}

/// Returns a report's text.
fn report(run: &Run, options: &[&str]) -> String {
    let output = Command::new(rftrace()).arg("report").args(options).arg(run.path("trace")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Half of the calls of a function take so long at the most.
fn shown(run: &Run, options: &[&str]) -> BTreeMap<String, f64> {
    let csv = report(run, &[options, &["--format", "csv", "-f", "total-p50"]].concat());
    let line = |line: &str| {
        let (name, nanos) = line.rsplit_once(',').expect("two columns");
        (name.trim_matches('"').to_owned(), nanos.parse().expect("a number"))
    };
    csv.lines().skip(1).map(line).collect()
}

/// Records the program, and compares. Where other programs take its processor in the middle of calls their times are wrong: it is recorded
/// again, a few times.
fn check(program: &Program, options: &[&str]) {
    const TRIES: usize = 20;

    let mut problems = Vec::new();
    while problems.len() < TRIES {
        let Err(problem) = compare(program, options) else { return };
        problems.push(problem);
        // The processor's other load changes from one second to the next.
        thread::sleep(Duration::from_millis(500));
    }
    panic!("{options:?}: {problems:#?}");
}

/// Records the program once.
fn compare(program: &Program, options: &[&str]) -> Result<(), String> {
    let run = record(&[&["--no-schedule", "--buffer", "64M"], options].concat(), &program.path, &[]);
    assert_eq!(run.status.code(), Some(0), "{options:?}: {}", run.stderr);
    let first_line = |options: &[&str]| report(&run, options).lines().next().unwrap_or_default().to_owned();
    assert!(first_line(&[]).contains(" ns a call for tracing"), "{}", first_line(&[]));
    assert!(first_line(&["--no-correct"]).contains("tracing's own time included"), "{}", first_line(&["--no-correct"]));
    let (known, shown, recorded) = (known(&run), shown(&run, &[]), shown(&run, &["--no-correct"]));
    assert_eq!(known.len(), 4, "{known:?}");
    for (name, &takes) in &known {
        // In docs/performance.md a quiet machine's.
        let off = shown[name] / takes - 1.0;
        if off.abs() >= 0.25 {
            return Err(format!("{name} takes {takes} ns, not {}", shown[name]));
        }
        if name.ends_with("parent") && off >= 0.7 * (recorded[name] / takes - 1.0) {
            return Err(format!("{name} takes {takes} ns, recorded {}", recorded[name]));
        }
    }
    Ok(())
}

#[test]
fn known_work_takes_as_long_as_it_does() {
    if !require(&["gcc"]) {
        return;
    }
    let hooked = source().build();
    for options in [&[][..], &["--patched"], &["--stop"]] {
        check(&hooked, options);
    }
    let functions = ["small", "work_200", "work_1000", "parent", "grandparent"];
    let branches: Vec<&str> = functions.iter().flat_map(|function| ["-P", function]).collect();
    check(&source().without_hooks().build(), &branches);
}

#[test]
fn where_nobody_has_measured_it_times_are_those_recorded() {
    if !require(&["gcc"]) {
        return;
    }
    let run = record(&["--no-schedule", "--buffer", "64M"], &source().build().path, &[]);
    let clock = run.path("trace/clock.txt");
    let text = std::fs::read_to_string(&clock).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("hook_")).collect();
    assert_eq!(lines.len() + 2, text.lines().count(), "{text}");
    let corrected = shown(&run, &["--no-correct"]);
    std::fs::write(&clock, lines.join("\n") + "\n").unwrap();
    assert_eq!(shown(&run, &[]), corrected);
    assert!(report(&run, &[]).contains("; tracing's own time included\n"));
    if require(&["uftrace"]) {
        assert!(uftrace(&["report"], &run.path("trace")).contains("grandparent"), "others read the trace as before");
    }
}

/// The overhead of a program's own recording is measured afterwards, once; not on another machine, and not for uftrace's traces.
#[test]
fn a_program_that_records_itself() {
    if !require(&["gcc"]) {
        return;
    }
    let run = CProgram::new(&["calls.c"]).build().run(&[]);
    let calibrate = |options: &[&str]| {
        let output = Command::new(rftrace()).arg("calibrate").args(options).arg(run.path("trace")).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert!(report(&run, &[]).starts_with("  Wall ") && report(&run, &[]).contains("tracing's own time included"));
    let (code, said) = calibrate(&[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.starts_with("rftrace: the overhead is ") && said.contains(" ns a call; "), "{said}");
    let header = report(&run, &[]);
    assert!(header.contains("less ") && header.contains(" ns a call for tracing"), "{header}");
    assert!(report(&run, &["--no-correct"]).contains("tracing's own time included"));
    let clock = || fs::read_to_string(run.path("trace").join("clock.txt")).unwrap();
    assert!(clock().contains("\nhook_inside_ps=") && clock().contains("tsc_hz="), "{}", clock());

    let (code, said) = calibrate(&[]);
    assert!(code == Some(1) && said.contains("--force"), "{said}");
    assert_eq!(calibrate(&["--force", "--patched"]).0, Some(0));
    assert_eq!(clock().matches("hook_inside_ps=").count(), 1, "{}", clock());

    let info = run.path("trace").join("info");
    let bytes = fs::read(&info).unwrap();
    let (key, place) = (b"cpuinfo:desc=", bytes.windows(13).position(|window| window == b"cpuinfo:desc=").unwrap());
    let other = [&bytes[..place + key.len()], b"No ", &bytes[place + key.len()..]].concat();
    fs::write(&info, other).unwrap();
    let (code, said) = calibrate(&[]);
    assert!(code == Some(1) && said.contains("a machine with No "), "{said}");

    if require(&["uftrace"]) {
        let folder = tempfile::tempdir().unwrap();
        let program = source().build();
        let dir = folder.path().join("theirs");
        let recorded =
            Command::new("uftrace").args(["record", "--no-libcall", "-d"]).arg(&dir).arg(&program.path).output();
        assert!(recorded.unwrap().status.success());
        let output = Command::new(rftrace()).arg("calibrate").arg(&dir).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && said.contains("the trace has no clock.txt"), "{said}");
    }
}
