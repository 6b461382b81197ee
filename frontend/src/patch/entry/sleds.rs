//! XRay's sleds: a compiler has left room at the beginning of functions and wherever they return or jump to another one. Each gets a call.
//!
//! ```text
//! beginning    jmp +9; nine bytes of NOPs      →  call thunk; NOP        rftrace_sled_entry
//! return       ret; ten bytes of NOPs          →  jmp thunk              rftrace_sled_exit, and ret
//! tail call    jmp +9; nine bytes of NOPs      →  call thunk; NOP        rftrace_sled_exit
//! ```
//!
//! In a program that runs what is written is to be taken away again, while threads may be in the hooks: nobody may come back to the middle
//! of a sled. There the calls are as long as a sled.
//!
//! Hooks are out of reach of most programs, so memory near the module has thunks for each function, which are switched
//! (`patch::switches`):
//!
//! ```text
//! area   +0    two bytes for each function: whether its beginning is switched on, and whether its ends are
//! next page:
//!        +0    addresses of both hooks
//!        +16   for each function three thunks of 16 bytes: of its beginning, of its jumps to others, and what returns in place of a `ret`
//!          +0    cmp byte ptr [rip + …], 0
//!          +7    je +6
//!          +9    jmp [rip + …]       the hook; the third thunk calls it
//!          +15   ret
//! ```
//!
//! What was entered is to be left: ends are switched on with the beginning, and stay so. Flags are dead at both.
//!
//! Stacks are as behind the call, so the module's own unwind information holds for the function, and a thunk needs none but that it
//! was called.
//!
//! Not here: which functions are chosen (`mod`), how the table is read (`elf::sleds`).

use std::io;
use std::ops::Range;

use rftrace_format::branches::{Branch, Place};

use super::rooms::are_nops;
use crate::elf::file::page_size;
use crate::elf::sleds::{ELEMENT_BYTES, Sled, SledKind, sled_tables};
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

pub(super) use rftrace_format::branches::SLED_BYTES;
/// Bytes of the call in it. Behind that call is what records and filters name a function by.
pub(super) const CALL_BYTES: usize = 5;
const CALL: u8 = 0xe8;
const RETURN: u8 = 0xc3;
/// `jmp`, as long as the call.
const JUMP_NEAR: u8 = 0xe9;
const JUMP_OVER: [u8; 2] = [0xeb, 9];
/// `nop word ptr [rax + rax]`, as long as what a call leaves of a sled.
const NOP: [u8; SLED_BYTES - CALL_BYTES] = [0x66, 0x0f, 0x1f, 0x44, 0, 0];

/// `cmp byte ptr [rip + …], 0`: the opcode, and the byte behind the distance.
const COMPARE: ([u8; 2], u8) = ([0x80, 0x3d], 0);
const COMPARE_BYTES: usize = 7;
/// `je +6`
const SKIP_IF_OFF: [u8; 2] = [0x74, 6];
/// `jmp [rip + …]`
const JUMP: [u8; 2] = [0xff, 0x25];
/// `call [rip + …]`
const CALL_WORD: [u8; 2] = [0xff, 0x15];
const FILLER: u8 = 0xcc;
const WORD: usize = size_of::<usize>();
const THUNKS_AT: usize = 2 * WORD;
const THUNK_BYTES: usize = 16;

/// The thunks of a function, in their order: the byte that each looks at, how it goes to its hook, and which that is. What is reached by a jump
/// calls it.
const THUNKS: [(usize, [u8; 2], usize); 3] = [(0, JUMP, 0), (1, JUMP, 1), (1, CALL_WORD, 1)];
const BEGINS: usize = 0;
/// To other functions.
const JUMPS: usize = 1;
const RETURNS: usize = 2;
/// Bytes to look at of each function: by what it begins, and by both others.
const N_SWITCHES: usize = 2;

/// The sleds of a module, by function and address.
#[derive(Debug, Default)]
pub(super) struct Sleds(Vec<Sled>);

impl Sleds {
    /// Those that a module lists. `place` tells where something lies that has an address in its file.
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

    /// The functions that have one at their beginning, ascending, with all their sleds.
    pub(super) fn functions(&self) -> impl Iterator<Item = (usize, &[Sled])> {
        let all = self.0.chunk_by(|one, next| one.function == next.function);
        let is_entry = |sled: &Sled| sled.kind == SledKind::Entry;
        all.filter(move |sleds| sleds.iter().any(is_entry)).map(|sleds| (sleds[0].function as usize, sleds))
    }

    /// Leaves those of functions away of which not all are such.
    pub(super) fn retain_whole(&mut self, mut is_usable: impl FnMut(&Sled) -> bool) {
        let functions = self.0.chunk_by(|one, next| one.function == next.function);
        self.0 = functions.filter(|own| own.iter().all(&mut is_usable)).flatten().copied().collect();
    }

