//! `resources.dat`: who took memory, files, threads and libraries, and gave them back. The file, and the memory that recorded processes write the same
//! units to.
//!
//! The file is [`MAGIC`] and blocks, each of a [head](BlockHead) and units of 16 bytes. One or two blocks are what one thread has written to
//! one chunk of the memory, in which [`pool`] says where things lie, [`short`] what takes less room there, and [`chunk`] what of one goes into the file.
//!
//! A unit is two words of 64 bits. The first one has the unit's [kind](Kind) in its highest byte, and below it the time, in ticks since the
//! recording began. Units of the kind [`Kind::More`] belong to the one before them.
//!
//! | kind | first unit, second word | further units |
//! |---|---|---|
//! | an allocation | address, descriptor, thread or handle | size, 1 for what has none; number of its stack, or 0. But for memory: when the call began; bytes of a text. Then that: the path |
//! | a release | the same | |
//! | a failure | the same | 0; number of its stack |
//! | [`DETAILED`]: an allocation of a descriptor | as above | as above, and behind the text: bytes of another one; what the function returned. Then that: its arguments |
//! | [`DETAILED`]: a release, a failure, a note | as above | last, or 0; number of its stack. Bytes of a text; what the function got or returned, a `FILE*`. Then the text |
//! | [`Kind::CloseRange`] | first descriptor | last; 0 |
//! | one of a specification: [`Kind::SpecifiedAllocation`] and the two behind it | what | size; number of its stack, and above its 32 bits that of the function. When the call began; bytes of a text. Then that: arguments |
//! | [`Kind::Definition`] | function; from bit 16 on the resource's number, 255: memory; bit 24: it has sizes; 25: it is counted | 0; bytes of a text. Then that: resource, description and function with a NUL between them |
//! | [`Kind::Stack`] | number; how many frames, in the highest 16 bits | two return addresses each, the innermost first |
//! | [`Kind::Process`] | process; in the highest half the number of its parent, or 0 | `CLOCK_MONOTONIC` in nanoseconds, or 0; bytes of the text. Then the program's path; nothing: that of its parent |
//! | [`Kind::Module`] | base address: what is added to the file's addresses | begin, end. Bytes of build-id and path; bytes of the build-id. Then both |
//! | [`Kind::Thread`] | its `pthread_t` | bytes of its name, 0 where it is not known; 0. Then that |
//! | [`Kind::Clock`] | `CLOCK_MONOTONIC` in nanoseconds | 0; `CLOCK_REALTIME` in nanoseconds |
//! | [`Kind::Wanted`] | what is recorded: a bit for each [`Resource`]; [`ATTACHED`], [`DETAILED`] | |
//! | [`Kind::End`] | events that were lost | 1 if a limit was reached; 0 |
//!
//! Text lies in second words, eight bytes in each.

use alloc::vec::Vec;

pub mod chunk;
pub mod short;

/// The file's first bytes: what it is, and the version of its form.
pub const MAGIC: &[u8; 16] = b"rftrace res. 02\n";

/// Bytes of a unit.
pub const UNIT_BYTES: usize = 16;

/// The most frames of a stack.
pub const MAX_FRAMES: usize = 64;

/// The most bytes of a path, or a build-id with a path.
pub const MAX_TEXT_BYTES: usize = 4096;

/// The most bytes of what is told of an allocation.
pub const MAX_DETAIL_BYTES: usize = 256;

/// The most bytes of the arguments of a call.
pub const MAX_ARGUMENTS_BYTES: usize = 512;

/// Among the bits of what is recorded: releases have stacks too, and calls of functions for files have their arguments.
pub const DETAILED: u32 = 1 << 31;

/// Among the same bits: what is recorded ran before, so it may give back what nobody has seen it take.
pub const ATTACHED: u32 = 1 << 30;

/// Bits of a unit's first word that are not its kind.
pub const LOW: u64 = (1 << 56) - 1;

/// Two words.
pub type Unit = [u64; 2];

/// The most resources of specifications that are recorded at a time.
pub const MAX_SPECIFIED: usize = 24;

/// A kind of resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resource {
    /// Memory of the allocator: blocks by their addresses.
    Memory,
    /// Files, sockets and all else that has a descriptor, by its number.
    File,
    /// Threads that somebody has to join, by their `pthread_t`.
    Thread,
    /// Libraries that were loaded by `dlopen`, by its handles: as often as they were opened.
    Library,
    /// A resource of a specification.
    Specified(Specified),
}

