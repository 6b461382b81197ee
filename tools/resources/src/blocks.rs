//! The blocks of a file, read one at a time.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rftrace_format::resources::{BlockHead, Kind, MAGIC, MAX_TEXT_BYTES, UNIT_BYTES, Unit};
use rftrace_read::{Error, Result, files};

/// A file.
#[derive(Debug)]
pub(crate) struct Blocks {
    pub(crate) path: PathBuf,
    file: File,
}

/// A block without its units.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) head: BlockHead,
    /// Where its units are.
    pub(crate) offset: u64,
}

/// A unit with those that belong to it.
#[derive(Debug)]
pub(crate) struct Item<'a> {
    pub(crate) kind: Kind,
    pub(crate) ticks: u64,
    pub(crate) word: u64,
    pub(crate) more: &'a [Unit],
}

impl Blocks {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        if !files::begins_with(path, MAGIC)? {
            let reason =
                "not a recording of resources, or one of another version; record it again, with --resources memory";
            return Err(Error::malformed(path, 0, reason));
        }
        Ok(Self { path: path.to_owned(), file: files::open(path)? })
    }

    /// Calls `each` with all blocks in the order of the file, and their units. Returns whether the file ends with a whole block.
    pub(crate) fn each(&self, mut each: impl FnMut(Block, &[Unit]) -> Result<()>) -> Result<bool> {
        let failed = |source| Error::Io { path: self.path.clone(), source };
        let file = self.file.try_clone().map_err(failed)?;
        let mut offset = MAGIC.len() as u64;
        let mut input = BufReader::with_capacity(1 << 20, At { file, offset });
        let mut bytes = Vec::new();
        loop {
            let mut head = [0; BlockHead::BYTES];
            let n_bytes = read_up_to(&mut input, &mut head).map_err(failed)?;
            if n_bytes < head.len() {
                return Ok(n_bytes == 0);
            }
            let Some(head) = BlockHead::decode(&head) else {
                let reason = "no block begins here: the file is damaged; record it again";
                return Err(Error::malformed(&self.path, offset, reason));
            };
            offset += BlockHead::BYTES as u64;
            bytes.resize(head.units as usize * UNIT_BYTES, 0);
            if read_up_to(&mut input, &mut bytes).map_err(failed)? < bytes.len() {
                return Ok(false);
            }
            each(Block { head, offset }, &units(&bytes))?;
            offset += bytes.len() as u64;
        }
    }

    /// The units of a block.
    pub(crate) fn read(&self, block: &Block) -> Result<Vec<Unit>> {
        let mut bytes = vec![0; block.head.units as usize * UNIT_BYTES];
        let read = self.file.read_exact_at(&mut bytes, block.offset);
        read.map_err(|source| Error::Io { path: self.path.clone(), source })?;
        Ok(units(&bytes))
    }
}

/// Reads a file without moving the place at which others read it.
struct At {
    file: File,
    offset: u64,
}

impl Read for At {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let n_bytes = self.file.read_at(bytes, self.offset)?;
        self.offset += n_bytes as u64;
        Ok(n_bytes)
    }
}

/// Reads as many bytes as there are, but no more than there is room for.
fn read_up_to(input: &mut impl Read, bytes: &mut [u8]) -> std::io::Result<usize> {
    let mut n_bytes = 0;
    while n_bytes < bytes.len() {
        match input.read(&mut bytes[n_bytes..]) {
            Ok(0) => break,
            Ok(more) => n_bytes += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(n_bytes)
}

fn units(bytes: &[u8]) -> Vec<Unit> {
    let (words, _) = bytes.as_chunks::<8>();
    let (pairs, _) = words.as_chunks::<2>();
    pairs.iter().map(|pair| pair.map(u64::from_le_bytes)).collect()
}

/// The items of a block. What belongs to nothing is left out.
pub(crate) fn items(units: &[Unit]) -> impl Iterator<Item = Item<'_>> {
    let mut rest = units;
    std::iter::from_fn(move || {
        loop {
            let (first, behind) = rest.split_first()?;
            let is_more = |unit: &&Unit| Kind::of(unit[0]) == Some(Kind::More);
            let n_more = behind.iter().take_while(is_more).count();
            let (more, others) = behind.split_at(n_more);
            rest = others;
            if let Some(kind) = Kind::of(first[0]).filter(|&kind| kind != Kind::More) {
                return Some(Item { kind, ticks: first[0] & rftrace_format::resources::LOW, word: first[1], more });
            }
        }
    })
}

/// Text of so many bytes in second words.
pub(crate) fn text(units: &[Unit], bytes: u64) -> Option<Vec<u8>> {
    let bytes = usize::try_from(bytes).ok().filter(|&bytes| bytes <= MAX_TEXT_BYTES && bytes <= units.len() * 8)?;
    Some(units.iter().flat_map(|unit| unit[1].to_le_bytes()).take(bytes).collect())
}
