//! Calls of other modules' functions by a file: through slots of its global offset table, named by relocations.
//!
//! Not here: the contents of the slots in a running program (`patch`).

use object::elf;
use object::read::elf::{FileHeader, Rela, SectionHeader, Sym, Version};

use super::file::{ENDIAN, Header};

/// A slot for a function of another module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Import<'f> {
    /// The slot's address in the file.
    pub(crate) address: u64,
    /// The function's name.
    pub(crate) name: &'f [u8],
    /// The required version, if the function has versions.
    pub(crate) version: Option<&'f [u8]>,
    /// True if only calls use the slot, like that of an entry of the procedure linkage table.
    pub(crate) is_for_calls: bool,
}

/// Bytes of a slot.
pub(crate) const SLOT_BYTES: u64 = 8;

/// Returns the slots of a file for x86-64 or aarch64, by address. Empty without sections, and for a damaged file.
pub(crate) fn imports_of(file: &[u8]) -> Vec<Import<'_>> {
    let mut found = try_imports(file).unwrap_or_default();
    found.sort_unstable_by_key(|import| import.address);
    found.dedup_by_key(|import| import.address);
    found
}

fn try_imports(file: &[u8]) -> Result<Vec<Import<'_>>, object::Error> {
    let header = Header::parse(file)?;
    let mut found = Vec::new();
    let (for_calls, for_all) = match header.e_machine(ENDIAN) {
        elf::EM_X86_64 => (elf::R_X86_64_JUMP_SLOT, elf::R_X86_64_GLOB_DAT),
        elf::EM_AARCH64 => (elf::R_AARCH64_JUMP_SLOT, elf::R_AARCH64_GLOB_DAT),
        _ => return Ok(found),
    };
    let sections = header.sections(ENDIAN, file)?;
    let versions = sections.versions(ENDIAN, file)?;
    for section in sections.iter() {
        let Some((relocations, table)) = section.rela(ENDIAN, file)? else { continue };
        if !section.sh_flags(ENDIAN).contains(elf::SHF_ALLOC) || table.0 == 0 {
            continue;
        }
        let symbols = sections.symbol_table_by_index(ENDIAN, file, table)?;
        for relocation in relocations {
            let kind = relocation.r_type(ENDIAN, false);
            if kind != for_calls && kind != for_all {
                continue;
            }
            let Some(number) = relocation.symbol(ENDIAN, false) else { continue };
            let symbol = symbols.symbol(number)?;
            let is_function = matches!(symbol.st_type(), elf::STT_FUNC | elf::STT_GNU_IFUNC | elf::STT_NOTYPE);
            if !symbol.is_undefined(ENDIAN) || !is_function {
                continue;
            }
            let version = match &versions {
                Some(versions) => versions.version(versions.version_index(ENDIAN, number).into())?,
                None => None,
            };
            found.push(Import {
                address: relocation.r_offset(ENDIAN),
                name: symbol.name(ENDIAN, symbols.strings())?,
                version: version.map(Version::name),
                is_for_calls: kind == for_calls,
            });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::testutil::Scratch;
    use std::fs;

    // Declared here: the header has some of them as inline functions, which call others.
    const SOURCE: &str =
        "void *malloc(unsigned long); void free(void *); int atoi(const char *); char *getenv(const char *);
        int main(void) { free(malloc(3)); return atoi(getenv(\"N\")); }";

    #[test]
    fn slots_have_names_and_versions() {
        let scratch = Scratch::new("imports");
        for (flags, is_for_calls) in [(["-fplt", "-Wl,-z,lazy"], true), (["-fno-plt", "-Wl,-z,now"], false)] {
            let flags = [&["-m64", "-O1", "-fno-builtin"][..], &flags].concat();
            let Some(program) = scratch.compile("calls.c", SOURCE, "calls", &flags) else { return };
            let file = fs::read(&program).unwrap();
            let imports = imports_of(&file);
            for name in ["malloc", "free", "atoi", "getenv"] {
                let own: Vec<_> = imports.iter().filter(|import| import.name == name.as_bytes()).collect();
                assert_eq!(own.len(), 1, "{name} {flags:?}");
                assert_eq!((own[0].version, own[0].is_for_calls), (Some(&b"GLIBC_2.2.5"[..]), is_for_calls), "{name}");
            }
        }
        assert!(imports_of(b"no ELF file").is_empty());
        let file = fs::read(scratch.path("calls")).unwrap();
        assert!(imports_of(&file[..file.len() / 2]).is_empty(), "what says where sections are is at the end");
    }
}
