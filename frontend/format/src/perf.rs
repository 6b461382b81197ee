//! `perf-cpu<N>.dat`: records of perf for one processor, as `perf_event_open(2)` describes them.
//!
//! A record begins with its [`Header`]. Those of the kernel end with a sample id of process, thread and time, 4, 4 and 8 bytes:
//! a trace has context switches from the kernel, and names of threads that have names of their own, which uftrace has nowhere
//! else.

/// Size of a [`Header`].
pub const HEADER_BYTES: usize = 8;
/// Size of a record with a thread's name: header, pid, tid and name; then the sample id.
pub const THREAD_NAME_BYTES: usize = HEADER_BYTES + 4 + 4 + NAME_BYTES + SAMPLE_ID_BYTES;
/// Bytes of a thread's name, with a NUL at its end.
pub const NAME_BYTES: usize = 16;

const SAMPLE_ID_BYTES: usize = 4 + 4 + 8;

/// Type of a record: so many were lost.
pub const LOST: u32 = 2;
/// Type of a record: a thread's name.
pub const COMM: u32 = 3;
/// Type of a record: a context switch.
pub const SWITCH: u32 = 14;

/// Flag of a [`SWITCH`]: the task gave up its processor.
const SWITCH_OUT: u16 = 1 << 13;
/// Flag of a [`SWITCH`]: it lost it to another task.
const SWITCH_OUT_PREEMPTED: u16 = 1 << 14;

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its type: [`COMM`], [`SWITCH`], …
    pub kind: u32,
    /// Flags, which depend on the type.
    pub flags: u16,
    /// Bytes of the record, with this header.
    pub size: u16,
}

impl Header {
    /// Reads a header. The size is not checked.
    pub fn decode(bytes: [u8; HEADER_BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h] = bytes;
        Self {
            kind: u32::from_le_bytes([a, b, c, d]),
            flags: u16::from_le_bytes([e, f]),
            size: u16::from_le_bytes([g, h]),
        }
    }

    /// Its bytes.
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let ([a, b, c, d], [e, f], [g, h]) =
            (self.kind.to_le_bytes(), self.flags.to_le_bytes(), self.size.to_le_bytes());
        [a, b, c, d, e, f, g, h]
    }

    /// Bytes that follow this header; `None` if the size is less than that of a header, so that nobody knows.
    pub fn body_bytes(self) -> Option<usize> {
        usize::from(self.size).checked_sub(HEADER_BYTES)
    }
}

/// The name of a thread, since `time_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadName<'a> {
    /// Nanoseconds of the trace's clock.
    pub time_ns: u64,
    /// The thread.
    pub tid: u32,
    /// Its process.
    pub pid: u32,
    /// The name; what is behind the fifteenth byte is cut.
    pub name: &'a str,
}

impl ThreadName<'_> {
    /// The record.
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

/// The time of a record with a sample id at its end; 0 if it is shorter than that.
pub fn time_ns(record: &[u8]) -> u64 {
    record.last_chunk().map_or(0, |time| u64::from_le_bytes(*time))
}

/// How a task got or lost its processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchKind {
    /// It got one.
    In,
    /// It gave it up.
    Out,
    /// It lost it to another task.
    OutPreempted,
}

/// The body of a [`SWITCH`], behind its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// Nanoseconds of the trace's clock.
    pub time_ns: u64,
    /// The task.
    pub tid: u32,
    /// The direction of the switch.
    pub kind: SwitchKind,
}

impl Switch {
    /// Reads a record of type [`SWITCH`] by its flags and what follows its header; `None` if that is too short.
    pub fn decode(flags: u16, body: &[u8]) -> Option<Self> {
        let kind = match (flags & SWITCH_OUT != 0, flags & SWITCH_OUT_PREEMPTED != 0) {
            (false, _) => SwitchKind::In,
            (true, false) => SwitchKind::Out,
            (true, true) => SwitchKind::OutPreempted,
        };
        Some(Self { time_ns: long(body, 8)?, tid: (long(body, 0)? >> 32) as u32, kind })
    }
}

/// Bytes of a record of type [`LOST`].
pub const LOST_BYTES: usize = HEADER_BYTES + 8 + 8;

/// The record that says how many were lost.
pub fn encode_lost(count: u64) -> [u8; LOST_BYTES] {
    let mut record = [0; LOST_BYTES];
    record[..HEADER_BYTES].copy_from_slice(&Header { kind: LOST, flags: 0, size: LOST_BYTES as u16 }.encode());
    record[LOST_BYTES - 8..].copy_from_slice(&count.to_le_bytes());
    record
}

/// How many records were lost, by what follows the header of a [`LOST`]; 1 if that is too short.
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
    fn headers() {
        let bytes = [14, 0, 0, 0, 0, 0x20, 24, 0];
        let header = Header { kind: SWITCH, flags: 1 << 13, size: 24 };
        assert_eq!((Header::decode(bytes), header.encode()), (header, bytes));
        assert_eq!(header.body_bytes(), Some(16));
        assert_eq!(Header { size: 7, ..header }.body_bytes(), None);
    }
}
