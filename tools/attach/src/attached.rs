//! Attaching to a process, maintaining the tracer in it, and detaching.

use rftrace_format::passed::Passed;
use rftrace_frontend::Ends;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::libc::pid_t;

use super::borrowed::{Borrowed, Gadgets};
use super::branches::{Branches, NoBranch, OwnBranches, Written};
use super::confined;
use super::left;
use super::library::{Library, LibraryFile, close, memory_file};
use super::names;
use super::needs::Needs;
use super::place::{FORKS, Places, Tracer};
use super::process::{Map, Module, OtherRoot, Process};
use super::refusal;
use super::stacks::Stacks;
use super::wanted::{Specified, Wanted};
use super::world::{World, let_late_go};

/// Empty files in memory of a process.
#[derive(Debug)]
pub struct Files {
    /// The file for the banks.
    pub banks: File,
    /// The file for resources, if they are recorded.
    pub resources: Option<File>,
}

/// The state of an attached process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The process is attached, and its libraries have not changed.
    Attached,
    /// The process is attached. Libraries were loaded or unloaded, and the new ones are recorded.
    Changed,
    /// The process has ended.
    Ended,
    /// The process runs another program (`exec`).
    OtherProgram,
}

/// A recorded process.
#[derive(Debug)]
pub(crate) struct Attached {
    process: Process,
    needs: Needs,
    gadgets: Gadgets,
    library: Library,
    /// The library for resources, if it records.
    resources: Option<Library>,
    /// Functions that are also called otherwise than through slots, and the modules of these calls.
    left_out: Vec<String>,
    /// The number of slots that call the tracer.
    n_slots: usize,
    /// The modules at the last look.
    modules: Vec<String>,
    /// Threads that were told to stop and have not.
    late: Vec<pid_t>,
    branches: Option<OwnBranches>,
    /// Its program, if branches see the ends of functions because its runtime needs this.
    reader: Option<String>,
    /// The C library's functions for forks.
    forks: Vec<Range<u64>>,
    /// The places for a call of the tracer at the last search, and the modules then.
    places: Option<(Vec<String>, Places)>,
}

/// Facts on a process, found before it is touched.
struct Found {
    process: Process,
    maps: Vec<Map>,
    libc: Module,
    gadgets: Gadgets,
}

/// Opens a process that may be attached to, by one way or the other. Returns its maps too.
pub(crate) fn open(pid: pid_t) -> Result<(Process, Vec<Map>)> {
    refusal::check_state(pid)?;
    let process = Process::open(pid).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => anyhow::Error::msg(refusal::denied(pid)),
        _ => anyhow::Error::from(error).context(format!("there is no process {pid}")),
    })?;
    let maps = process.maps()?;
    refusal::check_program(&process)?;
    Ok((process, maps))
}

fn find(pid: pid_t) -> Result<Found> {
    let (process, maps) = open(pid)?;
    refusal::check_recorded(&process, &maps)?;
    refusal::check_files(&process)?;
    let libc = process.module(&maps, |path| path.ends_with("/libc.so.6") || path.ends_with("/libc.so.6 (deleted)"));
    let libc = libc.with_context(|| {
        format!(
            "cannot read the C library of process {pid}, which was replaced on the disk since: run rftrace as root, which can read the \
             old one"
        )
    })?;
    let libc = libc.with_context(|| format!("cannot find the C library (libc.so.6) in the memory of process {pid}"))?;
    let gadgets = Gadgets::find(&process, &libc)?;
    Ok(Found { process, maps, libc, gadgets })
}

