//! Attacks by peers: the server lives, others are served meanwhile, and nothing lies outside its folder.

use std::fs;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use rftrace_net::receive::ReceiveOptions;

use crate::peer::{LONG, Running, dir_name, file, files, head, honest, honest_files, info, message, push, records};

/// The peer's next step when it has sent its bytes.
#[derive(Clone, Copy, PartialEq)]
enum Then {
    /// It waits until the server closes.
    Wait,
    /// It goes.
    Close,
    /// It stays, until the server is told to end.
    Stay,
}

struct Attack {
    what: &'static str,
    bytes: Vec<u8>,
    then: Then,
    /// How it ends, in the line that the server says; `None` for a complete trace.
    ended: Option<&'static str>,
    /// The files that lie there afterwards, if there is a directory.
    left: Option<&'static [&'static str]>,
}

fn named(messages: &[&[u8]]) -> Vec<u8> {
    [&[&dir_name(b"x")[..]], messages].concat().concat()
}

fn attacks() -> Vec<Attack> {
    let attack = |what, bytes, then, ended: &'static str, left| Attack { what, bytes, then, ended: Some(ended), left };
    let complete = |what, name: &[u8]| Attack {
        what,
        bytes: [dir_name(name), honest("").split_first().unwrap().1.concat()].concat(),
        then: Then::Wait,
        ended: None,
        left: None,
    };
    let elsewhere = Some("outside of the trace directory");
    let file_named = |what, name| Attack {
        what,
        bytes: named(&[&records(1, &[0; 16]), &file(name, b"theirs")]),
        then: Then::Wait,
        ended: elsewhere,
        left: Some(&["1.dat"]),
    };
    let long = u32::try_from(64 << 20).unwrap();
    vec![
        complete("absolute name of a directory", b"/tmp/rftrace-attack"),
        complete("name of a directory elsewhere", b"../outside"),
        complete("name of a hidden directory", b".recording"),
        complete("name of a directory with a NUL", b"a\0b"),
        complete("empty name of a directory", b""),
        complete("the name that another peer has", b"first"),
        file_named("file elsewhere", b"../task.txt"),
        file_named("absolute file", b"/tmp/rftrace-attack"),
        file_named("file in a directory", b"a/task.txt"),
        file_named("file with a NUL", b"task.txt\0"),
        attack(
            "directory's name of 64 MB",
            [head(101, long), vec![b'a'; long as usize]].concat(),
            Then::Wait,
            "length of 67108864",
            None,
        ),
        attack("wrong magic", b"GET / HTTP/1.1\r\n\r\n".to_vec(), Then::Wait, "not uftrace's protocol", None),
        attack("negative length", head(101, u32::MAX), Then::Wait, "length of -1", None),
        attack(
            "negative length of records",
            named(&[&head(102, 1 << 31)]),
            Then::Wait,
            "length of -2147483648",
            Some(&[]),
        ),
        attack(
            "negative length of a file's name",
            named(&[&message(106, &[255, 255, 255, 255, 0])]),
            Then::Wait,
            "-1 is not a valid",
            Some(&[]),
        ),
        attack("records before the name", records(1, &[0; 16]), Then::Wait, "the first message has type 102", None),
        attack("end before the name", message(107, b""), Then::Wait, "the first message has type 107", None),
        attack("unknown type", named(&[&message(99, b"contents")]), Then::Wait, "unknown type 99", Some(&[])),
        attack("second name", named(&[&dir_name(b"y")]), Then::Wait, "a message of type 101 came twice", Some(&[])),
        attack(
            "the same file twice",
            named(&[&file(b"task.txt", b"a"), &file(b"task.txt", b"b")]),
            Then::Wait,
            "task.txt twice",
            Some(&["task.txt"]),
        ),
        attack("end without info", named(&[&message(107, b"")]), Then::Wait, "without `info`", Some(&[])),
        attack("contents at the end", named(&[&message(107, b"x")]), Then::Wait, "length of 1", Some(&[])),
        attack("nothing", Vec::new(), Then::Close, "closed the connection", None),
        attack("only the name", dir_name(b"x"), Then::Close, "closed the connection", Some(&[])),
        attack(
            "death before the end",
            named(&[&records(1, &[0; 16]), &info()[1]]),
            Then::Close,
            "closed the connection",
            Some(&["1.dat", "info.incomplete"]),
        ),
        attack(
            "death within a message",
            named(&[&head(102, 100), &[0, 0, 0, 1, 2]]),
            Then::Close,
            "closed the connection",
            Some(&["1.dat"]),
        ),
        attack(
            "length of 2 GiB",
            named(&[&head(102, u32::MAX >> 1), &[0, 0, 0, 1, 2]]),
            Then::Close,
            "closed the connection",
            Some(&["1.dat"]),
        ),
        attack("info of 2 GiB", named(&[&head(105, u32::MAX >> 1)]), Then::Wait, "length of 2147483647", Some(&[])),
        attack("stall within a head", named(&[&[0xfa]]), Then::Stay, "was stopped", Some(&[])),
        attack(
            "stall within a message of 2 GiB",
            named(&[&head(102, u32::MAX >> 1), &[0, 0, 0, 1, 2]]),
            Then::Stay,
            "was stopped",
            Some(&["1.dat"]),
        ),
        attack("stall before the first message", Vec::new(), Then::Stay, "was stopped", None),
    ]
}

