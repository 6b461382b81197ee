//! Sums of records that are made up, tables of them, and pictures.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rftrace::abi::{ADDRESS_SHIFT, kind};
use rftrace_read::ShownNames;

use crate::app::App;
use crate::draw::draw;
use crate::{Column, Interval, Sum, Sums, Table, Tick, Watched, batch};

const A: u64 = 0x1000;
const B: u64 = 0x2000;
const C: u64 = 0x3000;

fn enter(tsc: u64, address: u64) -> (u64, u64) {
    (tsc, address << ADDRESS_SHIFT | kind::ENTRY)
}

fn leave(tsc: u64, address: u64) -> (u64, u64) {
    (tsc, address << ADDRESS_SHIFT | kind::EXIT)
}

fn resync(tsc: u64, bits: u64, field: u64) -> (u64, u64) {
    (tsc, field << ADDRESS_SHIFT | bits | kind::RESYNC)
}

/// Ticks are nanoseconds here.
fn end(sums: &mut Sums, now: u64) -> Interval {
    let mut interval = sums.end_interval((now, now));
    interval.functions.sort_unstable_by_key(|&(address, _)| address);
    interval
}

/// Calls, own time and total time of each function.
fn short(interval: &Interval) -> Vec<(u64, u64, u64, u64)> {
    interval.functions.iter().map(|&(address, sum)| (address, sum.calls, sum.own_time, sum.total_time)).collect()
}

#[test]
fn what_is_open_counts_in_each_interval() {
    let mut sums = Sums::default();
    sums.take(1, Some(0), &[enter(10, A), enter(20, B)]);
    assert_eq!(short(&end(&mut sums, 100)), [(A, 1, 10, 90), (B, 1, 80, 80)]);
    assert_eq!(short(&end(&mut sums, 200)), [(A, 0, 0, 100), (B, 0, 100, 100)]);
    assert_eq!(sums.with_open().collect::<Vec<_>>(), [1]);
    sums.take(1, None, &[leave(250, B), leave(260, A)]);
    let last = end(&mut sums, 300);
    assert_eq!(short(&last), [(A, 0, 10, 60), (B, 0, 50, 50)]);
    // From their beginning on.
    let ended: Vec<_> = last.functions.iter().map(|(_, sum)| (sum.ended, sum.ended_time)).collect();
    assert_eq!(ended, [(1, 250), (1, 230)]);
    assert_eq!((last.nanos, last.n_records, last.n_threads), (100, 2, 1));
    assert_eq!(end(&mut sums, 400), Interval { nanos: 100, ..Interval::default() });
}

#[test]
fn recursive_calls_count_once_in_the_total() {
    let mut sums = Sums::default();
    let records = [enter(10, A), enter(20, B), enter(30, A), leave(40, A), leave(50, B), leave(60, A)];
    sums.take(1, Some(0), &records);
    assert_eq!(short(&end(&mut sums, 100)), [(A, 2, 30, 50), (B, 1, 20, 30)]);
}

/// A stack of a coroutine is left and runs again: it is no call, and no return.
#[test]
fn a_stack_that_is_left_and_resumed() {
    let mut sums = Sums::default();
    let left = resync(30, kind::SUSPENDED | kind::FUNCTIONS_ONE, 9);
    let again = (50, enter(50, B).1 | kind::AGAIN);
    let records = [enter(10, A), enter(20, B), left, leave(30, B), resync(50, kind::RESUMED, 9), again];
    sums.take(1, Some(0), &records);
    sums.take(1, None, &[leave(60, B), leave(70, A)]);
    let interval = end(&mut sums, 100);
    assert_eq!(short(&interval), [(A, 1, 40, 60), (B, 1, 20, 20)]);
    assert_eq!(interval.functions[1].1.ended, 0, "how long it took in all is not known");
    // Of a stack that is left no exits may follow; those behind the next call are returns.
    let mut sums = Sums::default();
    sums.take(1, Some(0), &[enter(10, A), left, enter(40, B), leave(50, B), leave(60, A)]);
    let ended: Vec<_> = end(&mut sums, 100).functions.iter().map(|(_, sum)| sum.ended).collect();
    assert_eq!(ended, [1, 1]);
}

