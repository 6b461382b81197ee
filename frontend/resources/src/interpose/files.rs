//! The functions that give out descriptors and take them back.
//!
//! Descriptors are recorded, those of streams and directories too: `fclose` closes the one that `fopen` has opened. So `fdopen` and
//! `fdopendir` take nothing, and `fcloseall` of the GNU C library, which only flushes, gives nothing back; two of these are noted where calls
//! themselves are of interest.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::transmute;
use std::ptr;

use libc::{DIR, FILE};
use rftrace_format::resources::{Kind, Resource};

use super::calls::{Call, Missing, Told, text};
use crate::originals::{self, Original};
use crate::process;
use crate::stacks::Registers;
use crate::thread;

type Text = *const c_char;
type Stream = *mut FILE;
type Directory = *mut DIR;
type Any = *mut c_void;

/// No text is known of it.
const NO_TEXT: Text = ptr::null();

interpose! {
    3 (path: Text, flags: c_int, mode: c_int) -> c_int { one(Kind::Open, path, with_flags(path, flags)) } open open64 __open __open64;
    2 (path: Text, flags: c_int) -> c_int { one(Kind::Open, path, with_flags(path, flags)) } __open_2 __open64_2;
    4 (folder: c_int, path: Text, flags: c_int, mode: c_int) -> c_int { one(Kind::Openat, path, with_flags(path, flags)) } openat openat64;
    3 (folder: c_int, path: Text, flags: c_int) -> c_int { one(Kind::Openat, path, with_flags(path, flags)) } __openat_2 __openat64_2;
    2 (path: Text, mode: c_int) -> c_int { one(Kind::Creat, path, with_flags(path, mode)) } creat creat64;
    1 (path: Text) -> c_int { one(Kind::Mkstemp, path, Arguments::None) } mkstemp mkstemp64;
    2 (path: Text, flags: c_int) -> c_int { one(Kind::Mkostemp, path, Arguments::None) } mkostemp mkostemp64;
    2 (path: Text, suffix: c_int) -> c_int { one(Kind::Mkstemps, path, Arguments::None) } mkstemps mkstemps64;
    3 (path: Text, suffix: c_int, flags: c_int) -> c_int { one(Kind::Mkostemps, path, Arguments::None) } mkostemps mkostemps64;
    3 (name: Text, flags: c_int, mode: c_int) -> c_int { one(Kind::ShmOpen, name, Arguments::None) } shm_open;
    2 (name: Text, flags: c_uint) -> c_int { one(Kind::MemfdCreate, name, Arguments::None) } memfd_create;
    1 (flags: c_int) -> c_int { one(Kind::PosixOpenpt, NO_TEXT, Arguments::None) } posix_openpt;
    3 (domain: c_int, way: c_int, protocol: c_int) -> c_int { one(Kind::Socket, NO_TEXT, Arguments::Socket([domain, way, protocol])) } socket;
    3 (listener: c_int, address: Any, bytes: Any) -> c_int { one(Kind::Accept, NO_TEXT, Arguments::Listener(listener)) } accept;
    4 (listener: c_int, address: Any, bytes: Any, flags: c_int) -> c_int { one(Kind::Accept4, NO_TEXT, Arguments::Listener(listener)) } accept4;
    1 (fd: c_int) -> c_int { one(Kind::Dup, NO_TEXT, Arguments::None) } dup;
    1 (size: c_int) -> c_int { one(Kind::EpollCreate, NO_TEXT, Arguments::None) } epoll_create;
    1 (flags: c_int) -> c_int { one(Kind::EpollCreate1, NO_TEXT, Arguments::None) } epoll_create1;
    2 (start: c_uint, flags: c_int) -> c_int { one(Kind::Eventfd, NO_TEXT, Arguments::None) } eventfd;
    2 (clock: c_int, flags: c_int) -> c_int { one(Kind::TimerfdCreate, NO_TEXT, Arguments::None) } timerfd_create;
    0 () -> c_int { one(Kind::InotifyInit, NO_TEXT, Arguments::None) } inotify_init;
    1 (flags: c_int) -> c_int { one(Kind::InotifyInit1, NO_TEXT, Arguments::None) } inotify_init1;
    2 (flags: c_uint, event_flags: c_uint) -> c_int { one(Kind::FanotifyInit, NO_TEXT, Arguments::None) } fanotify_init;
    3 (fd: c_int, mask: Any, flags: c_int) -> c_int { changing(Kind::Signalfd, fd) } signalfd;
    2 (old: c_int, new: c_int) -> c_int { changing(Kind::Dup2, old) } dup2 __dup2;
    3 (old: c_int, new: c_int, flags: c_int) -> c_int { changing(Kind::Dup3, old) } dup3;
    3 (fd: c_int, command: c_int, argument: usize) -> c_int { control(command) } fcntl fcntl64 __fcntl;
    1 (pair: *const [c_int; 2]) -> c_int { two(Kind::Pipe, pair, Arguments::None) } pipe __pipe;
    2 (pair: *const [c_int; 2], flags: c_int) -> c_int { two(Kind::Pipe2, pair, Arguments::None) } pipe2;
    4 (domain: c_int, way: c_int, protocol: c_int, pair: *const [c_int; 2]) -> c_int {
        two(Kind::Socketpair, pair, Arguments::Socket([domain, way, protocol]))
    } socketpair;
    2 (path: Text, mode: Text) -> Stream { stream(Kind::Fopen, path, Arguments::Opened(path, mode)) } fopen fopen64;
    2 (command: Text, mode: Text) -> Stream { stream(Kind::Popen, command, Arguments::None) } popen;
    0 () -> Stream { stream(Kind::Tmpfile, NO_TEXT, Arguments::None) } tmpfile tmpfile64;
    3 (path: Text, mode: Text, old: Stream) -> Stream { another(path, mode, old) } freopen freopen64;
    2 (fd: c_int, mode: Text) -> Stream { stream_of(fd, mode) } fdopen;
    0 () -> c_int { close_all() } fcloseall;
    1 (path: Text) -> Directory { directory(path) } opendir;
    1 (fd: c_int) -> c_int { close_one(fd) } close __close;
    1 (stream: Stream) -> c_int { close_with(Kind::Fclose, fd_of(stream), stream as u64) } fclose;
    1 (stream: Stream) -> c_int { close_with(Kind::Pclose, fd_of(stream), stream as u64) } pclose;
    1 (folder: Directory) -> c_int { close_with(Kind::Closedir, fd_of_directory(folder), folder as u64) } closedir;
    3 (first: c_uint, last: c_uint, flags: c_int) -> c_int { close_range_of(first, last, flags) } close_range;
    1 (first: c_int) -> () { close_from(first) } closefrom;
}

