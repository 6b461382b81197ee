//! Answers to requests.

use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderName, HeaderValue, ORIGIN};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::body::Body;
use crate::error::Error;
use crate::zoom::Zoom;

/// Requests without the token get nothing, nor do those that name another host, such as a web page whose name was made to mean this machine.
pub(super) struct Desk {
    pub(super) port: u16,
    pub(super) token: String,
    pub(super) served: Served,
    /// Done when the page, or the file, is asked for.
    pub(super) loaded: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

pub(super) enum Served {
    Page {
        document: Bytes,
        /// The data, in two pieces.
        start: Bytes,
        events: Bytes,
    },
    /// The page asks for what is seen.
    Zoom {
        document: Bytes,
        /// The data that the page has from the beginning.
        start: Bytes,
        zoom: Box<Zoom>,
    },
    Shared {
        file: Arc<File>,
        name: &'static str,
        kind: &'static str,
        origin: &'static str,
    },
}

/// Headers of all answers: nothing is kept, or told to others.
const HEADERS: [(&str, &str); 3] =
    [("x-content-type-options", "nosniff"), ("referrer-policy", "no-referrer"), ("cache-control", "no-store")];

/// And those with the page: nothing is loaded from elsewhere.
const PAGE_HEADERS: [(&str, &str); 2] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
    ),
    ("cross-origin-resource-policy", "same-origin"),
];

/// And those for a site: its pages may read the answer, though it is from this machine. Behind these comes which site.
const SITE_HEADERS: [(&str, &str); 4] = [
    ("cross-origin-resource-policy", "cross-origin"),
    ("access-control-allow-methods", "GET"),
    ("access-control-allow-private-network", "true"),
    ("vary", "Origin"),
];

/// The longest question: all functions are searched for, each of seven digits.
const MAX_QUESTION_BYTES: usize = 16 << 20;
/// How long a question may take to come.
const QUESTION_TIME: Duration = Duration::from_secs(30);

const TEXT: &str = "text/plain; charset=utf-8";
const BINARY: &str = "application/octet-stream";

/// The thing that a request asks for.
enum Wanted {
    Document,
    Data,
    /// The answer of this name, to the question in the body.
    Asked(String),
    /// Only whether the page may ask.
    Nothing,
}

