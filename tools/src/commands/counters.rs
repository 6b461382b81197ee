//! What `rftrace dump` shows beside the calls of a trace: how much of each resource its processes have.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rftrace_export::{ExportOptions, Sink};
use rftrace_format::files::RESOURCES;
use rftrace_format::resources::Resource;
use rftrace_format::text::base_name;
use rftrace_read::{Result, Task};
use rftrace_resources::{Recording, timeline};

/// What was recorded of resources.
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

    /// Gives them to a sink: of the chosen range of time, and of the processes that the chosen ones of the trace's tasks are of.
    pub(super) fn write(&self, tasks: &[Task], options: &ExportOptions, sink: &mut dyn Sink) -> Result<()> {
        let chosen = tasks.iter().filter(|task| options.tids.contains(&task.tid()));
        let chosen: BTreeSet<u32> = chosen.map(|task| task.pid()).collect();
        // Those with calls have their names.
        let mut named: BTreeSet<u32> = tasks.iter().map(|task| task.pid()).collect();
        let (from_ns, to_ns) = (options.from_ns.unwrap_or(0), options.to_ns.unwrap_or(u64::MAX));
        for resource in self.recording.resources() {
            let name = name(resource);
            // What there was before the range.
            let mut waiting: BTreeMap<u32, u64> = BTreeMap::new();
            timeline(&self.recording, resource, |number, time_ns, value| {
                let Some(process) = self.recording.processes().get(&number) else { return Ok(()) };
                let pid = process.pid;
                if time_ns >= to_ns || !(options.tids.is_empty() || chosen.contains(&pid)) {
                    return Ok(());
                }
                if time_ns < from_ns {
                    waiting.insert(pid, value);
                    return Ok(());
                }
                if named.insert(pid) {
                    sink.process(pid, base_name(&process.program))?;
                }
                if let Some(value) = waiting.remove(&pid) {
                    sink.counter(pid, from_ns, name, value as f64)?;
                }
                sink.counter(pid, time_ns, name, value as f64)
            })?;
            // What does not change in it.
            for (pid, value) in waiting.into_iter().filter(|&(_, value)| value > 0) {
                sink.counter(pid, from_ns, name, value as f64)?;
            }
        }
        Ok(())
    }
}

/// What is counted.
fn name(resource: Resource) -> &'static str {
    match resource {
        Resource::Memory => "bytes of memory",
        Resource::File => "descriptors",
        Resource::Thread => "threads to join",
        Resource::Library => "libraries opened",
        Resource::Specified(specified) => specified.name,
    }
}
