//! The format of the Firefox Profiler, <https://profiler.firefox.com>.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use fxprof_processed_profile::{
    CategoryHandle, CounterHandle, CpuDelta, Frame, FrameFlags, FrameInfo, MarkerFieldFlags, MarkerFieldFormat,
    MarkerTiming, ProcessHandle, Profile, SamplingInterval, StackHandle, StaticSchemaMarker, StaticSchemaMarkerField,
    StringHandle, ThreadHandle, Timestamp,
};
use rftrace_read::{Error, OffCpu, Result, SourcePlace, Trace};
use rftrace_views::Values;

use super::{ExportOptions, Sink, Track, WallClock};

/// The maximum number of samples and markers: the limit of browsers, and 400 MB of memory here.
const MAX_SAMPLES: u64 = 10_000_000;

/// The weight of a sample is an `i32`; longer times become several.
const MAX_WEIGHT: u64 = i32::MAX as u64;

/// A writer of JSON for the Firefox Profiler.
///
/// That format has stacks as samples. Each entry and exit makes one, weighted by the nanoseconds until the next change.
/// Instants are markers, and so are calls with values, beside their samples. The format has tables for each thread, so
/// the writer keeps everything in memory until the end; too long a trace is an error.
pub struct Firefox<W> {
    out: W,
    profile: Profile,
    start_ns: u64,
    processes: HashMap<u32, ProcessHandle>,
    threads: HashMap<Track, Thread>,
    counters: HashMap<(u32, String), (CounterHandle, f64)>,
    n_samples: u64,
    /// Functions' names with their source lines.
    sources: HashMap<String, String>,
}

struct Thread {
    handle: ThreadHandle,
    open: Vec<Open>,
    /// The time of its last change.
    last_ns: Option<u64>,
    /// Its processor time between the last sample and the next one.
    cpu_ns: u64,
}

/// An open function.
struct Open {
    stack: StackHandle,
    /// True if the thread has a processor in it.
    is_running: bool,
    start_ns: u64,
    name: StringHandle,
    arguments: Option<String>,
}

impl<W> fmt::Debug for Firefox<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Firefox").field("n_samples", &self.n_samples).finish_non_exhaustive()
    }
}

impl<W: Write> Firefox<W> {
    /// Creates a writer to `out`. `out` should be buffered. Times count from `start_ns`.
    pub fn new(out: W, product: &str, start_ns: u64, wall_clock: Option<WallClock>) -> Self {
        let unix_ns = wall_clock.map_or(0, |clock| clock.unix_ns(start_ns));
        let start = SystemTime::UNIX_EPOCH + Duration::from_nanos(unix_ns);
        let mut profile = Profile::new(product, start.into(), SamplingInterval::from_nanos(1));
        profile.set_symbolicated(true);
        Self {
            out,
            profile,
            start_ns,
            processes: HashMap::new(),
            threads: HashMap::new(),
            counters: HashMap::new(),
            n_samples: 0,
            sources: HashMap::new(),
        }
    }

    /// Checks the length of a part of a trace by the sizes of its files.
    ///
    /// # Errors
    ///
    /// [`Error::Export`] if it is too long; or a `.dat` file cannot be read.
    pub fn check(trace: &Trace, options: &ExportOptions) -> Result<()> {
        match options.count_records(trace)? {
            Some(count) if count > MAX_SAMPLES => Err(too_long(count)),
            _ => Ok(()),
        }
    }

    /// Returns the output.
    pub fn into_inner(self) -> W {
        self.out
    }

    fn timestamp(&self, time_ns: u64) -> Timestamp {
        Timestamp::from_nanos_since_reference(time_ns.saturating_sub(self.start_ns))
    }

    /// Makes room for more samples or markers.
    fn count(&mut self, n: u64) -> Result<()> {
        self.n_samples = self.n_samples.saturating_add(n);
        if self.n_samples > MAX_SAMPLES { Err(too_long(self.n_samples)) } else { Ok(()) }
    }

    fn process_handle(&mut self, pid: u32, time_ns: u64) -> ProcessHandle {
        let start = self.timestamp(time_ns);
        *self.processes.entry(pid).or_insert_with(|| self.profile.add_process("", pid, start))
    }

