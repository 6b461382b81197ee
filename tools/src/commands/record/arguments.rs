//! The arguments of `rftrace record`.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::builder::ArgPredicate;
use clap::{Args, ValueEnum};
use rftrace_net::{Protocol, To};
use rftrace_record::banks::{OnFull, Plan};
use rftrace_record::dumps::{self, DumpOn, Event, Keep};
use rftrace_record::kernel::Events;
use rftrace_record::program::Recorded;
use rftrace_record::run;

use super::triggers::Triggers;
use super::{dump_on, resources, triggers, values};
use crate::commands::size::parse_size;
use crate::commands::time::parse_ns;

const EXAMPLES: &str = "\
Examples:
  rftrace record -- ./program --its-options     to the directory `uftrace.data`
  rftrace record --ring --buffer 16M ./server   the end of what happens, in memory until it ends or is killed
  rftrace record --ring --dump-on 'slow:serve>5ms' ./server
                                                and that of calls that took long
  rftrace record -F 'app::parse*' -t 10us ./app only what is called within some functions, and lasts
  rftrace record -A 'open@arg1/s' -R open ./app with arguments and results of some functions
  rftrace record -a ./app                       with those of all, by the debug information of the program
  rftrace record -P '*' /usr/bin/git log        a program that was not built for it
  rftrace record --libcalls /usr/bin/git log    what it calls of libraries
  sudo rftrace record --kernel ./app            with its system calls, and the kernel's functions in them
  rftrace record -p 4711 --for 10s              a program that runs, for ten seconds
  rftrace record -p $(pgrep -d, -x app)         all programs of that name, in one trace
  rftrace record -p 4711 -P '*'                 all functions of any program that runs
  rftrace record -p 4711 --libcalls             what any program calls of libraries
  rftrace record --resources memory ./app       who takes memory and does not give it back
  rftrace record --resources file,thread ./app  who leaves files open, and threads that nobody joins
  rftrace record --live ./app | less            show the calls when it has ended
  rftrace record --to 127.0.0.1 ./app           to `rftrace recv` while it runs; `rftrace help send` tells of other machines

Programs call the tracer if they were built for it:
  RUSTFLAGS=\"-Z instrument-mcount\" cargo +nightly build --release --target x86_64-unknown-linux-gnu
  gcc -pg …, g++ -pg …, clang -pg …

While the program runs:
  kill -USR1 PID   writes a trace of what was recorded so far to `snapshot-…` in the directory
  kill -USR2 PID   switches recording off and on";

