//! The arguments of `rftrace record`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, anyhow, bail};
use clap::builder::ArgPredicate;
use clap::{Args, ValueEnum};
use rftrace_format::opener::{self, MOST_TEXT};
use rftrace_format::quantity::duration_ns;
use rftrace_net::{Protocol, To};
use rftrace_record::banks::{OnFull, Plan};
use rftrace_record::dumps::{self, DumpOn, Event, Keep};
use rftrace_record::kernel::Events;
use rftrace_record::program::Recorded;
use rftrace_record::run;

use super::triggers::Triggers;
use super::{dump_on, resources, triggers, values};
use crate::commands::quantity::{parse_pid, parse_size};

const EXAMPLES: &str = "\
Examples:
  rftrace record -- ./program --its-options     to the directory `uftrace.data`
  rftrace record -P '*' /usr/bin/git log        a program that was not built for it
  rftrace record -p 4711 -P '*' --for 10s       a running program, for ten seconds
  rftrace record --resources memory ./app       leaks of memory, for `rftrace resources`
  rftrace record --libcalls /usr/bin/git log    its calls of library functions
  rftrace record -a ./app                       with arguments and results of all functions
  rftrace record --ring --buffer 16M ./server   the last 16 MiB, even if the server is killed
  rftrace record --dump-on 'slow:serve>5ms' ./server
                                                one snapshot for each slow call of `serve`
  rftrace record -p $(pgrep -d, -x app)         all processes of one name, in one trace
  rftrace record --resources file,thread ./app  open files and threads without a join
  sudo rftrace record --kernel ./app            with system calls and kernel functions
  rftrace record --live ./app | less            the call tree, after the end
  rftrace record --to 127.0.0.1 ./app           to `rftrace recv`, during the run

Programs call the tracer if they were built for it:
  RUSTFLAGS=\"-Z instrument-mcount\" cargo +nightly build --release \\
      --target x86_64-unknown-linux-gnu
  gcc -pg …, g++ -pg …, clang -pg …

While the program runs:
  kill -USR1 PID   writes the calls so far to a directory `snapshot-…` in the trace
  kill -USR2 PID   switches recording off and on";

/// The groups of options in `--help`, each with an example. Options without a group are those of `-h`.
const SELECTION: &str = "Selection: -N 'log::*' -D 5";
const VALUES: &str = "Values: -A 'open@arg1/s' -R open";
const BRANCHES: &str = "Functions of any program: -P '*' -P 'mem*@libc'";
const RESOURCES: &str = "Resources: --resources memory --backtraces shadow";
const ATTACH: &str = "Running programs: -p 4711 --take-over";
const AMOUNT: &str = "Size: --buffer 16M --max-size 1G --on-full drop";
const RINGS: &str = "Rings and snapshots: --dump-on 'slow:serve>5ms,last=50ms'";
const SWITCHES: &str = "Switches: --disabled -T 'serve@trace_on'";
const SYSTEM: &str = "Operating system: --kernel='vfs_*' --events sched";
const RESULT: &str = "Result: --srcline --live";
const NETWORK: &str = "Network: --to collector.example:7300 --token-file token";

/// Options that exclude another one, and every option that needs that one: clap asks for no option that is excluded.
const NOT_WITH_RING: [&str; 4] = ["stop", "on_full", "stream", "keep_stream"];
const NOT_WITH_RESOURCES: [&str; 2] = ["keep_stream", "anonymous"];
const NOT_SENT: [&str; 2] = ["keep_stream", "anonymous"];

