//! The file format of heaptrack's programs (`heaptrack_gui`, `heaptrack_print`): the output of `heaptrack_interpret`,
//! format 3.
//!
//! Lines consist of a letter and hexadecimal numbers. A line refers to earlier ones: strings, addresses and stacks are
//! counted from 1, kinds of blocks from 0.

use std::collections::HashMap;
use std::io::{self, Write};

use rftrace_format::resources::Resource;
use rftrace_read::{Error, Result};

use crate::live::{Change, Live, Until, follow};
use crate::merge::Event;
use crate::names::Names;
use crate::recording::{Frame, Recording};

/// The version of heaptrack that such files are of, and of the format.
const VERSIONS: &str = "v 10400 3";

/// Writes all allocations and releases of memory up to some time, of one process if `pid` names one. heaptrack knows
/// one process in a file, so several processes are written as one.
///
/// # Errors
///
/// Those of [`Account::of`](crate::Account::of), and [`Error::Write`].
pub fn write_heaptrack(
    recording: &Recording,
    until: Until,
    pid: Option<u32>,
    names: &mut Names,
    out: &mut dyn Write,
) -> Result<()> {
    let is_wanted = |process: &u32| pid.is_none_or(|pid| recording.processes()[process].pid == pid);
    let program = recording.processes().keys().find(|process| is_wanted(process));
    let program = program.map_or("", |process| recording.processes()[process].program.as_str());
    let mut lines = Lines { out, recording, names, known: Known::default(), millis: 0 };
    lines.begin(program).map_err(Error::Write)?;
    follow(recording, Resource::Memory, until, pid, |live, event| lines.event(live, event).map_err(Error::Write))?;
    Ok(())
}

/// Strings, frames, stacks and blocks that have a number.
#[derive(Default)]
struct Known {
    strings: HashMap<String, usize>,
    frames: HashMap<Frame, usize>,
    /// By the caller's stack and the frame.
    traces: HashMap<(usize, usize), usize>,
    /// By the recording's number.
    stacks: HashMap<u32, usize>,
    /// By size and stack.
    blocks: HashMap<(u64, usize), usize>,
}

struct Lines<'a> {
    out: &'a mut dyn Write,
    recording: &'a Recording,
    names: &'a mut Names,
    known: Known,
    /// The last time that was written, since the beginning.
    millis: u64,
}

impl Lines<'_> {
    fn begin(&mut self, program: &str) -> io::Result<()> {
        writeln!(self.out, "{VERSIONS}\nX {program}\nI 1000 0")
    }

    fn event(&mut self, live: &mut Live<'_, usize>, event: &Event) -> io::Result<()> {
        let millis = self.recording.since_start(event.ticks) / 1_000_000;
        if millis > self.millis {
            self.millis = millis;
            writeln!(self.out, "c {millis:x}")?;
        }
        let mut block = Ok(0);
        let change = live.follow(event, || {
            block = self.block(event);
            *block.as_ref().unwrap_or(&0)
        });
        let given_back = match change {
            Change::Taken { replaced, .. } => replaced,
            Change::GivenBack(block) => Some(block),
            Change::TakenAndGivenBack | Change::Inherited | Change::Unknown | Change::Failed | Change::Nothing => None,
        };
        if let Some(block) = given_back {
            writeln!(self.out, "- {block:x}")?;
        }
        if let Change::Taken { .. } = change {
            writeln!(self.out, "+ {:x}", block?)?;
        }
        Ok(())
    }

    /// The number of blocks of this size, taken by this stack.
    fn block(&mut self, event: &Event) -> io::Result<usize> {
        let trace = self.stack(event.stack)?;
        let next = self.known.blocks.len();
        let block = *self.known.blocks.entry((event.bytes, trace)).or_insert(next);
        if block == next {
            writeln!(self.out, "a {:x} {trace:x}", event.bytes)?;
        }
        Ok(block)
    }

    fn stack(&mut self, stack: u32) -> io::Result<usize> {
        if let Some(&trace) = self.known.stacks.get(&stack) {
            return Ok(trace);
        }
        let mut trace = 0;
        for &frame in self.recording.stack(stack).iter().rev() {
            let frame = self.frame(frame)?;
            let next = self.known.traces.len() + 1;
            let caller = trace;
            trace = *self.known.traces.entry((caller, frame)).or_insert(next);
            if trace == next {
                writeln!(self.out, "t {frame:x} {caller:x}")?;
            }
        }
        self.known.stacks.insert(stack, trace);
        Ok(trace)
    }

    fn frame(&mut self, frame: Frame) -> io::Result<usize> {
        if let Some(&number) = self.known.frames.get(&frame) {
            return Ok(number);
        }
        let path = frame.module.and_then(|module| self.recording.modules().get(module as usize));
        let module = path.map_or(Ok(0), |module| self.string(&module.path))?;
        let mut functions = String::new();
        for name in &*self.names.of(self.recording.modules(), frame) {
            let function = self.string(&name.function)?;
            let (file, line) = match &name.place {
                Some((file, line)) => (self.string(file)?, *line),
                None => (0, 0),
            };
            functions += &format!(" {function:x} {file:x} {line:x}");
        }
        let number = self.known.frames.len() + 1;
        self.known.frames.insert(frame, number);
        writeln!(self.out, "i {:x} {module:x}{functions}", frame.address)?;
        Ok(number)
    }

    fn string(&mut self, string: &str) -> io::Result<usize> {
        if let Some(&number) = self.known.strings.get(string) {
            return Ok(number);
        }
        let number = self.known.strings.len() + 1;
        self.known.strings.insert(string.to_owned(), number);
        // It has a length, but readers take lines.
        let string = string.replace('\n', " ");
        writeln!(self.out, "s {:x} {string}", string.len())?;
        Ok(number)
    }
}
