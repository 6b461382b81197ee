//! `resources.dat`: allocations and releases of memory, files, threads and libraries, with their callers. The same
//! units are in the memory to which recorded processes write.
//!
//! The file consists of [`MAGIC`] and blocks, each with a [head](BlockHead) and units of 16 bytes. A thread's chunk of
//! the memory becomes one or two blocks. [`pool`] defines the layout of the memory, [`short`] the shorter units in it,
//! and [`chunk`] converts a chunk to units of the file.
//!
//! A unit is two words of 64 bits. The first word has the unit's [kind](Kind) in its highest byte, and below it the
//! time in ticks since the beginning of the recording. Units of the kind [`Kind::More`] continue the unit before them.
//!
//! | kind | first unit, second word | further units |
//! |---|---|---|
//! | an allocation | address, descriptor, thread or handle | size, 1 for a resource without a size; number of its stack, or 0. Except for memory: the time of the call; the length of a text. Then the text: the path |
//! | a release | the same | |
//! | a failure | the same | 0; number of its stack |
//! | [`DETAILED`]: an allocation of a descriptor | as above | as above; after the text: the length of a second text; the function's result. Then the second text: the arguments |
//! | [`DETAILED`]: a release, a failure, a note | as above | the last descriptor, or 0; number of its stack. The length of a text; the function's argument or result, a `FILE*`. Then the text |
//! | [`Kind::CloseRange`] | first descriptor | last descriptor; 0 |
//! | [`Kind::SpecifiedAllocation`] and the next two kinds, for a specification | the resource's id | size; number of its stack, and above its 32 bits that of the function. The time of the call; the length of a text. Then the text: the arguments |
//! | [`Kind::Definition`] | function; from bit 16 the resource's number, 255 for memory; bit 24: it has sizes; bit 25: it is counted | 0; the length of a text. Then the text: resource, description and function, separated by NULs |
//! | [`Kind::Stack`] | number; the number of frames in the highest 16 bits | two return addresses each, the innermost first |
//! | [`Kind::Process`] | process; in the highest half the number of its parent, or 0 | `CLOCK_MONOTONIC` in nanoseconds, or 0; the length of a text. Then the text: the program's path, empty for that of the parent |
//! | [`Kind::Module`] | base address, the difference to the file's addresses | begin, end. The length of build-id and path; the length of the build-id. Then both |
//! | [`Kind::Thread`] | its `pthread_t` | the length of its name, 0 if unknown; 0. Then the name |
//! | [`Kind::Clock`] | `CLOCK_MONOTONIC` in nanoseconds | 0; `CLOCK_REALTIME` in nanoseconds |
//! | [`Kind::Wanted`] | the recorded resources: a bit for each [`Resource`]; [`ATTACHED`], [`DETAILED`] | |
//! | [`Kind::End`] | number of lost events | 1 if a limit was reached; 0 |
//!
//! Texts lie in second words, eight bytes in each. Lengths are in bytes.

use alloc::vec::Vec;

pub mod chunk;
pub mod short;

/// The first bytes of the file: its kind, and the version of its form.
pub const MAGIC: &[u8; 16] = b"rftrace res. 02\n";

/// The size of a unit in bytes.
pub const UNIT_BYTES: usize = 16;

/// The maximum number of frames in a stack.
pub const MAX_FRAMES: usize = 64;

/// The maximum size in bytes of a path, or of a build-id with a path.
pub const MAX_TEXT_BYTES: usize = 4096;

/// The maximum size in bytes of the text that describes an allocation.
pub const MAX_DETAIL_BYTES: usize = 256;

/// The maximum size in bytes of a call's recorded arguments.
pub const MAX_ARGUMENTS_BYTES: usize = 512;

/// A bit of [`Kind::Wanted`]: releases have stacks too, and calls of functions for files have their arguments.
pub const DETAILED: u32 = 1 << 31;

/// A bit of [`Kind::Wanted`]: the process ran before the recording, so it may release resources whose allocation was
/// not recorded.
pub const ATTACHED: u32 = 1 << 30;

/// The bits of a unit's first word below its kind.
pub const LOW: u64 = (1 << 56) - 1;

/// A unit: two words.
pub type Unit = [u64; 2];

/// The maximum number of specified resources in a recording.
pub const MAX_SPECIFIED: usize = 24;

/// A kind of resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resource {
    /// Memory blocks of the allocator, by address.
    Memory,
    /// Files, sockets and everything else with a descriptor, by number.
    File,
    /// Threads that must be joined, by their `pthread_t`.
    Thread,
    /// Libraries opened with `dlopen`, by handle, counted for each opening.
    Library,
    /// A resource of a specification.
    Specified(Specified),
}

