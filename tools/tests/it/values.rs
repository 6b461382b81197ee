//! Arguments and results in views and formats: each call has its own, as the replay shows them.

use rftrace_export::{Chrome, ExportOptions, Firefox, Perfetto, Sink, export, write_directory};
use rftrace_read::Trace;
use rftrace_views::{Report, ReportOptions};
use serde_json::{Value, json};

use crate::browser::Browser;
use crate::cli::{run, utf8};
use crate::dir::{A, B, C, Dir, Files, MAIN, entry, exit, with_payload};
use crate::perfetto::{self, Annotated, SLICE_BEGIN};

/// Bytes that are no HTML, no JSON and no UTF-8 if they are taken as they are.
const HOSTILE: &[u8] = b"</script><img src=x onerror=\"window.broken=1\">\\\xff\x1b\n\xc3\xa9";
/// The same as it is shown.
const SHOWN: &str = "\"</script><img src=x onerror=\"window.broken=1\">\\\\xff\\u{1b}\\né\"";

/// The text of a value with fields.
const FIELDS: &str = "Some(Pair { n: -7, text: \"a\"\" })";

/// ARGUMENT and RETVAL.
const FEATURES: u8 = 1 << 3 | 1 << 4;

/// Values behind a record: each fills up to 4 bytes, all to 8.
fn payload(values: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for value in values {
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u16).to_le_bytes(), text].concat()
}

/// One thread: `main` calls `a` with values of all kinds, which calls `b` with an argument; `c` with a result, and with another; and
/// `b` again, which does not end.
pub(crate) fn files() -> Files {
    let arguments = payload(&[
        &string(HOSTILE),
        &(-5_i32).to_le_bytes(),
        &u64::MAX.to_le_bytes(),
        &1.5_f64.to_le_bytes(),
        b"x",
        &string(b"\xff\xff\xff\xff"),
        &1_u64.to_le_bytes(),
        &2_u64.to_le_bytes(),
        // A block of a word, of which all was read, and a text.
        &[8, 0, 8, 0, 1, 0, 0, 0, 0xf9, 0xff, 0xff, 0xff, 2, 0, b'a', b'"'],
    ]);
    let number = |number: i32| payload(&[&number.to_le_bytes()]);
    let mut records = Vec::new();
    let mut add = |record: [u8; 16], payload: &[u8]| {
        let record = if payload.is_empty() { record } else { with_payload(record) };
        records.extend_from_slice(&record);
        records.extend_from_slice(payload);
    };
    add(entry(1_000, 0, MAIN), &[]);
    add(entry(2_000, 1, A), &arguments);
    add(entry(2_500, 2, B), &number(7));
    add(exit(3_000, 2, B), &[]);
    add(exit(4_000, 1, A), &payload(&[&string(b"done")]));
    add(entry(5_000, 1, C), &[]);
    add(exit(6_000, 1, C), &number(1));
    add(entry(7_000, 1, C), &[]);
    add(exit(8_000, 1, C), &number(-1));
    add(entry(9_000, 1, B), &number(8));
    add(exit(10_000, 0, MAIN), &[]);
    let mut files = Files::new(&[(7, &[])]);
    files.0.insert("7.dat".into(), records);
    files.0.get_mut("info").expect("info")[16] |= FEATURES;
    let dbg = "# path name: /bin/prog\n\
        F: 1010 a\nA: @arg1/s,arg2/i32,arg3/x64,fparg1/64,arg4/c,arg5/s,arg6/e:bool,arg7/e:Colour,arg8/t16:Option<_>\nR: @retval/s\n\
        F: 1020 b\nA: @arg1/i32\n\
        F: 1030 c\nR: @retval/i32\n\
        # layout Option<_> [32@4|0=(None|),1=(Some|{Pair|n=i32@8,text=s@12})]\n\
        E: enum bool {false=0,true=1}\nE: enum Colour {RED=0,GREEN=2}\n";
    files.0.insert("prog.dbg".into(), dbg.into());
    files
}

fn sample() -> Dir {
    files().write()
}

/// The arguments of `a`.
fn arguments() -> String {
    format!("{SHOWN}, -5, 0xffffffffffffffff, 1.500000, 'x', NULL, true, GREEN, {FIELDS}")
}

fn written<S: Sink>(trace: &Trace, mut sink: S, bytes: impl FnOnce(S) -> Vec<u8>) -> Vec<u8> {
    export(trace, &ExportOptions::default(), &mut sink).expect("a readable trace");
    bytes(sink)
}

/// The values of each event of a process in Chrome's format.
pub(crate) fn in_chrome(bytes: &[u8], pid: u32) -> Vec<Value> {
    let whole: Value = serde_json::from_slice(bytes).expect("JSON");
    let events = whole["traceEvents"].as_array().expect("events").iter();
    events.filter(|event| event["ph"] != "M" && event["pid"] == pid).map(|event| event["args"].clone()).collect()
}

