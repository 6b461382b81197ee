//! Running a program that nothing can be preloaded into, as it is linked statically or has musl as its C library: the tracer is put into it before it begins.
//!
//! Not here: how that is done (`rftrace-attach`), and all else of running a program ([`run`](crate::run)).

use rftrace_format::passed::Passed;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::libc::c_int;
use rftrace_attach::{Attached, Started, Wanted};

use super::attach::{Attended, Reason, attend};
use super::banks::BankRecorder;
use super::control::{Control, Spelling};
use super::entries;
use super::errands::{Errand, Errands, What};
use super::run::Way;
use super::sys;
use super::terminal::say;
use super::told::RuleEffects;

/// The tracer is put into the program by this process.
#[derive(Debug)]
pub struct Outside<'a> {
    banks: &'a BankRecorder,
    choice: Choice<'a>,
    spelling: Spelling,
    /// The signals that ask for a snapshot, and that switch recording.
    signals: [c_int; 2],
    errands: (Errands, Receiver<Errand>),
    running: Option<Running>,
    told: Told,
}

/// Selection of functions and values to record.
#[derive(Clone, Debug)]
pub struct Choice<'a> {
    /// Rules, which may be none, and where it is told which of them match anything.
    pub rules: (&'a str, &'a RuleEffects),
    /// Where it is answered what values functions have, if that is needed.
    pub types: Option<Passed>,
    /// Patterns of functions that get a branch at their beginning.
    pub branches: &'a [String],
    /// Symbols of functions that get none.
    pub exceptions: &'a [String],
    /// It has none at all if it does not lie below this folder.
    pub within: Option<&'a Path>,
    /// Recording begins switched off.
    pub is_disabled: bool,
}

/// Outcome of the recording.
#[derive(Debug, Default)]
pub struct Told {
    /// By what the recording is controlled, or why it cannot be.
    pub control: Option<io::Result<Control>>,
    /// Why the program is not recorded any more.
    pub end: Option<Reason>,
    /// Outcome for functions chosen for a branch.
    pub functions: entries::Told,
    /// As of [`Attached::is_confined`].
    pub is_confined: bool,
}

/// The program, which runs.
#[derive(Debug)]
struct Running {
    /// `None` if it has ended before it began.
    attended: Option<Attended>,
}

impl<'a> Outside<'a> {
    /// Records into banks for one process. `spelling` is that of triggers of dumps, for the controller of the recording; `signals` ask for
    /// snapshots, and switch recording.
    #[must_use]
    pub fn new(banks: &'a BankRecorder, choice: Choice<'a>, spelling: Spelling, signals: [c_int; 2]) -> Self {
        let (errands, told) = (Errands::new(), Told::default());
        Self { banks, choice, spelling, signals, errands, running: None, told }
    }
}

impl Way for Outside<'_> {
    type End = Told;

    /// It has not begun either if it cannot be recorded.
    fn begin(&mut self, command: Command) -> Result<u32> {
        let wanted = Wanted {
            library: PathBuf::new(),
            filter: self.choice.rules.0.to_owned(),
            branches: self.choice.branches.to_vec(),
            exceptions: self.choice.exceptions.to_vec(),
            within: self.choice.within.map(Path::to_owned),
            is_disabled: self.choice.is_disabled,
            types: self.choice.types.clone(),
            ..Wanted::default()
        };
        let [cannot_run, cannot_record] =
            ["run", "record"].map(|what| format!("cannot {what} {}", Path::new(command.get_program()).display()));
        let (child, mut started) = Started::begin(command).context(cannot_run)?;
        let pid = child.id();
        let attended = Attended::begin_started(&mut started, pid, &wanted, self.banks).context(cannot_record)?;
        self.told.functions = attended.as_ref().map(Attended::told).unwrap_or_default();
        self.told.is_confined = attended.as_ref().is_some_and(Attended::is_confined);
        let banks = [(pid, self.banks)].into_iter();
        self.told.control = Some(Control::of_attached(banks, self.errands.0.clone(), self.spelling));
        started.let_go()?;
        self.running = Some(Running { attended });
        Ok(pid)
    }

    fn answer(&self) -> Option<Box<dyn Fn(u32, c_int) -> bool + Send>> {
        let (dumps, [snapshot, toggle], errands) = (self.banks.dumps(), self.signals, self.errands.0.clone());
        Some(Box::new(move |pid, signal| {
            if signal == snapshot {
                // The reader of the directory finds it.
                drop(dumps.dump_by_signal(pid));
            } else if signal == toggle
                && let Some(Err(problem)) = errands.run(pid, What::Toggle)
            {
                say(&format!("recording is not switched: {problem}"));
            }
            [snapshot, toggle].contains(&signal)
        }))
    }

    /// Looks after it until then, also when it is not recorded any more.
    fn wait_for_end(&mut self, pid: u32) -> io::Result<()> {
        let Some(Running { attended }) = self.running.take() else { return sys::wait_for_end(pid) };
        let (errands, to_do) = std::mem::replace(&mut self.errands, Errands::new());
        thread::scope(|scope| {
            let ended = scope.spawn(move || {
                let ended = sys::wait_for_end(pid);
                errands.run(pid, What::Look);
                ended
            });
            let look = |_, attached: &Attached| {
                // It only loses what the user is told.
                let _ = self.choice.rules.1.add(&attached.rules_in_effect());
            };
            let ends = attend(attended.into_iter().collect(), look, || Some(Duration::MAX), &to_do);
            self.told.end = ends.into_iter().next();
            // Tells waiting senders of errands that they stay undone.
            drop(to_do);
            ended.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn finish(self, _living: &dyn Fn() -> Vec<u32>) -> Told {
        self.told
    }
}
