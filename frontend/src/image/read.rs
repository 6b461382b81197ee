//! Reads an image. Its bytes come over a line and may be anything: nothing is believed before it is checked.

use std::collections::HashMap;
use std::fs;
use std::mem::offset_of;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rftrace::abi::{
    self, ADDRESS_SHIFT, CHUNK_HEADER_BYTES, ChunkHeader, MAX_CHUNK_BYTES, MIN_CHUNK_BYTES, RETURN_STACK_ENTRIES,
    Record, kind,
};

use super::{BYTE_ORDER, Checksum, MAGIC, MAX_NAME_BYTES, VERSION, flag, head, tag};
use crate::Error;
use crate::backend::Chunk;
use crate::tsc::TscSource;

/// What a kernel recorded, as [`kernel::write_image`](crate::kernel::write_image) sent it.
#[derive(Debug)]
pub struct Image {
    words: [u64; head::N_WORDS],
    name: String,
    open: HashMap<u32, Vec<u64>>,
    chunks: Vec<(ChunkHeader, Vec<Record>)>,
    warnings: Vec<String>,
}

impl Image {
    /// Reads the image in the file at `path`: what stands before it, such as a log that was sent by the same line, and behind
    /// it is skipped.
    ///
    /// An image that ends early is read as far as it goes; [`warnings`](Self::warnings) tell of that.
    ///
    /// # Errors
    ///
    /// [`Error::Read`], or [`Error::BadImage`] for a file that holds no image, one of another version or a damaged one.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let bytes = fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        Self::parse(&bytes, path)
    }

    /// Like [`read`](Self::read), of bytes that are in memory. `path` is for messages.
    ///
    /// # Errors
    ///
    /// [`Error::BadImage`].
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Self, Error> {
        parse(bytes).map_err(|Bad { offset, problem }| Error::BadImage { path: path.to_owned(), offset, problem })
    }

    /// What is missing in the image or was not recorded, a line each.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The kernel's name, as it gave it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Frequency of the time stamp counter in Hz, if the kernel knew it.
    #[must_use]
    pub fn tsc_hz(&self) -> Option<u64> {
        Some(self.word(head::TSC_HZ)).filter(|&hz| hz > 0)
    }

    /// The virtual address of the kernel's lowest loadable segment; `None`: where it was linked.
    #[must_use]
    pub fn load_address(&self) -> Option<u64> {
        Some(self.word(head::LOAD_ADDRESS)).filter(|&address| address > 0)
    }

    /// Who told the frequency of the counter.
    pub(super) fn tsc_hz_source(&self) -> Option<TscSource> {
        TscSource::from_number(self.word(head::TSC_HZ_SOURCE))
    }

    /// A word of the HEAD section, by one of the numbers in [`head`].
    pub(super) fn word(&self, place: usize) -> u64 {
        self.words[place]
    }

    /// All chunks, in the order in which they came.
    pub(super) fn chunks(&self) -> impl Iterator<Item = Chunk<'_>> {
        self.chunks.iter().map(|(header, records)| Chunk { header, records })
    }

    /// The words of the exit records of the functions that were open in each thread, outermost first, as far as known.
    pub(super) fn open_functions(&self) -> &HashMap<u32, Vec<u64>> {
        &self.open
    }
}

/// What is wrong with an image.
struct Bad {
    /// In bytes from the beginning of the file.
    offset: u64,
    problem: String,
}

fn bad<T>(offset: usize, problem: impl Into<String>) -> Result<T, Bad> {
    Err(Bad { offset: offset as u64, problem: problem.into() })
}

/// A section that was read.
struct Section {
    /// Where it begins.
    offset: usize,
    tag: u32,
    words: Vec<u64>,
    /// It goes on behind the end of the file.
    is_cut: bool,
}

