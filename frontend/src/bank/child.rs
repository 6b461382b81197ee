//! The fork of a recorded process: its child takes a slot of its own.
//!
//! **Invariant**: the child of a fork reads only its own slot: its parent may have ended, and its slot may belong to
//! another process.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ptr;
use std::slice;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

use rftrace::abi::{self, InitArgs, init};

use super::client::{Bank, NO_SLOT, TRIES, own};
use super::file::{ASKED_BYTES, OPEN_AT, RULES_AT, Slot, TEXT_AT, TEXT_BYTES};
use super::handover::slot_state;
use crate::backend;
use crate::clock::monotonic_nanos;
use crate::host::linux::{chosen, fork, threads};

impl Bank {
    /// Starts to answer requests like [`listen`](Self::listen), in the child of a fork. The child takes another slot;
    /// if none is free, it answers none.
    pub fn listen_in_child(&self) {
        let before = self.slot.swap(NO_SLOT, Relaxed);
        let Some(kept) = Kept::take().filter(|_| self.take_slot(1, before)) else { return };
        let number = self.slot.load(Relaxed);
        kept.copy_to(self.at(number, 0));
        self.slot_of(number).requests.inherit(&kept.slot().requests);
        self.listen();
    }

    /// Keeps the data for a child from this process's slot. Without memory for it the child is not recorded.
    pub fn keep_for_child(&self) {
        let Some((own, kept)) = self.own_place(0).zip(Kept::new()) else { return };
        // SAFETY: both are so large.
        unsafe { ptr::copy_nonoverlapping(own.cast_const(), kept.0, size_of::<Slot>()) };
        copy_parts(kept.slot(), own, kept.0);
        drop(Kept::take());
        KEPT.set(ManuallyDrop::new(kept).0);
    }

    /// Writes the functions open in the only thread of a forked child: their entries are its parent's.
    fn write_open_functions(&self) {
        let Some((slot, thread)) = self.own_slot().zip(backend::own_thread()) else { return };
        // SAFETY: within this process's slot, which nobody else writes to; aligned, and of atomics.
        let words = unsafe {
            slice::from_raw_parts(
                self.at(self.slot.load(Relaxed), OPEN_AT).cast::<AtomicU64>().cast_const(),
                abi::RETURN_STACK_ENTRIES,
            )
        };
        let mut n_open = 0;
        for (place, word) in words.iter().zip(backend::open_functions(thread)) {
            place.store(word, Relaxed);
            n_open += 1;
        }
        slot.forked_thread.store(thread.tid.load(Relaxed), Relaxed);
        slot.n_open.store(n_open, Release);
    }
}

/// Registers the fork handlers. They wait for threads at work.
pub(crate) fn register_handlers() {
    static REGISTERED: AtomicBool = AtomicBool::new(false);

    /// The tracer forgets the other threads, and the calling one has another id now.
    unsafe extern "C" fn in_child() {
        let forked = forked();
        // SAFETY: in the child, on its only thread. A bank is this process's alone, zeroed, and stays mapped.
        let status = unsafe { backend::forked(forked.args()) };
        forked.go_on(status);
        threads::forked();
        chosen::forked();
    }
    if !REGISTERED.swap(true, Relaxed) {
        // SAFETY: the handlers are made for this; the last one runs in the child, on its only thread. Without memory for them a
        // child goes on with its parent's threads in its trace.
        unsafe { libc::pthread_atfork(Some(fork_begins), Some(fork_ends), Some(in_child)) };
        // Those that are registered last come first before a fork, and last behind it.
        fork::register_handlers();
    }
}

/// This process is about to fork.
unsafe extern "C" fn fork_begins() {
    if let Some(bank) = own() {
        bank.was_on.store(backend::is_enabled(), Relaxed);
        if bank.is_for_children {
            bank.keep_for_child();
        }
    }
}

/// It has forked, or has not.
unsafe extern "C" fn fork_ends() {
    drop(Kept::take());
}

/// Copy of the parent's slot for the child of a fork, as it was before the fork: when the child looks, its parent may have ended, and the slot
/// may be free or another's.
struct Kept(*mut u8);

thread_local! {
    /// The data of this thread's present fork; null if there is none.
    static KEPT: Cell<*mut u8> = const { Cell::new(ptr::null_mut()) };
}

impl Kept {
    /// All parts have the same places as in a slot.
    const BYTES: usize = RULES_AT + ASKED_BYTES;

