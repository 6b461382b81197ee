//! The choice of dumps and their times. The decision is made here, from events of the processes; `banks` makes the
//! dumps.
//!
//! Not here: the spelling of triggers (the command), and the copy of a ring (`rftrace_frontend::bank`).

use std::collections::{HashMap, HashSet};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rftrace_format::ending::signal_name;
use rftrace_frontend::bank::{Death, Dump, Notice, RAISED};

use super::run::Ended;

/// The trigger of a dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpOn {
    /// The text in which the user specified it, which is the dump's reason.
    pub text: String,
    /// The event.
    pub event: Event,
    /// The extent of the dump.
    pub extent: Extent,
}

/// An event that triggers a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The program gets a signal. The library in it requests the dump.
    Signal(i32),
    /// A process dies, or the program ends with a status other than 0.
    Fatal,
    /// Nothing was recorded for this time.
    Stall(Duration),
    /// This time has passed, again and again.
    Every(Duration),
    /// A function is called. The tracer notices the call, and reports it by its number.
    Call,
    /// A panic of Rust begins to unwind.
    Panic,
    /// An exception of C++ is thrown.
    Throw,
}

/// The part of the ring in a dump, and the frequency of dumps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// The time after the event that the dump includes.
    pub after: Duration,
    /// True to include only the thread with the event.
    pub is_of_thread: bool,
    /// The maximum time before the dump's end.
    pub last: Option<Duration>,
    /// True to make a dump each time, otherwise once a second at most.
    pub is_burst: bool,
    /// The maximum number of dumps.
    pub times: Option<u32>,
}

/// The choice of dumps to keep, if more are due than the maximum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// The first ones: no more are made after that.
    #[default]
    First,
    /// The last ones: older ones are removed.
    Last,
    /// Those of the longest calls.
    Slowest,
}

/// The options for dumps.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The triggers.
    pub on: Vec<DumpOn>,
    /// The maximum number of dumps, not counting requested ones.
    pub most: usize,
    /// The choice of dumps to keep.
    pub keep: Keep,
    /// The maximum number of bytes of rings in all dumps.
    pub most_bytes: u64,
    /// The signal that requests a dump; 0 for none.
    pub signal: i32,
    /// True for processes that ran before they were recorded.
    pub of_running: bool,
}

impl Options {
    /// Returns the reason why an event cannot trigger dumps; `None` if it can.
    #[must_use]
    pub fn refusal(&self, event: Event) -> Option<&'static str> {
        if !self.of_running {
            return None;
        }
        match event {
            Event::Signal(_) => {
                Some("an attached program keeps its own signal handlers: make dumps with `rftrace ctl PID dump`")
            }
            Event::Fatal => {
                Some("only its parent learns how an attached program ends; its last calls are in the trace anyway")
            }
            Event::Panic | Event::Throw => Some(
                "rftrace does not see panics and exceptions of an attached program: use `call:FUNCTION` with a \
                 function that raises them",
            ),
            Event::Stall(_) | Event::Every(_) | Event::Call => None,
        }
    }
}

/// The answer to a requested dump: its path, or the reason why there is none.
pub type Answer = Result<PathBuf, String>;

/// A due dump.
#[derive(Clone, Debug)]
pub(crate) struct Due {
    pub(crate) pid: u32,
    pub(crate) dump: Dump,
    /// The duration of the call for it, in ticks.
    lasted_ticks: u64,
    /// Sender of the request for it. A requested dump does not count.
    pub(crate) asker: Option<Sender<Answer>>,
}

/// A dump that was made, and counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Made {
    pub(crate) id: u64,
    pub(crate) n_bytes: u64,
    lasted_ticks: u64,
}

/// Decision on a due dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It is not made.
    No,
    /// It is; another one is removed then.
    InPlaceOf(Option<Made>),
}

/// The numbers of due dumps that do not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotThere {
    /// The number of dumps that were due after the maximum was reached.
    pub n_more: usize,
    /// The number of dumps that were removed for later ones.
    pub n_removed: usize,
    /// The number of dumps for which there was no room.
    pub n_without_room: usize,
}

