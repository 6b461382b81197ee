//! A server that makes a directory for each peer's trace.
//!
//! Each peer has a thread. A peer that sends malformed data, too much, too slowly or nothing loses its connection,
//! without effect on the others. Its files stay, without the `info` that would make them a trace.
//!
//! Not here: the places of peers (`peers`).

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::address::Address;
use crate::error::{Error, Result};
use crate::peers::{Peers, Place};
use crate::protocol::{Event, Reader};
use crate::socket::{Listener, Stream};
use crate::spools::Spools;
use crate::store::{INCOMPLETE_INFO, Root, Store, shown};
use crate::stream::{self, Follows, Hello};
use crate::token::Token;

/// Bytes read at a time.
const PIECE_BYTES: usize = 64 << 10;
/// The first bytes of a kernel's image, and how many of them tell it from a stream of ours.
const IMAGE_MAGIC: &[u8; 8] = b"\x93RFT\r\n\x1a\n";
pub(crate) const BEGINNING_BYTES: usize = 4;
/// The most bytes of such an image: all that it holds is in memory when a trace is made of it, some eight times as much.
const MAX_IMAGE_BYTES: u64 = 256 << 20;
/// The directory of an image, and its name there.
const IMAGE_DIR: &[u8] = b"kernel";
const IMAGE: &str = "kernel.img";
/// How long no connections are taken when the system has no room for more.
const NO_ROOM: Duration = Duration::from_millis(100);
/// Bytes of a second within a message, beside the time that each message has: a whole file is one, which may be large.
const LEAST_BYTES_PER_SECOND: u64 = 16 << 10;
/// Peers without a place that are told so at a time, and how long that may take.
const MOST_REFUSED: usize = 4;
const REFUSAL: Duration = Duration::from_secs(1);

/// The options and limits of a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReceiveOptions {
    /// The directory in which each trace gets a directory.
    pub dir: PathBuf,
    /// The maximum number of bytes of a trace.
    pub max_bytes: u64,
    /// The maximum number of peers at a time.
    pub max_peers: usize,
    /// The maximum silence of a peer within a message and before the first one. A message may also take this time, plus
    /// a second for each 16 KiB.
    pub timeout: Duration,
    /// The maximum silence between messages. A recorded program may have no records for a while.
    pub idle: Duration,
    /// True to end after one complete trace.
    pub once: bool,
    /// The token that peers have to show. Without one, other machines may not reach the server.
    pub token: Option<Token>,
    /// The name of a file that lies beside the records of a running program, while they are received.
    pub mark: Option<String>,
}

impl ReceiveOptions {
    /// Creates the default limits for traces in this directory.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            max_bytes: 8 << 30,
            max_peers: 16,
            timeout: Duration::from_secs(30),
            idle: Duration::from_secs(3600),
            once: false,
            token: None,
            mark: None,
        }
    }
}

/// The result for one peer, displayed as one line.
#[derive(Debug)]
#[non_exhaustive]
pub struct Received {
    /// The peer's address.
    pub peer: String,
    /// The path of the trace, if the peer has sent a name.
    pub dir: Option<PathBuf>,
    /// The number of files made.
    pub files: usize,
    /// The number of bytes written to them.
    pub bytes: u64,
    /// The number of processes in a recording of running programs, which is still to become a trace; `None` for other
    /// data.
    pub processes: Option<u32>,
    /// The path of a kernel's image, which is still to become a trace; `None` for other data.
    pub image: Option<PathBuf>,
    /// The number of files that were left out, as no trace has such files.
    pub left_out: usize,
    /// The names of the first of them.
    pub left_out_names: Vec<String>,
    /// True if `info` has come without the end of the trace. The file then has the name `info.incomplete`.
    pub has_incomplete_info: bool,
    /// `Ok` for a complete trace, or the reason why it is incomplete.
    pub ended: Result<()>,
}

