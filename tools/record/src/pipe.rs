//! The calls of running programs as text: records are put in order of time, and each line is written once.
//!
//! No program waits for the reader of the text. Calls that the reader does not take in time are left out, and the text
//! gives their number.
//!
//! Not here: reading the records (`rftrace_frontend::bank`).

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use rftrace_format::clock::TscClock;
use rftrace_format::text::Shown;
use rftrace_frontend::bank::{Moment, Names, Seen};

use super::access::Access;

/// Records waiting for the reader, at the most: 64 MiB.
const MOST_WAITING: usize = 4 << 20;

/// Functions open in a thread, at the most.
const MOST_OPEN: usize = 4096;

/// The calls to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The calls in memory, and all later ones.
    All,
    /// The calls from now on.
    FromNow,
    /// The calls in memory, and no later ones.
    Now,
}

/// An iterator over pieces of the text. Some are empty, when no call comes for a while.
#[derive(Debug)]
pub struct Pipe {
    from: Receiver<Item>,
    n_waiting: Arc<AtomicUsize>,
    text: Text,
    what: What,
    /// Of one process alone.
    pid: Option<u32>,
    is_over: bool,
}

#[derive(Debug)]
enum Item {
    Seen(Seen),
    /// So many records were left out.
    Missed(u64),
}

impl Pipe {
    /// Begins to pass on the calls of a process, or of all. `None`: the recording is over.
    pub(crate) fn begin(banks: &Access, pid: Option<u32>, what: What) -> Option<Self> {
        let (to, from) = mpsc::channel();
        let n_waiting = Arc::<AtomicUsize>::default();
        let waiting = Arc::clone(&n_waiting);
        let mut n_missed = 0;
        let tell = move |seen: Seen| {
            if let Seen::Records { records, .. } = &seen {
                let n_records = records.len();
                if waiting.load(Relaxed) + n_records > MOST_WAITING {
                    n_missed += n_records as u64;
                    return true;
                }
                waiting.fetch_add(n_records, Relaxed);
            }
            if n_missed > 0 && to.send(Item::Missed(std::mem::take(&mut n_missed))).is_err() {
                return false;
            }
            to.send(Item::Seen(seen)).is_ok()
        };
        banks.with(move |banks| banks.tap(pid, tell))?;
        Some(Self { from, n_waiting, text: Text::new(what == What::FromNow), what, pid, is_over: false })
    }
}

impl Iterator for Pipe {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        const IDLE: Duration = Duration::from_secs(1);
        /// Text to pass on at once even if more waits.
        const MANY_BYTES: usize = 1 << 16;

        if self.is_over {
            return None;
        }
        loop {
            match self.from.recv_timeout(IDLE) {
                Ok(Item::Missed(n_missed)) => self.text.missed(n_missed),
                Ok(Item::Seen(seen)) => {
                    if let Seen::Records { records, .. } = &seen {
                        self.n_waiting.fetch_sub(records.len(), Relaxed);
                    }
                    let is_until = matches!(seen, Seen::Until(_));
                    self.is_over |= is_until && self.what == What::Now;
                    self.is_over |= self.pid.is_some() && matches!(seen, Seen::Ended { .. });
                    self.text.take(seen);
                    if self.is_over || is_until || self.text.is_large() {
                        self.text.write();
                    }
                    if self.is_over || is_until || self.text.out.len() > MANY_BYTES {
                        return Some(std::mem::take(&mut self.text.out).into_bytes());
                    }
                }
                Err(RecvTimeoutError::Timeout) => return Some(Vec::new()),
                Err(RecvTimeoutError::Disconnected) => {
                    self.is_over = true;
                    self.text.write();
                    return Some(std::mem::take(&mut self.text.out).into_bytes());
                }
            }
        }
    }
}

/// A thread of a process.
type Key = (u32, u32);

#[derive(Clone, Debug)]
enum Event {
    Record(u64),
    Mark(String),
    /// Something is missing; so many functions were open then.
    Gap(usize),
    Ended,
}

#[derive(Debug)]
struct Process {
    names: Names,
    known: HashMap<u64, String>,
    began: Moment,
}

