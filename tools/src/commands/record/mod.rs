//! `rftrace record`: its arguments; in `progress` and `summary` what it says while the program runs and at the end.
//!
//! Not here: what it does with the program and what was saved (`rftrace-record`).

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::builder::ArgPredicate;
use clap::{Args, ValueEnum};
use rftrace_net::Address;
use rftrace_record::banks::{BankRecorder, OnFull, Plan};
use rftrace_record::dumps::DumpOn;
use rftrace_record::entries::Entries;
use rftrace_record::join::Beside;
use rftrace_record::kernel::{self, Events, KernelEvents, KernelRecorder};
use rftrace_record::notes::Notes;
use rftrace_record::output::Output;
use rftrace_record::preload::{self, Preload};
use rftrace_record::resources::ResourceRecorder;
use rftrace_record::run::Ended;
use rftrace_record::{Kept, ScheduleEvents, join, parts, program, run};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use super::common::shell_word;
use super::resources::ResourceKind;
use super::size::parse_size;
use super::time::parse_ns;

#[cfg(target_arch = "x86_64")]
pub(crate) mod attach;
mod dump_on;
mod processor;
mod progress;
mod resources;
pub(crate) mod summary;
mod values;

use progress::Progress;
use values::Wanted;
#[cfg(target_arch = "x86_64")]
pub(crate) use values::function_rules;

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
  rftrace record -p 4711 --libcalls             what any program calls of libraries
  rftrace record --resources memory ./app       who takes memory and does not give it back
  rftrace record --resources file,thread ./app  who leaves files open, and threads that nobody joins
  rftrace record --live ./app | less            show the calls when it has ended
  rftrace record --to uftrace://desk ./app      to `rftrace recv` on another machine, as `rftrace help send` tells

Programs call the tracer if they were built for it:
  RUSTFLAGS=\"-Z instrument-mcount\" cargo +nightly build --release --target x86_64-unknown-linux-gnu
  gcc -pg …, g++ -pg …, clang -pg …

While the program runs:
  kill -USR1 PID   writes a trace of what was recorded so far to `snapshot-…` in the directory
  kill -USR2 PID   switches recording off and on";

