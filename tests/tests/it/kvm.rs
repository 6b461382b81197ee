//! `tools/setup_kvm_tracing.sh` records KVM's events in tracefs instances of its own, and tells a guest's TSC offset.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, id};

use rftrace_tests::fixtures::{cache, repository};
use rftrace_tests::{CProgram, Program, Run, require, tools};

/// The fixture's exit status where KVM cannot do what it needs.
const CANNOT: i32 = 77;

/// Sees to it that tracefs is mounted, for one command and nobody else.
const WITH_TRACEFS: &str = r#"grep -q '^[^ ]* /sys/kernel/tracing tracefs' /proc/mounts ||
    mount -t tracefs nodev /sys/kernel/tracing || exit 76; "$@""#;

fn script() -> PathBuf {
    repository().join("tools/setup_kvm_tracing.sh")
}

/// A shell in which `$KVM` is the script with an instance for the calling test, and `$GUEST` the program.
fn shell(commands: &str, instance: &str, guest: &Program) -> Run {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", WITH_TRACEFS, "sh", "bash", "-c", commands]);
    command.env("KVM", format!("{} --name {}", script().display(), instance_name(instance)));
    command.env("GUEST", &guest.path);
    Run::of_any(&mut command)
}

fn instance_name(test: &str) -> String {
    format!("rftrace-test-{test}-{}", id())
}

/// The fixture, and the right to run it; `None` where this machine cannot trace KVM.
fn guest() -> Option<(Program, File)> {
    if !require(&["gcc", "bash", "unshare"]) {
        return None;
    }
    // KVM's events are those of all guests: one test at a time makes some.
    let one = cache::alone("kvm");
    let program = CProgram::new(&["kvm_guest.c"]).without_hooks().without_library().build();
    let probe = shell("test -d /sys/kernel/tracing/events/kvm", "probe", &program);
    if !probe.status.success() {
        tools::skip(&format!("no tracefs with KVM's events here: {}", probe.stderr.trim()));
        return None;
    }
    let probe = Run::of_any(Command::new(&program.path).arg("0"));
    if probe.status.code() == Some(CANNOT) {
        tools::skip(&format!("KVM makes no guest here: {}", probe.stderr.trim()));
        return None;
    }
    Some((program, one))
}

/// The offsets of lines `task 1 (guest) vcpu 0: offset -2`.
fn offsets(lines: &str) -> Vec<i64> {
    let of_tasks = lines.lines().filter(|line| line.starts_with("task "));
    of_tasks.map(|line| line.rsplit_once(" vcpu 0: offset ").expect(line).1.parse().expect(line)).collect()
}

/// The range that the guest printed.
fn range(line: &str) -> std::ops::RangeInclusive<i64> {
    let (least, greatest) = line.trim().split_once(' ').expect(line);
    least.parse().expect(line)..=greatest.parse().expect(line)
}

#[test]
fn a_run_leaves_events_and_tells_the_offset() {
    let Some((guest, _one)) = guest() else { return };
    let commands = "$KVM run $GUEST && ls /sys/kernel/tracing/instances >instances";
    let run = shell(commands, "run", &guest);
    assert!(run.status.success(), "{}{}", run.stdout, run.stderr);
    let offsets = offsets(&run.stderr);
    assert_eq!(offsets.len(), 1, "{}", run.stderr);
    assert!(range(&run.stdout).contains(&offsets[0]), "{offsets:?} is not within {}", run.stdout);

    let events = fs::read_to_string(run.path("kvm-events.txt")).unwrap();
    let event = events.lines().find(|line| line.contains(": kvm_write_tsc_offset: vcpu=0")).expect(&events);
    // program-1234 [001] d..1. 38491779295814: kvm_write_tsc_offset: …: in ticks, while the guest was made.
    let ticks = event.split(": ").next().unwrap().rsplit(' ').next().unwrap();
    let ticks: i64 = ticks.parse().expect(event);
    assert!(range(&run.stdout).contains(&-ticks), "{ticks} is not within {}", run.stdout);
    let left = fs::read_to_string(run.path("instances")).unwrap();
    assert!(!left.contains(&instance_name("run")), "{left}");
}

