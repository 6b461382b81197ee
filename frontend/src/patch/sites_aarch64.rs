//! Finding the calls of the hook in the modules' code, on aarch64: `bl` to it, or to an entry of the procedure linkage table that
//! jumps there. Filters choose among them; no code is changed.
//!
//! Instructions are four bytes and begin at multiples of four, so each word is one. Data between functions may look like a call;
//! it is one of no function that ever runs.

use object::elf::{R_AARCH64_GLOB_DAT, R_AARCH64_JUMP_SLOT, RelocationType};

use super::module::{Image, with_modules};

/// A call of the hook, as those see it who choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    /// Where the call is.
    pub(crate) address: usize,
    /// Behind the call: what records and filters name a function by.
    pub(crate) child_ip: usize,
    /// Where its module was mapped, as [`Module::start`](crate::host::linux::modules::Module::start).
    pub(crate) module: usize,
}

/// What a site calls: `_mcount`, or `mcount`, which is the same function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hook;

impl Hook {
    /// The hook with this name.
    pub(super) fn named(name: &[u8]) -> Option<Self> {
        matches!(name, b"mcount" | b"_mcount").then_some(Self)
    }
}

/// The relocations that fill a slot of the global offset table with a function's address.
pub(super) const SLOT_RELOCATIONS: [RelocationType; 2] = [R_AARCH64_JUMP_SLOT, R_AARCH64_GLOB_DAT];

const WORD: usize = size_of::<u32>();
const PAGE: usize = 1 << 12;

unsafe extern "C" {
    fn _mcount();
}

/// All sites that are there now, by address within a module.
pub(crate) fn sites() -> Vec<Site> {
    let mut sites = Vec::new();
    with_modules(|info| {
        // SAFETY: the callback of `dl_iterate_phdr` has not returned.
        if let Some(image) = unsafe { Image::new(info) } {
            sites.extend(sites_of(&image));
        }
        None::<()>
    });
    sites
}

fn sites_of(image: &Image<'_>) -> Vec<Site> {
    let hook = _mcount as *const () as usize;
    let mut slots: Vec<usize> = image.hook_slots().into_iter().map(|(slot, _)| slot).collect();
    slots.extend(image.constant_pointers_to(hook));
    let mut targets: Vec<usize> = image.contains(hook).then_some(hook).into_iter().collect();
    for (start, code) in image.texts() {
        targets.extend(linkage(start, words(code), &slots));
    }
    if targets.is_empty() {
        return Vec::new();
    }
    let calls = image.texts().flat_map(|(start, code)| calls(start, words(code), &targets).collect::<Vec<_>>());
    calls.map(|address| Site { address, child_ip: address + WORD, module: image.start() }).collect()
}

fn words(code: &[u8]) -> &[[u8; WORD]] {
    code.as_chunks().0
}

/// Where calls of one of the targets are in code.
fn calls(start: usize, code: &[[u8; WORD]], targets: &[usize]) -> impl Iterator<Item = usize> {
    code.iter().enumerate().filter_map(move |(number, word)| {
        let word = u32::from_le_bytes(*word);
        let address = start + number * WORD;
        let target = address.wrapping_add_signed(((word as i32) << 6 >> 4) as isize);
        (word >> 26 == 0x25 && targets.contains(&target)).then_some(address) // bl
    })
}

/// The entries of the procedure linkage table that jump through one of the slots: `adrp x16`, `ldr x17, [x16, #n]`, `add`,
/// `br x17`, and maybe `bti c` before.
fn linkage(start: usize, code: &[[u8; WORD]], slots: &[usize]) -> Vec<usize> {
    const BTI_C: u32 = 0xd503_245f;
    let mut found = Vec::new();
    for (number, pair) in code.windows(2).enumerate() {
        let [page, load] = [pair[0], pair[1]].map(u32::from_le_bytes);
        if page & 0x9f00_001f != 0x9000_0010 || load & 0xffc0_03ff != 0xf940_0211 {
            continue;
        }
        let address = start + number * WORD;
        let pages = ((page >> 5 & 0x7_ffff) << 2 | page >> 29 & 3) as i32;
        let pages = (pages << 11 >> 11) as isize;
        let slot = (address & !(PAGE - 1)).wrapping_add_signed(pages * PAGE as isize);
        if slots.contains(&slot.wrapping_add((load >> 10 & 0xfff) as usize * size_of::<u64>())) {
            found.push(address);
            let before = number.checked_sub(1).and_then(|number| code.get(number));
            if before.is_some_and(|word| u32::from_le_bytes(*word) == BTI_C) {
                found.push(address - WORD);
            }
        }
    }
    found
}
