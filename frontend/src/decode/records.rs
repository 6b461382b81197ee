//! Consecutive records of a task: in memory, or packed in a file and unpacked for reading, a chunk at a time.
//!
//! Not here: the packing (`image/packed`), and the meaning of records (the modules beside this one).

use rftrace::abi::Record;

#[cfg(all(target_os = "linux", feature = "import"))]
use crate::image::stored::Stored;

/// Records of one chunk, all of them or a part.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Records<'a> {
    Memory(&'a [Record]),
    #[cfg(all(target_os = "linux", feature = "import"))]
    Stored(Stored<'a>),
}

impl<'a> From<&'a [Record]> for Records<'a> {
    fn from(records: &'a [Record]) -> Self {
        Self::Memory(records)
    }
}

#[cfg(all(target_os = "linux", feature = "import"))]
impl<'a> From<Stored<'a>> for Records<'a> {
    fn from(records: Stored<'a>) -> Self {
        Self::Stored(records)
    }
}

impl Records<'_> {
    pub(super) fn len(self) -> usize {
        match self {
            Self::Memory(records) => records.len(),
            #[cfg(all(target_os = "linux", feature = "import"))]
            Self::Stored(stored) => stored.len(),
        }
    }

    /// Returns the records from `start` to `end`, counted from the first of these.
    pub(super) fn part(self, start: usize, end: usize) -> Self {
        match self {
            Self::Memory(records) => Self::Memory(&records[start..end]),
            #[cfg(all(target_os = "linux", feature = "import"))]
            Self::Stored(stored) => Self::Stored(stored.part(start, end)),
        }
    }

    /// Returns the number of their bytes; for packed ones those of the whole chunk.
    pub(super) fn n_bytes(self) -> usize {
        match self {
            Self::Memory(records) => size_of_val(records),
            #[cfg(all(target_os = "linux", feature = "import"))]
            Self::Stored(stored) => stored.n_bytes(),
        }
    }
}

/// The unpacked records of one chunk: the last requested one.
#[derive(Debug, Default)]
pub(super) struct Unpacked<'a> {
    #[cfg(all(target_os = "linux", feature = "import"))]
    chunk: Option<Stored<'a>>,
    #[cfg(all(target_os = "linux", feature = "import"))]
    records: Vec<Record>,
    #[cfg(all(target_os = "linux", feature = "import"))]
    is_ordered: bool,
    #[cfg(not(all(target_os = "linux", feature = "import")))]
    nothing: std::marker::PhantomData<&'a ()>,
}

impl<'a> Unpacked<'a> {
    /// Returns the records as they were in memory, and true if they are in order of time for certain. A damaged chunk
    /// has none.
    pub(super) fn of<'b>(&'b mut self, records: Records<'a>) -> (&'b [Record], bool)
    where
        'a: 'b,
    {
        match records {
            Records::Memory(records) => (records, false),
            #[cfg(all(target_os = "linux", feature = "import"))]
            Records::Stored(stored) => {
                if !self.chunk.is_some_and(|chunk| chunk.is_of_one_chunk_with(stored)) {
                    self.chunk = Some(stored);
                    self.is_ordered = stored.unpack_chunk(&mut self.records);
                }
                (stored.of_chunk(&self.records), self.is_ordered)
            }
        }
    }
}
