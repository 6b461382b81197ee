//! A module in memory: segments, relocations with the hooks' names, beginnings of functions.

use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;
use std::slice;

use object::LittleEndian;
use object::elf::{self, Dyn64, Rela64, Sym64};
use object::pod;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};

use super::sites::{Hook, SLOT_RELOCATIONS};

const ENDIAN: LittleEndian = LittleEndian;

/// A module under the dynamic linker's protection from unload; or the parts read from one of another process.
#[derive(Debug)]
pub(super) struct Image<'a> {
    /// Base of its addresses.
    base: usize,
    segments: Vec<Segment>,
    dynamic: Option<Range<usize>>,
    /// `.eh_frame_hdr`.
    frame_header: Option<Range<usize>>,
    /// `.eh_frame` of another process's module without a table of it, such as a program linked statically at a fixed
    /// place.
    frames: Option<Range<usize>>,
    /// Range that is read-only after relocation.
    relro: Option<Range<usize>>,
    notes: Vec<Range<usize>>,
    /// The dynamic linker's name for it; empty for the program.
    pub(super) name: &'a CStr,
}

/// A program header, from the dynamic linker or from a file.
#[derive(Clone, Copy, Debug)]
struct Header {
    kind: u32,
    flags: u32,
    address: u64,
    memory_bytes: u64,
    file_bytes: u64,
}

/// A slot for a function.
#[derive(Debug)]
pub(super) struct Slot<T> {
    pub(super) place: usize,
    /// The hook or function.
    pub(super) of: T,
    /// True if only an entry of the procedure linkage table uses it. It may be filled at the first call only.
    pub(super) is_for_calls: bool,
    /// The place of this module's own function of that name.
    pub(super) own: Option<usize>,
}

#[derive(Debug)]
struct Segment {
    range: Range<usize>,
    is_readable: bool,
    is_executable: bool,
    /// Its bytes from the multiple of [`COPY_ALIGN`] before it on, if it lies in another process.
    copy: Option<Vec<u8>>,
}

/// Alignment of copies: data read from them may be aligned as in the process.
const COPY_ALIGN: usize = 16;

impl<'a> Image<'a> {
    /// The module of `info`, or `None` if there is nothing to read, as in the kernel's own.
    ///
    /// # Safety
    ///
    /// `info` comes from `dl_iterate_phdr`, with its callback running while the result lives.
    pub(super) unsafe fn new(info: &'a libc::dl_phdr_info) -> Option<Self> {
        let base = usize::try_from(info.dlpi_addr).ok()?;
        if info.dlpi_phdr.is_null() {
            return None;
        }
        // SAFETY: by this function's contract the headers are mapped.
        let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        let name = if info.dlpi_name.is_null() {
            c""
        } else {
            // SAFETY: as above; a string.
            unsafe { CStr::from_ptr(info.dlpi_name) }
        };
        let headers = headers.iter().map(|header| Header {
            kind: header.p_type,
            flags: header.p_flags,
            address: header.p_vaddr,
            memory_bytes: header.p_memsz,
            file_bytes: header.p_filesz,
        });
        Self::of(base, headers, name)
    }

    /// A module of another process: its `file`, for opening by its `name`, and its address. `read` returns the contents
    /// of its memory.
    pub(super) fn of_process(
        file: &[u8],
        start: usize,
        name: &'a CStr,
        read: impl Fn(Range<usize>) -> Vec<u8>,
    ) -> Option<Self> {
        let headers = elf::FileHeader64::<LittleEndian>::parse(file).ok()?.program_headers(ENDIAN, file).ok()?;
        let headers: Vec<Header> = headers
            .iter()
            .map(|header| Header {
                kind: header.p_type(ENDIAN).0,
                flags: header.p_flags(ENDIAN).0,
                address: header.p_vaddr(ENDIAN),
                memory_bytes: header.p_memsz(ENDIAN),
                file_bytes: header.p_filesz(ENDIAN),
            })
            .collect();
        let linked = Self::of(0, headers.iter().copied(), name)?;
        let mut image = Self::of(start.wrapping_sub(linked.start()), headers.iter().copied(), name)?;
        let loaded = headers.iter().filter(|header| header.kind == libc::PT_LOAD);
        for (segment, header) in image.segments.iter_mut().zip(loaded) {
            let n_bytes = usize::try_from(header.file_bytes).ok()?.min(segment.range.len());
            let start = segment.range.start;
            segment.copy = Some(read(start - start % COPY_ALIGN..start + n_bytes));
        }
        if image.frame_header.is_none() {
            image.frames = section(file, b".eh_frame", image.base);
        }
        Some(image)
    }

