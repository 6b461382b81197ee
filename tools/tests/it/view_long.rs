//! `rftrace view` of a trace that is too long for the page: what is seen is asked of the server.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use serde_json::json;

use crate::browser::Browser;
use crate::cli::{rftrace, utf8};
use crate::dir::{A, B, C, Dir, Files, MAIN, entry, exit};
use crate::view::{ROWS, View, report, sample};

/// Has all traces be too long.
const LONG: [&str; 2] = ["--max-calls", "1"];

/// So many short calls are in one that is 1.2 ms long.
const N_SHORT: u64 = 60_000;

/// Calls of `b` and, now and then, of `c`, 10 ns long, 20 ns apart. They begin at 2000.
fn short_calls() -> Dir {
    let mut records = vec![entry(1_000, 0, MAIN), entry(1_500, 1, A)];
    for number in 0..N_SHORT {
        let (start, function) = (2_000 + 20 * number, if number % 10_000 == 4_321 { C } else { B });
        records.extend([entry(start, 2, function), exit(start + 10, 2, function)]);
    }
    let end = 2_000 + 20 * N_SHORT;
    records.extend([exit(end, 1, A), exit(end + 1_000, 0, MAIN)]);
    Files::new(&[(7, &records)]).write()
}

#[test]
fn a_long_trace_shows_what_the_report_does() {
    if !rftrace_tests::require(&["chromium"]) {
        return;
    }
    let dir = sample();
    let view = View::start(dir.path(), &LONG);
    let mut browser = Browser::start();
    browser.open(&view.url);
    assert_eq!(browser.value("rftrace.app.trace instanceof ZoomTrace"), true);
    assert_eq!(browser.value(ROWS), report(&dir.open()));
    assert_eq!(browser.value("rftrace.app.trace.tasks.map(task => task.tid)"), json!([7, 8]));
    // The same as where the page has all calls, in a range and with threads apart.
    let whole = View::start(dir.path(), &[]);
    let mut other = Browser::start();
    other.open(&whole.url);
    let facts = "(() => { const { sums } = rftrace.app; const way = node => (node === 0 ? '' : `${way(sums.parent[node])};${rftrace.app.nodeName(sums.fn[node])}`); \
                 return [rftrace.app.trace.nCalls, sums.total[0], sums.rows.map(row => [rftrace.app.trace.functions[row.fn], row.total, row.self, row.calls]).sort(), \
                 Array.from({ length: sums.length }, (_, node) => [way(node), sums.total[node], sums.self[node], sums.calls[node]]).slice(1).sort()]; })()";
    for range in ["null", "[1500, 7600]", "[2600, 2700]", "[5000, 5001]"] {
        for click in ["", "document.getElementById('by-thread').click();"] {
            let select = format!("{click} rftrace.app.select({range}); rftrace.app.summed");
            browser.value(&select);
            other.value(&select);
            let found = browser.value(facts);
            assert_eq!(found, other.value(facts), "{range} {click}");
            assert!(found[1].as_f64().is_some(), "{found}");
        }
    }
    assert_eq!(browser.complaints, [""; 0]);
    // Where there is nothing it says so.
    let empty = Files::new(&[(7, &[])]).write();
    browser.open(&View::start(empty.path(), &["--max-calls", "0"]).url);
    assert_eq!(browser.value("rftrace.app.trace.nCalls"), 0);
}

