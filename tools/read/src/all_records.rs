//! All tasks' records in order of time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rftrace_format::record::Record;

use crate::error::{Error, Result};
use crate::records::Records;
use crate::trace::Trace;
use crate::warning::Warnings;

/// An iterator over the records of all tasks in order of time; with equal times in the order of [`Trace::tasks`].
///
/// An item is the task's index in [`Trace::tasks`] and its record.
#[derive(Debug)]
pub struct AllRecords<'t> {
    sources: Vec<Records<'t>>,
    /// Time and index of each source with a record left; the record is in `heads`.
    queue: BinaryHeap<Reverse<(u64, usize)>>,
    heads: Vec<Option<Record>>,
    failure: Option<Error>,
}

impl Trace {
    /// Returns the records of all tasks, in order of time.
    ///
    /// # Errors
    ///
    /// A `.dat` file cannot be read.
    pub fn all_records(&self) -> Result<AllRecords<'_>> {
        AllRecords::new(self)
    }
}

impl<'t> AllRecords<'t> {
    fn new(trace: &'t Trace) -> Result<Self> {
        let n_tasks = trace.tasks().len();
        let sources: Vec<_> = trace.tasks().iter().map(|task| trace.records_among(task, n_tasks)).collect();
        let heads = vec![None; sources.len()];
        let mut all = Self { sources, queue: BinaryHeap::new(), heads, failure: None };
        for idx in 0..all.heads.len() {
            all.advance(idx)?;
        }
        Ok(all)
    }

    /// Returns the next item without consuming it; `None` at the end and before an error.
    pub fn peek(&self) -> Option<(usize, &Record)> {
        let &Reverse((_, idx)) = self.queue.peek()?;
        Some((idx, self.heads[idx].as_ref()?))
    }

    /// Returns the flaws found so far, in all tasks.
    pub fn warnings(&self) -> Warnings {
        let mut sum = Warnings::default();
        for source in &self.sources {
            sum.merge(source.warnings());
        }
        sum
    }

    fn advance(&mut self, idx: usize) -> Result<()> {
        if let Some(record) = self.sources[idx].next().transpose()? {
            self.queue.push(Reverse((record.time_ns, idx)));
            self.heads[idx] = Some(record);
        }
        Ok(())
    }
}

impl Iterator for AllRecords<'_> {
    type Item = Result<(usize, Record)>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(failure) = self.failure.take() {
            return Some(Err(failure));
        }
        let Reverse((_, idx)) = self.queue.pop()?;
        let record = self.heads[idx].take()?;
        self.failure = self.advance(idx).err();
        Some(Ok((idx, record)))
    }
}
