//! Context switches recorded by perf: `perf.data`, or the text of `perf script`.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use linux_perf_data::linux_perf_event_reader::{
    ClockId, ContextSwitchRecord, EventRecord, PerfClock, RawData, TaskWasPreempted,
};
use linux_perf_data::{PerfFile, PerfFileReader, PerfFileRecord, PerfRecordIter};
use rftrace_format::perf::{self, Header};
use rftrace_read::lines::Lines;
use rftrace_read::{Error, OffCpu, Result, files};

use super::seconds::nanos_of_seconds;

/// The first bytes of `perf.data`.
const MAGIC: &[u8; 8] = b"PERFILE2";

const SCHED_SWITCH: &str = "sched:sched_switch";

/// A thread got a processor or lost it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PerfSwitch {
    /// When, in nanoseconds of CLOCK_MONOTONIC.
    pub(super) nanos: u64,
    pub(super) tid: u32,
    /// Why it lost it; `None` if it got one.
    pub(super) off_cpu: Option<OffCpu>,
}

/// A file of switches.
pub(super) enum SwitchFile {
    Data(Box<Data>),
    Text { lines: Lines, pending: Option<PerfSwitch> },
}

pub(super) struct Data {
    path: PathBuf,
    file: PerfFile,
    records: PerfRecordIter<BufReader<File>>,
    /// Places of the attributes that are `sched:sched_switch`.
    switches: Vec<usize>,
    pending: Option<PerfSwitch>,
}

impl SwitchFile {
    /// Opens a file of one of the two kinds.
    pub(super) fn open(path: &Path, is_data: bool) -> Result<Self> {
        if is_data {
            return Data::open(path).map(|data| Self::Data(Box::new(data)));
        }
        Ok(Self::Text { lines: Lines::open(path)?, pending: None })
    }

    pub(super) fn next(&mut self) -> Result<Option<PerfSwitch>> {
        match self {
            Self::Data(data) => data.next(),
            Self::Text { lines, pending } => next_of_text(lines, pending),
        }
    }
}

/// The kind of a file of perf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PerfKind {
    /// The text of `perf stat`.
    Counters,
    /// `perf.data`.
    Data,
    /// The text of `perf script`.
    Script,
}

/// The kind of a file, by its first bytes or its first line.
pub(super) fn kind_of_perf(path: &Path) -> Result<PerfKind> {
    if files::begins_with(path, MAGIC)? {
        return Ok(PerfKind::Data);
    }
    let mut lines = Lines::open(path)?;
    while let Some(line) = lines.next()? {
        if !line.trim().is_empty() && !line.starts_with('#') {
            return Ok(if is_script(line) { PerfKind::Script } else { PerfKind::Counters });
        }
    }
    Ok(PerfKind::Counters)
}

/// True for a line of `perf script` with a context switch or another event.
fn is_script(line: &str) -> bool {
    time_and_rest(line).is_some()
}

/// The time of a line `COMM TID [CPU] SECONDS: …`, and what comes before and after.
fn time_and_rest(line: &str) -> Option<(&str, u64, &str)> {
    for (start, _) in line.match_indices('[') {
        let (before, after) = (&line[..start], &line[start + 1..]);
        let (cpu, rest) = after.split_once("] ")?;
        if cpu.is_empty() || !cpu.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') {
            continue;
        }
        if let Some((time, rest)) = rest.trim_start().split_once(": ")
            && let Some(nanos) = nanos_of_seconds(time)
        {
            return Some((before.trim_end(), nanos, rest.trim_start()));
        }
    }
    None
}