/// Runs a program and records every call of its functions.
///
/// The program is not changed: a library that is preloaded records what its calls of `mcount` or `__fentry__` tell. Children
/// are recorded too, but for those of programs that are linked statically, or with musl. The exit status is that of the program,
/// or 128 plus the number of the signal that killed it.
#[derive(Args)]
#[command(after_help = EXAMPLES, args_override_self = true)]
pub(crate) struct RecordArgs {
    /// Where to write to. A trace that is there gets the suffix `.old`.
    #[arg(short, long, visible_short_alias = 'd', value_name = "DIR")]
    pub(super) output: Option<PathBuf>,
    /// Record a program that runs, or several: they go on when the recording ends, by Ctrl-C or --for. They have to call the tracer, as below,
    /// but with -P, --libcalls and --resources.
    #[arg(short, long, value_name = "PID[,PID]", value_delimiter = ',', conflicts_with_all = ["stop", "schedule", "kernel", "events", "force"])]
    pub(super) pid: Vec<u32>,
    /// With -p: record so long: 500ms, 10s.
    #[arg(long = "for", value_name = "TIME", value_parser = parse_ns, requires = "pid")]
    pub(super) duration: Option<u64>,
    /// With -p: only take the tracer out that a recorder which was killed has left in the program.
    #[arg(long, requires = "pid", conflicts_with = "duration")]
    pub(super) leave: bool,
    /// With -p: end another rftrace that records the program; it saves what it has.
    #[arg(long, requires = "pid")]
    pub(super) take_over: bool,
    /// Memory for what is recorded, in each process: 16 bytes for each entry and exit. With K, M or G. 256M with --ring and --stop.
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size, default_value = DEFAULT_BUFFER, default_value_ifs([("ring", ArgPredicate::IsPresent, KEPT_BUFFER), ("stop", ArgPredicate::IsPresent, KEPT_BUFFER)]))]
    pub(super) buffer: usize,
    /// Write no more records than this, in all processes together: what is recorded after that is not saved. With --ring and --stop at
    /// least a whole buffer can be saved.
    #[arg(long, value_name = "SIZE", default_value = DEFAULT_MOST, value_parser = parse_size)]
    pub(super) max_size: usize,
    /// Take what is recorded out of the program while it runs: it goes to the disk, so that no buffer fills up, and nothing of it is
    /// lost however the program ends. This is the default.
    #[arg(long, conflicts_with_all = ["ring", "stop"])]
    pub(super) stream: bool,
    /// Keep what is recorded as it reaches the disk, in an eighth of the room, instead of making a trace of it at the end. All commands
    /// read it, unpacking it each time; `rftrace recover DIR` makes a trace of it, which uftrace reads too.
    #[arg(long, conflicts_with_all = ["ring", "stop", "pid", "srcline", "kernel", "events", "resources", "arguments", "auto_args", "results"])]
    pub(super) keep_stream: bool,
    /// What threads do when the buffer is full. They wait for the recorder, or go on, and calls are not recorded.
    #[arg(long, value_name = "WHAT", default_value = "wait", value_enum, conflicts_with_all = ["ring", "stop"])]
    pub(super) on_full: OnFullArg,
    /// Keep what is recorded in memory and, when the buffer is full, forget the oldest: the trace is the end of what happens, however
    /// the program ends.
    #[arg(long, conflicts_with = "stop")]
    pub(super) ring: bool,
    /// With --ring: write a trace of what is in memory to `snapshot-…` in the directory when something happens: `signal:NAME`, `fatal`
    /// (a process is killed, or the program's exit status is not 0), `panic`, `throw`, `stall:2s` (nothing was recorded for so long),
    /// `every:10s`, `call:FUNCTION`, `call:FUNCTION#100` (the hundredth call), `slow:FUNCTION>5ms`, `slow:FUNCTION>max` (longer than any
    /// call of it before). Behind it: `,last=50ms` (only so much), `,thread` (only that thread), `,after=10ms` (and what comes then),
    /// `,burst` (more than one a second). The program goes on meanwhile. With -p not `signal`, `fatal`, `panic` and `throw`.
    #[arg(long, value_name = "SPEC", value_parser = dump_on::parse, requires = "ring")]
    pub(super) dump_on: Vec<DumpOn>,
    /// With --dump-on: so many dumps are there at the most, but for those that signals ask for; with -p, of each process.
    #[arg(long, value_name = "N", default_value = "10", requires = "dump_on")]
    pub(super) dumps: usize,
    /// With --dump-on: which of more dumps are there: the first, as no more are made then; the last, or those of the calls that lasted
    /// longest, as others are removed.
    #[arg(long, value_name = "WHICH", default_value = "first", value_enum, requires = "dump_on")]
    pub(super) dumps_keep: KeepArg,
    /// With --dump-on: no more dumps than hold so much memory of rings together. As --max-size where nothing is said.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "dump_on")]
    pub(super) dumps_size: Option<usize>,
    /// Keep what is recorded in the program's memory and, when the buffer is full, stop recording: the trace is the beginning of what
    /// happens. Nothing is on the disk before the program ends.
    #[arg(long)]
    pub(super) stop: bool,
    /// Record only these functions and what is called within them. A name, a glob, or a regex between slashes.
    #[arg(short = 'F', long, value_name = "PATTERN")]
    pub(super) filter: Vec<String>,
    /// Record neither these functions nor what is called within them.
    #[arg(short = 'N', long, value_name = "PATTERN")]
    pub(super) notrace: Vec<String>,
    /// Record so many levels of calls.
    #[arg(short = 'D', long, value_name = "LEVELS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) depth: Option<u32>,
    /// Record only calls that last so long, and those around them: 500ns, 10us, 1ms, 2s.
    #[arg(short = 't', long, value_name = "TIME", value_parser = parse_ns)]
    pub(super) time_filter: Option<u64>,
    /// Further rules, as in the variable RFTRACE_FILTER: `include=app::*; exclude=*::fmt; size=64`.
    #[arg(long, value_name = "RULES")]
    pub(super) rules: Vec<String>,
    /// Record arguments of these functions: a name, a glob, or a regex between slashes. They are those that the program's debug
    /// information tells of, or behind `@` those that are wanted: `open@arg1/s,arg2/i32`, with uftrace's letters: i, u and x with 8 to 64,
    /// s for strings, c, p, and fparg1 for floating-point numbers.
    #[arg(short = 'A', long = "argument", value_name = "PATTERN[@SPECS]")]
    pub(super) arguments: Vec<String>,
    /// Record arguments and results of all functions of the program, as its debug information tells of them; with --libcalls also of
    /// well-known functions of the C library.
    #[arg(short = 'a', long)]
    pub(super) auto_args: bool,
    /// Record results of these functions, as for -A: `strlen@retval/u64`. Without specs and debug information a result is a number.
    #[arg(short = 'R', long = "retval", value_name = "PATTERN[@SPEC]")]
    pub(super) results: Vec<String>,
    /// Record these functions of the program though they do not call the tracer: each gets a branch at its beginning. A name, a glob or
    /// a regex; with `@` and a library behind it, functions of that: `-P '*' -P 'mem*@libc'`. What can get none is listed in
    /// `entry-branches.txt` of the trace.
    #[arg(short = 'P', long = "patch", value_name = "PATTERN")]
    pub(super) branches: Vec<String>,
    /// With -P: how ends of functions are seen. `exits` leaves return addresses as they are: on x86-64, in programs that are started; others
    /// have `returns`. `auto` is `exits` for programs whose runtime reads return addresses, such as node and those of OCaml.
    #[arg(long, value_name = "HOW", requires = "branches", value_enum, default_value = "auto")]
    pub(super) ends: Ends,
    /// With -P: no function with a symbol that stands in this file, one a line as `nm` prints them.
    #[arg(long, value_name = "FILE", requires = "branches")]
    pub(super) patch_except: Option<PathBuf>,
    /// With -P: only in programs below this directory. Others are recorded if they call the tracer.
    #[arg(long, value_name = "DIR", requires = "branches")]
    pub(super) patch_within: Option<PathBuf>,
    /// Record calls of the program of functions of libraries too: `malloc`, `write`. The program need not be built for it.
    #[arg(long, visible_alias = "libcall")]
    pub(super) libcalls: bool,
    /// Record who takes something and does not give it back, for `rftrace resources`: memory, file, thread, library; gobject, memtransfer,
    /// mmap, shmposix, shmsysv; audit:SYMBOL;SYMBOL for calls of functions of libraries; or what a file of your own specifies, FILE.toml. The program need not be built for it.
    #[arg(long, value_name = "KINDS", value_delimiter = ',', value_parser = resources::parse)]
    pub(super) resources: Vec<resources::Kind>,
    /// With --resources: how it is found who has called.
    #[arg(long, value_name = "HOW", default_value = "cfi", requires = "resources", value_enum)]
    pub(super) backtraces: resources::Backtraces,
    /// Make NOPs of call sites that are not recorded, and (on x86-64) jumps of the others: costs less.
    #[arg(long)]
    pub(super) patched: bool,
    /// Begin with recording switched off. A signal switches it on.
    #[arg(long)]
    pub(super) disabled: bool,
    /// Do something when a function is called, as uftrace does: `f@trace_off` (nothing is recorded from that call on), `f@trace_on` (it is
    /// again), `f@finish` (recording ends), `f@depth=2`, `f@filter`, `f@notrace`; several with commas. A FUNCTION alone: begin to
    /// record when it is first called.
    #[arg(short = 'T', long, value_name = "FUNCTION[@ACTION]")]
    pub(super) trigger: Vec<String>,
    /// End recording when the program gets a signal, as uftrace does: `USR1@finish`. It goes on.
    #[arg(long = "signal", value_name = "SIGNAL@finish", default_value = "0", hide_default_value = true, value_parser = triggers::parse_finish)]
    pub(super) signal_finish: i32,
    /// The signal that has a snapshot written, a name or a number; `none` for none.
    #[arg(long, value_name = "SIGNAL", default_value = "USR1", value_parser = run::parse_signal)]
    pub(super) signal_snapshot: i32,
    /// The signal that switches recording off and on.
    #[arg(long, value_name = "SIGNAL", default_value = "USR2", value_parser = run::parse_signal)]
    pub(super) signal_toggle: i32,
    /// The signal by which the program is asked when `rftrace ctl` wants something of it.
    #[arg(long, value_name = "SIGNAL", default_value = "RTMIN+7", value_parser = run::parse_signal)]
    pub(super) signal_control: i32,
    /// Fail if context switches cannot be recorded: when threads wait, and how long (`linux:schedule`). By default they are
    /// recorded where the kernel permits its perf events.
    #[arg(long, overrides_with = "no_schedule")]
    pub(super) schedule: bool,
    /// Record no context switches: waiting counts as time of the functions that wait.
    #[arg(long, overrides_with = "schedule")]
    pub(super) no_schedule: bool,
    /// Write where functions are in the source, so that `--srcline` of other commands shows it without the programs, and uftrace too.
    /// It takes debug information.
    #[arg(long)]
    pub(super) srcline: bool,
    /// Record what the program does in the kernel too: system calls, and functions, where the kernel can trace them, or those of
    /// them with such names: `--kernel='vfs_*,ext4_*'`. For root.
    #[arg(long, value_name = "GLOBS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub(super) kernel: Option<String>,
    /// Record events of the kernel too: sched, syscalls, irq. For root.
    #[arg(long, value_name = "GROUPS", value_delimiter = ',')]
    pub(super) events: Vec<Events>,
    /// Send what is recorded to `rftrace recv` while the program runs (HOST, HOST:PORT, unix:PATH; with --stop and --pid at the end), or the
    /// trace to `uftrace recv` at the end (uftrace://HOST). It is written here too. The program never waits for a receiver.
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with = "keep_stream")]
    pub(super) to: Option<To>,
    /// A file with the token that the receiver asks for.
    #[arg(long, value_name = "FILE", requires = "to")]
    pub(super) token_file: Option<PathBuf>,
    /// Keep no trace here that was sent.
    #[arg(long, requires = "to")]
    pub(super) no_local: bool,
    /// Show the calls when the program has ended. Without -o the trace is not kept.
    #[arg(long, conflicts_with = "keep_stream")]
    pub(super) live: bool,
    /// Run the program even if it seems not to call the tracer: a script, or a program that loads libraries which do.
    #[arg(long)]
    pub(super) force: bool,
    /// Open the trace in the browser when it is there, as `rftrace view` does, until Ctrl-C.
    #[arg(long, conflicts_with_all = ["live", "keep_stream", "no_local", "leave"])]
    pub(super) view: bool,
    /// Say nothing but errors.
    #[arg(short, long)]
    pub(super) quiet: bool,
    /// Show calls as they come, and keep nothing.
    #[arg(skip)]
    pub(super) is_piped: bool,
    /// The tracer is put into the program from outside.
    #[arg(skip)]
    pub(super) is_outside: bool,
    /// The program and its arguments.
    #[arg(required_unless_present = "pid", conflicts_with = "pid", trailing_var_arg = true, value_name = "PROGRAM")]
    pub(super) command: Vec<OsString>,
}

