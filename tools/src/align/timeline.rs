//! All sources on one timeline.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::clock::{ClockFile, NANOS_PER_SECOND, TscClock};
use super::counters::{Counters, Start};
use super::kvm::{KvmEvent, KvmEvents};
use super::lines::Lines;
use super::offsets::{OffsetEvents, Offsets};
use super::perf::{self, Switch, Switches};
use super::stage::{Lane, Output, Range, Stage};
use crate::Summary;
use crate::error::{Error, Result};
use crate::events::{SCHED_IN, SCHED_OUT, SCHED_OUT_PREEMPTED};
use crate::export::Track;
use crate::record::Record;
use crate::records::Records;
use crate::stack::{CallStack, Step};
use crate::trace::{Task, Trace};
use crate::warning::Warnings;

/// Threads that KVM events are told apart by.
const MAX_KVM_THREADS: usize = 4096;

/// What to merge, and how.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct MergeOptions {
    /// The guest's trace directory.
    pub guest: PathBuf,
    /// Trace directories of programs on the host.
    pub hosts: Vec<PathBuf>,
    /// KVM's events: `trace.dat`, text, or the folder of a tracefs instance.
    pub kvm: Vec<PathBuf>,
    /// What perf recorded: counters of `perf stat -I -x`, or context switches as `perf.data` or text.
    pub perf: Vec<PathBuf>,
    /// Ticks of the host's time stamp counter in a millisecond, instead of what the directories say.
    pub tsc_khz: Option<u64>,
    /// Guest's ticks minus host's ticks, instead of what KVM's events say.
    pub tsc_offset: Option<i64>,
    /// Leaves out what was before the guest's first record or after its last.
    pub cut: bool,
}

/// Sources that have been looked at, and put on one clock: ready to be written.
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

/// A trace directory.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) trace: Trace,
    pub(super) is_guest: bool,
    pub(super) times: Times,
    /// What is added to its thread and process ids, which then no other source has.
    pub(super) shift: u32,
}

/// From a directory's times to those of the timeline.
#[derive(Debug)]
pub(super) enum Times {
    /// They are the timeline's.
    Same,
    /// They are of a clock that went by the time stamp counter.
    Tsc { own: TscClock, offsets: Offsets, reference: TscClock },
    /// They are ticks.
    Ticks { offsets: Offsets, reference: TscClock },
}

impl Times {
    pub(super) fn map(&self, time_ns: u64) -> u64 {
        match self {
            Self::Same => time_ns,
            Self::Tsc { own, offsets, reference } => reference.nanos(offsets.host_ticks(own.ticks(time_ns))),
            Self::Ticks { offsets, reference } => reference.nanos(offsets.host_ticks(time_ns)),
        }
    }
}

/// A thread in which KVM ran a guest.
#[derive(Debug)]
pub(super) struct KvmThread {
    pub(super) comm: String,
    vcpu: Option<u32>,
}

impl KvmThread {
    /// The name of a function that stands for the thread.
    pub(super) fn function_name(&self) -> String {
        self.vcpu.map_or("kvm".to_owned(), |vcpu| format!("kvm_vcpu_{vcpu}"))
    }

    pub(super) fn name(&self) -> String {
        match self.vcpu {
            Some(vcpu) => format!("KVM vcpu {vcpu} ({})", self.comm),
            None => format!("KVM ({})", self.comm),
        }
    }
}