impl fmt::Display for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { peer, files, bytes, .. } = self;
        let of = match self.processes {
            Some(1) => format!("of 1 process, {bytes} bytes"),
            Some(number) => format!("of {number} processes, {bytes} bytes"),
            None => format!("{files} {} of {bytes} bytes", if *files == 1 { "file" } else { "files" }),
        };
        match (&self.ended, &self.dir) {
            (Ok(()), dir) => {
                let dir = dir.as_deref().unwrap_or("".as_ref()).display();
                write!(f, "{peer}: a complete trace, {of}, lies in {dir}")?;
            }
            (Err(error), Some(dir)) => {
                let dir = dir.display();
                write!(f, "{peer}: incomplete, {error}; the received part, {of}, lies in {dir}")?;
                if self.has_incomplete_info {
                    write!(f, "; to read it as it is: mv {dir}/{INCOMPLETE_INFO} {dir}/info")?;
                }
            }
            (Err(error), None) => write!(f, "{peer}: no trace, {error}")?,
        }
        if self.left_out > 0 {
            let more = if self.left_out > self.left_out_names.len() { ", …" } else { "" };
            write!(f, "; left out, as no trace has such files: {}{more}", self.left_out_names.join(", "))?;
        }
        Ok(())
    }
}

/// A handle that stops a [`Server`], from any thread.
#[derive(Debug)]
pub struct Stop(UnixStream);

impl Stop {
    /// Stops the server. Incomplete traces stay incomplete.
    pub fn stop(&self) {
        // Where a byte finds no room there are others already.
        let _ = (&self.0).write(&[0]);
    }

    /// Returns a socket that stops the server when a byte is written to it, for signal handlers.
    #[must_use]
    pub fn into_socket(self) -> UnixStream {
        self.0
    }
}

/// A server that listens for peers.
#[derive(Debug)]
pub struct Server {
    listeners: Vec<Listener>,
    root: Root,
    options: ReceiveOptions,
    /// A byte can be read from the first one when the server has to end. Nobody reads it, so all threads see it.
    stopped: (UnixStream, UnixStream),
}

impl Server {
    /// Starts to listen at an address. For TCP's port 0 the system chooses a port.
    ///
    /// # Errors
    ///
    /// Other machines can reach the address and there is no token, the address is in use, or the directory cannot be
    /// made.
    pub fn bind(address: &Address, options: ReceiveOptions) -> Result<Self> {
        let listener = Listener::bind(address, options.token.is_some())?;
        let root = Root::open(&options.dir)?;
        let stopped = UnixStream::pair().map_err(Error::Wait)?;
        stopped.1.set_nonblocking(true).map_err(Error::Wait)?;
        Ok(Self { listeners: vec![listener], root, options, stopped })
    }

    /// Starts to listen at a further address.
    ///
    /// # Errors
    ///
    /// Those of [`bind`](Self::bind).
    pub fn also(&mut self, address: &Address) -> Result<()> {
        self.listeners.push(Listener::bind(address, self.options.token.is_some())?);
        Ok(())
    }

    /// Returns the addresses at which the server listens, the first one first.
    ///
    /// # Errors
    ///
    /// The system does not report an address.
    pub fn addresses(&self) -> Result<Vec<Address>> {
        self.listeners.iter().map(|listener| listener.address().map_err(Error::Wait)).collect()
    }

    /// Returns a handle that stops the server.
    ///
    /// # Errors
    ///
    /// The system has no further file descriptor.
    pub fn stop(&self) -> Result<Stop> {
        self.stopped.1.try_clone().map(Stop).map_err(Error::Wait)
    }

    /// Receives traces until [`Stop::stop`] or, with `once`, until the first complete trace. It calls `tell` at the end
    /// of each peer, and returns the number of complete traces.
    ///
    /// # Errors
    ///
    /// The server cannot wait for peers any more.
    pub fn run(&self, tell: &(dyn Fn(Received) + Sync)) -> Result<usize> {
        let peers = Peers::new(self.options.max_peers);
        let n_refused = AtomicUsize::new(0);
        let n_complete = AtomicUsize::new(0);
        let ended = thread::scope(|scope| {
            let ended = self.take_peers(|stream, peer| {
                let refused = |error| tell(nothing(peer.clone(), error));
                let place = match peers.place(&stream) {
                    Ok(place) => place,
                    Err(error) => {
                        self.refuse(scope, stream, &error, &n_refused);
                        return refused(error);
                    }
                };
                let (name, n_complete) = (peer.clone(), &n_complete);
                let started = thread::Builder::new().spawn_scoped(scope, move || {
                    let received = self.serve(stream, name, &place);
                    let is_complete = received.ended.is_ok();
                    n_complete.fetch_add(usize::from(is_complete), Ordering::Relaxed);
                    drop(place);
                    tell(received);
                    if is_complete && self.options.once {
                        let _ = (&self.stopped.1).write(&[0]);
                    }
                });
                if let Err(error) = started {
                    refused(Error::Wait(error));
                }
            });
            if ended.is_err() {
                let _ = (&self.stopped.1).write(&[0]);
            }
            ended
        });
        ended.map(|()| n_complete.into_inner())
    }