/// Runs a program and records every call of its functions.
///
/// The program is not changed: a library that is preloaded records what its calls of `mcount` or `__fentry__` tell. Children
/// are recorded too. The exit status is that of the program, or 128 plus the number of the signal that killed it.
#[derive(Args)]
#[command(after_help = EXAMPLES, args_override_self = true)]
pub(crate) struct RecordArgs {
    /// Where to write to. A trace that is there gets the suffix `.old`.
    #[arg(short, long, visible_short_alias = 'd', value_name = "DIR")]
    output: Option<PathBuf>,
    /// Record a program that runs: it goes on when the recording ends, by Ctrl-C or --for. It has to call the tracer, as below,
    /// but with --libcalls, and to be linked dynamically.
    #[arg(short, long, value_name = "PID", conflicts_with_all = ["ring", "stop", "branches", "patched", "disabled", "trigger", "schedule", "kernel", "events", "force", "resources"])]
    pid: Option<u32>,
    /// With -p: record so long: 500ms, 10s.
    #[arg(long = "for", value_name = "TIME", value_parser = parse_ns, requires = "pid")]
    duration: Option<u64>,
    /// With -p: only take the tracer out that a recorder which was killed has left in the program.
    #[arg(long, requires = "pid", conflicts_with = "duration")]
    leave: bool,
    /// Memory for what is recorded, in each process: 16 bytes for each entry and exit. With K, M or G. 256M with --ring and --stop.
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size, default_value = DEFAULT_BUFFER, default_value_ifs([("ring", ArgPredicate::IsPresent, KEPT_BUFFER), ("stop", ArgPredicate::IsPresent, KEPT_BUFFER)]))]
    buffer: usize,
    /// Write no more records than this, in all processes together: what is recorded after that is not saved. With --ring and --stop at
    /// least a whole buffer can be saved.
    #[arg(long, value_name = "SIZE", default_value = DEFAULT_MOST, value_parser = parse_size)]
    max_size: usize,
    /// Take what is recorded out of the program while it runs: it goes to the disk, so that no buffer fills up, and nothing of it is
    /// lost however the program ends. This is the default.
    #[arg(long, conflicts_with_all = ["ring", "stop"])]
    stream: bool,
    /// What threads do when the buffer is full. They wait for the recorder, or go on, and calls are not recorded.
    #[arg(long, value_name = "WHAT", default_value = "wait", value_enum, conflicts_with_all = ["ring", "stop"])]
    on_full: OnFullArg,
    /// Keep what is recorded in memory and, when the buffer is full, forget the oldest: the trace is the end of what happens, however
    /// the program ends.
    #[arg(long, conflicts_with = "stop")]
    ring: bool,
    /// With --ring: write a trace of what is in memory to `snapshot-…` in the directory when something happens: `signal:NAME`, `fatal`
    /// (a process is killed, or the program's exit status is not 0), `stall:2s` (nothing was recorded for so long), `every:10s`,
    /// `call:FUNCTION`, `call:FUNCTION#100` (the hundredth call), `slow:FUNCTION>5ms`, `slow:FUNCTION>max` (longer than any call of it
    /// before). The program goes on meanwhile.
    #[arg(long, value_name = "SPEC", value_parser = dump_on::parse, requires = "ring")]
    dump_on: Vec<DumpOn>,
    /// With --dump-on: write so many, but for those that signals ask for.
    #[arg(long, value_name = "N", default_value = "10", requires = "dump_on")]
    dumps: usize,
    /// Keep what is recorded in the program's memory and, when the buffer is full, stop recording: the trace is the beginning of what
    /// happens. Nothing is on the disk before the program ends.
    #[arg(long)]
    stop: bool,
    /// Record only these functions and what is called within them. A name, a glob, or a regex between slashes.
    #[arg(short = 'F', long, value_name = "PATTERN")]
    filter: Vec<String>,
    /// Record neither these functions nor what is called within them.
    #[arg(short = 'N', long, value_name = "PATTERN")]
    notrace: Vec<String>,
    /// Record so many levels of calls.
    #[arg(short = 'D', long, value_name = "LEVELS", value_parser = clap::value_parser!(u32).range(1..))]
    depth: Option<u32>,
    /// Record only calls that last so long, and those around them: 500ns, 10us, 1ms, 2s.
    #[arg(short = 't', long, value_name = "TIME", value_parser = parse_ns)]
    time_filter: Option<u64>,
    /// Further rules, as in the variable RFTRACE_FILTER: `include=app::*; exclude=*::fmt; size=64`.
    #[arg(long, value_name = "RULES")]
    rules: Vec<String>,
    /// Record arguments of these functions: a name, a glob, or a regex between slashes. They are those that the program's debug
    /// information tells of, or behind `@` those that are wanted: `open@arg1/s,arg2/i32`, with uftrace's letters: i, u and x with 8 to 64,
    /// s for strings, c, p, and fparg1 for floating-point numbers.
    #[arg(short = 'A', long = "argument", value_name = "PATTERN[@SPECS]")]
    arguments: Vec<String>,
    /// Record arguments and results of all functions of the program, as its debug information tells of them; with --libcalls also of
    /// well-known functions of the C library.
    #[arg(short = 'a', long)]
    auto_args: bool,
    /// Record results of these functions, as for -A: `strlen@retval/u64`. Without specs and debug information a result is a number.
    #[arg(short = 'R', long = "retval", value_name = "PATTERN[@SPEC]")]
    results: Vec<String>,
    /// Record these functions of the program though they do not call the tracer: each gets a branch at its beginning. A name, a glob or
    /// a regex; with `@` and a library behind it, functions of that: `-P '*' -P 'mem*@libc'`. What can get none is listed in
    /// `entry-branches.txt` of the trace.
    #[arg(short = 'P', long = "patch", value_name = "PATTERN")]
    branches: Vec<String>,
    /// With -P: no function with a symbol that stands in this file, one a line as `nm` prints them.
    #[arg(long, value_name = "FILE", requires = "branches")]
    patch_except: Option<PathBuf>,
    /// With -P: only in programs below this directory. Others are recorded if they call the tracer.
    #[arg(long, value_name = "DIR", requires = "branches")]
    patch_within: Option<PathBuf>,
    /// Record calls of the program of functions of libraries too: `malloc`, `write`. The program need not be built for it.
    #[arg(long, visible_alias = "libcall")]
    libcalls: bool,
    /// Record who takes memory, files or threads and does not give them back, for `rftrace resources`. The program need not be built for
    /// it.
    #[arg(long, value_name = "KINDS", value_delimiter = ',', value_enum)]
    resources: Vec<ResourceKind>,
    /// With --resources: how it is found who has called.
    #[arg(long, value_name = "HOW", default_value = "cfi", requires = "resources", value_enum)]
    backtraces: resources::Backtraces,
    /// Make NOPs of call sites that are not recorded, and jumps of the others: costs less.
    #[arg(long)]
    patched: bool,
    /// Begin with recording switched off. A signal switches it on.
    #[arg(long)]
    disabled: bool,
    /// Begin to record when this function is first called.
    #[arg(long, value_name = "FUNCTION")]
    trigger: Option<String>,
    /// The signal that has a snapshot written, a name or a number; `none` for none.
    #[arg(long, value_name = "SIGNAL", default_value = "USR1", value_parser = run::parse_signal)]
    signal_snapshot: i32,
    /// The signal that switches recording off and on.
    #[arg(long, value_name = "SIGNAL", default_value = "USR2", value_parser = run::parse_signal)]
    signal_toggle: i32,
    /// Fail if context switches cannot be recorded: when threads wait, and how long (`linux:schedule`). By default they are
    /// recorded where the kernel permits its perf events.
    #[arg(long, overrides_with = "no_schedule")]
    schedule: bool,
    /// Record no context switches: waiting counts as time of the functions that wait.
    #[arg(long, overrides_with = "schedule")]
    no_schedule: bool,
    /// Write where functions are in the source, so that `--srcline` of other commands shows it without the programs, and uftrace too.
    /// It takes debug information.
    #[arg(long)]
    srcline: bool,
    /// Record what the program does in the kernel too: system calls, and functions, where the kernel can trace them, or those of
    /// them with such names: `--kernel='vfs_*,ext4_*'`. For root.
    #[arg(long, value_name = "GLOBS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    kernel: Option<String>,
    /// Record events of the kernel too: sched, syscalls, irq. For root.
    #[arg(long, value_name = "GROUPS", value_delimiter = ',')]
    events: Vec<Events>,
    /// Send the trace to `rftrace recv` or `uftrace recv` when the program has ended. It is written here too.
    #[arg(long, value_name = "uftrace://HOST[:PORT]", value_parser = parse_to)]
    to: Option<Address>,
    /// Keep no trace here that was sent.
    #[arg(long, requires = "to")]
    no_local: bool,
    /// Show the calls when the program has ended. Without -o the trace is not kept.
    #[arg(long)]
    live: bool,
    /// Run the program even if it seems not to call the tracer: a script, or a program that loads libraries which do.
    #[arg(long)]
    force: bool,
    /// Say nothing but errors.
    #[arg(short, long)]
    quiet: bool,
    /// The program and its arguments.
    #[arg(required_unless_present = "pid", conflicts_with = "pid", trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// How long a receiver may take for anything.
