//! The table of functions that are specified, as the recorder has compiled it.

use std::ffi::CStr;
use std::ptr;
use std::slice;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicUsize};

use rftrace_format::specification::{Entry, HEAD_BYTES, Table};

static TABLE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// Maps the table.
pub(crate) fn open(path: &CStr) {
    // SAFETY: a path that ends with a NUL.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return;
    }
    let mut head = [0u8; HEAD_BYTES];
    // SAFETY: the buffer has room for so much; the descriptor is this function's own.
    let is_read = unsafe { libc::pread(file, head.as_mut_ptr().cast(), HEAD_BYTES, 0) } == HEAD_BYTES as isize;
    if let Some(bytes) = Table::bytes(&head).filter(|_| is_read) {
        // SAFETY: a new mapping of a file that is so long, as its recorder has written it.
        let table = unsafe { libc::mmap(ptr::null_mut(), bytes, libc::PROT_READ, libc::MAP_PRIVATE, file, 0) };
        if table != libc::MAP_FAILED {
            BYTES.store(bytes, Relaxed);
            TABLE.store(table.cast(), Release);
        }
    }
    // SAFETY: as above.
    unsafe { libc::close(file) };
}

/// A function of it.
pub(crate) fn function(number: usize) -> Option<Entry<'static>> {
    let table = TABLE.load(Acquire);
    if table.is_null() {
        return None;
    }
    // SAFETY: mapped with so many bytes, and stays.
    let bytes = unsafe { slice::from_raw_parts(table, BYTES.load(Relaxed)) };
    Table::new(bytes)?.function(number)
}
