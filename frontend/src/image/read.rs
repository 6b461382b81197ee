//! Reads an image. Its bytes come over a line and may be anything: nothing is believed before it is checked.

use std::collections::HashSet;
use std::io;
use std::mem::offset_of;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rftrace::abi::{
    self, ADDRESS_SHIFT, CHUNK_HEADER_BYTES, ChunkHeader, MAX_CHUNK_BYTES, MIN_CHUNK_BYTES, RETURN_STACK_ENTRIES,
    Record, kind,
};

use super::contents::{Bad, Image, Source, bad, is_tid};
use super::packed::decode::Payload;
use super::packed::{N_BYTES_AT, N_RECORDS_AT};
use super::raw;
use super::{BYTE_ORDER, Checksum, MAGIC, MAX_NAME_BYTES, OLDEST_VERSION, VERSION, flag, head, tag};
use crate::Error;
use crate::elf::file::map_file;

impl Image {
    /// Reads the file at `path`. Other data may surround an image, such as a log from the same line. A file of raw
    /// records begins with the first record.
    ///
    /// Of an image with an early end, the readable part is read; [`warnings`](Self::warnings) describes the rest.
    ///
    /// # Errors
    ///
    /// [`Error::Read`] if the file cannot be read; [`Error::BadImage`] if it holds neither an image nor records, or if
    /// they are damaged or of another version.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let bytes = map_file(path).map_err(|error| {
            let remedy = if error.kind() == io::ErrorKind::InvalidData { ", or send the image again" } else { "" };
            let text = error.to_string();
            let text = text.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&text);
            Error::Read { path: path.to_owned(), source: io::Error::new(error.kind(), format!("{text}{remedy}")) }
        })?;
        Self::parse(&bytes, path)
    }

    /// Parses the bytes of an image or of raw records, like [`read`](Self::read). `path` is for messages.
    ///
    /// # Errors
    ///
    /// [`Error::BadImage`].
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Self, Error> {
        parse(bytes).map_err(|Bad { offset, problem }| Error::BadImage { path: path.to_owned(), offset, problem })
    }
}

/// A section of an image.
pub(super) struct Section<'a> {
    /// Its offset.
    offset: usize,
    pub(super) tag: u32,
    /// Bytes of its contents.
    n_bytes: usize,
    /// They, as far as they are there.
    pub(super) contents: &'a [u8],
    /// It goes on behind the end of the file.
    pub(super) is_cut: bool,
}

impl Section<'_> {
    /// Returns its complete words.
    fn words(&self) -> Vec<u64> {
        words(self.contents).collect()
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks().0.iter().map(|&word| u64::from_le_bytes(word))
}

/// The bytes of an image, from a place on.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

#[cfg_attr(not(feature = "std"), allow(dead_code, reason = "only for files that grow chunk by chunk"))]
impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0 }
    }

    /// Returns its offset.
    pub(super) fn offset(&self) -> usize {
        self.offset
    }

    /// The next word, if the file is long enough.
    pub(super) fn word(&mut self) -> Option<u64> {
        let word = self.bytes.get(self.offset..)?.first_chunk()?;
        self.offset += 8;
        Some(u64::from_le_bytes(*word))
    }

    /// Returns the next section; none without a complete first word.
    pub(super) fn section(&mut self, chunk_bytes: usize) -> Result<Option<Section<'a>>, Bad> {
        let offset = self.offset;
        let Some(first) = self.word() else { return Ok(None) };
        let (tag, n_bytes) = (first as u32, (first >> 32) as usize);
        let limit = match tag {
            tag::HEAD => 8 * head::N_WORDS + MAX_NAME_BYTES,
            tag::OPEN => 8 * (1 + RETURN_STACK_ENTRIES),
            tag::CHUNK | tag::PACKED => chunk_bytes,
            tag::END => 16,
            _ => usize::MAX,
        };
        if n_bytes > limit || n_bytes % 8 != 0 {
            return bad(offset, format!("a section has an impossible size of {n_bytes} bytes; {DAMAGED}"));
        }
        let rest = &self.bytes[self.offset..];
        let contents = &rest[..n_bytes.min(rest.len())];
        self.offset += contents.len();
        let Some(told) = self.word() else {
            return Ok(Some(Section { offset, tag, n_bytes, contents, is_cut: true }));
        };
        let mut sum = Checksum::default();
        sum.add(first);
        words(contents).for_each(|word| sum.add(word));
        if told != sum.0 {
            return bad(offset, format!("the section at this place has a wrong checksum; {DAMAGED}"));
        }
        Ok(Some(Section { offset, tag, n_bytes, contents, is_cut: false }))
    }
}

impl Reader<'_> {
    /// Goes to the next complete section of a chunk, from an offset on. Returns false without one, and stays in place.
    pub(super) fn find_chunk(&mut self, from: usize, chunk_bytes: usize) -> bool {
        /// The maximum number of examined sections: in a hostile file each word may look like the beginning of one.
        const MOST: usize = 1 << 12;

        let begins = |offset: &usize| {
            let mut reader = Reader { offset: *offset, ..*self };
            reader.word().is_some_and(|first| matches!(first as u32, tag::PACKED | tag::CHUNK))
        };
        let is_whole = |&offset: &usize| {
            let mut reader = Reader { offset, ..*self };
            matches!(reader.section(chunk_bytes), Ok(Some(section)) if !section.is_cut)
        };
        let found = (from..self.bytes.len()).step_by(8).filter(begins).take(MOST).find(is_whole);
        self.offset = found.unwrap_or(self.offset);
        found.is_some()
    }
}

