//! The code of an ELF file: its bytes, the ends of calls, and the data in it.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;
use object::LittleEndian;
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};

use super::file::{ENDIAN, Header, invalid};

type Section = elf::SectionHeader64<LittleEndian>;

/// The code of an ELF file.
#[derive(Clone, Debug)]
pub(crate) struct Code {
    file: Arc<Mmap>,
    /// Addresses of each executable segment, and its offset in the file.
    segments: Vec<(Range<u64>, u64)>,
}

impl Code {
    /// Finds the code of a file mapped by [`map_file`](super::file::map_file), if it is for x86-64: calls are known
    /// there alone.
    ///
    /// # Errors
    /// The errors of [`map_file`](super::file::map_file).
    pub(crate) fn with_calls(file: Arc<Mmap>, path: &Path) -> io::Result<Option<Self>> {
        let header = Header::parse(&**file).map_err(|error| invalid(path, error))?;
        let has_calls = header.e_machine(ENDIAN) == elf::EM_X86_64;
        if has_calls { Self::of(file, path).map(Some) } else { Ok(None) }
    }

    /// The same for any processor.
    ///
    /// # Errors
    /// The errors of [`map_file`](super::file::map_file).
    pub(crate) fn of(file: Arc<Mmap>, path: &Path) -> io::Result<Self> {
        let header = Header::parse(&**file).map_err(|error| invalid(path, error))?;
        let headers = header.program_headers(ENDIAN, &**file).map_err(|error| invalid(path, error))?;
        let is_code = |segment: &&elf::ProgramHeader64<LittleEndian>| {
            segment.p_type(ENDIAN) == elf::PT_LOAD && segment.p_flags(ENDIAN).contains(elf::PF_X)
        };
        let place = |segment: &elf::ProgramHeader64<LittleEndian>| {
            let start = segment.p_vaddr(ENDIAN);
            (start..start.saturating_add(segment.p_filesz(ENDIAN)), segment.p_offset(ENDIAN))
        };
        let segments: Vec<_> = headers.iter().filter(is_code).map(place).collect();
        Ok(Self { file, segments })
    }

    /// Returns so many bytes from `address` on, an address of the file.
    #[allow(dead_code, reason = "only where code is patched")]
    pub(crate) fn bytes(&self, address: u64, bytes: usize) -> Option<&[u8]> {
        let (range, offset) = self.segments.iter().find(|(range, _)| range.contains(&address))?;
        let place = usize::try_from(address.checked_sub(range.start)?.checked_add(*offset)?).ok()?;
        self.file.get(place..place.checked_add(bytes)?)
    }

    /// Returns the data among the code, by the sections, ascending: nothing without sections, and nothing shared with
    /// code.
    #[allow(dead_code, reason = "only where all words are looked at")]
    pub(crate) fn data(&self) -> Vec<Range<u64>> {
        let header = Header::parse(&**self.file);
        let Ok(sections) = header.and_then(|header| header.section_headers(ENDIAN, &**self.file)) else {
            return Vec::new();
        };
        let is_loaded = |section: &&Section| {
            section.sh_flags(ENDIAN).contains(elf::SHF_ALLOC) && section.sh_type(ENDIAN) != elf::SHT_NOBITS
        };
        let is_code = |section: &&Section| section.sh_flags(ENDIAN).contains(elf::SHF_EXECINSTR);
        let place = |section: &Section| {
            let start = section.sh_addr(ENDIAN);
            start..start.saturating_add(section.sh_size(ENDIAN))
        };
        let (code, data): (Vec<&Section>, Vec<&Section>) = sections.iter().filter(is_loaded).partition(is_code);
        let code: Vec<Range<u64>> = code.into_iter().map(place).collect();
        let is_among_code =
            |range: &Range<u64>| self.segments.iter().any(|(segment, _)| segment.contains(&range.start));
        let is_no_code = |range: &Range<u64>| !code.iter().any(|one| one.start < range.end && range.start < one.end);
        let data = data.into_iter().map(place).filter(|range| is_among_code(range) && is_no_code(range));
        let mut data: Vec<Range<u64>> = data.collect();
        data.sort_unstable_by_key(|range| range.start);
        data
    }

    /// Returns whether a call ends at `address`, an address of the file; `None` without code there, as in a file with
    /// debug information only.
    pub(crate) fn has_call_before(&self, address: u64) -> Option<bool> {
        const LONGEST_CALL: u64 = 6;
        let start = address.checked_sub(LONGEST_CALL)?;
        let (range, offset) = self.segments.iter().find(|(range, _)| range.contains(&start))?;
        let place = usize::try_from(start.checked_sub(range.start)?.checked_add(*offset)?).ok()?;
        let bytes = self.file.get(place..)?.first_chunk::<{ LONGEST_CALL as usize }>()?;
        Some(match bytes {
            [_, 0xe8, _, _, _, _] | [0xff, 0x15, _, _, _, _] => true,
            [_, _, _, _, 0xff, register] => register & 0xf8 == 0xd0,
            _ => false,
        })
    }
}
