//! Stubs of the branches at ends, and their unwind information.
//!
//! ```text
//! area   +0    a byte for each piece of a function: whether its ends are recorded
//! next page:
//!        +0    address of the hook: rftrace_sled_exit
//!        +16   stubs:
//!          +0    the displaced instructions
//!          …     cmp byte ptr [rip + …], 0; je    over the call
//!          …     call [rip + …]                   the hook
//!          …     the end: `ret`, or a jump
//! ```
//!
//! The hook stands in the place of a sled's: the frame is gone, flags and memory below the stack pointer are dead. Only
//! the hook returns to a stub.
//!
//! A signal may strike in a stub. Its frame is the function's at the original of the stub's instruction.
//!
//! Not here: the places of ends (`ends`).

use std::io;
use std::ops::Range;

use iced_x86::{Code, FlowControl, Instruction};
use rftrace_format::branches::{BRANCH_BYTES, Branch, Place};

use super::ends::{End, Room};
use crate::elf::file::page_size;
use crate::patch::entry::relocate::{Copied, Row};
use crate::patch::entry::stubs::{append_description, section_of};
use crate::patch::memory::places;
use crate::patch::module::Image;
use crate::patch::sites::Site;
use crate::patch::stubs::{REACH, distance};
use crate::patch::switches::{Bytes, Switch};
use crate::patch::unwind::Reader;

unsafe extern "C" {
    fn rftrace_sled_exit();
}

const FIRST_AT: usize = 16;
const STUB_ALIGN: usize = 16;
/// `cmp byte ptr [rip + …], 0`, without distance and number.
const COMPARE: [u8; 2] = [0x80, 0x3d];
const COMPARE_BYTES: usize = 7;
/// `je` over the call.
const JUMP_IF_OFF: [u8; 2] = [0x74, 6];
/// `call [rip + …]`
const CALL: [u8; 2] = [0xff, 0x15];
/// All three.
const HOOK_BYTES: usize = COMPARE_BYTES + JUMP_IF_OFF.len() + 6;
const FILLER: u8 = 0xcc;
/// More than a stub takes: up to four displaced instructions of 15 bytes, the hook's 15 bytes, and the end.
const LARGEST: usize = 112;

/// The stubs of a module, and the switches of its pieces.
#[derive(Debug)]
pub(super) struct Area {
    placed: Vec<Option<Placed>>,
    range: Range<usize>,
    bytes: Bytes,
}

#[derive(Debug)]
struct Placed {
    range: Range<usize>,
    rows: Vec<Row>,
}

