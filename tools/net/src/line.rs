//! The output of a kernel on a serial line or the like: it is stored, and an image can be read from it at the end. A
//! stream of rftrace's protocol may come on the line too.
//!
//! Not here: the image (`rftrace-frontend`).

use std::fs::File;
use std::io::{ErrorKind, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{SetArg, cfmakeraw, tcgetattr, tcsetattr};

use rftrace_format::store;

use crate::error::{Error, Result};
use crate::receive::{BEGINNING_BYTES, Incoming, ReceiveOptions, Received};
use crate::store::Root;
use crate::stream;

/// Between two looks whether to end.
const LOOK_MILLIS: u16 = 100;
/// Bytes read at a time.
const PIECE_BYTES: usize = 64 << 10;

/// Opens a serial port, or a pipe. A port then passes all bytes unchanged; its speed stays the same.
///
/// # Errors
///
/// Those of the system.
pub fn open(path: &Path) -> Result<File> {
    #[expect(clippy::disallowed_methods, reason = "a device or a pipe is what is wanted")]
    let file = File::open(path).map_err(Error::at(path))?;
    if file.is_terminal() {
        let raw = tcgetattr(&file).and_then(|mut settings| {
            cfmakeraw(&mut settings);
            tcsetattr(&file, SetArg::TCSANOW, &settings)
        });
        raw.map_err(std::io::Error::from).map_err(Error::at(path))?;
    }
    Ok(file)
}

/// The kind of input that was received.
#[derive(Debug)]
pub enum Came {
    /// This many bytes of a kernel, or of another sender.
    Image(u64),
    /// A recording of programs.
    Programs(Box<Received>),
}

/// Receives like [`receive`]. If the input is a stream of rftrace's protocol, the recording goes below the directory of
/// the options, as if a peer had sent it.
///
/// # Errors
///
/// Those of [`receive`]; the directory cannot be made.
pub fn receive_either(
    line: &mut (impl Read + AsFd),
    path: &Path,
    options: &ReceiveOptions,
    is_over: &AtomicBool,
) -> Result<Came> {
    enum To<'a> {
        Unknown(Vec<u8>),
        Image(Image<'a>),
        Programs(Box<Incoming<'a>>),
    }

    let root = Root::open(&options.dir)?;
    let mut to = To::Unknown(Vec::new());
    let begin = |first: &[u8]| {
        if first.starts_with(&stream::MAGIC[..BEGINNING_BYTES]) {
            Ok(To::Programs(Box::new(Incoming::new(&root, options, None))))
        } else {
            Image::create(path, options.max_bytes).map(To::Image)
        }
    };
    let copied = copy(line, is_over, |piece| {
        let first;
        let piece = match &mut to {
            To::Unknown(before) => {
                before.extend_from_slice(piece);
                if before.len() < BEGINNING_BYTES {
                    return Ok(false);
                }
                first = std::mem::take(before);
                to = begin(&first)?;
                &first
            }
            _ => piece,
        };
        match &mut to {
            To::Unknown(_) => Ok(false),
            To::Image(image) => image.take(piece),
            To::Programs(incoming) => incoming.take(piece),
        }
    });
    match to {
        To::Programs(incoming) => {
            let ended = copied.and_then(|is_complete| if is_complete { Ok(()) } else { Err(Error::Closed) });
            let mut received = incoming.finish("the line".to_owned(), ended.is_ok());
            received.ended = ended;
            Ok(Came::Programs(Box::new(received)))
        }
        To::Image(image) => copied.map(|_| Came::Image(image.n_bytes)),
        // Less than tells what it is.
        To::Unknown(first) => {
            let mut image = Image::create(path, options.max_bytes)?;
            image.take(&first)?;
            copied.map(|_| Came::Image(image.n_bytes))
        }
    }
}

/// Copies the input to a file at `path`, until the line ends, `is_over` is true, or `max_bytes` bytes were received.
/// Returns the number of bytes.
///
/// # Errors
///
/// The file cannot be written, or the limit is exceeded. The file keeps the received bytes.
pub fn receive(line: &mut (impl Read + AsFd), path: &Path, max_bytes: u64, is_over: &AtomicBool) -> Result<u64> {
    let mut image = Image::create(path, max_bytes)?;
    copy(line, is_over, |piece| image.take(piece))?;
    Ok(image.n_bytes)
}

/// A file of what a kernel sends.
struct Image<'a> {
    path: &'a Path,
    file: File,
    n_bytes: u64,
    max_bytes: u64,
}

impl<'a> Image<'a> {
    fn create(path: &'a Path, max_bytes: u64) -> Result<Self> {
        Ok(Self { path, file: store::create_new(path).map_err(Error::at(path))?, n_bytes: 0, max_bytes })
    }

    fn take(&mut self, piece: &[u8]) -> Result<bool> {
        self.n_bytes += piece.len() as u64;
        if self.n_bytes > self.max_bytes {
            return Err(Error::TooLarge(self.max_bytes));
        }
        self.file.write_all(piece).map_err(Error::at(self.path)).map(|()| false)
    }
}

/// Hands on what comes until the line ends, `is_over` is true, or it is taken for the end, which is what is returned.
fn copy(
    line: &mut (impl Read + AsFd),
    is_over: &AtomicBool,
    mut take: impl FnMut(&[u8]) -> Result<bool>,
) -> Result<bool> {
    let mut piece = vec![0; PIECE_BYTES];
    while !is_over.load(Relaxed) {
        let mut watched = [PollFd::new(line.as_fd(), PollFlags::POLLIN)];
        match poll(&mut watched, PollTimeout::from(LOOK_MILLIS)) {
            Ok(0) | Err(Errno::EINTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(Error::Wait(error.into())),
        }
        let n_read = match line.read(&mut piece) {
            Ok(0) => break,
            Ok(n_read) => n_read,
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => continue,
            // A terminal whose other end is closed.
            Err(error) if error.raw_os_error() == Some(nix::libc::EIO) => break,
            Err(error) => return Err(Error::Broken(error)),
        };
        if take(piece.get(..n_read).unwrap_or_default())? {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixStream;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_first_bytes_tell_what_comes() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        let mut options = ReceiveOptions::new(folder.path());
        options.max_bytes = 200;
        let receive = |bytes: &[u8]| {
            let (mut line, mut peer) = UnixStream::pair().unwrap();
            // In pieces of which the first does not tell it.
            let (first, rest) = bytes.split_at(bytes.len().min(3));
            peer.write_all(first).unwrap();
            thread::scope(|scope| {
                scope.spawn(move || {
                    thread::sleep(Duration::from_millis(20));
                    peer.write_all(rest).unwrap();
                });
                receive_either(&mut line, &image, &options, &AtomicBool::new(false))
            })
        };
        for kernel in [&b""[..], b"\x93R", b"\x93RFT\r\n\x1a\n and more", &[7; 200]] {
            assert!(matches!(receive(kernel), Ok(Came::Image(n_bytes)) if n_bytes == kernel.len() as u64));
            assert_eq!(fs::read(&image).unwrap(), kernel);
            fs::remove_file(&image).unwrap();
        }
        assert!(matches!(receive(&[7; 201]), Err(Error::TooLarge(200))));
        fs::remove_file(&image).unwrap();
        let (follows, name) = (stream::Follows::Sections, b"name".to_vec());
        let hello = stream::hello(&stream::Hello { follows, versions: 1, token: None, name });
        for (rest, is_complete) in [(stream::end(0, 0, 0), true), (stream::beat(), false), (vec![9; 8], false)] {
            let Ok(Came::Programs(received)) = receive(&[hello.clone(), rest].concat()) else { panic!("an image") };
            assert_eq!((received.ended.is_ok(), received.processes), (is_complete, Some(0)));
            assert!(received.dir.unwrap().starts_with(folder.path()) && !image.exists());
        }
    }

    #[test]
    fn what_comes_is_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let bytes: Vec<u8> = (0..300_000_u32).map(|at| at as u8).collect();
        let (mut line, mut kernel) = UnixStream::pair().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                kernel.write_all(&bytes).unwrap();
                kernel.shutdown(std::net::Shutdown::Write).unwrap();
            });
            assert_eq!(receive(&mut line, &path("a"), 1 << 20, &AtomicBool::new(false)).unwrap(), 300_000);
        });
        assert!(fs::read(path("a")).unwrap() == bytes);
        // An existing file is not written to.
        assert!(receive(&mut line, &path("a"), 1 << 20, &AtomicBool::new(false)).is_err());

        let (mut line, mut kernel) = UnixStream::pair().unwrap();
        kernel.write_all(&[7; 100]).unwrap();
        assert!(matches!(receive(&mut line, &path("b"), 99, &AtomicBool::new(false)), Err(Error::TooLarge(99))));

        // It is told to end, though the line goes on.
        let (mut line, mut kernel) = UnixStream::pair().unwrap();
        kernel.write_all(b"x").unwrap();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !path("c").exists() || fs::read(path("c")).unwrap().is_empty() {
                    thread::sleep(Duration::from_millis(1));
                }
                is_over.store(true, Relaxed);
            });
            assert_eq!(receive(&mut line, &path("c"), 99, &is_over).unwrap(), 1);
        });
    }
}
