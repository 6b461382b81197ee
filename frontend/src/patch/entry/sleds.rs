//! XRay's sleds: compilers' room at the beginning of functions and at each return or jump to another one. Each gets a
//! jump through a word, and the word is switched (`patch::switches`).
//!
//! ```text
//! beginning    jmp +9; nine bytes of NOPs      →  jmp [word]; call thunk      off: behind it, on: the call of rftrace_sled_entry
//! tail call    jmp +9; nine bytes of NOPs      →  jmp [word]; call thunk      off: behind it, on: the call of rftrace_sled_exit
//! return       ret; ten bytes of NOPs          →  jmp [word]; ret             off: the ret, on: what calls rftrace_sled_exit and returns
//! ```
//!
//! In a running program the written code is removed again, while threads may be in the hooks: no thread may come back
//! to the middle of a sled, or stand there. So one instruction replaces the whole sled, and leads to a thunk of its
//! own:
//!
//! ```text
//! beginning, tail call                         →  call thunk                  off: a ret, on: the hook
//! return                                       →  jmp thunk                   off: a ret, on: as above
//! ```
//!
//! Hooks are out of reach of most programs, so memory near the module has jumps to them:
//!
//! ```text
//! area   +0    a word for each sled: where it leads
//! next page:
//!        +0    addresses of both hooks
//!        +16   jmp [rip + …]         to that of beginnings
//!        +24   jmp [rip + …]         to that of ends
//!        +32   call [rip + …]; ret   in place of a ret
//!        +40   jmp [rip + …]         in a program that runs, for each sled: by its word
//! ```
//!
//! Entered functions must be left: ends are switched on with the beginning, and stay so.
//!
//! Stacks are as behind the call, so the module's own unwind information holds for the function, and a thunk needs only
//! that of a called function.
//!
//! Not here: the choice of functions (`mod`), and the reader of the table (`elf::sleds`).

use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Release;

use rftrace_format::branches::{Branch, Place};

use super::rooms::are_nops;
use crate::elf::file::page_size;
use crate::elf::sleds::{ELEMENT_BYTES, Sled, SledKind, sled_tables};
use crate::patch::entry_outcome::EntryWay;
use crate::patch::memory::places;
use crate::patch::module::Image;
use crate::patch::sites::Site;
use crate::patch::stubs::{REACH, distance};
use crate::patch::switches::{Bytes, Switch};
use crate::patch::unwind;

unsafe extern "C" {
    fn rftrace_sled_entry();
    fn rftrace_sled_exit();
}

/// The address behind a sled is the function's identity in records and filters.
pub(super) use rftrace_format::branches::SLED_BYTES;

const RETURN: u8 = 0xc3;
const JUMP_OVER: [u8; 2] = [0xeb, 9];
/// `jmp [rip + …]`
const JUMP: [u8; 2] = [0xff, 0x25];
/// `call [rip + …]`
const CALL_WORD: [u8; 2] = [0xff, 0x15];
/// Bytes of either.
const WAY_BYTES: usize = 6;
const CALL: u8 = 0xe8;
/// `nop dword ptr [rax]`, as long as the rest of a sled behind a jump and a `ret`.
const NOP: [u8; SLED_BYTES - WAY_BYTES - 1] = [0x0f, 0x1f, 0x40, 0];
const FILLER: u8 = 0xcc;
const WORD: usize = size_of::<usize>();

const TO_ENTRY_AT: usize = 2 * WORD;
const TO_EXIT_AT: usize = 3 * WORD;
const RETURNS_AT: usize = 4 * WORD;
const ONLY_RETURNS_AT: usize = RETURNS_AT + WAY_BYTES;
const THUNKS_AT: usize = 5 * WORD;
const THUNK_BYTES: usize = WORD;

/// The sleds of a module, by function and address.
#[derive(Debug, Default)]
pub(super) struct Sleds(Vec<Sled>);

