//! Debug information where it is: in a file, in one that several have in common, in a package, in files of single units.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use gimli::{DwarfPackage, EndianSlice, LittleEndian, SectionId, Unit};
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection};
use rftrace_format::opener::{self, MOST_PROGRAM};

pub(crate) type Elf<'f> = ElfFile64<'f, object::LittleEndian>;
pub(crate) type Reader<'d> = EndianSlice<'d, LittleEndian>;
pub(crate) type Dwarf<'d> = gimli::Dwarf<Reader<'d>>;

/// How a file calls a section; `None` if it does not have it.
type SectionName = fn(SectionId) -> Option<&'static str>;

/// The sections of a file that tell of functions and types.
pub(crate) struct Sections<'f>(HashMap<SectionId, Cow<'f, [u8]>>);

/// The ones that are read.
const READ: [SectionId; 14] = [
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugCuIndex,
    SectionId::DebugInfo,
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugLoc,
    SectionId::DebugLocLists,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
    SectionId::DebugTuIndex,
    SectionId::DebugTypes,
];

impl<'f> Sections<'f> {
    /// The names in most files.
    pub(crate) const PLAIN: SectionName = |id| Some(id.name());
    /// Those where units were split.
    pub(crate) const SPLIT: SectionName = |id| id.dwo_name();

    pub(crate) fn parse(bytes: &'f [u8], name: SectionName) -> Result<Self, String> {
        Self::of(&Elf::parse(bytes).map_err(|error| error.to_string())?, name)
    }

    pub(crate) fn of(elf: &Elf<'f>, name: SectionName) -> Result<Self, String> {
        let mut sections = HashMap::new();
        for id in READ {
            let Some(name) = name(id) else { continue };
            if let Some(section) = elf.section_by_name(name) {
                let data =
                    section.uncompressed_data().map_err(|error| format!("cannot read the section {name}: {error}"))?;
                sections.insert(id, data);
            }
        }
        Ok(Self(sections))
    }

    fn into_owned(self) -> Sections<'static> {
        Sections(self.0.into_iter().map(|(id, data)| (id, Cow::Owned(data.into_owned()))).collect())
    }

    fn section(&self, id: SectionId) -> Result<Reader<'_>, gimli::Error> {
        Ok(EndianSlice::new(self.0.get(&id).map_or(&[][..], |data| data), LittleEndian))
    }

    fn dwarf(&self) -> Result<Dwarf<'_>, gimli::Error> {
        Dwarf::load(|id| self.section(id))
    }

    fn package(&self) -> Result<DwarfPackage<Reader<'_>>, gimli::Error> {
        DwarfPackage::load(|id| self.section(id), EndianSlice::new(&[], LittleEndian))
    }
}

/// Debug information, in several files.
pub(crate) struct Debug<'f> {
    units: Sections<'f>,
    common: Option<Sections<'f>>,
    package: Option<Sections<'f>>,
    /// Files of single units, by their places among units.
    split: OnceCell<HashMap<usize, Sections<'static>>>,
}

/// The heads of units, and what these belong to.
#[derive(Default)]
pub(crate) struct Heads<'d> {
    pub(crate) units: Vec<Unit<Reader<'d>>>,
    /// Of each unit.
    pub(crate) dwarfs: Vec<Arc<Dwarf<'d>>>,
    /// Where each begins in its section; for those that are elsewhere, where what stands for them does.
    pub(crate) starts: Vec<usize>,
    /// So many are those of the file itself; behind them are those that it has in common with others.
    pub(crate) n_own: usize,
    /// How many are elsewhere, where nothing was found.
    pub(crate) n_missing: usize,
}

impl<'f> Debug<'f> {
    pub(crate) fn new(units: Sections<'f>, common: Option<Sections<'f>>, package: Option<Sections<'f>>) -> Self {
        Self { units, common, package, split: OnceCell::new() }
    }

    pub(crate) fn is_there(&self) -> bool {
        self.units.0.contains_key(&SectionId::DebugInfo)
    }

    /// Reads the heads of all units.
    pub(crate) fn heads(&self) -> Result<Heads<'_>, gimli::Error> {
        let mut dwarf = self.units.dwarf()?;
        if let Some(common) = &self.common {
            dwarf.set_sup(common.dwarf()?);
        }
        let dwarf = Arc::new(dwarf);
        let mut heads = Heads::default();
        heads.add(&dwarf)?;
        heads.n_own = heads.units.len();
        let package = self.package.as_ref().map(Sections::package).transpose()?;
        let mut elsewhere = Vec::new();
        for place in 0..heads.n_own {
            let Some(id) = heads.units[place].dwo_id else { continue };
            match package.as_ref().map(|package| package.find_cu(id, &dwarf)).transpose()?.flatten() {
                Some(own) => _ = heads.replace(place, own)?,
                None => elsewhere.push(place),
            }
        }
        let files = self.split.get_or_init(|| {
            let read = |&place: &usize| Some((place, heads.split_file(place)?));
            elsewhere.iter().filter_map(read).collect()
        });
        for place in elsewhere {
            let is_found = match files.get(&place) {
                Some(file) => {
                    let mut own = file.dwarf()?;
                    own.make_dwo(&dwarf);
                    heads.replace(place, own)?
                }
                None => false,
            };
            heads.n_missing += usize::from(!is_found);
        }
        if let Some(common) = dwarf.sup.clone() {
            heads.add(&common)?;
        }
        Ok(heads)
    }
}

impl<'d> Heads<'d> {
    fn add(&mut self, dwarf: &Arc<Dwarf<'d>>) -> Result<(), gimli::Error> {
        let mut headers = dwarf.units();
        while let Some(header) = headers.next()? {
            self.starts.push(header.debug_info_offset().map_or(usize::MAX, |start| start.0));
            self.units.push(dwarf.unit(header)?);
            self.dwarfs.push(Arc::clone(dwarf));
        }
        Ok(())
    }

    /// Puts a unit that is elsewhere in the place of what stands for it. Returns whether it is that one.
    fn replace(&mut self, place: usize, dwarf: Dwarf<'d>) -> Result<bool, gimli::Error> {
        let mut headers = dwarf.units();
        while let Some(header) = headers.next()? {
            let mut unit = dwarf.unit(header)?;
            if unit.dwo_id == self.units[place].dwo_id {
                unit.copy_relocated_attributes(&self.units[place]);
                self.units[place] = unit;
                self.dwarfs[place] = Arc::new(dwarf);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The file that a unit is in.
    fn split_file(&self, place: usize) -> Option<Sections<'static>> {
        let unit = &self.units[place];
        let name = self.dwarfs[place].attr_string(unit, unit.dwo_name().ok()??).ok()?;
        let folder = unit.comp_dir.map(|folder| folder.slice()).unwrap_or_default();
        let path = PathBuf::from(OsStr::from_bytes(folder)).join(OsStr::from_bytes(name.slice()));
        let bytes = opener::read(&path, MOST_PROGRAM).ok()?;
        Sections::parse(&bytes, Sections::SPLIT).ok().map(Sections::into_owned)
    }
}
