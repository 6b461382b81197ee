//! Our own protocol: what peers may do, streams that are cut behind each of their bytes, and tokens. Sections are written by hand: no code is
//! shared with what reads them.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::time::Duration;

use rftrace_net::receive::{ReceiveOptions, Received};
use rftrace_net::send::send;
use rftrace_net::{Error, Protocol, Token};

use crate::peer::{LONG, Running, files, honest, honest_files, push, to};

/// A beginning: what follows, a token, a name.
fn hello(follows: u32, token: [u8; 32], name: &[u8]) -> Vec<u8> {
    let mut bytes =
        [&b"\x93RFS\r\n\x1a\n"[..], &2_u32.to_le_bytes(), &follows.to_le_bytes(), &[2, 0, 0, 0, 9, 0, 0, 0]].concat();
    bytes.extend(token);
    bytes.extend(u16::try_from(name.len()).unwrap().to_le_bytes());
    bytes.extend(name);
    padded(bytes)
}

fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

/// A section with its checksum.
fn section(tag: &[u8; 4], contents: &[u8]) -> Vec<u8> {
    let contents = padded(contents.to_vec());
    let mut section = [&tag[..], &u32::try_from(contents.len()).unwrap().to_le_bytes(), &contents].concat();
    let mut sum = 0_u64;
    for word in section.as_chunks::<8>().0 {
        sum = (sum.rotate_left(5) ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    section.extend(sum.to_le_bytes());
    section
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn process(number: u64) -> Vec<u8> {
    section(b"PROC", &words(&[number]))
}

/// The facts about a process, as one piece.
fn about(text: &[u8]) -> Vec<u8> {
    section(b"ABOU", &[words(&[text.len() as u64, 0]), text.to_vec()].concat())
}

fn symbols(number: u64, text: &[u8]) -> Vec<u8> {
    section(b"SYMS", &[words(&[number, text.len() as u64, 0]), text.to_vec()].concat())
}

/// A file of the trace, as one piece: its kind, and which one.
fn file(kind: u64, number: u64, bytes: &[u8]) -> Vec<u8> {
    section(b"FILE", &[words(&[kind << 32 | number, bytes.len() as u64, 0]), bytes.to_vec()].concat())
}

fn chunk(fill: u8) -> Vec<u8> {
    section(b"CHNZ", &[fill; 80])
}

/// The sections of an honest peer.
fn stream(name: &[u8]) -> Vec<Vec<u8>> {
    vec![
        hello(1, [0; 32], name),
        process(0),
        about(b"first\n"),
        chunk(1),
        symbols(0, b"symbols\n"),
        section(b"BEAT", b""),
        process(1),
        about(b"second"),
        chunk(2),
        process(0),
        chunk(3),
        about(b"first, later"),
        file(9, 3, b"switches"),
        section(b"FILE", &[words(&[1 << 32, 11, 0]), b"info one".to_vec()].concat()),
        section(b"FILE", &[words(&[1 << 32, 11, 8]), b"two".to_vec()].concat()),
        section(b"END\n", &words(&[2, 3, 2])),
    ]
}

/// The files that the server makes of it.
fn stored() -> BTreeMap<String, Vec<u8>> {
    let head = b"\x93RFT\r\n\x1a\n\x02\0\0\0\x09\0\0\0";
    [
        ("companions/38654705667", b"switches".to_vec()),
        ("companions/4294967296", b"info onetwo".to_vec()),
        ("received", Vec::new()),
        ("spool-0", [&head[..], &chunk(1), &chunk(3)].concat()),
        ("spool-0.about", b"first, later".to_vec()),
        ("spool-1", [&head[..], &chunk(2)].concat()),
        ("spool-1.about", b"second".to_vec()),
        ("symbols-0", b"symbols\n".to_vec()),
    ]
    .map(|(name, bytes)| (name.to_owned(), bytes))
    .into()
}

fn stored_in(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    assert_eq!(fs::read_dir(dir).unwrap().count(), 1, "nothing but the folder");
    let mut stored = BTreeMap::new();
    for entry in fs::read_dir(dir.join(".recording")).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if entry.file_type().unwrap().is_dir() {
            // Without the end nobody takes them for complete.
            assert!(name == "companions" || name == "companions.new", "{name}");
            stored.extend(files(&entry.path()).into_iter().map(|(file, bytes)| (format!("{name}/{file}"), bytes)));
        } else {
            stored.insert(name, fs::read(entry.path()).unwrap());
        }
    }
    stored
}

/// The server's answer.
fn answer(mut peer: &TcpStream) -> String {
    let mut text = Vec::new();
    let _ = peer.read_to_end(&mut text);
    String::from_utf8(text).unwrap()
}

#[track_caller]
fn assert_complete(told: &Received, name: &str, processes: u32) {
    assert!(told.ended.is_ok() && told.processes == Some(processes), "{told}");
    assert!(told.dir.as_ref().unwrap().ends_with(name), "{told}");
}

#[test]
fn what_comes_is_stored_and_answered() {
    let server = Running::start(|options| options.mark = Some("recorder-7-8".to_owned()));
    for (wanted, name) in
        [(&b"x"[..], "x"), (b"x", "x-2"), (b"../x", "1"), (b"/tmp/x", "2"), (b".x", "3"), (b"a\0", "4"), (b"", "5")]
    {
        let peer = server.connect();
        let sections = stream(wanted);
        let (end, rest) = sections.split_last().unwrap();
        push(&peer, &rest.concat());
        let work = server.received().join(name).join(".recording");
        while !work.join("spool-1").exists() {
            std::thread::yield_now();
        }
        assert!(work.join("recorder-7-8").exists(), "so nobody takes it for interrupted");
        push(&peer, end);
        assert_eq!(answer(&peer), format!("ok {name}\n"));
        let told = server.told_of(&peer);
        assert_complete(&told, name, 2);
        assert_eq!(stored_in(told.dir.as_ref().unwrap()), stored());
    }
    assert_eq!(server.end().0, 7);
}

#[test]
fn bytes_one_at_a_time_are_a_stream() {
    let server = Running::start(|_| {});
    let peer = server.connect();
    peer.set_nodelay(true).unwrap();
    stream(b"x").concat().iter().for_each(|byte| push(&peer, &[*byte]));
    let told = server.told_of(&peer);
    assert_complete(&told, "x", 2);
    assert_eq!(stored_in(told.dir.as_ref().unwrap()), stored());
    server.end();
}

#[test]
fn a_stream_that_is_cut_anywhere_leaves_what_came_as_a_whole() {
    let bytes = stream(b"x").concat();
    let server = Running::start(|_| {});
    for end in 0..bytes.len() {
        let peer = server.connect();
        push(&peer, &bytes[..end]);
        peer.shutdown(Shutdown::Write).unwrap();
        let told = server.told_of(&peer);
        assert!(told.ended.is_err(), "{end}: {told}");
        let Some(dir) = &told.dir else { continue };
        let (found, whole) = (stored_in(dir), stored());
        for (name, bytes) in found {
            let name = match name.strip_prefix("companions.new/") {
                Some(number) => format!("companions/{number}"),
                None => name,
            };
            let is_earlier = name == "spool-0.about" && bytes == b"first\n";
            let is_whole_chunks = !name.ends_with('0') && !name.ends_with('1')
                || bytes.len() < 16
                || (bytes.len() - 16) % chunk(0).len() == 0;
            assert!(is_earlier || name == "new" || whole[&name].starts_with(&bytes), "{end}: {name}");
            assert!(!name.starts_with("spool") || is_whole_chunks, "{end}: {name} has {} bytes", bytes.len());
        }
    }
    assert_eq!(server.end().0, 0);
}

/// Name, bytes, whether the peer goes then, and the server's message. `None`: the peer stays, and is cut off at the end.
type Attack = (&'static str, Vec<u8>, bool, Option<&'static str>);

fn attacks() -> Vec<Attack> {
    let begun = || [hello(1, [0; 32], b"y"), process(0)].concat();
    let known = || [begun(), about(b"x")].concat();
    let with = |before: Vec<u8>, more: &[u8]| [before, more.to_vec()].concat();
    let head = |tag: &[u8; 4], bytes: u32| [&tag[..], &bytes.to_le_bytes()].concat();
    let mut wrong_sum = chunk(0);
    *wrong_sum.last_mut().unwrap() ^= 1;
    vec![
        ("wrong magic", b"\x93RFX\r\n\x1a\n".to_vec(), false, Some("not those of a stream")),
        ("another protocol", b"GET / HTTP/1.1\r\n\r\n".to_vec(), false, Some("not uftrace's protocol")),
        (
            "name of 64 KiB",
            [&hello(1, [0; 32], b"")[..56], &[255; 2], &[b'a'; 70_000]].concat(),
            false,
            Some("a name of 65535 bytes"),
        ),
        ("another version", [&b"\x93RFS\r\n\x1a\n\x03\0\0\0"[..], &[0; 60]].concat(), false, Some("version 3")),
        ("nothing that is known follows", hello(3, [0; 32], b"y"), false, Some("the unknown kind 3")),
        ("length of 4 GiB", with(known(), &head(b"CHNZ", u32::MAX - 7)), false, Some("4294967288 bytes")),
        ("length of 5 MiB", with(known(), &head(b"CHNK", 5 << 20)), false, Some("5242880 bytes")),
        ("no whole words", with(known(), &head(b"CHNZ", 81)), false, Some("81 bytes")),
        ("unknown section", with(known(), &section(b"EVIL", b"x")), false, Some("EVIL is unknown")),
        ("escape sequence for a tag", with(known(), &section(b"\x1b[2J", b"x")), false, Some("\\x1b[2J is unknown")),
        ("wrong checksum", with(known(), &wrong_sum), false, Some("wrong checksum")),
        ("chunk of no process", with(hello(1, [0; 32], b"y"), &chunk(0)), false, Some("CHNZ comes before the section")),
        ("chunk of an unknown process", with(begun(), &chunk(0)), false, Some("CHNZ comes before the section")),
        ("process that does not come yet", with(known(), &process(70)), false, Some("70 is impossible")),
        ("process -1", with(known(), &process(u64::MAX)), false, Some("is impossible in a section PROC")),
        (
            "text of an exabyte",
            with(begun(), &section(b"ABOU", &words(&[1 << 60, 0, 0]))),
            false,
            Some("is impossible in a section ABOU"),
        ),
        (
            "text from its middle",
            with(begun(), &section(b"ABOU", &words(&[100, 50, 0]))),
            false,
            Some("50 is impossible"),
        ),
        (
            "text that never goes on",
            with(begun(), &section(b"ABOU", &words(&[100, 0]))),
            false,
            Some("0 is impossible"),
        ),
        (
            "symbols of a module that does not come yet",
            with(known(), &symbols(9, b"x")),
            false,
            Some("9 is impossible"),
        ),
        (
            "end that tells of others",
            with(known(), &section(b"END\n", &words(&[1, 9, 0]))),
            false,
            Some("other processes, chunks or files"),
        ),
        (
            "end that tells of files",
            with(known(), &section(b"END\n", &words(&[1, 0, 1]))),
            false,
            Some("other processes, chunks or files"),
        ),
        (
            "file with a name",
            with(known(), &section(b"FILE", b"../../x\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0x")),
            false,
            Some("is impossible in a section FILE"),
        ),
        ("file of an unknown kind", with(known(), &file(12, 0, b"x")), false, Some("is impossible in a section FILE")),
        ("records as a file", with(known(), &file(0, 7, b"x")), false, Some("7 is impossible in a section FILE")),
        (
            "file of processor -1",
            with(known(), &file(9, u64::from(u32::MAX), b"x")),
            false,
            Some("is impossible in a section FILE"),
        ),
        ("second `info`", with(known(), &file(1, 0, b"x").repeat(2)), false, Some("is impossible in a section FILE")),
        (
            "file from its middle",
            with(known(), &section(b"FILE", &words(&[1 << 32, 100, 50, 0]))),
            false,
            Some("is impossible in a section FILE"),
        ),
        (
            "file that never goes on",
            with(known(), &section(b"FILE", &words(&[1 << 32, 100, 0]))),
            false,
            Some("0 is impossible"),
        ),
        (
            "chunk behind a file",
            with(known(), &[file(1, 0, b"x"), chunk(0)].concat()),
            false,
            Some("CHNZ comes before the section"),
        ),
        (
            "file within a text",
            with(begun(), &[section(b"ABOU", &words(&[100, 0, 0])), file(1, 0, b"x")].concat()),
            false,
            Some("FILE comes before the section"),
        ),
        (
            "file of an exabyte, death within it",
            with(known(), &section(b"FILE", &words(&[1 << 32, 1 << 60, 0, 0]))),
            true,
            Some("closed the connection"),
        ),
        ("stall within a file", with(known(), &section(b"FILE", &words(&[1 << 32, 1 << 60, 0, 0]))), false, None),
        ("second beginning", with(known(), &hello(1, [0; 32], b"y")), false, Some("is unknown")),
        ("nothing", Vec::new(), true, Some("closed the connection")),
        ("only the beginning", hello(1, [0; 32], b"y"), true, Some("closed the connection")),
        ("death before the end", with(known(), &chunk(0)), true, Some("closed the connection")),
        ("death within a section", with(known(), &chunk(0)[..50]), true, Some("closed the connection")),
        ("stall within the beginning", b"\x93RFS".to_vec(), false, None),
        ("stall within a section", with(known(), &chunk(0)[..50]), false, None),
        ("stall behind the beginning", hello(1, [0; 32], b"y"), false, None),
        (
            "uftrace's nonsense behind a beginning",
            with(hello(2, [0; 32], b"y"), b"GET / HTTP/1.1"),
            false,
            Some("not uftrace's protocol"),
        ),
        (
            "file elsewhere behind a beginning",
            with(hello(2, [0; 32], b"y"), &[crate::peer::dir_name(b"y"), crate::peer::file(b"../x", b"x")].concat()),
            false,
            Some("outside of the trace directory"),
        ),
    ]
}

#[test]
fn the_server_lives_and_others_are_served() {
    // The server gives each some time to read why it is refused.
    std::thread::scope(|scope| {
        for attack in attacks() {
            scope.spawn(move || attack_and_serve(attack));
        }
    });
}

fn attack_and_serve((what, bytes, goes, said): Attack) {
    let server = Running::start(|_| {});
    let sections = stream(b"first").concat();
    let (half, rest) = sections.split_at(sections.len() / 2);
    let first = server.connect();
    push(&first, half);
    while !server.received().join("first/.recording/spool-0").exists() {
        std::thread::yield_now();
    }
    let attacker = server.connect();
    push(&attacker, &bytes);
    if goes {
        attacker.shutdown(Shutdown::Write).unwrap();
    }
    let told = said.map(|text| {
        let told = server.told_of(&attacker);
        assert!(told.to_string().contains(text), "{what}: {told}");
        assert_eq!(told.to_string().lines().count(), 1, "{what}: {told}");
        assert!(!told.to_string().contains('\x1b'), "{what}");
        told
    });
    if let Some(told) = &told {
        let answer = answer(&attacker);
        assert!(!goes || answer.is_empty() || answer.starts_with("no "), "{what}: {answer}");
        assert!(told.dir.as_ref().is_none_or(|dir| dir.parent() == Some(&server.received())), "{what}: {told}");
    }
    push(&first, rest);
    assert_complete(&server.told_of(&first), "first", 2);
    let later = server.connect();
    push(&later, &stream(b"later").concat());
    assert_complete(&server.told_of(&later), "later", 2);
    assert_eq!(stored_in(&server.received().join("later")), stored(), "{what}");
    let (n_complete, cut) = server.end();
    assert_eq!((n_complete, cut.len()), (2, usize::from(said.is_none())), "{what}");
}

#[test]
fn a_stream_may_not_be_larger_than_it_may() {
    let server = Running::start(|options| options.max_bytes = 1000);
    let peer = server.connect();
    push(&peer, &[hello(1, [0; 32], b"y"), process(0), about(b"x"), chunk(0).repeat(20)].concat());
    assert!(answer(&peer).contains("no the trace has more than 1000 bytes"));
    let told = server.told_of(&peer);
    assert!(told.bytes <= 1000 && told.ended.is_err(), "{told}");
    server.end();
}

#[test]
fn who_is_silent_loses_the_connection() {
    // Between sections too: an idle peer sends beats.
    let server = Running::start(|options| options.timeout = Duration::from_millis(50));
    for bytes in [b"\x93R".to_vec(), [hello(1, [0; 32], b"y"), process(0)].concat()] {
        let peer = server.connect();
        push(&peer, &bytes);
        assert!(server.told_of(&peer).to_string().contains("sent and took no byte for 50ms"));
    }
    server.end();
}

fn token(fill: u8) -> Token {
    Token::new([fill; 32]).unwrap()
}

#[test]
fn only_who_shows_the_token_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let right = token(7);
    let server = Running::start(|options: &mut ReceiveOptions| options.token = Some(right.clone()));
    let mut nearly = [7; 32];
    nearly[31] = 8;
    for bytes in [hello(1, [0; 32], b"x"), hello(1, nearly, b"x"), hello(2, [0; 32], b"x")] {
        let peer = server.connect();
        push(&peer, &bytes);
        assert!(answer(&peer).starts_with("no the sender has not shown the token"), "{bytes:?}");
        let told = server.told_of(&peer);
        assert!(told.dir.is_none() && told.to_string().contains("not shown the token"), "{told}");
    }
    // uftrace has none.
    let peer = server.connect();
    push(&peer, &honest("x").concat());
    assert!(server.told_of(&peer).to_string().contains("not shown the token"));
    let mut sections = stream(b"x");
    sections[0] = hello(1, [7; 32], b"x");
    let peer = server.connect();
    push(&peer, &sections.concat());
    assert_complete(&server.told_of(&peer), "x", 2);

    // A trace that is there already.
    let dir = folder.path().join("trace");
    fs::create_dir(&dir).unwrap();
    honest_files().iter().for_each(|(name, bytes)| fs::write(dir.join(name), bytes).unwrap());
    let own = to(Protocol::Own, &server.address);
    let wrong = token(1);
    for shown in [None, Some(&wrong)] {
        let refused = send(&dir, &own, shown, LONG);
        assert!(matches!(&refused, Err(Error::Refused(why)) if why.contains("token")), "{refused:?}");
        assert!(server.told().ended.is_err());
    }
    let sent = send(&dir, &own, Some(&right), LONG).unwrap();
    assert_eq!(sent.files, honest_files().len());
    let told = server.told();
    assert!(told.ended.is_ok(), "{told}");
    assert_eq!(files(told.dir.as_ref().unwrap()), honest_files());
    assert_eq!(server.end().0, 2);
}

#[test]
fn an_image_of_a_kernel_is_kept_as_it_comes() {
    let image = [&b"\x93RFT\r\n\x1a\n"[..], &[7; 100_000]].concat();
    let server = Running::start(|_| {});
    for (size, name) in [(1, "kernel"), (4096, "kernel-2")] {
        let peer = server.connect();
        peer.set_nodelay(true).unwrap();
        // The first bytes may come one by one.
        image[..20].chunks(size).for_each(|piece| push(&peer, piece));
        push(&peer, &image[20..]);
        peer.shutdown(Shutdown::Write).unwrap();
        let told = server.told_of(&peer);
        let path = server.received().join(name).join("kernel.img");
        assert!(told.ended.is_ok() && told.image.as_ref() == Some(&path), "{told}");
        assert!(fs::read(path).unwrap() == image);
    }
    // Too little to tell what it is.
    let peer = server.connect();
    push(&peer, b"\x93RF");
    peer.shutdown(Shutdown::Write).unwrap();
    let told = server.told_of(&peer);
    assert!(told.dir.is_none() && told.to_string().contains("closed the connection"), "{told}");
    assert_eq!(server.end().0, 2);

    // It shows no token, and may not be larger than others.
    let right = token(7);
    let server = Running::start(|options: &mut ReceiveOptions| options.token = Some(right));
    let peer = server.connect();
    push(&peer, &image);
    let told = server.told_of(&peer);
    assert!(told.dir.is_none() && told.to_string().contains("not shown the token"), "{told}");
    server.end();
    let server = Running::start(|options| options.max_bytes = 50_000);
    let peer = server.connect();
    push(&peer, &image);
    let told = server.told_of(&peer);
    assert!(told.bytes <= 50_000 && told.to_string().contains("more than 50000 bytes"), "{told}");
    server.end();
}