/// Runs a program and records every call of its functions.
///
/// The program file stays as it is: a preloaded library records the calls of `mcount` or `__fentry__`. Children are recorded too, except
/// for static and musl programs. The exit status is the program's, or 128 plus the number of the signal at its end.
#[derive(Args)]
#[command(after_help = EXAMPLES, args_override_self = true)]
pub(crate) struct RecordArgs {
    /// Directory for the trace; an older trace there gets the suffix `.old`.
    #[arg(short, long, alias = "data", visible_short_alias = 'd', value_name = "DIR")]
    pub(super) output: Option<PathBuf>,
    /// Record these functions of a program that was not built for it.
    ///
    /// Each function gets a branch at its beginning. The pattern is a name, a glob or a regex; `@` and a library behind it select functions
    /// of that library. Functions without room for a branch are listed in `entry-branches.txt` of the trace.
    #[arg(short = 'P', long = "patch", value_name = "PATTERN")]
    pub(super) branches: Vec<String>,
    /// Record calls of library functions: `malloc`, `write`.
    ///
    /// It works with any program.
    #[arg(long, visible_alias = "libcall")]
    pub(super) libcalls: bool,
    /// Record only these functions and their callees: a name, a glob or /regex/.
    #[arg(short = 'F', long, value_name = "PATTERN")]
    pub(super) filter: Vec<String>,
    /// Record only calls of at least this duration: 500ns, 10us, 1ms.
    ///
    /// Their callers are recorded too.
    #[arg(short = 't', long, value_name = "TIME", value_parser = duration_ns)]
    pub(super) time_filter: Option<u64>,
    /// Record arguments and results of all functions with debug information.
    ///
    /// With --libcalls also those of well-known functions of the C library.
    #[arg(short = 'a', long)]
    pub(super) auto_args: bool,
    /// Record leaks, for `rftrace resources`: memory, file, thread, library, …
    ///
    /// The kinds are memory, file, thread, library, gobject, memtransfer, mmap, shmposix and shmsysv; audit:SYMBOL;SYMBOL for
    /// calls of library functions; and FILE.toml for kinds of your own. It works with any program.
    #[arg(long, value_name = "KINDS", value_delimiter = ',', value_parser = resources::parse, conflicts_with_all = NOT_WITH_RESOURCES)]
    pub(super) resources: Vec<resources::Kind>,
    /// Record running programs. They go on after the recording: at Ctrl-C, or after --for.
    ///
    /// The programs have to call the tracer, unless -P, --libcalls or --resources is there.
    #[arg(short, long, value_name = "PID[,PID]", value_delimiter = ',', value_parser = parse_pid, conflicts_with_all = ["stop", "keep_stream", "schedule", "kernel", "events", "force", "signal_snapshot", "signal_toggle", "signal_control", "signal_finish"])]
    pub(super) pid: Vec<u32>,
    /// With -p: the duration of the recording: 500ms, 10s.
    #[arg(long = "for", value_name = "TIME", value_parser = duration_ns, requires = "pid")]
    pub(super) duration: Option<u64>,
    /// Keep only the last calls, in memory: for long runs and for crashes.
    ///
    /// The size of this memory is --buffer. The trace is written at the end, even if the program is killed.
    #[arg(long, default_value_if("dump_on", ArgPredicate::IsPresent, "true"), conflicts_with_all = NOT_WITH_RING)]
    pub(super) ring: bool,
    /// Open the finished trace in the browser, until Ctrl-C.
    #[arg(long, conflicts_with_all = ["live", "keep_stream", "no_local", "leave"])]
    pub(super) view: bool,
    /// Print errors only.
    #[arg(short, long)]
    pub(super) quiet: bool,

    /// Leave out these functions and their callees.
    #[arg(short = 'N', long, value_name = "PATTERN", help_heading = SELECTION)]
    pub(super) notrace: Vec<String>,
    /// Record only this number of call levels.
    #[arg(short = 'D', long, value_name = "LEVELS", value_parser = clap::value_parser!(u32).range(1..), help_heading = SELECTION)]
    pub(super) depth: Option<u32>,
    /// More rules, in the syntax of RFTRACE_FILTER: `include=app::*; exclude=*::fmt; size=64`.
    #[arg(long, value_name = "RULES", help_heading = SELECTION)]
    pub(super) rules: Vec<String>,

    /// Record arguments of these functions: a name, a glob, or a regex between slashes.
    ///
    /// Types come from debug information, or from specs behind `@`, with uftrace's letters: `open@arg1/s,arg2/i32`. There are i, u and x with
    /// 8 to 64 bits, s for strings, c for characters, p for pointers, and fparg1 for floating-point numbers.
    #[arg(short = 'A', long = "argument", value_name = "PATTERN[@SPECS]", help_heading = VALUES)]
    pub(super) arguments: Vec<String>,
    /// Record results of these functions, in the syntax of -A: `strlen@retval/u64`.
    ///
    /// Without specs and debug information a result is a number.
    #[arg(short = 'R', long = "retval", value_name = "PATTERN[@SPEC]", help_heading = VALUES)]
    pub(super) results: Vec<String>,