/// Remedy for an image with wrong bytes in it.
const DAMAGED: &str = "the image has changed on its way, or has other output in it; send it again over a line of its own that changes \
                       no bytes";

fn parse(bytes: &[u8]) -> Result<Image, Bad> {
    let Some(start) = bytes.windows(MAGIC.len()).position(|part| part == MAGIC) else {
        if raw::is_raw(bytes) {
            return raw::parse(bytes);
        }
        // The part of the magic that passes a terminal unchanged.
        let translated = bytes.windows(3).any(|part| part == &MAGIC[1..4]);
        let problem = if translated {
            "the line has changed bytes of the image (line ends, or the eighth bit); set the line to raw mode"
        } else {
            "the file has no image, and does not begin with records; give the output of `kernel::write_image` or \
             `dump_trace`"
        };
        return bad(0, problem);
    };
    // Where the line was disturbed at the beginning of a recording that is sent while it goes on, the next image tells of that as well.
    parse_from(bytes, start).or_else(|error| {
        let others = (start + 1..bytes.len()).filter(|&place| bytes[place..].starts_with(&MAGIC));
        let mut others = others.filter_map(|place| parse_from(bytes, place).ok());
        others.find(|image| image.word(head::FLAGS) & flag::STREAMED != 0).ok_or(error)
    })
}

/// Reads the image at `start`.
fn parse_from(bytes: &[u8], start: usize) -> Result<Image, Bad> {
    let mut reader = Reader { bytes, offset: start + MAGIC.len() };
    let Some(versions) = reader.word() else { return bad(bytes.len(), ENDS_IN_HEADER) };
    let (version, abi_version) = (versions as u32, (versions >> 32) as u32);
    if !(OLDEST_VERSION..=VERSION).contains(&version) || !(abi::OLDEST_RECORDS..=abi::VERSION).contains(&abi_version) {
        return bad(
            start + MAGIC.len(),
            format!(
                "the image has version {version} with records of version {abi_version}, but this program reads \
                 {OLDEST_VERSION} to {VERSION} with {} to {}; use the rftrace-tools of the version of the kernel's rftrace",
                abi::OLDEST_RECORDS,
                abi::VERSION
            ),
        );
    }
    let mut image = match reader.section(0)? {
        Some(section) if section.tag == tag::HEAD && !section.is_cut => parse_head(&section)?,
        Some(section) if section.tag != tag::HEAD => {
            return bad(section.offset, format!("the header is missing here; {DAMAGED}"));
        }
        _ => return bad(bytes.len(), ENDS_IN_HEADER),
    };
    if image.word(head::FLAGS) & flag::STREAMED != 0 {
        return Ok(parse_streamed(bytes, start, image));
    }
    let chunk_bytes = image.word(head::CHUNK_BYTES) as usize;
    let mut is_complete = false;
    while let Some(section) = reader.section(chunk_bytes)? {
        match section.tag {
            tag::CHUNK | tag::PACKED => image.chunks.extend(parse_chunk(&section, chunk_bytes)?),
            tag::OPEN => image.open.extend(parse_open(&section)?),
            tag::END if !section.is_cut => {
                check_end(&image, &section)?;
                is_complete = true;
                break;
            }
            tag::HEAD => return bad(section.offset, format!("a second header is here; {DAMAGED}")),
            // A section that later versions know.
            _ => {}
        }
    }
    if !is_complete {
        image.warnings.push(format!(
            "the image ends early, at byte {}: it has {} of {} chunks, so the newest or other records are missing; did \
             the kernel stop while it sent the image?",
            bytes.len(),
            image.chunks.len(),
            image.word(head::N_CHUNKS_USED),
        ));
    }
    warn_of_losses(&mut image);
    Ok(image)
}

/// Reads a recording sent in parts: images one behind the other, maybe damaged and with other bytes between them.
/// Damaged parts are left out, up to the next image.
fn parse_streamed(bytes: &[u8], start: usize, first: Image) -> Image {
    let mut streamed = Streamed { image: first, seen: HashSet::new(), n_damaged: 0 };
    let (mut place, mut other, mut is_complete) = (start, None, false);
    while let Some(found) = bytes.get(place..).and_then(|rest| rest.windows(MAGIC.len()).position(|part| part == MAGIC))
    {
        let begin = place + found;
        let mut reader = Reader { bytes, offset: begin + MAGIC.len() };
        match streamed.read_image(&mut reader) {
            ImageEnd::Complete => {
                is_complete = true;
                break;
            }
            ImageEnd::OfAnother => {
                other = Some(begin);
                break;
            }
            ImageEnd::Open => {}
            ImageEnd::Damaged => streamed.n_damaged += 1,
        }
        place = reader.offset;
    }
    let Streamed { mut image, seen, n_damaged } = streamed;
    if !is_complete {
        let records = image.chunks.iter().flat_map(|(header, records)| {
            let taken_tsc = header.taken_tsc.load(Relaxed);
            records.iter().filter_map(move |record| record.read(taken_tsc))
        });
        let last = records.map(|(tsc, _)| tsc).max().unwrap_or(0);
        image.words[head::STOP_TSC] = last.max(image.word(head::SENT_TSC));
        image.warnings.push("the line ended before the recording: the last records are missing".to_owned());
    }
    if let Some(begin) = other {
        image.warnings.push(format!(
            "another recording begins at byte {begin}, perhaps after a restart of the kernel; cut the file there to read it"
        ));
    }
    let n_missing = image.chunks.iter().map(|(header, _)| header.prev_index.load(Relaxed));
    let n_missing = n_missing.filter(|index| *index != 0 && !seen.contains(index)).count();
    if n_damaged > 0 || n_missing > 0 {
        image.warnings.push(format!(
            "the line has damaged the recording in {n_damaged} places: {n_missing} pieces of the recording are missing"
        ));
    }
    warn_of_losses(&mut image);
    image
}