    /// A module from its `file`, as if mapped at `start`: unchanged, and not relocated.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn of_file(file: &[u8], start: usize) -> Option<Self> {
        let headers = elf::FileHeader64::<LittleEndian>::parse(file).ok()?.program_headers(ENDIAN, file).ok()?;
        let places: Vec<(usize, usize)> = headers
            .iter()
            .filter(|header| header.p_type(ENDIAN).0 == libc::PT_LOAD)
            .map(|header| (header.p_vaddr(ENDIAN) as usize, header.p_offset(ENDIAN) as usize))
            .collect();
        let linked = Self::of_process(file, 0, c"", |_| Vec::new())?.base;
        let base = start.wrapping_add(linked);
        let read = |range: Range<usize>| {
            let own = range.start.wrapping_sub(base);
            // One that begins at another multiple of a page than it does in memory is none that is mapped.
            let place = places.iter().rfind(|&&(address, _)| address - address % COPY_ALIGN <= own);
            let offset = place.and_then(|&(address, offset)| (offset + own).checked_sub(address));
            let bytes = offset.and_then(|offset| file.get(offset..offset + range.len()));
            bytes.unwrap_or_default().to_vec()
        };
        Self::of_process(file, start, c"", read)
    }

    fn of(base: usize, headers: impl Iterator<Item = Header>, name: &'a CStr) -> Option<Self> {
        let mut image = Self {
            base,
            segments: Vec::new(),
            dynamic: None,
            frame_header: None,
            frames: None,
            relro: None,
            notes: Vec::new(),
            name,
        };
        for header in headers {
            let start = base.wrapping_add(usize::try_from(header.address).ok()?);
            let range = start..start.checked_add(usize::try_from(header.memory_bytes).ok()?)?;
            match header.kind {
                libc::PT_LOAD => image.segments.push(Segment {
                    range,
                    is_readable: header.flags & libc::PF_R != 0,
                    is_executable: header.flags & libc::PF_X != 0,
                    copy: None,
                }),
                libc::PT_DYNAMIC => image.dynamic = Some(range),
                libc::PT_GNU_EH_FRAME => image.frame_header = Some(range),
                libc::PT_GNU_RELRO => image.relro = Some(range),
                libc::PT_NOTE => image.notes.push(range),
                _ => {}
            }
        }
        (!image.segments.is_empty()).then_some(image)
    }

    /// Returns the address of the lowest segment, like [`Module::start`](crate::host::linux::modules::Module::start).
    pub(super) fn start(&self) -> usize {
        let lowest = self.segments.iter().map(|segment| segment.range.start).min().unwrap_or(self.base);
        let page = usize::try_from(crate::elf::file::page_size()).unwrap_or(4096);
        lowest - lowest % page
    }

    /// Returns the place in memory of an address in the file.
    #[cfg(target_arch = "aarch64")]
    pub(super) fn address(&self, link_address: u64) -> usize {
        self.base.wrapping_add(link_address as usize)
    }

    /// Returns the end of the highest segment.
    pub(super) fn end(&self) -> usize {
        self.segments.iter().map(|segment| segment.range.end).max().unwrap_or(self.base)
    }

    /// Returns the notes, with the build-id.
    pub(super) fn notes(&self) -> Vec<u8> {
        self.notes.iter().filter_map(|range| self.bytes(range.clone())).flatten().copied().collect()
    }

    /// Memory of one segment.
    pub(super) fn bytes(&self, range: Range<usize>) -> Option<&[u8]> {
        let inside = |segment: &&Segment| segment.range.start <= range.start && range.end <= segment.range.end;
        let segment = self.segments.iter().find(inside)?;
        if !segment.is_readable || range.end < range.start {
            return None;
        }
        if let Some(copy) = &segment.copy {
            let first = segment.range.start - segment.range.start % COPY_ALIGN;
            return copy.get(range.start - first..range.end - first);
        }
        // SAFETY: in a readable segment of a module that stays loaded. Only code and what the linker made is read, which
        // nobody writes to but this crate, which holds its lock.
        Some(unsafe { slice::from_raw_parts(range.start as *const u8, range.len()) })
    }

    /// Memory from an address on, up to the end of its segment.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn bytes_from(&self, address: usize) -> Option<&[u8]> {
        let segment = self.segments.iter().find(|segment| segment.range.contains(&address))?;
        let end = segment.copy.as_ref().map_or(segment.range.end, |copy| {
            let first = segment.range.start - segment.range.start % COPY_ALIGN;
            segment.range.end.min(first + copy.len())
        });
        self.bytes(address..end)
    }

    /// Returns the words of the range that is read-only after relocation.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn constant_words(&self) -> impl Iterator<Item = usize> {
        let range = self.relro.clone().unwrap_or_default();
        let start = range.start.next_multiple_of(size_of::<usize>());
        let words = self.bytes(start..range.end.max(start)).unwrap_or_default().as_chunks().0;
        words.iter().map(|word| usize::from_le_bytes(*word))
    }

    fn u32_at(&self, address: usize) -> Option<u32> {
        let bytes = self.bytes(address..address.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    /// Returns the places of pointers to `target` in the range that is read-only after relocation. This finds slots
    /// filled by the linker itself: no relocation names them.
    pub(super) fn constant_pointers_to(&self, target: usize) -> impl Iterator<Item = usize> {
        const WORD: usize = size_of::<usize>();
        let range = self.relro.clone().unwrap_or_default();
        let start = range.start.next_multiple_of(WORD);
        let words = self.bytes(start..range.end.max(start)).unwrap_or_default().as_chunks::<WORD>().0;
        let places = words.iter().enumerate().filter(move |&(_, word)| *word == target.to_le_bytes());
        places.map(move |(idx, _)| start + idx * WORD)
    }

    /// Returns the readable segments with code.
    pub(super) fn texts(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let code = self.segments.iter().filter(|segment| segment.is_executable);
        code.filter_map(|segment| Some((segment.range.start, self.bytes(segment.range.clone())?)))
    }

    /// The segment with code around `address`.
    pub(super) fn text(&self, address: usize) -> Option<(usize, &[u8])> {
        let segment = self.segments.iter().find(|segment| segment.is_executable && segment.range.contains(&address))?;
        Some((segment.range.start, self.bytes(segment.range.clone())?))
    }

    /// True if `address` lies in the module.
    pub(super) fn contains(&self, address: usize) -> bool {
        self.segments.iter().any(|segment| segment.range.contains(&address))
    }

    /// True if the linker has put this tag into the dynamic section.
    #[cfg(target_arch = "aarch64")]
    pub(super) fn has_dynamic(&self, tag: elf::DynamicTag) -> bool {
        let section = self.dynamic.clone().and_then(|range| array::<Dyn64<LittleEndian>>(self.bytes(range)?));
        let tags = section.into_iter().flatten().map(|entry| entry.d_tag.get(ENDIAN));
        tags.take_while(|&found| found != elf::DT_NULL).any(|found| found == tag)
    }

    /// Returns the slots of the global offset table with a hook's address by their relocations. Their present contents
    /// do not count: with lazy binding they are the dynamic linker's.
    pub(super) fn hook_slots(&self) -> Vec<(usize, Hook)> {
        self.slots(Hook::named).into_iter().map(|slot| (slot.place, slot.of)).collect()
    }

    /// The same of functions by their names.
    pub(super) fn slots<T>(&self, of: impl Fn(&[u8]) -> Option<T>) -> Vec<Slot<T>> {
        self.try_slots(of).unwrap_or_default()
    }

    fn try_slots<T>(&self, of: impl Fn(&[u8]) -> Option<T>) -> Option<Vec<Slot<T>>> {
        let entries: &[Dyn64<LittleEndian>] = array(self.bytes(self.dynamic.clone()?)?)?;
        let entries = entries.iter().take_while(|entry| entry.d_tag.get(ENDIAN) != elf::DT_NULL);
        let (mut strings, mut strings_bytes, mut symbols) = (0, 0, 0);
        let (mut calls, mut calls_bytes, mut others, mut others_bytes) = (0, 0, 0, 0);
        for entry in entries {
            let value = usize::try_from(entry.d_val.get(ENDIAN)).ok()?;
            match entry.d_tag.get(ENDIAN) {
                elf::DT_STRTAB => strings = self.pointer(value),
                elf::DT_STRSZ => strings_bytes = value,
                elf::DT_SYMTAB => symbols = self.pointer(value),
                elf::DT_JMPREL => calls = self.pointer(value),
                elf::DT_PLTRELSZ => calls_bytes = value,
                elf::DT_RELA => others = self.pointer(value),
                elf::DT_RELASZ => others_bytes = value,
                _ => {}
            }
        }
        let strings = self.bytes(strings..strings.checked_add(strings_bytes)?)?;
        let mut found = Vec::new();
        for (start, bytes) in [(calls, calls_bytes), (others, others_bytes)] {
            let table = self.bytes(start..start.checked_add(bytes)?).unwrap_or_default();
            let table: &[Rela64<LittleEndian>] = array(table).unwrap_or_default();
            for relocation in table {
                let kind = relocation.r_type(ENDIAN, false);
                if !SLOT_RELOCATIONS.contains(&kind) {
                    continue;
                }
                let place = usize::try_from(relocation.r_sym(ENDIAN, false)).ok()?;
                let symbol = symbols.checked_add(place.checked_mul(size_of::<Sym64<LittleEndian>>())?)?;
                // The name is the first field.
                let Some(name) = self.u32_at(symbol) else { continue };
                if let Some(of) = of(string_at(strings, name)) {
                    let place = self.base.wrapping_add(usize::try_from(relocation.r_offset.get(ENDIAN)).ok()?);
                    let own = self.value_of_symbol(symbol).map(|value| self.base.wrapping_add(value));
                    found.push(Slot { place, of, is_for_calls: kind == elf::R_X86_64_JUMP_SLOT, own });
                }
            }
        }
        Some(found)
    }

    /// Returns the value of a symbol defined here.
    fn value_of_symbol(&self, symbol: usize) -> Option<usize> {
        let table: &[Sym64<LittleEndian>] = array(self.bytes(symbol..symbol + size_of::<Sym64<LittleEndian>>())?)?;
        let symbol = table.first().filter(|symbol| symbol.st_shndx.get(ENDIAN) != elf::SHN_UNDEF)?;
        usize::try_from(symbol.st_value.get(ENDIAN)).ok()
    }

    /// An address in the dynamic section: glibc has relocated it, other C libraries have not.
    fn pointer(&self, value: usize) -> usize {
        if self.contains(value) { value } else { self.base.wrapping_add(value) }
    }

    /// Returns the table of `.eh_frame_hdr`: the base of its addresses, and its entries.
    fn frame_table(&self) -> Option<(usize, &[[u8; FRAME_ENTRY_BYTES]])> {
        /// Version 1; a pointer relative to its place, a count, and a table relative to the header, all of four bytes.
        const HEADER: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
        const TABLE_AT: usize = 12;

        let range = self.frame_header.clone()?;
        let origin = range.start;
        let header = self.bytes(range)?;
        if header.get(..HEADER.len())? != HEADER {
            return None;
        }
        let count = u32::from_le_bytes(header.get(8..TABLE_AT)?.try_into().ok()?) as usize;
        let table = header.get(TABLE_AT..TABLE_AT.checked_add(count.checked_mul(FRAME_ENTRY_BYTES)?)?)?;
        Some((origin, table.as_chunks().0))
    }

    /// Returns the entries of the unwind information: the beginning of code, and the place of its description.
    pub(super) fn frame_descriptions(&self) -> Vec<(usize, usize)> {
        let Some((origin, table)) = self.frame_table() else { return Vec::new() };
        table.iter().map(|entry| frame_entry(origin, entry)).collect()
    }

    /// Returns all unwind information without a table of its contents.
    pub(super) fn unlisted_frames(&self) -> Option<Range<usize>> {
        self.frames.clone()
    }

    /// Returns the place of a section, by the module's `file`.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn section(&self, file: &[u8], name: &[u8]) -> Option<Range<usize>> {
        section(file, name, self.base)
    }

    /// The beginning of the function around `address`, by the unwind information.
    pub(super) fn function_start(&self, address: usize) -> Option<usize> {
        let (origin, table) = self.frame_table()?;
        let after = table.partition_point(|entry| frame_entry(origin, entry).0 <= address);
        let (start, description) = frame_entry(origin, table.get(after.checked_sub(1)?)?);
        // Behind length and CIE pointer: the function's beginning, relative to its place, and its size.
        let start_at = description.checked_add(8)?;
        let told = start_at.wrapping_add_signed(self.u32_at(start_at)?.cast_signed() as isize);
        let size = self.u32_at(start_at + 4)? as usize;
        (told == start && address - start < size).then_some(start)
    }
}

