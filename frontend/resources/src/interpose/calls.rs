//! A call that takes something or gives it back: what is recorded of it, and when.
//!
//! **Invariant**: nothing here is to be dropped, nor in its callers: a thread that is cancelled while it waits in a function of the C
//! library is unwound past them.

use std::ffi::{c_char, c_int};
use std::slice;

use rftrace_format::resources::{Kind, MAX_ARGUMENTS_BYTES, MAX_DETAIL_BYTES, Resource};

use crate::chunks::{self, Place};
use crate::identity;
use crate::pool;
use crate::process;
use crate::stacks::{self, Registers};
use crate::thread;

/// A call that has begun, and is to be recorded.
#[derive(Clone, Copy)]
pub(super) struct Call {
    began: u64,
    registers: Registers,
    /// The generation of recording at its beginning: it may wait for long.
    generation: u32,
    /// How much the thread had logged by then.
    since: u32,
}

impl Call {
    /// Begins. `None` where such things are not recorded, as in a child of `vfork`: it is in its parent's memory, but has what it takes for
    /// itself.
    pub(super) fn begin(resource: Resource, registers: Registers) -> Option<Self> {
        let is_stopped = thread::current().is_stopped.get();
        let is_recorded = !is_stopped && process::is_recorded(resource) && identity::is_own_memory();
        is_recorded.then(|| Self::again(pool::ticks_before(), registers, process::generation(), logged()))
    }

    /// Begins one of a specified function.
    pub(super) fn specified(resource: usize, registers: Registers) -> Option<Self> {
        // Memory is not asked about, as in `allocator`: a child of `vfork` takes none.
        let is_own_memory = || resource == Resource::Memory.number() as usize || identity::is_own_memory();
        if thread::current().is_stopped.get() || !process::is_number_recorded(resource) || !is_own_memory() {
            return None;
        }
        Some(Self::again(pool::ticks_before(), registers, process::generation(), logged()))
    }

    /// Goes on with one that has begun then.
    pub(super) fn again(began: u64, registers: Registers, generation: u32, since: u32) -> Self {
        Self { began, registers, generation, since }
    }

    pub(super) fn since(self) -> u32 {
        self.since
    }

    pub(super) fn generation(self) -> u32 {
        self.generation
    }

    /// True if the recording of its beginning goes on, and the thread still records.
    pub(super) fn is_recorded(self) -> bool {
        self.generation == process::generation() && !thread::current().is_stopped.get()
    }

    pub(super) fn began(self) -> u64 {
        self.began
    }

    /// Records that a specified function has taken something of a size. Unless `is_nested`, a function that it has called may have done so.
    pub(super) fn specified_taken(
        self,
        kind: Kind,
        function: u64,
        resource: u32,
        (what, size): (u64, u64),
        text: &[u8],
        is_nested: bool,
    ) {
        if !self.is_recorded() {
            return;
        }
        let thread = thread::current();
        let key = key(resource, what);
        if !is_nested {
            if thread.has_taken(self.since, key) {
                return;
            }
            thread.log(key, true);
        }
        let stack = stacks::number(thread, self.registers);
        if let Some(place) = chunks::reserve(thread, 3 + text.len().div_ceil(8)) {
            place.more(1, size, u64::from(stack) | function << 32);
            place.more(2, self.began, text.len() as u64);
            chunks::write_text(place, 3, [text, &[]]);
            place.finish(kind, pool::ticks_after(), what);
        }
    }

    /// Records that a specified function has given something back when it was called.
    pub(super) fn specified_given_back(self, function: u64, resource: u32, what: u64, is_nested: bool) {
        if !self.is_recorded() {
            return;
        }
        let thread = thread::current();
        let key = key(resource, what);
        if !is_nested {
            if thread.has_given_back(self.since, key) {
                return;
            }
            thread.log(key, false);
        }
        let stack = if process::is_detailed() { stacks::number(thread, self.registers) } else { 0 };
        if let Some(place) = chunks::reserve(thread, 3) {
            place.more(1, 0, u64::from(stack) | function << 32);
            place.more(2, self.began, 0);
            place.finish(Kind::SpecifiedRelease, self.began, what);
        }
    }

    /// Records that something was taken, unless a function that the called one has called did so. `told` is what is recorded besides where
    /// more is wanted: what the function returned, and its arguments.
    pub(super) fn taken(self, kind: Kind, what: u64, detail: &[u8], told: impl FnOnce() -> Told) {
        let thread = thread::current();
        if thread.has_taken(self.since, what + 1) {
            return;
        }
        thread.log(what + 1, true);
        self.counted(kind, what, detail, told);
    }

    /// The same of what may be taken several times: each counts, by whichever function.
    pub(super) fn counted(self, kind: Kind, what: u64, detail: &[u8], told: impl FnOnce() -> Told) {
        if !self.is_recorded() {
            return;
        }
        let thread = thread::current();
        let stack = stacks::number(thread, self.registers);
        if process::is_detailed() {
            with_told(told, |told| self.write_taken(kind, what, stack, detail, Some(told)));
        } else {
            self.write_taken(kind, what, stack, detail, None);
        }
    }

    fn write_taken(self, kind: Kind, what: u64, stack: u32, detail: &[u8], told: Option<&Told>) {
        let behind = 3 + detail.len().div_ceil(8);
        let units = told.map_or(0, Told::units);
        if let Some(place) = chunks::reserve(thread::current(), behind + units) {
            place.more(1, 1, u64::from(stack));
            place.more(2, self.began, detail.len() as u64);
            chunks::write_text(place, 3, [detail, &[]]);
            if let Some(told) = told {
                told.write(place, behind);
            }
            place.finish(kind, pool::ticks_after(), what);
        }
    }

