//! Flame graphs of bytes or of blocks: a function is as wide as the allocations of it and its calls.

use std::collections::BTreeMap;
use std::io::Write;

use inferno::flamegraph::color::MultiPalette;
use inferno::flamegraph::{self, Palette};
use rftrace_read::{Error, Result, Shown};

use crate::account::Sums;
use crate::report::Report;
use crate::words::several_of;

/// The most bytes of text that a picture is drawn of.
const MAX_TEXT_BYTES: usize = 128 << 20;

/// The unit of a width in a flame graph of memory. Descriptors and threads count as one each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Blocks of any size.
    Blocks,
}

impl Report {
    /// Draws the stacks as an SVG. `width` returns the width of a stack in `unit`.
    ///
    /// # Errors
    ///
    /// [`Error::Write`]; or there is no stack to draw, or too many.
    pub fn flame_graph(&self, title: &str, unit: Unit, width: fn(&Sums) -> u64, out: &mut dyn Write) -> Result<()> {
        let mut stacks: BTreeMap<String, u64> = BTreeMap::new();
        let mut n_bytes = 0;
        for line in self.lines.iter().filter(|line| width(&line.sums) > 0) {
            let names = line.names.iter().rev().map(|name| name.function.replace(';', ":"));
            let text = if line.names.is_empty() { "?".to_owned() } else { names.collect::<Vec<_>>().join(";") };
            n_bytes += text.len();
            if n_bytes > MAX_TEXT_BYTES {
                return Err(Error::Export("too many stacks for a flame graph; --json has all".into()));
            }
            let sum = stacks.entry(text).or_default();
            *sum = sum.saturating_add(width(&line.sums));
        }
        if stacks.is_empty() {
            return Err(Error::Export("cannot draw a flame graph: no stack has such blocks".into()));
        }
        let lines: Vec<String> = stacks.into_iter().map(|(stack, width)| format!("{stack} {width}")).collect();
        let mut options = flamegraph::Options::default();
        options.title = Shown::new(title).to_string();
        options.count_name = match unit {
            Unit::Bytes if self.resource.has_bytes() => "bytes".to_owned(),
            Unit::Bytes | Unit::Blocks => several_of(self.resource),
        };
        options.deterministic = true;
        options.colors = Palette::Multi(MultiPalette::Rust);
        flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), out).map_err(Error::Write)
    }
}
