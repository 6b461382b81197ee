//! Received streams of rftrace's protocol: files in the form of a running `rftrace record`, in a folder of the new
//! directory. A trace can be made from them. The receiver chooses all names.
//!
//! Not here: making the trace (`rftrace-record`, which the command calls).

use std::fs::File;
use std::io::{self, Write};

use nix::fcntl::{OFlag, renameat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use rftrace_format::companion::COMPANIONS;
use rftrace_format::recording::{ABOUT, FOLDER, RECEIVED, SPOOL, SYMBOLS};

use crate::error::{Error, Result};
use crate::store::Store;
use crate::stream::{Event, Piece};

/// The first word of a file of chunks, as of an image.
const IMAGE_MAGIC: [u8; 8] = *b"\x93RFT\r\n\x1a\n";
/// Where a text is until it is whole.
const NEW: &str = "new";
/// Where files of the trace are until the end has come.
const NEW_FILES: &str = "companions.new";

/// The files of one peer.
#[derive(Debug)]
pub(crate) struct Spools {
    folder: Store,
    /// The words that each file of chunks begins with.
    begin: [u8; 16],
    /// The process that chunks are of.
    process: u32,
    /// The text that is coming.
    new: Option<File>,
    /// Files of the trace, by their numbers.
    files: Option<Store>,
    /// A file that shows that this is going on.
    mark: Option<String>,
    pub(crate) n_processes: u32,
    pub(crate) bytes: u64,
}

impl Spools {
    /// In a directory that was just made. `mark` is a file that is there until the end.
    pub(crate) fn new(dir: &Store, versions: u64, mark: Option<&str>) -> Result<Self> {
        let mut folder = dir.make_folder(FOLDER)?;
        let mut begin = [0; 16];
        begin[..8].copy_from_slice(&IMAGE_MAGIC);
        begin[8..].copy_from_slice(&versions.to_le_bytes());
        folder.append(RECEIVED, &[])?;
        if let Some(mark) = mark {
            folder.append(mark, &[])?;
        }
        let mark = mark.map(str::to_owned);
        Ok(Self { folder, begin, process: 0, new: None, files: None, mark, n_processes: 0, bytes: 0 })
    }

    /// Takes what comes next.
    pub(crate) fn take(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Process(process) => {
                self.process = process;
                self.n_processes = self.n_processes.max(process + 1);
            }
            Event::About(piece) => {
                let spool = format!("{SPOOL}{}", self.process);
                if self.text(&piece, &format!("{spool}.{ABOUT}"))? && !self.folder.has(&spool) {
                    self.bytes += self.begin.len() as u64;
                    self.folder.append(&spool, &self.begin)?;
                }
            }
            Event::Chunk(section) => {
                self.bytes += section.len() as u64;
                self.folder.append(&format!("{SPOOL}{}", self.process), &section)?;
            }
            Event::Symbols(module, piece) => {
                self.text(&piece, &format!("{SYMBOLS}{module}"))?;
            }
            Event::File(file, piece) => {
                let files = match &mut self.files {
                    Some(files) => files,
                    none => none.insert(self.folder.make_folder(NEW_FILES)?),
                };
                files.append(&file.word().to_string(), &piece.bytes)?;
                self.bytes += piece.bytes.len() as u64;
            }
            Event::End => {
                if self.files.take().is_some() {
                    let (dir, path) = (self.folder.dir(), self.folder.path().join(COMPANIONS));
                    renameat(dir, NEW_FILES, dir, COMPANIONS).map_err(io::Error::from).map_err(Error::at(&path))?;
                }
            }
            Event::Hello(_) | Event::Beat => {}
        }
        Ok(())
    }

    /// A piece of a text, which gets its name when it is whole. Returns whether it is.
    fn text(&mut self, piece: &Piece, name: &str) -> Result<bool> {
        if piece.is_first {
            self.new = Some(self.folder.open_file(NEW, OFlag::O_CREAT | OFlag::O_TRUNC)?);
        }
        let path = self.folder.path().join(NEW);
        if let Some(file) = &mut self.new {
            file.write_all(&piece.bytes).map_err(Error::at(&path))?;
            self.bytes += piece.bytes.len() as u64;
        }
        if piece.is_last {
            self.new = None;
            let dir = self.folder.dir();
            renameat(dir, NEW, dir, name).map_err(io::Error::from).map_err(Error::at(&path))?;
        }
        Ok(piece.is_last)
    }

    /// Nothing more comes.
    pub(crate) fn finish(&mut self) {
        if let Some(mark) = self.mark.take() {
            let _ = unlinkat(self.folder.dir(), mark.as_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}