fn next_of_text(lines: &mut Lines, pending: &mut Option<PerfSwitch>) -> Result<Option<PerfSwitch>> {
    if let Some(switch) = pending.take() {
        return Ok(Some(switch));
    }
    while let Some(line) = lines.next()? {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let found = time_and_rest(line).map(|(before, nanos, rest)| {
            if let Some((_, fields)) = rest.split_once("sched_switch:") {
                let (prev, next) = switch_of_text(fields)?;
                return Some((nanos, Some(prev), Some(next)));
            }
            let tid = || before.rsplit([' ', '/']).next()?.parse::<u32>().ok();
            match rest.split_once("PERF_RECORD_SWITCH") {
                Some((_, rest)) if rest.contains(" OUT") => {
                    Some((nanos, Some((tid()?, kind_of(rest.contains(" OUT preempt")))), None))
                }
                Some((_, rest)) if rest.contains(" IN") => Some((nanos, None, Some(tid()?))),
                // Another event.
                _ => Some((nanos, None, None)),
            }
        });
        let Some(Some((nanos, prev, next))) = found else {
            return Err(lines.error("expected an event of perf script: `COMM TID [CPU] SECONDS: EVENT: …`"));
        };
        let prev = prev.map(|(tid, kind)| PerfSwitch { nanos, tid, off_cpu: Some(kind) });
        let next = next.map(|tid| PerfSwitch { nanos, tid, off_cpu: None });
        if prev.is_some() && next.is_some() {
            *pending = next;
        }
        if let Some(switch) = prev.or(next) {
            return Ok(Some(switch));
        }
    }
    Ok(None)
}

/// The kind of the time that begins for a thread that could run on, or could not.
fn kind_of(can_run: bool) -> OffCpu {
    if can_run { OffCpu::Preempted } else { OffCpu::Waiting }
}

/// The threads of a `sched_switch`, and why the first one lost its processor:
/// `prev_comm=a prev_pid=1 … prev_state=S ==> next_comm=b next_pid=2 …` or `a:1 [120] S ==> b:2 [120]`.
fn switch_of_text(fields: &str) -> Option<((u32, OffCpu), u32)> {
    let (prev, next) = fields.split_once("==>")?;
    let pid = |text: &str, key: &str| {
        let digits = match text.split_once(key) {
            Some((_, rest)) => rest.split(' ').next()?,
            None => text.rsplit_once(" [").or(text.rsplit_once('['))?.0.rsplit(':').next()?.trim(),
        };
        digits.parse::<u32>().ok()
    };
    let state = prev.trim_end().rsplit([' ', '=']).next()?;
    Some(((pid(prev, "prev_pid=")?, kind_of(matches!(state, "R" | "R+"))), pid(next, "next_pid=")?))
}

impl Data {
    fn open(path: &Path) -> Result<Self> {
        let io_error = |source| Error::Io { path: path.to_owned(), source };
        let mut file = files::open(path)?;
        let length = file.metadata().map_err(io_error)?.len();
        check(path, &mut BufReader::new(&mut file), length)?;
        file.seek(SeekFrom::Start(0)).map_err(io_error)?;
        let reader = PerfFileReader::parse_file(BufReader::with_capacity(256 * 1024, file))
            .map_err(|error| malformed(path, 0, format!("the file is no valid perf.data: {error}")))?;
        let attributes = reader.perf_file.event_attributes();
        let is_monotonic =
            attributes.iter().all(|event| matches!(event.attributes().clock, PerfClock::ClockId(ClockId::Monotonic)));
        if !is_monotonic {
            return Err(malformed(
                path,
                0,
                "the times are of perf's own clock; record with -k CLOCK_MONOTONIC (perf sched record -k CLOCK_MONOTONIC)",
            ));
        }
        let is_switch = |name: Option<&str>| name.is_some_and(|name| name.trim_end_matches('\0') == SCHED_SWITCH);
        let switches =
            (0..).zip(attributes).filter(|(_, event)| is_switch(event.name())).map(|(place, _)| place).collect();
        Ok(Self { path: path.to_owned(), file: reader.perf_file, records: reader.record_iter, switches, pending: None })
    }

