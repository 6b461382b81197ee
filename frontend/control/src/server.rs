//! Who answers: a thread for each client. One client at a time changes something, any number reads.

use std::fmt;
use std::io::{self, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
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

/// How long a client may take to read an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Answers clients as long as it lives.
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

/// What the threads of clients share.
struct Shared {
    recording: Arc<dyn Recording>,
    /// Held by who changes something.
    changing: Mutex<()>,
    n_clients: AtomicUsize,
    /// Those that are being answered.
    n_busy: AtomicUsize,
}

impl Server {
    /// Listens at a place.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub fn begin(at: Place<'_>, recording: Arc<dyn Recording>) -> io::Result<Self> {
        let listener = Listed::open(&recording, || Listener::new(at))?;
        let file = listener.file();
        let is_over = Arc::<AtomicBool>::default();
        let told = Arc::clone(&is_over);
        let shared = Arc::new(Shared {
            recording,
            changing: Mutex::default(),
            n_clients: AtomicUsize::default(),
            n_busy: AtomicUsize::default(),
        });
        let own = Arc::clone(&shared);
        own.recording.spawn("control", Box::new(move || serve(&listener, &shared, &told)))?;
        Ok(Self { file, is_over, shared: own })
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The recording is over: waits a little until all have their answers, and who is shown its calls has read the last of them.
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
        let Ok(peer) = peer else {
            thread::sleep(PAUSE);
            continue;
        };
        let problem = match &*peer {
            Peer::Permitted(_) if shared.n_clients.load(Relaxed) < MOST_CLIENTS => {
                shared.n_clients.fetch_add(1, Relaxed);
                let own = Arc::clone(shared);
                if shared.recording.spawn("client", Box::new(move || attend(&peer, &own))).is_err() {
                    shared.n_clients.fetch_sub(1, Relaxed);
                }
                continue;
            }
            Peer::Permitted(_) => "too many clients talk to the recorder".to_owned(),
            Peer::Refused(_, user) => format!("the recorder talks to its own user and to root, not to user {user}"),
        };
        let mut stream = peer.stream();
        let _ = stream.set_write_timeout(Some(PATIENCE));
        let _ = write_answer(&Err(problem), &mut stream);
    }
}

/// Answers one client, until it has no more to say.
fn attend(peer: &Peer, shared: &Shared) {
    let stream = peer.stream();
    let _ = stream.set_write_timeout(Some(PATIENCE));
    let mut lines = BufReader::new(stream);
    let mut to = stream;
    loop {
        let request = match Request::read(&mut lines) {
            Ok(Some(request)) => request,
            Ok(None) => break,
            Err(error) => {
                let _ = write_answer(&Err(error.to_string()), &mut to);
                break;
            }
        };
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
        if !goes_on {
            break;
        }
    }
    shared.n_clients.fetch_sub(1, Relaxed);
}

/// Writes text until there is no more, or nobody reads it. Who reads slowly is waited for: nobody else waits for him.
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
