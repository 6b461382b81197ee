//! Directories of traces: which may be written to, by whom at a time, and what stays in them.
//!
//! Not here: recorders that are killed (`interrupted`).

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use rftrace_tests::traces;
use rftrace_tests::{CProgram, Program, require};

use crate::interrupted::{Folder, leaves, program, send, stderr, wait_until};

/// Calls of `leaf` by the program without an argument, and by one that waits.
const SHORT: u64 = 2;
const WHOLE: u64 = 5;

/// A program that has the tracer in it, and a stream to `trace`.
fn own_stream() -> &'static Program {
    static BUILT: OnceLock<Program> = OnceLock::new();
    BUILT.get_or_init(|| CProgram::new(&["own_stream.c"]).with(&["-O1", "-lpthread"]).build())
}

fn records(folder: &Folder) -> Output {
    folder.recording(&["-q"], "").output().unwrap()
}

fn succeeds(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
}

/// Returns the names and contents of the files in a directory.
fn contents(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let mut found: Vec<_> = entries
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap_or_default()))
        .collect();
    found.sort();
    found
}

#[test]
fn programs_write_to_no_directory_of_others() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = Folder::new();
    fs::create_dir(folder.path("trace")).unwrap();
    fs::write(folder.path("trace/letter"), "Dear").unwrap();
    let run = Command::new(&own_stream().path).args(["10", "save"]).current_dir(folder.path("")).output().unwrap();
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    assert_eq!(run.status.code(), Some(1), "{said}");
    assert!(
        said.contains("trace: the directory contains `letter` and is no trace; choose another directory"),
        "{said}"
    );
    assert_eq!(contents(&folder.path("trace")), [("letter".to_owned(), b"Dear".to_vec())]);
}

#[test]
fn files_of_others_stay_in_the_directory_of_a_trace() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = Folder::new();
    succeeds(&records(&folder));
    fs::write(folder.path("trace/notes"), "mine").unwrap();
    fs::create_dir(folder.path("trace/stream")).unwrap();
    fs::write(folder.path("trace/stream/fish"), "a river").unwrap();
    for _ in 0..3 {
        succeeds(&records(&folder));
        assert_eq!(fs::read(folder.path("trace/notes")).unwrap(), b"mine");
        assert_eq!(fs::read(folder.path("trace/stream/fish")).unwrap(), b"a river");
        assert_eq!((leaves(&folder.path("trace")), leaves(&folder.path("trace.old"))), (SHORT, SHORT));
    }
    // Files in the older one do not go either.
    fs::write(folder.path("trace.old/notes"), "older").unwrap();
    let recorded = records(&folder);
    assert_eq!(recorded.status.code(), Some(1));
    assert!(stderr(&recorded).contains("the directory contains `notes`, no file of a trace; move `notes` elsewhere"));
    assert_eq!(fs::read(folder.path("trace.old/notes")).unwrap(), b"older");
    assert_eq!(leaves(&folder.path("trace")), SHORT);
}

#[test]
fn no_output_takes_the_place_of_a_trace() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = Folder::new();
    succeeds(&records(&folder));
    let records = fs::read_dir(folder.path("trace")).unwrap().map(|entry| entry.unwrap().file_name());
    let records = records.map(|name| name.into_string().unwrap()).find(|name| name.ends_with(".dat")).unwrap();
    symlink(folder.path("trace/task.txt"), folder.path("link")).unwrap();
    fs::hard_link(folder.path("trace").join(&records), folder.path("hard")).unwrap();
    let before = contents(&folder.path("trace"));
    for output in ["trace/info", &format!("trace/{records}"), "trace/new.sym", "trace/../trace/info", "link", "hard"] {
        for format in ["--chrome", "--html", "--flamegraph"] {
            let dumped = folder.command(&["dump", format, "-o", output, "trace"]).output().unwrap();
            assert_eq!(dumped.status.code(), Some(1), "{output}");
            let said = stderr(&dumped);
            assert!(said.contains("this name is that of a file of a trace; choose another name"), "{said}");
        }
    }
    assert!(contents(&folder.path("trace")) == before);
    succeeds(&folder.command(&["dump", "--chrome", "-o", "trace/mine.json", "trace"]).output().unwrap());
    assert!(!fs::read(folder.path("trace/mine.json")).unwrap().is_empty());
}

#[test]
fn traces_are_their_users_alone() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = Folder::new();
    let mut shell = Command::new("sh");
    let recording = folder.recording(&["-q"], "children");
    shell.args(["-c", "umask 022; exec \"$@\"", "sh"]).arg(recording.get_program()).args(recording.get_args());
    succeeds(&shell.current_dir(folder.path("")).output().unwrap());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder.path("trace")), 0o700);
    for entry in fs::read_dir(folder.path("trace")).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
}