impl Attached {
    /// Has a process record into its new files, after `prepare` has set them up.
    ///
    /// # Errors
    ///
    /// Sentences: the process cannot be attached to, or something went wrong; it goes on as it did.
    pub(crate) fn begin(pid: u32, wanted: &Wanted, prepare: impl FnOnce(Files) -> Result<()>) -> Result<Self> {
        let Found { process, maps, libc, gadgets } = find(pid.cast_signed())?;
        if !wanted.hooks_others() && wanted.resources.is_none() {
            refusal::check_hooks(&process, &maps)?;
        }
        let mut late = Vec::new();
        let needs = Needs::of_library(wanted.types.is_some(), wanted.resources.is_some());
        let has_values = confined::check(&process, &needs, &mut late)?;
        let is_reader = wanted.ends.is_none() && !wanted.branches.is_empty() && process.reads_return_addresses(&maps);
        let reader = is_reader.then(|| process.program_path());
        let ends = wanted.ends.unwrap_or(if is_reader { Ends::Exits } else { Ends::Returns });
        // All slow work comes before a thread is held.
        let file = LibraryFile::tracer(&wanted.library)?;
        let of_resources =
            wanted.resources.as_ref().map(|wanted| LibraryFile::resources(&wanted.library)).transpose()?;
        let dlopen = libc.function("dlopen")?;
        let found = Library::find(&process, &maps, &file)?;
        if let Some(library) = &found {
            // Branches of a killed recorder. The code prepared now is to be the program's own.
            Branches::prepared(&process, library)?.restore(&process, None, &mut late)?;
        }
        let tracer = found
            .as_ref()
            .map_or(Tracer { texts: Vec::new(), trampolines: Vec::new() }, |library| tracer(&process, library));
        let places = Places::for_loading(&process, &libc, tracer, gadgets.restorer)?;
        let begun = {
            let mut thread = Borrowed::take(&process, &places, &needs, gadgets, &mut late)?;
            let wanted_now = Now { wanted, has_values, ends };
            let begun = begin_on(
                &mut thread,
                &process,
                found,
                (&file, of_resources.as_ref(), dlopen),
                &wanted_now,
                &mut late,
                prepare,
            );
            let begun = begun.and_then(|begun| {
                let hooked = begin_resources(&mut thread, &process, &begun)
                    .and_then(|()| write_branches(&mut thread, &process, &begun.library, wanted, &maps, &mut late));
                if hooked.is_err() {
                    // The error to report is the first one.
                    leave_again(&mut thread, &process, &begun, &mut late);
                }
                Ok((begun, hooked?))
            });
            let given_back = thread.give_back();
            let begun = begun?;
            given_back?;
            begun
        };
        let (Begun { library, resources, answer }, branches) = begun;
        let modules = modules(&process.maps()?);
        let Answer { n_slots, left_out, .. } = answer;
        let (forks, places) = (libc.functions(&FORKS), None);
        Ok(Self {
            process,
            needs,
            gadgets,
            library,
            resources,
            left_out,
            n_slots,
            modules,
            late,
            branches,
            reader,
            forks,
            places,
        })
    }

    /// Functions that give out or take back resources, each with a module that also calls it otherwise than through
    /// slots that could be changed.
    pub(crate) fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Its root directory, if it is not this process's.
    pub(crate) fn other_root(&self) -> Option<OtherRoot> {
        self.process.other_root()
    }

    /// True if [`look_by`](Self::look_by) has anything to do.
    pub(crate) fn is_other(&self) -> bool {
        self.process.maps().is_ok_and(|maps| modules(&maps) != self.modules)
    }

