//! `rftrace record`: its options (`arguments`), and its messages during the run (`progress`) and at the end (`summary`).
//!
//! Not here: the recording of the program and the saving of records (`rftrace-record`).

use std::fs;
use std::io::{Write, stdout};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum as _;
use rftrace_format::files;
use rftrace_format::setting::{self, Settings};
use rftrace_record::banks::{BankRecorder, Plan, Written};
use rftrace_record::control::Control;
#[cfg(attaching)]
use rftrace_record::dumps;
use rftrace_record::entries::Entries;
use rftrace_record::join::Beside;
use rftrace_record::kernel::{self, KernelEvents, KernelRecorder};
use rftrace_record::notes::Notes;
use rftrace_record::output::Output;
use rftrace_record::pipe::Pipe;
use rftrace_record::preload::{self, Preload};
use rftrace_record::program::Way;
use rftrace_record::resources::ResourceRecorder;
use rftrace_record::run::{Ended, Preloaded};
use rftrace_record::{Kept, ScheduleEvents, join, parts, program, run};
#[cfg(attaching)]
use rftrace_record::{attach::Reason, outside::Choice, outside::Outside, outside::Told};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use super::anonymous;
use super::common::shell_word;
use super::quantity;
use super::view;

mod arguments;
#[cfg(attaching)]
pub(crate) mod attach;
mod cost;
mod dump_on;
mod processor;
mod progress;
pub(crate) mod resources;
mod sending;
pub(crate) mod summary;
mod triggers;
mod values;

pub(crate) use arguments::RecordArgs;
#[cfg(attaching)]
pub(crate) use arguments::{DEFAULT_BUFFER, OnFullArg};
use progress::Progress;
use sending::{Sending, begin_to_send, send_spools, send_to_receiver};
use summary::Place;
use values::Wanted;
#[cfg(attaching)]
pub(crate) use values::{Rule, function_rules};

