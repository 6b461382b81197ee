//! Pages that are mapped when they are touched, so that tasks can cause page faults.

use core::arch::asm;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

const PAGE_BYTES: usize = 4096;
const PRESENT_AND_WRITABLE: u64 = 0b11;
/// The region: what the second entry of the uppermost table covers, of which the first pages are used.
const REGION: usize = 512 << 30;
const N_PAGES: usize = 8;

#[repr(C, align(4096))]
struct Table([AtomicU64; 512]);

#[repr(C, align(4096))]
struct Page([AtomicU64; PAGE_BYTES / 8]);

static LEVEL_3: Table = Table([const { AtomicU64::new(0) }; 512]);
static LEVEL_2: Table = Table([const { AtomicU64::new(0) }; 512]);
static LEVEL_1: Table = Table([const { AtomicU64::new(0) }; 512]);
/// Frames that the pages are mapped to.
static FRAMES: [Page; N_PAGES] = [const { Page([const { AtomicU64::new(0) }; PAGE_BYTES / 8]) }; N_PAGES];

unsafe extern "C" {
    /// The uppermost table, made by boot.s.
    safe static boot_pml4: Table;
}

/// Puts the region's tables in place. Its pages are not mapped yet.
pub fn init() {
    boot_pml4.0[1].store(&raw const LEVEL_3 as u64 | PRESENT_AND_WRITABLE, Relaxed);
    LEVEL_3.0[0].store(&raw const LEVEL_2 as u64 | PRESENT_AND_WRITABLE, Relaxed);
    LEVEL_2.0[0].store(&raw const LEVEL_1 as u64 | PRESENT_AND_WRITABLE, Relaxed);
}

/// The first word of page `number` of the region. Touching it causes a page fault if the page is not mapped.
#[inline(always)]
pub fn word(number: usize) -> *mut u64 {
    assert!(number < N_PAGES);
    (REGION + number * PAGE_BYTES) as *mut u64
}

/// Maps the page of the region that has this address. Returns false if the region has no such page.
#[inline(never)]
pub fn map(address: usize) -> bool {
    let number = address.wrapping_sub(REGION) / PAGE_BYTES;
    let Some(frame) = FRAMES.get(number) else {
        return false;
    };
    LEVEL_1.0[number].store(&raw const *frame as u64 | PRESENT_AND_WRITABLE, Relaxed);
    true
}

/// Unmaps page `number` on this core. No other may use it.
#[inline(never)]
pub fn unmap(number: usize) {
    LEVEL_1.0[number].store(0, Relaxed);
    // SAFETY: the page is used by its task only, through `word`, and comes back when it is touched.
    unsafe { asm!("invlpg [{page}]", page = in(reg) word(number), options(nostack, preserves_flags)) }
}
