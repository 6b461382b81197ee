//! What was collected of a process becomes a directory.
//!
//! A process may have written anything into its bank: of a chunk nothing is believed before it is checked, as of an image
//! (`image/stored.rs`). Chunks are unpacked one at a time, so what this takes of memory does not depend on how much was recorded.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use memmap2::{Mmap, MmapOptions};
use rftrace_format::gaps::Gaps;

use super::collect::Collected;
use super::spool::about_file;
use crate::Error;
use crate::decode::{self, Minima};
use crate::elf::file::{build_id, map_file};
use crate::elf::table::{self, SymbolTable};
use crate::host;
use crate::host::linux::modules::{self, Module, map_path};
use crate::host::linux::sysinfo;
use crate::host::program::{Identify, Program};
use crate::image::stored::StoredChunks;
use crate::uftrace::directory::{self, Recording};

/// What was written of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedBank {
    /// Entries and exits.
    pub events: u64,
    /// Threads that have records.
    pub threads: usize,
    /// Calls that were nested too deeply.
    pub lost: u64,
    /// Threads that were too many at a time, as far as that is known.
    pub untraced_threads: u32,
    /// Why not all was written, and what to do about it.
    pub left_out: Option<String>,
    /// Chunks that hold what no tracer writes, and were left out.
    pub damaged_chunks: usize,
}

/// The functions of the programs whose directories were written: many processes run the same ones.
#[derive(Debug, Default)]
pub struct Symbols {
    tables: HashMap<(PathBuf, Option<String>), Option<Arc<SymbolTable>>>,
}

impl Symbols {
    /// The functions of a module, if its file can be read. Those that are `hooked` (address, size) have names even if it has none for them;
    /// the first process that has the module says which.
    fn of(&mut self, module: &Module, hooked: impl Iterator<Item = (u64, u64)>) -> Option<Arc<SymbolTable>> {
        let read = || {
            if module.is_recorders() {
                return None;
            }
            let file = map_file(&module.path).ok()?;
            let mut table = table::symbols_of(file, &module.path).ok()?;
            let own = hooked.filter(|(address, _)| (module.start..module.end).contains(address));
            table.add_hooked(own.map(|(address, size)| (address - module.start, size)));
            Some(Arc::new(table))
        };
        self.tables.entry(key(module)).or_insert_with(read).clone()
    }
}

fn key(module: &Module) -> (PathBuf, Option<String>) {
    (module.path.clone(), module.build_id.clone())
}

