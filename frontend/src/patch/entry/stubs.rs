//! Memory for the stubs of a module, and their unwind information.
//!
//! ```text
//! area   +0    a byte for each function: whether it is switched on, see `patch::switches`
//!        …     a word for each function, if one of another module is among them: where it goes on
//! next page:
//!        +0    address of the hook: rftrace_entry, or one of somebody else
//!        +16   three words for each function: where its copy is, its name, where a displaced call returns to
//!        …     stubs:
//!          +0    cmp byte ptr [rip + …], 0
//!          +7    jne                 to the pushes
//!          +9    the displaced instructions, if it has a branch, as `relocate` makes them; or jmp [rip + …], where it goes on
//!          …     push [rip + …]      where it goes on: at +9, or in another module
//!                push [rip + …]      what records and filters name it by: its address, or that of the slot for it; or
//!                                    what another hook is told
//!                jmp [rip + …]       the hook, which goes on there
//! ```
//!
//! A function of another module may go on elsewhere later: at its replacement. So that word can be written.
//!
//! Flags are dead at a function's beginning. Off, a call costs two taken jumps, to the stub and back, and a comparison.
//!
//! A signal may strike in a stub. Its frame is the function's at the original of the copied instruction, with rsp less
//! the stub's pushes. So each instruction has a row with these two; for the rest see [`unwind`](crate::patch::unwind).

use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Release;

use iced_x86::Instruction;
use rftrace_format::branches::Branch;

use super::functions::BRANCH_BYTES;
use super::relocate::{self, Copied, Row};
use crate::elf::file::page_size;
use crate::patch::library::Stub;
use crate::patch::memory::places;
use crate::patch::sites::Site;
use crate::patch::stubs::{REACH, distance};
use crate::patch::switches::{Bytes, Switch, way_at};
use crate::patch::unwind::{Reader, append_common};
use crate::patch::unwinder::append;

unsafe extern "C" {
    fn rftrace_entry();
    fn rftrace_entry_with_ends();
}

const WORD: usize = size_of::<usize>();
const WORDS_AT: usize = 2 * WORD;
const WORDS_BYTES: usize = 3 * WORD;
/// `cmp byte ptr [rip + …], 0`: the opcode, and the byte behind the distance.
const COMPARE: ([u8; 2], u8) = ([0x80, 0x3d], 0);
/// `jne`, by a distance of one byte.
const JUMP_IF_ON: u8 = 0x75;
const JUMP_IF_ON_AT: usize = 7;
const COPY_AT: usize = 9;
/// `int3`
const FILLER: u8 = 0xcc;
const PUSH: [u8; 2] = [0xff, 0x35];
const JUMP: [u8; 2] = [0xff, 0x25];
/// Bytes of an instruction with a distance of four.
const PUSH_BYTES: usize = PUSH.len() + size_of::<i32>();
/// The pushes and the jump to the hook.
const WAY_BYTES: usize = 3 * PUSH_BYTES;
const STUB_ALIGN: usize = 16;
/// More than any stub takes: a few displaced instructions, maybe twice as long, and a jump.
const LARGEST: usize = 128;

/// A function that gets a stub.
#[derive(Debug)]
pub(super) struct Wanted {
    /// Its name in records and filters.
    pub(super) name: usize,
    /// Value for the hook: the name, if the hook is the tracer's.
    pub(super) told: usize,
    pub(super) goes_on: GoesOn,
}

/// The target of a function behind the hook.
#[derive(Debug)]
pub(super) enum GoesOn {
    /// In a copy of its first instructions: its name is its address.
    Copy(Vec<Instruction>),
    /// At its address, whole.
    Whole(usize),
}

impl Wanted {
    /// Returns the bytes of the instructions that make room for a branch, up to its end.
    pub(super) fn n_displaced(&self) -> usize {
        match &self.goes_on {
            GoesOn::Copy(instructions) => instructions.iter().map(Instruction::len).sum::<usize>().max(BRANCH_BYTES),
            GoesOn::Whole(_) => 0,
        }
    }
}

