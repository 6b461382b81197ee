//! What a program had of memory and descriptors, beside its calls in Perfetto's and Chrome's formats: by the clock of the calls.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use perfetto_protos::trace as proto;
use perfetto_protos::track_event::track_event::Type;
use protobuf::Message;
use rftrace_tests::{CProgram, require};
use serde_json::Value;
use tempfile::TempDir;

/// When functions ran, and what counters were when.
#[derive(Default)]
struct Found {
    calls: HashMap<String, (u64, u64)>,
    counters: HashMap<String, Vec<(u64, f64)>>,
}

impl Found {
    /// What a counter was when it changed within these times, and what it was before.
    fn within(&self, counter: &str, (start, end): (u64, u64)) -> (Vec<f64>, f64) {
        let counter = &self.counters[counter];
        assert!(counter.is_sorted_by_key(|point| point.0), "{counter:?}");
        let values = counter.iter().filter(|(time, _)| (start..end).contains(time)).map(|point| point.1);
        let before = counter.iter().rev().find(|(time, _)| *time < start).map_or(0.0, |point| point.1);
        (values.collect(), before)
    }

    /// As the program says.
    fn check(&self) {
        const BYTES: f64 = 1_048_576.0;
        let (values, before) = self.within("bytes of memory", self.calls["have_memory"]);
        assert_eq!(values, [before + BYTES, before], "{:?}", self.counters);
        let (values, before) = self.within("descriptors", self.calls["have_files"]);
        assert_eq!(values, [before + 1.0, before + 2.0, before + 1.0, before], "{:?}", self.counters);
        // It has none.
        assert!(!self.counters.contains_key("threads to join"), "{:?}", self.counters);
    }
}

/// Decoded with the published bindings.
fn of_perfetto(bytes: &[u8]) -> Found {
    let whole = proto::Trace::parse_from_bytes(bytes).expect("protobuf");
    let mut found = Found::default();
    let mut counters = HashMap::new();
    let mut names: HashMap<(u32, u64), String> = HashMap::new();
    let mut open: HashMap<u32, Vec<(String, u64)>> = HashMap::new();
    for packet in &whole.packet {
        let sequence = packet.trusted_packet_sequence_id();
        if packet.track_descriptor().counter.is_some() {
            counters.insert(packet.track_descriptor().uuid(), packet.track_descriptor().name().to_owned());
        }
        for name in &packet.interned_data.event_names {
            names.insert((sequence, name.iid()), name.name().to_owned());
        }
        if !packet.has_track_event() {
            continue;
        }
        let (event, time) = (packet.track_event(), packet.timestamp());
        match event.type_() {
            Type::TYPE_COUNTER => {
                let name = counters[&event.track_uuid()].clone();
                found.counters.entry(name).or_default().push((time, event.double_counter_value()));
            }
            Type::TYPE_SLICE_BEGIN => {
                let name = names[&(sequence, event.name_iid())].clone();
                open.entry(sequence).or_default().push((name, time));
            }
            Type::TYPE_SLICE_END => {
                let (name, start) = open.get_mut(&sequence).and_then(Vec::pop).expect("a call that has begun");
                found.calls.insert(name, (start, time));
            }
            _ => {}
        }
    }
    found
}

fn of_chrome(text: &str) -> Found {
    let whole: Value = serde_json::from_str(text).expect("JSON");
    let mut found = Found::default();
    let mut open = Vec::new();
    for event in whole["traceEvents"].as_array().unwrap() {
        let name = || event["name"].as_str().unwrap().to_owned();
        let time = || (event["ts"].as_f64().unwrap() * 1000.0).round() as u64;
        match event["ph"].as_str().unwrap() {
            "C" => {
                let value = event["args"]["value"].as_f64().unwrap();
                found.counters.entry(name()).or_default().push((time(), value));
            }
            "B" => open.push((name(), time())),
            "E" => {
                let (name, start) = open.pop().expect("a call that has begun");
                found.calls.insert(name, (start, time()));
            }
            _ => {}
        }
    }
    found
}

fn dump(options: &[&str], folder: &Path) -> Vec<u8> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rftrace"));
    let output = command.arg("dump").args(options).arg("trace").current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn record(program: &Path) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut record = Command::new(env!("CARGO_BIN_EXE_rftrace"));
    record.args(["record", "--resources", "memory,file,thread", "--no-schedule", "-o", "trace", "--"]);
    let output = record.arg(program).current_dir(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    folder
}

#[test]
fn counters_have_the_clock_of_the_calls() {
    if !require(&["gcc"]) {
        return;
    }
    let program = CProgram::new(&["counters.c"]).without_library().with(&["-g", "-O1", "-fno-builtin"]).build();
    let folder = record(&program.path);

    let whole = of_perfetto(&dump(&["--perfetto"], folder.path()));
    whole.check();
    let text = String::from_utf8(dump(&["--chrome"], folder.path())).unwrap();
    let chrome = of_chrome(&text);
    chrome.check();
    assert_eq!(chrome.counters["descriptors"].len(), whole.counters["descriptors"].len());

    // A part begins with what there is then.
    let (start, end) = whole.calls["have_files"];
    let (from, to) = (start + (end - start) / 2, end + 1_000_000);
    let seconds = |ns: u64| format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    let part = of_perfetto(&dump(&["--perfetto", "--from", &seconds(from), "--to", &seconds(to)], folder.path()));
    let all = &part.counters["descriptors"];
    let two = whole.within("descriptors", (start, end)).0[1];
    assert_eq!((all[0], all.last().unwrap().1), ((from, two), two - 2.0), "{all:?}");
    // Without what was recorded of resources there is nothing of it.
    fs::remove_file(folder.path().join("trace/resources.dat")).unwrap();
    assert!(of_perfetto(&dump(&["--perfetto"], folder.path())).counters.is_empty());
}

#[test]
fn programs_without_calls_have_counters() {
    if !require(&["gcc"]) {
        return;
    }
    let with = ["-g", "-O1", "-fno-builtin"];
    let program = CProgram::new(&["counters.c"]).without_hooks().without_library().with(&with).build();
    let folder = record(&program.path);
    for found in [
        of_perfetto(&dump(&["--perfetto"], folder.path())),
        of_chrome(&String::from_utf8(dump(&["--chrome"], folder.path())).unwrap()),
    ] {
        assert!(found.calls.is_empty());
        // The last 0 is the end of the process.
        let descriptors: Vec<f64> = found.counters["descriptors"].iter().map(|point| point.1).collect();
        assert_eq!(descriptors, [1.0, 2.0, 1.0, 0.0, 0.0]);
        let times: Vec<u64> = found.counters["descriptors"].iter().map(|point| point.0).collect();
        assert!(times.is_sorted() && times[2] - times[1] >= 30_000_000, "{times:?}");
    }
    let mut part = Command::new(env!("CARGO_BIN_EXE_rftrace"));
    let output = part.args(["dump", "--chrome", "--from", "1ms", "trace"]).current_dir(folder.path()).output().unwrap();
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("has no calls"), "{output:?}");
}