/// The part read so far of a recording sent in parts.
struct Streamed {
    image: Image,
    /// The indices of its chunks.
    seen: HashSet<u64>,
    n_damaged: usize,
}

/// The end of one of the images.
enum ImageEnd {
    /// With the recording.
    Complete,
    /// More is to come.
    Open,
    Damaged,
    /// It is one of another recording.
    OfAnother,
}

impl Streamed {
    /// Reads the image behind the magic at the reader's place, and leaves the reader at the place to search for the
    /// next one.
    fn read_image(&mut self, reader: &mut Reader<'_>) -> ImageEnd {
        let Some(versions) = reader.word() else { return ImageEnd::Open };
        if versions != u64::from(VERSION) | u64::from(abi::VERSION) << 32 {
            return ImageEnd::Damaged;
        }
        let begin = reader.offset;
        let told = match reader.section(0) {
            Ok(Some(section)) if section.tag == tag::HEAD && !section.is_cut => parse_head(&section).ok(),
            Ok(Some(section)) if section.is_cut => return ImageEnd::Open,
            Ok(None) => return ImageEnd::Open,
            _ => None,
        };
        let Some(told) = told else {
            reader.offset = begin;
            return ImageEnd::Damaged;
        };
        if [head::FIRST_TSC, head::CHUNK_BYTES].iter().any(|&place| told.word(place) != self.image.word(place)) {
            return ImageEnd::OfAnother;
        }
        if told.word(head::SENT_TSC) >= self.image.word(head::SENT_TSC) {
            self.image.words = told.words;
        }
        let chunk_bytes = told.word(head::CHUNK_BYTES) as usize;
        loop {
            let begin = reader.offset;
            let tag = reader.bytes.get(begin..).and_then(|rest| rest.first_chunk()).map(|tag| u32::from_le_bytes(*tag));
            // Anything else is not of it.
            let Some(tag) = tag.filter(|tag| [tag::CHUNK, tag::PACKED, tag::OPEN, tag::END].contains(tag)) else {
                return ImageEnd::Open;
            };
            let section = reader.section(chunk_bytes).ok().flatten();
            let is_read = section.filter(|section| !section.is_cut).is_some_and(|section| self.take(&section));
            if !is_read {
                // Its length may be wrong.
                reader.offset = begin + 8;
                return ImageEnd::Damaged;
            }
            if tag == tag::END {
                return ImageEnd::Complete;
            }
        }
    }

    /// Takes the contents of a section. Returns false for impossible ones.
    fn take(&mut self, section: &Section<'_>) -> bool {
        let chunk_bytes = self.image.word(head::CHUNK_BYTES) as usize;
        match section.tag {
            tag::CHUNK | tag::PACKED => match parse_chunk(section, chunk_bytes) {
                Ok(Some(chunk)) => {
                    // A chunk that was interrupted is sent again.
                    if self.seen.insert(chunk.0.index()) {
                        self.image.chunks.push(chunk);
                    }
                    true
                }
                _ => false,
            },
            tag::OPEN => parse_open(section).map(|open| self.image.open.extend(open)).is_ok(),
            _ => true,
        }
    }
}

const ENDS_IN_HEADER: &str = "the file ends within the image's header; send the image again";

fn parse_head(section: &Section<'_>) -> Result<Image, Bad> {
    let words = section.words();
    let Some((&words, name)) = words.split_first_chunk::<{ head::N_WORDS }>() else {
        return bad(section.offset, format!("the header is too short; {DAMAGED}"));
    };
    if words[head::BYTE_ORDER] != BYTE_ORDER {
        return bad(section.offset, "the image is from a machine with another byte order; read it on such a machine");
    }
    let chunk_bytes = words[head::CHUNK_BYTES];
    if chunk_bytes == 0 {
        return bad(section.offset, "the kernel's tracer had no buffer; call `kernel::install` in the kernel first");
    }
    if !chunk_bytes.is_power_of_two() || !(MIN_CHUNK_BYTES as u64..=MAX_CHUNK_BYTES as u64).contains(&chunk_bytes) {
        return bad(section.offset, format!("the chunks have an impossible size of {chunk_bytes} bytes; {DAMAGED}"));
    }
    let name: Vec<u8> = name.iter().flat_map(|word| word.to_le_bytes()).collect();
    let name_bytes = usize::try_from(words[head::NAME_BYTES]).ok();
    let Some(name) = name_bytes.and_then(|n_bytes| name.get(..n_bytes)) else {
        return bad(section.offset, format!("the kernel's name is longer than its section; {DAMAGED}"));
    };
    let name = String::from_utf8_lossy(name).into_owned();
    Ok(Image { name, ..Image::new(Source::Kernel, words, Vec::new(), Vec::new()) })
}