    /// Looks after the process: libraries loaded since are redirected too. Uses the lent thread, if there is one: this
    /// thread traces it and has told it to stop. It stays so. The system has to mark stops at system calls
    /// (`PTRACE_O_TRACESYSGOOD`).
    ///
    /// # Errors
    ///
    /// No thread could be borrowed, or the lent one is at no place for it.
    pub(crate) fn look_by(&mut self, lent: Option<u32>) -> Result<State> {
        self.let_late_go();
        let Ok(maps) = self.process.maps() else { return Ok(State::Ended) };
        if maps.is_empty() {
            return Ok(State::Ended);
        }
        if !maps.iter().any(|map| names::is_tracer(&map.path)) {
            return Ok(State::OtherProgram);
        }
        let now = modules(&maps);
        if now != self.modules {
            let has_branches = self.branches.is_some();
            let (answer, branches) = self.ask("rftrace_attach_again", lent, |parts, thread| {
                let Parts { process, library, late, .. } = parts;
                if has_branches { own_branches(thread, process, library, &maps, late).map(Some) } else { Ok(None) }
            })?;
            let Answer { n_slots, left_out, .. } = Answer::of(&answer);
            (self.n_slots, self.left_out) = (n_slots, left_out);
            self.modules = now;
            if let Some((old, new)) = self.branches.as_mut().zip(branches) {
                old.told = new.told;
                old.written.add(new.written);
            }
            return Ok(State::Changed);
        }
        Ok(State::Attached)
    }

    /// Has a thread read the recorder's requests to the process from its bank, and answer there.
    ///
    /// # Errors
    ///
    /// No thread could be borrowed, or the process has ended: it may have done nothing of the request.
    pub(crate) fn answer(&mut self) -> Result<()> {
        self.let_late_go();
        self.ask("rftrace_attach_answer", None, |_, _| Ok(())).map(drop)
    }

    /// Ends recording. Everything is as before, except for the library, which stays.
    ///
    /// # Errors
    ///
    /// No thread could be borrowed, not all could be stopped to take branches away, or the process has ended meanwhile.
    pub(crate) fn leave(mut self) -> Result<()> {
        self.let_late_go();
        let left = self.ask("rftrace_detach", None, give_all_back).map(drop);
        if left.is_err() {
            // This needs no borrowed thread.
            let Self { process, library, late, .. } = &mut self;
            let _ = Branches::prepared(process, library).and_then(|branches| branches.restore(process, None, late));
        }
        left
    }

    /// Returns the library's report on functions chosen for a hook, as [`EntriesLine`](rftrace_format::recording::EntriesLine)s.
    pub(crate) fn told(&self) -> &str {
        self.branches.as_ref().map_or("", |branches| &branches.told)
    }

    /// Its program, if branches see the ends of functions because its runtime needs this.
    pub(crate) fn reader(&self) -> Option<&str> {
        self.reader.as_deref()
    }

    /// Functions without a branch among those reported to have one, by address.
    pub(crate) fn without_branch(&self) -> &[(u64, NoBranch)] {
        self.branches.as_ref().map_or(&[], |branches| &branches.written.left_out)
    }

    /// The number of threads that stood in the first instructions of functions when these got their branches, and went
    /// on in the copies; and the time for which all threads were stopped.
    pub(crate) fn stopped(&self) -> (usize, Duration) {
        self.branches.as_ref().map_or((0, Duration::ZERO), OwnBranches::stopped)
    }

    /// Has a thread, maybe a lent one, call a function of the library, and then does the rest of the work.
    fn ask<T>(
        &mut self,
        function: &str,
        lent: Option<u32>,
        then: impl FnOnce(&mut Parts<'_>, &mut Borrowed<'_>) -> Result<T>,
    ) -> Result<(String, T)> {
        // It may take the dynamic linker's lock, which is recursive, and no other of the program's; and its
        // allocator's.
        let registers = function != "rftrace_detach";
        let Self { process, needs, library, resources, late, gadgets, forks, places: known, .. } = self;
        let maps = process.maps()?;
        let modules = modules(&maps);
        let places = match known.take() {
            Some((its, places)) if registers && its == modules => places.with_maps(maps),
            _ => Places::for_tracer(process, tracer(process, library), forks, gadgets.restorer, registers)?,
        };
        // Only detaching needs them, and the search for the unwinder takes longer than all else.
        let stacks = (!registers).then(|| stacks(process, library));
        let taken = match lent {
            Some(thread) => Borrowed::lent(process, &places, needs, *gadgets, thread.cast_signed()),
            None => Borrowed::take(process, &places, needs, *gadgets, late),
        };
        if registers {
            *known = Some((modules, places));
        }
        let mut thread = taken?;
        let of_resources = resources.as_ref().filter(|_| function == "rftrace_detach");
        let ended = of_resources.map(|library| library.ask(&mut thread, process, "rftrace_resources_detach", None));
        let answer = ended.transpose().and_then(|_| library.ask(&mut thread, process, function, None));
        let done =
            answer.and_then(|answer| Ok((answer, then(&mut Parts { process, library, stacks, late }, &mut thread)?)));
        thread.give_back()?;
        done
    }

