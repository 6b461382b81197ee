//! Serves a page to browsers of this machine, or one file to the page of another site.

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread;

use tiny_http::{Header, Method, Request, Response};

use crate::error::{Error, Result};
use crate::html::document;
use crate::pack::Page;
use crate::zoom::Zoom;

/// Serves one page, or one file, at an address of this machine that nobody guesses.
///
/// Who has not the token, or names another host, such as a web page whose name was made to mean this machine, gets nothing.
pub struct Server {
    http: tiny_http::Server,
    port: u16,
    token: String,
    served: Arc<Served>,
}

/// A file for the page of a site.
#[derive(Debug)]
pub struct SharedFile {
    /// It need not have a name.
    pub file: File,
    /// How it is called behind the token.
    pub name: &'static str,
    /// Its media type.
    pub kind: &'static str,
    /// The site, such as `https://profiler.firefox.com`: pages of others get nothing.
    pub origin: &'static str,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("port", &self.port).finish_non_exhaustive()
    }
}

enum Served {
    Page {
        document: String,
        /// The data, in two pieces.
        start: Vec<u8>,
        events: Vec<u8>,
    },
    /// The page asks for what is seen.
    Zoom {
        document: String,
        /// What it knows before.
        start: Vec<u8>,
        zoom: Box<Zoom>,
    },
    Shared(SharedFile),
}

/// What all answers say: nothing is kept, or told to others.
const HEADERS: [(&str, &str); 3] =
    [("X-Content-Type-Options", "nosniff"), ("Referrer-Policy", "no-referrer"), ("Cache-Control", "no-store")];

/// And those with the page: nothing is loaded from elsewhere.
const PAGE_HEADERS: [(&str, &str); 2] = [
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
    ),
    ("Cross-Origin-Resource-Policy", "same-origin"),
];

/// And those for a site: its pages may read the answer, though it is from this machine. Behind these comes which site.
const SITE_HEADERS: [(&str, &str); 4] = [
    ("Cross-Origin-Resource-Policy", "cross-origin"),
    ("Access-Control-Allow-Methods", "GET"),
    ("Access-Control-Allow-Private-Network", "true"),
    ("Vary", "Origin"),
];

/// The longest question: all functions are searched for, each of seven digits.
const MAX_QUESTION_BYTES: u64 = 16 << 20;

impl Server {
    /// Listens to 127.0.0.1; any free port is taken for 0.
    ///
    /// # Errors
    ///
    /// The port is taken.
    pub fn bind(page: Page, port: u16) -> Result<Self> {
        let (start, events) = page.into_parts();
        Self::listen(Served::Page { document: document(), start, events }, port)
    }

    /// The same, for a page that asks for what is seen of a long trace.
    ///
    /// # Errors
    ///
    /// The port is taken.
    pub fn bind_zoom(zoom: Zoom, port: u16) -> Result<Self> {
        Self::listen(Served::Zoom { document: document(), start: zoom.start(), zoom: Box::new(zoom) }, port)
    }

    /// Listens to 127.0.0.1 for the pages of a site; any free port is taken for 0.
    ///
    /// # Errors
    ///
    /// The port is taken.
    pub fn bind_for(file: SharedFile, port: u16) -> Result<Self> {
        Self::listen(Served::Shared(file), port)
    }

