//! `rftrace view` and `rftrace dump --html`: the page in a browser.

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rftrace_read::Trace;
use rftrace_tests::{CProgram, golden};
use rftrace_views::Report;
use serde_json::{Value, json};

use crate::browser::Browser;
use crate::cli::{rftrace, run, utf8};
use crate::dir::{A, B, C, Dir, Files, MAIN, RUST, entry, event, exit};

/// A function with a name that is no HTML, if it is taken for what it is.
const HOSTILE: &str = "</script><img src=x onerror=\"window.broken=1\"><b>&amp;";

/// Context switches, as uftrace writes them among the records.
const OUT: u64 = 200_002;
const IN: u64 = 200_001;

/// Two threads: nested, recursive, and waiting calls; one without an exit; calls that take no time.
pub(crate) fn sample() -> Dir {
    let first = [
        entry(1_000, 0, MAIN),
        entry(2_000, 1, A),
        entry(2_500, 2, A),
        exit(3_500, 2, A),
        exit(5_000, 1, A),
        entry(5_000, 1, C),
        exit(5_000, 1, C),
        entry(6_000, 1, B),
        event(6_200, 0, OUT),
        event(8_200, 0, IN),
        exit(9_000, 1, B),
        entry(9_500, 1, RUST),
        exit(10_001_000, 1, RUST),
        exit(10_002_003, 0, MAIN),
    ];
    let second = [
        exit(4_000, 1, B),
        entry(4_100, 1, A),
        entry(4_200, 2, C),
        exit(7_000, 0, MAIN),
        entry(7_500, 0, B),
        exit(7_500, 0, B),
        entry(8_000, 0, C),
    ];
    let mut files = Files::new(&[(7, &first), (8, &second)]);
    let symbols = files.0.get_mut("prog.sym").expect("symbols");
    let text = String::from_utf8(symbols.clone()).expect("text").replace(" T b\n", &format!(" T {HOSTILE}\n"));
    *symbols = text.into();
    files.write()
}

/// A server that ends with this.
pub(crate) struct View {
    process: Child,
    pub(crate) url: String,
}

impl View {
    pub(crate) fn start(dir: &Path, more: &[&str]) -> Self {
        let mut command = rftrace(&["view", "--no-open", utf8(dir)]);
        let mut process = command.args(more).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
        let mut url = String::new();
        BufReader::new(process.stdout.take().expect("a pipe")).read_line(&mut url).expect("the address");
        Self { process, url: url.trim().to_owned() }
    }

    /// The address behind the scheme: host with port, and path.
    pub(crate) fn parts(&self) -> (&str, &str) {
        let rest = self.url.strip_prefix("http://").expect("an address");
        rest.split_at(rest.find('/').expect("a path"))
    }

    /// The answer to a request that is written by hand.
    pub(crate) fn ask(&self, method: &str, path: &str, host: &str) -> String {
        String::from_utf8_lossy(&self.answer(method, path, host)).into_owned()
    }

    /// The body of an answer.
    fn body(&self, path: &str, host: &str) -> Vec<u8> {
        let answer = self.answer("GET", path, host);
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("headers");
        answer[end + 4..].to_vec()
    }

    fn answer(&self, method: &str, path: &str, host: &str) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.parts().0).expect("a connection");
        let request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it is taken");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        answer
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.process.kill().expect("it still runs");
        self.process.wait().expect("it has ended");
    }
}

#[test]
fn only_who_has_the_token_is_answered() {
    let dir = sample();
    let view = View::start(dir.path(), &[]);
    let (host, path) = view.parts();
    let (_, port) = host.split_once(':').expect("a port");
    let token = path.trim_matches('/');
    assert_eq!((host.split(':').next(), token.len()), (Some("127.0.0.1"), 32));
    let status = |method, path: &str, host| {
        let answer = view.ask(method, path, host);
        answer.split(' ').nth(1).and_then(|code| code.parse::<u16>().ok()).expect("a status")
    };
    let data = format!("{path}data");
    for (method, path, host, expected) in [
        ("GET", path, host, 200),
        ("GET", &data, host, 200),
        ("GET", &format!("{path}?from=1&to=x%00"), host, 200),
        ("GET", path, &format!("localhost:{port}"), 200),
        ("GET", path, "evil.example", 403),
        ("GET", path, &format!("evil.example:{port}"), 403),
        ("GET", path, "", 403),
        ("GET", "/", host, 403),
        ("GET", "/data", host, 403),
        ("GET", &format!("/{token}"), host, 403),
        ("GET", &format!("/{}/data", "0".repeat(32)), host, 403),
        ("GET", &format!("/{}/data", &token[..31]), host, 403),
        ("GET", &format!("{path}other"), host, 404),
        ("GET", &format!("{path}../data"), host, 404),
        ("POST", path, host, 405),
    ] {
        assert_eq!(status(method, path, host), expected, "{method} {path} of {host}");
    }
    let page = view.ask("GET", path, host);
    for header in
        ["Content-Security-Policy: default-src 'none'", "Referrer-Policy: no-referrer", "Cache-Control: no-store"]
    {
        assert!(page.contains(header), "{header}: {page}");
    }
    assert!(!page.contains("http://") && !page.contains("https://"), "it asks for nothing from elsewhere");
    assert!(view.ask("HEAD", &data, host).ends_with("\r\n\r\n"));
}