const RECEIVER_PATIENCE: Duration = Duration::from_secs(30);

/// The buffer where nothing is said, and where it has to hold all that is recorded.
pub(crate) const DEFAULT_BUFFER: &str = "64M";
const KEPT_BUFFER: &str = "256M";

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

/// What a run may write where nothing is said.
pub(crate) const DEFAULT_MOST: &str = "4G";

impl RecordArgs {
    /// What is wanted of banks; `None` if there are none.
    fn plan(&self) -> Result<Option<Plan>> {
        let dumps = dump_on::options(&self.dump_on, self.dumps, self.signal_snapshot)?;
        Ok((!self.stop).then(|| Plan {
            buffer_bytes: self.buffer,
            on_full: self.on_full.into(),
            most_bytes: self.most_bytes() as u64,
            is_ring: self.ring,
            dumps,
        }))
    }

    /// Whether what is recorded is taken out of the program while it runs.
    fn is_streamed(&self) -> bool {
        self.stream || !(self.ring || self.stop)
    }

    /// Whether functions are recorded that do not call the tracer.
    fn hooks_others(&self) -> bool {
        !self.branches.is_empty() || self.libcalls
    }

    /// What is recorded.
    fn what(&self) -> values::Options<'_> {
        values::Options {
            filter: &self.filter,
            notrace: &self.notrace,
            depth: self.depth,
            time_filter: self.time_filter,
            rules: &self.rules,
            arguments: &self.arguments,
            results: &self.results,
            auto_args: self.auto_args,
            libcalls: self.libcalls,
            dump_on: &self.dump_on,
            is_attached: self.pid.is_some(),
        }
    }

    /// What is not there for all processors: options, and whether they are given.
    fn of_one_processor(&self) -> [(&'static str, bool); 8] {
        [
            ("--pid", self.pid.is_some()),
            ("--argument", !self.arguments.is_empty()),
            ("--auto-args", self.auto_args),
            ("--retval", !self.results.is_empty()),
            ("--patch", !self.branches.is_empty()),
            ("--patched", self.patched),
            ("--resources", !self.resources.is_empty()),
            ("--trigger", self.trigger.is_some()),
        ]
    }

    /// Bytes that may be written. A buffer that is saved at the end is saved as a whole.
    fn most_bytes(&self) -> usize {
        if self.is_streamed() { self.max_size } else { self.max_size.max(self.buffer) }
    }
}

