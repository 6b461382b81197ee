//! The places for a server's peers.
//!
//! A peer that has announced its trace keeps its place. If no place is free, other peers give way, as an announcement
//! takes little time.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::socket::Stream;

/// The time that a peer has to give way.
const PATIENCE: Duration = Duration::from_secs(1);

/// Them.
#[derive(Debug)]
pub(crate) struct Peers {
    most: usize,
    /// The oldest first.
    taken: Mutex<Taken>,
    /// Somebody has gone.
    gone: Condvar,
}

#[derive(Debug, Default)]
struct Taken {
    places: Vec<Held>,
    next_id: u64,
}

#[derive(Debug)]
struct Held {
    id: u64,
    /// Another handle of the connection, to end it.
    stream: Stream,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It has not told what it sends.
    Stranger,
    Kept,
    GivesWay,
}

/// A place, until this is dropped.
#[derive(Debug)]
pub(crate) struct Place<'p> {
    peers: &'p Peers,
    id: u64,
}

impl Peers {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, taken: Mutex::default(), gone: Condvar::new() }
    }

    /// A place for one more.
    ///
    /// # Errors
    ///
    /// All are taken by those who keep theirs; the system has no room for a handle.
    pub(crate) fn place(&self, stream: &Stream) -> Result<Place<'_>> {
        let stream = stream.try_clone().map_err(Error::Wait)?;
        let mut taken = self.lock();
        if taken.places.len() >= self.most {
            let stranger = taken.places.iter_mut().find(|held| held.state == State::Stranger);
            let stranger = stranger.ok_or(Error::TooManyPeers(self.most))?;
            stranger.state = State::GivesWay;
            stranger.stream.close();
            let is_full = |taken: &mut Taken| taken.places.len() >= self.most;
            let waited = self.gone.wait_timeout_while(taken, PATIENCE, is_full);
            taken = waited.unwrap_or_else(PoisonError::into_inner).0;
            if is_full(&mut taken) {
                return Err(Error::TooManyPeers(self.most));
            }
        }
        let id = taken.next_id;
        taken.next_id += 1;
        taken.places.push(Held { id, stream, state: State::Stranger });
        Ok(Place { peers: self, id })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place<'_> {
    /// The peer keeps it.
    ///
    /// # Errors
    ///
    /// It has given way.
    pub(crate) fn keep(&self) -> Result<()> {
        let mut taken = self.peers.lock();
        let own = taken.places.iter_mut().find(|held| held.id == self.id);
        match own {
            Some(held) if held.state != State::GivesWay => {
                held.state = State::Kept;
                Ok(())
            }
            _ => Err(Error::GaveWay(self.peers.most)),
        }
    }

    /// The error of the connection, if it has given way.
    pub(crate) fn why_it_gave_way(&self) -> Option<Error> {
        let taken = self.peers.lock();
        let gives_way = taken.places.iter().any(|held| held.id == self.id && held.state == State::GivesWay);
        gives_way.then_some(Error::GaveWay(self.peers.most))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.peers.lock().places.retain(|held| held.id != self.id);
        self.peers.gone.notify_all();
    }
}
