//! The entries of debug information, and how they refer to each other.

use gimli::{AttributeValue, DebugInfoOffset, DebuggingInformationEntry, DwAt, DwTag, Unit, UnitOffset, constants};

use super::object::{Dwarf, Reader};

/// An entry of the debug information, and the unit that has it.
#[derive(Clone, Debug)]
pub(super) struct Entry<'d> {
    pub(super) unit: usize,
    pub(super) entry: DebuggingInformationEntry<Reader<'d>>,
}

/// All units of a file.
pub(super) struct Units<'d> {
    pub(super) dwarf: &'d Dwarf<'d>,
    pub(super) units: Vec<Unit<Reader<'d>>>,
}

impl<'d> Entry<'d> {
    pub(super) fn tag(&self) -> DwTag {
        self.entry.tag()
    }

    pub(super) fn attribute(&self, name: DwAt) -> Option<AttributeValue<Reader<'d>>> {
        self.entry.attr_value(name)
    }

    /// Which entry it is, in the whole file.
    pub(super) fn id(&self) -> (usize, UnitOffset) {
        (self.unit, self.entry.offset())
    }
}

impl<'d> Units<'d> {
    pub(super) fn read(dwarf: &'d Dwarf<'d>) -> Result<Self, gimli::Error> {
        let mut headers = dwarf.units();
        let mut units = Vec::new();
        while let Some(header) = headers.next()? {
            units.push(dwarf.unit(header)?);
        }
        Ok(Self { dwarf, units })
    }

    pub(super) fn entry(&self, unit: usize, offset: UnitOffset) -> Option<Entry<'d>> {
        Some(Entry { unit, entry: self.units.get(unit)?.entry(offset).ok()? })
    }

    /// Whether a unit is of C, and not of C++ or Rust.
    pub(super) fn is_c(&self, unit: usize) -> bool {
        let mut cursor = self.units[unit].entries();
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
    pub(super) fn follow(&self, entry: &Entry<'d>, name: DwAt) -> Option<Entry<'d>> {
        match entry.attribute(name)? {
            AttributeValue::UnitRef(offset) => self.entry(entry.unit, offset),
            AttributeValue::DebugInfoRef(offset) => self.at(offset),
            _ => None,
        }
    }

    /// The entry at an offset of the whole section.
    fn at(&self, offset: DebugInfoOffset) -> Option<Entry<'d>> {
        let start = |unit: &Unit<_>| unit.header.debug_info_offset().map_or(usize::MAX, |start| start.0);
        let unit = self.units.partition_point(|unit| start(unit) <= offset.0).checked_sub(1)?;
        let within = offset.to_unit_offset(&self.units[unit].header)?;
        self.entry(unit, within)
    }

    /// The children of an entry with a tag.
    pub(super) fn children(&self, entry: &Entry<'d>, tag: DwTag) -> Vec<Entry<'d>> {
        let mut found = Vec::new();
        // What cannot be read has none.
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
        let mut cursor = self.units[entry.unit].entries_at_offset(entry.entry.offset())?;
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
    pub(super) fn inherited(&self, entry: &Entry<'d>, name: DwAt) -> Option<Entry<'d>> {
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
    pub(super) fn name(&self, entry: &Entry<'d>) -> String {
        let text = self.inherited(entry, constants::DW_AT_name).and_then(|holder| {
            let name = self.dwarf.attr_string(&self.units[holder.unit], holder.attribute(constants::DW_AT_name)?);
            name.ok()
        });
        text.map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
    }
}