/// Runs it; ends this process with the program's exit status, even if there is no trace: a script that runs the program needs its
/// status. If this is 0, and the trace cannot be written as a whole, it is 1.
pub(crate) fn run(mut args: RecordArgs) -> Result<()> {
    rftrace_record::inherited::put_aside()?;
    processor::check(&args.of_one_processor())?;
    quantity::check_buffer(args.buffer)?;
    if !args.pid.is_empty() {
        return run_attached(&args);
    }
    args.give_way_to_finish();
    args.check()?;
    let plan = args.plan()?;
    let token =
        args.to.as_ref().map(|to| super::send::read_token(args.token_file.as_deref(), to)).transpose()?.flatten();
    if let Some(plan) = &plan {
        args.signal_snapshot = plan.dumps.signal;
    }
    let mut preloads = vec![Preload::find(preload::TRACER)?];
    let program = program::find(&args.command[0])?;
    let way = program::check(&program, args.recorded());
    let way = if args.force { way.unwrap_or(Way::Preloaded) } else { way.map_err(|error| args.with_misplaced(error))? };
    args.is_outside = way == Way::Outside;
    if args.is_outside {
        args.check_outside(&program)?;
    }
    // Before anything is made.
    let (exceptions, within) = (args.exceptions()?, args.within()?);
    if !args.force && !args.resources.is_empty() {
        resources::check(&program)?;
        resources::check_backtraces(&program, args.backtraces, !args.branches.is_empty())?;
    }
    let mut planned = resources::plan(&args.resources, &program)?;
    resources::add_allocator(&mut planned, &program)?;
    if !args.resources.is_empty() {
        preloads.extend(resources::libraries(&planned.1)?);
    }
    let schedule = match (args.schedule, args.no_schedule) {
        (_, true) => None,
        (true, _) => Some(ScheduleEvents::open()?),
        _ => summary::told_of_schedule(ScheduleEvents::open(), args.quiet),
    };
    let kernel = open_kernel(&args)?;
    recover_older(&args)?;
    let mut output = Output::prepare(args.output.as_deref(), args.live || args.is_piped)?;
    if args.anonymous {
        output.mark_anonymous()?;
    }
    let notes = Notes::create()?;
    let mut progress = (!args.quiet && args.is_streamed()).then(|| Progress::new(args.keep_stream));
    let tell = move |written| progress.iter_mut().for_each(|progress| progress.tell(written));
    let banks = plan.map(|plan| begin_banks(way, output.work(), plan, tell)).transpose()?;
    let sender = begin_to_send(&args, banks.is_some(), token.clone(), &output)?;
    let requests = args.stop.then(|| BankRecorder::for_requests(output.work())).transpose()?;
    let control = match (&banks, &requests) {
        // As soon as the program is there.
        _ if way == Way::Outside => Ok(None),
        (Some(banks), _) => Control::begin(output.work(), banks, dump_on::SPELLING).map(Some),
        (None, Some(requests)) => {
            Control::of_own_buffers(output.work(), requests, args.buffer, dump_on::SPELLING).map(Some)
        }
        (None, None) => Ok(None),
    };
    let control = control.unwrap_or_else(|error| {
        tell_of_control(&error);
        None
    });
    let pipe = banks.as_ref().filter(|_| args.is_piped).and_then(|banks| {
        banks.keep_nothing();
        banks.pipe()
    });
    let piping = pipe.map(|pipe| thread::spawn(move || write_pipe(pipe)));
    let mut entries = Entries::create()?;
    let told = (&entries, banks.as_ref(), requests.as_ref());
    let mut settings = settings(&args, within.as_deref(), &output, &notes, told)?;
    let wanted = values::wanted(&args.what(), &program, output.work())?;
    let mut environment: Vec<_> = wanted.tell(&mut settings)?.into_iter().collect();
    environment.extend(args.patched.then(|| ("RFTRACE_PATCHED", "1".into())));
    let resources = resources::begin(&planned, output.work(), args.most_bytes())?;
    if let Some(recorder) = &resources {
        settings.led = recorder.led();
        environment.extend(resources::environment(recorder, args.backtraces)?);
    }
    environment.push((setting::VARIABLE, settings.value()));
    let kept = if args.ring { Kept::End } else { Kept::Beginning };
    let beside_bytes = if args.is_streamed() { args.max_size } else { args.buffer } as u64;
    let mut schedule = schedule.map(|events| events.record(output.work(), kept, beside_bytes)).transpose()?;
    let kernel = kernel.map(|events| events.record(output.work(), kept, beside_bytes)).transpose()?;
    let for_library = [args.signal_snapshot, args.signal_toggle, args.signal_finish];
    let living = || {
        let mut living = banks.as_ref().map(BankRecorder::living).unwrap_or_default();
        living.extend(resources.as_ref().map(ResourceRecorder::living).unwrap_or_default());
        living
    };
    let preloaded = Preloaded { libraries: preloads, variables: &environment, work: output.work() };
    let run = |preloaded| run::run(&program, &args.command, preloaded, for_library, kernel.as_ref(), &living);
    #[cfg(not(attaching))]
    let ended = run(preloaded).map(|(ended, ())| (ended, None));
    #[cfg(attaching)]
    let ended = match banks.as_ref().filter(|_| way == Way::Outside) {
        None => run(preloaded).map(|(ended, ())| (ended, None)),
        Some(banks) => {
            let (rules, signals) = (wanted.rules_outside(), [args.signal_snapshot, args.signal_toggle]);
            let choice = Choice {
                rules,
                types: wanted.types()?,
                branches: &args.branches,
                exceptions: &exceptions,
                ends: args.ends.wanted(),
                within: within.as_deref(),
                is_disabled: args.is_off()?,
            };
            let outside = Outside::new(banks, choice, dump_on::SPELLING, signals);
            run::run(&program, &args.command, outside, for_library, kernel.as_ref(), &living).map(
                |(ended, Told { control, end, functions, is_confined })| {
                    entries.add(functions);
                    values::tell_of_addresses(is_confined, args.quiet);
                    if let Some(reason) = end.filter(|reason| !matches!(reason, Reason::Ended)) {
                        attach::tell_of_end(ended.pid, &reason);
                    }
                    (ended, control.and_then(|begun| begun.inspect_err(tell_of_control).ok()))
                },
            )
        }
    };
    let (ended, control_outside) = match ended {
        Ok(ended) => ended,
        Err(error) => {
            banks.map(BankRecorder::stop);
            output.discard();
            return Err(wanted.as_options(error));
        }
    };
    let control = control_outside.or(control);
    let code = ended.code();
    // Before the last things are written.
    let followed = output.follow();
    if let Ok(moved) = &followed {
        summary::tell_of_move(moved.as_ref());
    }
    if let (Ok(Some((from, to))), Some(schedule)) = (&followed, &mut schedule) {
        schedule.moved(from, to);
    }
    let resources = resources.map(ResourceRecorder::stop);
    let banks = banks.map(BankRecorder::stop);
    if let Some(control) = control {
        control.finish();
    }
    requests.map(BankRecorder::stop);
    if let Some(piping) = piping {
        let _ = piping.join();
        output.discard();
        std::process::exit(code);
    }
    // Before anything can end this process.
    let kernel = kernel.map(KernelRecorder::stop).transpose().unwrap_or_else(|error| {
        say!("rftrace: {error:#}");
        None
    });
    let sender = sender.map(send_spools).transpose()?;
    if args.to.is_some() && sender.is_none() {
        // The run's own handlers stay, and do nothing any more: who waits for a receiver may end that.
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            flag::register_conditional_shutdown(signal, code, Arc::new(true.into()))?;
        }
    }
    let beside = Beside { schedule, kernel, banks, cost: cost::measured(args.patched, args.hooks_others()) };
    if let Some(recorded) = &resources {
        resources::tell_of_losses(recorded, args.most_bytes(), " for --resources", ended.status.signal());
        if recorded.processes == 0 {
            // It has the recorder's own records alone.
            let _ = fs::remove_file(output.work().join(files::RESOURCES));
        }
    }
    let sending = Sending { token, sender };
    if let Err(error) = followed {
        say!("rftrace: {error:#}");
        std::process::exit(failed(code));
    }
    let finished = finish(&args, &program, output, (&notes, &mut entries, &wanted), beside, &ended, sending);
    let is_whole = finished.unwrap_or_else(|error| {
        say!("rftrace: {error:#}");
        // Whoever reads the calls of --live may have seen enough.
        error.downcast_ref().is_some_and(rftrace_read::Error::is_closed_pipe)
    });
    std::process::exit(if is_whole { code } else { failed(code) })
}