    /// Tells a peer that there is no place for it, if its protocol has answers. Nobody waits for that.
    fn refuse<'s>(
        &'s self,
        scope: &'s thread::Scope<'s, '_>,
        mut stream: Stream,
        error: &Error,
        n_refused: &'s AtomicUsize,
    ) {
        if n_refused.load(Ordering::Relaxed) >= MOST_REFUSED {
            return stream.abort();
        }
        n_refused.fetch_add(1, Ordering::Relaxed);
        let reason = error.to_string();
        let started = thread::Builder::new().spawn_scoped(scope, move || {
            let answers = self.protocol_of(&mut stream).map_or(Answers::None, |protocol| protocol.answers());
            self.end(stream, answers, &reason);
            n_refused.fetch_sub(1, Ordering::Relaxed);
        });
        if started.is_err() {
            n_refused.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns the protocol of a peer's first bytes.
    fn protocol_of(&self, stream: &mut Stream) -> Option<Protocol> {
        let since = Instant::now();
        let mut first = Vec::new();
        let mut piece = [0; BEGINNING_BYTES];
        while let Some(left) = REFUSAL.checked_sub(since.elapsed()) {
            match self.wait(&[&*stream], Some(left)).map(|_| stream.read(&mut piece)) {
                Ok(Ok(n_read)) if n_read > 0 => first.extend_from_slice(piece.get(..n_read).unwrap_or_default()),
                _ => return None,
            }
            if let Some(protocol) = Protocol::of(&first) {
                return Some(protocol);
            }
        }
        None
    }

    /// Closes the connection of a refused peer.
    fn end(&self, mut stream: Stream, answers: Answers, reason: &str) {
        match answers {
            Answers::All => return self.say_no(&mut stream, reason),
            Answers::Refusals => write_no(&mut stream, reason),
            Answers::None => {}
        }
        stream.abort();
    }

    /// Hands out connections until it is told to stop.
    fn take_peers(&self, mut take: impl FnMut(Stream, String)) -> Result<()> {
        loop {
            let sources: Vec<&dyn AsFd> = self.listeners.iter().map(|listener| listener as &dyn AsFd).collect();
            let listener = match self.wait(&sources, None) {
                Err(Error::Stopped) => return Ok(()),
                waited => &self.listeners[waited?],
            };
            match listener.accept() {
                Ok((stream, peer)) => take(stream, peer),
                Err(error) => match Errno::try_from(error).unwrap_or(Errno::UnknownErrno) {
                    // Somebody else was faster, or the peer has thought better of it.
                    Errno::EAGAIN | Errno::EINTR | Errno::ECONNABORTED | Errno::EPROTO => {}
                    // The connection waits, and would be there at once again.
                    _ => match self.wait(&[], Some(NO_ROOM)) {
                        Err(Error::Stopped) => return Ok(()),
                        Ok(_) | Err(Error::Stalled(_)) => {}
                        Err(error) => return Err(error),
                    },
                },
            }
        }
    }

    /// Receives what one peer sends.
    fn serve(&self, mut stream: Stream, peer: String, place: &Place<'_>) -> Received {
        stream.keep_alive();
        let mut incoming = Incoming::new(&self.root, &self.options, Some(place));
        let ended = self.receive(&mut stream, &mut incoming);
        let ended = ended.map_err(|error| place.why_it_gave_way().unwrap_or(error));
        let name = incoming.store.as_ref().and_then(|store| store.path().file_name()).unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let answers = incoming.answers;
        let mut received = incoming.finish(peer, ended.is_ok());
        match &ended {
            // It waits for an answer; whether it gets it is its own affair.
            Ok(()) if answers == Answers::All => {
                let _ = stream.write(format!("ok {name}\n").as_bytes());
            }
            Ok(()) => {}
            Err(Error::GaveWay(_)) => stream.abort(),
            Err(error) => self.end(stream, answers, &error.to_string()),
        }
        received.ended = ended;
        received
    }

    /// Tells a peer that waits for an answer why it is refused, and lets it read that: where something lies unread the system would
    /// tell it of an end alone.
    fn say_no(&self, stream: &mut Stream, reason: &str) {
        write_no(stream, reason);
        stream.close_writing();
        let since = Instant::now();
        let mut piece = vec![0; PIECE_BYTES];
        while let Some(left) = REFUSAL.checked_sub(since.elapsed()) {
            match self.wait(&[&*stream], Some(left)).map(|_| stream.read(&mut piece)) {
                Ok(Ok(n_read)) if n_read > 0 => {}
                _ => return,
            }
        }
    }

    fn receive(&self, stream: &mut Stream, incoming: &mut Incoming<'_>) -> Result<()> {
        let mut piece = vec![0; PIECE_BYTES];
        let mut pace = Pace::default();
        loop {
            let silence = if incoming.may_be_silent() { self.options.idle } else { self.options.timeout };
            pace.wait(silence, |limit| self.wait(&[&*stream], Some(limit)))?;
            let n_read = match stream.read(&mut piece) {
                // A kernel's line ends so.
                Ok(0) if matches!(incoming.protocol, Protocol::Kernel) => return Ok(()),
                Ok(0) => return Err(Error::Closed),
                Ok(n_read) => n_read,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => continue,
                Err(error) => return Err(Error::Broken(error)),
            };
            pace.count(n_read);
            let n_before = incoming.n_messages;
            if incoming.take(piece.get(..n_read).unwrap_or_default())? {
                return Ok(());
            }
            if incoming.n_messages != n_before || incoming.is_between() {
                pace = Pace::default();
            }
        }
    }

    /// Waits until there is something to read. Returns from which source.
    ///
    /// # Errors
    ///
    /// [`Error::Stopped`], also if there is something; [`Error::Stalled`] after `limit`.
    fn wait(&self, sources: &[&dyn AsFd], limit: Option<Duration>) -> Result<usize> {
        let since = Instant::now();
        loop {
            let left = limit.map(|limit| limit.saturating_sub(since.elapsed()));
            let timeout = left.map_or(PollTimeout::NONE, |left| {
                // A rest of less than a millisecond is none.
                PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
            });
            let mut watched = vec![PollFd::new(self.stopped.0.as_fd(), PollFlags::POLLIN)];
            watched.extend(sources.iter().map(|source| PollFd::new(source.as_fd(), PollFlags::POLLIN)));
            match poll(&mut watched, timeout) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(Error::Wait(io::Error::from(error))),
            }
            let mut is_ready = watched.iter().map(|watched| watched.any() == Some(true));
            if is_ready.next() == Some(true) {
                return Err(Error::Stopped);
            }
            if let Some(ready) = is_ready.position(|is_ready| is_ready) {
                return Ok(ready);
            }
            if let Some(limit) = limit.filter(|limit| since.elapsed() >= *limit) {
                return Err(Error::Stalled(limit));
            }
        }
    }
}

