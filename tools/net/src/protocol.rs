//! The messages of uftrace's network protocol.
//!
//! A message is a head of 8 bytes, with big-endian numbers, and its contents:
//!
//! | bytes | head |
//! |---|---|
//! | 0..2 | `0xface` |
//! | 2..4 | the type |
//! | 4..8 | the number of bytes in the contents; negative numbers are refused |
//!
//! | type | message | contents |
//! |---|---|---|
//! | 101 | directory's name, the first message | the name, without NUL |
//! | 102 | records of a task | i32 thread id, records as in the file |
//! | 103 | records of the kernel | i32 processor, records |
//! | 104 | records of perf | i32 processor, records |
//! | 105 | `info` | its header with big-endian numbers, its text |
//! | 106 | another file | i32 length of its name, the name, its bytes |
//! | 107 | end, the last message | none |

use std::error::Error;
use std::fmt;

use rftrace_format::files::MAGIC;

use crate::held::Held;

const START: u16 = 0xface;
const HEAD_BYTES: usize = 8;
const NUMBER_BYTES: usize = 4;

const DIR_NAME: u16 = 101;
const TASK_RECORDS: u16 = 102;
const KERNEL_RECORDS: u16 = 103;
const PERF_RECORDS: u16 = 104;
const INFO: u16 = 105;
const FILE: u16 = 106;
const END: u16 = 107;

/// The maximum length of a directory's name in bytes: that of a path on Linux.
pub const MAX_DIR_NAME_BYTES: u32 = 4096;
/// The maximum length of a file's name in bytes.
pub const MAX_FILE_NAME_BYTES: u32 = 255;
/// The maximum size of `info` in bytes.
pub const MAX_INFO_BYTES: u32 = 4 << 20;
/// The maximum size of a message's contents in bytes, by the type of the length.
pub const MAX_MESSAGE_BYTES: u32 = i32::MAX as u32;

const INFO_HEADER_BYTES: usize = 40;
/// The numbers in the header of `info`.
const INFO_NUMBERS: [std::ops::Range<usize>; 5] = [8..12, 12..14, 16..24, 24..32, 32..34];
/// Where that header tells the order of bytes, and the one that differs from the network's.
const INFO_ORDER: (usize, u8) = (14, 1);

/// The file or task to which the contents of a message belong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Records of the task with this id.
    Task(u32),
    /// Records of the kernel for this processor.
    Kernel(u32),
    /// Records of perf for this processor.
    Perf(u32),
    /// A whole file, with the name that the peer gives it.
    File(Vec<u8>),
}

/// A piece of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The name of the directory that the peer gives it.
    DirName(Vec<u8>),
    /// The beginning of a part with this number of bytes.
    Begin(Part, u32),
    /// Some of the part's bytes.
    Bytes(&'a [u8]),
    /// The bytes of the file `info`.
    Info(Vec<u8>),
    /// The trace is complete.
    End,
}

/// The reason why bytes violate the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Malformed {
    /// A message begins with this number.
    Start(u16),
    /// A message has this unknown type.
    Type(u16),
    /// A message of this type has this impossible length.
    Length(u16, u32),
    /// A thread id, processor or length of a name is impossible.
    Number(u32),
    /// The first message has this type and is not the directory's name.
    NoName(u16),
    /// A message of this type came twice, though only once is allowed.
    Again(u16),
    /// The header of `info` is not that of a trace.
    Info,
    /// Bytes follow the end, or an error.
    Over,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Start(start) => {
                write!(f, "a message begins with {start:#06x} instead of {START:#06x}: not uftrace's protocol")
            }
            Self::Type(kind) => write!(f, "a message has the unknown type {kind}"),
            Self::Length(kind, bytes) => {
                write!(f, "a message of type {kind} has the impossible length of {}", bytes.cast_signed())
            }
            Self::Number(number) => write!(f, "{} is not a valid thread, processor or length", number.cast_signed()),
            Self::NoName(kind) => write!(f, "the first message has type {kind} instead of the directory's name"),
            Self::Again(kind) => write!(f, "a message of type {kind} came twice"),
            Self::Info => f.write_str("the content of `info` is not that of a trace"),
            Self::Over => f.write_str("bytes follow the end"),
        }
    }
}

impl Error for Malformed {}

/// A parser of messages from pieces of any size. It holds at most [`MAX_INFO_BYTES`], and takes memory only for
/// received bytes.
#[derive(Debug)]
pub struct Reader {
    state: State,
    /// The bytes read so far of the item that `state` waits for.
    held: Held,
    has_name: bool,
    has_info: bool,
}