impl Area {
    /// Makes stubs for ends, each with the place of its piece, of `n_pieces` in all. All are off.
    pub(super) fn new(
        module: &Range<usize>,
        ends: &[(usize, &End)],
        n_pieces: usize,
        mapped: &[Range<usize>],
    ) -> io::Result<Self> {
        let page = usize::try_from(page_size()).unwrap_or(4096);
        let pages_bytes = Bytes::pages_bytes(n_pieces);
        let most = (FIRST_AT + ends.len() * LARGEST).next_multiple_of(page);
        let mut last = io::Error::new(io::ErrorKind::OutOfMemory, "no free addresses within 2 GiB");
        for place in places(module, pages_bytes + most, mapped, (page, REACH)) {
            let start = place + pages_bytes;
            let (placed, mut contents) = contents(place, start, ends);
            let range = start + FIRST_AT..start + contents.len();
            contents.resize(contents.len().next_multiple_of(page), FILLER);
            match Bytes::map_before(&contents, place, n_pieces) {
                Ok(bytes) => return Ok(Self { placed, range, bytes }),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The stub of an end, by its place in the list.
    pub(super) fn stub(&self, idx: usize) -> Option<usize> {
        self.placed.get(idx)?.as_ref().map(|placed| placed.range.start)
    }

    /// The branch to that stub. `None` if the copy of the function's beginning has the end.
    pub(super) fn branch(&self, idx: usize, end: &End, image: &Image<'_>) -> Option<Branch> {
        let Placed { range, rows } = self.placed.get(idx)?.as_ref()?;
        let instruction = &end.instruction;
        let (place, start, length) = match end.room {
            Room::Beginning => return None,
            Room::Branch(at) => (Place::End, at, BRANCH_BYTES),
            Room::Condition => (Place::Condition, instruction.ip() as usize, 0),
        };
        let displaced = image.bytes(start..(start + length).max(instruction.next_ip() as usize))?;
        let copies = rows.iter().map(|row| (row.original.wrapping_sub(start), row.at));
        Branch::new(start as u64, range.start as u64, displaced, copies)?.at(place)
    }

    /// Returns the switch of a piece, for a function with it.
    pub(super) fn switch(&self, piece: usize, site: Site) -> Option<Switch> {
        self.bytes.switch(piece, site, true)
    }

    pub(super) fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Returns the section `.eh_frame` of the stubs, and the places of descriptions in it.
    pub(super) fn frames(&self, reader: Reader) -> (Vec<u8>, Vec<usize>) {
        section_of(reader, self.placed.iter().flatten(), |bytes, placed| {
            let rows = placed.rows.iter().map(|row| (row.at, row.original, row.pushed));
            append_description(bytes, reader, &placed.range, rows);
        })
    }
}

/// Returns the stubs, with their memory at `start` and their bytes at `switches`.
fn contents(switches: usize, start: usize, ends: &[(usize, &End)]) -> (Vec<Option<Placed>>, Vec<u8>) {
    let mut contents = (rftrace_sled_exit as *const () as usize).to_le_bytes().to_vec();
    contents.resize(FIRST_AT, FILLER);
    let mut placed = Vec::with_capacity(ends.len());
    for &(piece, end) in ends {
        let stub = start + contents.len();
        let copied =
            copy(end, stub, switches + piece, start).filter(|copied| copied.code.len() <= LARGEST - STUB_ALIGN);
        placed.push(copied.map(|Copied { code, rows, .. }| {
            contents.extend_from_slice(&code);
            contents.resize(contents.len().next_multiple_of(STUB_ALIGN), FILLER);
            Placed { range: stub..stub + code.len(), rows }
        }));
    }
    (placed, contents)
}

/// A stub at `stub`, with its byte at `switch` and the hook's address at `hook`.
fn copy(end: &End, stub: usize, switch: usize, hook: usize) -> Option<Copied> {
    let mut copied = Copied::default();
    for instruction in &end.displaced {
        copied.append(stub, instruction, instruction.ip() as usize)?;
    }
    let original = end.instruction.ip() as usize;
    let at = stub + copied.code.len();
    let compare = [&COMPARE, &distance(at + COMPARE_BYTES, switch).to_le_bytes()[..], &[0]].concat();
    let call = [&CALL, &distance(at + HOOK_BYTES, hook).to_le_bytes()[..]].concat();
    for code in [&compare[..], &JUMP_IF_OFF, &call] {
        copied.rows.push(Row { at: copied.code.len(), original, pushed: 0 });
        copied.code.extend_from_slice(code);
    }
    let last = match end.instruction.flow_control() {
        FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
            Instruction::with_branch(Code::Jmp_rel32_64, end.instruction.near_branch_target()).ok()?
        }
        _ => end.instruction,
    };
    copied.append(stub, &last, original)?;
    Some(copied)
}

#[cfg(test)]
mod tests {
    use super::super::ends::Room;
    use super::*;
    use iced_x86::{Decoder, DecoderOptions, Mnemonic};

    const SWITCHES: usize = 0xf_0000;
    const START: usize = 0x10_0000;
    const FUNCTION: u64 = 0x40_1000;

    fn decode(code: &[u8], at: u64) -> Vec<Instruction> {
        Decoder::with_ip(64, code, at, DecoderOptions::NONE).into_iter().collect()
    }

    /// An end: the last of these instructions.
    fn end(code: &[u8]) -> End {
        let mut displaced = decode(code, FUNCTION);
        let instruction = displaced.pop().unwrap();
        End { instruction, displaced, room: Room::Branch(FUNCTION as usize) }
    }

    /// Returns the instructions of a stub, for the end of piece number 3; a row has the original of each.
    fn stub(end: &End) -> Vec<Instruction> {
        let (placed, contents) = contents(SWITCHES, START, &[(3, end)]);
        let Placed { range, rows } = placed[0].as_ref().unwrap();
        let code = decode(&contents[range.start - START..range.end - START], range.start as u64);
        let places: Vec<usize> = code.iter().map(|instruction| instruction.ip() as usize - range.start).collect();
        assert_eq!(rows.iter().map(|row| row.at).collect::<Vec<_>>(), places);
        let n_displaced = end.displaced.len();
        let originals: Vec<usize> = end.displaced.iter().map(|instruction| instruction.ip() as usize).collect();
        assert_eq!(rows[..n_displaced].iter().map(|row| row.original).collect::<Vec<_>>(), originals);
        assert!(rows[n_displaced..].iter().all(|row| row.original == end.instruction.ip() as usize));
        let [compare, jump, call] = code[n_displaced..][..3] else { panic!("{code:?}") };
        assert_eq!((compare.ip_rel_memory_address() as usize, compare.immediate8()), (SWITCHES + 3, 0));
        assert_eq!((jump.mnemonic(), jump.near_branch_target()), (Mnemonic::Je, call.next_ip()));
        assert_eq!((call.code(), call.ip_rel_memory_address() as usize), (Code::Call_rm64, START));
        code
    }

    #[test]
    fn hooks_are_called_right_before_the_end() {
        // pop rbx; pop r12; ret
        let code = stub(&end(&[0x5b, 0x41, 0x5c, 0xc3]));
        assert_eq!(
            [code[0].mnemonic(), code[1].mnemonic(), code[5].mnemonic()],
            [Mnemonic::Pop, Mnemonic::Pop, Mnemonic::Ret]
        );
        // add rsp, 8; jmp +0x20
        let code = stub(&end(&[0x48, 0x83, 0xc4, 8, 0xeb, 0x20]));
        assert_eq!((code[4].code(), code[4].near_branch_target()), (Code::Jmp_rel32_64, FUNCTION + 0x26));
        // jne +0x20: a thread that comes here jumps.
        let code = stub(&end(&[0x75, 0x20]));
        assert_eq!((code[3].code(), code[3].near_branch_target()), (Code::Jmp_rel32_64, FUNCTION + 0x22));
        // jmp [rip + 0x10]; jmp rax
        assert_eq!(stub(&end(&[0xff, 0x25, 0x10, 0, 0, 0]))[3].ip_rel_memory_address(), FUNCTION + 0x16);
        assert_eq!(stub(&end(&[0xff, 0xe0]))[3].code(), Code::Jmp_rm64);
    }
}
