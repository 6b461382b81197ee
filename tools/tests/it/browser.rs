//! Drives Chromium by the DevTools protocol.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;
use tungstenite::{Message, WebSocket};

/// How long anything may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A browser with one page, without a screen.
pub(crate) struct Browser {
    process: Child,
    socket: WebSocket<TcpStream>,
    session: Value,
    n_sent: u64,
    /// The errors that the page has reported.
    pub(crate) complaints: Vec<String>,
    _profile: TempDir,
}

impl Browser {
    pub(crate) fn start() -> Self {
        let profile = tempfile::tempdir().expect("a temporary directory");
        let mut command = Command::new("chromium");
        command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]);
        command.args([
            "--disable-background-networking",
            "--remote-debugging-port=0",
            "--window-size=1280,800",
            "about:blank",
        ]);
        command.arg(format!("--user-data-dir={}", profile.path().display()));
        let mut process =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("chromium starts");
        let lines = BufReader::new(process.stderr.take().expect("a pipe")).lines();
        let mut lines = lines.map_while(Result::ok);
        let url = lines
            .find_map(|line| line.strip_prefix("DevTools listening on ").map(str::to_owned))
            .expect("where it listens");
        // Later output is read too: the browser would wait otherwise.
        std::thread::spawn(move || lines.for_each(drop));
        let address = url.strip_prefix("ws://").and_then(|rest| rest.split('/').next()).expect("an address");
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let (socket, _) = tungstenite::client(url.as_str(), stream).expect("a websocket");
        let mut browser =
            Self { process, socket, session: Value::Null, n_sent: 0, complaints: Vec::new(), _profile: profile };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attached =
            browser.call("Target.attachToTarget", json!({ "targetId": target["targetId"], "flatten": true }));
        browser.session = attached["sessionId"].clone();
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.call(domain, json!({}));
        }
        browser.size(1280, 800);
        browser
    }

    pub(crate) fn size(&mut self, width: u32, height: u32) {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// Calls a method of the protocol.
    pub(crate) fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.n_sent += 1;
        let mut message = json!({ "id": self.n_sent, "method": method, "params": parameters });
        if !self.session.is_null() {
            message["sessionId"] = self.session.clone();
        }
        self.socket.send(Message::text(message.to_string())).expect("the browser takes it");
        loop {
            let Message::Text(text) = self.socket.read().expect("an answer") else { continue };
            let message: Value = serde_json::from_str(&text).expect("JSON");
            match message["method"].as_str() {
                Some("Runtime.exceptionThrown" | "Log.entryAdded") => {
                    self.complaints.push(message["params"].to_string())
                }
                _ if message["id"] == self.n_sent => {
                    assert!(message["error"].is_null(), "{method}: {message}");
                    return message["result"].clone();
                }
                _ => {}
            }
        }
    }

    /// The value of an expression of the page, once it is there if it is a promise.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let parameters = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let result = self.call("Runtime.evaluate", parameters);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Goes to a page of ours, and waits for its first picture.
    pub(crate) fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({ "url": url }));
        self.wait("window.rftrace?.error ?? (window.rftrace?.firstPicture > 0)");
        assert_eq!(self.value("window.rftrace.error"), Value::Null);
        self.value("window.rftrace.app.summed");
    }

    /// Waits until an expression is something.
    pub(crate) fn wait(&mut self, expression: &str) {
        let begun = Instant::now();
        while matches!(self.value(expression), Value::Null | Value::Bool(false)) {
            assert!(begun.elapsed() < PATIENCE, "never: {expression}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Moves or clicks: `mouseMoved`, `mousePressed`, `mouseReleased`.
    pub(crate) fn mouse(&mut self, kind: &str, [x, y]: [f64; 2], clicks: u32, shift: bool) {
        let buttons = u32::from(kind != "mouseReleased");
        let button = if kind == "mouseMoved" && clicks == 0 { "none" } else { "left" };
        self.call(
            "Input.dispatchMouseEvent",
            json!({ "type": kind, "x": x, "y": y, "button": button, "buttons": buttons, "clickCount": clicks,
                "modifiers": if shift { 8 } else { 0 } }),
        );
    }

    pub(crate) fn drag(&mut self, from: [f64; 2], to: [f64; 2], shift: bool) {
        self.mouse("mousePressed", from, 1, shift);
        self.mouse("mouseMoved", [(from[0] + to[0]) / 2.0, (from[1] + to[1]) / 2.0], 1, shift);
        self.mouse("mouseMoved", to, 1, shift);
        self.mouse("mouseReleased", to, 1, shift);
    }

    pub(crate) fn wheel(&mut self, [x, y]: [f64; 2], delta: f64) {
        self.call(
            "Input.dispatchMouseEvent",
            json!({ "type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": delta }),
        );
    }

    pub(crate) fn key(&mut self, key: &str) {
        let text = if key.chars().count() == 1 { key } else { "" };
        self.call("Input.dispatchKeyEvent", json!({ "type": "keyDown", "key": key, "text": text }));
        self.call("Input.dispatchKeyEvent", json!({ "type": "keyUp", "key": key }));
    }

    pub(crate) fn dark(&mut self, is_dark: bool) {
        let value = if is_dark { "dark" } else { "light" };
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": value }] });
        self.call("Emulation.setEmulatedMedia", features);
    }

    pub(crate) fn screenshot(&mut self, file: &Path) {
        // Twice, as what was drawn for the first frame may be shown with the second.
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))");
        let picture = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        let png = STANDARD.decode(picture["data"].as_str().expect("a picture")).expect("base64");
        fs::write(file, png).expect("a file");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.session = Value::Null;
        let close = json!({ "id": 0, "method": "Browser.close" });
        // It ends its other processes itself, if it is asked.
        if self.socket.send(Message::text(close.to_string())).is_err() {
            let _ = self.process.kill();
        }
        let begun = Instant::now();
        while !matches!(self.process.try_wait(), Ok(Some(_)) | Err(_)) {
            if begun.elapsed() > Duration::from_secs(10) {
                let _ = self.process.kill();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
