//! Saves the collected data of a process as a directory.
//!
//! A process may have written anything into its bank: chunks are untrusted until checked, like an image
//! (`image/stored.rs`). They are unpacked one at a time, so memory use does not depend on the length of the recording.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use memmap2::{Mmap, MmapOptions};
use rftrace_format::gaps::Gaps;
use rftrace_format::opener::{self, MOST_TEXT};
use rftrace_format::{recording, symbols};

use super::collected::Collected;
use super::facts::Facts;
use super::spool::{about_file, facts_folder};
use super::world::World;
use crate::clock::ticks_in;
use crate::decode::{self, Minima};
use crate::elf::file::map_file;
use crate::elf::symfile::write_symbols;
use crate::elf::table::{self, SymbolTable};
use crate::error::{Error, NoEventsCause};
use crate::host::linux::modules::{Module, in_root, map_path};
use crate::host::linux::sysinfo;
use crate::host::program::{Identify, Program};
use crate::image::stored::StoredChunks;
use crate::uftrace::directory::{self, Mark, Recording};

/// The summary of the trace written for a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedBank {
    /// The number of entries and exits.
    pub events: u64,
    /// The number of threads with records.
    pub threads: usize,
    /// The number of calls beyond the deepest recorded level.
    pub lost: u64,
    /// The number of threads beyond the maximum at one time, as far as it is known.
    pub untraced_threads: u32,
    /// The reason why a part is missing, and the remedy.
    pub left_out: Option<String>,
    /// The number of malformed chunks, left out.
    pub damaged_chunks: usize,
}

/// The modules whose symbols were passed on.
#[derive(Debug, Default)]
pub struct ToldModules(HashSet<Key>);

/// A cache of programs' functions for several directories, as many processes run the same program.
#[derive(Clone, Debug, Default)]
pub struct Symbols {
    tables: HashMap<Key, Option<Arc<SymbolTable>>>,
    /// The received files of modules from another machine, by the module's path, in the spelling of maps, and its
    /// build-id. No other file is opened then.
    received: Option<HashMap<(String, Option<String>), PathBuf>>,
}

/// The identity of a module.
type Key = (PathBuf, Option<String>);

impl Symbols {
    /// Creates the cache with symbols of programs from another machine: files in a folder, sent by their recorder.
    ///
    /// # Errors
    ///
    /// The errors of the system.
    pub fn received(folder: &Path) -> io::Result<Self> {
        let mut received = HashMap::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_name().as_bytes().starts_with(recording::SYMBOLS.as_bytes()) {
                let mut head = Vec::new();
                opener::open(&entry.path())?.take(symbols::Head::MAX_BYTES as u64).read_to_end(&mut head)?;
                let symbols::Head { path: Some(path), build_id, .. } = symbols::Head::parse(&head) else { continue };
                received.insert((path, build_id), entry.path());
            }
        }
        Ok(Self { tables: HashMap::new(), received: Some(received) })
    }

    /// Returns the functions of a module, if its file can be read. The `hooked` ones (address, size) get names even if
    /// the file has none for them, from the first process with the module.
    fn of(
        &mut self,
        module: &Module,
        root: &Path,
        hooked: impl Iterator<Item = (u64, u64)>,
    ) -> Option<Arc<SymbolTable>> {
        let received = &self.received;
        let read = || {
            if module.is_recorders() {
                return None;
            }
            if let Some(received) = received {
                let build_id = module.build_id.as_deref().map(|id| symbols::short_build_id(id).to_owned());
                return Some(Arc::new(SymbolTable::of_text(
                    &opener::read(received.get(&(module.map_path(), build_id))?, MOST_TEXT).ok()?,
                )));
            }
            let file = map_file(&in_root(root, &module.path)).ok()?;
            let mut table = table::symbols_of(file, &module.path).ok()?;
            let own = hooked.filter(|(address, _)| (module.start..module.end).contains(address));
            // Another one may have taken its place by now.
            if table.build_id().zip(module.build_id.as_deref()).is_some_and(|(found, wanted)| found != wanted) {
                return None;
            }
            table.add_hooked(own.map(|(address, size)| (address - module.start, size)));
            Some(Arc::new(table))
        };
        self.tables.entry(key(module)).or_insert_with(read).clone()
    }
}

