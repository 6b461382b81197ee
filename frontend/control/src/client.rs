//! The client: finds the recorder of a process, and sends it commands.

use std::fs;
use std::io::{self, BufReader, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rftrace_format::setting::Settings;
use rftrace_format::system;

use crate::protocol::{Answer, Request, read_answer};
use crate::socket;

/// A connection to the recorder of a process.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    pid: u32,
}

/// The reason why there is no connection.
#[derive(Debug)]
pub enum NoRecorder {
    /// The process does not exist.
    NoProcess,
    /// The process has no recorder, or one without commands.
    NotRecorded,
    /// The recorder refuses this user, or cannot answer.
    Refused(io::Error),
}

impl Client {
    /// Connects to the recorder of the process `pid`, or to the process itself if it is a recorder.
    ///
    /// # Errors
    ///
    /// The reason for the failure.
    pub fn connect(pid: u32) -> Result<Self, NoRecorder> {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let Ok(meta) = fs::metadata(&process) else { return Err(NoRecorder::NoProcess) };
        let mut refused = None;
        for place in places(pid, meta.uid()) {
            match socket::connect(&place.path) {
                Ok(stream) => {
                    let mut client = Self { stream: BufReader::new(stream), pid };
                    if place.is_sure || matches!(client.ask(&["knows"]), Ok(Ok(_))) {
                        return Ok(client);
                    }
                }
                Err(error) if error.kind() == ErrorKind::PermissionDenied => refused = Some(error),
                Err(_) => {}
            }
        }
        Err(refused.map_or(NoRecorder::NotRecorded, NoRecorder::Refused))
    }

    /// Sends a command and returns the answer.
    ///
    /// # Errors
    ///
    /// The recorder has ended, or its reply is malformed.
    pub fn ask(&mut self, words: &[&str]) -> io::Result<Answer> {
        let words = words.iter().map(|&word| word.to_owned()).collect();
        match (Request { pid: self.pid, words }).write(self.stream.get_mut()) {
            // It has said why before it was asked.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            written => written?,
        }
        read_answer(&mut self.stream)?.ok_or_else(|| {
            io::Error::new(
                ErrorKind::UnexpectedEof,
                "the recorder closed the connection; its recording has ended, or it refuses this user",
            )
        })
    }

    /// Returns the recorder's stream from here on, after a command for a stream.
    #[must_use]
    pub fn into_stream(self) -> BufReader<UnixStream> {
        self.stream
    }
}

/// A possible place of a recorder's socket.
struct Place {
    path: PathBuf,
    /// True for the place of the process's own recorder.
    is_sure: bool,
}

/// Returns the possible places of the recorder of a process, likelier places first.
fn places(pid: u32, user: u32) -> Vec<Place> {
    let sure = |path| Place { path, is_sure: true };
    let mut places = Vec::new();
    let folders = socket::folders(user);
    // A recorder, or what it has started.
    let recorded = Environment::of(pid).into_iter().chain(children(pid).into_iter().filter_map(Environment::of));
    let recorded: Vec<Environment> = recorded.collect();
    let recorders = recorded.iter().map(|environment| environment.recorder).chain([pid]);
    for recorder in recorders {
        places.extend(folders.iter().map(|folder| sure(folder.join(socket::socket_name(recorder)))));
    }
    places.extend(recorded.iter().map(|environment| sure(environment.work.join(socket::NAME))));
    // One whose environment tells nothing.
    for folder in folders {
        let sockets = fs::read_dir(folder).into_iter().flatten().flatten();
        places.extend(sockets.map(|socket| Place { path: socket.path(), is_sure: false }));
    }
    places
}

/// Settings in the environment of a recorded process with the place of its recorder.
struct Environment {
    recorder: u32,
    work: PathBuf,
}

impl Environment {
    fn of(pid: u32) -> Option<Self> {
        let settings = Settings::of_environment(&system::read(format!("/proc/{pid}/environ")).ok()?)?;
        Some(Self { recorder: settings.recorder, work: settings.folder })
    }
}

/// The children of a process, as far as the system lists them.
fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(Path::new("/proc").join(pid.to_string()).join("task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| system::read_text(task.path().join("children")).ok());
    children.flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}
