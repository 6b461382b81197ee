//! Snapshots and dumps while a program runs. The thread that empties the banks makes the copies. Another thread writes
//! them to the trace's directory, so the first one need not wait.
//!
//! Not here: the choice of dumps (`dumps`), and the copy of a ring (`rftrace_frontend::bank`).

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rftrace_format::files::INFO;
use rftrace_format::recording::{Entry, Saved};
use rftrace_frontend::bank::{Banks, Collected, NoDump, Symbols};

use super::dumps::{Answer, Decision, Due, DumpControl, Made};
use super::output::publish_snapshot;
use super::processes::is_own_child;
use super::save::{OnFull, discard, save_to};
use super::terminal::say;

/// Between two looks whether anything is recorded in a ring.
const QUIET_LOOK: Duration = Duration::from_millis(50);

/// Task for the snapshots.
#[derive(Debug)]
pub(crate) enum ToSave {
    /// It is to be written; a dump is known by a number then.
    Snapshot { id: u64, collected: Collected, asker: Option<Sender<Answer>> },
    /// A dump of all records of a dead process is to be written; a part of the trace is made of them later.
    OfDeath { id: u64, collected: Collected, reason: String },
    /// One is to be removed.
    Remove(u64),
}

/// Records of a process that is over.
#[derive(Debug)]
pub(crate) struct AtEnd {
    pub(crate) collected: Collected,
    /// True if a dump of it was made, or is certain not to be made.
    pub(crate) is_decided: bool,
}

/// Has snapshots and dumps made.
#[derive(Debug)]
pub(crate) struct Maker {
    pub(crate) control: DumpControl,
    pub(crate) to: Sender<ToSave>,
    looked: Instant,
    /// Processes seen alive, and whether the recorder has started them.
    seen: HashMap<u32, bool>,
}

impl Maker {
    pub(crate) fn new(control: DumpControl, to: Sender<ToSave>) -> Self {
        Self { control, to, looked: Instant::now(), seen: HashMap::new() }
    }

    /// Makes the due ones. `None`: it is the end, and nobody lives.
    pub(crate) fn make(&mut self, banks: &mut Banks, living: Option<&[u32]>) {
        for &pid in living.unwrap_or_default() {
            self.seen.entry(pid).or_insert_with(|| is_own_child(pid));
        }
        for mut collected in banks.snapshots() {
            let dump = self.control.dumps().of_signal();
            collected.dump = Some(dump);
            self.send(ToSave::Snapshot { id: 0, collected, asker: None });
        }
        let mut quiet = Vec::new();
        if self.looked.elapsed() >= QUIET_LOOK && self.control.dumps().asks_for_quiet() {
            self.looked = Instant::now();
            quiet = banks.quiet_for();
        }
        let notices = banks.notices();
        let due = {
            let (now, mut dumps) = (Instant::now(), self.control.dumps());
            notices.iter().for_each(|notice| dumps.notice(now, notice));
            dumps.more(banks.n_more_noticed());
            if let Some(living) = living {
                dumps.look(now, living, &quiet);
            }
            dumps.take_due(now, living.unwrap_or_default())
        };
        due.into_iter().for_each(|due| self.make_one(banks, due));
        // Until then they are not given up.
        banks.hold(self.control.dumps().waited_for());
    }

    fn make_one(&mut self, banks: &mut Banks, mut due: Due) {
        let Decision::InPlaceOf(other) = self.control.dumps().decide(&due) else { return };
        let mut made = banks.dump(due.pid, due.dump.clone());
        while matches!(made, Err(NoDump::NoRoom)) {
            // Not in the loop's condition: the lock would be held within it.
            let Some(oldest) = self.control.dumps().oldest() else { break };
            self.remove(banks, oldest);
            made = banks.dump(due.pid, due.dump.clone());
        }
        let n_bytes = match made {
            Ok(n_bytes) => n_bytes,
            Err(problem) => {
                if matches!(problem, NoDump::NoRoom) && due.asker.is_none() {
                    return self.control.dumps().without_room();
                }
                return answer(due.asker, &due.dump.reason, due.pid, Err(why(&problem)));
            }
        };
        let id = self.control.dumps().made(&due, n_bytes);
        other.into_iter().for_each(|other| self.remove(banks, other));
        for collected in banks.snapshots() {
            self.send(ToSave::Snapshot { id, collected, asker: due.asker.take() });
        }
    }

