//! Directories that were made to use up memory or time. The program gets an address space of some hundred MB, and five
//! minutes for the busiest machine: it must end, and say what is wrong and where.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::process::{Command, Output};

use crate::dir::{A, BASE, Dir, Files, MAIN, SID, entry, exit};

/// Runs `rftrace` with so much address space.
fn rftrace(megabytes: u32, args: &[&str], dir: &Path) -> Output {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -v {} && exec timeout 300 \"$@\"", megabytes * 1024), "sh"]);
    shell.arg(env!("CARGO_BIN_EXE_rftrace")).args(args).arg(dir).output().expect("a shell with timeout")
}

/// Runs it; it must succeed.
fn succeeds(megabytes: u32, args: &[&str], dir: &Path) -> String {
    let output = rftrace(megabytes, args, dir);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {}: {message}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned() + &message
}

/// Runs it; it must end with an error of its own, which is returned.
fn fails(megabytes: u32, args: &[&str], dir: &Path) -> String {
    let output = rftrace(megabytes, args, dir);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{args:?}: {}: {message}", output.status);
    message
}

/// A trace of one task, 7, of process 7, with these files in place of its own.
fn trace_with(records: &[[u8; 16]], files: &[(&str, String)]) -> Dir {
    let mut all = Files::new(&[(7, records)]);
    all.0.extend(files.iter().map(|(name, text)| ((*name).to_owned(), text.clone().into_bytes())));
    all.write()
}

fn call() -> [[u8; 16]; 2] {
    [entry(10, 0, MAIN), exit(20, 0, MAIN)]
}

/// Fills a file with records that are made one at a time.
fn write_records(dir: &Dir, name: &str, records: impl Iterator<Item = [u8; 16]>) {
    let mut out = BufWriter::new(File::create(dir.file(name)).unwrap());
    records.for_each(|record| out.write_all(&record).unwrap());
    out.flush().unwrap();
}

#[test]
fn processes_that_are_each_forked_from_the_one_before() {
    let mut text = format!("SESS timestamp=1.000000000 pid=7 sid={SID} exename=\"/bin/prog\"\n");
    for pid in 8..20_000 {
        let _ = write!(
            text,
            "FORK timestamp=2.000000000 pid={pid} ppid={}\nSESS timestamp=1.000000000 pid={pid} sid={SID} exename=\"/a\"\n",
            pid - 1
        );
    }
    let dir = trace_with(&call(), &[("task.txt", text)]);
    assert!(succeeds(200, &["report"], dir.path()).contains("main"));
}

#[test]
fn threads_of_a_process_with_many_programs() {
    let mut text = String::new();
    for number in 0..10_000 {
        let _ = write!(
            text,
            "SESS timestamp=0.000000001 pid=7 sid={SID} exename=\"/bin/prog\"\n\
             TASK timestamp=0.000000002 tid={} pid=7\n",
            number + 7
        );
    }
    let dir = trace_with(&call(), &[("task.txt", text)]);
    assert!(succeeds(200, &["report"], dir.path()).contains("main"));
}

#[test]
fn symbols_that_many_modules_share() {
    let mut map = format!("{BASE:x}-{:x} r-xp 00000000 00:00 0 /bin/prog\n", BASE + 0x3000);
    for number in 0..2_000_u64 {
        let start = (number + 1) << 32;
        let _ = writeln!(map, "{start:x}-{:x} r-xp 00000000 00:00 0 /{number}/prog", start + 4096);
    }
    let symbols = (0..5_000).map(|number| format!("{:016x} 00000010 T function_{number}\n", 0x1000 + 16 * number));
    let map_name = format!("sid-{SID}.map");
    let dir = trace_with(&call(), &[(&map_name, map), ("prog.sym", symbols.collect())]);
    assert!(succeeds(200, &["report"], dir.path()).contains("function_0"));
}