/// A number of a process' status, by the system.
fn status_of(view: &View, key: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", view.process.id())).expect("it still runs");
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).expect(key);
    line.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
}

/// Checks that a good request has its answer.
#[track_caller]
fn assert_served(view: &View, after: &str) {
    let (host, path) = view.parts();
    assert!(view.ask("GET", path, host).starts_with("HTTP/1.1 200 "), "after {after}");
}

/// A connection that does not wait for ever.
fn connect(host: &str) -> TcpStream {
    let stream = TcpStream::connect(host).expect("a connection");
    stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).expect("it is kept");
    stream
}

/// True if the server has closed the connection.
fn is_closed(read: std::io::Result<usize>) -> bool {
    read.map_or_else(|error| error.kind() != std::io::ErrorKind::WouldBlock, |_| true)
}

/// Whatever a peer without the token announces or sends, it takes no memory and ends nothing.
#[test]
fn what_a_stranger_sends_costs_little() {
    let dir = sample();
    for more in [&[][..], &["--max-calls", "1"]] {
        let view = View::start(dir.path(), more);
        let (host, _) = view.parts();
        assert_served(&view, "the start");
        let before = status_of(&view, "VmHWM");
        let mut attacks: Vec<Vec<u8>> =
            ["1025", "10000000000", "9223372036854775807", "18446744073709551615", "99999999999999999999"]
                .iter()
                .map(|length| {
                    format!("POST /x HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n").into_bytes()
                })
                .collect();
        attacks.push(
            format!("POST /x HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\nabc")
                .into(),
        );
        attacks.push([&b"GET / HTTP/1.1\r\nX: "[..], &vec![b'a'; 32 << 20]].concat());
        attacks.push([&b"GET / HTTP/1.1\r\n"[..], &b"X-a: b\r\n".repeat(1 << 20)].concat());
        attacks.push([&b"GET /"[..], &vec![b'a'; 32 << 20]].concat());
        for attack in attacks {
            let what = String::from_utf8_lossy(&attack[..attack.len().min(80)]).into_owned();
            let mut stream = connect(host);
            // It is refused amid what it sends.
            let _ = stream.write_all(&attack);
            let mut answer = Vec::new();
            assert!(is_closed(stream.read_to_end(&mut answer)), "{what}");
            let answer = String::from_utf8_lossy(&answer);
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{what}: {answer}");
            assert_served(&view, &what);
        }
        let peak = status_of(&view, "VmHWM");
        assert!(peak < before + (4 << 10), "{peak} KiB for {before}");
    }
}

/// Those that send nothing, or half a request, are bounded, and nobody waits for them.
#[test]
fn silent_connections_keep_nobody_out() {
    let dir = sample();
    let view = View::start(dir.path(), &[]);
    let (host, path) = view.parts();
    assert_served(&view, "the start");
    let before = status_of(&view, "VmRSS");
    let mut known = TcpStream::connect(host).expect("a connection");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    known.write_all(request.as_bytes()).expect("it is taken");
    assert!(known.read(&mut [0; 100]).expect("an answer") > 0);
    let connections: Vec<TcpStream> = (0..200)
        .map(|number| {
            let mut stream = connect(host);
            // A connection that has given way already takes nothing.
            let _ = stream.write_all([&b""[..], b"GET /", b"GET / HTTP/1.1\r\nX: "][number % 3]);
            stream
        })
        .collect();
    assert_served(&view, "200 of them");
    // The oldest have given way, but not the one with the token.
    for mut stream in connections.iter().take(200 - 64) {
        assert!(is_closed(stream.read(&mut [0; 100])));
    }
    known.write_all(request.as_bytes()).expect("it is still there");
    assert!(known.read(&mut [0; 100]).expect("an answer") > 0);
    let (threads, memory) = (status_of(&view, "Threads"), status_of(&view, "VmRSS"));
    assert!(threads <= 8 && memory < before + (4 << 10), "{threads} threads, {memory} KiB for {before}");
}

