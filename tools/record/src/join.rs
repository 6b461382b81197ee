//! Makes the trace of the parts saved by processes, also after the recorder has ended.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rftrace_format::cost::CallCost;
use rftrace_format::store;
use rftrace_frontend::bank::Extent;

use super::banks::BankRecording;
use super::companions;
use super::cost;
use super::kernel::KernelRecording;
use super::output::{self, Output};
use super::parts::{self, Joined};
use super::run::Ended;
use super::schedule::{self, ScheduleRecorder};

/// The recordings beside the parts of processes.
#[derive(Debug, Default)]
pub struct Beside {
    /// The context switches.
    pub schedule: Option<ScheduleRecorder>,
    /// The program's recording in the kernel.
    pub kernel: Option<KernelRecording>,
    /// The recording from banks.
    pub banks: Option<BankRecording>,
    /// The tracer's overhead per call, if it was measured.
    pub cost: Option<CallCost>,
}

/// Makes the trace, and moves snapshots into it. `notes` are the messages of processes. The parts stay in place, so
/// this may be repeated: [`Joined::failed`] tells if a file cannot be read, written or moved.
pub fn join(output: &Output, ended: &Ended, beside: Beside, notes: Vec<String>) -> Joined {
    // For a later recovery, should there be no room for a trace. Without this file there is one, too.
    let _ = ended.keep_in(output.work());
    let _ = beside.cost.map(|cost| cost::keep_in(output.work(), cost));
    join_all(output, Some(ended), beside, notes)
}

/// Makes the trace like [`join`], for an attached process, which may go on.
pub fn join_attached(output: &Output, beside: Beside) -> Joined {
    join_all(output, None, beside, Vec::new())
}

/// Makes the trace like [`join`], for an interrupted recording; the end of the program is unknown.
///
/// # Errors
///
/// The recording cannot be read.
pub fn recover(output: &Output) -> Result<Joined> {
    let beside = Beside { banks: BankRecording::of(output.work(), Extent::All)?, ..Beside::default() };
    Ok(join_all(output, Ended::kept_in(output.work()).as_ref(), beside, Vec::new()))
}

/// Makes the trace like [`recover`], of the recording in another directory, which stays as it is.
///
/// # Errors
///
/// The recording cannot be read.
pub fn recover_to(output: &Output, left: &Output) -> Result<Joined> {
    let banks = BankRecording::read(left.work(), Extent::All)?;
    let (losses, unread) = (banks.losses().collect(), banks.unread().to_vec());
    if let Err(error) = banks.put_elsewhere(left.work(), output.work()) {
        return Ok(Joined { errors: losses, failed: Some(error), ..Joined::default() });
    }
    let ended = Ended::kept_in(output.work());
    let mut joined = join_all(output, ended.as_ref(), Beside::default(), unread.clone());
    joined.damaged += unread.len() as u64;
    joined.left_over += unread.len();
    Ok(joined)
}

/// The summary of a recording that is kept unconverted.
#[derive(Debug, Default)]
pub struct KeptStream {
    /// The number of calls and returns, which may include incomplete ones.
    pub n_records: u64,
    /// The size of these records in bytes.
    pub bytes: u64,
    /// The losses of the recording, each with the reason.
    pub errors: Vec<String>,
    /// True if not all records could be written.
    pub is_cut: bool,
}

/// Keeps the recording unconverted. Snapshots become traces below it. The recording may be empty.
///
/// # Errors
///
/// A file cannot be written.
pub fn keep(output: &mut Output, ended: &Ended, beside: Beside, notes: Vec<String>) -> Result<KeptStream> {
    let mut kept = KeptStream { errors: notes, ..KeptStream::default() };
    match beside.schedule.map(ScheduleRecorder::stop).transpose() {
        Ok(_) => {}
        Err(error) => {
            kept.errors.push(format!("the recording has no context switches: {:#}", anyhow::Error::from(error)))
        }
    }
    let Some(mut banks) = beside.banks.filter(|banks| banks.n_records() > 0) else {
        return Ok(kept);
    };
    kept.is_cut = banks.is_cut();
    kept.errors.extend(banks.keep()?);
    (kept.n_records, kept.bytes) = (banks.n_records(), banks.bytes());
    let work = output.work();
    beside.cost.map(|cost| cost::keep_in(work, cost)).transpose()?;
    ended.keep_in(work).with_context(|| format!("cannot write to {}", work.display()))?;
    output.take_snapshots()?;
    output.keep_stream()?;
    Ok(kept)
}

