//! Memory for the stubs of a module, and their unwind information.
//!
//! ```text
//! area   +0    address of rftrace_entry
//!        +16   three words for each function: where it goes on, its name, where a displaced call returns to
//!        …     stubs:
//!          +0    push [rip + …]      where the function goes on: at the copy, or in another module
//!          +6    push [rip + …]      what records and filters name it by: its address, or that of the slot for it
//!          +12   jmp [rip + …]       rftrace_entry, which goes on there
//!          +18   the displaced instructions, if it has a branch, as `relocate` makes them
//! ```
//!
//! A signal may strike in a stub. Its frame is the function's at the instruction that runs there as a copy, with rsp as it is,
//! less what the stub has pushed. So each instruction has a row with these two; as to the rest see [`unwind`](crate::patch::unwind).

use std::io;
use std::ops::Range;

use iced_x86::Instruction;

use super::relocate::{self, Copied, Row};
use crate::elf::file::page_size;
use crate::patch::stubs::{distance, map_code, places};
use crate::patch::unwind::{Reader, append, append_common};

unsafe extern "C" {
    fn rftrace_entry();
}

const WORD: usize = size_of::<usize>();
const WORDS_AT: usize = 2 * WORD;
const WORDS_BYTES: usize = 3 * WORD;
const COPY_AT: usize = 18;
/// `int3`
const FILLER: u8 = 0xcc;
const PUSH: [u8; 2] = [0xff, 0x35];
const JUMP: [u8; 2] = [0xff, 0x25];
const STUB_ALIGN: usize = 16;
/// More than any stub takes: a few displaced instructions, which may become twice as long, and a jump.
const LARGEST: usize = 128;

/// A function that gets a stub.
#[derive(Debug)]
pub(super) struct Wanted {
    /// What records and filters name it by.
    pub(super) name: usize,
    pub(super) goes_on: GoesOn,
}

/// Where a function goes on behind the hook.
#[derive(Debug)]
pub(super) enum GoesOn {
    /// In a copy of its first instructions: its name is its address.
    Copy(Vec<Instruction>),
    /// At its address, whole.
    Whole(usize),
}

/// The stubs of a module.
#[derive(Debug)]
pub(super) struct Area {
    stubs: Range<usize>,
    /// In the order of the functions; `None` for those whose beginnings cannot run elsewhere.
    placed: Vec<Option<Placed>>,
}

#[derive(Debug)]
struct Placed {
    /// Its address.
    function: usize,
    stub: usize,
    end: usize,
    rows: Vec<Row>,
}

/// The address of the hook.
pub(super) fn hook() -> usize {
    rftrace_entry as *const () as usize
}

