//! A program's memory and descriptors, beside its calls in Perfetto's and Chrome's formats and in the page: by the clock of the calls.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use rftrace_tests::{CProgram, require};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::browser::Browser;
use crate::perfetto::{self, COUNTER, SLICE_BEGIN, SLICE_END};
use crate::view::View;

/// When functions ran, and what counters were when.
#[derive(Default)]
struct Found {
    calls: HashMap<String, (u64, u64)>,
    counters: HashMap<String, Vec<(u64, f64)>>,
}

impl Found {
    /// The values of a counter when it changed within these times, and the one before.
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

fn of_perfetto(bytes: &[u8]) -> Found {
    let mut found = Found::default();
    let mut counters = HashMap::new();
    let mut names: HashMap<(u32, u64), String> = HashMap::new();
    let mut open: HashMap<u32, Vec<(String, u64)>> = HashMap::new();
    for packet in perfetto::parse(bytes) {
        let sequence = packet.trusted_packet_sequence_id();
        if let Some(track) = packet.track_descriptor.as_ref().filter(|track| track.counter.is_some()) {
            counters.insert(track.uuid(), track.name().to_owned());
        }
        for name in packet.interned_data.iter().flat_map(|data| &data.event_names) {
            names.insert((sequence, name.iid()), name.name().to_owned());
        }
        let Some(event) = &packet.track_event else { continue };
        let time = packet.timestamp();
        match event.r#type() {
            COUNTER => {
                let name = counters[&event.track_uuid()].clone();
                found.counters.entry(name).or_default().push((time, event.double_counter_value()));
            }
            SLICE_BEGIN => {
                let name = names[&(sequence, event.name_iid())].clone();
                open.entry(sequence).or_default().push((name, time));
            }
            SLICE_END => {
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

/// A counter as the page shows it: its values, and times since its beginning.
const SHOWN: &str = "Object.fromEntries(rftrace.app.trace.counters.map(counter => [counter.name, { most: counter.most, isBytes: counter.isBytes, \
                     owner: counter.process, points: [...counter.times].map((time, k) => [time, counter.values[k]]) }]))";

#[test]
fn the_page_has_them_beside_the_calls() {
    if !require(&["gcc", "chromium"]) {
        return;
    }
    let program = CProgram::new(&["counters.c"]).without_library().with(&["-g", "-O1", "-fno-builtin"]).build();
    let folder = record(&program.path);
    let whole = of_perfetto(&dump(&["--perfetto"], folder.path()));
    dump(&["--html", "-o", "page.html"], folder.path());
    let mut browser = Browser::start();
    browser.open(&format!("file://{}", folder.path().join("page.html").display()));

    // They are those of the exports, as far as there are calls.
    let base: u64 = browser.value("rftrace.app.trace.base").as_str().unwrap().parse().unwrap();
    let end = base + browser.value("rftrace.app.trace.end").as_u64().unwrap();
    let shown = browser.value(SHOWN);
    for (name, points) in &whole.counters {
        let within: Vec<Value> = points
            .iter()
            .filter(|(time, _)| (base + 1..=end).contains(time))
            .map(|&(time, value)| json!([time - base, value as u64]))
            .collect();
        let found: &[Value] = match shown[name]["points"].as_array() {
            // The value when the first call began has that time.
            Some(found) if found.first().is_some_and(|first| first[0] == 0) => &found[1..],
            Some(found) => found,
            None => &[],
        };
        let is_nothing = points.iter().all(|(_, value)| *value == 0.0);
        assert!(is_nothing || found == within, "{name}: {found:?} for {within:?}");
    }
    assert_eq!((&shown["bytes of memory"]["isBytes"], &shown["descriptors"]["isBytes"]), (&json!(true), &json!(false)));

    // They are above the calls of their process, and what is under the pointer is told.
    let place = |what: &str| {
        format!(
            "(() => {{ const {{ timeline, trace }} = rftrace.app; const box = timeline.canvas.getBoundingClientRect(); \
             const counter = trace.counters.find(counter => counter.name === '{what}'); const k = timeline.places.indexOf(counter); \
             const times = counter.times; const at = counter.values.indexOf(counter.most); \
             return [box.left + timeline.x((times[at] + times[at + 1]) / 2), box.top + timeline.placeTops[k] + HEAD + COUNTER / 2]; }})()"
        )
    };
    assert_eq!(browser.value("rftrace.app.timeline.places.at(-1)"), 0);
    let tip = "[...document.getElementById('tooltip').children].map(line => line.textContent)";
    for (what, told) in [("descriptors", "2"), ("bytes of memory", "1048.6 kB")] {
        let at = browser.value(&place(what));
        browser.mouse("mouseMoved", [at[0].as_f64().unwrap(), at[1].as_f64().unwrap()], 0, false);
        let tip = browser.value(tip);
        let amount = tip[0].as_str().unwrap();
        // The C library has some memory of its own.
        assert!(amount == told || what != "descriptors" && amount.ends_with(" kB"), "{tip}");
        assert_eq!(tip[1], what);
    }
    // The drawing: pixels of the counter's colour, and none at the beginning.
    let drawn = "(columns => { const { timeline, colours } = rftrace.app; const { width } = timeline.canvas; \
                 const top = timeline.placeTops[timeline.places.findIndex(place => place.name === 'descriptors')]; \
                 const data = timeline.canvas.getContext('2d').getImageData(0, top + HEAD, width, COUNTER).data; \
                 const pixels = new Uint32Array(data.buffer); const accent = Colours.pixel(colours.accent); \
                 return columns.map(x => pixels.filter((pixel, k) => k % width === x && pixel === accent).length); })";
    let x =
        format!("Math.round({}[0] - rftrace.app.timeline.canvas.getBoundingClientRect().left)", place("descriptors"));
    assert_eq!(browser.value(&format!("{drawn}([{x}, 3])")), json!([40, 0]));
    // A click on its head folds it.
    let before = browser.value("rftrace.app.timeline.tops[0]").as_f64().unwrap();
    let at = browser.value(&place("descriptors"));
    let head = [60.0, at[1].as_f64().unwrap() - 20.0 - 12.0];
    browser.mouse("mousePressed", head, 1, false);
    browser.mouse("mouseReleased", head, 1, false);
    browser.wait(&format!("rftrace.app.timeline.tops[0] === {before} - COUNTER"));
    assert_eq!(browser.complaints, [""; 0]);

    // A part begins with what there is then.
    let (start, end) = whole.calls["have_files"];
    let (from, to) = (start + (end - start) / 2, end + 1_000_000);
    let seconds = |ns: u64| format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    dump(&["--html", "-o", "part.html", "--from", &seconds(from), "--to", &seconds(to)], folder.path());
    browser.open(&format!("file://{}", folder.path().join("part.html").display()));
    assert_eq!(browser.value(SHOWN)["descriptors"]["most"], json!(2));
    // With too many calls for a browser's memory, and without what was recorded of resources.
    let path = folder.path().join("trace");
    let view = View::start(&path, &["--max-calls", "1"]);
    browser.open(&view.url);
    assert_eq!(browser.value("rftrace.app.trace instanceof ZoomTrace"), json!(true));
    assert_eq!(browser.value(SHOWN), shown);
    drop(view);
    fs::write(path.join("resources.dat"), "no such file").unwrap();
    let view = View::start(&path, &[]);
    browser.open(&view.url);
    assert_eq!(browser.value("[rftrace.app.trace.counters.length, rftrace.app.trace.tasks.length]"), json!([0, 1]));
}

#[test]
fn the_page_of_a_program_without_calls_has_them_alone() {
    if !require(&["gcc", "chromium"]) {
        return;
    }
    let with = ["-g", "-O1", "-fno-builtin"];
    let program = CProgram::new(&["counters.c"]).without_hooks().without_library().with(&with).build();
    let folder = record(&program.path);
    let view = View::start(&folder.path().join("trace"), &[]);
    let mut browser = Browser::start();
    browser.open(&view.url);
    let shown = browser.value(SHOWN);
    let values: Vec<&Value> =
        shown["descriptors"]["points"].as_array().unwrap().iter().map(|point| &point[1]).collect();
    assert_eq!(values, [1, 2, 1, 0, 0]);
    assert_eq!(shown["descriptors"]["owner"], json!(program.path.file_name().unwrap().to_str()));
    assert_eq!(
        browser.value("document.title").as_str().unwrap().split(' ').next(),
        shown["descriptors"]["owner"].as_str()
    );
    assert_eq!(browser.complaints, [""; 0]);
}
