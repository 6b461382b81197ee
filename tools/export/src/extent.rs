//! The beginning and end of a trace, and the amount of data in a range, without reading all records.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use rftrace_format::info::feature;
use rftrace_format::opener;
use rftrace_format::record::{RECORD_BYTES, Record};
use rftrace_read::{Error, Result, Task, Trace};
use rftrace_views::Duration;

use super::ExportOptions;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

impl ExportOptions {
    /// Checks that the range overlaps the trace. It reads little of the trace.
    ///
    /// # Errors
    ///
    /// [`Error::Export`], with the extent of the trace, if it does not, and for absent tasks; also if a `.dat` file
    /// cannot be read.
    pub fn check(&self, trace: &Trace) -> Result<()> {
        let tasks = self.tasks(trace)?;
        let start_ns = match (self.from_ns, self.to_ns) {
            (None, None) => return Ok(()),
            _ => tasks.iter().filter_map(|task| first_ns(trace, task).transpose()).try_fold(None, min_of)?,
        };
        let Some(start_ns) = start_ns else { return Ok(()) };
        if let Some(to_ns) = self.to_ns.filter(|&to_ns| to_ns <= start_ns) {
            let reason =
                format!("the trace has no records before {}: it begins at {}", seconds(to_ns), seconds(start_ns));
            return Err(Error::Export(reason.into()));
        }
        let Some(from_ns) = self.from_ns else { return Ok(()) };
        if tasks.iter().any(|task| RecordFile::open(trace, task).is_ok_and(|mut file| file.last_ns() >= Some(from_ns)))
        {
            return Ok(());
        }
        // The end of a file may be damaged, or no record but an argument.
        let mut end_ns = start_ns;
        for task in tasks {
            for record in trace.records(task) {
                end_ns = end_ns.max(record?.time_ns);
            }
        }
        if end_ns >= from_ns {
            return Ok(());
        }
        let length = Duration(end_ns - start_ns).to_string();
        let reason = format!(
            "the trace has no records from {} on: it ends at {}, {} after its start",
            seconds(from_ns),
            seconds(end_ns),
            length.trim_start()
        );
        Err(Error::Export(reason.into()))
    }

    /// Returns the number of records in the range; `None` if that needs reading them.
    pub(super) fn count_records(&self, trace: &Trace) -> Result<Option<u64>> {
        if trace.info().features() & (feature::ARGUMENT | feature::RETURN_VALUE) != 0 {
            return Ok(None);
        }
        let mut count: u64 = 0;
        for task in self.tasks(trace)? {
            let Ok(mut file) = RecordFile::open(trace, task) else { continue };
            let failed = |source| Error::Io { path: trace.dat_file(task), source };
            let from = self.from_ns.map_or(Ok(0), |from_ns| file.place(from_ns)).map_err(failed)?;
            let to = self.to_ns.map_or(Ok(file.n_records), |to_ns| file.place(to_ns)).map_err(failed)?;
            count = count.saturating_add(to.saturating_sub(from));
        }
        Ok(Some(count))
    }
}

fn min_of(least: Option<u64>, next: Result<u64>) -> Result<Option<u64>> {
    Ok(least.into_iter().chain([next?]).min())
}

fn first_ns(trace: &Trace, task: &Task) -> Result<Option<u64>> {
    Ok(trace.records(task).next().transpose()?.map(|record| record.time_ns))
}

/// A time in the form of `--from`.
fn seconds(ns: u64) -> String {
    format!("{}.{:09} s", ns / NANOS_PER_SECOND, ns % NANOS_PER_SECOND)
}

/// The file of a task with nothing but records, in order of time.
struct RecordFile {
    file: File,
    n_records: u64,
}

impl RecordFile {
    fn open(trace: &Trace, task: &Task) -> io::Result<Self> {
        let file = opener::open(&trace.dat_file(task))?;
        let n_records = file.metadata()?.len() / RECORD_BYTES as u64;
        Ok(Self { file, n_records })
    }

    /// The time of a record; `None` if there is none.
    fn time_ns(&mut self, idx: u64) -> io::Result<Option<u64>> {
        let mut bytes = [0; RECORD_BYTES];
        self.file.seek(SeekFrom::Start(idx * RECORD_BYTES as u64))?;
        self.file.read_exact(&mut bytes)?;
        Ok(Record::decode(&bytes).map(|record| record.time_ns))
    }

    fn last_ns(&mut self) -> Option<u64> {
        self.time_ns(self.n_records.checked_sub(1)?).ok().flatten()
    }

    /// Returns the first record at or after `time_ns`.
    fn place(&mut self, time_ns: u64) -> io::Result<u64> {
        let (mut low, mut high) = (0, self.n_records);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.time_ns(middle)?.is_some_and(|found| found < time_ns) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }
}
