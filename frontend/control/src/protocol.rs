//! The protocol of client and recorder. A request is a line of words with tabs between them, the process's number
//! first. An answer is a line with `ok` or `error` and a number of bytes, then that many bytes of text.

use std::io::{self, BufRead, Read, Write};

/// The maximum length of a request in bytes, and so of filter rules.
pub const MOST_LINE_BYTES: u64 = 64 << 10;
/// The maximum length of an answer in bytes: the names of all functions of a large program.
pub const MOST_ANSWER_BYTES: u64 = 256 << 20;

/// First word of a line: this protocol.
const MAGIC: &str = "rftrace-control-1";

/// A command for the recording of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The recorded process. The recorder's own number stands for all recorded processes.
    pub pid: u32,
    /// The command and its arguments.
    pub words: Vec<String>,
}

/// The answer of a recorder: the text of the result, or an error message.
pub type Answer = Result<Vec<u8>, String>;

impl Request {
    /// Writes the request's line.
    ///
    /// # Errors
    ///
    /// The errors of the connection; the line would be too long.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let words = self.words.iter().map(|word| escape(word));
        let line = [MAGIC.to_owned(), self.pid.to_string()].into_iter().chain(words).collect::<Vec<_>>().join("\t");
        if line.len() as u64 >= MOST_LINE_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the command is longer than 64 KiB; shorten it"));
        }
        to.write_all((line + "\n").as_bytes())?;
        to.flush()
    }

    /// Reads the next request; `None` at the end.
    ///
    /// # Errors
    ///
    /// The errors of the connection; the line is malformed.
    pub fn read(from: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut line = Vec::new();
        from.take(MOST_LINE_BYTES).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(None);
        }
        let bad = || {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "the request is malformed; use the same version of rftrace as the recorder",
            )
        };
        if line.pop() != Some(b'\n') {
            return Err(bad());
        }
        let line = String::from_utf8(line).map_err(|_| bad())?;
        let mut words = line.split('\t');
        if words.next() != Some(MAGIC) {
            return Err(bad());
        }
        let pid = words.next().and_then(|pid| pid.parse().ok()).ok_or_else(bad)?;
        Ok(Some(Self { pid, words: words.map(unescape).collect() }))
    }
}

/// Writes an answer.
///
/// # Errors
///
/// The errors of the connection.
pub fn write_answer(answer: &Answer, to: &mut impl Write) -> io::Result<()> {
    let (word, bytes) = match answer {
        Ok(bytes) => ("ok", bytes.as_slice()),
        Err(problem) => ("error", problem.as_bytes()),
    };
    let head = format!("{word} {}\n", bytes.len());
    to.write_all(&[head.as_bytes(), bytes].concat())?;
    to.flush()
}

/// Reads an answer; `None` if the connection was closed.
///
/// # Errors
///
/// The errors of the connection; the answer is malformed.
pub fn read_answer(from: &mut impl BufRead) -> io::Result<Option<Answer>> {
    let mut line = String::new();
    from.take(64).read_line(&mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    let bad = || {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "the recorder's answer is malformed; use the same version of rftrace as the recorder",
        )
    };
    let (word, n_bytes) = line.strip_suffix('\n').and_then(|line| line.split_once(' ')).ok_or_else(bad)?;
    let n_bytes = n_bytes.parse::<u64>().ok().filter(|&n_bytes| n_bytes <= MOST_ANSWER_BYTES).ok_or_else(bad)?;
    let mut bytes = Vec::new();
    from.take(n_bytes).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != n_bytes {
        return Ok(None);
    }
    match word {
        "ok" => Ok(Some(Ok(bytes))),
        "error" => Ok(Some(Err(String::from_utf8_lossy(&bytes).into_owned()))),
        _ => Err(bad()),
    }
}

fn escape(word: &str) -> String {
    word.replace('\\', "\\\\").replace('\t', "\\t").replace('\n', "\\n")
}

fn unescape(word: &str) -> String {
    let mut plain = String::with_capacity(word.len());
    let mut characters = word.chars();
    while let Some(c) = characters.next() {
        match (c, c == '\\') {
            (_, false) => plain.push(c),
            _ => match characters.next() {
                Some('t') => plain.push('\t'),
                Some('n') => plain.push('\n'),
                Some(other) => plain.push(other),
                None => {}
            },
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(pid: u32, words in prop::collection::vec(".{0,9}", 0..4), text in ".{0,50}", is_right: bool) {
            let request = Request { pid, words: words.iter().map(|word| word.replace('r', "\t\n\\")).collect() };
            let mut bytes = Vec::new();
            request.write(&mut bytes).unwrap();
            let mut rest = bytes.as_slice();
            prop_assert_eq!(Request::read(&mut rest).unwrap(), Some(request));
            prop_assert_eq!(Request::read(&mut rest).unwrap(), None);
            let answer = if is_right { Ok(text.clone().into_bytes()) } else { Err(text) };
            let mut bytes = Vec::new();
            write_answer(&answer, &mut bytes).unwrap();
            prop_assert_eq!(read_answer(&mut bytes.as_slice()).unwrap(), Some(answer));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = Request::read(&mut bytes.as_slice());
            let _ = read_answer(&mut bytes.as_slice());
        }
    }

    #[test]
    fn what_is_cut_or_too_long_is_refused() {
        assert!(Request::read(&mut &b"rftrace-control-1\t7\tstatus"[..]).is_err());
        assert!(Request::read(&mut &b"rftrace-control-2\t7\tstatus\n"[..]).is_err());
        assert!(Request::read(&mut vec![b'a'; 1 << 20].as_slice()).is_err());
        assert_eq!(read_answer(&mut &b"ok 5\nabc"[..]).unwrap(), None);
        assert!(read_answer(&mut &b"ok 999999999999\n"[..]).is_err());
        let long = Request { pid: 1, words: vec!["a".repeat(64 << 10)] };
        assert!(long.write(&mut Vec::new()).is_err());
    }
}