    /// With -P: the way to see the ends of functions.
    ///
    /// `exits` keeps return addresses as they are: on x86-64, in programs linked dynamically with the GNU C library; all others have `returns`.
    /// `auto` is `exits` for programs with a runtime that reads return addresses: node, OCaml.
    #[arg(long, value_name = "HOW", requires = "branches", value_enum, default_value = "auto", help_heading = BRANCHES)]
    pub(super) ends: Ends,
    /// With -P: leave out the symbols in this file, one a line, as `nm` prints them.
    #[arg(long, value_name = "FILE", requires = "branches", help_heading = BRANCHES)]
    pub(super) patch_except: Option<PathBuf>,
    /// With -P: only programs below this directory get branches. Other programs are recorded if they call the tracer.
    #[arg(long, value_name = "DIR", requires = "branches", help_heading = BRANCHES)]
    pub(super) patch_within: Option<PathBuf>,
    /// Make NOPs of unrecorded call sites and, on x86-64, jumps of the others: each call costs less.
    #[arg(long, help_heading = BRANCHES)]
    pub(super) patched: bool,

    /// With --resources: the way to find the callers.
    #[arg(long, value_name = "HOW", default_value = "cfi", requires = "resources", conflicts_with_all = NOT_WITH_RESOURCES, value_enum, help_heading = RESOURCES)]
    pub(super) backtraces: resources::Backtraces,

    /// With -p: only remove a tracer that a killed recorder left in the program.
    #[arg(long, requires = "pid", conflicts_with = "duration", help_heading = ATTACH)]
    pub(super) leave: bool,
    /// With -p: end another rftrace that records the program; it saves its trace.
    #[arg(long, requires = "pid", help_heading = ATTACH)]
    pub(super) take_over: bool,

