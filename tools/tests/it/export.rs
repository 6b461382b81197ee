//! The formats of other tools: what is in them is what the library's call trees say.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;
use rftrace_export::{
    Chrome, ExportOptions, Firefox, Folded, Perfetto, Sink, Track, WallClock, export, write_directory,
};
use rftrace_read::{OffCpu, Result, Trace};
use rftrace_views::{Call, CallTree};
use serde_json::Value;

use crate::dir::{Files, MAIN, entry, exit, trace};
use crate::hostile::records;
use crate::perfetto::{self, COUNTER, INSTANT, SLICE_BEGIN, SLICE_END};

#[derive(Debug, Clone, PartialEq)]
enum Event {
    Enter(u64, String),
    Exit(u64),
    Instant(u64, String),
}

impl Event {
    fn time_ns(&self) -> u64 {
        match self {
            Self::Enter(time_ns, _) | Self::Exit(time_ns) | Self::Instant(time_ns, _) => *time_ns,
        }
    }
}

/// Events of each track, and names of tracks and processes.
#[derive(Debug, Default, Clone, PartialEq)]
struct Timeline {
    events: BTreeMap<(u32, u32), Vec<Event>>,
    threads: BTreeMap<(u32, u32), String>,
    processes: BTreeMap<u32, String>,
    is_finished: bool,
}

impl Timeline {
    fn push(&mut self, track: Track, event: Event) {
        self.events.entry((track.pid, track.tid)).or_default().push(event);
    }
}

impl Sink for Timeline {
    fn process(&mut self, pid: u32, name: &str) -> Result<()> {
        assert_eq!(self.processes.insert(pid, name.to_owned()), None);
        Ok(())
    }

    fn thread(&mut self, track: Track, name: &str) -> Result<()> {
        assert!(self.processes.contains_key(&track.pid));
        assert_eq!(self.threads.insert((track.pid, track.tid), name.to_owned()), None);
        Ok(())
    }

    fn enter(&mut self, track: Track, time_ns: u64, name: &str) -> Result<()> {
        self.push(track, Event::Enter(time_ns, name.to_owned()));
        Ok(())
    }

    fn exit(&mut self, track: Track, time_ns: u64) -> Result<()> {
        self.push(track, Event::Exit(time_ns));
        Ok(())
    }

    fn instant(&mut self, track: Track, time_ns: u64, name: &str) -> Result<()> {
        self.push(track, Event::Instant(time_ns, name.to_owned()));
        Ok(())
    }

    fn counter(&mut self, _: u32, _: u64, _: &str, _: f64) -> Result<()> {
        panic!("traces have no counters")
    }

    fn finish(&mut self) -> Result<()> {
        assert!(!std::mem::replace(&mut self.is_finished, true));
        Ok(())
    }
}

fn options(from_ns: impl Into<Option<u64>>, to_ns: impl Into<Option<u64>>) -> ExportOptions {
    let mut options = ExportOptions::default();
    options.from_ns = from_ns.into();
    options.to_ns = to_ns.into();
    options
}

fn timeline(trace: &Trace, options: &ExportOptions) -> Timeline {
    let mut timeline = Timeline::default();
    export(trace, options, &mut timeline).expect("a readable trace");
    timeline
}

/// A call with all below it, and when it ended.
#[derive(Debug, Default)]
struct Node {
    name: String,
    start_ns: u64,
    end_ns: u64,
    children: Vec<Node>,
}

/// Makes a tree of events, which have to be balanced and in order.
fn tree(events: &[Event]) -> Vec<Node> {
    let mut open = vec![Node::default()];
    let mut last_ns = 0;
    for event in events {
        assert!(event.time_ns() >= last_ns, "{event:?} after {last_ns}");
        last_ns = event.time_ns();
        match event {
            Event::Enter(start_ns, name) => {
                open.push(Node { name: name.clone(), start_ns: *start_ns, ..Node::default() });
            }
            Event::Exit(end_ns) => {
                let mut call = open.pop().unwrap();
                call.end_ns = *end_ns;
                open.last_mut().expect("an exit has an entry").children.push(call);
            }
            Event::Instant(..) => {}
        }
    }
    assert_eq!(open.len(), 1, "an entry has an exit");
    open.remove(0).children
}