/// Makes a trace of an interrupted recording in a directory that is about to be overwritten, if there is one. Returns
/// the later path of that trace and of what is unreadable, with the summary. `finish` changes the trace before its sources are removed.
///
/// # Errors
///
/// Those of [`join`] and `finish`; or the recording is not interrupted.
pub fn recover_older(dir: &Path, finish: impl FnOnce(&Output) -> Result<()>) -> Result<Option<(PathBuf, Joined)>> {
    let elsewhere = "cannot replace an interrupted recording (choose another directory with --output)";
    // A recording kept as it is stays so.
    let Some(output) = Output::left_in(dir)?.filter(|output| !output.is_kept()) else {
        return Ok(None);
    };
    let joined = recover(&output).and_then(Joined::made).context(elsewhere)?;
    finish(&output)?;
    if joined.left_over == 0 {
        if joined.is_empty() {
            return Ok(None);
        }
        output.finish()?;
    }
    Ok(Some((store::older(dir), joined)))
}

fn join_all(output: &Output, ended: Option<&Ended>, beside: Beside, notes: Vec<String>) -> Joined {
    // Parts have them too, if there are any.
    let losses = beside.banks.iter().flat_map(BankRecording::losses);
    let errors = notes.iter().cloned().chain(losses).collect();
    let failed = |error| Joined { errors, failed: Some(error), ..Joined::default() };
    try_to_join(output, ended, beside, notes).unwrap_or_else(failed)
}

fn try_to_join(output: &Output, ended: Option<&Ended>, beside: Beside, notes: Vec<String>) -> Result<Joined> {
    let mut beside = beside;
    let dir = output.joined()?;
    let unread = beside.banks.as_ref().map(|banks| banks.unread().to_vec()).unwrap_or_default();
    // Before anything fails: the files stay for a recovery.
    let schedule = match beside.schedule.take() {
        Some(schedule) => schedule.stop(),
        None => schedule::left_in(output.work()),
    };
    let banks = beside.banks.take().map(|banks| banks.save(output.work(), ended)).transpose()?;
    let mut joined = parts::join(output.work(), &dir, ended, notes)?;
    joined.damaged += unread.len() as u64;
    joined.errors.extend(unread);
    joined.dumps_not_there = banks.unwrap_or_default();
    joined.left_over += BankRecording::n_left_in(output.work());
    if joined.processes > 0 {
        let cost = beside.cost.or_else(|| cost::kept_in(output.work()));
        if let Some(Err(error)) = cost.map(|cost| cost::add_to(&dir, cost)) {
            joined.errors.push(format!("the trace does not have the overhead per call: {error:#}"));
        }
        let has_schedule = match schedule.and_then(|files| schedule::put(&files, &dir)) {
            Ok(has_schedule) => has_schedule,
            Err(error) => {
                let error = anyhow::Error::from(error);
                joined.errors.push(format!("the trace has no context switches: {error:#}"));
                false
            }
        };
        match beside.kernel.map(|kernel| kernel.finish(&dir)).transpose() {
            Ok(kernel) => joined.kernel = kernel,
            Err(error) => joined.errors.push(format!("the trace has no kernel records: {error:#}")),
        }
        joined.keep(has_schedule, &dir)?;
    }
    joined.has_resources = output.link_resources(&dir)? | companions::put(output.work(), &dir)?;
    joined.bytes = output::bytes_in(&dir)?;
    joined.snapshots = output.publish(&dir)?;
    Ok(joined)
}
