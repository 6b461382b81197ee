//! Chrome's Trace Event Format: JSON for <https://ui.perfetto.dev>, `chrome://tracing` and Tracy's importer.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use rftrace_read::{Error, Result, SourcePlace};

use super::{Sink, Track};

/// A writer of JSON in Chrome's Trace Event Format.
///
/// Functions are pairs of `B` and `E` events, a line each. Times are microseconds of the trace's clock with three
/// decimals.
#[derive(Debug)]
pub struct Chrome<W> {
    out: W,
    /// Memory for a line.
    line: Vec<u8>,
    n_events: u64,
    /// The source lines of functions.
    sources: HashMap<String, Arc<str>>,
}

impl<W: Write> Chrome<W> {
    /// Creates a writer to `out`. `out` should be buffered.
    pub fn new(out: W) -> Self {
        Self { out, line: Vec::new(), n_events: 0, sources: HashMap::new() }
    }

    /// Returns the output.
    pub fn into_inner(self) -> W {
        self.out
    }

    fn event(&mut self, write: impl FnOnce(&mut W) -> io::Result<()>) -> Result<()> {
        let start: &[u8] = match self.n_events {
            0 => b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n",
            _ => b",\n",
        };
        self.n_events += 1;
        self.out.write_all(start).and_then(|()| write(&mut self.out)).map_err(Error::Write)
    }

    /// An entry or exit. There are millions of them, and formatting dominates: so without `write!`.
    fn call(
        &mut self,
        start: &[u8],
        Track { pid, tid }: Track,
        time_ns: u64,
        end: impl FnOnce(&mut Vec<u8>) -> io::Result<()>,
    ) -> Result<()> {
        let mut line = std::mem::take(&mut self.line);
        let written = self.event(|out| {
            line.clear();
            line.extend_from_slice(start);
            number(&mut line, time_ns / 1000)?;
            let nanos = (time_ns % 1000) as u16;
            let digits = [nanos / 100, nanos / 10 % 10, nanos % 10].map(|digit| b'0' + digit as u8);
            line.push(b'.');
            line.extend_from_slice(&digits);
            line.extend_from_slice(b",\"pid\":");
            number(&mut line, pid.into())?;
            line.extend_from_slice(b",\"tid\":");
            number(&mut line, tid.into())?;
            end(&mut line)?;
            line.push(b'}');
            out.write_all(&line)
        });
        self.line = line;
        written
    }

    /// A function begins.
    fn begin(&mut self, track: Track, time_ns: u64, name: &str, arguments: Option<&str>) -> Result<()> {
        let source = self.sources.get(name).cloned();
        self.call(b"{\"ph\":\"B\",\"ts\":", track, time_ns, |line| {
            line.extend_from_slice(b",\"name\":");
            string(line, name)?;
            let about = [("source", source.as_deref()), ("arguments", arguments)];
            let mut separator = &b",\"args\":{\""[..];
            for (key, text) in about.into_iter().filter_map(|(key, text)| Some((key, text?))) {
                line.extend_from_slice(separator);
                line.extend_from_slice(key.as_bytes());
                line.extend_from_slice(b"\":");
                string(line, text)?;
                separator = b",\"";
            }
            if source.is_some() || arguments.is_some() {
                line.push(b'}');
            }
            Ok(())
        })
    }

    fn metadata(&mut self, track: Track, kind: &str, name: &str) -> Result<()> {
        let Track { pid, tid } = track;
        self.event(|out| {
            write!(out, "{{\"ph\":\"M\",\"pid\":{pid},\"tid\":{tid},\"name\":\"{kind}\",\"args\":{{\"name\":")?;
            string(out, name)?;
            out.write_all(b"}}")
        })
    }
}

impl<W: Write> Sink for Chrome<W> {
    fn process(&mut self, pid: u32, name: &str) -> Result<()> {
        self.metadata(Track { pid, tid: pid }, "process_name", name)
    }

    fn thread(&mut self, track: Track, name: &str) -> Result<()> {
        self.metadata(track, "thread_name", name)
    }

    fn source(&mut self, name: &str, place: SourcePlace<'_>) -> Result<()> {
        self.sources.insert(name.to_owned(), place.to_string().into());
        Ok(())
    }

    fn enter(&mut self, track: Track, time_ns: u64, name: &str) -> Result<()> {
        self.begin(track, time_ns, name, None)
    }

