//! Which dumps of rings are made, and when: decided here by what is seen of the processes, made by who asks (`banks`).

use std::collections::{HashMap, HashSet};
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rftrace_frontend::bank::{Death, Notice};

use super::run::Ended;

/// What a dump is made on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpOn {
    /// As it was written: that is the reason in the dump.
    pub text: String,
    /// What it means.
    pub event: Event,
}

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The program gets a signal; its library has the dump made.
    Signal(i32),
    /// A process dies, or the program ends with a status that is not 0.
    Fatal,
    /// Nothing was recorded for so long.
    Stall(Duration),
    /// Again and again after so long.
    Every(Duration),
    /// A call of a function: the tracer looks for it, and tells of it by the place among [`Options::on`].
    Call,
}

/// What is wanted of dumps.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What they are made on.
    pub on: Vec<DumpOn>,
    /// How many are made, but for those that a signal asks for.
    pub most: usize,
    /// The signal that asks for one; 0 for none.
    pub signal: i32,
}

/// A dump that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) pid: u32,
    pub(crate) reason: String,
    /// When it was due, in ticks, if that was not now.
    pub(crate) tsc: Option<u64>,
}

/// Decides which dumps are due.
#[derive(Debug)]
pub(crate) struct Dumps {
    options: Options,
    n_made: usize,
    /// Those that were due when enough were made.
    n_more: usize,
    /// When those of [`Event::Every`] were last due, by process and place among the options.
    every: HashMap<(u32, usize), Instant>,
    /// Processes that do nothing, for which a dump was made already.
    stalled: HashSet<(u32, usize)>,
    /// When the last dump was due by each place among the options, of calls.
    called: HashMap<u64, Instant>,
}

/// Between two dumps of the same calls.
const CALL_PAUSE: Duration = Duration::from_secs(1);

impl Dumps {
    pub(crate) fn new(options: Options) -> Self {
        Self { options, n_made: 0, n_more: 0, every: HashMap::new(), stalled: HashSet::new(), called: HashMap::new() }
    }

    /// Whether it has to be known for how long nothing was recorded.
    pub(crate) fn asks_for_quiet(&self) -> bool {
        self.options.on.iter().any(|on| matches!(on.event, Event::Stall(_)))
    }

    /// What is due `now`, where these processes are recorded, and nothing was in some of them for so long.
    pub(crate) fn due(&mut self, now: Instant, living: &[u32], quiet: &[(u32, Duration)]) -> Vec<Due> {
        let mut due = Vec::new();
        for (place, on) in self.options.on.iter().enumerate() {
            let mut add = |pid| due.push(Due { pid, reason: on.text.clone(), tsc: None });
            match on.event {
                Event::Every(pause) => {
                    self.every.retain(|(pid, of), _| *of != place || living.contains(pid));
                    for &pid in living {
                        let last = self.every.entry((pid, place)).or_insert(now);
                        if now.duration_since(*last) >= pause {
                            *last = now;
                            add(pid);
                        }
                    }
                }
                Event::Stall(least) => {
                    self.stalled.retain(|(pid, of)| *of != place || living.contains(pid));
                    for &(pid, quiet_for) in quiet {
                        if quiet_for < least {
                            self.stalled.remove(&(pid, place));
                        } else if self.stalled.insert((pid, place)) {
                            add(pid);
                        }
                    }
                }
                Event::Signal(_) | Event::Fatal | Event::Call => {}
            }
        }
        due
    }

    /// What is due `now` as a call was noticed.
    pub(crate) fn due_by(&mut self, now: Instant, notice: &Notice) -> Option<Due> {
        self.n_more += usize::try_from(notice.n_more).unwrap_or(usize::MAX);
        let on = self.options.on.get(usize::try_from(notice.number).ok()?)?;
        let last = self.called.get(&notice.number);
        if last.is_some_and(|&last| now.duration_since(last) < CALL_PAUSE) {
            self.n_more += 1;
            return None;
        }
        self.called.insert(notice.number, now);
        Some(Due { pid: notice.pid, reason: on.text.clone(), tsc: Some(notice.tsc) })
    }

    /// Whether one more is made. It counts from here on.
    pub(crate) fn take(&mut self) -> bool {
        let is_made = self.n_made < self.options.most;
        *(if is_made { &mut self.n_made } else { &mut self.n_more }) += 1;
        is_made
    }

    /// How many were not made.
    pub(crate) fn n_more(&self) -> usize {
        self.n_more
    }

    /// What a dump of a process that is over is made for, if one is: it died, or is the program, and that `ended` badly.
    pub(crate) fn reason_of_end(&self, death: Option<Death>, ended: Option<&Ended>) -> Option<String> {
        let on = self.options.on.iter().find(|on| on.event == Event::Fatal)?;
        let how = match (ended.map(|ended| (ended.status.signal(), ended.status.code())), death) {
            (Some((Some(signal), _)), _) => format!("killed by {}", signal_name(signal)),
            (Some((None, Some(0))), _) | (None | Some((None, None)), None) => return None,
            (Some((None, Some(status))), _) => format!("exit status {status}"),
            (_, Some(Death::Signal(signal))) => format!("killed by {}", signal_name(signal.cast_signed())),
            (_, Some(Death::WithoutWord)) => "it ended without a word".to_owned(),
        };
        Some(format!("{}: {how}", on.text))
    }