    /// Lets threads go that have stopped after all.
    pub(crate) fn let_late_go(&mut self) {
        let_late_go(&mut self.late);
    }
}

/// Parts used while a thread is borrowed.
struct Parts<'a> {
    process: &'a Process,
    library: &'a Library,
    /// Needed to leave the process.
    stacks: Option<Stacks<'a>>,
    late: &'a mut Vec<pid_t>,
}

/// Gives return addresses back, and takes branches away. The remaining return addresses return by the tracer; no branch
/// may stay.
fn give_all_back(parts: &mut Parts<'_>, thread: &mut Borrowed<'_>) -> Result<()> {
    /// Passes over the stacks until no thread is in the tracer.
    const TRIES: usize = 20;
    const PAUSE: Duration = Duration::from_millis(1);

    let Parts { process, library, stacks, late } = parts;
    let branches = Branches::prepared(process, library)?;
    let mut has_branches = branches.are_there(process);
    for _ in 0..TRIES {
        let mut world = World::stop(process, thread.thread, late)?;
        if world.settle(process, thread.thread, late) && has_branches {
            branches.restore_in(process)?;
            has_branches = false;
        }
        let mut registers = world.registers()?;
        registers.push(thread.registers);
        if stacks.as_ref().is_none_or(|stacks| stacks.give_back(&registers)) {
            break;
        }
        drop(world);
        std::thread::sleep(PAUSE);
    }
    if has_branches {
        branches.restore(process, Some(thread.thread), late)?;
    }
    left::remove(thread, process, late)
}

/// Writes the wanted branches, if there are any.
fn write_branches(
    thread: &mut Borrowed<'_>,
    process: &Process,
    library: &Library,
    wanted: &Wanted,
    before: &[Map],
    late: &mut Vec<pid_t>,
) -> Result<Option<OwnBranches>> {
    if !wanted.hooks_others() {
        return Ok(None);
    }
    own_branches(thread, process, library, before, late).map(Some)
}

/// Records resources from now on, if they are wanted.
fn begin_resources(thread: &mut Borrowed<'_>, process: &Process, begun: &Begun) -> Result<()> {
    let Some(resources) = &begun.resources else { return Ok(()) };
    if begun.answer.n_interposed == 0 {
        bail!(
            "--resources: process {} and its libraries call no function of these resources through a slot that rftrace can change; choose \
             other resources",
            process.pid
        );
    }
    // The dynamic linker may have filled some meanwhile.
    begun.library.ask(thread, process, "rftrace_attach_again", None)?;
    resources.ask(thread, process, "rftrace_resources_begin", None).map(drop)
}

/// Ends the recording of a recorder that was killed, or could not detach.
fn detach_earlier(
    thread: &mut Borrowed<'_>,
    process: &Process,
    library: &Library,
    late: &mut Vec<pid_t>,
) -> Result<()> {
    if library.ask(thread, process, "rftrace_detach", None)?.is_empty() {
        return Ok(());
    }
    let stacks = Some(stacks(process, library));
    give_all_back(&mut Parts { process, library, stacks, late }, thread)
}

