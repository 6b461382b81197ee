//! Guest and host on one timeline.

use std::fs;
use std::path::Path;
use std::process::Command;

use rftrace_export::{Chrome, ExportOptions, Sink, Track, export};
use rftrace_guest::{Merge, MergeOptions};
use rftrace_read::{Result, SCHED_IN, SCHED_OUT, Trace};
use serde_json::Value;

use crate::dir::{A, B, Dir, Files, MAIN, MARK, entry, event, exit};
use crate::values;

/// Guest's ticks minus host's ticks.
const OFFSET: i64 = -1_000_000_007;

/// A clock as `clock.txt` has it.
#[derive(Clone, Copy)]
struct Clock {
    first_tsc: u64,
    first_nanos: u64,
    nanos_per_2_32_ticks: u64,
}

/// 1 GHz and something: ticks and nanoseconds are nearly the same.
const GUEST: Clock = Clock { first_tsc: 500, first_nanos: 400, nanos_per_2_32_ticks: 1 << 32 };
/// 2 GHz.
const HOST: Clock = Clock { first_tsc: 1_000_000_000, first_nanos: 7_000_000, nanos_per_2_32_ticks: 1 << 31 };

impl Clock {
    fn text(self, unix_nanos: Option<u64>) -> Vec<u8> {
        let Self { first_tsc, first_nanos, nanos_per_2_32_ticks } = self;
        let hz = (1_000_000_000_u128 << 32) / u128::from(nanos_per_2_32_ticks);
        let unix = unix_nanos.map_or(String::new(), |nanos| format!("first_unix_nanos={nanos}\n"));
        format!(
            "first_tsc={first_tsc}\nfirst_nanos={first_nanos}\nlast_tsc={}\nlast_nanos=0\ntsc_hz={hz}\n\
             nanos_per_2_32_ticks={nanos_per_2_32_ticks}\n{unix}",
            first_tsc + 1_000_000
        )
        .into()
    }

    /// The time of a tick, by the definition of the clock.
    fn nanos(self, tick: u64) -> u64 {
        let ticks = i128::from(tick) - i128::from(self.first_tsc);
        let nanos = (ticks.unsigned_abs() * u128::from(self.nanos_per_2_32_ticks)) >> 32;
        let nanos = i128::try_from(nanos).unwrap() * ticks.signum();
        u64::try_from(i128::from(self.first_nanos) + nanos).unwrap()
    }
}

fn write(files: Files, clock: Option<(Clock, Option<u64>)>) -> Dir {
    let mut files = files;
    if let Some((clock, unix_nanos)) = clock {
        files.0.insert("clock.txt".into(), clock.text(unix_nanos));
    }
    files.write()
}

/// The guest: `main` calls `a` at its ticks 1000, 1200, 1300 and 2000, in task 1.
fn guest() -> Dir {
    let at = |tick| GUEST.nanos(tick);
    let records = [entry(at(1000), 0, MAIN), entry(at(1200), 1, A), exit(at(1300), 1, A), exit(at(2000), 0, MAIN)];
    write(Files::new(&[(1, &records)]), Some((GUEST, None)))
}

/// The host's ticks at a guest's tick.
fn host_tick(guest: u64) -> u64 {
    u64::try_from(i128::from(guest) - i128::from(OFFSET)).unwrap()
}

/// The host: `b` from before the guest's first record to after its last one, with events amid it.
fn host() -> Dir {
    let at = |guest| HOST.nanos(host_tick(guest));
    let records = [entry(at(900), 0, B), event(at(1250), 1, MARK), exit(at(2100), 0, B)];
    write(Files::new(&[(7, &records)]), Some((HOST, None)))
}

fn kvm_text() -> String {
    let at = host_tick;
    format!(
        "# tracer: nop\n\
         qemu-9 [000] d..1. {}: kvm_write_tsc_offset: vcpu=0 prev=0 next={}\n\
         CPU 0/KVM-70 [001] d..1. {}: kvm_exit: vcpu 0 reason IO_INSTRUCTION rip 0x1 info1 0x0\n\
         CPU 0/KVM-70 [001] d..1. {}: kvm_pio: pio_write at 0x3f8 size 1 count 1 val 0x41\n\
         CPU 0/KVM-70 [001] d..1. {}: kvm_entry: vcpu 0, rip 0x1\n",
        at(1),
        OFFSET.cast_unsigned(),
        at(1210),
        at(1220),
        at(1290)
    )
}

fn kvm() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("trace"), kvm_text()).unwrap();
    dir
}