/// A resource of a specification. Its texts stay as long as the process: a recording has [`MAX_SPECIFIED`] at the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Specified {
    /// Which one of the recording's, from 0 on.
    pub number: u8,
    /// Its name.
    pub name: &'static str,
    /// A description in words.
    pub description: &'static str,
    /// True if each has a size of its own, in bytes.
    pub has_bytes: bool,
    /// True if the same one may be taken several times, and stays until it was given back as often.
    pub is_counted: bool,
    /// True if its release functions give back other things too.
    pub has_others: bool,
}

impl Resource {
    /// All that need no specification.
    pub const ALL: [Self; 4] = [Self::Memory, Self::File, Self::Thread, Self::Library];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::File => "file",
            Self::Thread => "thread",
            Self::Library => "library",
            Self::Specified(specified) => specified.name,
        }
    }

    /// The number of its bit, where several are told.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Memory => 0,
            Self::File => 1,
            Self::Thread => 2,
            Self::Library => 3,
            Self::Specified(specified) => Self::ALL.len() as u32 + specified.number as u32,
        }
    }

    /// Its bit, where several are told.
    #[must_use]
    pub const fn bit(self) -> u32 {
        1 << self.number()
    }

    /// True if each has a size in bytes; else they are counted.
    #[must_use]
    pub const fn has_bytes(self) -> bool {
        match self {
            Self::Memory => true,
            Self::File | Self::Thread | Self::Library => false,
            Self::Specified(specified) => specified.has_bytes,
        }
    }

    /// True if the same one may be taken several times, and stays until it was given back as often.
    #[must_use]
    pub const fn is_counted(self) -> bool {
        match self {
            Self::Memory | Self::File | Self::Thread => false,
            Self::Library => true,
            Self::Specified(specified) => specified.is_counted,
        }
    }

    /// True if its release functions give back other things too, which are not reported.
    #[must_use]
    pub const fn has_others(self) -> bool {
        matches!(self, Self::Specified(Specified { has_others: true, .. }))
    }
}

/// A function of a specification, as [`Kind::Definition`] tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition<'a> {
    /// Which one, from 0 on.
    pub function: u16,
    /// Of which of the specified resources; [`OF_MEMORY`](Self::OF_MEMORY): of [`Resource::Memory`].
    pub resource: u8,
    /// True if they have sizes, and are counted.
    pub has_bytes: bool,
    /// The same may be taken several times.
    pub is_counted: bool,
    /// Its release functions give back other things too.
    pub has_others: bool,
    /// The resource, what it is, the function.
    pub texts: [&'a str; 3],
}

impl<'a> Definition<'a> {
    /// The resource of functions of an allocator that the program has in it.
    pub const OF_MEMORY: u8 = u8::MAX;

    /// The second word of its unit.
    #[must_use]
    pub fn word(&self) -> u64 {
        u64::from(self.function)
            | u64::from(self.resource) << 16
            | u64::from(self.has_bytes) << 24
            | u64::from(self.is_counted) << 25
            | u64::from(self.has_others) << 26
    }

    /// Its text.
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        self.texts.join("\0").into_bytes()
    }

    /// Takes both; `None` for what is none.
    #[must_use]
    pub fn of(word: u64, text: &'a str) -> Option<Self> {
        let mut texts = text.split('\0');
        let texts = [texts.next()?, texts.next()?, texts.next()?];
        let resource = (word >> 16) as u8;
        let [has_bytes, is_counted, has_others] = [24, 25, 26].map(|bit| word >> bit & 1 != 0);
        let is_one = usize::from(resource) < MAX_SPECIFIED || resource == Self::OF_MEMORY;
        is_one.then_some(Self { function: word as u16, resource, has_bytes, is_counted, has_others, texts })
    }
}

/// The effect of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Something is taken.
    Allocation,
    /// Something is given back.
    Release,
    /// Something was to be given back that is not there.
    Failure,
    /// Nothing is taken or given back. It is told where functions themselves are of interest.
    Note,
}

