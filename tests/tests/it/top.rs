//! `rftrace top`: what a program that runs is at, while it is at it; and that it goes on as if nothing had happened.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use rftrace_tests::{CProgram, Program, Terminal, require, tools};

use crate::attach::{self, BUSY, Running};
use crate::record::rftrace;

fn program() -> &'static Program {
    static BUILT: OnceLock<Program> = OnceLock::new();
    BUILT.get_or_init(|| CProgram::new(&["watched.c"]).without_library().with(&["-O1", "-lpthread"]).build())
}

/// A program that does what it is told.
struct Told(Running);

impl Told {
    fn begin() -> Self {
        Self(Running::begin(&program().path, ""))
    }

    /// Has it do something, and does not wait for it.
    fn tell(&mut self, what: &str) {
        writeln!(self.0.child.stdin.as_mut().unwrap(), "{what}").unwrap();
    }

    /// Has it do something.
    #[track_caller]
    fn run(&mut self, what: &str) {
        self.tell(what);
        self.wait();
    }

    #[track_caller]
    fn wait(&mut self) {
        let mut line = String::new();
        self.0.output.read_line(&mut line).unwrap();
        assert_eq!(line, "done\n");
    }

    /// It ends as it would have, after so many calls.
    #[track_caller]
    fn end(self, n_calls: i64) {
        let (status, said) = self.0.end();
        let sum: i64 = (0..n_calls).map(|n| 6 * n + 5).sum();
        assert_eq!((status.code(), said), (Some(7), format!("sum {sum}\n")));
    }
}

/// A function in a table.
#[derive(Clone, Debug)]
struct Row {
    name: String,
    calls: u64,
    percent: f64,
}

/// Contents of one table.
#[derive(Clone, Debug)]
struct Shown {
    head: String,
    rows: Vec<Row>,
}

impl Shown {
    fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }
}

/// The command, with its tables in a pipe.
struct Top {
    child: Child,
    tables: BufReader<ChildStdout>,
    told: BufReader<ChildStderr>,
}

impl Top {
    /// Begins to watch a process, and waits for the first table. Where no thread can be borrowed at the moment, tries again.
    #[track_caller]
    fn begin(pid: u32, options: &[&str]) -> Self {
        let mut told = String::new();
        for _ in 0..20 {
            let mut command = Command::new(rftrace());
            command.arg("top").args(options).args(["--limit", "1000", &pid.to_string()]);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let tables = BufReader::new(child.stdout.take().unwrap());
            let mut top = Self { told: BufReader::new(child.stderr.take().unwrap()), child, tables };
            if top.table().is_some() {
                return top;
            }
            top.told.read_to_string(&mut told).unwrap();
            top.child.wait().unwrap();
            assert!(BUSY.iter().any(|said| told.contains(said)), "{told}");
        }
        panic!("{told}");
    }

    /// The next table; `None` if there is none any more.
    fn table(&mut self) -> Option<Shown> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if self.tables.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        let rows = lines.split_off(3);
        assert!(lines[0].starts_with("rftrace top: ") && lines[2].ends_with("  Function"), "{lines:?}");
        let row = |line: String| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // A time and its unit.
            let (calls, percent, name) = (fields[0].replace(',', ""), fields[4], fields[fields.len() - 1]);
            Row { name: name.to_owned(), calls: calls.parse().unwrap(), percent: percent.parse().unwrap() }
        };
        Some(Shown { head: lines[1].clone(), rows: rows.into_iter().map(row).collect() })
    }

    fn signal(&self, signal: &str) {
        tools::run(Command::new("kill").args([signal, &self.child.id().to_string()]));
    }

    /// Waits for its end. Returns that, the tables that were not read yet, and what it has said.
    fn end(mut self) -> (ExitStatus, Vec<Shown>, String) {
        let rest = std::iter::from_fn(|| self.table()).collect();
        let mut told = String::new();
        self.told.read_to_string(&mut told).unwrap();
        (self.child.wait().unwrap(), rest, told)
    }
}

/// Calls of a function, in tables.
fn calls(tables: &[Shown], name: &str) -> u64 {
    tables.iter().filter_map(|table| table.row(name)).map(|row| row.calls).sum()
}