/// Runs it; ends this process with the program's exit status, whatever became of the trace: who runs a program in a script gets
/// the program's answer.
pub(crate) fn run(mut args: RecordArgs) -> Result<()> {
    processor::check(&args.of_one_processor())?;
    if let Some(pid) = args.pid {
        return run_attached(&args, pid);
    }
    let plan = args.plan()?;
    if let Some(plan) = &plan {
        args.signal_snapshot = plan.dumps.signal;
    }
    let mut preloads = vec![Preload::find(preload::TRACER)?];
    if !args.resources.is_empty() {
        preloads.push(Preload::find(preload::RESOURCES)?);
    }
    let program = program::find(&args.command[0])?;
    if !args.force {
        program::check(&program, args.hooks_others() || !args.resources.is_empty())?;
    }
    if args.resources.contains(&ResourceKind::Memory) {
        resources::tell_of_allocator(&program);
    }
    let schedule = match (args.schedule, args.no_schedule) {
        (_, true) => None,
        (true, _) => Some(ScheduleEvents::open()?),
        // The report says what follows from that.
        _ => ScheduleEvents::open().ok(),
    };
    let kernel = open_kernel(&args)?;
    recover_older(&args)?;
    let output = Output::prepare(args.output.as_deref(), args.live)?;
    let notes = Notes::create()?;
    let mut progress = (!args.quiet && args.is_streamed()).then(Progress::new);
    let tell = move |written| progress.iter_mut().for_each(|progress| progress.tell(written));
    let banks = plan.map(|plan| BankRecorder::begin(output.work(), plan, tell)).transpose()?;
    let mut entries = Entries::create()?;
    let mut environment = environment(&args, &output, &notes, (&entries, banks.as_ref()))?;
    let wanted = values::wanted(&args.what(), &program)?;
    environment.extend(wanted.variables());
    let resources = resources::begin(&args.resources, output.work(), args.most_bytes())?;
    if let Some(recorder) = &resources {
        environment.extend(resources::environment(recorder, args.backtraces)?);
    }
    let kept = if args.ring { Kept::End } else { Kept::Beginning };
    let beside_bytes = if args.is_streamed() { args.max_size } else { args.buffer } as u64;
    let schedule = schedule.map(|events| events.record(output.work(), kept, beside_bytes)).transpose()?;
    let kernel = kernel.map(|events| events.record(output.work(), kept, beside_bytes)).transpose()?;
    let for_library = [args.signal_snapshot, args.signal_toggle];
    let living = || {
        let mut living = banks.as_ref().map(BankRecorder::living).unwrap_or_default();
        living.extend(resources.as_ref().map(ResourceRecorder::living).unwrap_or_default());
        living
    };
    let ended = run::run(&program, &args.command, preloads, environment, for_library, kernel.as_ref(), &living)?;
    let code = ended.code();
    let resources = resources.map(ResourceRecorder::stop);
    let banks = banks.map(BankRecorder::stop);
    // Before anything can end this process.
    let kernel = kernel.map(KernelRecorder::stop).transpose().unwrap_or_else(|error| {
        say!("rftrace: {error:#}");
        None
    });
    if args.to.is_some() {
        // The run's own handlers stay, and do nothing any more: who waits for a receiver may end that.
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            flag::register_conditional_shutdown(signal, code, Arc::new(true.into()))?;
        }
    }
    let beside = Beside { schedule, kernel, banks };
    if let Some(recorded) = &resources {
        resources::tell_of_losses(recorded, args.most_bytes());
    }
    if let Err(error) = finish(&args, &program, output, (&notes, &mut entries, &wanted), beside, &ended) {
        say!("rftrace: {error:#}");
    }
    std::process::exit(code)
}

