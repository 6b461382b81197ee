//! Writing code while threads run it.
//!
//! The order of writes is in [`code`](super::code): each step changes one byte, or bytes unused by any instruction at
//! that moment. Between two steps every processor with a thread of this process forgets its decoded instructions
//! (membarrier with SYNC_CORE).
//!
//! Kernels use the breakpoint instruction for this; here it would kill a thread with SIGTRAP blocked.

use std::fs;
use std::io;
use std::ops::Range;
#[cfg(target_arch = "x86_64")]
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
#[cfg(target_arch = "aarch64")]
use std::sync::atomic::{AtomicU32, Ordering::Release};

use rftrace_format::system;

use crate::elf::file::page_size;

/// The protection of a range of pages.
#[derive(Clone, Debug)]
pub(super) struct Pages {
    pub(super) range: Range<usize>,
    /// The protection for `mprotect`.
    pub(super) protection: i32,
}

impl Pages {
    /// Returns the mapped pages of this process, ascending.
    pub(super) fn all() -> io::Result<Vec<Self>> {
        // When the main thread has ended, the process as a whole has no memory any more, but this thread has. Not always so: of the
        // first file qemu-user makes one that says what the program may do, and not what qemu may.
        let of_process = system::read("/proc/self/maps").ok().filter(|text| !text.is_empty());
        let text = of_process.map_or_else(|| system::read("/proc/thread-self/maps"), Ok)?;
        Ok(text.split(|&byte| byte == b'\n').filter_map(Self::parse).collect())
    }

    fn parse(line: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(line.get(..line.len().min(64))?).ok().or_else(|| {
            // A path that is not UTF-8 stands behind what is looked for.
            let end = line.iter().position(|byte| !byte.is_ascii())?;
            std::str::from_utf8(&line[..end]).ok()
        })?;
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let flags = [(b'r', libc::PROT_READ), (b'w', libc::PROT_WRITE), (b'x', libc::PROT_EXEC)];
        let protection = flags.into_iter().zip(rest.bytes()).filter(|((letter, _), byte)| letter == byte);
        Some(Self {
            range: usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?,
            protection: protection.fold(libc::PROT_NONE, |all, ((_, flag), _)| all | flag),
        })
    }

    /// Makes the pages writable too. They stay as readable and executable as they are.
    pub(super) fn make_writable(&self) -> io::Result<()> {
        self.protect(self.protection | libc::PROT_WRITE)
    }

    /// Restores their protection.
    pub(super) fn restore(&self, refusal: &mut Option<io::Error>) {
        if let Err(error) = self.protect(self.protection) {
            *refusal = Some(error);
        }
    }

    /// Returns the pages of these with something of `part`, if there are any.
    pub(super) fn cut_to(&self, part: &Range<usize>) -> Option<Self> {
        let page = usize::try_from(page_size()).unwrap_or(4096);
        let start = self.range.start.max(part.start / page * page);
        let end = self.range.end.min(part.end.next_multiple_of(page));
        (start < end).then_some(Self { range: start..end, protection: self.protection })
    }