#[test]
fn records_that_are_missing() {
    let mut sums = Sums::default();
    sums.take(1, Some(0), &[enter(10, A), enter(20, B), enter(30, C)]);
    // When the next records begin one function is open.
    sums.take(1, Some(1), &[enter(80, C), leave(90, C)]);
    assert_eq!(short(&end(&mut sums, 100)), [(A, 1, 70, 90), (B, 1, 10, 10), (C, 2, 10, 10)]);
    // Two that nobody has seen, of which the inner one is told by its exit.
    sums.take(2, Some(2), &[leave(120, B), enter(130, C), leave(140, C)]);
    assert_eq!(short(&end(&mut sums, 200)), [(A, 0, 100, 100), (C, 1, 10, 10)]);
    // Functions were left while nothing was recorded.
    sums.take(1, None, &[enter(210, B), resync(250, 0, 1), enter(260, C)]);
    assert_eq!(short(&end(&mut sums, 300)), [(A, 0, 20, 100), (B, 1, 40, 40), (C, 1, 40, 40)]);
    sums.set_open(1, &[A, B]);
    assert_eq!(short(&end(&mut sums, 400)), [(A, 0, 100, 100)]);
    sums.ended(1);
    sums.ended(2);
    assert_eq!(short(&end(&mut sums, 500)), []);
}

#[test]
fn points_losses_and_cores() {
    let mut sums = Sums::default();
    let point = (20, enter(20, B).1 | kind::POINT);
    let lost = (30, 5 << ADDRESS_SHIFT | kind::LOST);
    let hidden = (35, leave(35, A).1 | kind::LEFT);
    let values = resync(36, kind::VALUES, 7);
    sums.take(1, Some(0), &[enter(10, A), point, lost, hidden, values, resync(37, kind::CORE, 1), leave(40, A)]);
    let interval = end(&mut sums, 100);
    assert_eq!(short(&interval), [(A, 1, 30, 30), (B, 1, 0, 0)]);
    assert_eq!((interval.n_records, interval.n_deep), (3, 5));
}

/// A program may write any records.
#[test]
fn any_records_take_bounded_memory() {
    let mut sums = Sums::default();
    for number in 0..200_000 {
        sums.take(number, Some(usize::MAX), &[enter(number.into(), A)]);
    }
    let deep: Vec<_> = (0..100_000).map(|tsc| enter(tsc, A + tsc)).collect();
    sums.take(1, None, &deep);
    let interval = end(&mut sums, 200_000);
    assert!(interval.n_threads <= 1 << 16, "{}", interval.n_threads);
    for thread in 0..200_000 {
        sums.take(thread, None, &[leave(u64::MAX, A), enter(5, B), leave(u64::MAX, C)]);
        sums.ended(thread);
    }
    end(&mut sums, 250_000);
    sums.take(1, None, &[enter(250_001, B), leave(250_002, B)]);
    assert_eq!(short(&end(&mut sums, 300_000)), [(B, 1, 1, 1)]);
}

/// A call and what it calls: the function, how long it is at work before each of those, and behind the last.
#[derive(Clone, Debug)]
struct Call(u64, Vec<u64>, Vec<Call>);

fn call() -> impl Strategy<Value = Call> {
    let work = || prop::collection::vec(1..50_u64, 6);
    let leaf = (1..5_u64, work()).prop_map(|(function, work)| Call(function << 4, work, Vec::new()));
    leaf.prop_recursive(5, 40, 5, move |inner| {
        (1..5_u64, work(), prop::collection::vec(inner, 0..5))
            .prop_map(|(function, work, calls)| Call(function << 4, work, calls))
    })
}

/// Writes what a call records, and adds what it takes to `sums`.
fn run(call: &Call, now: &mut u64, out: &mut Vec<(u64, u64)>, open: &mut Vec<u64>, sums: &mut HashMap<u64, Sum>) {
    let Call(function, work, calls) = call;
    let began = *now;
    out.push(enter(began, *function));
    let is_outermost = !open.contains(function);
    open.push(*function);
    let mut own = 0;
    for (place, work) in work.iter().enumerate().take(calls.len() + 1) {
        own += work;
        *now += work;
        if let Some(inner) = calls.get(place) {
            run(inner, now, out, open, sums);
        }
    }
    open.pop();
    out.push(leave(*now, *function));
    let time = *now - began;
    let total_time = if is_outermost { time } else { 0 };
    *sums.entry(*function).or_default() += Sum { calls: 1, ended: 1, ended_time: time, own_time: own, total_time };
}

