//! Events on the lanes of a timeline, in order of time, on their way to an output: limited to a range, balanced, with
//! times that never decrease.

use std::borrow::Cow;

use rftrace_read::{OffCpu, Record, Result, Task, Trace};

/// Number of a lane: a thread, or a virtual CPU.
pub(super) type Lane = usize;

/// The record of an entry or of an exit, which tells the call's values.
#[derive(Debug, Clone, Copy)]
pub(super) struct Recorded<'m> {
    pub(super) trace: &'m Trace,
    pub(super) task: &'m Task,
    pub(super) record: Record,
}

/// Where a timeline goes.
pub(super) trait Output {
    /// True if it shows times of other things than functions.
    const HAS_SLICES: bool;

    fn enter(&mut self, lane: Lane, time_ns: u64, function: Function<'_>) -> Result<()>;
    fn exit(&mut self, lane: Lane, time_ns: u64, addr: u64, recorded: Option<Recorded<'_>>) -> Result<()>;
    /// The lane has no processor from now on.
    fn switch_out(&mut self, lane: Lane, time_ns: u64, kind: OffCpu) -> Result<()>;
    fn switch_in(&mut self, lane: Lane, time_ns: u64) -> Result<()>;
    fn instant(&mut self, lane: Lane, time_ns: u64, name: &str) -> Result<()>;
    fn counter(&mut self, time_ns: u64, name: &str, value: f64) -> Result<()>;
}

/// A function that is entered.
#[derive(Debug, Clone)]
pub(super) struct Function<'m> {
    pub(super) addr: u64,
    pub(super) name: Cow<'m, str>,
    pub(super) recorded: Option<Recorded<'m>>,
}

impl<'m> Function<'m> {
    /// One that something else than a task's record tells of.
    pub(super) fn without_record(name: impl Into<Cow<'m, str>>) -> Self {
        Self { addr: 0, name: name.into(), recorded: None }
    }
}

/// From when to when the timeline goes, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) from: u64,
    pub(super) to: u64,
}

impl Range {
    /// All times.
    pub(super) const ALL: Self = Self { from: 0, to: u64::MAX };

    fn contains(&self, time_ns: u64) -> bool {
        (self.from..=self.to).contains(&time_ns)
    }
}

/// An open function.
#[derive(Debug)]
struct Frame<'m> {
    addr: u64,
    /// Of one that the output does not know of yet, because it was entered before the range.
    hidden: Option<Function<'m>>,
}

#[derive(Debug, Default)]
struct LaneState<'m> {
    frames: Vec<Frame<'m>>,
    n_hidden: usize,
    is_off_cpu: bool,
    last_ns: u64,
    /// Entered functions that are not passed on: they came after the range, and so do their exits.
    n_late: usize,
}

/// Passes on what happens within a range.
pub(super) struct Stage<'m, O> {
    pub(super) out: O,
    range: Range,
    lanes: Vec<LaneState<'m>>,
    /// Events passed on.
    pub(super) n_events: u64,
}

impl<'m, O: Output> Stage<'m, O> {
    pub(super) fn new(out: O, range: Range, n_lanes: usize) -> Self {
        let lanes = (0..n_lanes).map(|_| LaneState::default()).collect();
        Self { out, range, lanes, n_events: 0 }
    }

    /// A function was entered.
    pub(super) fn enter(&mut self, lane: Lane, time_ns: u64, function: impl FnOnce() -> Function<'m>) -> Result<()> {
        let Some(time_ns) = self.arrive(lane, time_ns)? else {
            let state = &mut self.lanes[lane];
            if state.last_ns < self.range.from {
                let function = function();
                state.frames.push(Frame { addr: function.addr, hidden: Some(function) });
                state.n_hidden += 1;
            } else {
                state.n_late += 1;
            }
            return Ok(());
        };
        self.switch_in(lane, time_ns)?;
        self.n_events += 1;
        let function = function();
        self.lanes[lane].frames.push(Frame { addr: function.addr, hidden: None });
        self.out.enter(lane, time_ns, function)
    }

