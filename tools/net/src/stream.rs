//! rftrace's protocol for records of running programs, without input or output.
//!
//! A stream is a beginning of [`HELLO_BYTES`] and a name, then sections like those of an image
//! (`docs/image-format.md`): a word with tag and length, contents of whole words, a checksum. All numbers are
//! little-endian.
//!
//! | bytes | beginning |
//! |---|---|
//! | 0..8 | [`MAGIC`] |
//! | 8..12 | [`VERSION`] |
//! | 12..16 | the rest of the stream: 1 sections, 2 messages of uftrace's protocol |
//! | 16..24 | the versions of images and records, in the form of images |
//! | 24..56 | the token; zeros without one |
//! | 56..58 | the length of the name, at most 255 |
//! | 58.. | the name, filled up with zeros to a whole word |
//!
//! | tag | words |
//! |---|---|
//! | PROC | the number of the process to which the next sections belong; the sender numbers processes from 0 in the order of the stream |
//! | ABOU | the length of a file, the offset of this piece; the piece: the file beside its spool. The first one of a process precedes its chunks |
//! | CHNZ, CHNK | a chunk of the process |
//! | SYMS | the number of a module; then as in ABOU: its file of symbols |
//! | BEAT | none; the sender is alive and has no data |
//! | FILE | the number of a file of the trace ([`Companion`]), its length, the offset of this piece; the piece. After all chunks, each file once |
//! | END | the numbers of processes, chunks and files: the stream is complete |
//!
//! The receiver answers once, with a line: `ok NAME` when it has everything, `no REASON` when it refuses further data.
//!
//! Not here: the storage (`spools`), and the meaning of texts and chunks (`rftrace-frontend`).

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;

use rftrace_format::companion::Companion;
/// The first bytes of a stream.
pub use rftrace_format::files::STREAM_MAGIC as MAGIC;

use crate::held::Held;
use crate::token::{TOKEN_BYTES, Token};

/// The version of the protocol.
pub const VERSION: u32 = 2;
/// The number of bytes before the name.
pub const HELLO_BYTES: usize = 58;
/// The maximum length of the name in bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// The maximum size of a section's contents in bytes.
pub const MAX_SECTION_BYTES: usize = 4 << 20;
/// The maximum size of a text or file of symbols in bytes.
pub const MAX_TEXT_BYTES: u64 = 256 << 20;
/// The maximum number of processes in a stream, and of modules with symbols.
pub const MAX_NUMBER: u32 = 1 << 16;

const WORD: usize = 8;
const PROC: [u8; 4] = *b"PROC";
const ABOUT: [u8; 4] = *b"ABOU";
const PACKED: [u8; 4] = *b"CHNZ";
const CHUNK: [u8; 4] = *b"CHNK";
const SYMBOLS: [u8; 4] = *b"SYMS";
const BEAT: [u8; 4] = *b"BEAT";
const FILE: [u8; 4] = *b"FILE";
const END: [u8; 4] = *b"END\n";

/// The kind of data after the beginning of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows {
    /// Sections.
    Sections,
    /// Messages of uftrace's protocol.
    Messages,
}

/// The beginning of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The kind of data after the beginning.
    pub follows: Follows,
    /// The versions with which images begin.
    pub versions: u64,
    /// The token that permits the peer to send.
    pub token: Option<Token>,
    /// The name for the trace.
    pub name: Vec<u8>,
}

/// A piece of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// True for the first piece.
    pub is_first: bool,
    /// True for the last piece.
    pub is_last: bool,
    /// The bytes of the piece.
    pub bytes: Vec<u8>,
}

/// A section, or a piece of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The beginning of the stream.
    Hello(Hello),
    /// The number of the process to which the next sections belong.
    Process(u32),
    /// A piece of the facts about the process.
    About(Piece),
    /// A chunk: the whole section, with its checksum.
    Chunk(Vec<u8>),
    /// A piece of the symbols of the module with this number.
    Symbols(u32, Piece),
    /// A sign of life.
    Beat,
    /// A piece of a file of the trace.
    File(Companion, Piece),
    /// The end: the stream is complete.
    End,
}