/// The exit status of a program whose recording has failed. A program that has failed says so.
fn failed(code: i32) -> i32 {
    if code == 0 { 1 } else { code }
}

fn tell_of_control(error: &std::io::Error) {
    say!("rftrace: rftrace ctl cannot control this recording: {error}");
}

/// Makes banks: for the program alone where its children are not recorded.
fn begin_banks(way: Way, work: &Path, plan: Plan, tell: impl FnMut(Written) + Send + 'static) -> Result<BankRecorder> {
    match way {
        Way::Preloaded => BankRecorder::begin(work, plan, tell),
        Way::Outside => BankRecorder::begin_for_one(work, plan, tell),
    }
}

/// Runs a program and shows its calls as they come; nothing is kept.
pub(crate) fn run_live(mut args: RecordArgs) -> Result<()> {
    let kept = [
        ("--output", args.output.is_some()),
        ("--dump-on", !args.dump_on.is_empty()),
        ("--ring", args.ring),
        ("--stop", args.stop),
        ("--pid", !args.pid.is_empty()),
        ("--to", args.to.is_some()),
        ("--live", args.live),
        ("--view", args.view),
        ("--anonymous", args.anonymous),
        ("--keep-stream", args.keep_stream),
        ("--srcline", args.srcline),
        ("--resources", !args.resources.is_empty()),
        ("--kernel", args.kernel.is_some()),
        ("--events", !args.events.is_empty()),
    ];
    if let Some((option, _)) = kept.into_iter().find(|&(_, is_given)| is_given) {
        bail!("{option} works only with `rftrace record`: `rftrace live` shows calls of functions and keeps no trace");
    }
    args.is_piped = true;
    args.no_schedule = true;
    run(args)
}

