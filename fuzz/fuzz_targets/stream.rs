//! Bytes of a peer of our own protocol: sections in pieces of any size.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rftrace_net::stream::{Event, Malformed, Reader};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    /// Bytes of a piece, less one.
    size: u8,
    bytes: &'a [u8],
    /// Sections behind a right beginning, with right lengths and checksums.
    sections: Vec<(u8, Vec<u64>)>,
}

const TAGS: [&[u8; 4]; 9] = [b"PROC", b"ABOU", b"CHNZ", b"CHNK", b"SYMS", b"BEAT", b"END\n", b"FILE", b"EVIL"];

fn section(tag: &[u8; 4], words: &[u64]) -> Vec<u8> {
    let mut section = [&tag[..], &(words.len() as u32 * 8).to_le_bytes()].concat();
    section.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    let mut sum = 0_u64;
    for word in section.as_chunks::<8>().0 {
        sum = (sum.rotate_left(5) ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    section.extend(sum.to_le_bytes());
    section
}

fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Event>, Option<Malformed>) {
    let (mut reader, mut events) = (Reader::new(), Vec::new());
    for mut piece in pieces {
        loop {
            match reader.next(&mut piece) {
                Ok(Some(event)) => events.push(event),
                Ok(None) => break,
                Err(error) => return (events, Some(error)),
            }
        }
        assert!(piece.is_empty(), "all is taken");
    }
    (events, None)
}

fuzz_target!(|input: Input<'_>| {
    let size = usize::from(input.size) + 1;
    assert_eq!(read(std::iter::once(input.bytes)), read(input.bytes.chunks(size)));
    let mut stream = b"\x93RFS\r\n\x1a\n\x02\0\0\0\x01\0\0\0".to_vec();
    stream.resize(64, 0);
    for (tag, words) in &input.sections {
        stream.extend(section(TAGS[usize::from(*tag) % TAGS.len()], words));
    }
    stream.extend_from_slice(input.bytes);
    assert_eq!(read(std::iter::once(&stream[..])), read(stream.chunks(size)));
});