/// The buffer where nothing is said, and where it has to hold all that is recorded.
pub(crate) const DEFAULT_BUFFER: &str = "64M";
const KEPT_BUFFER: &str = "256M";

/// How ends of functions with branches are seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Ends {
    /// As the program needs it.
    Auto,
    /// By branches where functions end.
    Exits,
    /// By return addresses, which are replaced while functions run.
    Returns,
}

/// What threads do when their bank is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnFullArg {
    Wait,
    Drop,
}

impl From<OnFullArg> for OnFull {
    fn from(on_full: OnFullArg) -> Self {
        match on_full {
            OnFullArg::Wait => Self::Wait,
            OnFullArg::Drop => Self::Drop,
        }
    }
}

/// Which dumps stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KeepArg {
    First,
    Last,
    Slowest,
}

impl From<KeepArg> for Keep {
    fn from(keep: KeepArg) -> Self {
        match keep {
            KeepArg::First => Self::First,
            KeepArg::Last => Self::Last,
            KeepArg::Slowest => Self::Slowest,
        }
    }
}

/// What a run may write where nothing is said.
pub(crate) const DEFAULT_MOST: &str = "4G";

impl RecordArgs {
    /// What is wanted of dumps; `signal` asks for snapshots.
    pub(super) fn dump_options(&self, signal: i32) -> Result<dumps::Options> {
        let most_bytes = self.dumps_size.unwrap_or_else(|| self.most_bytes()) as u64;
        dump_on::options(&self.dump_on, (self.dumps, most_bytes, self.dumps_keep.into()), signal)
    }

