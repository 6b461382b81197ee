//! Memory for the stubs of a module, and their unwind information.
//!
//! ```text
//! area   +0    a byte for each function: whether it is switched on, see `patch::switches`
//!        …     a word for each function of another module: where it goes on
//! next page, for each function:
//!        adrp x16, …; ldrb w16, […]; cbz w16, copy        off: no hook
//!        autiasp                                          if the function has signed its return address
//!        adr x17, goes_on; ldr x16, hook; br x16          to the hook, however far that is
//!        what records name the function by << 16
//!        where a thread's words are, from tpidr_el0
//!        address of the hook
//! goes_on:
//!        paciasp                                          as above
//! copy:  the displaced instruction, as `relocate` makes it
//! back:  b                                                behind it
//!        or, of another module: adrp x16, …; ldr x16, […]; br x16
//! ```
//!
//! Flags are kept, and all registers but x16 and x17.
//!
//! A signal may strike in a stub. Up to the copy, and in it, its frame is that of a function called by the function's
//! caller: the function has not begun.
//!
//! Behind a copy that may have moved the stack pointer or signed the return address, its frame is the function's own,
//! at the next instruction, and all registers are as they are. It is described as a signal frame, so unwinders look up
//! the address itself; its CFA is none of the frames around it.
//!
//! Not here: the format and registration of entries (`patch::unwinder`).
//!
//! Sources: DWARF 5 section 6.4, DWARF for the Arm 64-bit Architecture 4.

use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Release;

use super::functions::Displaced;
use super::relocate::{self, Copied};
use crate::elf::file::page_size;
use crate::patch::library;
use crate::patch::memory::places;
use crate::patch::sites::Site;
use crate::patch::switches::{Bytes, Switch, way_at};
use crate::patch::unwinder::{append, append_cie, register_section};

unsafe extern "C" {
    fn rftrace_keeping_entry();
    safe fn rftrace_backend_words_offset() -> usize;
}

/// The reach of a branch, less the excess length of an area.
const REACH: usize = (1 << 27) - (1 << 16);
/// More than any stub takes.
const LARGEST: usize = 96;
const ALIGN: usize = 16;
const WORD: usize = size_of::<u32>();
/// Bytes of the words in front of the function's continuation.
const WORDS_BYTES: usize = 3 * size_of::<usize>();

/// `brk #0x7ace`
const FILLER: u32 = 0xd42f_59c0;
const NOP: u32 = 0xd503_201f;
const X16: u32 = 16;
const X17: u32 = 17;
/// `br x16`
const BR_X16: u32 = 0xd61f_0200;
/// `paciasp` and `autiasp` differ so, and the two of the other key.
const AUTHENTICATING: u32 = 0xd503_23bf ^ 0xd503_233f;
const PACIBSP: u32 = 0xd503_237f;

/// A function that gets a stub.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// Its name in records and filters: its address, or that of the slot for it.
    pub(super) name: usize,
    pub(super) goes_on: GoesOn,
}

/// The target of a function behind the hook.
#[derive(Clone, Copy, Debug)]
pub(super) enum GoesOn {
    /// In a copy of its instruction.
    Copy(Displaced),
    /// At its address, whole.
    Whole(usize),
}

impl Wanted {
    /// Returns the place of its branch, if it has one.
    pub(super) fn branch_at(&self) -> Option<usize> {
        match self.goes_on {
            GoesOn::Copy(displaced) => Some(displaced.at),
            GoesOn::Whole(_) => None,
        }
    }
}

/// The stubs of a module.
#[derive(Debug)]
pub(super) struct Area {
    /// In the order of the functions; `None` for an instruction that cannot run elsewhere.
    stubs: Vec<Option<Stub>>,
    bytes: Bytes,
}

/// A stub: its parts, one behind the other.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stub {
    start: usize,
    /// The places behind the authentication, and behind the new signature.
    signing: Option<Signing>,
    /// The branch back, if the function has begun there, and its target.
    back: Option<usize>,
    end: usize,
    goes_on: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Signing {
    authenticated: usize,
    signed: usize,
    is_key_b: bool,
}

/// The address of the hook.
pub(super) fn hook() -> usize {
    rftrace_keeping_entry as *const () as usize
}