proptest! {
    /// However time is cut into intervals, and records into pieces, it is the same in all.
    #[test]
    fn intervals_add_up(threads in prop::collection::vec(prop::collection::vec(call(), 1..4), 1..4), steps in prop::collection::vec(1..200_u64, 1..30)) {
        let mut wanted = HashMap::new();
        let mut records = Vec::new();
        for calls in &threads {
            let (mut now, mut out) = (0, Vec::new());
            for call in calls {
                run(call, &mut now, &mut out, &mut Vec::new(), &mut wanted);
            }
            records.push(out);
        }
        let mut sums = Sums::default();
        let mut found: HashMap<u64, Sum> = HashMap::new();
        let (mut now, mut steps) = (0, steps.into_iter().cycle());
        while records.iter().any(|records| !records.is_empty()) {
            now += steps.next().unwrap();
            for (thread, records) in records.iter_mut().enumerate() {
                let n_before = records.partition_point(|&(tsc, _)| tsc <= now);
                let piece: Vec<_> = records.drain(..n_before).collect();
                sums.take(thread as u32, None, &piece);
            }
            for (address, sum) in end(&mut sums, now).functions {
                *found.entry(address).or_default() += sum;
            }
        }
        prop_assert_eq!(found, wanted);
    }
}

fn tick(nanos: u64, functions: &[(u64, Sum)], n_dropped: u64) -> Tick {
    let n_records = functions.iter().map(|(_, sum)| sum.calls + sum.ended).sum();
    let interval = Interval { nanos, functions: functions.to_vec(), n_records, n_deep: 0, n_threads: 2 };
    Tick { interval, n_dropped, n_process_threads: 3, own_nanos: nanos / 50 }
}

fn sum(calls: u64, own_time: u64, total_time: u64) -> Sum {
    Sum { calls, ended: calls, ended_time: total_time, own_time, total_time }
}

/// Two of these have one name, as instances of a template.
fn name(address: u64) -> Arc<str> {
    match address {
        A => "work".into(),
        B => "evil\u{1b}[31mname".into(),
        _ => "step".into(),
    }
}

const SECOND: u64 = 1_000_000_000;

fn first() -> Tick {
    let functions = [(A, sum(5, 600_000_000, 900_000_000)), (B, sum(0, 0, 0)), (C, sum(1_234_000, 2_000, 3_000))];
    tick(SECOND, &[&functions[..], &[(C + 1, sum(567, 1_000, 1_000))]].concat(), 0)
}

fn watched() -> Watched {
    Watched { program: "server".to_owned(), pid: 4711 }
}

#[test]
fn a_table_as_text() {
    let mut table = Table::new(Column::Own, ShownNames::default());
    table.add(first(), name);
    table.update();
    let mut out = Vec::new();
    batch::write(&mut out, &watched(), &table, 2).unwrap();
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "rftrace top: server (PID 4711) for 0:00:01; the last 1.000 s; waits count as time\n\
         2 of 3 threads seen, 1,234,572 calls/s, 2,469,144 records/s, none dropped; rftrace takes 2.0 % of a processor\n\
        \x20       Calls      Calls/s  \u{25be}Self time  Self %  Total time     Average  Function\n\
        \x20           5            5  600.000 ms    60.0  900.000 ms  180.000 ms  work\n\
        \x20   1,234,567    1,234,567    3.000 us     0.0    4.000 us    0.000 us  step\n\
         and 1 more function\n\n"
    );
}

/// The app with a terminal to draw on.
struct Shown {
    app: App,
    terminal: Terminal<TestBackend>,
}

impl Shown {
    fn new(height: u16) -> Self {
        let app = App::new(watched(), Table::new(Column::Own, ShownNames::default()));
        Self { app, terminal: Terminal::new(TestBackend::new(110, height)).unwrap() }
    }

    fn press(&mut self, keys: &str) {
        for c in keys.chars() {
            let code = match c {
                '\n' => KeyCode::Enter,
                '\u{1b}' => KeyCode::Esc,
                'v' => KeyCode::Down,
                _ => KeyCode::Char(c),
            };
            self.app.key(KeyEvent::new(code, KeyModifiers::NONE));
        }
    }