/// The reason why bytes violate the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Malformed {
    /// The first bytes are wrong.
    Magic,
    /// The stream has this other version.
    Version(u32),
    /// The data after the beginning is of this unknown kind.
    Follows(u32),
    /// The name has this length, which is too long.
    Name(u16),
    /// A section has this unknown tag.
    Tag([u8; 4]),
    /// A section with this tag has this impossible length.
    Length([u8; 4], u32),
    /// The checksum of a section with this tag is wrong.
    Checksum([u8; 4]),
    /// A section with this tag contains this impossible number.
    Number([u8; 4], u64),
    /// A section with this tag precedes the sections that it needs.
    Order([u8; 4]),
    /// The numbers of processes, chunks and files in the end do not match the stream.
    End,
    /// Bytes follow the end, or an error.
    Over,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tag = |tag: &[u8; 4]| tag.escape_ascii().to_string();
        match self {
            Self::Magic => f.write_str("the first bytes are not those of a stream"),
            Self::Version(version) => {
                write!(
                    f,
                    "the stream has version {version}, and this rftrace reads version {VERSION}: use the same rftrace at both ends"
                )
            }
            Self::Follows(number) => write!(f, "the stream has the unknown kind {number}"),
            Self::Name(bytes) => write!(f, "a name of {bytes} bytes is too long"),
            Self::Tag(of) => write!(f, "the section {} is unknown", tag(of)),
            Self::Length(of, bytes) => write!(f, "a section {} has the impossible length of {bytes} bytes", tag(of)),
            Self::Checksum(of) => write!(f, "a section {} has a wrong checksum", tag(of)),
            Self::Number(of, number) => write!(f, "the number {number} is impossible in a section {}", tag(of)),
            Self::Order(of) => write!(f, "a section {} comes before the section that it needs", tag(of)),
            Self::End => f.write_str("the end counts other processes, chunks or files than the stream has"),
            Self::Over => f.write_str("bytes follow the end"),
        }
    }
}

impl Error for Malformed {}

/// A parser of a stream from pieces of any size. It holds one section at most, and takes memory only for received
/// bytes.
#[derive(Debug)]
pub struct Reader {
    state: State,
    /// The bytes read so far of the item that `state` waits for.
    held: Held,
    /// The process that sections belong to.
    process: Option<u32>,
    /// How many there were, of which `n_known` something is known.
    n_processes: u32,
    n_known: u32,
    n_modules: u32,
    n_chunks: u64,
    /// Those that have begun to come.
    files: BTreeSet<Companion>,
    /// The text that has not come as a whole.
    text: Option<Text>,
}

/// A text that comes in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Text {
    tag: [u8; 4],
    number: u64,
    total: u64,
    /// Bytes that have come.
    end: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Hello,
    Name { bytes: usize },
    Section,
    Contents { bytes: usize },
    Over,
}

impl Default for Reader {
    fn default() -> Self {
        Self {
            state: State::Hello,
            held: Held::default(),
            process: None,
            n_processes: 0,
            n_known: 0,
            n_modules: 0,
            n_chunks: 0,
            files: BTreeSet::new(),
            text: None,
        }
    }
}