#[test]
fn all_calls_are_counted() {
    if !require(&["gcc"]) {
        return;
    }
    const N_CALLS: u64 = 200_000;

    let mut told = Told::begin();
    let mut top = Top::begin(told.0.pid(), &["-e", "200ms"]);
    let mut tables = Vec::new();
    for part in [1, 99, 900, N_CALLS - 1000] {
        told.run(&format!("calls {part}"));
        tables.extend(top.table());
    }
    // The last of them may be in a table to come.
    while calls(&tables, "middle") < N_CALLS {
        tables.push(top.table().expect("one more"));
    }
    tables.extend(top.table());
    top.signal("-INT");
    let (status, rest, said) = top.end();
    tables.extend(rest);
    assert_eq!((calls(&tables, "middle"), calls(&tables, "leaf")), (N_CALLS, 2 * N_CALLS));
    assert!(tables.iter().all(|table| table.head.contains("none dropped")), "{tables:?}");
    assert!(tables.iter().any(|table| table.row("middle").is_none()), "idle: {tables:?}");
    assert!(status.success(), "{status}: {said}");
    let wanted = format!("rftrace: process {} goes on without the tracer; 600,000 calls were seen in ", told.0.pid());
    assert!(said.starts_with(&wanted) && said.ends_with(" s, none dropped\n"), "{said}");
    // And without it.
    told.run("calls 3");
    // The sum of the program is that of each loop.
    let sums = [1, 99, 900, N_CALLS as i64 - 1000, 3].map(|n: i64| (0..n).map(|n| 6 * n + 5).sum::<i64>());
    let (status, said) = told.0.end();
    assert_eq!((status.code(), said), (Some(7), format!("sum {}\n", sums.iter().sum::<i64>())));
}

/// The time of a function that works or waits is shown before it returns.
#[test]
fn functions_that_do_not_return() {
    if !require(&["gcc"]) {
        return;
    }
    let mut told = Told::begin();
    for (what, name) in [("spin 1.5", "spins"), ("sleep 1.5", "sleeps")] {
        let mut top = Top::begin(told.0.pid(), &["-e", "100ms"]);
        told.tell(what);
        let mut tables = Vec::new();
        while calls(&tables, name) == 0 || tables.last().is_none_or(|last: &Shown| last.row(name).is_some()) {
            tables.push(top.table().unwrap());
        }
        told.wait();
        top.signal("-TERM");
        assert!(top.end().0.success());
        let rows: Vec<&Row> = tables.iter().filter_map(|table| table.row(name)).collect();
        assert_eq!(rows.iter().map(|row| row.calls).sum::<u64>(), 1, "{rows:?}");
        // But for its beginning and its end.
        let inner = &rows[1..rows.len() - 1];
        assert!(!inner.is_empty() && inner.iter().all(|row| row.calls == 0), "{rows:?}");
        assert!(inner.iter().all(|row| (99.0..101.0).contains(&row.percent)), "{rows:?}");
        assert_eq!(tables.iter().find(|table| table.row(name).is_some()).unwrap().rows[0].name, name);
    }
    told.end(0);
}

#[test]
fn threads_that_end() {
    if !require(&["gcc"]) {
        return;
    }
    let mut told = Told::begin();
    let mut top = Top::begin(told.0.pid(), &["-e", "100ms"]);
    let mut tables = Vec::new();
    for _ in 0..20 {
        told.run("thread");
    }
    while calls(&tables, "ends_amid") < 20 || tables.last().is_none_or(|last: &Shown| last.row("ends_amid").is_some()) {
        tables.push(top.table().unwrap());
    }
    assert_eq!((calls(&tables, "thread"), calls(&tables, "leaf")), (20, 60));
    top.signal("-INT");
    assert!(top.end().0.success());
    told.end(0);
}

/// A bank that is too small: the program does not wait, and what was not seen is said.
#[test]
fn what_is_dropped_is_said() {
    if !require(&["gcc"]) {
        return;
    }
    const N_CALLS: u64 = 2_000_000;

    let mut told = Told::begin();
    let mut top = Top::begin(told.0.pid(), &["-e", "200ms", "--buffer", "64K"]);
    told.run(&format!("calls {N_CALLS}"));
    let mut tables = vec![top.table().unwrap()];
    // Whatever was lost, nothing seems to be at work when nothing is.
    while tables.last().is_none_or(|last| !last.rows.is_empty()) {
        tables.push(top.table().unwrap());
    }
    top.signal("-INT");
    let (status, _, said) = top.end();
    assert!(status.success(), "{said}");
    let number = |text: &str| text.replace(',', "").parse::<u64>().unwrap();
    let dropped = number(said.rsplit_once(", ").unwrap().1.split(' ').next().unwrap());
    let seen = number(said.split("; ").nth(1).unwrap().split(' ').next().unwrap());
    assert!(said.ends_with(" calls and returns dropped\n"), "{said}");
    assert!(seen < 3 * N_CALLS && seen + dropped >= 3 * N_CALLS, "{said}");
    assert!(tables.iter().any(|table| table.head.contains("dropped ")), "{tables:?}");
    told.end(N_CALLS as i64);
}

