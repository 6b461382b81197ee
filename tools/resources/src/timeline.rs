//! The amount of a resource over time, for a line in a picture.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rftrace_format::resources::Resource;
use rftrace_read::Result;

use crate::live::{Change, Until, follow};
use crate::recording::Recording;

/// So many spans of time are told apart.
const SPANS: u64 = 10_000;

/// Of each of them so many points are told: all, or the most that was there and those that came last.
const POINTS: usize = 4;

/// The amount that a process has.
#[derive(Default)]
struct Line {
    now: u64,
    /// The span that the last event is in.
    span: u64,
    /// The points of its line, in order: ticks and amount.
    points: Vec<(u64, u64)>,
}

impl Line {
    fn push(&mut self, point: (u64, u64)) {
        if self.points.len() == POINTS {
            let most = (0..POINTS).max_by_key(|&at| (self.points[at].1, Reverse(at))).unwrap_or(0);
            // The most is kept, of the others the oldest goes.
            self.points.remove(usize::from(most == 0));
        }
        self.points.push(point);
    }
}

/// Reports the amount of a resource in each process, in bytes of memory or numbers of other resources, at each change.
///
/// `each` gets the process, by its number in the recording, nanoseconds of `CLOCK_MONOTONIC`, which do not decrease for
/// a process, and the amount. For frequent changes it gets only the maximum and the last amount of each ten-thousandth
/// of the time. At the end of a process the amount is 0.
///
/// # Errors
///
/// Those of [`Recording::events`] and of `each`; or there are too many blocks at one time.
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
                line.points.drain(..).chain([(last, 0)]).try_for_each(|point| tell(process, point))?;
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
            line.points.drain(..).try_for_each(|point| tell(event.process, point))?;
            line.span = span;
        }
        line.now = line.now.saturating_add(more).saturating_sub(less);
        line.push((event.ticks, line.now));
        Ok(())
    })?;
    for (last, process) in ends.into_iter().rev() {
        if let Some(mut line) = lines.remove(&process) {
            line.points.drain(..).chain([(last, 0)]).try_for_each(|point| tell(process, point))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(values: &[u64]) -> Vec<(u64, u64)> {
        let mut line = Line::default();
        for (ticks, &much) in (0..).zip(values) {
            line.push((ticks, much));
        }
        line.points
    }

    #[test]
    fn what_changes_seldom_is_told_whole() {
        assert_eq!(told(&[1, 2, 1, 0]), [(0, 1), (1, 2), (2, 1), (3, 0)]);
    }

    #[test]
    fn of_many_the_most_and_the_last_ones_are_told() {
        assert_eq!(told(&[1, 2, 9, 2, 1, 9, 4, 3, 0]), [(2, 9), (6, 4), (7, 3), (8, 0)]);
        assert_eq!(told(&[1, 2, 3, 4, 5, 6]), [(2, 3), (3, 4), (4, 5), (5, 6)]);
        assert_eq!(told(&[6, 5, 4, 3, 2, 1]), [(0, 6), (3, 3), (4, 2), (5, 1)]);
    }
}