    /// The thread of a track, after samples for the time since its last change.
    fn advance(&mut self, track: Track, time_ns: u64) -> Result<()> {
        let handle = self.thread_handle(track);
        let since_ns = self.threads.get(&track).and_then(|thread| thread.last_ns).unwrap_or(time_ns);
        self.count(time_ns.saturating_sub(since_ns).div_ceil(MAX_WEIGHT))?;
        let Some(thread) = self.threads.get_mut(&track) else { return Ok(()) };
        thread.last_ns = Some(time_ns.max(since_ns));
        let (stack, is_running) = thread.open.last().map_or((None, false), |open| (Some(open.stack), open.is_running));
        let mut cpu_ns = thread.cpu_ns;
        let mut at_ns = since_ns;
        while at_ns < time_ns {
            let weight = MAX_WEIGHT.min(time_ns - at_ns);
            self.profile.add_sample(handle, self.timestamp(at_ns), stack, cpu_delta(cpu_ns), weight as i32);
            cpu_ns = if is_running { weight } else { 0 };
            at_ns += weight;
        }
        if let Some(thread) = self.threads.get_mut(&track) {
            thread.cpu_ns = cpu_ns;
        }
        Ok(())
    }

    fn begin(&mut self, track: Track, time_ns: u64, name: &str, arguments: Option<String>) -> Result<()> {
        self.advance(track, time_ns)?;
        let Some(thread) = self.threads.get_mut(&track) else { return Ok(()) };
        let name_handle = self.profile.intern_string(name);
        let located = self.sources.get(name).map(|located| self.profile.intern_string(located));
        let frame = Frame::Label(located.unwrap_or(name_handle));
        let category_pair = CategoryHandle::OTHER.into();
        let frame = FrameInfo { frame, category_pair, flags: FrameFlags::empty() };
        let frame = self.profile.intern_frame(thread.handle, frame);
        let parent = thread.open.last().map(|open| open.stack);
        let stack = self.profile.intern_stack(thread.handle, parent, frame);
        let is_running = OffCpu::of_name(name).is_none();
        thread.open.push(Open { stack, is_running, start_ns: time_ns, name: name_handle, arguments });
        Ok(())
    }

    fn end(&mut self, track: Track, time_ns: u64, result: Option<&str>) -> Result<()> {
        self.advance(track, time_ns)?;
        let thread = self.threads.get_mut(&track);
        let Some((handle, open)) = thread.and_then(|thread| Some((thread.handle, thread.open.pop()?))) else {
            return Ok(());
        };
        let values = Values { arguments: open.arguments, result: result.map(str::to_owned) };
        if values == Values::default() {
            return Ok(());
        }
        self.count(1)?;
        let timing = MarkerTiming::Interval(self.timestamp(open.start_ns), self.timestamp(time_ns));
        let call = values.call(self.profile.get_string(open.name));
        let call = self.profile.intern_string(&call);
        let marker = self.profile.add_marker(handle, timing, ValuesMarker { name: open.name, call });
        self.profile.set_marker_stack(handle, marker, Some(open.stack));
        Ok(())
    }

    fn thread_handle(&mut self, track: Track) -> ThreadHandle {
        if let Some(thread) = self.threads.get(&track) {
            return thread.handle;
        }
        let process = self.process_handle(track.pid, self.start_ns);
        let start = self.timestamp(self.start_ns);
        let handle = self.profile.add_thread(process, track.tid, start, track.pid == track.tid);
        self.threads.insert(track, Thread { handle, open: Vec::new(), last_ns: None, cpu_ns: 0 });
        handle
    }
}

fn too_long(n_samples: u64) -> Error {
    let reason = format!(
        "the trace has more than {MAX_SAMPLES} entries, exits and events ({n_samples}), too many for the Firefox \
         Profiler's format, which needs them all in memory; choose a part with --from, --to or --tid, or another format"
    );
    Error::Export(reason.into())
}

/// Processor time in the unit for [`InNanos`].
fn cpu_delta(ns: u64) -> CpuDelta {
    CpuDelta::from_micros(ns)
}

/// The unit of processor times in the library, and the format's other one.
const UNITS: [&[u8]; 2] = ["\"threadCPUDelta\":\"µs\"".as_bytes(), b"\"threadCPUDelta\":\"ns\""];

/// Passes a profile on with processor times in nanoseconds. The library has whole microseconds only: a thread of short
/// calls is then either idle or busy several times over.
struct InNanos<'o, W> {
    out: &'o mut W,
    /// The beginning of the profile, up to its units.
    head: Vec<u8>,
    is_done: bool,
}