    /// Memory for records in each process: 16 bytes for each entry and exit; with K, M or G. 256M with --ring and --stop.
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size, default_value = DEFAULT_BUFFER, default_value_ifs([("ring", "true", KEPT_BUFFER), ("stop", "true", KEPT_BUFFER)]), help_heading = AMOUNT)]
    pub(super) buffer: usize,
    /// Size limit of the trace, for all processes together. Later records are dropped. --ring and --stop save at least one whole
    /// buffer.
    #[arg(long, value_name = "SIZE", default_value = DEFAULT_MOST, value_parser = parse_size, help_heading = AMOUNT)]
    pub(super) max_size: usize,
    /// Action of threads at a full buffer: wait for the recorder, or go on and drop records.
    #[arg(long, value_name = "WHAT", default_value = "wait", value_enum, conflicts_with = "stop", help_heading = AMOUNT)]
    pub(super) on_full: OnFullArg,
    /// Write records to the disk during the run, so that no buffer fills up. This is the default.
    #[arg(long, conflicts_with = "stop", help_heading = AMOUNT)]
    pub(super) stream: bool,
    /// Keep the compact stream, an eighth of the size, without making a trace of it.
    ///
    /// All commands read it and unpack it each time. `rftrace recover DIR` makes a trace for uftrace too.
    #[arg(long, conflicts_with_all = ["stop", "srcline", "kernel", "events", "arguments", "auto_args", "results"], help_heading = AMOUNT)]
    pub(super) keep_stream: bool,
    /// Keep the first calls in the program's memory and stop at a full buffer. Nothing is on the disk before the end.
    #[arg(long, help_heading = AMOUNT)]
    pub(super) stop: bool,

    /// Write a snapshot of the last calls to `snapshot-…` at an event. The program goes on. It implies --ring.
    ///
    /// Events are `signal:NAME`, `fatal` (a process is killed, or the exit status is not 0), `panic`, `throw`, `stall:2s` (no record for this
    /// time), `every:10s`, `call:FUNCTION`, `call:FUNCTION#100` (the hundredth call), `slow:FUNCTION>5ms` and `slow:FUNCTION>max` (longer than
    /// every call before). Suffixes are `,last=50ms` (only this time), `,thread` (only this thread), `,after=10ms` (also the time after)
    /// and `,burst` (several a second). With -p there is no `signal`, `fatal`, `panic` or `throw`.
    #[arg(long, value_name = "SPEC", value_parser = dump_on::parse, conflicts_with_all = NOT_WITH_RING, help_heading = RINGS)]
    pub(super) dump_on: Vec<DumpOn>,
    /// With --dump-on: the highest number of snapshots, not counting those by signals; with -p, of each process.
    #[arg(long, value_name = "N", default_value = "10", requires = "dump_on", conflicts_with_all = NOT_WITH_RING, help_heading = RINGS)]
    pub(super) dumps: usize,
    /// With --dump-on: the snapshots to keep: the first ones, the last ones, or those of the longest calls.
    #[arg(long, value_name = "WHICH", default_value = "first", value_enum, requires = "dump_on", conflicts_with_all = NOT_WITH_RING, help_heading = RINGS)]
    pub(super) dumps_keep: KeepArg,
    /// With --dump-on: size limit of all snapshots together, in memory of rings [default: --max-size].
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "dump_on", conflicts_with_all = NOT_WITH_RING, help_heading = RINGS)]
    pub(super) dumps_size: Option<usize>,
    /// Signal for a snapshot, a name or a number; `none` for none.
    #[arg(long, value_name = "SIGNAL", default_value = "USR1", value_parser = run::parse_signal, help_heading = RINGS)]
    pub(super) signal_snapshot: i32,

    /// Begin with recording switched off. A signal or a trigger switches it on.
    #[arg(long, alias = "disable", help_heading = SWITCHES)]
    pub(super) disabled: bool,
    /// Act on a call of this function, as uftrace does. Without an action, recording begins at its first call.
    ///
    /// Actions are `f@trace_off` (recording is off from this call on), `f@trace_on`, `f@finish` (recording ends), `f@depth=2`, `f@filter` and
    /// `f@notrace`; commas separate several.
    #[arg(short = 'T', long, value_name = "FUNCTION[@ACTION]", help_heading = SWITCHES)]
    pub(super) trigger: Vec<String>,
    /// End recording at a signal, as uftrace does: `USR1@finish`. The program goes on.
    #[arg(long = "signal", value_name = "SIGNAL@finish", default_value = "0", hide_default_value = true, value_parser = triggers::parse_finish, help_heading = SWITCHES)]
    pub(super) signal_finish: i32,
    /// Signal to switch recording off and on.
    #[arg(long, value_name = "SIGNAL", default_value = "USR2", value_parser = run::parse_signal, help_heading = SWITCHES)]
    pub(super) signal_toggle: i32,
    /// Signal for requests of `rftrace ctl`.
    #[arg(long, value_name = "SIGNAL", default_value = "RTMIN+7", value_parser = run::parse_signal, help_heading = SWITCHES)]
    pub(super) signal_control: i32,

    /// Fail without context switches. They show waits as `linux:schedule` and pre-emption as `linux:schedule (pre-empted)`; by default
    /// they are recorded if the kernel permits it. For root they tell who ended a wait: `rftrace report --waits`.
    #[arg(long, overrides_with = "no_schedule", help_heading = SYSTEM)]
    pub(super) schedule: bool,
    /// Record no context switches: time without a processor counts as time of the function.
    #[arg(long, aliases = ["no-sched", "no-event"], overrides_with = "schedule", help_heading = SYSTEM)]
    pub(super) no_schedule: bool,
    /// Record system calls, and kernel functions where the kernel can trace them; or only functions of these names:
    /// `--kernel='vfs_*,ext4_*'`. Only for root.
    #[arg(short, long, value_name = "GLOBS", num_args = 0..=1, require_equals = true, default_missing_value = "", help_heading = SYSTEM)]
    pub(super) kernel: Option<String>,
    /// Record kernel events: sched, syscalls, irq. Only for root.
    #[arg(long, value_name = "GROUPS", value_delimiter = ',', help_heading = SYSTEM)]
    pub(super) events: Vec<Events>,

    /// Save source lines of functions, for `--srcline` on other machines and for uftrace. It takes debug information.
    #[arg(long, help_heading = RESULT)]
    pub(super) srcline: bool,
    /// Show the call tree after the end. Without -o the trace is not kept.
    #[arg(long, conflicts_with = "keep_stream", help_heading = RESULT)]
    pub(super) live: bool,
    /// Leave personal facts out of the trace: command line, host, folders of files, texts of arguments and marks.
    ///
    /// Names of functions, threads and files stay. Fields of structures show as `?`.
    #[arg(long, conflicts_with = "keep_stream", help_heading = RESULT)]
    pub(super) anonymous: bool,
    /// Run the program even if it seems not to call the tracer: a script, or a program with instrumented libraries.
    #[arg(long, help_heading = RESULT)]
    pub(super) force: bool,

    /// Send records to `rftrace recv` during the run: HOST, HOST:PORT or unix:PATH; with --stop and -p at the end.
    ///
    /// uftrace://HOST sends the trace to `uftrace recv` at the end. A copy is written here. The program never waits for a receiver.
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with_all = NOT_SENT, help_heading = NETWORK)]
    pub(super) to: Option<To>,
    /// File with the receiver's token.
    #[arg(long, value_name = "FILE", requires = "to", conflicts_with_all = NOT_SENT, help_heading = NETWORK)]
    pub(super) token_file: Option<PathBuf>,
    /// Keep no copy here.
    #[arg(long, requires = "to", conflicts_with_all = NOT_SENT, help_heading = NETWORK)]
    pub(super) no_local: bool,

    /// With --quiet: tell of the end and of snapshots. `cargo rftrace` tells the rest.
    #[arg(long = "for-cargo", hide = true)]
    pub(super) is_for_cargo: bool,
    /// Show calls as they come, and keep nothing.
    #[arg(skip)]
    pub(super) is_piped: bool,
    /// The tracer is put into the program from outside.
    #[arg(skip)]
    pub(super) is_outside: bool,
    /// The program and its arguments.
    #[arg(required_unless_present = "pid", conflicts_with_all = ["pid", "duration", "leave", "take_over"], trailing_var_arg = true, value_name = "PROGRAM")]
    pub(super) command: Vec<OsString>,
}