/// Calls `look` for each module until it returns something. No module is unloaded meanwhile.
pub(super) fn with_modules<T, F: FnMut(&libc::dl_phdr_info) -> Option<T>>(look: F) -> Option<T> {
    unsafe extern "C" fn callback<T, F: FnMut(&libc::dl_phdr_info) -> Option<T>>(
        info: *mut libc::dl_phdr_info,
        _bytes: usize,
        data: *mut c_void,
    ) -> c_int {
        // SAFETY: what `with_modules` passed, and what the dynamic linker passes. Counters are there since glibc 2.4.
        let ((look, found), info) = unsafe { (&mut *data.cast::<(F, Option<T>)>(), &*info) };
        *found = look(info);
        c_int::from(found.is_some())
    }
    let mut data = (look, None);
    // SAFETY: the callback gets a pointer to `data`, and does not keep it.
    unsafe { libc::dl_iterate_phdr(Some(callback::<T, F>), (&raw mut data).cast()) };
    data.1
}

/// Returns the place of a file's section, relative to `base`.
fn section(file: &[u8], name: &[u8], base: usize) -> Option<Range<usize>> {
    let sections = elf::FileHeader64::<LittleEndian>::parse(file).ok()?.sections(ENDIAN, file).ok()?;
    let (_, section) = sections.section_by_name(ENDIAN, name)?;
    let start = base.wrapping_add(usize::try_from(section.sh_addr(ENDIAN)).ok()?);
    Some(start..start.checked_add(usize::try_from(section.sh_size(ENDIAN)).ok()?)?)
}

/// Bytes of an entry of `.eh_frame_hdr`.
const FRAME_ENTRY_BYTES: usize = 8;

/// Returns the beginning of an entry's code, and the place of its description.
fn frame_entry(origin: usize, &[a, b, c, d, e, f, g, h]: &[u8; FRAME_ENTRY_BYTES]) -> (usize, usize) {
    let address = |bytes| origin.wrapping_add_signed(i32::from_le_bytes(bytes) as isize);
    (address([a, b, c, d]), address([e, f, g, h]))
}

/// Returns a table, without a short element at its end.
fn array<T: pod::Pod>(bytes: &[u8]) -> Option<&[T]> {
    pod::slice_from_bytes(bytes, bytes.len() / size_of::<T>()).ok().map(|(table, _)| table)
}

fn string_at(strings: &[u8], start: u32) -> &[u8] {
    let rest = strings.get(start as usize..).unwrap_or_default();
    rest.split(|&byte| byte == 0).next().unwrap_or_default()
}