fn key(module: &Module) -> Key {
    (module.path.clone(), module.build_id.clone())
}

/// The options for writing a directory.
#[derive(Clone, Copy)]
pub(crate) struct Writing<'a> {
    /// The minimum duration of recorded calls; `None` for that of the beginning.
    pub(crate) minima: Option<&'a Minima>,
    /// True to leave out data that cannot be written. Otherwise a failure is an error for the whole.
    pub(crate) what_fits: bool,
    /// The number of writing threads, the calling one included.
    pub(crate) n_writers: usize,
}

impl Collected {
    /// Writes the trace as a directory for `rftrace replay` and uftrace. `symbols` keeps the functions of modules for
    /// the next one.
    ///
    /// # Errors
    ///
    /// [`Error::Read`] for the collected data, [`Error::NoEvents`], [`Error::Write`].
    pub fn write_directory(&self, directory: &Path, symbols: &mut Symbols) -> Result<SavedBank, Error> {
        let writing = Writing { minima: None, what_fits: true, n_writers: directory::most_writers() };
        self.write_as(directory, symbols, writing)
    }

    /// The same, in a way.
    pub(crate) fn write_as(
        &self,
        directory: &Path,
        symbols: &mut Symbols,
        writing: Writing<'_>,
    ) -> Result<SavedBank, Error> {
        let files = [Some((&self.spool, self.spool_bytes)), self.tail.as_ref().map(|tail| (tail, u64::MAX))];
        let mapped: Vec<Mmap> = files
            .into_iter()
            .flatten()
            .filter_map(|(path, n_bytes)| mapped(path, n_bytes).transpose())
            .collect::<Result<_, _>>()?;
        let Some(first) = mapped.first() else { return Err(self.nothing(self.least_bytes > 0)) };
        let forget = Forget { bytes: first, n_read: AtomicUsize::new(0) };
        let chunks = mapped.iter().map(|bytes| {
            StoredChunks::new(bytes, self.chunk_bytes).ok_or_else(|| {
                let problem = "another version of rftrace has written the file; use that version";
                let source = io::Error::new(io::ErrorKind::InvalidData, problem);
                Error::Read { path: self.shown_spool(), source }
            })
        });
        let mut chunks: Vec<StoredChunks<'_>> = chunks.collect::<Result<_, _>>()?;
        let found = chunks.iter_mut().flatten().map(|(header, records)| {
            forget.read(records.n_bytes());
            (decode::Head::from(&header), records.into())
        });
        let mut tasks = decode::tasks_of(found, self.open.clone());
        let dump = self.dump.as_ref();
        if let Some(thread) = dump.filter(|dump| dump.is_of_thread).and_then(|dump| dump.thread) {
            tasks.retain(|task| task.tid == thread);
        }
        let last = dump.and_then(|dump| dump.last).map(ticks_in);
        let start_tsc = self.first.tsc.max(last.map_or(0, |last| self.end_tsc.saturating_sub(last)));
        let least_bytes = [self.least_bytes].into_iter().chain(std::iter::repeat(0));
        let damaged_chunks = chunks.iter().zip(least_bytes).map(|(chunks, least)| chunks.n_damaged(least)).sum();
        if !tasks.iter().any(|task| task.has_record_since(start_tsc)) {
            return Err(self.nothing(damaged_chunks > 0));
        }
        let mut minima = Minima::default();
        self.minima.iter().for_each(|&(since, ticks)| minima.set(since, ticks));
        // Nobody knows how long the open calls went on after the last record.
        let last_tsc = self.lacks_end().then(|| tasks.iter().filter_map(decode::Task::last_tsc).max()).flatten();
        let recording = Recording {
            tasks: &tasks,
            start_tsc,
            stop_tsc: last_tsc.unwrap_or(self.end_tsc),
            is_cut: self.is_cut,
            marks: dump
                .map(|dump| Mark::of_dump(dump.tsc.unwrap_or(self.end_tsc), dump.thread, &dump.reason))
                .into_iter()
                .chain(self.marks.iter().map(|mark| Mark::of_text(mark.tsc, mark.thread, &mark.text)))
                .collect(),
            clock: self.first.clock_to(self.last),
            pairs: [self.first, self.last],
            unix_nanos: (self.utc_offset_nanos != 0)
                .then(|| self.first.nanos.checked_add_signed(self.utc_offset_nanos))
                .flatten(),
            minima: writing.minima.unwrap_or(&minima),
            tsc_hz_source: "measured".into(),
            gaps: Gaps {
                overwritten: self.n_overwritten,
                untraced_threads: self.n_untraced_threads.into(),
                dropped: self.n_dropped,
                too_much: self.is_too_large.into(),
                unwritten: self.failed.is_some().into(),
                // A recorder passes none.
                library: writing.minima.is_some(),
                ..Gaps::default()
            },
            n_writers: writing.n_writers,
            what_fits: writing.what_fits,
            done: Some(&|n_bytes| forget.read(n_bytes)),
        };
        let facts = self.facts.as_deref().map(Facts::read).transpose()?;
        let totals = directory::write(&recording, directory, &self.program(symbols, facts.as_ref()))?;
        if let Some(facts) = facts {
            facts.put_into(directory)?;
        }
        Ok(SavedBank {
            events: totals.n_events,
            threads: totals.n_threads,
            lost: totals.n_lost,
            untraced_threads: self.n_untraced_threads,
            left_out: totals.left_out.map(|error| error.with_remedy()),
            damaged_chunks,
        })
    }