impl Reader {
    /// Creates a parser at the beginning of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes bytes from the beginning of `input` and returns their meaning; `None` if more bytes are needed. After a
    /// [`Hello`] with messages, the rest of `input` belongs to the messages.
    ///
    /// # Errors
    ///
    /// [`Malformed`]; the parser is unusable after that.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Event>, Malformed> {
        let event = self.advance(input);
        if event.is_err() {
            self.state = State::Over;
            self.held = Held::default();
        }
        event
    }

    fn advance(&mut self, input: &mut &[u8]) -> Result<Option<Event>, Malformed> {
        loop {
            match self.state {
                State::Hello => {
                    // At once: a peer of another protocol may never send more.
                    let n_magic = self.held.bytes().len().min(MAGIC.len());
                    let is_ours =
                        |bytes: &[u8]| MAGIC.iter().skip(n_magic).zip(bytes).all(|(wanted, byte)| wanted == byte);
                    if !is_ours(input) {
                        return Err(Malformed::Magic);
                    }
                    if !self.held.fill(HELLO_BYTES, input) {
                        return Ok(None);
                    }
                    let version = number(self.held.bytes(), 8, 4) as u32;
                    if version != VERSION {
                        return Err(Malformed::Version(version));
                    }
                    let bytes = number(self.held.bytes(), 56, 2) as u16;
                    if usize::from(bytes) > MAX_NAME_BYTES {
                        return Err(Malformed::Name(bytes));
                    }
                    self.state = State::Name { bytes: bytes.into() };
                }
                State::Name { bytes } => {
                    if !self.held.fill((HELLO_BYTES + bytes).next_multiple_of(WORD), input) {
                        return Ok(None);
                    }
                    let held = self.held.take();
                    let follows = match number(&held, 12, 4) as u32 {
                        1 => Follows::Sections,
                        2 => Follows::Messages,
                        other => return Err(Malformed::Follows(other)),
                    };
                    self.state = if follows == Follows::Sections { State::Section } else { State::Over };
                    let token = held.get(24..24 + TOKEN_BYTES).and_then(|token| token.try_into().ok());
                    return Ok(Some(Event::Hello(Hello {
                        follows,
                        versions: number(&held, 16, 8),
                        token: token.and_then(Token::new),
                        name: held.get(HELLO_BYTES..HELLO_BYTES + bytes).unwrap_or_default().to_vec(),
                    })));
                }
                State::Section => {
                    if !self.held.fill(WORD, input) {
                        return Ok(None);
                    }
                    let tag = tag(self.held.bytes());
                    let bytes = number(self.held.bytes(), 4, 4) as u32;
                    let possible = match tag {
                        PROC => WORD..=WORD,
                        ABOUT => 2 * WORD..=MAX_SECTION_BYTES,
                        SYMBOLS => 3 * WORD..=MAX_SECTION_BYTES,
                        // The header of a chunk, and a chunk.
                        PACKED | CHUNK => 64..=MAX_SECTION_BYTES,
                        BEAT => 0..=0,
                        FILE => 3 * WORD..=MAX_SECTION_BYTES,
                        END => 3 * WORD..=3 * WORD,
                        _ => return Err(Malformed::Tag(tag)),
                    };
                    let length = bytes as usize;
                    if !possible.contains(&length) || !length.is_multiple_of(WORD) {
                        return Err(Malformed::Length(tag, bytes));
                    }
                    self.check_order(tag)?;
                    self.state = State::Contents { bytes: length };
                }
                State::Contents { bytes } => {
                    if !self.held.fill(WORD + bytes + WORD, input) {
                        return Ok(None);
                    }
                    let section = self.held.take();
                    self.state = State::Section;
                    return self.event(section, bytes).map(Some);
                }
                State::Over if input.is_empty() => return Ok(None),
                State::Over => return Err(Malformed::Over),
            }
        }
    }

    /// Refuses a section that may not come here.
    fn check_order(&self, tag: [u8; 4]) -> Result<(), Malformed> {
        let is_right = match tag {
            FILE => self.text.is_none_or(|text| text.tag == tag),
            // Files are what was made of the rest.
            _ if !self.files.is_empty() && !matches!(tag, BEAT | END) => false,
            ABOUT => self.process.is_some() && self.text.is_none_or(|text| text.tag == tag),
            SYMBOLS => self.text.is_none_or(|text| text.tag == tag),
            PACKED | CHUNK => self.process.is_some_and(|process| process < self.n_known) && self.text.is_none(),
            BEAT => true,
            _ => self.text.is_none(),
        };
        if is_right { Ok(()) } else { Err(Malformed::Order(tag)) }
    }

    fn event(&mut self, section: Vec<u8>, bytes: usize) -> Result<Event, Malformed> {
        let tag = tag(&section);
        let (told, rest) = (number(&section, WORD + bytes, WORD), section.get(..WORD + bytes).unwrap_or_default());
        if told != checksum(rest) {
            return Err(Malformed::Checksum(tag));
        }
        let contents = rest.get(WORD..).unwrap_or_default();
        let word = |place: usize| number(contents, place * WORD, WORD);
        Ok(match tag {
            PROC => {
                let process = next_or_known(word(0), &mut self.n_processes).ok_or(Malformed::Number(tag, word(0)))?;
                // The one before had to be known first.
                if process > self.n_known {
                    return Err(Malformed::Order(tag));
                }
                self.process = Some(process);
                Event::Process(process)
            }
            ABOUT => {
                let process = self.process.unwrap_or_default();
                let piece =
                    self.piece(tag, process.into(), [word(0), word(1)], contents.get(2 * WORD..).unwrap_or_default())?;
                if piece.is_last {
                    self.n_known = self.n_known.max(process + 1);
                }
                Event::About(piece)
            }
            SYMBOLS => {
                let is_first = word(2) == 0;
                let mut n_modules = self.n_modules;
                let module =
                    next_or_known(word(0), &mut n_modules).filter(|module| is_first == (*module == self.n_modules));
                let module = module.ok_or(Malformed::Number(tag, word(0)))?;
                self.n_modules = n_modules;
                let piece =
                    self.piece(tag, module.into(), [word(1), word(2)], contents.get(3 * WORD..).unwrap_or_default())?;
                Event::Symbols(module, piece)
            }
            BEAT => Event::Beat,
            FILE => {
                let file = Companion::of_word(word(0)).ok_or(Malformed::Number(tag, word(0)))?;
                let is_first = word(2) == 0;
                if self.files.insert(file) != is_first {
                    return Err(Malformed::Number(tag, word(0)));
                }
                let bytes = contents.get(3 * WORD..).unwrap_or_default();
                Event::File(file, self.piece(tag, word(0), [word(1), word(2)], bytes)?)
            }
            END => {
                if [word(0), word(1), word(2)] != [self.n_processes.into(), self.n_chunks, self.files.len() as u64] {
                    return Err(Malformed::End);
                }
                self.state = State::Over;
                Event::End
            }
            _ => {
                self.n_chunks += 1;
                Event::Chunk(section)
            }
        })
    }

    /// A piece of a text of `total` bytes, that begins at `start` and has zeros behind its end.
    fn piece(&mut self, tag: [u8; 4], number: u64, [total, start]: [u64; 2], bytes: &[u8]) -> Result<Piece, Malformed> {
        let before = self.text.take();
        let is_next = match before {
            None => start == 0,
            Some(text) => text == Text { tag, number, total, end: start },
        };
        // Files go to the disk piece by piece.
        let most = if tag == FILE { u64::MAX } else { MAX_TEXT_BYTES };
        if total > most || !is_next {
            return Err(Malformed::Number(tag, if is_next { total } else { start }));
        }
        let left = total - start;
        let is_last = bytes.len() as u64 >= left;
        let bytes = bytes.get(..left.min(bytes.len() as u64) as usize).unwrap_or_default();
        // One without anything would come again and again.
        if bytes.is_empty() && !is_last {
            return Err(Malformed::Number(tag, start));
        }
        if !is_last {
            self.text = Some(Text { tag, number, total, end: start + bytes.len() as u64 });
        }
        Ok(Piece { is_first: start == 0, is_last, bytes: bytes.to_vec() })
    }
}

