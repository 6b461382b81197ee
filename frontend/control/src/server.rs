//! The server: a thread for each client. One client at a time changes settings, any number reads. With too many
//! clients, the longest silent one is disconnected.

use std::fmt;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::commands;
use crate::listed::Listed;
pub use crate::listed::close_in_child;
use crate::protocol::{Request, write_answer};
use crate::recording::Recording;
pub use crate::socket::Place;
use crate::socket::{self, Listener, Peer, SocketFile};

/// Clients at a time.
const MOST_CLIENTS: usize = 64;

/// The maximum time for a client to read an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The maximum time for a command to arrive, from its first byte on.
const COMMAND_TIME: Duration = if cfg!(test) { Duration::from_millis(500) } else { Duration::from_secs(10) };

/// A server for clients. Dropping it ends the service.
pub struct Server {
    shared: Arc<Shared>,
    file: SocketFile,
    is_over: Arc<AtomicBool>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("file", &self.file).finish_non_exhaustive()
    }
}

/// The state shared by the threads of clients.
struct Shared {
    recording: Arc<dyn Recording>,
    /// Held by a client during a change.
    changing: Mutex<()>,
    clients: Mutex<Clients>,
    /// A client has gone.
    gone: Condvar,
    /// The number of clients being served.
    n_busy: AtomicUsize,
}

/// The connected clients.
#[derive(Default)]
struct Clients {
    all: Vec<Connected>,
    next_id: u64,
}

struct Connected {
    id: u64,
    peer: Arc<Listed<Peer>>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// It has said nothing since then.
    Silent(Instant),
    Answered,
    GivesWay,
}

impl Shared {
    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for one more, if there is none and a client is silent. Returns whether there is.
    fn make_room(&self) -> bool {
        /// The maximum time for its departure.
        const PATIENCE: Duration = Duration::from_secs(1);

        let mut clients = self.clients();
        if clients.all.len() < MOST_CLIENTS {
            return true;
        }
        let silent = clients.all.iter_mut().filter_map(|client| match client.state {
            State::Silent(since) => Some((since, client)),
            State::Answered | State::GivesWay => None,
        });
        let Some((_, longest)) = silent.min_by_key(|(since, _)| *since) else { return false };
        longest.state = State::GivesWay;
        let _ = longest.peer.stream().shutdown(Shutdown::Both);
        let is_full = |clients: &mut Clients| clients.all.len() >= MOST_CLIENTS;
        let (mut clients, _) =
            self.gone.wait_timeout_while(clients, PATIENCE, is_full).unwrap_or_else(PoisonError::into_inner);
        !is_full(&mut clients)
    }

    fn add(&self, peer: &Arc<Listed<Peer>>) -> u64 {
        let mut clients = self.clients();
        let id = clients.next_id;
        clients.next_id += 1;
        clients.all.push(Connected { id, peer: Arc::clone(peer), state: State::Silent(Instant::now()) });
        id
    }

    fn remove(&self, id: u64) {
        let mut clients = self.clients();
        let at = clients.all.iter().position(|client| client.id == id);
        let client = at.map(|at| clients.all.swap_remove(at));
        drop(clients);
        // Its socket may wait for a fork.
        drop(client);
        self.gone.notify_all();
    }

    /// Sets the state of a client. Returns false if it may not go on, because it has given way.
    fn set(&self, id: u64, state: State) -> bool {
        let mut clients = self.clients();
        let client = clients.all.iter_mut().find(|client| client.id == id && client.state != State::GivesWay);
        client.map(|client| client.state = state).is_some()
    }
}

impl Server {
    /// Starts to listen.
    ///
    /// # Errors
    ///
    /// The errors of the system.
    pub fn begin(at: Place<'_>, recording: Arc<dyn Recording>) -> io::Result<Self> {
        Self::listen(recording, || Listener::new(at))
    }

    fn listen(recording: Arc<dyn Recording>, listen: impl FnOnce() -> io::Result<Listener>) -> io::Result<Self> {
        let listener = Listed::open(&recording, listen)?;
        let file = listener.file();
        let is_over = Arc::<AtomicBool>::default();
        let told = Arc::clone(&is_over);
        let shared = Arc::new(Shared {
            recording,
            changing: Mutex::default(),
            clients: Mutex::default(),
            gone: Condvar::new(),
            n_busy: AtomicUsize::default(),
        });
        let own = Arc::clone(&shared);
        own.recording.spawn("control", Box::new(move || serve(&listener, &shared, &told)))?;
        Ok(Self { file, is_over, shared: own })
    }