#[test]
fn a_user_zooms_to_single_calls() {
    if !rftrace_tests::require(&["chromium"]) {
        return;
    }
    let dir = short_calls();
    let view = View::start(dir.path(), &["--max-calls", "1000"]);
    let mut browser = Browser::start();
    browser.open(&view.url);
    let lane = "(rftrace.app.trace.row(0, 2).lane)";
    let n_calls = format!("{lane}.n.reduce((sum, n) => sum + n, 0)");
    assert_eq!(browser.value(&n_calls), N_SHORT as f64);
    let n_blocks = browser.value(&format!("{lane}.length")).as_u64().expect("a number");
    assert!((100..20_000).contains(&n_blocks), "{n_blocks}");

    // The block under the pointer is told, and the call around it.
    let place = |browser: &mut Browser, depth: u32| {
        let place = browser.value(&format!(
            "(() => {{ const {{ timeline }} = rftrace.app; const box = timeline.canvas.getBoundingClientRect(); \
             return [box.left + box.width / 2, box.top + timeline.tops[0] + HEAD + {depth} * ROW + ROW / 2]; }})()"
        ));
        [place[0].as_f64().expect("x"), place[1].as_f64().expect("y")]
    };
    let tip = "[...document.getElementById('tooltip').children].map(line => line.textContent)";
    let at = place(&mut browser, 2);
    browser.mouse("mouseMoved", at, 0, false);
    let told = browser.value(tip);
    assert!(told[0].as_str().is_some_and(|text| text.ends_with(" short calls")), "{told}");
    assert_eq!(told[1], "most of their time in b");
    let at = place(&mut browser, 1);
    browser.mouse("mouseMoved", at, 0, false);
    let told = browser.value(tip);
    assert_eq!((&told[0], &told[1]), (&json!("a"), &json!("Total 1.200 ms (1,200,500 ns)")));
    // The calls below take half of what is between the first and the last one.
    assert_eq!(told[2], "Self 600.500 us");

    // Nearer and nearer, until each call is by itself, with its times.
    let is_exact = "rftrace.app.trace.shows(rftrace.app.trace.picture(0, 2), rftrace.app.trace.view) && !rftrace.app.trace.isAsking";
    for (from, to) in [(200_000, 800_000), (400_000, 440_000), (500_000, 500_400)] {
        let begun = browser.value("rftrace.app.timeline.frames").as_u64().expect("a number");
        browser.value(&format!("rftrace.app.timeline.view({from}, {to})"));
        browser.wait(&format!("rftrace.app.timeline.frames > {begun} && {is_exact}"));
        let seen = browser.value(&format!(
            "Array.from({lane}.start, (start, i) => [start, {lane}.end[i], {lane}.n[i], {lane}.call[i]]).filter(([start]) => start >= {from} && start < {to})"
        ));
        let calls = seen.as_array().expect("blocks");
        let n_seen: f64 = calls.iter().filter_map(|call| call[2].as_f64()).sum();
        assert!((n_seen - f64::from(to - from) / 20.0).abs() < 60.0, "{n_seen}");
        if to - from == 400 {
            // Times count from the first record.
            let call = |number: u64| json!([1_000 + 20 * number, 1_010 + 20 * number, 1, number]);
            assert_eq!(seen, json!((24_950..24_970).map(call).collect::<Vec<_>>()));
        }
    }
    let at = place(&mut browser, 2);
    browser.mouse("mouseMoved", [at[0] + 5.0, at[1]], 0, false);
    assert_eq!(browser.value(tip)[1], "Total 0.010 us");

    // A search, and its hits one by one; where they are is drawn, too.
    browser.key("/");
    for letter in ["/", "^", "c", "$", "/"] {
        browser.key(letter);
    }
    let pinned = "((({ task, depth, i, lane, start, end }) => [task, depth, lane.call[i], start, end])(rftrace.app.timeline.pinned ?? { lane: { call: [] } }))";
    let hit = |number: u64| json!([0, 2, number, 1_000 + 20 * number, 1_010 + 20 * number]);
    for number in [4_321, 14_321, 24_321] {
        browser.key("Enter");
        browser.wait(&format!("JSON.stringify({pinned}) === '{}'", hit(number)));
    }
    let told = browser.value("document.getElementById('call').textContent");
    assert!(told.as_str().is_some_and(|text| text.contains("c · Total 0.010 us · Self 0.010 us")), "{told}");
    browser.value("document.getElementById('previous').click()");
    browser.wait(&format!("JSON.stringify({pinned}) === '{}'", hit(14_321)));
    assert_eq!(browser.value("document.getElementById('hits').textContent"), "6 calls of 1 functions");
    browser.value("rftrace.app.timeline.reset()");
    browser.wait(&format!("{is_exact} && rftrace.app.trace.row(0, 2).found?.lane.length === 6"));
    browser.key("Escape");

    // A range: right to the nanosecond.
    browser.value("rftrace.app.select([101005, 201000]); rftrace.app.summed");
    let row = |name: &str| {
        format!(
            "(({{ total, self, calls }}) => [total, self, calls])(rftrace.app.sums.rows.find(row => rftrace.app.trace.functions[row.fn] === '{name}'))"
        )
    };
    assert_eq!(browser.value(&row("a")), json!([99_995, 50_000, 1]));
    assert_eq!(browser.value(&row("b")), json!([49_995, 49_995, 5_000]));
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
fn what_the_page_asks_is_for_who_has_the_token() {
    let dir = sample();
    let view = View::start(dir.path(), &LONG);
    let (host, path) = view.parts();
    let question = |length: usize| format!("{host}\r\nContent-Length: {length}");
    for (method, path, host, expected) in [
        ("GET", path, host, 200),
        ("GET", &format!("{path}data"), host, 200),
        ("POST", &format!("{path}sums"), &question(0), 400),
        ("POST", &format!("{path}other"), &question(0), 404),
        ("POST", path, &question(0), 404),
        ("GET", &format!("{path}sums"), host, 404),
        ("POST", "/sums", &question(0), 403),
        ("POST", &format!("{path}sums"), "evil.example", 403),
        ("PUT", &format!("{path}sums"), &question(0), 405),
    ] {
        let answer = view.ask(method, path, host);
        let status = answer.split(' ').nth(1).and_then(|code| code.parse::<u16>().ok());
        assert_eq!(status, Some(expected), "{method} {path}: {answer}");
    }
}

/// The index is made once, and again when the trace is another one.
#[test]
fn the_index_is_kept() {
    const LINE: &str = "reading the whole trace, for an index";

    let mut records = vec![entry(1_000, 0, MAIN)];
    for number in 0..540_000 {
        records.extend([entry(2_000 + 20 * number, 1, B), exit(2_010 + 20 * number, 1, B)]);
    }
    let dir = Files::new(&[(7, &records)]).write();
    let run = || {
        let mut command = rftrace(&["view", "--no-open", "--max-calls", "1000", utf8(dir.path())]);
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut url = String::new();
        BufReader::new(process.stdout.take().expect("a pipe")).read_line(&mut url).expect("the address");
        process.kill().expect("it still runs");
        process.wait().expect("it has ended");
        let mut said = String::new();
        process.stderr.take().expect("a pipe").read_to_string(&mut said).expect("what it says");
        assert!(url.starts_with("http://127.0.0.1:"), "{url}{said}");
        said.contains(LINE)
    };
    let index = dir.path().join("index-page");
    assert!(run());
    let length = fs::metadata(&index).expect("an index").len();
    assert!((540_000..6 * 540_000).contains(&length), "{length}");
    assert!(!run());
    // Another trace.
    let dat = dir.path().join("7.dat");
    let mut bytes = fs::read(&dat).expect("records");
    bytes.extend(exit(20_000_000, 0, MAIN));
    fs::write(&dat, bytes).expect("written");
    assert!(run());
    assert!(!run());
    // A damaged one.
    let whole = fs::read(&index).expect("an index");
    fs::write(&index, &whole[..whole.len() - 1]).expect("written");
    assert!(run());
    assert_eq!(fs::read(&index).expect("an index"), whole);
}

/// How long pictures of random ranges take, from the question to what is drawn, and sums: of the trace that an optimised `rftrace view` serves at
/// the address in RFTRACE_VIEW_TRACE. `view::measure` has the first picture and frames.
#[test]
#[ignore = "it measures a trace that is named by RFTRACE_VIEW_TRACE"]
fn measure() {
    let mut browser = Browser::start();
    browser.open(&std::env::var("RFTRACE_VIEW_TRACE").expect("the variable RFTRACE_VIEW_TRACE"));
    let pictures = browser.value(
        "(async () => { const { trace, timeline } = rftrace.app; const whole = trace.end - trace.begin; const found = {}; \
         const answers = []; const ask = trace.ask.bind(trace); \
         trace.ask = async (name, question) => { const begun = performance.now(); const answer = await ask(name, question); \
         if (name === 'picture') answers.push(performance.now() - begun); return answer; }; \
         for (const part of [1, 0.3, 0.1, 0.03, 0.01, 1e-3, 1e-4, 1e-5]) { const times = []; answers.length = 0; \
         for (let n = 0; n < 10; n++) { trace.pictures.length = 1; trace.look = ZoomTrace.prototype.look; \
         const from = trace.begin + whole * (1 - part) * n / 9; const begun = performance.now(); if (part === 1) trace.pictures.length = 0; \
         timeline.view(from, from + whole * part); \
         do await new Promise(done => requestAnimationFrame(done)); \
         while (trace.isAsking || !trace.shows(trace.picture(0, 0), trace.view)); times.push(performance.now() - begun); } \
         const sorted = list => [...list].sort((a, b) => a - b).map(Math.round); \
         found[part] = { answers: sorted(answers), shown: sorted(times) }; } return found; })()",
    );
    eprintln!("{pictures}");
    for part in [1.0, 0.5, 0.1, 0.01] {
        let sums = browser.value(&format!(
            "(async () => {{ const {{ trace }} = rftrace.app; const whole = trace.end - trace.begin; const begun = performance.now(); \
             await trace.sums(trace.begin + ({part} < 1 ? 1 : 0), Math.round(trace.begin + whole * {part}), false, () => false); return performance.now() - begun; }})()"
        ));
        eprintln!("sums of {part}: {sums} ms");
    }
}
