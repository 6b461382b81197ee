//! The open functions of a process with a ring. Functions called before the oldest remaining record, and still open,
//! have no record: only the threads' return stacks name them.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;

use rftrace::abi::{RETURN_STACK_ENTRIES, ReturnEntry, ThreadBlock, kind, state};
use rftrace_format::system;

use super::numbers::folder_of;
use crate::backend::exit_word;
use crate::clock::ClockPair;
use crate::host::linux::thread_table::MAX_THREADS;

/// The functions open at a moment: the words of their exit records by the tracer's numbers of threads, outermost first.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenFunctions {
    tsc: u64,
    by_thread: HashMap<u32, Vec<u64>>,
}

impl OpenFunctions {
    /// Reads a process's own text: the time, then for each thread its number, the number of functions, and their words.
    pub(super) fn of_text(bytes: &[u8]) -> Self {
        let mut words = bytes.as_chunks().0.iter().map(|&bytes| u64::from_le_bytes(bytes));
        let tsc = words.next().unwrap_or(0);
        let mut by_thread = HashMap::new();
        while let (Some(thread), Some(n_open)) = (words.next(), words.next()) {
            let open = words.by_ref().take(n_open as usize).take(RETURN_STACK_ENTRIES).collect();
            by_thread.insert(thread as u32, open);
        }
        Self { tsc, by_thread }
    }

    /// Reads the functions of a running process, with its list of threads at an address. `None` if access is denied, or
    /// the process ended meanwhile.
    pub(super) fn of_process(pid: u32, threads_at: u64) -> Option<Self> {
        let tsc = ClockPair::now().tsc;
        let memory = system::open(folder_of(pid).join("mem")).ok()?;
        let mut by_thread = HashMap::new();
        read_threads(&memory, threads_at, &mut by_thread).ok()?;
        Some(Self { tsc, by_thread })
    }

    /// Looks at a process again. Without access, or after its end, the earlier result stays.
    pub(super) fn look_again(&mut self, pid: u32, threads_at: u64) {
        if let Some(open) = Self::of_process(pid, threads_at) {
            *self = open;
        }
    }

    /// The later ones of both.
    pub(super) fn or_later(self, other: &Self) -> Self {
        if other.tsc > self.tsc { other.clone() } else { self }
    }

    /// Returns the functions of threads with an oldest record before this time: all functions open since then are among
    /// them.
    pub(super) fn known_since(self, oldest: &HashMap<u32, u64>) -> HashMap<u32, Vec<u64>> {
        let mut by_thread = self.by_thread;
        by_thread.retain(|thread, _| oldest.get(thread).is_none_or(|&oldest| oldest <= self.tsc));
        by_thread
    }
}

/// Reads the return stacks of all threads of a list.
fn read_threads(memory: &File, threads_at: u64, by_thread: &mut HashMap<u32, Vec<u64>>) -> io::Result<()> {
    const HEAD_BYTES: usize = offset_of!(ThreadBlock, stack);
    const ENTRY_BYTES: usize = size_of::<ReturnEntry>();

    let word = |bytes: &[u8], at: usize| {
        let word = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
        u64::from_le_bytes(word.copied().unwrap_or_default())
    };
    let mut next = [0; 8];
    memory.read_exact_at(&mut next, threads_at)?;
    let mut block = u64::from_le_bytes(next);
    let mut stack = [0; RETURN_STACK_ENTRIES * ENTRY_BYTES];
    for _ in 0..MAX_THREADS {
        if block == 0 {
            break;
        }
        let mut head = [0; HEAD_BYTES];
        memory.read_exact_at(&mut head, block)?;
        let field = |at| word(&head, at);
        let (base, top) = (field(offset_of!(ThreadBlock, base)), field(offset_of!(ThreadBlock, sp)));
        // The first entry is the sentinel.
        let n_open = (top.saturating_sub(base) as usize / ENTRY_BYTES).min(RETURN_STACK_ENTRIES);
        if field(offset_of!(ThreadBlock, limit)) != 0 && n_open > 0 {
            let stack = &mut stack[..n_open * ENTRY_BYTES];
            memory.read_exact_at(stack, block + (HEAD_BYTES + ENTRY_BYTES) as u64)?;
            let entries = stack.chunks_exact(ENTRY_BYTES);
            let words = entries.map(|entry| word(entry, offset_of!(ReturnEntry, exit_word)));
            let open = words.filter(|word| word & (kind::LEFT | state::HIDDEN) == 0).map(exit_word).collect();
            by_thread.insert(field(offset_of!(ThreadBlock, tid)) as u32, open);
        }
        block = field(offset_of!(ThreadBlock, next));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};

    use super::*;

    fn text(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn what_a_process_writes_is_read() {
        let open = OpenFunctions::of_text(&text(&[50, 1, 2, 0x100, 0x200, 7, 0, 3, 1, 0x300]));
        let all = HashMap::from([(1, vec![0x100, 0x200]), (7, vec![]), (3, vec![0x300])]);
        assert_eq!(open.clone().known_since(&HashMap::new()), all);
        // Thread 3 has been in other functions since.
        let of_others = HashMap::from([(1, vec![0x100, 0x200]), (7, vec![])]);
        assert_eq!(open.known_since(&HashMap::from([(1, 50), (3, 51)])), of_others);
    }

    #[test]
    fn any_bytes_are_some() {
        for words in [&[][..], &[1], &[1, 2], &[1, 2, u64::MAX], &[1, 2, u64::MAX, 4]] {
            let open = OpenFunctions::of_text(&text(words)).known_since(&HashMap::new());
            assert!(open.values().map(Vec::len).sum::<usize>() <= 1, "{words:?}");
        }
    }

    #[test]
    fn this_process_can_be_looked_at() {
        // It records nothing: what is listed at an address is what that says.
        let no_threads = 0_u64;
        let open = OpenFunctions::of_process(std::process::id(), &raw const no_threads as u64).unwrap();
        assert!(open.tsc > 0 && open.by_thread.is_empty());
    }

    #[test]
    fn a_process_that_has_ended_has_no_memory_to_look_at() {
        let mut child = Command::new("true").stdout(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        // Nobody else has the pipe: it ends with the process, which is there until it is waited for.
        let mut text = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut text).unwrap();
        assert!(OpenFunctions::of_process(pid, 0).is_none());
        child.wait().unwrap();
        assert!(OpenFunctions::of_process(pid, 0).is_none());
    }
}
