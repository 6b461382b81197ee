//! `rftrace top`: the hottest functions of a program that runs.
//!
//! Not here: how it is attached to (`rftrace-record`), and what becomes of records and is shown (`rftrace-top`).

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use indicatif::HumanCount;
use rftrace_read::{Error, ShownNames, made_name};
use rftrace_record::attach::{self, Reason};
use rftrace_record::live::{self, Live, Moment, Names, Options, Take, Watch};
use rftrace_record::preload::{self, Preload};
use rftrace_record::processes;
use rftrace_top::{Column, GiveBack, Sums, Table, Tick, Watched, batch};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::quantity::{parse_pid, parse_size, parse_timeout};
use super::record::attach::tell_of_end;
use super::record::{DEFAULT_BUFFER, OnFullArg, Rule, check_rules, function_rules};

/// The group in `--help` of these options.
const SELECTION: &str = "Selection and buffer: -N 'log::*' --buffer 16M";

const EXAMPLES: &str = "\
Examples:
  rftrace top 4711                   the key ? lists keys
  rftrace top -P '*' 4711            any program: all its functions
  rftrace top --libcalls 4711        any program: its calls of library functions
  rftrace top --once 4711            one table, after a second
  rftrace top -F 'parse*' 4711       some functions and their callees: costs less
  rftrace top -b -n 10 -e 5s 4711    ten tables, to stdout

Without -P and --libcalls the program has to call the tracer:
  RUSTFLAGS=\"-Z instrument-mcount\" cargo +nightly build --release \\
      --target x86_64-unknown-linux-gnu
  gcc -pg …, g++ -pg …, clang -pg …";

/// Shows the hottest functions of a running program, second by second.
///
/// rftrace attaches to the program and detaches at the end. The program never waits: at a full buffer records are dropped and counted. Nothing
/// is written to a disk. Waits count as time of a function. A function appears at its next call.
#[derive(Args)]
#[command(after_help = EXAMPLES, args_override_self = true)]
pub(crate) struct TopArgs {
    /// The process.
    #[arg(value_parser = parse_pid)]
    pid: u32,
    /// Length of an interval: 500ms, 2s.
    #[arg(short, long, visible_short_alias = 'd', visible_alias = "delay", value_name = "TIME", default_value = "1s", value_parser = parse_timeout)]
    every: Duration,
    /// Print tables one below the other, as in a pipe.
    #[arg(short, long)]
    batch: bool,
    /// End after this number of intervals.
    #[arg(short = 'n', long = "count", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
    /// Print one table, as -b -n 1.
    #[arg(long, conflicts_with = "count")]
    once: bool,
    /// Column to sort by at first.
    #[arg(short, long, value_name = "COLUMN", value_enum, default_value = "self")]
    sort: ColumnArg,
    /// Highest number of rows.
    #[arg(long, value_name = "N", default_value = "20")]
    limit: usize,
    /// Show full names of functions. Otherwise names of more than 60 columns are cut.
    #[arg(long)]
    full_names: bool,
    /// Record only these functions and their callees: a name, a glob, or a regex between slashes.
    #[arg(short = 'F', long, value_name = "PATTERN")]
    filter: Vec<String>,
    /// Leave out these functions and their callees.
    #[arg(short = 'N', long, value_name = "PATTERN", help_heading = SELECTION)]
    notrace: Vec<String>,
    /// Record only this number of call levels.
    #[arg(short = 'D', long, value_name = "LEVELS", value_parser = clap::value_parser!(u32).range(1..), help_heading = SELECTION)]
    depth: Option<u32>,
    /// Record calls of library functions: it works with any program.
    #[arg(long, visible_alias = "libcall")]
    libcalls: bool,
    /// Record these functions of a program that was not built for it.
    ///
    /// The pattern is a name, a glob or a regex; `@` and a library behind it select functions of that library. All threads are stopped
    /// for some milliseconds at the beginning and at the end.
    #[arg(short = 'P', long = "patch", value_name = "PATTERN")]
    branches: Vec<String>,
    /// Memory for unread records.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = DEFAULT_BUFFER, help_heading = SELECTION)]
    buffer: usize,
    /// Action of threads at a full buffer: wait for rftrace, or go on and drop records.
    #[arg(long, value_name = "WHAT", default_value = "drop", value_enum, help_heading = SELECTION)]
    on_full: OnFullArg,
    /// End another rftrace that records the program; it saves its trace.
    #[arg(long, help_heading = SELECTION)]
    take_over: bool,
    /// Print errors only.
    #[arg(short, long)]
    quiet: bool,
}

