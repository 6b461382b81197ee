//! The same output as the real uftrace has, where the two mean to show the same. Skipped where it is not installed.

use std::path::Path;
use std::process::Command;

use rftrace_read::{Choice, Pattern, SCHED_IN, SCHED_OUT, Trace};
use rftrace_views::{CallTree, Field, Graph, GraphField, ReplayOptions, Report};

use crate::cli::{run, utf8};
use crate::dir::{A, B, BASE, C, CPP, Dir, Files, MAIN, MARK, NAMELESS, RUST, entry, event, exit};

/// The output of a command; `None` if it is not installed.
fn output(command: &mut Command) -> Option<String> {
    let output = crate::import::output(command)?;
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
    Some(text)
}

pub(crate) fn uftrace(command: &str, dir: &Path, args: &[&str]) -> Option<String> {
    output(Command::new("uftrace").args([command, "--no-pager", "--color=no", "-d"]).arg(dir).args(args))
}

fn replay(trace: &Trace) -> String {
    let mut out = Vec::new();
    rftrace_views::replay(trace, &ReplayOptions::default(), &mut out).expect("a readable trace");
    String::from_utf8(out).expect("text")
}

fn report(trace: &Trace) -> String {
    let mut report = Report::read(trace).expect("a readable trace");
    report.sort(&[Field::Total]);
    let mut out = Vec::new();
    report.write(&Field::USUAL, usize::MAX, &mut out).expect("a vector takes all");
    let text = String::from_utf8(out).expect("text");
    // uftrace's has no line on the time of all.
    let (wall, table) = text.split_once('\n').expect("lines");
    assert!(wall.starts_with("  Wall "), "{text}");
    table.to_owned()
}

/// Checks that both programs show the same; times and totals have to differ from each other, for the order in reports.
#[track_caller]
fn check(files: &Files) {
    let dir = files.write();
    let Some(expected) = uftrace("replay", dir.path(), &[]) else { return };
    assert_eq!(replay(&dir.open()), expected);
    let Some(expected) = uftrace("report", dir.path(), &[]) else { return };
    assert_eq!(report(&dir.open()), expected);
}

#[test]
fn one_task() {
    check(&Files::new(&[(
        7,
        &[
            entry(1_000, 0, MAIN),
            entry(1_100, 1, A),
            entry(1_200, 2, RUST),
            exit(1_250, 2, RUST),
            exit(3_500_000, 1, A),
            entry(3_500_001, 1, CPP),
            exit(3_500_002, 1, CPP),
            entry(3_600_000, 1, NAMELESS),
            exit(3_600_900, 1, NAMELESS),
            exit(2_000_001_000, 0, MAIN),
        ],
    )]));
}

#[test]
fn several_tasks() {
    check(&Files::new(&[
        (7, &[entry(10, 0, MAIN), entry(20, 1, A), exit(40, 1, A), exit(990, 0, MAIN)]),
        (12_345, &[entry(30, 0, B), entry(40, 1, C), exit(51, 1, C), exit(67, 0, B)]),
        (8, &[entry(40, 0, RUST), exit(44, 0, RUST)]),
    ]));
}

#[test]
fn recursion() {
    let mut records = Vec::new();
    let mut time = 100;
    let mut push = |time_step, record: fn(u64, u64, u64) -> [u8; 16], depth, addr| {
        time += time_step;
        records.push(record(time, depth, addr));
    };
    for depth in 0..1000 {
        push(3, entry, depth, if depth % 3 == 0 { A } else { B });
    }
    for depth in (0..1000).rev() {
        push(7, exit, depth, if depth % 3 == 0 { A } else { B });
    }
    check(&Files::new(&[(7, &records)]));
}

#[test]
fn events() {
    check(&Files::new(&[(
        7,
        &[
            entry(2_000, 0, MAIN),
            event(3_000, 1, SCHED_OUT),
            event(4_500, 1, SCHED_IN),
            event(5_000, 1, MARK),
            entry(5_200, 1, A),
            event(5_300, 2, SCHED_OUT),
            event(5_800, 2, SCHED_IN),
            exit(5_901, 1, A),
            exit(10_000, 0, MAIN),
        ],
    )]));
}

fn graph(dir: &Dir, function: Option<&str>, fields: &[GraphField]) -> String {
    let function = function.map(|text| Pattern::new(text).expect("a pattern"));
    let mut out = Vec::new();
    let graph = Graph::read(&dir.open(), function.as_ref()).expect("a readable trace");
    graph.write(fields, &mut out).expect("a vector takes all");
    String::from_utf8(out).expect("text")
}