/// Others see the words that a program is started with: so the address is in a file of this user.
#[test]
fn the_browser_is_told_the_address_by_a_file() {
    let dir = sample();
    let folder = tempfile::tempdir().expect("a directory");
    let file = |name: &str| folder.path().join(name);
    std::fs::create_dir(file("runtime")).expect("a directory");
    let script = "#!/bin/sh\nfor file; do stat -c '%a %n' \"$file\" \"${file%/*}\"; cat \"$file\"; done >told.part\nmv told.part told\n";
    std::fs::write(file("xdg-open"), script).expect("it is written");
    std::fs::set_permissions(file("xdg-open"), std::fs::Permissions::from_mode(0o755)).expect("it runs");
    let path = format!("{}:/bin:/usr/bin", utf8(folder.path()));
    for is_loaded in [true, false] {
        let _ = std::fs::remove_file(file("told"));
        let mut command = rftrace(&["view", utf8(dir.path())]);
        command.env("PATH", &path).env("XDG_RUNTIME_DIR", file("runtime")).current_dir(&folder);
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
        let mut url = String::new();
        BufReader::new(process.stdout.take().expect("a pipe")).read_line(&mut url).expect("the address");
        let mut view = View { process, url: url.trim().to_owned() };
        let n_left = || std::fs::read_dir(file("runtime")).expect("it is there").count();
        wait_until("the browser starts", || file("told").exists());
        let told = std::fs::read_to_string(file("told")).expect("what it was given");
        let lines: Vec<&str> = told.lines().collect();
        assert!(lines[0].starts_with(&format!("600 {}", utf8(&file("runtime")))), "{told}");
        assert!(lines[1].starts_with("700 ") && told.contains(&format!("0; url={}\"", view.url)), "{told}");
        assert_eq!(n_left(), 1);
        if is_loaded {
            assert_served(&view, "a look at the file");
            wait_until("the file is gone", || n_left() == 0);
        } else {
            let ended = Command::new("kill").args(["-TERM", &view.process.id().to_string()]).status().expect("kill");
            assert!(ended.success());
            assert_eq!(view.process.wait().expect("it ends").signal(), Some(15));
            assert_eq!(n_left(), 0);
        }
    }
}

/// Waits for a condition, no longer than anything takes on a loaded machine.
#[track_caller]
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let since = std::time::Instant::now();
    while !is_so() {
        assert!(since.elapsed() < std::time::Duration::from_secs(60), "{what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Pages of one site may read the trace, and nobody else's.
#[test]
fn sites_of_others_read_the_trace_from_here() {
    let dir = sample();
    for (option, port, site, name) in [
        ("--firefox", "0", "https://profiler.firefox.com", "profile.json"),
        ("--perfetto", "9001", "https://ui.perfetto.dev", "trace.pftrace"),
    ] {
        if port != "0" && TcpListener::bind(format!("127.0.0.1:{port}")).is_err() {
            eprintln!("{option}: skipped, port {port} is taken");
            continue;
        }
        let mut view = View::start(dir.path(), &[option, "--port", port]);
        let shown = view.url.replace("%3A", ":").replace("%2F", "/");
        assert!(shown.starts_with(site) && shown.ends_with(name), "{shown}");
        view.url = shown[shown.find("http://").expect("where the trace is")..].to_owned();
        let (host, path) = view.parts();
        let with_origin = |origin: &str| format!("{host}\r\nOrigin: {origin}");
        let answer = view.ask("GET", path, &with_origin(site));
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(answer.contains(&format!("Access-Control-Allow-Origin: {site}\r\n")), "{answer}");
        let other = view.ask("GET", path, &with_origin("https://evil.example"));
        assert!(other.starts_with("HTTP/1.1 403 "), "{other}");
        let asked = view.ask("OPTIONS", path, &with_origin(site));
        assert!(
            asked.starts_with("HTTP/1.1 204 ") && asked.contains("Access-Control-Allow-Private-Network: true"),
            "{asked}"
        );
        assert!(view.ask("GET", "/data", &with_origin(site)).starts_with("HTTP/1.1 403 "));
        // The same as what is written to a file.
        let file = dir.path().join(name);
        assert_eq!(run(&["dump", option, utf8(dir.path()), "-o", utf8(&file)]).0, Some(0));
        assert_eq!(view.body(path, host), std::fs::read(file).expect("a file"), "{option}");
    }
}

/// A number of the page's data.
fn number(bytes: &mut impl Iterator<Item = u8>) -> Option<u64> {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = bytes.next()?;
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            return Some(value);
        }
    }
}

