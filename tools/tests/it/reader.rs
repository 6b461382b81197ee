//! Metadata and records.

use rftrace_read::{Error, Kind, Record, Trace, Warning};

use crate::dir::{A, BASE, Files, MAIN, SID, entry, event, exit, lost, trace, with_payload};

/// The records of the first task, and its warnings.
fn records(trace: &Trace) -> (Vec<Record>, Vec<(Warning, u64)>) {
    let mut records = trace.records(&trace.tasks()[0]);
    let found = records.by_ref().map(|record| record.expect("a readable file")).collect();
    (found, records.warnings().iter().collect())
}

fn times(trace: &Trace) -> Vec<u64> {
    records(trace).0.iter().map(|record| record.time_ns).collect()
}

#[test]
fn metadata() {
    let dir = Files::new(&[(7, &[]), (8, &[])]).write();
    let trace = dir.open();
    assert_eq!(trace.dir(), dir.path());
    assert_eq!(trace.info().get("exename"), Some("/bin/prog"));
    assert_eq!(trace.info().tids(), [7, 8]);
    assert_eq!(trace.info().max_stack(), 1024);
    assert_eq!(trace.tasks().iter().map(|task| (task.tid(), task.pid())).collect::<Vec<_>>(), [(7, 7), (8, 7)]);
    assert!(trace.warnings().is_empty());
    assert_eq!(trace.function_name(&trace.tasks()[0], 10, A + 5), "a");
    assert_eq!(trace.function_name(&trace.tasks()[0], 10, 0x123), "<123>");
}

#[test]
fn records_round_trip() {
    let dir = trace(&[entry(1, 0, MAIN), lost(2, 3), event(3, 1, 200_001), exit(4, 0, MAIN)]);
    let (found, warnings) = records(&dir.open());
    let record = |time_ns, kind, depth, addr| Record { time_ns, kind, has_payload: false, payload_at: 0, depth, addr };
    assert_eq!(
        found,
        [
            record(1, Kind::Entry, 0, MAIN),
            record(2, Kind::Lost, 0, 3),
            record(3, Kind::Event, 1, 200_001),
            record(4, Kind::Exit, 0, MAIN),
        ]
    );
    assert_eq!(warnings, []);
}

#[test]
fn files_larger_than_what_is_in_memory_at_once() {
    let many: Vec<_> =
        (0..30_000).map(|time| if time % 2 == 0 { entry(time, 0, A) } else { exit(time, 0, A) }).collect();
    assert!(times(&trace(&many).open()).into_iter().eq(0..30_000));
}

#[test]
fn payloads_are_skipped() {
    // Pointers, of which some look later than the record, a time, and text.
    let words = [0x7fff_aef0_0040_u64, 3, u64::MAX, 0x2a, 0x11f_ad74_a3a8, u64::from_le_bytes(*b"a string")];
    for n_words in 0..=words.len() {
        let payload: Vec<u8> = words[..n_words].iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut files = Files::new(&[(7, &[])]);
        let dat = [
            &with_payload(entry(1_000, 0, MAIN))[..],
            &payload,
            &entry(1_001, 1, A),
            &with_payload(exit(1_002, 1, A)),
            &payload,
            &with_payload(event(1_003, 1, 100_001)),
            &payload,
            &with_payload(exit(1_004, 0, MAIN)),
            &payload,
        ]
        .concat();
        files.0.insert("7.dat".into(), dat);
        let (found, warnings) = records(&files.write().open());
        assert_eq!(found.iter().map(|record| record.time_ns).collect::<Vec<_>>(), [1_000, 1_001, 1_002, 1_003, 1_004]);
        assert_eq!(warnings, [(Warning::PayloadSkipped, 4)], "{n_words} words");
    }
}