/// The chunk of a section; `None` if even its header is cut off.
fn parse_chunk(section: &Section<'_>, chunk_bytes: usize) -> Result<Option<(ChunkHeader, Vec<Record>)>, Bad> {
    let words = section.words();
    let Some((header, records)) = words.split_first_chunk::<{ CHUNK_HEADER_BYTES / 8 }>() else {
        return if section.is_cut { Ok(None) } else { bad(section.offset, format!("a chunk is too short; {DAMAGED}")) };
    };
    let Some(told) = chunk_header(header) else {
        let [tid, depth] = [offset_of!(ChunkHeader, tid), offset_of!(ChunkHeader, depth)].map(|at| field(header, at));
        return bad(section.offset, format!("a chunk has an impossible thread {tid} or depth {depth}; {DAMAGED}"));
    };
    let taken_tsc = told.taken_tsc.load(Relaxed);
    let records: Vec<Record> = if section.tag == tag::PACKED {
        let [n_bytes, n_records] = [N_BYTES_AT, N_RECORDS_AT].map(|offset| field(header, offset) as usize);
        let unpacked = if n_records > abi::records_per_chunk(chunk_bytes) {
            Err("it has more records than a chunk holds")
        } else {
            unpack(section, n_bytes, n_records, taken_tsc)
        };
        match unpacked {
            Ok(records) => records,
            Err(problem) => return bad(section.offset, format!("cannot unpack a chunk: {problem}; {DAMAGED}")),
        }
    } else {
        // Of a record that is cut in the middle nothing is known.
        let records = records.chunks_exact(2);
        records.map(|words| Record { tsc: words[0].into(), word: words[1].into() }).collect()
    };
    if let Some(tid) = wrong_thread(&records, taken_tsc) {
        return bad(section.offset, format!("a record has an impossible thread {tid}; {DAMAGED}"));
    }
    Ok(Some((told, records)))
}

/// Returns the first impossible id of a further thread in a chunk.
pub(super) fn wrong_thread(records: &[Record], taken_tsc: u64) -> Option<u64> {
    let words = records.iter().filter_map(|record| record.read(taken_tsc)).map(|(_, word)| word);
    let mut new = words
        .filter(|word| word & (kind::MASK | kind::NEW_THREAD) == kind::RESYNC | kind::NEW_THREAD)
        .map(|word| word >> ADDRESS_SHIFT);
    new.find(|&tid| !is_tid(tid))
}

/// A field of 32 bits in the words of a chunk's header.
pub(super) fn field(words: &[u64; CHUNK_HEADER_BYTES / 8], offset: usize) -> u32 {
    (words[offset / 8] >> (offset % 8 * 8)) as u32
}

/// The header of a chunk, if it can be one.
pub(super) fn chunk_header(words: &[u64; CHUNK_HEADER_BYTES / 8]) -> Option<ChunkHeader> {
    let long = |offset: usize| AtomicU64::new(words[offset / 8]);
    let short = |offset: usize| AtomicU32::new(field(words, offset));
    let header = ChunkHeader {
        lease: long(offset_of!(ChunkHeader, lease)),
        tid: short(offset_of!(ChunkHeader, tid)),
        prev_index: long(offset_of!(ChunkHeader, prev_index)),
        depth: short(offset_of!(ChunkHeader, depth)),
        fill: short(offset_of!(ChunkHeader, fill)),
        n_adopted: short(offset_of!(ChunkHeader, n_adopted)),
        n_resumed: short(offset_of!(ChunkHeader, n_resumed)),
        taken_tsc: long(offset_of!(ChunkHeader, taken_tsc)),
        core: short(offset_of!(ChunkHeader, core)),
    };
    let is_right =
        is_tid(header.tid.load(Relaxed).into()) && header.depth.load(Relaxed) as usize <= RETURN_STACK_ENTRIES;
    is_right.then_some(header)
}

/// Unpacks the records of a PACKED section with this number of bytes in its header.
fn unpack(
    section: &Section<'_>,
    n_bytes: usize,
    n_records: usize,
    taken_tsc: u64,
) -> Result<Vec<Record>, &'static str> {
    if CHUNK_HEADER_BYTES / 8 + n_bytes.div_ceil(8) != section.n_bytes / 8 {
        return Err("its length differs from that of its records");
    }
    let contents = &section.contents[CHUNK_HEADER_BYTES..];
    let (bytes, padding) = contents.split_at(n_bytes.min(contents.len()));
    if padding.iter().any(|&byte| byte != 0) {
        return Err("the padding of its last word is not 0");
    }
    Payload { bytes, is_cut: bytes.len() < n_bytes, n_records, taken_tsc }.unpack()
}

/// A thread and its open functions; `None` if not even its id is there.
fn parse_open(section: &Section<'_>) -> Result<Option<(u32, Vec<u64>)>, Bad> {
    let words = section.words();
    let Some((&tid, words)) = words.split_first() else {
        return if section.is_cut { Ok(None) } else { bad(section.offset, format!("a thread has no id; {DAMAGED}")) };
    };
    if !is_tid(tid) {
        return bad(section.offset, format!("{tid} is no thread id; {DAMAGED}"));
    }
    Ok(Some((tid as u32, words.to_vec())))
}