/// The buffer where nothing is said, and where it has to hold all that is recorded.
pub(crate) const DEFAULT_BUFFER: &str = "64M";
const KEPT_BUFFER: &str = "256M";

/// The way to record exits of functions with branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Ends {
    /// As the program needs it.
    Auto,
    /// By branches where functions end.
    Exits,
    /// By return addresses, which are replaced while functions run.
    Returns,
}

impl Ends {
    /// The way that the user has named.
    pub(super) fn wanted(self) -> Option<rftrace_frontend::Ends> {
        match self {
            Self::Auto => None,
            Self::Exits => Some(rftrace_frontend::Ends::Exits),
            Self::Returns => Some(rftrace_frontend::Ends::Returns),
        }
    }
}

/// Behaviour of threads when their bank is full.
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

/// Default limit of the bytes that a run may write.
pub(crate) const DEFAULT_MOST: &str = "4G";

impl RecordArgs {
    /// Returns the options for dumps; `signal` asks for snapshots.
    pub(super) fn dump_options(&self, signal: i32) -> Result<dumps::Options> {
        let most_bytes = self.dumps_size.unwrap_or_else(|| self.most_bytes()) as u64;
        dump_on::options(&self.dump_on, (self.dumps, most_bytes, self.dumps_keep.into()), signal)
    }

    /// Returns the options for banks; `None` if there are none.
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

    /// True if records are taken out of the program while it runs.
    pub(super) fn is_streamed(&self) -> bool {
        self.stream || !(self.ring || self.stop)
    }

    /// True if the end of the program is told.
    pub(super) fn tells_of_end(&self) -> bool {
        !self.quiet || self.is_for_cargo
    }

    /// True if functions that do not call the tracer are recorded.
    pub(super) fn hooks_others(&self) -> bool {
        !self.branches.is_empty() || self.libcalls
    }

    /// Returns the recorded parts of the program.
    pub(super) fn recorded(&self) -> Recorded {
        match () {
            () if self.libcalls => Recorded::LibraryCalls,
            () if !self.resources.is_empty() => Recorded::Resources,
            () if !self.branches.is_empty() => Recorded::Functions,
            () => Recorded::Calls,
        }
    }

    /// Returns the actions at calls of functions.
    pub(super) fn triggers(&self) -> Result<Triggers> {
        triggers::read(&self.trigger, self.disabled, self.depth)
    }

