use std::collections::VecDeque;

use super::*;
use crate::protocol::read_answer;
use crate::recording::{Facts, Function, Text, Trigger};

/// A recorder without processes.
struct Idle;

impl Recording for Idle {
    fn recorder(&self) -> u32 {
        std::process::id()
    }

    fn processes(&self) -> Vec<u32> {
        vec![self.recorder()]
    }

    fn facts(&self, _: u32) -> Result<Facts, String> {
        Err("nothing".to_owned())
    }

    fn has_thread(&self, _: u32, _: u32) -> bool {
        false
    }

    fn is_on(&self, _: u32) -> Option<bool> {
        None
    }

    fn rules(&self, _: u32) -> Option<String> {
        None
    }

    fn ask(&self, _: u32, _: &str) -> Result<String, String> {
        Err("nothing".to_owned())
    }

    fn functions(&self, _: u32) -> Result<Vec<Function>, String> {
        Err("nothing".to_owned())
    }

    fn pipe(&self, _: Option<u32>, _: bool) -> Result<Text, String> {
        Err("nothing".to_owned())
    }

    fn stream(&self, _: Option<u32>) -> Result<Text, String> {
        Err("nothing".to_owned())
    }

    fn mark(&self, _: u32, _: &str) -> Result<String, String> {
        Err("nothing".to_owned())
    }

    fn flush(&self, _: u32) -> Result<String, String> {
        Err("nothing".to_owned())
    }

    fn stop(&self, _: u32) -> Result<String, String> {
        Err("nothing".to_owned())
    }

    fn triggers(&self) -> Vec<Trigger> {
        Vec::new()
    }

    fn add_trigger(&self, _: &str) -> Result<Trigger, String> {
        Err("nothing".to_owned())
    }

    fn remove_trigger(&self, _: usize) {}

    fn forget_snapshots(&self, _: u32) -> usize {
        0
    }

    fn dump(&self, _: u32, _: &str) -> Result<String, String> {
        Err("nothing".to_owned())
    }
}

/// Longer than any step on a loaded machine.
const LONG: Duration = Duration::from_secs(60);

fn connect(path: &Path) -> UnixStream {
    let stream = socket::connect(path).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

fn until(is_so: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < LONG, "it does not become so");
        thread::yield_now();
    }
}

/// Returns true if a client has its answer.
fn is_answered(mut stream: &UnixStream) -> bool {
    let request = Request { pid: std::process::id(), words: vec!["knows".to_owned()] };
    let written = request.write(&mut stream);
    written.is_ok() && matches!(read_answer(&mut BufReader::new(stream)), Ok(Some(Ok(_))))
}

#[test]
fn silent_clients_keep_nobody_out() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ctl");
    let listener = Listener::at(file.clone()).unwrap();
    let server = Server::listen(Arc::new(Idle), move || Ok(listener)).unwrap();
    let mut silent = VecDeque::new();
    for number in 0..MOST_CLIENTS {
        let mut client = connect(&file);
        // Half a command is none.
        client.write_all([&b""[..], b"rftrace-control"][number % 2]).unwrap();
        silent.push_back(client);
    }
    let known = connect(&file);
    assert!(is_answered(&known), "the one that is silent for longest gives way");
    for _ in 0..2 * MOST_CLIENTS {
        silent.push_back(connect(&file));
        // Whoever is let in later was silent for a shorter time, so the order counts.
        until(|| server.shared.clients().next_id == silent.len() as u64 + 1);
        assert!(is_answered(&known), "it was the last to say something");
    }
    assert_eq!(silent.pop_front().unwrap().read(&mut [0; 8]).unwrap(), 0);
}

#[test]
fn a_command_that_comes_byte_by_byte_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ctl");
    let listener = Listener::at(file.clone()).unwrap();
    let _server = Server::listen(Arc::new(Idle), move || Ok(listener)).unwrap();
    let mut client = connect(&file);
    let since = Instant::now();
    // No more than a line may have.
    while client.write_all(b"a").is_ok() {
        assert!(since.elapsed() < LONG, "it goes on");
        thread::sleep(Duration::from_millis(5));
    }
    let answer = read_answer(&mut BufReader::new(&client)).unwrap().unwrap();
    assert!(answer.unwrap_err().contains("the command did not arrive within 500ms"));
    // Between commands there is time.
    let client = connect(&file);
    assert!(is_answered(&client));
    thread::sleep(COMMAND_TIME * 2);
    assert!(is_answered(&client));
}
