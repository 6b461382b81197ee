//! Return addresses replaced by the tracer become the original ones again, on the stacks of a process with all threads
//! stopped.
//!
//! Everything is read from the process's memory as any bytes: a stack may be gone, and writes go only to the place of a
//! trampoline's address.
//!
//! **Invariant**: an entry of a return stack stays as long as anything may still ask for it: a thread in the tracer, or
//! one whose unwinder passes the entry's frame.
//!
//! **Invariant**: no return address changes while a thread is in an unwinder. The unwinder has read it, and reads it
//! again when the unwind information of the trampoline asks for its place.

use std::mem::offset_of;
use std::ops::Range;

use nix::libc::user_regs_struct;
use rftrace::abi::{
    self, Control, LEFT_BUCKET_BYTES, LeftCell, N_TRAMPOLINE_PLACES, RETURN_STACK_ENTRIES, ReturnEntry,
    TRAMPOLINE_PLACES_AT, ThreadBlock, UNHOOKED,
};

use super::process::Process;
use super::sys::words;

/// Blocks of threads, at the most.
const MOST_BLOCKS: usize = 1 << 16;
/// All trampolines lie in a block of so many bytes, aligned to that.
const TRAMPOLINES_BYTES: u64 = abi::TRAMPOLINES_BYTES as u64;
/// The part of a stack to look at.
const STACK_BYTES: u64 = 256 << 10;

/// An open function.
#[derive(Clone, Copy, Debug)]
struct Open {
    parent_ip: u64,
    frame: u64,
    sequence: u64,
}

/// A thread's return stack.
#[derive(Debug)]
struct Block {
    address: u64,
    base: u64,
    open: Vec<Open>,
}

/// The return stacks of a process.
#[derive(Debug)]
pub(crate) struct Stacks<'a> {
    process: &'a Process,
    /// The tracer's control block.
    control: u64,
    /// Its code.
    texts: Vec<Range<u64>>,
    /// The code for throwing exceptions, if it is known.
    unwinder: Vec<Range<u64>>,
}

/// Functions of the C library for an unwinder's search for unwind information.
const FINDERS: [&str; 2] = ["_dl_find_object", "dl_iterate_phdr"];
/// Imports of a module with its unwinder elsewhere: some of these.
const OF_UNWINDER: [&str; 4] =
    ["_Unwind_RaiseException", "_Unwind_Resume", "_Unwind_Resume_or_Rethrow", "_Unwind_Backtrace"];

impl<'a> Stacks<'a> {
    pub(crate) fn new(process: &'a Process, control: u64, texts: Vec<Range<u64>>) -> Self {
        Self { process, control, texts, unwinder: unwinder(process) }
    }

    /// The same with further functions for throwing exceptions.
    pub(crate) fn with_unwinder(mut self, functions: Vec<Range<u64>>) -> Self {
        self.unwinder.extend(functions);
        self
    }

    fn is_tracer(&self, address: u64) -> bool {
        self.texts.iter().any(|text| text.contains(&address))
    }

    /// Returns the trampolines, the places in the tracer to which functions return: nothing if none does now. Return
    /// addresses of the tracer's own calls lie among them, in the same block.
    pub(crate) fn trampolines(&self) -> Vec<u64> {
        let list = self.control + offset_of!(Control, threads) as u64;
        let tells_of_list = |block: &u64| {
            let distance = self.process.word(block + TRAMPOLINES_BYTES - size_of::<u64>() as u64);
            distance.is_some_and(|distance| block.wrapping_add(distance) == list)
        };
        let all = self.blocks().into_iter().flat_map(|block| block.open);
        let words = all.filter_map(|open| self.process.word(open.frame)).filter(|&word| self.is_tracer(word));
        let Some(block) = words.map(|word| word & !(TRAMPOLINES_BYTES - 1)).find(tells_of_list) else {
            return Vec::new();
        };
        let places = self.process.bytes(block + TRAMPOLINE_PLACES_AT as u64, 2 * N_TRAMPOLINE_PLACES as u64);
        let others = places.as_chunks().0.iter().map(|&place| block + u64::from(u16::from_le_bytes(place)));
        std::iter::once(block).chain(others).collect()
    }

