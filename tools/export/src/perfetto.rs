//! Perfetto's own format: protobuf, for <https://ui.perfetto.dev> and `trace_processor`.
//!
//! The messages are a small part of `perfetto/trace/trace.proto`. The published bindings are generated at build time by
//! a `protoc` binary and take a minute to compile; these are declared with `prost`.

mod schema;

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::sync::Arc;

use prost::Message;
use rftrace_read::{Error, Result, SourcePlace};

use self::schema::{
    Annotated, COUNTER, Clock, ClockSnapshot, CounterDescriptor, DebugAnnotation, EventName, INSTANT, InternedData,
    ProcessDescriptor, SLICE_BEGIN, SLICE_END, SourceLocation, ThreadDescriptor, TracePacket, TracePacketDefaults,
    TrackDescriptor, TrackEvent, TrackEventDefaults,
};
use super::{Sink, Track, WallClock};

const REALTIME: u32 = 1;
const MONOTONIC: u32 = 3;

/// This packet's sequence starts anew: no names and defaults are known.
const STATE_CLEARED: u32 = 1;
/// This packet refers to names and defaults of earlier ones.
const NEEDS_STATE: u32 = 2;

/// The field of a trace for a packet, as a tag on the wire.
const PACKET_TAG: u8 = 1 << 3 | 2;

/// A writer of Perfetto's protobuf format.
///
/// Each track is a sequence of packets of its own with its number as a default, and each name is written once for a
/// track. Times are those of `CLOCK_MONOTONIC`.
#[derive(Debug)]
pub struct Perfetto<W> {
    out: W,
    wall_clock: Option<WallClock>,
    has_clock: bool,
    packet: Vec<u8>,
    sequences: HashMap<Track, Sequence>,
    processes: HashMap<u32, u64>,
    counters: HashMap<(u32, String), u64>,
    /// The names of all sequences.
    names: HashSet<Arc<str>>,
    /// The source lines of functions, by their names.
    sources: HashMap<String, Source>,
    n_uuids: u64,
}

/// The source line of a function, and the functions inlined into it.
#[derive(Debug)]
struct Source {
    path: String,
    line: u32,
    inlined: String,
}

/// A track's packets.
#[derive(Debug)]
struct Sequence {
    id: u32,
    names: HashMap<Arc<str>, u64>,
}

impl<W: Write> Perfetto<W> {
    /// Creates a writer to `out`. `out` should be buffered. With `wall_clock` viewers can show the time of day.
    pub fn new(out: W, wall_clock: Option<WallClock>) -> Self {
        Self {
            out,
            wall_clock,
            has_clock: false,
            packet: Vec::new(),
            sequences: HashMap::new(),
            processes: HashMap::new(),
            counters: HashMap::new(),
            names: HashSet::new(),
            sources: HashMap::new(),
            n_uuids: 0,
        }
    }

    /// Returns the output.
    pub fn into_inner(self) -> W {
        self.out
    }

    fn write(&mut self, packet: &TracePacket) -> Result<()> {
        self.write_clock()?;
        self.packet.clear();
        self.packet.push(PACKET_TAG);
        // Only a slice that is too short makes this fail; a vector grows.
        let encoded = packet.encode_length_delimited(&mut self.packet);
        encoded.map_err(|error| Error::Write(error.into()))?;
        self.out.write_all(&self.packet).map_err(Error::Write)
    }

