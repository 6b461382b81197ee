//! The rows of a report, one for each function, collected call by call.
//!
//! Not here: the source of calls (`sums`, `between`), and the content of a row (`rows`).

use std::borrow::Cow;
use std::collections::HashMap;

use rftrace_read::{Kept, Record, Result, Task, Trace};

use crate::by_value::ByValue;
use crate::collector::{CallSums, Collector, OffCpuTimes, TaskCalls};
use crate::correction::{Costs, Share};
use crate::keys::Last;
use crate::lines::Values;
use crate::rows::{CallTimes, Row};
use crate::stack::{EndedCall, Step};

/// The maximum number of rows, with that of the others. Programs have fewer functions, but addresses without names can
/// be any number.
pub(crate) const MAX_ROWS: usize = 1 << 20;

/// The row of all functions beyond the maximum.
pub(crate) const OTHERS: &str = "(other functions)";

/// The number of rows found without a look at their names.
const N_RECENT: usize = 1024;

/// The place of a function's name in the trace, and its row.
#[derive(Debug, Clone, Copy, Default)]
struct Recent {
    key: (usize, usize),
    idx: usize,
}

/// The rows of one thread.
pub(crate) struct Table<'t> {
    trace: &'t Trace,
    /// True if there are the times of single calls.
    spread: bool,
    by_value: &'t [ByValue],
    pub(crate) rows: Vec<Row>,
    /// The overhead of recording in the rows' times, if it is subtracted.
    pub(crate) costs: Vec<Costs>,
    /// The task of each row's first occurrence, and the row's number in it.
    found: Vec<(usize, usize)>,
    idx_of_label: HashMap<String, usize>,
    /// Rows of recently called functions, each at a place by the address of its name.
    recent: Vec<Recent>,
    /// The index of the current task.
    pub(crate) task: usize,
    /// The number of open calls of each row's function in the current task; all are 0 at its end.
    n_open: Vec<u32>,
    pub(crate) nameless_calls: u64,
    pub(crate) off_cpu: Option<OffCpuTimes>,
}

impl<'t> Table<'t> {
    /// None yet; functions among `by_value` have several rows.
    pub(crate) fn by_values(trace: &'t Trace, spread: bool, by_value: &'t [ByValue]) -> Self {
        Self {
            trace,
            spread,
            by_value,
            rows: Vec::new(),
            costs: Vec::new(),
            found: Vec::new(),
            idx_of_label: HashMap::new(),
            recent: vec![Recent::default(); N_RECENT],
            task: 0,
            n_open: Vec::new(),
            nameless_calls: 0,
            off_cpu: None,
        }
    }

    /// Adds the sums of other tasks.
    pub(crate) fn merge(&mut self, other: Table<'_>) {
        self.add_uncounted(other.nameless_calls, other.off_cpu);
        let costs = other.costs.into_iter().map(Some).chain(std::iter::repeat(None));
        for ((row, found), costs) in other.rows.into_iter().zip(other.found).zip(costs) {
            let idx = match self.idx_of_label.get(&*row.label()) {
                Some(&idx) => idx,
                None => {
                    let (name, values, source) = (row.name.clone(), row.values.clone(), row.source.clone());
                    self.add_row(Row { name, values, source, ..Row::default() })
                }
            };
            self.found[idx] = self.found[idx].min(found);
            let Row { total_ns, self_ns, calls, did_not_return, .. } = row;
            let costs = costs.unwrap_or_default();
            self.add_sums(idx, CallSums { total_ns, self_ns, calls, did_not_return, costs }, row.times);
            let source = &mut self.rows[idx].source;
            *source = source.take().or(row.source);
        }
    }

    /// Returns the rows without the overhead of recording, in the order of their first occurrence; and the share of the
    /// overhead in them.
    pub(crate) fn into_rows(mut self) -> (Vec<Row>, Share) {
        let share = Share::of(self.rows.iter().zip(&self.costs).map(|(row, costs)| (row.self_ns, costs.own)));
        for (row, costs) in self.rows.iter_mut().zip(&self.costs) {
            row.unsure = costs.off(share, &mut row.total_ns, &mut row.self_ns);
            row.times.iter_mut().for_each(|times| times.limit(share));
        }
        // There may be many rows: those of one thread need no second place.
        if !self.found.is_sorted() {
            let mut rows: Vec<_> = self.found.into_iter().zip(self.rows).collect();
            rows.sort_unstable_by_key(|&(found, _)| found);
            self.rows = rows.into_iter().map(|(_, row)| row).collect();
        }
        // All calls of a function may have rows of their own.
        self.rows.retain(|row| row.calls > 0);
        (self.rows, share)
    }