    /// Whether the function at `start` is one of them.
    pub(super) fn has(&self, start: usize) -> bool {
        let first = self.0.partition_point(|sled| sled.function < start as u64);
        let own = self.0[first..].iter().take_while(|sled| sled.function == start as u64);
        own.into_iter().any(|sled| sled.kind == SledKind::Entry)
    }
}

/// Whether a sled is as the compiler has left it.
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

/// The thunks of a module.
#[derive(Debug)]
pub(super) struct Thunks {
    start: usize,
    /// Which functions they are for, ascending.
    functions: Vec<u64>,
    bytes: Bytes,
}

impl Thunks {
    /// Makes them for the functions of these sleds, within reach of `module`, for unwinders too; all off. `mapped` are the mapped ranges
    /// of this process, ascending.
    pub(super) fn new(module: &Range<usize>, sleds: &[Sled], mapped: &[Range<usize>]) -> io::Result<Self> {
        let page = usize::try_from(page_size()).unwrap_or(4096);
        let mut functions: Vec<u64> = sleds.iter().map(|sled| sled.function).collect();
        functions.sort_unstable();
        functions.dedup();
        let n_switches = N_SWITCHES * functions.len();
        let pages_bytes = Bytes::pages_bytes(n_switches);
        let code_bytes = (THUNKS_AT + functions.len() * THUNKS.len() * THUNK_BYTES).next_multiple_of(page);
        let mut last = io::Error::new(io::ErrorKind::OutOfMemory, "no free addresses within 2 GiB");
        for place in places(module, pages_bytes + code_bytes, mapped, (page, REACH)) {
            let start = place + pages_bytes;
            match Bytes::map_before(&contents(place, start, functions.len(), code_bytes), place, n_switches) {
                Ok(bytes) => return Ok(Self { start, functions, bytes }),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The switches of a function that is known by `site`: none if these are not its thunks.
    pub(super) fn switches(&self, function: u64, site: Site) -> impl Iterator<Item = Switch> {
        let place = self.functions.binary_search(&function).ok();
        let switch = move |(idx, is_for_ends)| self.bytes.switch(N_SWITCHES * place? + idx, site, is_for_ends);
        // In this order: what begins is recorded when its end will be.
        [(1, true), (0, false)].into_iter().filter_map(switch)
    }

    /// The addresses of all.
    pub(super) fn range(&self) -> Range<usize> {
        let start = self.start + THUNKS_AT;
        start..start + self.functions.len() * THUNKS.len() * THUNK_BYTES
    }

    /// The thunk that a sled leads to.
    fn thunk(&self, sled: &Sled) -> Option<usize> {
        let place = self.functions.binary_search(&sled.function).ok()?;
        let thunk = match sled.kind {
            SledKind::Entry => BEGINS,
            SledKind::TailCall => JUMPS,
            SledKind::Exit => RETURNS,
        };
        Some(self.start + THUNKS_AT + (place * THUNKS.len() + thunk) * THUNK_BYTES)
    }

    /// Their unwind information, which is the same for all who read it, and where its description begins.
    pub(super) fn frames(&self) -> (Vec<u8>, usize) {
        unwind::called(&self.range())
    }

    /// What is written into a sled.
    pub(super) fn call(&self, sled: &Sled) -> Option<Vec<u8>> {
        let (opcode, rest) = match sled.kind {
            SledKind::Entry | SledKind::TailCall => (CALL, &NOP[..]),
            SledKind::Exit => (JUMP_NEAR, &[][..]),
        };
        let distance = distance(sled.address as usize + CALL_BYTES, self.thunk(sled)?);
        Some([&[opcode], &distance.to_le_bytes()[..], rest].concat())
    }

    /// What somebody else writes into a sled of such bytes.
    pub(super) fn prepared(&self, sled: &Sled, bytes: &[u8; SLED_BYTES]) -> Option<Branch> {
        let place = match sled.kind {
            SledKind::Entry => Place::Entry,
            SledKind::TailCall => Place::TailCall,
            SledKind::Exit => Place::Exit,
        };
        Branch::of_sled(sled.address, self.thunk(sled)? as u64, place, bytes)
    }
}

/// What lies at `start`: the thunks of so many functions, whose switches begin at `switches`; `code_bytes` at all.
fn contents(switches: usize, start: usize, n_functions: usize, code_bytes: usize) -> Vec<u8> {
    let hooks = [rftrace_sled_entry as *const () as usize, rftrace_sled_exit as *const () as usize];
    let mut contents: Vec<u8> = hooks.iter().flat_map(|hook| hook.to_le_bytes()).collect();
    let thunks = (0..n_functions).flat_map(|place| THUNKS.map(|thunk| (N_SWITCHES * place, thunk)));
    for (first, (idx, opcode, hook)) in thunks {
        let thunk = start + contents.len();
        contents.extend_from_slice(&COMPARE.0);
        contents.extend_from_slice(&distance(thunk + COMPARE_BYTES, switches + first + idx).to_le_bytes());
        contents.push(COMPARE.1);
        contents.extend_from_slice(&SKIP_IF_OFF);
        contents.extend_from_slice(&opcode);
        contents.extend_from_slice(&distance(thunk + THUNK_BYTES - 1, start + hook * WORD).to_le_bytes());
        contents.push(RETURN);
    }
    contents.resize(code_bytes, FILLER);
    contents
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions, Mnemonic};

    const SWITCHES: usize = 0xf_0000;
    const START: usize = 0x10_0000;

    /// Those of two functions, and their code.
    fn thunks() -> (Thunks, Vec<u8>) {
        let functions = vec![0x3f_0000, 0x40_0000];
        let code = contents(SWITCHES, START, functions.len(), 4096);
        (Thunks { start: START, functions, bytes: Bytes::default() }, code)
    }

    /// Checks that a thunk of the second function looks at that switch, and leads by such an instruction to that hook, or returns.
    #[track_caller]
    fn check(code: &[u8], thunk: usize, switch: usize, way: Mnemonic, hook: usize) {
        let mut decoder = Decoder::with_ip(64, &code[thunk - START..], thunk as u64, DecoderOptions::NONE);
        let [compare, skip, to_hook, back] = [(); 4].map(|()| decoder.decode());
        assert_eq!((compare.mnemonic(), compare.immediate8()), (Mnemonic::Cmp, 0));
        assert_eq!(compare.ip_rel_memory_address() as usize, SWITCHES + N_SWITCHES + switch);
        assert_eq!((skip.mnemonic(), skip.near_branch_target()), (Mnemonic::Je, back.ip()));
        assert_eq!((to_hook.mnemonic(), to_hook.ip_rel_memory_address() as usize), (way, START + hook * WORD));
        assert_eq!((back.mnemonic(), back.next_ip() as usize), (Mnemonic::Ret, thunk + THUNK_BYTES));
    }

    #[test]
    fn calls_lead_to_the_hooks() {
        let (thunks, code) = thunks();
        for (kind, hook) in [(SledKind::Entry, 0), (SledKind::Exit, 1), (SledKind::TailCall, 1)] {
            let bytes = thunks.call(&Sled { function: 0x40_0000, address: 0x40_1000, kind }).unwrap();
            assert!(bytes.len() <= SLED_BYTES);
            let is_exit = kind == SledKind::Exit;
            let mut decoder = Decoder::with_ip(64, &bytes, 0x40_1000, DecoderOptions::NONE);
            let way = decoder.decode();
            assert_eq!(way.mnemonic(), if is_exit { Mnemonic::Jmp } else { Mnemonic::Call });
            let thunk = way.near_branch_target() as usize;
            assert!(thunks.range().contains(&thunk));
            assert!(is_exit || decoder.decode().mnemonic() == Mnemonic::Nop);
            assert_eq!(decoder.position(), bytes.len());
            check(&code, thunk, hook, if is_exit { Mnemonic::Call } else { Mnemonic::Jmp }, hook);
        }
        assert_eq!(thunks.call(&Sled { function: 0x41_0000, address: 0x41_0000, kind: SledKind::Entry }), None);
    }

    /// In a program that runs.
    #[test]
    fn one_instruction_takes_the_place_of_a_sled() {
        const SLED: [u8; SLED_BYTES] = [0x90; SLED_BYTES];

        let (thunks, code) = thunks();
        for (kind, hook, n_bytes) in [(SledKind::Entry, 0, 11), (SledKind::TailCall, 1, 11), (SledKind::Exit, 1, 5)] {
            let sled = Sled { function: 0x40_0000, address: 0x40_1000, kind };
            let bytes = thunks.prepared(&sled, &SLED).unwrap().branched();
            let mut decoder = Decoder::with_ip(64, &bytes, 0x40_1000, DecoderOptions::NONE);
            let instruction = decoder.decode();
            let is_exit = kind == SledKind::Exit;
            assert_eq!(instruction.mnemonic(), if is_exit { Mnemonic::Jmp } else { Mnemonic::Call });
            assert_eq!((instruction.len(), bytes.len()), (n_bytes, SLED_BYTES));
            let thunk = instruction.near_branch_target() as usize;
            assert!(thunks.range().contains(&thunk));
            check(&code, thunk, hook, if is_exit { Mnemonic::Call } else { Mnemonic::Jmp }, hook);
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