/// That of the sample.
pub(crate) fn expected_in_chrome() -> Vec<Value> {
    let (none, b) = (|| Value::Null, |number: &str| json!({ "arguments": number }));
    let result = |text: &str| json!({ "retval": text });
    let a = json!({ "arguments": arguments() });
    let (done, one, minus) = (result("\"done\""), result("1"), result("-1"));
    vec![none(), a, b("7"), none(), done, none(), one, none(), minus, b("8"), none(), none()]
}

#[test]
fn chrome_has_them_as_text() {
    let bytes = written(&sample().open(), Chrome::new(Vec::new()), Chrome::into_inner);
    assert_eq!(in_chrome(&bytes, 7), expected_in_chrome());
}

#[test]
fn a_directory_with_a_part_has_them() {
    let dir = sample();
    let parent = tempfile::tempdir().expect("a directory");
    let part = parent.path().join("part");
    let mut options = ExportOptions::default();
    options.from_ns = Some(2_200);
    write_directory(&dir.open(), &options, &part).expect("it is written");
    let trace = Trace::open(&part).expect("a trace");
    assert!(trace.warnings().is_empty());
    let bytes = written(&trace, Chrome::new(Vec::new()), Chrome::into_inner);
    // Calls that are open then have their arguments.
    assert_eq!(in_chrome(&bytes, 7), expected_in_chrome());
}

/// The rows of a report: label, calls, total time.
fn rows(by_value: &[&str]) -> Value {
    let mut options = ReportOptions::default();
    options.by_value = by_value.iter().map(|text| text.parse().expect("it is understood")).collect();
    let report = Report::read_with(&sample().open(), &options).expect("a report");
    let mut rows: Vec<_> = report.rows().iter().map(|row| (row.label(), row.calls, row.total_ns)).collect();
    rows.sort();
    json!(rows)
}

#[test]
fn a_report_has_a_row_for_each_value() {
    let (main, a, c) = (json!(["main", 1, 9_000]), json!(["a", 1, 2_000]), json!(["c", 2, 2_000]));
    let b = [json!(["b(7)", 1, 500]), json!(["b(8)", 1, 1_000])];
    assert_eq!(rows(&[]), json!([a, ["b", 2, 1_500], c, main]));
    assert_eq!(rows(&["b"]), json!([a, b[0], b[1], c, main]));
    let c = [json!(["c() = -1", 1, 1_000]), json!(["c() = 1", 1, 1_000])];
    assert_eq!(rows(&["b@arg1", "c@retval"]), json!([a, b[0], b[1], c[0], c[1], main]));
    let a = json!(["a(_, -5, _, _, _, _, _, _, _) = \"done\"", 1, 2_000]);
    assert_eq!(rows(&["*@arg2,retval"])[0], a);

    let dir = sample();
    let (code, csv, error) =
        run(&["report", "--format", "csv", "--by-value", "a@arg1", "-f", "call", utf8(dir.path())]);
    assert_eq!(code, Some(0), "{error}");
    let line = format!("\"a\",\"{}, _, _, _, _, _, _, _, _\",\"\",1\n", SHOWN.replace('"', "\"\""));
    assert!(csv.starts_with("function,arguments,retval,call\n") && csv.contains(&line), "{csv}");
    assert!(csv.contains("\"main\",\"\",\"\",1\n"), "{csv}");
    let (_, text, _) = run(&["report", "--format", "json", "--by-value", "a@arg1", "-f", "call", utf8(dir.path())]);
    let json: Value = serde_json::from_str(&text).expect("JSON");
    let row = json.as_array().expect("rows").iter().find(|row| row["function"] == "a").expect("a row");
    assert_eq!(row["arguments"], format!("{SHOWN}, _, _, _, _, _, _, _, _"));
    assert!(row.get("retval").is_none());

    let (code, _, error) = run(&["report", "--by-value", "main", utf8(dir.path())]);
    assert!(code == Some(0) && error.contains("no call has such values"), "{error}");
    let (code, _, error) = run(&["report", "--by-value", "a@second", utf8(dir.path())]);
    assert!(code == Some(2) && error.contains("`second`: behind `@` stand arg1"), "{error}");
}

