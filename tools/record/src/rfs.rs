//! The recording as a stream for a client: the bytes that a receiver gets, from the beginning of each running process.
//! A thread reads the spools, so a slow client delays no program.
//!
//! Not here: the content of the stream (`spools`).

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use rftrace_frontend::bank::SPOOL_VERSIONS;
use rftrace_net::stream::{self, Follows, Hello};

use super::access::Access;
use super::banks::NO_THREAD;
use super::processes::start_time;
use super::sender::{BEAT, PAUSE};
use super::spools::Spools;

/// Pieces waiting for the client, of 256 KiB at the most.
const MOST_WAITING: usize = 8;

/// The place of the recording, and the sign of its end.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) banks: Access,
    /// The folder with the spools.
    pub(crate) work: PathBuf,
    /// The root directory for paths of the processes, if it is not this process's.
    pub(crate) root: Option<PathBuf>,
    /// True if spools may be gone: a client without them has come too late.
    pub(crate) is_given_up: Arc<AtomicBool>,
}

/// The stream of a process, or of all, piece by piece. It lacks its end if not all of it could be read.
pub(crate) fn begin(source: Source, pid: Option<u32>) -> Result<impl Iterator<Item = Vec<u8>>, String> {
    let (to, from): (_, Receiver<Vec<u8>>) = mpsc::sync_channel(MOST_WAITING);
    // After a failure the stream has no end, and its reader sees this.
    let send = move || _ = send(&source, pid, &to);
    thread::Builder::new().name("stream".to_owned()).spawn(send).map_err(|_| NO_THREAD.to_owned())?;
    Ok(from.into_iter())
}

fn send(source: &Source, pid: Option<u32>, to: &SyncSender<Vec<u8>>) -> Result<()> {
    let heard = Cell::new(Instant::now());
    let mut pass_on = |bytes: &[u8]| {
        heard.set(Instant::now());
        to.send(bytes.to_vec()).map_err(|_| anyhow!("the client has closed the stream"))
    };
    let dir = source.work.parent().unwrap_or(&source.work);
    let name = rftrace_net::send::name_of(dir).into_bytes();
    let hello = Hello { follows: Follows::Sections, versions: SPOOL_VERSIONS, token: None, name };
    pass_on(&stream::hello(&hello))?;
    let started = pid.map(start_time);
    let mut spools = Spools::new(pid, source.root.clone());
    loop {
        let processes = source.banks.with(|banks| banks.processes());
        // Records from before the end are sent below. Between two programs a process has no bank.
        let is_last = match (&processes, pid) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(processes), Some(pid)) => !processes.contains(&pid) && started != Some(start_time(pid)),
        };
        spools.send(&source.work, is_last, &mut pass_on)?;
        if is_last {
            if processes.is_none() && source.is_given_up.load(Relaxed) {
                bail!("the recording is over, and its files may be deleted");
            }
            return pass_on(&spools.end(0));
        }
        if heard.get().elapsed() >= BEAT {
            pass_on(&stream::beat())?;
        }
        thread::sleep(PAUSE);
    }
}
