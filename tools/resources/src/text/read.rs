//! The parser of functracer's and sp-rtrace's text.
//!
//! Unknown lines are comments, and stay in place.

use std::collections::HashMap;
use std::io::BufRead;
use std::path::Path;

use rftrace_read::{Error, Result};

/// The most bytes of a line.
const MAX_LINE: u64 = 64 << 10;
/// The most calls, and frames of all.
const MAX_CALLS: usize = 1 << 24;
const MAX_FRAMES: usize = 1 << 26;

/// The tool whose text it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Functracer,
    SpRtrace,
}

/// A file of it.
#[derive(Debug)]
pub(crate) struct Text {
    pub(crate) dialect: Dialect,
    pub(crate) lines: Vec<Line>,
    /// Backtraces, each once, and of each line of them its address and what stands behind it.
    pub(crate) stacks: Vec<Vec<Frame>>,
    pub(crate) modules: Vec<Module>,
    pub(crate) resources: Vec<Resource>,
}

#[derive(Debug)]
pub(crate) enum Line {
    /// The first line of sp-rtrace.
    Header(String),
    Module(usize),
    Resource(usize),
    Comment(String),
    Call(Call),
}

/// A module of the process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Module {
    pub(crate) path: String,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// A kind of what is taken, as sp-rtrace tells them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Resource {
    pub(crate) bit: String,
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) is_counted: bool,
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// The line itself, without its end.
    pub(crate) text: String,
    /// Of which kind, if that is told.
    pub(crate) kind: Option<String>,
    /// How much was taken; `None` where something was given back.
    pub(crate) size: Option<u64>,
    pub(crate) id: u64,
    /// Lines with arguments.
    pub(crate) arguments: Vec<String>,
    /// The backtrace, in the order of [`Text::stacks`].
    pub(crate) stack: usize,
}

/// A line of a backtrace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Frame {
    pub(crate) address: u64,
    /// The name behind the address.
    pub(crate) name: String,
}

impl Text {
    /// Reads all of it. `path` is what errors name.
    pub(crate) fn read(path: &Path, mut input: impl BufRead) -> Result<Self> {
        let mut text = Self {
            dialect: Dialect::Functracer,
            lines: Vec::new(),
            stacks: vec![Vec::new()],
            modules: Vec::new(),
            resources: Vec::new(),
        };
        let mut known: HashMap<Vec<Frame>, usize> = HashMap::from([(Vec::new(), 0)]);
        // The frames that belong to the last call.
        let mut frames = Vec::new();
        let (mut number, mut offset, mut n_calls, mut n_frames) = (0u64, 0u64, 0, 0);
        let refused =
            |number, offset, reason: String| Error::malformed(path, offset, format!("line {number}: {reason}"));
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            let mut limited = std::io::Read::take(&mut input, MAX_LINE);
            let read = limited.read_until(b'\n', &mut bytes);
            let n_bytes = read.map_err(|source| Error::Io { path: path.to_owned(), source })?;
            (number, offset) = (number + 1, offset + n_bytes as u64);
            if n_bytes as u64 == MAX_LINE && bytes.last() != Some(&b'\n') {
                let reason = format!("more than {MAX_LINE} bytes: not a trace of functracer or sp-rtrace");
                return Err(refused(number, offset, reason));
            }
            let line = String::from_utf8_lossy(bytes.strip_suffix(b"\n").unwrap_or(&bytes)).into_owned();
            if let Some(frame) =
                frame(&line).filter(|_| n_bytes > 0 && matches!(text.lines.last(), Some(Line::Call(_))))
            {
                frames.push(frame);
                n_frames += 1;
                if n_frames > MAX_FRAMES {
                    return Err(refused(number, offset, format!("more than {MAX_FRAMES} lines of backtraces")));
                }
                continue;
            }
            if let Some(Line::Call(call)) = text.lines.last_mut() {
                if line.starts_with("\t$") {
                    call.arguments.push(line);
                    continue;
                }
                if call.stack == 0 && !frames.is_empty() {
                    let next = known.len();
                    call.stack = *known.entry(std::mem::take(&mut frames)).or_insert_with_key(|frames| {
                        text.stacks.push(frames.clone());
                        next
                    });
                }
            }
            if n_bytes == 0 {
                return Ok(text);
            }
            if line.is_empty() {
                // Behind a backtrace of sp-rtrace.
                continue;
            }
            if number == 1 && line.starts_with("version=") {
                text.dialect = Dialect::SpRtrace;
                text.lines.push(Line::Header(line));
                continue;
            }
            let line = text.line(line);
            n_calls += usize::from(matches!(line, Line::Call(_)));
            if n_calls > MAX_CALLS {
                return Err(refused(number, offset, format!("more than {MAX_CALLS} calls")));
            }
            text.lines.push(line);
        }
    }

    fn line(&mut self, line: String) -> Line {
        if let Some(module) = module(&line) {
            self.modules.push(module);
            return Line::Module(self.modules.len() - 1);
        }
        if let Some(resource) = resource(&line) {
            self.resources.push(resource);
            return Line::Resource(self.resources.len() - 1);
        }
        call(&line).map_or_else(|| Line::Comment(line), Line::Call)
    }
}

