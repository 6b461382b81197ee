//! A server of a page to browsers of this machine, or of one file to the page of another site.
//!
//! Other users of the machine can connect too. A client without the token costs a few KiB, and a place among
//! [`MOST_CONNECTIONS`] until another client needs it.
//!
//! Not here: answers and access (`answer`).

mod answer;
mod body;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::task::{AbortHandle, yield_now};

use crate::error::{Error, Result};
use crate::html::document;
use crate::pack::Page;
use crate::zoom::Zoom;
use answer::{Desk, Served};

/// Connections at a time.
const MOST_CONNECTIONS: usize = 64;
/// Bytes of a request before its body. Browsers send the cookies that other servers of this machine have given them.
const MOST_HEADER_BYTES: usize = 16 << 10;
/// How long those may take to come, and a connection may wait for the next request.
const HEADER_TIME: Duration = Duration::from_secs(10);
/// Threads that answer questions of pages and read files.
const MOST_WORKERS: usize = 4;
/// How long no connections are taken when the system has no room for more.
const NO_ROOM: Duration = Duration::from_millis(50);

/// A server of one page or one file, at a secret address of this machine.
///
/// It does not answer requests without the token, nor requests with another host name, such as those of a web page
/// whose name was made to resolve to this machine.
pub struct Server {
    listener: TcpListener,
    desk: Arc<Desk>,
    /// [`HEADER_TIME`], but in tests.
    header_time: Duration,
}

/// A file for the page of another site.
#[derive(Debug)]
pub struct SharedFile {
    /// The file; it may be without a name.
    pub file: File,
    /// The file's name in the address, behind the token.
    pub name: &'static str,
    /// The file's media type.
    pub kind: &'static str,
    /// The site, such as `https://profiler.firefox.com`. Pages of other sites get no answer.
    pub origin: &'static str,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("port", &self.desk.port).finish_non_exhaustive()
    }
}

impl Server {
    /// Starts to listen at 127.0.0.1 for requests of a page. With `port` 0 the system chooses a free one.
    ///
    /// # Errors
    ///
    /// The port is in use.
    pub fn bind(page: Page, port: u16) -> Result<Self> {
        let (start, events) = page.into_parts();
        Self::listen(Served::Page { document: document().into(), start: start.into(), events: events.into() }, port)
    }

    /// Starts to listen like [`bind`](Self::bind), for the page of a long trace, which requests its visible part.
    ///
    /// # Errors
    ///
    /// The port is in use.
    pub fn bind_zoom(zoom: Zoom, port: u16) -> Result<Self> {
        Self::listen(
            Served::Zoom { document: document().into(), start: zoom.start().into(), zoom: Box::new(zoom) },
            port,
        )
    }

    /// Starts to listen at 127.0.0.1 for a site's page that reads the file. With `port` 0 the system chooses a free
    /// one.
    ///
    /// # Errors
    ///
    /// The port is in use.
    pub fn bind_for(file: SharedFile, port: u16) -> Result<Self> {
        let SharedFile { file, name, kind, origin } = file;
        Self::listen(Served::Shared { file: Arc::new(file), name, kind, origin }, port)
    }

    fn listen(served: Served, port: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(Error::Listen)?;
        listener.set_nonblocking(true).map_err(Error::Listen)?;
        let port = listener.local_addr().map_err(Error::Listen)?.port();
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|error| Error::Listen(io::Error::other(error)))?;
        let token = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let desk = Arc::new(Desk { port, token, served, loaded: Mutex::default() });
        Ok(Self { listener, desk, header_time: HEADER_TIME })
    }

    /// Returns the address of the page or file.
    pub fn url(&self) -> String {
        let name = match self.desk.served {
            Served::Page { .. } | Served::Zoom { .. } => "",
            Served::Shared { name, .. } => name,
        };
        format!("http://127.0.0.1:{}/{}/{name}", self.desk.port, self.desk.token)
    }

    /// Sets a function that is called at the first request with the token.
    pub fn when_loaded(&self, work: impl FnOnce() + Send + 'static) {
        *self.desk.loaded.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(work));
    }

    /// Answers requests for ever.
    ///
    /// # Errors
    ///
    /// The server can accept no further connections.
    pub fn run(&self) -> Result<()> {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().max_blocking_threads(MOST_WORKERS).build().map_err(Error::Listen)?;
        runtime.block_on(self.take())
    }

    /// Takes connections.
    async fn take(&self) -> Result<()> {
        let listener = self.listener.try_clone().and_then(tokio::net::TcpListener::from_std).map_err(Error::Listen)?;
        let mut connections = Connections::default();
        loop {
            match listener.accept().await {
                Ok((stream, _)) => connections.add(stream, self),
                Err(_) => tokio::time::sleep(NO_ROOM).await,
            }
            // Those that are there are looked at before one of them gives way.
            yield_now().await;
        }
    }
}

/// Those that are open, the oldest first.
#[derive(Default)]
struct Connections(VecDeque<Connection>);

struct Connection {
    task: AbortHandle,
    /// True after a request with the token.
    has_token: Arc<AtomicBool>,
}

impl Connections {
    /// Attends to one more. If there is no room, the oldest one without a token gives way, or this one.
    fn add(&mut self, stream: TcpStream, server: &Server) {
        self.0.retain(|connection| !connection.task.is_finished());
        if self.0.len() >= MOST_CONNECTIONS {
            let stranger = self.0.iter().position(|connection| !connection.has_token.load(Ordering::Relaxed));
            let Some(stranger) = stranger.and_then(|at| self.0.remove(at)) else { return };
            stranger.task.abort();
        }
        let has_token = Arc::<AtomicBool>::default();
        let attended = attend(stream, Arc::clone(&server.desk), Arc::clone(&has_token), server.header_time);
        let task = tokio::spawn(attended).abort_handle();
        self.0.push_back(Connection { task, has_token });
    }
}

/// Answers what comes by a connection. What a browser that has gone does not take is nobody's loss.
async fn attend(stream: TcpStream, desk: Arc<Desk>, has_token: Arc<AtomicBool>, header_time: Duration) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| {
        let (desk, has_token) = (Arc::clone(&desk), &has_token);
        async move { Ok::<_, Infallible>(desk.respond(request, has_token).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(header_time).max_buf_size(MOST_HEADER_BYTES);
    http.half_close(true).title_case_headers(true);
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}