/// The columns by which a table is sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ColumnArg {
    #[value(name = "self")]
    Own,
    Total,
    Calls,
    Average,
    Name,
}

impl From<ColumnArg> for Column {
    fn from(column: ColumnArg) -> Self {
        match column {
            ColumnArg::Own => Self::Own,
            ColumnArg::Total => Self::Total,
            ColumnArg::Calls => Self::Calls,
            ColumnArg::Average => Self::Average,
            ColumnArg::Name => Self::Name,
        }
    }
}

/// Intervals that may wait to be shown. Those behind become one.
const MOST_WAITING: usize = 4;

/// Runs it.
pub(crate) fn run(args: TopArgs) -> Result<()> {
    let rules = function_rules(&args.filter, &args.notrace, args.depth);
    let filter = Rule::joined(&rules);
    check_rules(&filter)?;
    if args.take_over {
        attach::take_over(&[args.pid])?;
    }
    let options = Options {
        pid: args.pid,
        library: Preload::find(preload::TRACER)?.path().to_owned(),
        filter,
        has_library_calls: args.libcalls,
        branches: args.branches.clone(),
        buffer_bytes: args.buffer,
        on_full: args.on_full.into(),
        every: args.every,
    };
    // First: who ends this process ends it in order.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot handle signals")?;
    let (to, ticks) = mpsc::sync_channel(MOST_WAITING);
    let give_back = GiveBack::default();
    // The loop below is to go on whatever the terminal, or who reads, is at.
    let showing: RefCell<Option<JoinHandle<Result<()>>>> = RefCell::new(None);
    let is_shown = || showing.borrow().as_ref().is_some_and(|showing| !showing.is_finished());
    let begun = || {
        let show = Show::new(&args, give_back.clone());
        *showing.borrow_mut() = Some(thread::spawn(move || show.run(&ticks)));
    };
    let mut is_told = false;
    let mut is_over = || {
        is_told |= signals.pending().next().is_some();
        let is_over = is_told || !is_shown();
        if is_over {
            // The remaining work may take a while.
            give_back.give_back();
        }
        is_over
    };
    let (reader, reason) = live::run(&options, Reader::new(args.pid, to), begun, &mut is_over)
        .map_err(|error| Rule::as_options(&rules, error))?;
    let Reader { to, n_calls, n_dropped, began, .. } = reader;
    // Nothing is to come.
    drop(to);
    while !is_over() {
        thread::sleep(Duration::from_millis(5));
    }
    let was_shown = !is_shown();
    if !(args.quiet && matches!(reason, Reason::Ended)) {
        tell_of_end(args.pid, &reason);
    }
    if !args.quiet {
        let left = if matches!(reason, Reason::Left) {
            format!("process {} goes on without the tracer; ", args.pid)
        } else {
            String::new()
        };
        let seconds = began.map_or(0.0, |began| began.elapsed().as_secs_f64());
        let dropped = match n_dropped {
            0 => "none dropped".to_owned(),
            n_dropped => format!("{} calls and returns dropped", HumanCount(n_dropped)),
        };
        say!("rftrace: {left}{} calls were seen in {seconds:.1} s, {dropped}", HumanCount(n_calls));
    }
    match showing.into_inner().filter(|_| was_shown) {
        Some(showing) => showing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        None => Ok(()),
    }
}

/// Makes intervals of what is recorded.
struct Reader {
    pid: u32,
    sums: Sums,
    to: SyncSender<Tick>,
    /// Tick that nobody has taken yet.
    waiting: Option<Tick>,
    /// When the first interval began.
    began: Option<Instant>,
    n_calls: u64,
    n_dropped: u64,
    own_time: Duration,
}

impl Reader {
    fn new(pid: u32, to: SyncSender<Tick>) -> Self {
        let (sums, waiting, own_time) = (Sums::default(), None, live::own_time());
        Self { pid, sums, to, waiting, began: None, n_calls: 0, n_dropped: 0, own_time }
    }

    /// Has nothing open in threads that are over, and in those whose returns were dropped what is open there now.
    fn look_after_threads(&mut self, live: &Live, has_dropped: bool) {
        let threads: Vec<u32> = self.sums.with_open().collect();
        let open = if has_dropped { live.open_functions() } else { HashMap::new() };
        let living = processes::threads(self.pid);
        for thread in threads {
            if live.system_tid(thread).is_some_and(|tid| !living.contains(&tid)) {
                self.sums.ended(thread);
            } else if has_dropped && !live.has_chunk(thread) {
                self.sums.set_open(thread, open.get(&thread).map_or(&[], Vec::as_slice));
            }
        }
    }
}

