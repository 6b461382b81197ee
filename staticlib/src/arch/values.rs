//! Arguments and results: the values recorded for a call if its action says so, see [`value`].
//!
//! A value is read at its place by the calling convention, whatever the program is about to do with it. Pointers are
//! followed without trust: directly within the running function's own stack, and within memory that stays by the
//! frontend's word; the system reads all else, and tells of missing memory. A pointer to nowhere is recorded as text,
//! `<0x10>`.
//!
//! Not here: the choice of values (the frontend's table), and how they are reserved and written (`buffer`).

use core::mem::{MaybeUninit, size_of};
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use core::{hint, iter, ptr};

use super::registers::{Registers, copy_by_system, last_byte};
use super::watch;
use crate::abi::value::{
    ARGUMENT, COMPOSITE, COUNTED, FLOAT, FLOAT_ARGUMENT, FORM_MASK, FORM_SHIFT, GATHERED, IN_BLOCK, LENGTH_FIRST,
    MAX_BYTES, NULL, NUMBER_MASK, NUMBER_SHIFT, ON_STACK, OWNED, PLACE_MASK, SIZE_MASK, SIZE_SHIFT, STRING,
    STRING_BYTES, UNIT_BYTES, UNKNOWN, WORDS_MASK, WORDS_SHIFT,
};
use crate::abi::{ADDRESS_SHIFT, ValueSite, action, kind};
use crate::control_block::CONTROL;

/// No mapping ends, and none begins, within.
const PAGE: usize = 4096;

/// Bytes copied at once.
const WORD: usize = size_of::<u64>();

/// The values of a call or a return, as items.
pub(crate) struct Values {
    /// The items, and then a word of zeros as soon as all are there. Before that the bytes behind them are the rest of
    /// the last word written, which does not count.
    bytes: MaybeUninit<[u8; MAX_BYTES + 2 * WORD]>,
    n_bytes: usize,
    /// The place in the bytes of the block read last.
    block: [usize; 2],
}

/// The values recorded of a function.
#[derive(Clone, Copy)]
pub(crate) struct Site(&'static ValueSite);

/// The values of the function known to hooks by `child_ip`, if its `action` says so.
pub(crate) fn site(action: u8, child_ip: usize) -> Option<Site> {
    if !matches!(action, action::RECORD_VALUES | action::INTO_VALUES) {
        return None;
    }
    find_site(child_ip)
}

/// The values to read of a function, and the memory to read directly for them.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    site: &'static ValueSite,
    registers: Registers,
    /// The stack, from the function's own part to the end of the page with its last byte.
    stack: [usize; 2],
}

impl Wanted {
    /// The values of a function. `frame` names its frame, `stack_pointer` is below the frame.
    fn new(Site(site): Site, registers: Registers, stack_pointer: usize, frame: usize) -> Self {
        let stack = [stack_pointer, (last_byte(frame) | (PAGE - 1)).wrapping_add(1)];
        Self { site, registers, stack }
    }

    /// The same for a call.
    pub(crate) fn of_call(site: Option<Site>, registers: usize, stack_pointer: usize, frame: usize) -> Option<Self> {
        Some(Self::new(site?, Registers::of_call(registers, frame)?, stack_pointer, frame))
    }

    /// For a return: nothing of the stack below is the function's any more.
    pub(crate) fn of_return(child_ip: usize, registers: usize, frame: usize) -> Option<Self> {
        Some(Self::new(find_site(child_ip)?, Registers::of_return(registers)?, frame, frame))
    }

    /// The new return address of the function, if its return is looked at.
    pub(crate) fn trampoline(self) -> Option<usize> {
        (self.site.n_result != 0 || watch::has_returns(self.site)).then(super::values_trampoline)
    }

    /// The call has begun in a thread, and is recorded.
    pub(crate) fn begun(self, thread: u32) {
        if self.site.n_watches != 0 {
            watch::begun(self.site, thread);
        }
    }

