//! XRay's table of sleds: compilers' room for hooks at the beginning of functions and at each end.
//!
//! Not here: the use of that room (`patch::entry`).
//!
//! Source: LLVM's `compiler-rt/lib/xray/xray_interface_internal.h` and the output of clang 14 and rustc 1.93 to 1.98.

use std::ops::Range;

use object::elf;
use object::read::elf::{FileHeader, SectionHeader};

use super::file::{ENDIAN, Header};

/// The section with an element for each sled: its address, that of its function, its kind and a version.
const SECTION: &[u8] = b"xray_instr_map";
/// Bytes of an element.
pub(crate) const ELEMENT_BYTES: usize = 32;
const FUNCTION_AT: usize = 8;
const KIND_AT: usize = 16;
const VERSION_AT: usize = 18;
/// From this version on both addresses are relative to their own places.
const FIRST_RELATIVE: u8 = 2;

/// A place prepared by a compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Sled {
    pub(crate) function: u64,
    pub(crate) address: u64,
    pub(crate) kind: SledKind,
}

/// Event at a sled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SledKind {
    /// The function begins.
    Entry,
    /// It returns.
    Exit,
    /// It ends by a jump to another one.
    TailCall,
}

impl Sled {
    /// Reads the element at `place`. `None` for other kinds than the beginning or end of a function.
    pub(crate) fn read(element: &[u8; ELEMENT_BYTES], place: u64) -> Option<Self> {
        let kind = match element[KIND_AT] {
            // The second one asks for arguments too.
            0 | 3 => SledKind::Entry,
            1 => SledKind::Exit,
            2 => SledKind::TailCall,
            _ => return None,
        };
        let address = |at: usize| {
            let word = element[at..].first_chunk().map(|&word| u64::from_le_bytes(word))?;
            let base = if element[VERSION_AT] < FIRST_RELATIVE { 0 } else { place.wrapping_add(at as u64) };
            Some(base.wrapping_add(word))
        };
        Some(Self { address: address(0)?, function: address(FUNCTION_AT)?, kind })
    }
}

/// The place of a table in memory, and in the file: as many bytes.
#[derive(Debug)]
pub(crate) struct SledTable {
    #[allow(dead_code, reason = "only where code is patched")]
    pub(crate) addresses: Range<u64>,
    stored: Range<u64>,
}

/// Returns the tables of a file. Empty for other processors than x86-64, without sections, and for a damaged file.
pub(crate) fn sled_tables(file: &[u8]) -> Vec<SledTable> {
    try_tables(file).unwrap_or_default()
}

fn try_tables(file: &[u8]) -> Result<Vec<SledTable>, object::Error> {
    let header = Header::parse(file)?;
    if header.e_machine(ENDIAN) != elf::EM_X86_64 {
        return Ok(Vec::new());
    }
    let sections = header.sections(ENDIAN, file)?;
    let is_table = |section: &&elf::SectionHeader64<_>| {
        section.sh_flags(ENDIAN).contains(elf::SHF_ALLOC)
            && sections.section_name(ENDIAN, *section).is_ok_and(|name| name == SECTION)
    };
    let place = |section: &elf::SectionHeader64<_>| {
        let bytes = section.sh_size(ENDIAN);
        let range = |start: u64| start..start.saturating_add(bytes);
        SledTable { addresses: range(section.sh_addr(ENDIAN)), stored: range(section.sh_offset(ENDIAN)) }
    };
    Ok(sections.iter().filter(is_table).map(place).filter(|table| !table.stored.is_empty()).collect())
}

/// The number of functions of a file with a sled at their beginning.
pub(crate) fn sled_functions(file: &[u8]) -> u64 {
    let range = |range: Range<u64>| Some(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?);
    let tables = sled_tables(file).into_iter().filter_map(|table| file.get(range(table.stored)?));
    let sleds = tables.flat_map(|table| table.as_chunks().0).filter_map(|element| Sled::read(element, 0));
    sleds.filter(|sled| sled.kind == SledKind::Entry).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(words: [u64; 2], kind: u8, version: u8) -> [u8; ELEMENT_BYTES] {
        let mut element = [0; ELEMENT_BYTES];
        element[..8].copy_from_slice(&words[0].to_le_bytes());
        element[8..16].copy_from_slice(&words[1].to_le_bytes());
        [element[KIND_AT], element[VERSION_AT]] = [kind, version];
        element
    }

    #[test]
    fn addresses_are_relative_or_not() {
        let kinds = [SledKind::Entry, SledKind::Exit, SledKind::TailCall, SledKind::Entry];
        for (number, kind) in (0..).zip(kinds) {
            let sled = Sled { address: 0x1150, function: 0x1140, kind };
            assert_eq!(Sled::read(&element([0x1150, 0x1140], number, 1), 0x2000), Some(sled));
            let relative = [0x1150u64.wrapping_sub(0x2000), 0x1140u64.wrapping_sub(0x2008)];
            assert_eq!(Sled::read(&element(relative, number, 2), 0x2000), Some(sled));
        }
        assert_eq!(Sled::read(&element([1, 1], 4, 2), 0), None, "an event of the program's own");
    }

    #[test]
    fn no_file_has_no_tables() {
        assert!(sled_tables(b"no ELF file").is_empty());
        assert_eq!(sled_functions(b"no ELF file"), 0);
    }
}
