//! The sender of a recording while the program runs: a thread reads the spools and sends their content. A slow or lost
//! receiver delays no program: unsent records lie on the disk.
//!
//! Not here: the protocol (`rftrace_net::stream`), the sections made of spools (`spools`), the recording (`banks`), and
//! the choice of further files (`companions`).

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rftrace_format::companion::Companion;
use rftrace_format::opener;
use rftrace_frontend::bank::SPOOL_VERSIONS;
use rftrace_net::outgoing::Outgoing;
use rftrace_net::stream::{self, Follows, Hello};
use rftrace_net::{Address, Token};

use super::banks::NO_THREAD;
use super::companions;
use super::spools::Spools;
use super::terminal::say;

/// Between two looks at spools.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);
/// The receiver hears something so often.
pub(crate) const BEAT: Duration = Duration::from_secs(5);

/// The receiver of a recording.
#[derive(Clone, Debug)]
pub struct Receiver {
    /// The address at which it listens.
    pub address: Address,
    /// The token that it requires.
    pub token: Option<Token>,
    /// The name for the trace.
    pub name: String,
    /// The maximum time for each step.
    pub timeout: Duration,
}

/// The result of sending.
#[derive(Clone, Debug)]
pub struct Sent {
    /// The receiver's name of the trace.
    pub name: String,
    /// The number of bytes sent.
    pub bytes: u64,
}

/// A sender of the spools in a folder, and then of the trace's further files.
#[derive(Debug)]
pub struct Sender {
    told: Arc<Told>,
    thread: JoinHandle<Result<Sent>>,
}

/// State shared with the thread.
#[derive(Debug, Default)]
struct Told {
    /// Nothing more comes to the spools.
    is_over: AtomicBool,
    /// All in them was sent.
    are_spools_sent: AtomicBool,
    /// The trace made of them; the inner `None` if there is none.
    trace: Mutex<Option<Option<PathBuf>>>,
}

impl Sender {
    /// Starts to send. If the receiver refuses the stream, the sender prints a line, once.
    ///
    /// # Errors
    ///
    /// The system has no thread for it.
    pub fn begin(work: &Path, receiver: Receiver) -> Result<Self> {
        let told = Arc::<Told>::default();
        let (seen, work) = (Arc::clone(&told), work.to_owned());
        let send = move || {
            let sent = send(&work, &receiver, &seen);
            if let Err(error) = &sent
                && !seen.is_over.load(Relaxed)
            {
                say(&format!(
                    "cannot send the recording to {}: {error:#}; recording goes on, and rftrace saves the trace here",
                    receiver.address
                ));
            }
            sent
        };
        let thread = thread::Builder::new().name("sender".to_owned()).spawn(send).context(NO_THREAD)?;
        Ok(Self { told, thread })
    }

    /// Waits until all spools are sent; no more records may come. The spools are not needed after that. `is_given_up`
    /// ends the wait.
    ///
    /// # Errors
    ///
    /// The receiver refuses the stream, or was given up.
    pub fn finish_spools(self, is_given_up: &AtomicBool) -> Result<Self> {
        self.told.is_over.store(true, Relaxed);
        self.thread.thread().unpark();
        while !self.told.are_spools_sent.load(Relaxed) {
            if self.thread.is_finished() {
                self.join()?;
                bail!("the sender ended too early");
            }
            pause_unless(is_given_up)?;
        }
        Ok(self)
    }

    /// Sends the further files of `trace`, if it was made, and waits until the receiver has everything. Call
    /// [`finish_spools`](Self::finish_spools) first.
    ///
    /// # Errors
    ///
    /// Those of [`finish_spools`](Self::finish_spools); or a file cannot be read.
    pub fn finish(self, trace: Option<&Path>, is_given_up: &AtomicBool) -> Result<Sent> {
        *self.told.trace.lock().unwrap_or_else(PoisonError::into_inner) = Some(trace.map(Path::to_owned));
        self.thread.thread().unpark();
        while !self.thread.is_finished() {
            pause_unless(is_given_up)?;
        }
        self.join()
    }

    fn join(self) -> Result<Sent> {
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn pause_unless(is_given_up: &AtomicBool) -> Result<()> {
    if is_given_up.load(Relaxed) {
        bail!("a signal ended the transfer");
    }
    thread::sleep(Duration::from_millis(5));
    Ok(())
}

fn send(work: &Path, receiver: &Receiver, told: &Told) -> Result<Sent> {
    let hello = Hello {
        follows: Follows::Sections,
        versions: SPOOL_VERSIONS,
        token: receiver.token.clone(),
        name: receiver.name.clone().into_bytes(),
    };
    // The error's text has its source's.
    let net = |error: rftrace_net::Error| anyhow!("{error}");
    let mut to = Outgoing::connect(&receiver.address, &hello, receiver.timeout).map_err(net)?;
    let mut spools = Spools::default();
    let mut heard = Instant::now();
    // None, until there is nothing more to come to the spools.
    let mut trace = None;
    let trace: Option<PathBuf> = loop {
        let before = to.n_bytes();
        if !told.are_spools_sent.load(Relaxed) {
            // Records from before the end are sent below.
            let is_last = told.is_over.load(Relaxed);
            spools.send(work, is_last, &mut |bytes| to.send(bytes).map_err(net))?;
            told.are_spools_sent.store(is_last, Relaxed);
        } else if let Some(made) = trace {
            break made;
        }
        if to.n_bytes() > before {
            heard = Instant::now();
        } else if heard.elapsed() >= BEAT {
            to.send(&stream::beat()).map_err(net)?;
            heard = Instant::now();
        }
        trace = told.trace.lock().unwrap_or_else(PoisonError::into_inner).take();
        if trace.is_none() {
            thread::park_timeout(PAUSE);
        }
    };
    let files = trace.map(|dir| companions::files_of(&dir)).transpose()?.unwrap_or_default();
    for (which, path) in &files {
        send_file(*which, path, &mut |bytes| to.send(bytes).map_err(net))?;
    }
    to.send(&spools.end(files.len() as u64)).map_err(net)?;
    let bytes = to.n_bytes();
    Ok(Sent { name: to.finish().map_err(net)?, bytes })
}

/// Sends a file piece by piece.
fn send_file(which: Companion, path: &Path, send: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let reading = || format!("cannot read {}", path.display());
    let mut file = opener::open(path).with_context(reading)?;
    let total = file.metadata().with_context(reading)?.len();
    let mut piece = vec![0; stream::PIECE_BYTES];
    let mut start = 0;
    loop {
        let wanted = (total - start).min(piece.len() as u64) as usize;
        file.read_exact(&mut piece[..wanted]).with_context(reading)?;
        send(&stream::file(which, total, start, &piece[..wanted]))?;
        start += wanted as u64;
        if start == total {
            return Ok(());
        }
    }
}