/// Stubs at their place, in memory of this process or another one.
#[derive(Debug)]
pub(super) struct Stubs {
    range: Range<usize>,
    /// In the order of the functions; `None` for beginnings that cannot run elsewhere.
    placed: Vec<Option<Placed>>,
}

/// The stubs of a module of this process.
#[derive(Debug)]
pub(super) struct Area {
    pub(super) stubs: Stubs,
    bytes: Bytes,
}

#[derive(Debug)]
struct Placed {
    /// Its address.
    function: usize,
    stub: usize,
    /// The stub's pushes: their beginning, and their end.
    way_at: usize,
    end: usize,
    rows: Vec<Row>,
}

/// The address of the hook.
pub(super) fn hook() -> usize {
    rftrace_entry as *const () as usize
}

/// Returns the hook of functions with branches at their ends: return addresses stay.
pub(super) fn hook_with_ends() -> usize {
    rftrace_entry_with_ends as *const () as usize
}

/// Returns the maximum bytes of the stubs of so many functions, in whole pages, without their switches.
pub(super) fn most_bytes(n_functions: usize) -> usize {
    let page = usize::try_from(page_size()).unwrap_or(4096);
    (WORDS_AT + n_functions * (WORDS_BYTES + LARGEST) + STUB_ALIGN).next_multiple_of(page)
}