    /// It has returned, and the return is recorded. It was entered at `entered`.
    pub(crate) fn returned(self, thread: u32, entered: u64) {
        if self.site.n_watches != 0 {
            watch::returned(self.site, thread, entered);
        }
    }

    /// Directly readable memory.
    fn direct(self) -> impl Iterator<Item = [usize; 2]> {
        // SAFETY: null, or a table mapped for good.
        let table = unsafe { CONTROL.filter.values.load(Acquire).as_ref() };
        let (first, n_ranges) = table.map_or((ptr::null(), 0), |table| (table.constant, table.n_constant));
        // SAFETY: so many are there.
        let constant = (0..n_ranges).map(move |place| unsafe { *first.wrapping_add(place) });
        iter::once(self.stack).chain(constant)
    }
}

/// A function is about to be called: does the work due before the decision to record the call. Returns the number of
/// levels from there on, see [`ValueSite::levels`].
pub(crate) fn before(site: Option<Site>) -> u32 {
    let Some(Site(site)) = site else { return 0 };
    if site.n_watches != 0 {
        watch::before(site);
    }
    site.levels
}

/// The site of the function known to hooks by `child_ip`.
fn find_site(child_ip: usize) -> Option<Site> {
    // SAFETY: null, or a table mapped for good.
    let table = unsafe { CONTROL.filter.values.load(Acquire).as_ref() }?;
    let (mut low, mut high) = (0, table.n_sites);
    while low < high {
        let middle = low.wrapping_add(high) / 2;
        // SAFETY: below the number of sites.
        let site = unsafe { &*table.sites.wrapping_add(middle) };
        if site.child_ip == child_ip {
            return Some(Site(site));
        }
        (low, high) = if site.child_ip < child_ip { (middle.wrapping_add(1), high) } else { (low, middle) };
    }
    None
}

/// True if a word of this form is the address of the wanted bytes.
fn is_pointer(form: u16) -> bool {
    matches!(form, STRING | COUNTED) || form >= OWNED
}