/// The bytes of an image, from a place on.
struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl Reader<'_> {
    /// The next word, if the file is long enough.
    fn word(&mut self) -> Option<u64> {
        let word = self.bytes.get(self.offset..)?.first_chunk()?;
        self.offset += 8;
        Some(u64::from_le_bytes(*word))
    }

    /// The next section; none where not even its first word is there.
    fn section(&mut self, chunk_bytes: usize) -> Result<Option<Section>, Bad> {
        let offset = self.offset;
        let Some(first) = self.word() else { return Ok(None) };
        let (tag, n_bytes) = (first as u32, (first >> 32) as usize);
        let limit = match tag {
            tag::HEAD => 8 * head::N_WORDS + MAX_NAME_BYTES,
            tag::OPEN => 8 * (1 + RETURN_STACK_ENTRIES),
            tag::CHUNK => chunk_bytes,
            tag::END => 16,
            _ => usize::MAX,
        };
        if n_bytes > limit || n_bytes % 8 != 0 {
            return bad(offset, format!("a section of {n_bytes} bytes cannot be; {DAMAGED}"));
        }
        let mut sum = Checksum::default();
        sum.add(first);
        let mut words = Vec::with_capacity(n_bytes.min(self.bytes.len()) / 8);
        while words.len() < n_bytes / 8 {
            let Some(word) = self.word() else { return Ok(Some(Section { offset, tag, words, is_cut: true })) };
            sum.add(word);
            words.push(word);
        }
        match self.word() {
            None => Ok(Some(Section { offset, tag, words, is_cut: true })),
            Some(told) if told == sum.0 => Ok(Some(Section { offset, tag, words, is_cut: false })),
            Some(_) => bad(offset, format!("the section that begins here has a wrong checksum; {DAMAGED}")),
        }
    }
}

/// What to do about an image with wrong bytes in it.
const DAMAGED: &str = "the image was changed or mixed with other output on its way: send it again, by a line of its own that passes \
                       every byte as it is";

fn parse(bytes: &[u8]) -> Result<Image, Bad> {
    let Some(start) = bytes.windows(MAGIC.len()).position(|part| part == MAGIC) else {
        // What is left of the magic where a terminal was in between.
        let translated = bytes.windows(3).any(|part| part == &MAGIC[1..4]);
        let problem = if translated {
            "the line that the image came by changes bytes (ends of lines, or the eighth bit): make it raw"
        } else {
            "there is no image in this file; it must hold what `kernel::write_image` sent"
        };
        return bad(0, problem);
    };
    let mut reader = Reader { bytes, offset: start + MAGIC.len() };
    let Some(versions) = reader.word() else { return bad(bytes.len(), ENDS_IN_HEADER) };
    let (version, abi_version) = (versions as u32, (versions >> 32) as u32);
    if (version, abi_version) != (VERSION, abi::VERSION) {
        return bad(
            start + MAGIC.len(),
            format!(
                "the image has version {version} with records of version {abi_version}, this program reads {VERSION} with \
                 {}; use the rftrace-tools that belong to the kernel's rftrace",
                abi::VERSION
            ),
        );
    }
    let mut image = match reader.section(0)? {
        Some(section) if section.tag == tag::HEAD && !section.is_cut => parse_head(&section)?,
        Some(section) if section.tag != tag::HEAD => {
            return bad(section.offset, format!("no header is here; {DAMAGED}"));
        }
        _ => return bad(bytes.len(), ENDS_IN_HEADER),
    };
    let chunk_bytes = image.word(head::CHUNK_BYTES) as usize;
    let mut is_complete = false;
    while let Some(section) = reader.section(chunk_bytes)? {
        match section.tag {
            tag::CHUNK => image.chunks.extend(parse_chunk(&section)?),
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
            "the image ends early, at byte {}: {} of {} chunks are there, so the newest or other records are missing; \
             did the kernel stop while it sent it?",
            bytes.len(),
            image.chunks.len(),
            image.word(head::N_CHUNKS_USED),
        ));
    }
    warn_of_losses(&mut image);
    Ok(image)
}

const ENDS_IN_HEADER: &str = "the file ends in the image's header; nothing can be read from it";

fn parse_head(section: &Section) -> Result<Image, Bad> {
    let Some((&words, name)) = section.words.split_first_chunk::<{ head::N_WORDS }>() else {
        return bad(section.offset, format!("the header is too short; {DAMAGED}"));
    };
    if words[head::BYTE_ORDER] != BYTE_ORDER {
        return bad(section.offset, "the image is from a machine with another byte order, which cannot be read");
    }
    let chunk_bytes = words[head::CHUNK_BYTES];
    if chunk_bytes == 0 {
        return bad(section.offset, "the kernel's tracer had no memory: it must call `kernel::install` first");
    }
    if !chunk_bytes.is_power_of_two() || !(MIN_CHUNK_BYTES as u64..=MAX_CHUNK_BYTES as u64).contains(&chunk_bytes) {
        return bad(section.offset, format!("chunks of {chunk_bytes} bytes cannot be; {DAMAGED}"));
    }
    let name: Vec<u8> = name.iter().flat_map(|word| word.to_le_bytes()).collect();
    let name_bytes = usize::try_from(words[head::NAME_BYTES]).ok();
    let Some(name) = name_bytes.and_then(|n_bytes| name.get(..n_bytes)) else {
        return bad(section.offset, format!("the kernel's name is longer than its section; {DAMAGED}"));
    };
    let name = String::from_utf8_lossy(name).into_owned();
    Ok(Image { words, name, open: HashMap::new(), chunks: Vec::new(), warnings: Vec::new() })
}