    /// Writes the clock of the times, before anything else.
    fn write_clock(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.has_clock, true) {
            return Ok(());
        }
        let clock = self.wall_clock.unwrap_or_default();
        let mut clocks = vec![Clock { clock_id: Some(MONOTONIC), timestamp: Some(clock.time_ns) }];
        if let Some(unix_ns) = self.wall_clock.map(|clock| clock.unix_ns) {
            clocks.push(Clock { clock_id: Some(REALTIME), timestamp: Some(unix_ns) });
        }
        let clock_snapshot = Some(ClockSnapshot { clocks, primary_trace_clock: Some(MONOTONIC.cast_signed()) });
        self.write(&TracePacket { clock_snapshot, trusted_packet_sequence_id: Some(1), ..TracePacket::default() })
    }

    /// Returns a number of no other track, in this trace or in others shown with it.
    fn uuid(&mut self) -> u64 {
        self.n_uuids += 1;
        let mixed = (self.n_uuids ^ 0x7266_7472_6163_6521).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ (mixed >> 32)).max(1)
    }

    fn process_uuid(&mut self, pid: u32) -> Result<u64> {
        match self.processes.get(&pid) {
            Some(&uuid) => Ok(uuid),
            None => self.add_process(pid, None),
        }
    }

    fn add_process(&mut self, pid: u32, name: Option<&str>) -> Result<u64> {
        let uuid = match self.processes.get(&pid) {
            Some(&uuid) => uuid,
            None => self.uuid(),
        };
        self.processes.insert(pid, uuid);
        let process = ProcessDescriptor { pid: Some(pid.cast_signed()), process_name: name.map(str::to_owned) };
        let descriptor = TrackDescriptor { uuid: Some(uuid), process: Some(process), ..TrackDescriptor::default() };
        self.write(&TracePacket { track_descriptor: Some(descriptor), ..TracePacket::default() })?;
        Ok(uuid)
    }

    fn add_track(&mut self, track: Track, name: Option<&str>) -> Result<()> {
        if self.sequences.contains_key(&track) {
            return Ok(());
        }
        let parent = self.process_uuid(track.pid)?;
        let uuid = self.uuid();
        // The first one is that of the clocks.
        let id = u32::try_from(self.sequences.len()).unwrap_or(u32::MAX).saturating_add(2);
        let (pid, tid) = (track.pid.cast_signed(), track.tid.cast_signed());
        let thread = ThreadDescriptor { pid: Some(pid), tid: Some(tid), thread_name: name.map(str::to_owned) };
        let descriptor = TrackDescriptor {
            uuid: Some(uuid),
            parent_uuid: Some(parent),
            thread: Some(thread),
            ..TrackDescriptor::default()
        };
        let defaults = TracePacketDefaults {
            timestamp_clock_id: Some(MONOTONIC),
            track_event_defaults: Some(TrackEventDefaults { track_uuid: Some(uuid) }),
        };
        self.write(&TracePacket {
            track_descriptor: Some(descriptor),
            trace_packet_defaults: Some(defaults),
            trusted_packet_sequence_id: Some(id),
            sequence_flags: Some(STATE_CLEARED),
            first_packet_on_sequence: Some(true),
            previous_packet_dropped: Some(true),
            ..TracePacket::default()
        })?;
        self.sequences.insert(track, Sequence { id, names: HashMap::new() });
        Ok(())
    }

    fn event(
        &mut self,
        track: Track,
        time_ns: u64,
        (kind, name): (i32, Option<&str>),
        mut debug_annotations: Vec<DebugAnnotation>,
    ) -> Result<()> {
        self.add_track(track, None)?;
        let Some(sequence) = self.sequences.get_mut(&track) else { return Ok(()) };
        let mut interned_data = None;
        let name_iid = name.map(|name| {
            if let Some(&iid) = sequence.names.get(name) {
                return iid;
            }
            // 0 is no number of a name.
            let iid = sequence.names.len() as u64 + 1;
            // In memory once, however many threads call it.
            let shared = self.names.get(name).cloned().unwrap_or_else(|| {
                let name: Arc<str> = name.into();
                self.names.insert(Arc::clone(&name));
                name
            });
            sequence.names.insert(shared, iid);
            let event_names = vec![EventName { iid: Some(iid), name: Some(name.to_owned()) }];
            let source_locations = self.sources.get(name).map(|source| SourceLocation {
                iid: Some(iid),
                file_name: Some(source.path.clone()),
                function_name: Some(name.to_owned()),
                line_number: Some(source.line),
            });
            interned_data =
                Some(InternedData { event_names, source_locations: source_locations.into_iter().collect() });
            iid
        });
        // A name and its place have one number.
        let source = name.and_then(|name| self.sources.get(name));
        let source_location_iid = source.and(name_iid);
        let inlined = source.map(|source| &*source.inlined).filter(|inlined| !inlined.is_empty());
        debug_annotations.extend(inlined.map(|inlined| DebugAnnotation::new("inlined".to_owned(), inlined)));
        let trusted_packet_sequence_id = Some(sequence.id);
        self.write(&TracePacket {
            timestamp: Some(signed_time(time_ns)),
            trusted_packet_sequence_id,
            sequence_flags: Some(NEEDS_STATE),
            track_event: Some(TrackEvent {
                r#type: Some(kind),
                name_iid,
                source_location_iid,
                debug_annotations,
                ..TrackEvent::default()
            }),
            interned_data,
            ..TracePacket::default()
        })
    }

    fn counter_uuid(&mut self, pid: u32, name: &str) -> Result<u64> {
        if let Some(&uuid) = self.counters.get(&(pid, name.to_owned())) {
            return Ok(uuid);
        }
        let parent_uuid = Some(self.process_uuid(pid)?);
        let uuid = self.uuid();
        self.counters.insert((pid, name.to_owned()), uuid);
        let descriptor = TrackDescriptor {
            uuid: Some(uuid),
            parent_uuid,
            name: Some(name.to_owned()),
            counter: Some(CounterDescriptor {}),
            ..TrackDescriptor::default()
        };
        self.write(&TracePacket { track_descriptor: Some(descriptor), ..TracePacket::default() })?;
        Ok(uuid)
    }
}

