//! The modules of a program in a trace: their lines in the map, and their symbol files.

use std::io::{self, Write};

use rftrace_format::map::MapLine;
#[cfg(not(target_os = "linux"))]
use rftrace_format::map::NO_STACK;

use crate::host::program::{LoadedModule, Program};

/// The lines of modules in a map.
#[cfg(target_os = "linux")]
pub(super) fn write_modules(out: &mut impl Write, modules: &[LoadedModule]) -> io::Result<()> {
    modules.iter().try_for_each(|(module, _)| {
        let (path, build_id) = (&*module.map_path(), module.build_id.as_deref());
        write!(out, "{}", MapLine::new((module.start, module.end), "r-xp", path, build_id))
    })
}

#[cfg(not(target_os = "linux"))]
pub(super) fn write_modules(out: &mut impl Write, modules: &[LoadedModule]) -> io::Result<()> {
    modules.iter().try_for_each(|LoadedModule { name, start }| {
        write!(out, "{}", MapLine::new((*start, NO_STACK.start), "r-xp", name, None))
    })
}

/// The modules with symbols, with the names of their symbol files and their paths in the map.
#[cfg(target_os = "linux")]
pub(super) fn symbol_files(program: &Program) -> Vec<(String, String, &LoadedModule)> {
    use rftrace_format::symbols::{ModuleId, SymbolFileNames};

    let named = |(module, symbols): &'_ LoadedModule| {
        let symbols = symbols.as_ref().filter(|table| !table.symbols().is_empty());
        symbols.map(|_| module.map_path())
    };
    let always = program.modules.iter().map(|module| (module, module.0.build_id.as_deref()));
    // Lines of them have no build-id.
    let all = always.chain(program.opened.iter().map(|(module, _)| (module, None)));
    let (ids, modules): (Vec<_>, Vec<(String, &LoadedModule)>) =
        all.filter_map(|(module, id)| Some((id, (named(module)?, module)))).unzip();
    let ids = ids.into_iter().zip(&modules).map(|(build_id, (path, _))| ModuleId { path, build_id });
    let names = SymbolFileNames::of(ids);
    names.into_iter().zip(modules).filter_map(|(name, (path, module))| Some((name?, path, module))).collect()
}

/// Returns true if a symbol file has the function at an address.
#[cfg(target_os = "linux")]
pub(super) fn has_symbol(program: &Program, address: u64) -> bool {
    symbol_files(program).iter().any(|(_, _, (module, symbols))| {
        let is_in = (module.start..module.end).contains(&address);
        is_in && symbols.as_ref().is_some_and(|table| table.lookup(address - module.start).is_some())
    })
}

#[cfg(not(target_os = "linux"))]
pub(super) fn has_symbol(_: &Program, _: u64) -> bool {
    false
}