/// The next item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    DirName {
        bytes: u32,
    },
    Info {
        bytes: u32,
    },
    /// The number before the contents of a message of this type.
    Number {
        kind: u16,
        contents: u32,
    },
    FileName {
        bytes: u32,
        contents: u32,
    },
    Contents {
        bytes: u32,
    },
    Over,
}

impl Default for Reader {
    fn default() -> Self {
        Self { state: State::Head, held: Held::default(), has_name: false, has_info: false }
    }
}

impl Reader {
    /// Creates a parser at the first message.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns true if the directory's name has come and no message is half read: the peer may be silent.
    #[must_use]
    pub fn is_between(&self) -> bool {
        self.has_name && self.state == State::Head && self.held.bytes().is_empty()
    }

    /// Takes bytes from the beginning of `input` and returns their meaning; `None` when `input` is empty.
    ///
    /// # Errors
    ///
    /// [`Malformed`]; the parser is unusable after that.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, Malformed> {
        let event = self.advance(input);
        if event.is_err() {
            self.state = State::Over;
            self.held = Held::default();
        }
        event
    }

    fn advance<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, Malformed> {
        loop {
            match self.state {
                State::Head => {
                    let Some(head) = self.held.take_filled(HEAD_BYTES, input) else { return Ok(None) };
                    let [a, b, c, d, length @ ..] = head.as_slice() else { return Ok(None) };
                    let kind = u16::from_be_bytes([*c, *d]);
                    let bytes = number(length);
                    self.begin(u16::from_be_bytes([*a, *b]), kind, bytes)?;
                    if self.state == State::Over {
                        return Ok(Some(Event::End));
                    }
                }
                State::DirName { bytes } => {
                    let Some(name) = self.held.take_filled(bytes as usize, input) else { return Ok(None) };
                    self.state = State::Head;
                    return Ok(Some(Event::DirName(name)));
                }
                State::Info { bytes } => {
                    let Some(mut info) = self.held.take_filled(bytes as usize, input) else { return Ok(None) };
                    turn_info(&mut info)?;
                    self.state = State::Head;
                    return Ok(Some(Event::Info(info)));
                }
                State::Number { kind, contents } => {
                    let Some(held) = self.held.take_filled(NUMBER_BYTES, input) else { return Ok(None) };
                    let number = number(&held);
                    let part = match kind {
                        _ if number > MAX_MESSAGE_BYTES => return Err(Malformed::Number(number)),
                        TASK_RECORDS => Part::Task(number),
                        KERNEL_RECORDS => Part::Kernel(number),
                        PERF_RECORDS => Part::Perf(number),
                        _ => {
                            let rest = contents.checked_sub(number);
                            let contents = rest.filter(|_| (1..=MAX_FILE_NAME_BYTES).contains(&number));
                            let contents = contents.ok_or(Malformed::Number(number))?;
                            self.state = State::FileName { bytes: number, contents };
                            continue;
                        }
                    };
                    self.state = contents_of(contents);
                    return Ok(Some(Event::Begin(part, contents)));
                }
                State::FileName { bytes, contents } => {
                    let Some(name) = self.held.take_filled(bytes as usize, input) else { return Ok(None) };
                    self.state = contents_of(contents);
                    return Ok(Some(Event::Begin(Part::File(name), contents)));
                }
                State::Contents { bytes } => {
                    let taken = (bytes as usize).min(input.len());
                    let Some((contents, rest)) = input.split_at_checked(taken).filter(|_| taken > 0) else {
                        return Ok(None);
                    };
                    *input = rest;
                    self.state = contents_of(bytes - taken as u32);
                    return Ok(Some(Event::Bytes(contents)));
                }
                State::Over if input.is_empty() => return Ok(None),
                State::Over => return Err(Malformed::Over),
            }
        }
    }

    /// Enters the state behind a head.
    fn begin(&mut self, start: u16, kind: u16, bytes: u32) -> Result<(), Malformed> {
        let possible = match kind {
            _ if start != START => return Err(Malformed::Start(start)),
            DIR_NAME => 0..=MAX_DIR_NAME_BYTES,
            TASK_RECORDS | KERNEL_RECORDS | PERF_RECORDS | FILE => NUMBER_BYTES as u32..=MAX_MESSAGE_BYTES,
            INFO => INFO_HEADER_BYTES as u32..=MAX_INFO_BYTES,
            END => 0..=0,
            _ => return Err(Malformed::Type(kind)),
        };
        if !possible.contains(&bytes) {
            return Err(Malformed::Length(kind, bytes));
        }
        if !self.has_name && kind != DIR_NAME {
            return Err(Malformed::NoName(kind));
        }
        let is_second = match kind {
            DIR_NAME => std::mem::replace(&mut self.has_name, true),
            INFO => std::mem::replace(&mut self.has_info, true),
            _ => false,
        };
        if is_second {
            return Err(Malformed::Again(kind));
        }
        self.state = match kind {
            DIR_NAME => State::DirName { bytes },
            INFO => State::Info { bytes },
            END => State::Over,
            _ => State::Number { kind, contents: bytes - NUMBER_BYTES as u32 },
        };
        Ok(())
    }
}

