//! Images of kernels, with right checksums: those would hide all that is behind them. The bytes around are the fuzzer's.

#![no_main]

use std::path::Path;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rftrace_frontend::{Image, ImportOptions};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    before: &'a [u8],
    sections: Vec<(Tag, Vec<u64>)>,
    /// Bytes that are cut off the end.
    n_cut: u8,
    /// A byte that is changed.
    change: Option<(u16, u8)>,
}

#[derive(Arbitrary, Debug)]
enum Tag {
    Head { chunk_bytes: u8, first_tsc: u16, stop_tsc: u64, name: [u64; 2], n_name_bytes: u8 },
    Chunk { tid: u8, index: u8, prev_index: u8, depth: u16, n_adopted: u8, n_resumed: u8 },
    Open { tid: u8 },
    End { n_open: u8, n_chunks: u8 },
    Other(u32),
}

impl Tag {
    /// The tag, and the words that make the section's own pass the first checks.
    fn words(&self) -> ([u8; 4], Vec<u64>) {
        match *self {
            Self::Head { chunk_bytes, first_tsc, stop_tsc, name, n_name_bytes } => {
                let mut words = vec![0; 18];
                words[0] = 0x0807_0605_0403_0201;
                words[1] = 1 << (chunk_bytes % 32);
                words[5] = first_tsc.into();
                words[6] = stop_tsc;
                words[15] = n_name_bytes.into();
                words[16..].copy_from_slice(&name);
                (*b"HEAD", words)
            }
            Self::Chunk { tid, index, prev_index, depth, n_adopted, n_resumed } => {
                let adopted_and_tid = u64::from(n_adopted) | u64::from(tid) << 32;
                let resumed = u64::from(n_resumed) << 32;
                let head = [u64::from(index) << 3, prev_index.into(), depth.into(), adopted_and_tid, 1, resumed, 0];
                (*b"CHNK", head.to_vec())
            }
            Self::Open { tid } => (*b"OPEN", vec![tid.into()]),
            Self::End { n_open, n_chunks } => (*b"END\n", vec![n_open.into(), n_chunks.into()]),
            Self::Other(tag) => (tag.to_le_bytes(), Vec::new()),
        }
    }
}

fuzz_target!(|input: Input<'_>| {
    let mut bytes = input.before.to_vec();
    bytes.extend(b"\x93RFT\r\n\x1a\n\x01\0\0\0\x05\0\0\0");
    for (tag, more) in &input.sections {
        let (tag, mut words) = tag.words();
        words.extend(more);
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
