//! The symbols of a stripped file, in a separate file named in its `.gnu_debuglink`.
//!
//! Not here: debug information (`rftrace-symbols`).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
use object::elf;
use object::read::elf::{FileHeader, SectionHeader, SectionTable};

use super::file::{ENDIAN, Header, find_build_id, map_file};

/// The folder of distributions for separate files.
const ROOT: &str = "/usr/lib/debug";

/// Returns debuggers' paths for the file `name`, named in the `.gnu_debuglink` of the binary at `path`.
pub fn places_of_debug_link(path: &Path, name: &[u8], root: &Path) -> Vec<PathBuf> {
    let (name, folder) = (OsStr::from_bytes(name), path.parent().unwrap_or(path));
    let below_root = root.join(folder.strip_prefix("/").unwrap_or(folder));
    vec![folder.join(name), folder.join(".debug").join(name), below_root.join(name)]
}

/// Returns the file with the symbols of the one at `path`, if that has only symbols for the dynamic linker. Both have
/// the same build-id.
pub(super) fn file_with_symbols(file: &[u8], path: &Path) -> Option<Arc<Mmap>> {
    let (header, sections) = parse(file)?;
    if has_symbols(&sections) {
        return None;
    }
    let build_id = find_build_id(header, file).ok()??;
    let (_, link) = sections.section_by_name(ENDIAN, b".gnu_debuglink")?;
    let name = link.data(ENDIAN, file).ok()?.split(|&byte| byte == 0).next()?;
    let is_it = |file: &Arc<Mmap>| {
        parse(file).is_some_and(|(header, sections)| {
            has_symbols(&sections) && find_build_id(header, file).is_ok_and(|id| id.as_ref() == Some(&build_id))
        })
    };
    places_of_debug_link(path, name, Path::new(ROOT)).iter().filter_map(|place| map_file(place).ok()).find(is_it)
}

fn parse(file: &[u8]) -> Option<(&Header, SectionTable<'_, Header>)> {
    let header = Header::parse(file).ok()?;
    Some((header, header.sections(ENDIAN, file).ok()?))
}

fn has_symbols(sections: &SectionTable<'_, Header>) -> bool {
    sections.iter().any(|section| section.sh_type(ENDIAN) == elf::SHT_SYMTAB)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use crate::elf::table::{SymbolTable, read_symbols};
    use crate::elf::testutil::{Scratch, works};

    fn names(table: &SymbolTable) -> Vec<(u64, String)> {
        table.symbols().iter().map(|symbol| (symbol.address, table.name(symbol))).collect()
    }

    #[test]
    fn stripped_files_have_the_names_of_their_separate_ones() {
        const SOURCE: &str = "static __attribute__((noinline)) int own(int a) { return a + 3; }\nint main(int c, char **v) { return own(c); }\n";

        let scratch = Scratch::new("separate");
        let arguments = ["-O1", "-Wl,--build-id=0x0123456789abcdef"];
        let Some(program) = scratch.compile("a.c", SOURCE, "a", &arguments) else { return };
        let whole = names(&read_symbols(&program).unwrap());
        assert!(whole.iter().any(|(_, name)| name == "own"), "{whole:?}");
        let run = |tool: &str, arguments: &[&str]| {
            works(Command::new(tool).args(arguments).current_dir(program.parent().unwrap()))
        };
        let is_made = run("objcopy", &["--only-keep-debug", "a", "a.names"])
            && run("strip", &["a"])
            && run("objcopy", &["--add-gnu-debuglink=a.names", "a"]);
        if !is_made {
            return;
        }
        assert_eq!(names(&read_symbols(&program).unwrap()), whole);
        // Calls of other modules are those of the file itself.
        let mut table = read_symbols(&program).unwrap();
        table.add_imports();
        assert!(names(&table).iter().any(|(_, name)| name == "__libc_start_main"), "{:?}", names(&table));

        fs::create_dir(scratch.path(".debug")).unwrap();
        fs::rename(scratch.path("a.names"), scratch.path(".debug/a.names")).unwrap();
        assert_eq!(names(&read_symbols(&program).unwrap()), whole);

        // Another build's.
        assert!(run("gcc", &["-O1", "-Wl,--build-id=0xffff456789abcdef", "a.c", "-o", ".debug/a.names"]));
        let stripped = names(&read_symbols(&program).unwrap());
        assert!(stripped.iter().all(|(_, name)| name != "own"), "{stripped:?}");
    }
}
