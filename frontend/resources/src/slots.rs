//! Which functions of a program that ran before are to lead to those of this library: by slots, which the tracer's library writes.
//!
//! This library is the last one in the program, so its own names lead to others: those of its functions are found by its handle.

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Relaxed, Release};

use rftrace_format::interposed::Interposed;

use crate::originals::{self, NAMES};

unsafe extern "C" {
    static __ehdr_start: u8;
    static _end: u8;
}

/// True if an address is in this library.
pub(crate) fn is_own(address: usize) -> bool {
    (own_address()..&raw const _end as usize).contains(&address)
}

/// An address in it.
pub(crate) fn own_address() -> usize {
    &raw const __ehdr_start as usize
}

/// For the tracer's library: the address of the list, and its length.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
static rftrace_resources_interposed: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Finds what is to be called in place of what, of the resources that are wanted and of what is specified.
pub(crate) fn find(wanted: u32, specified: Vec<Interposed>) {
    let Some(own) = own_handle() else { return };
    let mut found = Vec::with_capacity(1 + NAMES.len() + specified.len());
    // By the first one it is known which library this is, whose own slots stay. It stands for itself, and no module calls it by its name.
    let own_name = c"rftrace_resources_attach".as_ptr() as usize;
    found.push(Interposed { name: own_name, function: own_address(), original: own_address() });
    // Before the others: they go on to those of the same names.
    found.extend(specified);
    for (place, name) in NAMES.iter().enumerate() {
        if originals::resource_of(place).is_none_or(|resource| wanted & resource.bit() == 0) {
            continue;
        }
        // SAFETY: a handle of a library that stays, and a name with a NUL.
        let function = unsafe { libc::dlsym(own, name.as_ptr()) } as usize;
        let original = original(name);
        if is_own(function) && original != 0 {
            originals::set(place, original as *mut c_void);
            found.push(Interposed { name: name.as_ptr() as usize, function, original });
        }
    }
    // SAFETY: forgets what it was about to tell of functions that are not there.
    unsafe { libc::dlerror() };
    let [place, number] = &rftrace_resources_interposed;
    let found = found.leak();
    place.store(found.as_ptr() as usize, Relaxed);
    number.store(found.len(), Release);
}

/// The handle of this library.
fn own_handle() -> Option<*mut c_void> {
    const RTLD_DL_LINKMAP: c_int = 2;
    let mut handle = ptr::null_mut();
    about(own_address(), &mut handle, RTLD_DL_LINKMAP)?;
    (!handle.is_null()).then_some(handle)
}

/// The dynamic linker's knowledge of an address.
fn about(address: usize, extra: &mut *mut c_void, what: c_int) -> Option<libc::Dl_info> {
    unsafe extern "C" {
        fn dladdr1(address: *const c_void, info: *mut libc::Dl_info, extra: *mut *mut c_void, what: c_int) -> c_int;
    }

    let mut info = MaybeUninit::uninit();
    // SAFETY: places for what is told, which is only of addresses.
    let is_known = unsafe { dladdr1(address as *const c_void, info.as_mut_ptr(), extra, what) } != 0;
    // SAFETY: it was written then.
    is_known.then(|| unsafe { info.assume_init() })
}

/// The function that a name leads to, from everywhere but here; 0 for none.
pub(crate) fn original(name: &CStr) -> usize {
    // SAFETY: a name with a NUL.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) } as usize;
    if is_own(found) {
        return 0;
    }
    if !is_linkage(found) {
        return found;
    }
    // A program at a fixed place that takes the function's address: for all the function is where the program jumps through its slot.
    // SAFETY: a library that is there stays, and nothing is loaded.
    unsafe {
        let libc = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if libc.is_null() { 0 } else { libc::dlsym(libc, name.as_ptr()) as usize }
    }
}

/// True if a name leads to a linkage stub of the program, for a function of another module.
fn is_linkage(address: usize) -> bool {
    const RTLD_DL_SYMENT: c_int = 1;
    let mut symbol = ptr::null_mut();
    let Some(_) = about(address, &mut symbol, RTLD_DL_SYMENT) else { return false };
    let symbol: *const libc::Elf64_Sym = symbol.cast_const().cast();
    // SAFETY: null, or an entry of a symbol table, which stays.
    unsafe { symbol.as_ref() }.is_some_and(|symbol| symbol.st_shndx == 0)
}
