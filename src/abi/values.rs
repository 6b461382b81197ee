//! Arguments and results: their codes, and the tables of functions with recorded values. Records of
//! [`kind::VALUES`](super::kind::VALUES) carry the values in pieces. Also the watches on calls of functions.

use core::sync::atomic::AtomicU64;

/// The codes of arguments and results.
///
/// A call records *items*, one behind the other; a return records one item. An item is the value's code in two bytes,
/// then the value, little-endian, of the length given by the code.
///
/// For a string the value is the number of bytes, in two bytes, and the bytes. So readers need no table. A value with
/// fields takes several items: one with [`COMPOSITE`](self::value::COMPOSITE), and one for each part.
///
/// Items are cut into pieces of [`UNIT_BYTES`](self::value::UNIT_BYTES) bytes for
/// [`kind::VALUES`](super::kind::VALUES).
pub mod value {
    /// The bits of the value's place.
    pub const PLACE_MASK: u16 = 3;
    /// The place of an integer or pointer argument, by its number: a register or the stack.
    pub const ARGUMENT: u16 = 0;
    /// The place of a floating-point argument, by its number among these: a register.
    pub const FLOAT_ARGUMENT: u16 = 1;
    /// The place of the result: number 0 is rax or xmm0 (x0, v0), 1 is rdx or xmm1 (x1, v1), larger numbers are v2 and
    /// v3.
    pub const RESULT: u16 = 2;
    /// The place of a part: a word of the last block read, by its number from 0.
    pub const IN_BLOCK: u16 = 3;
    /// The number of bits below the argument's number, which counts from 1.
    pub const NUMBER_SHIFT: u32 = 2;
    /// The bits of the number.
    pub const NUMBER_MASK: u16 = 0x3f;
    /// The number of bits below the form, the way to show the value.
    pub const FORM_SHIFT: u32 = 8;
    /// The bits of the form.
    pub const FORM_MASK: u16 = 0xf;
    /// The form of an address of zero-terminated bytes. The bytes are recorded.
    pub const STRING: u16 = 5;
    /// The form of a floating-point number. As a result it is in a vector register.
    pub const FLOAT: u16 = 7;
    /// The form of an address of bytes, with their number in the word with the next number. The bytes are recorded like
    /// a string.
    pub const COUNTED: u16 = 8;
    /// Set with [`COUNTED`]: the number of bytes is the word with the previous number. With other forms the frontend
    /// uses this bit.
    pub const LENGTH_FIRST: u16 = 1 << 14;
    /// The form of an item without bytes: nothing is recorded.
    pub const UNKNOWN: u16 = 9;
    /// The first of six forms of an address of three words. The word with the number `form - OWNED >> 1` is the address
    /// of bytes; the word `1 + (form - OWNED & 1)` places later, in a circle, is their number. The bytes are recorded
    /// like a string.
    pub const OWNED: u16 = 10;
    /// The number of bits below the size, which is 1, 2, 4 or 8 bytes, as a number of doublings.
    pub const SIZE_SHIFT: u32 = 12;
    /// The bits of the size.
    pub const SIZE_MASK: u16 = 3;

    /// Set in the code of a value with fields. The item records a block of memory: the number of bytes read, in two
    /// bytes, then the bytes. The bits of the place give the block's address: it is in an [`ARGUMENT`] or the
    /// [`RESULT`]; see also [`ON_STACK`] and [`GATHERED`]. The codes of the parts follow.
    pub const COMPOSITE: u16 = 1 << 15;
    /// The place of a block on the stack: it begins in the word with this number, from 1, above the return address.
    pub const ON_STACK: u16 = 1;
    /// The place of a value without a block, with parts only.
    pub const GATHERED: u16 = 3;
    /// The number of bits below the number of words in the block, less 1.
    pub const WORDS_SHIFT: u32 = 8;
    /// The bits of the number of words.
    pub const WORDS_MASK: u16 = 0xf;
    /// The number of bits below the number of parts.
    pub const PARTS_SHIFT: u32 = 12;
    /// The bits of the number of parts.
    pub const PARTS_MASK: u16 = 7;

    /// The number of bytes of values in a record.
    pub const UNIT_BYTES: usize = 6;
    /// The maximum length of a string in bytes. The last three recorded bytes of a longer one are dots. uftrace has the
    /// same limit.
    pub const STRING_BYTES: usize = 98;
    /// The maximum number of bytes of a call's items. A frontend asks for no more.
    pub const MAX_BYTES: usize = 1024;
    /// The length of a null pointer to a string. No bytes follow.
    pub const NULL: u16 = u16::MAX;
}

/// The recorded values of a function, and the watches on its calls.
#[derive(Debug)]
#[repr(C)]
pub struct ValueSite {
    /// The address by which hooks know the function.
    pub child_ip: usize,
    /// The codes of the arguments.
    pub arguments: *const u16,
    /// The number of these codes.
    pub n_arguments: usize,
    /// The codes of the result, one value.
    pub result: *const u16,
    /// The number of these codes; 0 if the result is not recorded.
    pub n_result: usize,
    /// The watches on the function's calls.
    pub watches: *const Watch,
    /// The number of watches.
    pub n_watches: usize,
    /// The number of levels recorded from each call of the function on, its own included; 0 for no limit of its own.
    pub levels: u32,
}

/// The actions of a [`Watch`].
pub mod watch {
    /// The hook writes a notice.
    pub const TELL: u8 = 0;
    /// Recording of calls goes on from this call on, and includes it.
    pub const ON: u8 = 1;
    /// Neither this call nor a later one is recorded, until [`ON`].
    pub const OFF: u8 = 2;
    /// Recording stops after the record of this call.
    pub const FINISH: u8 = 3;
}

/// A condition on calls of a function, and an action for matching calls: in most cases a notice, see [`Noticed`].
#[derive(Debug)]
#[repr(C)]
pub struct Watch {
    /// The number in the notice.
    pub number: u64,
    /// One of [`watch`]. All except TELL act on each call that begins.
    pub action: u8,
    /// Not 0: matches returns [`least_ticks`](Self::least_ticks) or more after the call; 0: matches calls at their
    /// beginning.
    pub on_return: u8,
    /// Not 0: matches only calls longer than all before.
    pub is_rising: u8,
    /// For calls at their beginning: the number of the only matching call, from 1; 0: each call matches.
    pub nth: u64,
    /// The number of calls begun.
    pub n_calls: AtomicU64,
    /// The minimum duration in ticks, see [`on_return`](Self::on_return).
    pub least_ticks: AtomicU64,
}

/// A notice of a [`Watch`]. It holds the first match until the reader has read it and sets `tsc` to 0.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Noticed {
    /// The time in ticks, after the record of the call or return; 0: no notice, 1: a hook is writing the notice.
    pub tsc: AtomicU64,
    /// The [`Watch::number`].
    pub number: AtomicU64,
    /// The tracer's number of the thread; 0 if unknown.
    pub thread: AtomicU64,
    /// The duration of the call in ticks; 0 for a call at its beginning.
    pub lasted: AtomicU64,
    /// The number of later matches without a notice.
    pub n_more: AtomicU64,
}

/// The recorded values of all functions. The table stays mapped for ever.
#[derive(Debug)]
#[repr(C)]
pub struct ValueTable {
    /// The sites, ascending by `child_ip`.
    pub sites: *const ValueSite,
    /// The number of sites.
    pub n_sites: usize,
    /// The ranges (beginning, end) of memory that stays readable until the program ends.
    pub constant: *const [usize; 2],
    /// The number of ranges.
    pub n_constant: usize,
}
