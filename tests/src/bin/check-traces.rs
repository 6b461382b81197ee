//! Opens trace directories with everything that reads them, and fails at the first warning.
//!
//! `check-traces DIRECTORY…` prints for all directories together: how many they are, and their threads, events and
//! functions. For `tools/scripts/check-crates`.

use std::collections::BTreeSet;
use std::env;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use rftrace_tests::traces;
use rftrace_views::{ReplayOptions, Report, replay};
use serde::de::IgnoredAny;

fn main() {
    let mut functions = BTreeSet::new();
    let (mut n_directories, mut n_threads, mut n_events) = (0, 0, 0);
    for argument in env::args_os().skip(1) {
        let dir = Path::new(&argument);
        let trace = traces::open(dir);
        let report = Report::read(&trace).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        assert!(report.summary().warnings.is_empty(), "{}: {}", dir.display(), report.summary().warnings);
        let replayed = replay(&trace, &ReplayOptions::default(), &mut io::sink());
        let replayed = replayed.unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        assert!(replayed.warnings.is_empty(), "{}: {}", dir.display(), replayed.warnings);

        uftrace("report", dir, &mut |mut out| io::copy(&mut out, &mut io::sink()).map(drop));
        uftrace("replay", dir, &mut |mut out| io::copy(&mut out, &mut io::sink()).map(drop));
        uftrace("dump --chrome", dir, &mut |out| {
            serde_json::from_reader::<_, IgnoredAny>(BufReader::with_capacity(1 << 16, out))?;
            Ok(())
        });

        n_directories += 1;
        n_threads += trace.tasks().len();
        n_events += report.summary().records;
        functions.extend(report.rows().iter().map(|row| row.name.clone()));
    }
    assert!(n_directories > 0, "no directory is named");
    println!("{n_directories} traces, {n_threads} threads, {n_events} events, {} functions", functions.len());
}

/// Runs a command of uftrace, which `read` takes the output of. It must succeed and print no warning.
fn uftrace(command: &str, dir: &Path, read: &mut dyn FnMut(&mut dyn Read) -> io::Result<()>) {
    let mut uftrace = Command::new("uftrace");
    uftrace.args(command.split(' ')).args(["--no-pager", "-d"]).arg(dir);
    // A full pipe of stderr would stop uftrace, so stderr is read while it runs.
    uftrace.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = uftrace.spawn().unwrap_or_else(|error| panic!("uftrace does not start: {error}"));
    let mut stderr = child.stderr.take().expect("stderr is piped");
    let warnings = std::thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).map(|_| text)
    });
    let mut stdout = child.stdout.take().expect("stdout is piped");
    read(&mut stdout).unwrap_or_else(|error| panic!("{}: uftrace {command}: {error}", dir.display()));
    let status = child.wait().expect("uftrace was started");
    let warnings = warnings.join().expect("reading does not panic").unwrap_or_else(|error| error.to_string());
    assert!(status.success() && warnings.is_empty(), "{}: uftrace {command}: {status}\n{warnings}", dir.display());
}