    /// Returns true if records from some moment on are missing.
    fn lacks_end(&self) -> bool {
        !self.is_cut && (self.is_too_large || self.failed.is_some() || self.end_tsc == 0)
    }

    /// Returns the reason for a missing directory: an empty or unreadable recording.
    fn nothing(&self, is_damaged: bool) -> Error {
        if !is_damaged {
            return Error::NoEvents { cause: NoEventsCause::NoCalls };
        }
        let source = io::Error::new(
            io::ErrorKind::InvalidData,
            "the file is damaged, and has no whole record; rftrace has not removed it",
        );
        Error::Read { path: self.shown_spool(), source }
    }

    /// Keeps the records unconverted, with the facts for a directory beside them, as the program's files may change.
    /// `problem` is a message about missing parts.
    ///
    /// # Errors
    ///
    /// [`Error::Write`].
    pub fn keep(&mut self, symbols: &mut Symbols, problem: Option<String>) -> Result<(), Error> {
        let elapsed = Duration::from_nanos(self.last.nanos.saturating_sub(self.first.nanos));
        directory::write_facts(&self.program(symbols, None), elapsed, &facts_folder(&self.shown_spool()))?;
        let path = about_file(&self.shown_spool());
        self.problem = problem;
        self.keep_beside(None).map(drop).map_err(|source| Error::Write { path, source })
    }