    /// The screen without the head: names of functions, and the last line.
    fn seen(&mut self) -> (Vec<String>, Vec<String>, String) {
        let height = self.terminal.size().unwrap().height;
        self.app.resize(height);
        self.terminal.draw(|frame| draw(&self.app, frame)).unwrap();
        let buffer = self.terminal.backend().buffer();
        let line = |y| (0..110).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        let mut lines: Vec<String> = (0..height).map(line).collect();
        let last = lines.pop().unwrap();
        let rows = lines.split_off(3).into_iter().filter(|line| !line.is_empty());
        let names = rows.map(|line| line.rsplit("  ").next().unwrap().to_owned()).collect();
        (lines, names, last)
    }

    #[track_caller]
    fn shows(&mut self, names: &[&str]) {
        assert_eq!(self.seen().1, names);
    }
}

const EVIL: &str = "evil\\u{1b}[31mname";

#[test]
fn keys_sort_and_choose() {
    let mut shown = Shown::new(10);
    assert!(shown.seen().2.starts_with("wait for"));
    shown.app.add(first(), name);
    shown.shows(&["work", "step", EVIL]);
    shown.press("c");
    shown.shows(&["step", "work", EVIL]);
    assert!(shown.seen().0[2].contains("\u{25be}Calls"));
    shown.press("n");
    shown.shows(&[EVIL, "step", "work"]);
    shown.press("t");
    shown.shows(&["work", "step", EVIL]);
    shown.press("a");
    shown.shows(&["work", EVIL, "step"]);
    shown.press("s/or");
    assert!(shown.seen().2.starts_with("functions with: or"));
    shown.press("\n");
    shown.shows(&["work"]);
    assert!(shown.seen().2.starts_with("only or: f and Enter show all"));
    shown.press("fs*\n");
    shown.shows(&["step"]);
    shown.press("f/^(st|wo)/\n");
    shown.shows(&["work", "step"]);
    shown.press("f/(/\n");
    shown.shows(&["work", "step"]);
    assert!(shown.seen().2.contains("group"), "{}", shown.seen().2);
    shown.press("fx\u{1b}");
    shown.shows(&["work", "step"]);
    shown.press("f\n");
    shown.shows(&["work", "step", EVIL]);
    shown.press("?");
    assert!(shown.seen().0.iter().any(|line| line.contains("Keys")));
    shown.press("x");
    assert!(!shown.app.is_over);
    shown.press("q");
    assert!(shown.app.is_over);
}

#[test]
fn the_last_interval_and_all() {
    let mut shown = Shown::new(10);
    shown.app.add(first(), name);
    shown.app.add(tick(2 * SECOND, &[(C, sum(4, SECOND, SECOND))], 10), name);
    shown.shows(&["step"]);
    let (head, ..) = shown.seen();
    assert!(head[0].ends_with(" for 0:00:03; the last 2.000 s; waits count as time"), "{head:?}");
    assert!(head[1].contains(" 2 calls/s, 4 records/s, dropped 10 records (55.5 %);"), "{head:?}");
    shown.press("b");
    shown.shows(&["step", "work", EVIL]);
    assert!(shown.seen().0[0].ends_with("; since the beginning; waits count as time"));
    shown.press("b ");
    // The picture stays. What comes meanwhile is one interval then.
    shown.app.add(tick(SECOND, &[(A, sum(1, 7, 7))], 0), name);
    shown.app.add(tick(SECOND, &[(A, sum(2, 7, 7))], 0), name);
    shown.shows(&["step"]);
    assert!(shown.seen().2.starts_with("paused"));
    shown.press(" ");
    shown.app.add(tick(SECOND, &[(A, sum(3, 7, 7))], 0), name);
    shown.shows(&["work"]);
    let (head, ..) = shown.seen();
    assert!(head[0].ends_with(" for 0:00:06; the last 3.000 s; waits count as time"), "{head:?}");
    assert!(head[1].contains(" 2 calls/s"), "{head:?}");
}

#[test]
fn a_list_that_is_longer_than_the_screen() {
    let mut shown = Shown::new(6);
    shown.app.add(first(), name);
    shown.shows(&["work", "step"]);
    shown.press("vv");
    shown.shows(&["step", EVIL]);
    // Fewer come.
    shown.app.add(tick(SECOND, &[(A, sum(1, 7, 7))], 0), name);
    shown.shows(&["work"]);
    let mut low = Shown::new(4);
    assert_eq!(low.seen().0[0], "the terminal has too few lines");
}