/// Writes a refusal.
fn write_no(stream: &mut Stream, reason: &str) {
    let _ = stream.write(format!("no {}\n", reason.replace('\n', " ")).as_bytes());
}

/// How fast a message comes. What the server takes for it is not counted.
#[derive(Debug, Default)]
struct Pace {
    /// How long it was waited for.
    waited: Duration,
    n_bytes: u64,
}

impl Pace {
    /// Waits for the next bytes: no longer than `silence`, nor than what is left of the message's time.
    fn wait(&mut self, silence: Duration, wait: impl FnOnce(Duration) -> Result<usize>) -> Result<()> {
        let whole = silence + Duration::from_secs(self.n_bytes / LEAST_BYTES_PER_SECOND);
        let left = whole.saturating_sub(self.waited);
        if left.is_zero() {
            return Err(Error::Slow(silence));
        }
        let since = Instant::now();
        let waited = wait(silence.min(left));
        self.waited += since.elapsed();
        match waited {
            Err(Error::Stalled(_)) if left < silence => Err(Error::Slow(silence)),
            waited => waited.map(drop),
        }
    }

    fn count(&mut self, n_read: usize) {
        // The message's time begins with it.
        if self.n_bytes == 0 {
            self.waited = Duration::ZERO;
        }
        self.n_bytes += n_read as u64;
    }
}

/// The input of one peer.
pub(crate) struct Incoming<'a> {
    root: &'a Root,
    options: &'a ReceiveOptions,
    /// Where there are others.
    place: Option<&'a Place<'a>>,
    protocol: Protocol,
    answers: Answers,
    n_received: u64,
    /// Those that have come, or of which the head has.
    n_messages: u64,
    store: Option<Store>,
    spools: Option<Spools>,
}