fn options(guest: &Dir, hosts: &[&Dir]) -> MergeOptions {
    let mut options = MergeOptions::default();
    options.guest = guest.path().to_owned();
    options.hosts = hosts.iter().map(|host| host.path().to_owned()).collect();
    options
}

/// Writes down what it gets.
#[derive(Default)]
struct Lines {
    lines: Vec<(u64, String)>,
    names: Vec<String>,
}

impl Sink for Lines {
    fn process(&mut self, pid: u32, name: &str) -> Result<()> {
        self.names.push(format!("{pid}: {name}"));
        Ok(())
    }

    fn thread(&mut self, track: Track, name: &str) -> Result<()> {
        self.names.push(format!("{}/{}: {name}", track.pid, track.tid));
        Ok(())
    }

    fn enter(&mut self, track: Track, time_ns: u64, name: &str) -> Result<()> {
        self.lines.push((time_ns, format!("{} {name} {{", track.tid)));
        Ok(())
    }

    fn exit(&mut self, track: Track, time_ns: u64) -> Result<()> {
        self.lines.push((time_ns, format!("{} }}", track.tid)));
        Ok(())
    }

    fn instant(&mut self, track: Track, time_ns: u64, name: &str) -> Result<()> {
        self.lines.push((time_ns, format!("{} {name}", track.tid)));
        Ok(())
    }

    fn counter(&mut self, _: u32, time_ns: u64, name: &str, value: f64) -> Result<()> {
        self.lines.push((time_ns, format!("{name} = {value}")));
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.names.push("finished".into());
        Ok(())
    }
}

fn merged(options: &MergeOptions) -> Lines {
    let mut lines = Lines::default();
    Merge::open(options).unwrap().export(&mut lines).unwrap();
    assert_eq!(lines.names.pop().as_deref(), Some("finished"));
    lines
}

fn fails(options: &MergeOptions) -> String {
    let mut lines = Lines::default();
    Merge::open(options).and_then(|merge| merge.export(&mut lines)).unwrap_err().to_string()
}

/// Times are guest's ticks.
fn expect(lines: &[(u64, String)], expected: &[(u64, &str)]) {
    let expected: Vec<_> =
        expected.iter().map(|&(tick, line)| (HOST.nanos(host_tick(tick)), line.to_owned())).collect();
    assert_eq!(lines, expected);
}

const WHOLE: [(u64, &str); 13] = [
    (1, "9 kvm:kvm_write_tsc_offset"),
    (1, "70 kvm:guest {"),
    (900, "7 b {"),
    (1000, "1 main {"),
    (1200, "1 a {"),
    (1210, "70 }"),
    (1210, "70 kvm:kvm_exit_IO_INSTRUCTION {"),
    (1220, "70 kvm:kvm_pio"),
    (1250, "7 rftrace:mark"),
    (1290, "70 }"),
    (1290, "70 kvm:guest {"),
    (1300, "1 }"),
    (2000, "1 }"),
];

#[test]
fn everything_is_aligned_to_the_tick() {
    let (guest, host, kvm) = (guest(), host(), kvm());
    let mut options = options(&guest, &[&host]);
    options.kvm = vec![kvm.path().to_owned()];
    let Lines { mut lines, names } = merged(&options);
    let expected_names = [
        "1: guest: prog",
        "1/1: guest prog 1",
        "7: host: prog",
        "7/7: host prog 7",
        "9: host: KVM",
        "9/9: KVM (qemu)",
        "9/70: KVM vcpu 0 (CPU 0/KVM)",
    ];
    assert_eq!(names, expected_names);
    // The guest's start before its first event comes with that event, though it is earlier.
    lines.sort_by_key(|&(time_ns, _)| time_ns);
    let mut expected = WHOLE.to_vec();
    expected.push((2100, "7 }"));
    // A call that is open at the end ends with KVM's last event.
    expected.insert(11, (1290, "70 }"));
    expect(&lines, &expected);
    // The same by the number.
    let mut by_number = options.clone();
    by_number.tsc_offset = Some(OFFSET);
    by_number.kvm.clear();
    let without_kvm = merged(&by_number);
    let of_traces: Vec<_> =
        lines.into_iter().filter(|(_, line)| !line.starts_with('9') && !line.starts_with("70")).collect();
    assert_eq!(without_kvm.lines, of_traces);
}

