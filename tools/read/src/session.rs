//! A program's address space: the way from an address to a function.

use std::collections::HashMap;
use std::io::BufRead;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rftrace_format::files::map;
use rftrace_format::layout::Layout;
use rftrace_format::record::ADDRESS_MASK;
use rftrace_format::symbols::ModuleId;
use rftrace_format::text::base_name;
use rftrace_format::values::ValueSpec;

use crate::demangle::Demangle;
use crate::error::Result;
use crate::files;
use crate::lines::Lines;
use crate::made_names::made_name;
use crate::maps::{self, Mapping};
use crate::sources::{SourcePlace, SourceTable};
use crate::symbols::{Symbol, SymbolTable};
use crate::warning::Warnings;

/// A run of a program, from its start or `exec` on.
#[derive(Debug)]
pub struct Session {
    /// The name of the session's map file.
    pub map_file: String,
    /// The mappings in that file, in its order.
    pub mappings: Vec<Mapping>,
    modules: Vec<Module>,
    /// Libraries loaded at run time, with when; in the order of the file.
    opened: Vec<(u64, Module)>,
}

#[derive(Debug)]
struct Module {
    /// The name of its file.
    name: Box<str>,
    start: u64,
    end: u64,
    symbols: Arc<SymbolTable>,
    sources: Option<Arc<SourceTable>>,
    /// The specs of recorded values, if the trace has any.
    values: Option<Arc<SourceTable>>,
    /// The mapping in the map or, for a library loaded at run time, the known part of it.
    mapping: Mapping,
}

impl Module {
    fn contains(&self, addr: u64) -> bool {
        (self.start..self.end).contains(&addr)
    }
}

impl Session {
    /// Reads the map file of session `sid` and the symbols of its modules.
    pub(crate) fn read(dir: &Path, sid: &str, loader: &mut SymbolLoader) -> Result<Self> {
        let map_file = map(sid);
        let path = dir.join(&map_file);
        let mappings = maps::read(Lines::open(&path)?, loader.n_modules)?;
        loader.n_modules += mappings.len();
        let mut modules = Vec::new();
        for mapping in &mappings {
            let symbols = loader.load(dir, mapping)?;
            let (name, mapping) = (base_name(&mapping.path).into(), mapping.clone());
            modules.push(Module {
                name,
                start: mapping.start,
                end: mapping.end,
                symbols,
                sources: None,
                values: None,
                mapping,
            });
        }
        modules.sort_by_key(|module| module.start);
        Ok(Self { map_file, mappings, modules, opened: Vec::new() })
    }

    /// Adds a library loaded at `base`. Only its symbols give its size.
    pub(crate) fn add_library(
        &mut self,
        dir: &Path,
        time_ns: u64,
        base: u64,
        path: String,
        loader: &mut SymbolLoader,
    ) -> Result<()> {
        let start = base & ADDRESS_MASK;
        let mapping = Mapping { start, end: start, path, build_id: None };
        let symbols = loader.load(dir, &mapping)?;
        let end = start.saturating_add(symbols.end());
        let name = base_name(&mapping.path).into();
        self.opened.push((time_ns, Module { name, start, end, symbols, sources: None, values: None, mapping }));
        Ok(())
    }

    /// Returns the period around `time_ns` with the same libraries.
    pub(crate) fn libraries_stay(&self, time_ns: u64) -> Range<u64> {
        let times = || self.opened.iter().map(|&(since, _)| since);
        let from = times().filter(|&since| since <= time_ns).max();
        from.unwrap_or(0)..times().filter(|&since| since > time_ns).min().unwrap_or(u64::MAX)
    }