    /// Returns the path of the server's socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Ends the server with the recording. It waits a little until all clients have their answers and the last calls of
    /// their streams.
    pub fn finish(self) {
        const PATIENCE: Duration = Duration::from_secs(2);
        const PAUSE: Duration = Duration::from_millis(2);

        let since = Instant::now();
        while self.shared.n_busy.load(Relaxed) > 0 && since.elapsed() < PATIENCE {
            thread::sleep(PAUSE);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        // The thread that listens waits for a client. It is not waited for: it may wait for a fork, which may wait for who is here.
        let _ = socket::connect(self.path());
    }
}

fn serve(listener: &Listener, shared: &Arc<Shared>, is_over: &AtomicBool) {
    /// After an error, such as too many open files.
    const PAUSE: Duration = Duration::from_millis(50);

    loop {
        let waited = listener.wait();
        if is_over.load(Relaxed) {
            return;
        }
        let peer = waited.and_then(|()| Listed::open(&shared.recording, || listener.accept()));
        let Ok(peer) = peer.map(Arc::new) else {
            thread::sleep(PAUSE);
            continue;
        };
        let problem = match &**peer {
            Peer::Permitted(_) if shared.make_room() => {
                let id = shared.add(&peer);
                let own = Arc::clone(shared);
                let attend = move || {
                    attend(&peer, id, &own);
                    drop(peer);
                    own.remove(id);
                };
                if shared.recording.spawn("client", Box::new(attend)).is_err() {
                    shared.remove(id);
                }
                continue;
            }
            Peer::Permitted(_) => format!("the recorder serves {MOST_CLIENTS} clients already; try again later"),
            Peer::Refused(_, user) => format!("the recorder refuses user {user}; use its own user, or root"),
        };
        let mut stream = peer.stream();
        let _ = stream.set_write_timeout(Some(PATIENCE));
        let _ = write_answer(&Err(problem), &mut stream);
    }
}

/// Answers one client, until it has no more to say.
fn attend(peer: &Peer, id: u64, shared: &Shared) {
    let stream = peer.stream();
    let _ = stream.set_write_timeout(Some(PATIENCE));
    let mut lines = BufReader::new(Timed { stream, until: None });
    let mut to = stream;
    loop {
        let request = match next_request(&mut lines) {
            Ok(Some(request)) => request,
            Ok(None) => break,
            Err(error) => {
                let _ = write_answer(&Err(error.to_string()), &mut to);
                break;
            }
        };
        if !shared.set(id, State::Answered) {
            break;
        }
        shared.n_busy.fetch_add(1, Relaxed);
        let goes_on = match commands::pipe(shared.recording.as_ref(), request.pid, &request.words) {
            Some(Ok(pipe)) => {
                let _ = write_pipe(pipe, to);
                false
            }
            Some(Err(problem)) => write_answer(&Err(problem), &mut to).is_ok(),
            None => write_answer(&answer(&request, shared), &mut to).is_ok(),
        };
        shared.n_busy.fetch_sub(1, Relaxed);
        if !goes_on || !shared.set(id, State::Silent(Instant::now())) {
            break;
        }
    }
}

/// Input of a client, until a time if there is one.
struct Timed<'s> {
    stream: &'s UnixStream,
    until: Option<Instant>,
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let late =
            || io::Error::new(ErrorKind::TimedOut, format!("the command did not arrive within {COMMAND_TIME:?}"));
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(late());
        }
        self.stream.set_read_timeout(left)?;
        self.stream.read(bytes).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => late(),
            _ => error,
        })
    }
}

/// Waits for a client as long as it is silent, and then for the whole line.
fn next_request(lines: &mut BufReader<Timed<'_>>) -> io::Result<Option<Request>> {
    lines.get_mut().until = None;
    while let Err(error) = lines.fill_buf().map(drop) {
        if error.kind() != ErrorKind::Interrupted {
            return Err(error);
        }
    }
    lines.get_mut().until = Some(Instant::now() + COMMAND_TIME);
    Request::read(lines)
}

/// Writes text until there is no more, or nobody reads it. It waits for a slow reader: nobody else waits for him.
fn write_pipe(pipe: impl Iterator<Item = Vec<u8>>, mut to: &UnixStream) -> io::Result<()> {
    write_answer(&Ok(Vec::new()), &mut to)?;
    to.set_write_timeout(None)?;
    for text in pipe {
        to.write_all(&text)?;
    }
    Ok(())
}

fn answer(request: &Request, shared: &Shared) -> Result<Vec<u8>, String> {
    let recording = shared.recording.as_ref();
    let _changing = commands::is_change(&request.words).then(|| shared.changing.lock());
    commands::answer(recording, request.pid, &request.words).map(String::into_bytes)
}

#[cfg(test)]
mod tests;
