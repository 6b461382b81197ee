//! Calls of the tracer's hooks in a program, in the form left by compiler and linker.

use std::collections::HashSet;
use std::path::Path;

use object::{Architecture, BinaryFormat, Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionKind};
use rftrace_read::{Error, Result, files};

use crate::processors::Processor;

mod aarch64;
mod x86_64;

/// The calls of hooks in a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallSites {
    /// The number of calls of hooks, that is, of instrumented functions.
    pub count: u64,
    /// True if the hooks are in the program itself, as in a program linked with a tracer.
    pub has_own_hooks: bool,
    /// True if the program loads shared libraries, so that a library with hooks can be preloaded.
    pub is_dynamic: bool,
}

impl CallSites {
    /// Finds the calls in an ELF file for one of the supported processors.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is no such file.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = files::read(path, u64::MAX)?;
        let malformed = |reason: String| Error::malformed(path, 0, reason);
        let file = object::File::parse(&*bytes).map_err(|error| malformed(format!("not an object file: {error}")))?;
        let processor = Processor::of_architecture(file.architecture()).filter(|_| file.format() == BinaryFormat::Elf);
        let Some(processor) = processor else {
            let reason = format!(
                "a {:?} file for {:?}; rftrace reads only ELF files for x86-64 and aarch64",
                file.format(),
                file.architecture()
            );
            return Err(malformed(reason));
        };
        let hooks = processor.hooks;
        let own = own_hooks(&file, hooks);
        let slots = slots(&file, hooks);
        let mut direct = own.clone();
        for section in code(&file).filter(|section| is_plt(section)) {
            let code = section.data().unwrap_or_default();
            match processor.architecture {
                Architecture::Aarch64 => aarch64::add_stubs(section.address(), code, &slots, &mut direct),
                _ => x86_64::add_stubs(section.address(), code, &slots, &mut direct),
            }
        }
        let has_calls = !direct.is_empty() || !slots.is_empty();
        let sections = code(&file).filter(|section| has_calls && !is_plt(section));
        let count = sections.map(|section| {
            let code = section.data().unwrap_or_default();
            match processor.architecture {
                Architecture::Aarch64 => aarch64::calls(section.address(), code, &direct),
                _ => x86_64::calls(section.address(), code, &direct, &slots),
            }
        });
        let count = count.sum();
        // A static program for any address has a section `.dynamic` too.
        let is_dynamic = file.section_by_name(".interp").is_some();
        Ok(Self { count, has_own_hooks: !own.is_empty(), is_dynamic })
    }
}

fn is_hook(name: object::read::Result<&str>, hooks: &[&str]) -> bool {
    name.is_ok_and(|name| hooks.contains(&name))
}

/// Addresses of hooks defined by the file.
fn own_hooks(file: &object::File<'_>, hooks: &[&str]) -> HashSet<u64> {
    let symbols = file.symbols().chain(file.dynamic_symbols());
    symbols
        .filter(|symbol| symbol.is_definition() && is_hook(symbol.name(), hooks))
        .map(|symbol| symbol.address())
        .collect()
}

/// Addresses of pointers set to a hook by the dynamic linker.
fn slots(file: &object::File<'_>, hooks: &[&str]) -> HashSet<u64> {
    let relocations = file.dynamic_relocations().into_iter().flatten();
    let of_hooks = relocations.filter(|(_, relocation)| match relocation.target() {
        RelocationTarget::Symbol(idx) => {
            let table = file.dynamic_symbol_table();
            table.is_some_and(|table| {
                use object::ObjectSymbolTable;
                table.symbol_by_index(idx).is_ok_and(|symbol| is_hook(symbol.name(), hooks))
            })
        }
        _ => false,
    });
    of_hooks.map(|(address, _)| address).collect()
}

fn code<'file>(file: &'file object::File<'_>) -> impl Iterator<Item = object::Section<'file, 'file>> {
    file.sections().filter(|section| section.kind() == SectionKind::Text)
}

fn is_plt(section: &object::Section<'_, '_>) -> bool {
    section.name().is_ok_and(|name| name.starts_with(".plt"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_program() {
        let this = CallSites::read(&std::env::current_exe().unwrap()).unwrap();
        assert_eq!((this.count, this.is_dynamic), (0, true));
        assert!(matches!(CallSites::read(Path::new("/nonexistent")), Err(Error::Io { .. })));
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        assert!(matches!(CallSites::read(&manifest), Err(Error::Malformed { .. })));
    }
}