#[test]
fn the_status_is_that_of_the_command_and_nothing_is_left() {
    let Some((guest, _one)) = guest() else { return };
    let run = shell("$KVM run sh -c 'exit 3'; echo $?; ls /sys/kernel/tracing/instances", "status", &guest);
    assert_eq!(run.stdout.lines().next(), Some("3"), "{}", run.stderr);
    assert!(run.stderr.contains("no TSC offset was written"), "{}", run.stderr);
    assert!(!run.stdout.contains(&instance_name("status")), "{}", run.stdout);
}

#[test]
fn offsets_are_signed_and_the_last_one_counts() {
    let Some((guest, _one)) = guest() else { return };
    let commands = r"enable=/sys/kernel/tracing/events/kvm/enable; cat $enable >before
        $KVM start && $GUEST -9223372036854775808 && $KVM offset && $GUEST 77 && $KVM stop && $GUEST 78 &&
        $KVM offsets >offsets; $KVM offset 2>two; echo status $?
        $KVM offset $(sed -n '2s/^task \([0-9]*\) .*/\1/p' offsets)
        $KVM remove; ls /sys/kernel/tracing/instances >instances; cat $enable >after";
    let run = shell(commands, "signed", &guest);
    let lines = run.stdout.lines().filter(|line| line.contains("status") || line.contains("offset"));
    let expected = ["--tsc-offset=-9223372036854775808", "status 1", "--tsc-offset=77"];
    assert_eq!(lines.collect::<Vec<_>>(), expected, "{}", run.stderr);
    let read = |name: &str| fs::read_to_string(run.path(name)).unwrap();
    // The guest after `stop` is not there.
    assert_eq!(offsets(&read("offsets")), [i64::MIN, 77]);
    assert!(read("two").contains("guests with different offsets"), "{}", read("two"));
    assert!(!read("instances").contains(&instance_name("signed")), "{}", read("instances"));
    assert_eq!(read("before"), read("after"), "events of the global instance were switched");
}

/// A folder like tracefs without what `missing` names.
fn tracefs_without(missing: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for dir in ["instances", "events/kvm/kvm_write_tsc_offset"] {
        if !dir.starts_with(missing) {
            fs::create_dir_all(path(dir)).unwrap();
        }
    }
    let clocks = if missing == "x86-tsc" { "[local] global mono\n" } else { "[local] global x86-tsc\n" };
    fs::write(path("trace_clock"), clocks).unwrap();
    folder
}

fn message_of(tracefs: &Path, arguments: &[&str], status: i32) -> String {
    let run = Run::of_any(Command::new(script()).arg("--tracefs").arg(tracefs).args(arguments));
    assert_eq!(run.status.code(), Some(status), "{arguments:?}: {}", run.stderr);
    assert_eq!(run.stdout, "", "{arguments:?}");
    run.stderr
}

#[test]
fn messages_name_what_is_missing_and_the_remedy() {
    if !require(&["bash"]) {
        return;
    }
    let cases = [
        ("instances", "instances: there is no tracefs with instances"),
        ("events", "modprobe kvm-intel"),
        ("x86-tsc", "no clock x86-tsc; it has [local] global mono"),
    ];
    for (missing, message) in cases {
        let tracefs = tracefs_without(missing);
        let text = message_of(tracefs.path(), &["start"], 1);
        assert!(text.contains(message), "{missing}: {text}");
    }
    let complete = tracefs_without("nothing");
    let text = message_of(complete.path(), &["offset"], 1);
    assert!(text.contains("nothing is recorded: start first"), "{text}");
    for arguments in
        [&["start", "x"][..], &["--name", "../x", "start"], &["--buffer-kb", "0", "start"], &["run"], &["go"]]
    {
        let text = message_of(complete.path(), arguments, 2);
        assert!(text.contains("see --help"), "{arguments:?}: {text}");
    }
}

#[test]
fn help_names_every_command() {
    if !require(&["bash"]) {
        return;
    }
    let help = Run::of(Command::new(script()).arg("--help")).stdout;
    for command in ["run", "start", "stop", "read", "offsets", "offset", "remove"] {
        assert!(help.lines().any(|line| line.trim_start().starts_with(&format!("{command} "))), "{command}:\n{help}");
    }
}