#[test]
fn stacks_that_name_long_functions_many_times() {
    let deep: Vec<_> =
        (0..20_000).map(|n| entry(10 * n, n.min(1023), MAIN)).chain([exit(1_000_000, 1023, MAIN)]).collect();
    let symbols = format!("# path name: /bin/prog\n{:016x} 00000010 T {}\n", MAIN - BASE, "x".repeat(1_000));
    let dir = trace_with(&deep, &[("prog.sym", symbols.clone())]);
    for format in ["--folded", "--flamegraph"] {
        let message = fails(200, &["dump", format], dir.path());
        assert!(message.contains("MB of text") && message.contains("--tid"), "{message}");
    }
    // A picture of less, which has to be in memory.
    let dir = trace_with(&deep[..1_000], &[("prog.sym", symbols)]);
    let message = fails(200, &["dump", "--flamegraph"], dir.path());
    assert!(message.contains("MB of text"), "{message}");
    for format in ["--chrome", "--perfetto", "--firefox"] {
        succeeds(200, &["dump", format], dir.path());
    }
}

#[test]
fn functions_that_never_end() {
    let dir = trace_with(&[], &[]);
    write_records(&dir, "7.dat", (0..3_000_000).map(|n| entry(n, n.min(1023), MAIN)));
    let text = succeeds(200, &["report", "-s", "total"], dir.path());
    assert!(text.contains("more than 524288 open calls"), "{text}");
    // With the graph, for the overview.
    let text = succeeds(400, &["report", "--overview"], dir.path());
    assert!(text.contains("more than 524288 open calls"), "{text}");
}

#[test]
fn addresses_without_a_name() {
    let dir = trace_with(&[], &[]);
    let calls =
        (0..2_000_000_u64).flat_map(|n| [entry(2 * n, 0, (1 << 40) + 16 * n), exit(2 * n + 1, 0, (1 << 40) + 16 * n)]);
    write_records(&dir, "7.dat", calls);
    let text = succeeds(400, &["report", "--sort", "call", "--limit", "2"], dir.path());
    assert!(text.contains("(other functions)"), "{text}");
}

#[test]
fn many_tasks_at_once() {
    let mut files = Files::new(&[(7, &[])]);
    let n_tasks = 5_000;
    let tasks = (0..n_tasks).map(|n| format!("TASK timestamp=0.000000002 tid={} pid=7\n", n + 8));
    files.0.get_mut("task.txt").unwrap().extend(tasks.collect::<String>().bytes());
    files.0.insert("records".into(), (0..4096).flat_map(|n| entry(n, n.min(1023), MAIN)).collect());
    let dir = files.write();
    for n in 0..n_tasks {
        fs::hard_link(dir.file("records"), dir.file(&format!("{}.dat", n + 8))).unwrap();
    }
    // Of all of them, the beginning.
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -v 260000 && (timeout 300 \"$@\" || echo failed) | head -n 3", "sh"]);
    shell.arg(env!("CARGO_BIN_EXE_rftrace")).args(["replay", "--builtin"]).arg(dir.path());
    let output = shell.output().expect("a shell with timeout");
    assert!(String::from_utf8_lossy(&output.stdout).contains("main()"), "{output:?}");
}

#[test]
fn lines_of_info_without_end() {
    let mut files = Files::new(&[(7, &call())]);
    let info = files.0.get_mut("info").unwrap();
    let mask = u64::from_le_bytes(info[24..32].try_into().unwrap()) | 1 << 10;
    info[24..32].copy_from_slice(&mask.to_le_bytes());
    info.extend(format!("argspec:lines=4000000\n{}", "a:b\n".repeat(4_000_000)).bytes());
    let message = fails(200, &["info"], files.write().path());
    assert!(message.contains("info: byte") && message.contains("lines"), "{message}");
}

/// The text files, each of which may have one line without end. Its zeros take no room on the disk.
#[test]
fn a_line_without_end() {
    for name in ["info", "task.txt", &format!("sid-{SID}.map"), "prog.sym", "events.txt", "clock.txt", "record.txt"] {
        let dir = trace_with(&call(), &[]);
        let file = File::options().create(true).append(true).open(dir.file(name)).unwrap();
        file.set_len(1 << 30).unwrap();
        let message = fails(200, &["info"], dir.path());
        assert!(
            message.contains(name) && message.contains("is it a file of") || message.contains("another file"),
            "{name}: {message}"
        );
    }
}

