//! Checks whether a thread may be borrowed: it must hold no lock that the borrowed work needs.
//!
//! Unwind information gives the functions on its stack. Where that is uncertain, and behind frames of signal handlers,
//! the stack is read word by word: a word that only resembles a return address costs another try.

use std::ops::Range;

use anyhow::Result;
use nix::libc::{self, user_regs_struct};

use super::callers::Callers;
use super::frame::{RIP_AT, RSP_AT};
use super::names;
use super::process::{Map, Module, Process};
use super::sys::words;

/// Code in which a thread is not to be borrowed, and further facts on the process to decide about it.
#[derive(Debug)]
pub(crate) struct Places {
    maps: Vec<Map>,
    callers: Callers,
    /// Code whose functions may hold a lock.
    locked: Vec<Range<u64>>,
    /// Code in which a thread must not be, even if none of `locked` has called it.
    within: Vec<Range<u64>>,
    /// Addresses that may lie on stacks all the same: return addresses in the tracer.
    harmless: Vec<u64>,
    /// 0: no signal has a handler.
    restorer: u64,
}

/// The tracer in a process.
#[derive(Clone, Debug)]
pub(crate) struct Tracer {
    /// Its code.
    pub(crate) texts: Vec<Range<u64>>,
    /// Return addresses in it.
    pub(crate) trampolines: Vec<u64>,
}

/// System calls in which a thread waits without a lock of the C library's, if its stack says so too.
const WAITING: [i64; 29] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_futex,
    libc::SYS_pause,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigsuspend,
    libc::SYS_semop,
    libc::SYS_sched_yield,
    // For an unknown number. Only waits go on by it.
    libc::SYS_restart_syscall,
];

/// Functions around `malloc`: static ones of its file stand before the first of them.
const ALLOCATOR: [&str; 13] = [
    "malloc",
    "free",
    "calloc",
    "realloc",
    "memalign",
    "aligned_alloc",
    "valloc",
    "pvalloc",
    "malloc_trim",
    "malloc_usable_size",
    "mallinfo2",
    "malloc_info",
    "mallopt",
];
const BEFORE_ALLOCATOR: u64 = 0x3000;

/// Functions that take the dynamic linker's locks, or are amid work in which a loaded library takes part.
const OTHERS: [&str; 14] = [
    "dlopen",
    "dlclose",
    "dlsym",
    "dlvsym",
    "dlmopen",
    "dladdr",
    "dladdr1",
    "dl_iterate_phdr",
    "fork",
    "_Fork",
    "vfork",
    "pthread_create",
    "pthread_atfork",
    "exit",
];

/// Functions that have libraries prepare for a child (`pthread_atfork`).
pub(crate) const FORKS: [&str; 1] = ["fork"];

/// The part of a stack to search for return addresses, above the stack pointer.
const NEAR_BYTES: u64 = 64 * 8;
/// And for frames of signal handlers.
const FAR_BYTES: u64 = 256 << 10;

impl Places {
    /// The places for loading a library: the C library takes locks then. `tracer` is the tracer's code, if it is there
    /// already.
    pub(crate) fn for_loading(process: &Process, libc: &Module, tracer: Tracer, restorer: u64) -> Result<Self> {
        let maps = process.maps()?;
        let is_linker = |map: &&Map| map.is_executable && map.path.contains("/ld-linux");
        let mut locked: Vec<Range<u64>> = maps.iter().filter(is_linker).map(|map| map.range.clone()).collect();
        let mut within = locked.clone();
        within.extend(libc.texts.iter().cloned());
        within.extend(tracer.texts.iter().cloned());
        locked.extend(tracer.texts);
        locked.extend(around(&libc.functions(&ALLOCATOR)));
        locked.extend(libc.functions(&OTHERS));
        // Allocators brought by programs.
        let is_other = |path: &&str| !path.contains("/libc.so.6") && !path.contains("/ld-linux");
        // The library for resources takes no lock, and the functions it calls are found by themselves.
        for path in paths(&maps).filter(|path| is_other(path) && !names::is_for_resources(path)) {
            if let Ok(Some(module)) = process.module(&maps, |other| other == path) {
                let found = module.functions(&ALLOCATOR);
                let is_library = path.contains(".so");
                match found.is_empty() {
                    true => {}
                    false if is_library => locked.extend(module.texts),
                    false => locked.extend(around(&found)),
                }
            }
        }
        locked.extend(registrars(process, &maps, false));
        let callers = Callers::new(process, &maps);
        Ok(Self { maps, callers, locked, within, harmless: tracer.trampolines, restorer })
    }