#[test]
fn a_directory_has_one_recorder() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = Folder::new();
    let first = folder.begin(&["-q"], "waits");
    wait_until("the program", || folder.path("ready").exists());
    let owner = format!("process {} (rftrace) records to this directory", first.id());
    let refused = [
        records(&folder),
        folder.command(&["recover", "trace"]).output().unwrap(),
        Command::new(&own_stream().path).args(["10", "save"]).current_dir(folder.path("")).output().unwrap(),
    ];
    for output in refused {
        assert_eq!(output.status.code(), Some(1));
        let said = [output.stdout, output.stderr].concat();
        assert!(String::from_utf8_lossy(&said).contains(&owner), "{}", String::from_utf8_lossy(&said));
    }
    folder.go();
    succeeds(&first.wait_with_output().unwrap());
    assert_eq!(leaves(&folder.path("trace")), WHOLE);
    assert!(!folder.path("trace.old").exists());
}

#[test]
fn of_many_recorders_each_makes_a_trace_or_none() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = Folder::new();
    for _ in 0..5 {
        let recorders: Vec<_> = (0..4).map(|_| folder.begin(&["-q"], "children")).collect();
        let ended: Vec<Output> = recorders.into_iter().map(|it| it.wait_with_output().unwrap()).collect();
        let made = ended.iter().filter(|output| output.status.code() == Some(0)).count();
        assert!(made > 0);
        for output in ended.iter().filter(|output| output.status.code() != Some(0)) {
            let said = stderr(output);
            assert!(said.contains("records to this directory"), "{said}");
        }
        let names = if made > 1 { &["trace", "trace.old"][..] } else { &["trace"] };
        for name in names {
            // One program and its children.
            assert_eq!(traces::open(&folder.path(name)).tasks().len(), 9, "{made}");
        }
    }
}

#[test]
fn a_directory_that_is_moved_has_the_trace() {
    if !require(&["gcc"]) {
        return;
    }
    for options in [&[][..], &["--keep-stream"]] {
        let folder = Folder::new();
        let recorder = folder.begin(options, "waits");
        wait_until("the program", || folder.path("ready").exists());
        fs::rename(folder.path("trace"), folder.path("moved")).unwrap();
        fs::create_dir(folder.path("trace")).unwrap();
        fs::write(folder.path("trace/mine"), "").unwrap();
        folder.go();
        let ended = recorder.wait_with_output().unwrap();
        succeeds(&ended);
        assert!(stderr(&ended).contains("trace was moved to moved; the records are there"), "{}", stderr(&ended));
        assert_eq!(contents(&folder.path("trace")).len(), 1);
        if options == ["--keep-stream"] {
            succeeds(&folder.command(&["recover", "moved"]).output().unwrap());
        }
        assert_eq!(leaves(&folder.path("moved")), WHOLE, "{options:?}");
    }
}

#[test]
fn a_directory_that_is_deleted_is_no_success() {
    if !require(&["gcc"]) {
        return;
    }
    for options in [&["--ring"][..], &[], &["--keep-stream"]] {
        for gone in ["trace", "trace/.recording"] {
            let folder = Folder::new();
            let recorder = folder.begin(options, "waits");
            wait_until("the program", || folder.path("ready").exists());
            // The recorder may make a file there meanwhile.
            wait_until("the folder's end", || {
                fs::remove_dir_all(folder.path(gone)).is_ok() || !folder.path(gone).exists()
            });
            folder.go();
            let ended = recorder.wait_with_output().unwrap();
            assert_eq!(ended.status.code(), Some(1), "{}", stderr(&ended));
            assert!(stderr(&ended).contains("was deleted"), "{}", stderr(&ended));
            assert!(!folder.path(gone).exists());
        }
    }
}

#[test]
fn who_is_killed_leaves_no_lock() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = Folder::new();
    let mut first = folder.begin(&["-q"], "waits");
    wait_until("the program", || folder.path("ready").exists());
    send("-KILL", first.id());
    first.wait().unwrap();
    folder.go();
    // Its program goes on, and ends.
    wait_until("the program's end", || records(&folder).status.success());
    assert_eq!(leaves(&folder.path("trace")), SHORT);
}

/// The spool of the program and that of its child, in a folder, and what is beside each.
fn spools(work: &Path) -> Vec<PathBuf> {
    let names = fs::read_dir(work).unwrap().map(|entry| entry.unwrap().path());
    let is_spool = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with("spool-") && !name.contains('.')
    };
    let mut found: Vec<PathBuf> = names.filter(is_spool).collect();
    found.sort();
    found
}

fn change_byte(path: &Path, place: usize) {
    let mut bytes = fs::read(path).unwrap();
    let place = place.min(bytes.len() - 1);
    bytes[place] ^= 0x41;
    fs::write(path, bytes).unwrap();
}