impl Area {
    /// Makes stubs for functions of `module`, with a hook as target, all off. `mapped` are the mapped ranges of this
    /// process, ascending.
    pub(super) fn new(
        module: &Range<usize>,
        wanted: &[Wanted],
        hook: usize,
        mapped: &[Range<usize>],
    ) -> io::Result<Self> {
        let page = usize::try_from(page_size()).unwrap_or(4096);
        let mut last = io::Error::new(io::ErrorKind::OutOfMemory, "no free addresses within 2 GiB");
        let is_whole = |function: &Wanted| matches!(function.goes_on, GoesOn::Whole(_));
        let n_bytes = Bytes::number(wanted.len(), wanted.iter().any(is_whole));
        let pages_bytes = Bytes::pages_bytes(n_bytes);
        for start in places(module, pages_bytes + most_bytes(wanted.len()), mapped, (page, REACH)) {
            let (stubs, contents) = Stubs::new(start, start + pages_bytes, wanted, hook);
            match Bytes::map_before(&contents, start, n_bytes) {
                Ok(bytes) => {
                    let area = Self { stubs, bytes };
                    for (idx, function) in wanted.iter().enumerate() {
                        if let (Some(way), GoesOn::Whole(at)) = (area.goes_on(idx), &function.goes_on) {
                            way.store(*at, Release);
                        }
                    }
                    return Ok(area);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Returns the switch of a function's stub, by its place in the list.
    pub(super) fn switch(&self, idx: usize, site: Site) -> Option<Switch> {
        self.bytes.switch(idx, site, false)
    }

    /// Returns the target of a function of another module, by its place in the list. `None` for others.
    fn goes_on(&self, idx: usize) -> Option<&'static AtomicUsize> {
        self.bytes.way(self.stubs.placed.len(), idx)
    }

    /// The stub for calls of such a function.
    pub(super) fn call_stub(&self, idx: usize, site: Site) -> Option<Stub> {
        Some(Stub { start: self.stubs.stub(idx)?, goes_on: self.goes_on(idx)?, switch: self.switch(idx, site)? })
    }
}

impl Stubs {
    /// Returns stubs for functions with switches at `switches`, and the contents of their memory at `start`: whole
    /// pages.
    pub(super) fn new(switches: usize, start: usize, wanted: &[Wanted], hook: usize) -> (Self, Vec<u8>) {
        let page = usize::try_from(page_size()).unwrap_or(4096);
        let (range, placed, mut contents) = contents(switches, start, wanted, hook);
        contents.resize(contents.len().next_multiple_of(page), FILLER);
        (Self { range, placed }, contents)
    }

    /// Their addresses.
    pub(super) fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Returns the place of a function's stub, by its place in the list.
    pub(super) fn stub(&self, idx: usize) -> Option<usize> {
        self.placed.get(idx)?.as_ref().map(|placed| placed.stub)
    }

    /// The branch to that stub, in place of the function's first bytes.
    pub(super) fn branch(&self, idx: usize, displaced: &[u8]) -> Option<Branch> {
        let Placed { function, stub, rows, .. } = self.placed.get(idx)?.as_ref()?;
        // Where each displaced instruction was, behind the function's beginning, and where its copy is, behind that of its stub.
        let copies = rows.iter().map(|row| (row.original.wrapping_sub(*function), COPY_AT + row.at));
        Branch::new(*function as u64, *stub as u64, displaced, copies)
    }

    /// Returns the section `.eh_frame` of the stubs, and the places of descriptions in it.
    pub(super) fn frames(&self, reader: Reader) -> (Vec<u8>, Vec<usize>) {
        frames(&self.placed, reader)
    }
}

fn frames(placed: &[Option<Placed>], reader: Reader) -> (Vec<u8>, Vec<usize>) {
    section_of(reader, placed.iter().flatten(), |bytes, placed| {
        append_description(bytes, reader, &(placed.stub..placed.end), placed.rules());
    })
}

/// Returns the section `.eh_frame` of stubs, each described by `append`, and the places of descriptions in it.
pub(super) fn section_of<T>(
    reader: Reader,
    stubs: impl Iterator<Item = T>,
    append: impl Fn(&mut Vec<u8>, T),
) -> (Vec<u8>, Vec<usize>) {
    let mut bytes = Vec::new();
    let mut descriptions = Vec::new();
    // def_cfa rsp 1: an address that no frame has.
    append_common(&mut bytes, reader, &[0x0c, RSP, 0x01]);
    for stub in stubs {
        descriptions.push(bytes.len());
        append(&mut bytes, stub);
    }
    // The end.
    bytes.extend_from_slice(&[0; 4]);
    (bytes, descriptions)
}

/// Appends the description of a stub: the places of its instructions, the original of each, and the pushed bytes there.
pub(super) fn append_description(
    bytes: &mut Vec<u8>,
    reader: Reader,
    range: &Range<usize>,
    rules: impl Iterator<Item = (usize, usize, u8)>,
) {
    append(bytes, |bytes| {
        bytes.extend_from_slice(&(bytes.len() as u32).to_le_bytes()); // the distance to the CIE, at 0
        bytes.extend_from_slice(&range.start.to_le_bytes());
        bytes.extend_from_slice(&range.len().to_le_bytes());
        bytes.push(0); // length of the augmentation's data
        append_rules(bytes, reader, rules);
    });
}

fn append_rules(bytes: &mut Vec<u8>, reader: Reader, rules: impl Iterator<Item = (usize, usize, u8)>) {
    let mut last = 0;
    for (at, original, pushed) in rules {
        if at > last {
            bytes.extend_from_slice(&[0x02, (at - last) as u8]); // advance_loc1
            last = at;
        }
        // A debugger looks at the address before.
        let original = original + usize::from(reader == Reader::Debugger);
        // val_expression: const8u
        bytes.extend_from_slice(&[0x16, RETURN_ADDRESS, 9, 0x0e]);
        bytes.extend_from_slice(&original.to_le_bytes());
        // val_expression: breg7 pushed
        bytes.extend_from_slice(&[0x16, RSP, 2, 0x77, pushed]);
    }
}

/// Returns the stubs of functions with switches at `switches`, and the contents of their memory at `start`.
fn contents(
    switches: usize,
    start: usize,
    wanted: &[Wanted],
    hook: usize,
) -> (Range<usize>, Vec<Option<Placed>>, Vec<u8>) {
    let mut contents = vec![0; WORDS_AT + wanted.len() * WORDS_BYTES];
    contents[..WORD].copy_from_slice(&hook.to_le_bytes());
    contents.resize(contents.len().next_multiple_of(STUB_ALIGN), FILLER);
    let first = start + contents.len();
    let mut placed = Vec::with_capacity(wanted.len());
    for (idx, function) in wanted.iter().enumerate() {
        let words_at = WORDS_AT + idx * WORDS_BYTES;
        let word = |number: usize| start + words_at + number * WORD;
        let stub = start + contents.len();
        let copy = stub + COPY_AT;
        let (at, way, copied) = match &function.goes_on {
            GoesOn::Whole(at) => {
                let way = switches + way_at(wanted.len(), idx);
                (*at, way, Copied::jump(*at, copy, way))
            }
            GoesOn::Copy(instructions) => (function.name, word(0), relocate::copy(instructions, copy, word(2))),
        };
        // The jump to the way to the hook is a short one.
        let copied = copied.filter(|copied| COPY_AT + copied.code.len() + WAY_BYTES <= LARGEST - STUB_ALIGN);
        let Some(Copied { code, rows, returns_to }) = copied else {
            placed.push(None);
            continue;
        };
        for (number, value) in [copy, function.told, returns_to.unwrap_or(0)].into_iter().enumerate() {
            let place = words_at + number * WORD;
            contents[place..place + WORD].copy_from_slice(&value.to_le_bytes());
        }
        let way_at = COPY_AT + code.len();
        contents.extend_from_slice(&COMPARE.0);
        contents.extend_from_slice(&distance(stub + JUMP_IF_ON_AT, switches + idx).to_le_bytes());
        contents.extend_from_slice(&[COMPARE.1, JUMP_IF_ON, code.len() as u8]);
        contents.extend_from_slice(&code);
        for (opcode, target) in [(PUSH, way), (PUSH, word(1)), (JUMP, start)] {
            contents.extend_from_slice(&opcode);
            let end = start + contents.len() + size_of::<i32>();
            contents.extend_from_slice(&distance(end, target).to_le_bytes());
        }
        placed.push(Some(Placed { function: at, stub, way_at, end: start + contents.len(), rows }));
        contents.resize(contents.len().next_multiple_of(STUB_ALIGN), FILLER);
    }
    (first..start + contents.len(), placed, contents)
}

/// DWARF's numbers of rsp and the return address, the program counter of the function's frame.
const RSP: u8 = 7;
const RETURN_ADDRESS: u8 = 16;

impl Placed {
    /// Returns the places of its instructions, the original of each, and the pushed bytes there.
    fn rules(&self) -> impl Iterator<Item = (usize, usize, u8)> {
        let before = [0, JUMP_IF_ON_AT].map(|at| (at, self.function, 0));
        let in_copy = self.rows.iter().map(|row| (COPY_AT + row.at, row.original, row.pushed));
        let in_way = [0, 1, 2].map(|n| (self.way_at + n * PUSH_BYTES, self.function, (n * WORD) as u8));
        before.into_iter().chain(in_copy).chain(in_way)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Acquire;

    use super::*;
    use crate::patch::poke::Pages;
    use iced_x86::{Code, Decoder, DecoderOptions};

    fn wanted(start: usize, code: &[u8]) -> Wanted {
        let decoder = Decoder::with_ip(64, code, start as u64, DecoderOptions::NONE);
        Wanted { name: start, told: start, goes_on: GoesOn::Copy(decoder.into_iter().collect()) }
    }

    const SWITCHES: usize = 0xf_0000;
    const START: usize = 0x10_0000;

    fn word(contents: &[u8], at: usize) -> usize {
        usize::from_le_bytes(contents[at - START..][..WORD].try_into().unwrap())
    }

    /// Checks the way to the hook, and returns the places of the pushed words.
    fn pushed(contents: &[u8], placed: &Placed, idx: usize) -> [usize; 2] {
        let mut decoder =
            Decoder::with_ip(64, &contents[placed.stub - START..], placed.stub as u64, DecoderOptions::NONE);
        let (compare, jump) = (decoder.decode(), decoder.decode());
        assert_eq!((compare.code(), compare.immediate8()), (Code::Cmp_rm8_imm8, 0));
        assert_eq!(compare.ip_rel_memory_address() as usize, SWITCHES + idx);
        assert_eq!((jump.code(), jump.next_ip() as usize), (Code::Jne_rel8_64, placed.stub + COPY_AT));
        let way = jump.near_branch_target() as usize;
        assert_eq!(way, placed.stub + placed.way_at);
        let mut decoder = Decoder::with_ip(64, &contents[way - START..], way as u64, DecoderOptions::NONE);
        let [goes_on, name, hook] = [(); 3].map(|()| decoder.decode().ip_rel_memory_address() as usize);
        assert_eq!((hook, decoder.ip() as usize), (START, placed.end));
        [goes_on, name]
    }

    #[test]
    fn stubs_push_what_the_hook_takes() {
        // push rbp; mov rbp, rsp; push rbx. jrcxz cannot move. push rax; call +0.
        let list = [
            wanted(0x40_1000, &[0x55, 0x48, 0x89, 0xe5, 0x53]),
            wanted(0x40_2000, &[0xe3, 0x10, 0x90, 0x90, 0x90]),
            wanted(0x40_3000, &[0x50, 0xe8, 0, 0, 0, 0]),
        ];
        let (_, placed, contents) = contents(SWITCHES, START, &list, hook());
        assert_eq!(word(&contents, START), hook());
        assert!(placed[1].is_none());
        for (idx, returns_to) in [(0, 0), (2, 0x40_3006)] {
            let placed = placed[idx].as_ref().unwrap();
            let pushed = pushed(&contents, placed, idx).map(|place| word(&contents, place));
            assert_eq!(pushed, [placed.stub + COPY_AT, list[idx].name]);
            assert_eq!(word(&contents, START + WORDS_AT + idx * WORDS_BYTES + 2 * WORD), returns_to);
        }
    }

    #[test]
    fn whole_functions_go_on_where_a_word_says() {
        let list = [Wanted { name: 0x40_4018, told: 0x40_4018, goes_on: GoesOn::Whole(0x7000_1230) }];
        let (_, placed, contents) = contents(SWITCHES, START, &list, hook());
        let placed = placed[0].as_ref().unwrap();
        let way = SWITCHES + WORD;
        let [goes_on, name] = pushed(&contents, placed, 0);
        assert_eq!((goes_on, word(&contents, name)), (way, 0x40_4018));
        let copy = placed.stub + COPY_AT;
        let mut decoder = Decoder::with_ip(64, &contents[copy - START..], copy as u64, DecoderOptions::NONE);
        let jump = decoder.decode();
        assert_eq!((jump.code(), jump.next_ip() as usize), (Code::Jmp_rm64, placed.stub + placed.way_at));
        assert_eq!(jump.ip_rel_memory_address() as usize, way);

        let mapped: Vec<Range<usize>> = Pages::all().unwrap().into_iter().map(|pages| pages.range).collect();
        let area = Area::new(&(hook()..hook()), &list, hook(), &mapped).unwrap();
        assert_eq!(area.goes_on(0).unwrap().load(Acquire), 0x7000_1230);
    }

    /// A row for each instruction of a stub, in their order.
    #[test]
    fn rows_are_those_of_the_instructions() {
        let list = [wanted(0x40_1000, &[0x55, 0x48, 0x89, 0xe5, 0x53])];
        let (_, placed, contents) = contents(SWITCHES, START, &list, hook());
        let placed = placed[0].as_ref().unwrap();
        let code = &contents[placed.stub - START..placed.end - START];
        let decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
        let begins: Vec<usize> = decoder.into_iter().map(|instruction| instruction.ip() as usize).collect();
        let mut rules = Vec::new();
        append_rules(&mut rules, Reader::Unwinder, placed.rules());
        let mut rows = vec![0];
        while !rules.is_empty() {
            if rules[0] == 0x02 {
                rows.push(rows.last().unwrap() + usize::from(rules[1]));
                rules.drain(..2);
            }
            assert_eq!((rules[0], rules[12]), (0x16, 0x16));
            rules.drain(..17);
        }
        assert_eq!(rows, begins);
    }

    #[test]
    fn frames_are_whole() {
        let (_, placed, _) = contents(SWITCHES, START, &[wanted(0x40_1000, &[0x55, 0x48, 0x89, 0xe5, 0x53])], hook());
        let (bytes, descriptions) = frames(&placed, Reader::Unwinder);
        let length = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        assert_eq!(length(0) + 4, descriptions[0]);
        assert_eq!(length(descriptions[0] + 4), descriptions[0] + 4, "the distance to the CIE");
        assert_eq!(descriptions[0] + 4 + length(descriptions[0]) + 4, bytes.len());
    }
}
