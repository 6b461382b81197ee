//! An ELF file: its code, symbols, build-id, and sections.
//!
//! Not here: units of debug information (`units`).

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use object::read::elf::ProgramHeader;
use object::{Object, ObjectSegment, ObjectSymbol, SymbolKind};
use rftrace_format::opener::{self, MOST_PROGRAM};

use super::files::DebugFiles;
use super::sections::{Debug, Elf, Sections};

/// The size of the pages that segments begin at.
const PAGE: u64 = 4096;

/// A file, and those with its debug information.
pub(crate) struct File<'f> {
    elf: Elf<'f>,
    debug: Debug<'f>,
    /// Functions' names as the linker has them, by address: the shortest that says most of how it was made.
    symbols: BTreeMap<u64, &'f str>,
}

impl<'f> File<'f> {
    pub(crate) fn parse(bytes: &'f Bytes) -> Result<Self, String> {
        let elf = Elf::parse(&*bytes.file).map_err(|error| error.to_string())?;
        let mut symbols = BTreeMap::new();
        let units = bytes.units.as_deref().map(Elf::parse).transpose().map_err(|error| error.to_string())?;
        // A stripped file has them in the other one.
        let other = units.as_ref().filter(|_| elf.symbols().next().is_none());
        let all = elf.symbols().chain(other.into_iter().flat_map(|other| other.symbols()));
        for symbol in all.filter(|symbol| symbol.kind() == SymbolKind::Text) {
            let Ok(name) = symbol.name() else { continue };
            let known = symbols.entry(symbol.address()).or_insert(name);
            // Of aliases those of a clone.
            if name.contains('.') {
                *known = name;
            }
        }
        let parts =
            |bytes: &'f Option<Vec<u8>>, names| bytes.as_deref().map(|it| Sections::parse(it, names)).transpose();
        let debug = Debug::new(
            Sections::of(units.as_ref().unwrap_or(&elf), Sections::PLAIN)?,
            parts(&bytes.common, Sections::PLAIN)?,
            parts(&bytes.package, Sections::SPLIT)?,
        );
        Ok(Self { elf, debug, symbols })
    }

    /// Its debug information; `None` if there is none.
    pub(crate) fn debug(&self) -> Option<&Debug<'f>> {
        self.debug.is_there().then_some(&self.debug)
    }

    /// The processors that it is for.
    pub(crate) fn architecture(&self) -> object::Architecture {
        self.elf.architecture()
    }

    /// The beginning of the lowest segment.
    pub(crate) fn start(&self) -> u64 {
        let starts = self
            .elf
            .elf_program_headers()
            .iter()
            .filter(|header| header.p_type(object::LittleEndian) == object::elf::PT_LOAD);
        starts.map(|header| header.p_vaddr(object::LittleEndian)).min().unwrap_or(0) & !(PAGE - 1)
    }

    pub(crate) fn build_id(&self) -> Option<String> {
        let id = self.elf.build_id().ok()??;
        Some(id.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The code from `address` on, `n_bytes` at the most.
    pub(crate) fn code(&self, address: u64, n_bytes: u64) -> &[u8] {
        let segment = self
            .elf
            .segments()
            .find(|segment| (segment.address()..segment.address().saturating_add(segment.size())).contains(&address));
        let data = segment.and_then(|segment| segment.data().ok().map(|data| (segment.address(), data)));
        let Some((start, data)) = data else { return &[] };
        let rest = usize::try_from(address - start).ok().and_then(|place| data.get(place..)).unwrap_or_default();
        &rest[..rest.len().min(n_bytes as usize)]
    }

    /// The last function that begins at an address or before: where, and the linker's name of it.
    pub(crate) fn symbol(&self, address: u64) -> Option<(u64, &str)> {
        self.symbols.range(..=address).next_back().map(|(&start, &name)| (start, name))
    }
}

/// The contents of the files.
pub(crate) struct Bytes {
    file: Vec<u8>,
    units: Option<Vec<u8>>,
    common: Option<Vec<u8>>,
    package: Option<Vec<u8>>,
}

impl Bytes {
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        let file = opener::read(path, MOST_PROGRAM)?;
        let DebugFiles { units, common, package } = DebugFiles::of(path);
        // A file that went meanwhile counts as missing.
        let read = |path: PathBuf| opener::read(&path, MOST_PROGRAM).ok();
        let units = Some(units).filter(|units| units != path).and_then(read);
        Ok(Self { file, units, common: common.and_then(read), package: package.and_then(read) })
    }
}