/// Calls in several places, recursive ones too.
fn branches() -> Dir {
    let mut records = vec![entry(1_000, 0, MAIN)];
    let mut time = 2_000;
    for round in 0..4_u64 {
        records.push(entry(time, 1, A));
        for inner in 0..round {
            records.push(entry(time + 100 * inner + 10, 2, B));
            records.push(entry(time + 100 * inner + 20, 3, C));
            records.push(exit(time + 100 * inner + 31 + round, 3, C));
            records.push(exit(time + 100 * inner + 70, 2, B));
        }
        records.push(entry(time + 500, 2, A));
        records.push(entry(time + 510, 3, RUST));
        records.push(exit(time + 600 + round, 3, RUST));
        records.push(exit(time + 700, 2, A));
        records.push(exit(time + 1_003, 1, A));
        time += 2_000;
    }
    records.push(entry(time, 1, C));
    records.push(exit(time + 5_000, 1, C));
    records.push(exit(time + 9_000, 0, MAIN));
    Files::new(&[(7, &records)]).write()
}

#[test]
fn graphs() {
    let dir = branches();
    for (fields, option) in
        [(&[GraphField::Total][..], "total"), (&[GraphField::Total, GraphField::Own], "total,self"), (&[], "none")]
    {
        for function in [None, Some("a"), Some("b"), Some("main")] {
            let arguments = [&["-f", option][..], function.as_slice()].concat();
            let Some(theirs) = uftrace("graph", dir.path(), &arguments) else { return };
            let ours = graph(&dir, function, fields);
            // Their first line names the session, and they end with an empty one. Ours has the slowest way to a function first.
            let tree = |text: &str| {
                let (_, tree) = text.split_once("== FUNCTION CALL GRAPH ==").expect("a graph");
                tree.trim_end().to_owned()
            };
            assert_eq!(tree(&ours), tree(&theirs), "{arguments:?}");
            let backtraces = |text: &str| {
                let lines = text.lines().skip(1).take_while(|line| !line.contains("FUNCTION CALL GRAPH"));
                let mut lines: Vec<String> =
                    lines.map(|line| line.split_once(": hit").map_or(line, |(_, hit)| hit).to_owned()).collect();
                lines.sort();
                lines
            };
            assert_eq!(backtraces(&ours), backtraces(&theirs), "{arguments:?}");
        }
    }
}

#[test]
fn parts() {
    let dir = branches();
    for (arguments, change) in [
        (&["-F", "b"][..], (|choice: &mut Choice| choice.below = vec![Pattern::new("b").unwrap()]) as fn(&mut Choice)),
        (&["-N", "a"], |choice| choice.not_below = vec![Pattern::new("a").unwrap()]),
        (&["-D", "2"], |choice| choice.depth = 2),
        (&["-t", "60ns"], |choice| choice.min_ns = 60),
        (&["-t", "300ns", "-D", "3"], |choice| (choice.min_ns, choice.depth) = (300, 3)),
    ] {
        let mut trace = dir.open();
        let mut choice = Choice::default();
        change(&mut choice);
        trace.choose(choice);
        let Some(theirs) = uftrace("replay", dir.path(), arguments) else { return };
        assert_eq!(replay(&trace), theirs, "{arguments:?}");
    }
}

#[test]
fn columns() {
    let dir = branches();
    for (option, fields) in [
        ("total,total-avg,total-min,total-max", [Field::Total, Field::TotalAvg, Field::TotalMin, Field::TotalMax]),
        ("self,self-avg,self-min,self-max", [Field::Own, Field::OwnAvg, Field::OwnMin, Field::OwnMax]),
    ] {
        let Some(theirs) = uftrace("report", dir.path(), &["-f", option, "-s", fields[0].name()]) else { return };
        let mut report = Report::read_spread(&dir.open()).expect("a readable trace");
        report.sort(&fields[..1]);
        let mut out = Vec::new();
        report.write(&fields, usize::MAX, &mut out).expect("a vector takes all");
        let ours = String::from_utf8(out).expect("text");
        assert_eq!(ours.split_once('\n').expect("lines").1, theirs, "{option}");
    }
}

/// Places in the source, as the trace's own file has them.
#[test]
fn source_lines() {
    let mut records = vec![entry(1_000, 0, MAIN), entry(2_000, 1, A), entry(2_100, 2, B), exit(2_200, 2, B)];
    records.extend([exit(2_900, 1, A), entry(3_000, 1, C), exit(3_050, 1, C), exit(9_000, 0, MAIN)]);
    let mut files = Files::new(&[(7, &records)]);
    let lines =
        format!("# path name: /bin/prog\nF: {:x} main\nL: 1 /src/m.c\nF: {:x} b\nL: 20 b.c\n", MAIN - BASE, B - BASE);
    files.0.insert("prog.dbg".to_owned(), lines.into_bytes());
    let dir = files.write();
    let mut trace = dir.open();
    trace.read_sources(|_| None).expect("a file of source lines");
    let Some(theirs) = uftrace("replay", dir.path(), &["--srcline"]) else { return };
    assert_eq!(replay(&trace), theirs);
    assert_eq!(report(&trace), uftrace("report", dir.path(), &["--srcline"]).expect("uftrace"));
    let mut ours = Vec::new();
    Graph::read(&trace, None).expect("a graph").write(&[GraphField::Total], &mut ours).expect("a vector takes all");
    let ours = String::from_utf8(ours).expect("text");
    let theirs = uftrace("graph", dir.path(), &["--srcline"]).expect("uftrace");
    let tree = |text: &str| text.split_once("== FUNCTION CALL GRAPH ==").expect("a graph").1.trim_end().to_owned();
    assert_eq!(tree(&ours), tree(&theirs));
}

