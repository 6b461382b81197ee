//! Functions that the compiler has inlined into others. A trace has no calls of them: their code runs in the outer
//! function.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use gimli::constants;
use rftrace_format::symbols::MAX_INLINED;
use rftrace_frontend::readable_name;

use crate::debug::object::{Bytes, File};
use crate::debug::units::{Entry, Units};

/// The names of what was inlined, by the address at which the function begins that it was inlined into.
pub(crate) type Inlined = BTreeMap<u64, Vec<String>>;

/// Reads it from the debug information of an ELF file; nothing where there is none.
///
/// Each name is told once of a function: those first that its source calls itself, then what these call, and so on.
pub(crate) fn inlined(path: &Path) -> Inlined {
    let bytes = path.canonicalize().and_then(|path| Bytes::read(&path));
    let Ok(bytes) = bytes else { return Inlined::new() };
    let Ok(file) = File::parse(&bytes) else { return Inlined::new() };
    let mut all = Inlined::new();
    if let Some(debug) = file.debug()
        && let Ok(units) = Units::read(debug)
    {
        for unit in 0..units.len() {
            // A unit that cannot be read has none.
            let _ = read_unit(&units, unit, &mut all);
        }
    }
    all
}

/// A function that is being read.
struct Function {
    depth: isize,
    address: u64,
    /// The depths of what was inlined, as far as the present entry is in it.
    around: Vec<isize>,
    /// Names, and in how many others they are.
    names: Vec<(usize, String)>,
}

impl Function {
    fn add_to(mut self, all: &mut Inlined) {
        // The order within a level is that of the source.
        self.names.sort_by_key(|(level, _)| *level);
        let mut seen = HashSet::new();
        let names = self.names.into_iter().map(|(_, name)| name).filter(|name| seen.insert(name.clone()));
        let names: Vec<String> = names.take(MAX_INLINED).collect();
        if !names.is_empty() {
            all.entry(self.address).or_insert(names);
        }
    }
}

fn read_unit(units: &Units<'_>, unit: usize, all: &mut Inlined) -> Result<(), gimli::Error> {
    // One may be within another.
    let mut open: Vec<Function> = Vec::new();
    let mut cursor = units.unit(unit).entries();
    while let Some(entry) = cursor.next_dfs()? {
        let depth = entry.depth();
        while let Some(ended) = open.pop_if(|function| depth <= function.depth) {
            ended.add_to(all);
        }
        match entry.tag() {
            constants::DW_TAG_subprogram => {
                let entry = Entry { unit, entry: entry.clone() };
                if let Some(address) = units.address(&entry) {
                    open.push(Function { depth, address, around: Vec::new(), names: Vec::new() });
                }
            }
            constants::DW_TAG_inlined_subroutine => {
                let Some(function) = open.last_mut() else { continue };
                function.around.retain(|&around| around < depth);
                if let Some(name) = units.linkage_name(&Entry { unit, entry: entry.clone() }) {
                    function.names.push((function.around.len(), readable_name(&name)));
                }
                function.around.push(depth);
            }
            _ => {}
        }
    }
    open.into_iter().for_each(|function| function.add_to(all));
    Ok(())
}
