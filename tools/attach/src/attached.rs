//! Attaching to a process, looking after it, and leaving it.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::libc::pid_t;

use super::borrowed::{Borrowed, Gadgets};
use super::library::{self, Library, LibraryFile, close, memory_file};
use super::place::{Places, Tracer};
use super::process::{Map, Module, Process};
use super::refusal;
use super::stacks::Stacks;
use super::sys;
use super::world::World;

/// How to record.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The file of the library that is loaded.
    pub library: PathBuf,
    /// Rules of what is recorded, in the frontend's language; empty for everything.
    pub filter: String,
    /// Whether calls of the program of functions of libraries are recorded too: it need not call the tracer then.
    pub has_library_calls: bool,
}

/// What became of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is attached to.
    Attached,
    /// It has ended.
    Ended,
    /// It runs another program by now (`exec`).
    OtherProgram,
}

/// A process that is recorded.
#[derive(Debug)]
pub struct Attached {
    process: Process,
    gadgets: Gadgets,
    library: Library,
    /// How many slots call the tracer.
    n_slots: usize,
    /// The modules when it was last looked at.
    modules: Vec<String>,
    /// Threads that were told to stop and have not.
    late: Vec<pid_t>,
}

/// What is found in a process before it is touched.
struct Found {
    process: Process,
    maps: Vec<Map>,
    libc: Module,
    gadgets: Gadgets,
}

fn find(pid: pid_t) -> Result<Found> {
    refusal::check_state(pid)?;
    let process = Process::open(pid).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => anyhow::Error::msg(refusal::denied(pid)),
        _ => anyhow::Error::from(error).context(format!("there is no process {pid}")),
    })?;
    let maps = process.maps()?;
    refusal::check_program(&process, &maps)?;
    let libc = process.module(&maps, |path| path.ends_with("/libc.so.6") || path.ends_with("/libc.so.6 (deleted)"));
    let libc = libc
        .context("its C library was replaced on the disk since it was started: as root it can be read all the same")?;
    let libc = libc.context("its C library is not mapped")?;
    let gadgets = Gadgets::find(&process, &libc)?;
    Ok(Found { process, maps, libc, gadgets })
}

impl Attached {
    /// Has a process record into banks that `prepare` makes in the empty memory that it is given.
    ///
    /// # Errors
    ///
    /// Sentences: the process cannot be attached to, or something went wrong; it goes on as it did.
    pub fn begin(pid: u32, wanted: &Wanted, prepare: impl FnOnce(File) -> Result<()>) -> Result<Self> {
        let Found { process, maps, libc, gadgets } = find(pid.cast_signed())?;
        if !wanted.has_library_calls {
            refusal::check_hooks(&process, &maps)?;
        }
        let mut late = Vec::new();
        // All that takes long comes before a thread is held.
        let file = LibraryFile::read(&wanted.library)?;
        let dlopen = libc.function("dlopen")?;
        let found = Library::find(&process, &maps, &file)?;
        let tracer =
            found.as_ref().map_or(Tracer { texts: Vec::new(), trampolines: 0..0 }, |library| tracer(&process, library));
        let places = Places::for_loading(&process, &libc, tracer, gadgets.restorer)?;
        let begun = {
            let mut thread = Borrowed::take(&process, &places, gadgets, &mut late)?;
            let begun = begin_on(&mut thread, &process, found, (&file, dlopen), wanted, prepare);
            let given_back = thread.give_back();
            let begun = begun?;
            given_back?;
            begun
        };
        let (library, n_slots) = begun;
        let modules = modules(&process.maps()?);
        Ok(Self { process, gadgets, library, n_slots, modules, late })
    }

    /// Through how many slots the tracer is called.
    #[must_use]
    pub fn n_slots(&self) -> usize {
        self.n_slots
    }

    /// Looks after the process: libraries that were loaded since are redirected too.
    ///
    /// # Errors
    ///
    /// It cannot be done now.
    pub fn look(&mut self) -> Result<State> {
        self.let_late_go();
        let Ok(maps) = self.process.maps() else { return Ok(State::Ended) };
        if maps.is_empty() {
            return Ok(State::Ended);
        }
        if !maps.iter().any(|map| library::is_it(&map.path)) {
            return Ok(State::OtherProgram);
        }
        let now = modules(&maps);
        if now != self.modules {
            let answer = self.ask("rftrace_attach_again")?;
            self.n_slots = n_slots(&answer);
            self.modules = now;
        }
        Ok(State::Attached)
    }