/// `0x…`.
fn number(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

fn frame(line: &str) -> Option<Frame> {
    let rest = line.strip_prefix('\t').or_else(|| line.strip_prefix("   "))?;
    let end = rest.find([' ', ':']).unwrap_or(rest.len());
    let (address, name) = rest.split_at(end);
    Some(Frame { address: number(address)?, name: name.to_owned() })
}

/// `PATH => 0x…-0x…`, with a colon before it or without.
fn module(line: &str) -> Option<Module> {
    let (path, range) = line.rsplit_once(" => ")?;
    let (start, end) = range.split_once('-')?;
    let path = path.strip_prefix(": ").unwrap_or(path).to_owned();
    Some(Module { path, start: number(start)?, end: number(end)? })
}

/// `<1> : memory (…) [refcount]`.
fn resource(line: &str) -> Option<Resource> {
    let (bit, rest) = line.strip_prefix('<')?.split_once("> : ")?;
    let (name, rest) = rest.split_once(" (")?;
    let (description, flags) = rest.rsplit_once(')')?;
    let is_counted = flags.contains("refcount");
    let [bit, name, description] = [bit, name, description].map(str::to_owned);
    Some(Resource { bit, name, description, is_counted })
}

/// `INDEX. [@CONTEXT] [TIME] NAME<KIND>(SIZE) = ID (…)`, or `NAME<KIND>(ID)`.
fn call(line: &str) -> Option<Call> {
    let (index, rest) = line.split_once(". ")?;
    if index.is_empty() || !index.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let mut rest = rest;
    while rest.starts_with(['@', '[']) {
        rest = rest.split_once(' ')?.1;
    }
    let (name, rest) = rest.split_once('(')?;
    let kind = name.split_once('<').and_then(|(_, kind)| kind.strip_suffix('>')).map(str::to_owned);
    let (inner, behind) = rest.split_once(')')?;
    let (size, id) = match behind.strip_prefix(" = ") {
        Some(id) => (Some(inner.parse().ok()?), number(id.split(' ').next()?)?),
        None => (None, number(inner)?),
    };
    Some(Call { text: line.to_owned(), kind, size, id, arguments: Vec::new(), stack: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let read = |line: &str| call(line).map(|call| (call.kind, call.size, call.id));
        assert_eq!(read("0. malloc(456) = 0x0896adb0"), Some((None, Some(456), 0x896_adb0)));
        let opened = "3. [10:38:54.801234] fopen(1) = 0x10 (filename: a) = 0x2, opentype: r)";
        assert_eq!(read(opened), Some((None, Some(1), 16)));
        assert_eq!(read("7. @2 [01:02:03.004] free<memory>(0x10)"), Some((Some("memory".to_owned()), None, 16)));
        for other in ["# 1. free", "1. free", "x. free(0x1)", "1. free(16)", "1. free(0x1", "1. malloc(0x1) = 0x2"] {
            assert_eq!(read(other), None, "{other}");
        }
        assert_eq!(module(": /a => b => 0x10-0x20").unwrap().path, "/a => b");
        assert_eq!(frame("\t0x10 in main() from a").unwrap().name, " in main() from a");
        assert_eq!(frame("   0x10: main+0x2").unwrap(), Frame { address: 16, name: ": main+0x2".to_owned() });
        assert_eq!(frame("   text"), None);
        assert!(resource("<2> : gobject (objects) [refcount]").unwrap().is_counted);
    }
}