impl Values {
    /// None yet.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        // From a constant the compiler would zero the bytes too, by a `memset`, and there is none.
        Self { bytes: MaybeUninit::uninit(), n_bytes: hint::black_box(0), block: [0; 2] }
    }

    /// How many records they take.
    pub(crate) fn n_units(&self) -> usize {
        // They are at most MAX_BYTES: `div_ceil` would look at the remainder.
        self.n_bytes.wrapping_add(UNIT_BYTES - 1) / UNIT_BYTES
    }

    /// The words of these records.
    pub(crate) fn words(&self) -> impl Iterator<Item = u64> {
        let n_units = self.n_units();
        (0..n_units).map(move |place| {
            // SAFETY: bytes below `n_bytes` are written, and a word behind them.
            let piece = unsafe { self.at(place.wrapping_mul(UNIT_BYTES)).cast::<u64>().read_unaligned() };
            let n_following = (n_units.wrapping_sub(place).wrapping_sub(1) as u64).wrapping_mul(kind::FUNCTIONS_ONE);
            piece << ADDRESS_SHIFT | n_following & kind::FUNCTIONS_MASK | kind::VALUES | kind::RESYNC
        })
    }

    /// Reads a call's arguments.
    #[cold]
    pub(crate) fn read_arguments(&mut self, wanted: Wanted) {
        for place in 0..wanted.site.n_arguments {
            // SAFETY: so many are there.
            self.read(wanted, unsafe { *wanted.site.arguments.wrapping_add(place) });
        }
        self.end_at(self.n_bytes);
    }

    /// Reads the result.
    #[cold]
    pub(crate) fn read_result(&mut self, wanted: Wanted) {
        for place in 0..wanted.site.n_result {
            // SAFETY: so many are there.
            self.read(wanted, unsafe { *wanted.site.result.wrapping_add(place) });
        }
        self.end_at(self.n_bytes);
    }

    /// Adds the item of a value. Values in registers are done here, as most are; all else by functions of their own.
    #[inline(always)]
    fn read(&mut self, wanted: Wanted, code: u16) {
        self.put(u64::from(code), 2);
        if code & COMPOSITE != 0 {
            return self.put_block(wanted, code);
        }
        let word = self.word(wanted, code);
        match code >> FORM_SHIFT & FORM_MASK {
            form if is_pointer(form) => self.put_pointed(wanted, code, word),
            UNKNOWN => {}
            _ => self.put(word, 1 << (code >> SIZE_SHIFT & SIZE_MASK)),
        }
    }

    /// Adds the text at a pointer.
    #[inline(never)]
    fn put_pointed(&mut self, wanted: Wanted, code: u16, word: u64) {
        match code >> FORM_SHIFT & FORM_MASK {
            STRING => self.put_string(wanted, word as usize, None),
            COUNTED => self.put_string(wanted, word as usize, Some(self.length(wanted, code) as usize)),
            owned => self.put_owned(wanted, word as usize, owned.wrapping_sub(OWNED)),
        }
    }

    /// Adds the block of a value with fields.
    #[inline(never)]
    fn put_block(&mut self, wanted: Wanted, code: u16) {
        let place = code & PLACE_MASK;
        if place == GATHERED {
            return self.put(0, 2);
        }
        let address = match place {
            ON_STACK => wanted.registers.stack(usize::from(code >> NUMBER_SHIFT & NUMBER_MASK)),
            _ => self.word(wanted, code & !COMPOSITE) as usize,
        };
        let n_bytes = usize::from(code >> WORDS_SHIFT & WORDS_MASK).wrapping_add(1).wrapping_mul(8);
        let first = self.n_bytes.wrapping_add(2);
        if first.wrapping_add(n_bytes) > MAX_BYTES {
            return self.put(0, 2);
        }
        // SAFETY: there is room for so many bytes.
        let n_read = unsafe { read(wanted, address, self.at_mut(first), n_bytes, false) };
        self.end_at(first.wrapping_add(n_read));
        self.put_length(first);
        self.block = [first, self.n_bytes];
    }

    /// The value itself, or the address of the wanted data.
    #[inline(always)]
    fn word(&self, wanted: Wanted, code: u16) -> u64 {
        let number = usize::from(code >> NUMBER_SHIFT & NUMBER_MASK);
        let registers = wanted.registers;
        match code & PLACE_MASK {
            ARGUMENT => match registers.argument(number) {
                Ok(word) => word,
                Err(address) => {
                    let mut word = 0u64;
                    // SAFETY: eight bytes have room there.
                    unsafe { read(wanted, address, (&raw mut word).cast(), 8, false) };
                    word
                }
            },
            FLOAT_ARGUMENT => registers.vector(number.wrapping_sub(1)),
            IN_BLOCK => self.word_of_block(number),
            _ if code >> FORM_SHIFT & FORM_MASK == FLOAT => registers.vector(number),
            _ if number == 0 => registers.result(),
            _ => registers.second_result(),
        }
    }

    /// A word of the block read last; 0 if it was not read.
    fn word_of_block(&self, number: usize) -> u64 {
        let at = self.block[0].wrapping_add(number.wrapping_mul(8));
        if at.wrapping_add(8) > self.block[1] {
            return 0;
        }
        // SAFETY: below the end of the block; its bytes are written.
        unsafe { self.at(at).cast::<u64>().read_unaligned() }
    }

    /// The length of a counted string.
    fn length(&self, wanted: Wanted, code: u16) -> u64 {
        let one = 1 << NUMBER_SHIFT;
        // Whatever it counts, it is an integer.
        let place = code & (NUMBER_MASK << NUMBER_SHIFT | PLACE_MASK);
        self.word(wanted, if code & LENGTH_FIRST == 0 { place.wrapping_add(one) } else { place.wrapping_sub(one) })
    }

    /// Adds the bytes owned by a structure of three words.
    fn put_owned(&mut self, wanted: Wanted, address: usize, which: u16) {
        let first = usize::from(which >> 1);
        let second = first.wrapping_add(1).wrapping_add(usize::from(which & 1));
        let second = if second > 2 { second.wrapping_sub(3) } else { second };
        let field = |number: usize| {
            let mut word = 0_usize;
            // SAFETY: eight bytes have room there.
            let n_read =
                unsafe { read(wanted, address.wrapping_add(number.wrapping_mul(8)), (&raw mut word).cast(), 8, false) };
            (n_read == 8).then_some(word)
        };
        match (field(first), field(second)) {
            (Some(bytes), Some(length)) => self.put_string(wanted, bytes, Some(length)),
            _ => self.put_string(wanted, address, None),
        }
    }

    /// The address of a byte.
    fn at(&self, place: usize) -> *const u8 {
        self.bytes.as_ptr().cast::<u8>().wrapping_add(place)
    }

    fn at_mut(&mut self, place: usize) -> *mut u8 {
        self.bytes.as_mut_ptr().cast::<u8>().wrapping_add(place)
    }

    /// Adds the low bytes of a word, as far as there is room.
    fn put(&mut self, word: u64, n_bytes: usize) {
        let place = self.n_bytes;
        // SAFETY: there is room for two words behind the last byte.
        unsafe { self.at_mut(place).cast::<u64>().write_unaligned(word) };
        self.n_bytes = place.wrapping_add(n_bytes).min(MAX_BYTES);
    }

    /// So many bytes are written.
    fn end_at(&mut self, n_bytes: usize) {
        self.n_bytes = n_bytes;
        // SAFETY: there is room for it behind the last byte.
        unsafe { self.at_mut(n_bytes).cast::<u64>().write_unaligned(0) };
    }

    /// Adds the length and the bytes of a string: of `known` bytes, or up to a NUL.
    fn put_string(&mut self, wanted: Wanted, address: usize, known: Option<usize>) {
        if known == Some(0) {
            return self.put(0, 2);
        }
        if address == 0 {
            return self.put(u64::from(NULL), 2);
        }
        let first = self.n_bytes.wrapping_add(2);
        if first.wrapping_add(STRING_BYTES) > MAX_BYTES {
            return self.put(0, 2);
        }
        let n_bytes = known.map_or(STRING_BYTES, |known| known.min(STRING_BYTES));
        // SAFETY: there is room for so many bytes.
        let n_read = unsafe { read(wanted, address, self.at_mut(first), n_bytes, known.is_none()) };
        self.end_at(first.wrapping_add(n_read));
        if n_read == 0 {
            self.put_address(address);
        } else {
            let length = match known {
                Some(known) => (n_read == known).then_some(known),
                // SAFETY: so many were read, and a word of zeros is behind them.
                None => Some(unsafe { length(self.at(first)) }).filter(|&length| length < n_read),
            };
            match length {
                Some(length) => self.end_at(first.wrapping_add(length)),
                None => {
                    self.n_bytes = self.n_bytes.wrapping_sub(3).max(first);
                    self.put(u64::from_le_bytes(*b"...\0\0\0\0\0"), 3);
                }
            }
        }
        self.put_length(first);
    }

    /// Puts the number of bytes from `first` on into the two bytes before `first`, and overwrites nothing else.
    fn put_length(&mut self, first: usize) {
        let length = self.n_bytes.wrapping_sub(first) as u16;
        // SAFETY: the two bytes before `first`, which were left out.
        unsafe { self.at_mut(first.wrapping_sub(2)).cast::<u16>().write_unaligned(length) };
    }

    /// Adds the text of an address.
    fn put_address(&mut self, address: usize) {
        self.put(u64::from_le_bytes(*b"<0x\0\0\0\0\0"), 3);
        let n_digits = (usize::BITS.wrapping_sub(address.leading_zeros())).div_ceil(4).max(1);
        for digit in (0..n_digits).rev() {
            let digit = (address >> (4 * digit)) as u8 & 15;
            let text = if digit < 10 { b'0'.wrapping_add(digit) } else { b'a'.wrapping_sub(10).wrapping_add(digit) };
            self.put(text.into(), 1);
        }
        self.put(b'>'.into(), 1);
    }
}