/// Leaves a process that cannot be recorded with these options.
fn leave_again(thread: &mut Borrowed<'_>, process: &Process, begun: &Begun, late: &mut Vec<pid_t>) {
    let Begun { library, resources, .. } = begun;
    if let Some(resources) = resources {
        let _ = resources.ask(thread, process, "rftrace_resources_detach", None);
    }
    let left = library.ask(thread, process, "rftrace_detach", None);
    let stacks = Some(stacks(process, library));
    let _ = left.and_then(|_| give_all_back(&mut Parts { process, library, stacks, late }, thread));
}

fn own_branches(
    thread: &mut Borrowed<'_>,
    process: &Process,
    library: &Library,
    before: &[Map],
    late: &mut Vec<pid_t>,
) -> Result<OwnBranches> {
    let wanted = Branches::prepared(process, library)?.wanted();
    let written = if wanted.is_empty() { Written::default() } else { wanted.write(process, thread, before, late)? };
    Ok(OwnBranches { written, told: library.told(process) })
}

/// Result of the borrowed thread's work.
struct Begun {
    library: Library,
    resources: Option<Library>,
    answer: Answer,
}

/// Options, and deviations from them.
struct Now<'a> {
    wanted: &'a Wanted,
    /// True if filters of system calls let values be read wherever they are.
    has_values: bool,
    ends: Ends,
}

/// Begins the recording on the borrowed thread.
fn begin_on(
    thread: &mut Borrowed<'_>,
    process: &Process,
    found: Option<Library>,
    (file, of_resources, dlopen): (&LibraryFile, Option<&LibraryFile>, u64),
    &Now { wanted, has_values, ends }: &Now<'_>,
    late: &mut Vec<pid_t>,
    prepare: impl FnOnce(Files) -> Result<()>,
) -> Result<Begun> {
    left::remove(thread, process, late)?;
    if let Some(library) = &found {
        detach_earlier(thread, process, library, late)?;
    }
    let (number_of_bank, banks) = memory_file(thread, process, names::BANK)?;
    let pool = of_resources.map(|_| memory_file(thread, process, "rftrace-resources")).transpose()?;
    let (number_of_pool, pool) = pool.unzip();
    prepare(Files { banks, resources: pool })?;
    let library = match found {
        Some(library) => library,
        None => Library::load(thread, process, dlopen, file)?,
    };
    let resources = of_resources.map(|file| match Library::find(process, &process.maps()?, file)? {
        Some(library) => Ok(library),
        None => Library::load(thread, process, dlopen, file),
    });
    let resources = resources.transpose()?;
    let mut interposed = String::new();
    if let (Some(resources), Some(number), Some(wanted)) = (&resources, number_of_pool, &wanted.resources) {
        let specified = wanted.specified.as_ref();
        let files = specified.map(|specified| {
            let Specified { table, names } = specified;
            let (table, names) = (
                filled(thread, process, "rftrace-table", table)?,
                filled(thread, process, "rftrace-names", names.as_bytes())?,
            );
            anyhow::Ok([table, names])
        });
        let files = files.transpose()?;
        let lines = files.map_or_else(String::new, |[table, names]| {
            format!("table=/proc/thread-self/fd/{table}\nspecified=/proc/thread-self/fd/{names}\n")
        });
        let settings = format!(
            "{lines}pool=/proc/thread-self/fd/{number}\ntracer={:x}\ntrampoline={:x}\nthread={:x}\nbacktraces={}\n",
            library.function("rftrace_attach")?,
            library.function("rftrace_backend_trampoline")?,
            library.function("rftrace_backend_thread")?,
            wanted.backtraces
        );
        let prepared = resources.ask(thread, process, "rftrace_resources_attach", Some(&settings));
        for number in files.into_iter().flatten().chain([number]) {
            close(thread, number)?;
        }
        prepared?;
        interposed = resources.interposed(process);
    }
    let lines = |key, values: &[String]| -> String {
        values.iter().map(|value| format!("{key}={}\n", value.replace('\n', " "))).collect()
    };
    let branches = lines("branch", &wanted.branches) + &lines("except", &wanted.exceptions);
    let settings = format!(
        "bank=/proc/thread-self/fd/{number_of_bank}\ntypes={}\nfilter={}\n{branches}ends={}\nlibcalls={}\ndisabled={}\npatched={}\nconfined={}\ninterposed={interposed}\nmcount={:x}\nfentry={:x}\n",
        wanted.types.as_ref().map(Passed::to_string).unwrap_or_default(),
        wanted.filter.replace('\n', " "),
        if ends == Ends::Exits { "exits" } else { "returns" },
        u8::from(wanted.has_library_calls),
        u8::from(wanted.is_disabled),
        u8::from(wanted.is_patched),
        u8::from(!has_values),
        library.function("mcount")?,
        library.function("__fentry__")?
    );
    let answer = library.ask(thread, process, "rftrace_attach", Some(&settings));
    close(thread, number_of_bank)?;
    Ok(Begun { library, resources, answer: Answer::of(&answer?) })
}

