//! `perf-cpu<N>.dat`: perf's records for one processor, as `perf_event_open(2)` describes them.
//!
//! A record begins with a [`Header`]. Records of the kernel end with a sample id: process, thread and time, 4, 4 and 8
//! bytes. A trace has context switches from the kernel here, and names of threads, for which uftrace has no other
//! place. Wakings of threads have a type of rftrace; readers of perf's records skip types that they do not know.

/// The size of a [`Header`] in bytes.
pub const HEADER_BYTES: usize = 8;
/// The size in bytes of a record with a thread's name: header, pid, tid and name; then the sample id.
pub const THREAD_NAME_BYTES: usize = HEADER_BYTES + 4 + 4 + NAME_BYTES + SAMPLE_ID_BYTES;
/// The size in bytes of a thread's name, with a NUL at its end.
pub const NAME_BYTES: usize = 16;

const SAMPLE_ID_BYTES: usize = 4 + 4 + 8;

/// The type of a record with a number of lost records.
pub const LOST: u32 = 2;
/// The type of a record with a thread's name.
pub const COMM: u32 = 3;
/// The type of a sample of an event.
pub const SAMPLE: u32 = 9;
/// The type of a record of a context switch.
pub const SWITCH: u32 = 14;

/// The type of a record of a waking, rftrace's own: the kernel's types are smaller.
pub const WAKING: u32 = 0x7266_0001;

/// Flag of a [`SWITCH`]: the task gave up its processor.
const SWITCH_OUT: u16 = 1 << 13;
/// Flag of a [`SWITCH`]: it lost it to another task.
const SWITCH_OUT_PREEMPTED: u16 = 1 << 14;

/// Flag of a [`SWITCH`], rftrace's own: wakings are recorded too.
pub const WITH_WAKINGS: u16 = 1 << 8;

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The type: [`COMM`], [`SWITCH`], …
    pub kind: u32,
    /// Flags, which depend on the type.
    pub flags: u16,
    /// The size of the record in bytes, with this header.
    pub size: u16,
}

impl Header {
    /// Decodes a header. The size is not checked.
    pub fn decode(bytes: [u8; HEADER_BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h] = bytes;
        Self {
            kind: u32::from_le_bytes([a, b, c, d]),
            flags: u16::from_le_bytes([e, f]),
            size: u16::from_le_bytes([g, h]),
        }
    }

    /// Encodes the header.
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let ([a, b, c, d], [e, f], [g, h]) =
            (self.kind.to_le_bytes(), self.flags.to_le_bytes(), self.size.to_le_bytes());
        [a, b, c, d, e, f, g, h]
    }

    /// Returns the number of bytes after this header; `None` if the size is smaller than a header.
    pub fn body_bytes(self) -> Option<usize> {
        usize::from(self.size).checked_sub(HEADER_BYTES)
    }
}

/// A record with the name of a thread since `time_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadName<'a> {
    /// The time in nanoseconds of the trace's clock.
    pub time_ns: u64,
    /// The thread's id.
    pub tid: u32,
    /// The process's id.
    pub pid: u32,
    /// The name, which is cut after fifteen bytes.
    pub name: &'a str,
}

impl ThreadName<'_> {
    /// Encodes the record.
    pub fn encode(&self) -> [u8; THREAD_NAME_BYTES] {
        let mut text = [0; NAME_BYTES];
        let bytes = self.name.as_bytes();
        let length = bytes.len().min(NAME_BYTES - 1);
        text[..length].copy_from_slice(&bytes[..length]);
        let (pid, tid) = (self.pid.to_le_bytes(), self.tid.to_le_bytes());
        let head = Header { kind: COMM, flags: 0, size: THREAD_NAME_BYTES as u16 }.encode();
        let fields: [&[u8]; 7] = [&head, &pid, &tid, &text, &pid, &tid, &self.time_ns.to_le_bytes()];
        let mut record = [0; THREAD_NAME_BYTES];
        let mut rest = &mut record[..];
        for field in fields {
            let (place, after) = rest.split_at_mut(field.len());
            place.copy_from_slice(field);
            rest = after;
        }
        record
    }
}

/// Returns the time of a record with a sample id at its end; 0 for a shorter record.
pub fn time_ns(record: &[u8]) -> u64 {
    record.last_chunk().map_or(0, |time| u64::from_le_bytes(*time))
}

/// The direction of a context switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchKind {
    /// The task got a processor.
    In,
    /// The task gave up its processor.
    Out,
    /// The task lost its processor to another task.
    OutPreempted,
}

/// The body of a [`SWITCH`] record, behind its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// The time in nanoseconds of the trace's clock.
    pub time_ns: u64,
    /// The task's id.
    pub tid: u32,
    /// The direction.
    pub kind: SwitchKind,
}

