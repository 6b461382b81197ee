//! A recorded guest and a recorded host on one timeline: examples/kernel under QEMU, and a program of this machine.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use rftrace_export::{Sink, Track};
use rftrace_frontend::{Image, ImportOptions};
use rftrace_guest::{Merge, MergeOptions};
use rftrace_read::{Result, Trace};
use rftrace_tests::{CProgram, Run, fixtures, require, tools};
use rftrace_views::CallTree;

use crate::kernel::{REAL_TIME, SUCCESS, boot, kernel};
use crate::kernel_raw::RawTrace;

/// With so many ticks a second a nanosecond is a tick: nothing is rounded.
const EXACT_HZ: u64 = 1_000_000_000;

/// When tracks of the guest and of the host entered and left functions.
#[derive(Default)]
struct Times {
    guest: BTreeMap<u32, Vec<u64>>,
    host: BTreeMap<u32, Vec<u64>>,
    /// Of KVM's threads: when, and what.
    kvm: Vec<(u64, String)>,
    names: BTreeMap<u32, String>,
}

impl Times {
    fn add(&mut self, track: Track, time_ns: u64, what: &str) {
        match self.names[&track.pid].split(':').next() {
            Some("guest") => self.guest.entry(track.tid).or_default().push(time_ns),
            _ if self.names[&track.pid] == "host: KVM" => self.kvm.push((time_ns, what.to_owned())),
            _ => self.host.entry(track.tid).or_default().push(time_ns),
        }
    }
}

impl Sink for Times {
    fn process(&mut self, pid: u32, name: &str) -> Result<()> {
        self.names.insert(pid, name.to_owned());
        Ok(())
    }

    fn thread(&mut self, _: Track, _: &str) -> Result<()> {
        Ok(())
    }

    fn enter(&mut self, track: Track, time_ns: u64, name: &str) -> Result<()> {
        self.add(track, time_ns, name);
        Ok(())
    }

    fn exit(&mut self, track: Track, time_ns: u64) -> Result<()> {
        self.add(track, time_ns, "}");
        Ok(())
    }

    fn instant(&mut self, _: Track, _: u64, _: &str) -> Result<()> {
        Ok(())
    }

    fn counter(&mut self, _: u32, _: u64, _: &str, _: f64) -> Result<()> {
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The clock of a directory, as `clock.txt` describes it.
struct Clock {
    first_tsc: i128,
    first_nanos: i128,
    last_tsc: i128,
    nanos_per_2_32_ticks: i128,
}

impl Clock {
    fn read(dir: &Path) -> Self {
        let text = fs::read_to_string(dir.join("clock.txt")).unwrap();
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            line.unwrap_or_else(|| panic!("{key} in {text}")).parse().unwrap()
        };
        Self {
            first_tsc: value("first_tsc"),
            first_nanos: value("first_nanos"),
            last_tsc: value("last_tsc"),
            nanos_per_2_32_ticks: value("nanos_per_2_32_ticks"),
        }
    }

    fn nanos(&self, tick: i128) -> u64 {
        let ticks = tick - self.first_tsc;
        let nanos = ((ticks.abs() * self.nanos_per_2_32_ticks) >> 32) * ticks.signum();
        u64::try_from(self.first_nanos + nanos).unwrap()
    }
}

fn times_of_trace(trace: &Trace) -> BTreeMap<u32, Vec<u64>> {
    let times = |task| {
        let records = trace.records(task).map(|record| record.unwrap());
        let is_call =
            |record: &rftrace_read::Record| matches!(record.kind, rftrace_read::Kind::Entry | rftrace_read::Kind::Exit);
        records.filter(is_call).map(|record| record.time_ns).collect()
    };
    trace.tasks().iter().map(|task| (task.tid(), times(task))).collect()
}

#[test]
fn a_guest_is_aligned_with_its_host_to_the_tick() {
    if !require(&["gcc"]) {
        return;
    }
    let Some(kernel) = kernel() else { return };
    let guest = boot(kernel, 2, REAL_TIME, "mode=tree cores=2", SUCCESS);
    let host = CProgram::new(&["nap.c"]).build().run(&[]);
    let clock = Clock::read(&host.path("trace"));
    let raw = RawTrace::read(&guest.path("trace.img")).ticks();
    let first = raw.values().flatten().copied().min().unwrap();

    // KVM's events for a guest whose first record came a thousandth second after the host's.
    let offset = i128::from(first) - (clock.first_tsc + 2_345_679);
    let at = |guest_tick: i128| guest_tick - offset;
    let next = i64::try_from(offset).unwrap().cast_unsigned();
    let (start, leave, again) = (at(1), at(i128::from(first) + 1001), at(i128::from(first) + 2003));
    let text = format!(
        "# tracer: nop\n\
         \x20qemu-system-x86-4242  [001] d..1. {start}: kvm_write_tsc_offset: vcpu=0 prev=0 next={next}\n\
         \x20qemu-system-x86-4242  [001] d..1. {start}: kvm_write_tsc_offset: vcpu=1 prev=0 next={next}\n\
         \x20      CPU 0/KVM-4243  [001] d..1. {leave}: kvm_exit: vcpu 0 reason HLT rip 0x10 info1 0x0 info2 0x0\n\
         \x20      CPU 0/KVM-4243  [001] d..1. {again}: kvm_entry: vcpu 0, rip 0x10\n"
    );
    fs::write(host.path("kvm.txt"), text).unwrap();

    for hz in [Some(EXACT_HZ), None] {
        let dir = guest.path("guest");
        let mut import = ImportOptions::default();
        import.binary = Some(kernel.path.to_owned());
        import.tsc_hz = hz;
        Image::read(&guest.path("trace.img")).unwrap().write_directory(&dir, &import).unwrap();
        let mut options = MergeOptions::default();
        options.guest = dir.clone();
        options.hosts = vec![host.path("trace")];
        options.kvm = vec![host.path("kvm.txt")];
        let merge = Merge::open(&options).unwrap();
        let mut times = Times::default();
        merge.export(&mut times).unwrap();

        // The host's own times are what they were.
        assert_eq!(
            times.host.values().collect::<Vec<_>>(),
            times_of_trace(&host.trace("trace")).values().collect::<Vec<_>>()
        );
        // Ticks of KVM's events become the host's times.
        let kvm = |tick, what: &str| (clock.nanos(tick), what.to_owned());
        let expected = [kvm(leave, "kvm:kvm_exit_HLT"), kvm(again, "}"), kvm(again, "kvm:guest")].map(|expected| {
            assert!(times.kvm.contains(&expected), "{expected:?} in {:?}", times.kvm);
            expected
        });
        assert!(expected.is_sorted_by_key(|(time_ns, _)| *time_ns));

        // So do those of the guest, moved by the offset: a directory that tells ticks exactly, exactly; one of nanoseconds to the
        // nanosecond that the tick is in.
        assert_eq!(times.guest.len(), raw.len());
        assert!(raw.values().map(Vec::len).sum::<usize>() > 100);
        let expected: Vec<Vec<u64>> =
            raw.values().map(|ticks| ticks.iter().map(|&tick| clock.nanos(at(tick.into()))).collect()).collect();
        let found: Vec<Vec<u64>> = times.guest.values().cloned().collect();
        if hz.is_some() {
            assert_eq!(found, expected);
        } else {
            // A nanosecond of the guest, whose idea of the counter's rate may be a wrong one, in nanoseconds of the host.
            let ticks = (1_i128 << 32) / Clock::read(&dir).nanos_per_2_32_ticks + 1;
            let width = u64::try_from((ticks * clock.nanos_per_2_32_ticks) >> 32).unwrap() + 1;
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!(found.len(), expected.len());
                let is_near = |(found, expected): (&u64, &u64)| (*found..=found + width).contains(expected);
                assert!(found.iter().zip(expected).all(is_near), "{found:?}\n{expected:?}");
            }
        }

        // A directory has the same times, and everybody's functions by their names.
        let merged = host.path("merged");
        merge.write_directory(&merged).unwrap();
        let written = Trace::open(&merged).unwrap();
        let of_guest = times_of_trace(&written);
        for times in &found {
            assert!(of_guest.values().any(|written| written == times));
        }
        if require(&["uftrace"]) {
            let replay = tools::text(Command::new("uftrace").args(["replay", "--no-pager", "-d"]).arg(&merged));
            for name in ["nap()", "rftrace_example_kernel::work::fibonacci()", "/* kvm:kvm_exit_HLT */"] {
                assert!(replay.contains(name), "{name} in {replay}");
            }
        }
    }
    assert!(clock.last_tsc > at(first.into()));
}

