//! What was collected of a process becomes a directory.
//!
//! A process may have written anything into its bank: of a chunk nothing is believed before it is checked, as of an image
//! (`image/read.rs`).

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use memmap2::Mmap;
use rftrace::abi::{
    ADDRESS_SHIFT, CHUNK_HEADER_BYTES, ChunkHeader, RETURN_STACK_ENTRIES, Record, kind, records_per_chunk,
};
use rftrace_format::gaps::Gaps;

use super::collect::{Collected, about_file};
use crate::Error;
use crate::backend::Chunk;
use crate::decode::{self, Minima};
use crate::elf::file::{build_id, map_file, page_size};
use crate::elf::table::{self, SymbolTable};
use crate::host;
use crate::host::linux::modules::{self, Module, map_path};
use crate::host::linux::sysinfo;
use crate::host::program::{Identify, Program};
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
    written: HashSet<(PathBuf, Option<String>)>,
}

impl Symbols {
    /// The functions of a module, if its file can be read.
    fn of(&mut self, module: &Module) -> Option<Arc<SymbolTable>> {
        let read = || {
            let table = map_file(&module.path).and_then(|file| table::symbols_of(file, &module.path));
            table.ok().map(Arc::new)
        };
        self.tables.entry(key(module)).or_insert_with(read).clone()
    }
}

fn key(module: &Module) -> (PathBuf, Option<String>) {
    (module.path.clone(), module.build_id.clone())
}

impl Collected {
    /// Writes the directory that uftrace reads. Functions of modules that `symbols` has seen in other directories are not written once
    /// more: all directories are to become one.
    ///
    /// # Errors
    ///
    /// [`Error::Read`] for what was collected, [`Error::NoEvents`], [`Error::Write`].
    pub fn write_directory(&self, directory: &Path, symbols: &mut Symbols) -> Result<SavedBank, Error> {
        let read_error = |source| Error::Read { path: self.spool.clone(), source };
        let bytes = match map_file(&self.spool) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Error::NoEvents { hook_called: true }),
            Err(error) => return Err(read_error(error)),
        };
        let mut damaged_chunks = 0;
        let chunks = chunks_of(&bytes, self.chunk_bytes).filter(|chunk| {
            let is_right = is_right(chunk);
            damaged_chunks += usize::from(!is_right);
            is_right
        });
        let tasks = decode::tasks(chunks, self.open.clone());
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
            clock: rate.map_or_else(|| self.first.clock_to(self.last), |(hz, _)| self.first.clock_at_rate(hz)),
            pairs: [self.first, self.last],
            unix_nanos: (self.utc_offset_nanos != 0)
                .then(|| self.first.nanos.checked_add_signed(self.utc_offset_nanos))
                .flatten(),
            minima: &minima,
            tsc_hz_source: rate.map_or("measured", |(_, source)| source.name()),
            gaps: Gaps { untraced_threads: self.n_untraced_threads.into(), ..Gaps::default() },
            n_writers: directory::all_processors(),
            what_fits: true,
            done: Some(&forget_memory),
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

    /// Removes what the directory was made of.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub fn discard(self) -> io::Result<()> {
        for file in [about_file(&self.spool), self.spool] {
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
        let known = symbols.written.len();
        symbols.written.extend(modules.iter().map(key));
        let is_named = symbols.written.len() == known;
        let named = |module: Module| {
            let table = symbols.of(&module);
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
            is_named,
            without_names: None,
            stack: self.maps.last().and_then(|maps| modules::stack(maps)),
            system,
            tsc_hz: sysinfo::tsc_hz().map(|(hz, source)| (hz, source.name())),
            invariant_tsc: Some(sysinfo::invariant_tsc()),
        }
    }
}

/// The memory of these records is not needed any more for now: a spool may be larger than all there is. The system reads them again
/// where they are.
fn forget_memory(records: &[Record]) {
    let page = page_size() as usize;
    let start = records.as_ptr() as usize;
    let (first, end) = (start & !(page - 1), (start + size_of_val(records)) & !(page - 1));
    if first < end {
        // SAFETY: whole pages of a mapping of a file that is only read, but for the end of the header before: they stay as they are.
        unsafe { libc::madvise(first as *mut libc::c_void, end - first, libc::MADV_DONTNEED) };
    }
}

/// The chunks in a spool, of which a part is in memory. One that is there in part is left out.
fn chunks_of(bytes: &Mmap, chunk_bytes: usize) -> impl Iterator<Item = Chunk<'_>> {
    let mut before: Option<Chunk<'_>> = None;
    bytes.chunks_exact(chunk_bytes).map(move |chunk| {
        if let Some(before) = before {
            forget_memory(before.records);
        }
        // SAFETY: the mapping begins at a page, and a chunk is a multiple of 512 bytes, so both are aligned; all of them consist
        // of atomics, which are only read.
        let header = unsafe { &*chunk.as_ptr().cast::<ChunkHeader>() };
        // SAFETY: as above: the rest of the chunk.
        let records = unsafe {
            slice::from_raw_parts(
                chunk.as_ptr().add(CHUNK_HEADER_BYTES).cast::<Record>(),
                records_per_chunk(chunk_bytes),
            )
        };
        let chunk = Chunk { header, records };
        before = Some(chunk);
        chunk
    })
}

/// Whether a tracer can have written this.
fn is_right(chunk: &Chunk<'_>) -> bool {
    let is_tid = |tid: u64| (1..=i32::MAX as u64).contains(&tid);
    let header = chunk.header;
    let taken_tsc = header.taken_tsc.load(Relaxed);
    let names_threads = || {
        chunk.records.iter().filter_map(|record| record.read(taken_tsc)).all(|(_, word)| {
            let is_new_thread = word & (kind::MASK | kind::NEW_THREAD) == kind::RESYNC | kind::NEW_THREAD;
            !is_new_thread || is_tid(word >> ADDRESS_SHIFT)
        })
    };
    is_tid(header.tid.load(Relaxed).into())
        && header.depth.load(Relaxed) as usize <= RETURN_STACK_ENTRIES
        && (header.n_adopted.load(Relaxed) == 0 || names_threads())
}
