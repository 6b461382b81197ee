//! How much of a resource was there from time to time, for a line in a picture.

use std::collections::BTreeMap;

use rftrace_format::resources::Resource;
use rftrace_read::Result;

use crate::live::{Change, Until, follow};
use crate::recording::Recording;

/// So many spans of time are told apart: of each the most that was there, and what was there last.
const SPANS: u64 = 10_000;

/// What a process has.
#[derive(Default)]
struct Line {
    now: u64,
    /// The span that the last event is in.
    span: u64,
    /// When the last event was, and when there was most in its span; ticks and how much. `None` where that was told.
    last: Option<(u64, u64)>,
    most: Option<(u64, u64)>,
}

impl Line {
    /// What was not told of the present span, in order.
    fn take(&mut self) -> impl Iterator<Item = (u64, u64)> {
        let (most, last) = (self.most.take(), self.last.take());
        most.filter(|most| Some(*most) != last).into_iter().chain(last)
    }
}

/// Tells of each process how much of a resource it has, in bytes of memory or numbers of the others, whenever that changes; where it changes often only the most and
/// the last of a ten-thousandth of the time. `each` gets the process by its number in the recording, nanoseconds of `CLOCK_MONOTONIC`, which
/// do not go back for a process, and how much that is. At the end of a process it is 0.
///
/// # Errors
///
/// Those of [`Recording::events`] and of `each`; or there is too much at a time.
pub fn timeline(
    recording: &Recording,
    resource: Resource,
    mut each: impl FnMut(u32, u64, u64) -> Result<()>,
) -> Result<()> {
    let first = recording.processes().values().map(|process| process.first).min().unwrap_or(0);
    let last = recording.processes().values().map(|process| process.last).max().unwrap_or(0);
    let span_ticks = (last.saturating_sub(first) / SPANS).max(1);
    let mut lines: BTreeMap<u32, Line> = BTreeMap::new();
    let mut tell = |process, (ticks, much)| each(process, recording.nanos(ticks), much);
    // Processes by their last events, the first one last.
    let mut ends: Vec<(u64, u32)> =
        recording.processes().iter().map(|(&number, process)| (process.last, number)).collect();
    ends.sort_unstable_by(|a, b| b.cmp(a));
    follow(recording, resource, Until::End, None, |live, event| {
        while let Some((last, process)) = ends.pop_if(|(last, _)| *last < event.ticks) {
            if let Some(mut line) = lines.remove(&process) {
                line.take().chain([(last, 0)]).try_for_each(|point| tell(process, point))?;
            }
        }
        let (more, less) = match live.follow(event, || event.bytes) {
            Change::Taken { replaced, .. } => (event.bytes, replaced.unwrap_or(0)),
            Change::GivenBack(bytes) => (0, bytes),
            _ => return Ok(()),
        };
        let line = lines.entry(event.process).or_default();
        let span = event.ticks / span_ticks;
        if line.span != span {
            line.take().try_for_each(|point| tell(event.process, point))?;
            line.span = span;
        }
        line.now = line.now.saturating_add(more).saturating_sub(less);
        let point = (event.ticks, line.now);
        line.last = Some(point);
        if line.most.is_none_or(|(_, most)| line.now > most) {
            line.most = Some(point);
        }
        Ok(())
    })?;
    for (last, process) in ends.into_iter().rev() {
        if let Some(mut line) = lines.remove(&process) {
            line.take().chain([(last, 0)]).try_for_each(|point| tell(process, point))?;
        }
    }
    Ok(())
}
