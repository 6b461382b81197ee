//! A task's records as a feed.

use rftrace_format::events::DID_NOT_RETURN_NAME;
use rftrace_read::{OffCpu, Record, Records, Result, SCHED_IN, Task, Warnings};
use rftrace_views::{AssumedFunctions, CallStack, Step};

use super::source::Source;
use super::stage::{Function, Lane, Output, Recorded, Stage, in_order};

/// A task's records.
pub(super) struct TaskFeed<'m> {
    source: &'m Source,
    task: &'m Task,
    lane: Lane,
    records: Records<'m>,
    stack: CallStack,
    steps: Vec<Step>,
    head: Option<Record>,
    time_ns: u64,
    assumed: AssumedFunctions<'m>,
}

impl<'m> TaskFeed<'m> {
    /// One of so many that are read at a time.
    pub(super) fn new(source: &'m Source, task: &'m Task, lane: Lane, n_feeds: usize) -> Self {
        Self {
            source,
            task,
            lane,
            records: source.trace.records_among(task, n_feeds),
            stack: CallStack::new(),
            steps: Vec::new(),
            head: None,
            time_ns: 0,
            assumed: AssumedFunctions::new(&source.trace, task),
        }
    }

    /// Goes on to the next record. Returns its time.
    pub(super) fn advance(&mut self) -> Result<Option<u64>> {
        self.head = self.records.next().transpose()?;
        let Some(record) = &self.head else { return Ok(None) };
        Ok(Some(*in_order(&mut self.time_ns, self.source.times.map(record.time_ns))))
    }

    /// Passes the record on that [`TaskFeed::advance`] went to.
    pub(super) fn pass<O: Output>(&mut self, stage: &mut Stage<'m, O>) -> Result<()> {
        let Some(record) = self.head.take() else { return Ok(()) };
        let (trace, task, lane, time_ns) = (&self.source.trace, self.task, self.lane, self.time_ns);
        let mut steps = std::mem::take(&mut self.steps);
        self.stack.apply(&record, |a, b| trace.same_function(task, record.time_ns, a, b), &mut steps);
        let recorded = Some(Recorded { trace, task, record });
        for step in &steps {
            match *step {
                Step::Enter { addr, time_ns: own_ns } => {
                    let name = || trace.function_name(task, own_ns, addr);
                    stage.enter(lane, time_ns, || Function { addr, name: name(), recorded })?;
                }
                // Of those that an exit further out has ended nothing is known.
                Step::Leave(ended) => {
                    if ended.did_not_return {
                        stage.instant(lane, time_ns, DID_NOT_RETURN_NAME)?;
                    }
                    stage.exit(lane, time_ns, recorded.filter(|_| ended.has_exit))?;
                }
                Step::Assume { .. } => {
                    let function = self.assumed.next_function()?;
                    stage.enter(lane, time_ns, || match function {
                        Some((addr, seen_ns)) => {
                            Function { addr, name: trace.function_name(task, seen_ns, addr), recorded: None }
                        }
                        None => Function::without_record("<unknown>"),
                    })?;
                }
                Step::Event { id, .. } => match OffCpu::of_event(id) {
                    None if id == SCHED_IN => stage.switch(lane, time_ns, None)?,
                    None => stage.instant(lane, time_ns, &trace.events().name(id))?,
                    kind => stage.switch(lane, time_ns, kind)?,
                },
                Step::Lost { count } => stage.instant(lane, time_ns, &format!("rftrace:lost_{count}_records"))?,
                Step::StrayExit { .. } => {}
            }
        }
        self.steps = steps;
        Ok(())
    }

    /// Ends what is open.
    pub(super) fn finish<O: Output>(&self, stage: &mut Stage<'m, O>, warnings: &mut Warnings) -> Result<()> {
        warnings.merge(self.records.warnings());
        warnings.merge(self.stack.warnings());
        stage.close(self.lane)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rftrace_format::clock::TscClock;
    use rftrace_read::{Kind, SCHED_OUT, SCHED_OUT_PREEMPTED, Trace};

    use super::super::ids::Ids;
    use super::super::offsets::Offsets;
    use super::super::source::Times;
    use super::super::stage::Range;
    use super::super::stage::testing::Lines;
    use super::*;

    /// The output for a task's records on lane 0, with times in ticks of half a nanosecond.
    fn run(records: &[(Kind, u64, u16, u64)]) -> (Vec<String>, Warnings) {
        let dir = tempfile::tempdir().unwrap();
        let mut info = b"Ftrace!\0\x04\0\0\0\x28\0\x01\x02".to_vec();
        for word in [0_u64, 0, 1024] {
            info.extend(word.to_le_bytes());
        }
        fs::write(dir.path().join("info"), info).unwrap();
        fs::write(dir.path().join("task.txt"), "TASK timestamp=0.000000001 tid=7 pid=7\n").unwrap();
        let record = |&(kind, time_ns, depth, addr)| {
            Record { time_ns, kind, has_payload: false, payload_at: 0, depth, addr }.encode()
        };
        fs::write(dir.path().join("7.dat"), records.iter().map(record).collect::<Vec<_>>().concat()).unwrap();

        let reference = TscClock { tsc: 0, nanos: 0, nanos_per_2_32_ticks: 1 << 31 };
        let times = Times::Ticks { offsets: Offsets::constant(0), reference };
        let trace = Trace::open(dir.path()).unwrap();
        let source = Source::new(trace, true, times, &mut Ids::default()).unwrap();
        let mut feed = TaskFeed::new(&source, &source.trace.tasks()[0], 0, 1);
        let mut stage = Stage::new(Lines::<true>::default(), Range::ALL, 1);
        while feed.advance().unwrap().is_some() {
            feed.pass(&mut stage).unwrap();
        }
        let mut warnings = Warnings::default();
        feed.finish(&mut stage, &mut warnings).unwrap();
        (stage.out.0, warnings)
    }

    #[test]
    fn calls_waits_and_events_by_the_timelines_clock() {
        let (lines, warnings) = run(&[
            (Kind::Entry, 20, 0, 0x100),
            (Kind::Event, 24, 1, SCHED_OUT),
            (Kind::Event, 28, 1, SCHED_IN),
            (Kind::Lost, 30, 1, 3),
            (Kind::Event, 32, 1, SCHED_OUT_PREEMPTED),
            (Kind::Exit, 40, 0, 0x100),
        ]);
        let switches =
            ["0 12 out (Waiting)", "0 14 in", "0 15 rftrace:lost_3_records", "0 16 out (Preempted)", "0 20 in"];
        assert_eq!(lines, [&["0 10 > <100>"], &switches[..], &["0 20 <"]].concat());
        assert_eq!(warnings.iter().map(|(_, count)| count).sum::<u64>(), 3, "those that are lost: {warnings}");
    }

    #[test]
    fn what_was_open_before_has_the_name_that_its_exit_tells() {
        let (lines, _) = run(&[(Kind::Entry, 20, 2, 0x300), (Kind::Exit, 22, 2, 0x300), (Kind::Exit, 24, 1, 0x200)]);
        assert_eq!(lines, ["0 10 > <unknown>", "0 10 > <200>", "0 10 > <300>", "0 11 <", "0 12 <", "0 12 <"]);
    }
}
