//! The content of spools as a stream: processes, chunks, and the symbols of modules, each once.
//!
//! Not here: the readers of the stream (`sender`, `rfs`), and its form (`rftrace_net::stream`).

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rftrace_format::opener;
use rftrace_format::recording::{ABOUT, SPOOL};
use rftrace_frontend::bank::{About, Extent, Symbols, ToldModules};
use rftrace_net::stream::{self, section_bytes};

/// Interval between repeated facts on a process, if only its clock has changed.
const NEWS: Duration = Duration::from_secs(1);
/// Bytes of a spool for one read. A chunk is never longer.
const PIECE_BYTES: usize = 256 << 10;
/// Words at the beginning of a spool.
const SPOOL_HEAD: u64 = 16;

/// Sent content of each spool.
#[derive(Default)]
pub(crate) struct Spools {
    /// Of this process alone.
    pid: Option<u32>,
    /// The root of the files of modules, if it is not this process's.
    root: Option<PathBuf>,
    known: HashMap<PathBuf, Spool>,
    n_processes: u32,
    n_chunks: u64,
    /// The process to which the receiver assigns chunks.
    current: Option<u32>,
    symbols: Symbols,
    told: ToldModules,
    n_modules: u32,
    piece: Vec<u8>,
}

#[derive(Default)]
struct Spool {
    /// The number of its process in the stream, if it is in it.
    number: Option<u32>,
    file: Option<File>,
    /// Sent bytes of chunks.
    n_sent: u64,
    /// Facts on the process, as sent, and the time of sending.
    about: Option<(About, Instant)>,
}

impl Spools {
    /// Spools of one process alone, if one is named, with its files in another root directory, if there is one.
    pub(crate) fn new(pid: Option<u32>, root: Option<PathBuf>) -> Self {
        Self { pid, root, ..Self::default() }
    }

    /// Sends the news.
    pub(crate) fn send(&mut self, work: &Path, is_last: bool, send: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut found: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(work).with_context(|| format!("cannot read {}", work.display()))? {
            let path = entry.with_context(|| format!("cannot read {}", work.display()))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let Some(numbers) = name.strip_prefix(SPOOL) else { continue };
            let is_wanted = self.pid.is_none_or(|pid| numbers.split('-').next() == Some(&pid.to_string()));
            if is_wanted && path.extension().is_some_and(|extension| extension == ABOUT) {
                found.push(path.with_extension(""));
            }
        }
        found.sort();
        for path in found {
            self.send_about(&path, is_last, send)?;
            self.send_chunks(&path, send)?;
        }
        Ok(())
    }

    /// The end of a stream with so many files beside it.
    pub(crate) fn end(&self, n_files: u64) -> Vec<u8> {
        stream::end(self.n_processes, self.n_chunks, n_files)
    }

    /// Sends the facts on a process, if they have changed.
    fn send_about(&mut self, path: &Path, is_last: bool, send: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let about = About::read(path)?;
        let spool = self.known.entry(path.to_owned()).or_default();
        let is_new = spool.about.as_ref().is_none_or(|(sent, told)| {
            *sent != about && (is_last || told.elapsed() >= NEWS || !sent.has_facts_of(&about))
        });
        if !is_new {
            return Ok(());
        }
        let mut collected = about.collected(path, Extent::Described)?;
        let (about, _) = spool.about.insert((about, Instant::now()));
        // A process that ended before anybody wanted the stream.
        if !collected.is_for_others() {
            return Ok(());
        }
        let number = *spool.number.get_or_insert_with(|| {
            self.n_processes += 1;
            self.n_processes - 1
        });
        if self.current.replace(number) != Some(number) {
            send(&stream::process(number))?;
        }
        stream::about(about.bytes()).try_for_each(|section| send(&section))?;
        self.root.iter().for_each(|root| collected.set_root(root.clone()));
        let n_modules = &mut self.n_modules;
        collected.tell_symbols(&mut self.symbols, &mut self.told, |file| {
            let number = *n_modules;
            *n_modules += 1;
            stream::symbols(number, &file).try_for_each(|section| send(&section))
        })
    }

    /// Sends the whole chunks of a process.
    fn send_chunks(&mut self, path: &Path, send: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let Some(spool) = self.known.get_mut(path) else { return Ok(()) };
        let Some(number) = spool.number else { return Ok(()) };
        let reading = || format!("cannot read {}", path.display());
        let file = match &mut spool.file {
            Some(file) => file,
            file => match opener::open(path) {
                Ok(opened) => file.insert(opened),
                // Nothing of it has come to the disk.
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error).with_context(reading),
            },
        };
        self.piece.resize(PIECE_BYTES, 0);
        loop {
            let n_read = file.read_at(&mut self.piece, SPOOL_HEAD + spool.n_sent).with_context(reading)?;
            let read = &self.piece[..n_read];
            let mut n_whole = 0;
            while let Some(next) = section_bytes(&read[n_whole..]).filter(|next| n_whole + next <= n_read) {
                n_whole += next;
                self.n_chunks += 1;
            }
            if n_whole == 0 {
                return Ok(());
            }
            if self.current.replace(number) != Some(number) {
                send(&stream::process(number))?;
            }
            send(&read[..n_whole])?;
            spool.n_sent += n_whole as u64;
        }
    }
}
