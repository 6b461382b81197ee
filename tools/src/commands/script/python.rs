//! The Python that runs a script: a child with `driver.py`, and the protocol of both through a socket in the place of its stdin.
//!
//! ```text
//! the driver, once      functions of the script   u32: 1 for uftrace_entry, 2 uftrace_exit, 4 uftrace_event
//!                       number of UFTRACE_FUNCS   u32
//!                       each                      length u32, UTF-8
//! rftrace, many times   number of names           u32
//!                       number of happenings      u32
//!                       names                     length u32, UTF-8; they are numbered from 0 on
//!                       happenings                `Happening`, 40 bytes each; those with values have bit 8 of their kind set
//!                       for each of these         number of values u32, and each as text: length u32, UTF-8
//! ```
//!
//! All numbers are little-endian. Neither names nor happenings: that was all.

use std::io::{self, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

use anyhow::{Context, Result, anyhow, bail};
use rftrace_read::Pattern;

use crate::commands::choice::parse_uftrace_pattern;
use crate::commands::common::find_program;

const DRIVER: &str = include_str!("driver.py");

/// Set in the kind of a happening with values.
const WITH_VALUES: u32 = 1 << 8;

/// The number of happenings that are sent at once.
const BLOCK: usize = 4096;

/// The most bytes of a pattern, and the most patterns: more is no list of functions.
const MAX_PATTERN_BYTES: u32 = 1 << 20;
const MAX_PATTERNS: u32 = 1 << 16;

/// Steps of the trace that a script wants.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) entries: bool,
    pub(super) exits: bool,
    pub(super) events: bool,
    /// Functions, by their names; all, if there are none.
    pub(super) functions: Vec<Pattern>,
}

/// Kind of a step.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Entry = 0,
    Exit = 1,
    Event = 2,
    /// With data that is not sent.
    EventWithData = 3,
}

/// A call of one of the script's functions.
#[derive(Debug)]
pub(super) struct Happening {
    pub(super) kind: Kind,
    pub(super) tid: u32,
    pub(super) depth: u32,
    /// The number of its name, from [`Python::name`], or [`Happening::NAMELESS`].
    pub(super) name: u32,
    pub(super) time_ns: u64,
    /// 0 for what is no exit.
    pub(super) duration_ns: u64,
    /// That of the function, or the event's number.
    pub(super) addr: u64,
}

impl Happening {
    /// Has no name: it is made from the address.
    pub(super) const NAMELESS: u32 = u32::MAX;
}

/// A Python that runs.
#[derive(Debug)]
pub(super) struct Python {
    child: Child,
    channel: UnixStream,
    n_names: u32,
    /// Names that were not sent yet.
    names: Vec<u8>,
    n_new_names: u32,
    happenings: Vec<u8>,
    n_happenings: u32,
    values: Vec<u8>,
}

impl Python {
    /// Starts it with a script. The wanted steps are `None` if it has failed, and has said so, or has ended.
    pub(super) fn start(script: &Path, args: &[String]) -> Result<(Self, Option<Wanted>)> {
        let Some(program) = find_program("python3") else {
            bail!(
                "cannot find python3 in PATH, which runs scripts; install it with apt install python3, or see https://www.python.org"
            );
        };
        let (channel, of_child) = UnixStream::pair().context("cannot make a socket")?;
        let child = Command::new(&program)
            .args(["-c", DRIVER])
            .arg(script)
            .arg(concat!("rftrace ", env!("CARGO_PKG_VERSION")))
            .args(args)
            .stdin(OwnedFd::from(of_child))
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        let (names, happenings, values) = (Vec::new(), Vec::new(), Vec::new());
        let python = Self { child, channel, n_names: 0, names, n_new_names: 0, happenings, n_happenings: 0, values };
        let Ok((calls, patterns)) = read_wanted(&mut BufReader::new(&python.channel)) else {
            return Ok((python, None));
        };
        let functions = patterns.iter().map(|text| {
            parse_uftrace_pattern(text)
                .map_err(|error| anyhow!("cannot read `{text}` of UFTRACE_FUNCS in {}: {error}", script.display()))
        });
        match functions.collect::<Result<_>>() {
            Ok(functions) => {
                let (entries, exits, events) = (calls & 1 != 0, calls & 2 != 0, calls & 4 != 0);
                Ok((python, Some(Wanted { entries, exits, events, functions })))
            }
            Err(error) => {
                let mut child = python.child;
                // The script is called for nothing, not even for the end.
                child.kill().ok();
                child.wait().ok();
                Err(error)
            }
        }
    }

    /// The number of a new name.
    pub(super) fn name(&mut self, name: &str) -> u32 {
        self.names.extend((name.len() as u32).to_le_bytes());
        self.names.extend(name.as_bytes());
        self.n_new_names += 1;
        self.n_names += 1;
        self.n_names - 1
    }

    /// Has the script be called. `values` are those of the call or of the return.
    pub(super) fn send(&mut self, happening: &Happening, values: &[String]) -> io::Result<()> {
        let &Happening { kind, tid, depth, name, time_ns, duration_ns, addr } = happening;
        let has_values = if values.is_empty() { 0 } else { WITH_VALUES };
        for word in [kind as u32 | has_values, tid, depth, name] {
            self.happenings.extend(word.to_le_bytes());
        }
        for word in [time_ns, duration_ns, addr] {
            self.happenings.extend(word.to_le_bytes());
        }
        self.n_happenings += 1;
        if !values.is_empty() {
            self.values.extend((values.len() as u32).to_le_bytes());
        }
        for value in values {
            self.values.extend((value.len() as u32).to_le_bytes());
            self.values.extend(value.as_bytes());
        }
        if self.n_happenings as usize == BLOCK { self.flush() } else { Ok(()) }
    }

    /// Says that this was all, and waits until the script has ended.
    pub(super) fn end(mut self) -> io::Result<ExitStatus> {
        // If it has ended already, its status tells why.
        if self.n_happenings == 0 || self.flush().is_ok() {
            self.flush().ok();
        }
        drop(self.channel);
        self.child.wait()
    }

    fn flush(&mut self) -> io::Result<()> {
        let head = [self.n_new_names.to_le_bytes(), self.n_happenings.to_le_bytes()].concat();
        (self.n_new_names, self.n_happenings) = (0, 0);
        for part in [&head, &self.names, &self.happenings, &self.values] {
            self.channel.write_all(part)?;
        }
        self.names.clear();
        self.happenings.clear();
        self.values.clear();
        Ok(())
    }
}

/// Reads the answer of the driver.
fn read_wanted(from: &mut impl Read) -> io::Result<(u32, Vec<String>)> {
    let number = |from: &mut dyn Read, max: u32| -> io::Result<u32> {
        let mut bytes = [0; 4];
        from.read_exact(&mut bytes)?;
        Some(u32::from_le_bytes(bytes)).filter(|&value| value <= max).ok_or(io::ErrorKind::InvalidData.into())
    };
    let calls = number(from, 0b111)?;
    let n_patterns = number(from, MAX_PATTERNS)?;
    let mut patterns = Vec::new();
    for _ in 0..n_patterns {
        let mut bytes = vec![0; number(from, MAX_PATTERN_BYTES)? as usize];
        from.read_exact(&mut bytes)?;
        patterns.push(String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData)?);
    }
    Ok((calls, patterns))
}