/// Decides which dumps are due.
#[derive(Debug)]
pub(crate) struct Dumps {
    options: Options,
    /// By their numbers; removed ones are `None`.
    on: Vec<Option<DumpOn>>,
    made: Vec<Made>,
    n_made: u64,
    not_there: NotThere,
    /// When those of [`Event::Every`] were last due, by process and number.
    every: HashMap<(u32, usize), Instant>,
    /// Idle processes with a dump already.
    stalled: HashSet<(u32, usize)>,
    /// When the last dump was due by each number, of calls, and how many were.
    called: HashMap<usize, (Instant, u32)>,
    /// Dumps to be made later, or with the next look.
    waiting: Vec<(Instant, Due)>,
    /// No more are made.
    is_over: bool,
}

/// Between two dumps of the same calls.
const CALL_PAUSE: Duration = Duration::from_secs(1);

impl Dumps {
    pub(crate) fn new(options: Options) -> Self {
        Self {
            on: options.on.iter().cloned().map(Some).collect(),
            options,
            made: Vec::new(),
            n_made: 0,
            not_there: NotThere::default(),
            every: HashMap::new(),
            stalled: HashSet::new(),
            called: HashMap::new(),
            waiting: Vec::new(),
            is_over: false,
        }
    }

    fn each(&self) -> impl Iterator<Item = (usize, &DumpOn)> {
        self.on.iter().enumerate().filter_map(|(number, on)| Some((number, on.as_ref()?)))
    }

    fn first(&self, event: Event) -> Option<&DumpOn> {
        self.each().map(|(_, on)| on).find(|on| on.event == event)
    }

    /// True if the recorder must know for how long nothing was recorded.
    pub(crate) fn asks_for_quiet(&self) -> bool {
        self.each().any(|(_, on)| matches!(on.event, Event::Stall(_)))
    }

    /// From now on none is made, and askers get no answer.
    pub(crate) fn end(&mut self) {
        self.is_over = true;
        self.waiting.clear();
    }

    /// Finds the dumps due `now`, given the recorded processes, and for how long some of them have been quiet.
    pub(crate) fn look(&mut self, now: Instant, living: &[u32], quiet: &[(u32, Duration)]) {
        for (number, on) in self.on.iter().enumerate() {
            let Some(on) = on else { continue };
            let mut add = |pid| self.waiting.push((now, Due::new(pid, on, None)));
            match on.event {
                Event::Every(pause) => {
                    self.every.retain(|(pid, of), _| *of != number || living.contains(pid));
                    for &pid in living {
                        let last = self.every.entry((pid, number)).or_insert(now);
                        if now.duration_since(*last) >= pause {
                            *last = now;
                            add(pid);
                        }
                    }
                }
                Event::Stall(least) => {
                    self.stalled.retain(|(pid, of)| *of != number || living.contains(pid));
                    for &(pid, quiet_for) in quiet {
                        if quiet_for < least {
                            self.stalled.remove(&(pid, number));
                        } else if self.stalled.insert((pid, number)) {
                            add(pid);
                        }
                    }
                }
                Event::Signal(_) | Event::Fatal | Event::Call | Event::Panic | Event::Throw => {}
            }
        }
    }

    /// So many more were due; nothing else is known of them.
    pub(crate) fn more(&mut self, n_more: u64) {
        let n_more = usize::try_from(n_more).unwrap_or(usize::MAX);
        self.not_there.n_more = self.not_there.n_more.saturating_add(n_more);
    }

    /// Something was noticed in a process `now`.
    pub(crate) fn notice(&mut self, now: Instant, notice: &Notice) {
        self.more(notice.n_more);
        let is_it = |&(number, on): &(usize, &DumpOn)| match RAISED.iter().position(|&it| it == notice.number) {
            Some(kind) => on.event == [Event::Panic, Event::Throw][kind],
            None => on.event == Event::Call && number as u64 == notice.number,
        };
        // A process may write anything there.
        let Some((number, on)) = self.each().find(is_it) else { return };
        let (last, n_due) = self.called.get(&number).map_or((None, 0), |&(last, n_due)| (Some(last), n_due));
        if on.extent.times.is_some_and(|times| n_due >= times) {
            return;
        }
        if !on.extent.is_burst && last.is_some_and(|last| now.duration_since(last) < CALL_PAUSE) {
            self.not_there.n_more += 1;
            return;
        }
        let due = (now + on.extent.after, Due::new(notice.pid, on, Some(notice)));
        self.called.insert(number, (now, n_due.saturating_add(1)));
        self.waiting.push(due);
    }

