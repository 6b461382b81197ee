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
        let bytes = match read_file(&self.dir().join("clock.txt")) {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            bytes => bytes?,
        };
        let pair = |line: &str| line.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
        Ok(text::lines(&bytes).filter_map(|(_, line)| pair(&line)).collect())
    }
}