/// The functions of a page's data, as [`report`] has them.
fn rows_of(data: &[u8]) -> Value {
    let rest = data.strip_prefix(b"rfpage1\n").expect("data of a page");
    let (length, rest) = rest.split_first_chunk().expect("a length");
    let (json, mut events) = rest.split_at(u32::from_le_bytes(*length) as usize);
    let head: Value = serde_json::from_slice(json).expect("JSON");
    let functions = head["functions"].as_array().expect("names");
    let mut rows = vec![(0, 0, 0); functions.len()];
    for task in head["tasks"].as_array().expect("tasks") {
        let length = |key: &str| task[key].as_u64().expect("a length") as usize;
        let (own, others) = events.split_at(length("bytes"));
        events = &others[length("values")..];
        let mut bytes = own.iter().copied();
        let mut open: Vec<(usize, u64, u64)> = Vec::new();
        let mut now = 0;
        let mut depths = Vec::new();
        while let Some(id) = number(&mut bytes) {
            now += number(&mut bytes).expect("a time");
            if let Some(function) = id.checked_sub(1) {
                depths.resize(depths.len().max(open.len() + 1), 0);
                depths[open.len()] += 1;
                open.push((function as usize, now, 0));
                continue;
            }
            let (function, start, within) = open.pop().expect("it was entered");
            if let Some(caller) = open.last_mut() {
                caller.2 += now - start;
            }
            let row = &mut rows[function];
            if open.iter().all(|(other, ..)| *other != function) {
                row.0 += now - start;
            }
            row.1 += now - start - within;
            row.2 += 1;
        }
        assert!(open.is_empty());
        assert_eq!(task["depths"], json!(depths));
    }
    assert!(events.is_empty());
    let rows = functions
        .iter()
        .zip(rows)
        .map(|(name, (total, own, calls))| (name.as_str().expect("a text"), total, own, calls));
    sorted(rows.filter(|row| row.0 != "(unknown)").collect())
}

fn sorted(mut rows: Vec<(&str, u64, u64, u64)>) -> Value {
    rows.sort_by(|a, b| a.0.encode_utf16().cmp(b.0.encode_utf16()));
    json!(rows)
}

#[test]
fn data_are_what_the_report_has() {
    let data = |dir: &Path| {
        let view = View::start(dir, &[]);
        let (host, path) = view.parts();
        view.body(&format!("{path}data"), host)
    };
    let rows = rows_of(&data(sample().path()));
    assert_eq!(rows, report(&sample().open()));
    assert!(rows.as_array().is_some_and(|rows| rows.contains(&json!(["linux:schedule", 2_000, 2_000, 1]))), "{rows}");
    let preempted = golden::copy("preempted");
    let rows = rows_of(&data(preempted.path()));
    assert_eq!(rows, report(&Trace::open(preempted.path()).expect("a trace")));
    assert_eq!(rows.as_array().map(Vec::len), Some(4), "{rows}");
    // Exits that are missing, exits of nothing, calls without time, functions without names.
    let mut random = 1_u64;
    for round in 0..12 {
        let (mut records, mut open, mut time) = (Vec::new(), Vec::new(), 1_000);
        for _ in 0..200 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let pick = (random >> 33) as usize;
            time += (pick as u64 >> 8) % 5;
            let function = [MAIN, A, B, C, RUST, crate::dir::NAMELESS][pick % 6];
            if open.is_empty() || pick & 0x40 == 0 {
                records.push(entry(time, open.len() as u64, function));
                open.push(function);
            } else if pick & 0x3000 == 0 && round % 2 == 0 {
                records.push(exit(time, 0, function));
                if let Some(at) = open.iter().rposition(|&other| other == function) {
                    open.truncate(at);
                }
            } else if let Some(function) = open.pop() {
                records.push(exit(time, open.len() as u64, function));
            }
        }
        // Some begin within calls.
        let dir = crate::dir::trace(&records[round * 5..]);
        assert_eq!(rows_of(&data(dir.path())), report(&dir.open()), "round {round}");
    }
}

#[test]
fn a_port_that_is_taken_is_an_error() {
    let dir = sample();
    let view = View::start(dir.path(), &[]);
    let (_, port) = view.parts().0.split_once(':').expect("a port");
    let (code, _, error) = run(&["view", "--no-open", "--port", port, utf8(dir.path())]);
    assert_eq!(code, Some(1));
    assert!(error.contains("cannot serve the page: "), "{error}");
}

/// The rows of the page's functions: name, total, own time, calls.
pub(crate) const ROWS: &str = "(() => { const { app } = window.rftrace; return app.functions.sorted().filter(row => row.name !== '(unknown)').map(row => \
                    [row.name, row.total, row.self, row.calls]).sort(); })()";

