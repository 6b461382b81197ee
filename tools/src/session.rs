//! A program's address space: from an address to a function.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result, read_file};
use crate::maps::{self, ADDR_MASK, Mapping};
use crate::symbols::{Symbol, SymbolTable};
use crate::warning::Warnings;

/// One run of one program, from its start or `exec` on.
#[derive(Debug)]
pub(crate) struct Session {
    /// The name of its map file.
    pub(crate) map_file: String,
    /// What the map file says, in its order.
    pub(crate) mappings: Vec<Mapping>,
    modules: Vec<Module>,
    /// Libraries loaded at run time, with when; in the order of the file.
    opened: Vec<(u64, Module)>,
}

#[derive(Debug)]
struct Module {
    start: u64,
    end: u64,
    symbols: Arc<SymbolTable>,
}

impl Module {
    fn contains(&self, addr: u64) -> bool {
        (self.start..self.end).contains(&addr)
    }
}

impl Session {
    /// Reads the map file of session `sid` and the symbols of its modules.
    pub(crate) fn read(dir: &Path, sid: &str, loader: &mut SymbolLoader) -> Result<Self> {
        let map_file = format!("sid-{sid}.map");
        let path = dir.join(&map_file);
        let mappings = maps::parse(&path, &read_file(&path)?)?;
        let mut modules = Vec::new();
        for mapping in &mappings {
            let symbols = loader.load(dir, mapping)?;
            modules.push(Module { start: mapping.start, end: mapping.end, symbols });
        }
        modules.sort_by_key(|module| module.start);
        Ok(Self { map_file, mappings, modules, opened: Vec::new() })
    }

    /// Adds a library that was loaded at `base`; how large it is, only its symbols say.
    pub(crate) fn add_library(
        &mut self,
        dir: &Path,
        time_ns: u64,
        base: u64,
        path: String,
        loader: &mut SymbolLoader,
    ) -> Result<()> {
        let start = base & ADDR_MASK;
        let symbols = loader.load(dir, &Mapping { start, end: start, path, build_id: None })?;
        let end = start.saturating_add(symbols.end());
        self.opened.push((time_ns, Module { start, end, symbols }));
        Ok(())
    }

    /// The function around `addr` at `time_ns`.
    pub(crate) fn symbol(&self, time_ns: u64, addr: u64) -> Option<&Symbol> {
        let module = self.module(time_ns, addr)?;
        module.symbols.find(addr - module.start)
    }

    /// The number of known functions of the module that begins at `start`.
    pub(crate) fn symbols_at(&self, start: u64) -> usize {
        self.modules.iter().find(|module| module.start == start).map_or(0, |module| module.symbols.len())
    }

    /// Whether any module lies at `addr`, at any time.
    pub(crate) fn is_code(&self, addr: u64) -> bool {
        self.module(u64::MAX, addr).is_some()
    }

    /// Whether no module is known at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.modules.is_empty() && self.opened.is_empty()
    }

    fn module(&self, time_ns: u64, addr: u64) -> Option<&Module> {
        let after = self.modules.partition_point(|module| module.start <= addr);
        let mapped = after.checked_sub(1).and_then(|idx| self.modules.get(idx));
        mapped.filter(|module| module.contains(addr)).or_else(|| {
            let opened = self.opened.iter().rev().filter(|(since, _)| *since <= time_ns);
            opened.map(|(_, module)| module).find(|module| module.contains(addr))
        })
    }
}

/// Reads symbol files, each once.
#[derive(Debug, Default)]
pub(crate) struct SymbolLoader {
    loaded: HashMap<(String, Option<String>), Arc<SymbolTable>>,
    pub(crate) warnings: Warnings,
}

impl SymbolLoader {
    /// The symbols of a module; none, if the trace has no file for it.
    fn load(&mut self, dir: &Path, mapping: &Mapping) -> Result<Arc<SymbolTable>> {
        let key = (mapping.path.clone(), mapping.build_id.clone());
        if let Some(table) = self.loaded.get(&key) {
            return Ok(Arc::clone(table));
        }
        let base = mapping.path.rsplit('/').next().unwrap_or_default();
        let mut table = self.read(&dir.join(format!("{base}.sym")))?;
        if !is_for(&table, mapping) {
            // Two modules of one name: the second one's file has a suffix.
            let suffix = match &mapping.build_id {
                Some(id) => id.chars().take(4).collect(),
                None => format!("{:04x}", checksum(&mapping.path)),
            };
            table = self.read(&dir.join(format!("{base}-{suffix}.sym")))?;
        }
        let table = Arc::new(table);
        self.loaded.insert(key, Arc::clone(&table));
        Ok(table)
    }

    fn read(&mut self, path: &Path) -> Result<SymbolTable> {
        match read_file(path) {
            Ok(bytes) => Ok(SymbolTable::parse(&bytes, &mut self.warnings)),
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                Ok(SymbolTable::default())
            }
            Err(error) => Err(error),
        }
    }
}

fn is_for(table: &SymbolTable, mapping: &Mapping) -> bool {
    let same_path = table.path_name.as_ref().is_none_or(|path| *path == mapping.path);
    let same_build = match (&table.build_id, &mapping.build_id) {
        (Some(a), Some(b)) => a == b,
        _ => true,
    };
    same_path && same_build
}

/// The sum of the path's bytes, which stands in for a build-id.
fn checksum(path: &str) -> u16 {
    path.bytes().fold(0, |sum: u16, byte| sum.wrapping_add_signed(i16::from(byte.cast_signed())))
}
