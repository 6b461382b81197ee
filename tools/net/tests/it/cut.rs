//! Transfers that are cut behind each of their bytes.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::thread;

use rftrace_net::receive::{ReceiveOptions, Server};
use rftrace_net::send::send;
use rftrace_net::{Address, Error, Protocol, Token};

use crate::peer::{LONG, Running, assert_files, dir_name, files, honest, honest_files, message, push, to};

#[test]
fn without_its_end_no_trace_is_complete() {
    let bytes = honest("x").concat();
    let server = Running::start(|_| {});
    for end in 0..bytes.len() {
        let peer = server.connect();
        push(&peer, &bytes[..end]);
        drop(peer);
        let told = server.told();
        assert!(told.ended.is_err(), "{end}: {told}");
        if let Some(dir) = &told.dir {
            let found = files(dir);
            assert!(!found.contains_key("info"), "{end}: {told}");
            // All that was there is right as far as it goes.
            let whole = honest_files();
            let is_beginning = |(name, bytes): (&String, &Vec<u8>)| {
                whole[if name == "info.incomplete" { "info" } else { name }].starts_with(bytes)
            };
            assert!(found.iter().all(is_beginning), "{end}: {told}");
        }
    }
    assert_eq!(server.end().0, 0);
}

#[test]
fn bytes_one_at_a_time_are_a_trace() {
    let server = Running::start(|_| {});
    let peer = server.connect();
    peer.set_nodelay(true).unwrap();
    for byte in honest("x").concat() {
        push(&peer, &[byte]);
    }
    let told = server.told_of(&peer);
    assert!(told.ended.is_ok(), "{told}");
    assert_eq!(files(told.dir.as_ref().unwrap()), honest_files());
    server.end();
}

/// Writes a trace's files.
fn write(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut whole = honest_files();
    whole.insert("9.dat".to_owned(), Vec::new());
    whole.insert("kernel-cpu2.dat".to_owned(), b"kernel".to_vec());
    whole.insert("clock.txt".to_owned(), b"clock\n".to_vec());
    for (name, bytes) in &whole {
        fs::write(dir.join(name), bytes).unwrap();
    }
    fs::write(dir.join("notes"), "no part of a trace").unwrap();
    fs::create_dir(dir.join("snapshot-1")).unwrap();
    whole
}

#[test]
fn what_is_sent_arrives() {
    let dir = tempfile::tempdir().unwrap();
    let whole = write(dir.path());
    // More than a message, and more than a socket holds.
    let large: Vec<u8> = (0..5_000_000_u32).map(|at| (at >> 3) as u8).collect();
    fs::write(dir.path().join("7.dat"), &large).unwrap();
    fs::write(dir.path().join("prog.sym"), &large).unwrap();
    let whole: BTreeMap<_, _> = whole
        .into_iter()
        .map(|(name, bytes)| if name == "7.dat" || name == "prog.sym" { (name, large.clone()) } else { (name, bytes) })
        .collect();
    let server = Running::start(|_| {});
    let sent = send(dir.path(), &to(Protocol::Uftrace, &server.address), None, LONG).unwrap();
    let told = server.told();
    assert!(told.ended.is_ok(), "{told}");
    let name = dir.path().file_name().unwrap().to_str().unwrap();
    assert!(told.dir.as_ref().unwrap().ends_with(name.replacen('.', "_", 1)), "{told}");
    assert_files(told.dir.as_ref().unwrap(), &whole);
    assert_eq!((sent.files, sent.bytes), (told.files, told.bytes));
    server.end();
}

/// Passes so many bytes on, and closes then. `None`: passes on all, until the receiver closes.
fn proxy(to: u16, most: Option<usize>) -> (Address, thread::JoinHandle<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let thread = thread::spawn(move || {
        let (mut from, _) = listener.accept().unwrap();
        let mut to = TcpStream::connect(("127.0.0.1", to)).unwrap();
        let Some(most) = most else {
            let mut back = to.try_clone().unwrap();
            let client = from.try_clone().unwrap();
            // The receiver closes first.
            let closing = thread::spawn(move || {
                let _ = back.read(&mut [0]);
                client.shutdown(std::net::Shutdown::Both).unwrap();
            });
            let n_passed = std::io::copy(&mut from, &mut to).unwrap();
            closing.join().unwrap();
            return usize::try_from(n_passed).unwrap();
        };
        let mut bytes = vec![0; most];
        from.read_exact(&mut bytes).unwrap();
        to.write_all(&bytes).unwrap();
        most
    });
    (address, thread)
}