/// Records a program that runs.
#[cfg(target_arch = "x86_64")]
fn run_attached(args: &RecordArgs, pid: u32) -> Result<()> {
    let filter = values::rules(&args.what(), false)?;
    check_rules(&filter)?;
    let options = rftrace_record::attach::Options {
        pid,
        library: Preload::find(preload::TRACER)?.path().to_owned(),
        filter,
        has_library_calls: args.libcalls,
        limit: args.duration.map(Duration::from_nanos),
        buffer_bytes: args.buffer,
        on_full: args.on_full.into(),
        most_bytes: args.most_bytes() as u64,
    };
    if args.leave {
        return attach::leave(&options);
    }
    recover_older(args)?;
    let request = attach::Request {
        options,
        output: args.output.clone(),
        is_live: args.live,
        is_kept: (!args.live || args.output.is_some()) && !args.no_local,
        has_lines: args.srcline,
        is_quiet: args.quiet,
    };
    if let Some(output) = attach::record(&request)? {
        send_to_receiver(args, &output);
    }
    Ok(())
}

/// Reads rules, which the program is told.
#[cfg(target_arch = "x86_64")]
pub(crate) fn check_rules(rules: &str) -> Result<()> {
    if !rules.is_empty() {
        rules.parse::<rftrace_frontend::Filter>().context("what to record")?;
    }
    Ok(())
}

/// Refused before.
#[cfg(not(target_arch = "x86_64"))]
fn run_attached(_args: &RecordArgs, _pid: u32) -> Result<()> {
    Ok(())
}

