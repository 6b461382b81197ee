//! The body of an answer, piece by piece.

use std::fs::File;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hyper::body::{self, Bytes, Frame, SizeHint};
use tokio::task::{JoinHandle, spawn_blocking};

/// Bytes of a file that are read at a time.
const PIECE_BYTES: u64 = 256 << 10;

/// A body.
pub(super) enum Body {
    /// Pieces in memory, the last one first.
    Pieces(Vec<Bytes>),
    /// A file that several read at once, each from its beginning.
    File(FromStart),
}

pub(super) struct FromStart {
    file: Arc<File>,
    at: u64,
    end: u64,
    /// The next piece, which a thread reads that may wait for the disk.
    next: Option<JoinHandle<io::Result<Bytes>>>,
}

impl Body {
    pub(super) fn of_file(file: &Arc<File>) -> io::Result<Self> {
        let end = file.metadata()?.len();
        Ok(Self::File(FromStart { file: Arc::clone(file), at: 0, end, next: None }))
    }

    fn n_left(&self) -> u64 {
        match self {
            Self::Pieces(pieces) => pieces.iter().map(|piece| piece.len() as u64).sum(),
            Self::File(file) => file.end - file.at,
        }
    }
}

impl<const N: usize> From<[Bytes; N]> for Body {
    fn from(pieces: [Bytes; N]) -> Self {
        Self::Pieces(pieces.into_iter().rev().collect())
    }
}

impl From<Bytes> for Body {
    fn from(piece: Bytes) -> Self {
        [piece].into()
    }
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match &mut *self {
            Self::Pieces(pieces) => Poll::Ready(pieces.pop().map(|piece| Ok(Frame::data(piece)))),
            Self::File(file) => file.poll_next(context).map(|piece| piece.map(|piece| piece.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.n_left() == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.n_left())
    }
}

impl FromStart {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let (at, left) = (self.at, self.end - self.at);
        if left == 0 {
            return Poll::Ready(None);
        }
        let next = self.next.get_or_insert_with(|| {
            let file = Arc::clone(&self.file);
            spawn_blocking(move || {
                let mut piece = vec![0; left.min(PIECE_BYTES) as usize];
                file.read_exact_at(&mut piece, at).map(|()| piece.into())
            })
        });
        let piece = ready!(Pin::new(next).poll(context));
        self.next = None;
        let piece = piece.unwrap_or_else(|_| Err(ErrorKind::Interrupted.into()));
        self.at += piece.as_ref().map_or(0, |piece| piece.len() as u64);
        Poll::Ready(Some(piece))
    }
}