#[test]
fn what_is_not_of_the_guests_life_is_cut() {
    let (guest, host, kvm) = (guest(), host(), kvm());
    let mut options = options(&guest, &[&host]);
    options.kvm = vec![kvm.path().to_owned()];
    options.cut = true;
    let mut lines = merged(&options).lines;
    lines.sort_by_key(|&(time_ns, _)| time_ns);
    let text: Vec<_> = lines.iter().map(|(_, line)| line.as_str()).collect();
    assert!(!text.contains(&"9 kvm:kvm_write_tsc_offset"), "{text:?}");
    let at = |line: &str| lines.iter().find(|(_, found)| found == line).map(|&(time_ns, _)| time_ns);
    assert_eq!(at("7 b {"), Some(HOST.nanos(host_tick(1000))));
    assert_eq!(at("7 }"), Some(HOST.nanos(host_tick(2000))));
    assert_eq!(at("70 kvm:guest {"), Some(HOST.nanos(host_tick(1000))));
    let (enters, exits) =
        (text.iter().filter(|line| line.ends_with('{')), text.iter().filter(|line| line.ends_with('}')));
    assert_eq!(enters.count(), exits.count());
}

#[test]
fn a_directory_has_everything_side_by_side() {
    let (guest, host, kvm) = (guest(), host(), kvm());
    let mut options = options(&guest, &[&host]);
    options.kvm = vec![kvm.path().to_owned()];
    let out = tempfile::tempdir().unwrap();
    let dir = out.path().join("merged");
    let write = || Merge::open(&options).and_then(|merge| merge.write_directory(&dir));
    write().unwrap();
    // Again: it replaces what is there.
    write().unwrap();
    let trace = Trace::open(&dir).unwrap();
    assert!(trace.warnings().is_empty(), "{}", trace.warnings());
    let mut found = Vec::new();
    for item in trace.all_records().unwrap() {
        let (idx, record) = item.unwrap();
        let task = &trace.tasks()[idx];
        let name = match record.kind {
            rftrace_read::Kind::Event => trace.events().name(record.addr).into_owned(),
            kind => format!("{kind:?} {}", trace.function_name(task, record.time_ns, record.addr)),
        };
        found.push((record.time_ns, format!("{} {name}", task.tid())));
    }
    expect(
        &found,
        &[
            (1, "9 Entry kvm"),
            (1, "9 kvm:kvm_write_tsc_offset"),
            (1, "9 Exit kvm"),
            (900, "7 Entry b"),
            (1000, "1 Entry main"),
            (1200, "1 Entry a"),
            (1210, "70 Entry kvm_vcpu_0"),
            (1210, "70 kvm:kvm_exit_IO_INSTRUCTION"),
            (1220, "70 kvm:kvm_pio"),
            (1250, "7 rftrace:mark"),
            (1290, "70 kvm:kvm_entry"),
            (1290, "70 Exit kvm_vcpu_0"),
            (1300, "1 Exit a"),
            (2000, "1 Exit main"),
            (2100, "7 Exit b"),
        ],
    );
    if let Ok(output) = Command::new("uftrace").args(["replay", "--no-pager", "-d"]).arg(&dir).output() {
        let text = String::from_utf8_lossy(&output.stdout);
        for line in ["| main() {", "|   a() {", "| b() {", "/* kvm:kvm_exit_IO_INSTRUCTION */", "/* rftrace:mark */"] {
            assert!(text.contains(line), "{line} in {text}{}", String::from_utf8_lossy(&output.stderr));
        }
    }
    // It is a host's trace as any other.
    let mut again = MergeOptions::default();
    again.guest = guest.path().to_owned();
    again.hosts = vec![dir.clone()];
    again.tsc_offset = Some(OFFSET);
    let lines = merged(&again).lines;
    assert_eq!(lines.iter().filter(|(_, line)| line.ends_with(" a {")).count(), 2);
    assert!(lines.contains(&(HOST.nanos(host_tick(1200)), "1 a {".into())), "{lines:?}");
    assert!(lines.contains(&(HOST.nanos(host_tick(1200)), "100001 a {".into())), "{lines:?}");
}

/// The directory that is made of a guest and a host, where the offset is told.
fn merged_directory(guest: &Dir, host: &Dir) -> Trace {
    let mut options = options(guest, &[host]);
    options.tsc_offset = Some(OFFSET);
    let out = tempfile::tempdir().unwrap();
    Merge::open(&options).unwrap().write_directory(out.path()).unwrap();
    Trace::open(out.path()).unwrap()
}