/// Writes text until there is no more, or nobody reads it.
fn write_pipe(pipe: Pipe) {
    let mut to = stdout();
    for text in pipe {
        if to.write_all(&text).and_then(|()| to.flush()).is_err() {
            return;
        }
    }
}

/// Records programs that run.
#[cfg(attaching)]
fn run_attached(args: &RecordArgs) -> Result<()> {
    if args.triggers()?.start.is_some() {
        bail!(
            "-T FUNCTION does not work with -p, which begins to record at once; write an action, as in -T FUNCTION@finish"
        );
    }
    let mut pids = args.pid.clone();
    // One that is named twice is one.
    pids.sort_unstable();
    pids.dedup();
    let mut options = rftrace_record::attach::Options {
        pids,
        library: Preload::find(preload::TRACER)?.path().to_owned(),
        // Known as soon as there is a place for the trace.
        filter: String::new(),
        types: None,
        has_library_calls: args.libcalls,
        is_disabled: args.is_off()?,
        branches: args.branches.clone(),
        exceptions: args.exceptions()?,
        ends: args.ends.wanted(),
        within: args.within()?,
        is_patched: args.patched,
        limit: args.duration.map(Duration::from_nanos),
        buffer_bytes: args.buffer,
        on_full: args.on_full.into(),
        most_bytes: args.most_bytes() as u64,
        is_ring: args.ring,
        dumps: dumps::Options { of_running: true, ..args.dump_options(0)? },
        spelling: dump_on::SPELLING,
        resources: None,
    };
    if args.take_over {
        rftrace_record::attach::take_over(&options.pids)?;
    }
    if args.leave {
        return attach::leave(&options);
    }
    let has_branches = !args.branches.is_empty();
    options.resources = resources::of_attached(&args.resources, args.backtraces, &options.pids, has_branches)?;
    recover_older(args)?;
    let token =
        args.to.as_ref().map(|to| super::send::read_token(args.token_file.as_deref(), to)).transpose()?.flatten();
    let request = attach::Request {
        options,
        what: args.what(),
        output: args.output.clone(),
        is_live: args.live,
        is_kept: (!args.live || args.output.is_some()) && !args.no_local,
        is_sent: args.to.is_some(),
        has_lines: args.srcline,
        is_anonymous: args.anonymous,
        is_quiet: args.quiet,
        has_schedule: !args.no_schedule,
    };
    let (output, is_whole) = attach::record(&request)?;
    if let Some(output) = output {
        send_to_receiver(args, &output, Sending { token, sender: None });
        if args.view {
            view::show(output.dir())?;
        }
    }
    if !is_whole {
        // The missing parts have been told.
        std::process::exit(failed(0));
    }
    Ok(())
}

/// Reads rules, which the program is told.
#[cfg(attaching)]
pub(crate) fn check_rules(rules: &str) -> Result<()> {
    if !rules.is_empty() {
        rules.parse::<rftrace_frontend::Filter>().context("cannot read the rules")?;
    }
    Ok(())
}

/// Refused before.
#[cfg(not(attaching))]
fn run_attached(_args: &RecordArgs) -> Result<()> {
    Ok(())
}

/// Makes a trace of an interrupted recording in the directory of this one.
fn recover_older(args: &RecordArgs) -> Result<()> {
    if !args.live || args.output.is_some() {
        let dir = args.output.as_deref().unwrap_or("uftrace.data".as_ref());
        if let Some((old, joined)) = join::recover_older(dir, anonymous::finish_recovered)? {
            let old = shell_word(&old);
            joined.errors.iter().for_each(|error| say!("rftrace: {error}"));
            match (joined.is_empty(), joined.left_over) {
                (false, 0) => say!("rftrace: an earlier recording was interrupted; its trace lies in {old}"),
                (false, _) => {
                    say!(
                        "rftrace: an earlier recording was interrupted; its trace and its unreadable parts lie in {old}"
                    );
                }
                (true, _) => say!("rftrace: an earlier recording was interrupted; its unreadable parts lie in {old}"),
            }
        }
    }
    Ok(())
}

/// Prepares the recording of the kernel, if an option asks for it.
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