/// A number that is one of those so far, or the next one.
fn next_or_known(number: u64, n_known: &mut u32) -> Option<u32> {
    let number = u32::try_from(number).ok().filter(|&number| number <= *n_known && number < MAX_NUMBER)?;
    *n_known = (*n_known).max(number + 1);
    Some(number)
}

fn tag(section: &[u8]) -> [u8; 4] {
    section.first_chunk().copied().unwrap_or_default()
}

/// A number of so many bytes, from a place on.
fn number(bytes: &[u8], place: usize, width: usize) -> u64 {
    let bytes = bytes.get(place..place + width).unwrap_or_default();
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The checksum of words, as `docs/image-format.md` has it.
fn checksum(bytes: &[u8]) -> u64 {
    let words = bytes.as_chunks::<WORD>().0.iter().map(|word| u64::from_le_bytes(*word));
    words.fold(0_u64, |sum, word| (sum.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Returns the beginning of a stream. A name that is too long is cut.
#[must_use]
pub fn hello(hello: &Hello) -> Vec<u8> {
    let name = hello.name.get(..MAX_NAME_BYTES).unwrap_or(&hello.name);
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(if hello.follows == Follows::Sections { 1_u32 } else { 2 }.to_le_bytes());
    bytes.extend(hello.versions.to_le_bytes());
    bytes.extend(hello.token.as_ref().map(Token::bytes).unwrap_or_default());
    bytes.extend((name.len() as u16).to_le_bytes());
    bytes.extend(name);
    bytes.resize(bytes.len().next_multiple_of(WORD), 0);
    bytes
}

/// A section: words, and bytes behind them.
fn section(tag: [u8; 4], words: &[u64], bytes: &[u8]) -> Vec<u8> {
    let length = (words.len() * WORD + bytes.len()).next_multiple_of(WORD);
    let mut section = tag.to_vec();
    section.extend((length as u32).to_le_bytes());
    section.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    section.extend(bytes);
    section.resize(WORD + length, 0);
    let sum = checksum(&section);
    section.extend(sum.to_le_bytes());
    section
}

/// Returns the section with the number of the process to which the next sections belong.
#[must_use]
pub fn process(number: u32) -> Vec<u8> {
    section(PROC, &[number.into()], &[])
}

/// The maximum number of bytes of a text or file in one section.
pub const PIECE_BYTES: usize = 1 << 20;

/// Returns the sections with the facts about a process.
pub fn about(text: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    pieces(text).map(move |(start, piece)| section(ABOUT, &[text.len() as u64, start], piece))
}

/// Returns the sections with the symbols of a module.
pub fn symbols(number: u32, text: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    pieces(text).map(move |(start, piece)| section(SYMBOLS, &[number.into(), text.len() as u64, start], piece))
}

fn pieces(text: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    // An empty one is one piece too.
    let n_pieces = text.len().div_ceil(PIECE_BYTES).max(1);
    (0..n_pieces).map(move |number| {
        let start = number * PIECE_BYTES;
        let end = text.len().min(start + PIECE_BYTES);
        (start as u64, text.get(start..end).unwrap_or_default())
    })
}

/// Returns the section that is a sign of life.
#[must_use]
pub fn beat() -> Vec<u8> {
    section(BEAT, &[], &[])
}

/// Returns the section with a piece of a file of `total` bytes, from the offset `start`. The piece has at most
/// [`PIECE_BYTES`], and is empty only for an empty file.
#[must_use]
pub fn file(which: Companion, total: u64, start: u64, piece: &[u8]) -> Vec<u8> {
    section(FILE, &[which.word(), total, start], piece)
}

/// Returns the end of a stream with these numbers of processes, chunks and files.
#[must_use]
pub fn end(n_processes: u32, n_chunks: u64, n_files: u64) -> Vec<u8> {
    section(END, &[n_processes.into(), n_chunks, n_files], &[])
}

/// Returns the length of the section at the beginning of `spool`, with its checksum; `None` if there are too few bytes.
#[must_use]
pub fn section_bytes(spool: &[u8]) -> Option<usize> {
    (spool.len() >= WORD).then(|| number(spool, 4, 4) as usize + 2 * WORD)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn greeting() -> Hello {
        Hello {
            follows: Follows::Sections,
            versions: 7 << 32 | 2,
            token: Token::new([3; 32]),
            name: b"a-name".to_vec(),
        }
    }

    fn chunk(fill: u8) -> Vec<u8> {
        section(PACKED, &[], &[fill; 96])
    }

    /// A stream of two processes, its sections, and what is read of them.
    fn sample() -> (Vec<Vec<u8>>, Vec<Event>) {
        let piece = |bytes: &[u8]| Piece { is_first: true, is_last: true, bytes: bytes.to_vec() };
        let one = |mut pieces: Vec<Vec<u8>>| pieces.remove(0);
        let pairs = [
            (hello(&greeting()), Event::Hello(greeting())),
            (process(0), Event::Process(0)),
            (one(about(b"first").collect()), Event::About(piece(b"first"))),
            (chunk(1), Event::Chunk(chunk(1))),
            (beat(), Event::Beat),
            (process(1), Event::Process(1)),
            (one(about(b"").collect()), Event::About(piece(b""))),
            (one(symbols(0, b"symbols").collect()), Event::Symbols(0, piece(b"symbols"))),
            (process(0), Event::Process(0)),
            (chunk(2), Event::Chunk(chunk(2))),
            (one(about(b"later").collect()), Event::About(piece(b"later"))),
            (file(Companion::Perf(3), 8, 0, b"switches"), Event::File(Companion::Perf(3), piece(b"switches"))),
            (file(Companion::Clock, 0, 0, b""), Event::File(Companion::Clock, piece(b""))),
            (
                file(Companion::Info, 13, 0, b"info one"),
                Event::File(Companion::Info, Piece { is_last: false, ..piece(b"info one") }),
            ),
            (beat(), Event::Beat),
            (
                file(Companion::Info, 13, 8, b"after"),
                Event::File(Companion::Info, Piece { is_first: false, ..piece(b"after") }),
            ),
            (end(2, 2, 3), Event::End),
        ];
        pairs.into_iter().unzip()
    }

    fn read_pieces<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Event>, Option<Malformed>) {
        let (mut reader, mut events) = (Reader::new(), Vec::new());
        for mut piece in pieces {
            loop {
                match reader.next(&mut piece) {
                    Ok(Some(event)) => events.push(event),
                    Ok(None) => break,
                    Err(error) => return (events, Some(error)),
                }
            }
            assert!(piece.is_empty());
        }
        (events, None)
    }

    #[test]
    fn what_is_written_is_read() {
        let (sections, events) = sample();
        let bytes = sections.concat();
        for size in [1, 2, 7, 64, bytes.len()] {
            assert_eq!(read_pieces(bytes.chunks(size)), (events.clone(), None), "{size}");
        }
        let more = [&bytes[..], b"x"].concat();
        assert_eq!(read_pieces([&more[..]]).1, Some(Malformed::Over));
    }

    #[test]
    fn texts_of_any_length_come_in_pieces() {
        for length in [PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 5] {
            let text: Vec<u8> = (0..length).map(|at| (at >> 4) as u8).collect();
            let mut bytes = [hello(&greeting()), process(0)].concat();
            about(&text).for_each(|section| bytes.extend(section));
            let (events, error) = read_pieces(bytes.chunks(1 << 16));
            assert_eq!(error, None);
            let pieces: Vec<&Piece> = events
                .iter()
                .filter_map(|event| if let Event::About(piece) = event { Some(piece) } else { None })
                .collect();
            assert_eq!(pieces.iter().flat_map(|piece| &piece.bytes).copied().collect::<Vec<u8>>(), text);
            let n_pieces = pieces.len();
            let bits = pieces.iter().map(|piece| (piece.is_first, piece.is_last));
            assert!(bits.eq((1..=n_pieces).map(|number| (number == 1, number == n_pieces))), "{length}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let begin = [hello(&greeting()), process(0)].concat();
        let known = [begin.clone(), about(b"x").collect::<Vec<_>>().concat()].concat();
        let head = |tag: &[u8; 4], bytes: u32| [&tag[..], &bytes.to_le_bytes()].concat();
        let cases: Vec<(Vec<u8>, Malformed)> = vec![
            (b"GET / HTTP/1.1".to_vec(), Malformed::Magic),
            ([&MAGIC[..], &9_u32.to_le_bytes(), &[0; 46]].concat(), Malformed::Version(9)),
            ([&begin[..56], &300_u16.to_le_bytes()].concat(), Malformed::Name(300)),
            ([&begin[..12], &[9, 0, 0, 0], &begin[16..64]].concat(), Malformed::Follows(9)),
            ([&begin[..], &head(b"HEAD", 8)].concat(), Malformed::Tag(*b"HEAD")),
            ([&known[..], &head(b"CHNZ", u32::MAX)].concat(), Malformed::Length(PACKED, u32::MAX)),
            ([&known[..], &head(b"CHNZ", (4 << 20) + 8)].concat(), Malformed::Length(PACKED, (4 << 20) + 8)),
            ([&known[..], &head(b"CHNZ", 65)].concat(), Malformed::Length(PACKED, 65)),
            ([&known[..], &head(b"PROC", 16)].concat(), Malformed::Length(PROC, 16)),
            ([&begin[..], &chunk(0)].concat(), Malformed::Order(PACKED)),
            ([hello(&greeting()), about(b"x").collect::<Vec<_>>().concat()].concat(), Malformed::Order(ABOUT)),
            ([hello(&greeting()), process(1)].concat(), Malformed::Number(PROC, 1)),
            ([begin.clone(), process(1)].concat(), Malformed::Order(PROC)),
            ([known.clone(), end(1, 1, 0)].concat(), Malformed::End),
            ([known.clone(), end(2, 0, 0)].concat(), Malformed::End),
            ([known.clone(), end(1, 0, 1)].concat(), Malformed::End),
            ([known.clone(), section(FILE, &[1, 1, 0], b"x")].concat(), Malformed::Number(FILE, 1)),
            ([known.clone(), section(FILE, &[u64::MAX, 1, 0], b"x")].concat(), Malformed::Number(FILE, u64::MAX)),
            ([known.clone(), section(FILE, &[9 << 32, 9, 8], b"x")].concat(), Malformed::Number(FILE, 9 << 32)),
            ([known.clone(), section(FILE, &[9 << 32, 9, 0], b"")].concat(), Malformed::Number(FILE, 0)),
            ([known.clone(), file(Companion::Gaps, 1, 0, b"x").repeat(2)].concat(), Malformed::Number(FILE, 4 << 32)),
            (
                [known.clone(), file(Companion::Gaps, 9, 0, b"x"), file(Companion::Clock, 9, 1, b"y")].concat(),
                Malformed::Number(FILE, 3 << 32),
            ),
            ([known.clone(), file(Companion::Gaps, 9, 0, b"x"), end(1, 0, 1)].concat(), Malformed::Order(END)),
            ([known.clone(), file(Companion::Gaps, 1, 0, b"x"), process(0)].concat(), Malformed::Order(PROC)),
            ([known.clone(), file(Companion::Gaps, 1, 0, b"x"), chunk(0)].concat(), Malformed::Order(PACKED)),
            ([known.clone(), section(ABOUT, &[u64::MAX, 0], b"x")].concat(), Malformed::Number(ABOUT, u64::MAX)),
            ([known.clone(), section(ABOUT, &[100, 8], b"x")].concat(), Malformed::Number(ABOUT, 8)),
            ([known.clone(), section(ABOUT, &[100, 0], b"")].concat(), Malformed::Number(ABOUT, 0)),
            (
                [known.clone(), section(ABOUT, &[100, 0], &[0; 8]), section(ABOUT, &[99, 8], &[0; 8])].concat(),
                Malformed::Number(ABOUT, 8),
            ),
            ([known.clone(), section(ABOUT, &[100, 0], &[0; 8]), end(1, 0, 0)].concat(), Malformed::Order(END)),
            ([known.clone(), section(SYMBOLS, &[1, 8, 0], &[0; 8])].concat(), Malformed::Number(SYMBOLS, 1)),
            ([known.clone(), section(SYMBOLS, &[0, 16, 8], &[0; 8])].concat(), Malformed::Number(SYMBOLS, 0)),
        ];
        for (bytes, error) in cases {
            assert_eq!(read_pieces([&bytes[..]]).1, Some(error), "{}", error);
            assert_eq!(read_pieces(bytes.chunks(1)).1, Some(error), "{}", error);
        }
    }

    #[test]
    fn damage_is_noticed() {
        let (sections, events) = sample();
        let n_hello = sections[0].len();
        let bytes = sections.concat();
        for place in n_hello..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[place] ^= 0x11;
            let (found, error) = read_pieces([&damaged[..]]);
            assert!(error.is_some() || found.len() < events.len(), "{place}");
            assert_eq!(found, events[..found.len()], "{place}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_alike_in_any_pieces(bytes in proptest::collection::vec(any::<u8>(), 0..300), size in 1_usize..50, at in 0_usize..400) {
            let (sections, _) = sample();
            let mut whole = sections.concat();
            let at = at.min(whole.len());
            whole.splice(at..at, bytes);
            prop_assert_eq!(read_pieces([&whole[..]]), read_pieces(whole.chunks(size)));
        }
    }
}
