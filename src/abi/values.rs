//! Arguments and results: their form, and the functions that they are recorded of. They are cut into records of
//! [`kind::VALUES`](super::kind::VALUES). And the functions whose calls are watched.

use core::sync::atomic::AtomicU64;

/// Arguments and results.
///
/// Recorded of a call are its *items*, one behind the other, and of its return one: each is the value's code, two bytes, and then
/// the value, little-endian, as long as the code says; of a string the number of bytes, in two bytes, and the bytes. So readers
/// need no table. A value that has fields is several items: one with [`COMPOSITE`](self::value::COMPOSITE), and its parts. They are cut
/// into pieces of [`UNIT_BYTES`](self::value::UNIT_BYTES) for [`kind::VALUES`](super::kind::VALUES).
pub mod value {
    /// The bits of a code that tell where the value is.
    pub const PLACE_MASK: u16 = 3;
    /// In the register, or on the stack, of an argument that is an integer or pointer, by its number.
    pub const ARGUMENT: u16 = 0;
    /// In the register of an argument that is a floating-point number, by its number among these.
    pub const FLOAT_ARGUMENT: u16 = 1;
    /// It is the result: with the number 0 in rax or xmm0 (x0, v0), with 1 in rdx or xmm1 (x1, v1), with more in v2 or v3.
    pub const RESULT: u16 = 2;
    /// A word of the block that was read last, by its number from 0 on: of a part.
    pub const IN_BLOCK: u16 = 3;
    /// Where the argument's number begins, from 1 on.
    pub const NUMBER_SHIFT: u32 = 2;
    /// The bits of the number.
    pub const NUMBER_MASK: u16 = 0x3f;
    /// Where it begins how the value is shown.
    pub const FORM_SHIFT: u32 = 8;
    /// The bits of that.
    pub const FORM_MASK: u16 = 0xf;
    /// An address of bytes that end with a 0: these are recorded.
    pub const STRING: u16 = 5;
    /// A floating-point number, in a vector register also where it is the result.
    pub const FLOAT: u16 = 7;
    /// An address of bytes, as many as the word with the next number says: these are recorded as of a string.
    pub const COUNTED: u16 = 8;
    /// Of such: the word with the number before says how many. Of others the bit is the frontend's.
    pub const LENGTH_FIRST: u16 = 1 << 14;
    /// Nothing is recorded: the item has no bytes.
    pub const UNKNOWN: u16 = 9;
    /// The first of six: an address of three words, of which the one with the number `form - OWNED >> 1` is an address of bytes and the one
    /// that comes `1 + (form - OWNED & 1)` later, or from the first on again, is their number: these are recorded as of a string.
    pub const OWNED: u16 = 10;
    /// Where the size begins: 1, 2, 4 or 8 bytes, by the number of doublings.
    pub const SIZE_SHIFT: u32 = 12;
    /// The bits of that.
    pub const SIZE_MASK: u16 = 3;

    /// The bit of a code that stands for a value with fields. Of it a block of memory is recorded: the number of bytes that were read, in
    /// two bytes, and so many. Where the block is, the bits of the place tell: an [`ARGUMENT`], or the [`RESULT`], has its address; for
    /// [`ON_STACK`] and [`GATHERED`] see there. The codes behind it are those of its parts.
    pub const COMPOSITE: u16 = 1 << 15;
    /// It begins in the word of the stack with this number, from 1 on, above the return address.
    pub const ON_STACK: u16 = 1;
    /// There is no block, but parts only.
    pub const GATHERED: u16 = 3;
    /// Where the number of words of the block begins, less 1.
    pub const WORDS_SHIFT: u32 = 8;
    /// The bits of that.
    pub const WORDS_MASK: u16 = 0xf;
    /// Where the number of parts begins.
    pub const PARTS_SHIFT: u32 = 12;
    /// The bits of that.
    pub const PARTS_MASK: u16 = 7;

    /// Bytes in a record.
    pub const UNIT_BYTES: usize = 6;
    /// The longest string; of longer ones the last three bytes that are recorded are dots. uftrace has the same.
    pub const STRING_BYTES: usize = 98;
    /// The most bytes of a call's items. A frontend asks for no more.
    pub const MAX_BYTES: usize = 1024;
    /// The length that stands for the null pointer, where a string was wanted; no bytes follow.
    pub const NULL: u16 = u16::MAX;
}

/// The values that are recorded of a function, and what is looked for in its calls.
#[derive(Debug)]
#[repr(C)]
pub struct ValueSite {
    /// The address by which hooks know the function.
    pub child_ip: usize,
    /// The codes of its arguments.
    pub arguments: *const u16,
    /// How many.
    pub n_arguments: usize,
    /// Those of its result: one value.
    pub result: *const u16,
    /// How many; 0 for none.
    pub n_result: usize,
    /// The watches on its calls.
    pub watches: *const Watch,
    /// How many.
    pub n_watches: usize,
    /// So many levels of calls are recorded from each of its calls on, its own included; 0: as many as elsewhere.
    pub levels: u32,
}

/// Actions of a [`Watch`].
pub mod watch {
    /// Somebody is told.
    pub const TELL: u8 = 0;
    /// Calls are recorded from here on, this one included.
    pub const ON: u8 = 1;
    /// Neither this call nor one after it is recorded, until [`ON`].
    pub const OFF: u8 = 2;
    /// Recording stops behind the record of this call.
    pub const FINISH: u8 = 3;
}

/// Calls of a function at which something is done; in most cases somebody is told, see [`Noticed`].
#[derive(Debug)]
#[repr(C)]
pub struct Watch {
    /// Its number for the receiver of notices.
    pub number: u64,
    /// One of [`watch`]. All but TELL are for calls that begin, each of them.
    pub action: u8,
    /// Not 0: calls that return, [`least_ticks`](Self::least_ticks) or more after they began; 0: calls that begin.
    pub on_return: u8,
    /// Not 0: only calls that last longer than all before.
    pub is_rising: u8,
    /// Of calls that begin only the one with this number, from 1; 0: each.
    pub nth: u64,
    /// Calls that have begun.
    pub n_calls: AtomicU64,
    /// See [`on_return`](Self::on_return).
    pub least_ticks: AtomicU64,
}

/// Where it is told that a [`Watch`] has found something: the first until somebody has seen it and made `tsc` 0.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Noticed {
    /// When, in ticks, behind the record of the call or return; 0: nothing, 1: it is being written.
    pub tsc: AtomicU64,
    /// By which [`Watch::number`].
    pub number: AtomicU64,
    /// In which thread, by the tracer's numbers; 0: nobody knows.
    pub thread: AtomicU64,
    /// How long the call lasted, in ticks; 0 for one that begins.
    pub lasted: AtomicU64,
    /// How many were found since that are not told.
    pub n_more: AtomicU64,
}

/// Which values are recorded. It stays mapped for ever.
#[derive(Debug)]
#[repr(C)]
pub struct ValueTable {
    /// The sites, by `child_ip`, ascending.
    pub sites: *const ValueSite,
    /// How many there are.
    pub n_sites: usize,
    /// Memory that can be read as long as the program runs: the beginning and end of each range.
    pub constant: *const [usize; 2],
    /// How many there are.
    pub n_constant: usize,
}