impl Take for Reader {
    fn take(&mut self, thread: u32, n_open: Option<usize>, records: &[(u64, u64)]) {
        self.sums.take(thread, n_open, records);
    }

    fn ended(&mut self, thread: u32) {
        self.sums.ended(thread);
    }
}

impl Watch for Reader {
    fn look(&mut self, at: Moment, live: &Live) {
        let now = (at.ticks, at.nanos);
        if self.began.is_none() {
            self.began = Some(Instant::now());
            self.sums.begin(now);
            return;
        }
        let n_dropped = live.n_dropped().saturating_sub(self.n_dropped);
        self.n_dropped += n_dropped;
        self.look_after_threads(live, n_dropped > 0);
        let interval = self.sums.end_interval(now);
        self.n_calls += interval.functions.iter().map(|(_, sum)| sum.calls).sum::<u64>();
        let own_time = live::own_time();
        let own_nanos = own_time.saturating_sub(self.own_time).as_nanos() as u64;
        self.own_time = own_time;
        let n_process_threads = processes::n_threads(self.pid).unwrap_or(0).into();
        let mut tick = Tick { interval, n_dropped, n_process_threads, own_nanos };
        if let Some(mut waiting) = self.waiting.take() {
            waiting.append(tick);
            tick = waiting;
        }
        if let Err(TrySendError::Full(tick)) = self.to.try_send(tick) {
            self.waiting = Some(tick);
        }
    }
}

/// Shows intervals.
struct Show {
    watched: Watched,
    table: Table,
    /// `None` for text.
    screen: Option<GiveBack>,
    n_ticks: usize,
    limit: usize,
    names: NamesByAddress,
}

impl Show {
    fn new(args: &TopArgs, give_back: GiveBack) -> Self {
        let process = PathBuf::from(format!("/proc/{}", args.pid));
        let exe = fs::read_link(process.join("exe")).ok().and_then(|exe| exe.file_name().map(ToOwned::to_owned));
        let program = exe.map_or_else(|| "?".to_owned(), |name| name.to_string_lossy().into_owned());
        let is_batch = args.batch || args.once || !io::stdout().is_terminal();
        let count = if args.once { Some(1) } else { args.count };
        Self {
            watched: Watched { program, pid: args.pid },
            table: Table::new(args.sort.into(), ShownNames::new(args.full_names)),
            screen: (!is_batch).then_some(give_back),
            n_ticks: count.map_or(usize::MAX, |count| count as usize),
            limit: args.limit,
            names: NamesByAddress::new(args.pid),
        }
    }

    fn run(self, ticks: &Receiver<Tick>) -> Result<()> {
        let Self { watched, mut table, screen, n_ticks, limit, mut names } = self;
        let mut name = |address| names.name(address);
        if let Some(give_back) = screen {
            return Ok(rftrace_top::run(&give_back, watched, table, ticks, n_ticks, name)?);
        }
        for tick in ticks.iter().take(n_ticks) {
            table.add(tick, &mut name);
            table.update();
            batch::write(&mut io::stdout().lock(), &watched, &table, limit).map_err(Error::Write)?;
        }
        Ok(())
    }
}

/// Names that were looked up before.
struct NamesByAddress {
    names: Names,
    known: HashMap<u64, Arc<str>>,
    looked: Instant,
}

impl NamesByAddress {
    fn new(pid: u32) -> Self {
        Self { names: Names::of_process(pid), known: HashMap::new(), looked: Instant::now() }
    }

    fn name(&mut self, address: u64) -> Arc<str> {
        /// Libraries come and go.
        const LOOK: Duration = Duration::from_secs(1);
        /// One that has just come has names at once; code that no file has is asked for often.
        const LOOK_FOR_NEW: Duration = Duration::from_millis(50);

        let is_new = !self.known.contains_key(&address) && self.names.module(address).is_none();
        if self.looked.elapsed() >= if is_new { LOOK_FOR_NEW } else { LOOK } {
            self.looked = Instant::now();
            if self.names.look() {
                self.known.clear();
            }
        }
        let name = || {
            let name = self.names.name(address);
            let made = || self.names.module(address).map(|(file, start)| made_name(&file, start, address));
            name.or_else(made).unwrap_or_else(|| format!("<{address:x}>")).into()
        };
        Arc::clone(self.known.entry(address).or_insert_with(name))
    }
}