impl<W: Write> Sink for Perfetto<W> {
    fn process(&mut self, pid: u32, name: &str) -> Result<()> {
        self.add_process(pid, Some(name)).map(|_| ())
    }

    fn thread(&mut self, track: Track, name: &str) -> Result<()> {
        self.add_track(track, Some(name))
    }

    fn source(&mut self, name: &str, place: SourcePlace<'_>) -> Result<()> {
        let inlined = place.inlined.join(", ");
        self.sources.insert(name.to_owned(), Source { path: place.path.to_owned(), line: place.line, inlined });
        Ok(())
    }

    fn enter(&mut self, track: Track, time_ns: u64, name: &str) -> Result<()> {
        self.event(track, time_ns, (SLICE_BEGIN, Some(name)), Vec::new())
    }

    fn exit(&mut self, track: Track, time_ns: u64) -> Result<()> {
        self.event(track, time_ns, (SLICE_END, None), Vec::new())
    }

    fn enter_with(&mut self, track: Track, time_ns: u64, name: &str, arguments: &[String]) -> Result<()> {
        let annotations = (1..).zip(arguments).map(|(number, text)| DebugAnnotation::new(format!("arg{number}"), text));
        self.event(track, time_ns, (SLICE_BEGIN, Some(name)), annotations.collect())
    }

    /// Readers add the annotations of a slice's end to those of its beginning.
    fn exit_with(&mut self, track: Track, time_ns: u64, result: &str) -> Result<()> {
        self.event(track, time_ns, (SLICE_END, None), vec![DebugAnnotation::new("retval".to_owned(), result)])
    }

    fn instant(&mut self, track: Track, time_ns: u64, name: &str) -> Result<()> {
        self.event(track, time_ns, (INSTANT, Some(name)), Vec::new())
    }

    fn counter(&mut self, pid: u32, time_ns: u64, name: &str, value: f64) -> Result<()> {
        let track_uuid = Some(self.counter_uuid(pid, name)?);
        let event = TrackEvent {
            r#type: Some(COUNTER),
            track_uuid,
            double_counter_value: Some(value),
            ..TrackEvent::default()
        };
        self.write(&TracePacket {
            timestamp: Some(signed_time(time_ns)),
            timestamp_clock_id: Some(MONOTONIC),
            trusted_packet_sequence_id: Some(1),
            track_event: Some(event),
            ..TracePacket::default()
        })
    }

    fn finish(&mut self) -> Result<()> {
        self.write_clock()?;
        self.out.flush().map_err(Error::Write)
    }
}

/// Readers take times as signed.
fn signed_time(time_ns: u64) -> u64 {
    time_ns.min(i64::MAX.cast_unsigned())
}

impl DebugAnnotation {
    fn new(name: String, text: &str) -> Self {
        Self { name: Some(name), value: Some(Annotated::new(text)) }
    }
}

impl Annotated {
    /// Determines the kind of a value by its text: only a number begins like one. Strings keep their quotes, as a
    /// distinction from names and from `NULL` and `?`.
    fn new(text: &str) -> Self {
        let is_number = text.trim_start_matches('-').starts_with(|first: char| first.is_ascii_digit());
        let hex = text.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
        match (text, hex) {
            ("true", _) => Self::Bool(true),
            ("false", _) => Self::Bool(false),
            (_, Some(number)) => Self::Pointer(number),
            _ if !is_number => Self::Text(text.to_owned()),
            _ => match (text.parse(), text.parse()) {
                (Ok(number), _) => Self::Int(number),
                (_, Ok(number)) => Self::Double(number),
                _ => Self::Text(text.to_owned()),
            },
        }
    }
}