/// Makes one trace of all records, and prints the summary. Returns false if -P matches no function, or if the trace lacks records, as they
/// could not be written or read.
fn finish(
    args: &RecordArgs,
    program: &Path,
    output: Output,
    (notes, entries, wanted): (&Notes, &mut Entries, &Wanted),
    beside: Beside,
    ended: &Ended,
    sending: Sending,
) -> Result<bool> {
    if args.keep_stream {
        return keep_stream(args, program, output, (notes, entries, wanted), beside, ended);
    }
    let mut joined = join::join(&output, ended, beside, notes.read()?);
    wanted.tell_of_errors(&joined.errors);
    if let Some(cause) = &joined.failed {
        sending.end(args, None);
        return Err(summary::not_made(cause, output));
    }
    let is_whole = joined.is_whole();
    wanted.tell_of_rules(args.quiet)?;
    anonymous::finish_snapshots(&output, &mut joined)?;
    let is_kept = !args.live || args.output.is_some();
    let left_over = |work: PathBuf| say!("rftrace: the trace lacks some records; they stay in {}", work.display());
    if joined.processes == 0 {
        if joined.has_resources {
            if !args.quiet {
                resources::tell_of_place(output.dir());
            }
            summary::print_snapshots(&joined);
            output.finish()?;
            send_to_receiver(args, &output, sending);
            return Ok(is_whole);
        }
        let told = entries.read()?;
        let matched = tell_of_nothing(args, program, &joined.errors, &told, output.work(), ended);
        summary::print_snapshots(&joined);
        sending.end(args, None);
        let dir = output.dir().to_owned();
        if joined.left_over > 0 {
            left_over(output.keep());
        } else {
            output.discard();
        }
        // Why there may be nothing. One of cargo's programs may well have no function of the package.
        let is_right = args.is_for_cargo || !args.lacks_match(matched);
        return summary::tell_of_branches(&told, (matched, program), &dir, is_kept, args.quiet)
            .map(|()| is_whole && is_right);
    }
    summary::tell_of_branches(&entries.read()?, (&args.branches, program), output.dir(), is_kept, args.quiet)?;
    if joined.processes > 0 {
        wanted.name_values(output.owned(), args.quiet);
    }
    if args.srcline {
        match rftrace_symbols::add_source_lines(output.owned()) {
            Ok(written) if program.canonicalize().is_ok_and(|program| !written.contains(&program)) => say!(
                "rftrace: no source lines of {}: it has no debug information; build it with -g, or with `debug = \"line-tables-only\"` \
                 in Cargo.toml",
                program.display()
            ),
            Ok(_) => {}
            Err(error) => say!("rftrace: cannot add source lines: {error}"),
        }
    }
    anonymous::finish_trace(&output)?;
    if args.live {
        super::replay::show(output.dir())?;
    }
    if args.tells_of_end() {
        summary::print_end(output.dir(), ended);
        summary::print_killed(output.dir(), ended.pid, &joined.ends);
    }
    if args.is_for_cargo {
        summary::print_panic(ended, args.dump_on.is_empty());
        summary::print_snapshots(&joined);
    }
    if !args.quiet {
        let is_kept = (!args.live || args.output.is_some()) && !args.no_local;
        let place = Place::of(output.dir(), is_kept, args.to.is_some());
        summary::print_recorded(&joined, args.buffer, args.most_bytes(), place);
        if is_kept && joined.has_resources {
            resources::tell_of_place(output.dir());
        }
    }
    if joined.left_over > 0 {
        send_to_receiver(args, &output, sending);
        left_over(output.keep());
        return Ok(false);
    }
    output.finish()?;
    send_to_receiver(args, &output, sending);
    // If it cannot be shown, the user has the trace all the same, and the program's exit status.
    if args.view
        && let Err(error) = view::show(output.dir())
    {
        say!("rftrace: {error:#}");
    }
    Ok(is_whole)
}

