use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use super::{MOST_CONNECTIONS, Server, SharedFile};
use crate::pack::Page;

/// Longer than anything takes on a loaded machine.
const LONG: Duration = Duration::from_secs(60);

/// A server that goes on until this process ends: its address, and what is behind that of a connection.
fn start(mut server: Server, header_time: Duration) -> (SocketAddr, String) {
    server.header_time = header_time;
    let url = server.url();
    let rest = url.strip_prefix("http://").unwrap();
    let (host, path) = rest.split_at(rest.find('/').unwrap());
    let address = host.parse().unwrap();
    let path = path.to_owned();
    thread::spawn(move || server.run());
    (address, path)
}

fn page() -> Server {
    Server::bind(Page::without_calls("x", Vec::new()), 0).unwrap()
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

/// Until the server closes the connection.
fn rest_of(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("it is not closed"),
        _ => String::from_utf8_lossy(&bytes).into_owned(),
    }
}

fn ask(address: SocketAddr, request: &str, rest: &str) -> String {
    let mut stream = connect(address);
    stream.write_all(format!("{request} HTTP/1.1\r\nHost: {address}\r\n{rest}").as_bytes()).unwrap();
    rest_of(stream)
}

#[test]
fn a_header_that_comes_byte_by_byte_is_ended() {
    let (address, path) = start(page(), Duration::from_millis(300));
    let header = format!("GET {path} HTTP/1.1\r\nX: ");
    let mut stream = connect(address);
    let mut bytes = header.bytes().chain(std::iter::repeat(b'a'));
    let since = Instant::now();
    stream.set_nonblocking(true).unwrap();
    loop {
        assert!(since.elapsed() < LONG, "it goes on");
        if stream.write_all(&[bytes.next().unwrap()]).is_err() {
            break;
        }
        match stream.read(&mut [0; 100]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            _ => break,
        }
        thread::sleep(Duration::from_millis(5));
    }
    // So is one that says nothing, also behind a request.
    assert_eq!(rest_of(connect(address)), "");
    let answer = ask(address, &format!("GET {path}"), "\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}

#[test]
fn who_has_the_token_keeps_the_connection() {
    let (address, path) = start(page(), LONG);
    let request = format!("GET {path}data HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let ask = |mut stream: &TcpStream| {
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).map(|()| assert_eq!(&answer, b"HTTP/1.1 200"))
    };
    let known: Vec<TcpStream> = (0..MOST_CONNECTIONS - 1).map(|_| connect(address)).collect();
    known.iter().for_each(|stream| ask(stream).unwrap());
    let strangers: Vec<TcpStream> = (0..20).map(|_| connect(address)).collect();
    let last = connect(address);
    ask(&last).unwrap();
    strangers.into_iter().for_each(|stream| assert_eq!(rest_of(stream), ""));
    // There is no stranger any more that could give way.
    assert!(ask(&connect(address)).is_err());
    drop(last);
    let since = Instant::now();
    while ask(&connect(address)).is_err() {
        assert!(since.elapsed() < LONG, "there is room again");
    }
}

#[test]
fn what_comes_behind_a_header_is_refused() {
    let (address, path) = start(page(), LONG);
    for (request, rest, status) in [
        (format!("GET {path}"), "Content-Length: 3\r\n\r\nabc", 413),
        (format!("GET {path}data"), "Transfer-Encoding: chunked\r\n\r\n", 413),
        (format!("POST {path}"), "Content-Length: 99999999999\r\n\r\n", 405),
        ("POST /".to_owned(), "Content-Length: 99999999999\r\n\r\n", 403),
        (format!("GET {path}"), "Host: 127.0.0.1\r\nConnection: close\r\n\r\n", 403),
        (format!("GET http://{address}{path}"), "Connection: close\r\n\r\n", 403),
        (format!("GET /{}", "a".repeat(20 << 10)), "\r\n", 431),
        (format!("GET {path}"), &format!("X: {}\r\n\r\n", "a".repeat(20 << 10)), 431),
        (format!("GET {path}"), &format!("{}\r\n", "X: y\r\n".repeat(200)), 431),
    ] {
        // It closes the connection.
        let answer = ask(address, &request, rest);
        let what = &request[..request.len().min(60)];
        assert!(answer.is_empty() || answer.starts_with(&format!("HTTP/1.1 {status} ")), "{what}: {answer}");
        // A long request is refused amid it, and then the system may not pass the answer on.
        assert!(!answer.is_empty() || request.len() + rest.len() > 10_000, "{what}");
    }
}

#[test]
fn a_file_is_sent_whole_to_all_that_ask() {
    let contents: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&contents).unwrap();
    let shared = SharedFile { file, name: "trace", kind: "text/x", origin: "https://site.example" };
    let server = Server::bind_for(shared, 0).unwrap();
    let n_loaded = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&n_loaded);
    server.when_loaded(move || counted.store(1 + counted.load(Ordering::Relaxed), Ordering::Relaxed));
    let (address, path) = start(server, LONG);
    let close = "Connection: close\r\n\r\n";
    let head = ask(address, &format!("HEAD {path}"), close);
    assert!(head.contains("\r\nContent-Length: 4000000\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    assert_eq!(n_loaded.load(Ordering::Relaxed), 0);
    let begin = Barrier::new(8);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                begin.wait();
                let mut stream = connect(address);
                stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{close}").as_bytes()).unwrap();
                let mut answer = Vec::new();
                stream.read_to_end(&mut answer).unwrap();
                let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
                assert!(answer[end + 4..] == contents);
            });
        }
    });
    assert_eq!(n_loaded.load(Ordering::Relaxed), 1);
}