#[derive(Debug, Default)]
struct Task {
    /// The open functions: the address of each and the time of its entry, as far as they are known.
    open: Vec<(u64, Option<u64>)>,
    was_seen: bool,
}

/// Makes lines of the passed events.
#[derive(Debug)]
struct Text {
    processes: HashMap<u32, Process>,
    tasks: HashMap<Key, Task>,
    waiting: Vec<(u64, Key, Event)>,
    /// The last known moment.
    now: Option<Moment>,
    /// Earlier calls are not shown.
    since: u64,
    is_from_now: bool,
    out: String,
}

impl Text {
    fn new(is_from_now: bool) -> Self {
        Self {
            processes: HashMap::new(),
            tasks: HashMap::new(),
            waiting: Vec::new(),
            now: None,
            since: if is_from_now { u64::MAX } else { 0 },
            is_from_now,
            out: "# DURATION     TID      FUNCTION\n".to_owned(),
        }
    }

    /// True if more records wait than are put in order at once.
    fn is_large(&self) -> bool {
        self.waiting.len() > MOST_WAITING
    }

    fn take(&mut self, seen: Seen) {
        match seen {
            Seen::Process { pid, pid_here, exe, maps, began } => {
                let names = Names::of_maps(pid_here, &exe, &maps);
                match self.processes.get_mut(&pid).filter(|process| process.began == began) {
                    Some(process) => {
                        process.names.add_maps(&exe, &maps);
                        process.known.clear();
                    }
                    None => {
                        // Another program of the process has other functions.
                        self.write();
                        self.processes.insert(pid, Process { names, known: HashMap::new(), began });
                    }
                }
            }
            Seen::Records { pid, tid, n_open, records } => {
                let key = (pid, tid);
                if let (Some(n_open), Some(&(tsc, _))) = (n_open, records.first()) {
                    self.waiting.push((tsc, key, Event::Gap(n_open)));
                }
                self.waiting.extend(records.iter().map(|&(tsc, word)| (tsc, key, Event::Record(word))));
            }
            Seen::Mark { pid, tid, tsc, name } => self.waiting.push((tsc, (pid, tid), Event::Mark(name))),
            Seen::ThreadEnded { pid, tid } => {
                let last = self.waiting.iter().rev().find(|waiting| waiting.1 == (pid, tid)).map_or(0, |it| it.0);
                self.waiting.push((last, (pid, tid), Event::Ended));
            }
            Seen::Until(moment) => {
                self.now = Some(moment);
                if std::mem::take(&mut self.is_from_now) {
                    // Records from before the beginning are of earlier calls.
                    self.write();
                    self.since = 0;
                }
            }
            Seen::Ended { pid, at, n_dropped } => {
                self.now = Some(at);
                self.write();
                if n_dropped > 0 {
                    let _ = writeln!(self.out, "# {n_dropped} calls and returns of process {pid} were not recorded");
                }
                self.tasks.retain(|key, _| key.0 != pid);
            }
        }
    }

    fn missed(&mut self, n_missed: u64) {
        self.write();
        self.tasks.values_mut().for_each(|task| task.open.clear());
        let _ = writeln!(self.out, "# {n_missed} calls and returns are not shown: the reader is too slow");
    }

    /// Writes lines of all waiting events, in order of time.
    fn write(&mut self) {
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.sort_by_key(|&(tsc, ..)| tsc);
        // The next event in the same thread.
        let mut next = vec![None; waiting.len()];
        let mut last = HashMap::new();
        for (place, (tsc, key, event)) in waiting.iter().enumerate().rev() {
            next[place] = last.insert(*key, (*tsc, event));
        }
        let mut leaves = HashMap::<Key, bool>::new();
        for ((tsc, key, event), next) in waiting.iter().zip(next) {
            if leaves.remove(key).is_some() {
                // Its return is on the line of the call.
                continue;
            }
            if self.event(*tsc, *key, event, next) {
                leaves.insert(*key, true);
            }
        }
    }

