//! Quantities over time, beside the calls: how much memory a process has.

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

/// The most points of all quantities of a page: some 16 MB of text.
const MAX_POINTS: usize = 1 << 20;

/// A quantity of a process over time. Each value holds until the next one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The name of the quantity: `bytes of memory`.
    pub name: String,
    /// True for a number of bytes.
    pub is_bytes: bool,
    /// The process's PID.
    pub pid: u32,
    /// The process's name; empty if it is unknown.
    pub process: String,
    /// The times in nanoseconds of the trace's clock, ascending, and the values from then on.
    pub points: Vec<(u64, u64)>,
}

/// Those of a page.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    all: Vec<Counter>,
    /// Time 0 of the page.
    base_ns: u64,
}

impl Counters {
    /// The part of these that is in a range of time, since `base_ns`; and what is to be said of those that have no room.
    pub(crate) fn new(mut all: Vec<Counter>, base_ns: u64, (begin, end): (u64, u64)) -> (Self, Option<String>) {
        let (from, to) = (base_ns.saturating_add(begin), base_ns.saturating_add(end));
        for counter in &mut all {
            counter.points.retain(|&(time, _)| time <= to);
            let first = counter.points.partition_point(|&(time, _)| time <= from).saturating_sub(1);
            counter.points.drain(..first);
            if let Some((time, _)) = counter.points.first_mut() {
                *time = (*time).max(from);
            }
        }
        let n_all = all.len();
        let mut n_points = 0_usize;
        all.retain(|counter| {
            n_points = n_points.saturating_add(counter.points.len());
            n_points <= MAX_POINTS
        });
        let n_lost = n_all - all.len();
        all.retain(|counter| counter.points.iter().any(|&(_, value)| value > 0));
        let lost =
            || format!("{n_lost} counters of resources are not in the page: it holds at most {MAX_POINTS} changes");
        (Self { all, base_ns }, (n_lost > 0).then(lost))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

impl Serialize for Counters {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.all.iter().map(|counter| Written { counter, base_ns: self.base_ns }))
    }
}

/// As the page reads it: each time since the one before, the first since the page's time 0.
struct Written<'c> {
    counter: &'c Counter,
    base_ns: u64,
}

impl Serialize for Written<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Counter { name, is_bytes, pid, process, points } = self.counter;
        let mut before = self.base_ns;
        let times: Vec<u64> = points
            .iter()
            .map(|&(time, _)| {
                let since = time.saturating_sub(before);
                before = before.max(time);
                since
            })
            .collect();
        let values: Vec<u64> = points.iter().map(|&(_, value)| value).collect();
        let mut written = serializer.serialize_struct("Counter", 6)?;
        written.serialize_field("name", name)?;
        written.serialize_field("isBytes", is_bytes)?;
        written.serialize_field("pid", pid)?;
        written.serialize_field("process", process)?;
        written.serialize_field("times", &times)?;
        written.serialize_field("values", &values)?;
        written.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(points: &[(u64, u64)]) -> Counter {
        let name = "bytes of memory".to_owned();
        Counter { name, is_bytes: true, pid: 7, process: "prog".to_owned(), points: points.to_vec() }
    }

    fn points(all: Vec<Counter>, range: (u64, u64)) -> Vec<Vec<(u64, u64)>> {
        let (counters, lost) = Counters::new(all, 1000, range);
        assert_eq!(lost, None);
        counters.all.into_iter().map(|counter| counter.points).collect()
    }

    #[test]
    fn a_range_begins_with_what_there_was() {
        let all = [(900, 1), (1010, 5), (1020, 7), (1030, 0)];
        assert_eq!(points(vec![counter(&all)], (0, 100)), [[(1000, 1), (1010, 5), (1020, 7), (1030, 0)]]);
        assert_eq!(points(vec![counter(&all)], (15, 25)), [[(1015, 5), (1020, 7)]]);
        assert_eq!(points(vec![counter(&all)], (20, 20)), [[(1020, 7)]]);
        // A counter that is 0 all the time is not shown.
        assert!(points(vec![counter(&all)], (30, 40)).is_empty());
        assert!(points(vec![counter(&[(2000, 1)]), counter(&[])], (0, 100)).is_empty());
    }

    #[test]
    fn times_are_written_since_the_one_before() {
        let (counters, _) = Counters::new(vec![counter(&[(1010, 5), (1030, 0)])], 1000, (0, 100));
        let text = serde_json::to_string(&counters).unwrap();
        let expected =
            r#"[{"name":"bytes of memory","isBytes":true,"pid":7,"process":"prog","times":[10,20],"values":[5,0]}]"#;
        assert_eq!(text, expected);
    }

    #[test]
    fn what_has_no_room_is_told() {
        let many: Vec<(u64, u64)> = (0..MAX_POINTS as u64).map(|time| (1000 + time, 1)).collect();
        let (counters, lost) = Counters::new(vec![counter(&many), counter(&[(1000, 1)])], 1000, (0, u64::MAX));
        assert_eq!(counters.all.len(), 1);
        assert!(lost.unwrap().starts_with("1 counters of resources"));
    }
}
