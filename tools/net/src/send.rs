//! A client that sends a trace directory.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rftrace_format::files::{File as TraceFile, INFO, MAGIC};
use rftrace_format::recording::FOLDER;

use crate::address::{Protocol, To};
use crate::error::{Error, Result};
use crate::outgoing::{Outgoing, broken, read_answer, text_of};
use crate::protocol::{self, MAX_INFO_BYTES, Malformed, Part};
use crate::socket::Stream;
use crate::stream::{Follows, Hello};
use crate::token::Token;

/// Records that go into one message.
const PIECE_BYTES: usize = 128 << 10;
/// The longest name that every receiver takes.
const MAX_NAME_CHARS: usize = 64;

/// The numbers of files and bytes sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sent {
    /// The number of files.
    pub files: usize,
    /// The number of their bytes.
    pub bytes: u64,
}

/// Sends the trace in a directory, and waits until the receiver has taken all of it. No step may take longer than
/// `timeout`.
///
/// With rftrace's protocol the client shows `token`, if there is one. uftrace's protocol has no tokens.
///
/// # Errors
///
/// The directory is no complete trace, cannot be read or changes meanwhile; the receiver cannot be reached, is too
/// slow, or refuses the trace.
pub fn send(dir: &Path, to: &To, token: Option<&Token>, timeout: Duration) -> Result<Sent> {
    let trace = Directory::read(dir)?;
    let mut sent = Sent { files: 0, bytes: 0 };
    if to.protocol == Protocol::Own {
        let hello = Hello {
            follows: Follows::Messages,
            versions: 0,
            token: token.cloned(),
            name: trace.name.clone().into_bytes(),
        };
        let mut outgoing = Outgoing::connect(&to.address, &hello, timeout)?;
        trace.send(&mut |bytes: &[u8]| outgoing.send(bytes), &mut sent)?;
        return outgoing.finish().map(|_| sent);
    }
    let mut stream = Stream::connect(&to.address, timeout)?;
    let sending = trace.send(&mut |bytes: &[u8]| write(&mut stream, bytes, timeout), &mut sent);
    let sending = sending.and_then(|()| wait_for_close(&mut stream, timeout));
    if sending.is_err() {
        // It is not to be taken for a trace that ended.
        stream.abort();
    }
    sending.map(|()| sent)
}

/// A trace's files, in the order in which they are sent.
struct Directory {
    name: String,
    path: PathBuf,
    records: Vec<(Part, PathBuf)>,
    others: Vec<(Part, PathBuf)>,
    info: Vec<u8>,
}

impl Directory {
    fn read(dir: &Path) -> Result<Self> {
        let no_trace = |reason| Error::NoTrace { dir: dir.to_owned(), reason };
        let info_path = dir.join(INFO);
        let info = match rftrace_read::files::read(&info_path, u64::from(MAX_INFO_BYTES)) {
            Err(rftrace_read::Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                if dir.join(FOLDER).is_dir() {
                    return Err(no_trace(
                        "the recording is not finished; wait for its end, or run `rftrace recover` if it was interrupted",
                    ));
                }
                return Err(no_trace("it has no file `info`; is this a trace directory?"));
            }
            Err(rftrace_read::Error::Io { path, source }) => return Err(Error::Io { path, source }),
            Err(_) => {
                let source = Malformed::Length(0, MAX_INFO_BYTES + 1);
                return Err(Error::Unsendable { path: info_path, source });
            }
            Ok(info) => info,
        };
        if !info.starts_with(MAGIC) {
            return Err(no_trace("its file `info` is not that of a trace"));
        }
        let (mut records, mut others) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(dir).map_err(Error::at(dir))? {
            let path = entry.map_err(Error::at(dir))?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let part = match TraceFile::of(name) {
                None | Some(TraceFile::Info | TraceFile::Index) => continue,
                Some(TraceFile::Records(tid)) => Part::Task(tid),
                Some(TraceFile::Perf(processor)) => Part::Perf(processor),
                Some(TraceFile::Kernel(processor)) => Part::Kernel(processor),
                Some(_) => {
                    others.push((Part::File(name.as_bytes().to_vec()), path));
                    continue;
                }
            };
            records.push((part, path));
        }
        // Each time in the same order.
        records.sort_by(|a, b| a.1.cmp(&b.1));
        others.sort_by(|a, b| a.1.cmp(&b.1));
        Ok(Self { name: name_of(dir), path: info_path, records, others, info })
    }

