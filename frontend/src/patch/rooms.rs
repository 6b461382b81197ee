//! Compilers' room for a branch at the beginning of functions, on aarch64: NOPs. The first one in a function is used.

use std::collections::BTreeSet;
use std::path::Path;

use super::code::{Form, NOP};
use super::module::Image;
use super::sites::Call;
use crate::elf::file::map_file;
use crate::elf::patchable::patchable_lists;
use crate::host::linux::modules::own_exe;

const WORD: usize = size_of::<u32>();
/// `bti c` in front of the room.
const LANDING_PAD: u32 = 0xd503_245f;
/// The maximum number of words before a function: compilers take no larger number.
const MOST_BEFORE: usize = 255;

/// Returns the entries of a module with calls of the hook at these ascending addresses. A function with a call is
/// recorded by that. `start_of` returns the beginning of the function around an address.
pub(super) fn find(
    image: &Image<'_>,
    calls: impl Iterator<Item = usize>,
    mut start_of: impl FnMut(usize) -> Option<usize>,
) -> Vec<Call> {
    let name = image.name.to_string_lossy();
    let path = if image.name.is_empty() { own_exe() } else { Path::new(&*name) };
    let Ok(file) = map_file(path) else { return Vec::new() };
    let calling: BTreeSet<usize> = calls.filter_map(&mut start_of).collect();
    let mut found = BTreeSet::new();
    for list in patchable_lists(&file) {
        let [start, end] = [list.start, list.end].map(|address| image.address(address));
        // The dynamic linker has made addresses of them.
        let words = image.bytes(start..end.max(start)).unwrap_or_default().as_chunks().0;
        found.extend(words.iter().filter_map(|&word| entry(image, usize::from_le_bytes(word))));
    }
    // All that is in a function is behind its first NOP, by whichever account.
    found.retain(|&entry| calling.is_empty() || start_of(entry + WORD).is_none_or(|start| !calling.contains(&start)));
    let call = |address| Call { address, form: Form::Entry, original: NOP.to_le_bytes() };
    found.into_iter().map(call).collect()
}

/// Returns a NOP of the function with its room at an address; a part of the room may lie before the function. `None`
/// for other contents.
///
/// By the unwind information a function begins with its room (LLVM), or behind it (GCC). Without any, the last NOP is
/// in the function, if any is.
fn entry(image: &Image<'_>, room: usize) -> Option<usize> {
    let is_nop = |address: usize| instruction(image, address) == Some(NOP);
    let is_pad = |address: usize| instruction(image, address) == Some(LANDING_PAD);
    if !is_nop(room) || image.function_start(room).is_some() {
        return Some(room).filter(|&room| is_nop(room));
    }
    let is_start = |address: usize| image.function_start(address) == Some(address);
    let behind = (1..=MOST_BEFORE).map(|n| room + n * WORD);
    let behind = behind.take_while(|place| is_nop(place - WORD) || is_pad(place - WORD));
    // Where the function begins, or what is behind its last NOP.
    let end = behind.clone().find(|&place| is_start(place)).or_else(|| behind.last())?;
    let first = if is_pad(end) { end + WORD } else { end };
    [first, end - WORD].into_iter().find(|&place| is_nop(place))
}

fn instruction(image: &Image<'_>, address: usize) -> Option<u32> {
    let (text, code) = image.text(address).filter(|_| address.is_multiple_of(WORD))?;
    let bytes = code.get(address - text..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}