fn contents_of(bytes: u32) -> State {
    if bytes == 0 { State::Head } else { State::Contents { bytes } }
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// Turns the numbers in the header of `info` from the file's order into the network's, or back.
fn turn_info(info: &mut [u8]) -> Result<(), Malformed> {
    let (at, turned) = INFO_ORDER;
    if info.len() < INFO_HEADER_BYTES || !info.starts_with(MAGIC) {
        return Err(Malformed::Info);
    }
    if info.get(at) == Some(&turned) {
        for range in INFO_NUMBERS {
            info.get_mut(range).ok_or(Malformed::Info)?.reverse();
        }
    }
    Ok(())
}

fn head(kind: u16, bytes: u32) -> Vec<u8> {
    let mut head = Vec::with_capacity(HEAD_BYTES + NUMBER_BYTES);
    head.extend(START.to_be_bytes());
    head.extend(kind.to_be_bytes());
    head.extend(bytes.to_be_bytes());
    head
}

/// Returns the message with a directory's name, which is cut after [`MAX_DIR_NAME_BYTES`].
#[must_use]
pub fn dir_name(name: &str) -> Vec<u8> {
    let name = name.get(..name.floor_char_boundary(MAX_DIR_NAME_BYTES as usize)).unwrap_or(name);
    let mut message = head(DIR_NAME, name.len() as u32);
    message.extend(name.bytes());
    message
}

/// Returns the beginning of a message whose contents have this number of bytes.
///
/// # Errors
///
/// [`Malformed`] if the contents, their name or number fit into no message.
pub fn begin(part: &Part, contents: u64) -> Result<Vec<u8>, Malformed> {
    let (kind, number, name) = match part {
        Part::Task(tid) => (TASK_RECORDS, *tid, &[][..]),
        Part::Kernel(processor) => (KERNEL_RECORDS, *processor, &[][..]),
        Part::Perf(processor) => (PERF_RECORDS, *processor, &[][..]),
        Part::File(name) => (FILE, u32::try_from(name.len()).unwrap_or(u32::MAX), name.as_slice()),
    };
    let most = if kind == FILE { MAX_FILE_NAME_BYTES } else { MAX_MESSAGE_BYTES };
    if number > most || kind == FILE && number == 0 {
        return Err(Malformed::Number(number));
    }
    let bytes = contents.saturating_add((NUMBER_BYTES + name.len()) as u64);
    let bytes = u32::try_from(bytes).ok().filter(|bytes| *bytes <= MAX_MESSAGE_BYTES);
    let mut message = head(kind, bytes.ok_or(Malformed::Length(kind, u32::MAX))?);
    message.extend(number.to_be_bytes());
    message.extend(name);
    Ok(message)
}

/// Returns the message with the bytes of the file `info`.
///
/// # Errors
///
/// [`Malformed`] if it is longer than [`MAX_INFO_BYTES`], or not that of a trace.
pub fn info(file: &[u8]) -> Result<Vec<u8>, Malformed> {
    let bytes = u32::try_from(file.len()).unwrap_or(u32::MAX);
    if bytes > MAX_INFO_BYTES {
        return Err(Malformed::Length(INFO, bytes));
    }
    let mut turned = file.to_vec();
    turn_info(&mut turned)?;
    let mut message = head(INFO, bytes);
    message.append(&mut turned);
    Ok(message)
}

/// Returns the last message.
#[must_use]
pub fn end() -> Vec<u8> {
    head(END, 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header() -> Vec<u8> {
        let mut file = b"Ftrace!\0\x04\0\0\0\x28\0\x01\x02".to_vec();
        file.extend(0x42_u64.to_le_bytes());
        file.extend(0x1_0001_u64.to_le_bytes());
        file.extend(1024_u16.to_le_bytes());
        file.extend([1, 2, 3, 4, 5, 6]);
        file.extend(b"exename:x\n");
        file
    }

    /// The events read, with contents that came in pieces put together.
    fn read_pieces(pieces: &[&[u8]]) -> (Vec<Event<'static>>, Option<Malformed>) {
        let (mut reader, mut events) = (Reader::new(), Vec::<Event<'static>>::new());
        let mut contents: Vec<Vec<u8>> = Vec::new();
        for mut piece in pieces.iter().copied() {
            loop {
                match reader.next(&mut piece) {
                    Ok(Some(Event::Bytes(bytes))) => {
                        assert!(!bytes.is_empty());
                        contents.last_mut().expect("they were announced").extend(bytes);
                    }
                    Ok(Some(event)) => {
                        if matches!(event, Event::Begin(..)) {
                            contents.push(Vec::new());
                        }
                        events.push(match event {
                            Event::Bytes(_) => unreachable!(),
                            Event::DirName(name) => Event::DirName(name),
                            Event::Begin(part, bytes) => Event::Begin(part, bytes),
                            Event::Info(info) => Event::Info(info),
                            Event::End => Event::End,
                        });
                    }
                    Ok(None) => break,
                    Err(error) => return (events, Some(error)),
                }
            }
            assert!(piece.is_empty(), "all is taken");
        }
        // Only as bytes of a test that never end.
        let mut whole = Vec::new();
        let mut contents = contents.into_iter();
        for event in events {
            let has_contents = matches!(event, Event::Begin(..));
            whole.push(event);
            if has_contents {
                whole.push(Event::Bytes(contents.next().expect("one for each").leak()));
            }
        }
        (whole, None)
    }

    fn transfer() -> Vec<u8> {
        let file = Part::File(b"task.txt".to_vec());
        [
            dir_name("trace"),
            begin(&Part::Task(7), 16).unwrap(),
            vec![9; 16],
            begin(&Part::Perf(1), 0).unwrap(),
            begin(&file, 3).unwrap(),
            b"abc".to_vec(),
            info(&header()).unwrap(),
            end(),
        ]
        .concat()
    }

    #[test]
    fn bytes_of_each_message() {
        assert_eq!(dir_name("ab"), [0xfa, 0xce, 0, 101, 0, 0, 0, 2, b'a', b'b']);
        assert_eq!(begin(&Part::Task(258), 16).unwrap(), [0xfa, 0xce, 0, 102, 0, 0, 0, 20, 0, 0, 1, 2]);
        assert_eq!(begin(&Part::Kernel(3), 8).unwrap(), [0xfa, 0xce, 0, 103, 0, 0, 0, 12, 0, 0, 0, 3]);
        assert_eq!(begin(&Part::Perf(3), 8).unwrap(), [0xfa, 0xce, 0, 104, 0, 0, 0, 12, 0, 0, 0, 3]);
        let file = begin(&Part::File(b"x".to_vec()), 2).unwrap();
        assert_eq!(file, [0xfa, 0xce, 0, 106, 0, 0, 0, 7, 0, 0, 0, 1, b'x']);
        assert_eq!(end(), [0xfa, 0xce, 0, 107, 0, 0, 0, 0]);
        let info = info(&header()).unwrap();
        assert_eq!(info[..8], [0xfa, 0xce, 0, 105, 0, 0, 0, 50]);
        assert_eq!(info[8..24], *b"Ftrace!\0\0\0\0\x04\0\x28\x01\x02");
        assert_eq!(info[24..40], [[0, 0, 0, 0, 0, 0, 0, 0x42], [0, 0, 0, 0, 0, 1, 0, 1]].concat());
        assert_eq!(info[40..48], [4, 0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(info[48..], *b"exename:x\n");
    }

    #[test]
    fn what_no_message_can_hold() {
        assert_eq!(begin(&Part::Task(1 << 31), 0), Err(Malformed::Number(1 << 31)));
        assert_eq!(begin(&Part::Task(1), (1 << 31) - 4), Err(Malformed::Length(102, u32::MAX)));
        assert!(begin(&Part::Task(1), (1 << 31) - 5).is_ok());
        assert!(begin(&Part::File(vec![b'x'; 256]), 0).is_err());
        assert!(begin(&Part::File(Vec::new()), 0).is_err());
        assert_eq!(info(&[0; 39]), Err(Malformed::Info));
        assert_eq!(info(b"something else that is long enough for it"), Err(Malformed::Info));
        let name = dir_name(&"ä".repeat(3000));
        assert_eq!(name.len(), 8 + 4096);
        assert_eq!(read_pieces(&[&name]).1, None);
    }

    #[test]
    fn wrong_messages() {
        let named = |message: &[u8]| [&dir_name("x"), message].concat();
        for (bytes, error) in [
            (vec![0xfa, 0xcf, 0, 101, 0, 0, 0, 0], Malformed::Start(0xfacf)),
            (vec![0xfa, 0xce, 0, 108, 0, 0, 0, 0], Malformed::Type(108)),
            (vec![0xfa, 0xce, 0, 101, 0xff, 0xff, 0xff, 0xff], Malformed::Length(101, u32::MAX)),
            (vec![0xfa, 0xce, 0, 101, 0, 0, 16, 1], Malformed::Length(101, 4097)),
            (vec![0xfa, 0xce, 0, 102, 0, 0, 0, 4], Malformed::NoName(102)),
            (named(&dir_name("y")), Malformed::Again(101)),
            (named(&[0xfa, 0xce, 0, 102, 0, 0, 0, 3]), Malformed::Length(102, 3)),
            (named(&[0xfa, 0xce, 0, 102, 0x80, 0, 0, 0]), Malformed::Length(102, 1 << 31)),
            (named(&[0xfa, 0xce, 0, 102, 0, 0, 0, 4, 255, 255, 255, 255]), Malformed::Number(u32::MAX)),
            (named(&[0xfa, 0xce, 0, 106, 0, 0, 0, 5, 0, 0, 0, 2]), Malformed::Number(2)),
            (named(&[0xfa, 0xce, 0, 106, 0, 0, 0, 5, 0, 0, 0, 0]), Malformed::Number(0)),
            (named(&[0xfa, 0xce, 0, 105, 0, 0, 0, 39]), Malformed::Length(105, 39)),
            (named(&[0xfa, 0xce, 0, 105, 0, 0x40, 0, 1]), Malformed::Length(105, (4 << 20) + 1)),
            (named(&[&[0xfa, 0xce, 0, 105, 0, 0, 0, 40], &[0; 40][..]].concat()), Malformed::Info),
            (named(&[0xfa, 0xce, 0, 107, 0, 0, 0, 1]), Malformed::Length(107, 1)),
            (named(&[&end()[..], &[0]].concat()), Malformed::Over),
        ] {
            assert_eq!(read_pieces(&[&bytes]).1, Some(error), "{bytes:02x?}");
            assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn between_messages_nothing_is_held() {
        let bytes = transfer();
        let mut reader = Reader::new();
        assert!(!reader.is_between(), "the name is to come");
        let mut n_between = 0;
        for byte in &bytes {
            let mut piece = std::slice::from_ref(byte);
            while reader.next(&mut piece).unwrap().is_some() {}
            n_between += usize::from(reader.is_between());
        }
        assert_eq!(n_between, 5, "after each message but the last one");
        assert_eq!(reader.next(&mut &[0][..]), Err(Malformed::Over));
        assert_eq!(reader.next(&mut &[][..]), Ok(None));
    }

    fn cut<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        at.extend([0, bytes.len()]);
        at.sort_unstable();
        at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// However the bytes are cut, the same is read.
        #[test]
        fn pieces_make_no_difference(
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        ) {
            let mut bytes = transfer();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            prop_assert_eq!(read_pieces(&cut(&bytes, &cuts)).1, read_pieces(&[&bytes]).1);
            if read_pieces(&[&bytes]).1.is_none() {
                prop_assert_eq!(read_pieces(&cut(&bytes, &cuts)).0, read_pieces(&[&bytes]).0);
            }
        }

        /// Whatever comes, it is read or refused.
        #[test]
        fn anything_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), named: bool) {
            let name = if named { dir_name("x") } else { Vec::new() };
            read_pieces(&[&name, &bytes]);
        }

        /// Written messages are read back the same.
        #[test]
        fn round_trip(
            name in "[a-z./]{0,40}",
            tasks in prop::collection::vec((0..1_u32 << 31, prop::collection::vec(any::<u8>(), 0..100)), 0..5),
            files in prop::collection::vec(("[ -~]{1,30}", prop::collection::vec(any::<u8>(), 0..100)), 0..5),
        ) {
            let mut bytes = dir_name(&name);
            let mut expected = vec![Event::DirName(name.into_bytes())];
            let tasks = tasks.iter().map(|(tid, contents)| (Part::Task(*tid), contents));
            let files = files.iter().map(|(name, contents)| (Part::File(name.clone().into_bytes()), contents));
            for (part, contents) in tasks.chain(files) {
                bytes.extend(begin(&part, contents.len() as u64).unwrap());
                bytes.extend(contents);
                expected.push(Event::Begin(part, contents.len() as u32));
                expected.push(Event::Bytes(contents));
            }
            bytes.extend(info(&header()).unwrap());
            bytes.extend(end());
            expected.extend([Event::Info(header()), Event::End]);
            prop_assert_eq!(read_pieces(&[&bytes]), (expected, None));
        }
    }
}
