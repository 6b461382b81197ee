//! What a kernel sends by a serial line or the like, from which an image can be read when it is over.
//!
//! Not here: what an image is (`rftrace-frontend`).

use std::fs::File;
use std::io::{ErrorKind, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{SetArg, cfmakeraw, tcgetattr, tcsetattr};

use crate::error::{Error, Result};

/// Between two looks whether to end.
const LOOK_MILLIS: u16 = 100;
/// What is read at a time.
const PIECE_BYTES: usize = 64 << 10;

/// Opens a serial port, or a pipe. A port passes all bytes as they are from now on; its speed stays what it is.
///
/// # Errors
///
/// Those of the system.
pub fn open(path: &Path) -> Result<File> {
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

/// Copies what comes to a file at `path`, until the line ends, `is_over` is true, or so many bytes have come. Returns how many that were.
///
/// # Errors
///
/// The file cannot be written, or there are too many: what has come is there.
pub fn receive(line: &mut (impl Read + AsFd), path: &Path, max_bytes: u64, is_over: &AtomicBool) -> Result<u64> {
    let mut file = File::create_new(path).map_err(Error::at(path))?;
    let mut piece = vec![0; PIECE_BYTES];
    let mut n_received = 0;
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
        n_received += n_read as u64;
        if n_received > max_bytes {
            return Err(Error::TooLarge(max_bytes));
        }
        file.write_all(piece.get(..n_read).unwrap_or_default()).map_err(Error::at(path))?;
    }
    Ok(n_received)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixStream;
    use std::thread;
    use std::time::Duration;

    use super::*;

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
        // What is there is not written to.
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
