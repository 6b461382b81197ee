//! Names of addresses from files and their address ranges alone.

use std::collections::HashMap;

use object::read::ReadCache;
use object::{Object, ObjectSegment};
use rftrace_format::opener;

use crate::names::{Name, Names};
use crate::recording::{Frame, Module};

/// Finds names in files.
#[derive(Debug, Default)]
pub(crate) struct Lookup {
    modules: Vec<Module>,
    /// Begins and ends, in the order of the modules.
    ranges: Vec<(u64, u64)>,
    /// The number added to addresses of each file that was looked at.
    bases: HashMap<u32, Option<u64>>,
    names: Names,
}

impl Lookup {
    /// In these files, each with its first address and the one behind its last.
    pub(crate) fn new<'m>(modules: impl Iterator<Item = (&'m str, u64, u64)>) -> Self {
        let mut lookup = Self::default();
        for (path, start, end) in modules {
            lookup.modules.push(Module::of_path(path));
            lookup.ranges.push((start, end));
        }
        lookup
    }

    /// The function that returns to this address: not an inlined one.
    pub(crate) fn name(&mut self, address: u64) -> Option<Name> {
        // Of those that were there one after the other, the later.
        let number = self.ranges.iter().rposition(|&(start, end)| (start..=end).contains(&address))?;
        let (start, module) = (self.ranges[number].0, number as u32);
        let path = &self.modules[number].path;
        let base = *self.bases.entry(module).or_insert_with(|| Some(start.wrapping_sub(first_address(path)?)));
        // Where there is no file, the name says that it is missing.
        let address = address.wrapping_sub(base.unwrap_or(start));
        let names = self.names.of(&self.modules, Frame { module: Some(module), address });
        base.and_then(|_| names.last().cloned())
    }

    /// Files that are not here.
    pub(crate) fn missing(&self) -> &[String] {
        self.names.changed()
    }
}

/// Where a file's first segment lies, by its own addresses.
fn first_address(path: &str) -> Option<u64> {
    const PAGE: u64 = 4096;

    let cache = ReadCache::new(opener::open(path.as_ref()).ok()?);
    let file = object::File::parse(&cache).ok()?;
    file.segments().map(|segment| segment.address()).min().map(|address| address & !(PAGE - 1))
}