/// Reads as many bytes as possible, `n_bytes` at the most; of text maybe none behind a NUL. Returns their number.
///
/// # Safety
///
/// So many can be written to `to`.
unsafe fn read(wanted: Wanted, address: usize, to: *mut u8, n_bytes: usize, is_text: bool) -> usize {
    let range = wanted.direct().find(|range| range[0] <= address && address < range[1]);
    let n_direct = range.map_or(0, |[_, end]| n_bytes.min(end.wrapping_sub(address)));
    // SAFETY: the memory is there, by the frontend's word or as the running function's stack.
    let (n_copied, is_ended) = unsafe { copy(address, to, n_direct, is_text) };
    // The bytes behind may be readable too.
    let n_others = n_bytes.wrapping_sub(n_copied);
    if is_ended || n_others == 0 || CONTROL.filter.confined.load(Relaxed) != 0 {
        return n_copied;
    }
    // SAFETY: by this function's contract.
    let n_remote = unsafe { read_remote(address.wrapping_add(n_copied), to.wrapping_add(n_copied), n_others) };
    n_copied.wrapping_add(n_remote)
}

/// Reads memory as far as it is there. It costs two system calls, and no signal is raised.
///
/// # Safety
///
/// `n_bytes` can be written to `to`.
unsafe fn read_remote(address: usize, to: *mut u8, n_bytes: usize) -> usize {
    // Another page may be missing.
    let n_first = n_bytes.min(PAGE.wrapping_sub(address & (PAGE - 1)));
    let remote = [[address, n_first], [address.wrapping_add(n_first), n_bytes.wrapping_sub(n_first)]];
    // SAFETY: by this function's contract.
    let result = unsafe { copy_by_system([to as usize, n_bytes], remote) };
    if result > n_bytes { 0 } else { result }
}