    /// What is wanted of banks; `None` if there are none.
    pub(super) fn plan(&self) -> Result<Option<Plan>> {
        let dumps = self.dump_options(self.signal_snapshot)?;
        Ok((!self.stop).then(|| Plan {
            buffer_bytes: self.buffer,
            on_full: self.on_full.into(),
            most_bytes: self.most_bytes() as u64,
            is_ring: self.ring,
            dumps,
            is_sent: self.to.as_ref().is_some_and(|to| to.protocol == Protocol::Own),
        }))
    }

    /// Whether what is recorded is taken out of the program while it runs.
    pub(super) fn is_streamed(&self) -> bool {
        self.stream || !(self.ring || self.stop)
    }

    /// Whether functions are recorded that do not call the tracer.
    pub(super) fn hooks_others(&self) -> bool {
        !self.branches.is_empty() || self.libcalls
    }

    /// What is recorded of the program.
    pub(super) fn recorded(&self) -> Recorded {
        match (self.libcalls || !self.resources.is_empty(), self.branches.is_empty()) {
            (true, _) => Recorded::ByLibrary,
            (false, false) => Recorded::Functions,
            (false, true) => Recorded::Calls,
        }
    }

    /// What is done when functions are called.
    pub(super) fn triggers(&self) -> Result<Triggers> {
        triggers::read(&self.trigger, self.disabled, self.depth)
    }