    /// Writes an event. Returns true if it took the next one of the thread with it.
    fn event(&mut self, tsc: u64, key: Key, event: &Event, next: Option<(u64, &Event)>) -> bool {
        let mut task = self.tasks.remove(&key).unwrap_or_default();
        let was_leaf = match *event {
            Event::Ended => return false,
            Event::Mark(ref name) => {
                self.line(tsc, None, key, task.open.len(), &format!("/* {name} */"));
                if task.was_seen {
                    self.tasks.insert(key, task);
                }
                return false;
            }
            Event::Gap(n_open) => {
                if task.was_seen {
                    self.line(tsc, None, key, 0, "/* records are missing here */");
                }
                task.open.resize(n_open.min(MOST_OPEN), (0, None));
                false
            }
            Event::Record(word) => self.record(tsc, key, &mut task, word, next),
        };
        task.was_seen = true;
        self.tasks.insert(key, task);
        was_leaf
    }

    fn record(&mut self, tsc: u64, key: Key, task: &mut Task, word: u64, next: Option<(u64, &Event)>) -> bool {
        use rftrace_frontend::bank::word::{self, Kind};

        let depth = task.open.len();
        match word::kind(word) {
            Kind::Entry { address, returns } => {
                let exit = next.filter(
                    |&(_, next)| matches!(next, Event::Record(next) if word::kind(*next) == (Kind::Exit { address })),
                );
                let name = self.name(key.0, address);
                if let Some((end, _)) = exit.filter(|_| returns) {
                    self.line(tsc, Some((tsc, end)), key, depth, &format!("{name}();"));
                    return true;
                }
                self.line(tsc, None, key, depth, &format!("{name}(){}", if returns { " {" } else { ";" }));
                if returns && depth < MOST_OPEN {
                    task.open.push((address, Some(tsc)));
                }
            }
            Kind::Exit { address } => {
                // Calls above it ended without a record.
                let place = task.open.iter().rposition(|&(open, _)| open == address || open == 0);
                let (depth, began) = match place {
                    Some(place) => (place, task.open[place].1),
                    None => (0, None),
                };
                task.open.truncate(depth);
                let name = self.name(key.0, address);
                self.line(tsc, began.map(|began| (began, tsc)), key, depth, &format!("}} /* {name} */"));
            }
            Kind::Lost { n_calls } => {
                self.line(tsc, None, key, depth, &format!("/* {n_calls} calls were nested too deeply */"));
            }
            Kind::Open { n_open } => task.open.truncate(n_open as usize),
            Kind::Other => {}
        }
        false
    }

    fn line(&mut self, tsc: u64, call: Option<(u64, u64)>, (pid, tid): Key, depth: usize, what: &str) {
        if tsc < self.since {
            return;
        }
        let clock = self.processes.get(&pid).zip(self.now).map(|(process, now)| {
            TscClock::between((process.began.ticks, process.began.nanos), (now.ticks, now.nanos))
        });
        let duration = match call.zip(clock) {
            Some(((began, end), clock)) => {
                rftrace_views::Duration(clock.nanos(end).saturating_sub(clock.nanos(began))).to_string()
            }
            None => " ".repeat(10),
        };
        let _ = writeln!(self.out, "{duration} [{tid:6}] | {:indent$}{what}", "", indent = 2 * depth.min(200));
    }