/// Arguments of a call, as functracer tells them.
#[derive(Clone, Copy)]
enum Arguments {
    None,
    /// A path and flags, or a mode.
    Flags(Text, c_int),
    /// A path, and how it is opened.
    Opened(Text, Text),
    /// A descriptor, and how it is opened.
    Descriptor(c_int, Text),
    Socket([c_int; 3]),
    Listener(c_int),
}

fn with_flags(path: Text, flags: c_int) -> Arguments {
    Arguments::Flags(path, flags)
}

impl Arguments {
    /// The function's result, and these.
    fn told(self, value: u64) -> Told {
        let mut all = Told::only(value);
        let told = &mut all;
        match self {
            Self::None => told,
            Self::Flags(path, flags) => {
                told.with(b"filename: ").with(text(path)).with(b", flags: ").with_number(flags.into())
            }
            Self::Opened(path, mode) => {
                told.with(b"filename: ").with(text(path)).with(b", opentype: ").with(text(mode))
            }
            Self::Descriptor(fd, mode) => {
                told.with(b"descriptor: ").with_number(fd.into()).with(b", opentype: ").with(text(mode))
            }
            Self::Socket([domain, way, protocol]) => {
                told.with(b"namespace: ").with_number(domain.into()).with(b" style: ").with_number(way.into());
                told.with(b" protocol: ").with_number(protocol.into())
            }
            Self::Listener(listener) => told.with(b"socket: ").with_number(listener.into()),
        };
        all
    }
}

fn begin(registers: Registers) -> Option<Call> {
    Call::begin(Resource::File, registers)
}

/// A descriptor as what is recorded; `None` for what is none.
fn descriptor(fd: c_int) -> Option<u64> {
    u64::try_from(fd).ok()
}

/// That of a stream; -1 for one that has none.
fn fd_of(stream: Stream) -> c_int {
    // SAFETY: a stream of the caller's.
    if stream.is_null() { -1 } else { thread::keeping_errno(|| unsafe { libc::fileno(stream) }) }
}

/// That of a directory.
fn fd_of_directory(directory: Directory) -> c_int {
    // SAFETY: a directory of the caller's.
    if directory.is_null() { -1 } else { thread::keeping_errno(|| unsafe { libc::dirfd(directory) }) }
}

/// A function that returns a descriptor.
fn one(kind: Kind, about: Text, arguments: Arguments, registers: Registers, original: impl FnOnce() -> c_int) -> c_int {
    let call = begin(registers);
    let fd = original();
    if let Some((call, new)) = call.zip(descriptor(fd)) {
        call.taken(kind, new, text(about), || arguments.told(new));
    }
    fd
}

/// One that returns a new descriptor, or this one.
fn changing(kind: Kind, old: c_int, registers: Registers, original: impl FnOnce() -> c_int) -> c_int {
    let call = begin(registers);
    let fd = original();
    if let Some((call, new)) = call.zip(descriptor(fd)).filter(|_| fd != old) {
        call.taken(kind, new, &[], || Told::only(new));
    }
    fd
}

/// `fcntl`, which makes descriptors too.
fn control(command: c_int, registers: Registers, original: impl FnOnce() -> c_int) -> c_int {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => one(Kind::Fcntl, NO_TEXT, Arguments::None, registers, original),
        _ => original(),
    }
}