/// Whatever ends it, the program goes on.
#[test]
fn signals() {
    if !require(&["gcc"]) {
        return;
    }
    let running = Running::begin(&attach::program().path, "malloc");
    for signal in ["-TERM", "-INT", "-HUP"] {
        let mut top = Top::begin(running.pid(), &["-e", "50ms"]);
        // Where others have the processors, it may not have run in an interval.
        let is_whole = |table: &Shown| table.row("round_of_work").is_some() && table.row("middle").is_some();
        while !is_whole(&top.table().unwrap()) {}
        top.signal(signal);
        let (status, _, said) = top.end();
        assert!(status.success() && said.contains("goes on without the tracer"), "{signal}: {status}: {said}");
    }
    // Nobody reads any more.
    let Top { mut child, tables, .. } = Top::begin(running.pid(), &["-e", "50ms"]);
    drop(tables);
    assert!(child.wait().unwrap().success());
    let killed = Top::begin(running.pid(), &["-e", "50ms"]);
    killed.signal("-KILL");
    assert_eq!(killed.end().0.signal(), Some(9));
    running.record_some(&["--leave"]);
    let (status, said) = running.end();
    assert_eq!(status.code(), Some(7), "{said}");
    assert!(said.contains("slot same"), "{said}");
}

#[test]
fn a_program_that_ends() {
    if !require(&["gcc"]) {
        return;
    }
    let mut told = Told::begin();
    let top = Top::begin(told.0.pid(), &["-b", "-e", "1s"]);
    let pid = told.0.pid();
    told.run("calls 1000");
    told.end(1000);
    let (status, tables, said) = top.end();
    assert!(status.success(), "{said}");
    assert!(said.starts_with(&format!("rftrace: process {pid} has ended\nrftrace: 3,000 calls were seen")), "{said}");
    assert_eq!(calls(&tables, "leaf"), 2000, "{tables:?}");
    // And one that is not there.
    let output = Command::new(rftrace()).args(["top", "--once", &pid.to_string()]).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is no process"));
}

/// So many tables, and choices in the program.
#[test]
fn options() {
    if !require(&["gcc"]) {
        return;
    }
    let running = Running::begin(&attach::program().path, "malloc");
    let options = ["--once", "-e", "100ms", "-F", "middle", "-s", "calls", "-q"];
    let (status, tables, said) = Top::begin(running.pid(), &options).end();
    assert!(status.success() && tables.is_empty() && said.is_empty(), "{said}");
    let options = ["-e", "100ms", "-F", "middle", "-s", "calls"];
    // One was read.
    assert_eq!(Top::begin(running.pid(), &[&options[..], &["-n", "3"]].concat()).end().1.len(), 2);
    let mut top = Top::begin(running.pid(), &options);
    let names = |table: Shown| table.rows.into_iter().map(|row| row.name).collect::<Vec<_>>();
    while names(top.table().unwrap()) != ["leaf", "middle"] {}
    top.signal("-INT");
    let (_, tables, said) = top.end();
    assert!(tables.iter().all(|table| table.row("round_of_work").is_none()), "{tables:?}: {said}");
    assert_eq!(fs::read_dir(&running.folder).unwrap().count(), 0, "nothing is written");
    assert!(running.end().1.contains("slot same"));
}

#[test]
fn the_screen() {
    if !require(&["gcc"]) {
        return;
    }
    let running = Running::begin(&attach::program().path, "malloc");
    let begin = || {
        let command = format!("{} top -e 100ms {}", rftrace().display(), running.pid());
        Terminal::new(&command, &running.folder.path().join("pid"))
    };
    let Some(mut terminal) = begin() else { return };
    terminal.wait_for("round_of_work");
    terminal.wait_for("\u{25be}Self");
    // Of what stays the same nothing is written.
    terminal.press("c");
    terminal.wait_for("\u{25be}");
    terminal.press("fmidd");
    terminal.wait_for("midd\u{2588}");
    terminal.press("\r");
    terminal.wait_for("only midd");
    terminal.press("b");
    terminal.wait_for("since the beginning");
    terminal.press(" ");
    terminal.wait_for("paused");
    terminal.press("q");
    terminal.wait_for("goes on without the tracer");
    terminal.end("0");

    // By a signal, and when the terminal is gone.
    let mut terminal = begin().unwrap();
    terminal.wait_for("round_of_work");
    let pid = || fs::read_to_string(running.folder.path().join("pid")).unwrap().trim().to_owned();
    tools::run(Command::new("kill").args(["-TERM", &pid()]));
    terminal.wait_for("goes on without the tracer");
    terminal.end("0");
    let mut terminal = begin().unwrap();
    terminal.wait_for("round_of_work");
    let process = Path::new("/proc").join(pid());
    tools::run(Command::new("pkill").args(["-KILL", "-P", &terminal.child.id().to_string()]));
    terminal.child.wait().unwrap();
    for _ in 0..3000 {
        if fs::read_to_string(process.join("stat")).is_ok_and(|stat| !stat.contains(") Z ")) {
            thread::sleep(Duration::from_millis(20));
        }
    }
    assert!(!process.exists() || fs::read_to_string(process.join("stat")).is_ok_and(|stat| stat.contains(") Z ")));
    let (status, said) = running.end();
    assert_eq!(status.code(), Some(7), "{said}");
    assert!(said.contains("slot same"), "{said}");
}