/// The chunk of a section; `None` if even its header is cut off.
fn parse_chunk(section: &Section) -> Result<Option<(ChunkHeader, Vec<Record>)>, Bad> {
    let Some((header, records)) = section.words.split_first_chunk::<{ CHUNK_HEADER_BYTES / 8 }>() else {
        return if section.is_cut { Ok(None) } else { bad(section.offset, format!("a chunk is too short; {DAMAGED}")) };
    };
    let long = |offset: usize| header[offset / 8];
    let short = |offset: usize| (long(offset) >> (offset % 8 * 8)) as u32;
    let tid = short(offset_of!(ChunkHeader, tid));
    let depth = short(offset_of!(ChunkHeader, depth));
    if !is_tid(tid.into()) || depth as usize > RETURN_STACK_ENTRIES {
        return bad(section.offset, format!("no chunk can be of thread {tid} at depth {depth}; {DAMAGED}"));
    }
    let taken_tsc = long(offset_of!(ChunkHeader, taken_tsc));
    // Of a record that is cut in the middle nothing is known.
    let records = records.chunks_exact(2).map(|words| Record { tsc: words[0].into(), word: words[1].into() });
    let records: Vec<Record> = records.collect();
    for (_, word) in records.iter().filter_map(|record| record.read(taken_tsc)) {
        let is_new_thread = word & (kind::MASK | kind::NEW_THREAD) == kind::RESYNC | kind::NEW_THREAD;
        if is_new_thread && !is_tid(word >> ADDRESS_SHIFT) {
            return bad(section.offset, format!("a record names thread {}; {DAMAGED}", word >> ADDRESS_SHIFT));
        }
    }
    let header = ChunkHeader {
        state: AtomicU32::new(short(offset_of!(ChunkHeader, state))),
        tid: AtomicU32::new(tid),
        index: AtomicU64::new(long(offset_of!(ChunkHeader, index))),
        prev_index: AtomicU64::new(long(offset_of!(ChunkHeader, prev_index))),
        depth: AtomicU32::new(depth),
        fill: AtomicU32::new(short(offset_of!(ChunkHeader, fill))),
        n_adopted: AtomicU32::new(short(offset_of!(ChunkHeader, n_adopted))),
        taken_tsc: AtomicU64::new(taken_tsc),
    };
    Ok(Some((header, records)))
}

/// Whether uftrace takes this for a thread's id.
fn is_tid(tid: u64) -> bool {
    (1..=i32::MAX as u64).contains(&tid)
}

/// A thread and its open functions; `None` if not even its id is there.
fn parse_open(section: &Section) -> Result<Option<(u32, Vec<u64>)>, Bad> {
    let Some((&tid, words)) = section.words.split_first() else {
        return if section.is_cut { Ok(None) } else { bad(section.offset, format!("a thread has no id; {DAMAGED}")) };
    };
    if !is_tid(tid) {
        return bad(section.offset, format!("{tid} is no thread's id; {DAMAGED}"));
    }
    Ok(Some((tid as u32, words.to_vec())))
}

fn check_end(image: &Image, section: &Section) -> Result<(), Bad> {
    let found = [image.open.len() as u64, image.chunks.len() as u64];
    if section.words != found {
        let told: Vec<String> = section.words.iter().map(u64::to_string).collect();
        let problem = format!(
            "{} threads and {} chunks are before this place, there should be {}; {DAMAGED}",
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
    warn(flags & flag::FULL != 0, "the buffer was used up: the trace is the beginning of what happened".to_owned());
    warn(
        flags & flag::RING != 0 && overwritten > 0,
        format!("{overwritten} chunks of the ring were overwritten: the trace is the end of what happened"),
    );
    warn(untraced > 0, format!("{untraced} threads were not traced: there was no memory for their return stacks"));
    warn(lost > 0, format!("{lost} calls were not recorded: every chunk was in use; give the tracer a larger buffer"));
    warn(
        flags & flag::UNQUIET != 0,
        "a processor was taking a chunk when the image was sent: some of its last records may be missing".to_owned(),
    );
}
