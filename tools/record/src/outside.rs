//! Running a program that cannot get a preloaded library, as it is linked statically or uses musl: the tracer is put
//! into it before it begins.
//!
//! Not here: the way into the program (`rftrace-attach`), and the rest of running a program ([`run`](crate::run)).

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
use rftrace_frontend::Ends;

use super::attach::{Attended, Reason, attend};
use super::banks::BankRecorder;
use super::control::{Control, Spelling};
use super::entries;
use super::errands::{Errand, Errands, What};
use super::run::Way;
use super::sys;
use super::terminal::say;
use super::told::RuleEffects;

/// A runner that puts the tracer into the program.
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

/// The functions and values to record.
#[derive(Clone, Debug)]
pub struct Choice<'a> {
    /// The filter rules, maybe empty, and the place for reports on rules that match anything.
    pub rules: (&'a str, &'a RuleEffects),
    /// The socket that answers questions about functions' values, if that is needed.
    pub types: Option<Passed>,
    /// The patterns of functions that get a branch at their beginning.
    pub branches: &'a [String],
    /// The symbols of functions that get none.
    pub exceptions: &'a [String],
    /// The way to see the ends of these functions; `None` for the way that the program needs.
    pub ends: Option<Ends>,
    /// The folder of programs that get branches; another program gets none.
    pub within: Option<&'a Path>,
    /// True to begin with recording off.
    pub is_disabled: bool,
}

/// The outcome of the recording.
#[derive(Debug, Default)]
pub struct Told {
    /// The listener for `rftrace ctl`, or the reason why there is none.
    pub control: Option<io::Result<Control>>,
    /// The reason why the program is no longer recorded.
    pub end: Option<Reason>,
    /// The result for functions chosen for a branch.
    pub functions: entries::Told,
    /// True if the process is confined, see [`Attached::is_confined`].
    pub is_confined: bool,
}

/// The running program.
#[derive(Debug)]
struct Running {
    /// `None` if it has ended before it began.
    attended: Option<Attended>,
}

impl<'a> Outside<'a> {
    /// Creates the runner with banks for one process. `spelling` is that of dump triggers, for `rftrace ctl`. The two
    /// `signals` request a snapshot, and start and stop recording.
    #[must_use]
    pub fn new(banks: &'a BankRecorder, choice: Choice<'a>, spelling: Spelling, signals: [c_int; 2]) -> Self {
        let (errands, told) = (Errands::new(), Told::default());
        Self { banks, choice, spelling, signals, errands, running: None, told }
    }
}

impl Way for Outside<'_> {
    type End = Told;

    /// It has not begun either if it cannot be recorded.
    fn begin(&mut self, command: Command, is_there: &mut dyn FnMut(u32)) -> Result<u32> {
        let wanted = Wanted {
            library: PathBuf::new(),
            filter: self.choice.rules.0.to_owned(),
            branches: self.choice.branches.to_vec(),
            exceptions: self.choice.exceptions.to_vec(),
            ends: self.choice.ends,
            within: self.choice.within.map(Path::to_owned),
            is_disabled: self.choice.is_disabled,
            types: self.choice.types.clone(),
            ..Wanted::default()
        };
        let [cannot_run, cannot_record] =
            ["run", "record"].map(|what| format!("cannot {what} {}", Path::new(command.get_program()).display()));
        let (child, mut started) = Started::begin(command).context(cannot_run)?;
        let pid = child.id();
        is_there(pid);
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
                say(&format!("cannot switch recording: {problem}"));
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
                // This only loses a message for the user.
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