fn assert_same_calls(nodes: &[Node], calls: &[Call]) {
    let nodes: Vec<_> = nodes.iter().filter(|node| OffCpu::of_name(&node.name).is_none()).collect();
    assert_eq!(nodes.len(), calls.len(), "{nodes:#?} {calls:#?}");
    for (node, call) in nodes.iter().zip(calls) {
        assert_eq!((&node.name, node.start_ns), (&call.name, call.start_ns));
        if let Some(end_ns) = call.end_ns {
            assert_eq!(node.end_ns, end_ns, "{call:?}");
        }
        assert_same_calls(&node.children, &call.children);
    }
}

/// The events of a track that a range of time leaves.
fn cut(events: &[Event], from_ns: u64, to_ns: u64) -> Vec<Event> {
    let mut open = Vec::new();
    let mut found = Vec::new();
    let mut is_within = false;
    for event in events.iter().take_while(|event| event.time_ns() < to_ns) {
        if event.time_ns() >= from_ns && !std::mem::replace(&mut is_within, true) {
            found.extend(open.iter().map(|name: &String| Event::Enter(from_ns, name.clone())));
        }
        match event {
            Event::Enter(_, name) => open.push(name.clone()),
            Event::Exit(_) => assert!(open.pop().is_some()),
            Event::Instant(..) => {}
        }
        if is_within {
            found.push(event.clone());
        }
    }
    if !is_within {
        found.extend(open.iter().map(|name| Event::Enter(from_ns, name.clone())));
    }
    found.extend(open.iter().map(|_| Event::Exit(to_ns)));
    found
}

/// Checks the exported timeline against the call trees, and each format against the timeline.
fn check(trace: &Trace) {
    let whole = timeline(trace, &ExportOptions::default());
    assert!(whole.is_finished);
    for task in trace.tasks() {
        let calls = CallTree::read(trace, task).expect("a readable trace");
        let events = whole.events.get(&(task.pid(), task.tid())).map_or(&[][..], Vec::as_slice);
        assert_same_calls(&tree(events), &calls.roots);
    }
    check_formats(trace, &ExportOptions::default(), &whole);
}

fn check_formats(trace: &Trace, options: &ExportOptions, expected: &Timeline) {
    assert_eq!(chrome(trace, options), without_finish(expected));
    assert_eq!(perfetto(trace, options), without_finish(expected));
    let stacks = self_times(expected);
    assert_eq!(folded(trace, options), stacks);
    assert_eq!(firefox(trace, options), stacks);
    check_flame_graph(trace, options, &stacks);
}

fn without_finish(timeline: &Timeline) -> Timeline {
    Timeline { is_finished: false, ..timeline.clone() }
}

fn chrome(trace: &Trace, options: &ExportOptions) -> Timeline {
    let mut sink = Chrome::new(Vec::new());
    export(trace, options, &mut sink).expect("a readable trace");
    parse_chrome(&sink.into_inner())
}

fn parse_chrome(bytes: &[u8]) -> Timeline {
    let whole: Value = serde_json::from_slice(bytes).expect("valid JSON");
    let mut found = Timeline::default();
    for event in whole["traceEvents"].as_array().expect("an array") {
        let number = |key: &str| u32::try_from(event[key].as_u64().expect("a number")).expect("an id");
        let track = Track { pid: number("pid"), tid: number("tid") };
        // Times of these tests are small enough to be exact.
        let time_ns = || (event["ts"].as_f64().expect("a time") * 1000.0).round() as u64;
        let name = || event["name"].as_str().expect("a name").to_owned();
        let new_name = || event["args"]["name"].as_str().expect("a name").to_owned();
        match (event["ph"].as_str().expect("a phase"), event["name"].as_str()) {
            ("M", Some("process_name")) => assert_eq!(found.processes.insert(track.pid, new_name()), None),
            ("M", Some("thread_name")) => {
                assert_eq!(found.threads.insert((track.pid, track.tid), new_name()), None);
            }
            ("B", _) => found.push(track, Event::Enter(time_ns(), name())),
            ("E", _) => found.push(track, Event::Exit(time_ns())),
            ("i", _) => found.push(track, Event::Instant(time_ns(), name())),
            other => panic!("{other:?}"),
        }
    }
    found
}

fn perfetto(trace: &Trace, options: &ExportOptions) -> Timeline {
    let mut sink = Perfetto::new(Vec::new(), Some(WallClock { time_ns: 5, unix_ns: 1_700_000_000_000_000_000 }));
    export(trace, options, &mut sink).expect("a readable trace");
    parse_perfetto(&sink.into_inner())
}