impl Collected {
    /// Writes the directory that uftrace reads. `symbols` keeps the functions of modules for the next one.
    ///
    /// # Errors
    ///
    /// [`Error::Read`] for what was collected, [`Error::NoEvents`], [`Error::Write`].
    pub fn write_directory(&self, directory: &Path, symbols: &mut Symbols) -> Result<SavedBank, Error> {
        let files = [Some((&self.spool, self.spool_bytes)), self.tail.as_ref().map(|tail| (tail, u64::MAX))];
        let mapped: Vec<Mmap> = files
            .into_iter()
            .flatten()
            .filter_map(|(path, n_bytes)| mapped(path, n_bytes).transpose())
            .collect::<Result<_, _>>()?;
        let Some(first) = mapped.first() else { return Err(Error::NoEvents { hook_called: true }) };
        let forget = Forget { bytes: first, n_read: AtomicUsize::new(0) };
        let chunks = mapped.iter().map(|bytes| {
            StoredChunks::new(bytes, self.chunk_bytes).ok_or_else(|| {
                let problem = "another version of rftrace has written it: that one can make a trace of it";
                let source = io::Error::new(io::ErrorKind::InvalidData, problem);
                Error::Read { path: self.spool.clone(), source }
            })
        });
        let mut chunks: Vec<StoredChunks<'_>> = chunks.collect::<Result<_, _>>()?;
        let found = chunks.iter_mut().flatten().map(|(header, records)| {
            forget.read(records.n_bytes());
            (decode::Head::from(&header), records.into())
        });
        let tasks = decode::tasks_of(found, self.open.clone());
        let damaged_chunks = chunks.iter().map(StoredChunks::n_damaged).sum();
        if !tasks.iter().any(|task| task.has_record_since(self.first.tsc)) {
            return Err(Error::NoEvents { hook_called: true });
        }
        let rate = host::exact_rate();
        let mut minima = Minima::default();
        minima.set(0, self.min_ticks);
        let recording = Recording {
            tasks: &tasks,
            start_tsc: self.first.tsc,
            stop_tsc: self.end_tsc,
            is_cut: self.is_cut,
            clock: rate.map_or_else(|| self.first.clock_to(self.last), |(hz, _)| self.first.clock_at_rate(hz)),
            pairs: [self.first, self.last],
            unix_nanos: (self.utc_offset_nanos != 0)
                .then(|| self.first.nanos.checked_add_signed(self.utc_offset_nanos))
                .flatten(),
            minima: &minima,
            tsc_hz_source: rate.map_or("measured", |(_, source)| source.name()),
            gaps: Gaps {
                overwritten: self.n_overwritten,
                untraced_threads: self.n_untraced_threads.into(),
                dropped: self.n_dropped,
                ..Gaps::default()
            },
            n_writers: directory::all_processors(),
            what_fits: true,
            done: Some(&|n_bytes| forget.read(n_bytes)),
        };
        let totals = directory::write(&recording, directory, &self.program(symbols))?;
        Ok(SavedBank {
            events: totals.n_events,
            threads: totals.n_threads,
            lost: totals.n_lost,
            untraced_threads: self.n_untraced_threads,
            left_out: totals.left_out.map(|error| error.with_remedy()),
            damaged_chunks,
        })
    }

    /// Removes what the directory was made of and nothing else is to be.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub fn discard(self) -> io::Result<()> {
        let files = self.tail.map_or_else(|| vec![about_file(&self.spool), self.spool], |tail| vec![tail]);
        for file in files {
            match fs::remove_file(file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// When it was over, by `CLOCK_MONOTONIC` in nanoseconds.
    #[must_use]
    pub fn ended_nanos(&self) -> u64 {
        self.last.nanos
    }

    /// Where the records lie that are in no directory yet.
    #[must_use]
    pub fn spool(&self) -> &Path {
        &self.spool
    }

    /// The program as it was.
    fn program(&self, symbols: &mut Symbols) -> Program {
        let exe = PathBuf::from(String::from_utf8_lossy(&self.exe).into_owned());
        let modules = modules::modules_of(&self.maps, &exe);
        let (hooked, _) = self.hooked.as_chunks::<8>();
        let (hooked, _) = hooked.as_chunks::<2>();
        let hooked = || hooked.iter().map(|&[address, size]| (u64::from_le_bytes(address), u64::from_le_bytes(size)));
        let named = |module: Module| {
            let table = symbols.of(&module, hooked());
            (module, table)
        };
        let modules = modules.into_iter().map(named).collect();
        let mut system = sysinfo::collect();
        system.exe_name = map_path(&exe);
        system.build_id = build_id(&exe).ok().flatten();
        system.command_line = sysinfo::command_line(&self.command_line);
        Program {
            pid: self.pid,
            identify: Identify::Table(self.threads.clone()),
            exe_name: system.exe_name.clone(),
            modules,
            without_names: None,
            stack: self.maps.last().and_then(|maps| modules::stack(maps)),
            system,
            tsc_hz: sysinfo::tsc_hz().map(|(hz, source)| (hz, source.name())),
            invariant_tsc: Some(sysinfo::invariant_tsc()),
        }
    }
}

/// The first bytes of a file of chunks, if there are any.
fn mapped(path: &Path, n_bytes: u64) -> Result<Option<Mmap>, Error> {
    let read_error = |source| Error::Read { path: path.to_owned(), source };
    let file = match File::open(path) {
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

/// A spool may be larger than all memory. The system reads it again where that is needed.
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