/// The same of a report.
pub(crate) fn report(trace: &Trace) -> Value {
    let report = Report::read(trace).expect("a report");
    sorted(report.rows().iter().map(|row| (row.name.as_str(), row.total_ns, row.self_ns, row.calls)).collect())
}

#[test]
fn the_page_shows_what_the_report_does() {
    if !rftrace_tests::require(&["chromium"]) {
        return;
    }
    let dir = sample();
    let html = dir.file("page.html");
    let (code, _, error) = run(&["dump", "--html", utf8(dir.path()), "-o", utf8(&html)]);
    assert_eq!(code, Some(0), "{error}");
    let view = View::start(dir.path(), &[]);
    let mut browser = Browser::start();
    for url in [view.url.clone(), format!("file://{}", html.display())] {
        browser.open(&url);
        assert_eq!(browser.value(ROWS), report(&dir.open()), "{url}");
        assert_eq!(browser.value("document.title"), "prog – rftrace");
        assert_eq!(browser.value("rftrace.app.trace.tasks.map(task => task.tid)"), json!([7, 8]));
    }
    // A range, as the choice of a range has it.
    browser.value("rftrace.app.select([1500, 7600]); rftrace.app.summed");
    let mut trace = dir.open();
    let mut choice = rftrace_read::Choice::default();
    let start_ns = trace.start_ns().expect("it is read").expect("there is one");
    choice.times = start_ns + 1500..start_ns + 7600;
    trace.choose(choice);
    let times = |rows: &Value| -> Vec<Value> {
        let rows = rows.as_array().expect("rows").iter();
        rows.filter(|row| row[1] != 0).map(|row| json!([row[0], row[1]])).collect()
    };
    assert_eq!(times(&browser.value(ROWS)), times(&report(&trace)));

    // Where there is nothing it says so; what was lost is told of, as text.
    for (records, calls, notes) in [(&[][..], 0, 0), (&[entry(5, 0, MAIN), event(6, 1, crate::dir::MARK)][..], 1, 1)] {
        let mut files = Files::new(&[(7, records)]);
        files.0.insert("events.txt".into(), format!("EVENT: {} rftrace:lost_3_calls\n", crate::dir::MARK).into());
        let dir = files.write();
        let other = View::start(dir.path(), &[]);
        browser.open(&other.url);
        assert_eq!(browser.value("rftrace.app.trace.nCalls"), calls);
        assert_eq!(browser.value("document.querySelectorAll('#notes li').length"), notes);
    }
    browser.open(&view.url);

    // Threads apart: a row around each.
    browser.value("rftrace.app.select(null); document.getElementById('by-thread').click(); rftrace.app.summed");
    let tops = "rftrace.app.sums.childrenOf(0).map(node => rftrace.app.nodeName(rftrace.app.sums.fn[node]))";
    assert_eq!(browser.value(tops).as_array().map(Vec::len), Some(2));
    assert_eq!(browser.value(ROWS), report(&dir.open()));
    // Waits are no calls, and no part of 100 %.
    let whole = Report::read(&dir.open()).expect("a report");
    let n_calls: u64 = whole.rows().iter().filter(|row| row.is_function()).map(|row| row.calls).sum();
    assert_eq!(browser.value("rftrace.app.trace.nCalls"), n_calls);
    let shares = "rftrace.app.functions.rows.reduce((sum, row) => sum + row.percent, 0).toFixed(3)";
    assert_eq!(browser.value(shares), "100.000");

    // Names are text, wherever they are shown.
    browser.value("rftrace.app.find('onerror'); document.querySelectorAll('[role=tab]').forEach(tab => tab.click())");
    assert_eq!(browser.value("document.querySelectorAll('img, b b').length + (window.broken ?? 0)"), 0);
    assert!(
        browser
            .value("document.getElementById('functions').textContent")
            .as_str()
            .is_some_and(|text| text.contains(HOSTILE))
    );
    assert_eq!(browser.complaints, [""; 0]);
}

