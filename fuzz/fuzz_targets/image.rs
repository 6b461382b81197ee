//! Images of kernels, with right checksums: those would hide all that is behind them. The bytes around are the fuzzer's.

#![no_main]

use std::path::Path;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rftrace_frontend::{Image, ImportOptions};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    before: &'a [u8],
    is_first_version: bool,
    sections: Vec<(Tag, Vec<u64>)>,
    /// Bytes that are cut off the end.
    n_cut: u8,
    /// A byte that is changed.
    change: Option<(u16, u8)>,
}

#[derive(Arbitrary, Debug)]
enum Tag {
    Head { chunk_bytes: u8, first_tsc: u16, stop_tsc: u64, name: [u64; 2], n_name_bytes: u8 },
    Chunk(Header),
    Packed { header: Header, records: Vec<Packed>, other_n_bytes: Option<u32>, other_n_records: Option<u32> },
    Open { tid: u8 },
    End { n_open: u8, n_chunks: u8 },
    Other(u32),
}

#[derive(Arbitrary, Debug)]
struct Header {
    tid: u8,
    index: u8,
    prev_index: u8,
    depth: u16,
    n_adopted: u8,
    n_resumed: u8,
}

impl Header {
    fn words(&self) -> [u64; 8] {
        let adopted_and_tid = u64::from(self.n_adopted) | u64::from(self.tid) << 32;
        let resumed = u64::from(self.n_resumed) << 32;
        [u64::from(self.index) << 3, self.prev_index.into(), self.depth.into(), adopted_and_tid, 1, resumed, 0, 0]
    }
}

/// A packed record, mostly as it should be.
#[derive(Arbitrary, Debug)]
enum Packed {
    Return { ticks: u8 },
    Following { ticks: u16 },
    Cached { ticks: u16, place: u8 },
    Word { ticks: u32, address: u8, bits: u8 },
    AnyWord { ticks: u64, word: u64 },
    OutOfOrder { number: u64, word: u64 },
    Bytes([u8; 3]),
}

impl Packed {
    fn put(&self, bytes: &mut Vec<u8>) {
        match *self {
            Self::Return { ticks } => put_number(u64::from(ticks) << 2, bytes),
            Self::Following { ticks } => put_number(u64::from(ticks) << 2 | 1, bytes),
            Self::Cached { ticks, place } => {
                put_number(u64::from(ticks) << 2 | 2, bytes);
                bytes.push(place);
            }
            Self::Word { ticks, address, bits } => {
                put_number(u64::from(ticks) << 2 | 3, bytes);
                bytes.push(0);
                bytes.extend((u64::from(address) << 20 | u64::from(bits)).to_le_bytes());
            }
            Self::AnyWord { ticks, word } => {
                put_number(ticks | 3, bytes);
                bytes.push(0);
                bytes.extend(word.to_le_bytes());
            }
            Self::OutOfOrder { number, word } => {
                bytes.extend([3, 1]);
                put_number(number, bytes);
                bytes.extend(word.to_le_bytes());
            }
            Self::Bytes(any) => bytes.extend(any),
        }
    }
}

fn put_number(mut number: u64, bytes: &mut Vec<u8>) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

impl Tag {
    /// The tag, and the words that make the section's own pass the first checks.
    fn words(&self) -> ([u8; 4], Vec<u64>) {
        match self {
            &Self::Head { chunk_bytes, first_tsc, stop_tsc, name, n_name_bytes } => {
                let mut words = vec![0; 18];
                words[0] = 0x0807_0605_0403_0201;
                words[1] = 1 << (chunk_bytes % 32);
                words[5] = first_tsc.into();
                words[6] = stop_tsc;
                words[15] = n_name_bytes.into();
                words[16..].copy_from_slice(&name);
                (*b"HEAD", words)
            }
            Self::Chunk(header) => (*b"CHNK", header.words().to_vec()),
            Self::Packed { header, records, other_n_bytes, other_n_records } => {
                let mut bytes = Vec::new();
                records.iter().for_each(|record| record.put(&mut bytes));
                let mut words = header.words().to_vec();
                words[6] = u64::from(other_n_bytes.unwrap_or(bytes.len() as u32)) << 32;
                words[7] = other_n_records.unwrap_or(records.len() as u32).into();
                bytes.resize(bytes.len().next_multiple_of(8), 0);
                words.extend(bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())));
                (*b"CHNZ", words)
            }
            &Self::Open { tid } => (*b"OPEN", vec![tid.into()]),
            &Self::End { n_open, n_chunks } => (*b"END\n", vec![n_open.into(), n_chunks.into()]),
            &Self::Other(tag) => (tag.to_le_bytes(), Vec::new()),
        }
    }
}

fuzz_target!(|input: Input<'_>| {
    let mut bytes = input.before.to_vec();
    bytes.extend(b"\x93RFT\r\n\x1a\n");
    bytes.extend([if input.is_first_version { 1 } else { 2 }, 0, 0, 0, 5, 0, 0, 0]);
    for (tag, more) in &input.sections {
        let (tag, mut words) = tag.words();
        // Behind packed records there is no room for others.
        if tag != *b"CHNZ" {
            words.extend(more);
        }
        let first = u64::from(u32::from_le_bytes(tag)) | (8 * words.len() as u64) << 32;
        let all = || std::iter::once(&first).chain(&words);
        let sum = all().fold(0_u64, |sum, &word| (sum.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        bytes.extend(all().chain([&sum]).flat_map(|word| word.to_le_bytes()));
    }
    bytes.truncate(bytes.len().saturating_sub(input.n_cut.into()));
    if let Some((place, byte)) = input.change
        && let Some(changed) = bytes.get_mut(usize::from(place))
    {
        *changed ^= byte;
    }
    if let Ok(image) = Image::parse(&bytes, Path::new("image")) {
        let dir = rftrace_fuzz::folder().join("trace");
        if image.write_directory(&dir, &ImportOptions::default()).is_ok() {
            rftrace_fuzz::read_directory(&dir);
        }
    }
});