    /// The names of its functions, called or not.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let modules = self.modules.iter().chain(self.opened.iter().map(|(_, module)| module));
        modules.flat_map(|module| module.symbols.names())
    }

    /// The function around `addr` at `time_ns`.
    pub(crate) fn symbol(&self, time_ns: u64, addr: u64) -> Option<&Symbol> {
        let module = self.module(time_ns, addr)?;
        module.symbols.find(addr - module.start)
    }

    /// Returns the source line of the function around `addr` at `time_ns`.
    pub(crate) fn source(&self, time_ns: u64, addr: u64) -> Option<SourcePlace<'_>> {
        let module = self.module(time_ns, addr)?;
        let symbol = module.symbols.find(addr - module.start)?;
        module.sources.as_ref()?.find(symbol.addr)
    }

    /// Returns the specs of values for the calls, or the returns, of the function around `addr` at `time_ns`.
    pub(crate) fn values(&self, time_ns: u64, addr: u64, is_result: bool) -> Option<&[ValueSpec]> {
        let module = self.module(time_ns, addr)?;
        let table = module.values.as_ref()?;
        table.values(module.symbols.find(addr - module.start)?.addr, is_result)
    }

    /// The name of a number of one of the enumerations of the module around `addr` at `time_ns`.
    pub(crate) fn enumerator(&self, (time_ns, addr): (u64, u64), enumeration: u16, value: i32) -> Option<&str> {
        self.module(time_ns, addr)?.values.as_ref()?.enumerator(enumeration, value)
    }

    /// One of the layouts of values of the function around `addr` at `time_ns`.
    pub(crate) fn layout(&self, (time_ns, addr): (u64, u64), number: u16) -> Option<&Layout> {
        self.module(time_ns, addr)?.values.as_ref()?.layout(number)
    }

    /// Reads the specs of recorded values.
    pub(crate) fn read_values<F>(&mut self, loader: &mut SourceLoader<'_, F>) -> Result<()>
    where
        F: FnMut(&Mapping) -> Option<Box<dyn BufRead>>,
    {
        for module in self.modules.iter_mut().chain(self.opened.iter_mut().map(|(_, module)| module)) {
            if module.symbols.len() > 0 {
                module.values = Some(loader.load(&module.mapping)?);
            }
        }
        Ok(())
    }

    /// Reads the source lines of functions.
    pub(crate) fn read_sources<F>(&mut self, loader: &mut SourceLoader<'_, F>) -> Result<()>
    where
        F: FnMut(&Mapping) -> Option<Box<dyn BufRead>>,
    {
        for module in self.modules.iter_mut().chain(self.opened.iter_mut().map(|(_, module)| module)) {
            // A module without functions has no source lines.
            if module.symbols.len() > 0 {
                module.sources = Some(loader.load(&module.mapping)?);
            }
        }
        Ok(())
    }

    /// The name of the file around `addr` at `time_ns`.
    pub(crate) fn module_name(&self, time_ns: u64, addr: u64) -> Option<&str> {
        self.module(time_ns, addr).map(|module| &*module.name)
    }

    /// Returns the made name of the nameless function around `addr` at `time_ns`.
    pub(crate) fn made_name(&self, time_ns: u64, addr: u64) -> Option<String> {
        self.module(time_ns, addr).map(|module| made_name(&module.name, module.start, addr))
    }

    /// Returns the number of known functions of the module at `start`.
    pub fn symbols_at(&self, start: u64) -> usize {
        self.modules.iter().find(|module| module.start == start).map_or(0, |module| module.symbols.len())
    }

    /// True if any module lies at `addr`, at any time.
    pub(crate) fn is_code(&self, addr: u64) -> bool {
        self.module(u64::MAX, addr).is_some()
    }

    /// True if no module is known at all.
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

/// The symbol files of a trace's directory, for addresses in modules instead of processes.
#[derive(Debug)]
pub struct SymbolFiles {
    dir: PathBuf,
    loader: SymbolLoader,
}

impl SymbolFiles {
    /// The symbols of the trace in `dir`. Each file is read for the first name of its module.
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), loader: SymbolLoader::new(Demangle::Simple) }
    }

    /// Returns the name of the function `offset` bytes behind the beginning of a module. `None` if the module's symbol
    /// file is missing or unreadable, or has no function there.
    pub fn name(&mut self, module: ModuleId<'_>, offset: u64) -> Option<String> {
        let (path, build_id) = (module.path.to_owned(), module.build_id.map(str::to_owned));
        let table = self.loader.load(&self.dir, &Mapping { start: 0, end: 0, path, build_id }).ok()?;
        Some(table.find(offset)?.name.to_string())
    }
}

/// Reads symbol files, each once.
#[derive(Debug, Default)]
pub(crate) struct SymbolLoader {
    loaded: HashMap<(String, Option<String>), Arc<SymbolTable>>,
    demangle: Demangle,
    /// By the file's name, as modules of different folders may share one.
    files: HashMap<String, Arc<SymbolTable>>,
    n_modules: usize,
    n_symbols: usize,
    pub(crate) warnings: Warnings,
}

impl SymbolLoader {
    pub(crate) fn new(demangle: Demangle) -> Self {
        Self { demangle, ..Self::default() }
    }

    /// Returns the number of modules with names of C++ or Rust, and without mangled ones.
    pub(crate) fn n_without_mangled_names(&self) -> u64 {
        let lacks = |table: &&Arc<SymbolTable>| !table.has_mangled_names && table.has_paths();
        self.loaded.values().filter(lacks).count() as u64
    }

