//! All sources on one timeline.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::path::PathBuf;

use rftrace_export::Track;
use rftrace_format::clock::TscClock;
use rftrace_read::{Error, Result, Summary, Trace, Warnings};

use super::alignment::{self, ClockOf};
use super::counters::{Counters, Start};
use super::feed::Feed;
use super::ids::Ids;
use super::kvm::KvmEvents;
use super::kvm_feed::KvmFeed;
use super::offsets::Offsets;
use super::perf::{PerfKind, SwitchFile, kind_of_perf};
use super::scan::{KvmScan, KvmThread};
use super::source::{Source, Times};
use super::stage::{Output, Range, Stage};
use super::task_feed::TaskFeed;

/// The sources and options of a merge.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct MergeOptions {
    /// The guest's trace directory.
    pub guest: PathBuf,
    /// The trace directories of programs on the host.
    pub hosts: Vec<PathBuf>,
    /// The files of KVM's events: `trace.dat`, text, or the folder of a tracefs instance.
    pub kvm: Vec<PathBuf>,
    /// The files of perf: counters of `perf stat -I -x`, or context switches as `perf.data` or text.
    pub perf: Vec<PathBuf>,
    /// The ticks of the host's time stamp counter in a millisecond; it overrides the directories.
    pub tsc_khz: Option<u64>,
    /// The guest's ticks minus the host's ticks; it overrides KVM's events.
    pub tsc_offset: Option<i64>,
    /// True to leave out events before the guest's first record and after its last.
    pub cut: bool,
}

/// Sources with a common clock, ready to be written.
pub struct Merge {
    pub(super) sources: Vec<Source>,
    kvm: Vec<PathBuf>,
    pub(super) kvm_threads: BTreeMap<u32, KvmThread>,
    /// When KVM's first event was, in ticks.
    kvm_first: Option<u64>,
    switches: Vec<(PathBuf, bool)>,
    counters: Vec<PathBuf>,
    pub(super) reference: TscClock,
    pub(super) cut: Option<Range>,
    pub(super) lanes: Vec<LaneInfo>,
    notes: Vec<String>,
    progress: Option<Box<dyn Fn(u64)>>,
}

impl std::fmt::Debug for Merge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Merge")
            .field("sources", &self.sources)
            .field("kvm", &self.kvm)
            .field("switches", &self.switches)
            .field("counters", &self.counters)
            .field("reference", &self.reference)
            .field("cut", &self.cut)
            .finish_non_exhaustive()
    }
}

/// The subject of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// A task of a source.
    Task { source: usize, task: usize },
    /// A thread that KVM ran a guest in.
    Kvm { tid: u32 },
}

#[derive(Debug)]
pub(super) struct LaneInfo {
    pub(super) of: Of,
    pub(super) track: Track,
}

