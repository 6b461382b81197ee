//! `rftrace record --resources`: options for its library, and messages.

use std::ffi::OsString;
#[cfg(attaching)]
use std::fs;
use std::path::Path;
#[cfg(attaching)]
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::ValueEnum;
use indicatif::{HumanBytes, HumanCount};
use rftrace_format::ending::signal_name;
use rftrace_format::recording::SPECIFIED;
use rftrace_format::resources::Resource;
#[cfg(attaching)]
use rftrace_record::attach::{Resources, ResourcesWanted};
use rftrace_record::preload::{self, Preload};
use rftrace_record::program::{self, Sanitizer};
use rftrace_record::resources::{Recorded, ResourceRecorder};
use rftrace_record::specification::{Allocator, Plan, Specification};

use crate::commands::common::shell_word;

/// The way to find callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backtraces {
    /// By the unwind information of programs and libraries.
    Cfi,
    /// By frame pointers, where programs and libraries were built with them: faster.
    Fp,
    /// Only functions whose calls are recorded too, as the tracer knows them: needs no unwind information.
    Shadow,
    /// Not at all.
    None,
}

impl Backtraces {
    /// As the library takes it.
    fn name(self) -> &'static str {
        match self {
            Self::Cfi => "cfi",
            Self::Fp => "fp",
            Self::Shadow => "shadow",
            Self::None => "none",
        }
    }
}

/// Kind named by `--resources`.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// Resource that needs no specification.
    BuiltIn(Resource),
    /// Resources of a specification, from a file or built in.
    Specified(Specification),
}

/// A kind by its name, by names of functions, or by the path of a specification.
pub(crate) fn parse(text: &str) -> Result<Kind, String> {
    if let Some(symbols) = text.strip_prefix("audit:") {
        return Specification::audit(symbols).map(Kind::Specified).map_err(|error| format!("{error:#}"));
    }
    match Resource::ALL.into_iter().find(|resource| resource.name() == text) {
        Some(resource) => Ok(Kind::BuiltIn(resource)),
        None => Specification::open(text).map(Kind::Specified).map_err(|error| format!("{error:#}")),
    }
}

/// Refuses a program with a sanitizer.
pub(crate) fn check(program: &Path) -> Result<()> {
    program::sanitizer(program)?.map_or(Ok(()), |sanitizer| refuse(program, &sanitizer))
}

fn refuse(program: &Path, Sanitizer { name, option, file }: &Sanitizer) -> Result<()> {
    let place = if file == program { "linked in" } else { &format!("by {}", file.display()) };
    bail!(
        "{} has {name} ({place}), which replaces the allocator, as --resources does; build the program without {option}, or run it \
         without rftrace",
        program.display()
    );
}

/// Refuses a program that has no functions for its backtraces.
pub(super) fn check_backtraces(program: &Path, way: Backtraces, has_branches: bool) -> Result<()> {
    if way == Backtraces::Shadow && !has_branches && !program::calls_tracer(program)? {
        bail!(
            "--backtraces shadow shows only recorded functions, and {} does not call the tracer. Add -P '*', build the program with \
             -pg (C, C++) or -Z instrument-mcount (Rust), or use --backtraces cfi. If only its libraries call the tracer, add --force",
            program.display()
        );
    }
    Ok(())
}

/// Returns the wanted resources: those without specification, and the plan of those specified for a program.
pub(crate) fn plan(kinds: &[Kind], program: &Path) -> Result<(Vec<Resource>, Plan)> {
    let (mut wanted, mut specifications) = (Vec::new(), Vec::new());
    for kind in kinds {
        match kind {
            Kind::BuiltIn(resource) => wanted.push(*resource),
            Kind::Specified(specification) => specifications.push(specification.clone()),
        }
    }
    Ok((wanted, Plan::of(specifications, program)?))
}

/// The libraries that are preloaded for it, in their order.
pub(crate) fn libraries(plan: &Plan) -> Result<Vec<Preload>> {
    let stubs = plan.library().map(|library| Preload::write(SPECIFIED, &library)).transpose()?;
    // Those that the stubs lead to are looked up behind the library that they lead to.
    Ok(stubs.into_iter().chain([Preload::find(preload::RESOURCES)?]).collect())
}

/// Returns the options for resources of a running process, if they are wanted.
///
/// # Errors
///
/// A kind is wanted that is recorded only of programs from their beginning.
#[cfg(attaching)]
pub(super) fn of_attached(
    kinds: &[Kind],
    way: Backtraces,
    pids: &[u32],
    has_branches: bool,
) -> Result<Option<Resources>> {
    if kinds.is_empty() {
        return Ok(None);
    }
    for pid in pids {
        check_backtraces(Path::new(&format!("/proc/{pid}/exe")), way, has_branches)?;
    }
    of_running(kinds, way, pids, false).map(Some)
}

