//! `rftrace record -p`: programs with filters of system calls (seccomp).

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use rftrace_tests::{CProgram, Program, require, tools};
use tempfile::TempDir;

use crate::attach::{Running, count, refused, told};
use crate::attach_elsewhere::has_namespaces;
use crate::record::rftrace;

const RESTART_SYSCALL: i64 = 219;
const GETTID: i64 = 186;
const MEMFD_CREATE: i64 = 319;
const PROCESS_VM_READV: i64 = 310;

fn build(without_hooks: bool, options: &[&str]) -> Program {
    let program = CProgram::new(&["confined.c"]).without_library().with(&["-O1", "-lpthread"]).with(options);
    if without_hooks { program.without_hooks().build() } else { program.build() }
}

/// One that calls the tracer.
fn hooked() -> &'static Path {
    static BUILT: OnceLock<Program> = OnceLock::new();
    &BUILT.get_or_init(|| build(false, &[])).path
}

/// One that does not.
fn plain() -> &'static Path {
    static BUILT: OnceLock<Program> = OnceLock::new();
    &BUILT.get_or_init(|| build(true, &[])).path
}

/// A file with exactly the calls that rftrace has a program make, but for `without`. What may fail does, if that is wanted.
fn calls(folder: &TempDir, is_by_library: bool, do_fail: bool, without: &[i64]) -> PathBuf {
    let mut lines = String::new();
    for (call, may_fail) in rftrace_attach::needed_calls(is_by_library) {
        if without.contains(&i64::from(call.number)) {
            continue;
        }
        let known = call.arguments.iter().enumerate().filter_map(|(place, value)| Some((place, (*value)?)));
        let known: Vec<String> = known.map(|(place, value)| format!(" {place} {value}")).collect();
        let fails = if may_fail && do_fail { "fail " } else { "" };
        writeln!(lines, "{fails}{}{}", call.number, known.concat()).unwrap();
    }
    let path = folder.path().join("calls");
    fs::write(&path, lines).unwrap();
    path
}

/// True if this may read filters.
fn has_rights() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
    let may = u64::from_str_radix(field("CapEff:"), 16).unwrap() & 1 << 21 != 0 && field("Seccomp:") == "0";
    if !may {
        tools::skip("only root can read filters (CAP_SYS_ADMIN), outside of such a one");
    }
    may
}

fn begin(program: &Path, calls: &Path) -> Running {
    Running::begin_by(Command::new(program).arg(calls))
}

/// It has lived, and done what it does without being recorded.
#[track_caller]
fn ends_well(running: Running, what: &str) {
    let (status, said) = running.end();
    assert_eq!((status.code(), said.trim()), (Some(7), "right"), "{what}: {status}");
}

fn control(running: &Running, request: &[&str]) -> Output {
    Command::new(rftrace()).arg("ctl").arg(running.pid().to_string()).args(request).output().unwrap()
}

#[track_caller]
fn interrupt(mut recorder: std::process::Child) {
    tools::run(Command::new("kill").args(["-INT", &recorder.id().to_string()]));
    assert!(recorder.wait().unwrap().success());
}

/// A recorder takes over after a killed one.
#[track_caller]
fn record_after_a_killed_one(running: &Running, options: &[&str]) {
    let mut killed = running.begin_recording(options);
    killed.kill().unwrap();
    killed.wait().unwrap();
    running.record_some(&[options, &["--for", "100ms"]].concat());
}

/// All that rftrace does to a program which may make its own calls and those that are listed, and is killed for any other one.
#[test]
fn no_other_call_is_made() {
    if !require(&["gcc"]) || !has_rights() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options: [(&Path, &[&str]); 8] = [
        (hooked(), &[]),
        (hooked(), &["-F", "mid*", "-D", "3"]),
        (hooked(), &["--patched"]),
        (plain(), &["-P", "*", "--max-size", "16M", "--on-full", "drop"]),
        (plain(), &["-P", "*@libc*", "--max-size", "16M", "--on-full", "drop"]),
        (plain(), &["--libcalls", "--max-size", "16M", "--on-full", "drop"]),
        (plain(), &["--resources", "memory,file,thread"]),
        (plain(), &["-P", "*", "-A", "greet@arg1/s", "-R", "middle@retval/i64"]),
    ];
    for do_fail in [false, true] {
        let calls = calls(&folder, true, do_fail, &[]);
        for (program, options) in options {
            let what = format!("{options:?}, calls that may fail do: {do_fail}");
            let running = begin(program, &calls);
            record_after_a_killed_one(&running, options);
            if !options.contains(&"--resources") && !options.contains(&"*@libc*") && !options.contains(&"--libcalls") {
                assert!(count(&running.trace(), "middle") > 0, "{what}");
            }
            ends_well(running, &what);
        }
        let running = Running::begin_by(Command::new(plain()).arg(&calls).arg("alone"));
        let recorder = running.begin_recording(&["-P", "*", "--max-size", "16M", "--on-full", "drop"]);
        for request in [&["set", "set_ftrace_filter", "leaf"][..], &["set", "set_ftrace_filter", ""], &["dump"]] {
            let answer = control(&running, request);
            assert!(answer.status.success(), "{request:?}: {}", told(&answer));
        }
        interrupt(recorder);
        ends_well(running, "ctl");
        let running = begin(plain(), &calls);
        let mut top = Command::new(rftrace());
        top.args(["top", "--once", "-e", "300ms", "-P", "*"]).arg(running.pid().to_string()).stdin(Stdio::null());
        let shown = (0..20).map(|_| top.output().unwrap()).find(|output| output.status.success()).unwrap();
        assert!(String::from_utf8_lossy(&shown.stdout).contains("middle"));
        ends_well(running, "top");
    }
}

