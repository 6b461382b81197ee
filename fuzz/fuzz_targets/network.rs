//! Bytes of a peer: messages of uftrace's network protocol, in pieces of any size.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rftrace_net::protocol::{Event, MAX_FILE_NAME_BYTES, MAX_INFO_BYTES, Malformed, Part, Reader};

/// Reads pieces and joins their contents.
fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Event<'static>>, Vec<u8>, Option<Malformed>) {
    let (mut reader, mut events, mut contents) = (Reader::new(), Vec::new(), Vec::new());
    let mut announced = 0;
    for mut piece in pieces {
        loop {
            let event = match reader.next(&mut piece) {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(error) => return (events, contents, Some(error)),
            };
            events.push(match event {
                Event::Bytes(bytes) => {
                    assert!(!bytes.is_empty() && bytes.len() <= announced, "no more than was announced");
                    announced -= bytes.len();
                    contents.extend(bytes);
                    continue;
                }
                Event::Begin(part, bytes) => {
                    assert_eq!(announced, 0, "what was announced has come");
                    announced = bytes as usize;
                    if let Part::File(name) = &part {
                        assert!((1..=MAX_FILE_NAME_BYTES as usize).contains(&name.len()));
                    }
                    Event::Begin(part, bytes)
                }
                Event::DirName(name) => Event::DirName(name),
                Event::Info(info) => {
                    assert!(info.len() <= MAX_INFO_BYTES as usize);
                    Event::Info(info)
                }
                Event::End => Event::End,
            });
        }
        assert!(piece.is_empty(), "all is taken");
    }
    (events, contents, None)
}

fuzz_target!(|input: (u8, &[u8])| {
    let (size, bytes) = input;
    let whole = read(std::iter::once(bytes));
    assert_eq!(whole, read(bytes.chunks(usize::from(size) + 1)));
    let named = [b"\xfa\xce\0\x65\0\0\0\x01x", bytes].concat();
    assert_eq!(read(std::iter::once(&named[..])), read(named.chunks(usize::from(size) + 1)));
});