    fn new() -> Option<Self> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, wherever there is room. It is no allocation: a signal's handler may fork.
        let mapped =
            unsafe { libc::mmap(ptr::null_mut(), Self::BYTES, protection, flags | libc::MAP_NORESERVE, -1, 0) };
        (mapped != libc::MAP_FAILED).then(|| Self(mapped.cast()))
    }

    fn take() -> Option<Self> {
        let kept = KEPT.replace(ptr::null_mut());
        (!kept.is_null()).then(|| Self(kept))
    }

    /// Copies texts and rules into this process's own slot, at this address.
    fn copy_to(&self, own: *mut u8) {
        copy_parts(self.slot(), self.0, own);
    }

    fn slot(&self) -> &Slot {
        // SAFETY: a copy of a slot, which consists of atomics, at the beginning of a page.
        unsafe { &*self.0.cast() }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: its own mapping, which nobody has a reference to.
        unsafe { libc::munmap(self.0.cast(), Self::BYTES) };
    }
}

/// Copies the texts and rules of a slot to the same places in another slot or its copy.
fn copy_parts(slot: &Slot, from: *mut u8, to: *mut u8) {
    let n_texts = (slot.text_bytes.load(Acquire) as usize).min(TEXT_BYTES);
    let n_rules = (slot.requests.rules_bytes.load(Relaxed) as usize).min(ASKED_BYTES);
    for (offset, bytes) in [(TEXT_AT, n_texts), (RULES_AT, n_rules)] {
        // SAFETY: both have so many bytes there, and are not the same; nobody else writes to what is copied to.
        unsafe { ptr::copy_nonoverlapping(from.wrapping_add(offset).cast_const(), to.wrapping_add(offset), bytes) };
    }
}

/// Destination of the records of a forked child.
enum Forked {
    /// Its memory so far, a copy of its parent's.
    Copy,
    /// A bank of its own.
    Other(&'static Bank, InitArgs),
    /// Nothing: there was no bank for it.
    Nothing,
}

/// Begins the recording of a forked child. Recording is off from here on, if it records into a bank.
fn forked() -> Forked {
    let Some(bank) = own() else { return Forked::Copy };
    backend::disable();
    let before = bank.slot.load(Relaxed);
    if before == NO_SLOT {
        return Forked::Nothing;
    }
    if !bank.is_for_children {
        let _ = bank.leave();
        return Forked::Nothing;
    }
    let kept = Kept::take();
    // The parent's chunks.
    let is_hidden = bank.hide_chunks(before).is_ok();
    // A hook that the fork has interrupted may still write to the parent's, so that slot is not taken though it may be free by now.
    let given = if is_hidden && kept.is_some() && bank.take_slot(TRIES, before) { bank.given() } else { None };
    let Some((given, kept)) = given.zip(kept) else {
        bank.slot.store(NO_SLOT, Relaxed);
        return Forked::Nothing;
    };
    let number = bank.slot.load(Relaxed);
    let (slot, parent) = (bank.slot_of(number), kept.slot());
    kept.copy_to(bank.at(number, 0));
    slot.text_bytes.store(parent.text_bytes.load(Acquire), Relaxed);
    slot.requests.inherit(&parent.requests);
    slot.forked_by.store(parent.pid.load(Relaxed), Relaxed);
    slot.forked_nanos.store(monotonic_nanos(), Relaxed);
    slot.program_nanos.store(parent.program_nanos.load(Relaxed), Relaxed);
    slot.first_tsc.store(parent.first_tsc.load(Relaxed), Relaxed);
    slot.first_nanos.store(parent.first_nanos.load(Relaxed), Relaxed);
    slot.utc_offset_nanos.store(parent.utc_offset_nanos.load(Relaxed), Relaxed);
    bank.tell_minimum();
    slot.mapped_at.store(bank.start as u64, Relaxed);
    slot.threads_at.store(&raw const backend::control().threads as u64, Relaxed);
    backend::control().filter.noticed.store((&raw const slot.noticed).cast_mut(), Release);
    threads::move_to(given.threads);
    slot.state.store(slot_state::IN_USE, Release);
    let args = InitArgs {
        buffer: given.buffer,
        buffer_bytes: given.bytes,
        blocks: ptr::null_mut(),
        blocks_bytes: 0,
        left: ptr::null_mut(),
        left_bytes: 0,
        overwriting: u8::from(bank.is_ring),
        bank: given.bank,
        thread_start: None,
        thread_start_key: 0,
    };
    Forked::Other(bank, args)
}

impl Forked {
    /// Another buffer for the tracer.
    fn args(&self) -> Option<&InitArgs> {
        match self {
            Self::Other(_, args) => Some(args),
            Self::Copy | Self::Nothing => None,
        }
    }

    /// Goes on after the tracer's answer, an [`init`] status.
    fn go_on(&self, status: u32) {
        match self {
            Self::Other(bank, _) if status == init::OK => {
                if let Some(slot) = bank.own_slot() {
                    slot.first_index.store(backend::control().shared.first_index.load(Relaxed), Relaxed);
                }
                bank.write_open_functions();
                if bank.was_on.load(Relaxed) {
                    backend::enable();
                }
            }
            _ => {}
        }
    }
}