impl Sleds {
    /// Reads a module's table. `place` returns the place in memory of an address in its file.
    pub(super) fn of(image: &Image<'_>, file: &[u8], place: impl Fn(u64) -> Option<usize>) -> Self {
        let mut all = Vec::new();
        for table in sled_tables(file) {
            let Some(start) = place(table.addresses.start) else { continue };
            let bytes = (table.addresses.end - table.addresses.start) as usize;
            // The dynamic linker has made addresses of what is not relative.
            let elements = image.bytes(start..start.saturating_add(bytes)).unwrap_or_default().as_chunks().0;
            let places = (start as u64..).step_by(ELEMENT_BYTES);
            all.extend(elements.iter().zip(places).filter_map(|(element, place)| Sled::read(element, place)));
        }
        all.sort_unstable();
        all.dedup();
        Self(all)
    }

    /// Returns the functions with one at their beginning, ascending, with all their sleds.
    pub(super) fn functions(&self) -> impl Iterator<Item = (usize, &[Sled])> {
        let all = self.0.chunk_by(|one, next| one.function == next.function);
        let is_entry = |sled: &Sled| sled.kind == SledKind::Entry;
        all.filter(move |sleds| sleds.iter().any(is_entry)).map(|sleds| (sleds[0].function as usize, sleds))
    }

    /// Removes functions with an unusable sled.
    pub(super) fn retain_whole(&mut self, mut is_usable: impl FnMut(&Sled) -> bool) {
        let functions = self.0.chunk_by(|one, next| one.function == next.function);
        self.0 = functions.filter(|own| own.iter().all(&mut is_usable)).flatten().copied().collect();
    }

    /// True if the function at `start` is one of them.
    pub(super) fn has(&self, start: usize) -> bool {
        let first = self.0.partition_point(|sled| sled.function < start as u64);
        let own = self.0[first..].iter().take_while(|sled| sled.function == start as u64);
        own.into_iter().any(|sled| sled.kind == SledKind::Entry)
    }
}

/// True if a sled is as the compiler has left it.
pub(super) fn is_whole(image: &Image<'_>, sled: &Sled) -> bool {
    let address = sled.address as usize;
    let Some(bytes) = address.checked_add(SLED_BYTES).and_then(|end| image.bytes(address..end)) else { return false };
    let rest = match sled.kind {
        SledKind::Exit if bytes[0] == RETURN => 1,
        SledKind::Entry | SledKind::TailCall if bytes.starts_with(&JUMP_OVER) => JUMP_OVER.len(),
        _ => return false,
    };
    are_nops(image, address + rest, SLED_BYTES - rest)
}

/// The thunks of a module, and the words.
#[derive(Debug)]
pub(super) struct Thunks {
    start: usize,
    words_at: usize,
    words: Bytes,
    /// Their sleds, ascending.
    sleds: Vec<Sled>,
    way: EntryWay,
}