/// A resource of a specification. Its texts live as long as the process; a recording has [`MAX_SPECIFIED`] at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Specified {
    /// The number of the resource in the recording, from 0.
    pub number: u8,
    /// The resource's name.
    pub name: &'static str,
    /// A description in words.
    pub description: &'static str,
    /// True if each allocation has a size in bytes.
    pub has_bytes: bool,
    /// True if one resource may be taken several times, and stays until it is released as often.
    pub is_counted: bool,
    /// True if its release functions also release other things.
    pub has_others: bool,
}

impl Resource {
    /// All kinds that need no specification.
    pub const ALL: [Self; 4] = [Self::Memory, Self::File, Self::Thread, Self::Library];

    /// Returns the name.
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

    /// Returns the number of the kind's bit in a set of kinds.
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

    /// Returns the kind's bit in a set of kinds.
    #[must_use]
    pub const fn bit(self) -> u32 {
        1 << self.number()
    }

    /// Returns true if each allocation has a size in bytes; otherwise reports count allocations.
    #[must_use]
    pub const fn has_bytes(self) -> bool {
        match self {
            Self::Memory => true,
            Self::File | Self::Thread | Self::Library => false,
            Self::Specified(specified) => specified.has_bytes,
        }
    }

    /// Returns true if one resource may be taken several times, and stays until it is released as often.
    #[must_use]
    pub const fn is_counted(self) -> bool {
        match self {
            Self::Memory | Self::File | Self::Thread => false,
            Self::Library => true,
            Self::Specified(specified) => specified.is_counted,
        }
    }

    /// Returns true if its release functions also release other things, which are not reported.
    #[must_use]
    pub const fn has_others(self) -> bool {
        matches!(self, Self::Specified(Specified { has_others: true, .. }))
    }
}

/// A function of a specification, as a unit [`Kind::Definition`] describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition<'a> {
    /// The number of the function, from 0.
    pub function: u16,
    /// The number of the specified resource; [`OF_MEMORY`](Self::OF_MEMORY) stands for [`Resource::Memory`].
    pub resource: u8,
    /// True if allocations have sizes in bytes.
    pub has_bytes: bool,
    /// True if one resource may be taken several times.
    pub is_counted: bool,
    /// True if its release functions also release other things.
    pub has_others: bool,
    /// The name of the resource, its description, the name of the function.
    pub texts: [&'a str; 3],
}

impl<'a> Definition<'a> {
    /// The resource number for functions of an allocator inside the program.
    pub const OF_MEMORY: u8 = u8::MAX;

    /// Returns the second word of the unit.
    #[must_use]
    pub fn word(&self) -> u64 {
        u64::from(self.function)
            | u64::from(self.resource) << 16
            | u64::from(self.has_bytes) << 24
            | u64::from(self.is_counted) << 25
            | u64::from(self.has_others) << 26
    }

    /// Returns the text of the unit.
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        self.texts.join("\0").into_bytes()
    }

    /// Decodes word and text; `None` if they are malformed.
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
    /// It takes a resource.
    Allocation,
    /// It releases a resource.
    Release,
    /// It tries to release a resource that is not there.
    Failure,
    /// It does neither. Recordings with all calls of functions have such records.
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

            /// Returns the function's resource and effect; `None` for kinds that are no function, and for functions of
            /// specifications.
            #[must_use]
            pub const fn role(self) -> Option<(Resource, Action)> {
                match self {
                    $(Self::$name => Some((Resource::$resource, Action::$action)),)*
                    $(Self::$other => None,)*
                }
            }

            /// Returns the name of the called function.
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
        /// A call of `close_range` or `closefrom`, which close all open descriptors in a range.
        CloseRange = 149 "close_range" File Release,
        /// A call of `close` for a descriptor that was not open.
        NotOpen = 150 "close" File Failure,
        /// The descriptor of which `fdopen` makes a stream.
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
        /// A function of a specification took a resource.
        SpecifiedAllocation = 176,
        /// A function of a specification released a resource.
        SpecifiedRelease = 177,
        /// A function of a specification was called that does neither.
        SpecifiedNote = 178,
        /// The definition of a function of a specification.
        Definition = 71,
        /// A stack.
        Stack = 64,
        /// The beginning of a process's recording.
        Process = 65,
        /// A program or library in a process.
        Module = 66,
        /// The time of day.
        Clock = 67,
        /// The end of the recording.
        End = 68,
        /// The set of recorded resources.
        Wanted = 69,
        /// The beginning of a thread's recording.
        Thread = 70,
        /// An empty unit: the room at the end of a chunk that is too small for an event. Files have none.
        Nothing = 72,
        /// The continuation of the unit before.
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

    /// Returns the kind in a unit's first word, `None` for an unknown one.
    #[must_use]
    #[inline]
    pub const fn of(word: u64) -> Option<Self> {
        Self::BY_NUMBER[(word >> 56) as usize]
    }

    /// Returns the effect of a function; `None` for other kinds.
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

    /// Returns the first word of a unit of this kind, with `low` in its other bits.
    #[must_use]
    #[inline(always)]
    pub const fn word(self, low: u64) -> u64 {
        (self as u64) << 56 | low & LOW
    }
}

