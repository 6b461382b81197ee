//! The system calls made in another process by this one, and those made by the tracer in it: all of them, also those of
//! only some versions of the C library, or of a program's allocator called by it. `seccomp.rs` of the tests has
//! programs that may make no other ones.
//!
//! Enter each new call of the tracer here.

use nix::libc;

use super::bpf::Call;

/// A call, and the known part of its arguments: each of these has it called with such values at these places.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needed {
    pub(crate) name: &'static str,
    number: i64,
    arguments: &'static [&'static [(usize, i32)]],
    /// True if its caller goes on without it.
    pub(crate) may_fail: bool,
}

/// Calls with any arguments, or `(place, value)`, with other ones behind `or`.
macro_rules! calls {
    (@ must) => { false };
    (@ may) => { true };
    ($($kind:ident $number:ident $($(($place:literal, $value:expr))+ $(or)?)*),* $(,)?) => {
        &[$(Needed {
            name: stringify!($number).split_at("SYS_".len()).1,
            number: libc::$number,
            arguments: &[$(&[$(($place, $value)),+]),*],
            may_fail: calls!(@ $kind),
        }),*]
    };
}

const R: i32 = libc::PROT_READ;
const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
const RX: i32 = libc::PROT_READ | libc::PROT_EXEC;
const RWX: i32 = RW | RX;

/// The system uses it for an interrupted wait to go on.
const STOPPED: &[Needed] = calls![must SYS_restart_syscall];

/// Calls of any borrowed thread.
const ALWAYS: &[Needed] = calls![
    must SYS_rt_sigreturn,
    must SYS_mmap (2, 0) or (2, R) or (2, RW) or (2, RX),
    must SYS_munmap,
    must SYS_mprotect (2, 0) or (2, R) or (2, RW),
    must SYS_madvise,
    must SYS_memfd_create,
    must SYS_close,
    // By locks and allocators in called functions.
    must SYS_brk,
    must SYS_futex,
    must SYS_getpid,
];

/// The tracer alone.
const OUTSIDE: &[Needed] = calls![must SYS_tgkill(2, 0)];

/// The dynamic linker, and the library: it reads files and settings, is alone at work, and knows of forks and ends of
/// threads.
const LIBRARY: &[Needed] = calls![
    must SYS_open,
    must SYS_openat,
    must SYS_read,
    must SYS_pread64,
    must SYS_lseek,
    must SYS_stat,
    must SYS_fstat,
    must SYS_lstat,
    must SYS_newfstatat,
    must SYS_statx,
    must SYS_readlink,
    must SYS_getdents64,
    must SYS_fcntl,
    must SYS_mremap,
    may SYS_mprotect (2, RX) or (2, RWX),
    must SYS_pwrite64,
    must SYS_gettid,
    must SYS_rt_sigprocmask,
    must SYS_rt_sigpending,
    must SYS_rt_sigtimedwait,
    must SYS_nanosleep,
    must SYS_clock_nanosleep,
    must SYS_sched_yield,
    must SYS_clock_gettime,
    must SYS_getrandom,
    must SYS_getrusage,
    must SYS_uname,
    must SYS_sched_getaffinity,
    may SYS_prctl (0, libc::PR_GET_NAME),
    // Call sites are changed while threads run.
    may SYS_membarrier,
];

/// It asks this process for the values of functions.
const TYPES: &[Needed] = calls![
    must SYS_socket (0, libc::AF_UNIX),
    must SYS_connect,
    must SYS_setsockopt,
    must SYS_sendto,
    must SYS_shutdown,
    must SYS_recvfrom,
];

/// Stacks are looked at.
const RESOURCES: &[Needed] = calls![must SYS_process_vm_readv];

/// Calls that read values from memory that may not be there.
const VALUES: &[Needed] = calls![may SYS_process_vm_readv];

/// Needed calls.
#[derive(Clone, Debug)]
pub(crate) struct Needs(Vec<&'static [Needed]>);

impl Needs {
    /// The calls for the tracer alone.
    pub(crate) fn outside() -> Self {
        Self(vec![STOPPED, ALWAYS, OUTSIDE])
    }

    /// The calls for the library.
    pub(crate) fn of_library(has_types: bool, has_resources: bool) -> Self {
        let further = [(has_types, TYPES), (has_resources, RESOURCES)];
        let further = further.into_iter().filter(|&(is_wanted, _)| is_wanted).map(|(_, calls)| calls);
        Self([STOPPED, ALWAYS, LIBRARY].into_iter().chain(further).collect())
    }

    /// Calls that are not needed if strings are read only from memory that is there for sure.
    pub(crate) fn of_values() -> Self {
        Self(vec![VALUES])
    }

    /// The call for a wait to go on.
    pub(crate) fn of_stop() -> Self {
        Self(vec![STOPPED])
    }

    pub(crate) fn calls(&self) -> impl Iterator<Item = &'static Needed> {
        self.0.iter().copied().flatten()
    }
}

/// Returns the calls that a filter has to permit, for the way with the library or for the tracer alone. Each has a flag
/// that tells whether it may fail. Calls for values and resources are included.
#[must_use]
pub fn needed_calls(is_by_library: bool) -> Vec<(Call, bool)> {
    let needs = if is_by_library { Needs::of_library(true, true) } else { Needs::outside() };
    needs.calls().flat_map(|needed| needed.seen().into_iter().map(|call| (call, needed.may_fail))).collect()
}

impl Needed {
    /// Returns the forms in which a filter sees it.
    pub(crate) fn seen(&self) -> Vec<Call> {
        let any = Call { number: self.number as u32, arguments: [None; 6] };
        let with = |values: &&[(usize, i32)]| {
            let mut call = any;
            values.iter().for_each(|&(place, value)| call.arguments[place] = Some(value as u64));
            call
        };
        if self.arguments.is_empty() { vec![any] } else { self.arguments.iter().map(with).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_their_arguments() {
        let needs = Needs::of_library(true, true);
        let of = |name: &str| needs.calls().filter(|it| it.name == name).flat_map(Needed::seen).collect::<Vec<_>>();
        assert_eq!(of("close"), [Call { number: libc::SYS_close as u32, arguments: [None; 6] }]);
        let socket = of("socket");
        assert_eq!(socket[0].arguments, [Some(1), None, None, None, None, None]);
        let protections: Vec<_> = of("mprotect").iter().map(|call| call.arguments[2]).collect();
        assert_eq!(protections, [0, 1, 3, 5, 7].map(Some));
        assert!(Needs::of_library(false, true).calls().all(|it| it.name != "socket"));
        let stop: Vec<&str> = Needs::of_stop().calls().map(|it| it.name).collect();
        assert_eq!(stop, ["restart_syscall"]);
    }
}
