//! A merged timeline in the formats that have a [`Sink`].

use std::collections::HashSet;

use rftrace_export::{Sink, Track};
use rftrace_read::{OffCpu, Result, Summary};

use super::scan::KvmThread;
use super::stage::{Function, Lane, Output, Recorded};
use super::timeline::{Merge, Of};

/// The process that counters are shown at.
const COUNTERS: &str = "perf stat";

struct SinkOutput<'s> {
    sink: &'s mut dyn Sink,
    tracks: Vec<Track>,
    counters_pid: u32,
}

impl Output for SinkOutput<'_> {
    const HAS_SLICES: bool = true;

    fn enter(&mut self, lane: Lane, time_ns: u64, function: Function<'_>) -> Result<()> {
        match &*values(function.recorded)? {
            [] => self.sink.enter(self.tracks[lane], time_ns, &function.name),
            arguments => self.sink.enter_with(self.tracks[lane], time_ns, &function.name, arguments),
        }
    }

    fn exit(&mut self, lane: Lane, time_ns: u64, _: u64, recorded: Option<Recorded<'_>>) -> Result<()> {
        match &*values(recorded)? {
            [] => self.sink.exit(self.tracks[lane], time_ns),
            [result, ..] => self.sink.exit_with(self.tracks[lane], time_ns, result),
        }
    }

    fn switch_out(&mut self, lane: Lane, time_ns: u64, kind: OffCpu) -> Result<()> {
        self.sink.enter(self.tracks[lane], time_ns, kind.name())
    }

    fn switch_in(&mut self, lane: Lane, time_ns: u64) -> Result<()> {
        self.sink.exit(self.tracks[lane], time_ns)
    }

    fn instant(&mut self, lane: Lane, time_ns: u64, name: &str) -> Result<()> {
        self.sink.instant(self.tracks[lane], time_ns, name)
    }

    fn counter(&mut self, time_ns: u64, name: &str, value: f64) -> Result<()> {
        self.sink.counter(self.counters_pid, time_ns, name, value)
    }
}

fn values(recorded: Option<Recorded<'_>>) -> Result<Vec<String>> {
    recorded.map_or(Ok(Vec::new()), |Recorded { trace, task, record }| trace.values(task, &record))
}

impl Merge {
    /// Passes the timeline to `sink`, in order of time over all tracks, and finishes it.
    ///
    /// The time from a `kvm_entry` to the next `kvm_exit` of its thread is a function `kvm:guest`. The time from the
    /// exit to the next entry is a function with the exit's reason as its name.
    ///
    /// # Errors
    ///
    /// A source cannot be read or is malformed, or the sink fails.
    pub fn export(&self, sink: &mut dyn Sink) -> Result<Summary> {
        let mut named = HashSet::new();
        for lane in &self.lanes {
            let (process, thread) = self.names(lane.of);
            if named.insert(lane.track.pid) {
                sink.process(lane.track.pid, &process)?;
            }
            sink.thread(lane.track, &thread)?;
        }
        let counters_pid = (1..).find(|pid| !named.contains(pid)).unwrap_or(u32::MAX);
        if self.has_counters() {
            sink.process(counters_pid, COUNTERS)?;
        }
        let tracks = self.lanes.iter().map(|lane| lane.track).collect();
        let (_, summary) = self.run(SinkOutput { sink: &mut *sink, tracks, counters_pid })?;
        sink.finish()?;
        Ok(summary)
    }

    /// The names of a lane's process and of the lane itself.
    fn names(&self, of: Of) -> (String, String) {
        match of {
            Of::Task { source, task } => {
                let source = &self.sources[source];
                let task = &source.trace.tasks()[task];
                let role = if source.is_guest { "guest" } else { "host" };
                (format!("{role}: {}", task.process_name()), format!("{role} {} {}", task.name(), task.tid()))
            }
            Of::Kvm { tid } => {
                let name = self.kvm_threads.get(&tid).map_or_else(String::new, KvmThread::name);
                ("host: KVM".to_owned(), name)
            }
        }
    }
}