/// Copies bytes; of text none behind the word with a NUL. Returns their number, and true if it is text and there was a
/// NUL. The reads are volatile as others may write there.
///
/// # Safety
///
/// So many can be read and written.
unsafe fn copy(address: usize, to: *mut u8, n_bytes: usize, is_text: bool) -> (usize, bool) {
    /// A word at any address.
    #[derive(Clone, Copy)]
    #[repr(C, packed)]
    struct Word(u64);

    let mut n_copied = 0usize;
    while n_bytes.wrapping_sub(n_copied) >= WORD {
        // SAFETY: by this function's contract.
        unsafe {
            let Word(word) = (address.wrapping_add(n_copied) as *const Word).read_volatile();
            to.wrapping_add(n_copied).cast::<u64>().write_unaligned(word);
            n_copied = n_copied.wrapping_add(WORD);
            if is_text && zeros(word) != 0 {
                return (n_copied, true);
            }
        }
    }
    while n_copied < n_bytes {
        // SAFETY: by this function's contract.
        let byte = unsafe { (address.wrapping_add(n_copied) as *const u8).read_volatile() };
        // SAFETY: the same.
        unsafe { to.wrapping_add(n_copied).write(byte) };
        n_copied = n_copied.wrapping_add(1);
        if is_text && byte == 0 {
            return (n_copied, true);
        }
    }
    (n_copied, false)
}

/// How many bytes come before the first NUL.
///
/// # Safety
///
/// There is one, and so are seven bytes behind it.
unsafe fn length(text: *const u8) -> usize {
    let mut place = 0usize;
    loop {
        // SAFETY: no byte before was a NUL.
        let zeros = zeros(unsafe { text.wrapping_add(place).cast::<u64>().read_unaligned() });
        if zeros != 0 {
            return place.wrapping_add(zeros.trailing_zeros() as usize / 8);
        }
        place = place.wrapping_add(WORD);
    }
}

/// Its lowest set bit is the highest bit of the first zero byte; 0 if there is none.
fn zeros(word: u64) -> u64 {
    const ONES: u64 = u64::MAX / 0xff;
    word.wrapping_sub(ONES) & !word & ONES << 7
}