/// Says why there are no calls, unless an error or the library for resources has said so. Returns the patterns of `-P` if they match a
/// function.
fn tell_of_nothing<'a>(
    args: &'a RecordArgs,
    program: &Path,
    errors: &[String],
    told: &rftrace_record::entries::Told,
    work: &Path,
    ended: &Ended,
) -> &'a [String] {
    let matched = if told.functions.of > 0 { &*args.branches } else { &[] };
    if !errors.is_empty() || !args.resources.is_empty() {
        return matched;
    }
    if args.lacks_match(matched) && ended.status.code().is_some() {
        say!("rftrace: nothing was recorded: {}", summary::no_match(&args.branches, program));
    } else {
        let why = args.why_nothing().unwrap_or_else(|| parts::why_nothing(work, ended, args.is_outside));
        say!("rftrace: nothing was recorded: {why}");
    }
    matched
}

/// Keeps the records as a stream, and prints the summary.
fn keep_stream(
    args: &RecordArgs,
    program: &Path,
    mut output: Output,
    (notes, entries, wanted): (&Notes, &mut Entries, &Wanted),
    beside: Beside,
    ended: &Ended,
) -> Result<bool> {
    let dir = shell_word(output.dir());
    let kept = match join::keep(&mut output, ended, beside, notes.read()?) {
        Ok(kept) => kept,
        Err(error) => return Err(summary::not_made(&error.context("cannot keep the stream"), output)),
    };
    wanted.tell_of_errors(&kept.errors);
    wanted.tell_of_rules(args.quiet)?;
    if kept.n_records == 0 {
        let told = entries.read()?;
        let matched = tell_of_nothing(args, program, &kept.errors, &told, output.work(), ended);
        let dir = output.dir().to_owned();
        output.discard();
        return summary::tell_of_branches(&told, (matched, program), &dir, true, args.quiet)
            .map(|()| !kept.is_cut && !args.lacks_match(matched));
    }
    if args.hooks_others() {
        summary::tell_of_branches(&entries.read()?, (&args.branches, program), output.dir(), true, args.quiet)?;
    }
    if args.tells_of_end() {
        summary::print_end(output.dir(), ended);
    }
    if !args.quiet {
        summary::print_kept(&kept, &dir);
    }
    Ok(!kept.is_cut)
}

/// Returns the settings of the preloaded library.
fn settings(
    args: &RecordArgs,
    within: Option<&Path>,
    output: &Output,
    notes: &Notes,
    (entries, banks, requests): (&Entries, Option<&BankRecorder>, Option<&BankRecorder>),
) -> Result<Settings> {
    let signals = [
        ("--signal-snapshot", args.signal_snapshot),
        ("--signal-toggle", args.signal_toggle),
        ("--signal-control", args.signal_control),
    ];
    for (place, &(name, signal)) in signals.iter().enumerate() {
        if let Some((other, _)) = signals[..place].iter().find(|(_, other)| *other == signal && signal != 0) {
            bail!("{other} and {name} name the same signal; name two different ones");
        }
    }
    let mut settings = Settings {
        folder: output.work().into(),
        buffer_bytes: args.buffer,
        is_ring: args.ring,
        most_bytes: args.most_bytes() as u64,
        recorder: std::process::id(),
        notes: Some(notes.passed()?),
        bank: banks.map(BankRecorder::passed).transpose()?,
        requests: requests.map(BankRecorder::passed).transpose()?,
        snapshot: args.signal_snapshot,
        toggle: args.signal_toggle,
        control: args.signal_control,
        finish: args.signal_finish,
        trigger: args.triggers()?.start.unwrap_or_default(),
        is_off: args.is_off()?,
        tells_of_raised: dump_on::has_raised(&args.dump_on),
        is_forced: args.force,
        // Where functions are named, these are all.
        is_patchable: args.branches.is_empty(),
        has_library_calls: args.libcalls,
        branches: args.branches.clone(),
        ends: args.ends.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default(),
        branches_told: Some(entries.passed()?),
        ..Settings::default()
    };
    if !args.branches.is_empty() {
        if let Some(path) = &args.patch_except {
            settings.branch_exceptions =
                path.canonicalize().with_context(|| format!("cannot read {}", path.display()))?;
        }
        settings.branches_within = within.map(Path::to_owned).unwrap_or_default();
    }
    Ok(settings)
}
