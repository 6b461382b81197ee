//! Pages: the pieces of the ring buffer in which it is read, `per_cpu/cpu<N>/trace_pipe_raw`.
//!
//! A page has a time, the number of bytes behind its header (*commit*, with bits that report lost events before it),
//! and events. An event begins with 32 bits: its kind or length (5 bits) and the time since the previous event (27
//! bits).
//!
//! | kind | rest of the event |
//! |---|---|
//! | 0 | a length in bytes, which includes itself, and data |
//! | 1 to 28 | this number of words of data |
//! | 29 | padding: a length, and meaningless bytes. Without a time: the end of the page |
//! | 30 | the higher bits of the time, which are added |
//! | 31 | the higher bits of an absolute time of 59 bits |

use std::io::{self, Write};

use crate::format;

/// The maximum size of a page in bytes.
pub const MAX_PAGE_BYTES: usize = 64 * 1024;

const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;
const KIND_BITS: u32 = 5;
const DELTA_BITS: u32 = 27;
/// An absolute time has the bits below this one; the others are those of the time before.
const STAMP_BITS: u32 = 59;

/// Events before this page were lost.
const LOST: u32 = 1 << 31;
/// How many, is behind the last event.
const LOST_STORED: u32 = 1 << 30;

/// The layout of a page, from the text `events/header_page`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    time: format::Field,
    commit: format::Field,
    data_at: usize,
    /// The size of a page in bytes.
    pub page_bytes: usize,
}

impl Layout {
    /// The layout of 64-bit kernels with pages of 4 KiB.
    pub const USUAL: Self = Self {
        time: format::Field { offset: 0, size: 8, is_signed: false },
        commit: format::Field { offset: 8, size: 8, is_signed: true },
        data_at: 16,
        page_bytes: 4096,
    };

    /// Parses a kernel's text; `None` if a field is missing, or the page size exceeds the limit.
    pub fn parse(text: &str) -> Option<Self> {
        let fields = format::fields(text);
        let [time, commit, data] = ["timestamp", "commit", "data"].map(|name| format::field(&fields, name));
        let (time, commit, data) = (time?, commit?, data?);
        let page_bytes = data.offset.checked_add(data.size)?;
        (page_bytes <= MAX_PAGE_BYTES).then_some(Self { time, commit, data_at: data.offset, page_bytes })
    }
}

/// An event in a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<'a> {
    /// The time by the buffer's clock.
    pub time: u64,
    /// The fields, at the offsets in the event's format.
    pub data: &'a [u8],
}

/// An iterator over the events of a page. It ends at the first malformed event.
#[derive(Debug, Clone)]
pub struct Page<'a> {
    /// The events.
    bytes: &'a [u8],
    time: u64,
    lost: Option<u64>,
    is_wrong: bool,
}

impl<'a> Page<'a> {
    /// Creates the iterator; `None` if the page is shorter than its header says.
    pub fn new(bytes: &'a [u8], layout: &Layout) -> Option<Self> {
        let time = layout.time.value(bytes)?;
        let commit = layout.commit.value(bytes)? as u32;
        let n_bytes = usize::try_from(commit & !(LOST | LOST_STORED)).ok()?;
        let data = bytes.get(layout.data_at..)?;
        let (events, behind) = data.split_at_checked(n_bytes)?;
        let stored = behind.first_chunk().filter(|_| commit & LOST_STORED != 0);
        let lost = (commit & LOST != 0).then(|| stored.map_or(0, |count| u64::from_le_bytes(*count)));
        Some(Self { bytes: events, time, lost, is_wrong: false })
    }

    /// Returns the number of lost events before this page, 0 for an unknown number; `None` if none were lost.
    pub fn lost(&self) -> Option<u64> {
        self.lost
    }

    /// Returns true if a length was wrong, so that the rest could not be read.
    pub fn is_wrong(&self) -> bool {
        self.is_wrong
    }

    /// Returns the time of the page.
    pub fn time(&self) -> u64 {
        self.time
    }