    fn enter(&mut self, calls: &mut TaskCalls<'_>, idx: Option<usize>) {
        calls.open.push(idx);
        if let Some(idx) = idx {
            if idx >= self.n_open.len() {
                self.n_open.resize(idx + 1, 0);
            }
            self.n_open[idx] += 1;
        }
    }

    fn leave(&mut self, calls: &mut TaskCalls<'_>, ended: &EndedCall, record: Option<&Record>) -> Result<()> {
        let Some((idx, is_outermost)) = self.close(calls, ended) else { return Ok(()) };
        let idx = self.row_by_value(idx, calls.task, record)?;
        self.add(idx, CallSums::of(self.trace.cost(), ended), is_outermost);
        Ok(())
    }

    /// Returns the row for a call with values, once its record is known.
    fn row_by_value(&mut self, idx: usize, task: &Task, record: Option<&Record>) -> Result<usize> {
        let Some(record) = record.filter(|record| record.payload_at != 0) else { return Ok(idx) };
        let row = &self.rows[idx];
        let Some(by_value) = self.by_value.iter().find(|by_value| by_value.is_for(&row.name)) else {
            return Ok(idx);
        };
        let more = by_value.of(self.trace, task, record)?;
        let before = row.values.as_ref().and_then(|values| values.arguments.clone());
        let values = Values { arguments: before.or(more.arguments), result: more.result };
        let values = (values != Values::default()).then(|| Box::new(values));
        let row = Row { name: row.name.clone(), values, source: row.source.clone(), ..Row::default() };
        Ok(match self.idx_of_label.get(&*row.label()) {
            Some(&idx) => idx,
            None => self.add_row(row),
        })
    }

    /// Returns the row of a function by its name in the trace. For a recently called function it does not read the
    /// text.
    fn row_of_known(&mut self, known: &str) -> usize {
        let key = (known.as_ptr().addr(), known.len());
        let place = (key.0 ^ key.0 >> 12) % N_RECENT;
        if self.recent[place].key != key {
            self.recent[place] = Recent { key, idx: self.row(known) };
        }
        self.recent[place].idx
    }

    pub(crate) fn row(&mut self, name: &str) -> usize {
        match self.idx_of_label.get(name) {
            Some(&idx) => idx,
            None => self.add_row(Row { name: name.to_owned(), ..Row::default() }),
        }
    }

    fn add_row(&mut self, row: Row) -> usize {
        if self.rows.len() + 1 >= MAX_ROWS && row.name != OTHERS {
            return self.row(OTHERS);
        }
        let idx = self.rows.len();
        self.idx_of_label.insert(row.label().into_owned(), idx);
        self.found.push((self.task, idx));
        self.rows.push(row);
        idx
    }
}

