//! Bytes of a peer of our own protocol: sections in pieces of any size; and what it tells of a process, with chunks and symbols, of which a trace
//! is made.

#![no_main]

use std::fs;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rftrace_frontend::bank::{Banks, SPOOL_VERSIONS, Symbols};
use rftrace_net::stream::{Event, Malformed, Reader};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    /// Bytes of a piece, less one.
    size: u8,
    bytes: &'a [u8],
    /// Sections behind a right beginning, with right lengths and checksums.
    sections: Vec<(u8, Vec<u64>)>,
    /// Lines about a process, instead of others or besides.
    lines: Vec<(u8, &'a [u8])>,
    chunks: &'a [u8],
    symbols: &'a [u8],
}

const TAGS: [&[u8; 4]; 9] = [b"PROC", b"ABOU", b"CHNZ", b"CHNK", b"SYMS", b"BEAT", b"END\n", b"FILE", b"EVIL"];

/// Lines about a process, without the last one.
const LINES: &str = "rftrace spool 1\nlast=200 200\npid=7\nprogram=1\nrecords=2\ndropped=0\noverwritten=0\nuntraced_threads=0\nchunk_bytes=1024\n\
first=100 100\nutc_offset_nanos=0\nmin_ticks=0\nend_tsc=0\nexe=/a\ncommand_line=a\nthread=1 7 a\nmodule=1000 2000 1 ab /a\nopened=150 3000 4000 0 - /b\n";

const KEYS: [&str; 21] = [
    "last",
    "pid",
    "fork",
    "dropped",
    "death",
    "chunk_bytes",
    "first",
    "min_ticks",
    "end_tsc",
    "exe",
    "hooked",
    "thread",
    "open",
    "module",
    "opened",
    "stack",
    "exact_rate",
    "tsc_hz",
    "processors",
    "load",
    "over",
];

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
    let mut stream = b"\x93RFS\r\n\x1a\n\x01\0\0\0\x01\0\0\0".to_vec();
    stream.resize(64, 0);
    for (tag, words) in &input.sections {
        stream.extend(section(TAGS[usize::from(*tag) % TAGS.len()], words));
    }
    stream.extend_from_slice(input.bytes);
    assert_eq!(read(std::iter::once(&stream[..])), read(stream.chunks(size)));

    let folder = rftrace_fuzz::folder().join("received");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a writable folder");
    let mut text = LINES.as_bytes().to_vec();
    for (key, value) in &input.lines {
        let key = KEYS[usize::from(*key) % KEYS.len()];
        let value: Vec<u8> = value.iter().copied().filter(|byte| *byte != b'\n').collect();
        let line = [key.as_bytes(), b"=", &value, b"\n"].concat();
        // The first line of a key counts.
        let at = b"rftrace spool 1\n".len();
        text.splice(at..at, line);
    }
    text.extend(b"complete\n");
    let spool = folder.join("spool-0");
    fs::write(folder.join("spool-0.whole"), text).expect("a writable folder");
    let head = [&b"\x93RFT\r\n\x1a\n"[..], &SPOOL_VERSIONS.to_le_bytes()].concat();
    fs::write(&spool, [&head, input.chunks].concat()).expect("a writable folder");
    let names = b"# symbols: 1\n# path name: /a\n# build-id: ab\n";
    fs::write(folder.join("symbols-0"), [names, input.symbols].concat()).expect("a writable folder");
    if let Ok(collected) = Banks::collected_elsewhere(&spool) {
        let dir = rftrace_fuzz::folder().join("trace");
        let _ = fs::remove_dir_all(&dir);
        let mut symbols = Symbols::received(&folder).expect("a readable folder");
        if collected.write_directory(&dir, &mut symbols).is_ok() {
            rftrace_fuzz::read_directory(&dir);
        }
    }
});
