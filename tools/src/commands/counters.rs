//! Resources of a trace's processes over time, which `rftrace dump` and `rftrace view` show beside the calls.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use anyhow::bail;
use rftrace_export::{ExportOptions, Sink};
use rftrace_format::files::{INFO, RESOURCES};
use rftrace_format::resources::Resource;
use rftrace_format::text::base_name;
use rftrace_page::Counter;
use rftrace_read::{Result, Task};
use rftrace_resources::{Recording, timeline};

use super::choice::RangeArgs;

/// Recording of resources.
pub(super) struct Counters {
    recording: Recording,
}

impl Counters {
    /// Those of a trace; `None` if it has none.
    pub(super) fn open(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(RESOURCES);
        if !path.exists() {
            return Ok(None);
        }
        Ok(Some(Self { recording: Recording::open(&path)? }))
    }

    /// Those of a program whose calls were not recorded, if that is one: there is nothing else to be shown.
    pub(super) fn alone(dir: &Path, range: &RangeArgs) -> anyhow::Result<Option<Self>> {
        if dir.join(INFO).exists() {
            return Ok(None);
        }
        let counters = Self::open(dir)?;
        if counters.is_some() && !range.is_everything() {
            bail!(
                "cannot show a part of {}: the trace has no calls; leave out --from, --to, -r and --tid",
                dir.display()
            );
        }
        Ok(counters)
    }

    /// Gives them to a sink: of the chosen range of time, and of the processes that the chosen ones of the trace's tasks are of.
    pub(super) fn write(&self, tasks: &[Task], options: &ExportOptions, sink: &mut dyn Sink) -> Result<()> {
        // Those with calls have their names.
        let mut named: BTreeSet<u32> = tasks.iter().map(|task| task.pid()).collect();
        let times = options.from_ns.unwrap_or(0)..options.to_ns.unwrap_or(u64::MAX);
        self.points(tasks, &options.tids, times, |Point { resource, pid, program, time_ns, value }| {
            if named.insert(pid) {
                sink.process(pid, base_name(program))?;
            }
            sink.counter(pid, time_ns, name(resource), value as f64)
        })
    }

    /// The same for a page, which chooses the range of time.
    pub(super) fn of_page(&self, tasks: &[Task], tids: &[u32]) -> Result<Vec<Counter>> {
        let mut counters: Vec<Counter> = Vec::new();
        let mut places: BTreeMap<(&str, u32), usize> = BTreeMap::new();
        self.points(tasks, tids, 0..u64::MAX, |Point { resource, pid, program, time_ns, value }| {
            let place = *places.entry((name(resource), pid)).or_insert_with(|| {
                let (name, process) = (name(resource).to_owned(), base_name(program).to_owned());
                counters.push(Counter { name, is_bytes: resource.has_bytes(), pid, process, points: Vec::new() });
                counters.len() - 1
            });
            counters[place].points.push((time_ns, value));
            Ok(())
        })?;
        Ok(counters)
    }

    /// Returns the name of the recorded program.
    pub(super) fn title(&self) -> &str {
        let first = self.recording.processes().iter().min_by_key(|(number, _)| **number);
        first.map_or("rftrace", |(_, process)| base_name(&process.program))
    }

    fn points<'r>(
        &'r self,
        tasks: &[Task],
        tids: &[u32],
        times: Range<u64>,
        mut each: impl FnMut(Point<'r>) -> Result<()>,
    ) -> Result<()> {
        let chosen = tasks.iter().filter(|task| tids.contains(&task.tid()));
        let chosen: BTreeSet<u32> = chosen.map(|task| task.pid()).collect();
        for resource in self.recording.resources() {
            // Values before the range.
            let mut waiting: BTreeMap<u32, (&'r str, u64)> = BTreeMap::new();
            timeline(&self.recording, resource, |number, time_ns, value| {
                let Some(process) = self.recording.processes().get(&number) else { return Ok(()) };
                let (pid, program) = (process.pid, process.program.as_str());
                if time_ns >= times.end || !(tids.is_empty() || chosen.contains(&pid)) {
                    return Ok(());
                }
                if time_ns < times.start {
                    waiting.insert(pid, (program, value));
                    return Ok(());
                }
                if let Some((program, value)) = waiting.remove(&pid) {
                    each(Point { resource, pid, program, time_ns: times.start, value })?;
                }
                each(Point { resource, pid, program, time_ns, value })
            })?;
            // Values that do not change in it.
            for (pid, (program, value)) in waiting.into_iter().filter(|&(_, (_, value))| value > 0) {
                each(Point { resource, pid, program, time_ns: times.start, value })?;
            }
        }
        Ok(())
    }
}

/// How much of a resource a process has from some time on.
struct Point<'r> {
    resource: Resource,
    pid: u32,
    program: &'r str,
    time_ns: u64,
    value: u64,
}

/// Returns the name of a counter.
fn name(resource: Resource) -> &'static str {
    match resource {
        Resource::Memory => "bytes of memory",
        Resource::File => "descriptors",
        Resource::Thread => "threads to join",
        Resource::Library => "libraries opened",
        Resource::Specified(specified) => specified.name,
    }
}
