//! The table of threads: the system's id and name for each of the tracer's numbers. The traced program writes it; in a
//! bank, the recorder reads it.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The maximum number of kept thread ids, in the life of a program. Only used entries take memory.
pub(crate) const MAX_THREADS: usize = 1 << 20;

/// Bytes of a thread's name, with a NUL (`TASK_COMM_LEN`).
const NAME_BYTES: usize = 16;

/// Id and name of a thread.
#[repr(C)]
pub(crate) struct Entry {
    /// The system's id; 0 if the thread was not seen.
    pub(crate) tid: AtomicU64,
    /// Its name at its end; empty before.
    pub(crate) name: [AtomicU64; NAME_BYTES / 8],
}

/// Bytes of the table.
pub(crate) const TABLE_BYTES: usize = MAX_THREADS * size_of::<Entry>();

impl Entry {
    /// The system's id, if the thread was seen.
    pub(crate) fn system_tid(&self) -> Option<u32> {
        u32::try_from(self.tid.load(Relaxed)).ok().filter(|&tid| tid > 0)
    }

    /// Its name at its end; empty before.
    pub(crate) fn name(&self) -> Vec<u8> {
        let bytes: Vec<u8> = self.name.iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect();
        bytes.split(|&byte| byte == 0).next().unwrap_or_default().to_vec()
    }

    /// Enters its name.
    pub(crate) fn set_name(&self, name: &[u8]) {
        let mut bytes = [0; NAME_BYTES];
        let n_bytes = name.len().min(NAME_BYTES - 1);
        bytes[..n_bytes].copy_from_slice(&name[..n_bytes]);
        for (word, from) in self.name.iter().zip(bytes.as_chunks().0) {
            word.store(u64::from_le_bytes(*from), Relaxed);
        }
    }
}