/// Returns the options for resources of running processes; if `is_detailed`, with arguments and the stacks of releases.
///
/// # Errors
///
/// As of [`of_attached`].
#[cfg(attaching)]
pub(crate) fn of_running(kinds: &[Kind], way: Backtraces, pids: &[u32], is_detailed: bool) -> Result<Resources> {
    for pid in pids {
        let program = PathBuf::from(format!("/proc/{pid}/exe"));
        // Attaching refuses a program that cannot be read.
        if let Ok(Some(sanitizer)) = program::sanitizer(&program) {
            refuse(&program, &sanitizer)?;
        }
    }
    // Functions are looked for in the file by its own name: that is where it looks for its libraries.
    let programs = pids.iter().map(|pid| fs::read_link(format!("/proc/{pid}/exe")));
    let programs: Vec<PathBuf> = programs.map(Result::unwrap_or_default).collect();
    let is_specified = kinds.iter().any(|kind| matches!(kind, Kind::Specified(_)));
    if is_specified && programs.iter().any(|program| *program != programs[0]) {
        bail!(
            "--resources with a specification needs the same program in all processes; record each program separately"
        );
    }
    if kinds.iter().any(|kind| matches!(kind, Kind::BuiltIn(Resource::Memory))) {
        for program in &programs {
            tell_of_allocator(program)?;
        }
    }
    let (kinds, plan) = plan(kinds, programs.first().map_or(Path::new(""), PathBuf::as_path))?;
    plan.without_branches()?;
    let library = Preload::find(preload::RESOURCES)?.path().to_owned();
    let wanted = ResourcesWanted { library, backtraces: way.name(), specified: plan.by_slots() };
    Ok(Resources { wanted, kinds, plan, is_detailed })
}

/// Names the calls that an attached recorder cannot record.
#[cfg(attaching)]
pub(crate) fn tell_of_left_out(functions: &[String]) {
    /// The most calls that are named.
    const MOST: usize = 5;

    if functions.is_empty() {
        return;
    }
    let named: Vec<String> = functions
        .iter()
        .take(MOST)
        .map(|function| {
            let (name, module) = function.split_once(' ').unwrap_or((function, ""));
            format!("{name} by {}", if module.is_empty() { "the program" } else { module })
        })
        .collect();
    let more = functions.len().saturating_sub(MOST);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    say!(
        "rftrace: cannot record calls of {}{more}: the program uses the function's address for more than calls, or for another \
         function; `rftrace record PROGRAM` records them",
        named.join(", ")
    );
}

/// Begins to record these, if there are any.
pub(super) fn begin(
    (wanted, plan): &(Vec<Resource>, Plan),
    work: &Path,
    most_bytes: usize,
) -> Result<Option<ResourceRecorder>> {
    if wanted.is_empty() && plan.is_empty() {
        return Ok(None);
    }
    ResourceRecorder::begin(work, most_bytes as u64, wanted, plan, false).map(Some)
}

/// Returns the variables for the library.
pub(crate) fn environment(recorder: &ResourceRecorder, way: Backtraces) -> Result<Vec<(&'static str, OsString)>> {
    let table = recorder.table().map(|path| ("RFTRACE_RESOURCES_TABLE", path.into()));
    let others = [
        ("RFTRACE_RESOURCES", recorder.path().into()),
        ("RFTRACE_RESOURCES_SPACE", ResourceRecorder::space()?.into()),
        ("RFTRACE_RESOURCES_BACKTRACES", way.name().into()),
    ];
    Ok(others.into_iter().chain(table).collect())
}

/// Adds the functions of an allocator in the program, if memory is wanted.
pub(super) fn add_allocator((wanted, plan): &mut (Vec<Resource>, Plan), program: &Path) -> Result<()> {
    if wanted.contains(&Resource::Memory)
        && let Some(allocator) = Allocator::of(program)?
    {
        plan.add_allocator(allocator, program)?;
    }
    Ok(())
}

/// Says that the program has an allocator of its own, where its functions get no branches.
pub(crate) fn tell_of_allocator(program: &Path) -> Result<()> {
    if let Some(allocator) = Allocator::of(program)? {
        say!(
            "rftrace: {} has its own allocator (`{}`): rftrace records only memory from the C library; for all memory, start the \
             program with rftrace record --resources memory",
            program.display(),
            allocator.known_by()
        );
    }
    Ok(())
}

/// Reports losses. `what`: ` for` the option that asks for resources; `signal`: the one that ended the program.
pub(crate) fn tell_of_losses(recorded: &Recorded, most_bytes: usize, what: &str, signal: Option<i32>) {
    if recorded.is_cut {
        say!(
            "rftrace: resources.dat has reached --max-size, {}: it lacks all later calls; use a larger --max-size",
            HumanBytes(most_bytes as u64)
        );
    } else if recorded.lost > 0 {
        say!("rftrace: resources.dat lacks {} calls: too many threads ran at the same time", HumanCount(recorded.lost));
    }
    if let Some(error) = &recorded.error {
        say!("rftrace: cannot write all of resources.dat: {error}");
    }
    match signal.map(signal_name) {
        _ if recorded.processes > 0 => {}
        Some(signal) => {
            say!("rftrace: nothing was recorded{what}: {signal} ended the program before the library for it began");
        }
        None => say!(
            "rftrace: nothing was recorded{what}: the program did not load the library for it (set-user-ID programs \
             never do), or it runs in another PID namespace or without /proc"
        ),
    }
}

/// Names the command that shows the resources.
pub(super) fn tell_of_place(dir: &Path) {
    say!("rftrace: for the resources and their callers: rftrace resources {}", shell_word(dir));
}