/// A status that is an error, and why.
type Refusal = (StatusCode, &'static str);

impl Desk {
    /// Answers a request. From then on `has_token` tells whether it had the token.
    pub(super) async fn respond(self: Arc<Self>, request: Request<Incoming>, has_token: &AtomicBool) -> Response<Body> {
        let (head, body) = request.into_parts();
        let file = self.check(&head).map(str::to_owned);
        has_token.fetch_or(file.is_ok(), Ordering::Relaxed);
        let wanted = file.and_then(|file| self.wanted(&head, &file));
        let has_body = !body.is_end_stream();
        let answer = match wanted {
            Ok(Wanted::Asked(name)) => match question(body).await {
                Ok(question) => Ok(self.clone().ask(name, question).await),
                Err(refusal) => Err(refusal),
            },
            Ok(_) if has_body => Err((StatusCode::PAYLOAD_TOO_LARGE, "the request must not have a body\n")),
            Ok(wanted) => Ok(self.answer(&head.method, &wanted)),
            Err(refusal) => Err(refusal),
        };
        let is_refused = answer.is_err();
        let (status, kind, body) =
            answer.unwrap_or_else(|(status, text)| (status, TEXT, Body::from(Bytes::from_static(text.as_bytes()))));
        let mut response = Response::new(body);
        *response.status_mut() = status;
        let mut add = |name: HeaderName, value| response.headers_mut().insert(name, HeaderValue::from_static(value));
        add(CONTENT_TYPE, kind);
        if is_refused {
            // The rest of the request is not read.
            add(CONNECTION, "close");
        }
        let mut add_all = |headers: &[(&'static str, &'static str)]| {
            headers.iter().for_each(|(name, value)| drop(add(HeaderName::from_static(name), value)));
        };
        add_all(&HEADERS);
        match &self.served {
            Served::Page { .. } | Served::Zoom { .. } => add_all(&PAGE_HEADERS),
            Served::Shared { origin, .. } => {
                add_all(&SITE_HEADERS);
                add_all(&[("access-control-allow-origin", origin)]);
            }
        }
        response
    }

    /// The path behind the token; an error for a request without it.
    fn check<'r>(&self, head: &'r Parts) -> Result<&'r str, Refusal> {
        let is_ours =
            |host: &str| ["127.0.0.1", "localhost"].iter().any(|name| host == format!("{name}:{}", self.port));
        let mut hosts = head.headers.get_all(HOST).iter();
        let host = hosts.next().and_then(|host| host.to_str().ok());
        // An address with a host is one for a proxy.
        if !host.is_some_and(is_ours) || hosts.next().is_some() || head.uri.authority().is_some() {
            return Err((StatusCode::FORBIDDEN, "the request names another host\n"));
        }
        let parts = head.uri.path().strip_prefix('/').and_then(|path| path.split_once('/'));
        let (token, file) = parts.ok_or((StatusCode::FORBIDDEN, "the request lacks the right token\n"))?;
        // Takes the same time wherever they differ.
        let differences = token.bytes().zip(self.token.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
        if token.len() != self.token.len() || differences != 0 {
            return Err((StatusCode::FORBIDDEN, "the request lacks the right token\n"));
        }
        Ok(file)
    }

    fn wanted(&self, head: &Parts, file: &str) -> Result<Wanted, Refusal> {
        if let (Served::Shared { origin, .. }, Some(asking)) = (&self.served, head.headers.get(ORIGIN))
            && asking != origin
        {
            return Err((StatusCode::FORBIDDEN, "the request comes from another site\n"));
        }
        match (&self.served, &head.method) {
            // Browsers ask whether they may ask.
            (Served::Shared { .. }, &Method::OPTIONS) => return Ok(Wanted::Nothing),
            (Served::Zoom { .. }, &Method::POST) => return Ok(Wanted::Asked(file.to_owned())),
            (_, &Method::GET | &Method::HEAD) => {}
            _ => return Err((StatusCode::METHOD_NOT_ALLOWED, "the method is not allowed: use GET\n")),
        }
        match (&self.served, file) {
            (Served::Page { .. } | Served::Zoom { .. }, "") => Ok(Wanted::Document),
            (Served::Page { .. } | Served::Zoom { .. }, "data") => Ok(Wanted::Data),
            (Served::Shared { name, .. }, file) if file == *name => Ok(Wanted::Data),
            _ => Err((StatusCode::NOT_FOUND, "no such file\n")),
        }
    }

    fn answer(&self, method: &Method, wanted: &Wanted) -> (StatusCode, &'static str, Body) {
        if method == Method::GET {
            let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(work) = loaded {
                work();
            }
        }
        let ok = |kind, body| (StatusCode::OK, kind, body);
        match (wanted, &self.served) {
            (Wanted::Document, Served::Page { document, .. } | Served::Zoom { document, .. }) => {
                ok("text/html; charset=utf-8", document.clone().into())
            }
            (Wanted::Data, Served::Page { start, events, .. }) => ok(BINARY, [start.clone(), events.clone()].into()),
            (Wanted::Data, Served::Zoom { start, .. }) => ok(BINARY, start.clone().into()),
            (Wanted::Data, Served::Shared { file, kind, .. }) => match Body::of_file(file) {
                Ok(body) => ok(kind, body),
                Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n").into()),
            },
            _ => (StatusCode::NO_CONTENT, TEXT, Bytes::new().into()),
        }
    }

    /// Answers a question of the page: that may take long.
    async fn ask(self: Arc<Self>, name: String, question: Vec<u8>) -> (StatusCode, &'static str, Body) {
        let answer = spawn_blocking(move || match &self.served {
            Served::Zoom { zoom, .. } => zoom.answer(&name, &question),
            Served::Page { .. } | Served::Shared { .. } => None,
        });
        match answer.await {
            Ok(Some(Ok(body))) => (StatusCode::OK, BINARY, Bytes::from(body).into()),
            Ok(Some(Err(error @ Error::Question))) => (StatusCode::BAD_REQUEST, TEXT, format!("{error}\n").into()),
            Ok(Some(Err(error))) => (StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n").into()),
            Ok(None) => (StatusCode::NOT_FOUND, TEXT, Bytes::new().into()),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n").into()),
        }
    }
}

/// Reads a page's question.
async fn question(mut body: Incoming) -> Result<Vec<u8>, Refusal> {
    let read = async {
        let mut question = Vec::new();
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            let frame = frame.map_err(io::Error::other)?;
            question.extend_from_slice(frame.data_ref().map(Bytes::as_ref).unwrap_or_default());
            if question.len() > MAX_QUESTION_BYTES {
                return Ok(None);
            }
        }
        io::Result::Ok(Some(question))
    };
    match timeout(QUESTION_TIME, read).await {
        Ok(Ok(Some(question))) => Ok(question),
        Ok(Ok(None)) => Err((StatusCode::PAYLOAD_TOO_LARGE, "the body of the request is too long\n")),
        Ok(Err(_)) => Err((StatusCode::BAD_REQUEST, "the body of the request is incomplete\n")),
        Err(_) => Err((StatusCode::REQUEST_TIMEOUT, "the body of the request comes too slowly\n")),
    }
}