/// A peer that has sent half of its trace when others come, and sends the rest when they have done what they do.
struct Honest {
    peer: TcpStream,
    rest: Vec<u8>,
}

impl Honest {
    fn begin(server: &Running) -> Self {
        let messages = honest("first").concat();
        let (half, rest) = messages.split_at(messages.len() / 2);
        let peer = server.connect();
        push(&peer, half);
        // Its name is the first one; then the server has seen it.
        while !server.received().join("first/7.dat").exists() {
            std::thread::yield_now();
        }
        Self { peer, rest: rest.to_vec() }
    }

    #[track_caller]
    fn end(self, server: &Running) {
        push(&self.peer, &self.rest);
        let told = server.told_of(&self.peer);
        assert!(told.ended.is_ok(), "{told}");
        assert_eq!(files(&server.received().join("first")), honest_files());
        // And one that comes later.
        let later = server.connect();
        push(&later, &honest("later").concat());
        let told = server.told_of(&later);
        assert!(told.ended.is_ok(), "{told}");
        assert_eq!(files(&server.received().join("later")), honest_files());
    }
}

#[test]
fn the_server_lives_and_others_are_served() {
    for attack in attacks() {
        let what = attack.what;
        let server = Running::start(|_| {});
        let first = Honest::begin(&server);
        let attacker = server.connect();
        push(&attacker, &attack.bytes);
        if attack.then == Then::Close {
            attacker.shutdown(Shutdown::Both).unwrap();
        }
        let told = if attack.then == Then::Stay {
            first.end(&server);
            // The sent bytes may not have been read yet.
            let n_dirs = 2 + usize::from(attack.left.is_some());
            let patience = Instant::now() + Duration::from_secs(30);
            while fs::read_dir(server.received()).unwrap().count() < n_dirs && Instant::now() < patience {
                std::thread::sleep(Duration::from_millis(5));
            }
            let (n_complete, mut cut) = server.end();
            assert_eq!((n_complete, cut.len()), (2, 1), "{what}");
            cut.remove(0)
        } else {
            let told = server.told();
            first.end(&server);
            assert!(told.dir.as_ref().is_none_or(|dir| dir.parent() == Some(&server.received())), "{what}: {told}");
            if let (Some(left), Some(dir)) = (attack.left, &told.dir) {
                assert_eq!(files(dir).into_keys().collect::<Vec<_>>(), left, "{what}: {told}");
            }
            if attack.ended.is_none() {
                assert_eq!(files(told.dir.as_ref().unwrap()), honest_files(), "{what}: {told}");
            }
            let n_complete = 2 + usize::from(attack.ended.is_none());
            assert_eq!(server.end().0, n_complete, "{what}: {told}");
            told
        };
        match (attack.ended, &told.ended) {
            (None, Ok(())) => {}
            (Some(text), Err(_)) => assert!(told.to_string().contains(text), "{what}: {told}"),
            _ => panic!("{what}: {told}"),
        }
        assert_eq!(told.dir.is_some(), attack.left.is_some() || attack.ended.is_none(), "{what}: {told}");
        assert_eq!(told.to_string().lines().count(), 1, "{what}: {told}");
    }
}

#[test]
fn a_trace_may_not_be_larger_than_it_may() {
    let small = |options: &mut ReceiveOptions| options.max_bytes = 1000;
    for bytes in [
        // Announced, and not sent.
        named(&[&head(102, 1000), &[0, 0, 0, 1]]),
        // Sent, bit by bit.
        named(&[&records(1, &[0; 16]).repeat(100)]),
        // Of a file that is left out.
        named(&[&file(b"x.txt", &[0; 1000])]),
    ] {
        let server = Running::start(small);
        let first = Honest::begin(&server);
        let attacker = server.connect();
        push(&attacker, &bytes);
        let told = server.told();
        assert!(told.to_string().contains("more than 1000 bytes"), "{told}");
        assert!(told.bytes <= 1000);
        first.end(&server);
        assert_eq!(server.end().0, 2);
    }
}