impl<W: Write> Write for InNanos<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_done {
            return self.out.write(bytes);
        }
        let [from, to] = UNITS;
        let seen = self.head.len().saturating_sub(from.len());
        self.head.extend_from_slice(bytes);
        if let Some(place) = self.head[seen..].windows(from.len()).position(|window| window == from) {
            self.is_done = true;
            self.out.write_all(&self.head[..seen + place])?;
            self.out.write_all(to)?;
            self.out.write_all(&self.head[seen + place + from.len()..])?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl<W: Write> Sink for Firefox<W> {
    fn process(&mut self, pid: u32, name: &str) -> Result<()> {
        let process = self.process_handle(pid, self.start_ns);
        self.profile.set_process_name(process, name);
        Ok(())
    }

    fn thread(&mut self, track: Track, name: &str) -> Result<()> {
        let thread = self.thread_handle(track);
        self.profile.set_thread_name(thread, name);
        Ok(())
    }

    /// The profile's labels have no place of their own for it.
    fn source(&mut self, name: &str, place: SourcePlace<'_>) -> Result<()> {
        self.sources.insert(name.to_owned(), format!("{name} ({place})"));
        Ok(())
    }

    fn enter(&mut self, track: Track, time_ns: u64, name: &str) -> Result<()> {
        self.begin(track, time_ns, name, None)
    }

    fn exit(&mut self, track: Track, time_ns: u64) -> Result<()> {
        self.end(track, time_ns, None)
    }

    fn enter_with(&mut self, track: Track, time_ns: u64, name: &str, arguments: &[String]) -> Result<()> {
        self.begin(track, time_ns, name, Some(arguments.join(", ")))
    }

    fn exit_with(&mut self, track: Track, time_ns: u64, result: &str) -> Result<()> {
        self.end(track, time_ns, Some(result))
    }

    fn instant(&mut self, track: Track, time_ns: u64, name: &str) -> Result<()> {
        self.count(1)?;
        let thread = self.thread_handle(track);
        let timing = MarkerTiming::Instant(self.timestamp(time_ns));
        let name = self.profile.intern_string(name);
        let marker = self.profile.add_marker(thread, timing, Instant { name });
        let stack = self.threads.get(&track).and_then(|thread| thread.open.last()).map(|open| open.stack);
        self.profile.set_marker_stack(thread, marker, stack);
        Ok(())
    }

    fn counter(&mut self, pid: u32, time_ns: u64, name: &str, value: f64) -> Result<()> {
        if !value.is_finite() {
            return Ok(());
        }
        self.count(1)?;
        let (process, timestamp) = (self.process_handle(pid, self.start_ns), self.timestamp(time_ns));
        let profile = &mut self.profile;
        let counter = self.counters.entry((pid, name.to_owned()));
        let (counter, last) = counter.or_insert_with(|| (profile.add_counter(process, name, "Memory", name), 0.0));
        // The format has differences.
        profile.add_counter_sample(*counter, timestamp, value - std::mem::replace(last, value), 0);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        for thread in self.threads.values() {
            let Some(last_ns) = thread.last_ns else { continue };
            // The last function's time ends where the next sample is.
            let end = self.timestamp(last_ns);
            self.profile.add_sample(thread.handle, end, None, cpu_delta(thread.cpu_ns), 0);
            self.profile.set_thread_end_time(thread.handle, end);
        }
        let mut out = InNanos { out: &mut self.out, head: Vec::new(), is_done: false };
        serde_json::to_writer(&mut out, &self.profile).map_err(|error| Error::Write(error.into()))?;
        out.flush().map_err(Error::Write)
    }
}

/// A marker without a duration.
struct Instant {
    name: StringHandle,
}

impl StaticSchemaMarker for Instant {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "rftrace";
    const CHART_LABEL: Option<&'static str> = Some("{marker.name}");
    const FIELDS: &'static [StaticSchemaMarkerField] = &[];

    fn name(&self, _: &mut Profile) -> StringHandle {
        self.name
    }

    fn category(&self, _: &mut Profile) -> CategoryHandle {
        CategoryHandle::OTHER
    }

    fn string_field_value(&self, _: u32) -> StringHandle {
        self.name
    }

    fn number_field_value(&self, _: u32) -> f64 {
        0.0
    }
}

/// A call with its values.
struct ValuesMarker {
    /// The function.
    name: StringHandle,
    /// The call as a replay shows it.
    call: StringHandle,
}

impl StaticSchemaMarker for ValuesMarker {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "rftrace values";
    const CHART_LABEL: Option<&'static str> = Some("{marker.data.call}");
    const TABLE_LABEL: Option<&'static str> = Some("{marker.data.call}");
    /// Values may be private: the viewer can leave such strings out of uploads.
    const FIELDS: &'static [StaticSchemaMarkerField] = &[StaticSchemaMarkerField {
        key: "call",
        label: "Call",
        format: MarkerFieldFormat::SanitizedString,
        flags: MarkerFieldFlags::SEARCHABLE,
    }];

    fn name(&self, _: &mut Profile) -> StringHandle {
        self.name
    }

    fn category(&self, _: &mut Profile) -> CategoryHandle {
        CategoryHandle::OTHER
    }

    fn string_field_value(&self, _: u32) -> StringHandle {
        self.call
    }

    fn number_field_value(&self, _: u32) -> f64 {
        0.0
    }
}