    /// The innermost open function ended, as a record tells, if it does.
    pub(super) fn exit(&mut self, lane: Lane, time_ns: u64, recorded: Option<Recorded<'_>>) -> Result<()> {
        let (time_ns, recorded) = match self.arrive(lane, time_ns)? {
            Some(time_ns) => (time_ns, recorded),
            None if self.lanes[lane].last_ns < self.range.from => {
                let state = &mut self.lanes[lane];
                let frame = state.frames.pop();
                state.n_hidden -= usize::from(frame.is_some_and(|frame| frame.hidden.is_some()));
                return Ok(());
            }
            None if self.lanes[lane].n_late > 0 => {
                self.lanes[lane].n_late -= 1;
                return Ok(());
            }
            // It was open when the range ended.
            None => (self.show_hidden(lane, self.range.to)?, None),
        };
        self.switch_in(lane, time_ns)?;
        let Some(frame) = self.lanes[lane].frames.pop() else { return Ok(()) };
        self.n_events += 1;
        self.out.exit(lane, time_ns, frame.addr, recorded)
    }

    /// Something happened that has no duration.
    pub(super) fn instant(&mut self, lane: Lane, time_ns: u64, name: &str) -> Result<()> {
        let Some(time_ns) = self.arrive(lane, time_ns)? else { return Ok(()) };
        self.n_events += 1;
        self.out.instant(lane, time_ns, name)
    }

    /// The lane lost its processor, for a reason, or got one. What fits nothing is not passed on.
    pub(super) fn switch(&mut self, lane: Lane, time_ns: u64, off_cpu: Option<OffCpu>) -> Result<()> {
        let Some(time_ns) = self.arrive(lane, time_ns)? else { return Ok(()) };
        let Some(kind) = off_cpu else { return self.switch_in(lane, time_ns) };
        if !std::mem::replace(&mut self.lanes[lane].is_off_cpu, true) {
            self.n_events += 1;
            self.out.switch_out(lane, time_ns, kind)?;
        }
        Ok(())
    }

    /// A counter's value.
    pub(super) fn counter(&mut self, time_ns: u64, name: &str, value: f64) -> Result<()> {
        if self.range.contains(time_ns) {
            self.n_events += 1;
            self.out.counter(time_ns, name, value)?;
        }
        Ok(())
    }

    /// Ends what is open in a lane at its last time, which is within the range.
    pub(super) fn close(&mut self, lane: Lane) -> Result<()> {
        let has_shown = self.lanes[lane].frames.len() > self.lanes[lane].n_hidden;
        if !has_shown && self.lanes[lane].last_ns < self.range.from {
            // All of it was before the range.
            self.lanes[lane].frames.clear();
            return Ok(());
        }
        let time_ns = self.show_hidden(lane, self.lanes[lane].last_ns.min(self.range.to))?;
        self.switch_in(lane, time_ns)?;
        while let Some(frame) = self.lanes[lane].frames.pop() {
            self.n_events += 1;
            self.out.exit(lane, time_ns, frame.addr, None)?;
        }
        Ok(())
    }

    /// Ends what is open in a lane at a time, or at its last one if that is later.
    pub(super) fn close_at(&mut self, lane: Lane, time_ns: u64) -> Result<()> {
        self.lanes[lane].last_ns = self.lanes[lane].last_ns.max(time_ns);
        self.close(lane)
    }

    /// How many functions are open.
    pub(super) fn depth(&self, lane: Lane) -> usize {
        self.lanes[lane].frames.len()
    }

    /// The time of an event, not before the lane's last one; `None` if it is not within the range.
    fn arrive(&mut self, lane: Lane, time_ns: u64) -> Result<Option<u64>> {
        let state = &mut self.lanes[lane];
        state.last_ns = state.last_ns.max(time_ns);
        let time_ns = state.last_ns;
        if !self.range.contains(time_ns) {
            return Ok(None);
        }
        if state.n_hidden > 0 {
            self.show_hidden(lane, time_ns)?;
        }
        Ok(Some(time_ns))
    }

    /// Enters what was open when the range began. Returns `time_ns`.
    fn show_hidden(&mut self, lane: Lane, time_ns: u64) -> Result<u64> {
        let state = &mut self.lanes[lane];
        if std::mem::take(&mut state.n_hidden) > 0 {
            for frame in &mut state.frames {
                if let Some(function) = frame.hidden.take() {
                    self.n_events += 1;
                    self.out.enter(lane, self.range.from, function)?;
                }
            }
        }
        Ok(time_ns)
    }