    /// Whether recording begins off, and no call of a function is to switch it on: for that the hooks have to look.
    pub(super) fn is_off(&self) -> Result<bool> {
        Ok(self.disabled && !self.triggers()?.has_on)
    }

    /// A signal that ends recording does nothing else, where nothing else was said of it.
    pub(super) fn give_way_to_finish(&mut self) {
        for other in [&mut self.signal_snapshot, &mut self.signal_toggle, &mut self.signal_control] {
            if *other == self.signal_finish {
                *other = 0;
            }
        }
    }

    /// Symbols of functions that get no branch.
    pub(super) fn exceptions(&self) -> Result<Vec<String>> {
        let Some(path) = &self.patch_except else { return Ok(Vec::new()) };
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// The folder of the programs whose functions get branches, as the system names these.
    pub(super) fn within(&self) -> Result<Option<PathBuf>> {
        let canonical = |path: &PathBuf| path.canonicalize().with_context(|| path.display().to_string());
        self.patch_within.as_ref().map(canonical).transpose()
    }

    /// Refuses what makes no sense together, before anything is made.
    pub(super) fn check(&self) -> Result<()> {
        // Whether types are known matters to none of the rules' words.
        values::rules(&self.what())?.parse::<rftrace_frontend::Filter>().context("what to record")?;
        let is_finish = |on: &DumpOn| on.event == Event::Signal(self.signal_finish);
        if self.dump_on.iter().any(is_finish) {
            bail!("--signal and --dump-on name the same signal");
        }
        Ok(())
    }

    /// Refuses what needs the library, for a program that it is not loaded into.
    pub(super) fn check_outside(&self, program: &Path) -> Result<()> {
        let refused = [
            (self.stop, "--stop"),
            (dump_on::has_raised(&self.dump_on), "--dump-on panic, throw"),
            (self.patched, "--patched"),
            (self.signal_finish != 0, "--signal"),
            (self.triggers()?.start.is_some(), "-T FUNCTION"),
        ];
        if let Some((_, what)) = refused.into_iter().find(|&(is_wanted, _)| is_wanted) {
            bail!(
                "{} is linked statically, or uses musl as its C library, and {what} is only for programs that are linked dynamically with the GNU C \
                 library",
                program.display()
            );
        }
        Ok(())
    }

    /// What is recorded.
    pub(super) fn what(&self) -> values::Options<'_> {
        values::Options {
            filter: &self.filter,
            notrace: &self.notrace,
            depth: self.depth,
            time_filter: self.time_filter,
            rules: &self.rules,
            triggers: &self.trigger,
            is_disabled: self.disabled,
            arguments: &self.arguments,
            results: &self.results,
            auto_args: self.auto_args,
            libcalls: self.libcalls,
            dump_on: &self.dump_on,
        }
    }

    /// What is not there for all processors: options, and whether they are given.
    pub(super) fn of_one_processor(&self) -> [(&'static str, bool); 3] {
        [
            ("--pid", !self.pid.is_empty()),
            ("--resources", !self.resources.is_empty()),
            ("--trigger with a function alone", self.triggers().is_ok_and(|triggers| triggers.start.is_some())),
        ]
    }

    /// Bytes that may be written. A buffer that is saved at the end is saved as a whole.
    pub(super) fn most_bytes(&self) -> usize {
        if self.is_streamed() { self.max_size } else { self.max_size.max(self.buffer) }
    }
}