    fn enter_with(&mut self, track: Track, time_ns: u64, name: &str, arguments: &[String]) -> Result<()> {
        self.begin(track, time_ns, name, Some(&arguments.join(", ")))
    }

    fn exit_with(&mut self, track: Track, time_ns: u64, result: &str) -> Result<()> {
        self.call(b"{\"ph\":\"E\",\"ts\":", track, time_ns, |line| {
            line.extend_from_slice(b",\"args\":{\"retval\":");
            string(line, result)?;
            line.push(b'}');
            Ok(())
        })
    }

    fn exit(&mut self, track: Track, time_ns: u64) -> Result<()> {
        self.call(b"{\"ph\":\"E\",\"ts\":", track, time_ns, |_| Ok(()))
    }

    fn instant(&mut self, Track { pid, tid }: Track, time_ns: u64, name: &str) -> Result<()> {
        let time = Micros(time_ns);
        self.event(|out| {
            write!(out, "{{\"ph\":\"i\",\"s\":\"t\",\"ts\":{time},\"pid\":{pid},\"tid\":{tid},\"name\":")?;
            string(out, name)?;
            out.write_all(b"}")
        })
    }

    fn counter(&mut self, pid: u32, time_ns: u64, name: &str, value: f64) -> Result<()> {
        // JSON has no other numbers.
        if !value.is_finite() {
            return Ok(());
        }
        let time = Micros(time_ns);
        self.event(|out| {
            write!(out, "{{\"ph\":\"C\",\"ts\":{time},\"pid\":{pid},\"tid\":{pid},\"name\":")?;
            string(out, name)?;
            out.write_all(b",\"args\":{\"value\":")?;
            serde_json::to_writer(&mut *out, &value)?;
            out.write_all(b"}}")
        })
    }

    fn finish(&mut self) -> Result<()> {
        let end: &[u8] = match self.n_events {
            0 => b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[]}\n",
            _ => b"\n]}\n",
        };
        self.out.write_all(end).and_then(|()| self.out.flush()).map_err(Error::Write)
    }
}

fn string(out: &mut impl Write, text: &str) -> io::Result<()> {
    Ok(serde_json::to_writer(out, text)?)
}

fn number(out: &mut Vec<u8>, number: u64) -> io::Result<()> {
    Ok(serde_json::to_writer(out, &number)?)
}

struct Micros(u64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACK: Track = Track { pid: 1, tid: 2 };

    fn written(fill: impl FnOnce(&mut Chrome<Vec<u8>>) -> Result<()>) -> String {
        let mut chrome = Chrome::new(Vec::new());
        fill(&mut chrome).unwrap();
        chrome.finish().unwrap();
        String::from_utf8(chrome.into_inner()).unwrap()
    }

    #[test]
    fn every_kind_of_event() {
        let text = written(|chrome| {
            chrome.process(1, "prog")?;
            chrome.thread(TRACK, "a \"thread\"")?;
            chrome.enter(TRACK, 1_002_003, "f\u{1}\n<é>\\")?;
            chrome.instant(TRACK, u64::MAX, "LOST")?;
            chrome.exit(TRACK, 0)?;
            chrome.counter(1, 5, "cycles", 1.5)?;
            chrome.counter(1, 5, "cycles", f64::NAN)
        });
        let expected = r#"{"displayTimeUnit":"ns","traceEvents":[
{"ph":"M","pid":1,"tid":1,"name":"process_name","args":{"name":"prog"}},
{"ph":"M","pid":1,"tid":2,"name":"thread_name","args":{"name":"a \"thread\""}},
{"ph":"B","ts":1002.003,"pid":1,"tid":2,"name":"f\u0001\n<é>\\"},
{"ph":"i","s":"t","ts":18446744073709551.615,"pid":1,"tid":2,"name":"LOST"},
{"ph":"E","ts":0.000,"pid":1,"tid":2},
{"ph":"C","ts":0.005,"pid":1,"tid":1,"name":"cycles","args":{"value":1.5}}
]}
"#;
        assert_eq!(text, expected);
        serde_json::from_str::<serde_json::Value>(&text).unwrap();
    }

    #[test]
    fn nothing_is_valid_too() {
        let text = written(|_| Ok(()));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap()["traceEvents"], serde_json::json!([]));
    }
}