    fn send(&self, write: &mut dyn FnMut(&[u8]) -> Result<()>, sent: &mut Sent) -> Result<()> {
        write(&protocol::dir_name(&self.name))?;
        let mut piece = vec![0; PIECE_BYTES];
        let unsendable = |path: &Path, source| Error::Unsendable { path: path.to_owned(), source };
        for (part, path) in &self.records {
            let mut file = open(path)?;
            let mut is_first = true;
            loop {
                let n_read = read_full(&mut file, &mut piece).map_err(Error::at(path))?;
                // An empty file is one too.
                if n_read == 0 && !is_first {
                    break;
                }
                is_first = false;
                write(&protocol::begin(part, n_read as u64).map_err(|source| unsendable(path, source))?)?;
                write(piece.get(..n_read).unwrap_or_default())?;
                sent.bytes += n_read as u64;
            }
            sent.files += 1;
        }
        for (part, path) in &self.others {
            let file = open(path)?;
            let bytes = file.metadata().map_err(Error::at(path))?.len();
            write(&protocol::begin(part, bytes).map_err(|source| unsendable(path, source))?)?;
            let mut left = bytes;
            let mut file = file.take(bytes);
            while left > 0 {
                let n_read = read_full(&mut file, &mut piece).map_err(Error::at(path))?;
                if n_read == 0 {
                    return Err(Error::Changed(path.clone()));
                }
                write(piece.get(..n_read).unwrap_or_default())?;
                left -= n_read as u64;
            }
            sent.bytes += bytes;
            sent.files += 1;
        }
        write(&protocol::info(&self.info).map_err(|source| unsendable(&self.path, source))?)?;
        sent.bytes += self.info.len() as u64;
        sent.files += 1;
        write(&protocol::end())
    }
}

/// Returns the name of a directory without characters that some receivers refuse.
#[must_use]
pub fn name_of(dir: &Path) -> String {
    let whole = fs::canonicalize(dir);
    let path = whole.as_deref().unwrap_or(dir);
    let name = path.file_name().unwrap_or("trace".as_ref()).to_string_lossy();
    let safe = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let name: String = name.chars().take(MAX_NAME_CHARS).map(safe).collect();
    match name.strip_prefix('.') {
        Some(rest) => format!("_{rest}"),
        None => name,
    }
}

fn open(path: &Path) -> Result<fs::File> {
    rftrace_read::files::open(path).map_err(|error| match error {
        rftrace_read::Error::Io { path, source } => Error::Io { path, source },
        error => Error::Io { path: path.to_owned(), source: io::Error::other(error) },
    })
}

/// Reads until there is no room, or no more.
fn read_full(file: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut n_read = 0;
    while let Some(rest) = bytes.get_mut(n_read..).filter(|rest| !rest.is_empty()) {
        match file.read(rest) {
            Ok(0) => break,
            Ok(more) => n_read += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(n_read)
}

fn write(stream: &mut Stream, bytes: &[u8], timeout: Duration) -> Result<()> {
    stream.write_all(bytes).map_err(|error| match broken(error, timeout) {
        // It may have said why before it went.
        Error::Closed => refusal(&read_answer(stream).0).unwrap_or(Error::Closed),
        error => error,
    })
}

/// Returns the reason of a receiver that answers: `uftrace recv` never does, and `rftrace recv` only to refuse.
fn refusal(answer: &[u8]) -> Option<Error> {
    if answer.is_empty() {
        return None;
    }
    let text = text_of(answer);
    Some(Error::Refused(match text.strip_prefix("no ") {
        Some(reason) => reason.to_owned(),
        None => "its answer is not that of `uftrace recv`; is another server listening there?".to_owned(),
    }))
}

/// Waits until the receiver closes the connection, as it does behind the end. uftrace's protocol has no other sign that it has all. One
/// that has not read what has arrived resets the connection; what arrives at one that has closed already is never acknowledged.
fn wait_for_close(stream: &mut Stream, timeout: Duration) -> Result<()> {
    const INTERVAL: Duration = Duration::from_millis(5);

    let (answer, end) = read_answer(stream);
    if let Some(refusal) = refusal(&answer) {
        return Err(refusal);
    }
    end.unwrap_or(Ok(())).map_err(|error| broken(error, timeout))?;
    let since = Instant::now();
    while !stream.is_all_acknowledged().map_err(|error| broken(error, timeout))? {
        if since.elapsed() > timeout {
            return Err(Error::Closed);
        }
        thread::sleep(INTERVAL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (path, name) in [("/nowhere/a-b", "a-b"), ("/nowhere/.x y", "_x_y"), ("/", "trace"), ("/nowhere/ä", "_")] {
            assert_eq!(name_of(Path::new(path)), name);
        }
        assert_eq!(name_of(&Path::new("/nowhere").join("x".repeat(100))), "x".repeat(64));
    }
}
