//! Serves a page to browsers of this machine.

use std::io::{self, Cursor, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread;

use tiny_http::{Header, Method, Request, Response};

use crate::error::{Error, Result};
use crate::html::document;
use crate::pack::Page;

/// Serves one page, at an address of this machine that nobody guesses.
///
/// Who has not the token, or names another host, such as a web page whose name was made to mean this machine, gets nothing.
pub struct Server {
    http: tiny_http::Server,
    port: u16,
    token: String,
    files: Arc<Files>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("port", &self.port).finish_non_exhaustive()
    }
}

struct Files {
    document: String,
    /// The data, in two pieces.
    start: Vec<u8>,
    events: Vec<u8>,
}

/// What all answers say: nothing is loaded from elsewhere, kept, or told to others.
const HEADERS: [(&str, &str); 5] = [
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
];

impl Server {
    /// Listens to 127.0.0.1; any free port is taken for 0.
    ///
    /// # Errors
    ///
    /// The port is taken.
    pub fn bind(page: Page, port: u16) -> Result<Self> {
        let listen = |error: Box<dyn std::error::Error + Send + Sync>| match error.downcast::<io::Error>() {
            Ok(error) => Error::Listen(*error),
            Err(error) => Error::Listen(io::Error::other(error)),
        };
        let http = tiny_http::Server::http(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).map_err(listen)?;
        let port = http.server_addr().to_ip().map_or(port, |address| address.port());
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|error| Error::Listen(io::Error::other(error)))?;
        let token = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let (start, events) = page.into_parts();
        Ok(Self { http, port, token, files: Arc::new(Files { document: document(), start, events }) })
    }

    /// Where the page is.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/{}/", self.port, self.token)
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
            let files = Arc::clone(&self.files);
            // A thread each: who reads slowly makes nobody wait. What a browser that has gone does not take is nobody's loss.
            thread::spawn(move || drop(respond(request, answer, &files)));
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
        if !matches!(request.method(), Method::Get | Method::Head) {
            return Answer::Error(405, "only GET\n");
        }
        match file {
            "" => Answer::Document,
            "data" => Answer::Data,
            _ => Answer::Error(404, "no such file\n"),
        }
    }
}

#[derive(Clone, Copy)]
enum Answer {
    Document,
    Data,
    Error(u16, &'static str),
}

fn respond(request: Request, answer: Answer, files: &Files) -> io::Result<()> {
    let (status, kind, length, body): (_, _, _, Box<dyn Read + '_>) = match answer {
        Answer::Document => {
            (200, "text/html; charset=utf-8", files.document.len(), Box::new(files.document.as_bytes()))
        }
        Answer::Data => {
            let body = Cursor::new(&files.start).chain(Cursor::new(&files.events));
            (200, "application/octet-stream", files.start.len() + files.events.len(), Box::new(body))
        }
        Answer::Error(status, text) => (status, "text/plain; charset=utf-8", text.len(), Box::new(text.as_bytes())),
    };
    let headers = HEADERS.into_iter().chain([("Content-Type", kind)]);
    let headers = headers.filter_map(|(name, value)| Header::from_bytes(name, value).ok()).collect();
    request.respond(Response::new(status.into(), headers, body, Some(length), None))
}
