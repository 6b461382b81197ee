//! A trace of any length in the browser: its calls are in a file, and the page requests the visible part.
//!
//! Not here: traces that the page holds completely (`pack`).

mod answers;
mod blocks;
mod making;
mod store;
mod sums;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::mem;

use rftrace_read::{Kept, ShownNames, Summary, Trace};
use serde::Deserialize;

use crate::counters::{Counter, Counters};
use crate::error::{Error, Result};
use crate::labels::Labels;
use crate::pack::{Head, TaskHead, off_cpu};
use crate::values::lost_note;
use answers::Answers;
use store::Directory;

/// An index for the page of a long trace: a file of all calls, and of blocks of calls that are narrower than a pixel.
///
/// The file takes some eight bytes a call. In memory are names, values, sums, and some fifty bytes for 4096 calls.
#[derive(Debug)]
pub struct Zoom {
    file: File,
    directory: Directory,
    head: Head,
}

impl Zoom {
    /// Opens the kept index of a trace, if there is one.
    pub fn kept(trace: &Trace, title: &str) -> Option<Self> {
        let file = trace.kept_file(Kept::Page)?;
        let directory = store::read_directory(&file)?;
        Some(Self::new(file, directory, title, trace.shown_names()))
    }

    /// Makes the index of the chosen part of `trace`. It is kept for a whole trace after [`Trace::use_index`];
    /// otherwise it is in a file without a name.
    ///
    /// Calls and times are those of [`Page::read`](crate::Page::read).
    ///
    /// # Errors
    ///
    /// A file of the trace cannot be read, or the index cannot be written.
    pub fn make(trace: &Trace, title: &str) -> Result<Self> {
        if let Some(kept) = trace.keep_file(Kept::Page) {
            let directory = making::make(trace, kept.file())?;
            let file = kept.finish().map_err(Error::Index)?;
            return Ok(Self::new(file, directory, title, trace.shown_names()));
        }
        let file = tempfile::tempfile().map_err(Error::Index)?;
        let directory = making::make(trace, &file)?;
        Ok(Self::new(file, directory, title, trace.shown_names()))
    }

    fn new(file: File, mut directory: Directory, title: &str, names: ShownNames) -> Self {
        let functions = mem::take(&mut directory.functions);
        let [waiting, preempted] = off_cpu(&functions);
        let labels = Labels::new(&functions, names);
        let mut calls = vec![0; functions.len()];
        let mut tasks = Vec::new();
        for task in &directory.tasks {
            calls.iter_mut().zip(&task.sums.rows).for_each(|(calls, row)| *calls += row.calls);
            tasks.push(TaskHead {
                tid: task.tid,
                pid: task.pid,
                name: task.name.clone(),
                process: task.process.clone(),
                bytes: 0,
                values: 0,
                depths: task.lanes.iter().map(|lane| lane.n_calls).collect(),
            });
        }
        let head = Head {
            title: title.to_owned(),
            version: env!("CARGO_PKG_VERSION"),
            base_ns: directory.base_ns,
            begin: directory.begin,
            end: directory.end,
            functions,
            labels,
            values: mem::take(&mut directory.values),
            waiting,
            preempted,
            tasks,
            notes: Vec::new(),
            counters: Counters::default(),
            calls: Some(calls),
        };
        Self { file, directory, head }
    }

    /// Sets the lines about missing parts of the trace. The page adds lines about parts that only it lacks.
    pub fn set_notes(&mut self, notes: Vec<String>) {
        self.head.notes = notes;
        self.head.notes.extend(lost_note(self.directory.n_lost_values));
        if self.directory.n_too_deep > 0 {
            let n_lost = self.directory.n_too_deep;
            self.head.notes.push(format!("{n_lost} calls are not in the page: they are nested too deeply"));
        }
    }

    /// Sets counters of processes: see [`Page::set_counters`](crate::Page::set_counters).
    pub fn set_counters(&mut self, counters: Vec<Counter>) {
        self.head.set_counters(counters);
    }

    /// Returns the number of records read, and the flaws in them.
    pub fn summary(&self) -> &Summary {
        &self.directory.summary
    }

    /// Returns the number of calls.
    pub fn n_calls(&self) -> u64 {
        self.head.n_calls()
    }

    /// The data that the page has before it asks.
    pub(crate) fn start(&self) -> Vec<u8> {
        self.head.start()
    }

    /// Answers one of the page's questions; `None` if there is no such one.
    pub(crate) fn answer(&self, name: &str, question: &[u8]) -> Option<Result<Vec<u8>>> {
        let (n_functions, n_values) = (self.head.functions.len(), self.head.values.len());
        let answers = Answers { file: &self.file, directory: &self.directory, n_functions, n_values };
        Some(match name {
            "picture" => parse(question).and_then(|asked| answers.picture(&asked)),
            "hits" => parse(question).and_then(|asked| answers.hits(&asked)),
            "next" => parse(question).and_then(|asked| answers.next(&asked)),
            "sums" => parse(question).and_then(|asked| answers.sums(&asked)),
            _ => return None,
        })
    }
}

fn parse<'q, Q: Deserialize<'q>>(question: &'q [u8]) -> Result<Q> {
    serde_json::from_slice(question).map_err(|_| Error::Question)
}
