//! C++ functions of one name are told apart by their parameters: in what is shown, and in what is recorded.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

use crate::cli::{parts, rftrace, run, utf8};

const SOURCE: &str = "\
#define F __attribute__((noipa))
namespace app { F int draw(int n) { asm volatile(\"\"); return n + 1; }
F int draw(const char *text) { asm volatile(\"\"); return text[0]; }
template <class T> F T twice(T n) { return draw(1) + n; } }
int main() { for (int i = 0; i < 3; i++) app::draw(i); return app::draw(\"\") + app::twice(0) - app::twice(1L); }
";

/// A folder with the program `prog`; `None` where there is no compiler.
fn program() -> Option<TempDir> {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("prog.cpp"), SOURCE).expect("a writable folder");
    let mut compiler = Command::new("g++");
    compiler.current_dir(&folder).args(["-pg", "-O1", "-o", "prog", "prog.cpp"]);
    crate::import::text(&mut compiler).map(|_| folder)
}

fn record(folder: &TempDir, options: &[&str]) {
    let mut record = rftrace(&["record", "-q", "-o", "trace"]);
    let output = record.args(options).args(["--", "./prog"]).current_dir(folder).output().expect("the command starts");
    let (code, _, stderr) = parts(&output);
    assert_eq!((code, stderr.as_str()), (Some(255), ""), "{options:?}");
}

/// The functions of the report, with their calls.
fn reported(folder: &TempDir, options: &[&str]) -> Vec<(String, u64)> {
    let trace = folder.path().join("trace");
    let (code, stdout, stderr) = run(&[&["report"], options, &[utf8(&trace)]].concat());
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    let rows = stdout.lines().skip_while(|line| !line.contains("====")).skip(1);
    let row = |line: &str| {
        let calls = line[24..36].trim().parse().expect("a number");
        (line[38..].to_owned(), calls)
    };
    let mut rows: Vec<_> = rows.map(row).filter(|(name, _)| !name.starts_with("linux:")).collect();
    rows.sort();
    rows
}

fn expect(rows: &[(String, u64)], expected: &[(&str, u64)]) {
    assert_eq!(rows.iter().map(|(name, calls)| (name.as_str(), *calls)).collect::<Vec<_>>(), expected);
}

#[test]
fn overloads_are_recorded_by_their_full_names() {
    let Some(folder) = program() else { return };
    for (options, expected) in [
        (["-F", "app::draw(char const\\*)"], &[("app::draw(char const*)", 1)][..]),
        (["-F", "app::draw(int)"], &[("app::draw(int)", 5)]),
        (["--rules", "exclude=*(int)"], &[("app::draw(char const*)", 1), ("app::twice<long>(long)", 1), ("main", 1)]),
        // Functions recorded from the first call of one on.
        (
            ["--trigger", "app::draw(char const*)"],
            &[
                ("app::draw(char const*)", 1),
                ("app::draw(int)", 2),
                ("app::twice<int>(int)", 1),
                ("app::twice<long>(long)", 1),
            ],
        ),
    ] {
        record(&folder, &options);
        expect(&reported(&folder, &["--demangle", "full"]), expected);
    }
}
