//! `rftrace record -p`: recording programs that run.
//!
//! Not here: the attaching itself (`rftrace-attach`, `rftrace-record`).

use std::iter;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use rftrace_format::system;
use rftrace_record::attach::{self, EndOfProcess, Options, Reason, Recorded};
use rftrace_record::entries::Told;
use rftrace_record::join::{self, Beside};
use rftrace_record::output::Output;
use rftrace_record::preload::{self, Preload};
use rftrace_record::{Kept, ScheduleEvents, ScheduleRecorder};

use super::progress::Progress;
use super::summary::Place;
use super::{cost, resources, summary, values};
use crate::commands::anonymous;

/// Request to attach.
pub(super) struct Request<'a> {
    pub(super) options: Options,
    /// Options for the recorded functions and values.
    pub(super) what: values::Options<'a>,
    /// The directory; `None` for the usual one.
    pub(super) output: Option<PathBuf>,
    /// Show the calls at the end.
    pub(super) is_live: bool,
    /// Say where the trace lies: it is kept.
    pub(super) is_kept: bool,
    /// It is sent to another machine.
    pub(super) is_sent: bool,
    /// Write lines of the source.
    pub(super) has_lines: bool,
    /// Leave personal facts out.
    pub(super) is_anonymous: bool,
    pub(super) is_quiet: bool,
    /// Record context switches.
    pub(super) has_schedule: bool,
}

/// Takes the tracer out of a process in which a recorder that was killed has left it.
pub(super) fn leave(options: &Options) -> Result<()> {
    let of_resources = Preload::find(preload::RESOURCES)?;
    for &pid in &options.pids {
        if !attach::leave(pid, &options.library, of_resources.path())? {
            bail!("process {pid} has no tracer: --leave has nothing to remove");
        }
        say!("rftrace: process {pid} goes on without the tracer");
    }
    Ok(())
}

/// Reports the end of a process, unless it was detached as planned.
pub(crate) fn tell_of_end(pid: u32, reason: &Reason) {
    match reason {
        Reason::Left => {}
        Reason::Ended => say!("rftrace: process {pid} has ended"),
        Reason::OtherProgram => say!("rftrace: process {pid} runs another program now; its recording has ended"),
        Reason::NotLeft(error) => say!(
            "rftrace: cannot remove the tracer from process {pid}: {error:#}; it records nothing more; to remove it later: rftrace \
             record -p {pid} --leave"
        ),
    }
}

/// The most that the tracer itself runs in a process to come and to go.
const TICKS_OF_ATTACHING: u64 = 2;