#[test]
fn values_are_read_in_any_order() {
    // More than is in memory at once.
    let n_calls = 10_000_u64;
    let of_task = |first: u64| -> Vec<u8> {
        let calls =
            (0..n_calls).flat_map(|call| [with_payload(entry(call, 0, A)), u128::from(first + call).to_le_bytes()]);
        calls.flatten().collect()
    };
    let mut files = Files::new(&[(7, &[]), (8, &[])]);
    files.0.get_mut("info").expect("a file")[16] |= 1 << 3;
    files.0.insert("7.dat".into(), of_task(0));
    files.0.insert("8.dat".into(), of_task(n_calls));
    let dbg = format!("# path name: /bin/prog\nF: {:x} a\nA: @arg1/u64,arg2/u64\n", A - BASE);
    files.0.insert("prog.dbg".into(), dbg.into());
    let dir = files.write();
    let trace = dir.open();
    let records: Vec<Record> = records(&trace).0;
    assert_eq!(records.len() as u64, n_calls);
    let forth = 0..n_calls;
    let back = (0..n_calls).rev();
    // 7919 is prime to the number of calls.
    let about = (0..n_calls).map(|step| step * 7919 % n_calls);
    for call in forth.chain(back).chain(about) {
        for (task, first) in trace.tasks().iter().zip([0, n_calls]) {
            let values = trace.values(task, &records[call as usize]).expect("a readable file");
            assert_eq!(values, [(first + call).to_string(), "0".into()]);
        }
    }
}

#[test]
fn what_is_no_record_is_skipped() {
    for garbage in [&[0; 8][..], &[0xff; 40], &[0x55; 4096]] {
        let mut files = Files::new(&[(7, &[])]);
        let dat = [&entry(1, 0, MAIN)[..], garbage, &entry(2, 1, A), &exit(3, 1, A)].concat();
        files.0.insert("7.dat".into(), dat);
        let (found, warnings) = records(&files.write().open());
        assert_eq!(found.len(), 3, "{} bytes", garbage.len());
        assert_eq!(warnings, [(Warning::CorruptStretch, 1)]);
    }
}

#[test]
fn a_task_without_a_file_has_no_records() {
    let mut files = Files::new(&[(7, &[]), (8, &[entry(1, 0, A)])]);
    files.0.remove("7.dat");
    let trace = files.write();
    let trace = trace.open();
    assert_eq!(times(&trace), [0_u64; 0]);
    assert_eq!(trace.all_records().unwrap().count(), 1);
}

/// uftrace knows the first 40 digits of a build-id: a symbol file has no more, but a map of another tracer may.
#[test]
fn a_long_build_id_is_compared_as_far_as_uftrace_does() {
    let mut files = Files::new(&[(7, &[])]);
    let digits = "0123456789abcdef".repeat(4);
    let map = format!("{BASE:x}-{:x} r-xp 00000000 00:00 0 /bin/prog build-id:{digits}\n", BASE + 0x3000);
    files.0.insert(format!("sid-{SID}.map"), map.into());
    let symbols = String::from_utf8(files.0["prog.sym"].clone()).unwrap();
    files.0.insert("prog.sym".into(), format!("# build-id: {}\n{symbols}", &digits[..40]).into());
    let dir = files.write();
    let trace = dir.open();
    assert_eq!(trace.function_name(&trace.tasks()[0], 0, A), "a");
}

#[test]
fn processes_that_are_each_others_parents() {
    let mut files = Files::new(&[(7, &[])]);
    let text = "FORK timestamp=0.000000001 pid=7 ppid=8\nFORK timestamp=0.000000001 pid=8 ppid=7\n";
    files.0.insert("task.txt".into(), text.into());
    assert_eq!(files.write().open().tasks().len(), 2);
}

#[test]
fn what_is_missing_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let error = Trace::open(dir.path()).unwrap_err();
    assert!(matches!(error, Error::NotATrace { .. }));
    let message = error.to_string();
    assert!(
        message.starts_with(&format!(
            "{}/info: no such file or directory; is this a trace directory?",
            dir.path().display()
        ))
    );

    for name in ["task.txt".to_owned(), format!("sid-{SID}.map")] {
        let mut files = Files::new(&[(7, &[])]);
        files.0.remove(&name);
        let dir = files.write();
        match Trace::open(dir.path()).unwrap_err() {
            Error::Io { path, .. } => assert_eq!(path, dir.file(&name)),
            other => panic!("{other}"),
        }
    }
    for name in ["prog.sym", "events.txt"] {
        let mut files = Files::new(&[(7, &[])]);
        files.0.remove(name);
        files.write().open();
    }
}

#[test]
fn a_records_file_that_cannot_be_read() {
    let mut files = Files::new(&[(7, &[]), (8, &[])]);
    files.0.remove("8.dat");
    let dir = files.write();
    std::fs::create_dir(dir.file("8.dat")).unwrap();
    let trace = dir.open();
    let mut records = trace.records(&trace.tasks()[1]);
    assert!(matches!(records.next(), Some(Err(Error::Io { path, .. })) if path == dir.file("8.dat")));
    assert!(records.next().is_none(), "an error is the end");
    assert!(trace.all_records().is_err());
}