#[test]
fn modules_and_sessions_of_one_name_are_kept_apart() {
    let guest = guest();
    let mut files = Files::new(&[(1, &[entry(HOST.nanos(host_tick(1)), 0, A), exit(HOST.nanos(host_tick(2)), 0, A)])]);
    let other = String::from_utf8(files.0["prog.sym"].clone()).unwrap().replace(" T a\n", " T other\n");
    files.0.insert("prog.sym".into(), other.into());
    let host = write(files, Some((HOST, None)));
    let trace = merged_directory(&guest, &host);
    let names: Vec<String> = trace
        .tasks()
        .iter()
        .map(|task| format!("{} {}: {}", task.tid(), task.process_name(), trace.function_name(task, u64::MAX, A)))
        .collect();
    assert_eq!(names, ["1 prog: a", "100001 1-prog: other"]);
}

/// Of a guest, in a format and in a directory.
#[test]
fn values_are_kept() {
    let (guest, host) = (write(values::files(), Some((GUEST, None))), host());
    let mut options = options(&guest, &[&host]);
    options.tsc_offset = Some(OFFSET);
    let mut chrome = Chrome::new(Vec::new());
    Merge::open(&options).unwrap().export(&mut chrome).unwrap();
    let pid = guest.open().tasks()[0].pid();
    assert_eq!(values::in_chrome(&chrome.into_inner(), pid), values::expected_in_chrome());

    let out = tempfile::tempdir().unwrap();
    Merge::open(&options).unwrap().write_directory(out.path()).unwrap();
    let trace = Trace::open(out.path()).unwrap();
    let mut chrome = Chrome::new(Vec::new());
    export(&trace, &ExportOptions::default(), &mut chrome).unwrap();
    assert_eq!(values::in_chrome(&chrome.into_inner(), pid), values::expected_in_chrome());
}

/// The part of a name that looks like a part of the line is not changed with the line.
#[test]
fn names_of_threads_may_hold_anything() {
    let guest = guest();
    let at = |guest| HOST.nanos(host_tick(guest));
    let mut files = Files::new(&[(7, &[entry(at(1), 0, A), exit(at(2), 0, A)])]);
    let task_txt = String::from_utf8(files.0["task.txt"].clone()).unwrap();
    let named = task_txt.replace("tid=7 pid=7", "tid=7 pid=7 comm=\"pool pid=7 sid=1 .\"");
    files.0.insert("task.txt".into(), named.into());
    let host = write(files, Some((HOST, None)));
    let trace = merged_directory(&guest, &host);
    let names: Vec<&str> = trace.tasks().iter().map(|task| task.name()).collect();
    assert_eq!(names, ["prog", "pool pid=7 sid=1 ."]);
}

#[test]
fn an_offset_that_changes_and_missing_ends() {
    // The guest's counter is set back by 1000 ticks at its tick 1100; `a` and `main` are open at the end.
    let at = |tick| GUEST.nanos(tick);
    let records = [exit(at(1050), 1, A), entry(at(1200), 1, A)];
    let guest = write(Files::new(&[(1, &records)]), Some((GUEST, None)));
    let host = host();
    let (first, second) = (host_tick(1), host_tick(1_100));
    let kvm = kvm();
    let text = format!(
        "q-9 [000] d..1. {first}: kvm_write_tsc_offset: vcpu=0 prev=0 next={}\n\
         q-9 [000] d..1. {second}: kvm_write_tsc_offset: vcpu=0 prev={0} next={}\n",
        OFFSET.cast_unsigned(),
        (OFFSET - 1000).cast_unsigned()
    );
    fs::write(kvm.path().join("trace"), text).unwrap();
    let mut options = options(&guest, &[&host]);
    options.kvm = vec![kvm.path().join("trace")];
    let lines: Vec<_> = merged(&options).lines.into_iter().filter(|(_, line)| line.starts_with("1 ")).collect();
    // 1050 is after the change too: 2050 of the old count.
    let expected =
        [(2050, "1 <unknown> {"), (2050, "1 a {"), (2050, "1 }"), (2200, "1 a {"), (2200, "1 }"), (2200, "1 }")];
    expect(&lines, &expected);
}