impl Switch {
    /// Decodes a record of type [`SWITCH`] from its flags and its body; `None` if the body is too short.
    pub fn decode(flags: u16, body: &[u8]) -> Option<Self> {
        let kind = match (flags & SWITCH_OUT != 0, flags & SWITCH_OUT_PREEMPTED != 0) {
            (false, _) => SwitchKind::In,
            (true, false) => SwitchKind::Out,
            (true, true) => SwitchKind::OutPreempted,
        };
        Some(Self { time_ns: long(body, 8)?, tid: (long(body, 0)? >> 32) as u32, kind })
    }
}

/// A waking: a thread need not wait any longer, and runs as soon as it gets a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waking {
    /// The time in nanoseconds of the trace's clock.
    pub time_ns: u64,
    /// The id of the woken thread.
    pub tid: u32,
    /// The id of the thread that woke it.
    pub by: u32,
}

/// The size in bytes of a record of type [`WAKING`].
pub const WAKING_BYTES: usize = HEADER_BYTES + 8 + SAMPLE_ID_BYTES;

impl Waking {
    /// Encodes the record: the woken thread, and the waking one in the sample id.
    pub fn encode(&self) -> [u8; WAKING_BYTES] {
        let head = Header { kind: WAKING, flags: 0, size: WAKING_BYTES as u16 }.encode();
        let words = [u64::from(self.tid), u64::from(self.by) << 32, self.time_ns].map(u64::to_le_bytes);
        let mut record = [0; WAKING_BYTES];
        record[..HEADER_BYTES].copy_from_slice(&head);
        record[HEADER_BYTES..].copy_from_slice(words.as_flattened());
        record
    }

    /// Decodes the body of a record of type [`WAKING`]; `None` if it is too short.
    pub fn decode(body: &[u8]) -> Option<Self> {
        Some(Self { time_ns: long(body, 16)?, tid: long(body, 0)? as u32, by: (long(body, 8)? >> 32) as u32 })
    }
}

/// The size in bytes of a record of type [`LOST`].
pub const LOST_BYTES: usize = HEADER_BYTES + 8 + 8;

/// Encodes a record with the number of lost records.
pub fn encode_lost(count: u64) -> [u8; LOST_BYTES] {
    let mut record = [0; LOST_BYTES];
    record[..HEADER_BYTES].copy_from_slice(&Header { kind: LOST, flags: 0, size: LOST_BYTES as u16 }.encode());
    record[LOST_BYTES - 8..].copy_from_slice(&count.to_le_bytes());
    record
}

/// Returns the number of lost records from the body of a [`LOST`] record; 1 if the body is too short.
pub fn lost(body: &[u8]) -> u64 {
    long(body, 8).unwrap_or(1)
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_record_of_perf() {
        let bytes = ThreadName { time_ns: 0x0102, tid: 7, pid: 5, name: "a name of many letters" }.encode();
        let text = b"a name of many \0";
        let expected: [&[u8]; 4] = [
            &[3, 0, 0, 0, 0, 0, 48, 0, 5, 0, 0, 0, 7, 0, 0, 0],
            text,
            &[5, 0, 0, 0, 7, 0, 0, 0],
            &[2, 1, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(bytes[..], expected.concat());
        assert_eq!(time_ns(&bytes), 0x0102);
    }

    #[test]
    fn a_switch_tells_who_and_how() {
        let body = [7_u32.to_le_bytes(), 8_u32.to_le_bytes(), [9, 0, 0, 0], [0; 4]].concat();
        for (flags, kind) in [
            (0, SwitchKind::In),
            (1 << 14, SwitchKind::In),
            (1 << 13, SwitchKind::Out),
            (3 << 13, SwitchKind::OutPreempted),
        ] {
            assert_eq!(Switch::decode(flags, &body), Some(Switch { time_ns: 9, tid: 8, kind }));
        }
        assert_eq!(Switch::decode(0, &body[..15]), None);
        assert_eq!((lost(&body), lost(&[])), (9, 1));
        let record = encode_lost(5);
        assert_eq!(record, [2, 0, 0, 0, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(lost(&record[HEADER_BYTES..]), 5);
    }

    #[test]
    fn a_waking_tells_who_and_by_whom() {
        let waking = Waking { time_ns: 9, tid: 7, by: 8 };
        let bytes = waking.encode();
        let (head, body) = bytes.split_first_chunk().unwrap();
        assert_eq!(Header::decode(*head), Header { kind: WAKING, flags: 0, size: bytes.len() as u16 });
        assert_eq!((Waking::decode(body), time_ns(body)), (Some(waking), 9));
        assert!((0..body.len()).all(|length| Waking::decode(&body[..length]).is_none()));
    }

    #[test]
    fn headers() {
        let bytes = [14, 0, 0, 0, 0, 0x20, 24, 0];
        let header = Header { kind: SWITCH, flags: 1 << 13, size: 24 };
        assert_eq!((Header::decode(bytes), header.encode()), (header, bytes));
        assert_eq!(header.body_bytes(), Some(16));
        assert_eq!(Header { size: 7, ..header }.body_bytes(), None);
    }
}