    /// Ends recording. Everything is as it was before, but for the library, which stays.
    ///
    /// # Errors
    ///
    /// No thread could be borrowed, or the process has ended meanwhile.
    pub fn leave(mut self) -> Result<()> {
        self.let_late_go();
        self.ask("rftrace_detach").map(drop)
    }

    /// Has a thread call a function of the library, with what leaving takes.
    fn ask(&mut self, function: &str) -> Result<String> {
        /// Passes over the stacks until no thread is in the tracer.
        const TRIES: usize = 20;
        const PAUSE: Duration = Duration::from_millis(1);

        // It may take the dynamic linker's lock, which is recursive, and no other of the program's.
        let places = Places::for_tracer(&self.process, tracer(&self.process, &self.library), self.gadgets.restorer)?;
        let stacks = stacks(&self.process, &self.library);
        let mut thread = Borrowed::take(&self.process, &places, self.gadgets, &mut self.late)?;
        let answer = self.library.ask(&mut thread, &self.process, function, None);
        if function == "rftrace_detach" && answer.is_ok() {
            for _ in 0..TRIES {
                let world = World::stop(&self.process, thread.thread, &mut self.late)?;
                let mut registers = world.registers()?;
                registers.push(thread.registers);
                if stacks.give_back(&registers) {
                    break;
                }
                drop(world);
                std::thread::sleep(PAUSE);
            }
        }
        thread.give_back()?;
        answer
    }

    /// Lets threads go that have stopped after all.
    fn let_late_go(&mut self) {
        self.late.retain(|&thread| match sys::wait(thread, Duration::ZERO) {
            Ok(None) => true,
            Ok(Some(sys::Stop::Gone)) | Err(_) => false,
            Ok(Some(sys::Stop::Signal(signal))) => sys::detach(thread, signal).is_err(),
            Ok(Some(_)) => sys::detach(thread, 0).is_err(),
        });
    }
}

/// What the borrowed thread does.
fn begin_on(
    thread: &mut Borrowed<'_>,
    process: &Process,
    found: Option<Library>,
    (file, dlopen): (&LibraryFile, u64),
    wanted: &Wanted,
    prepare: impl FnOnce(File) -> Result<()>,
) -> Result<(Library, usize)> {
    let (number_of_bank, bank) = memory_file(thread, process, "rftrace-banks")?;
    prepare(bank)?;
    let library = match found {
        Some(library) => library,
        None => Library::load(thread, process, dlopen, file)?,
    };
    let settings = format!(
        "bank=/proc/self/fd/{number_of_bank}\nfilter={}\nlibcalls={}\nmcount={:x}\nfentry={:x}\n",
        wanted.filter.replace('\n', " "),
        u8::from(wanted.has_library_calls),
        library.function("mcount")?,
        library.function("__fentry__")?
    );
    let answer = library.ask(thread, process, "rftrace_attach", Some(&settings));
    close(thread, number_of_bank)?;
    Ok((library, n_slots(&answer?)))
}

/// The number of an answer.
fn n_slots(answer: &str) -> usize {
    answer.strip_prefix("slots=").and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn stacks<'a>(process: &'a Process, library: &Library) -> Stacks<'a> {
    Stacks::new(process, library.control(process), library.texts())
}

fn tracer(process: &Process, library: &Library) -> Tracer {
    Tracer { texts: library.texts(), trampolines: stacks(process, library).trampolines() }
}

/// What is loaded.
fn modules(maps: &[Map]) -> Vec<String> {
    let mut found: Vec<String> = maps
        .iter()
        .filter(|map| map.is_executable && map.path.starts_with('/'))
        .map(|map| format!("{:x} {}", map.range.start, map.path))
        .collect();
    found.sort();
    found
}

/// Leaves a process that a recorder has left in the middle of it. Returns whether there was anything to leave.
///
/// # Errors
///
/// As of [`Attached::begin`].
pub fn leave(pid: u32, library: &Path) -> Result<bool> {
    let Found { process, maps, gadgets, .. } = find(pid.cast_signed())?;
    let Some(library) = Library::find(&process, &maps, &LibraryFile::read(library)?)? else { return Ok(false) };
    let attached = Attached { modules: modules(&maps), process, gadgets, library, n_slots: 0, late: Vec::new() };
    attached.leave()?;
    Ok(true)
}