#[test]
fn perf_s_files() {
    let (guest, host, folder) = (guest(), host(), tempfile::tempdir().unwrap());
    let path = |name: &str, text: String| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let seconds = |guest: u64| {
        let nanos = HOST.nanos(host_tick(guest));
        format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000)
    };
    let sched = format!(
        "prog 7 [000] {}: sched:sched_switch: prev_comm=prog prev_pid=7 prev_prio=120 prev_state=S ==> next_comm=x next_pid=8 \
         next_prio=120\n\
         x 8 [000] {}: sched:sched_switch: prev_comm=x prev_pid=8 prev_prio=120 prev_state=S ==> next_comm=prog next_pid=7 \
         next_prio=120\n",
        seconds(1400),
        seconds(1500)
    );
    let mut options = options(&guest, &[&host]);
    options.tsc_offset = Some(OFFSET);
    let counters = format!("rdtsc {}\n# started\n\n   0.000000100,5.5,,cycles,1,100.00,,\n", host_tick(1000));
    options.perf = vec![path("sched.txt", sched), path("counters.csv", counters)];
    let lines = merged(&options).lines;
    let at = |tick| HOST.nanos(host_tick(tick));
    for expected in [(at(1400), "7 linux:schedule {"), (at(1500), "7 }"), (at(1000) + 100, "cycles = 5.5")] {
        assert!(lines.contains(&(expected.0, expected.1.into())), "{expected:?} in {lines:?}");
    }
    let out = tempfile::tempdir().unwrap();
    Merge::open(&options).unwrap().write_directory(out.path()).unwrap();
    let trace = Trace::open(out.path()).unwrap();
    let task = trace.tasks().iter().find(|task| task.tid() == 7).unwrap();
    let ids: Vec<u64> = trace
        .records(task)
        .map(|record| record.unwrap())
        .filter(|record| record.kind == rftrace_read::Kind::Event)
        .map(|record| record.addr)
        .collect();
    assert_eq!(ids, [1_000_000, SCHED_OUT, SCHED_IN]);
    let counters = fs::read_to_string(out.path().join("extern.dat")).unwrap();
    assert!(counters.ends_with(" cycles 5.5\n"), "{counters}");
}

#[test]
fn clocks_that_do_not_meet_are_errors() {
    let (guest, host) = (guest(), host());
    // No offset at all.
    let error = fails(&options(&guest, &[&host]));
    assert!(error.contains("TSC offset is not known") && error.contains("--tsc-offset"), "{error}");
    // Wall clocks.
    let records = [entry(GUEST.nanos(1000), 0, MAIN), exit(GUEST.nanos(1001), 0, MAIN)];
    let with_wall = write(Files::new(&[(1, &records)]), Some((GUEST, Some(5_000_000_100))));
    let host_with_wall = write(Files::new(&[(7, &records)]), Some((HOST, Some(5_000_000_000))));
    let merge = Merge::open(&options(&with_wall, &[&host_with_wall])).unwrap();
    // The guest's first tick, 500, was 100 ns after the host's, which is 200 of its ticks.
    let expected = 500 - 1_000_000_200_i64;
    assert!(merge.notes().iter().any(|note| note.contains(&format!("+ {expected} by the wall clocks"))), "{merge:?}");
    // A guest of two machines.
    let kvm = kvm();
    let two = kvm_text() + &kvm_text().replace(&format!("next={}", OFFSET.cast_unsigned()), "next=77");
    fs::write(kvm.path().join("trace"), two).unwrap();
    let mut several = options(&guest, &[&host]);
    several.kvm = vec![kvm.path().to_owned()];
    assert!(fails(&several).contains("several guests with different TSC offsets"), "{}", fails(&several));
    // Directories of others.
    let records = [entry(1000, 0, MAIN), exit(1001, 0, MAIN)];
    let foreign = write(Files::new(&[(7, &records)]), None);
    let mut options = options(&guest, &[&foreign]);
    options.tsc_offset = Some(OFFSET);
    assert!(fails(&options).contains("record the host's program with rftrace"));
    options.hosts.clear();
    options.guest = foreign.path().to_owned();
    assert!(fails(&options).contains("--tsc-khz"));
    // Its times are ticks of 2 MHz.
    options.tsc_khz = Some(2000);
    options.tsc_offset = Some(-1000);
    assert_eq!(merged(&options).lines, [(1_000_000, "7 main {".into()), (1_000_500, "7 }".into())]);
}