    /// Gives all return addresses back, unless a thread is in an unwinder. Then, if no thread is in the tracer or may
    /// come back to it, empties the return stacks. `registers` are those of all threads. Returns true if the stacks are
    /// empty.
    ///
    /// The remaining return addresses return by the tracer, which stays.
    pub(crate) fn give_back(&self, registers: &[user_regs_struct]) -> bool {
        let is_of_unwinder = |address| self.unwinder.iter().any(|text| text.contains(&address));
        if registers.iter().any(|registers| self.is_within(registers, is_of_unwinder)) {
            return false;
        }
        let trampolines = self.trampolines();
        let blocks = self.blocks();
        // Functions called by an unwinder may be hooked too: then their return addresses are nowhere else.
        let is_open = |open: &Open| self.process.word(open.frame).is_some_and(|word| trampolines.contains(&word));
        let mut called = blocks.iter().flat_map(|block| &block.open).filter(|open| is_of_unwinder(open.parent_ip));
        if called.any(is_open) {
            return false;
        }
        let mut all: Vec<Open> =
            blocks.iter().flat_map(|block| block.open.iter().copied()).chain(self.left()).collect();
        // Of entries with one frame the latest lives; if it is a tail call, the one before has the address.
        all.sort_by_key(|open| std::cmp::Reverse(open.sequence));
        let mut is_all = true;
        for open in all {
            if self.process.word(open.frame).is_some_and(|word| trampolines.contains(&word)) {
                is_all &= self.process.write(open.frame, &open.parent_ip.to_le_bytes()).is_ok();
            }
        }
        // On a stack a trampoline is a return address just given back, or is none any more.
        let comes_back = |address| self.is_tracer(address) && !trampolines.contains(&address);
        let is_in_tracer =
            |registers: &user_regs_struct| self.is_tracer(registers.rip) || self.is_within(registers, comes_back);
        let is_empty = is_all && !registers.iter().any(is_in_tracer);
        if is_empty {
            blocks.iter().for_each(|block| self.empty(block));
        }
        is_empty
    }

    /// True if a thread is in such code, or comes back to it.
    fn is_within(&self, registers: &user_regs_struct, is_such: impl Fn(u64) -> bool) -> bool {
        let stack = self.process.bytes(registers.rsp, STACK_BYTES);
        is_such(registers.rip) || words(&stack).any(is_such)
    }

    /// The return stacks of all living threads.
    fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        if self.control == 0 {
            return blocks;
        }
        let mut next = self.process.word(self.control + offset_of!(Control, threads) as u64).unwrap_or(0);
        while next != 0 && blocks.len() < MOST_BLOCKS {
            let field = |offset: usize| self.process.word(next + offset as u64).unwrap_or(0);
            let (base, sp) = (field(offset_of!(ThreadBlock, base)), field(offset_of!(ThreadBlock, sp)));
            let is_living = field(offset_of!(ThreadBlock, limit)) != 0;
            let n_bytes = sp.saturating_sub(base);
            if is_living && base != 0 && n_bytes <= (RETURN_STACK_ENTRIES * size_of::<ReturnEntry>()) as u64 {
                let open = self.entries(base, n_bytes, 0, size_of::<ReturnEntry>());
                blocks.push(Block { address: next, base, open });
            }
            next = field(offset_of!(ThreadBlock, next));
        }
        blocks
    }

    /// The frames left by threads without a return.
    fn left(&self) -> Vec<Open> {
        let field = |offset: usize| self.process.word(self.control + offset as u64).unwrap_or(0);
        let mut any = [0];
        self.process.read(self.control + offset_of!(Control, any_left) as u64, &mut any);
        if any == [0] {
            return Vec::new();
        }
        let bytes = field(offset_of!(Control, n_left_buckets)).min(1 << 16) * LEFT_BUCKET_BYTES as u64;
        self.entries(field(offset_of!(Control, left)), bytes, offset_of!(LeftCell, entry), size_of::<LeftCell>())
    }

    /// The entries in a table with elements of this size, and their entries at this offset.
    fn entries(&self, start: u64, bytes: u64, offset: usize, size: usize) -> Vec<Open> {
        let word = |element: &[u8], field: usize| words(&element[offset + field..]).next().unwrap_or(0);
        let open = |element: &[u8]| Open {
            parent_ip: word(element, offset_of!(ReturnEntry, parent_ip)),
            frame: word(element, offset_of!(ReturnEntry, frame)),
            sequence: word(element, offset_of!(ReturnEntry, sequence)),
        };
        let bytes = self.process.bytes(start, bytes);
        // A free or claimed one has no frame; for a function with sleds the return address is in its place.
        let is_hooked =
            |open: &Open| open.frame != 0 && open.frame.is_multiple_of(8) && open.parent_ip & UNHOOKED as u64 == 0;
        bytes.chunks_exact(size).map(open).filter(is_hooked).collect()
    }

    /// Empties a return stack.
    fn empty(&self, block: &Block) {
        let n_entries = self
            .process
            .word(block.address + offset_of!(ThreadBlock, sp) as u64)
            .map_or(0, |sp| sp.saturating_sub(block.base) / size_of::<ReturnEntry>() as u64);
        // The frames first: above the stack's top there are none.
        for place in 0..n_entries.min(RETURN_STACK_ENTRIES as u64) {
            let entry = block.base + place * size_of::<ReturnEntry>() as u64;
            let _ = self.process.write(entry + offset_of!(ReturnEntry, frame) as u64, &0u64.to_le_bytes());
        }
        let _ = self.process.write(block.address + offset_of!(ThreadBlock, sp) as u64, &block.base.to_le_bytes());
    }
}

