//! The recorder's socket: `$XDG_RUNTIME_DIR/rftrace/PID.sock`, with the recorder's own number.
//!
//! Without that folder the socket is `ctl` in the recording's folder, named in the environment of recorded processes.
//! For processes without such an environment it is in `/tmp/rftrace-USER`. Only the recorder's user and root may
//! connect.

use std::env;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;

/// The name of the socket in the recording's folder.
pub const NAME: &str = "ctl";

/// The place of a socket if the user has no folder for sockets.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// The recording's folder.
    Of(&'a Path),
    /// A folder in `/tmp` for the user.
    OfUser,
}

/// A socket for clients.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
}

/// The file of a socket. Dropping it removes the file, so no further client can connect.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

impl Listener {
    /// Creates the socket in the user's folder for sockets or, without such a folder, at `place`.
    ///
    /// # Errors
    ///
    /// The errors of the system.
    pub fn new(place: Place<'_>) -> io::Result<Self> {
        let in_folder = |folder: PathBuf| {
            let folder = own_folder(folder)?;
            remove_old(&folder);
            Self::at(folder.join(socket_name(std::process::id())))
        };
        let in_runtime_folder = runtime_folder().and_then(|parent| in_folder(parent.join(FOLDER)));
        in_runtime_folder.or_else(|_| match place {
            Place::Of(work) => Self::at(work.join(NAME)),
            Place::OfUser => in_folder(common_folder(geteuid().as_raw())),
        })
    }

    pub(crate) fn at(path: PathBuf) -> io::Result<Self> {
        // One that had this process's number before.
        let _ = fs::remove_file(&path);
        let socket = in_folder_of(&path, |path| UnixListener::bind(path))?;
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        // A client may have gone when it is asked who has come.
        socket.set_nonblocking(true)?;
        Ok(Self { socket, path })
    }

    /// Waits until a client connects.
    ///
    /// # Errors
    ///
    /// The errors of the system.
    pub fn wait(&self) -> io::Result<()> {
        let mut waited = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        poll(&mut waited, PollTimeout::NONE).map(drop).map_err(io::Error::from)
    }

    /// Accepts a client.
    ///
    /// # Errors
    ///
    /// The errors of the system; no client has connected.
    pub fn accept(&self) -> io::Result<Peer> {
        let (stream, _) = self.socket.accept()?;
        let user = user_of(&stream)?;
        Ok(if may_talk(user, geteuid().as_raw()) { Peer::Permitted(stream) } else { Peer::Refused(stream, user) })
    }

    /// Returns the socket's file.
    #[must_use]
    pub fn file(&self) -> SocketFile {
        SocketFile(self.path.clone())
    }
}

impl SocketFile {
    /// Returns the socket's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A connected client.
#[derive(Debug)]
pub enum Peer {
    /// A user with the right to send commands.
    Permitted(UnixStream),
    /// Another user, with the user's id.
    Refused(UnixStream, u32),
}

impl Peer {
    /// Returns the connection.
    #[must_use]
    pub fn stream(&self) -> &UnixStream {
        match self {
            Self::Permitted(stream) | Self::Refused(stream, _) => stream,
        }
    }
}

impl AsRawFd for Peer {
    fn as_raw_fd(&self) -> RawFd {
        self.stream().as_raw_fd()
    }
}

/// Connects to a socket.
///
/// # Errors
///
/// No recorder listens there, or the listener belongs to another user.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    let stream = in_folder_of(path, |path| UnixStream::connect(path))?;
    let (user, own) = (user_of(&stream)?, geteuid().as_raw());
    // Root asks whom it likes; nobody else tells another one what he does.
    if own != 0 && !may_talk(user, own) {
        let problem = format!("user {user} owns the socket {}; use that user, or root", path.display());
        return Err(io::Error::new(ErrorKind::PermissionDenied, problem));
    }
    Ok(stream)
}

/// Returns true if a user may control a process of the user `own`.
fn may_talk(user: u32, own: u32) -> bool {
    user == own || user == 0
}

fn user_of(stream: &UnixStream) -> io::Result<u32> {
    Ok(getsockopt(stream, PeerCredentials)?.uid())
}

/// The name of a recorder's socket.
pub(crate) fn socket_name(recorder: u32) -> String {
    format!("{recorder}.sock")
}

/// Returns the possible folders for a user's sockets.
pub(crate) fn folders(user: u32) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = runtime_folder().into_iter().collect();
    folders.push(PathBuf::from(format!("/run/user/{user}")));
    folders.dedup();
    let mut folders: Vec<PathBuf> = folders.into_iter().map(|folder| folder.join(FOLDER)).collect();
    folders.push(common_folder(user));
    // Root attaches to processes of others.
    folders.push(common_folder(geteuid().as_raw()));
    folders.dedup();
    folders
}

/// Returns the folder for a user's sockets on a system without one of its own for him.
fn common_folder(user: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/{FOLDER}-{user}"))
}

/// The folder of sockets in a user's folder.
const FOLDER: &str = "rftrace";

fn runtime_folder() -> io::Result<PathBuf> {
    let folder = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_absolute());
    folder.ok_or_else(|| ErrorKind::NotFound.into())
}

/// Creates a folder for sockets without access for others.
fn own_folder(folder: PathBuf) -> io::Result<PathBuf> {
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // A link leads elsewhere.
    let meta = fs::symlink_metadata(&folder)?;
    if !meta.is_dir() || meta.uid() != geteuid().as_raw() || meta.mode() & 0o077 != 0 {
        return Err(ErrorKind::PermissionDenied.into());
    }
    Ok(folder)
}

/// Removes sockets of killed recorders.
fn remove_old(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let recorder = name.to_str().and_then(|name| name.strip_suffix(".sock")?.parse::<u32>().ok());
        if recorder.is_some_and(|recorder| !Path::new(&format!("/proc/{recorder}")).exists()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Calls `work` with a path to a socket that is short enough for the system.
fn in_folder_of<T>(path: &Path, work: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    /// A socket's address has room for one more.
    const MOST_BYTES: usize = 107;

    if path.as_os_str().len() <= MOST_BYTES {
        return work(path);
    }
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return work(path) };
    #[allow(clippy::disallowed_methods, reason = "a folder")]
    let folder = OwnedFd::from(File::open(folder)?);
    work(&PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_user_and_root_may_talk() {
        assert!(may_talk(1000, 1000) && may_talk(0, 1000) && may_talk(0, 0));
        assert!(!may_talk(1000, 0) && !may_talk(1001, 1000));
    }

    #[test]
    fn a_socket_lies_where_paths_are_long() {
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("a".repeat(120));
        fs::create_dir(&long).unwrap();
        let listener = Listener::at(long.join(NAME)).unwrap();
        let file = listener.file();
        assert_eq!(fs::symlink_metadata(file.path()).unwrap().mode() & 0o777, 0o600);
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        connect(file.path()).unwrap();
        listener.wait().unwrap();
        assert!(matches!(listener.accept().unwrap(), Peer::Permitted(_)));
        drop(file);
        assert!(connect(&long.join(NAME)).is_err() && fs::read_dir(&long).unwrap().next().is_none());
    }

    #[test]
    fn a_folder_that_others_may_look_into_is_not_used() {
        let parent = tempfile::tempdir().unwrap();
        let folder = own_folder(parent.path().join(FOLDER)).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        assert_eq!(own_folder(folder.clone()).unwrap(), folder);
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        assert!(own_folder(folder.clone()).is_err());
        fs::remove_dir(&folder).unwrap();
        std::os::unix::fs::symlink("/", &folder).unwrap();
        assert!(own_folder(folder.clone()).is_err());
    }
}
