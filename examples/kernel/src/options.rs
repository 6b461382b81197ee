//! Options of a run: the kernel's command line, words of the form `name=value`.

use crate::arch::HAS_IRET_HANDLERS;

/// The kernel's work.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Every task computes its result twice. No timer, so the calls are the same in each run.
    Tree,
    /// Tasks compute their results again and again under timer interrupts.
    Storm,
    /// As `Storm`, and one of the tasks panics.
    Panic,
    /// No tasks: what the console asks is answered.
    Serve,
}

/// The handler of the timer's interrupts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Timer {
    /// A traced function that is called from an assembly stub. It switches tasks.
    Stub,
    /// A function that is itself entered by the interrupt, and returns from it. It only counts. x86-64 only.
    Iret,
}

/// The command line.
#[derive(Clone, Copy)]
pub struct Options {
    pub mode: Mode,
    /// `cores=1` or `2`.
    pub n_cores: usize,
    /// `hz=…`: timer interrupts in a second, on each core.
    pub timer_hz: u32,
    /// `seconds=…`: how long a storm lasts.
    pub seconds: u32,
    /// `rounds=…`: how often each task computes its result in `mode=tree`.
    pub n_rounds: u32,
    /// `send=stream`: the trace is sent while the tasks run, by the second serial port; otherwise at the end.
    pub is_streamed: bool,
    pub timer: Timer,
    /// `handlers=all`, or `stubs`: tasks do without page faults and system calls, whose handlers are entered by the interrupt itself on
    /// x86-64.
    pub with_iret_handlers: bool,
}

impl Options {
    /// Reads a command line.
    ///
    /// # Panics
    ///
    /// When a word is not understood.
    pub fn parse(line: &str) -> Self {
        let mut options = Self {
            mode: Mode::Tree,
            n_cores: 2,
            timer_hz: 10_000,
            seconds: 1,
            n_rounds: 2,
            is_streamed: false,
            timer: Timer::Stub,
            with_iret_handlers: true,
        };
        for word in line.split_ascii_whitespace() {
            match word.split_once('=') {
                Some(("mode", "tree")) => options.mode = Mode::Tree,
                Some(("mode", "storm")) => options.mode = Mode::Storm,
                Some(("mode", "panic")) => options.mode = Mode::Panic,
                Some(("mode", "serve")) => options.mode = Mode::Serve,
                Some(("cores", "1")) => options.n_cores = 1,
                Some(("cores", "2")) => options.n_cores = 2,
                Some(("hz", number)) => options.timer_hz = parse_number(word, number),
                Some(("seconds", number)) => options.seconds = parse_number(word, number),
                Some(("rounds", number)) => options.n_rounds = parse_number(word, number),
                Some(("send", "end")) => options.is_streamed = false,
                Some(("send", "stream")) => options.is_streamed = true,
                Some(("timer", "stub")) => options.timer = Timer::Stub,
                Some(("timer", "iret")) if HAS_IRET_HANDLERS => options.timer = Timer::Iret,
                Some(("handlers", "all")) => options.with_iret_handlers = true,
                Some(("handlers", "stubs")) => options.with_iret_handlers = false,
                _ => panic!(
                    "the command line has \"{word}\"; known are mode=tree|storm|panic|serve cores=1|2 hz=N seconds=N rounds=N \
                     send=end|stream timer=stub handlers=all|stubs, and timer=iret on x86-64"
                ),
            }
        }
        options
    }
}

fn parse_number(word: &str, number: &str) -> u32 {
    match number.parse() {
        Ok(number) if (1..=1_000_000).contains(&number) => number,
        _ => panic!("the command line has \"{word}\", which must be a number from 1 to 1000000"),
    }
}