fn rftrace(args: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_rftrace")).arg("merge").args(args).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn the_command() {
    let (guest, host, kvm) = (guest(), host(), kvm());
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (guest_dir, host_dir, kvm_dir) = (text(guest.path()), text(host.path()), text(kvm.path()));
    let out = tempfile::tempdir().unwrap();
    let json = text(&out.path().join("both.json"));
    let (code, stderr) = rftrace(&["-o", &json, &guest_dir, &host_dir, "--kvm", &kvm_dir]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains(&format!("guest's ticks = host's ticks + {OFFSET}, as KVM's events say")), "{stderr}");
    let chrome: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let main = chrome["traceEvents"].as_array().unwrap().iter().find(|event| event["name"] == "main").unwrap();
    let expected = HOST.nanos(host_tick(1000));
    assert_eq!(main["ts"].as_f64(), Some(expected as f64 / 1000.0));
    let pftrace = text(&out.path().join("both.pftrace"));
    let (code, stderr) =
        rftrace(&["-o", &pftrace, &guest_dir, &host_dir, &format!("--tsc-offset={OFFSET}"), "--quiet"]);
    assert_eq!(code, Some(0), "{stderr}");
    // Only what may be wrong is said.
    assert!(stderr.lines().all(|line| line.contains("a guest with a TSC rate of its own")), "{stderr}");
    assert!(fs::metadata(&pftrace).unwrap().len() > 0);

    let nowhere = text(&out.path().join("nowhere"));
    let not_kvm = text(&out.path().join("not-kvm"));
    fs::write(&not_kvm, "one\n").unwrap();
    for (args, expected) in [
        (&["-o", &json, &nowhere][..], "is this a trace directory?"),
        (&["-o", &json, &guest_dir, "--kvm", &nowhere], "nowhere: cannot read it"),
        (&["-o", &json, &guest_dir, "--kvm", &not_kvm], "not-kvm: byte 0: line 1: no event of ftrace"),
        (&["-o", &json, &guest_dir, "--tsc-offset", "0", "--perf", &not_kvm], "not-kvm: byte 0: line 1: no interval"),
        (&["-o", "/dev/full", "--format", "chrome", &guest_dir, "--tsc-offset", "0"], "cannot write /dev/full"),
        (&["-o", &guest_dir, &guest_dir, "--tsc-offset", "0"], "the output is one of the sources"),
        (
            &["-o", &text(out.path()), &guest_dir, "--tsc-offset", "0"],
            "and is no trace; choose another directory, or a new one",
        ),
        (&["-o", "/nonexistent/x.json", &guest_dir, "--tsc-offset", "0"], "cannot write /nonexistent/x.json"),
        (&["-o", "/dev/null/x", &guest_dir, "--tsc-offset", "0"], "/dev/null/x: cannot write it"),
    ] {
        let (code, stderr) = rftrace(args);
        assert_eq!(code, Some(1), "{args:?}: {stderr}");
        assert!(stderr.contains(expected), "{args:?}: {stderr}");
    }
    for args in [&[][..], &["-o", &json, &guest_dir, "--tsc-offset", "x"], &["-o", &json, &guest_dir, "--tsc-khz", "0"]]
    {
        assert_eq!(rftrace(args).0, Some(2), "{args:?}");
    }
    let help = Command::new(env!("CARGO_BIN_EXE_rftrace")).args(["merge", "--help"]).output().unwrap();
    assert!(String::from_utf8_lossy(&help.stdout).contains("\n  rftrace merge -o "));
}

/// A copy of a directory in which some bytes are others is read, or is an error that names a file.
#[test]
fn hostile_directories() {
    let host = host();
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for _ in 0..300 {
        let copy = tempfile::tempdir().unwrap();
        for file in fs::read_dir(guest().path()).unwrap() {
            let file = file.unwrap();
            let mut bytes = fs::read(file.path()).unwrap();
            if random() % 4 == 0 && !bytes.is_empty() {
                let place = random() as usize % bytes.len();
                bytes[place] = random() as u8;
                bytes.truncate(bytes.len() - random() as usize % (bytes.len() / 4 + 1));
            }
            fs::write(copy.path().join(file.file_name()), bytes).unwrap();
        }
        let mut options = MergeOptions::default();
        options.guest = copy.path().to_owned();
        options.hosts = vec![host.path().to_owned()];
        options.tsc_offset = Some(OFFSET);
        let out = tempfile::tempdir().unwrap();
        let result = Merge::open(&options).and_then(|merge| {
            merge.export(&mut Lines::default())?;
            merge.write_directory(&out.path().join("out"))
        });
        if let Err(error) = result {
            let text = error.to_string();
            let names_file = text.contains(copy.path().to_str().unwrap());
            assert!(names_file || text.contains("wall clock") || text.contains("clock.txt"), "{text}");
        } else {
            Trace::open(&out.path().join("out")).unwrap();
        }
    }
}