/// A file in memory of a process with these bytes: its number there.
fn filled(thread: &mut Borrowed<'_>, process: &Process, name: &str, bytes: &[u8]) -> Result<u64> {
    let (number, mut file) = memory_file(thread, process, name)?;
    file.write_all(bytes)
        .with_context(|| format!("cannot write the recorder's options into process {}", process.pid))?;
    Ok(number)
}

/// The library's answer on its slots.
struct Answer {
    /// How many lead to the tracer.
    n_slots: usize,
    /// How many lead to the library for resources.
    n_interposed: usize,
    left_out: Vec<String>,
}

impl Answer {
    fn of(text: &str) -> Self {
        let values = |key: &'static str| {
            text.lines()
                .filter_map(move |line| line.split_once('=').filter(|&(its, _)| its == key))
                .map(|(_, value)| value)
        };
        let number = |key| values(key).next().and_then(|number| number.parse().ok()).unwrap_or(0);
        let left_out = values("left").map(str::to_owned).collect();
        Self { n_slots: number("slots"), n_interposed: number("interposed"), left_out }
    }
}

fn stacks<'a>(process: &'a Process, library: &Library) -> Stacks<'a> {
    Stacks::new(process, library.control(process), library.texts())
}

fn tracer(process: &Process, library: &Library) -> Tracer {
    Tracer { texts: library.texts(), trampolines: stacks(process, library).trampolines() }
}

/// Lists the loaded modules.
pub(crate) fn modules(maps: &[Map]) -> Vec<String> {
    let mut found: Vec<String> = maps
        .iter()
        .filter(|map| map.is_executable && map.path.starts_with('/'))
        .map(|map| format!("{:x} {}", map.range.start, map.path))
        .collect();
    found.sort();
    found
}

/// Leaves a process that a recorder has left in the middle of its work; `library` and `of_resources` are the files of
/// the libraries. Returns true if there was anything to leave.
///
/// # Errors
///
/// As of [`Attached::begin`].
pub(crate) fn leave(pid: u32, library: &Path, of_resources: &Path) -> Result<bool> {
    let Found { process, maps, libc, gadgets } = find(pid.cast_signed())?;
    let Some(library) = Library::find(&process, &maps, &LibraryFile::tracer(library)?)? else { return Ok(false) };
    let resources = match maps.iter().any(|map| names::is_for_resources(&map.path)) {
        true => Library::find(&process, &maps, &LibraryFile::resources(of_resources)?)?,
        false => None,
    };
    let attached = Attached {
        modules: modules(&maps),
        process,
        needs: Needs::of_library(false, resources.is_some()),
        gadgets,
        library,
        resources,
        left_out: Vec::new(),
        n_slots: 0,
        late: Vec::new(),
        reader: None,
        branches: None,
        forks: libc.functions(&FORKS),
        places: None,
    };
    attached.leave()?;
    Ok(true)
}
