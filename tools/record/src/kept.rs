//! Files that grow while a program runs, and become a part of its trace.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use rftrace_format::info::Changes;
use rftrace_format::opener;
use rftrace_format::store;
use rftrace_read::{Error, Result, files, info};

/// The part to keep if there are more records than room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// The first records.
    Beginning,
    /// The last records: at least half of the limit.
    End,
}

/// A file of records with a limit.
#[derive(Debug)]
pub(crate) struct Limited {
    path: PathBuf,
    out: BufWriter<File>,
    kept: Kept,
    max_bytes: u64,
    n_bytes: u64,
    /// Records that found no room.
    n_dropped: u64,
}

impl Limited {
    pub(crate) fn create(path: PathBuf, kept: Kept, max_bytes: u64) -> Result<Self> {
        let out = BufWriter::new(create(&path)?);
        Ok(Self { path, out, kept, max_bytes, n_bytes: 0, n_dropped: 0 })
    }

    pub(crate) fn write(&mut self, record: &[u8]) -> Result<()> {
        let n_bytes = self.n_bytes + record.len() as u64;
        match self.kept {
            Kept::Beginning if n_bytes > self.max_bytes => {
                self.n_dropped += 1;
                return Ok(());
            }
            // Two halves; the older one goes.
            Kept::End if n_bytes > self.max_bytes / 2 => {
                self.out
                    .flush()
                    .and_then(|()| fs::rename(&self.path, self.older()))
                    .map_err(|source| self.failed(source))?;
                self.out = BufWriter::new(create(&self.path)?);
                self.n_bytes = 0;
            }
            _ => {}
        }
        self.n_bytes += record.len() as u64;
        self.out.write_all(record).map_err(|source| self.failed(source))
    }

    /// Hands everything to the kernel, which keeps it if the recorder ends.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.out.flush().map_err(|source| self.failed(source))
    }

    /// Puts the halves together. `lost` is the record for so many missing ones. Returns their number.
    pub(crate) fn finish<R: AsRef<[u8]>>(mut self, lost: impl FnOnce(u64) -> R) -> Result<u64> {
        if self.n_dropped > 0 {
            self.out.write_all(lost(self.n_dropped).as_ref()).map_err(|source| self.failed(source))?;
        }
        self.flush()?;
        join_halves(&self.path).map(|()| self.n_dropped)
    }

    fn older(&self) -> PathBuf {
        older(&self.path)
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::WriteFile { path: self.path.clone(), source }
    }
}

fn older(path: &Path) -> PathBuf {
    path.with_extension("older")
}

/// True if a file has any records, in either half.
pub(crate) fn has_records(path: &Path) -> bool {
    [path, &older(path)].into_iter().any(|path| fs::metadata(path).is_ok_and(|file| file.len() > 0))
}

/// Removes both halves of a file.
pub(crate) fn remove(path: &Path) {
    for path in [path, &older(path)] {
        let _ = fs::remove_file(path);
    }
}

/// Puts the halves of a file together, if it has two.
pub(crate) fn join_halves(path: &Path) -> Result<()> {
    let older = older(path);
    if !older.exists() {
        return Ok(());
    }
    let join = || {
        let mut end = OpenOptions::new().append(true).open(&older)?;
        io::copy(&mut opener::open(path)?, &mut end)?;
        fs::rename(&older, path)
    };
    join().map_err(|source| Error::WriteFile { path: path.to_owned(), source })
}

fn create(path: &Path) -> Result<File> {
    store::create(path).map_err(|source| Error::WriteFile { path: path.to_owned(), source })
}

/// Notes in `info` that the trace has this `feature`.
pub(crate) fn announce(path: &Path, feature: u64) -> Result<()> {
    let features = Some(info::read(path)?.features() | feature);
    let changed = Changes { features, ..Changes::default() }.apply(&files::read(path, info::MAX_BYTES)?);
    // It is as long as before: there is room for it.
    let written = File::options().write(true).open(path).and_then(|mut file| file.write_all(&changed));
    written.map_err(|source| Error::WriteFile { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use rftrace_format::perf;

    use super::*;

    /// Returns the numbers kept of records 0 to 99, of 24 bytes each.
    fn kept(kept: Kept, max_bytes: u64) -> Vec<u64> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("perf-cpu3.dat");
        let mut file = Limited::create(path.clone(), kept, max_bytes).expect("a file");
        for number in 0..100_u64 {
            file.write(&[&perf::SWITCH.to_le_bytes()[..], &[0, 0, 24, 0], &[0; 8], &number.to_le_bytes()].concat())
                .expect("room");
        }
        file.finish(perf::encode_lost).expect("room");
        let bytes = fs::read(&path).expect("the file");
        assert_eq!(fs::read_dir(&folder).expect("the folder").count(), 1);
        bytes.chunks(24).map(|record| u64::from_le_bytes(*record.last_chunk().expect("whole records"))).collect()
    }

    #[test]
    fn files_do_not_grow_for_ever() {
        assert_eq!(kept(Kept::Beginning, 24 * 100), (0..100).collect::<Vec<_>>());
        // The last one says how many there is no room for.
        assert_eq!(kept(Kept::Beginning, 24 * 10), (0..10).chain([90]).collect::<Vec<_>>());
        assert_eq!(kept(Kept::End, 24 * 200), (0..100).collect::<Vec<_>>());
        assert_eq!(kept(Kept::End, 24 * 20 + 5), (80..100).collect::<Vec<_>>());
        assert_eq!(kept(Kept::End, 24 * 30), (75..100).collect::<Vec<_>>());
    }
}