    fn next(&mut self) -> Result<Option<PerfSwitch>> {
        if let Some(switch) = self.pending.take() {
            return Ok(Some(switch));
        }
        loop {
            let record = self.records.next_record(&mut self.file);
            let record = record.map_err(|error| malformed(&self.path, 0, format!("a record is invalid: {error}")))?;
            let Some(record) = record else { return Ok(None) };
            let PerfFileRecord::EventRecord { attr_index, record } = record else { continue };
            let Ok(common) = record.common_data() else { continue };
            let Some(nanos) = common.timestamp else { continue };
            let switch = |tid: i32, off_cpu| Some(PerfSwitch { nanos, tid: u32::try_from(tid).ok()?, off_cpu });
            match record.parse() {
                Ok(EventRecord::ContextSwitch(kind)) => {
                    let off_cpu = match kind {
                        ContextSwitchRecord::In { .. } => None,
                        ContextSwitchRecord::Out { preempted, .. } => Some(kind_of(preempted == TaskWasPreempted::Yes)),
                    };
                    if let Some(found) = common.tid.and_then(|tid| switch(tid, off_cpu)) {
                        return Ok(Some(found));
                    }
                }
                Ok(EventRecord::Sample(sample)) if self.switches.contains(&attr_index) => {
                    let Some(((prev, kind), next)) = sample.raw.and_then(switch_of_raw) else { continue };
                    self.pending = switch(next, None);
                    match switch(prev, Some(kind)).or_else(|| self.pending.take()) {
                        Some(found) => return Ok(Some(found)),
                        None => continue,
                    }
                }
                _ => {}
            }
        }
    }
}

/// As [`switch_of_text`], of the tracepoint's data, which has been laid out like this since Linux 2.6.
fn switch_of_raw(raw: RawData<'_>) -> Option<((i32, OffCpu), i32)> {
    const PREV_PID: usize = 24;
    const PREV_STATE: usize = 32;
    const NEXT_PID: usize = 56;
    /// Each of these bits is a reason to wait. Above them is one that says that the thread was pre-empted.
    const WAITS: i32 = 0xff;
    let bytes = raw.as_slice();
    let word = |at: usize| Some(i32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    Some(((word(PREV_PID)?, kind_of(word(PREV_STATE)? & WAITS == 0)), word(NEXT_PID)?))
}

fn malformed(path: &Path, offset: u64, reason: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::malformed(path, offset, reason)
}

/// Checks what the crate believes: sizes and counts, by which it reserves memory.
fn check(path: &Path, file: &mut (impl Read + Seek), length: u64) -> Result<()> {
    const HEADER_BYTES: u64 = 104;
    const MAX_SECTION_BYTES: u64 = 64 << 20;
    const EVENT_DESC: usize = 12;
    let mut at = |offset: u64, bytes: &mut [u8]| -> Result<()> {
        let read = file.seek(SeekFrom::Start(offset)).and_then(|_| file.read_exact(bytes));
        read.map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => malformed(path, offset, "the file ends within an announced part"),
            _ => Error::Io { path: path.to_owned(), source },
        })
    };
    let word = |bytes: &[u8], idx: usize| bytes.as_chunks().0.get(idx).map_or(0, |word| u64::from_le_bytes(*word));
    let mut header = [0; HEADER_BYTES as usize];
    at(0, &mut header)?;
    let [attr_size, attrs, attrs_size, data, data_size, types_size] = [2, 3, 4, 5, 6, 8].map(|idx| word(&header, idx));
    let in_file = |start: u64, size: u64| start.checked_add(size).is_some_and(|end| end <= length);
    if data_size == 0 && length > HEADER_BYTES {
        return Err(malformed(
            path,
            48,
            "perf has not finished the file; end perf record with Ctrl-C or SIGINT, not with SIGKILL",
        ));
    }
    if !in_file(attrs, attrs_size) || !in_file(data, data_size) {
        return Err(malformed(path, 24, "a section exceeds the end of the file"));
    }
    if !(64..=4096).contains(&attr_size) || attrs_size > MAX_SECTION_BYTES || types_size != 0 {
        return Err(malformed(path, 16, "the attributes have an impossible size"));
    }
    let features: Vec<usize> = (0..256).filter(|bit| header[72 + bit / 8] & 1 << (bit % 8) != 0).collect();
    let mut total = 0_u64;
    for (idx, feature) in (0..).zip(features) {
        let place = data + data_size + 16 * idx;
        let mut section = [0; 16];
        at(place, &mut section)?;
        let (offset, size) = (word(&section, 0), word(&section, 1));
        total = total.saturating_add(size);
        if !in_file(offset, size) || total > MAX_SECTION_BYTES {
            return Err(malformed(path, place, "a section exceeds the end of the file, or is too large"));
        }
        if feature >= 128 {
            return Err(malformed(path, place, "the file is from simpleperf, but rftrace reads only files of perf"));
        }
        if feature == EVENT_DESC {
            let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
            at(offset, &mut bytes)?;
            if !is_event_description(&bytes) {
                return Err(malformed(path, offset, "the parts of a list of events exceed the list"));
            }
        }
    }
    let (mut place, end) = (data, data + data_size);
    while place < end {
        const AUXTRACE: u32 = 71;
        let mut record = [0; perf::HEADER_BYTES];
        at(place, &mut record)?;
        let Header { kind, size, .. } = Header::decode(record);
        let size = u64::from(size);
        if size < perf::HEADER_BYTES as u64 || size > end - place {
            return Err(malformed(path, place, "a record has an impossible size"));
        }
        if kind == AUXTRACE {
            return Err(malformed(
                path,
                place,
                "the file has AUX data, but rftrace reads only context switches; record without AUX events",
            ));
        }
        place += size;
    }
    Ok(())
}

