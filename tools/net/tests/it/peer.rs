//! A server in this process, honest peers, and messages written by hand: no code is shared with what reads them.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rftrace_net::receive::{ReceiveOptions, Received, Server, Stop};
use rftrace_net::{Address, Protocol, Result, To};
use tempfile::TempDir;

/// Longer than anything takes on a loaded machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A server that runs until it is stopped, in a folder beside something that is not its own.
pub(crate) struct Running {
    folder: TempDir,
    pub(crate) address: Address,
    pub(crate) stop: Stop,
    told: Receiver<Received>,
    thread: JoinHandle<Result<usize>>,
}

impl Running {
    pub(crate) fn start(change: impl FnOnce(&mut ReceiveOptions)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("task.txt"), "mine").unwrap();
        let mut options = ReceiveOptions::new(folder.path().join("received"));
        options.timeout = LONG;
        change(&mut options);
        let server = Server::bind(&"127.0.0.1:0".parse().unwrap(), options).unwrap();
        let (address, stop) = (server.addresses().unwrap().remove(0), server.stop().unwrap());
        let (tell, told) = channel();
        let thread = thread::spawn(move || {
            server.run(&move |received| {
                let _ = tell.send(received);
            })
        });
        Self { folder, address, stop, told, thread }
    }

    pub(crate) fn port(&self) -> u16 {
        match &self.address {
            Address::Tcp { port, .. } => *port,
            address @ Address::Unix(_) => panic!("{address}"),
        }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port())).unwrap()
    }

    /// The server's report on the next peer that ends.
    pub(crate) fn told(&self) -> Received {
        self.told.recv_timeout(LONG).expect("the server tells")
    }

    /// The server's report on the next peer, which has to be this one.
    #[track_caller]
    pub(crate) fn told_of(&self, peer: &TcpStream) -> Received {
        let told = self.told();
        assert_eq!(told.peer, peer.local_addr().unwrap().to_string(), "{told}");
        told
    }

    /// Where its traces are.
    pub(crate) fn received(&self) -> PathBuf {
        self.folder.path().join("received")
    }

    /// Ends it. Returns the number of complete traces, and the peers cut off by the end.
    #[track_caller]
    pub(crate) fn end(self) -> (usize, Vec<Received>) {
        self.stop.stop();
        let n_complete = self.thread.join().expect("no panic").unwrap();
        let mut around: Vec<_> =
            fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        around.sort();
        assert_eq!(around, ["received", "task.txt"], "nothing outside the folder for traces");
        assert_eq!(fs::read(self.folder.path().join("task.txt")).unwrap(), b"mine");
        (n_complete, self.told.iter().collect())
    }

    /// Waits for the end of a server that ends by itself.
    pub(crate) fn ended(self) -> (usize, TempDir) {
        (self.thread.join().expect("no panic").unwrap(), self.folder)
    }
}

/// Its address for a protocol.
pub(crate) fn to(protocol: Protocol, address: &Address) -> To {
    To { protocol, address: address.clone() }
}

/// A message.
pub(crate) fn message(kind: u16, contents: &[u8]) -> Vec<u8> {
    let length = u32::try_from(contents.len()).unwrap();
    [head(kind, length), contents.to_vec()].concat()
}

/// The beginning of a message of this length.
pub(crate) fn head(kind: u16, length: u32) -> Vec<u8> {
    [&[0xfa, 0xce][..], &kind.to_be_bytes(), &length.to_be_bytes()].concat()
}

pub(crate) fn dir_name(name: &[u8]) -> Vec<u8> {
    message(101, name)
}

pub(crate) fn records(tid: u32, bytes: &[u8]) -> Vec<u8> {
    message(102, &[&tid.to_be_bytes()[..], bytes].concat())
}

pub(crate) fn file(name: &[u8], bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(name.len()).unwrap();
    message(106, &[&length.to_be_bytes()[..], name, bytes].concat())
}

/// `info` as it is in the file, and as a message.
pub(crate) fn info() -> [Vec<u8>; 2] {
    let rest = b"exename:/bin/prog\n";
    let numbers = |order: fn(&mut [u8])| {
        let mut bytes = Vec::new();
        for (number, width) in [(4_u64, 4), (40, 2)] {
            let mut field = number.to_le_bytes()[..width].to_vec();
            order(&mut field);
            bytes.extend(field);
        }
        bytes.extend([1, 2]);
        for (number, width) in [(2_u64, 8), (1, 8), (1024, 2)] {
            let mut field = number.to_le_bytes()[..width].to_vec();
            order(&mut field);
            bytes.extend(field);
        }
        [b"Ftrace!\0".to_vec(), bytes, vec![0; 6], rest.to_vec()].concat()
    };
    [numbers(|_| {}), message(105, &numbers(<[u8]>::reverse))]
}

/// The messages of an honest peer.
pub(crate) fn honest(name: &str) -> Vec<Vec<u8>> {
    vec![
        dir_name(name.as_bytes()),
        records(7, &[1; 32]),
        records(8, &[2; 16]),
        records(7, &[3; 16]),
        message(104, &[0, 0, 0, 1, 5, 5]),
        file(b"task.txt", b"SESS\n"),
        file(b"sid-0123456789abcdef.map", b"map\n"),
        file(b"prog.sym", b"symbols\n"),
        info()[1].clone(),
        message(107, b""),
    ]
}

/// The files that the server makes of them.
pub(crate) fn honest_files() -> BTreeMap<String, Vec<u8>> {
    let records = [vec![1; 32], vec![3; 16]].concat();
    [
        ("7.dat", records),
        ("8.dat", vec![2; 16]),
        ("perf-cpu1.dat", vec![5, 5]),
        ("task.txt", b"SESS\n".to_vec()),
        ("sid-0123456789abcdef.map", b"map\n".to_vec()),
        ("prog.sym", b"symbols\n".to_vec()),
        ("info", info()[0].clone()),
    ]
    .map(|(name, bytes)| (name.to_owned(), bytes))
    .into()
}

/// Checks that a directory has these files.
#[track_caller]
pub(crate) fn assert_files(dir: &Path, whole: &BTreeMap<String, Vec<u8>>) {
    let found = files(dir);
    let sizes = |files: &BTreeMap<String, Vec<u8>>| -> Vec<(String, usize)> {
        files.iter().map(|(name, bytes)| (name.clone(), bytes.len())).collect()
    };
    assert_eq!(sizes(&found), sizes(whole));
    for (name, bytes) in &found {
        assert!(*bytes == whole[name], "{name} differs");
    }
}

/// The files of a directory.
pub(crate) fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

/// Sends what a server may have refused already.
pub(crate) fn push(mut peer: &TcpStream, bytes: &[u8]) {
    let _ = peer.write_all(bytes);
}