    fn listen(served: Served, port: u16) -> Result<Self> {
        let listen = |error: Box<dyn std::error::Error + Send + Sync>| match error.downcast::<io::Error>() {
            Ok(error) => Error::Listen(*error),
            Err(error) => Error::Listen(io::Error::other(error)),
        };
        let http = tiny_http::Server::http(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).map_err(listen)?;
        let port = http.server_addr().to_ip().map_or(port, |address| address.port());
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|error| Error::Listen(io::Error::other(error)))?;
        let token = random.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { http, port, token, served: Arc::new(served) })
    }

    /// Where the page, or the file, is.
    pub fn url(&self) -> String {
        let name = match &*self.served {
            Served::Page { .. } | Served::Zoom { .. } => "",
            Served::Shared(file) => file.name,
        };
        format!("http://127.0.0.1:{}/{}/{name}", self.port, self.token)
    }

    /// Answers requests for ever.
    ///
    /// # Errors
    ///
    /// No more connections can be taken.
    pub fn run(&self) -> Result<()> {
        loop {
            let request = self.http.recv().map_err(Error::Listen)?;
            let answer = self.answer(&request);
            let served = Arc::clone(&self.served);
            // A thread each: who reads slowly makes nobody wait. What a browser that has gone does not take is nobody's loss.
            thread::spawn(move || drop(respond(request, answer, &served)));
        }
    }

    fn answer(&self, request: &Request) -> Answer {
        let host = request.headers().iter().find(|header| header.field.equiv("Host"));
        let is_ours =
            |host: &str| ["127.0.0.1", "localhost"].iter().any(|name| host == format!("{name}:{}", self.port));
        if !host.is_some_and(|header| is_ours(header.value.as_str())) {
            return Answer::Error(403, "another host\n");
        }
        let path = request.url().split('?').next().unwrap_or_default();
        let Some((token, file)) = path.strip_prefix('/').and_then(|path| path.split_once('/')) else {
            return Answer::Error(403, "without the token\n");
        };
        // Takes the same time wherever they differ.
        let differences = token.bytes().zip(self.token.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
        if token.len() != self.token.len() || differences != 0 {
            return Answer::Error(403, "without the token\n");
        }
        let origin = request.headers().iter().find(|header| header.field.equiv("Origin"));
        if let (Served::Shared(shared), Some(origin)) = (&*self.served, origin)
            && origin.value.as_str() != shared.origin
        {
            return Answer::Error(403, "another site\n");
        }
        match (&*self.served, request.method()) {
            // Browsers ask whether they may ask.
            (Served::Shared(_), Method::Options) => return Answer::Nothing,
            (Served::Zoom { .. }, Method::Post) => return Answer::Asked(file.to_owned()),
            (_, Method::Get | Method::Head) => {}
            _ => return Answer::Error(405, "only GET\n"),
        }
        match (&*self.served, file) {
            (Served::Page { .. } | Served::Zoom { .. }, "") => Answer::Document,
            (Served::Page { .. } | Served::Zoom { .. }, "data") => Answer::Data,
            (Served::Shared(shared), file) if file == shared.name => Answer::Data,
            _ => Answer::Error(404, "no such file\n"),
        }
    }
}

enum Answer {
    Document,
    Data,
    /// What this answers, when the question was read.
    Asked(String),
    Nothing,
    Error(u16, &'static str),
}

fn respond(mut request: Request, answer: Answer, served: &Served) -> io::Result<()> {
    const TEXT: &str = "text/plain; charset=utf-8";
    const BINARY: &str = "application/octet-stream";

    let (status, kind, length, body): (_, _, _, Box<dyn Read + '_>) = match (answer, served) {
        (Answer::Document, Served::Page { document, .. } | Served::Zoom { document, .. }) => {
            (200, "text/html; charset=utf-8", document.len(), Box::new(document.as_bytes()))
        }
        (Answer::Data, Served::Page { start, events, .. }) => {
            let body = Cursor::new(start).chain(Cursor::new(events));
            (200, BINARY, start.len() + events.len(), Box::new(body))
        }
        (Answer::Data, Served::Zoom { start, .. }) => (200, BINARY, start.len(), Box::new(start.as_slice())),
        (Answer::Asked(name), Served::Zoom { zoom, .. }) => match zoom.answer(&name, &question(&mut request)?) {
            Some(Ok(body)) => (200, BINARY, body.len(), Box::new(Cursor::new(body))),
            Some(Err(error)) => {
                let status = if matches!(error, Error::Question) { 400 } else { 500 };
                let text = format!("{error}\n");
                (status, TEXT, text.len(), Box::new(Cursor::new(text)))
            }
            None => (404, TEXT, 0, Box::new(io::empty())),
        },
        (Answer::Data, Served::Shared(shared)) => {
            let length = usize::try_from(shared.file.metadata()?.len()).map_err(io::Error::other)?;
            (200, shared.kind, length, Box::new(FromStart { file: &shared.file, at: 0 }))
        }
        (Answer::Error(status, text), _) => (status, TEXT, text.len(), Box::new(text.as_bytes())),
        (Answer::Nothing | Answer::Document | Answer::Asked(_), _) => (204, TEXT, 0, Box::new(io::empty())),
    };
    let mut headers: Vec<_> = HEADERS.into_iter().chain([("Content-Type", kind)]).collect();
    match served {
        Served::Page { .. } | Served::Zoom { .. } => headers.extend(PAGE_HEADERS),
        Served::Shared(shared) => {
            headers.extend(SITE_HEADERS.into_iter().chain([("Access-Control-Allow-Origin", shared.origin)]));
        }
    }
    let headers = headers.into_iter().filter_map(|(name, value)| Header::from_bytes(name, value).ok()).collect();
    request.respond(Response::new(status.into(), headers, body, Some(length), None))
}

/// What a page asks.
fn question(request: &mut Request) -> io::Result<Vec<u8>> {
    let mut question = Vec::new();
    request.as_reader().take(MAX_QUESTION_BYTES).read_to_end(&mut question)?;
    Ok(question)
}

/// A file that several read at once, each from its beginning.
struct FromStart<'f> {
    file: &'f File,
    at: u64,
}

impl Read for FromStart<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n_read = self.file.read_at(buffer, self.at)?;
        self.at += n_read as u64;
        Ok(n_read)
    }
}
