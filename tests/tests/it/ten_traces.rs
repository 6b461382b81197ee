//! Ten traces, of five programs by rftrace and by uftrace: what `rftrace` shows of each is what uftrace does.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use rftrace_tests::traces::{assert_same_lines, uftrace};
use rftrace_tests::{CProgram, require};
use tempfile::TempDir;

use crate::record::rftrace;

/// Arguments of the commands, each with uftrace's name for it.
const REPORTS: [&[&str]; 4] = [
    &["report", "-s", "total"],
    &["report", "-s", "self"],
    &["report", "-s", "call"],
    &["report", "-f", "total-avg,total-min,total-max", "-s", "total-max"],
];
const REPLAYS: [&[&str]; 4] =
    [&["replay"], &["replay", "-D", "2"], &["replay", "-f", "tid,time,elapsed", "-N", "leaf"], &["replay", "--flat"]];

struct Traces {
    folder: TempDir,
    program: PathBuf,
}

impl Traces {
    /// Records the program, as `name`.
    fn record(&self, recorder: &str, arguments: &[&str], name: &str) -> PathBuf {
        let dir = self.folder.path().join(name);
        let mut command = match recorder {
            "rftrace" => {
                let mut command = Command::new(rftrace());
                command.args(["record", "-q", "--no-schedule", "-o"]).arg(&dir).arg("--");
                command
            }
            _ => {
                let mut command = Command::new("uftrace");
                command.args(["record", "--no-event", "--no-libcall", "--no-pager", "-d"]).arg(&dir);
                command
            }
        };
        let status = command.arg(&self.program).args(arguments).status().unwrap();
        assert!(status.success(), "{recorder}: {status}");
        dir
    }
}

/// Returns our command's output.
fn ours(arguments: &[&str], dir: &Path) -> String {
    let (command, options) = arguments.split_first().unwrap();
    let corrected = ["report", "graph"].contains(command).then_some("--no-correct");
    let mut command_line = Command::new(rftrace());
    command_line.arg(command).args(corrected).args(["--no-pager", "--color=no", "-d"]).arg(dir).args(options);
    let output = command_line.output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    // A call within one tick of the clock: uftrace shows nothing then.
    String::from_utf8(output.stdout).unwrap().replace("   0.000 us", "           ")
}

/// Rows with equal times may be in any order.
fn sorted<'t>(lines: impl Iterator<Item = &'t str>) -> String {
    let mut lines: Vec<&str> = lines.collect();
    lines.sort_unstable();
    lines.join("\n")
}

/// Behind the lines that each has of its own.
fn tree(graph: &str) -> &str {
    graph.split_once("== FUNCTION CALL GRAPH ==").expect("a graph").1.trim_end()
}

/// The rows of a comparison: the columns of each function, without the signs of times. uftrace 0.13 has those the other way round; not those
/// of calls.
fn differences(table: &str) -> BTreeMap<String, Vec<String>> {
    // No difference is said in three ways.
    let nothing = ["+0.000 us", "-0.000 us", " 0 us"];
    let table = nothing.iter().fold(table.to_owned(), |table, word| table.replace(word, "  "));
    let rows = table.lines().skip_while(|line| !line.contains("====")).skip(1);
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (name, columns) = words.split_last().expect("columns");
        let is_time = |word: &str| word.contains('.');
        let columns = columns.iter().map(|word| if is_time(word) { word.trim_start_matches(['+', '-']) } else { word });
        ((*name).to_owned(), columns.map(str::to_owned).collect())
    };
    rows.map(row).collect()
}

#[test]
fn look_as_in_uftrace() {
    if !require(&["gcc", "uftrace"]) {
        return;
    }
    let program = CProgram::new(&["looked_at.c"])
        .without_library()
        .with(&["-O1", "-fno-optimize-sibling-calls", "-pthread"])
        .build();
    let traces = Traces { folder: tempfile::tempdir().unwrap(), program: program.path.clone() };
    for recorder in ["rftrace", "uftrace"] {
        for which in ["loops", "fib", "mutual", "sort", "threads"] {
            let what = |arguments: &[&str]| format!("{which} by {recorder}: {arguments:?}");
            let dir = traces.record(recorder, &[which, "7"], &format!("{recorder}-{which}"));
            for arguments in REPORTS {
                // Ours has a line on the time of all first.
                let (report, theirs) = (ours(arguments, &dir), uftrace(arguments, &dir));
                let report = report.split_once('\n').expect("lines").1;
                assert_same_lines(&sorted(report.lines()), &sorted(theirs.lines()), &what(arguments));
            }
            for arguments in REPLAYS {
                assert_same_lines(&ours(arguments, &dir), &uftrace(arguments, &dir), &what(arguments));
            }
            for arguments in [&["graph", "-f", "total,self"][..], &["graph", "-f", "total,self", "leaf"]] {
                if arguments.len() > 3 && !["loops", "threads"].contains(&which) {
                    continue;
                }
                let (graph, theirs) = (ours(arguments, &dir), uftrace(arguments, &dir));
                assert_same_lines(tree(&graph), tree(&theirs), &what(arguments));
            }
            let larger = traces.record(recorder, &[which, "9"], &format!("{recorder}-{which}-larger"));
            let arguments = ["report", "--diff", larger.to_str().unwrap()];
            let (difference, theirs) = (ours(&arguments, &dir), uftrace(&arguments, &dir));
            let (found, expected) = (differences(&difference), differences(&theirs));
            assert!(found.len() >= 2, "{difference}");
            assert_eq!(found, expected, "{}:\n{difference}\n{theirs}", what(&arguments));
        }
    }
}