#[test]
fn a_sender_notices_that_its_trace_does_not_arrive() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("x");
    fs::create_dir(&dir).unwrap();
    write(&dir);
    let server = Running::start(|_| {});
    let (address, thread) = proxy(server.port(), None);
    send(&dir, &to(Protocol::Uftrace, &address), None, LONG).unwrap();
    let n_bytes = thread.join().unwrap();
    assert!(server.told().ended.is_ok());
    for most in 0..n_bytes {
        let (address, thread) = proxy(server.port(), Some(most));
        let sent = send(&dir, &to(Protocol::Uftrace, &address), None, LONG);
        assert!(matches!(sent, Err(Error::Closed)), "{most} of {n_bytes}: {sent:?}");
        thread.join().unwrap();
        let told = server.told();
        assert!(told.ended.is_err(), "{told}");
    }
    assert_eq!(server.end().0, 1);
}

/// uftrace's protocol has no answer: any is a refusal, and ours has its reason, also at a socket whose end tells nothing.
#[test]
fn an_answer_is_a_refusal_for_uftrace() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("x");
    fs::create_dir(&dir).unwrap();
    write(&dir);
    let sent_to = |address: &Address, is_large: bool| {
        fs::write(dir.join("7.dat"), vec![0; if is_large { 32 << 20 } else { 16 }]).unwrap();
        let sent = send(&dir, &to(Protocol::Uftrace, address), None, LONG);
        assert!(matches!(sent, Err(Error::Refused(_))), "{sent:?}");
        sent.unwrap_err().to_string()
    };

    let path = folder.path().join("socket");
    let mut options = ReceiveOptions::new(folder.path().join("received"));
    options.token = Token::new([7; 32]);
    let mut server = Server::bind(&Address::Unix(path), options).unwrap();
    server.also(&"127.0.0.1:0".parse().unwrap()).unwrap();
    let (addresses, stop) = (server.addresses().unwrap(), server.stop().unwrap());
    let thread = thread::spawn(move || server.run(&|_| {}));
    for address in &addresses {
        for is_large in [false, true] {
            let said = sent_to(address, is_large);
            assert!(said.contains("has not shown the token"), "{address} {is_large}: {said}");
        }
    }
    stop.stop();
    assert_eq!(thread.join().unwrap().unwrap(), 0);

    // Another server: it reads everything that it is sent, and answers.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let answering = thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        let mut last = Vec::new();
        while !last.ends_with(&message(107, b"")) {
            let mut byte = [0];
            peer.read_exact(&mut byte).unwrap();
            last.push(byte[0]);
        }
        peer.write_all(b"HTTP/1.1 400 Bad Request").unwrap();
    });
    let said = sent_to(&address, false);
    answering.join().unwrap();
    assert!(said.contains("is another server listening there?"), "{said}");
}

#[test]
fn a_sender_says_why_it_does_not_send() {
    let folder = tempfile::tempdir().unwrap();
    let address = Address::Unix(folder.path().join("nobody"));
    let error = |dir: &Path| send(dir, &to(Protocol::Uftrace, &address), None, LONG).unwrap_err().to_string();
    assert!(error(folder.path()).contains("is this a trace directory?"));
    fs::create_dir(folder.path().join(".recording")).unwrap();
    assert!(error(folder.path()).contains("rftrace recover"));
    write(folder.path());
    let text = error(folder.path());
    assert!(text.contains("/nobody") && text.contains("rftrace recv"), "{text}");
    fs::write(folder.path().join("info"), "something else").unwrap();
    assert!(error(folder.path()).contains("is not that of a trace"));
}

/// A receiver that takes nothing: what the system takes for it is not enough.
#[test]
fn a_sender_does_not_wait_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    fs::write(folder.path().join("7.dat"), vec![0; 32 << 20]).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address: Address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let sent = send(folder.path(), &to(Protocol::Uftrace, &address), None, std::time::Duration::from_millis(50));
    assert!(matches!(sent, Err(Error::Stalled(_))), "{sent:?}");
}

#[test]
fn a_sender_is_told_that_all_places_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    let server = Running::start(|options| options.max_peers = 1);
    let first = server.connect();
    push(&first, &dir_name(b"first"));
    while !server.received().join("first").exists() {
        std::thread::yield_now();
    }
    let sent = send(folder.path(), &to(Protocol::Own, &server.address), None, LONG);
    let said = sent.unwrap_err().to_string();
    assert!(said.contains("the receiver is busy: all 1 connections are in use"), "{said}");
    // By uftrace's protocol too.
    let sent = send(folder.path(), &to(Protocol::Uftrace, &server.address), None, LONG);
    let said = sent.unwrap_err().to_string();
    assert!(said.contains("the receiver is busy: all 1 connections are in use"), "{said}");
    drop(first);
    server.end();
}