/// The code of modules with an unwinder: libgcc's library, LLVM's, or a program with one linked in, at an unknown
/// place.
fn unwinder(process: &Process) -> Vec<Range<u64>> {
    let maps = process.maps().unwrap_or_default();
    let mut paths: Vec<&str> =
        maps.iter().filter(|map| map.is_executable && map.path.starts_with('/')).map(|map| &*map.path).collect();
    paths.dedup();
    let modules = paths.into_iter().filter_map(|path| process.module(&maps, |other| other == path).ok()?);
    let theirs = modules.filter(|module| module.imports(&FINDERS) && !module.imports(&OF_UNWINDER));
    theirs.flat_map(|module| module.texts).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTROL: usize = 0;
    const BLOCK: usize = 4096;
    const ENTRIES: usize = BLOCK + size_of::<ThreadBlock>().next_multiple_of(8);
    const SLOTS: usize = ENTRIES + 4096;
    const PLACES: [u64; N_TRAMPOLINE_PLACES] = [0x100, 0x300, 0x500];
    const TRUE_ADDRESS: u64 = 0x40_1234;

    /// Returns the content of slots after return addresses were given back, and whether the return stack is empty then. `held` is the content before,
    /// from the block of trampolines on.
    fn given_back(held: &[u64]) -> (Vec<u64>, bool) {
        let mut memory = vec![0u64; (SLOTS + 3 * TRAMPOLINES_BYTES as usize) / 8];
        let start = memory.as_mut_ptr() as u64;
        let trampolines = (start + SLOTS as u64 + 256).next_multiple_of(TRAMPOLINES_BYTES);
        let mut set = |offset: usize, word: u64| memory[offset / 8] = word;
        let size = size_of::<ReturnEntry>();
        set(CONTROL + offset_of!(Control, threads), start + BLOCK as u64);
        set(BLOCK + offset_of!(ThreadBlock, base), start + ENTRIES as u64);
        set(BLOCK + offset_of!(ThreadBlock, sp), start + (ENTRIES + held.len() * size) as u64);
        set(BLOCK + offset_of!(ThreadBlock, limit), u64::MAX);
        for (number, held) in held.iter().enumerate() {
            let entry = ENTRIES + number * size;
            set(entry + offset_of!(ReturnEntry, parent_ip), TRUE_ADDRESS + number as u64);
            set(entry + offset_of!(ReturnEntry, frame), start + (SLOTS + 8 * number) as u64);
            set(entry + offset_of!(ReturnEntry, sequence), 1 + number as u64);
            set(SLOTS + 8 * number, trampolines.wrapping_add(*held));
        }
        let block = (trampolines - start) as usize;
        let places = PLACES.iter().rev().fold(0, |word, place| word << 16 | place);
        set(block + TRAMPOLINE_PLACES_AT, places);
        let list = start + (CONTROL + offset_of!(Control, threads)) as u64;
        set(block + TRAMPOLINES_BYTES as usize - 8, list.wrapping_sub(trampolines));
        let process = Process::open(std::process::id().cast_signed()).unwrap();
        let text = trampolines - 8..trampolines + TRAMPOLINES_BYTES;
        let is_empty = Stacks::new(&process, start + CONTROL as u64, vec![text]).give_back(&[]);
        let words = process.bytes(start + SLOTS as u64, 8 * held.len() as u64);
        drop(memory);
        (words.as_chunks().0.iter().map(|&word| u64::from_le_bytes(word).wrapping_sub(trampolines)).collect(), is_empty)
    }

    #[test]
    fn return_addresses_become_what_they_were() {
        let (words, is_empty) = given_back(&[0, PLACES[0], PLACES[1], PLACES[2]]);
        assert!(is_empty);
        let true_addresses: Vec<u64> = words.windows(2).map(|words| words[1].wrapping_sub(words[0])).collect();
        assert_eq!(true_addresses, [1, 1, 1], "{words:x?}");
    }

    /// An entry may name an old slot, in which a trampoline now has the return address of a called function.
    #[test]
    fn what_the_tracer_itself_returns_to_stays() {
        let before_them = 0u64.wrapping_sub(8);
        let inner = [before_them, PLACES[0] + 0x40, 0x20];
        let (words, _) = given_back(&[inner[0], PLACES[1], inner[1], inner[2]]);
        assert_eq!([words[0], words[2], words[3]], inner, "{words:x?}");
        assert_ne!(words[1], PLACES[1]);
    }
}