/// The head of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHead {
    /// The number of units in the block.
    pub units: u32,
    /// The number of the process, from 1. A process that runs another program gets another number. 0 stands for the
    /// recorder's own units.
    pub process: u32,
    /// The thread.
    pub tid: u32,
    /// The time at which the thread got the chunk, or that of the oldest unit. No unit is older.
    pub taken: u64,
}

impl BlockHead {
    /// The size of a head in the file, in bytes.
    pub const BYTES: usize = 32;
    const MAGIC: &[u8; 4] = b"blk\n";

    /// Encodes the head.
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

    /// Decodes a head; `None` if it is malformed.
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

/// The memory that a recorder shares with the recorded processes: offsets in bytes, sizes and states.
///
/// It holds numbers of 32 or 64 bits, which all change atomically. A chunk belongs to a thread in the state
/// [`TAKEN`](pool::TAKEN), until the thread sets it [`LEFT`](pool::LEFT) or ends. A completely written chunk belongs to
/// the recorder, which sets it [`FREE`](pool::FREE).
pub mod pool {
    /// The first word of the memory.
    pub const MAGIC: u64 = u64::from_le_bytes(*b"rftpool2");
    /// The offset of [`MAGIC`], 64 bits.
    pub const MAGIC_AT: usize = 0;
    /// The offset of the base of all times in ticks, 64 bits.
    pub const BASE_AT: usize = 8;
    /// The offset of a counter that the recorder changes all the time while it works, 32 bits.
    pub const BEATS_AT: usize = 16;
    /// The offset of the number of the last process, 32 bits.
    pub const PROCESSES_AT: usize = 20;
    /// The offset of the number of events that found no chunk, 64 bits.
    pub const LOST_AT: usize = 24;
    /// The offset of a flag, 32 bits: not 0 at the end of the recording.
    pub const OVER_AT: usize = 32;
    /// The offset of the set of recorded resources, 32 bits: a bit for each [`Resource`](super::Resource).
    pub const WANTED_AT: usize = 36;
    /// The offset of the chunks' states, 32 bits each.
    pub const STATES_AT: usize = 4096;
    /// The offset of the chunks' heads, [`HEAD_BYTES`] each.
    pub const HEADS_AT: usize = STATES_AT + 4 * CHUNKS;
    /// The size of a chunk's head in bytes: the time of its taking (64 bits), the process's number and the thread (32
    /// bits each).
    pub const HEAD_BYTES: usize = 16;
    /// The offset of the chunks.
    pub const CHUNKS_AT: usize = (HEADS_AT + HEAD_BYTES * CHUNKS).next_multiple_of(4096);
    /// The number of chunks.
    pub const CHUNKS: usize = 4096;
    /// The size of a chunk in bytes.
    pub const CHUNK_BYTES: usize = 16 << 10;
    /// The number of units in a chunk.
    pub const CHUNK_UNITS: usize = CHUNK_BYTES / super::UNIT_BYTES;
    /// The size of the memory in bytes.
    pub const BYTES: usize = CHUNKS_AT + CHUNKS * CHUNK_BYTES;

    /// The state of a chunk without an owner.
    pub const FREE: u32 = 0;
    /// The state of a chunk that belongs to a thread.
    pub const TAKEN: u32 = 1;
    /// The state of a chunk that no thread writes to any more.
    pub const FULL: u32 = 2;
    /// The state of a chunk that its thread has released, but may still write to: a signal handler interrupted a write.
    pub const LEFT: u32 = 3;
    /// The state of such a chunk once the recorder has noticed it.
    pub const HELD: u32 = 4;
    /// The time of taking in the head of a chunk without an owner.
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