/// Decodes Perfetto's format by the rules that its `trace_processor` has.
fn parse_perfetto(bytes: &[u8]) -> Timeline {
    let packets = perfetto::parse(bytes);
    let clocks = packets[0].clock_snapshot.as_ref().unwrap();
    assert_eq!(clocks.primary_trace_clock, Some(3), "CLOCK_MONOTONIC");
    let clocks: Vec<_> = clocks.clocks.iter().map(|clock| (clock.clock_id(), clock.timestamp())).collect();
    assert_eq!(clocks, [(3, 5), (1, 1_700_000_000_000_000_000)]);

    let mut found = Timeline::default();
    let mut process_of_uuid = HashMap::new();
    let mut track_of_uuid = HashMap::new();
    let mut defaults = HashMap::new();
    let mut names: HashMap<(u32, u64), String> = HashMap::new();
    for packet in &packets[1..] {
        let sequence = packet.trusted_packet_sequence_id();
        if packet.sequence_flags() & 1 != 0 {
            let new = packet.trace_packet_defaults.as_ref().unwrap();
            assert_eq!(new.timestamp_clock_id, Some(3), "CLOCK_MONOTONIC");
            let uuid = new.track_event_defaults.as_ref().unwrap().track_uuid();
            assert_eq!(defaults.insert(sequence, uuid), None);
        }
        for name in packet.interned_data.iter().flat_map(|data| &data.event_names) {
            assert_ne!(name.iid(), 0);
            assert_eq!(names.insert((sequence, name.iid()), name.name().to_owned()), None);
        }
        if let Some(track) = &packet.track_descriptor {
            assert_ne!(track.uuid(), 0);
            if let Some(process) = track.process.as_ref() {
                process_of_uuid.insert(track.uuid(), process.pid());
                found.processes.insert(process.pid().cast_unsigned(), process.process_name().to_owned());
            } else {
                let thread = track.thread.as_ref().expect("a thread");
                assert_eq!(process_of_uuid.get(&track.parent_uuid()), Some(&thread.pid()));
                let ids = (thread.pid().cast_unsigned(), thread.tid().cast_unsigned());
                assert_eq!(track_of_uuid.insert(track.uuid(), ids), None);
                found.threads.insert(ids, thread.thread_name().to_owned());
            }
        }
        if let Some(event) = &packet.track_event {
            assert_ne!(packet.sequence_flags() & 2, 0, "it needs what is interned");
            let (pid, tid) = track_of_uuid[&defaults[&sequence]];
            let time_ns = packet.timestamp();
            let name = || names[&(sequence, event.name_iid())].clone();
            found.push(
                Track { pid, tid },
                match event.r#type() {
                    SLICE_BEGIN => Event::Enter(time_ns, name()),
                    SLICE_END => Event::Exit(time_ns),
                    INSTANT => Event::Instant(time_ns, name()),
                    other => panic!("{other:?}"),
                },
            );
        }
    }
    found
}

/// How long each stack was the innermost one; those without time are left out.
fn self_times(timeline: &Timeline) -> BTreeMap<Vec<String>, u64> {
    let mut found = BTreeMap::new();
    for events in timeline.events.values() {
        let mut stack = Vec::new();
        let mut since_ns = 0;
        for event in events {
            if !stack.is_empty() && event.time_ns() > since_ns {
                *found.entry(stack.clone()).or_default() += event.time_ns() - since_ns;
            }
            since_ns = event.time_ns();
            match event {
                Event::Enter(_, name) => stack.push(name.clone()),
                Event::Exit(_) => assert!(stack.pop().is_some()),
                Event::Instant(..) => {}
            }
        }
    }
    found
}

fn folded(trace: &Trace, options: &ExportOptions) -> BTreeMap<Vec<String>, u64> {
    let mut sink = Folded::new(Vec::new(), false);
    export(trace, options, &mut sink).expect("a readable trace");
    let text = String::from_utf8(sink.into_inner()).expect("text");
    let lines = text.lines().map(|line| {
        let (stack, ns) = line.rsplit_once(' ').expect("a count");
        (stack.split(';').map(str::to_owned).collect(), ns.parse().expect("a number"))
    });
    let stacks: BTreeMap<_, _> = lines.clone().collect();
    assert_eq!(stacks.len(), lines.count(), "each stack is there once");
    stacks
}

