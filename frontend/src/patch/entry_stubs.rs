//! Targets of patched entries, on aarch64: a stub for each, registered with unwinders.
//!
//! An area serves one module and lies within reach of it. It is written before it can be executed, and is never
//! changed, moved or unmapped: a thread may be in it at any time.
//!
//! ```text
//! stub   +0    adr x17, +16; ldr x16, +40; br x16      to the hook, however far that is
//!        +16   b                                       behind the entry: the hook goes on here
//!        +24   what records name the function by << 16
//!        +32   where a thread's words are, from tpidr_el0
//!        +40   address of the hook
//! ```
//!
//! The hook and the stub have no frame, and the function has not begun: to unwinders both are functions called by its
//! caller.

use std::io;
use std::ops::Range;

use super::memory::{map_code, places};
use super::sites::Call;
use super::unwinder::{append_cie, append_fde, register_section};
use crate::elf::file::page_size;

unsafe extern "C" {
    fn rftrace_entry();
    safe fn rftrace_backend_words_offset() -> usize;
}

const STUB_BYTES: usize = 48;
const GOES_ON_AT: usize = 16;
/// `adr x17, #16`, `ldr x16, #36`, `br x16`, `brk #0x7ace`
const TO_HOOK: [u32; 4] = [0x1000_0091, 0x5800_0130, 0xd61f_0200, 0xd42f_59c0];
/// `brk #0x7ace`
const FILLER: u32 = 0xd42f_59c0;

/// The reach of a branch, less the excess length of an area.
const REACH: usize = (1 << 27) - (1 << 16);

/// DWARF's numbers of sp and x30, the register of the return address.
const SP: u8 = 31;
const RETURN_ADDRESS: u8 = 30;

/// The stubs of a module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    start: usize,
}

impl Area {
    /// Makes the stubs for `entries` in `module`. `mapped` are the mapped ranges of this process, ascending.
    pub(super) fn new(module: &Range<usize>, entries: &[Call], mapped: &[Range<usize>]) -> io::Result<Self> {
        let page = usize::try_from(page_size()).unwrap_or(4096);
        let bytes = (entries.len() * STUB_BYTES).next_multiple_of(page);
        let mut last = io::Error::new(io::ErrorKind::OutOfMemory, "no free addresses within 128 MiB");
        for start in places(module, bytes, mapped, (page, REACH)) {
            let area = Self { start };
            match map_code(start, &area.contents(entries, bytes)) {
                Ok(()) => {
                    area.register(entries.len());
                    return Ok(area);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The branch to stub number `idx` from an address within reach.
    pub(super) fn branch(self, idx: usize, from: usize) -> u32 {
        branch(from, self.start + idx * STUB_BYTES)
    }

    fn contents(self, entries: &[Call], bytes: usize) -> Vec<u8> {
        let hook = rftrace_entry as *const () as usize;
        let words_offset = rftrace_backend_words_offset();
        let mut contents = Vec::with_capacity(bytes);
        for entry in entries {
            let goes_on = self.start + contents.len() + GOES_ON_AT;
            let name = entry.address + entry.form.len();
            let code = TO_HOOK.into_iter().chain([branch(goes_on, name), FILLER]);
            contents.extend(code.flat_map(u32::to_le_bytes));
            contents.extend([name << 16, words_offset, hook].into_iter().flat_map(usize::to_le_bytes));
        }
        while contents.len() < bytes {
            contents.extend_from_slice(&FILLER.to_le_bytes());
        }
        contents
    }

    /// Registers these stubs with unwinders: the CFA is sp, the return address in x30.
    fn register(self, n_stubs: usize) {
        let mut bytes = Vec::new();
        append_cie(&mut bytes, RETURN_ADDRESS, b"zR\0", &[0x0c, SP, 0]);
        let description = append_fde(&mut bytes, 0, &(self.start..self.start + n_stubs * STUB_BYTES));
        // The end.
        bytes.extend_from_slice(&[0; 4]);
        register_section(self.start, bytes, &[description]);
    }
}

/// `b`, over a distance of at most 128 MiB.
fn branch(from: usize, to: usize) -> u32 {
    const B: u32 = 0x1400_0000;
    const DISTANCE: u32 = 0x03ff_ffff;
    B | (to.wrapping_sub(from) / size_of::<u32>()) as u32 & DISTANCE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patch::code::{Form, NOP};

    #[test]
    fn stubs_have_what_the_hook_takes() {
        let entries =
            [0x40_0000, 0x40_0100].map(|address| Call { address, form: Form::Entry, original: NOP.to_le_bytes() });
        let area = Area { start: 0x3f_0000 };
        let contents = area.contents(&entries, 4096);
        assert_eq!(contents.len(), 4096);
        let word = |at: usize| u64::from_le_bytes(contents[at..at + 8].try_into().unwrap());
        for (stub, name) in [(0, 0x40_0004), (STUB_BYTES, 0x40_0104)] {
            let goes_on = u32::from_le_bytes(contents[stub + GOES_ON_AT..][..4].try_into().unwrap());
            assert_eq!(goes_on, 0x1400_0000 | (name - (0x3f_0000 + stub as u32 + 16)) / 4);
            assert_eq!(word(stub + 24), u64::from(name) << 16);
            assert_eq!(word(stub + 40), rftrace_entry as *const () as u64);
        }
        assert_eq!(area.branch(1, 0x40_0100), 0x1400_0000 | 0x03ff_ffff & (0x3f_0030_u32.wrapping_sub(0x40_0100) / 4));
    }
}
