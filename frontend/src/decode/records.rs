//! Records of a task that lie side by side: in memory, or in a file where they are packed and unpacked when they are read, a chunk at a
//! time.
//!
//! Not here: how they are packed (`image/packed`), and what they mean (the modules beside this one).

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

    /// Those from `start` to `end`, counted from the first of these.
    pub(super) fn part(self, start: usize, end: usize) -> Self {
        match self {
            Self::Memory(records) => Self::Memory(&records[start..end]),
            #[cfg(all(target_os = "linux", feature = "import"))]
            Self::Stored(stored) => Self::Stored(stored.part(start, end)),
        }
    }

    /// How many bytes they lie in, those of the whole chunk where they are packed.
    pub(super) fn n_bytes(self) -> usize {
        match self {
            Self::Memory(records) => size_of_val(records),
            #[cfg(all(target_os = "linux", feature = "import"))]
            Self::Stored(stored) => stored.n_bytes(),
        }
    }
}

/// Has the records of one chunk unpacked: the last that was asked for.
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
    /// The records, as they were in memory, and whether it is known that none is older than the one before. Those of a chunk that cannot
    /// be unpacked are none.
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