/// The colours of a function, of waiting and of pre-empted time: of the page's light form and of the dark one.
#[test]
fn waiting_and_preempted_time_differ_in_colour() {
    const NAMES: [&str; 3] = ["main", "linux:schedule", "linux:schedule (pre-empted)"];
    if !rftrace_tests::require(&["chromium"]) {
        return;
    }
    let dir = golden::copy("preempted");
    let view = View::start(dir.path(), &[]);
    let mut browser = Browser::start();
    browser.open(&view.url);
    for (is_dark, theme) in [(false, "light"), (true, "dark")] {
        browser.dark(is_dark);
        browser.wait(&format!("document.documentElement.dataset.theme === '{theme}'"));
        let colours = browser.value(&format!(
            "{}.map(name => rftrace.app.colours.fill(rftrace.app.trace.functions.indexOf(name)))",
            json!(NAMES)
        ));
        let [main, waiting, preempted] = [0, 1, 2].map(|place| colours[place].as_str().expect("a colour").to_owned());
        assert!(main != waiting && waiting != preempted && preempted != main, "{theme}: {colours}");
        assert_eq!(browser.value("rftrace.app.colours.muted"), json!(waiting), "{theme}");
    }
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
fn a_user_finds_and_measures_a_call() {
    if !rftrace_tests::require(&["chromium"]) {
        return;
    }
    let dir = sample();
    let view = View::start(dir.path(), &[]);
    let mut browser = Browser::start();
    browser.open(&view.url);
    let span = "rftrace.app.timeline.to - rftrace.app.timeline.from";
    let whole = browser.value(span).as_f64().expect("a span");

    // The call under the pointer is told.
    let place = browser.value(
        "(() => { const { timeline } = rftrace.app; const box = timeline.canvas.getBoundingClientRect(); \
         return [box.left + box.width / 2, box.top + timeline.tops[0] + HEAD + ROW / 2]; })()",
    );
    let place = [place[0].as_f64().expect("x"), place[1].as_f64().expect("y")];
    browser.mouse("mouseMoved", place, 0, false);
    let tip = browser.value("[...document.getElementById('tooltip').children].map(line => line.textContent)");
    assert_eq!(tip[0], "main");
    assert_eq!(tip[1], "Total 10.001 ms (10,001,003 ns)");

    // The wheel zooms about the pointer; keys zoom, move and show all again.
    let under = "rftrace.app.timeline.time(rftrace.app.timeline.width / 2)";
    let before = browser.value(under).as_f64().expect("a time");
    browser.wheel(place, -300.0);
    browser.wait(&format!("{span} < {whole} * 0.6"));
    let after = browser.value(under).as_f64().expect("a time");
    assert!((before - after).abs() < whole / 1000.0, "{before} {after}");
    browser.mouse("mousePressed", place, 1, false);
    browser.mouse("mouseReleased", place, 1, false);
    browser.key("w");
    browser.wait(&format!("{span} < {whole} * 0.45"));
    browser.key("0");
    browser.wait(&format!("{span} === {whole}"));

    // A search, and its hits one by one, in order of time.
    browser.key("/");
    for letter in ["/", "^", "c", "$", "/"] {
        browser.key(letter);
    }
    browser.key("Enter");
    let pinned = "(({ task, depth, i }) => [task, depth, i])(rftrace.app.timeline.pinned)";
    assert_eq!(browser.value(pinned), json!([1, 2, 0]));
    let told = browser.value("document.getElementById('call').textContent");
    assert!(told.as_str().is_some_and(|text| text.contains("c · Total 2.800 us · Self 2.800 us")), "{told}");
    browser.key("Enter");
    assert_eq!(browser.value(pinned), json!([0, 1, 1]));
    browser.value("document.getElementById('previous').click()");
    assert_eq!(browser.value(pinned), json!([1, 2, 0]));
    browser.key("Escape");
    assert_eq!(browser.value("rftrace.app.matched"), Value::Null);

    // Shift and drag selects.
    browser.key("0");
    browser.drag([200.0, place[1]], [600.0, place[1]], true);
    let range = browser.value("rftrace.app.range");
    let width = range[1].as_f64().zip(range[0].as_f64()).map_or(0.0, |(to, from)| to - from);
    let share = browser.value("400 / rftrace.app.timeline.width").as_f64().expect("a share");
    assert!((width / whole - share).abs() < 0.01, "{range}");
    browser.value("rftrace.app.summed");
    assert_eq!(
        browser.value("rftrace.app.sums.rows.find(row => rftrace.app.trace.functions[row.fn] === 'main').total"),
        width
    );

    // Light or dark as the system has it, or as is chosen.
    let theme = "document.documentElement.dataset.theme";
    for (is_dark, name, other) in [(true, "dark", "light"), (false, "light", "dark")] {
        browser.dark(is_dark);
        browser.wait(&format!("{theme} === '{name}'"));
        browser.value("document.getElementById('theme').click()");
        assert_eq!(browser.value(theme), other);
        // Back again, so that what is waited for next is the system's doing.
        browser.value("document.getElementById('theme').click()");
        assert_eq!(browser.value(theme), name);
    }

    // Tabs by keys.
    browser.value("document.getElementById('tab-flame').focus()");
    browser.key("ArrowRight");
    assert_eq!(browser.value("document.activeElement.id"), "tab-tree");
    assert_eq!(browser.value("document.getElementById('panel-tree').hidden"), false);
    assert_eq!(browser.complaints, [""; 0]);
}

/// Labels are short; tooltips and searches have the full names.
#[test]
fn long_names_are_short_but_for_tooltips() {
    const FULL: &str = "<core::iter::adapters::map::Map<alloc::vec::into_iter::IntoIter<u8>, app::parse::{closure#0}> as \
                        core::iter::traits::iterator::Iterator>::fold::<u64, app::sum>";

    if !rftrace_tests::require(&["chromium"]) {
        return;
    }
    let dir = rftrace_tests::golden::copy("long");
    let mut browser = Browser::start();
    let short = "<Map<IntoIter<u8>, parse::{closure#0}> as Iterator>::fold::<u64, sum>";
    let narrow = ["<Map<…> as Iterato…::fold::<…>", "<Ma…::fold::<…>"];
    for (more, widest) in [(&[][..], short), (&["--full-names"], FULL), (&["--max-calls", "1"], short)] {
        let view = View::start(dir.path(), more);
        browser.open(&view.url);
        let function = format!("rftrace.app.trace.functions.indexOf('{FULL}')");
        let labels = browser.value(&format!("rftrace.app.trace.labels[{function}]"));
        assert_eq!(labels, json!([widest, narrow[0], narrow[1]]));
        let place = browser.value(
            "(() => { const { timeline } = rftrace.app; const box = timeline.canvas.getBoundingClientRect(); \
             return [box.left + box.width / 2, box.top + timeline.tops[0] + HEAD + ROW * 1.5]; })()",
        );
        let place = [place[0].as_f64().expect("x"), place[1].as_f64().expect("y")];
        browser.mouse("mouseMoved", place, 0, false);
        let tip = "document.getElementById('tooltip').children[0]?.textContent";
        browser.wait(&format!("{tip} === '{FULL}'"));
        for list in ["functions", "tree"] {
            let cells = format!("[...document.querySelectorAll('#{list} .name, #{list} .text')]");
            browser.wait(&format!("{cells}.some(cell => cell.textContent === '{widest}')"));
            let title = browser.value(&format!("{cells}.findLast(cell => cell.textContent === '{widest}').title"));
            assert_eq!(title, if widest == FULL { "" } else { FULL }, "{list}");
        }
        browser.value("rftrace.app.search('core::iter::traits')");
        assert_eq!(browser.value("document.getElementById('hits').textContent"), "2 calls of 2 functions");
    }
    assert_eq!(browser.complaints, [""; 0]);
}

#[test]
fn too_much_is_refused() {
    let dir = sample();
    let page = rftrace_page::Page::read(&dir.open(), "", 5).expect_err("it has more calls");
    assert!(page.to_string().starts_with("the trace has more than 5 calls, too many for a page: choose"), "{page}");
}

/// How long the first picture and frames take: `RFTRACE_VIEW_TRACE=DIR cargo test -p rftrace-tools --test it --
/// view::measure --ignored --nocapture`; the variable may name a file of `rftrace dump --html` too, or the address of an optimised `rftrace view`. With
/// `RFTRACE_VIEW_PICTURES` pictures are put there.
#[test]
#[ignore = "it measures a trace that is named by RFTRACE_VIEW_TRACE"]
fn measure() {
    let dir = env::var("RFTRACE_VIEW_TRACE").expect("the variable RFTRACE_VIEW_TRACE");
    let begun = std::time::Instant::now();
    let view = Path::new(&dir).is_dir().then(|| View::start(Path::new(&dir), &[]));
    let served = begun.elapsed();
    let mut browser = Browser::start();
    let is_served = dir.starts_with("http:");
    let named = || if is_served { dir.clone() } else { format!("file://{dir}") };
    browser.open(&view.as_ref().map_or_else(named, |view| view.url.clone()));
    let first = browser.value("rftrace.firstPicture");
    let memory = browser
        .value("Math.round(performance.measureUserAgentSpecificMemory ? 0 : performance.memory?.usedJSHeapSize / 1e6)");
    let calls = browser.value("rftrace.app.trace.nCalls");
    let sums = browser.value(
        "(async () => { const begun = performance.now(); rftrace.app.select(null); await rftrace.app.summed; return performance.now() - begun; })()",
    );
    let frames = browser.value(
        "(async () => { const { timeline } = rftrace.app; timeline.reset(); timeline.drawing.longest = 0; let slowest = 0; let n = 0; \
         let paint = 0; const begun = performance.now(); let last = begun; \
         while (n < 240) { n < 120 ? timeline.zoom(0.95) : timeline.pan(0.02); \
         await new Promise(done => requestAnimationFrame(done)); const now = performance.now(); slowest = Math.max(slowest, now - last); \
         last = now; paint += timeline.drawing.last; n++; } \
         return { fps: n * 1000 / (last - begun), slowest, paint: paint / n, longestPaint: timeline.drawing.longest }; })()",
    );
    let search = browser.value(
        "(() => { const begun = performance.now(); rftrace.app.search('function_1'); return performance.now() - begun; })()",
    );
    eprintln!(
        "{calls} calls: served after {served:?}, first picture {first} ms, heap {memory} MB, sums {sums} ms, search {search} ms, {frames}"
    );
    if let Some(pictures) = env::var_os("RFTRACE_VIEW_PICTURES") {
        let pictures = Path::new(&pictures);
        browser.value("rftrace.app.search(''); rftrace.app.timeline.reset()");
        for name in ["light", "dark"] {
            browser.dark(name == "dark");
            for tab in ["flame", "tree", "functions"] {
                browser.value(&format!("document.getElementById('tab-{tab}').click()"));
                browser.screenshot(&pictures.join(format!("{name}-{tab}.png")));
            }
        }
        browser.dark(false);
        browser.size(1100, 680);
        browser.value(
            "(async () => { document.getElementById('tab-flame').click(); const { app } = rftrace; const { timeline } = app; \
             const { begin, end } = app.trace; const at = part => Math.round(begin + (end - begin) * part); \
             for (let t = 0; t < app.trace.tasks.length - 1; t++) timeline.folded.add(t); timeline.layout(); timeline.view(at(0.3), at(0.6)); app.select([at(0.4), at(0.5)]); await app.summed; })()",
        );
        browser.mouse("mouseMoved", [500.0, 200.0], 0, false);
        browser.screenshot(&pictures.join("range.png"));
    }
    assert_eq!(browser.complaints, [""; 0]);
}

/// The page of a program that was just recorded; then the exit status is the program's.
#[test]
fn what_was_recorded_is_opened() {
    if !rftrace_tests::require(&["gcc"]) {
        return;
    }
    let program = CProgram::new(&["counters.c"]).without_library().with(&["-O1"]).build();
    let folder = tempfile::tempdir().expect("a directory");
    // There is no browser there.
    let mut record = rftrace(&["record", "--view", "--force", "-o", "trace", "--", "/bin/sh", "-c", "\"$0\"; exit 3"]);
    record.arg(&program.path).env("PATH", "/nowhere").current_dir(&folder).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = record.spawn().expect("it starts");
    let mut url = String::new();
    BufReader::new(process.stdout.take().expect("a pipe")).read_line(&mut url).expect("the address");
    let mut view = View { process, url: url.trim().to_owned() };
    let (host, path) = view.parts();
    let page = view.ask("GET", path, host);
    assert!(page.contains("200 OK") && page.contains("html"), "{page}");
    // As Ctrl-C in a terminal, but to the recorder alone.
    let interrupted = Command::new("kill").args(["-INT", &view.process.id().to_string()]).status().expect("kill");
    assert!(interrupted.success());
    assert_eq!(view.process.wait().expect("it ends").code(), Some(3));
    // The server is gone too.
    let host = view.parts().0.to_owned();
    assert!(TcpStream::connect(host).is_err());
}

/// axe-core's findings on the page, in light and dark, with each of its tabs. `RFTRACE_AXE` names the script, which `.ci/run` gets from PyPI.
#[test]
fn axe_finds_no_fault() {
    if !rftrace_tests::require(&["chromium"]) {
        return;
    }
    let Some(axe) = env::var_os("RFTRACE_AXE") else {
        return rftrace_tests::tools::skip("RFTRACE_AXE does not name axe.min.js");
    };
    let axe = std::fs::read_to_string(axe).expect("axe.min.js");
    let dir = sample();
    let (view, long) = (View::start(dir.path(), &[]), View::start(dir.path(), &["--max-calls", "1"]));
    let mut browser = Browser::start();
    for (is_dark, view) in [(false, &view), (true, &view), (false, &long)] {
        browser.dark(is_dark);
        browser.open(&view.url);
        browser.value(&format!("{axe}; 0"));
        let n_tabs = browser.value("document.querySelectorAll('[role=tab]').length").as_u64().expect("a number");
        assert!(n_tabs > 1);
        for tab in 0..n_tabs {
            browser.value(&format!("document.querySelectorAll('[role=tab]')[{tab}].click(); rftrace.app.summed"));
            let found = browser.value(
                "axe.run().then(found => [found.passes.length, found.violations.map(it => [it.id, it.help, it.nodes.map(node => node.html)])])",
            );
            assert!(found[0].as_u64().is_some_and(|passed| passed > 10), "{found}");
            assert_eq!(found[1], json!([]), "tab {tab}, dark {is_dark}");
        }
    }
}