/// Makes a trace of what an interrupted recording has left where this one is going to be.
fn recover_older(args: &RecordArgs) -> Result<()> {
    if !args.live || args.output.is_some() {
        let dir = args.output.as_deref().unwrap_or("uftrace.data".as_ref());
        if let Some(old) = join::recover_older(dir)? {
            let old = shell_word(&old);
            say!("rftrace: the recording before was interrupted; what it had saved lies in {old}");
        }
    }
    Ok(())
}

/// Prepares what is to be recorded of the kernel, if that is wanted.
fn open_kernel(args: &RecordArgs) -> Result<Option<KernelEvents>> {
    let names = |globs: &String| globs.split(',').filter(|glob| !glob.is_empty()).map(str::to_owned).collect();
    let wanted = kernel::Wanted { functions: args.kernel.as_ref().map(names), events: args.events.clone() };
    if wanted.functions.is_none() && wanted.events.is_empty() {
        return Ok(None);
    }
    let kernel = KernelEvents::open(&wanted, run::ending_signals())?;
    if let Some(note) = kernel.note().filter(|_| !args.quiet) {
        say!("rftrace: {note}");
    }
    Ok(Some(kernel))
}

/// Makes one trace of what was recorded, and says what it is.
fn finish(
    args: &RecordArgs,
    program: &Path,
    output: Output,
    (notes, entries, wanted): (&Notes, &mut Entries, &Wanted),
    beside: Beside,
    ended: &Ended,
) -> Result<()> {
    let joined = match join::join(&output, ended, beside, notes.read()?) {
        Ok(joined) => joined,
        Err(error) => {
            let dir = shell_word(output.dir());
            let work = output.keep();
            return Err(error.context(format!(
                "no trace could be made of what was recorded, which stays in {}, a directory for each process and save; when the \
                 cause is gone: rftrace recover {dir}",
                work.display()
            )));
        }
    };
    joined.errors.iter().for_each(|error| say!("rftrace: {error}"));
    wanted.tell_of_rules(args.quiet)?;
    let left_over = |work: PathBuf| say!("rftrace: what is in no trace stays in {}", work.display());
    if joined.processes == 0 {
        if joined.has_resources {
            if !args.quiet {
                resources::tell_of_place(output.dir());
            }
            summary::print_snapshots(&joined);
            return output.finish();
        }
        if joined.errors.is_empty() {
            say!("rftrace: nothing was recorded: {}", parts::why_nothing(output.work(), ended));
        }
        summary::print_snapshots(&joined);
        if joined.left_over > 0 {
            left_over(output.keep());
        } else {
            output.discard();
        }
        return Ok(());
    }
    if args.hooks_others() {
        let is_kept = !args.live || args.output.is_some();
        let has_branches = !args.branches.is_empty();
        summary::tell_of_branches(&entries.read()?, has_branches, output.dir(), is_kept, args.quiet)?;
    }
    if joined.processes > 0 {
        wanted.name_values(output.dir());
    }
    if args.srcline {
        match rftrace_symbols::add_source_lines(output.dir()) {
            Ok(written) if program.canonicalize().is_ok_and(|program| !written.contains(&program)) => say!(
                "rftrace: no source lines of {}: it has no debug information (-g, or `debug = \"line-tables-only\"` in Cargo.toml)",
                program.display()
            ),
            Ok(_) => {}
            Err(error) => say!("rftrace: source lines are missing: {error}"),
        }
    }
    if args.live {
        super::replay::show(output.dir())?;
    }
    if !args.quiet {
        let is_kept = (!args.live || args.output.is_some()) && !args.no_local;
        summary::print(&joined, args.buffer, args.most_bytes(), is_kept.then(|| output.dir()), ended);
        if is_kept && joined.has_resources {
            resources::tell_of_place(output.dir());
        }
    }
    if joined.left_over > 0 {
        send_to_receiver(args, &output);
        left_over(output.keep());
        return Ok(());
    }
    output.finish()?;
    send_to_receiver(args, &output);
    Ok(())
}

