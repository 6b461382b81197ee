//! Damaged directories: an error or a warning, but no panic.

use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;
use rftrace_export::{Chrome, ExportOptions, Firefox, Folded, Perfetto, Sink, WallClock, export, write_directory};
use rftrace_read::{Error, SCHED_IN, SCHED_OUT, SCHED_OUT_PREEMPTED, Summary, Task, Trace};
use rftrace_views::{CallTree, Field, ReplayField, ReplayOptions, Report, TaskLines};

use crate::dir::{A, B, Files, MAIN, MARK, entry, event, exit, lost, with_payload};

fn sample() -> Files {
    Files::new(&[
        (7, &[entry(1, 0, MAIN), event(2, 1, SCHED_OUT), event(3, 1, SCHED_IN), exit(9, 0, MAIN)]),
        (8, &[entry(2, 0, A), lost(4, 2), with_payload(exit(5, 0, A)), event(6, 0, MARK), entry(7, 0, B)]),
    ])
}

/// Reads all there is, in every way.
fn read(dir: &Path) -> Result<(), Error> {
    let trace = Trace::open(dir)?;
    let mut options = ReplayOptions::default();
    rftrace_views::replay(&trace, &options, &mut Vec::new())?;
    options.is_flat = true;
    rftrace_views::replay(&trace, &options, &mut Vec::new())?;
    (options.is_flat, options.fields, options.task_indent) = (false, ReplayField::ALL.to_vec(), usize::MAX);
    rftrace_views::replay(&trace, &options, &mut Vec::new())?;
    let mut report = Report::read(&trace)?;
    report.sort(&[Field::Total]);
    report.write(&Field::USUAL, usize::MAX, &mut Vec::new())?;
    for task in trace.tasks() {
        let _ = CallTree::read(&trace, task)?.to_string();
        copies_go_on(&trace, task, 1)?;
    }
    let mut options = ExportOptions::default();
    options.from_ns = Some(3);
    export(&trace, &ExportOptions::default(), &mut Chrome::new(Vec::new()))?;
    export(&trace, &options, &mut Perfetto::new(Vec::new(), WallClock::of(&trace)))?;
    export(&trace, &options, &mut Folded::new(Vec::new(), true))?;
    // There may be nothing to draw, or times too long for samples; and no records for a directory.
    let sinks: [&mut dyn Sink; 2] =
        [&mut Folded::flame_graph(Vec::new(), false, ""), &mut Firefox::new(Vec::new(), "", 0, None)];
    for sink in sinks {
        accept_refusal(export(&trace, &ExportOptions::default(), sink))?;
    }
    let parent = tempfile::tempdir().expect("a temporary directory");
    accept_refusal(write_directory(&trace, &options, &parent.path().join("part")))?;
    Ok(())
}

/// A task's lines are the same from any place where a copy was kept; every `step`th one is tried.
pub(crate) fn copies_go_on(trace: &Trace, task: &Task, step: usize) -> Result<(), Error> {
    let lines: Vec<_> = TaskLines::new(trace, task).collect::<Result<_, _>>()?;
    let mut reader = TaskLines::new(trace, task);
    for place in 0..=lines.len() {
        if place.is_multiple_of(step) {
            let rest: Vec<_> = reader.clone().collect::<Result<_, _>>()?;
            assert_eq!(rest, lines[place..], "from line {place} on");
        }
        reader.next();
    }
    Ok(())
}

fn accept_refusal(result: Result<Summary, Error>) -> Result<(), Error> {
    match result {
        Ok(_) | Err(Error::Export(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

#[test]
fn the_sample_is_fine() {
    read(sample().write().path()).unwrap();
}

#[test]
fn every_file_cut_short_at_every_length() {
    let files = sample();
    let dir = files.write();
    for (name, bytes) in &files.0 {
        for len in 0..bytes.len() {
            std::fs::write(dir.file(name), &bytes[..len]).unwrap();
            let result = read(dir.path());
            if name.ends_with(".dat") || name.ends_with(".sym") || name == "events.txt" {
                assert!(result.is_ok(), "{name}, {len} bytes: {result:?}");
            }
            if let Err(error) = result {
                let Error::Malformed { path, offset, .. } = &error else { panic!("{name}, {len} bytes: {error}") };
                assert!(*path == dir.file(name) && *offset <= len as u64, "{name}, {len} bytes: {error}");
            }
        }
        std::fs::write(dir.file(name), bytes).unwrap();
    }
}

#[test]
fn losses_with_great_depths() {
    let records: Vec<_> =
        (0..1000).flat_map(|time| [lost(time, u64::MAX >> 16), entry(time, time % 2 * 1023, A)]).collect();
    read(Files::new(&[(7, &records)]).write().path()).unwrap();
}

/// Records with all kinds, plausible and implausible addresses, and times that go back now and then.
pub(crate) fn records() -> impl Strategy<Value = Vec<[u8; 16]>> {
    let one = (0..100_u64, 0..5_u8, 0..6_u64, any::<bool>(), prop_oneof![Just(MAIN), Just(A), Just(B), 0..1_u64 << 48]);
    let one = one.prop_map(|(time, kind, depth, payload, addr)| {
        let record = match kind {
            0 => entry(time, depth, addr),
            1 => exit(time, depth, addr),
            2 => lost(time, addr % 100),
            3 => event(time, depth, [SCHED_IN, SCHED_OUT, SCHED_OUT_PREEMPTED, MARK][addr as usize % 4]),
            _ => event(time, depth, addr),
        };
        if payload && depth == 0 { with_payload(record) } else { record }
    });
    vec(one, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_records(first in records(), second in records()) {
        read(Files::new(&[(7, &first), (8, &second)]).write().path()).unwrap();
    }

    #[test]
    fn any_bytes_as_records(bytes in vec(any::<u8>(), 0..300)) {
        let mut files = sample();
        files.0.insert("7.dat".into(), bytes);
        read(files.write().path()).unwrap();
    }

    #[test]
    fn any_byte_of_any_file_changed(file in any::<prop::sample::Index>(), place in any::<prop::sample::Index>(), byte: u8) {
        let mut files = sample();
        let name = file.get(&files.0.keys().cloned().collect::<Vec<_>>()).clone();
        let bytes = files.0.get_mut(&name).unwrap();
        let place = place.index(bytes.len());
        bytes[place] = byte;
        // Most changes are errors, in whatever file; what matters is that nothing panics.
        let _ = read(files.write().path());
    }

    #[test]
    fn any_text_in_any_text_file(file in 0..4_usize, text in "[ -~\n]{0,200}") {
        let mut files = sample();
        let name = files.0.keys().filter(|name| !name.ends_with(".dat") && *name != "info").nth(file).unwrap().clone();
        files.0.insert(name, text.into());
        let _ = read(files.write().path());
    }
}

/// Found by fuzzing: a sample for each two seconds of centuries.
#[test]
fn times_that_are_centuries_apart() {
    let end = 1 << 62;
    let trace = crate::dir::trace(&[entry(10, 0, MAIN), exit(end, 0, MAIN)]);
    let mut firefox = rftrace_export::Firefox::new(std::io::sink(), "prog", 0, None);
    let error = rftrace_export::export(&trace.open(), &Default::default(), &mut firefox).expect_err("too long a time");
    assert!(error.to_string().contains("choose a part with --from"), "{error}");
}