#[test]
fn damage_costs_its_part_alone_and_is_told() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = Folder::new();
    succeeds(&folder.recording(&["-q", "--keep-stream"], "children").output().unwrap());
    let copy = |name: &str| {
        let mut copy = Command::new("cp");
        assert!(copy.args(["-a", "trace", name]).current_dir(folder.path("")).status().unwrap().success());
        folder.path(name)
    };
    let recover = |name: &str| folder.command(&["recover", name]).output().unwrap();
    copy("whole");
    succeeds(&recover("whole"));
    let whole = leaves(&folder.path("whole"));
    assert!(whole > 8 * 2000);
    // Files about a process.
    for (name, damage) in [("about", "change"), ("facts", "change"), ("removed", "remove"), ("spool", "remove")] {
        let work = copy(name).join("stream");
        let spool = spools(&work).pop().unwrap();
        let file = if name == "spool" { spool } else { spool.with_extension("about") };
        match damage {
            "change" => change_byte(&file, if name == "facts" { 200 } else { 3 }),
            _ => fs::remove_file(&file).unwrap(),
        }
        let shown = folder.command(&["report", name]).output().unwrap();
        succeeds(&shown);
        let recovered = recover(name);
        succeeds(&recovered);
        for said in [stderr(&shown), stderr(&recovered)] {
            assert!(
                said.contains("spool-")
                    && said.contains(if name == "spool" { "are lost" } else { "the trace lacks its records" }),
                "{said}"
            );
        }
        let found = leaves(&folder.path(name));
        assert!(found < whole && found > whole / 2, "{name}: {found} of {whole}");
        let shown = folder.command(&["info", name]).output().unwrap();
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned() + &stderr(&shown);
        assert!(shown.contains("amaged"), "{shown}");
        // Files that cannot be read stay.
        assert_eq!(work.is_dir(), name != "spool", "{name}");
    }
    // Any byte of a spool.
    let length = fs::metadata(&spools(&folder.path("trace/stream"))[0]).unwrap().len() as usize;
    for place in [length / 3, length / 2, 20, length - 1] {
        let name = format!("byte-{place}");
        let spool = spools(&copy(&name).join("stream")).remove(0);
        change_byte(&spool, place);
        let shown = folder.command(&["report", &name]).output().unwrap();
        assert!(stderr(&shown).contains("damaged"), "{}", stderr(&shown));
        let recovered = recover(&name);
        succeeds(&recovered);
        assert!(stderr(&recovered).contains("damaged"), "{place}: {}", stderr(&recovered));
        let found = leaves(&folder.path(&name));
        assert!(found >= whole / 2, "{place}");
        // Damaged records stay, and the trace can be made of them again.
        assert!(spool.is_file() && stderr(&recovered).contains("stay in"), "{place}: {}", stderr(&recovered));
        succeeds(&recover(&name));
        assert_eq!(leaves(&folder.path(&name)), found, "{place}");
    }
}

/// A disk of its own, for as long as the test runs.
struct Disk(PathBuf);

impl Disk {
    fn new(place: PathBuf) -> Option<Self> {
        fs::create_dir(&place).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=300k", "none"]).arg(&place).output();
        mounted.is_ok_and(|output| output.status.success()).then_some(Self(place))
    }

    fn grow(&self) {
        let mut mount = Command::new("mount");
        assert!(mount.args(["-o", "remount,size=60m"]).arg(&self.0).status().unwrap().success());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn after_a_full_disk_all_is_recovered() {
    if !require(&["gcc", "mount"]) {
        return;
    }
    let folder = Folder::new();
    let Some(disk) = Disk::new(folder.path("disk")) else { return };
    let mut recording = folder.command(&["record", "-b", "1M", "-o", "disk/trace", "--"]);
    let recorded = recording.arg(&program().path).arg("children").output().unwrap();
    assert!(stderr(&recorded).contains("rftrace recover"), "{}", stderr(&recorded));
    disk.grow();
    let recovered = folder.command(&["recover", "disk/trace"]).output().unwrap();
    succeeds(&recovered);
    // The overhead of a call, and the program's usage.
    let clock = fs::read_to_string(folder.path("disk/trace/clock.txt")).unwrap();
    assert!(clock.contains("hook_inside_ps="), "{clock}");
    let info = fs::read(folder.path("disk/trace/info")).unwrap();
    let info = String::from_utf8_lossy(&info).into_owned();
    assert!(info.contains("usageinfo:maxrss=") && !info.contains("usageinfo:maxrss=0"), "{info}");
    let gaps = fs::read_to_string(folder.path("disk/trace/record.txt")).unwrap();
    assert_eq!(gaps.contains("schedule=1"), folder.path("disk/trace/perf-cpu0.dat").exists(), "{gaps}");
}