    fn name(&mut self, pid: u32, address: u64) -> String {
        let Some(process) = self.processes.get_mut(&pid) else { return format!("<{address:x}>") };
        let name = |names: &mut Names| {
            let name = names.name(address).or_else(|| names.look().then(|| names.name(address)).flatten());
            name.map_or_else(|| format!("<{address:x}>"), |name| Shown::new(&name).to_string())
        };
        process.known.entry(address).or_insert_with(|| name(&mut process.names)).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: u64 = 0;
    const EXIT: u64 = 1;

    fn records(tid: u32, n_open: Option<usize>, records: &[(u64, u64, u64)]) -> Seen {
        let records = records.iter().map(|&(tsc, address, kind)| (tsc, address << 16 | kind)).collect();
        Seen::Records { pid: 1, tid, n_open, records }
    }

    fn text_of(text: &mut Text, seen: impl IntoIterator<Item = Seen>) -> Vec<String> {
        seen.into_iter().for_each(|seen| text.take(seen));
        text.write();
        std::mem::take(&mut text.out).lines().map(str::to_owned).collect()
    }

    /// A tick is a nanosecond. The process has no modules, so functions are addresses.
    fn text(is_from_now: bool) -> Text {
        let mut text = Text::new(is_from_now);
        let began = Moment { ticks: 1, nanos: 1 };
        let process = Seen::Process { pid: 1, pid_here: 1, exe: Vec::new(), maps: Vec::new(), began };
        assert_eq!(text_of(&mut text, [process]), ["# DURATION     TID      FUNCTION"]);
        text
    }

    fn until(ticks: u64) -> Seen {
        Seen::Until(Moment { ticks, nanos: ticks })
    }

    #[test]
    fn lines_are_in_order_of_time() {
        let mut text = text(false);
        let first = [
            records(7, Some(0), &[(1000, 0xa, ENTRY), (4000, 0xb, ENTRY), (5500, 0xb, EXIT)]),
            records(8, Some(0), &[(2000, 0xa, ENTRY)]),
            until(6000),
        ];
        let lines =
            ["           [     7] | <a>() {", "           [     8] | <a>() {", "  1.500 us [     7] |   <b>();"];
        assert_eq!(text_of(&mut text, first), lines);
        let then = [records(7, None, &[(9000, 0xa, EXIT)]), records(8, None, &[(8000, 0xa, EXIT)]), until(10_000)];
        let lines = ["  6.000 us [     8] | } /* <a> */", "  8.000 us [     7] | } /* <a> */"];
        assert_eq!(text_of(&mut text, then), lines);
    }

    #[test]
    fn what_is_missing_is_told() {
        let mut text = text(false);
        let seen = [records(7, Some(0), &[(1000, 0xa, ENTRY)]), until(2000)];
        assert_eq!(text_of(&mut text, seen), ["           [     7] | <a>() {"]);
        let seen = [records(7, Some(3), &[(3000, 0xb, ENTRY), (4000, 0xb, EXIT)]), until(5000)];
        let lines = ["           [     7] | /* records are missing here */", "  1.000 us [     7] |       <b>();"];
        assert_eq!(text_of(&mut text, seen), lines);
        text.missed(5);
        let lines = text_of(&mut text, [records(7, None, &[(6000, 0xa, EXIT)]), until(7000)]);
        assert!(lines[0].starts_with("# 5 calls and returns are not shown"), "{lines:?}");
        assert_eq!(lines[1], "           [     7] | } /* <a> */");
    }

    #[test]
    fn marks_are_between_calls() {
        let mut text = text(false);
        let mark = |tid, tsc| Seen::Mark { pid: 1, tid, tsc, name: format!("mark:at_{tsc}") };
        // As they come: marks first.
        let seen = [
            mark(7, 500),
            mark(7, 2500),
            mark(8, 3200),
            records(7, Some(0), &[(1000, 0xa, ENTRY), (2000, 0xb, ENTRY), (3000, 0xb, EXIT), (4000, 0xa, EXIT)]),
            until(5000),
        ];
        let lines = [
            "           [     7] | /* mark:at_500 */",
            "           [     7] | <a>() {",
            "           [     7] |   <b>() {",
            "           [     7] |     /* mark:at_2500 */",
            "  1.000 us [     7] |   } /* <b> */",
            "           [     8] | /* mark:at_3200 */",
            "  3.000 us [     7] | } /* <a> */",
        ];
        assert_eq!(text_of(&mut text, seen), lines);
    }

    #[test]
    fn what_was_called_before_is_known_and_not_shown() {
        let mut text = text(true);
        let seen = [records(7, Some(0), &[(1000, 0xa, ENTRY), (2000, 0xb, ENTRY)]), until(2500)];
        assert_eq!(text_of(&mut text, seen), <[&str; 0]>::default());
        let seen = [records(7, None, &[(3000, 0xb, EXIT)]), until(3500)];
        assert_eq!(text_of(&mut text, seen), ["  1.000 us [     7] |   } /* <b> */"]);
    }
}