impl Merge {
    /// Reads the metadata of all sources, searches KVM's events for clock offsets, and finds the clock of the timeline:
    /// CLOCK_MONOTONIC of the host, from a host's directory, or without one the guest's clock.
    ///
    /// # Errors
    ///
    /// A source cannot be read, or the relation between its clock and the others is unknown.
    pub fn open(options: &MergeOptions) -> Result<Self> {
        let mut notes = Vec::new();
        let guest_trace = Trace::open(&options.guest)?;
        let guest = ClockOf::read(&options.guest)?;
        let (mut host_traces, mut hosts) = (Vec::new(), Vec::new());
        for dir in &options.hosts {
            host_traces.push(Trace::open(dir)?);
            hosts.push(ClockOf::read(dir)?);
        }
        let kvm = KvmScan::read(&options.kvm, &mut notes)?;
        let offsets = match options.tsc_offset {
            Some(offset) => Offsets::constant(offset),
            None => alignment::offsets(&guest, &hosts, &kvm.offsets, !options.kvm.is_empty(), &mut notes)?,
        };
        let reference = alignment::reference(&guest, &hosts, &offsets, options.tsc_khz, &mut notes)?;
        alignment::warn_of_rates(&guest, &reference, &mut notes);
        alignment::warn_of_distance(&guest, &hosts, &offsets, &mut notes);

        let mut ids = Ids::default();
        let guest_times = match &guest.file {
            Some(file) => Times::Tsc { own: file.clock, offsets, reference },
            None => Times::Ticks { offsets, reference },
        };
        let mut sources = vec![Source::new(guest_trace, true, guest_times, &mut ids)?];
        for (trace, host) in host_traces.into_iter().zip(&hosts) {
            let times = match &host.file {
                Some(file) if file.clock != reference => {
                    Times::Tsc { own: file.clock, offsets: Offsets::constant(0), reference }
                }
                _ => Times::Same,
            };
            sources.push(Source::new(trace, false, times, &mut ids)?);
        }
        let (mut switches, mut counters) = (Vec::new(), Vec::new());
        for path in &options.perf {
            match kind_of_perf(path)? {
                PerfKind::Counters => counters.push(path.clone()),
                PerfKind::Data => switches.push((path.clone(), true)),
                PerfKind::Script => switches.push((path.clone(), false)),
            }
        }
        let mut merge = Self {
            sources,
            kvm: options.kvm.clone(),
            kvm_threads: kvm.threads,
            kvm_first: kvm.first,
            switches,
            counters,
            reference,
            cut: None,
            lanes: Vec::new(),
            notes,
            progress: None,
        };
        merge.make_lanes(&mut ids)?;
        if merge.guesses_start_of_counters()? {
            merge.notes.push(
                "the start of perf stat is unknown: its counters begin with the timeline; for ticks, put a line `rdtsc TICKS` \
                 before them"
                    .to_owned(),
            );
        }
        if options.cut {
            merge.cut = Some(merge.guest_range()?);
        }
        Ok(merge)
    }

    /// Returns notes for the user on the alignment of the clocks, a line each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Sets a function that is called with the number of written events from time to time.
    pub fn on_progress(&mut self, progress: impl Fn(u64) + 'static) {
        self.progress = Some(Box::new(progress));
    }

    /// Returns the traces: the guest's first, then those of the hosts in their order.
    pub fn traces(&self) -> impl Iterator<Item = &Trace> {
        self.sources.iter().map(|source| &source.trace)
    }

    /// A lane for each task that has records, and for each thread of KVM's events.
    fn make_lanes(&mut self, ids: &mut Ids) -> Result<()> {
        for (source_idx, source) in self.sources.iter().enumerate() {
            for (task_idx, task) in source.trace.tasks().iter().enumerate() {
                if source.trace.records(task).next().transpose()?.is_some() {
                    let track = Track { pid: task.pid() + source.shift, tid: task.tid() + source.shift };
                    self.lanes.push(LaneInfo { of: Of::Task { source: source_idx, task: task_idx }, track });
                }
            }
        }
        // One process for all; the threads have their numbers where a traced program has not the same thread.
        let mut pid = None;
        for &tid in self.kvm_threads.keys() {
            let unique = ids.unused(tid)?;
            let pid = *pid.get_or_insert(unique);
            self.lanes.push(LaneInfo { of: Of::Kvm { tid }, track: Track { pid, tid: unique } });
        }
        Ok(())
    }

    /// From the guest's first record to its last.
    fn guest_range(&self) -> Result<Range> {
        let mut range: Option<Range> = None;
        for source in self.sources.iter().filter(|source| source.is_guest) {
            for task in source.trace.tasks() {
                let mut records = source.trace.records(task);
                let Some(first) = records.next().transpose()? else { continue };
                let mut last = first.time_ns;
                for record in records {
                    last = record?.time_ns;
                }
                let (from, to) = (source.times.map(first.time_ns), source.times.map(last));
                range =
                    Some(range.map_or(Range { from, to }, |range| Range {
                        from: range.from.min(from),
                        to: range.to.max(to),
                    }));
            }
        }
        range.ok_or_else(|| Error::Unaligned {
            reason: "cannot cut the trace to the guest's time: the guest has no records".to_owned(),
        })
    }