/// Which annotations each event has.
#[test]
fn perfetto_has_them_as_annotations_with_types() {
    let bytes = written(&sample().open(), Perfetto::new(Vec::new(), None), Perfetto::into_inner);
    let events = perfetto::parse(&bytes).into_iter().filter_map(|packet| packet.track_event);
    let found: Vec<_> = events
        .map(|event| {
            let annotations = event.debug_annotations.iter();
            let annotations = annotations.map(|one| (one.name().to_owned(), one.value.clone().expect("a value")));
            (event.r#type() == SLICE_BEGIN, annotations.collect::<Vec<_>>())
        })
        .collect();
    let text = |text: &str| Annotated::Text(text.to_owned());
    let values = [
        text(SHOWN),
        Annotated::Int(-5),
        Annotated::Pointer(u64::MAX),
        Annotated::Double(1.5),
        text("'x'"),
        text("NULL"),
        Annotated::Bool(true),
        text("GREEN"),
        text(FIELDS),
    ];
    let a = (1..).zip(values).map(|(number, value)| (format!("arg{number}"), value)).collect();
    let b = |number| vec![("arg1".to_owned(), Annotated::Int(number))];
    let result = |value| vec![("retval".to_owned(), value)];
    let expected = [
        (true, vec![]),
        (true, a),
        (true, b(7)),
        (false, vec![]),
        (false, result(text("\"done\""))),
        (true, vec![]),
        (false, result(Annotated::Int(1))),
        (true, vec![]),
        (false, result(Annotated::Int(-1))),
        (true, b(8)),
        (false, vec![]),
        (false, vec![]),
    ];
    assert_eq!(found, expected);
}

#[test]
fn firefox_has_a_marker_for_each_call() {
    let sink = Firefox::new(Vec::new(), "prog", 1_000, None);
    let bytes = written(&sample().open(), sink, Firefox::into_inner);
    let profile: Value = serde_json::from_slice(&bytes).expect("JSON");
    let schema = profile["meta"]["markerSchema"].as_array().expect("schemas").iter();
    let schema = schema.clone().find(|schema| schema["name"] == "rftrace values").expect("one of ours");
    assert_eq!(schema["fields"][0]["key"], "call");
    let thread = &profile["threads"][0];
    let column = |name: &str| thread["markers"][name].as_array().expect("a column").iter();
    let names = column("name").map(|idx| &thread["stringArray"][idx.as_u64().expect("a number") as usize]);
    let found: Vec<Value> = names
        .zip(column("data").map(|data| &data["call"]))
        .zip(column("startTime").zip(column("endTime")))
        .map(|((name, call), (start, end))| {
            // Milliseconds.
            let ns = |time: &Value| (time.as_f64().expect("a time") * 1e6).round() as u64;
            json!([name, call, ns(start), ns(end)])
        })
        .collect();
    // In the order of their ends.
    let expected = json!([
        ["b", "b(7)", 1_500, 2_000],
        ["a", format!("a({}) = \"done\"", arguments()), 1_000, 3_000],
        ["c", "c() = 1", 4_000, 5_000],
        ["c", "c() = -1", 6_000, 7_000],
        ["b", "b(8)", 8_000, 9_000],
    ]);
    assert_eq!(Value::from(found), expected);
}

#[test]
fn the_page_shows_them() {
    if !rftrace_tests::require(&["chromium"]) {
        return;
    }
    let dir = sample();
    let html = dir.file("page.html");
    let (code, _, error) = run(&["dump", "--html", utf8(dir.path()), "-o", utf8(&html)]);
    assert_eq!(code, Some(0), "{error}");
    let mut browser = Browser::start();
    browser.open(&format!("file://{}", html.display()));
    let found = browser.value(
        "rftrace.app.trace.tasks[0].lanes.map(lane => [...lane.fn].map((fn, i) => \
         [rftrace.app.trace.functions[fn], ...rftrace.app.trace.valuesOf(lane, i).map(text => text ?? null)]))",
    );
    let first = arguments();
    let expected = json!([
        [["main", null, null]],
        [["a", first, "\"done\""], ["c", null, "1"], ["c", null, "-1"], ["b", "8", null]],
        [["b", "7", null]],
    ]);
    assert_eq!(found, expected);

    // The text for a call, when the mouse is over it, and when it is chosen.
    let place = "(() => { const { timeline } = rftrace.app; const box = timeline.canvas.getBoundingClientRect(); \
                 return [box.left + timeline.x(1100), box.top + AXIS + HEAD + 1.5 * ROW]; })()";
    let at = browser.value(place);
    let at = [0, 1].map(|idx: usize| at[idx].as_f64().expect("a place"));
    browser.mouse("mouseMoved", at, 0, false);
    let lines = browser.value("[...document.getElementById('tooltip').children].map(line => line.textContent)");
    assert_eq!(lines[0], "a");
    assert_eq!((&lines[3], &lines[4]), (&json!(format!("Arguments {first}")), &json!("Result \"done\"")));
    browser.mouse("mousePressed", at, 1, false);
    browser.mouse("mouseReleased", at, 1, false);
    let detail = browser.value("document.getElementById('call').textContent");
    assert!(
        detail.as_str().is_some_and(|text| text.contains(&format!("Arguments {first} · Result \"done\""))),
        "{detail}"
    );
    assert_eq!(browser.value("document.querySelectorAll('img').length + (window.broken ?? 0)"), 0);
    if let Some(picture) = std::env::var_os("RFTRACE_VIEW_PICTURES") {
        browser.mouse("mouseMoved", [at[0] + 1.0, at[1]], 0, false);
        browser.screenshot(&std::path::Path::new(&picture).join("values.png"));
    }
    assert_eq!(browser.complaints, [""; 0]);
}