/// One that makes two descriptors.
fn two(
    kind: Kind,
    pair: *const [c_int; 2],
    arguments: Arguments,
    registers: Registers,
    original: impl FnOnce() -> c_int,
) -> c_int {
    let call = begin(registers);
    let result = original();
    if let Some(call) = call.filter(|_| result == 0) {
        // SAFETY: the function has written them there.
        for fd in unsafe { pair.read_unaligned() } {
            call.taken(kind, fd as u64, &[], || arguments.told(fd as u64));
        }
    }
    result
}

/// One that makes a stream.
fn stream(
    kind: Kind,
    about: Text,
    arguments: Arguments,
    registers: Registers,
    original: impl FnOnce() -> Stream,
) -> Stream {
    let call = begin(registers);
    let stream = original();
    if let Some((call, new)) = call.zip(descriptor(fd_of(stream))) {
        call.taken(kind, new, text(about), || arguments.told(stream as u64));
    }
    stream
}

/// `fdopen`: the descriptor is the stream's then.
fn stream_of(fd: c_int, mode: Text, registers: Registers, original: impl FnOnce() -> Stream) -> Stream {
    let call = begin(registers);
    let stream = original();
    if let Some(call) = call {
        call.note(Kind::FdopenClose, u64::from(fd.cast_unsigned()), || Told::only(u64::from(fd.cast_unsigned())));
        if !stream.is_null() {
            let arguments = Arguments::Descriptor(fd, mode);
            call.note(Kind::Fdopen, u64::from(fd.cast_unsigned()), || arguments.told(stream as u64));
        }
    }
    stream
}

fn close_all(registers: Registers, original: impl FnOnce() -> c_int) -> c_int {
    let call = begin(registers);
    let result = original();
    if let Some(call) = call {
        call.note(Kind::Fcloseall, 0, || Told::only(0));
    }
    result
}

/// `freopen`: the old descriptor is closed, even where there is no new one.
fn another(path: Text, mode: Text, old: Stream, registers: Registers, original: impl FnOnce() -> Stream) -> Stream {
    let call = begin(registers);
    let old_fd = descriptor(fd_of(old));
    let stream = original();
    if let Some((call, fd)) = call.zip(old_fd) {
        call.given_back(Kind::FreopenClose, fd, old as u64);
    }
    if let Some((call, new)) = call.zip(descriptor(fd_of(stream))) {
        call.taken(Kind::Freopen, new, text(path), || Arguments::Opened(path, mode).told(stream as u64));
    }
    stream
}

fn directory(path: Text, registers: Registers, original: impl FnOnce() -> Directory) -> Directory {
    let call = begin(registers);
    let directory = original();
    if let Some((call, new)) = call.zip(descriptor(fd_of_directory(directory))) {
        call.taken(Kind::Opendir, new, text(path), || Told::only(directory as u64));
    }
    directory
}

/// `close`: what was open is closed, whatever is answered, but where it was not open.
fn close_one(fd: c_int, registers: Registers, original: impl FnOnce() -> c_int) -> c_int {
    let call = begin(registers);
    let result = original();
    let Some(call) = call else { return result };
    // SAFETY: the thread's own.
    if result < 0 && unsafe { libc::__errno_location().read() } == libc::EBADF {
        call.failed(Kind::NotOpen, u64::from(fd.cast_unsigned()), u64::from(fd.cast_unsigned()));
    } else {
        call.given_back(Kind::Close, u64::from(fd.cast_unsigned()), u64::from(fd.cast_unsigned()));
    }
    result
}

/// Calls a function that closes the descriptor of something, and fails for other reasons too.
fn close_with(kind: Kind, fd: c_int, got: u64, registers: Registers, original: impl FnOnce() -> c_int) -> c_int {
    let call = begin(registers);
    let is_open = call.is_some() && {
        let may_ask = !process::is_confined();
        // SAFETY: tells of a descriptor.
        fd >= 0 && !(may_ask && thread::keeping_errno(|| unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0))
    };
    let result = original();
    if let Some((call, fd)) = call.zip(descriptor(fd)) {
        if is_open {
            call.given_back(kind, fd, got);
        } else {
            call.failed(Kind::NotOpen, fd, got);
        }
    }
    result
}

fn close_range_of(
    first: c_uint,
    last: c_uint,
    flags: c_int,
    registers: Registers,
    original: impl FnOnce() -> c_int,
) -> c_int {
    let call = begin(registers);
    let result = original();
    if let Some(call) = call.filter(|_| result == 0 && flags & libc::CLOSE_RANGE_CLOEXEC.cast_signed() == 0) {
        call.range_given_back(Kind::CloseRange, first.into(), last.into());
    }
    result
}

fn close_from(first: c_int, registers: Registers, original: impl FnOnce()) {
    let call = begin(registers);
    original();
    if let Some(call) = call {
        call.range_given_back(Kind::CloseRange, first.max(0) as u64, u64::from(u32::MAX));
    }
}