    /// The places for calling the tracer: not within a fork, `forks`, for which its allocator is locked. `registers`:
    /// it may tell unwinders of new code.
    pub(crate) fn for_tracer(
        process: &Process,
        tracer: Tracer,
        forks: &[Range<u64>],
        restorer: u64,
        registers: bool,
    ) -> Result<Self> {
        let Tracer { texts, trampolines } = tracer;
        let maps = process.maps()?;
        let callers = Callers::new(process, &maps);
        let mut locked = [&texts, forks].concat();
        if registers {
            locked.extend(registrars(process, &maps, false));
        }
        Ok(Self { maps, callers, locked, within: texts, harmless: trampolines, restorer })
    }

    /// The places for calling the bare tracer, which takes no lock, as nothing else of the frontend is there. `locked`:
    /// code that takes the lock of an unwinder which is told of the tracer. A thread in the tracer's code, `texts`, is
    /// at no such place, but addresses of this code on a stack do not matter.
    pub(crate) fn for_bare_tracer(
        process: &Process,
        texts: Vec<Range<u64>>,
        restorer: u64,
        locked: Vec<Range<u64>>,
    ) -> Result<Self> {
        let maps = process.maps()?;
        let callers = Callers::new(process, &maps);
        Ok(Self { maps, callers, locked, within: texts, harmless: Vec::new(), restorer })
    }

    /// The same with the present maps, for the same modules: a new look at these takes long.
    pub(crate) fn with_maps(self, maps: Vec<Map>) -> Self {
        Self { maps, ..self }
    }

    /// True if a stopped thread is at such a place.
    pub(crate) fn is_safe(&self, process: &Process, registers: &user_regs_struct) -> bool {
        let call = registers.orig_rax.cast_signed();
        if call >= 0 && !WAITING.contains(&call) {
            return false;
        }
        if call < 0 && (is_in(&self.within, registers.rip) || !self.is_code(registers.rip)) {
            return false;
        }
        let top =
            self.maps.iter().find(|map| map.range.contains(&registers.rsp)).map_or(registers.rsp, |map| map.range.end);
        let near = process.bytes(registers.rsp, NEAR_BYTES.min(top - registers.rsp));
        let is_locked_by_callers = || match self.callers.of(process, registers) {
            Some(callers) => callers.into_iter().any(|address| self.is_locked(address)),
            None => true,
        };
        let is_locked = || words(&near).any(|word| self.is_locked(word)) && is_locked_by_callers();
        if near.is_empty() || self.is_locked(registers.rip) || is_locked() {
            return false;
        }
        let bytes = process.bytes(registers.rsp, FAR_BYTES.min(top - registers.rsp));
        // A handler may have interrupted any of these.
        let is_restorer = |word| word == self.restorer && word != 0;
        let handlers = (registers.rsp..).step_by(8).zip(words(&bytes)).filter(|&(_, word)| is_restorer(word));
        let mut interrupted =
            handlers.filter_map(|(at, _)| Some((process.word(at + RIP_AT)?, process.word(at + RSP_AT)?)));
        !interrupted.any(|(rip, rsp)| {
            is_in(&self.within, rip)
                || self.is_locked(rip)
                || words(&process.bytes(rsp, NEAR_BYTES)).any(|word| self.is_locked(word))
        })
    }

    fn is_locked(&self, address: u64) -> bool {
        is_in(&self.locked, address) && !self.harmless.contains(&address)
    }

    fn is_code(&self, address: u64) -> bool {
        self.maps.iter().any(|map| map.is_executable && map.range.contains(&address))
    }
}

fn is_in(ranges: &[Range<u64>], address: u64) -> bool {
    ranges.iter().any(|range| range.contains(&address))
}

/// The files with mapped code.
fn paths(maps: &[Map]) -> impl Iterator<Item = &str> {
    let mut paths: Vec<&str> =
        maps.iter().filter(|map| map.is_executable && map.path.starts_with('/')).map(|map| &*map.path).collect();
    paths.dedup();
    paths.into_iter()
}

/// Returns the code that takes the lock of an unwinder which is told of new code: the library, or its part of a
/// program, which may not export it.
pub(crate) fn registrars(process: &Process, maps: &[Map], are_hidden: bool) -> Vec<Range<u64>> {
    const FUNCTIONS: [&str; 4] =
        ["__register_frame", "__register_frame_info", "__deregister_frame_info", "_Unwind_Find_FDE"];

    let mut found = Vec::new();
    for path in paths(maps) {
        let Ok(Some(module)) = process.module(maps, |other| other == path) else { continue };
        let functions = if are_hidden { module.definitions(&FUNCTIONS) } else { module.functions(&FUNCTIONS) };
        match functions.is_empty() {
            true => {}
            false if path.contains(".so") => found.extend(module.texts),
            false => found.extend(around(&functions)),
        }
    }
    found
}

/// All of an allocator, from its functions.
fn around(functions: &[Range<u64>]) -> Option<Range<u64>> {
    let low = functions.iter().map(|range| range.start).min()?;
    let high = functions.iter().map(|range| range.end).max()?;
    Some(low - BEFORE_ALLOCATOR..high)
}