/// The same where the tracer comes alone.
#[test]
fn no_other_call_is_made_in_static_programs() {
    if !require(&["gcc"]) || !has_rights() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let calls = calls(&folder, false, true, &[]);
    let branches: &[&str] = &["-P", "*", "--max-size", "16M", "--on-full", "drop"];
    for (without_hooks, options) in [(true, branches), (false, &["-F", "middle"]), (false, &[])] {
        let program = build(without_hooks, &["-static", "-DALONE"]);
        let running = begin(&program.path, &calls);
        record_after_a_killed_one(&running, options);
        assert!(count(&running.trace(), "middle") > 0);
        ends_well(running, &format!("{options:?}"));
    }
}

/// A call that the filter does not let pass is named, and nothing is changed: a wait that was interrupted goes on too.
#[test]
fn what_is_missing_is_named() {
    if !require(&["gcc"]) || !has_rights() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (without, wanted) in [
        (MEMFD_CREATE, "kills for memfd_create"),
        (GETTID, "kills for gettid"),
        (RESTART_SYSCALL, "kills for restart_syscall"),
    ] {
        let running = begin(hooked(), &calls(&folder, true, true, &[without]));
        let code = running.code();
        for _ in 0..20 {
            refused(running.pid(), |_| (), wanted);
        }
        assert_eq!(running.code(), code);
        ends_well(running, wanted);
    }
    // Without the library less is needed.
    let program = build(true, &["-static", "-DALONE"]);
    let running = begin(&program.path, &calls(&folder, false, true, &[MEMFD_CREATE]));
    refused(running.pid(), |command| _ = command.args(["-P", "*"]), "kills for memfd_create");
    ends_well(running, "static");
}

/// Strings are shown by their addresses then.
#[test]
fn values_where_memory_may_not_be_read() {
    if !require(&["gcc"]) || !has_rights() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let values = ["-P", "*", "-A", "greet@arg1/s", "--for", "100ms"];
    for (without, is_text) in [(&[][..], true), (&[PROCESS_VM_READV], false)] {
        let running = begin(plain(), &calls(&folder, true, false, without));
        running.record_some(&values);
        let shown = tools::text(Command::new(rftrace()).arg("replay").arg(running.trace()));
        let line = shown.lines().find(|line| line.contains("greet(")).unwrap();
        assert_eq!((line.contains("somebody"), line.contains("<0x")), (is_text, !is_text), "{line}");
        ends_well(running, "values");
    }
    let running = begin(plain(), &calls(&folder, true, false, &[PROCESS_VM_READV]));
    let resources = |command: &mut Command| _ = command.args(["--resources", "memory"]);
    refused(running.pid(), resources, "kills for process_vm_readv");
    ends_well(running, "resources");
}

/// As in a container by default: a filter that libseccomp has made, and spaces of process numbers and mounts.
#[test]
fn in_a_container() {
    if !require(&["gcc"]) || !has_rights() || !has_namespaces() {
        return;
    }
    if !Path::new("/usr/include/seccomp.h").exists() {
        return tools::skip("libseccomp is not there (libseccomp-dev)");
    }
    let contained = CProgram::new(&["contained.c"]).without_library().without_hooks().with(&["-lseccomp"]).build();
    let mut container = Command::new("unshare");
    container.args(["-m", "-p", "-f", "--mount-proc"]).arg(&contained.path);
    let running = Running::begin_by(container.arg(hooked()));
    let filters = fs::read_to_string(format!("/proc/{}/status", running.pid())).unwrap();
    assert!(filters.contains("Seccomp:\t2"), "{filters}");
    for options in [&[][..], &["-P", "*", "--patched"], &["--libcalls", "--max-size", "16M", "--on-full", "drop"]] {
        running.record_some(&[options, &["--for", "100ms"]].concat());
        assert!(count(&running.trace(), "middle") > 0, "{options:?}");
    }
    ends_well(running, "in a container");
}

/// In seccomp's strict mode no call of the tracer is survived.
#[test]
fn the_strict_mode() {
    if !require(&["gcc"]) {
        return;
    }
    let running = Running::begin(&crate::attach::program().path, "strict");
    refused(running.pid(), |_| (), "the strict mode of seccomp");
    let (status, _) = running.end();
    assert_eq!(status.code(), Some(7));
}

/// A recorder that may not read filters names the missing right, and touches nothing.
#[test]
fn who_may_not_read_filters() {
    if !require(&["gcc", "setpriv"]) || !has_rights() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let running = begin(hooked(), &calls(&folder, true, false, &[]));
    let output = Command::new("setpriv")
        .args(["--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"])
        .arg(rftrace())
        .args(["record", "--for", "10ms", "-p", &running.pid().to_string()])
        .current_dir(&folder)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(told(&output).contains("outside of the container"), "{}", told(&output));
    ends_well(running, "without rights");
}