fn check_flame_graph(trace: &Trace, options: &ExportOptions, stacks: &BTreeMap<Vec<String>, u64>) {
    let mut sink = Folded::flame_graph(Vec::new(), false, "a <title>");
    let result = export(trace, options, &mut sink);
    if stacks.is_empty() {
        assert!(result.unwrap_err().to_string().contains("nothing to draw"));
        return;
    }
    result.expect("a readable trace");
    let svg = String::from_utf8(sink.into_inner()).expect("text");
    assert!(svg.starts_with("<?xml") && svg.ends_with("</svg>"), "{svg}");
    assert!(svg.contains("a &lt;title&gt;"));
    let total: u64 = stacks.values().sum();
    assert!(svg.contains(&format!("total_samples=\"{total}\"")), "{total} in {svg}");
}

fn firefox(trace: &Trace, options: &ExportOptions) -> BTreeMap<Vec<String>, u64> {
    let mut sink = Firefox::new(Vec::new(), "prog", 0, None);
    export(trace, options, &mut sink).expect("a readable trace");
    parse_firefox(&sink.into_inner())
}

/// Sums up the weights of a profile's samples, and checks that each is as long as it weighs.
fn parse_firefox(bytes: &[u8]) -> BTreeMap<Vec<String>, u64> {
    let profile: Value = serde_json::from_slice(bytes).expect("valid JSON");
    let interval_ms = profile["meta"]["interval"].as_f64().expect("milliseconds");
    assert!((interval_ms - 1e-6).abs() < 1e-12, "a nanosecond");
    assert_eq!(profile["meta"]["sampleUnits"]["threadCPUDelta"], "ns");
    let mut found = BTreeMap::new();
    for thread in profile["threads"].as_array().expect("threads") {
        let strings = thread["stringArray"].as_array().expect("names");
        let column = |table: &str, name: &str| thread[table][name].as_array().expect("a column");
        let times: Vec<f64> = column("samples", "timeDeltas")
            .iter()
            .scan(0.0, |time, delta| {
                *time += delta.as_f64().expect("milliseconds");
                Some(*time)
            })
            .collect();
        let weights: Vec<u64> = column("samples", "weight").iter().map(|n| n.as_u64().expect("a number")).collect();
        for (idx, pair) in times.windows(2).enumerate() {
            assert!(((pair[1] - pair[0]) * 1e6 - weights[idx] as f64).abs() < 0.5, "sample {idx}");
        }
        assert_eq!(weights.last().copied().unwrap_or(0), 0);
        // A sample's processor time is what came before it: the time of the one before, if that was in a function and did not wait.
        let cpu = column("samples", "threadCPUDelta");
        for (idx, (stack, weight)) in column("samples", "stack").iter().zip(weights).enumerate() {
            let mut names = Vec::new();
            let mut next = stack.as_u64();
            while let Some(stack) = next {
                let stack = stack as usize;
                let frame = column("stackTable", "frame")[stack].as_u64().expect("a frame") as usize;
                let func = column("frameTable", "func")[frame].as_u64().expect("a function") as usize;
                let name = column("funcTable", "name")[func].as_u64().expect("a name") as usize;
                names.push(strings[name].as_str().expect("text").to_owned());
                next = column("stackTable", "prefix")[stack].as_u64();
            }
            names.reverse();
            let runs = names.last().is_some_and(|name| OffCpu::of_name(name).is_none());
            if let Some(used) = cpu.get(idx + 1) {
                assert_eq!(used.as_u64(), Some(if runs { weight } else { 0 }), "{names:?}");
            }
            if weight > 0 && !names.is_empty() {
                *found.entry(names).or_default() += weight;
            }
        }
    }
    found
}

#[test]
fn long_times_for_firefox() {
    let dir = trace(&[entry(0, 0, MAIN), exit(10_000_000_000, 0, MAIN)]);
    let stacks = firefox(&dir.open(), &ExportOptions::default());
    assert_eq!(stacks, BTreeMap::from([(vec!["main".to_owned()], 10_000_000_000)]));

    let dir = trace(&[entry(0, 0, MAIN), exit(u64::MAX, 0, MAIN)]);
    let mut sink = Firefox::new(Vec::new(), "prog", 0, None);
    let error = export(&dir.open(), &ExportOptions::default(), &mut sink).unwrap_err().to_string();
    assert!(error.contains("--from"), "{error}");
    parse_firefox(&sink.into_inner());
}