    /// Gives everything to `out`, in order of time. Memory is needed for what is open, not for what there is.
    pub(super) fn run<O: Output>(&self, out: O) -> Result<(O, Summary)> {
        let mut stage = Stage::new(out, self.cut.unwrap_or(Range::ALL), self.lanes.len());
        let mut feeds = self.feeds()?;
        let mut queue = BinaryHeap::new();
        let mut first_ns = None;
        for (idx, feed) in feeds.iter_mut().enumerate() {
            if let Some(time_ns) = feed.advance(first_ns)? {
                first_ns = Some(first_ns.map_or(time_ns, |first: u64| first.min(time_ns)));
                queue.push(Reverse((time_ns, idx)));
            }
        }
        let mut n_records = 0;
        while let Some(Reverse((_, idx))) = queue.pop() {
            let until = queue.peek().map_or((u64::MAX, usize::MAX), |next| next.0);
            let feed = &mut feeds[idx];
            loop {
                n_records += 1;
                if n_records % (1 << 16) == 0
                    && let Some(progress) = &self.progress
                {
                    progress(n_records);
                }
                feed.pass(&mut stage)?;
                match feed.advance(None)? {
                    Some(time_ns) if (time_ns, idx) <= until => {}
                    Some(time_ns) => break queue.push(Reverse((time_ns, idx))),
                    None => break,
                }
            }
        }
        let mut warnings = Warnings::default();
        for feed in &mut feeds {
            feed.finish(&mut stage, &mut warnings)?;
        }
        Ok((stage.out, Summary::new(n_records, warnings)))
    }

    fn feeds(&self) -> Result<Vec<Feed<'_>>> {
        let mut feeds = Vec::new();
        let mut lane_of_tid = HashMap::new();
        let mut lane_of_kvm = HashMap::new();
        for (lane, info) in self.lanes.iter().enumerate() {
            match info.of {
                Of::Task { source, task } => {
                    let source = &self.sources[source];
                    let task = &source.trace.tasks()[task];
                    if !source.is_guest {
                        lane_of_tid.insert(task.tid(), lane);
                    }
                    feeds.push(Feed::Task(Box::new(TaskFeed::new(source, task, lane, self.lanes.len()))));
                }
                Of::Kvm { tid } => {
                    lane_of_kvm.insert(tid, lane);
                    lane_of_tid.entry(tid).or_insert(lane);
                }
            }
        }
        for path in &self.kvm {
            let first_ns = self.kvm_first.map_or(0, |tsc| self.reference.nanos(tsc));
            let feed = KvmFeed::new(KvmEvents::open(path)?, lane_of_kvm.clone(), self.reference, first_ns);
            feeds.push(Feed::Kvm(Box::new(feed)));
        }
        for (path, is_data) in &self.switches {
            let source = SwitchFile::open(path, *is_data)?;
            feeds.push(Feed::Switches { source, lane_of_tid: lane_of_tid.clone(), head: None, last_ns: 0 });
        }
        for path in &self.counters {
            let counters = Counters::open(path)?;
            let start_ns = match counters.start() {
                Start::Ticks(tsc) => Some(self.reference.nanos(tsc)),
                Start::Unknown => None,
            };
            feeds.push(Feed::Counters { counters, start_ns, head: None, last_ns: 0 });
        }
        Ok(feeds)
    }

    /// True if counters begin at the first event for want of a better time.
    fn guesses_start_of_counters(&self) -> Result<bool> {
        for path in &self.counters {
            if Counters::open(path)?.start() == Start::Unknown {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// True if there are counters.
    pub(super) fn has_counters(&self) -> bool {
        !self.counters.is_empty()
    }
}