#[test]
fn peers_that_are_too_many_are_refused() {
    let server = Running::start(|options| options.max_peers = 2);
    let first = Honest::begin(&server);
    let second = server.connect();
    push(&second, &dir_name(b"second"));
    while !server.received().join("second").exists() {
        std::thread::yield_now();
    }
    for _ in 0..20 {
        let third = server.connect();
        let told = server.told_of(&third);
        assert!(told.to_string().contains("all 2 connections are in use"), "{told}");
    }
    drop(second);
    assert!(server.told().to_string().contains("closed the connection"));
    first.end(&server);
    assert_eq!(server.end().0, 2);
}

#[test]
fn who_has_not_begun_gives_way() {
    let server = Running::start(|_| {});
    let first = Honest::begin(&server);
    let most = ReceiveOptions::new(".").max_peers;
    // One byte of a head, one of ours, none.
    let strangers: Vec<TcpStream> = (1..most)
        .map(|number| {
            let stranger = server.connect();
            push(&stranger, [&[0xfa][..], &[0x93], &[]][number % 3]);
            stranger
        })
        .collect();
    let good = server.connect();
    push(&good, &honest("good").concat());
    let mut told = [server.told(), server.told()];
    // They may end in any order.
    told.sort_by_key(|told| told.ended.is_ok());
    let [displaced, complete] = told;
    let oldest = strangers.first().unwrap().local_addr().unwrap();
    assert_eq!(displaced.peer, oldest.to_string(), "{displaced}");
    assert!(displaced.to_string().contains("had announced no trace"), "{displaced}");
    assert_eq!(complete.peer, good.local_addr().unwrap().to_string(), "{complete}");
    assert_eq!(files(complete.dir.as_ref().unwrap()), honest_files());
    first.end(&server);
    let (n_complete, cut) = server.end();
    assert_eq!((n_complete, cut.len()), (3, most - 2), "the other ones are there until the end");
}

#[test]
fn who_is_slow_within_a_message_loses_the_connection() {
    let server = Running::start(|options| options.timeout = Duration::from_secs(2));
    let beginnings =
        [(Vec::new(), head(101, 4096)), (named(&[]), head(102, 1 << 30)), (named(&[]), head(105, 1 << 20))];
    std::thread::scope(|scope| {
        for (begun, message) in &beginnings {
            let mut peer = server.connect();
            push(&peer, begun);
            // A byte at a time, until it is refused.
            let bytes = message.iter().copied().chain(std::iter::repeat(1));
            let patience = Instant::now() + LONG;
            scope.spawn(move || {
                for byte in bytes.take_while(|_| Instant::now() < patience) {
                    if peer.write_all(&[byte]).is_err() {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
        }
        for _ in &beginnings {
            let told = server.told().to_string();
            assert!(told.contains("a message took longer than 2s"), "{told}");
        }
    });
    server.end();
}

#[test]
fn who_is_silent_loses_the_connection() {
    let server = Running::start(|options| options.timeout = Duration::from_millis(20));
    for bytes in [Vec::new(), named(&[&head(102, 100)])] {
        let peer = server.connect();
        push(&peer, &bytes);
        let told = server.told_of(&peer);
        assert!(told.to_string().contains("sent and took no byte for 20ms"), "{told}");
    }
    assert_eq!(server.end().0, 0);

    // Between messages another limit holds: a program may have nothing to tell.
    let server = Running::start(|options| options.idle = Duration::from_millis(20));
    let peer = server.connect();
    push(&peer, &named(&[]));
    let told = server.told_of(&peer);
    assert!(told.to_string().contains("sent and took no byte for 20ms"), "{told}");
    assert_eq!(server.end().0, 0);
}

#[test]
fn what_is_no_file_of_a_trace_is_left_out_and_said() {
    let server = Running::start(|_| {});
    let peer = server.connect();
    let odd = [&b"default.opts"[..], b"\x1b[2J.sym", b".hidden.sym", b"info", b"7.dat", b"sid-0.map"];
    let odd: Vec<u8> = odd.iter().flat_map(|name| file(name, b"contents")).collect();
    let mut messages = honest("x");
    messages.insert(5, odd);
    push(&peer, &messages.concat());
    let told = server.told_of(&peer);
    assert!(told.ended.is_ok(), "{told}");
    assert_eq!(files(told.dir.as_ref().unwrap()), honest_files());
    assert!(
        told.to_string()
            .ends_with("left out, as no trace has such files: default.opts, \\u{1b}[2J.sym, .hidden.sym, info, …")
    );
    server.end();
}

#[test]
fn one_complete_trace_may_be_enough() {
    let server = Running::start(|options| options.once = true);
    let cut = server.connect();
    push(&cut, &dir_name(b"cut"));
    drop(cut);
    assert!(server.told().ended.is_err());
    push(&server.connect(), &honest("x").concat());
    assert_eq!(server.ended().0, 1);
}
