//! Functions with a compiler's room for a hook at their beginning: lists of addresses of NOPs.
//!
//! Not here: the use of that room (`patch::entry`); XRay's sleds (`sleds`).
//!
//! Sources: GCC's manual (`-fpatchable-function-entry`, `-mrecord-mcount`), clang's `patchable_function_entry`.

use std::ops::Range;
use std::path::Path;

use object::elf;
use object::read::elf::{FileHeader, SectionHeader};

use super::file::{ENDIAN, Header, map_file};
use super::sleds::sled_functions;

/// Sections with addresses of NOPs: of `-fpatchable-function-entry` (`-Z patchable-function-entry` of rustc), and of
/// `-mrecord-mcount` with `-mnop-mcount`, which makes NOPs of the calls.
const SECTIONS: [&[u8]; 2] = [b"__patchable_function_entries", b"__mcount_loc"];

/// Returns the places of these lists in the loaded file, by its own addresses. Empty for other processors than x86-64
/// and aarch64, without sections, and for a damaged file.
pub(crate) fn patchable_lists(file: &[u8]) -> Vec<Range<u64>> {
    try_lists(file).unwrap_or_default()
}

fn try_lists(file: &[u8]) -> Result<Vec<Range<u64>>, object::Error> {
    let header = Header::parse(file)?;
    if ![elf::EM_X86_64, elf::EM_AARCH64].contains(&header.e_machine(ENDIAN)) {
        return Ok(Vec::new());
    }
    let sections = header.sections(ENDIAN, file)?;
    let is_list = |section: &&elf::SectionHeader64<_>| {
        section.sh_flags(ENDIAN).contains(elf::SHF_ALLOC)
            && sections.section_name(ENDIAN, *section).is_ok_and(|name| SECTIONS.contains(&name))
    };
    let place = |section: &elf::SectionHeader64<_>| {
        let start = section.sh_addr(ENDIAN);
        start..start.saturating_add(section.sh_size(ENDIAN))
    };
    Ok(sections.iter().filter(is_list).map(place).filter(|list| !list.is_empty()).collect())
}

/// Returns the number of functions of the program at `path` with room for a hook at their beginning; 0 if the file
/// cannot be read.
///
/// The room comes from GCC's and clang's `-fpatchable-function-entry`, rustc's `-Z patchable-function-entry`, GCC's
/// `-mfentry -mrecord-mcount -mnop-mcount`, or a sled of XRay.
#[doc(hidden)]
#[must_use]
pub fn patchable_entries(path: &Path) -> u64 {
    const WORD_BYTES: u64 = 8;
    let n_rooms =
        |file: &[u8]| patchable_lists(file).iter().map(|list| (list.end - list.start) / WORD_BYTES).sum::<u64>();
    map_file(path).map_or(0, |file| n_rooms(&file) + sled_functions(&file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::testutil::Scratch;

    const SOURCE: &str = "int leaf(int n) { return n + 1; }\nint main(void) { return leaf(-1); }";

    #[test]
    fn lists_have_a_word_for_each_function() {
        let scratch = Scratch::new("patchable");
        let fentry = ["-m64", "-pg", "-mfentry", "-mrecord-mcount", "-mnop-mcount", "-fno-pic", "-no-pie"];
        for (flags, words) in [(&["-m64", "-fpatchable-function-entry=5"][..], 2), (&fentry, 2), (&["-m64"], 0)] {
            let Some(program) = scratch.compile("room.c", SOURCE, "room", flags) else { return };
            let file = std::fs::read(&program).unwrap();
            let lists = patchable_lists(&file);
            assert_eq!((lists.is_empty(), patchable_entries(&program)), (words == 0, words), "{flags:?}");
            assert!(patchable_lists(&file[..file.len() / 2]).is_empty(), "what says where sections are is at the end");
        }
        assert!(patchable_lists(b"no ELF file").is_empty());
        assert_eq!(patchable_entries(Path::new("/nonexistent")), 0);
    }
}