/// Files of all kinds, each of which may be a device that never ends or a pipe that nobody writes to.
#[test]
fn files_that_are_none() {
    let map = format!("sid-{SID}.map");
    for name in
        ["info", "task.txt", &map, "prog.sym", "events.txt", "clock.txt", "record.txt", "7.dat", "perf-cpu3.dat"]
    {
        for is_pipe in [false, true] {
            let mut files = Files::new(&[(7, &call())]);
            // There are context switches.
            files.0.get_mut("info").unwrap()[17] |= 1;
            files.0.remove(name);
            let dir = files.write();
            let path = dir.file(name);
            if is_pipe {
                assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
            } else {
                std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
            }
            let message = fails(200, &["info"], dir.path());
            assert!(message.contains(name) && message.contains("not a regular file"), "{name}: {message}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let message = fails(200, &["import", "-o", folder.path().join("trace").to_str().unwrap()], Path::new("/dev/zero"));
    assert!(message.contains("/dev/zero") && message.contains("not a regular file"), "{message}");
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let [pipe, out] = [pipe, folder.path().join("trace")].map(|path| path.to_str().unwrap().to_owned());
    let message = fails(200, &["merge", "-o", &out, "--kvm", &pipe], trace_with(&call(), &[]).path());
    assert!(message.contains("pipe: not a regular file"), "{message}");
}

#[test]
fn too_long_a_trace_for_firefox_is_refused_by_its_size() {
    let dir = trace_with(&call(), &[]);
    // Nothing of these is read.
    File::options().write(true).open(dir.file("7.dat")).unwrap().set_len(16 * 10_000_001).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let message = fails(200, &["dump", "--firefox", "-o", out.to_str().unwrap()], dir.path());
    assert!(message.contains("more than 10000000 ") && message.contains("--from"), "{message}");
    assert!(!out.exists(), "it was begun");
}

#[test]
fn indentation_has_an_end() {
    let dir = trace_with(&(0..3_000).map(|time| entry(time, 0, A)).collect::<Vec<_>>(), &[]);
    let text = succeeds(200, &["replay"], dir.path());
    let widths = text.lines().filter_map(|line| line.find("a() {"));
    assert_eq!(widths.max(), Some("            [     7] | ".len() + 2 * 1024));
}

/// Real traces are far below the limits.
#[test]
fn a_hundred_thousand_threads_and_a_million_symbols() {
    let tids = || 7..100_007;
    let mut info = Files::new(&[(7, &[])]).0["info"].clone();
    let text = info.windows(8).position(|part| part == b"taskinfo").unwrap();
    info.truncate(text);
    let list: Vec<String> = tids().map(|tid| tid.to_string()).collect();
    info.extend(
        format!("taskinfo:lines=2\ntaskinfo:nr_tid={}\ntaskinfo:tids={}\n", list.len(), list.join(",")).bytes(),
    );
    let mut task = format!("SESS timestamp=0.000000001 pid=7 sid={SID} exename=\"/bin/prog\"\n");
    for tid in tids() {
        let _ = writeln!(task, "TASK timestamp=0.000000002 tid={tid} pid=7 comm=\"worker {tid}\"");
    }
    let symbols = (0..1_000_000)
        .map(|n| format!("{:016x} 00000010 T some::module::of::a::program::function_{n}\n", 0x1000 + 16 * n));
    let map = format!("{BASE:x}-{:x} r-xp 00000000 00:00 0 /bin/prog\n", BASE + 0x200_0000);
    let mut files = Files::new(&[(7, &[entry(1, 0, A), exit(2, 0, A)])]);
    files.0.insert("info".into(), info);
    files.0.insert("task.txt".into(), task.into());
    files.0.insert("prog.sym".into(), symbols.collect::<String>().into());
    files.0.insert(format!("sid-{SID}.map"), map.into());
    let dir = files.write();
    assert!(succeeds(500, &["report"], dir.path()).contains("function_1\n"));
    assert!(succeeds(500, &["info"], dir.path()).contains("worker 100006"));
}