fn fill_with_counters(sink: &mut dyn Sink) {
    let track = Track { pid: 3, tid: 4 };
    sink.process(3, "host").unwrap();
    sink.thread(track, "vcpu 0").unwrap();
    sink.counter(3, 10, "cycles", 1.5).unwrap();
    sink.enter(track, 11, "run").unwrap();
    sink.exit(track, 12).unwrap();
    sink.counter(3, 20, "cycles", 0.25).unwrap();
    sink.finish().unwrap();
}

/// The output of [`fill_with_counters`], which the published bindings (`perfetto_protos` 0.51) decode as the same.
fn golden() -> Vec<u8> {
    let hex = concat!(
        "0a0c32080a0408031000100350010a17e2031408b4aab596c0d2e7d73f1a0808033204686f73740a4150026801d00201da030f5a0a589fe8",
        "d0888af882ab1ad00303e20322089fe8d0888af882ab1a220c080310042a0676637075203028b4aab596c0d2e7d73fb805010a21e2031e08",
        "cda3a5bff4c0a48f7c12066379636c657328b4aab596c0d2e7d73f42000a1f400a50015a16480458cda3a5bff4c0a48f7ce1020000000000",
        "00f83fd003030a17400b50025a0448015001620912070801120372756e68020a0a400c50025a02480268020a1f401450015a16480458cda3",
        "a5bff4c0a48f7ce102000000000000d03fd00303",
    );
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("digits")).collect()
}

/// Counters, which traces do not have but merged timelines do.
#[test]
fn counters() {
    let mut sink = Perfetto::new(Vec::new(), None);
    fill_with_counters(&mut sink);
    let bytes = sink.into_inner();
    assert_eq!(bytes, golden(), "{bytes:02x?}");
    let packets = perfetto::parse(&bytes);
    let clocks = &packets[0].clock_snapshot.as_ref().unwrap().clocks;
    assert_eq!(clocks.iter().map(|clock| clock.clock_id()).collect::<Vec<_>>(), [3]);
    let descriptors = || packets.iter().filter_map(|packet| packet.track_descriptor.as_ref());
    let process = descriptors().find(|track| track.process.is_some()).unwrap();
    let counter = descriptors().find(|track| track.counter.is_some()).unwrap();
    assert_eq!((counter.name(), counter.parent_uuid), ("cycles", process.uuid));
    let values = packets.iter().filter_map(|packet| {
        let event = packet.track_event.as_ref().filter(|event| event.r#type() == COUNTER)?;
        assert_eq!((packet.timestamp_clock_id(), event.track_uuid), (3, counter.uuid));
        Some((packet.timestamp(), event.double_counter_value()))
    });
    assert_eq!(values.collect::<Vec<_>>(), [(10, 1.5), (20, 0.25)]);

    let mut sink = Firefox::new(Vec::new(), "prog", 0, None);
    fill_with_counters(&mut sink);
    let profile: Value = serde_json::from_slice(&sink.into_inner()).unwrap();
    let counter = &profile["counters"][0];
    assert_eq!(counter["name"], "cycles");
    // The format has differences.
    assert_eq!(counter["samples"]["count"], serde_json::json!([1.5, -1.25]));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_records(first in records(), second in records()) {
        check(&Files::new(&[(7, &first), (8, &second)]).write().open());
    }

    #[test]
    fn any_range(first in records(), second in records(), from_ns in 0..100_u64, n in 1..100_u64) {
        let dir = Files::new(&[(7, &first), (8, &second)]).write();
        let trace = dir.open();
        let range = options(from_ns, from_ns + n);
        let found = timeline(&trace, &range);
        let mut expected = timeline(&trace, &ExportOptions::default());
        expected.events.values_mut().for_each(|events| *events = cut(events, from_ns, from_ns + n));
        expected.events.retain(|_, events| !events.is_empty());
        prop_assert_eq!(&found.events, &expected.events);
        check_formats(&trace, &range, &found);

        let parent = tempfile::tempdir().unwrap();
        let part = parent.path().join("part");
        if found.events.is_empty() {
            prop_assert!(write_directory(&trace, &range, &part).is_err());
        } else {
            write_directory(&trace, &range, &part).unwrap();
            let events = timeline(&Trace::open(&part).unwrap(), &ExportOptions::default()).events;
            prop_assert_eq!(events, found.events);
        }
    }
}
