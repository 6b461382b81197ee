//! Facts of a trace about the program and its clock.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rftrace_format::clock::ClockFile;
use rftrace_format::cost::CallCost;
use rftrace_format::files::{CLOCK, GAPS};
use rftrace_format::gaps::{self, Gaps};
use rftrace_format::info::key;
use rftrace_format::text;

use crate::error::{Error, Result};
use crate::files;
use crate::trace::Trace;

/// The maximum size of `clock.txt`, and of `record.txt`, in bytes.
const MAX_BYTES: u64 = 64 * 1024;

/// Reads the `clock.txt` of the trace in `dir`; `None` if there is none.
///
/// # Errors
///
/// The file cannot be read, a line is malformed, or a required line is missing.
pub fn read_clock(dir: &Path) -> Result<Option<ClockFile>> {
    let path = dir.join(CLOCK);
    let Some(bytes) = files::if_present(files::read(&path, MAX_BYTES))? else { return Ok(None) };
    ClockFile::parse(&bytes).map(Some).map_err(|malformed| Error::of_format(&path, malformed))
}

/// A file mapped into the traced program: the program itself or a library.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Module {
    /// The path on the traced machine.
    pub path: String,
    /// The first address.
    pub start: u64,
    /// The first address after the module.
    pub end: u64,
    /// The build-id in hexadecimal digits, `None` if the trace does not have it.
    pub build_id: Option<String>,
    /// The number of functions with names in the trace.
    pub symbols: usize,
}

impl Trace {
    /// Returns the modules of all programs in the trace, each once, in the order of the map files.
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

    /// Returns the lines `key=value` of `clock.txt`, the conversion from ticks to nanoseconds. Only rftrace writes that
    /// file.
    ///
    /// # Errors
    ///
    /// The file exists and cannot be read.
    pub fn clock(&self) -> Result<Vec<(String, String)>> {
        let bytes = files::if_present(files::read(&self.dir().join(CLOCK), MAX_BYTES))?.unwrap_or_default();
        Ok(text::pairs(&bytes).collect())
    }

    /// Returns the measured cost of a recorded call, whether or not [times are corrected](Self::correct_times). `None`
    /// if it was not measured, or the file cannot be read.
    pub fn measured_cost(&self) -> Option<CallCost> {
        CallCost::parse(&files::read(&self.dir().join(CLOCK), MAX_BYTES).ok()?)
    }

    /// Returns the losses of the recording from the file `record.txt`, written by rftrace only. Losses with a place in
    /// the trace are in `rftrace_views::TaskStats`.
    ///
    /// # Errors
    ///
    /// The file exists and cannot be read.
    pub fn gaps(&self) -> Result<Gaps> {
        Ok(Gaps::parse(&self.of_recording()?))
    }

    /// Returns the reason of a dump from the file `record.txt`; `None` if the trace is no dump.
    ///
    /// # Errors
    ///
    /// The file exists and cannot be read.
    pub fn dump_reason(&self) -> Result<Option<String>> {
        Ok(gaps::dump_reason(&self.of_recording()?))
    }

    /// Returns the ends of processes, by PID: the status of `wait` of each known end.
    ///
    /// # Errors
    ///
    /// The file `record.txt` exists and cannot be read.
    pub fn ends(&self) -> Result<BTreeMap<u32, i32>> {
        let mut ends: BTreeMap<u32, i32> = gaps::ends(&self.of_recording()?).collect();
        // Others than rftrace tell of the program alone, which is the first task.
        let status = || self.info().get(key::EXIT_STATUS).and_then(|status| status.trim().parse().ok());
        if ends.is_empty()
            && let Some((task, status)) = self.tasks().first().zip(status())
        {
            ends.insert(task.pid(), status);
        }
        Ok(ends)
    }

    /// Returns the processes that went on after their last record.
    ///
    /// # Errors
    ///
    /// The file `record.txt` exists and cannot be read.
    pub fn cut_off(&self) -> Result<BTreeSet<u32>> {
        Ok(gaps::cut_off(&self.of_recording()?).collect())
    }

    /// The bytes of the file `record.txt`; none without it.
    fn of_recording(&self) -> Result<Vec<u8>> {
        let bytes = files::if_present(files::read(&self.dir().join(GAPS), MAX_BYTES))?;
        Ok(bytes.unwrap_or_default())
    }

    /// Returns true if the trace records when tasks had no processor.
    ///
    /// # Errors
    ///
    /// The file `record.txt` exists and cannot be read.
    pub fn has_schedule(&self) -> Result<bool> {
        Ok(self.has_switches() || self.gaps()?.schedule)
    }
}