impl Area {
    /// Makes stubs for functions of `module`. `mapped` are the mapped ranges of this process, ascending.
    pub(super) fn new(module: &Range<usize>, wanted: &[Wanted], mapped: &[Range<usize>]) -> io::Result<Self> {
        let page = usize::try_from(page_size()).unwrap_or(4096);
        let most = (WORDS_AT + wanted.len() * (WORDS_BYTES + LARGEST) + STUB_ALIGN).next_multiple_of(page);
        let mut last = io::Error::new(io::ErrorKind::OutOfMemory, "no free addresses within 2 GiB");
        for start in places(module, most, mapped, page) {
            let (area, mut contents) = Self::at(start, wanted);
            contents.resize(contents.len().next_multiple_of(page), FILLER);
            match map_code(start, &contents) {
                Ok(()) => return Ok(area),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The stubs and the contents of an area that begins at `start`.
    fn at(start: usize, wanted: &[Wanted]) -> (Self, Vec<u8>) {
        let mut contents = vec![0; WORDS_AT + wanted.len() * WORDS_BYTES];
        contents[..WORD].copy_from_slice(&hook().to_le_bytes());
        contents.resize(contents.len().next_multiple_of(STUB_ALIGN), FILLER);
        let first = start + contents.len();
        let mut placed = Vec::with_capacity(wanted.len());
        for (idx, function) in wanted.iter().enumerate() {
            let words_at = WORDS_AT + idx * WORDS_BYTES;
            let stub = start + contents.len();
            let copy = stub + COPY_AT;
            let (at, goes_on, copied) = match &function.goes_on {
                GoesOn::Whole(at) => (*at, *at, Some(Copied::default())),
                GoesOn::Copy(instructions) => {
                    (function.name, copy, relocate::copy(instructions, copy, start + words_at + 2 * WORD))
                }
            };
            let copied = copied.filter(|copied| COPY_AT + copied.code.len() <= LARGEST - STUB_ALIGN);
            let Some(Copied { code, rows, returns_to }) = copied else {
                placed.push(None);
                continue;
            };
            for (word, value) in [goes_on, function.name, returns_to.unwrap_or(0)].into_iter().enumerate() {
                let place = words_at + word * WORD;
                contents[place..place + WORD].copy_from_slice(&value.to_le_bytes());
            }
            for (opcode, target) in [(PUSH, start + words_at), (PUSH, start + words_at + WORD), (JUMP, start)] {
                contents.extend_from_slice(&opcode);
                let end = start + contents.len() + size_of::<i32>();
                contents.extend_from_slice(&distance(end, target).to_le_bytes());
            }
            contents.extend_from_slice(&code);
            placed.push(Some(Placed { function: at, stub, end: copy + code.len(), rows }));
            contents.resize(contents.len().next_multiple_of(STUB_ALIGN), FILLER);
        }
        (Self { stubs: first..start + contents.len(), placed }, contents)
    }

    /// The addresses of the stubs.
    pub(super) fn stubs(&self) -> Range<usize> {
        self.stubs.clone()
    }

    /// Where the stub of a function begins, which is given by its place in the list.
    pub(super) fn stub(&self, idx: usize) -> Option<usize> {
        self.placed.get(idx)?.as_ref().map(|placed| placed.stub)
    }

    /// Where each displaced instruction was, behind the function's beginning, and where its copy is, behind that of its stub.
    pub(super) fn copies(&self, idx: usize) -> impl Iterator<Item = (usize, usize)> {
        let placed = self.placed.get(idx).and_then(Option::as_ref).into_iter();
        placed.flat_map(|placed| {
            let function = placed.function;
            placed.rows.iter().map(move |row| (row.original.wrapping_sub(function), COPY_AT + row.at))
        })
    }

    /// The section `.eh_frame` of the stubs, and where descriptions begin in it.
    pub(super) fn frames(&self, reader: Reader) -> (Vec<u8>, Vec<usize>) {
        let mut bytes = Vec::new();
        let mut descriptions = Vec::new();
        // def_cfa rsp 1: an address that no frame has.
        append_common(&mut bytes, reader, &[0x0c, RSP, 0x01]);
        for placed in self.placed.iter().flatten() {
            descriptions.push(bytes.len());
            append(&mut bytes, |bytes| {
                bytes.extend_from_slice(&(bytes.len() as u32).to_le_bytes()); // the distance to the CIE, at 0
                bytes.extend_from_slice(&placed.stub.to_le_bytes());
                bytes.extend_from_slice(&(placed.end - placed.stub).to_le_bytes());
                bytes.push(0); // length of the augmentation's data
                placed.append_rules(bytes, reader);
            });
        }
        // The end.
        bytes.extend_from_slice(&[0; 4]);
        (bytes, descriptions)
    }
}

/// DWARF's numbers of rsp and the return address, which is the program counter of the function's frame.
const RSP: u8 = 7;
const RETURN_ADDRESS: u8 = 16;

impl Placed {
    fn append_rules(&self, bytes: &mut Vec<u8>, reader: Reader) {
        let in_stub = [(0, 0), (6, 8), (12, 16)].map(|(at, pushed)| (at, self.function, pushed));
        let in_copy = self.rows.iter().map(|row| (COPY_AT + row.at, row.original, row.pushed));
        let mut before = 0;
        for (at, original, pushed) in in_stub.into_iter().chain(in_copy) {
            if at > before {
                bytes.extend_from_slice(&[0x02, (at - before) as u8]); // advance_loc1
                before = at;
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    fn wanted(start: usize, code: &[u8]) -> Wanted {
        let decoder = Decoder::with_ip(64, code, start as u64, DecoderOptions::NONE);
        Wanted { name: start, goes_on: GoesOn::Copy(decoder.into_iter().collect()) }
    }

    #[test]
    fn stubs_push_what_the_hook_takes() {
        const START: usize = 0x10_0000;
        // push rbp; mov rbp, rsp; push rbx. jrcxz cannot move. push rax; call +0.
        let list = [
            wanted(0x40_1000, &[0x55, 0x48, 0x89, 0xe5, 0x53]),
            wanted(0x40_2000, &[0xe3, 0x10, 0x90, 0x90, 0x90]),
            wanted(0x40_3000, &[0x50, 0xe8, 0, 0, 0, 0]),
        ];
        let (area, contents) = Area::at(START, &list);
        let word = |at: usize| usize::from_le_bytes(contents[at - START..][..WORD].try_into().unwrap());
        assert_eq!(word(START), hook());
        assert_eq!(area.stub(1), None);
        for (idx, returns_to) in [(0, 0), (2, 0x40_3006)] {
            let stub = area.stub(idx).unwrap();
            let code = &contents[stub - START..];
            let mut decoder = Decoder::with_ip(64, code, stub as u64, DecoderOptions::NONE);
            let [copy, function, jump] = [(); 3].map(|()| decoder.decode().ip_rel_memory_address() as usize);
            assert_eq!([word(copy), word(function)], [stub + COPY_AT, list[idx].name]);
            assert_eq!(jump, START);
            assert_eq!(word(START + WORDS_AT + idx * WORDS_BYTES + 2 * WORD), returns_to);
        }
    }

    #[test]
    fn whole_functions_go_on_at_their_addresses() {
        const START: usize = 0x10_0000;
        let (area, contents) = Area::at(START, &[Wanted { name: 0x40_4018, goes_on: GoesOn::Whole(0x7000_1230) }]);
        let words: Vec<usize> =
            contents.chunks_exact(WORD).map(|word| usize::from_le_bytes(word.try_into().unwrap())).collect();
        assert_eq!(words[WORDS_AT / WORD..][..3], [0x7000_1230, 0x40_4018, 0]);
        let stub = area.stub(0).unwrap();
        assert_eq!(area.stubs().len(), COPY_AT.next_multiple_of(STUB_ALIGN));
        assert_eq!(contents[stub - START + COPY_AT], FILLER);
    }

    #[test]
    fn frames_are_whole() {
        let (area, _) = Area::at(0x10_0000, &[wanted(0x40_1000, &[0x55, 0x48, 0x89, 0xe5, 0x53])]);
        let (bytes, descriptions) = area.frames(Reader::Unwinder);
        let length = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        assert_eq!(length(0) + 4, descriptions[0]);
        assert_eq!(length(descriptions[0] + 4), descriptions[0] + 4, "the distance to the CIE");
        assert_eq!(descriptions[0] + 4 + length(descriptions[0]) + 4, bytes.len());
    }
}