/// The processor time of a process, in the system's ticks; `None` for one that has ended.
fn processor_ticks(pid: u32) -> Option<u64> {
    let text = system::read_text(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may have any characters.
    let times = text.rsplit_once(')')?.1.split_ascii_whitespace().skip(11).take(2);
    Some(times.filter_map(|ticks| ticks.parse::<u64>().ok()).sum())
}

/// Begins to record context switches of the processes, as far as the kernel permits it.
fn begin_schedule(options: &Options, work: &Path, is_quiet: bool) -> rftrace_read::Result<Option<ScheduleRecorder>> {
    let kept = if options.is_ring { Kept::End } else { Kept::Beginning };
    let events = ScheduleEvents::open_of(&options.pids);
    summary::told_of_schedule(events, is_quiet).map(|events| events.record(work, kept, options.most_bytes)).transpose()
}

/// Records processes. Returns the trace, `None` if some records could not be joined; and false if not all could be written.
pub(super) fn record(request: &Request<'_>) -> Result<(Option<Output>, bool)> {
    let mut output = Output::prepare(request.output.as_deref(), request.is_live)?;
    if request.is_anonymous {
        output.mark_anonymous()?;
    }
    let pids = &request.options.pids;
    let program = pids.first().map(|pid| PathBuf::from(format!("/proc/{pid}/exe"))).unwrap_or_default();
    let wanted = values::wanted(&request.what, &program, output.work()).inspect_err(|_| output.discard())?;
    pids.iter().for_each(|&pid| wanted.read_ahead(pid));
    let filter = wanted.rules().to_owned();
    let options = &Options { filter, types: wanted.types()?, ..request.options.clone() };
    let mut progress = (!request.is_quiet).then(|| Progress::new(false));
    let tell = move |written| progress.iter_mut().for_each(|progress| progress.tell(written));
    let (work, mut schedule) = (output.work().to_owned(), Ok(None));
    let begun = |uncontrolled: Option<&std::io::Error>| {
        if request.has_schedule {
            schedule = begin_schedule(options, &work, request.is_quiet);
        }
        if let Some(error) = uncontrolled {
            say!("rftrace: rftrace ctl cannot control this recording: {error}");
        }
        if !request.is_quiet {
            let until = if options.limit.is_some() { "" } else { "; Ctrl-C ends the recording" };
            let pids: Vec<String> = options.pids.iter().map(u32::to_string).collect();
            let processes = if pids.len() > 1 { "processes" } else { "process" };
            say!("rftrace: recording {processes} {}{until}", pids.join(", "));
        }
    };
    let ran_before = pids.iter().map(|&pid| processor_ticks(pid)).collect::<Vec<_>>();
    // The roots are kept until names have been read.
    let Recorded { banks, processes, resources, followed, roots: _roots } =
        attach::record(&mut output, options, begun, tell).map_err(|error| {
            output.discard();
            wanted.as_options(error)
        })?;
    let has_hardly_run = |(&pid, before): (&u32, Option<u64>)| {
        processor_ticks(pid)
            .zip(before)
            .is_some_and(|(after, before)| after.saturating_sub(before) <= TICKS_OF_ATTACHING)
    };
    let was_idle = iter::zip(pids, ran_before).all(has_hardly_run);
    let (mut told, mut stops) = (Told::default(), Vec::new());
    let mut is_confined = false;
    for EndOfProcess { pid, reason, told: of_it, stopped, left_out, is_confined: is_it } in processes {
        is_confined |= is_it;
        if !(request.is_quiet && matches!(reason, Reason::Ended)) {
            tell_of_end(pid, &reason);
        }
        told = told.with(of_it);
        stops.push(stopped);
        resources::tell_of_left_out(&left_out);
    }
    values::tell_of_addresses(is_confined, request.is_quiet);
    if let Some(recorded) = &resources {
        let most_bytes = usize::try_from(options.most_bytes).unwrap_or(usize::MAX);
        resources::tell_of_losses(recorded, most_bytes, " for --resources", None);
    }
    let cost = cost::measured(false, options.has_library_calls);
    let (followed, mut schedule) = (followed?, schedule?);
    summary::tell_of_move(followed.as_ref());
    if let (Some((from, to)), Some(schedule)) = (&followed, &mut schedule) {
        schedule.moved(from, to);
    }
    let mut joined = join::join_attached(&output, Beside { banks: Some(banks), cost, schedule, ..Beside::default() });
    joined.errors.iter().for_each(|error| say!("rftrace: {error}"));
    if let Some(cause) = &joined.failed {
        return Err(summary::not_made(cause, output));
    }
    let is_whole = joined.is_whole();
    anonymous::finish_snapshots(&output, &mut joined)?;
    if joined.processes == 0 && joined.has_resources && joined.left_over == 0 {
        if !request.is_quiet && request.is_kept {
            resources::tell_of_place(output.dir());
        }
        output.finish()?;
        return Ok((Some(output), is_whole));
    }
    if joined.processes == 0 {
        let hooks_others = !options.branches.is_empty() || options.has_library_calls;
        let dir = output.dir().to_owned();
        summary::print_snapshots(&joined);
        if joined.left_over > 0 {
            say!("rftrace: the trace lacks some records; they stay in {}", output.keep().display());
        } else {
            output.discard();
        }
        if !options.branches.is_empty() && told.functions.of == 0 {
            bail!("nothing was recorded: {}", summary::no_match(&options.branches, &program));
        }
        if hooks_others {
            summary::tell_of_branches(&told, (&options.branches, &program), &dir, request.is_kept, request.is_quiet)?;
        }
        bail!(
            "nothing was recorded: during the recording the program called no {}{}",
            if hooks_others { "recorded function" } else { "function with a hook; for any program: -P '*'" },
            if was_idle { "; it was idle: record it for longer (--for), or while it works" } else { "" }
        );
    }
    if !options.branches.is_empty() || options.has_library_calls {
        summary::tell_of_branches(
            &told,
            (&options.branches, &program),
            output.dir(),
            request.is_kept,
            request.is_quiet,
        )?;
        stops.into_iter().for_each(|stopped| summary::tell_of_stop(stopped, request.is_quiet));
    }
    wanted.name_values(output.owned(), request.is_quiet);
    if request.has_lines
        && let Err(error) = rftrace_symbols::add_source_lines(output.owned())
    {
        say!("rftrace: cannot add source lines: {error}");
    }
    anonymous::finish_trace(&output)?;
    if request.is_live {
        crate::commands::replay::show(output.dir())?;
    }
    if !request.is_quiet {
        let most_bytes = usize::try_from(options.most_bytes).unwrap_or(usize::MAX);
        let place = Place::of(output.dir(), request.is_kept, request.is_sent);
        summary::print_recorded(&joined, options.buffer_bytes, most_bytes, place);
    }
    if request.is_kept && joined.has_resources && !request.is_quiet {
        resources::tell_of_place(output.dir());
    }
    if joined.left_over > 0 {
        say!("rftrace: the trace lacks some records; they stay in {}", output.keep().display());
        return Ok((None, false));
    }
    output.finish()?;
    Ok((Some(output), is_whole))
}