/// The kinds of units, each with its number, and of functions their names and what they do.
macro_rules! kinds {
    (
        functions { $($(#[$doc:meta])* $name:ident = $number:literal $function:literal $resource:ident $action:ident,)* }
        others { $($(#[$other_doc:meta])* $other:ident = $other_number:literal,)* }
    ) => {
        /// The kind of a unit.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Kind {
            $($(#[$doc])* $name = $number,)*
            $($(#[$other_doc])* $other = $other_number,)*
        }

        impl Kind {
            const ALL: &[Self] = &[$(Self::$name,)* $(Self::$other,)*];

            /// The function's resource and effect; `None` for anything but a function, and for functions of specifications.
            #[must_use]
            pub const fn role(self) -> Option<(Resource, Action)> {
                match self {
                    $(Self::$name => Some((Resource::$resource, Action::$action)),)*
                    $(Self::$other => None,)*
                }
            }

            /// The function that was called.
            #[must_use]
            pub fn function(self) -> &'static str {
                match self {
                    $(Self::$name => $function,)*
                    $(Self::$other => "",)*
                }
            }
        }
    };
}

kinds! {
    functions {
        /// `malloc`.
        Malloc = 1 "malloc" Memory Allocation,
        /// `calloc`.
        Calloc = 2 "calloc" Memory Allocation,
        /// The allocation of a `realloc`.
        Realloc = 3 "realloc" Memory Allocation,
        /// `memalign`.
        Memalign = 4 "memalign" Memory Allocation,
        /// `posix_memalign`.
        PosixMemalign = 5 "posix_memalign" Memory Allocation,
        /// `aligned_alloc`.
        AlignedAlloc = 6 "aligned_alloc" Memory Allocation,
        /// `valloc`.
        Valloc = 7 "valloc" Memory Allocation,
        /// `pvalloc`.
        Pvalloc = 8 "pvalloc" Memory Allocation,
        /// `free`.
        Free = 32 "free" Memory Release,
        /// The release of a `realloc`.
        ReallocFree = 33 "realloc" Memory Release,
        /// `open`.
        Open = 96 "open" File Allocation,
        /// `openat`.
        Openat = 97 "openat" File Allocation,
        /// `creat`.
        Creat = 98 "creat" File Allocation,
        /// `mkstemp`.
        Mkstemp = 99 "mkstemp" File Allocation,
        /// `mkostemp`.
        Mkostemp = 100 "mkostemp" File Allocation,
        /// `mkstemps`.
        Mkstemps = 101 "mkstemps" File Allocation,
        /// `mkostemps`.
        Mkostemps = 102 "mkostemps" File Allocation,
        /// `shm_open`.
        ShmOpen = 103 "shm_open" File Allocation,
        /// `memfd_create`.
        MemfdCreate = 104 "memfd_create" File Allocation,
        /// `fopen`.
        Fopen = 105 "fopen" File Allocation,
        /// `freopen`.
        Freopen = 106 "freopen" File Allocation,
        /// `tmpfile`.
        Tmpfile = 107 "tmpfile" File Allocation,
        /// `popen`.
        Popen = 108 "popen" File Allocation,
        /// `opendir`.
        Opendir = 109 "opendir" File Allocation,
        /// `dup`.
        Dup = 110 "dup" File Allocation,
        /// `dup2`.
        Dup2 = 111 "dup2" File Allocation,
        /// `dup3`.
        Dup3 = 112 "dup3" File Allocation,
        /// `fcntl` with `F_DUPFD` and its like.
        Fcntl = 113 "fcntl" File Allocation,
        /// `pipe`.
        Pipe = 114 "pipe" File Allocation,
        /// `pipe2`.
        Pipe2 = 115 "pipe2" File Allocation,
        /// `socket`.
        Socket = 116 "socket" File Allocation,
        /// `socketpair`.
        Socketpair = 117 "socketpair" File Allocation,
        /// `accept`.
        Accept = 118 "accept" File Allocation,
        /// `accept4`.
        Accept4 = 119 "accept4" File Allocation,
        /// `epoll_create`.
        EpollCreate = 120 "epoll_create" File Allocation,
        /// `epoll_create1`.
        EpollCreate1 = 121 "epoll_create1" File Allocation,
        /// `eventfd`.
        Eventfd = 122 "eventfd" File Allocation,
        /// `signalfd`.
        Signalfd = 123 "signalfd" File Allocation,
        /// `timerfd_create`.
        TimerfdCreate = 124 "timerfd_create" File Allocation,
        /// `inotify_init`.
        InotifyInit = 125 "inotify_init" File Allocation,
        /// `inotify_init1`.
        InotifyInit1 = 126 "inotify_init1" File Allocation,
        /// `fanotify_init`.
        FanotifyInit = 127 "fanotify_init" File Allocation,
        /// `posix_openpt`.
        PosixOpenpt = 128 "posix_openpt" File Allocation,
        /// `fdopen`, which makes a stream of a descriptor.
        Fdopen = 129 "fdopen" File Note,
        /// `close`.
        Close = 144 "close" File Release,
        /// `fclose`.
        Fclose = 145 "fclose" File Release,
        /// `pclose`.
        Pclose = 146 "pclose" File Release,
        /// `closedir`.
        Closedir = 147 "closedir" File Release,
        /// The release of a `freopen`.
        FreopenClose = 148 "freopen" File Release,
        /// `close_range` and `closefrom`: all that are open in a range.
        CloseRange = 149 "close_range" File Release,
        /// A descriptor was closed that was not open.
        NotOpen = 150 "close" File Failure,
        /// The descriptor that `fdopen` makes a stream of.
        FdopenClose = 151 "fdopen" File Note,
        /// `fcloseall`, which flushes.
        Fcloseall = 152 "fcloseall" File Note,
        /// `pthread_create`.
        PthreadCreate = 160 "pthread_create" Thread Allocation,
        /// `thrd_create`.
        ThrdCreate = 161 "thrd_create" Thread Allocation,
        /// `pthread_join`.
        PthreadJoin = 168 "pthread_join" Thread Release,
        /// `pthread_detach`.
        PthreadDetach = 169 "pthread_detach" Thread Release,
        /// `thrd_join`.
        ThrdJoin = 170 "thrd_join" Thread Release,
        /// `thrd_detach`.
        ThrdDetach = 171 "thrd_detach" Thread Release,
        /// `dlopen`.
        Dlopen = 192 "dlopen" Library Allocation,
        /// `dlmopen`.
        Dlmopen = 193 "dlmopen" Library Allocation,
        /// `dlclose`.
        Dlclose = 200 "dlclose" Library Release,
    }
    others {
        /// A function of a specification has taken something.
        SpecifiedAllocation = 176,
        /// One has given something back.
        SpecifiedRelease = 177,
        /// One was called that does neither.
        SpecifiedNote = 178,
        /// A function of a specification.
        Definition = 71,
        /// A stack.
        Stack = 64,
        /// A process has begun to be recorded.
        Process = 65,
        /// A program or library that is in a process.
        Module = 66,
        /// A time of day.
        Clock = 67,
        /// The recording has ended.
        End = 68,
        /// The recorded resources.
        Wanted = 69,
        /// A thread has begun to be recorded.
        Thread = 70,
        /// Nothing: what a chunk has no more room for an event in. Not in files.
        Nothing = 72,
        /// Goes on with the unit before.
        More = 255,
    }
}

impl Kind {
    /// By their numbers.
    const BY_NUMBER: [Option<Self>; 256] = {
        let mut table = [None; 256];
        let mut rest = Self::ALL;
        while let [kind, others @ ..] = rest {
            table[*kind as usize] = Some(*kind);
            rest = others;
        }
        table
    };

    /// Of a unit's first word.
    #[must_use]
    #[inline]
    pub const fn of(word: u64) -> Option<Self> {
        Self::BY_NUMBER[(word >> 56) as usize]
    }

    /// The effect of a function; `None` for other kinds.
    #[must_use]
    pub const fn action(self) -> Option<Action> {
        match self {
            Self::SpecifiedAllocation => Some(Action::Allocation),
            Self::SpecifiedRelease => Some(Action::Release),
            Self::SpecifiedNote => Some(Action::Note),
            _ => match self.role() {
                Some((_, action)) => Some(action),
                None => None,
            },
        }
    }

    /// The first word of a unit of this kind.
    #[must_use]
    #[inline(always)]
    pub const fn word(self, low: u64) -> u64 {
        (self as u64) << 56 | low & LOW
    }
}

/// The head of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHead {
    /// Units that follow.
    pub units: u32,
    /// The number of the process, from 1 on: one that runs another program gets another number. 0 for the recorder's own.
    pub process: u32,
    /// The thread.
    pub tid: u32,
    /// When the thread got the chunk, or the time of the oldest unit: no unit is older.
    pub taken: u64,
}

impl BlockHead {
    /// Its bytes in the file.
    pub const BYTES: usize = 32;
    const MAGIC: &[u8; 4] = b"blk\n";

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(Self::MAGIC);
        for (place, number) in [self.units, self.process, self.tid].into_iter().enumerate() {
            bytes[4 + 4 * place..][..4].copy_from_slice(&number.to_le_bytes());
        }
        bytes[16..24].copy_from_slice(&self.taken.to_le_bytes());
        bytes
    }

    /// Reads it; `None` for anything else.
    #[must_use]
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let (words, _) = bytes.as_chunks::<4>();
        let number = |place: usize| u32::from_le_bytes(words[place]);
        let taken = u64::from(number(4)) | u64::from(number(5)) << 32;
        (words[0] == *Self::MAGIC && number(1) as usize <= pool::CHUNK_UNITS).then(|| Self {
            units: number(1),
            process: number(2),
            tid: number(3),
            taken,
        })
    }
}

/// The memory that a recorder shares with the processes that it records: places in it, in bytes, and what is said there.
///
/// Numbers of 32 or 64 bits, all of which are changed atomically. A chunk is a thread's from [`TAKEN`](pool::TAKEN) on, until that makes it [`LEFT`](pool::LEFT)
/// or is gone; when all of it is written it is the recorder's, who makes it [`FREE`](pool::FREE).
pub mod pool {
    /// The first word.
    pub const MAGIC: u64 = u64::from_le_bytes(*b"rftpool2");
    /// 64 bits: [`MAGIC`].
    pub const MAGIC_AT: usize = 0;
    /// 64 bits: the ticks from which all times are counted.
    pub const BASE_AT: usize = 8;
    /// 32 bits: the recorder changes it all the time while it is at work.
    pub const BEATS_AT: usize = 16;
    /// 32 bits: the number of the last process.
    pub const PROCESSES_AT: usize = 20;
    /// 64 bits: events for which there was no chunk.
    pub const LOST_AT: usize = 24;
    /// 32 bits: not 0 when nothing more is to be recorded.
    pub const OVER_AT: usize = 32;
    /// 32 bits: what is recorded, a bit for each [`Resource`](super::Resource).
    pub const WANTED_AT: usize = 36;
    /// The chunks' states, of 32 bits each.
    pub const STATES_AT: usize = 4096;
    /// The heads of the chunks, [`HEAD_BYTES`] each.
    pub const HEADS_AT: usize = STATES_AT + 4 * CHUNKS;
    /// Bytes of what is known of a chunk: when it was taken (64 bits), by which process' number and thread (32 each).
    pub const HEAD_BYTES: usize = 16;
    /// The chunks.
    pub const CHUNKS_AT: usize = (HEADS_AT + HEAD_BYTES * CHUNKS).next_multiple_of(4096);
    /// How many there are.
    pub const CHUNKS: usize = 4096;
    /// Bytes of each.
    pub const CHUNK_BYTES: usize = 16 << 10;
    /// Units of each.
    pub const CHUNK_UNITS: usize = CHUNK_BYTES / super::UNIT_BYTES;
    /// All of it.
    pub const BYTES: usize = CHUNKS_AT + CHUNKS * CHUNK_BYTES;

    /// Nobody's chunk.
    pub const FREE: u32 = 0;
    /// A thread's.
    pub const TAKEN: u32 = 1;
    /// Nobody writes to it any more.
    pub const FULL: u32 = 2;
    /// The thread has let it go, and may still be about to write what it has begun there: a signal handler has come between.
    pub const LEFT: u32 = 3;
    /// The recorder has seen that this is so.
    pub const HELD: u32 = 4;
    /// A chunk that is nobody's was taken at no time.
    pub const NEVER: u64 = u64::MAX;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_both_ways() {
        let head = BlockHead { units: 3, process: 2, tid: 70_000, taken: 1 << 40 };
        let mut bytes = head.encode();
        assert_eq!(BlockHead::decode(&bytes), Some(head));
        bytes[7] = 1;
        assert_eq!(BlockHead::decode(&bytes), None, "more units than a chunk has");
        assert_eq!(BlockHead::decode(&[0; 32]), None);
    }

    #[test]
    fn kinds_both_ways() {
        for &kind in Kind::ALL {
            assert_eq!(Kind::of(kind.word(u64::MAX)), Some(kind));
            assert_eq!(kind.role().is_some(), !kind.function().is_empty());
            assert!(kind.role().is_none_or(|(_, action)| kind.action() == Some(action)));
        }
        assert_eq!(Kind::of(0), None);
        assert_eq!(Resource::ALL.map(Resource::bit), [1, 2, 4, 8]);
    }

    #[test]
    fn definitions_both_ways() {
        let texts = ["block", "blocks of the pool", "pool_get"];
        let definition =
            Definition { function: 7, resource: 3, has_bytes: true, is_counted: false, has_others: true, texts };
        let text = definition.text();
        let text = core::str::from_utf8(&text).unwrap();
        assert_eq!(Definition::of(definition.word(), text), Some(definition));
        let of_memory = Definition { resource: Definition::OF_MEMORY, ..definition };
        assert_eq!(Definition::of(of_memory.word(), text), Some(of_memory));
        assert_eq!(Definition::of(definition.word(), "block\0blocks"), None);
        assert_eq!(Definition::of(24 << 16, "a\0b\0c"), None, "too many resources");
    }
}