    /// Has dumps made of processes that have ended and died. For the program, and for processes that ended before the
    /// first look, this is decided later. Returns those without a dump.
    pub(crate) fn make_of_deaths(&mut self, banks: &mut Banks, ended: Vec<Collected>) -> Vec<AtEnd> {
        let mut others = Vec::new();
        for collected in ended {
            let is_child = collected.fork.is_some();
            let is_decided = self.seen.remove(&collected.pid).map_or(is_child, |is_program| !is_program);
            let due = self.control.dumps().of_end(collected.pid, collected.death, None).filter(|_| is_decided);
            let decided = due.map(|due| (self.control.dumps().decide(&due), due));
            let Some((Decision::InPlaceOf(other), due)) = decided else {
                others.push(AtEnd { collected, is_decided });
                continue;
            };
            let id = self.control.dumps().made(&due, 0);
            other.into_iter().for_each(|other| self.remove(banks, other));
            self.send(ToSave::OfDeath { id, collected, reason: due.dump.reason });
        }
        others
    }

    fn remove(&self, banks: &mut Banks, made: Made) {
        self.control.dumps().removed(made);
        banks.forget_dump(made.n_bytes);
        self.send(ToSave::Remove(made.id));
    }

    /// Its receiver is there as long as this is.
    fn send(&self, to_save: ToSave) {
        let _ = self.to.send(to_save);
    }
}

fn why(problem: &NoDump) -> String {
    match problem {
        NoDump::NoProcess => "rftrace does not record this process".to_owned(),
        NoDump::NothingKept => "`rftrace live` keeps no records; use `rftrace record`".to_owned(),
        NoDump::NoRoom => "the dumps have reached their maximum size; raise --dumps-size or --max-size".to_owned(),
        NoDump::Nothing => "nothing was recorded".to_owned(),
        NoDump::Failed(error) => format!("cannot write the copied records: {error}"),
    }
}

/// Result of saving all snapshots.
#[derive(Debug, Default)]
pub(crate) struct SavedSnapshots {
    /// The paths of dumps, by their numbers.
    pub(crate) places: HashMap<u64, PathBuf>,
    /// Dead processes with parts still to be made.
    pub(crate) of_deaths: Vec<AtEnd>,
}

/// Makes a directory of each snapshot, and brings it to its place. Failures are reported.
pub(crate) fn save_snapshots(to_save: &Receiver<ToSave>, work: &Path, on_full: OnFull) -> SavedSnapshots {
    let mut saved = SavedSnapshots::default();
    for one in to_save {
        match one {
            ToSave::Snapshot { id, collected, asker } => {
                let (pid, reason) = (collected.pid, collected.dump.clone().unwrap_or_default().reason);
                let place = save_one(&collected, &reason, work, on_full);
                // Whatever came of it: a later asker has to ask again.
                let discarded = discard(collected, true);
                let place = place.and_then(|place| discarded.map(|()| place));
                if let (Ok(place), 1..) = (&place, id) {
                    saved.places.insert(id, place.clone());
                }
                answer(asker, &reason, pid, place.map_err(|error| format!("{error:#}")));
            }
            ToSave::OfDeath { id, collected, reason } => {
                match save_one(&collected, &reason, work, on_full) {
                    Ok(place) => _ = saved.places.insert(id, place),
                    Err(error) => answer(None, &reason, collected.pid, Err(format!("{error:#}"))),
                }
                saved.of_deaths.push(AtEnd { collected, is_decided: true });
            }
            ToSave::Remove(id) => {
                if let Some(place) = saved.places.remove(&id)
                    && let Err(error) = fs::remove_dir_all(&place)
                {
                    say(&format!("cannot remove {}: {error}", place.display()));
                }
            }
        }
    }
    saved
}

/// Makes a directory of a snapshot, and brings it to its place. Of an incomplete one nothing stays.
fn save_one(collected: &Collected, reason: &str, work: &Path, on_full: OnFull) -> Result<PathBuf> {
    let directory = work.join(Entry::Snapshot { pid: collected.pid, nanos: collected.ended_nanos() }.to_string());
    // Each is a trace of its own, with all symbols.
    let saved = save_to(&directory, collected, Some(reason), on_full, &mut Symbols::default()).and_then(|told| {
        if told.saved == Saved::Failed {
            bail!("{}", told.problem.unwrap_or_default());
        }
        if !directory.join(INFO).is_file() {
            bail!(if collected.is_cut {
                "the ring has no records of that time; a larger --buffer keeps more"
            } else {
                "nothing was recorded in that time"
            });
        }
        publish_snapshot(&directory, work.parent().context("the dump has no directory")?)
    });
    if saved.is_err() {
        let _ = fs::remove_dir_all(&directory);
    }
    saved
}

/// Tells the asker the place of a snapshot; without an asker the user hears of a failure.
fn answer(asker: Option<Sender<Answer>>, reason: &str, pid: u32, answer: Answer) {
    match (asker, answer) {
        // He may have gone.
        (Some(asker), answer) => _ = asker.send(answer),
        (None, Ok(_)) => {}
        (None, Err(problem)) => {
            say(&format!("cannot make a dump of process {pid} ({reason}): {problem}"));
        }
    }
}
