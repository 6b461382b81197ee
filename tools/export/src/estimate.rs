//! The size of an export before it is written, from the export of its first records.

use rftrace_read::{Result, Trace};

use super::ExportOptions;

impl ExportOptions {
    /// Estimates the bytes of an export: those of the longest task's first records, times the length of all. `write`
    /// exports such a part and returns its bytes. `None` for a trace that is exported in no time.
    ///
    /// # Errors
    ///
    /// A `.dat` file cannot be read, a chosen task does not exist, or `write` fails.
    pub fn estimate(&self, trace: &Trace, write: impl FnOnce(&Self) -> Result<u64>) -> Result<Option<u64>> {
        /// The records of the part, and the least bytes of all records.
        const N_RECORDS: usize = 1 << 16;
        const LEAST_BYTES: u64 = 4 << 20;

        let times = self.from_ns.unwrap_or(0)..self.to_ns.unwrap_or(u64::MAX);
        let mut all_bytes = 0_u64;
        let mut longest = None;
        for task in self.tasks(trace)? {
            let bytes = trace.bytes_between(task, times.clone())?;
            all_bytes = all_bytes.saturating_add(bytes);
            if longest.is_none_or(|(most, _)| bytes > most) {
                longest = Some((bytes, task));
            }
        }
        let Some((_, task)) = longest.filter(|_| all_bytes >= LEAST_BYTES) else { return Ok(None) };
        let mut records = trace.records(task);
        records.take_file_alone();
        records.take_all();
        let Some(last) = records.by_ref().take(N_RECORDS).last().transpose()? else { return Ok(None) };
        let Some(mark) = records.mark().filter(|mark| mark.position > 0) else { return Ok(None) };
        let part = Self { to_ns: Some(last.time_ns.saturating_add(1)), tids: vec![task.tid()], ..Self::default() };
        let written = u128::from(write(&part)?) * u128::from(all_bytes) / u128::from(mark.position);
        Ok(Some(u64::try_from(written).unwrap_or(u64::MAX)))
    }
}
