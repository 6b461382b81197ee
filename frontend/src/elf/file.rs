//! ELF files in memory: mapping one, its header and its build-id.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;
use object::LittleEndian;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, NoteIterator, ProgramHeader, SectionHeader};
use rftrace_format::opener;

/// Only the format of traced machines is read: 64 bits, little-endian.
pub(super) type Header = FileHeader64<LittleEndian>;
pub(super) const ENDIAN: LittleEndian = LittleEndian;

/// Maps the file at `path` for reading.
///
/// # Errors
/// The errors of [`opener::open`], and of mapping it.
pub(crate) fn map_file(path: &Path) -> io::Result<Arc<Mmap>> {
    let file = opener::open(path).map_err(|error| with_path(path, &error))?;
    // SAFETY: the mapping is private and only read. Nobody in this process writes to the file; another process could, but
    // whoever changes or shortens a program file in place breaks the running program itself, not only this mapping.
    unsafe { Mmap::map(&file) }.map(Arc::new).map_err(|error| with_path(path, &error))
}

/// Returns the addresses of the read-only segments in memory, each with its beginning and end, with the lowest segment
/// mapped at `start`.
///
/// # Errors
/// It is no ELF file.
#[cfg(feature = "std")]
pub(crate) fn read_only(file: &[u8], start: u64) -> Result<Vec<[usize; 2]>, object::Error> {
    let segments = Header::parse(file)?.program_headers(ENDIAN, file)?.iter();
    let loaded: Vec<_> = segments.filter(|segment| segment.p_type(ENDIAN) == elf::PT_LOAD).collect();
    let lowest = loaded.iter().map(|segment| segment.p_vaddr(ENDIAN)).min().unwrap_or(0);
    let base = start.wrapping_sub(lowest - lowest % page_size());
    let is_constant = |flags: elf::ProgramFlags| flags.contains(elf::PF_R) && !flags.contains(elf::PF_W);
    let constant = loaded.into_iter().filter(|segment| is_constant(segment.p_flags(ENDIAN)));
    let range = |segment: &elf::ProgramHeader64<LittleEndian>| {
        let start = base.wrapping_add(segment.p_vaddr(ENDIAN));
        [start as usize, start.wrapping_add(segment.p_filesz(ENDIAN)) as usize]
    };
    Ok(constant.map(range).collect())
}

/// Returns the GNU build-id of the ELF file at `path` in lower-case hexadecimal, whatever its length, if it has one.
///
/// # Errors
/// The errors of [`read_symbols`](super::table::read_symbols).
pub(crate) fn build_id(path: &Path) -> io::Result<Option<String>> {
    let file = map_file(path)?;
    let header = Header::parse(&**file).map_err(|error| invalid(path, error))?;
    find_build_id(header, &file).map_err(|error| invalid(path, error))
}

/// Looks through the notes of the segments, which survive stripping, and then of the sections.
pub(super) fn find_build_id(header: &Header, file: &[u8]) -> Result<Option<String>, object::Error> {
    for segment in header.program_headers(ENDIAN, file)? {
        // One broken note must not hide the symbols.
        if let Ok(Some(notes)) = segment.notes(ENDIAN, file)
            && let Some(id) = build_id_note(notes)
        {
            return Ok(Some(id));
        }
    }
    for section in header.sections(ENDIAN, file)?.iter() {
        if let Ok(Some(notes)) = section.notes(ENDIAN, file)
            && let Some(id) = build_id_note(notes)
        {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

fn build_id_note(mut notes: NoteIterator<'_, Header>) -> Option<String> {
    while let Ok(Some(note)) = notes.next() {
        if note.n_type(ENDIAN) == elf::NT_GNU_BUILD_ID && note.name() == elf::ELF_NOTE_GNU && !note.desc().is_empty() {
            let mut id = String::with_capacity(2 * note.desc().len());
            for byte in note.desc() {
                // Writing to a string cannot fail.
                let _ = write!(id, "{byte:02x}");
            }
            return Some(id);
        }
    }
    None
}

/// Returns the size of a page in bytes, a power of two.
pub(crate) fn page_size() -> u64 {
    // SAFETY: the call takes no pointers.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).ok().filter(|bytes| bytes.is_power_of_two()).unwrap_or(4096)
}

/// Returns `error` with `path` in front of its text.
pub(crate) fn with_path(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

pub(super) fn invalid(path: &Path, error: object::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display()))
}