    /// Takes the dumps to be made `now`: their time has come, or their process is gone.
    pub(crate) fn take_due(&mut self, now: Instant, living: &[u32]) -> Vec<Due> {
        let is_due = |(at, due): &mut (Instant, Due)| *at <= now || !living.contains(&due.pid);
        let mut due: Vec<Due> = self.waiting.extract_if(.., is_due).map(|(_, due)| due).collect();
        // In the order of events; the others are of now.
        due.sort_by_key(|due| due.dump.tsc.unwrap_or(u64::MAX));
        due
    }

    /// The processes with dumps to be made later.
    pub(crate) fn waited_for(&self) -> Vec<u32> {
        self.waiting.iter().map(|(_, due)| due.pid).collect()
    }

    /// Decides whether one more dump is made. If so, [`made`](Self::made) has to be told.
    pub(crate) fn decide(&mut self, due: &Due) -> Decision {
        if due.asker.is_some() || self.made.len() < self.options.most {
            return Decision::InPlaceOf(None);
        }
        let least = match self.options.keep {
            Keep::First => None,
            Keep::Last => self.made.first(),
            Keep::Slowest => {
                let least = self.made.iter().min_by_key(|made| made.lasted_ticks);
                least.filter(|made| made.lasted_ticks < due.lasted_ticks)
            }
        };
        if least.is_none() {
            self.not_there.n_more += 1;
        }
        least.map_or(Decision::No, |&made| Decision::InPlaceOf(Some(made)))
    }

    /// Returns the dump to remove for one more: the oldest, if the last ones are to stay.
    pub(crate) fn oldest(&self) -> Option<Made> {
        self.made.first().copied().filter(|_| self.options.keep == Keep::Last)
    }

    /// A dump of so many bytes was made. Returns its number.
    pub(crate) fn made(&mut self, due: &Due, n_bytes: u64) -> u64 {
        self.n_made += 1;
        let id = self.n_made;
        if due.asker.is_none() {
            self.made.push(Made { id, n_bytes, lasted_ticks: due.lasted_ticks });
        }
        id
    }

    /// A made dump is removed.
    pub(crate) fn removed(&mut self, made: Made) {
        self.made.retain(|other| other.id != made.id);
        self.not_there.n_removed += 1;
    }

    /// There was no room for one.
    pub(crate) fn without_room(&mut self) {
        self.not_there.n_without_room += 1;
    }

    /// And these of other processes.
    pub(crate) fn add_not_there(&mut self, of_others: NotThere) {
        let NotThere { n_more, n_removed, n_without_room } = &mut self.not_there;
        *n_more = n_more.saturating_add(of_others.n_more);
        *n_removed += of_others.n_removed;
        *n_without_room += of_others.n_without_room;
    }

    /// Returns the numbers of due dumps that are not there.
    pub(crate) fn not_there(&self) -> NotThere {
        self.not_there
    }

    /// Returns the dump triggered by the end of a process: it died, or is the program and `ended` badly.
    pub(crate) fn of_end(&self, pid: u32, death: Option<Death>, ended: Option<&Ended>) -> Option<Due> {
        let on = self.first(Event::Fatal)?;
        let how = match (ended.map(|ended| (ended.status.signal(), ended.status.code())), death) {
            (Some((Some(signal), _)), _) => format!("killed by {}", signal_name(signal)),
            (Some((None, Some(0))), _) | (None | Some((None, None)), None) => return None,
            (Some((None, Some(status))), _) => format!("exit status {status}"),
            (_, Some(Death::Signal(signal))) => format!("killed by {}", signal_name(signal.cast_signed())),
            (_, Some(Death::WithoutWord)) => "it ended without notice".to_owned(),
        };
        let mut due = Due::new(pid, on, None);
        due.dump.reason = format!("{}: {how}", on.text);
        Some(due)
    }

