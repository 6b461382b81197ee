//! `mlockall` of the program: it locks the program's memory, and none of the tracer's. The banks are room for many processes: no machine has
//! memory for all of it.
//!
//! The system counts all mapped memory, and locks it at once. Here it is asked to lock pages when they come; then the tracer's are unlocked,
//! and the program's locked as it wanted. Memory that the tracer has allocated for itself, and libgcc_s where the program has none, some
//! hundred KiB, counts as the program's.
//!
//! Later mappings of the program are locked by the system alone (`MCL_FUTURE`): the tracer maps nothing large later, and a child of a fork
//! inherits no locks.

use std::ffi::{c_int, c_long, c_void};
use std::ops::Range;

use rftrace_format::system;

use crate::memory;
use crate::originals::{errno, real_mlockall, set_errno};
use crate::process;
use crate::save::RECORDING;
use crate::work;

/// The files that the tracer has mapped: in memory, and the libraries.
const OWN_FILES: [&str; 3] = ["/memfd:rftrace-", "/rftrace-preload-resources", "/rftrace-preload"];

#[unsafe(no_mangle)]
extern "C" fn mlockall(flags: c_int) -> c_int {
    let has_bank = RECORDING.get().is_some_and(|recording| recording.bank.is_some()) && process::is_owner();
    if flags & libc::MCL_CURRENT == 0 || !has_bank {
        return real_mlockall(flags);
    }
    let errno_before = errno();
    let mut locked = None;
    work::alone(|| locked = Some(lock(flags)));
    match locked {
        Some(Ok(())) => {
            set_errno(errno_before);
            0
        }
        Some(Err(error)) => {
            set_errno(error);
            -1
        }
        None => real_mlockall(flags),
    }
}

/// All flags that the system knows.
const KNOWN: c_int = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;

fn lock(flags: c_int) -> Result<(), c_int> {
    let lock_all = |flags| if real_mlockall(flags) == 0 { Ok(()) } else { Err(errno()) };
    let is_on_fault = flags & libc::MCL_ONFAULT != 0;
    match lock_all(flags | libc::MCL_ONFAULT) {
        Ok(()) => {}
        // It may be what the tracer has mapped that is too much.
        Err(libc::ENOMEM) if program_bytes() <= most_bytes() => {
            if flags & libc::MCL_FUTURE != 0 {
                lock_all(flags & !libc::MCL_CURRENT)?;
            }
            lock_program(is_on_fault);
            return Ok(());
        }
        // Before Linux 4.4.
        Err(libc::EINVAL) if flags & !KNOWN == 0 => return lock_all(flags),
        Err(error) => return Err(error),
    }
    for it in mappings().iter().filter(|it| it.is_own) {
        // SAFETY: memory that is mapped.
        unsafe { libc::munlock(it.place.start as *const c_void, it.place.len()) };
    }
    if is_on_fault {
        return Ok(());
    }
    if flags & libc::MCL_FUTURE != 0 {
        lock_all(libc::MCL_FUTURE)?;
    }
    lock_program(false);
    Ok(())
}

/// Locks what is the program's. As by the system, what cannot be locked stays as it is.
fn lock_program(is_on_fault: bool) {
    const MLOCK_ONFAULT: c_long = 1;

    for it in mappings().iter().filter(|it| !it.is_own) {
        let flags = if is_on_fault { MLOCK_ONFAULT } else { 0 };
        // SAFETY: memory that is mapped, or was.
        unsafe { libc::syscall(libc::SYS_mlock2, it.place.start, it.place.len(), flags) };
    }
}

/// Something that is mapped, and whether it is the tracer's.
struct Mapping {
    place: Range<usize>,
    is_own: bool,
}

/// The present mappings.
fn mappings() -> Vec<Mapping> {
    let maps = system::read("/proc/thread-self/maps").unwrap_or_default();
    let mut own: Vec<Range<usize>> = memory::own_places();
    own.extend(RECORDING.get().and_then(|recording| recording.bank).map(|bank| bank.addresses()));
    own.extend(rftrace_frontend::bank::memory_of_tracer());
    own.sort_unstable_by_key(|own| own.start);
    let maps = String::from_utf8_lossy(&maps);
    // The tracer reads the files of modules, which the dynamic linker maps otherwise.
    let modules: Vec<&str> = maps.lines().filter(|line| line.contains(" r-xp ")).map(file_of).collect();
    let mapping = |line: &str| {
        let (place, rest) = line.split_once(' ')?;
        let (start, end) = place.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        let place = address(start)?..address(end)?;
        let file = file_of(rest);
        let is_own = OWN_FILES.iter().any(|own| file.starts_with(own) || file.ends_with(own))
            || rest.starts_with("r--s ") && !file.is_empty() && modules.contains(&file);
        Some(if is_own { vec![Mapping { place, is_own }] } else { parts(place, &own) })
    };
    maps.lines().filter_map(mapping).flatten().collect()
}

/// The file that a line tells of; empty for none.
fn file_of(line: &str) -> &str {
    line.find('/').map_or("", |start| &line[start..])
}

/// The parts of something that is mapped, as the system joins what lies side by side: those in `own`, which is in order, and the others.
fn parts(place: Range<usize>, own: &[Range<usize>]) -> Vec<Mapping> {
    let mut parts = Vec::new();
    let mut start = place.start;
    for own in own.iter().filter(|own| own.start < place.end && place.start < own.end) {
        let own = own.start.max(start)..own.end.min(place.end);
        parts.push(Mapping { place: start..own.start, is_own: false });
        start = own.end;
        parts.push(Mapping { place: own, is_own: true });
    }
    parts.push(Mapping { place: start..place.end, is_own: false });
    parts.retain(|part| !part.place.is_empty());
    parts
}

/// Bytes of the program's mappings.
fn program_bytes() -> u64 {
    mappings().iter().filter(|it| !it.is_own).map(|it| it.place.len() as u64).sum()
}

/// How much may be locked.
fn most_bytes() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: it is writable.
    if unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } != 0 {
        return 0;
    }
    limit.rlim_cur
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_parts_are_told_apart() {
        let of = |own: &[Range<usize>]| -> Vec<(usize, usize, bool)> {
            parts(10..20, own).into_iter().map(|it| (it.place.start, it.place.end, it.is_own)).collect()
        };
        assert_eq!(of(&[]), [(10, 20, false)]);
        assert_eq!(
            of(&[0..5, 8..12, 15..16, 20..30]),
            [(10, 12, true), (12, 15, false), (15, 16, true), (16, 20, false)]
        );
        let all = 0..30;
        assert_eq!(of(std::slice::from_ref(&all)), [(10, 20, true)]);
    }
}