    /// The symbols of a module; none, if the trace has no file for it.
    fn load(&mut self, dir: &Path, mapping: &Mapping) -> Result<Arc<SymbolTable>> {
        let key = (mapping.path.clone(), mapping.build_id.clone());
        if let Some(table) = self.loaded.get(&key) {
            return Ok(Arc::clone(table));
        }
        let module = ModuleId { path: &mapping.path, build_id: mapping.build_id.as_deref() };
        let mut table = self.read(dir, module.plain_name(), &mapping.path)?;
        if !table.head.is_of(module) {
            // Two modules of one name.
            table = self.read(dir, module.marked_name(), &mapping.path)?;
        }
        self.loaded.insert(key, Arc::clone(&table));
        Ok(table)
    }

    fn read(&mut self, dir: &Path, name: String, path: &str) -> Result<Arc<SymbolTable>> {
        if let Some(table) = self.files.get(&name) {
            return Ok(Arc::clone(table));
        }
        let mut table = match files::if_present(Lines::open(&dir.join(&name)))? {
            Some(lines) => SymbolTable::read(lines, self.n_symbols, self.demangle, &mut self.warnings)?,
            None => SymbolTable::default(),
        };
        table.add_module_to_made_names(base_name(path));
        self.n_symbols += table.len();
        let table = Arc::new(table);
        self.files.insert(name, Arc::clone(&table));
        Ok(table)
    }
}

/// Reads files of source lines, each once.
pub(crate) struct SourceLoader<'t, F> {
    dir: &'t Path,
    others: F,
    loaded: HashMap<(String, Option<String>), Arc<SourceTable>>,
    /// By the file's name, as modules of different folders may share one.
    files: HashMap<String, Option<Arc<SourceTable>>>,
    n_places: usize,
    takes_all: bool,
    has_inlined: bool,
    pub(crate) warnings: Warnings,
}

impl<'t, F: FnMut(&Mapping) -> Option<Box<dyn BufRead>>> SourceLoader<'t, F> {
    /// Reads the files in `dir` and, for modules without one, the text of `others`, with inlined functions if
    /// `has_inlined`.
    pub(crate) fn new(dir: &'t Path, has_inlined: bool, others: F) -> Self {
        let (loaded, files) = (HashMap::new(), HashMap::new());
        Self { dir, others, loaded, files, n_places: 0, takes_all: false, has_inlined, warnings: Warnings::default() }
    }

    /// For values: takes files without source lines too.
    pub(crate) fn of_values(dir: &'t Path, others: F) -> Self {
        Self { takes_all: true, ..Self::new(dir, false, others) }
    }

    fn load(&mut self, mapping: &Mapping) -> Result<Arc<SourceTable>> {
        let key = (mapping.path.clone(), mapping.build_id.clone());
        if let Some(table) = self.loaded.get(&key) {
            return Ok(Arc::clone(table));
        }
        let module = ModuleId { path: &mapping.path, build_id: mapping.build_id.as_deref() };
        let is_of = |table: &Arc<SourceTable>| table.head.is_of(module);
        let mut found = self.read(module.plain_name())?.filter(is_of);
        if found.is_none() {
            found = self.read(module.marked_name())?.filter(is_of);
        }
        // One that only tells of values knows no places, and uftrace's nothing of what was inlined.
        let is_all = |table: &SourceTable| table.has_places() && (!self.has_inlined || table.has_inlined());
        let table = match found {
            Some(table) if self.takes_all || is_all(&table) => table,
            found => match (self.others)(mapping) {
                Some(input) => self.table(Lines::new(Path::new(&mapping.path), input))?,
                None => found.unwrap_or_default(),
            },
        };
        self.loaded.insert(key, Arc::clone(&table));
        Ok(table)
    }

    /// The file beside a symbol file.
    fn read(&mut self, symbols: String) -> Result<Option<Arc<SourceTable>>> {
        if let Some(table) = self.files.get(&symbols) {
            return Ok(table.clone());
        }
        let lines = files::if_present(Lines::open(&self.dir.join(&symbols).with_extension("dbg")))?;
        let table = lines.map(|lines| self.table(lines)).transpose()?;
        self.files.insert(symbols, table.clone());
        Ok(table)
    }

    fn table(&mut self, lines: Lines) -> Result<Arc<SourceTable>> {
        let table = SourceTable::read(lines, self.n_places, self.has_inlined, &mut self.warnings)?;
        self.n_places += table.len();
        Ok(Arc::new(table))
    }
}