    fn switch_in(&mut self, lane: Lane, time_ns: u64) -> Result<()> {
        if std::mem::take(&mut self.lanes[lane].is_off_cpu) {
            self.n_events += 1;
            self.out.switch_in(lane, time_ns)?;
        }
        Ok(())
    }
}

/// The later of two times, which becomes the last one.
pub(super) fn in_order(last_ns: &mut u64, time_ns: u64) -> &u64 {
    *last_ns = time_ns.max(*last_ns);
    last_ns
}

#[cfg(test)]
pub(super) mod testing {
    //! An output that keeps what it gets, a line each.

    use rftrace_read::{OffCpu, Result};

    use super::{Function, Lane, Output, Recorded};

    /// An output that has slices or not, and its events: `LANE TIME what`.
    #[derive(Debug, Default)]
    pub(crate) struct Lines<const SLICES: bool>(pub(crate) Vec<String>);

    impl<const SLICES: bool> Lines<SLICES> {
        fn add(&mut self, lane: Lane, time_ns: u64, what: &str) -> Result<()> {
            self.0.push(format!("{lane} {time_ns} {what}"));
            Ok(())
        }
    }

    impl<const SLICES: bool> Output for Lines<SLICES> {
        const HAS_SLICES: bool = SLICES;

        fn enter(&mut self, lane: Lane, time_ns: u64, function: Function<'_>) -> Result<()> {
            self.add(lane, time_ns, &format!("> {}", function.name))
        }

        fn exit(&mut self, lane: Lane, time_ns: u64, _: u64, _: Option<Recorded<'_>>) -> Result<()> {
            self.add(lane, time_ns, "<")
        }

        fn switch_out(&mut self, lane: Lane, time_ns: u64, kind: OffCpu) -> Result<()> {
            self.add(lane, time_ns, &format!("out ({kind:?})"))
        }

        fn switch_in(&mut self, lane: Lane, time_ns: u64) -> Result<()> {
            self.add(lane, time_ns, "in")
        }

        fn instant(&mut self, lane: Lane, time_ns: u64, name: &str) -> Result<()> {
            self.add(lane, time_ns, name)
        }

        fn counter(&mut self, time_ns: u64, name: &str, value: f64) -> Result<()> {
            self.0.push(format!("- {time_ns} {name}={value}"));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::Lines;
    use super::*;

    fn enter(stage: &mut Stage<'static, Lines<true>>, time_ns: u64, name: &'static str) {
        stage.enter(0, time_ns, || Function::without_record(name)).unwrap();
    }

    #[test]
    fn what_is_open_at_the_ends_of_the_range_is_cut() {
        let mut stage = Stage::new(Lines::default(), Range { from: 10, to: 20 }, 1);
        enter(&mut stage, 1, "main");
        enter(&mut stage, 2, "over");
        stage.exit(0, 3, None).unwrap();
        enter(&mut stage, 5, "a");
        enter(&mut stage, 12, "b");
        stage.exit(0, 15, None).unwrap();
        enter(&mut stage, 25, "late");
        stage.exit(0, 26, None).unwrap();
        stage.exit(0, 30, None).unwrap();
        stage.close(0).unwrap();
        assert_eq!(stage.out.0, ["0 10 > main", "0 10 > a", "0 12 > b", "0 15 <", "0 20 <", "0 20 <"]);
        assert_eq!(stage.n_events, 6);
    }

    #[test]
    fn nothing_of_a_lane_that_was_over_before_the_range() {
        let mut stage = Stage::new(Lines::<true>::default(), Range { from: 10, to: 20 }, 1);
        enter(&mut stage, 1, "main");
        stage.close(0).unwrap();
        assert!(stage.out.0.is_empty(), "{:?}", stage.out.0);
    }

    #[test]
    fn times_never_go_back_and_waits_end() {
        let mut stage = Stage::new(Lines::default(), Range::ALL, 2);
        enter(&mut stage, 5, "a");
        stage.switch(0, 3, Some(OffCpu::Waiting)).unwrap();
        stage.switch(0, 6, Some(OffCpu::Preempted)).unwrap();
        stage.exit(0, 4, None).unwrap();
        stage.instant(1, 2, "other lane").unwrap();
        stage.switch(0, 9, None).unwrap();
        stage.exit(0, 9, None).unwrap();
        assert_eq!(stage.out.0, ["0 5 > a", "0 5 out (Waiting)", "0 6 in", "0 6 <", "1 2 other lane"]);
    }
}