/// What a lane is of.
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
    /// Reads the metadata of all sources, goes through KVM's events for what they tell of clocks, and finds the clock of the
    /// timeline: CLOCK_MONOTONIC of the host, as a directory of it has it, or, without one, the guest's clock.
    ///
    /// # Errors
    ///
    /// A source cannot be read, or it is not known how its clock and those of others belong together.
    pub fn open(options: &MergeOptions) -> Result<Self> {
        let mut notes = Vec::new();
        let guest = Opened::read(&options.guest)?;
        let hosts = options.hosts.iter().map(|dir| Opened::read(dir)).collect::<Result<Vec<_>>>()?;
        let kvm = KvmScan::read(&options.kvm, &mut notes)?;
        let offsets = match options.tsc_offset {
            Some(offset) => Offsets::constant(offset),
            None => offsets(&guest, &hosts, &kvm.offsets, options, &mut notes)?,
        };
        let reference = reference(&guest, &hosts, &offsets, options, &mut notes)?;
        warn_of_rates(&guest, &reference, &mut notes);
        warn_of_distance(&guest, &hosts, &offsets, &mut notes);

        let mut sources = Vec::new();
        let mut ids = HashSet::new();
        let guest_times = match &guest.clock {
            Some(file) => Times::Tsc { own: file.clock, offsets, reference },
            None => Times::Ticks { offsets, reference },
        };
        sources.push(Source { times: guest_times, ..Source::new(guest.trace, true, &mut ids)? });
        for host in hosts {
            let times = match &host.clock {
                Some(file) if file.clock != reference => {
                    Times::Tsc { own: file.clock, offsets: Offsets::constant(0), reference }
                }
                _ => Times::Same,
            };
            sources.push(Source { times, ..Source::new(host.trace, false, &mut ids)? });
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
                "it is not known when perf stat began: its counters begin with the timeline; for ticks, put a line `rdtsc TICKS` \
                 before them"
                    .to_owned(),
            );
        }
        if options.cut {
            merge.cut = Some(merge.guest_range()?);
        }
        Ok(merge)
    }

    /// What the user should know of how the clocks were brought together, a line each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Has `progress` called with the number of events, now and then while they are written.
    pub fn on_progress(&mut self, progress: impl Fn(u64) + 'static) {
        self.progress = Some(Box::new(progress));
    }

    /// The first of the sources is the guest; then come the hosts in their order.
    pub fn traces(&self) -> impl Iterator<Item = &Trace> {
        self.sources.iter().map(|source| &source.trace)
    }

    /// A lane for each task that has records, and for each thread of KVM's events.
    fn make_lanes(&mut self, ids: &mut HashSet<u32>) -> Result<()> {
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
            let unique = unused(ids, tid)?;
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
            reason: "the guest has no records: there is nothing to cut by".to_owned(),
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
        Ok((stage.out, Summary { records: n_records, warnings }))
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
                    feeds.push(Feed::Task(Box::new(TaskFeed::new(source, task, lane))));
                }
                Of::Kvm { tid } => {
                    lane_of_kvm.insert(tid, lane);
                    lane_of_tid.entry(tid).or_insert(lane);
                }
            }
        }
        for path in &self.kvm {
            feeds.push(Feed::Kvm(Box::new(KvmFeed {
                events: KvmEvents::open(path)?,
                lane_of_tid: lane_of_kvm.clone(),
                states: HashMap::new(),
                reference: self.reference,
                first_ns: self.kvm_first.map_or(0, |tsc| self.reference.nanos(tsc)),
                last_ns: 0,
                head: None,
            })));
        }
        for (path, is_data) in &self.switches {
            let source = Switches::open(path, *is_data)?;
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

    /// Whether counters begin at the first event for want of a better time.
    fn guesses_start_of_counters(&self) -> Result<bool> {
        for path in &self.counters {
            if Counters::open(path)?.start() == Start::Unknown {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether there are counters.
    pub(super) fn has_counters(&self) -> bool {
        !self.counters.is_empty()
    }
}

/// A directory whose metadata were read.
struct Opened {
    trace: Trace,
    clock: Option<ClockFile>,
}

impl Opened {
    fn read(dir: &Path) -> Result<Self> {
        Ok(Self { trace: Trace::open(dir)?, clock: ClockFile::read(dir)? })
    }

    fn dir(&self) -> std::path::Display<'_> {
        self.trace.dir().display()
    }
}

impl Source {
    fn new(trace: Trace, is_guest: bool, ids: &mut HashSet<u32>) -> Result<Self> {
        let own: HashSet<u32> = trace.tasks().iter().flat_map(|task| [task.pid(), task.tid()]).collect();
        let is_free = |shift: u32| {
            own.iter().all(|id| id.checked_add(shift).is_some_and(|id| is_usable(id) && !ids.contains(&id)))
        };
        let Some(shift) = (0..).map_while(|n: u32| n.checked_mul(SHIFT)).find(|&shift| is_free(shift)) else {
            return Err(no_ids());
        };
        ids.extend(own.iter().map(|id| id + shift));
        Ok(Self { trace, is_guest, times: Times::Same, shift })
    }
}

/// Thread ids that are taken are moved by multiples of this.
const SHIFT: u32 = 100_000;

/// Whether uftrace takes it for a thread id: those are positive.
fn is_usable(id: u32) -> bool {
    (1..=i32::MAX.cast_unsigned()).contains(&id)
}

fn no_ids() -> Error {
    Error::Unaligned { reason: "the sources have so many threads that no ids are left".to_owned() }
}

/// An id that nobody has: `wanted`, or another one.
fn unused(ids: &mut HashSet<u32>, wanted: u32) -> Result<u32> {
    let candidates = (0..).map_while(|n: u32| wanted.checked_add(n.checked_mul(SHIFT)?));
    let found = candidates.into_iter().find(|&id| is_usable(id) && !ids.contains(&id));
    let found = found.or_else(|| (1..i32::MAX.cast_unsigned()).find(|id| !ids.contains(id))).ok_or_else(no_ids)?;
    ids.insert(found);
    Ok(found)
}

/// What a first look at KVM's events has told.
struct KvmScan {
    offsets: std::result::Result<Option<(Offsets, Option<String>)>, String>,
    threads: BTreeMap<u32, KvmThread>,
    first: Option<u64>,
}

impl KvmScan {
    fn read(paths: &[PathBuf], notes: &mut Vec<String>) -> Result<Self> {
        let (mut offsets, mut threads) = (OffsetEvents::default(), BTreeMap::new());
        let mut first = None;
        for path in paths {
            let mut events = KvmEvents::open(path)?;
            let mut n_events = 0_u64;
            while let Some(event) = events.next()? {
                n_events += 1;
                first = Some(first.map_or(event.tsc, |first: u64| first.min(event.tsc)));
                if event.name == "kvm_write_tsc_offset" && !offsets.add(&event) {
                    notes.push(format!("{}: a kvm_write_tsc_offset without offsets: {}", path.display(), event.fields));
                }
                if threads.len() == MAX_KVM_THREADS && !threads.contains_key(&event.tid) {
                    let reason = format!("{}: events of more than {MAX_KVM_THREADS} threads", path.display());
                    return Err(Error::Unaligned { reason });
                }
                let thread =
                    threads.entry(event.tid).or_insert_with(|| KvmThread { comm: event.comm.to_owned(), vcpu: None });
                if matches!(event.name, "kvm_entry" | "kvm_exit") {
                    thread.vcpu = thread.vcpu.or(event.vcpu());
                }
            }
            if events.lost > 0 {
                notes.push(format!("{}: {} events were lost while they were recorded", path.display(), events.lost));
            }
            if n_events == 0 {
                notes.push(format!("{}: there are no events in it", path.display()));
            }
        }
        Ok(Self { offsets: offsets.finish(), threads, first })
    }
}

/// The guest's offset: as KVM's events say, or else by the wall clocks.
fn offsets(
    guest: &Opened,
    hosts: &[Opened],
    of_kvm: &std::result::Result<Option<(Offsets, Option<String>)>, String>,
    options: &MergeOptions,
    notes: &mut Vec<String>,
) -> Result<Offsets> {
    match of_kvm {
        Err(list) => Err(Error::Unaligned {
            reason: format!(
                "KVM's events tell of several guests with different TSC offsets; choose one by --tsc-offset N:\n  {list}"
            ),
        }),
        Ok(Some((offsets, note))) => {
            notes.push(format!("guest's ticks = host's ticks + {}, as KVM's events say", offsets.last()));
            notes.extend(note.clone());
            Ok(offsets.clone())
        }
        Ok(None) => {
            let offset = offset_of_wall_clocks(guest, hosts, options, notes)?;
            Ok(Offsets::constant(offset))
        }
    }
}

fn offset_of_wall_clocks(
    guest: &Opened,
    hosts: &[Opened],
    options: &MergeOptions,
    notes: &mut Vec<String>,
) -> Result<i64> {
    let why = if options.kvm.is_empty() { "no KVM events were given" } else { "KVM's events do not tell it" };
    let unaligned = |lack: String| Error::Unaligned {
        reason: format!(
            "the guest's TSC offset is not known: {why}, and {lack}; record KVM's events while the guest starts \
             (tools/setup_kvm_tracing.sh run …) and give them by --kvm, or give --tsc-offset N (guest's ticks - host's ticks; 0 \
             where the guest reads the host's counter)"
        ),
    };
    let wall = |opened: &Opened| {
        let file = opened.clock.as_ref()?;
        Some((file.clock, file.unix_nanos?))
    };
    let Some((guest_clock, guest_unix)) = wall(guest) else {
        return Err(unaligned(format!("{} has no wall clock", guest.dir())));
    };
    let Some((host_clock, host_unix)) = hosts.iter().find_map(wall) else {
        return Err(unaligned("no host directory has a wall clock".to_owned()));
    };
    // The moment of the guest's first tick, on the host's clock.
    let nanos = i128::from(host_clock.nanos) + i128::from(guest_unix) - i128::from(host_unix);
    let Ok(nanos) = u64::try_from(nanos) else {
        return Err(unaligned("the guest's wall clock was before the host was switched on".to_owned()));
    };
    let offset = i128::from(guest_clock.tsc) - i128::from(host_clock.ticks(nanos));
    let is_coarse = guest_unix % NANOS_PER_SECOND == 0;
    notes.push(format!(
        "guest's ticks = host's ticks + {offset} by the wall clocks of both, which is {}: for ticks, record KVM's events (--kvm)",
        if is_coarse { "right to a second, as the guest's clock tells no parts of seconds" } else {
            "as right as these agree, usually to milliseconds"
        }
    ));
    i64::try_from(offset).map_err(|_| unaligned("the wall clocks are too far from each other".to_owned()))
}

/// The clock of the timeline.
fn reference(
    guest: &Opened,
    hosts: &[Opened],
    offsets: &Offsets,
    options: &MergeOptions,
    notes: &mut Vec<String>,
) -> Result<TscClock> {
    let option_hz = options.tsc_khz.map(|khz| khz.saturating_mul(1000));
    // The one that looked at both clocks for the longest time knows the rate best.
    let best = hosts
        .iter()
        .filter_map(|host| host.clock.as_ref())
        .max_by_key(|file| (file.last_tsc.saturating_sub(file.clock.tsc), Reverse(file.path().to_owned())));
    for file in hosts.iter().chain([guest]).filter_map(|opened| opened.clock.as_ref()) {
        if !file.is_exact {
            notes.push(format!(
                "{}: written by an older rftrace: its rate is rounded, times may be off by parts of 10^9 of its duration",
                file.path().display()
            ));
        }
    }
    let base = match (best, &guest.clock) {
        (Some(file), _) => file.clock,
        (None, _) if !hosts.is_empty() => {
            return Err(Error::Unaligned {
                reason: format!(
                    "{}: there is no clock.txt, which says how the time stamp counter and the trace's clock belong together: \
                     record the host's program with rftrace",
                    hosts[0].dir()
                ),
            });
        }
        (None, Some(file)) => {
            // The guest's own clock, in ticks of the host.
            TscClock { tsc: offsets.host_ticks(file.clock.tsc), ..file.clock }
        }
        (None, None) => TscClock::at_rate(0, 0, option_hz.unwrap_or(NANOS_PER_SECOND)),
    };
    if guest.clock.is_none() && option_hz.is_none() && best.is_none() {
        return Err(Error::Unaligned {
            reason: format!(
                "{}: there is no clock.txt: are its times ticks, as rftrace up to 0.3.2 wrote them? Then give the frequency of \
                 the time stamp counter: --tsc-khz N, or --tsc-khz auto on the machine that recorded it",
                guest.dir()
            ),
        });
    }
    if guest.clock.is_none() {
        notes.push(format!("{}: there is no clock.txt: its times are taken for ticks", guest.dir()));
    }
    Ok(option_hz.map_or(base, |hz| TscClock::at_rate(base.tsc, base.nanos, hz)))
}

/// A guest whose counter runs at another rate than the host's is not brought to the host's by an offset.
fn warn_of_rates(guest: &Opened, reference: &TscClock, notes: &mut Vec<String>) {
    let Some(file) = &guest.clock else { return };
    let (guest_hz, host_hz) = (file.clock.hz(), reference.hz());
    // Kernels that measure it are wrong by less.
    if guest_hz.abs_diff(host_hz) > host_hz / 50 {
        notes.push(format!(
            "the guest's counter had {guest_hz} ticks a second, the host's {host_hz}: if that is not a wrong measurement, the \
             guest's times are wrong (a guest with a TSC rate of its own)"
        ));
    }
}

/// Traces that have no moment in common hint at a wrong offset.
fn warn_of_distance(guest: &Opened, hosts: &[Opened], offsets: &Offsets, notes: &mut Vec<String>) {
    let Some(file) = &guest.clock else { return };
    let (start, end) = (offsets.host_ticks(file.clock.tsc), offsets.host_ticks(file.last_tsc));
    let mut files = hosts.iter().filter_map(|host| host.clock.as_ref()).peekable();
    let has_hosts = files.peek().is_some();
    if has_hosts && files.all(|host| host.last_tsc < start || host.clock.tsc > end) {
        notes.push(format!(
            "the guest's trace goes from tick {start} to {end} of the host, and no host's trace has a moment in common with it: \
             is the offset that of this guest?"
        ));
    }
}

enum PerfKind {
    Counters,
    Data,
    Script,
}

fn kind_of_perf(path: &Path) -> Result<PerfKind> {
    use std::io::Read;
    let io_error = |source| Error::Io { path: path.to_owned(), source };
    let mut start = Vec::new();
    let file = std::fs::File::open(path).map_err(io_error)?;
    file.take(perf::MAGIC.len() as u64).read_to_end(&mut start).map_err(io_error)?;
    if start == perf::MAGIC {
        return Ok(PerfKind::Data);
    }
    let mut lines = Lines::open(path)?;
    while let Some(line) = lines.next()? {
        if !line.trim().is_empty() && !line.starts_with('#') {
            return Ok(if perf::is_script(line) { PerfKind::Script } else { PerfKind::Counters });
        }
    }
    Ok(PerfKind::Counters)
}

/// Something that tells events in order of time.
enum Feed<'m> {
    Task(Box<TaskFeed<'m>>),
    Kvm(Box<KvmFeed>),
    Switches { source: Switches, lane_of_tid: HashMap<u32, Lane>, head: Option<Switch>, last_ns: u64 },
    Counters { counters: Counters, start_ns: Option<u64>, head: Option<(u64, String, f64)>, last_ns: u64 },
}

impl Feed<'_> {
    /// Goes on to the next event. Returns its time. `first_ns` is when the first event of the feeds before this one is.
    fn advance(&mut self, first_ns: Option<u64>) -> Result<Option<u64>> {
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
    fn pass<O: Output>(&mut self, stage: &mut Stage<O>) -> Result<()> {
        match self {
            Self::Task(feed) => feed.pass(stage),
            Self::Kvm(feed) => feed.pass(stage),
            Self::Switches { lane_of_tid, head, last_ns, .. } => {
                let Some(switch) = head.take() else { return Ok(()) };
                match lane_of_tid.get(&switch.tid) {
                    Some(&lane) => stage.switch(lane, *last_ns, switch.is_in),
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
    fn finish<O: Output>(&mut self, stage: &mut Stage<O>, warnings: &mut Warnings) -> Result<()> {
        match self {
            Self::Task(feed) => {
                warnings.merge(feed.records.warnings());
                warnings.merge(feed.stack.warnings());
                stage.close(feed.lane)
            }
            Self::Kvm(feed) => {
                for &lane in feed.states.keys() {
                    stage.close_at(lane, feed.last_ns)?;
                }
                Ok(())
            }
            Self::Switches { .. } | Self::Counters { .. } => Ok(()),
        }
    }
}

/// The later of two times, which becomes the last one.
fn in_order(last_ns: &mut u64, time_ns: u64) -> &u64 {
    *last_ns = time_ns.max(*last_ns);
    last_ns
}

/// A task's records.
struct TaskFeed<'m> {
    source: &'m Source,
    task: &'m Task,
    lane: Lane,
    records: Records<'m>,
    stack: CallStack,
    steps: Vec<Step>,
    head: Option<Record>,
    time_ns: u64,
    /// The functions whose entries are missing, in order; looked for when the first one comes.
    assumed: Option<std::vec::IntoIter<Option<u64>>>,
}

impl<'m> TaskFeed<'m> {
    fn new(source: &'m Source, task: &'m Task, lane: Lane) -> Self {
        Self {
            source,
            task,
            lane,
            records: source.trace.records(task),
            stack: CallStack::new(),
            steps: Vec::new(),
            head: None,
            time_ns: 0,
            assumed: None,
        }
    }

    fn advance(&mut self) -> Result<Option<u64>> {
        self.head = self.records.next().transpose()?;
        let Some(record) = &self.head else { return Ok(None) };
        Ok(Some(*in_order(&mut self.time_ns, self.source.times.map(record.time_ns))))
    }

    fn pass<O: Output>(&mut self, stage: &mut Stage<O>) -> Result<()> {
        let Some(record) = self.head.take() else { return Ok(()) };
        let (trace, task, lane, time_ns) = (&self.source.trace, self.task, self.lane, self.time_ns);
        let mut steps = std::mem::take(&mut self.steps);
        self.stack.apply(&record, |a, b| trace.same_function(task, record.time_ns, a, b), &mut steps);
        for step in &steps {
            match *step {
                Step::Enter { addr, time_ns: own_ns } => {
                    stage.enter(lane, time_ns, addr, || trace.function_name(task, own_ns, addr))?;
                }
                Step::Leave(_) => stage.exit(lane, time_ns)?,
                Step::Assume { time_ns: own_ns } => {
                    let addr = self.next_assumed()?;
                    stage.enter(lane, time_ns, addr.unwrap_or(0), || match addr {
                        Some(addr) => trace.function_name(task, own_ns, addr),
                        None => Cow::Borrowed("<unknown>"),
                    })?;
                }
                Step::Event { id: SCHED_OUT | SCHED_OUT_PREEMPTED, .. } => stage.switch(lane, time_ns, false)?,
                Step::Event { id: SCHED_IN, .. } => stage.switch(lane, time_ns, true)?,
                Step::Event { id, .. } => stage.instant(lane, time_ns, &trace.events().name(id))?,
                Step::Lost { count } => stage.instant(lane, time_ns, &format!("rftrace:lost_{count}_records"))?,
                Step::StrayExit { .. } => {}
            }
        }
        self.steps = steps;
        Ok(())
    }

    fn next_assumed(&mut self) -> Result<Option<u64>> {
        let assumed = match &mut self.assumed {
            Some(assumed) => assumed,
            None => self.assumed.insert(assumed_functions(&self.source.trace, self.task)?.into_iter()),
        };
        Ok(assumed.next().flatten())
    }
}

/// The functions of a task whose entries are missing, as far as their exits name them.
fn assumed_functions(trace: &Trace, task: &Task) -> Result<Vec<Option<u64>>> {
    /// A broken file may claim any number.
    const MAX: usize = 1 << 20;
    let (mut found, mut open, mut steps) = (Vec::new(), Vec::new(), Vec::new());
    let mut stack = CallStack::new();
    for record in trace.records(task) {
        let record = record?;
        stack.apply(&record, |a, b| trace.same_function(task, record.time_ns, a, b), &mut steps);
        for step in &steps {
            match step {
                Step::Assume { .. } if found.len() < MAX => {
                    open.push(Some(found.len()));
                    found.push(None);
                }
                Step::Assume { .. } | Step::Enter { .. } => open.push(None),
                Step::Leave(ended) => {
                    if let Some(place) = open.pop().flatten().and_then(|idx: usize| found.get_mut(idx)) {
                        *place = ended.addr;
                    }
                }
                Step::StrayExit { .. } | Step::Event { .. } | Step::Lost { .. } => {}
            }
        }
    }
    Ok(found)
}

/// KVM's events, as slices from entry to exit and from exit to entry where the output has such.
struct KvmFeed {
    events: KvmEvents,
    lane_of_tid: HashMap<u32, Lane>,
    states: HashMap<Lane, InGuest>,
    reference: TscClock,
    /// When the first event of all is.
    first_ns: u64,
    last_ns: u64,
    head: Option<KvmHead>,
}

/// Whether a thread runs the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InGuest {
    Unknown,
    Yes,
    No,
}

struct KvmHead {
    lane: Lane,
    kind: KvmKind,
    name: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum KvmKind {
    Entry,
    Exit,
    Other,
}

impl KvmFeed {
    fn advance(&mut self) -> Result<Option<u64>> {
        loop {
            let Some(event) = self.events.next()? else { return Ok(None) };
            // A file that has grown since it was looked at has more threads.
            let Some(&lane) = self.lane_of_tid.get(&event.tid) else { continue };
            let (kind, name) = kind_and_name(&event);
            let time_ns = self.reference.nanos(event.tsc);
            self.head = Some(KvmHead { lane, kind, name });
            return Ok(Some(*in_order(&mut self.last_ns, time_ns)));
        }
    }

    fn pass<O: Output>(&mut self, stage: &mut Stage<O>) -> Result<()> {
        let Some(KvmHead { lane, kind, name }) = self.head.take() else { return Ok(()) };
        let time_ns = self.last_ns;
        let state = self.states.entry(lane).or_insert(InGuest::Unknown);
        if !O::HAS_SLICES || kind == KvmKind::Other {
            return stage.instant(lane, time_ns, &name);
        }
        if kind == KvmKind::Exit && *state == InGuest::Unknown {
            // It was in the guest before the first event.
            stage.enter(lane, self.first_ns, 0, || Cow::Borrowed(GUEST))?;
        }
        while stage.depth(lane) > 0 {
            stage.exit(lane, time_ns)?;
        }
        if kind == KvmKind::Entry {
            *state = InGuest::Yes;
            stage.enter(lane, time_ns, 0, || Cow::Borrowed(GUEST))
        } else {
            *state = InGuest::No;
            stage.enter(lane, time_ns, 0, || Cow::Owned(name))
        }
    }
}

/// The name of the time from a `kvm_entry` to the `kvm_exit` after it.
const GUEST: &str = "kvm:guest";

fn kind_and_name(event: &KvmEvent<'_>) -> (KvmKind, String) {
    let kind = match event.name {
        "kvm_entry" => KvmKind::Entry,
        "kvm_exit" => KvmKind::Exit,
        _ => KvmKind::Other,
    };
    match event.reason() {
        Some(reason) if kind == KvmKind::Exit => {
            (kind, format!("kvm:kvm_exit_{}", reason.replace(|c: char| !c.is_ascii_alphanumeric(), "_")))
        }
        _ => (kind, format!("kvm:{}", event.name)),
    }
}