    /// Passes files of symbols for the process's modules to `tell`, except those in `told`: for a machine without these
    /// modules.
    ///
    /// # Errors
    ///
    /// The errors of `tell`, which gets each file as a whole.
    pub fn tell_symbols<E>(
        &self,
        symbols: &mut Symbols,
        told: &mut ToldModules,
        mut tell: impl FnMut(Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        for module in self.world.iter().flat_map(|world| world.all_modules()) {
            if !told.0.insert(key(module)) {
                continue;
            }
            let Some(table) = symbols.of(module, self.root(), self.hooked()) else { continue };
            let mut file = Vec::new();
            // Writing to memory cannot fail.
            let _ = write_symbols(&mut file, &table, &module.map_path());
            tell(file)?;
        }
        Ok(())
    }

    /// The hooked functions without a call of the tracer: addresses and sizes.
    fn hooked(&self) -> impl Iterator<Item = (u64, u64)> {
        let (hooked, _) = self.hooked.as_chunks::<8>();
        let (hooked, _) = hooked.as_chunks::<2>();
        hooked.iter().map(|&[address, size]| (u64::from_le_bytes(address), u64::from_le_bytes(size)))
    }

    /// Removes the sources of the directory, needed by nothing else.
    ///
    /// # Errors
    ///
    /// The errors of the system.
    pub fn discard(self) -> io::Result<()> {
        // The spool first: without it nobody looks for the rest, and a process that is killed here leaves no half of a recording.
        let beside = self.tail.is_none().then(|| about_file(&self.spool));
        for file in [self.tail.unwrap_or(self.spool)].into_iter().chain(beside) {
            match fs::remove_file(file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.facts.map_or(Ok(()), fs::remove_dir_all)
    }

    /// Returns true if the process has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns the time of its end by `CLOCK_MONOTONIC`, in nanoseconds.
    #[must_use]
    pub fn ended_nanos(&self) -> u64 {
        self.last.nanos
    }

    /// Returns the path of the records in no directory yet.
    #[must_use]
    pub fn spool(&self) -> &Path {
        &self.spool
    }

    /// Returns that path for messages, as far as it can be found.
    #[must_use]
    pub fn shown_spool(&self) -> PathBuf {
        let folder = self.spool.parent().and_then(|folder| fs::canonicalize(folder).ok());
        folder.zip(self.spool.file_name()).map_or_else(|| self.spool.clone(), |(folder, name)| folder.join(name))
    }

    /// The program as it was, by `facts` if some were kept.
    fn program(&self, symbols: &mut Symbols, facts: Option<&Facts>) -> Program {
        let exe = self.exe_path();
        let here = || Box::new(World::here(&self.maps, &self.unloaded, &exe, self.root()));
        let world = *self.world.clone().unwrap_or_else(here);
        let mut named = |mut module: Module| {
            let is_as_it_was = facts.is_none_or(|facts| facts.are_of(&mut module));
            let table = if is_as_it_was { symbols.of(&module, self.root(), self.hooked()) } else { None };
            (module, table)
        };
        let modules = world.modules.into_iter().map(&mut named).collect();
        let opened = world.opened.into_iter().map(|(module, since)| (named(module), since)).collect();
        let mut system = world.system;
        system.exe_name = map_path(&exe);
        system.command_line = sysinfo::command_line(&self.command_line);
        Program {
            pid: self.own_pid,
            identify: Identify::Table(self.threads.clone().into_iter().collect()),
            exe_name: system.exe_name.clone(),
            modules,
            opened,
            without_names: None,
            stack: world.stack,
            system,
            tsc_hz: world.tsc_hz.map(|(hz, source)| (hz, source.name())),
            invariant_tsc: Some(world.invariant_tsc),
        }
    }

    /// Sets the root directory with the files of the process's modules: that of a container.
    pub fn set_root(&mut self, root: PathBuf) {
        self.root = Some(root);
    }

    /// That directory.
    pub(super) fn root(&self) -> &Path {
        self.root.as_deref().unwrap_or(Path::new("/"))
    }

    /// The path of the program.
    pub(super) fn exe_path(&self) -> PathBuf {
        PathBuf::from(String::from_utf8_lossy(&self.exe).into_owned())
    }
}

/// The first bytes of a file of chunks, if there are any.
fn mapped(path: &Path, n_bytes: u64) -> Result<Option<Mmap>, Error> {
    let read_error = |source| Error::Read { path: path.to_owned(), source };
    let file = match opener::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(read_error(error)),
    };
    let n_bytes = file.metadata().map_err(read_error)?.len().min(n_bytes) as usize;
    if n_bytes == 0 {
        return Ok(None);
    }
    // SAFETY: this recorder alone writes the file, and only behind these bytes.
    unsafe { MmapOptions::new().len(n_bytes).map(&file) }.map(Some).map_err(read_error)
}

/// A spool may be larger than all memory. The system reads it again on demand.
struct Forget<'a> {
    bytes: &'a Mmap,
    n_read: AtomicUsize,
}

impl Forget<'_> {
    /// So much was read of it.
    fn read(&self, n_bytes: usize) {
        const MOST_BYTES: usize = 1 << 20;

        let before = self.n_read.fetch_add(n_bytes, Relaxed);
        if before / MOST_BYTES < before.wrapping_add(n_bytes) / MOST_BYTES {
            // SAFETY: whole pages of a mapping of a file that is only read: they stay as they are.
            unsafe { libc::madvise(self.bytes.as_ptr().cast_mut().cast(), self.bytes.len(), libc::MADV_DONTNEED) };
        }
    }
}