/// Sends the trace where it was wanted, and removes it then if that was wanted too.
fn send_to_receiver(args: &RecordArgs, output: &Output) {
    let Some(to) = &args.to else { return };
    let is_kept = !args.live || args.output.is_some();
    let dir = shell_word(output.dir());
    if !args.quiet {
        // Who ends it is not told more.
        say!("rftrace: sending {dir} to {to}; Ctrl-C ends that, and the trace stays");
    }
    match super::send::send(output.dir(), to, RECEIVER_PATIENCE) {
        Err(error) if is_kept => {
            say!("rftrace: {error:#}; the trace lies in {dir}, send it with\n  rftrace send {dir} {to}");
        }
        Err(error) => say!("rftrace: {error:#}"),
        Ok(sent) => {
            if !args.quiet {
                say!("rftrace: {sent}");
            }
            if let Some(error) = args.no_local.then(|| output.remove_trace()).and_then(Result::err) {
                say!("rftrace: {error:#}");
            }
        }
    }
}

/// Where a trace is sent to.
fn parse_to(text: &str) -> Result<Address, String> {
    let address = text.strip_prefix("uftrace://").ok_or("it is sent to uftrace://HOST or uftrace://HOST:PORT")?;
    address.trim_end_matches('/').parse().map_err(|error: rftrace_net::NoAddress| error.to_string())
}

/// What the preloaded library is told.
fn environment(
    args: &RecordArgs,
    output: &Output,
    notes: &Notes,
    (entries, banks): (&Entries, Option<&BankRecorder>),
) -> Result<Vec<(&'static str, OsString)>> {
    let mut variables: Vec<(&str, OsString)> = vec![
        ("RFTRACE_RECORD", output.work().into()),
        ("RFTRACE_RECORD_BUFFER", args.buffer.to_string().into()),
        ("RFTRACE_RECORD_MODE", if args.ring { "ring" } else { "stop" }.into()),
        ("RFTRACE_RECORD_NOTES", notes.path().into()),
        ("RFTRACE_RECORD_MOST", args.most_bytes().to_string().into()),
        ("RFTRACE_RECORD_PARENT", std::process::id().to_string().into()),
        ("RFTRACE_RECORD_SNAPSHOT", args.signal_snapshot.to_string().into()),
        ("RFTRACE_RECORD_TOGGLE", args.signal_toggle.to_string().into()),
    ];
    variables.extend(banks.map(|banks| ("RFTRACE_RECORD_BANK", banks.path().into())));
    if args.signal_snapshot == args.signal_toggle && args.signal_toggle != 0 {
        bail!("--signal-snapshot and --signal-toggle name the same signal");
    }
    if args.hooks_others() {
        variables.push(("RFTRACE_RECORD_BRANCHES_TOLD", entries.path().into()));
    }
    if !args.branches.is_empty() {
        variables.push(("RFTRACE_RECORD_BRANCHES", args.branches.join("\n").into()));
        let paths = [
            ("RFTRACE_RECORD_BRANCHES_EXCEPT", &args.patch_except),
            ("RFTRACE_RECORD_BRANCHES_WITHIN", &args.patch_within),
        ];
        for (name, path) in paths {
            let Some(path) = path else { continue };
            // As the system names the programs that are compared with it.
            variables.push((name, path.canonicalize().with_context(|| path.display().to_string())?.into()));
        }
    }
    let mut flag = |name, is_set| {
        if is_set {
            variables.push((name, "1".into()));
        }
    };
    flag("RFTRACE_RECORD_OFF", args.disabled);
    flag("RFTRACE_RECORD_FORCE", args.force);
    flag("RFTRACE_RECORD_LIBCALLS", args.libcalls);
    flag("RFTRACE_PATCHED", args.patched);
    if let Some(function) = &args.trigger {
        variables.push(("RFTRACE_RECORD_TRIGGER", function.into()));
    }
    Ok(variables)
}