impl Area {
    /// Makes stubs for functions of `module`, all off. `mapped` are the mapped ranges of this process, ascending.
    pub(super) fn new(module: &Range<usize>, wanted: &[Wanted], mapped: &[Range<usize>]) -> io::Result<Self> {
        let page = usize::try_from(page_size()).unwrap_or(4096);
        let most = (wanted.len() * LARGEST).next_multiple_of(page);
        let is_whole = |function: &Wanted| matches!(function.goes_on, GoesOn::Whole(_));
        let n_bytes = Bytes::number(wanted.len(), wanted.iter().any(is_whole));
        let pages_bytes = Bytes::pages_bytes(n_bytes);
        let mut last = io::Error::new(io::ErrorKind::OutOfMemory, "no free addresses within 128 MiB");
        for start in places(module, pages_bytes + most, mapped, (page, REACH)) {
            let (stubs, mut contents) = contents(start, start + pages_bytes, wanted, rftrace_backend_words_offset());
            contents.resize(contents.len().next_multiple_of(page), 0);
            match Bytes::map_before(&contents, start, n_bytes) {
                Ok(bytes) => {
                    let area = Self { stubs, bytes };
                    for (idx, function) in wanted.iter().enumerate() {
                        if let (Some(way), GoesOn::Whole(at)) = (area.goes_on(idx), function.goes_on) {
                            way.store(at, Release);
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

    /// The branch to the stub of a function from an address, if it has one.
    pub(super) fn branch(&self, idx: usize, from: usize) -> Option<u32> {
        relocate::branch(from, self.stubs.get(idx)?.as_ref()?.start)
    }

    /// Returns the target of a function of another module, by its place in the list. `None` for others.
    fn goes_on(&self, idx: usize) -> Option<&'static AtomicUsize> {
        self.bytes.way(self.stubs.len(), idx)
    }

    /// The stub for calls of such a function.
    pub(super) fn call_stub(&self, idx: usize, site: Site) -> Option<library::Stub> {
        let start = self.stubs.get(idx)?.as_ref()?.start;
        Some(library::Stub { start, goes_on: self.goes_on(idx)?, switch: self.switch(idx, site)? })
    }

    /// Registers the stubs with unwinders.
    pub(super) fn register(&self) {
        let (bytes, descriptions) = frames(&self.stubs);
        if let Some(first) = self.stubs.iter().flatten().next() {
            register_section(first.start, bytes, &descriptions);
        }
    }
}

/// Returns the stubs of functions with switches at `switches`, and the contents of their memory at `start`.
fn contents(switches: usize, start: usize, wanted: &[Wanted], words_offset: usize) -> (Vec<Option<Stub>>, Vec<u8>) {
    let mut contents = Vec::new();
    let mut stubs = Vec::with_capacity(wanted.len());
    for (idx, function) in wanted.iter().enumerate() {
        let at = start + contents.len();
        let made = stub(at, (switches + idx, switches + way_at(wanted.len(), idx)), function, words_offset);
        if let Some((_, words)) = &made {
            contents.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            while contents.len() % ALIGN != 0 {
                contents.extend(FILLER.to_le_bytes());
            }
        }
        stubs.push(made.map(|(stub, _)| stub));
    }
    (stubs, contents)
}

/// Returns the stub of a function: it reads its switch and, for a function of another module, the word with its target.
fn stub(
    start: usize,
    (switch, way): (usize, usize),
    function: &Wanted,
    words_offset: usize,
) -> Option<(Stub, Vec<u32>)> {
    let signed_by = match function.goes_on {
        GoesOn::Copy(displaced) => displaced.signed_by,
        GoesOn::Whole(_) => None,
    };
    let n_signing = usize::from(signed_by.is_some());
    // Up to `br x16`, and up to a multiple of 8, as the words are.
    let n_way = 6 + n_signing;
    let words = (start + n_way * WORD).next_multiple_of(size_of::<usize>());
    let goes_on = words + WORDS_BYTES;
    let copy = goes_on + n_signing * WORD;

    let mut code = vec![relocate::page_of(X16, switch, start)?];
    code.push(0x3940_0000 | (switch as u32 & 0xfff) << 10 | X16 << 5 | X16); // ldrb w16, [x16, …]
    code.push(0x3400_0000 | (copy - (start + 2 * WORD)) as u32 >> 2 << 5 | X16); // cbz w16, copy
    code.extend(signed_by.map(|signed_by| signed_by ^ AUTHENTICATING));
    let here = |code: &Vec<u32>| start + code.len() * WORD;
    code.push(0x1000_0000 | (goes_on - here(&code)) as u32 >> 2 << 5 | X17); // adr x17, goes_on
    code.push(0x5800_0000 | (goes_on - size_of::<usize>() - here(&code)) as u32 >> 2 << 5 | X16); // ldr x16, hook
    code.push(BR_X16);
    code.resize((words - start) / WORD, NOP);
    for value in [function.name << 16, words_offset, hook()] {
        code.extend([value as u32, (value >> 32) as u32]);
    }
    code.extend(signed_by);
    let mut next = 0;
    let mut back = None;
    match function.goes_on {
        GoesOn::Copy(Displaced { at, word, .. }) => {
            next = at + WORD;
            let Copied { words, is_as_it_was } = relocate::copy(word, at, copy, next)?;
            code.extend(words);
            back = is_as_it_was.then_some(here(&code));
            code.push(relocate::branch(here(&code), next)?);
        }
        GoesOn::Whole(_) => {
            code.push(relocate::page_of(X16, way, copy)?);
            code.push(0xf940_0000 | (way as u32 & 0xfff) >> 3 << 10 | X16 << 5 | X16); // ldr x16, [x16, …]
            code.push(BR_X16);
        }
    }
    let stub = Stub {
        start,
        signing: signed_by.map(|signed_by| Signing {
            authenticated: start + 4 * WORD,
            signed: copy,
            is_key_b: signed_by == PACIBSP,
        }),
        back,
        end: here(&code),
        goes_on: next,
    };
    Some((stub, code))
}

/// DWARF's numbers of sp, of x30, the register of the return address, and of its register during the unwinding of a
/// signal frame (libgcc's).
const SP: u8 = 31;
const RETURN_ADDRESS: u8 = 30;
const ALTERNATIVE: u8 = 96;
/// `DW_CFA_AARCH64_negate_ra_state`
const NEGATE_STATE: u8 = 0x2d;

/// Returns the section `.eh_frame` of stubs, and the places of descriptions in it.
fn frames(stubs: &[Option<Stub>]) -> (Vec<u8>, Vec<usize>) {
    let mut bytes = Vec::new();
    let mut descriptions = Vec::new();
    let mut common = [0; 3];
    for (place, augmentation) in common.iter_mut().zip([&b"zR\0"[..], b"zRB\0", b"zRS\0"]) {
        *place = bytes.len();
        // def_cfa sp 0; of the last one sp 1: an address that no frame has.
        let (column, offset) = if augmentation == b"zRS\0" { (ALTERNATIVE, 1) } else { (RETURN_ADDRESS, 0) };
        append_cie(&mut bytes, column, augmentation, &[0x0c, SP, offset]);
    }
    let mut describe = |common: usize, range: Range<usize>, rules: &[u8]| {
        descriptions.push(bytes.len());
        append(&mut bytes, |bytes| {
            let distance = bytes.len() - common;
            bytes.extend_from_slice(&(distance as u32).to_le_bytes());
            bytes.extend_from_slice(&range.start.to_le_bytes());
            bytes.extend_from_slice(&range.len().to_le_bytes());
            bytes.push(0); // length of the augmentation's data
            bytes.extend_from_slice(rules);
        });
    };
    for stub in stubs.iter().flatten() {
        let not_begun = stub.start..stub.back.unwrap_or(stub.end);
        match stub.signing {
            None => describe(common[0], not_begun, &[]),
            Some(Signing { authenticated, signed, is_key_b }) => {
                // advance_loc1 to where it is not signed, and to where it is again.
                let [first, second] = [authenticated - stub.start, signed - authenticated].map(|bytes| bytes as u8);
                let rules = [NEGATE_STATE, 0x02, first, NEGATE_STATE, 0x02, second, NEGATE_STATE];
                describe(common[usize::from(is_key_b)], not_begun, &rules);
            }
        }
        if let Some(back) = stub.back {
            // val_expression of the return address: const8u; of sp: breg31 0
            let mut rules = vec![0x16, ALTERNATIVE, 9, 0x0e];
            rules.extend_from_slice(&stub.goes_on.to_le_bytes());
            rules.extend_from_slice(&[0x16, SP, 2, 0x8f, 0]);
            describe(common[2], back..stub.end, &rules);
        }
    }
    // The end.
    bytes.extend_from_slice(&[0; 4]);
    (bytes, descriptions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patch::poke::Pages;

    const SWITCHES: usize = 0x10_0000;
    const START: usize = 0x10_1000;
    const STP: u32 = 0xa9be_7bfd;
    const PACIASP: u32 = 0xd503_233f;

    fn wanted(name: usize, word: u32, signed_by: Option<u32>) -> Wanted {
        let at = if signed_by.is_some() { name + WORD } else { name };
        Wanted { name, goes_on: GoesOn::Copy(Displaced { at, word, signed_by }) }
    }

    #[test]
    fn stubs_have_what_the_hook_takes() {
        let list =
            [wanted(0x40_1000, STP, None), wanted(0x40_2000, 0x9400_0000, None), wanted(0x40_3000, STP, Some(PACIASP))];
        let (stubs, contents) = contents(SWITCHES, START, &list, 0x1230);
        let word = |at: usize| u32::from_le_bytes(contents[at - START..][..4].try_into().unwrap());
        let long = |at: usize| usize::from_le_bytes(contents[at - START..][..8].try_into().unwrap());
        assert!(stubs[1].is_none());
        for (idx, name) in [(0, 0x40_1000), (2, 0x40_3000)] {
            let stub = stubs[idx].as_ref().unwrap();
            let signed = stub.signing.map(|_| PACIASP);
            let back = stub.back.unwrap();
            let copy = back - WORD;
            let goes_on = copy - if signed.is_some() { WORD } else { 0 };
            assert_eq!(long(goes_on - 24), name << 16);
            assert_eq!((long(goes_on - 16), long(goes_on - 8)), (0x1230, hook()));
            assert_eq!(word(copy), STP);
            assert_eq!(word(back), relocate::branch(back, stub.goes_on).unwrap());
            assert_eq!(stub.goes_on, name + if signed.is_some() { 8 } else { 4 });
            // ldrb w16, [x16, #idx]; cbz w16, copy
            assert_eq!(word(stub.start + 4), 0x3940_0210 | (idx as u32) << 10);
            assert_eq!(stub.start + 8 + (word(stub.start + 8) >> 5 & 0x7_ffff) as usize * 4, copy);
            if let Some(signing) = stub.signing {
                assert_eq!((word(signing.authenticated - 4), word(signing.signed - 4)), (0xd503_23bf, PACIASP));
            }
        }
    }

    #[test]
    fn whole_functions_go_on_where_a_word_says() {
        let list = [0x40_8018, 0x40_8020].map(|name| Wanted { name, goes_on: GoesOn::Whole(0x7f00_1230) });
        let (stubs, contents) = contents(SWITCHES, START, &list, 0);
        let word = |at: usize| u32::from_le_bytes(contents[at - START..][..4].try_into().unwrap());
        for (idx, stub) in stubs.iter().flatten().enumerate() {
            let goes_on = stub.end - 3 * WORD;
            assert_eq!(stub.start + 8 + (word(stub.start + 8) >> 5 & 0x7_ffff) as usize * 4, goes_on);
            assert_eq!(word(goes_on), relocate::page_of(X16, SWITCHES, goes_on).unwrap());
            // ldr x16, [x16, #8 or #16]: behind two switches; br x16
            assert_eq!([word(goes_on + 4), word(goes_on + 8)], [0xf940_0210 | (1 + idx as u32) << 10, BR_X16]);
        }
        let own = hook()..hook() + 1;
        let mapped = || Pages::all().unwrap().into_iter().map(|pages| pages.range).collect::<Vec<_>>();
        let area = Area::new(&own, &list, &mapped()).unwrap();
        assert_eq!(area.goes_on(1).unwrap().load(std::sync::atomic::Ordering::Acquire), 0x7f00_1230);
        let site = Site { address: 0x40_8018, child_ip: 0x40_8018, module: 0, has_arguments: true };
        assert_eq!(area.call_stub(0, site).map(|stub| stub.start), area.stubs[0].as_ref().map(|stub| stub.start));
        let branches = Area::new(&own, &[wanted(hook(), STP, None)], &mapped()).unwrap();
        assert!(branches.goes_on(0).is_none());
    }

    #[test]
    fn frames_are_whole() {
        let list =
            [wanted(0x40_1000, STP, None), wanted(0x40_3000, STP, Some(PACIBSP)), wanted(0x40_4000, 0x1000_0041, None)];
        let (stubs, _) = contents(SWITCHES, START, &list, 0);
        let (bytes, descriptions) = frames(&stubs);
        assert_eq!(descriptions.len(), 5, "two for those that move the stack pointer");
        let mut at = 0;
        let mut found = Vec::new();
        while let length @ 1.. = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) {
            let id = u32::from_le_bytes(bytes[at + 4..at + 8].try_into().unwrap()) as usize;
            if id != 0 {
                let common = at + 4 - id;
                assert_eq!(bytes[common + 4..common + 8], [0; 4], "a CIE");
                found.push(at);
            }
            at += 4 + length as usize;
        }
        assert_eq!((found, at + 4), (descriptions, bytes.len()));
    }
}
