//! The size of a large output is told before it is written.

use std::io::Read;
use std::process::{Command, Stdio};

use rftrace_export::{Chrome, ExportOptions, Perfetto, export};
use rftrace_read::Trace;
use rftrace_tests::terminal::Terminal;

use crate::dir::{A, Dir, Files, MAIN, entry, exit};

/// A trace of so many calls, one every 20 ns, of a function with a name of so many letters.
fn trace(n_calls: u64, name: usize) -> Dir {
    let mut records = vec![entry(10, 0, MAIN)];
    for ns in (20..).step_by(20).take(n_calls as usize) {
        records.extend([entry(ns, 1, A), exit(ns + 10, 1, A)]);
    }
    let mut files = Files::new(&[(1, &records)]);
    let symbols = String::from_utf8(files.0["prog.sym"].clone()).unwrap();
    files.0.insert("prog.sym".into(), symbols.replace(" T a\n", &format!(" T {}\n", "a".repeat(name))).into());
    files.write()
}

#[test]
fn an_estimate_is_about_the_size() {
    let dir = trace(200_000, 20);
    let trace = Trace::open(dir.path()).unwrap();
    let chrome = |options: &ExportOptions| {
        let mut sink = Chrome::new(Vec::new());
        export(&trace, options, &mut sink).map(|_| sink.into_inner().len() as u64)
    };
    let perfetto = |options: &ExportOptions| {
        let mut out = Vec::new();
        export(&trace, options, &mut Perfetto::new(&mut out, None)).map(|_| out.len() as u64)
    };
    let mut half = ExportOptions::default();
    half.from_ns = Some(1_000_000);
    half.to_ns = Some(3_000_000);
    let is_near = |estimate: Option<u64>, actual: u64| {
        let ratio = estimate.expect("an estimate") as f64 / actual as f64;
        assert!((0.9..1.1).contains(&ratio), "{estimate:?} {actual}");
    };
    let all = ExportOptions::default();
    is_near(all.estimate(&trace, chrome).unwrap(), chrome(&all).unwrap());
    is_near(all.estimate(&trace, perfetto).unwrap(), perfetto(&all).unwrap());
    // That is soon written.
    assert_eq!(half.estimate(&trace, chrome).unwrap(), None);
    drop(trace);

    let dir = self::trace(400_000, 20);
    let trace = Trace::open(dir.path()).unwrap();
    let chrome = |options: &ExportOptions| {
        let mut sink = Chrome::new(Vec::new());
        export(&trace, options, &mut sink).map(|_| sink.into_inner().len() as u64)
    };
    half.to_ns = Some(7_000_000);
    is_near(half.estimate(&trace, chrome).unwrap(), chrome(&half).unwrap());
}

#[test]
fn a_person_is_asked_before_a_gibibyte() {
    let dir = trace(500_000, 2500);
    let output = dir.path().join("out.json");
    let dump = |options: &str| {
        format!(
            "{} dump --chrome {options} {} -o {}",
            env!("CARGO_BIN_EXE_rftrace"),
            dir.path().display(),
            output.display()
        )
    };
    let Some(mut terminal) = Terminal::new(&dump(""), &dir.path().join("pid")) else { return };
    terminal.wait_for("the output will have about 1.");
    terminal.wait_for("GiB; less: --from and --to, --tid, -F, -D, -t");
    terminal.wait_for("[y/N] ");
    terminal.press("n\n");
    terminal.wait_for("nothing is written");
    terminal.wait_for("status=1");
    assert!(!output.exists());
    // A part is small.
    let Some(mut terminal) = Terminal::new(&dump("--to 100us"), &dir.path().join("pid")) else { return };
    terminal.wait_for("status=0");
    assert!(output.exists());

    // Nobody is there to ask.
    let mut command = Command::new(env!("CARGO_BIN_EXE_rftrace"));
    command
        .args(["dump", "--chrome"])
        .arg(dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut begun = vec![0; 1 << 20];
    child.stdout.take().unwrap().read_exact(&mut begun).expect("the output");
    let told = String::from_utf8_lossy(&child.wait_with_output().unwrap().stderr).into_owned();
    assert!(told.contains("the output will have about 1.") && !told.contains("[y/N]"), "{told}");
    let run = command.args(["--quiet", "--to", "1ms"]).output().unwrap();
    assert!(run.status.success() && run.stderr.is_empty(), "{}", String::from_utf8_lossy(&run.stderr));
}