    /// Returns the trigger of a dump requested by a signal to the process.
    pub(crate) fn of_signal(&self) -> Dump {
        let signal = self.options.signal;
        match self.first(Event::Signal(signal)) {
            Some(on) => Due::new(0, on, None).dump,
            None => {
                Dump { reason: format!("signal:{}", signal_name(signal).trim_start_matches("SIG")), ..Dump::default() }
            }
        }
    }
}

impl Due {
    fn new(pid: u32, on: &DumpOn, notice: Option<&Notice>) -> Self {
        let dump = Dump {
            reason: on.text.clone(),
            tsc: notice.map(|notice| notice.tsc),
            thread: notice.and_then(|notice| notice.thread),
            after: on.extent.after,
            is_of_thread: on.extent.is_of_thread,
            last: on.extent.last,
        };
        Self { pid, dump, lasted_ticks: notice.map_or(0, |notice| notice.lasted_ticks), asker: None }
    }
}

/// A handle that requests dumps during a recording, and changes the triggers. Any thread may use it.
#[derive(Clone, Debug)]
pub struct DumpControl(Arc<Mutex<Dumps>>);

impl DumpControl {
    pub(crate) fn new(options: Options) -> Self {
        Self(Arc::new(Mutex::new(Dumps::new(options))))
    }

    pub(crate) fn dumps(&self) -> MutexGuard<'_, Dumps> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests a dump of a process: of its ring, or of its whole stream. The answer comes through the returned channel
    /// as soon as the dump is written; there is none if the recording has ended. Requested dumps do not count towards
    /// the limit of the options.
    #[must_use]
    pub fn dump(&self, pid: u32, reason: &str) -> Receiver<Answer> {
        self.ask(pid, Dump { reason: reason.to_owned(), ..Dump::default() })
    }

    /// The same as by a signal to the process, without the signal.
    pub(crate) fn dump_by_signal(&self, pid: u32) -> Receiver<Answer> {
        let dump = self.dumps().of_signal();
        self.ask(pid, dump)
    }

    fn ask(&self, pid: u32, dump: Dump) -> Receiver<Answer> {
        let (asker, answer) = mpsc::channel();
        let due = Due { pid, dump, lasted_ticks: 0, asker: Some(asker) };
        let mut dumps = self.dumps();
        if !dumps.is_over {
            dumps.waiting.push((Instant::now(), due));
        }
        answer
    }

    /// Adds a trigger, for rings only. Returns its number.
    ///
    /// For [`Event::Call`] the caller also sends the process the rule `watch=NUMBER:TEXT` for its filter. Signals are
    /// limited to those at the beginning. Panics and exceptions are noticed only if they were triggers at the
    /// beginning.
    #[must_use]
    pub fn add(&self, on: DumpOn) -> usize {
        let mut dumps = self.dumps();
        dumps.on.push(Some(on));
        dumps.on.len() - 1
    }

    /// Removes the trigger with this number. Returns whether it existed.
    pub fn remove(&self, number: usize) -> bool {
        self.dumps().on.get_mut(number).and_then(Option::take).is_some()
    }

    /// Returns the signal that requests a dump; 0 for none.
    #[must_use]
    pub fn signal(&self) -> i32 {
        self.dumps().options.signal
    }

