//! Memory of this library's own, of which nothing is given back: what is known of modules, a few caches. The program's allocator is what
//! is recorded.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;
use std::slice;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// The allocator.
#[derive(Debug)]
pub(crate) struct Memory;

/// The free part of the newest piece: from here, to there.
static FREE: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);

/// The least that is taken from the system at a time.
const PIECE_BYTES: usize = 1 << 20;

/// New memory of the system's, all zero; null if there is none.
pub(crate) fn map(bytes: usize) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new anonymous mapping.
    let memory = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if memory == libc::MAP_FAILED { ptr::null_mut() } else { memory.cast() }
}

/// Gives back what of this library's code and constants is in memory: the system has it from the file again where it is needed. Not where a
/// debugger may have written breakpoints there. The tracer's library has the same of itself: nothing of it is linked here.
pub(crate) fn leave_file() {
    unsafe extern "C" {
        static __ehdr_start: libc::Elf64_Ehdr;
    }

    const PAGE: usize = 4096;
    let base = &raw const __ehdr_start;
    // SAFETY: the linker lays it at the beginning of what is mapped, with so many program headers at that distance.
    let headers = unsafe {
        let header = &*base;
        slice::from_raw_parts(base.byte_add(header.e_phoff as usize).cast::<libc::Elf64_Phdr>(), header.e_phnum.into())
    };
    let is_constant = |header: &&libc::Elf64_Phdr| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0;
    // The first one, which has the headers, last.
    for header in headers.iter().rev().filter(is_constant) {
        let start = base as usize + header.p_vaddr as usize / PAGE * PAGE;
        let end = base as usize + header.p_vaddr as usize + header.p_memsz as usize;
        // SAFETY: pages of a file that nobody writes to: whoever reads them finds the same.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_DONTNEED) };
    }
}

/// Runs this with as many bytes of memory, all zero, which is given back then. `None` if there is none.
pub(crate) fn lent<T>(bytes: usize, work: impl FnOnce(&mut [u8]) -> T) -> Option<T> {
    let memory = map(bytes);
    if memory.is_null() {
        return None;
    }
    // SAFETY: mapped just now, for this alone.
    let result = work(unsafe { slice::from_raw_parts_mut(memory, bytes) });
    // SAFETY: nobody refers to it any more.
    unsafe { libc::munmap(memory.cast(), bytes) };
    Some(result)
}

/// Sees to it that so many bytes can be had. Only one thread allocates at a time, the one that holds the lock of the modules. Returns
/// whether they can: where they cannot, nothing may be allocated.
pub(crate) fn reserve(bytes: usize) -> bool {
    if END.load(Relaxed).saturating_sub(FREE.load(Relaxed)) >= bytes {
        return true;
    }
    let bytes = bytes.max(PIECE_BYTES);
    let piece = map(bytes);
    if piece.is_null() {
        return false;
    }
    FREE.store(piece as usize, Relaxed);
    END.store(piece as usize + bytes, Relaxed);
    true
}

// SAFETY: each piece of memory is given out once.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let place = |free: usize| {
            let start = free.next_multiple_of(layout.align());
            let end = start.checked_add(layout.size()).filter(|&end| end <= END.load(Relaxed) && free != 0)?;
            Some((start, end))
        };
        let taken = FREE.fetch_update(Relaxed, Relaxed, |free| place(free).map(|(_, end)| end));
        match taken.ok().and_then(place) {
            Some((start, _)) => start as *mut u8,
            // Whoever did not ask before. Pages of its own.
            None if layout.align() <= 4096 => map(layout.size().max(1)),
            None => ptr::null_mut(),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as of the caller. All is the system's, and as that gives it: none of it was used before.
        unsafe { self.alloc(layout) }
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}