    /// What a dump that a process has asked for is made for.
    pub(crate) fn reason_of_signal(options: &Options) -> String {
        let is_it = |on: &&DumpOn| on.event == Event::Signal(options.signal);
        let name = || format!("signal:{}", signal_name(options.signal).trim_start_matches("SIG"));
        options.on.iter().find(is_it).map_or_else(name, |on| on.text.clone())
    }
}

/// The name of a signal, or its number.
fn signal_name(signal: i32) -> String {
    Signal::try_from(signal).map_or_else(|_| format!("signal {signal}"), |signal| signal.as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use std::process::ExitStatus;

    use super::*;

    fn dumps(on: &[(&str, Event)], most: usize) -> Dumps {
        let on = on.iter().map(|&(text, event)| DumpOn { text: text.to_owned(), event }).collect();
        Dumps::new(Options { on, most, signal: 10 })
    }

    fn of(due: Vec<Due>) -> Vec<(u32, String)> {
        due.into_iter().map(|due| (due.pid, due.reason)).collect()
    }

    #[test]
    fn every_so_often_for_each_process() {
        let mut dumps = dumps(&[("every:2s", Event::Every(Duration::from_secs(2)))], 10);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let every = |pid| (pid, "every:2s".to_owned());
        assert_eq!(of(dumps.due(at(0), &[7], &[])), []);
        assert_eq!(of(dumps.due(at(1), &[7, 8], &[])), []);
        assert_eq!(of(dumps.due(at(2), &[7, 8], &[])), [every(7)]);
        assert_eq!(of(dumps.due(at(3), &[7, 8], &[])), [every(8)]);
        assert_eq!(of(dumps.due(at(4), &[8], &[])), []);
        // Another process with the same number.
        assert_eq!(of(dumps.due(at(5), &[7, 8], &[])), [every(8)]);
        assert_eq!(of(dumps.due(at(6), &[7], &[])), []);
        assert_eq!(of(dumps.due(at(7), &[7], &[])), [every(7)]);
    }

    #[test]
    fn once_for_each_stall() {
        let mut dumps = dumps(&[("stall:1s", Event::Stall(Duration::from_secs(1)))], 10);
        assert!(dumps.asks_for_quiet());
        let mut due = |millis| of(dumps.due(Instant::now(), &[7], &[(7, Duration::from_millis(millis))])).len();
        assert_eq!([0, 999, 1000, 2000, 10, 1500, 1600].map(&mut due), [0, 0, 1, 0, 0, 1, 0]);
    }

    #[test]
    fn calls_at_most_once_a_second() {
        let mut dumps = dumps(&[("fatal", Event::Fatal), ("call:f", Event::Call)], 10);
        let start = Instant::now();
        let notice = |number, n_more| Notice { pid: 7, number, tsc: 99, n_more };
        let due = Due { pid: 7, reason: "call:f".to_owned(), tsc: Some(99) };
        assert_eq!(dumps.due_by(start, &notice(1, 0)), Some(due.clone()));
        assert_eq!(dumps.due_by(start + Duration::from_millis(999), &notice(1, 3)), None);
        assert_eq!(dumps.n_more(), 4);
        assert_eq!(dumps.due_by(start + Duration::from_secs(1), &notice(1, 0)), Some(due));
        // What a process writes there may be anything.
        assert_eq!(dumps.due_by(start, &notice(2, 0)), None);
    }

    #[test]
    fn enough_are_made() {
        let mut dumps = dumps(&[], 2);
        assert_eq!([(); 4].map(|()| dumps.take()), [true, true, false, false]);
        assert_eq!(dumps.n_more(), 2);
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
        let reason = |death, raw: Option<i32>| dumps.reason_of_end(death, raw.map(ended).as_ref());
        assert_eq!(reason(None, None), None);
        assert_eq!(reason(None, Some(0)), None);
        // A raw exit that says that all is well.
        assert_eq!(reason(Some(Death::WithoutWord), Some(0)), None);
        assert_eq!(reason(None, Some(3 << 8)).as_deref(), Some("fatal: exit status 3"));
        assert_eq!(reason(Some(Death::WithoutWord), Some(9)).as_deref(), Some("fatal: killed by SIGKILL"));
        // Of a child it is known what it says itself.
        assert_eq!(reason(Some(Death::Signal(11)), None).as_deref(), Some("fatal: killed by SIGSEGV"));
        assert_eq!(reason(Some(Death::WithoutWord), None).as_deref(), Some("fatal: it ended without a word"));
        assert_eq!(super::Dumps::new(Options::default()).reason_of_end(Some(Death::Signal(6)), None), None);
    }
}
