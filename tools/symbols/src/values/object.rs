//! What is needed of an ELF file: its debug information, code, symbols and build-id.

use std::borrow::Cow;
use std::collections::HashMap;

use gimli::{EndianSlice, LittleEndian};
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind};

pub(super) type Reader<'d> = EndianSlice<'d, LittleEndian>;
pub(super) type Dwarf<'d> = gimli::Dwarf<Reader<'d>>;

/// The size of the pages that segments begin at.
const PAGE: u64 = 4096;

/// A file.
pub(super) struct File<'f> {
    elf: ElfFile64<'f, object::LittleEndian>,
    /// Sections of debug information, by name.
    sections: HashMap<&'static str, Cow<'f, [u8]>>,
    /// Functions' names as the linker has them, by address: the shortest that says most of how it was made.
    symbols: HashMap<u64, &'f str>,
}

impl<'f> File<'f> {
    pub(super) fn parse(bytes: &'f [u8]) -> Result<Self, String> {
        let elf = ElfFile64::<object::LittleEndian>::parse(bytes).map_err(|error| error.to_string())?;
        if elf.architecture() != object::Architecture::X86_64 {
            return Err("it is not for x86-64".to_owned());
        }
        let mut sections = HashMap::new();
        for name in SECTIONS {
            if let Some(section) = elf.section_by_name(name) {
                let data = section.uncompressed_data().map_err(|error| format!("section {name}: {error}"))?;
                sections.insert(name, data);
            }
        }
        let mut symbols = HashMap::new();
        for symbol in elf.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text) {
            let Ok(name) = symbol.name() else { continue };
            let known = symbols.entry(symbol.address()).or_insert(name);
            // Of aliases those of a clone.
            if name.contains('.') {
                *known = name;
            }
        }
        Ok(Self { elf, sections, symbols })
    }

    /// Its debug information; `None` if there is none.
    pub(super) fn dwarf(&self) -> Result<Option<Dwarf<'_>>, String> {
        if !self.sections.contains_key(".debug_info") {
            return Ok(None);
        }
        let section = |id: gimli::SectionId| -> Result<Reader<'_>, gimli::Error> {
            Ok(EndianSlice::new(self.sections.get(id.name()).map_or(&[][..], |data| data), LittleEndian))
        };
        Dwarf::load(section).map(Some).map_err(|error| error.to_string())
    }

    /// The beginning of the lowest segment.
    pub(super) fn start(&self) -> u64 {
        let starts = self
            .elf
            .elf_program_headers()
            .iter()
            .filter(|header| header.p_type(object::LittleEndian) == object::elf::PT_LOAD);
        starts.map(|header| header.p_vaddr(object::LittleEndian)).min().unwrap_or(0) & !(PAGE - 1)
    }

    pub(super) fn build_id(&self) -> Option<String> {
        let id = self.elf.build_id().ok()??;
        Some(id.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The code from `address` on, `n_bytes` at the most.
    pub(super) fn code(&self, address: u64, n_bytes: u64) -> &[u8] {
        let segment = self
            .elf
            .segments()
            .find(|segment| (segment.address()..segment.address().saturating_add(segment.size())).contains(&address));
        let data = segment.and_then(|segment| segment.data().ok().map(|data| (segment.address(), data)));
        let Some((start, data)) = data else { return &[] };
        let rest = usize::try_from(address - start).ok().and_then(|place| data.get(place..)).unwrap_or_default();
        &rest[..rest.len().min(n_bytes as usize)]
    }

    /// The linker's name of the function at an address.
    pub(super) fn symbol(&self, address: u64) -> Option<&str> {
        self.symbols.get(&address).copied()
    }
}

/// The sections that tell of functions and types.
const SECTIONS: [&str; 12] = [
    ".debug_abbrev",
    ".debug_addr",
    ".debug_info",
    ".debug_line",
    ".debug_line_str",
    ".debug_loc",
    ".debug_loclists",
    ".debug_ranges",
    ".debug_rnglists",
    ".debug_str",
    ".debug_str_offsets",
    ".debug_types",
];