    /// True if recording begins off, and no call of a function is to switch it on: for that the hooks have to look.
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
        let text = opener::read_text(path, MOST_TEXT).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// The folder of the programs whose functions get branches, as the system names these.
    pub(super) fn within(&self) -> Result<Option<PathBuf>> {
        let canonical =
            |path: &PathBuf| path.canonicalize().with_context(|| format!("--patch-within {}", path.display()));
        self.patch_within.as_ref().map(canonical).transpose()
    }

    /// Refuses options that exclude each other, before anything is made.
    pub(super) fn check(&self) -> Result<()> {
        // The rules' words do not depend on known types.
        values::Rule::joined(&values::rules(&self.what())?)
            .parse::<rftrace_frontend::Filter>()
            .context("cannot read the rules")?;
        let is_finish = |on: &DumpOn| on.event == Event::Signal(self.signal_finish);
        if self.dump_on.iter().any(is_finish) {
            bail!("--signal and --dump-on name the same signal; name two different ones");
        }
        Ok(())
    }

    /// True if -P is there, and matches no function: `matched` are its patterns if they do.
    pub(super) fn lacks_match(&self, matched: &[String]) -> bool {
        !self.branches.is_empty() && matched.is_empty()
    }

    /// Adds to the reason against a program that an option which would do stands behind its name.
    pub(super) fn with_misplaced(&self, error: Error) -> Error {
        let is_misplaced = |option: &&&str| self.command.iter().skip(1).any(|word| word == **option);
        match ["-P", "--patch", "--libcalls", "--resources"].iter().find(is_misplaced) {
            Some(option) => {
                anyhow!(
                    "{error:#}\n{option} is the program's, as it stands behind it: options of rftrace come before the program"
                )
            }
            None => error,
        }
    }

    /// Refuses options that need the library, for a program that does not load it.
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
                "{what} works only with programs that are linked dynamically with the GNU C library, and {} is linked statically or uses \
                 musl; leave {what} out",
                program.display()
            );
        }
        Ok(())
    }

    /// Returns the option that may be the reason for a recording without a call.
    pub(super) fn why_nothing(&self) -> Option<&'static str> {
        let leaves_out = !self.filter.is_empty() || !self.notrace.is_empty() || !self.rules.is_empty();
        if self.disabled {
            Some(
                "recording began switched off (--disabled), and no signal (--signal-toggle) or trigger (-T) has switched it on",
            )
        } else if self.triggers().is_ok_and(|triggers| triggers.start.is_some()) {
            Some(
                "recording begins at a call of the function of -T, which did not run; write its name as `rftrace report` shows it",
            )
        } else if self.time_filter.is_some() {
            Some("no call took as long as -t demands; use a shorter time")
        } else if leaves_out {
            Some(
                "no function that -F, -N and --rules permit has run; write names as `rftrace report` shows them, or permit more",
            )
        } else {
            None
        }
    }

    /// Returns the options for the recorded functions and values.
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

    /// Returns the options that not all processors have, and whether they are given.
    pub(super) fn of_one_processor(&self) -> [(&'static str, bool); 3] {
        [
            ("--pid", !self.pid.is_empty()),
            ("--resources", !self.resources.is_empty()),
            ("--trigger without an action", self.triggers().is_ok_and(|triggers| triggers.start.is_some())),
        ]
    }

    /// Bytes that may be written. A buffer that is saved at the end is saved as a whole.
    pub(super) fn most_bytes(&self) -> usize {
        if self.is_streamed() { self.max_size } else { self.max_size.max(self.buffer) }
    }
}

#[cfg(test)]
mod tests {
    use clap::{Command, FromArgMatches};

    use super::*;

    #[test]
    fn buffers() {
        for (options, mebibytes) in [
            (&[][..], 64),
            (&["--ring"], 256),
            (&["--dump-on", "fatal"], 256),
            (&["--stop"], 256),
            (&["--ring", "--buffer", "3M"], 3),
            (&["-b", "4M"], 4),
        ] {
            let command = RecordArgs::augment_args(Command::new("record"));
            let words = ["record"].iter().chain(options).chain(&["true"]);
            let args = RecordArgs::from_arg_matches(&command.get_matches_from(words)).unwrap();
            assert_eq!(args.buffer, mebibytes << 20, "{options:?}");
        }
    }
}
