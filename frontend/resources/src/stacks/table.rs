//! The numbers of stacks, by their hashes.
//!
//! The first table is small, and so are its pages few; each further one is used for what the one before has no room for. What was found lately is found at once.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU64};

use rftrace_format::resources::MAX_FRAMES;

use crate::memory;
use crate::thread;

/// The hashes of the stacks that have a number: the place, counted through all tables, plus one. As long as the recorder was not told of the stack it is an
/// even number, less by one: who is about to tell may be left by a jump.
static TABLES: [AtomicPtr<Row>; N_TABLES] = [const { AtomicPtr::new(ptr::null_mut()) }; N_TABLES];
const N_TABLES: usize = 6;

/// Places in a table, as many as a line of the processor's cache has.
#[repr(align(64))]
struct Row([AtomicU64; ROW_PLACES]);
const ROW_PLACES: usize = 8;

/// How many rows a table has, a power of two.
const fn n_rows(table: usize) -> usize {
    1 << (9 + 2 * table)
}

/// The rows of a stack in a table: the second one, a neighbour, has what the first one has no room for.
#[inline(always)]
fn rows_of(table: usize, hash: u64) -> [usize; 2] {
    let row = (hash >> 20) as usize % n_rows(table);
    [row, row ^ 1]
}

/// The number of each table's first place.
const FIRST_NUMBERS: [usize; N_TABLES] = {
    let mut numbers = [1; N_TABLES];
    let mut table = 1;
    while table < N_TABLES {
        numbers[table] = numbers[table - 1] + n_rows(table - 1) * ROW_PLACES;
        table += 1;
    }
    numbers
};

/// Stacks that were found lately, each at the place that its hash's lowest bits say: its number, and above it the highest bits of the hash.
static RECENT: [AtomicU64; 1 << RECENT_BITS] = [const { AtomicU64::new(0) }; 1 << RECENT_BITS];
const RECENT_BITS: u32 = 12;
const NUMBER_BITS: u32 = 23;
const _: () = assert!(FIRST_NUMBERS[N_TABLES - 1] + n_rows(N_TABLES - 1) * ROW_PLACES <= 1 << NUMBER_BITS);
const _: () = assert!(RECENT_BITS < NUMBER_BITS);

/// Makes the first table, or empties those that there are. Returns whether there is memory for it.
pub(super) fn prepare() -> bool {
    // Pages that are zero are not to be written.
    for place in RECENT.iter().filter(|place| place.load(Relaxed) != 0) {
        place.store(0, Relaxed);
    }
    let empty = |table: usize| {
        let rows = TABLES[table].load(Relaxed);
        // SAFETY: the table, which is private memory: it reads as 0 then.
        rows.is_null()
            || unsafe { libc::madvise(rows.cast(), n_rows(table) * size_of::<Row>(), libc::MADV_DONTNEED) == 0 }
    };
    (0..N_TABLES).all(empty) && (!TABLES[0].load(Relaxed).is_null() || make(0))
}

/// Makes a table, if there is none. Returns whether there is one.
#[cold]
fn make(table: usize) -> bool {
    let bytes = n_rows(table) * size_of::<Row>();
    thread::keeping_errno(|| {
        let rows = memory::map(bytes).cast::<Row>();
        if !rows.is_null() && TABLES[table].compare_exchange(ptr::null_mut(), rows, Release, Relaxed).is_err() {
            // SAFETY: mapped just now, and nobody knows of it.
            unsafe { libc::munmap(rows.cast(), bytes) };
        }
        !TABLES[table].load(Relaxed).is_null()
    })
}

/// The stack that was found.
pub(super) enum Found {
    /// Its number.
    Numbered(u32),
    /// It has none. Its hash, and how many addresses were written.
    New(u64, usize),
}

/// The return addresses of a new stack, from that of the function on.
pub(super) type Addresses = [MaybeUninit<u64>; MAX_FRAMES];

/// The stack with this hash. If it is new the other function writes its addresses, where they are wanted, and returns how many.
#[inline(always)]
pub(super) fn found(hash: u64, write: impl FnOnce() -> usize) -> Found {
    // The lowest bit is set in each hash.
    let recent = &RECENT[(hash >> 1) as usize % (1 << RECENT_BITS)];
    let known = recent.load(Relaxed);
    if (known ^ hash) >> NUMBER_BITS == 0 && known != 0 {
        return Found::Numbered((known % (1 << NUMBER_BITS)) as u32);
    }
    if let Some(number) = told(hash) {
        recent.store(hash >> NUMBER_BITS << NUMBER_BITS | u64::from(number), Relaxed);
        return Found::Numbered(number);
    }
    match place(hash) {
        (number, false) => Found::Numbered(number),
        (_, true) => Found::New(hash, write()),
    }
}

/// The number of the stack with this hash, if the recorder was told of it. The last table, which is the largest, comes first.
#[inline(never)]
fn told(hash: u64) -> Option<u32> {
    for (table, rows) in TABLES.iter().enumerate().rev() {
        let rows = rows.load(Acquire);
        if rows.is_null() {
            continue;
        }
        for row in rows_of(table, hash) {
            // SAFETY: within the table, which stays.
            let places = unsafe { &(*rows.add(row)).0 };
            if let Some(place) = places.iter().position(|known| known.load(Relaxed) == hash) {
                return Some(number_of(table, row, place));
            }
        }
    }
    None
}

/// The number of the stack with this hash, and whether it is still to be told; 0 if there is no room for it.
#[cold]
#[inline(never)]
pub(super) fn place(hash: u64) -> (u32, bool) {
    for (table, rows) in TABLES.iter().enumerate() {
        let [first, second] = rows_of(table, hash);
        let rows = rows.load(Acquire);
        if rows.is_null() {
            // All its places are free.
            return if make(table) { (number_of(table, first, 0), true) } else { (0, false) };
        }
        for row in [first, second] {
            // SAFETY: within the table, which stays.
            let places = unsafe { &(*rows.add(row)).0 };
            for (place, known) in places.iter().enumerate() {
                let number = number_of(table, row, place);
                match known.load(Relaxed) {
                    0 => return (number, true),
                    other if other == hash => return (number, false),
                    other if other == hash - 1 => return (number, true),
                    _ => {}
                }
            }
        }
    }
    (0, false)
}

#[inline(always)]
fn number_of(table: usize, row: usize, place: usize) -> u32 {
    (FIRST_NUMBERS[table] + row * ROW_PLACES + place) as u32
}

/// Gives a number that is free to the stack with this hash. Returns false if another one has it.
pub(super) fn take(number: u32, hash: u64) -> bool {
    let taken = known(number).compare_exchange(0, hash - 1, AcqRel, Relaxed);
    taken.is_ok() || taken == Err(hash - 1)
}

/// Says that the recorder was told of the stack with this number.
pub(super) fn is_told(number: u32, hash: u64) {
    known(number).store(hash, Release);
}

/// The hash of a stack.
fn known(number: u32) -> &'static AtomicU64 {
    let table = (0..N_TABLES).rfind(|&table| FIRST_NUMBERS[table] <= number as usize).unwrap_or(0);
    let place = number as usize - FIRST_NUMBERS[table];
    // SAFETY: within a table that is there, and stays.
    let row = unsafe { &*TABLES[table].load(Acquire).add(place / ROW_PLACES) };
    &row.0[place % ROW_PLACES]
}
