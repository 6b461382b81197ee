//! Memory of this library's own: the program's allocator may be locked, broken or recorded.
//!
//! dlmalloc takes it from the system. Where that gives no more (`ulimit -v`), there is a reserve, large enough for a save
//! without the names of functions.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;
use std::ops::Range;
use std::ptr;
use std::slice;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU64};

use dlmalloc::GlobalDlmalloc;

use crate::work;

/// The allocator.
#[derive(Debug)]
pub(crate) struct Memory;

/// The reserve, which takes address space only until it is used.
static RESERVE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
const RESERVE_BYTES: usize = 8 << 20;
/// How many pieces of it are in use, and from where on it is free: high and low half. With the last piece all is free again.
static STATE: AtomicU64 = AtomicU64::new(0);
const ONE_PIECE: u64 = 1 << 32;

/// Makes the allocator ready for a fork, and sets the reserve up. To be called before anything is allocated.
pub(crate) fn prepare() {
    // SAFETY: nothing was allocated yet.
    unsafe { dlmalloc::enable_alloc_after_fork() };
    RESERVE.store(map(RESERVE_BYTES), Release);
}

/// Where memory is that was mapped for this library as a whole, but for what [`Memory`] has taken.
pub(crate) fn own_places() -> Vec<Range<usize>> {
    let reserve = RESERVE.load(Relaxed) as usize;
    let [start, end] = work::stack();
    vec![reserve..reserve + RESERVE_BYTES, start..end]
}

/// New memory of the system's; null if there is none.
pub(crate) fn map(bytes: usize) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new anonymous mapping.
    let memory = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if memory == libc::MAP_FAILED { ptr::null_mut() } else { memory.cast() }
}

/// Gives back what of this library's code and constants is in memory: the system has it from the file again where it is needed. Not where a
/// debugger may have written breakpoints there.
pub(crate) fn leave_file() {
    unsafe extern "C" {
        static __ehdr_start: libc::Elf64_Ehdr;
    }

    // SAFETY: asks for a number.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let base = &raw const __ehdr_start;
    // SAFETY: the linker lays it at the beginning of what is mapped, with so many program headers at that distance.
    let headers = unsafe {
        let header = &*base;
        slice::from_raw_parts(base.byte_add(header.e_phoff as usize).cast::<libc::Elf64_Phdr>(), header.e_phnum.into())
    };
    let is_constant = |header: &&libc::Elf64_Phdr| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0;
    // The first one, which has the headers, last.
    for header in headers.iter().rev().filter(is_constant) {
        let start = base as usize + header.p_vaddr as usize / page * page;
        let end = base as usize + header.p_vaddr as usize + header.p_memsz as usize;
        // SAFETY: pages of a file that nobody writes to: whoever reads them finds the same.
        unsafe { libc::madvise(start as *mut c_void, end - start, libc::MADV_DONTNEED) };
    }
}

/// A piece of the reserve. If there is none, what the thread is at is given up; null if it cannot be.
fn reserved(layout: Layout) -> *mut u8 {
    let start = RESERVE.load(Acquire);
    let place = |state: u64| {
        let first = (state & (ONE_PIECE - 1)) as usize;
        let place = (start as usize + first).next_multiple_of(layout.align()) - start as usize;
        let end = place.checked_add(layout.size()).filter(|&end| end <= RESERVE_BYTES)?;
        Some((place, end as u64))
    };
    let taken = STATE.fetch_update(AcqRel, Relaxed, |state| {
        place(state).map(|(_, end)| ((state & !(ONE_PIECE - 1)) + ONE_PIECE) | end)
    });
    match taken.ok().filter(|_| !start.is_null()).and_then(place) {
        Some((place, _)) => start.wrapping_add(place),
        None => {
            work::give_up();
            ptr::null_mut()
        }
    }
}

fn is_reserved(memory: *mut u8) -> bool {
    let start = RESERVE.load(Relaxed) as usize;
    start != 0 && (start..start + RESERVE_BYTES).contains(&(memory as usize))
}

// SAFETY: memory is dlmalloc's, or a piece of the reserve that nobody else has.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by this function's contract.
        let memory = unsafe { GlobalDlmalloc.alloc(layout) };
        if memory.is_null() { reserved(layout) } else { memory }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if !is_reserved(memory) {
            // SAFETY: by this function's contract, and from dlmalloc.
            return unsafe { GlobalDlmalloc.dealloc(memory, layout) };
        }
        let less = |state: u64| if state < 2 * ONE_PIECE { 0 } else { state - ONE_PIECE };
        let _ = STATE.fetch_update(AcqRel, Relaxed, |state| Some(less(state)));
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by this function's contract.
        let memory = unsafe { GlobalDlmalloc.alloc_zeroed(layout) };
        if !memory.is_null() {
            return memory;
        }
        let memory = reserved(layout);
        if !memory.is_null() {
            // SAFETY: the piece is so long.
            unsafe { memory.write_bytes(0, layout.size()) };
        }
        memory
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if !is_reserved(memory) {
            // SAFETY: by this function's contract, and from dlmalloc.
            let new = unsafe { GlobalDlmalloc.realloc(memory, layout, new_size) };
            if !new.is_null() {
                return new;
            }
        }
        // SAFETY: by this function's contract the size is one for this alignment.
        let new = unsafe { self.alloc(Layout::from_size_align_unchecked(new_size, layout.align())) };
        if !new.is_null() {
            // SAFETY: both are so long, and different; the old one is not used any more.
            unsafe {
                new.copy_from_nonoverlapping(memory, layout.size().min(new_size));
                self.dealloc(memory, layout);
            }
        }
        new
    }
}