    /// Takes the next 32 bits.
    fn word(&mut self) -> Option<u32> {
        let (word, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(u32::from_le_bytes(*word))
    }

    fn take(&mut self, n_bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(n_bytes)?;
        self.bytes = rest;
        Some(taken)
    }

    /// The next thing in it: data, or `Some(None)` for what is only time or padding.
    fn step(&mut self) -> Option<Option<Event<'a>>> {
        let head = self.word()?;
        let (kind, delta) = (head & ((1 << KIND_BITS) - 1), u64::from(head >> KIND_BITS));
        let data = match kind {
            PADDING if delta == 0 => {
                self.bytes = &[];
                return Some(None);
            }
            PADDING => {
                let n_bytes = self.word()?;
                // Its length is that of the word too, which is taken.
                self.take((n_bytes as usize).checked_sub(4)?)?;
                self.time = self.time.wrapping_add(delta);
                return Some(None);
            }
            TIME_EXTEND => {
                let high = u64::from(self.word()?);
                self.time = self.time.wrapping_add(high << DELTA_BITS).wrapping_add(delta);
                return Some(None);
            }
            TIME_STAMP => {
                let low = u64::from(self.word()?) << DELTA_BITS | delta;
                let time = self.time >> STAMP_BITS << STAMP_BITS | low;
                // The bits that are not in it have changed.
                self.time = if time < self.time { time.wrapping_add(1 << STAMP_BITS) } else { time };
                return Some(None);
            }
            0 => {
                let n_bytes = (self.word()? as usize).checked_sub(4)?;
                self.take(n_bytes)?
            }
            words => self.take(words as usize * 4)?,
        };
        self.time = self.time.wrapping_add(delta);
        Some(Some(Event { time: self.time, data }))
    }
}

impl<'a> Iterator for Page<'a> {
    type Item = Event<'a>;

    fn next(&mut self) -> Option<Event<'a>> {
        while !self.bytes.is_empty() {
            match self.step() {
                Some(None) => {}
                Some(event) => return event,
                None => {
                    self.is_wrong = true;
                    self.bytes = &[];
                }
            }
        }
        None
    }
}

/// A writer of pages with the layout [`Layout::USUAL`].
#[derive(Debug)]
pub struct PageWriter<W> {
    out: W,
    /// The time of the page, and that of its last event.
    times: (u64, u64),
    events: Vec<u8>,
    lost: Option<u64>,
}

impl<W: Write> PageWriter<W> {
    const HEADER_BYTES: usize = Layout::USUAL.data_at;
    /// Bytes for events; behind them there is room for the number of lost ones.
    const ROOM: usize = Layout::USUAL.page_bytes - Self::HEADER_BYTES - 8;
    /// The maximum size of an event in bytes.
    pub const MAX_EVENT_BYTES: usize = Self::ROOM - 16;

    /// Creates a writer to `out`.
    pub fn new(out: W) -> Self {
        Self { out, times: (0, 0), events: Vec::new(), lost: None }
    }

    /// Reports lost events before the next one; 0 stands for an unknown number.
    ///
    /// # Errors
    ///
    /// Those of the file.
    pub fn lost(&mut self, count: u64) -> io::Result<()> {
        self.flush_page()?;
        self.lost = Some(self.lost.unwrap_or(0).saturating_add(count));
        Ok(())
    }

    /// Writes an event. An earlier time than that of the previous event becomes that time; a long event is cut.
    ///
    /// # Errors
    ///
    /// Those of the file.
    pub fn event(&mut self, time: u64, data: &[u8]) -> io::Result<()> {
        let data = &data[..data.len().min(Self::MAX_EVENT_BYTES)];
        let n_words = data.len().div_ceil(4);
        // Time and length may take 8 bytes each.
        if self.events.len() + 16 + n_words * 4 > Self::ROOM {
            self.flush_page()?;
        }
        if self.events.is_empty() {
            self.times = (time.max(self.times.1), time.max(self.times.1));
        }
        let mut delta = time.saturating_sub(self.times.1);
        self.times.1 += delta;
        let mut word = |word: u64| self.events.extend_from_slice(&(word as u32).to_le_bytes());
        let low = (1 << DELTA_BITS) - 1;
        if delta > low {
            word((delta & low) << KIND_BITS | u64::from(TIME_EXTEND));
            word(delta >> DELTA_BITS);
            delta = 0;
        }
        if (1..PADDING as usize).contains(&n_words) {
            word(delta << KIND_BITS | n_words as u64);
        } else {
            word(delta << KIND_BITS);
            word((n_words * 4 + 4) as u64);
        }
        self.events.extend_from_slice(data);
        self.events.resize(self.events.len().next_multiple_of(4), 0);
        Ok(())
    }