impl Thunks {
    /// Makes them for these sleds, within reach of `module`; all off. `mapped` are the mapped ranges of this process, ascending.
    pub(super) fn new(
        module: &Range<usize>,
        sleds: &[Sled],
        way: EntryWay,
        mapped: &[Range<usize>],
    ) -> io::Result<Self> {
        let page = usize::try_from(page_size()).unwrap_or(4096);
        let mut this = Self { start: 0, words_at: 0, words: Bytes::default(), sleds: sleds.to_vec(), way };
        this.sleds.sort_unstable();
        this.sleds.dedup();
        let n_bytes = this.sleds.len() * WORD;
        let pages_bytes = Bytes::pages_bytes(n_bytes);
        let code_bytes = this.range().end.next_multiple_of(page);
        let mut last = io::Error::new(io::ErrorKind::OutOfMemory, "no free addresses within 2 GiB");
        for place in places(module, pages_bytes + code_bytes, mapped, (page, REACH)) {
            (this.words_at, this.start) = (place, place + pages_bytes);
            match Bytes::map_before(&this.contents(code_bytes), place, n_bytes) {
                Ok(words) => {
                    this.words = words;
                    for (idx, sled) in this.sleds.iter().enumerate() {
                        if let Some(word) = this.word(idx) {
                            word.store(this.ways(sled).0, Release);
                        }
                    }
                    return Ok(this);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Returns the switches of the function of `site`: none if these are not its thunks.
    pub(super) fn switches(&self, function: u64, site: Site) -> Vec<Switch> {
        let first = self.sleds.partition_point(|sled| sled.function < function);
        let own = self.sleds.iter().enumerate().skip(first).take_while(|(_, sled)| sled.function == function);
        let (begins, ends): (Vec<_>, Vec<_>) = own.partition(|(_, sled)| sled.kind == SledKind::Entry);
        let switch = |(idx, sled): (usize, &Sled)| {
            Some(Switch::of_way(self.word(idx)?, self.ways(sled), site, sled.kind != SledKind::Entry))
        };
        // In this order: what begins is recorded when its end will be.
        ends.into_iter().chain(begins).filter_map(switch).collect()
    }

    /// The addresses of all.
    pub(super) fn range(&self) -> Range<usize> {
        let n_thunks = if self.way == EntryWay::Outside { self.sleds.len() } else { 0 };
        self.start + TO_ENTRY_AT..self.start + THUNKS_AT + n_thunks * THUNK_BYTES
    }

    /// Returns their unwind information, the same for all readers, and the place of its description.
    pub(super) fn frames(&self) -> (Vec<u8>, usize) {
        unwind::called(&self.range())
    }

    /// Returns the code to write into a sled.
    pub(super) fn code(&self, sled: &Sled) -> Option<[u8; SLED_BYTES]> {
        let address = sled.address as usize;
        let mut code = instruction(&JUMP, address, self.word_of(self.idx(sled)?));
        match sled.kind {
            SledKind::Entry => code.extend(instruction(&[CALL], address + WAY_BYTES, self.start + TO_ENTRY_AT)),
            SledKind::TailCall => code.extend(instruction(&[CALL], address + WAY_BYTES, self.start + TO_EXIT_AT)),
            SledKind::Exit => code.extend([&[RETURN], &NOP[..]].concat()),
        }
        code.try_into().ok()
    }

    /// Returns the branch for an outside writer, in a sled of such bytes.
    pub(super) fn prepared(&self, sled: &Sled, bytes: &[u8; SLED_BYTES]) -> Option<Branch> {
        let place = match sled.kind {
            SledKind::Entry => Place::Entry,
            SledKind::TailCall => Place::TailCall,
            SledKind::Exit => Place::Exit,
        };
        Branch::of_sled(sled.address, self.thunk(self.idx(sled)?) as u64, place, bytes)
    }

    /// Returns the targets of a sled in the states off and on.
    fn ways(&self, sled: &Sled) -> (usize, usize) {
        let address = sled.address as usize;
        match (self.way, sled.kind) {
            (EntryWay::Itself, SledKind::Entry | SledKind::TailCall) => (address + SLED_BYTES, address + WAY_BYTES),
            (EntryWay::Itself, SledKind::Exit) => (address + WAY_BYTES, self.start + RETURNS_AT),
            (EntryWay::Outside, SledKind::Entry) => (self.start + ONLY_RETURNS_AT, hooks()[0]),
            (EntryWay::Outside, SledKind::TailCall) => (self.start + ONLY_RETURNS_AT, hooks()[1]),
            (EntryWay::Outside, SledKind::Exit) => (self.start + ONLY_RETURNS_AT, self.start + RETURNS_AT),
        }
    }

    /// The place of a sled among these.
    fn idx(&self, sled: &Sled) -> Option<usize> {
        self.sleds.binary_search(sled).ok()
    }

    /// The word of the sled at such a place, and its address.
    fn word(&self, idx: usize) -> Option<&'static AtomicUsize> {
        self.words.way(0, idx)
    }

    fn word_of(&self, idx: usize) -> usize {
        self.words_at + idx * WORD
    }

    /// Returns its thunk in a running program.
    fn thunk(&self, idx: usize) -> usize {
        self.start + THUNKS_AT + idx * THUNK_BYTES
    }

    /// Returns the contents from `start` on, of so many bytes.
    fn contents(&self, n_bytes: usize) -> Vec<u8> {
        let [entry, exit] = [self.start, self.start + WORD];
        let mut contents = vec![FILLER; n_bytes];
        let mut put = |at: usize, bytes: &[u8]| contents[at - self.start..][..bytes.len()].copy_from_slice(bytes);
        put(entry, &hooks()[0].to_le_bytes());
        put(exit, &hooks()[1].to_le_bytes());
        let ways = [(TO_ENTRY_AT, JUMP, entry), (TO_EXIT_AT, JUMP, exit), (RETURNS_AT, CALL_WORD, exit)];
        for (at, opcode, target) in ways.map(|(at, opcode, target)| (self.start + at, opcode, target)) {
            put(at, &instruction(&opcode, at, target));
        }
        put(self.start + ONLY_RETURNS_AT, &[RETURN]);
        let n_thunks = (self.range().end - self.thunk(0)) / THUNK_BYTES;
        (0..n_thunks).for_each(|idx| put(self.thunk(idx), &instruction(&JUMP, self.thunk(idx), self.word_of(idx))));
        contents
    }
}

/// The hooks of beginnings and of ends.
fn hooks() -> [usize; 2] {
    [rftrace_sled_entry as *const () as usize, rftrace_sled_exit as *const () as usize]
}

/// Returns an instruction at `address` with the distance to its operand at its end.
fn instruction(opcode: &[u8], address: usize, target: usize) -> Vec<u8> {
    let distance = distance(address + opcode.len() + size_of::<i32>(), target);
    [opcode, &distance.to_le_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Acquire;

    use super::*;
    use crate::patch::poke::Pages;
    use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic};

    const WORDS_AT: usize = 0xf_0000;
    const START: usize = 0x10_0000;
    const FUNCTION: u64 = 0x40_0000;

    fn sled(kind: SledKind) -> Sled {
        Sled { function: FUNCTION, address: FUNCTION + 0x100 + 0x20 * kind as u64, kind }
    }

    const KINDS: [SledKind; 3] = [SledKind::Entry, SledKind::Exit, SledKind::TailCall];

    /// The thunks of two functions, and their code.
    fn thunks(way: EntryWay) -> (Thunks, Vec<u8>) {
        let other = Sled { function: 0x3f_0000, address: 0x3f_0000, kind: SledKind::Entry };
        let mut sleds = vec![other];
        sleds.extend(KINDS.map(sled));
        sleds.sort_unstable();
        let thunks = Thunks { start: START, words_at: WORDS_AT, words: Bytes::default(), sleds, way };
        let code = thunks.contents(4096);
        (thunks, code)
    }

    fn decoded(bytes: &[u8], address: usize) -> Vec<Instruction> {
        Decoder::with_ip(64, bytes, address as u64, DecoderOptions::NONE).into_iter().collect()
    }

    /// Checks that an address leads to a hook: by a jump, or by a call and a `ret`.
    #[track_caller]
    fn check(code: &[u8], address: usize, kind: SledKind) {
        let way = decoded(&code[address - START..][..16], address);
        let hook = way[0].ip_rel_memory_address() as usize - START;
        let word = usize::from_le_bytes(code[hook..][..WORD].try_into().unwrap());
        assert_eq!(word, hooks()[usize::from(kind != SledKind::Entry)]);
        match kind {
            SledKind::Exit => {
                assert_eq!((way[0].mnemonic(), way[1].mnemonic()), (Mnemonic::Call, Mnemonic::Ret));
            }
            SledKind::Entry | SledKind::TailCall => assert_eq!(way[0].mnemonic(), Mnemonic::Jmp),
        }
    }

    /// In this process: off, only the original code has an effect, and on, a hook is called from a sled's last bytes.
    #[test]
    fn words_say_where_sleds_lead() {
        let (thunks, code) = thunks(EntryWay::Itself);
        for kind in KINDS {
            let sled = sled(kind);
            let address = sled.address as usize;
            let instructions = decoded(&thunks.code(&sled).unwrap(), address);
            let [jump, next] = [instructions[0], instructions[1]];
            assert_eq!(instructions.last().unwrap().next_ip() as usize, address + SLED_BYTES);
            assert_eq!(jump.mnemonic(), Mnemonic::Jmp);
            assert_eq!(jump.ip_rel_memory_address() as usize, WORDS_AT + WORD * thunks.idx(&sled).unwrap());
            let (off, on) = thunks.ways(&sled);
            if kind == SledKind::Exit {
                assert_eq!((next.mnemonic(), next.ip() as usize), (Mnemonic::Ret, off));
                check(&code, on, kind);
            } else {
                assert_eq!((next.mnemonic(), next.ip() as usize), (Mnemonic::Call, on));
                assert_eq!((off, next.next_ip() as usize), (address + SLED_BYTES, off));
                check(&code, next.near_branch_target() as usize, kind);
            }
        }
        let none = Sled { function: 0x41_0000, address: 0x41_0000, kind: SledKind::Entry };
        assert_eq!(thunks.code(&none), None);
    }

    /// In a running program one instruction takes the place of a sled.
    #[test]
    fn words_say_where_thunks_lead() {
        const SLED: [u8; SLED_BYTES] = [0x90; SLED_BYTES];

        let (thunks, code) = thunks(EntryWay::Outside);
        for (kind, n_bytes) in [(SledKind::Entry, 11), (SledKind::TailCall, 11), (SledKind::Exit, 5)] {
            let sled = sled(kind);
            let bytes = thunks.prepared(&sled, &SLED).unwrap().branched();
            let instruction = decoded(&bytes, sled.address as usize)[0];
            let is_exit = kind == SledKind::Exit;
            assert_eq!(instruction.mnemonic(), if is_exit { Mnemonic::Jmp } else { Mnemonic::Call });
            assert_eq!((instruction.len(), bytes.len()), (n_bytes, SLED_BYTES));
            let thunk = instruction.near_branch_target() as usize;
            assert!(thunks.range().contains(&thunk));
            let jump = decoded(&code[thunk - START..][..THUNK_BYTES], thunk)[0];
            assert_eq!(jump.mnemonic(), Mnemonic::Jmp);
            assert_eq!(jump.ip_rel_memory_address() as usize, WORDS_AT + WORD * thunks.idx(&sled).unwrap());
            let (off, on) = thunks.ways(&sled);
            assert_eq!(code[off - START], RETURN);
            match kind {
                SledKind::Exit => check(&code, on, kind),
                SledKind::Entry => assert_eq!(on, hooks()[0]),
                SledKind::TailCall => assert_eq!(on, hooks()[1]),
            }
        }
    }

    /// Words are off at first; ends are switched on before beginnings.
    #[test]
    fn each_sled_has_its_switch() {
        let mapped: Vec<Range<usize>> = Pages::all().unwrap().into_iter().map(|pages| pages.range).collect();
        let site = Site { address: FUNCTION as usize, child_ip: FUNCTION as usize, module: 0, has_arguments: true };
        for way in [EntryWay::Itself, EntryWay::Outside] {
            let (Thunks { sleds, .. }, _) = thunks(way);
            let thunks = Thunks::new(&(hooks()[0]..hooks()[0]), &sleds, way, &mapped).unwrap();
            let words =
                || -> Vec<usize> { (0..sleds.len()).map(|idx| thunks.word(idx).unwrap().load(Acquire)).collect() };
            assert_eq!(words(), sleds.iter().map(|sled| thunks.ways(sled).0).collect::<Vec<_>>());
            let switches = thunks.switches(FUNCTION, site);
            assert_eq!(switches.iter().map(|switch| switch.is_for_ends).collect::<Vec<_>>(), [true, true, false]);
            switches.iter().for_each(Switch::switch_on);
            let way = |sled: &Sled| {
                let (off, on) = thunks.ways(sled);
                if sled.function == FUNCTION { on } else { off }
            };
            assert_eq!(words(), sleds.iter().map(way).collect::<Vec<_>>());
            assert!(thunks.switches(FUNCTION + 1, site).is_empty());
        }
    }

    #[test]
    fn functions_without_a_beginning_have_no_sleds() {
        let sled = |function, address, kind| Sled { function, address, kind };
        let sleds = Sleds(vec![
            sled(1, 1, SledKind::Entry),
            sled(1, 20, SledKind::Exit),
            sled(50, 60, SledKind::Exit),
            sled(80, 84, SledKind::Entry),
        ]);
        let functions: Vec<_> = sleds.functions().map(|(start, own)| (start, own.len())).collect();
        assert_eq!(functions, [(1, 2), (80, 1)]);
        assert_eq!([1, 50, 80, 90].map(|start| sleds.has(start)), [true, false, true, false]);
    }
}
