//! Memory for stubs: the few instructions that a patched site jumps to.
//!
//! An area serves one module and lies within reach of it. It is written before it can be executed, and is never changed,
//! moved or unmapped: a thread may be in it at any time.
//!
//! ```text
//! area:      addresses of the hooks for stubs, then of those for thunks          32 bytes
//! +32        thunk of mcount, thunk of __fentry__: jmp [rip + …]                  16 bytes each
//! +64        stubs, 16 bytes each:
//!      +0    lea r11, [rip + …]      child_ip
//!      +7    jmp rel32               the patched hook, or jmp [rip + …] if it is out of reach
//!      +15   length of the site's instruction
//! ```

use std::io;
use std::ops::Range;

use super::memory::{map_code, places};
use super::sites::{Call, Hook};
use crate::elf::file::page_size;

unsafe extern "C" {
    fn mcount();
    fn __fentry__();
    fn rftrace_patched_mcount();
    fn rftrace_patched_fentry();
}

impl Hook {
    /// Both, in the order of their slots.
    pub(super) const ALL: [Self; 2] = [Self::Mcount, Self::Fentry];

    /// The address of the function called by compiled code.
    pub(super) fn address(self) -> usize {
        match self {
            Self::Mcount => mcount as *const () as usize,
            Self::Fentry => __fentry__ as *const () as usize,
        }
    }

    /// The address of the function that stubs jump to.
    fn patched_address(self) -> usize {
        match self {
            Self::Mcount => rftrace_patched_mcount as *const () as usize,
            Self::Fentry => rftrace_patched_fentry as *const () as usize,
        }
    }
}

/// Bytes of a stub, and of a thunk.
pub(super) const STUB_BYTES: usize = 16;
/// The places of a stub's parts: the distance to `child_ip`, from [`JUMP_AT`] on; the jump; the length of the site.
pub(super) const TO_CHILD_AT: usize = LOAD.len();
pub(super) const JUMP_AT: usize = TO_CHILD_AT + size_of::<i32>();
pub(super) const SITE_BYTES_AT: usize = STUB_BYTES - 1;

/// `lea r11, [rip + disp32]`
const LOAD: [u8; 3] = [0x4c, 0x8d, 0x1d];
/// `jmp rel32`
const JUMP: [u8; 1] = [0xe9];
/// `jmp [rip + disp32]`
const JUMP_SLOT: [u8; 2] = [0xff, 0x25];
/// `int3`
const FILLER: u8 = 0xcc;

const SLOT_BYTES: usize = size_of::<usize>();
const THUNKS_AT: usize = 2 * Hook::ALL.len() * SLOT_BYTES;
const STUBS_AT: usize = THUNKS_AT + Hook::ALL.len() * STUB_BYTES;

/// The reach of a `rel32`, less an instruction's length.
pub(super) const REACH: usize = (1 << 31) - 64;

/// The stubs of a module's sites.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    start: usize,
    n_stubs: usize,
}

impl Area {
    /// Makes the stubs for `calls` in `module`. `mapped` are the mapped ranges of this process, ascending.
    pub(super) fn new(module: &Range<usize>, calls: &[Call], mapped: &[Range<usize>]) -> io::Result<Self> {
        let page = usize::try_from(page_size()).unwrap_or(4096);
        let bytes = (STUBS_AT + calls.len() * STUB_BYTES).next_multiple_of(page);
        let mut last = io::Error::new(io::ErrorKind::OutOfMemory, "no free addresses within 2 GiB");
        for start in places(module, bytes, mapped, (page, REACH)) {
            let area = Self { start, n_stubs: calls.len() };
            match map_code(start, &area.contents(calls, bytes)) {
                Ok(()) => return Ok(area),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The addresses of the stubs.
    pub(super) fn stubs(&self) -> Range<usize> {
        let start = self.start + STUBS_AT;
        start..start + self.n_stubs * STUB_BYTES
    }

    /// The addresses of the thunks.
    pub(super) fn thunks(&self) -> Range<usize> {
        self.start + THUNKS_AT..self.start + STUBS_AT
    }

    /// The address of the stub number `idx`.
    pub(super) fn stub(&self, idx: usize) -> usize {
        self.start + STUBS_AT + idx * STUB_BYTES
    }

    /// The address of a jump to the hook as compilers call it.
    pub(super) fn thunk(&self, hook: Hook) -> usize {
        self.start + THUNKS_AT + hook as usize * STUB_BYTES
    }

    fn contents(&self, calls: &[Call], bytes: usize) -> Vec<u8> {
        let mut contents = Vec::with_capacity(bytes);
        for address in Hook::ALL.map(Hook::patched_address).into_iter().chain(Hook::ALL.map(Hook::address)) {
            contents.extend_from_slice(&address.to_le_bytes());
        }
        for hook in Hook::ALL {
            let start = contents.len();
            self.append_jump(&mut contents, &JUMP_SLOT, self.start + (Hook::ALL.len() + hook as usize) * SLOT_BYTES);
            contents.resize(start + STUB_BYTES, FILLER);
        }
        for call in calls {
            let start = contents.len();
            self.append_jump(&mut contents, &LOAD, call.address + call.form.len());
            let direct = call.hook.patched_address();
            if direct.abs_diff(self.start + start) < REACH {
                self.append_jump(&mut contents, &JUMP, direct);
            } else {
                self.append_jump(&mut contents, &JUMP_SLOT, self.start + call.hook as usize * SLOT_BYTES);
            }
            contents.resize(start + SITE_BYTES_AT, FILLER);
            contents.push(u8::try_from(call.form.len()).unwrap_or(0));
        }
        contents.resize(bytes, FILLER);
        contents
    }

    /// Appends an instruction with the distance to `target` at its end; `target` is within reach.
    fn append_jump(&self, contents: &mut Vec<u8>, opcode: &[u8], target: usize) {
        contents.extend_from_slice(opcode);
        let end = self.start + contents.len() + size_of::<i32>();
        contents.extend_from_slice(&distance(end, target).to_le_bytes());
    }
}

/// Returns the distance from `from` to `to`, within reach.
pub(super) fn distance(from: usize, to: usize) -> i32 {
    // The difference of two addresses within reach has 32 bits.
    to.wrapping_sub(from) as u32 as i32
}