/// The command itself shows the same as uftrace with the same options, on the same directory. Two things are other ones: uftrace filters
/// nothing in its flat output, and `delta` counts from records that it does not show.
#[test]
fn replays_with_options() {
    let records = [
        entry(2_000, 0, MAIN),
        event(3_000, 1, MARK),
        event(4_000, 1, SCHED_OUT),
        event(5_500, 1, SCHED_IN),
        entry(2_000_000, 1, RUST),
        entry(2_000_100, 2, NAMELESS),
        exit(2_000_200, 2, NAMELESS),
        exit(2_001_000, 1, RUST),
        entry(2_001_500, 1, CPP),
        exit(2_001_501, 1, CPP),
        exit(3_100_000_000, 0, MAIN),
    ];
    let threads = [
        (7, &records[..]),
        (12_345, &[entry(30, 0, B), entry(40, 1, C), exit(51, 1, C), exit(3_000_500, 0, B)]),
        (8, &[entry(1_500, 0, A), exit(1_544, 0, A), entry(1_600, 0, B), exit(1_777, 0, B)]),
    ];
    let several = Files::new(&threads).write();
    for dir in [branches(), several] {
        for options in [
            &[][..],
            &["--flat"],
            &["--column-view"],
            &["--column-view", "--column-offset", "2"],
            &["--column-view", "-f", "none"],
            &["-f", "none"],
            &["-f", "all"],
            &["-f", "elapsed"],
            &["-f", "time,duration"],
            &["-f", "+addr,delta"],
            &["--output-fields=task,module,tid"],
            &["--output-fields", "addr,time", "-D", "2"],
            &["-f", "elapsed,time", "-F", "b"],
            &["-f", "time", "-t", "60ns"],
            &["-f", "tid", "-N", "a", "--column-view"],
            &["--match=regex", "-F", "^[ab]$", "-N", "c"],
            &["--match", "regex", "-N", "a"],
            &["--match=glob", "-F", "[bc]"],
        ] {
            let Some(theirs) = uftrace("replay", dir.path(), options) else { return };
            let args = [&["replay", "--color=no", "--no-pager", "-d", utf8(dir.path())], options].concat();
            let (code, ours, _) = run(&args);
            assert_eq!((code, ours), (Some(0), theirs), "{options:?}");
        }
    }
}

/// A program with threads, library calls and arguments, recorded by uftrace itself.
#[test]
fn a_trace_of_uftrace() {
    const PROGRAM: &str = r#"
        #include <pthread.h>
        #include <stdlib.h>
        #include <string.h>
        int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
        void *work(void *n) { return (void *)(long)fib(*(int *)n + (int)strlen(getenv("PATH")) % 2); }
        int main(void) {
            pthread_t threads[3];
            int n[3] = {3, 6, 9};
            for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, work, &n[i]);
            for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
            return fib(atoi("4")) == 0;
        }
    "#;
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("fib.c"), dir.path().join("fib"));
    std::fs::write(&source, PROGRAM).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-pg", "-O0", "-pthread", "-o"]).args([&program, &source]);
    for arguments in [&[][..], &["--auto-args", "--argument=fib@arg1", "--retval=fib@retval"]] {
        let data = dir.path().join("data");
        let mut record = Command::new("uftrace");
        record.args(["record", "--no-event", "--no-pager", "-d"]).arg(&data).args(arguments).arg(&program);
        if output(&mut gcc).is_none() || output(&mut record).is_none() {
            return;
        }
        let trace = Trace::open(&data).unwrap();
        assert_eq!(replay(&trace), uftrace("replay", &data, &["--no-event", "--no-args"]).unwrap());
        // Rows with equal times may be in any order.
        let sorted = |report: String| {
            let mut lines: Vec<_> = report.lines().map(str::to_owned).collect();
            lines.sort_unstable();
            lines
        };
        assert_eq!(sorted(report(&trace)), sorted(uftrace("report", &data, &["--no-event"]).unwrap()));
        let fib = trace.tasks().iter().map(|task| CallTree::read(&trace, task).unwrap().calls_per_function()["fib"]);
        assert!(fib.sum::<u64>() >= 9 + 5 + 25 + 109);
    }
}