/// The answers that a peer gets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answers {
    /// One at the end: the peer waits for it.
    All,
    /// Refusals. uftrace reads nothing, and `rftrace send` tells the reason.
    Refusals,
    None,
}

/// The protocol of a peer.
enum Protocol {
    /// Not known: these bytes have come.
    Unknown(Vec<u8>),
    Uftrace(Reader),
    Own(stream::Reader),
    /// A kernel's image, sent by a line.
    Kernel,
}

impl Protocol {
    /// That of a peer whose first bytes these are; `None` if more are needed.
    fn of(first: &[u8]) -> Option<Self> {
        let begins = |magic: &[u8]| magic.iter().zip(first).take(BEGINNING_BYTES).all(|(wanted, byte)| wanted == byte);
        match (begins(IMAGE_MAGIC), begins(&stream::MAGIC)) {
            (true, true) => None,
            (true, false) => Some(Self::Kernel),
            // Messages of uftrace begin with another byte.
            _ if first.first() == stream::MAGIC.first() => Some(Self::Own(stream::Reader::new())),
            _ => Some(Self::Uftrace(Reader::new())),
        }
    }

    fn answers(&self) -> Answers {
        match self {
            Self::Own(_) => Answers::All,
            Self::Uftrace(_) => Answers::Refusals,
            Self::Kernel | Self::Unknown(_) => Answers::None,
        }
    }
}

impl<'a> Incoming<'a> {
    pub(crate) fn new(root: &'a Root, options: &'a ReceiveOptions, place: Option<&'a Place<'a>>) -> Self {
        Self {
            root,
            options,
            place,
            protocol: Protocol::Unknown(Vec::new()),
            answers: Answers::None,
            n_received: 0,
            n_messages: 0,
            store: None,
            spools: None,
        }
    }

    /// True if the peer may be silent now. Peers of our protocol send a beat from time to time.
    fn may_be_silent(&self) -> bool {
        self.answers != Answers::All && self.is_between()
    }

    /// True if no message is half there. By our protocol the number of messages tells it.
    fn is_between(&self) -> bool {
        match &self.protocol {
            Protocol::Uftrace(reader) => reader.is_between(),
            Protocol::Kernel => true,
            Protocol::Own(_) | Protocol::Unknown(_) => false,
        }
    }

    /// Takes some bytes. Returns whether the end has come.
    pub(crate) fn take(&mut self, input: &[u8]) -> Result<bool> {
        self.n_received += input.len() as u64;
        let Protocol::Unknown(first) = &mut self.protocol else { return self.take_known(input) };
        first.extend_from_slice(input);
        let Some(protocol) = Protocol::of(first) else { return Ok(false) };
        let first = std::mem::take(first);
        self.answers = protocol.answers();
        self.protocol = protocol;
        self.take_known(&first)
    }

    fn take_known(&mut self, mut input: &[u8]) -> Result<bool> {
        if self.n_received > self.options.max_bytes {
            return Err(Error::TooLarge(self.options.max_bytes));
        }
        if let Protocol::Kernel = self.protocol {
            check_token(self.options.token.as_ref(), None)?;
            if self.n_received > MAX_IMAGE_BYTES {
                return Err(Error::TooLarge(MAX_IMAGE_BYTES));
            }
            if self.store.is_none() {
                keep(self.place)?;
            }
            let store = match &mut self.store {
                Some(store) => store,
                none => none.insert(self.root.make(IMAGE_DIR)?),
            };
            return store.append(IMAGE, input).map(|()| false);
        }
        if let Protocol::Own(reader) = &mut self.protocol {
            let mut follows = Follows::Sections;
            while let Some(event) = reader.next(&mut input)? {
                self.n_messages += 1;
                match event {
                    stream::Event::Hello(hello) => {
                        check_token(self.options.token.as_ref(), Some(&hello))?;
                        keep(self.place)?;
                        follows = hello.follows;
                        if follows == Follows::Messages {
                            break;
                        }
                        let store = self.store.insert(self.root.make(&hello.name)?);
                        let mark = self.options.mark.as_deref();
                        self.spools = Some(Spools::new(store, hello.versions, mark)?);
                    }
                    event => {
                        let is_end = event == stream::Event::End;
                        self.spools.as_mut().ok_or(Error::Closed)?.take(event)?;
                        if is_end {
                            return Ok(true);
                        }
                    }
                }
            }
            if follows == Follows::Sections {
                return Ok(false);
            }
            self.protocol = Protocol::Uftrace(Reader::new());
        }
        if self.answers != Answers::All {
            check_token(self.options.token.as_ref(), None)?;
        }
        self.take_messages(input)
    }

