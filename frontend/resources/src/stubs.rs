//! Functions that slots of a program that ran before lead to in place of specified ones: each tells which one is meant, and goes on to
//! `interpose::specified`. In programs that `rftrace record` starts they are in a library that it writes.

use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::ptr;

use rftrace_format::interposed::Interposed;

use crate::interpose::{Known, specified};
use crate::originals;
use crate::slots;

const STUB_BYTES: usize = 32;

/// Makes them, of a file with lines `NUMBER NAME`; none for functions that are not there. They go on to this library's own functions of these
/// names, where these record what is wanted. They stay: a thread may be in one.
pub(crate) fn make(path: &[u8], wanted: u32) -> io::Result<Vec<Interposed>> {
    #[allow(clippy::disallowed_methods, reason = "a file in memory of the recorder")]
    let text = fs::read(OsStr::from_bytes(path))?;
    let known: Vec<Known> = text.split(|&byte| byte == b'\n').filter_map(known_by).collect();
    let known: &'static [Known] = known.leak();
    if known.is_empty() {
        return Ok(Vec::new());
    }
    let code: Vec<u8> = known.iter().flat_map(stub).collect();
    // No memory becomes code that can be written.
    // SAFETY: a name with a NUL.
    let file = unsafe { libc::memfd_create(c"rftrace-specified".as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: this function's own descriptor.
    let file = unsafe { File::from_raw_fd(file) };
    file.write_all_at(&code, 0)?;
    let protection = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: a new mapping of a file that is so long, and that nobody else has.
    let start = unsafe { libc::mmap(ptr::null_mut(), code.len(), protection, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let interposed = |(place, known): (usize, &'static Known)| {
        let original = slots::original(known.name());
        // SAFETY: a name with a NUL.
        let own = unsafe { originals::own(known.name().as_ptr(), wanted) };
        known.set(own.unwrap_or(original));
        let name = known.name().as_ptr() as usize;
        (original != 0).then_some(Interposed { name, function: start as usize + place * STUB_BYTES, original })
    };
    Ok(known.iter().enumerate().filter_map(interposed).collect())
}

fn known_by(line: &[u8]) -> Option<Known> {
    let end = line.iter().position(|&byte| byte == b' ')?;
    let number = str::from_utf8(&line[..end]).ok()?.parse().ok()?;
    Some(Known::new(CString::new(&line[end + 1..]).ok()?, number))
}

/// `mov r11, KNOWN; jmp SPECIFIED`.
fn stub(known: &Known) -> [u8; STUB_BYTES] {
    let mut code = [0xcc; STUB_BYTES];
    code[..2].copy_from_slice(&[0x49, 0xbb]);
    code[2..10].copy_from_slice(&(ptr::from_ref(known) as usize).to_le_bytes());
    code[10..16].copy_from_slice(&[0xff, 0x25, 0, 0, 0, 0]);
    code[16..24].copy_from_slice(&specified().to_le_bytes());
    code
}