/// A guest under TCG and a traced program that talks with it, as `make run` has them: an answer is between question and receipt.
#[test]
fn examples_multi_shows_answers_within_questions() {
    if !require(&["nightly", "qemu-system-x86_64"]) {
        return;
    }
    let Some(kernel) = kernel() else { return };
    let folder = fixtures::build_folder("kernel");
    let mut cargo = fixtures::cargo(Some("nightly"));
    cargo.current_dir(fixtures::repository().join("examples/multi"));
    tools::run(cargo.args(["build", "--release", "--target-dir"]).arg(&folder));
    let host = folder.join("x86_64-unknown-linux-gnu/release/rftrace-example-multi");
    let mut command = Command::new(host);
    command.args(["host", "offset", "--", "qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-m", "64M"]);
    command.args(["-display", "none", "-monitor", "none", "-no-reboot", "-serial", "stdio"]);
    command.args(["-debugcon", "file:guest.img", "-device", "isa-debug-exit,iobase=0xf4,iosize=1"]);
    command.args(["-append", "mode=serve", "-kernel"]).arg(kernel.path);
    let run = Run::of(&mut command);
    let mut import = ImportOptions::default();
    import.binary = Some(kernel.path.to_owned());
    Image::read(&run.path("guest.img")).unwrap().write_directory(&run.path("guest"), &import).unwrap();

    let mut options = MergeOptions::default();
    options.guest = run.path("guest");
    options.hosts = vec![run.path("host")];
    options.tsc_offset = Some(fs::read_to_string(run.path("offset")).unwrap().trim().parse().unwrap());
    Merge::open(&options).unwrap().write_directory(&run.path("merged")).unwrap();
    let merged = run.trace("merged");
    let calls = |function: &str| {
        let mut calls = Vec::new();
        for task in merged.tasks() {
            let tree = CallTree::read(&merged, task).unwrap();
            let found = tree.calls().filter(|(_, call)| call.name.ends_with(function));
            calls.extend(found.map(|(_, call)| (call.start_ns, call.end_ns.unwrap())));
        }
        calls
    };
    let (questions, answers) = (calls("::ask"), calls("::serve::check"));
    assert_eq!((questions.len(), answers.len()), (20, 20));
    for (question, answer) in questions.iter().zip(&answers) {
        assert!(question.0 <= answer.0 && answer.1 <= question.1, "{answer:?} is not within {question:?}");
    }
}
