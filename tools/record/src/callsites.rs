//! Calls of the tracer's hooks in a program, as the compiler and the linker have left them.

use std::collections::HashSet;
use std::path::Path;

use object::{Architecture, BinaryFormat, Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionKind};
use rftrace_read::{Error, Result, files};

/// The functions that instrumented prologues call.
const HOOKS: [&str; 2] = ["mcount", "__fentry__"];

const CALL: u8 = 0xe8;
const CALL_INDIRECT: [u8; 2] = [0xff, 0x15];
const JUMP_INDIRECT: [u8; 2] = [0xff, 0x25];

/// What a program has to do with hooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallSites {
    /// The number of calls of hooks: of functions that are instrumented.
    pub count: u64,
    /// Whether the hooks are in the program itself, as in one that is linked with a tracer.
    pub has_own_hooks: bool,
    /// Whether the program loads shared libraries, so that a hook can be given to it.
    pub is_dynamic: bool,
}

impl CallSites {
    /// Looks for the calls in an ELF file for x86-64.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is not such a file.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = files::read(path, u64::MAX)?;
        let malformed = |reason: String| Error::malformed(path, 0, reason);
        let file = object::File::parse(&*bytes).map_err(|error| malformed(format!("not an object file: {error}")))?;
        if file.format() != BinaryFormat::Elf || file.architecture() != Architecture::X86_64 {
            let reason = format!("a {:?} file for {:?}; only ELF for x86-64", file.format(), file.architecture());
            return Err(malformed(reason));
        }
        let own = own_hooks(&file);
        let slots = slots(&file);
        let mut direct = own.clone();
        for section in code(&file).filter(|section| is_plt(section)) {
            add_stubs(section.address(), section.data().unwrap_or_default(), &slots, &mut direct);
        }
        let sections = code(&file).filter(|section| !is_plt(section));
        let count = sections.map(|section| {
            let code = section.data().unwrap_or_default();
            calls(section.address(), code, &direct, &slots)
        });
        let count = count.sum();
        // A static program that may lie anywhere has a section `.dynamic` too.
        let is_dynamic = file.section_by_name(".interp").is_some();
        Ok(Self { count, has_own_hooks: !own.is_empty(), is_dynamic })
    }
}

fn is_hook(name: object::read::Result<&str>) -> bool {
    name.is_ok_and(|name| HOOKS.contains(&name))
}

/// Addresses of hooks that the file defines.
fn own_hooks(file: &object::File<'_>) -> HashSet<u64> {
    let symbols = file.symbols().chain(file.dynamic_symbols());
    symbols.filter(|symbol| symbol.is_definition() && is_hook(symbol.name())).map(|symbol| symbol.address()).collect()
}

/// Addresses of pointers that the dynamic linker sets to a hook.
fn slots(file: &object::File<'_>) -> HashSet<u64> {
    let relocations = file.dynamic_relocations().into_iter().flatten();
    let of_hooks = relocations.filter(|(_, relocation)| match relocation.target() {
        RelocationTarget::Symbol(idx) => {
            let table = file.dynamic_symbol_table();
            table.is_some_and(|table| {
                use object::ObjectSymbolTable;
                table.symbol_by_index(idx).is_ok_and(|symbol| is_hook(symbol.name()))
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

/// The address that the 32-bit displacement at `pos` leads to. The instruction ends behind it.
fn target(section: u64, code: &[u8], pos: usize) -> Option<u64> {
    let displacement = i32::from_le_bytes(*code.get(pos..)?.first_chunk()?);
    Some(section.wrapping_add(pos as u64 + 4).wrapping_add_signed(i64::from(displacement)))
}

/// Adds the beginnings of stubs in a procedure linkage table that jump to what is in `slots`.
fn add_stubs(section: u64, code: &[u8], slots: &HashSet<u64>, stubs: &mut HashSet<u64>) {
    for (pos, _) in code.windows(2).enumerate().filter(|(_, bytes)| *bytes == JUMP_INDIRECT) {
        if target(section, code, pos + 2).is_some_and(|slot| slots.contains(&slot)) {
            let jump = section.wrapping_add(pos as u64);
            // The jump itself, or the `bnd` prefix or the `endbr64` before it.
            stubs.extend([0, 1, 4, 5].map(|before| jump.wrapping_sub(before)));
        }
    }
}

/// The number of calls of what is in `direct`, and through what is in `slots`.
fn calls(section: u64, code: &[u8], direct: &HashSet<u64>, slots: &HashSet<u64>) -> u64 {
    if direct.is_empty() && slots.is_empty() {
        return 0;
    }
    let is_call = |pos: usize| match code[pos..] {
        [CALL, ..] => target(section, code, pos + 1).is_some_and(|hook| direct.contains(&hook)),
        [a, b, ..] if [a, b] == CALL_INDIRECT => {
            target(section, code, pos + 2).is_some_and(|slot| slots.contains(&slot))
        }
        _ => false,
    };
    (0..code.len()).filter(|&pos| is_call(pos)).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_of_calls() {
        let slots = HashSet::from([0x3000]);
        let mut direct = HashSet::new();
        // 0x1000: jmp *0x3000; 0x1006: endbr64; bnd jmp *0x3000; jmp *0x4000
        let plt = b"\xff\x25\xfa\x1f\0\0\xf3\x0f\x1e\xfa\xf2\xff\x25\xef\x1f\0\0\xff\x25\xe9\x2f\0\0";
        add_stubs(0x1000, plt, &slots, &mut direct);
        assert!(direct.contains(&0x1000) && direct.contains(&0x1006), "{direct:x?}");
        assert!(!direct.contains(&0x1011), "{direct:x?}");

        // call 0x1000; call *0x3000; call 0x1011; a call that is cut
        let code = b"\xe8\xfb\xef\xff\xff\xff\x15\xf5\x0f\0\0\xe8\x01\xf0\xff\xff\xff\x15\0";
        assert_eq!(calls(0x2000, code, &direct, &slots), 2);
        assert_eq!(calls(0x2000, code, &HashSet::new(), &HashSet::new()), 0);
    }

    #[test]
    fn own_program() {
        let this = CallSites::read(&std::env::current_exe().unwrap()).unwrap();
        assert_eq!((this.count, this.is_dynamic), (0, true));
        assert!(matches!(CallSites::read(Path::new("/nonexistent")), Err(Error::Io { .. })));
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        assert!(matches!(CallSites::read(&manifest), Err(Error::Malformed { .. })));
    }
}