    fn take_messages(&mut self, mut input: &[u8]) -> Result<bool> {
        let (n_received, most) = (self.n_received, self.options.max_bytes);
        while let Protocol::Uftrace(reader) = &mut self.protocol {
            let Some(event) = reader.next(&mut input)? else { break };
            self.n_messages += u64::from(!matches!(event, Event::Bytes(_)));
            let store = match event {
                Event::DirName(name) => {
                    keep(self.place)?;
                    self.store = Some(self.root.make(&name)?);
                    continue;
                }
                _ => self.store.as_mut().ok_or(Error::Closed)?,
            };
            match event {
                Event::DirName(_) => {}
                Event::Begin(part, bytes) => {
                    let rest = u64::from(bytes).saturating_sub(input.len() as u64);
                    if n_received.saturating_add(rest) > most {
                        return Err(Error::TooLarge(most));
                    }
                    store.begin(part)?;
                }
                Event::Bytes(bytes) => store.write(bytes)?,
                Event::Info(info) => store.keep_info(info),
                Event::End => return store.finish().map(|()| true),
            }
        }
        Ok(false)
    }

    /// Nothing more comes. Returns what has.
    pub(crate) fn finish(mut self, peer: String, is_complete: bool) -> Received {
        let mut received = nothing(peer, Error::Closed);
        if let Some(store) = &mut self.store {
            received.has_incomplete_info = !is_complete && store.give_up();
            received.dir = Some(store.path().to_owned());
            received.files = store.n_files();
            received.bytes = store.bytes;
            received.left_out = store.n_left_out;
            received.left_out_names = std::mem::take(&mut store.left_out);
        }
        if let (Protocol::Kernel, Some(dir)) = (&self.protocol, &received.dir) {
            received.image = Some(dir.join(IMAGE));
        }
        if let Some(spools) = &mut self.spools {
            spools.finish();
            received.processes = Some(spools.n_processes);
            received.bytes = spools.bytes;
        }
        received
    }
}

/// The peer has told what it sends, and may: from here on it keeps its place.
fn keep(place: Option<&Place<'_>>) -> Result<()> {
    place.map_or(Ok(()), Place::keep)
}

/// Refuses a peer without the token. Peers of uftrace show none.
fn check_token(wanted: Option<&Token>, hello: Option<&Hello>) -> Result<()> {
    let is_right = wanted.is_none_or(|wanted| hello.is_some_and(|hello| hello.token.as_ref() == Some(wanted)));
    if is_right { Ok(()) } else { Err(Error::Token) }
}

/// A peer of which nothing has come.
fn nothing(peer: String, error: Error) -> Received {
    Received {
        peer: shown(peer.as_bytes()),
        dir: None,
        files: 0,
        bytes: 0,
        processes: None,
        image: None,
        left_out: 0,
        left_out_names: Vec::new(),
        has_incomplete_info: false,
        ended: Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The time waited so far, for so many bytes of a message.
    fn pace(waited: Duration, n_bytes: u64) -> Pace {
        Pace { waited, n_bytes }
    }

    #[test]
    fn a_message_has_its_time_and_that_of_its_bytes() {
        // Without a byte, and when a message has just begun, the silence is what ends it.
        let stalled = |limit| Err(Error::Stalled(limit));
        assert!(matches!(Pace::default().wait(SECOND, stalled), Err(Error::Stalled(SECOND))));
        let mut begun = pace(SECOND / 2, 0);
        begun.count(1);
        assert!(matches!(begun.wait(SECOND, stalled), Err(Error::Stalled(SECOND))));
        // Then what is left of its time does.
        let mut slow = pace(SECOND / 4, 100);
        assert!(matches!(
            slow.wait(SECOND, |limit| {
                assert_eq!(limit, SECOND * 3 / 4);
                stalled(limit)
            }),
            Err(Error::Slow(SECOND))
        ));
        assert!(matches!(pace(SECOND, 100).wait(SECOND, |_| unreachable!()), Err(Error::Slow(SECOND))));
        // A larger message has more time.
        let mut large = pace(SECOND * 9, 10 * LEAST_BYTES_PER_SECOND);
        assert!(
            large
                .wait(SECOND, |limit| {
                    assert_eq!(limit, SECOND);
                    Ok(0)
                })
                .is_ok()
        );
    }
}
