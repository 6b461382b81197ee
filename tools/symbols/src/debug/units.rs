//! The entries of debug information, and how they refer to each other.

use std::ops::Range;

use gimli::{AttributeValue, DebugInfoOffset, DebuggingInformationEntry, DwAt, DwTag, Unit, UnitOffset, constants};

use super::sections::{Debug, Dwarf, Heads, Reader};

/// An entry of the debug information, and the unit that has it.
#[derive(Clone, Debug)]
pub(crate) struct Entry<'d> {
    pub(crate) unit: usize,
    pub(crate) entry: DebuggingInformationEntry<Reader<'d>>,
}

/// All units of a file.
pub(crate) struct Units<'d>(Heads<'d>);

impl<'d> Entry<'d> {
    pub(crate) fn tag(&self) -> DwTag {
        self.entry.tag()
    }

    pub(crate) fn attribute(&self, name: DwAt) -> Option<AttributeValue<Reader<'d>>> {
        self.entry.attr_value(name)
    }

    /// Which entry it is, in the whole file.
    pub(crate) fn id(&self) -> (usize, UnitOffset) {
        (self.unit, self.entry.offset())
    }
}

impl<'d> Units<'d> {
    pub(crate) fn read(debug: &'d Debug<'_>) -> Result<Self, gimli::Error> {
        debug.heads().map(Self)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.units.len()
    }

    /// How many units are in files that are not there.
    pub(crate) fn n_missing(&self) -> usize {
        self.0.n_missing
    }

    pub(crate) fn unit(&self, unit: usize) -> &Unit<Reader<'d>> {
        &self.0.units[unit]
    }

    /// The DWARF sections of a unit.
    pub(crate) fn dwarf(&self, unit: usize) -> &Dwarf<'d> {
        &self.0.dwarfs[unit]
    }

    pub(crate) fn entry(&self, unit: usize, offset: UnitOffset) -> Option<Entry<'d>> {
        Some(Entry { unit, entry: self.0.units.get(unit)?.entry(offset).ok()? })
    }

    /// True if a unit is of C, and not of C++ or Rust.
    pub(crate) fn is_c(&self, unit: usize) -> bool {
        let mut cursor = self.unit(unit).entries();
        let root = cursor.next_dfs().ok().flatten();
        let language = root.and_then(|root| root.attr_value(constants::DW_AT_language));
        matches!(
            language,
            Some(AttributeValue::Language(
                constants::DW_LANG_C89
                    | constants::DW_LANG_C
                    | constants::DW_LANG_C99
                    | constants::DW_LANG_C11
                    | constants::DW_LANG_C17
            ))
        )
    }

    /// The entry that an attribute refers to.
    pub(crate) fn follow(&self, entry: &Entry<'d>, name: DwAt) -> Option<Entry<'d>> {
        match entry.attribute(name)? {
            AttributeValue::UnitRef(offset) => self.entry(entry.unit, offset),
            AttributeValue::DebugInfoRef(offset) => {
                let common = self.0.n_own..self.len();
                self.at(offset, if common.contains(&entry.unit) { common } else { 0..self.0.n_own })
            }
            AttributeValue::DebugInfoRefSup(offset) => self.at(offset, self.0.n_own..self.len()),
            _ => None,
        }
    }

    /// The entry at an offset of the whole section, of the file that has these units.
    fn at(&self, offset: DebugInfoOffset, units: Range<usize>) -> Option<Entry<'d>> {
        let before = self.0.starts[units.clone()].partition_point(|&start| start <= offset.0).checked_sub(1)?;
        let unit = units.start + before;
        let within = offset.to_unit_offset(&self.unit(unit).header)?;
        self.entry(unit, within)
    }

    /// Where a function begins.
    pub(crate) fn address(&self, entry: &Entry<'d>) -> Option<u64> {
        let (unit, dwarf) = (self.unit(entry.unit), self.dwarf(entry.unit));
        if let Some(value) = entry.attribute(constants::DW_AT_low_pc) {
            return dwarf.attr_address(unit, value).ok()?;
        }
        let mut ranges = dwarf.attr_ranges(unit, entry.attribute(constants::DW_AT_ranges)?).ok()??;
        ranges.next().ok()?.map(|range| range.begin)
    }

    /// The children of an entry with a tag.
    pub(crate) fn children(&self, entry: &Entry<'d>, tag: DwTag) -> Vec<Entry<'d>> {
        let mut found = Vec::new();
        // An entry that cannot be read has none.
        let _ = self.for_children(entry, |child| {
            if child.tag() == tag {
                found.push(Entry { unit: entry.unit, entry: child.clone() });
            }
        });
        found
    }

    fn for_children(
        &self,
        entry: &Entry<'d>,
        mut each: impl FnMut(&DebuggingInformationEntry<Reader<'d>>),
    ) -> Result<(), gimli::Error> {
        if !entry.entry.has_children() {
            return Ok(());
        }
        let mut cursor = self.unit(entry.unit).entries_at_offset(entry.entry.offset())?;
        cursor.next_entry()?;
        if !cursor.next_entry()? {
            return Ok(());
        }
        let mut child = cursor.current().cloned();
        while let Some(current) = child {
            each(&current);
            child = cursor.next_sibling()?.cloned();
        }
        Ok(())
    }

    /// An attribute of an entry, or of those that it is made from.
    pub(crate) fn inherited(&self, entry: &Entry<'d>, name: DwAt) -> Option<Entry<'d>> {
        const MAX_STEPS: usize = 4;

        let mut holder = entry.clone();
        for _ in 0..MAX_STEPS {
            if holder.attribute(name).is_some() {
                return Some(holder);
            }
            let origin = self.follow(&holder, constants::DW_AT_abstract_origin);
            holder = origin.or_else(|| self.follow(&holder, constants::DW_AT_specification))?;
        }
        None
    }

    /// The name of an entry; empty if it has none.
    pub(crate) fn name(&self, entry: &Entry<'d>) -> String {
        self.text(entry, constants::DW_AT_name).unwrap_or_default()
    }

    /// The name of a function as the linker has it, or would have.
    pub(crate) fn linkage_name(&self, entry: &Entry<'d>) -> Option<String> {
        self.text(entry, constants::DW_AT_linkage_name).or_else(|| self.text(entry, constants::DW_AT_name))
    }

    fn text(&self, entry: &Entry<'d>, attribute: DwAt) -> Option<String> {
        let holder = self.inherited(entry, attribute)?;
        let text = self.dwarf(holder.unit).attr_string(self.unit(holder.unit), holder.attribute(attribute)?).ok()?;
        Some(text.to_string_lossy().into_owned())
    }
}
