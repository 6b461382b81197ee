//! What a trace tells of the program and its clock, besides records.

use std::io;

use crate::error::{Error, Result, read_file};
use crate::text;
use crate::trace::Trace;

/// A file that was mapped into the traced program: itself, or a library.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Module {
    /// Its path on the machine that was traced.
    pub path: String,
    /// Its first address.
    pub start: u64,
    /// The first address behind it.
    pub end: u64,
    /// What tells this build from others, in hexadecimal digits, as far as the trace has them.
    pub build_id: Option<String>,
    /// The number of functions whose names the trace has.
    pub symbols: usize,
}

/// What `rftrace record` says was not recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gaps {
    /// Processes whose buffers were full before their end, so that the rest is missing.
    pub full: u64,
    /// Pieces of buffers that later records took the place of, so that the beginning is missing.
    pub overwritten: u64,
    /// Threads that were too many at a time.
    pub untraced_threads: u64,
}

impl Gaps {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Trace {
    /// The modules of all programs in the trace, each once, in the order of the map files.
    pub fn modules(&self) -> Vec<Module> {
        let mut found: Vec<Module> = Vec::new();
        for session in self.sessions() {
            for mapping in &session.mappings {
                let module = Module {
                    path: mapping.path.clone(),
                    start: mapping.start,
                    end: mapping.end,
                    build_id: mapping.build_id.clone(),
                    symbols: session.symbols_at(mapping.start),
                };
                if !found.contains(&module) {
                    found.push(module);
                }
            }
        }
        found
    }

    /// The lines `key=value` of the file `clock.txt`, which says how ticks became nanoseconds; only rftrace writes it.
    ///
    /// # Errors
    ///
    /// The file exists and cannot be read.
    pub fn clock(&self) -> Result<Vec<(String, String)>> {
        self.pairs("clock.txt")
    }

    /// What was not recorded, by the file `record.txt`, which only `rftrace record` writes. Losses that have a place in the
    /// trace are in [`TaskStats`](crate::TaskStats).
    ///
    /// # Errors
    ///
    /// The file exists and cannot be read.
    pub fn gaps(&self) -> Result<Gaps> {
        let pairs = self.pairs("record.txt")?;
        let number = |key: &str| {
            let value = pairs.iter().find(|(name, _)| name == key).and_then(|(_, value)| value.parse().ok());
            value.unwrap_or(0)
        };
        Ok(Gaps {
            full: number("full"),
            overwritten: number("overwritten"),
            untraced_threads: number("untraced_threads"),
        })
    }

    /// The lines `key=value` of a file; none, if it does not exist.
    fn pairs(&self, name: &str) -> Result<Vec<(String, String)>> {
        let bytes = match read_file(&self.dir().join(name)) {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            bytes => bytes?,
        };
        let pair = |line: &str| line.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
        Ok(text::lines(&bytes).filter_map(|(_, line)| pair(&line)).collect())
    }
}
