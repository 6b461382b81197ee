//! The format of uftrace's data directory: constants and types, without behaviour.
//!
//! | file | contents |
//! |---|---|
//! | `info` | [`HEADER_BYTES`] of header, then text sections in the order of [`info_bit`] |
//! | `task.txt` | a `SESS` line for the program, a `TASK` line for each task |
//! | `sid-<SID>.map` | a line for each module: where it was loaded |
//! | `<module>.sym` | the module's functions |
//! | `<tid>.dat` | the task's records, [`RECORD_BYTES`] each |
//! | `events.txt` | names of the events in the `.dat` files |
//! | `perf-cpu0.dat` | the names of threads that have names of their own, as records of `perf` |
//!
//! A record is two little-endian words: the time in nanoseconds of CLOCK_MONOTONIC, and
//! `type[1:0] more[2] magic[5:3] depth[15:6] address[63:16]`.
//!
//! Source: uftrace 0.13 to 0.19, `uftrace.h` and `utils/data-file.c`.

/// First bytes of `info`.
pub(crate) const MAGIC: &[u8; 8] = b"Ftrace!\0";
/// Version of the format.
pub(crate) const VERSION: u32 = 4;
/// Size of the header of `info`.
pub(crate) const HEADER_BYTES: usize = 40;
/// The header's mark for little-endian data.
pub(crate) const LITTLE_ENDIAN: u8 = 1;
/// The header's mark for 64-bit addresses (ELFCLASS64).
pub(crate) const CLASS_64: u8 = 2;

/// Bits of the header's feature mask.
pub(crate) mod feature {
    /// `task.txt` tells sessions and tasks.
    pub(crate) const TASK_SESSION: u64 = 1 << 1;
    /// Addresses in `.sym` files are relative to the start of the module's map line.
    pub(crate) const SYM_REL_ADDR: u64 = 1 << 5;
    /// The header's maximum depth is valid.
    pub(crate) const MAX_STACK: u64 = 1 << 6;
    /// There are files `perf-cpu*.dat`.
    pub(crate) const PERF_EVENT: u64 = 1 << 8;
    /// There are EVENT records, named in `events.txt`.
    pub(crate) const EVENT: u64 = 1 << 7;
}

/// Bits of the header's info mask, one per text section, in the order of the sections.
pub(crate) mod info_bit {
    pub(crate) const EXE_NAME: u64 = 1 << 0;
    pub(crate) const BUILD_ID: u64 = 1 << 1;
    pub(crate) const EXIT_STATUS: u64 = 1 << 2;
    pub(crate) const CMDLINE: u64 = 1 << 3;
    pub(crate) const CPUINFO: u64 = 1 << 4;
    pub(crate) const MEMINFO: u64 = 1 << 5;
    pub(crate) const OSINFO: u64 = 1 << 6;
    pub(crate) const TASKINFO: u64 = 1 << 7;
    pub(crate) const USAGEINFO: u64 = 1 << 8;
    pub(crate) const LOADINFO: u64 = 1 << 9;
    pub(crate) const RECORD_DATE: u64 = 1 << 11;
    pub(crate) const PATTERN_TYPE: u64 = 1 << 12;
    pub(crate) const VERSION: u64 = 1 << 13;
    pub(crate) const UTC_OFFSET: u64 = 1 << 14;
}

/// Size of a record.
pub(crate) const RECORD_BYTES: usize = 16;
/// Deepest depth that a record can hold.
pub(crate) const MAX_DEPTH: u16 = 1023;
/// Bits of a record's second word.
pub(crate) mod record {
    /// The bits of the type.
    #[cfg(target_os = "linux")]
    pub(crate) const KIND: u64 = 3;
    pub(crate) const MAGIC: u64 = 5 << 3;
    pub(crate) const DEPTH_SHIFT: u32 = 6;
    pub(crate) const ADDRESS_SHIFT: u32 = 16;
    pub(crate) const ENTRY: u64 = 0;
    pub(crate) const EXIT: u64 = 1;
    pub(crate) const EVENT: u64 = 3;
}

/// Records of `perf`, see `perf_event_open(2)`.
pub(crate) mod perf {
    /// The type of a record with a thread's name.
    pub(crate) const COMM: u32 = 3;
    /// Bytes of a name, with a NUL.
    pub(crate) const NAME_BYTES: usize = 16;
    /// Bytes of such a record: header, pid, tid and name; then, for each record, pid, tid and time.
    pub(crate) const COMM_BYTES: usize = 8 + 4 + 4 + NAME_BYTES + 4 + 4 + 8;
}

/// The first event id that a user (of uftrace's format) may name.
pub(crate) const USER_EVENT: u64 = 1_000_000;

/// The longest build-id that uftrace reads, in hexadecimal digits; `info` wants exactly so many.
pub(crate) const BUILD_ID_DIGITS: usize = 40;

/// Address of a stack that is on no map: uftrace needs a stack, or it takes every address for the kernel's.
pub(crate) const NO_STACK: (u64, u64) = (0xffff_ffff_ffff, 0xffff_ffff_ffff);