    /// Writes the last page, and returns the file.
    ///
    /// # Errors
    ///
    /// Those of the file.
    pub fn finish(mut self) -> io::Result<W> {
        self.flush_page()?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn flush_page(&mut self) -> io::Result<()> {
        if self.events.is_empty() && self.lost.is_none() {
            return Ok(());
        }
        let mut page = vec![0; Layout::USUAL.page_bytes];
        let flags = self.lost.map_or(0, |_| LOST | LOST_STORED);
        page[..8].copy_from_slice(&self.times.0.to_le_bytes());
        page[8..12].copy_from_slice(&(self.events.len() as u32 | flags).to_le_bytes());
        let end = Self::HEADER_BYTES + self.events.len();
        page[Self::HEADER_BYTES..end].copy_from_slice(&self.events);
        page[end..end + 8].copy_from_slice(&self.lost.take().unwrap_or(0).to_le_bytes());
        self.events.clear();
        self.out.write_all(&page)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A page with this time and these words, `commit` bytes of which are events.
    fn page(time: u64, commit: u64, words: &[u32]) -> Vec<u8> {
        let words = words.iter().flat_map(|word| word.to_le_bytes());
        let mut page: Vec<u8> = time.to_le_bytes().into_iter().chain(commit.to_le_bytes()).chain(words).collect();
        page.resize(4096, 0);
        page
    }

    fn head(kind: u32, delta: u32) -> u32 {
        delta << 5 | kind
    }

    fn read(bytes: &[u8]) -> (Vec<(u64, Vec<u8>)>, bool) {
        let mut page = Page::new(bytes, &Layout::USUAL).expect("a page");
        let events = page.by_ref().map(|event| (event.time, event.data.to_vec())).collect();
        (events, page.is_wrong())
    }

    #[test]
    fn what_a_kernel_says_of_its_pages() {
        let text = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
                    \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
                    \tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
                    \tfield: char data;\toffset:16;\tsize:4080;\tsigned:0;\n";
        assert_eq!(Layout::parse(text), Some(Layout::USUAL));
        assert_eq!(Layout::parse(&text.replace("4080", "40800000")), None);
        assert_eq!(Layout::parse(&text.replace("4080", "18446744073709551615")), None);
        assert_eq!(Layout::parse("nothing"), None);
    }

    #[test]
    fn every_kind_of_event() {
        let words = [
            [head(1, 10), 0x0403_0201].as_slice(),
            &[head(TIME_EXTEND, 5), 2],
            &[head(0, 1), 12, 0x11, 0x22],
            &[head(PADDING, 3), 8, 0xffff_ffff],
            &[head(2, 4), 0x33, 0x44],
            &[head(TIME_STAMP, 7), 100],
            &[head(1, 2), 0x55],
            &[head(PADDING, 0), 0x66],
        ]
        .concat();
        let (events, is_wrong) = read(&page(1000, words.len() as u64 * 4, &words));
        let second = 1010 + 5 + (2 << 27) + 1;
        let expected = [
            (1010, vec![1, 2, 3, 4]),
            (second, vec![0x11, 0, 0, 0, 0x22, 0, 0, 0]),
            (second + 3 + 4, vec![0x33, 0, 0, 0, 0x44, 0, 0, 0]),
            ((100 << 27) + 7 + 2, vec![0x55, 0, 0, 0]),
        ];
        assert_eq!((events.as_slice(), is_wrong), (&expected[..], false));
    }

    #[test]
    fn times_of_their_own_have_the_high_bits_of_the_page() {
        let high = 0x10 << 56;
        let words = [head(TIME_STAMP, 1), 0, head(1, 0), 0, head(TIME_STAMP, 0), 0, head(1, 0), 0];
        let (events, _) = read(&page(high, 32, &words));
        // The second one is earlier, so it has gone once around.
        assert_eq!(events.iter().map(|event| event.0).collect::<Vec<_>>(), [high + 1, high + (8 << 56)]);
    }

    #[test]
    fn lost_events_are_told() {
        let lost =
            |commit: u64, words: &[u32]| Page::new(&page(1, commit, words), &Layout::USUAL).expect("a page").lost();
        let words = [head(1, 0), 7, 42, 0];
        assert_eq!(lost(8, &words), None);
        assert_eq!(lost(8 | 1 << 31, &words), Some(0));
        assert_eq!(lost(8 | 3 << 30, &words), Some(42));
    }

    #[test]
    fn wrong_lengths_end_a_page() {
        for (words, n_events) in [
            ([head(1, 1), 0, head(28, 1), 0].as_slice(), 1),
            (&[head(1, 1), 0, head(0, 1), 3], 1),
            (&[head(0, 1), u32::MAX], 0),
            (&[head(PADDING, 1), 2], 0),
            (&[head(PADDING, 1), u32::MAX], 0),
            (&[head(TIME_EXTEND, 1)], 0),
            (&[head(1, 1)], 0),
        ] {
            let (events, is_wrong) = read(&page(0, words.len() as u64 * 4, words));
            assert_eq!((events.len(), is_wrong), (n_events, true), "{words:?}");
        }
        for n_bytes in 0..16 {
            assert!(Page::new(&page(0, 0, &[])[..n_bytes], &Layout::USUAL).is_none());
        }
        assert!(Page::new(&page(0, 4081, &[]), &Layout::USUAL).is_none());
        assert!(Page::new(&page(0, 0x3fff_ffff, &[]), &Layout::USUAL).is_none());
    }

    proptest! {
        #[test]
        fn whatever_a_page_holds_is_read(bytes in proptest::collection::vec(any::<u8>(), 0..200), commit in 0..256_u64) {
            let mut whole = page(7, commit, &[]);
            whole[16..16 + bytes.len()].copy_from_slice(&bytes);
            whole.truncate(16 + bytes.len());
            if let Some(page) = Page::new(&whole, &Layout::USUAL) {
                prop_assert!(page.count() <= bytes.len() / 4);
            }
        }

        #[test]
        fn what_is_written_is_read(
            events in proptest::collection::vec((0..1_u64 << 40, proptest::collection::vec(any::<u8>(), 0..300)), 0..100),
        ) {
            let mut writer = PageWriter::new(Vec::new());
            let mut time = 0;
            let mut expected = Vec::new();
            for (delta, mut data) in events {
                time += delta;
                writer.event(time, &data).unwrap();
                data.resize(data.len().next_multiple_of(4), 0);
                expected.push((time, data));
            }
            let bytes = writer.finish().unwrap();
            prop_assert_eq!(bytes.len() % 4096, 0);
            let found: Vec<_> = bytes.chunks(4096).flat_map(|page| {
                let (events, is_wrong) = read(page);
                assert!(!is_wrong);
                events
            }).collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_writer_tells_of_losses_and_keeps_the_order() {
        let mut writer = PageWriter::new(Vec::new());
        writer.event(10, &[1; 4]).unwrap();
        writer.event(5, &[2; 4]).unwrap();
        writer.lost(3).unwrap();
        writer.event(4, &[3; 4]).unwrap();
        let bytes = writer.finish().unwrap();
        let pages: Vec<_> = bytes.chunks(4096).map(|page| Page::new(page, &Layout::USUAL).unwrap()).collect();
        assert_eq!(pages.iter().map(Page::lost).collect::<Vec<_>>(), [None, Some(3)]);
        let times: Vec<u64> = pages.into_iter().flatten().map(|event| event.time).collect();
        assert_eq!(times, [10, 10, 10]);
    }
}