impl<'t> Collector<'t> for Table<'t> {
    const KEPT: Kept = Kept::Blocks;
    /// Programs have fewer functions, but addresses without names can be any number.
    const MAX_KEPT: usize = 1 << 18;

    fn new(trace: &'t Trace, has_times: bool) -> Self {
        Self::by_values(trace, has_times, &[])
    }

    fn trace(&self) -> &'t Trace {
        self.trace
    }

    fn has_times(&self) -> bool {
        self.spread
    }

    fn apply(&mut self, calls: &mut TaskCalls<'_>, step: &Step, record: Option<&Record>) -> Result<()> {
        match *step {
            Step::Assume { .. } => {
                // Calls of it that are within it do not count again.
                let function = calls.assumed.next_function()?;
                let name = function.map(|(addr, seen_ns)| self.trace.function_name(calls.task, seen_ns, addr));
                let idx = name.map(|name| self.row(&name));
                self.enter(calls, idx);
            }
            Step::Enter { addr, time_ns } => {
                let name = calls.functions.name(time_ns, addr);
                self.nameless_calls += u64::from(matches!(name, Cow::Owned(_)));
                let idx = match name {
                    Cow::Borrowed(known) => self.row_of_known(known),
                    Cow::Owned(name) => self.row(&name),
                };
                if self.trace.has_sources() && self.rows[idx].source.is_none() {
                    let source = self.trace.source(calls.task, time_ns, addr);
                    self.rows[idx].source = source.map(|source| source.to_string());
                }
                let idx = self.row_by_value(idx, calls.task, record)?;
                self.enter(calls, Some(idx));
            }
            // Of those that an exit further out has ended nothing is known.
            Step::Leave(ended) => self.leave(calls, &ended, record.filter(|_| ended.has_exit))?,
            Step::Event { off_cpu: Some((kind, ns)), .. } => {
                self.add_uncounted(0, Some(OffCpuTimes::of(kind, ns)));
                let idx = self.row(kind.name());
                self.add(idx, CallSums::of_off_cpu(ns), true);
            }
            Step::StrayExit { .. } | Step::Event { .. } | Step::Lost { .. } => {}
        }
        Ok(())
    }

    fn enter_known(&mut self, calls: &mut TaskCalls<'_>, name: &str, _addr: u64) {
        let idx = self.row(name);
        self.enter(calls, Some(idx));
    }

    fn close(&mut self, calls: &mut TaskCalls<'_>, ended: &EndedCall) -> Option<(usize, bool)> {
        let idx = match calls.open.pop().flatten() {
            Some(idx) => {
                self.n_open[idx] -= 1;
                idx
            }
            None => {
                let name = self.trace.function_name(calls.task, ended.end_ns, ended.addr?);
                self.row(&name)
            }
        };
        Some((idx, self.n_open.get(idx).is_none_or(|count| *count == 0)))
    }

    fn truncate(&mut self, calls: &mut TaskCalls<'_>, n_open: usize) {
        for idx in calls.open.drain(n_open.min(calls.open.len())..).flatten() {
            self.n_open[idx] -= 1;
        }
    }

    fn add(&mut self, idx: usize, call: CallSums, is_outermost: bool) {
        if self.spread {
            let times = self.rows[idx].times.get_or_insert_default();
            times.add([call.total_ns, call.self_ns], call.costs);
        }
        self.add_sums(idx, if is_outermost { call } else { call.within() }, None);
    }

    fn add_sums(&mut self, idx: usize, other: CallSums, times: Option<Box<CallTimes>>) {
        if self.trace.cost().is_some() {
            self.costs.resize(self.rows.len(), Costs::default());
            self.costs[idx].add(other.costs);
        }
        let sum = &mut self.rows[idx];
        sum.total_ns = sum.total_ns.saturating_add(other.total_ns);
        sum.self_ns = sum.self_ns.saturating_add(other.self_ns);
        sum.calls += other.calls;
        sum.did_not_return += other.did_not_return;
        match (&mut sum.times, times) {
            (Some(sum), Some(times)) => sum.merge(&times),
            (sum @ None, times) => *sum = times,
            (Some(_), None) => {}
        }
    }

    fn add_uncounted(&mut self, nameless_calls: u64, off_cpu: Option<OffCpuTimes>) {
        self.nameless_calls += nameless_calls;
        if let Some(times) = off_cpu {
            self.off_cpu.get_or_insert_default().add(times);
        }
    }

    fn row_of(&mut self, _around: Option<usize>, last: Last<&str>) -> usize {
        self.row(last.name().unwrap_or(OTHERS))
    }

    fn n_rows(&self) -> usize {
        self.rows.len()
    }

    fn key(&self, row: usize) -> (Option<usize>, Last<&str>) {
        (None, Last::Called { name: &self.rows[row].name, addr: 0 })
    }

    fn take(&mut self, row: usize) -> (CallSums, Option<Box<CallTimes>>) {
        let costs = self.costs.get_mut(row).map(std::mem::take).unwrap_or_default();
        let Row { total_ns, self_ns, calls, did_not_return, times, .. } = std::mem::take(&mut self.rows[row]);
        (CallSums { total_ns, self_ns, calls, did_not_return, costs }, times)
    }

    fn uncounted(&self) -> (u64, Option<OffCpuTimes>) {
        (self.nameless_calls, self.off_cpu)
    }
}