    fn protect(&self, protection: i32) -> io::Result<()> {
        if self.protection & libc::PROT_WRITE != 0 {
            return Ok(());
        }
        // SAFETY: nothing is taken from the pages that they had, and they hold code that stays mapped meanwhile.
        let status = unsafe { libc::mprotect(self.range.start as *mut _, self.range.len(), protection) };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// `/proc/thread-self/mem`, for writes to read-only pages.
#[derive(Debug)]
pub(super) struct ProcMem(i32);

impl ProcMem {
    /// Opens the file. Anew each time: in the child of a fork it would still be the parent's. Does not allocate.
    pub(super) fn open() -> io::Result<Self> {
        // SAFETY: opens a file by a constant path.
        let file = unsafe { libc::open(c"/proc/thread-self/mem".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        if file < 0 { Err(io::Error::last_os_error()) } else { Ok(Self(file)) }
    }

    /// Writes to memory.
    pub(super) fn write(&self, address: usize, mut bytes: &[u8]) -> io::Result<()> {
        let mut offset = libc::off64_t::try_from(address).map_err(|_| io::ErrorKind::InvalidInput)?;
        while !bytes.is_empty() {
            // SAFETY: reads from `bytes`. What the memory at the address is for is the caller's concern: it is code that
            // this crate made or that was checked before.
            let n_written = unsafe { libc::pwrite64(self.0, bytes.as_ptr().cast(), bytes.len(), offset) };
            match usize::try_from(n_written) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    bytes = &bytes[n..];
                    offset += n_written as libc::off64_t;
                }
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }
}

impl Drop for ProcMem {
    fn drop(&mut self) {
        // SAFETY: this object's file.
        unsafe { libc::close(self.0) };
    }
}

/// Makes processors fetch memory newly written for code; none has run it yet.
#[cfg(target_arch = "aarch64")]
pub(super) fn code_was_written(code: Range<usize>) {
    /// No cache has smaller lines.
    const LEAST_LINE: usize = 16;
    let clean = |line: usize| {
        // SAFETY: mapped memory. Programs may maintain caches on Linux.
        unsafe { std::arch::asm!("dc cvau, {}", in(reg) line, options(nostack, preserves_flags)) };
    };
    let forget = |line: usize| {
        // SAFETY: as above.
        unsafe { std::arch::asm!("ic ivau, {}", in(reg) line, options(nostack, preserves_flags)) };
    };
    code.clone().step_by(LEAST_LINE).for_each(clean);
    // SAFETY: orders what is before and behind it.
    unsafe { std::arch::asm!("dsb ish", options(nostack, preserves_flags)) };
    code.step_by(LEAST_LINE).for_each(forget);
    // SAFETY: as above.
    unsafe { std::arch::asm!("dsb ish", "isb", options(nostack, preserves_flags)) };
}

/// The same: x86-64 does so by itself.
#[cfg(target_arch = "x86_64")]
pub(super) fn code_was_written(_code: Range<usize>) {}

/// A way to write to code.
#[derive(Clone, Copy, Debug)]
pub(super) enum Writer<'a> {
    /// The pages are writable.
    Memory,
    /// They are not.
    File(&'a ProcMem),
}

/// The bytes of a displacement.
#[cfg(target_arch = "x86_64")]
pub(super) const OPERAND_BYTES: usize = 4;

/// The bytes of an opcode to write.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opcode {
    /// One, at the opcode's place.
    One(u8),
    /// Two at once, at the beginning of the instruction.
    Two([u8; 2]),
}

#[cfg(target_arch = "aarch64")]
impl Writer<'_> {
    /// Writes an instruction at once, and makes this and other processors fetch it from now on: the data cache is
    /// written to the point of instruction fetches, then earlier fetches are forgotten. A thread with an earlier fetch
    /// goes on with the old one until its processor takes an exception (`Barrier`).
    ///
    /// # Safety
    ///
    /// Old and new instruction may be changed into each other during execution (Arm ARM, B2.2.5: `B`, `BL`, `NOP` and a
    /// few more), either may be executed here, and the page is writable for [`Self::Memory`].
    pub(super) unsafe fn word(self, address: usize, word: u32) -> io::Result<()> {
        match self {
            Self::Memory => {
                // SAFETY: by this function's contract; instructions are aligned. Programs may maintain caches on Linux.
                unsafe {
                    AtomicU32::from_ptr(address as *mut u32).store(word, Release);
                    std::arch::asm!(
                        "dc cvau, {address}",
                        "dsb ish",
                        "ic ivau, {address}",
                        "dsb ish",
                        "isb",
                        address = in(reg) address,
                        options(nostack, preserves_flags),
                    );
                }
                Ok(())
            }
            // The kernel maintains the caches.
            Self::File(file) => file.write(address, &word.to_le_bytes()),
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Writer<'_> {
    /// Writes an opcode at once. `start` is the instruction's place, `opcode_at` its opcode's.
    ///
    /// # Safety
    ///
    /// This is code that may become what the new opcode makes of it, and its pages are writable for [`Self::Memory`].
    /// Two bytes do not cross a cache line, and are not written by file, unless this is the only thread.
    pub(super) unsafe fn opcode(self, start: usize, opcode_at: usize, opcode: Opcode) -> io::Result<()> {
        match (self, opcode) {
            (Self::Memory, Opcode::One(byte)) => {
                // SAFETY: by this function's contract; one byte is always atomic.
                unsafe { AtomicU8::from_ptr((start + opcode_at) as *mut u8) }.store(byte, SeqCst);
            }
            (Self::Memory, Opcode::Two([first, second])) if crosses_line(start) => {
                // An exchange would lock the whole machine's memory, which some systems punish.
                // SAFETY: by this function's contract.
                unsafe { (start as *mut [u8; 2]).write_volatile([first, second]) };
            }
            (Self::Memory, Opcode::Two(bytes)) => {
                // An exchange with memory is atomic wherever the bytes lie; a store only within eight aligned bytes (AMD64
                // Architecture Programmer's Manual volume 2, 7.3.2). Within a line, code is fetched before or after it.
                // SAFETY: by this function's contract.
                unsafe {
                    std::arch::asm!(
                        "xchg word ptr [{place}], {value:x}",
                        place = in(reg) start,
                        value = inout(reg) u16::from_le_bytes(bytes) => _,
                        options(nostack, preserves_flags),
                    );
                }
            }
            (Self::File(file), Opcode::One(byte)) => return file.write(start + opcode_at, &[byte]),
            (Self::File(file), Opcode::Two(bytes)) => return file.write(start, &bytes),
        }
        Ok(())
    }

    /// Writes the four bytes behind a neutral opcode.
    ///
    /// # Safety
    ///
    /// The opcode is neutral, and the pages are writable for [`Self::Memory`].
    pub(super) unsafe fn operand(self, address: usize, bytes: [u8; OPERAND_BYTES]) -> io::Result<()> {
        match self {
            Self::Memory => {
                // SAFETY: by this function's contract. Nobody uses the bytes, so they may change in any order.
                unsafe { (address as *mut [u8; OPERAND_BYTES]).write_volatile(bytes) };
                Ok(())
            }
            Self::File(file) => file.write(address, &bytes),
        }
    }
}

/// Means to let other threads see changed code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Barrier {
    /// There is one.
    Membarrier,
    /// There is none.
    Missing,
}

/// `MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE`
const SYNC_CORE: i32 = 1 << 5;
/// `MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE`
const REGISTER_SYNC_CORE: i32 = 1 << 6;

impl Barrier {
    /// Asks the kernel for it. Once in the life of a process is enough, but its children have to ask again.
    pub(super) fn prepare() -> Self {
        if membarrier(REGISTER_SYNC_CORE) { Self::Membarrier } else { Self::Missing }
    }

    /// Waits until no thread runs earlier decoded instructions. Returns true on success.
    pub(super) fn pass(self) -> bool {
        self == Self::Membarrier && membarrier(SYNC_CORE)
    }
}

fn membarrier(command: i32) -> bool {
    // SAFETY: no memory is passed.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// True if no other thread runs in this process.
pub(super) fn is_only_thread() -> bool {
    fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1)
}

/// The size in bytes of a processor's lines of fetched code.
const LINE_BYTES: usize = 64;

/// True if two bytes lie in different lines.
pub(super) fn crosses_line(address: usize) -> bool {
    address % LINE_BYTES == LINE_BYTES - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_maps() {
        let pages = Pages::parse(b"55c9dc55a000-55c9dc55f000 r-xp 00002000 fe:00 247030     /usr/b\xffn/cat").unwrap();
        assert_eq!(pages.range, 0x55c9_dc55_a000..0x55c9_dc55_f000);
        assert_eq!(pages.protection, libc::PROT_READ | libc::PROT_EXEC);
        assert!(Pages::parse(b"").is_none());
    }

    #[test]
    fn lines() {
        assert!(crosses_line(0x103f) && !crosses_line(0x1040) && !crosses_line(0x103e));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn two_bytes_are_written_at_any_place() {
        let mut bytes = [0u8; 2 * LINE_BYTES];
        let start = bytes.as_mut_ptr() as usize;
        for at in 0..bytes.len() - 1 {
            // SAFETY: this test's own memory.
            unsafe { Writer::Memory.opcode(start + at, 0, Opcode::Two([0xff, 0x15])) }.unwrap();
            let written = std::hint::black_box(&mut bytes);
            assert_eq!(written[at..at + 2], [0xff, 0x15]);
            written.fill(0);
        }
    }
}