/// True if the numbers in the section EVENT_DESC are such that their data is in it.
fn is_event_description(bytes: &[u8]) -> bool {
    let number = |at: usize| {
        let word = bytes.get(at..)?.first_chunk()?;
        usize::try_from(u32::from_le_bytes(*word)).ok()
    };
    let walk = || {
        let (count, attr_size) = (number(0)?, number(4)?);
        let mut at = 8_usize;
        for _ in 0..count {
            at = at.checked_add(attr_size)?;
            let ids = number(at)?;
            let name = number(at.checked_add(4)?)?;
            at = at.checked_add(8)?.checked_add(name)?.checked_add(ids.checked_mul(8)?)?;
            if attr_size < 64 || at > bytes.len() {
                return None;
            }
        }
        (count <= bytes.len()).then_some(())
    };
    walk().is_some()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(text: &'static str) -> Result<Vec<PerfSwitch>> {
        let mut switches =
            SwitchFile::Text { lines: Lines::new(Path::new("sched.txt"), Box::new(text.as_bytes())), pending: None };
        let mut found = Vec::new();
        while let Some(switch) = switches.next()? {
            found.push(switch);
        }
        Ok(found)
    }

    #[test]
    fn text_of_perf_script() {
        let text = "# header\n\
            \x20          sleep 30898 [-01] 24577.817284184: PERF_RECORD_SWITCH OUT          \n\
            \x20          sleep 30898/30899 [001] 24578.017376930: PERF_RECORD_SWITCH IN         \n\
            \x20          sleep 30898/30899 [001] 24578.5: PERF_RECORD_SWITCH OUT preempt\n\
            \x20           perf 30907 [000] 24579.011047703:       sched:sched_waking: comm=migration/0 pid=18 prio=0\n\
            \x20      my [1] x 30907 [000] 24579.011052100:       sched:sched_switch: prev_comm=perf prev_pid=30907 prev_prio=120 \
            prev_state=D ==> next_comm=migration/0 next_pid=18 next_prio=0\n\
            \x20           perf 30907 [000] 24579.5: sched:sched_switch: a [x]:7 [120] S ==> swapper/0:0 [120]\n\
            \x20           perf 30907 [000] 24579.6: sched:sched_switch: b:8 [120] R ==> a [x]:7 [120]\n\
            \x20           perf 30907 [000] 24579.7: sched:sched_switch: prev_comm=R prev_pid=9 prev_prio=120 prev_state=R+ ==> \
            next_comm=b next_pid=8 next_prio=120\n";
        let switch = |nanos, tid, off_cpu| PerfSwitch { nanos, tid, off_cpu };
        let (waits, preempted) = (Some(OffCpu::Waiting), Some(OffCpu::Preempted));
        assert_eq!(
            all(text).unwrap(),
            [
                switch(24_577_817_284_184, 30898, waits),
                switch(24_578_017_376_930, 30899, None),
                switch(24_578_500_000_000, 30899, preempted),
                switch(24_579_011_052_100, 30907, waits),
                switch(24_579_011_052_100, 18, None),
                switch(24_579_500_000_000, 7, waits),
                switch(24_579_500_000_000, 0, None),
                switch(24_579_600_000_000, 8, preempted),
                switch(24_579_600_000_000, 7, None),
                switch(24_579_700_000_000, 9, preempted),
                switch(24_579_700_000_000, 8, None),
            ]
        );
        for bad in
            ["nonsense\n", "a 1 [000] 1.5: sched:sched_switch: what\n", "a x [000] 1.5: PERF_RECORD_SWITCH IN \n"]
        {
            assert!(all(bad).unwrap_err().to_string().starts_with("sched.txt: byte 0: line 1: expected an event"));
        }
    }

    fn open(bytes: &[u8]) -> Result<Vec<PerfSwitch>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("perf.data");
        std::fs::write(&path, bytes).unwrap();
        let mut switches = SwitchFile::open(&path, true)?;
        let mut found = Vec::new();
        while let Some(switch) = switches.next()? {
            found.push(switch);
        }
        Ok(found)
    }

    /// A `perf.data` of one event with context switches: three of thread 7.
    fn perf_data(clock: u32) -> Vec<u8> {
        const ATTR_BYTES: usize = 128;
        let mut attr = vec![0_u8; ATTR_BYTES];
        let mut put = |at: usize, bytes: &[u8]| attr[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &1_u32.to_le_bytes()); // PERF_TYPE_SOFTWARE
        put(4, &(ATTR_BYTES as u32).to_le_bytes());
        put(8, &9_u64.to_le_bytes()); // PERF_COUNT_SW_DUMMY
        put(24, &(1_u64 << 1 | 1 << 2).to_le_bytes()); // TID, TIME
        put(40, &(1_u64 << 18 | 1 << 25 | 1 << 26).to_le_bytes()); // SAMPLE_ID_ALL, USE_CLOCKID, CONTEXT_SWITCH
        put(92, &clock.to_le_bytes());
        let mut data = Vec::new();
        for (misc, time) in [(1_u16 << 13, 1000_u64), (0, 2000), (3 << 13, 3000)] {
            data.extend([14_u32.to_le_bytes().as_slice(), &misc.to_le_bytes(), &24_u16.to_le_bytes()].concat());
            data.extend([7_u32.to_le_bytes().as_slice(), &7_u32.to_le_bytes(), &time.to_le_bytes()].concat());
        }
        let mut file = MAGIC.to_vec();
        let words = [104, 144, 104, 144, 248, data.len() as u64, 0, 0, 0, 0, 0, 0];
        file.extend(words.into_iter().flat_map(u64::to_le_bytes));
        file.extend(attr);
        file.extend([0; 16]);
        file.extend(data);
        file
    }

    #[test]
    fn a_perf_data_and_what_is_wrong_with_others() {
        let kinds: Vec<_> = open(&perf_data(1)).unwrap().iter().map(|switch| switch.off_cpu).collect();
        assert_eq!(kinds, [Some(OffCpu::Waiting), None, Some(OffCpu::Preempted)]);
        let error = open(&perf_data(0)).unwrap_err().to_string();
        assert!(error.contains("-k CLOCK_MONOTONIC"), "{error}");
        let whole = perf_data(1);
        for length in 0..whole.len() {
            let error = open(&whole[..length]).unwrap_err().to_string();
            assert!(error.contains("perf.data: byte "), "{length}: {error}");
        }
    }

    proptest! {
        #[test]
        fn hostile_files_are_errors_or_pass(place in 0..296_usize, value: u8, wide: u64) {
            let mut bytes = perf_data(1);
            bytes[place] = value;
            let _ = open(&bytes);
            let place = place & !7;
            bytes[place..place + 8].copy_from_slice(&wide.to_le_bytes());
            let _ = open(&bytes);
        }

        #[test]
        fn no_line_makes_it_panic(line in "[a-z ]{0,6}[0-9/]{0,5} ?\\[?[0-9-]{0,3}\\]? ?[0-9.]{0,5}:? ?(sched:sched_switch:|PERF_RECORD_SWITCH)?[ =>:\\[\\]0-9a-zé]{0,20}") {
            time_and_rest(&line);
            switch_of_text(&line);
            let leaked: &'static str = Box::leak(line.into_boxed_str());
            let _ = all(leaked);
        }
    }
}
