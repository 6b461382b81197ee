//! Filters of system calls (seccomp), as containers and services use them: this module checks that a process's filters
//! permit the calls that this process makes in it, and those of the tracer.
//!
//! Reading a thread's filters needs the thread stopped, and each thread may have others. A thread without filters is
//! not touched.
//!
//! Not here: the effect of a filter on a call (`bpf`), and the needed calls (`needs`).

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use nix::libc::{self, pid_t};
use rftrace_format::system;

use super::bpf::{self, Action, Instruction};
use super::call;
use super::needs::Needs;
use super::process::{Map, Process};
use super::refusal;
use super::status::Status;
use super::stop::{Stopped, stop, wait_until_stopped};
use super::sys;

/// The filters of a thread.
type Filters = Vec<Vec<Instruction>>;

/// Refuses a process with a thread whose filters do not let all needed calls pass. Returns true if all filters let
/// values be read from any place. `late` gets a thread that could not be stopped.
pub(crate) fn check(process: &Process, needs: &Needs, late: &mut Vec<pid_t>) -> Result<bool> {
    let (mut known, mut seen, mut has_values) = (HashSet::new(), HashSet::new(), true);
    loop {
        let new: Vec<pid_t> = process.threads()?.into_iter().filter(|&thread| known.insert(thread)).collect();
        if new.is_empty() {
            return Ok(has_values);
        }
        for thread in new {
            if !is_confined(process, thread)? {
                continue;
            }
            check_rights(process)?;
            let Some(filters) = filters_of_running(process, thread, late)? else { continue };
            if !seen.contains(&filters) {
                check_filters(process, &filters, needs)?;
                has_values &= problem(&filters, &Needs::of_values()).is_none();
                seen.insert(filters);
            }
        }
    }
}

/// Refuses a stopped thread, if its filters do not let all needed calls pass.
pub(crate) fn check_thread(process: &Process, thread: pid_t, needs: &Needs) -> Result<()> {
    if is_confined(process, thread)? { check_filters(process, &filters(process, thread)?, needs) } else { Ok(()) }
}

/// True if a process could install an unreported filter: it has a function of the C library that does so, or one that
/// finds such functions. Two ways are always open, and not looked at: system calls made without such a function, and,
/// in a program linked statically with GNU's C library, a library that it loads (`dlopen` is in each such program).
pub(crate) fn may_be_installed(process: &Process, maps: &[Map]) -> Result<bool> {
    const INSTALLERS: [&str; 2] = ["prctl", "syscall"];
    const LOADERS: [&str; 2] = ["dlopen", "dlsym"];

    let program = process.program(maps)?;
    // A statically linked one defines all functions used in it.
    let has_own = !program.has_symbols() || !program.definitions(&INSTALLERS).is_empty();
    let gets = |names: &[&str]| process.modules(maps).iter().any(|module| module.imports(names));
    Ok(has_own || gets(&[INSTALLERS, LOADERS].concat()))
}

/// True if a thread has filters.
fn is_confined(process: &Process, thread: pid_t) -> Result<bool> {
    match Status::of(thread).map_or(0, |status| status.seccomp) {
        0 => Ok(false),
        1 => bail!(
            "cannot attach to process {}: the strict mode of seccomp kills it for a system call of the tracer; start it by rftrace record",
            process.pid
        ),
        _ => Ok(true),
    }
}

/// Refuses if the system does not let this process read filters, before anything is touched.
fn check_rights(process: &Process) -> Result<()> {
    const CAP_SYS_ADMIN: u32 = 21;

    let status = system::read_text("/proc/self/status").unwrap_or_default();
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
    let may = u64::from_str_radix(field("CapEff:"), 16).is_ok_and(|rights| rights & 1 << CAP_SYS_ADMIN != 0);
    if field("Seccomp:") == "0" && may { Ok(()) } else { Err(no_rights(process)) }
}

fn no_rights(process: &Process) -> anyhow::Error {
    anyhow!(
        "cannot read the filter of system calls (seccomp) of process {}, which may kill the process for a call of the tracer: that needs \
         CAP_SYS_ADMIN and no such filter of rftrace's own; run rftrace with sudo, outside of the container",
        process.pid
    )
}

/// The filters of a running thread: it is stopped for this. `None` if it has ended.
fn filters_of_running(process: &Process, thread: pid_t, late: &mut Vec<pid_t>) -> Result<Option<Filters>> {
    /// The longest wait for a thread that cannot be stopped.
    const PATIENCE: Duration = Duration::from_secs(10);

    let begun = Instant::now();
    if let Err(error) = sys::seize(thread) {
        // An ended thread cannot be traced either.
        let lives = Status::of(thread).is_some_and(|status| !"ZX".contains(status.state));
        let is_denied = lives && error.raw_os_error() == Some(libc::EPERM);
        return if is_denied { Err(anyhow!(refusal::denied(process.pid))) } else { Ok(None) };
    }
    let mut stopped = stop(thread)?;
    while stopped == Stopped::Late && begun.elapsed() < PATIENCE {
        stopped = wait_until_stopped(thread)?;
    }
    match stopped {
        Stopped::Yes => {}
        Stopped::Gone => return Ok(None),
        Stopped::Late => {
            late.push(thread);
            bail!(
                "cannot read the filter of system calls (seccomp) of process {}: a thread waits in the kernel where nothing can stop it \
                 (for a disk, or for a child that has not begun its program); try again",
                process.pid
            );
        }
    }
    let filters = filters(process, thread);
    if !filters.as_ref().is_ok_and(|filters| problem(filters, &Needs::of_stop()).is_none()) {
        call::begin_anew(thread)?;
    }
    // A killed thread is gone anyway.
    let _ = call::let_go(thread);
    filters.map(Some)
}

/// The filters of a stopped thread.
fn filters(process: &Process, thread: pid_t) -> Result<Filters> {
    let mut filters = Vec::new();
    loop {
        match sys::filter(thread, filters.len()) {
            Ok(Some(filter)) => filters.push(filter),
            Ok(None) => return Ok(filters),
            Err(error) if error.raw_os_error() == Some(libc::EACCES) => return Err(no_rights(process)),
            Err(error) => bail!(
                "cannot read the filter of system calls (seccomp) of process {}, which may kill the process for a call of the \
                 tracer: {error}",
                process.pid
            ),
        }
    }
}

fn check_filters(process: &Process, filters: &Filters, needs: &Needs) -> Result<()> {
    match problem(filters, needs) {
        None => Ok(()),
        Some(problem) => bail!(
            "cannot attach to process {}: its filter of system calls (seccomp) {problem}; start it without that filter, or by \
             rftrace record",
            process.pid
        ),
    }
}

/// Returns the problem with filters, if there is any, as a part of a sentence.
fn problem(filters: &Filters, needs: &Needs) -> Option<String> {
    if filters.iter().any(|filter| bpf::may_ask(filter)) {
        return Some(format!(
            "{} some calls, and a thread repeats such a call after rftrace has stopped it",
            Action::Asks
        ));
    }
    needs.calls().find_map(|needed| {
        let actions = needed.seen().into_iter().flat_map(|call| filters.iter().map(move |it| bpf::action(it, &call)));
        let worst = actions.max()?;
        let is_well = worst == Action::Allows || worst == Action::Fails && needed.may_fail;
        (!is_well).then(|| format!("{worst} {}, which the tracer needs", needed.name))
    })
}
