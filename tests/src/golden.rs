//! Golden traces and outputs: `tests/golden/NAME.txt` has commands and their outputs for the traces in the folder
//! `tests/golden/NAME`. `tests/golden/README.md` describes both.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::tools;

/// A command with its kept output.
struct Row<'t> {
    /// True if uftrace prints the same.
    is_uftraces: bool,
    command: &'t str,
    output: &'t str,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden")
}

/// The names of all files with commands.
///
/// # Panics
///
/// When the folder cannot be read.
#[must_use]
pub fn names() -> Vec<String> {
    tables_in(&folder())
}

/// The names of all tables in a folder: of files `NAME.txt`.
pub(crate) fn tables_in(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder).expect("the folder of the tables").map(|file| file.expect("a name").file_name());
    let name = |file: std::ffi::OsString| file.to_str()?.strip_suffix(".txt").map(str::to_owned);
    let mut names: Vec<_> = files.filter_map(name).collect();
    names.sort();
    names
}

/// A copy of a golden trace, free to be changed.
///
/// # Panics
///
/// When there is no such trace.
#[must_use]
pub fn copy(name: &str) -> TempDir {
    let copy = tempfile::tempdir().expect("a temporary directory");
    copy_below(&folder().join(name), copy.path());
    copy
}

/// Copies all golden traces to a new folder.
///
/// # Panics
///
/// When the folder is there.
pub fn copy_all(to: &Path) {
    fs::create_dir(to).expect("a new folder");
    copy_below(&folder(), to);
}

fn copy_below(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap_or_else(|error| panic!("{}: {error}", from.display())) {
        let (path, to) = entry.map(|entry| (entry.path(), to.join(entry.file_name()))).expect("an entry");
        if path.is_dir() {
            fs::create_dir(&to).expect("a writable folder");
            copy_below(&path, &to);
        } else {
            fs::copy(&path, &to).expect("a copy");
        }
    }
}

/// The head of a file, and its rows.
fn parse(text: &str) -> (&str, Vec<Row<'_>>) {
    let is_row = |at: &usize| text[*at..].starts_with("$ ") || text[*at..].starts_with("= ");
    let line_starts = [0].into_iter().chain(text.match_indices('\n').map(|(at, _)| at + 1));
    let starts: Vec<usize> = line_starts.filter(is_row).collect();
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    let rows = starts.iter().zip(ends).map(|(&start, end)| {
        let (command, output) = text[start + 2..end].split_once('\n').expect("a line");
        let output = output.strip_suffix('\n').filter(|_| end < text.len()).unwrap_or(output);
        Row { is_uftraces: text[start..].starts_with('='), command, output }
    });
    (&text[..starts.first().copied().unwrap_or(text.len())], rows.collect())
}

/// Runs the commands of a file; `run` gets a command and a folder with the traces. With `UPDATE=1` in the environment the
/// file gets the present outputs.
///
/// # Errors
///
/// The commands with another output than before, or than uftrace in a row of both.
///
/// # Panics
///
/// When the file cannot be read.
pub fn check(name: &str, run: impl Fn(&str, &Path) -> String) -> Result<(), String> {
    let is_update = env::var_os("UPDATE").is_some();
    assert!(!is_update || env::var_os("CI").is_none(), "golden outputs are rewritten by hand only");
    let (path, dir) = (folder().join(format!("{name}.txt")), copy(name));
    let kept = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (head, rows) = parse(&kept);
    if head.lines().filter_map(|line| line.strip_prefix("Needs: ")).any(|tool| !tools::require(&[tool])) {
        return Ok(());
    }
    let has_uftrace = rows.iter().any(|row| row.is_uftraces) && tools::require(&["uftrace"]);
    let (mut updated, mut differences) = (head.to_owned(), String::new());
    for (idx, row) in rows.iter().enumerate() {
        let mut output = run(row.command, dir.path()).replace(&*dir.path().to_string_lossy(), "DIR");
        output.push_str(if output.is_empty() || output.ends_with('\n') { "" } else { "\n" });
        let (mark, gap) = (if row.is_uftraces { '=' } else { '$' }, if idx + 1 < rows.len() { "\n" } else { "" });
        updated += &format!("{mark} {}\n{output}{gap}", row.command);
        if output != row.output && !is_update {
            differences += &difference(name, row.command, &output, row.output);
        }
        if row.is_uftraces && has_uftrace {
            let theirs = run(&row.command.replace("rftrace", "uftrace"), dir.path());
            let [ours, theirs] = [&output, &theirs].map(|text| printed(text));
            if ours != theirs {
                differences += &difference(name, row.command, &ours, &format!("# by uftrace\n{theirs}"));
            }
        }
    }
    if is_update && updated != kept {
        assert_eq!(parse(&updated).1.len(), rows.len(), "{name}: an output looks like a row");
        fs::write(&path, updated).expect("a writable folder");
    }
    if differences.is_empty() { Ok(()) } else { Err(differences) }
}

/// A command's output without its messages and its status.
fn printed(output: &str) -> String {
    output.split_inclusive('\n').filter(|line| !line.starts_with("! ") && !line.starts_with("? ")).collect()
}

fn difference(name: &str, command: &str, output: &str, expected: &str) -> String {
    format!("\n{name}.txt: {command}\n--- it prints\n{output}--- and must print\n{expected}")
}