    /// Returns the same as [`Options::refusal`].
    #[must_use]
    pub fn refusal(&self, event: Event) -> Option<&'static str> {
        self.dumps().options.refusal(event)
    }

    /// Returns the triggers with their numbers.
    #[must_use]
    pub fn list(&self) -> Vec<(usize, DumpOn)> {
        self.dumps().each().map(|(number, on)| (number, on.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::process::ExitStatus;

    use super::*;

    fn dumps_with(on: &[(&str, Event, Extent)], most: usize, keep: Keep) -> Dumps {
        let on = on.iter().map(|&(text, event, extent)| DumpOn { text: text.to_owned(), event, extent }).collect();
        Dumps::new(Options { on, most, keep, most_bytes: u64::MAX, signal: 10, of_running: false })
    }

    fn dumps(on: &[(&str, Event)], most: usize) -> Dumps {
        let on: Vec<_> = on.iter().map(|&(text, event)| (text, event, Extent::default())).collect();
        dumps_with(&on, most, Keep::First)
    }

    fn of(due: Vec<Due>) -> Vec<(u32, String)> {
        due.into_iter().map(|due| (due.pid, due.dump.reason)).collect()
    }

    fn notice(number: u64, n_more: u64) -> Notice {
        Notice { pid: 7, number, tsc: 99, thread: Some(3), lasted_ticks: 5, n_more }
    }

    #[test]
    fn every_so_often_for_each_process() {
        let mut dumps = dumps(&[("every:2s", Event::Every(Duration::from_secs(2)))], 10);
        let start = Instant::now();
        let mut due = |seconds, living: &[u32]| {
            let now = start + Duration::from_secs(seconds);
            dumps.look(now, living, &[]);
            of(dumps.take_due(now, living))
        };
        let every = |pid| (pid, "every:2s".to_owned());
        assert_eq!(due(0, &[7]), []);
        assert_eq!(due(1, &[7, 8]), []);
        assert_eq!(due(2, &[7, 8]), [every(7)]);
        assert_eq!(due(3, &[7, 8]), [every(8)]);
        assert_eq!(due(4, &[8]), []);
        // Another process with the same number.
        assert_eq!(due(5, &[7, 8]), [every(8)]);
        assert_eq!(due(6, &[7]), []);
        assert_eq!(due(7, &[7]), [every(7)]);
    }

    #[test]
    fn once_for_each_stall() {
        let mut dumps = dumps(&[("stall:1s", Event::Stall(Duration::from_secs(1)))], 10);
        assert!(dumps.asks_for_quiet());
        let mut due = |millis| {
            dumps.look(Instant::now(), &[7], &[(7, Duration::from_millis(millis))]);
            dumps.take_due(Instant::now(), &[7]).len()
        };
        assert_eq!([0, 999, 1000, 2000, 10, 1500, 1600].map(&mut due), [0, 0, 1, 0, 0, 1, 0]);
    }

    #[test]
    fn calls_at_most_once_a_second() {
        let mut dumps = dumps(&[("fatal", Event::Fatal), ("call:f", Event::Call)], 10);
        let start = Instant::now();
        let mut due = |millis, number, n_more| {
            let now = start + Duration::from_millis(millis);
            dumps.notice(now, &notice(number, n_more));
            let due = dumps.take_due(now, &[7]);
            (due.into_iter().map(|due| due.dump).collect::<Vec<_>>(), dumps.not_there().n_more)
        };
        let dump = Dump { reason: "call:f".to_owned(), tsc: Some(99), thread: Some(3), ..Dump::default() };
        assert_eq!(due(0, 1, 0), (vec![dump.clone()], 0));
        assert_eq!(due(999, 1, 3), (vec![], 4));
        assert_eq!(due(1000, 1, 0), (vec![dump], 4));
        // A process may write anything there.
        assert_eq!([2, 0, RAISED[0]].map(|number| due(5000, number, 0).0.len()), [0; 3]);
    }

    #[test]
    fn a_burst_and_what_comes_after() {
        let after = Duration::from_millis(10);
        let last = Some(Duration::from_secs(1));
        let extent = Extent { after, is_of_thread: true, last, is_burst: true, times: Some(4) };
        let mut dumps = dumps_with(&[("panic", Event::Panic, extent)], 10, Keep::First);
        let start = Instant::now();
        (0..3).for_each(|_| dumps.notice(start, &notice(RAISED[0], 0)));
        assert!(dumps.take_due(start + after / 2, &[7]).is_empty());
        assert_eq!(dumps.waited_for(), [7; 3]);
        let due = dumps.take_due(start + after, &[7]);
        let is_right = |due: &Due| due.dump.after == after && due.dump.is_of_thread && due.dump.last == extent.last;
        assert!(due.len() == 3 && due.iter().all(is_right));
        // The process is over: there is nothing more to come.
        dumps.notice(start, &notice(RAISED[0], 0));
        assert_eq!(dumps.take_due(start, &[8]).len(), 1);
        assert!(dumps.waited_for().is_empty());
        // This was the fourth.
        dumps.notice(start, &notice(RAISED[0], 0));
        assert!(dumps.waited_for().is_empty());
    }

    /// The dumps left after all of these, by how long their calls lasted.
    fn kept(keep: Keep, most: usize, lasted: &[u64]) -> (Vec<u64>, NotThere) {
        let mut dumps = dumps_with(&[("slow:f>max", Event::Call, Extent::default())], most, keep);
        for &lasted_ticks in lasted {
            let due = Due { pid: 7, dump: Dump::default(), lasted_ticks, asker: None };
            if let Decision::InPlaceOf(other) = dumps.decide(&due) {
                dumps.made(&due, 1);
                other.into_iter().for_each(|other| dumps.removed(other));
            }
        }
        (dumps.made.iter().map(|made| made.lasted_ticks).collect(), dumps.not_there())
    }

    #[test]
    fn enough_are_made() {
        let not_there = |n_more, n_removed| NotThere { n_more, n_removed, n_without_room: 0 };
        let lasted = [5, 9, 1, 7, 3];
        assert_eq!(kept(Keep::First, 2, &lasted), (vec![5, 9], not_there(3, 0)));
        assert_eq!(kept(Keep::Last, 2, &lasted), (vec![7, 3], not_there(0, 3)));
        assert_eq!(kept(Keep::Slowest, 2, &lasted), (vec![9, 7], not_there(2, 1)));
        for keep in [Keep::First, Keep::Last, Keep::Slowest] {
            assert_eq!(kept(keep, 0, &[1]), (vec![], not_there(1, 0)));
        }
    }

    #[test]
    fn who_asks_gets_one() {
        let control = DumpControl::new(Options::default());
        let answer = control.dump(7, "why");
        let due = control.dumps().take_due(Instant::now(), &[7]).remove(0);
        assert_eq!(control.dumps().decide(&due), Decision::InPlaceOf(None));
        assert_eq!((due.pid, due.dump.reason.as_str()), (7, "why"));
        due.asker.unwrap().send(Ok("there".into())).unwrap();
        assert_eq!(answer.recv().unwrap(), Ok(PathBuf::from("there")));
    }

    #[test]
    fn what_they_are_made_on_changes() {
        let control = DumpControl::new(Options { most: 1, ..Options::default() });
        let on = |text: &str| DumpOn { text: text.to_owned(), event: Event::Call, extent: Extent::default() };
        assert_eq!(["call:f", "call:g"].map(|text| control.add(on(text))), [0, 1]);
        assert_eq!(control.list(), [(0, on("call:f")), (1, on("call:g"))]);
        assert!(control.remove(0) && !control.remove(0) && !control.remove(9));
        assert_eq!((control.list(), control.add(on("call:h"))), (vec![(1, on("call:g"))], 2));
        for number in 0..3 {
            control.dumps().notice(Instant::now(), &notice(number, 0));
        }
        let due = control.dumps().take_due(Instant::now(), &[7]);
        assert_eq!(of(due).into_iter().map(|(_, reason)| reason).collect::<Vec<_>>(), ["call:g", "call:h"]);
    }

    #[test]
    fn what_is_fatal() {
        let dumps = dumps(&[("fatal", Event::Fatal)], 2);
        let ended = |raw| Ended {
            pid: 7,
            status: ExitStatus::from_raw(raw),
            elapsed: Duration::ZERO,
            usage: rftrace_format::info::Usage::default(),
        };
        let reason = |death, raw: Option<i32>| Some(dumps.of_end(7, death, raw.map(ended).as_ref())?.dump.reason);
        assert_eq!(reason(None, None), None);
        assert_eq!(reason(None, Some(0)), None);
        // A raw exit with a status for success.
        assert_eq!(reason(Some(Death::WithoutWord), Some(0)), None);
        assert_eq!(reason(None, Some(3 << 8)).as_deref(), Some("fatal: exit status 3"));
        assert_eq!(reason(Some(Death::WithoutWord), Some(9)).as_deref(), Some("fatal: killed by SIGKILL"));
        // A child's end is known from the child alone.
        assert_eq!(reason(Some(Death::Signal(11)), None).as_deref(), Some("fatal: killed by SIGSEGV"));
        assert_eq!(reason(Some(Death::WithoutWord), None).as_deref(), Some("fatal: it ended without notice"));
        assert!(super::Dumps::new(Options::default()).of_end(7, Some(Death::Signal(6)), None).is_none());
    }
}