    /// Records something that changes nothing, where more is wanted.
    pub(super) fn note(self, kind: Kind, what: u64, told: impl FnOnce() -> Told) {
        if process::is_detailed() {
            self.release(kind, pool::ticks_after(), what, None, Some(told));
        }
    }

    /// Records that something was given back when the function was called, unless one that it has called did so: whoever takes it next
    /// comes later. `got` is what the function got.
    pub(super) fn given_back(self, kind: Kind, what: u64, got: u64) {
        let thread = thread::current();
        if thread.has_given_back(self.since, what + 1) {
            return;
        }
        thread.log(what + 1, false);
        self.release(kind, self.began, what, None, Some(|| Told::only(got)));
    }

    /// Records that something was given back when the function has come to its end.
    pub(super) fn waited_for(self, kind: Kind, what: u64) {
        self.release(kind, pool::ticks_after(), what, None, Some(|| Told::only(what)));
    }

    /// Records that all from `first` to `last` was given back when the function was called.
    pub(super) fn range_given_back(self, kind: Kind, first: u64, last: u64) {
        self.release(kind, self.began, first, Some(last), None::<fn() -> Told>);
    }

    fn release(self, kind: Kind, ticks: u64, what: u64, last: Option<u64>, told: Option<impl FnOnce() -> Told>) {
        if !self.is_recorded() {
            return;
        }
        let thread = thread::current();
        if let Some(told) = told.filter(|_| process::is_detailed()) {
            let stack = stacks::number(thread, self.registers);
            with_told(told, |told| write_release(kind, || ticks, what, (last.unwrap_or(0), stack), Some(told)));
        } else if let Some(last) = last {
            write_release(kind, || ticks, what, (last, 0), None);
        } else if let Some(place) = chunks::reserve(thread, 1) {
            place.finish(kind, ticks, what);
        }
    }

    /// Records that what was to be given back was not there.
    pub(super) fn failed(self, kind: Kind, what: u64, got: u64) {
        if !self.is_recorded() {
            return;
        }
        let thread = thread::current();
        let stack = stacks::number(thread, self.registers);
        let write = |told: Option<&Told>| write_release(kind, pool::ticks_after, what, (0, stack), told);
        if process::is_detailed() {
            with_told(|| Told::only(got), |told| write(Some(told)));
        } else {
            write(None);
        }
    }
}

/// Writes a release with more than its first unit: the second one's words, and what is told.
fn write_release(kind: Kind, ticks: impl FnOnce() -> u64, what: u64, second: (u64, u32), told: Option<&Told>) {
    let units = told.map_or(0, Told::units);
    if let Some(place) = chunks::reserve(thread::current(), 2 + units) {
        place.more(1, second.0, u64::from(second.1));
        if let Some(told) = told {
            told.write(place, 2);
        }
        place.finish(kind, ticks(), what);
    }
}

/// Writes something with what is told: when the stack was found, whose frames and these are not on the program's stack at a time.
#[cold]
#[inline(never)]
fn with_told(told: impl FnOnce() -> Told, write: impl FnOnce(&Told)) {
    write(&told());
}

/// How much this thread has logged.
fn logged() -> u32 {
    thread::current().n_logged()
}

/// One thing of a specified resource, other than those of others.
fn key(resource: u32, what: u64) -> u64 {
    what.wrapping_add(1) ^ u64::from(resource) << 56
}

/// A function's value, got or returned, and its arguments as text.
pub(super) struct Told {
    value: u64,
    text: [u8; MAX_ARGUMENTS_BYTES],
    bytes: usize,
}

impl Told {
    /// A value alone.
    pub(super) fn only(value: u64) -> Self {
        Self { value, text: [0; MAX_ARGUMENTS_BYTES], bytes: 0 }
    }

    /// Adds text, as far as there is room.
    pub(super) fn with(&mut self, text: &[u8]) -> &mut Self {
        for &byte in text {
            if self.bytes < MAX_ARGUMENTS_BYTES {
                self.text[self.bytes] = byte;
                self.bytes += 1;
            }
        }
        self
    }

    /// Adds a number.
    pub(super) fn with_number(&mut self, number: i64) -> &mut Self {
        let mut digits = [0u8; 20];
        let (mut first, mut rest) = (digits.len(), number.unsigned_abs());
        while first == digits.len() || rest > 0 {
            first -= 1;
            digits[first] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        self.with(if number < 0 { b"-" } else { b"" }).with(&digits[first..])
    }

    fn units(&self) -> usize {
        1 + self.bytes.div_ceil(8)
    }

    fn write(&self, place: Place, first: usize) {
        // All 64 bits of the value are in the second word.
        place.more(first, self.bytes as u64, self.value);
        chunks::write_text(place, first + 1, [&self.text[..self.bytes], &[]]);
    }
}

/// The beginning of a text that the called function has read; nothing if there is none.
pub(super) fn text<'a>(text: *const c_char) -> &'a [u8] {
    if text.is_null() {
        return &[];
    }
    // SAFETY: it was just read up to the NUL that it ends with.
    unsafe { slice::from_raw_parts(text.cast(), libc::strnlen(text, MAX_DETAIL_BYTES)) }
}

/// The answer of a function that the C library lacks.
pub(super) trait Missing {
    fn missing() -> Self;
}

impl Missing for c_int {
    fn missing() -> Self {
        // SAFETY: the thread's own.
        unsafe { libc::__errno_location().write(libc::ENOSYS) };
        -1
    }
}

impl<T> Missing for *mut T {
    fn missing() -> Self {
        // SAFETY: as above.
        unsafe { libc::__errno_location().write(libc::ENOSYS) };
        std::ptr::null_mut()
    }
}

impl Missing for () {
    fn missing() -> Self {}
}
