//! The environments that the program gives to other programs: those have what `rftrace record` has told this one, too, whatever the program has left
//! out. So a program is recorded that is started with an environment of its own, or none. One that cannot load our libraries is not told to.

use std::cell::Cell;
use std::env;
use std::ffi::{CStr, CString, OsString, c_char, c_int};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::ptr;
use std::slice;
use std::sync::OnceLock;

use rftrace_format::recording;

use crate::memory;
use crate::notes;
use crate::program::Program;
use crate::work;

/// The variable that the dynamic linker reads.
const PRELOAD: &[u8] = b"LD_PRELOAD=";

static OWN: OnceLock<Own> = OnceLock::new();

/// The recorder's instructions to this program.
struct Own {
    /// `NAME=value`.
    variables: Vec<CString>,
    /// The libraries that are preloaded for a recording, as the dynamic linker takes them.
    libraries: Vec<u8>,
}

thread_local! {
    /// Memory for an environment, and its bytes. The child of a `vfork` has that of its parent, and does not come back to give it away.
    static ROOM: Cell<(*mut u8, usize)> = const { Cell::new((ptr::null_mut(), 0)) };
}

/// Keeps what this program was told, as it may change its environment.
pub(crate) fn remember() {
    let variable = |(name, value): (OsString, OsString)| {
        let is_own = name.as_bytes().starts_with(b"RFTRACE_");
        let text = [name.as_bytes(), b"=", &value.into_vec()].concat();
        if is_own { CString::new(text).ok() } else { None }
    };
    let preloaded = env::var_os("LD_PRELOAD").unwrap_or_default();
    let libraries = recording::preloaded(preloaded.as_bytes()).filter(|path| recording::is_own_library(path));
    let libraries = libraries.collect::<Vec<_>>().join(&b':');
    OWN.get_or_init(|| Own { variables: env::vars_os().filter_map(variable).collect(), libraries });
}

/// Has `start` begin a program with an environment, and with what is missing there, or without our libraries. It may not come back.
///
/// # Safety
///
/// The environment is null, or pointers to texts that end with a NUL, the last pointer null. The program's name is such a text, or null.
pub(crate) unsafe fn completed(
    program: &Program,
    environment: *const *const c_char,
    start: impl FnOnce(*const *const c_char) -> c_int,
) -> c_int {
    let Some(own) = OWN.get() else { return start(environment) };
    let mut n_given = 0;
    // SAFETY: by this function's contract the pointers are there up to the one that is null.
    while !environment.is_null() && unsafe { !(*environment.add(n_given)).is_null() } {
        n_given += 1;
    }
    // SAFETY: they are so many, of which none is null.
    let given = if n_given == 0 { &[][..] } else { unsafe { slice::from_raw_parts(environment, n_given) } };
    // SAFETY: by this function's contract.
    let text = |&variable: &*const c_char| unsafe { CStr::from_ptr(variable) }.to_bytes();
    let is_given = |wanted: &CString| {
        let name = wanted.as_bytes().split_inclusive(|&byte| byte == b'=').next().unwrap_or_default();
        given.iter().map(text).any(|variable| variable.starts_with(name))
    };
    let preloaded = given.iter().map(text).find_map(|variable| variable.strip_prefix(PRELOAD)).unwrap_or_default();
    let is_looked_at = !own.libraries.is_empty() && !work::is_filtered();
    // SAFETY: by this function's contract.
    let takes_libraries = !is_looked_at || unsafe { program.takes_libraries() };
    let is_loaded = recording::preloaded(preloaded).any(recording::is_own_library);
    let is_right = if takes_libraries { is_loaded || own.libraries.is_empty() } else { !is_loaded };
    if !takes_libraries {
        notes::tell(
            "a program that it started was not recorded, nor were its children: the program uses musl, or is for \
             another machine",
        );
    }
    if is_right && own.variables.iter().all(is_given) {
        return start(environment);
    }
    let pointers_bytes = (n_given + own.variables.len() + 2) * size_of::<*const c_char>();
    let text_bytes = PRELOAD.len() + own.libraries.len() + preloaded.len() + 2;
    let Some(room) = room(pointers_bytes + text_bytes) else { return start(environment) };
    let preload = room.wrapping_add(pointers_bytes);
    let mut end = preload;
    let missing = Some(&own.libraries[..]).filter(|libraries| takes_libraries && !is_loaded && !libraries.is_empty());
    let others = recording::preloaded(preloaded).filter(|path| takes_libraries || !recording::is_own_library(path));
    for (number, library) in missing.into_iter().chain(others).enumerate() {
        for part in [if number == 0 { PRELOAD } else { b":" }, library] {
            // SAFETY: the room has so many bytes behind the pointers, and is nobody else's.
            unsafe { ptr::copy_nonoverlapping(part.as_ptr(), end, part.len()) };
            end = end.wrapping_add(part.len());
        }
    }
    // SAFETY: as above: there is room for the NUL.
    unsafe { end.write(0) };
    let preload = (end != preload).then_some(preload.cast_const().cast());
    let rest = given.iter().copied().filter(|variable| !text(variable).starts_with(PRELOAD));
    let own = own.variables.iter().filter(|variable| !is_given(variable)).map(|variable| variable.as_ptr());
    let all = rest.chain(own).chain(preload).chain([ptr::null()]);
    let pointers = room.cast::<*const c_char>();
    // SAFETY: there is room for all of them, at the beginning of pages.
    all.enumerate().for_each(|(number, variable)| unsafe { pointers.add(number).write(variable) });
    start(pointers)
}

/// Memory of this thread for so many bytes. The system gives it: the program's allocator may be locked.
fn room(n_bytes: usize) -> Option<*mut u8> {
    let (known, known_bytes) = ROOM.get();
    if known_bytes >= n_bytes {
        return Some(known);
    }
    let n_bytes = n_bytes.next_multiple_of(1 << 14);
    let new = memory::map(n_bytes);
    if new.is_null() {
        return None;
    }
    if known_bytes > 0 {
        // SAFETY: memory that was mapped for this, and that nobody reads any more.
        unsafe { libc::munmap(known.cast(), known_bytes) };
    }
    ROOM.set((new, n_bytes));
    Some(new)
}
