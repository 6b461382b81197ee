//! The sources as feeds: each returns its events in order of time.

use std::collections::HashMap;

use rftrace_read::{Result, Warnings};

use super::counters::Counters;
use super::kvm_feed::KvmFeed;
use super::perf::{PerfSwitch, SwitchFile};
use super::stage::{Lane, Output, Stage, in_order};
use super::task_feed::TaskFeed;

/// Something that tells events in order of time.
pub(super) enum Feed<'m> {
    Task(Box<TaskFeed<'m>>),
    Kvm(Box<KvmFeed>),
    Switches { source: SwitchFile, lane_of_tid: HashMap<u32, Lane>, head: Option<PerfSwitch>, last_ns: u64 },
    Counters { counters: Counters, start_ns: Option<u64>, head: Option<(u64, String, f64)>, last_ns: u64 },
}

impl<'m> Feed<'m> {
    /// Goes on to the next event. Returns its time. `first_ns` is when the first event of the feeds before this one is.
    pub(super) fn advance(&mut self, first_ns: Option<u64>) -> Result<Option<u64>> {
        match self {
            Self::Task(feed) => feed.advance(),
            Self::Kvm(feed) => feed.advance(),
            Self::Switches { source, lane_of_tid, head, last_ns } => {
                *head = loop {
                    match source.next()? {
                        Some(switch) if !lane_of_tid.contains_key(&switch.tid) => {}
                        next => break next,
                    }
                };
                Ok(head.map(|switch| *in_order(last_ns, switch.nanos)))
            }
            Self::Counters { counters, start_ns, head, last_ns } => {
                let start_ns = *start_ns.get_or_insert(first_ns.unwrap_or(0));
                *head = counters.next()?.map(|sample| {
                    let time_ns = *in_order(last_ns, start_ns.saturating_add(sample.nanos));
                    (time_ns, sample.name.to_owned(), sample.value)
                });
                Ok(head.as_ref().map(|&(time_ns, ..)| time_ns))
            }
        }
    }

    /// Passes the event on that [`Feed::advance`] went to.
    pub(super) fn pass<O: Output>(&mut self, stage: &mut Stage<'m, O>) -> Result<()> {
        match self {
            Self::Task(feed) => feed.pass(stage),
            Self::Kvm(feed) => feed.pass(stage),
            Self::Switches { lane_of_tid, head, last_ns, .. } => {
                let Some(switch) = head.take() else { return Ok(()) };
                match lane_of_tid.get(&switch.tid) {
                    Some(&lane) => stage.switch(lane, *last_ns, switch.off_cpu),
                    None => Ok(()),
                }
            }
            Self::Counters { head, .. } => match head.take() {
                Some((time_ns, name, value)) => stage.counter(time_ns, &name, value),
                None => Ok(()),
            },
        }
    }

    /// Ends what is open.
    pub(super) fn finish<O: Output>(&mut self, stage: &mut Stage<'m, O>, warnings: &mut Warnings) -> Result<()> {
        match self {
            Self::Task(feed) => feed.finish(stage, warnings),
            Self::Kvm(feed) => feed.finish(stage),
            Self::Switches { .. } | Self::Counters { .. } => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::stage::Range;
    use super::super::stage::testing::Lines;
    use super::*;

    /// The times that a feed tells, and what it passes on.
    fn run(mut feed: Feed<'_>, first_ns: Option<u64>) -> (Vec<u64>, Vec<String>) {
        let mut stage = Stage::new(Lines::<true>::default(), Range::ALL, 1);
        let mut times = Vec::new();
        while let Some(time_ns) = feed.advance(first_ns).unwrap() {
            times.push(time_ns);
            feed.pass(&mut stage).unwrap();
        }
        feed.finish(&mut stage, &mut Warnings::default()).unwrap();
        (times, stage.out.0)
    }

    fn file(text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("perf.txt");
        fs::write(&path, text).unwrap();
        (dir, path)
    }

    #[test]
    fn switches_of_threads_that_have_a_lane() {
        let line = |nanos, prev, state, next| {
            format!(
                "a 1 [000] 0.00000000{nanos}: sched:sched_switch: prev_comm=a prev_pid={prev} prev_prio=120 prev_state={state} ==> \
                 next_comm=b next_pid={next} next_prio=120\n"
            )
        };
        let (_dir, path) = file(&[line(1, 7, "R", 8), line(5, 9, "S", 7), line(3, 7, "S", 9)].concat());
        let source = SwitchFile::open(&path, false).unwrap();
        let feed = Feed::Switches { source, lane_of_tid: HashMap::from([(7, 0)]), head: None, last_ns: 0 };
        // The last one is earlier than that before it.
        let (times, lines) = run(feed, None);
        assert_eq!(times, [1, 5, 5]);
        assert_eq!(lines, ["0 1 out (Preempted)", "0 5 in", "0 5 out (Waiting)"]);
    }

    #[test]
    fn counters_begin_with_the_first_event_for_want_of_a_better_time() {
        let (_dir, path) = file("0.000000100,5,,cycles,1,100.00,,\n0.000000200,7,,cycles,1,100.00,,\n");
        let feed = |start_ns| {
            let counters = Counters::open(&path).unwrap();
            Feed::Counters { counters, start_ns, head: None, last_ns: 0 }
        };
        assert_eq!(run(feed(None), Some(40)).1, ["- 140 cycles=5", "- 240 cycles=7"]);
        assert_eq!(run(feed(Some(1000)), Some(40)).1, ["- 1100 cycles=5", "- 1200 cycles=7"]);
    }
}