fn check_end(image: &Image, section: &Section<'_>) -> Result<(), Bad> {
    let found = [image.open.len() as u64, image.chunks.len() as u64];
    let told = section.words();
    if told != found {
        let told: Vec<String> = told.iter().map(u64::to_string).collect();
        let problem = format!(
            "{} threads and {} chunks precede this place, but the image announces {}; {DAMAGED}",
            found[0],
            found[1],
            told.join(" and ")
        );
        return bad(section.offset, problem);
    }
    Ok(())
}

fn warn_of_losses(image: &mut Image) {
    let flags = image.word(head::FLAGS);
    let mut warn = |is_so: bool, line: String| {
        if is_so {
            image.warnings.push(line);
        }
    };
    let [untraced, lost, overwritten] =
        [head::N_UNTRACED_THREADS, head::N_LOST_NO_CHUNK, head::N_OVERWRITTEN].map(|place| image.words[place]);
    warn(flags & flag::FULL != 0, "the buffer was full: the trace has only the beginning of the recording".to_owned());
    warn(
        flags & flag::RING != 0 && overwritten > 0,
        format!("the ring has overwritten {overwritten} chunks: the trace has only the end of the recording"),
    );
    warn(untraced > 0, format!("the trace lacks {untraced} threads: there was no memory for their return stacks"));
    warn(lost > 0, format!("the trace lacks {lost} calls: all chunks were in use; give the tracer a larger buffer"));
    warn(
        flags & flag::UNQUIET != 0,
        "a processor took a chunk while the kernel sent the image: some of its last records may be missing".to_owned(),
    );
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::fs;
    use std::panic::catch_unwind;

    use proptest::prelude::*;
    use rftrace::abi::{chunk_state, lease};

    use super::*;
    use crate::backend::Chunk;
    use crate::elf::testutil::Scratch;
    use crate::image::packed::encode::Packer;
    use crate::image::write::Writer;
    use crate::import::ImportOptions;

    /// Parts of an image: words of the header, threads with open functions, chunks with records.
    #[derive(Clone, Debug)]
    struct Parts {
        head: [u64; head::N_WORDS],
        name: String,
        open: Vec<(u32, Vec<u64>)>,
        chunks: Vec<Part>,
    }

    /// Thread, index, index before, depth, further threads, when taken; records.
    type Part = ([u64; 6], Vec<(u64, u64)>);

    const HZ: u64 = 2_000_000_000;

    fn head(n_chunks: usize, name: &str) -> [u64; head::N_WORDS] {
        let mut words = [0; head::N_WORDS];
        words[head::BYTE_ORDER] = BYTE_ORDER;
        words[head::CHUNK_BYTES] = 1024;
        words[head::N_CHUNKS] = 64;
        words[head::N_CHUNKS_USED] = n_chunks as u64;
        words[head::LOAD_ADDRESS] = 0xffff_ffff_8010_0000;
        words[head::FIRST_TSC] = 1_000;
        words[head::STOP_TSC] = 9_000;
        words[head::TSC_HZ] = HZ;
        words[head::TSC_HZ_SOURCE] = 2;
        words[head::NAME_BYTES] = name.len() as u64;
        words
    }

    fn sent(parts: &Parts) -> Vec<u8> {
        sent_packed(parts, |_| false)
    }

    /// With the chosen chunks packed, as far as that makes them shorter.
    fn sent_packed(parts: &Parts, is_packed: impl Fn(usize) -> bool) -> Vec<u8> {
        let mut packer = Box::new(Packer::new());
        let mut bytes = Vec::new();
        let mut writer = Writer::new(|block: &[u8]| {
            bytes.extend_from_slice(block);
            Ok::<(), Infallible>(())
        })
        .unwrap();
        writer.head(&parts.head, parts.name.as_bytes()).unwrap();
        for (tid, words) in &parts.open {
            writer.open_functions(*tid, words.len(), words.iter().copied()).unwrap();
        }
        for (place, ([tid, index, prev_index, depth, n_adopted, taken_tsc], records)) in parts.chunks.iter().enumerate()
        {
            let header = ChunkHeader {
                lease: lease::new(*index, chunk_state::OWNED).into(),
                tid: (*tid as u32).into(),
                prev_index: (*prev_index).into(),
                depth: (*depth as u32).into(),
                fill: 7.into(),
                n_adopted: (*n_adopted as u32).into(),
                n_resumed: 0.into(),
                taken_tsc: (*taken_tsc).into(),
                core: 0.into(),
            };
            let records: Vec<Record> =
                records.iter().map(|&(tsc, word)| Record { tsc: tsc.into(), word: word.into() }).collect();
            let packer = is_packed(place).then_some(&mut *packer);
            writer.chunk(&Chunk { header: &header, records: &records }, packer).unwrap();
        }
        writer.finish().unwrap();
        bytes
    }

    /// Two threads; the second has an open function without a record.
    fn example() -> Parts {
        let enter = |tsc, address: u64| (tsc, address << ADDRESS_SHIFT);
        let exit = |tsc, address: u64| (tsc, address << ADDRESS_SHIFT | kind::EXIT);
        let first = vec![enter(1_100, 0x8010_1000), enter(1_200, 0x8010_2000), exit(1_300, 0x8010_2000)];
        // Behind the last record is what an earlier owner left.
        let second = vec![enter(2_100, 0x8010_2000), exit(2_200, 0x8010_2000), (3, 4), (5, 6)];
        Parts {
            head: head(2, "kernel"),
            name: "kernel".to_owned(),
            open: vec![(2, vec![0x8010_1000 << ADDRESS_SHIFT | kind::EXIT])],
            chunks: vec![([1, 1, 0, 0, 0, 1_050], first), ([2, 9, 8, 1, 0, 2_000], second)],
        }
    }

    fn parsed(bytes: &[u8]) -> Result<Image, Error> {
        Image::parse(bytes, Path::new("file"))
    }

    fn offset_of_error(bytes: &[u8]) -> u64 {
        match parsed(bytes).unwrap_err() {
            Error::BadImage { path, offset, problem } if path == Path::new("file") && !problem.is_empty() => offset,
            error => panic!("{error}"),
        }
    }

    #[test]
    fn what_was_sent_is_read() {
        let bytes = sent(&example());
        let image = parsed(&bytes).unwrap();
        assert_eq!(image.warnings(), &[] as &[String]);
        assert_eq!((image.name(), image.tsc_hz()), ("kernel", Some(HZ)));
        assert_eq!(image.load_address(), Some(0xffff_ffff_8010_0000));
        assert_eq!(image.open_functions()[&2], example().open[0].1);
        let lengths: Vec<usize> = image.chunks().map(|chunk| chunk.records.len()).collect();
        assert_eq!(lengths, [3, 2], "records up to the last one");
        // Magic, versions; the header with a word for the name; each section has a first word and a checksum.
        let section = |n_words: usize| 8 * (n_words + 2);
        assert_eq!(bytes.len(), 16 + section(17) + section(2) + section(8 + 6) + section(8 + 4) + section(2));
        assert_eq!(bytes[..12], *b"\x93RFT\r\n\x1a\n\x02\0\0\0");
        assert_eq!(bytes[12..16], abi::VERSION.to_le_bytes());
        assert_eq!(bytes[16..24], *b"HEAD\x88\0\0\0");
        assert_eq!(bytes[24..32], [1, 2, 3, 4, 5, 6, 7, 8]);
        // An older tracer's records mean the same.
        let mut older = bytes.clone();
        for version in abi::OLDEST_RECORDS..abi::VERSION {
            older[12] = version as u8;
            assert_eq!(records_of(&parsed(&older).unwrap()), records_of(&image));
        }
        older[12] = 4;
        assert!(parsed(&older).unwrap_err().to_string().contains("records of version 4"));
    }

    /// The tags of an image's sections, and their offsets.
    fn sections(image: &[u8]) -> Vec<(usize, String)> {
        let mut found = Vec::new();
        let mut offset = 16;
        while let Some((tag, rest)) = image[offset..].split_first_chunk::<4>() {
            found.push((offset, String::from_utf8_lossy(tag).into_owned()));
            offset += 16 + u32::from_le_bytes(rest[..4].try_into().unwrap()) as usize;
        }
        found
    }

    fn records_of(image: &Image) -> Vec<Vec<(u64, u64)>> {
        let records_of = |chunk: Chunk<'_>| {
            let taken_tsc = chunk.header.taken_tsc.load(std::sync::atomic::Ordering::Relaxed);
            chunk.records.iter().filter_map(|record| record.read(taken_tsc)).collect()
        };
        image.chunks().map(records_of).collect()
    }

    /// The example with a third chunk: again and again the same calls.
    fn longer_example() -> Parts {
        let mut parts = example();
        let calls = (0..20).map(|call| {
            let (place, is_exit) = (call / 4 % 2, call % 4 >= 2);
            let word = (0x8010_1000 + 0x1000 * place) << ADDRESS_SHIFT | if is_exit { kind::EXIT } else { kind::ENTRY };
            (3_000 + 100 * call, word)
        });
        parts.chunks.push(([1, 12, 1, 1, 0, 2_900], calls.collect()));
        parts.head[head::N_CHUNKS_USED] = 3;
        parts
    }

    #[test]
    fn packed_chunks_are_those_that_were_sent() {
        let parts = longer_example();
        let expected = records_of(&parsed(&sent(&parts)).unwrap());
        for choice in 0..8 {
            let bytes = sent_packed(&parts, |place| choice & 1 << place != 0);
            let tags: Vec<String> = sections(&bytes).into_iter().map(|(_, tag)| tag).collect();
            let tag = |place| if choice & 1 << place != 0 { "CHNZ" } else { "CHNK" };
            // The second chunk has two records, which do not become shorter.
            assert_eq!(tags, ["HEAD", "OPEN", tag(0), tag(1), tag(2), "END\n"]);
            let image = parsed(&bytes).unwrap();
            assert_eq!(image.warnings(), &[] as &[String]);
            assert_eq!(records_of(&image), expected);
        }
    }

    #[test]
    fn a_cut_packed_chunk_has_its_whole_records() {
        let parts = longer_example();
        let expected = records_of(&parsed(&sent(&parts)).unwrap());
        let bytes = sent_packed(&parts, |_| true);
        let header_end = sections(&bytes)[1].0;
        let mut lengths = vec![0];
        for length in header_end..bytes.len() {
            let image = parsed(&bytes[..length]).unwrap();
            assert!(image.warnings()[0].contains("ends early"), "{length}");
            let records: Vec<_> = records_of(&image).concat();
            assert!(expected.concat().starts_with(&records), "{length}");
            lengths.push(records.len());
        }
        assert!(lengths.is_sorted());
        lengths.dedup();
        assert_eq!(lengths, Vec::from_iter(0..=25), "each byte counts");
    }

    #[test]
    fn the_first_version_is_read() {
        let mut bytes = sent(&example());
        bytes[8] = 1;
        assert_eq!(parsed(&bytes).unwrap().chunks().count(), 2);
        for version in [0, 3] {
            bytes[8] = version;
            assert!(parsed(&bytes).unwrap_err().to_string().contains("reads 1 to 2"));
        }
    }

    /// Changed sections, with the right checksums.
    #[test]
    fn a_packed_chunk_that_cannot_be_is_an_error() {
        let bytes = sent_packed(&longer_example(), |place| place == 2);
        let sections = sections(&bytes);
        let [start, end] = [sections[4].0, sections[5].0];
        let with = |change: &dyn Fn(&mut Vec<u64>)| {
            let mut section: Vec<u64> = words(&bytes[start..end - 8]).collect();
            change(&mut section);
            section[0] = u64::from(tag::PACKED) | (8 * (section.len() as u64 - 1)) << 32;
            let mut sum = Checksum::default();
            section.iter().for_each(|&word| sum.add(word));
            section.push(sum.0);
            let section: Vec<u8> = section.into_iter().flat_map(u64::to_le_bytes).collect();
            parsed(&[&bytes[..start], &section, &bytes[end..]].concat()).map_err(|error| error.to_string())
        };
        let refused = |change: &dyn Fn(&mut Vec<u64>), problem: &str| {
            let error = with(change).unwrap_err();
            assert!(error.contains(&format!("byte {start}: ")) && error.contains(problem), "{error}");
        };
        assert!(with(&|_| ()).is_ok());
        // Words of the section: the tag, then the header.
        const N_BYTES: usize = 1 + N_BYTES_AT / 8;
        const N_RECORDS: usize = 1 + N_RECORDS_AT / 8;
        let n_bytes = words(&bytes[start..]).nth(N_BYTES).unwrap() >> 32;
        assert!(!n_bytes.is_multiple_of(8), "{n_bytes}");
        refused(&|words| words[N_RECORDS] = 61, "more records than a chunk holds");
        refused(&|words| words[N_RECORDS] = 60, "fewer packed records than its header");
        refused(&|words| words[N_RECORDS] = 19, "more packed records than its header");
        refused(&|words| words[N_BYTES] += 8 << 32, "length");
        refused(&|words| words[N_BYTES] = u64::from(u32::MAX) << 32, "length");
        refused(&|words| words[N_BYTES] = 0, "length");
        refused(&|words| words.push(0), "length");
        refused(&|words| *words.last_mut().unwrap() |= 1 << 63, "padding");
        refused(&|words| words.truncate(8), "a chunk is too short");
        refused(&|words| words[4] = 0, "impossible thread 0");
        let mut parts = longer_example();
        parts.chunks[2].1.push((6_000, kind::RESYNC | kind::NEW_THREAD));
        assert!(parsed(&sent_packed(&parts, |_| true)).unwrap_err().to_string().contains("impossible thread 0"));
    }

    #[test]
    fn the_functions_open_before_the_first_record_are_entered() {
        let scratch = Scratch::new("image-open");
        let image = parsed(&sent(&example())).unwrap();
        let imported = image.write_directory(&scratch.path("trace"), &ImportOptions::default()).unwrap();
        // In each thread two calls, all with their exits.
        assert_eq!((imported.events, imported.threads, imported.lost), (8, 2, 0));
        let records = fs::read(scratch.path("trace/2.dat")).unwrap();
        let first = u64::from_le_bytes(records[8..16].try_into().unwrap());
        assert_eq!(first >> 16, 0x8010_1000, "the function that was open");
    }

    #[test]
    fn a_log_around_the_image_is_skipped() {
        let mut bytes = b"booting\r\n".to_vec();
        bytes.extend(sent(&example()));
        bytes.extend(b"halted\r\n");
        assert_eq!(parsed(&bytes).unwrap().warnings(), &[] as &[String]);
        let damaged = bytes.len() - 60;
        bytes[damaged] ^= 1;
        assert!(offset_of_error(&bytes) > 10);
    }

    #[test]
    fn a_cut_image_is_read_as_far_as_it_goes() {
        let bytes = sent(&example());
        let header_end = 16 + 8 * 19;
        let mut n_records = 0;
        for length in 0..bytes.len() {
            if length < header_end {
                offset_of_error(&bytes[..length]);
                continue;
            }
            let image = parsed(&bytes[..length]).unwrap();
            let [warning] = image.warnings() else { panic!("{length}: {:?}", image.warnings()) };
            assert!(warning.contains("ends early") && warning.contains(&format!("at byte {length}")), "{warning}");
            let now = image.chunks().map(|chunk| chunk.records.len()).sum();
            assert!(now >= n_records, "{length}");
            n_records = now;
        }
        assert_eq!(n_records, 5);
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let bytes = sent(&example());
        for place in 0..bytes.len() {
            for change in [1, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[place] ^= change;
                let older = abi::OLDEST_RECORDS..abi::VERSION;
                if place == 12 && older.contains(&changed[place].into()) {
                    // The records of an older tracer.
                    continue;
                }
                match parsed(&changed) {
                    Err(Error::BadImage { offset, .. }) => assert!(offset <= place as u64),
                    Err(error) => panic!("{error}"),
                    // A length that reaches beyond the end, or the end's tag, which is one of later versions then.
                    Ok(image) => assert!(image.warnings()[0].contains("ends early"), "{place}: {:?}", image.warnings()),
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_is_an_error() {
        let changed = |change: &dyn Fn(&mut Parts)| {
            let mut parts = example();
            change(&mut parts);
            parsed(&sent(&parts)).unwrap_err().to_string()
        };
        assert!(changed(&|parts| parts.head[head::CHUNK_BYTES] = 0).contains("kernel::install"));
        assert!(changed(&|parts| parts.head[head::CHUNK_BYTES] = 1000).contains("1000"));
        assert!(changed(&|parts| parts.head[head::BYTE_ORDER] = 1).contains("byte order"));
        assert!(changed(&|parts| parts.head[head::NAME_BYTES] = 9).contains("name"));
        assert!(changed(&|parts| parts.chunks[0].0[0] = 0).contains("thread 0"));
        assert!(changed(&|parts| parts.chunks[0].0[3] = 1024).contains("depth 1024"));
        assert!(changed(&|parts| parts.open[0].0 = 0).contains("no thread id"));
        let new_thread = kind::RESYNC | kind::NEW_THREAD;
        assert!(changed(&|parts| parts.chunks[0].1.push((4_000, new_thread))).contains("impossible thread 0"));
        let mut other = sent(&example());
        other[12] = 99;
        assert!(parsed(&other).unwrap_err().to_string().contains("records of version 99"));
        let text: Vec<u8> =
            sent(&example()).iter().flat_map(|&b| if b == b'\n' { vec![b'\r', b] } else { vec![b] }).collect();
        assert!(parsed(&text).unwrap_err().to_string().contains("raw mode"));
    }

    fn record() -> impl Strategy<Value = (u64, u64)> {
        let word = (0..6_u64, 0..0x40_u64).prop_map(|(address, bits)| address << ADDRESS_SHIFT | bits);
        (prop_oneof![4 => 900..10_000_u64, 1 => any::<u64>()], prop_oneof![8 => word, 1 => any::<u64>()])
    }

    fn parts() -> impl Strategy<Value = Parts> {
        let chunk =
            (1..4_u64, 0..8_u64, 0..8_u64, 0..5_u64, 0..3_u64, prop_oneof![Just(0), 900..2_000_u64, any::<u64>()])
                .prop_map(|(tid, index, prev, depth, adopted, taken)| [tid, index, prev, depth, adopted, taken]);
        let chunks = prop::collection::vec((chunk, prop::collection::vec(record(), 0..40)), 0..8);
        let open = prop::collection::btree_map(1..4_u32, prop::collection::vec(any::<u64>(), 0..6), 0..3);
        let words = prop::array::uniform3(prop_oneof![2 => 0..10_000_u64, 1 => any::<u64>()]);
        (chunks, open, words, ".{0,12}", any::<u64>()).prop_map(|(chunks, open, [first, stop, wall], name, hz)| {
            let mut head = head(chunks.len(), &name);
            head[head::FIRST_TSC] = first;
            head[head::STOP_TSC] = stop;
            head[head::WALL_NANOS] = wall;
            head[head::TSC_HZ] = hz;
            head[head::FLAGS] = hz & 15;
            Parts { head, name, open: open.into_iter().collect(), chunks }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever a kernel's memory holds is read as it was, or refused; and decoded without a panic.
        #[test]
        fn any_chunks_are_read_as_they_were(parts in parts(), packed in any::<u8>()) {
            let result = parsed(&sent_packed(&parts, |place| packed & 1 << place != 0));
            let names_bad_thread = matches!(&result, Err(Error::BadImage { problem, .. }) if problem.contains("a record has an impossible thread"));
            if !names_bad_thread {
                let image = result.unwrap();
                prop_assert_eq!(image.name(), &parts.name);
                for (read, (_, records)) in image.chunks().zip(&parts.chunks) {
                    let taken = read.header.taken_tsc.load(std::sync::atomic::Ordering::Relaxed);
                    let valid = |&(tsc, word): &(u64, u64)| (tsc >= taken).then_some((tsc, word));
                    let expected: Vec<_> = records.iter().filter_map(valid).collect();
                    let found: Vec<_> = read.records.iter().filter_map(|record| record.read(taken)).collect();
                    prop_assert_eq!(found, expected);
                }
                let scratch = Scratch::new("image-any");
                match image.write_directory(&scratch.path("trace"), &ImportOptions::default()) {
                    Ok(_) | Err(Error::NoEvents { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }

        /// Other bytes than images, and images with wrong bytes, are refused without a panic.
        #[test]
        fn any_bytes_are_read_or_refused(
            parts in parts(),
            packed in any::<u8>(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut image = sent_packed(&parts, |place| packed & 1 << place != 0);
            for (place, byte) in changes {
                let place = place.index(image.len());
                image[place] = byte;
            }
            let behind_magic = [&MAGIC[..], &[2, 0, 0, 0, 5, 0, 0, 0], &bytes].concat();
            for bytes in [&image[..], &bytes, &behind_magic] {
                prop_assert!(catch_unwind(|| parsed(bytes).map(drop)).is_ok());
            }
        }
    }
}
