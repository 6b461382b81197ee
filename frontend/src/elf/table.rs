//! The functions of an ELF file: address, size and a readable name.
//!
//! The file stays mapped while its [`SymbolTable`] lives. The table holds 24 bytes per function and no names: a name is
//! demangled on demand, so even the table of a huge program costs little more than its symbols.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, SectionTable, Sym};

use rftrace_format::record::ADDRESS_MASK;
use rftrace_format::symbols::{Head, SymbolLine};
use rftrace_format::text;

use super::file::{ENDIAN, Header, find_build_id, invalid, map_file, page_size};
use super::imports::{SLOT_BYTES, imports_of};
use super::names::{NAME_MAX_BYTES, append_readable, append_with_parameters};
use super::separate;

/// The functions of one file, by address, one per address.
#[derive(Clone, Debug)]
pub(crate) struct SymbolTable {
    symbols: Vec<Symbol>,
    /// The file itself; the names may be in another one.
    file: Option<Arc<Mmap>>,
    names: Names,
    /// Names besides the file's own functions; see [`add_hooked`](SymbolTable::add_hooked).
    made_names: Vec<u8>,
    build_id: Option<String>,
    /// The link address of the module's start.
    link_address: u64,
}

/// Set in a symbol's name: it is among the table's own. Files of that size hold no string tables.
const MADE_NAME: u32 = 1 << 31;

/// One function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Symbol {
    /// Address relative to the start of the module, see [`Module`](crate::host::linux::modules::Module).
    pub(crate) address: u64,
    /// Size in bytes, never 0. For a symbol without a size: up to the next one or the end of its section.
    pub(crate) size: u64,
    /// The offset of the name in the string table.
    name: u32,
    section: u16,
    /// Visibility of the symbol when modules are linked.
    pub(crate) binding: Binding,
    /// True if the file calls this a function. Otherwise it is an untyped label of assembly.
    pub(crate) is_function: bool,
}

/// Visibility of a symbol to the linker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binding {
    /// Only its own object file.
    Local,
    /// Every module.
    Global,
    /// Every module, and a global symbol of the same name replaces it.
    Weak,
    /// It is in another module. The address is that of the slot for its calls.
    Imported,
}

/// The string table with the names.
#[derive(Clone, Debug)]
enum Names {
    /// A range of the mapped file.
    Mapped(Arc<Mmap>, std::ops::Range<usize>),
    /// All names are the table's own.
    None,
    #[cfg(test)]
    Owned(Vec<u8>),
}

impl SymbolTable {
    /// Returns the functions in ascending order of their addresses.
    pub(crate) fn symbols(&self) -> &[Symbol] {
        &self.symbols
    }

    /// Returns the link address of the module's start.
    pub(crate) fn link_address(&self) -> u64 {
        self.link_address
    }

    /// Returns the GNU build-id of the file in lower-case hexadecimal.
    pub(crate) fn build_id(&self) -> Option<&str> {
        self.build_id.as_deref()
    }

    /// Returns the function around `address`, relative to the start of the module.
    pub(crate) fn lookup(&self, address: u64) -> Option<&Symbol> {
        let after = self.symbols.partition_point(|symbol| symbol.address <= address);
        self.symbols[..after].last().filter(|symbol| address - symbol.address < symbol.size)
    }

    /// Returns the name of `symbol` as a reader wants it: demangled, without symbol version and Rust hash, on one line.
    pub(crate) fn name(&self, symbol: &Symbol) -> String {
        let mut name = String::new();
        self.append_name(symbol, &mut name);
        name
    }

    /// Appends the result of [`name`](Self::name) to `out`.
    pub(crate) fn append_name(&self, symbol: &Symbol, out: &mut String) {
        append_readable(self.raw_name(symbol), out);
    }

    /// Returns the name of a C++ function with its parameters, left out by [`name`](Self::name).
    pub(crate) fn name_with_parameters(&self, symbol: &Symbol) -> Option<String> {
        let raw = String::from_utf8_lossy(self.raw_name(symbol));
        let mut full = String::new();
        append_with_parameters(&raw, &mut full).then_some(full)
    }

    /// Returns the mangled name, without symbol version, if it is one. It tells overloads and instances with one
    /// [`name`](Self::name) apart. Those too long to be shown in full are left out.
    pub(crate) fn mangled_name(&self, symbol: &Symbol) -> Option<&str> {
        let raw = str::from_utf8(self.raw_name(symbol)).ok()?;
        let name = raw.split('@').next().unwrap_or_default();
        let is_mangled = name.starts_with("_Z") || name.starts_with("_R");
        (is_mangled && name.len() <= NAME_MAX_BYTES && !name.contains(char::is_control)).then_some(name)
    }

    /// Adds hooked places without a function in the file, by address (relative to the start of the module) and size:
    /// slots for calls of other modules' functions, and functions known by their addresses.
    pub(crate) fn add_hooked(&mut self, hooked: impl Iterator<Item = (u64, u64)>) {
        let hooked: Vec<(u64, u64)> = hooked.filter(|&(address, _)| self.lookup(address).is_none()).collect();
        let file = self.file.clone().filter(|_| !hooked.is_empty());
        let imports = file.iter().flat_map(|file| imports_of(file));
        let imports: HashMap<u64, &[u8]> = imports.map(|import| (import.address, import.name)).collect();
        for (address, size) in hooked {
            let Ok(name) = u32::try_from(self.made_names.len()) else { return };
            let link_address = self.link_address.saturating_add(address);
            let binding = match imports.get(&link_address) {
                Some(name) => {
                    self.made_names.extend_from_slice(name);
                    Binding::Imported
                }
                None => {
                    self.made_names.extend_from_slice(Self::name_of_unnamed(link_address).as_bytes());
                    Binding::Local
                }
            };
            self.made_names.push(0);
            let name = name | MADE_NAME;
            self.symbols.push(Symbol { address, size: size.max(1), name, section: 0, binding, is_function: true });
        }
        self.symbols.sort_by_key(|symbol| symbol.address);
    }

    /// Adds all slots for calls of other modules' functions.
    pub(crate) fn add_imports(&mut self) {
        let imports = self.file.iter().flat_map(|file| imports_of(file));
        let slots: Vec<(u64, u64)> =
            imports.map(|import| (import.address.saturating_sub(self.link_address), SLOT_BYTES)).collect();
        self.add_hooked(slots.into_iter());
    }

    /// Returns the name of a function without one in the file, by its address in the file.
    pub(crate) fn name_of_unnamed(address: u64) -> String {
        format!("sub_{address:x}")
    }

    /// Returns the name as it stands in the file, or nothing if it lies outside of the string table.
    pub(crate) fn raw_name(&self, symbol: &Symbol) -> &[u8] {
        if symbol.name & MADE_NAME != 0 {
            return string_at(&self.made_names, symbol.name & !MADE_NAME);
        }
        let strings = match &self.names {
            Names::Mapped(file, range) => file.get(range.clone()).unwrap_or_default(),
            Names::None => &[],
            #[cfg(test)]
            Names::Owned(strings) => strings,
        };
        string_at(strings, symbol.name)
    }

    /// Returns the range of the functions with the start of the module at `load_address` (or, with `None`, at its link
    /// address), and the table relative to the start of that range.
    ///
    /// All addresses are cut to the bits of a record. So the parts of a kernel in the upper and the lower half of the
    /// address space may change places, and the start need not be that of the file's lowest segment.
    pub(crate) fn loaded_at(mut self, load_address: Option<u64>) -> (std::ops::Range<u64>, Self) {
        let start = load_address.map_or(self.link_address, |address| address - address % page_size());
        for symbol in &mut self.symbols {
            symbol.address = start.wrapping_add(symbol.address) & ADDRESS_MASK;
            symbol.size = symbol.size.min(ADDRESS_MASK - symbol.address).max(1);
        }
        self.symbols.sort_by_key(|symbol| symbol.address);
        self.symbols.dedup_by_key(|symbol| symbol.address);
        let first = self.symbols.first().map_or(start & ADDRESS_MASK, |symbol| symbol.address);
        let first = first - first % page_size();
        let end = self.symbols.iter().map(|symbol| symbol.address + symbol.size).max().unwrap_or(first);
        for symbol in &mut self.symbols {
            symbol.address -= first;
        }
        (first..end.next_multiple_of(page_size()).min(ADDRESS_MASK), self)
    }

    /// Returns the table with all addresses `offset` higher.
    pub(crate) fn moved_up(mut self, offset: u64) -> Self {
        for symbol in &mut self.symbols {
            symbol.address = symbol.address.saturating_add(offset);
        }
        self
    }

    /// Returns the functions in a symbol file of a trace, for a module without its file. Lines without a symbol are
    /// passed over.
    #[cfg_attr(not(feature = "std"), allow(dead_code, reason = "only for what a recorder elsewhere has sent"))]
    pub(crate) fn of_text(text: &[u8]) -> Self {
        let (mut symbols, mut made_names) = (Vec::<Symbol>::new(), Vec::new());
        for (_, line) in text::lines(text) {
            let Some(line) = SymbolLine::parse(&line).filter(|line| line.addr <= ADDRESS_MASK) else { continue };
            if let Some(before) = symbols.last_mut().filter(|before| before.size == 0) {
                before.size = line.addr.saturating_sub(before.address).max(1);
            }
            let Ok(name) = u32::try_from(made_names.len()) else { break };
            if line.is_end() || name & MADE_NAME != 0 {
                continue;
            }
            let binding = match line.kind {
                'T' => Binding::Global,
                'w' => Binding::Weak,
                'P' => Binding::Imported,
                _ => Binding::Local,
            };
            made_names.extend(line.mangled.unwrap_or(line.name).bytes().filter(|&byte| byte != 0));
            made_names.push(0);
            let (address, size) = (line.addr, line.size);
            symbols.push(Symbol { address, size, name: name | MADE_NAME, section: 0, binding, is_function: true });
        }
        if let Some(last) = symbols.last_mut().filter(|last| last.size == 0) {
            last.size = 1;
        }
        symbols.sort_by_key(|symbol| symbol.address);
        symbols.dedup_by_key(|symbol| symbol.address);
        let build_id = Head::parse(text).build_id.filter(|id| id.bytes().all(|byte| byte.is_ascii_hexdigit()));
        Self { symbols, file: None, names: Names::None, made_names, build_id, link_address: 0 }
    }

    /// Returns a table of global functions with these addresses, sizes and names.
    #[cfg(test)]
    pub(crate) fn from_list(list: &[(u64, u64, &str)], build_id: Option<&str>) -> Self {
        let mut strings = Vec::new();
        let mut symbols = Vec::new();
        for &(address, size, name) in list {
            let start = u32::try_from(strings.len()).unwrap();
            symbols.push(Symbol {
                address,
                size,
                name: start,
                section: 1,
                binding: Binding::Global,
                is_function: true,
            });
            strings.extend_from_slice(name.as_bytes());
            strings.push(0);
        }
        let build_id = build_id.map(str::to_owned);
        Self { symbols, file: None, names: Names::Owned(strings), made_names: Vec::new(), build_id, link_address: 0 }
    }
}

/// Reads the functions of the ELF file at `path`, from `.symtab`. A stripped file may have it in a separate one; otherwise `.dynsym` counts.
///
/// A file without any symbols gives an empty table.
///
/// # Errors
/// [`InvalidData`](io::ErrorKind::InvalidData) if the file is no intact 64-bit little-endian ELF file, otherwise those of
/// opening and mapping it. All name the path.
#[allow(dead_code, reason = "asked for patched call sites, and by tests")]
pub(crate) fn read_symbols(path: &Path) -> io::Result<SymbolTable> {
    symbols_of(map_file(path)?, path)
}

/// Like [`read_symbols`], from a file mapped by [`map_file`].
///
/// # Errors
/// The errors of [`read_symbols`].
pub(crate) fn symbols_of(file: Arc<Mmap>, path: &Path) -> io::Result<SymbolTable> {
    let mut parsed = parse(&file).map_err(|error| invalid(path, error))?;
    let mut named = Arc::clone(&file);
    if let Some(separate) = separate::file_with_symbols(&file, path)
        && let Ok(found) = parse(&separate)
        && !found.symbols.is_empty()
        && found.link_address == parsed.link_address
    {
        (parsed, named) = (found, separate);
    }
    let Parsed { symbols, names, build_id, link_address } = parsed;
    let names = Names::Mapped(named, names);
    Ok(SymbolTable { symbols, file: Some(file), names, made_names: Vec::new(), build_id, link_address })
}

/// Symbols of a file.
struct Parsed {
    symbols: Vec<Symbol>,
    /// The range of the names in the file.
    names: std::ops::Range<usize>,
    build_id: Option<String>,
    link_address: u64,
}

fn parse(file: &[u8]) -> Result<Parsed, object::Error> {
    let header = Header::parse(file)?;
    let build_id = find_build_id(header, file)?;
    let mut lowest = u64::MAX;
    let mut highest = 0;
    for segment in header.program_headers(ENDIAN, file)? {
        if segment.p_type(ENDIAN) == elf::PT_LOAD {
            let address = segment.p_vaddr(ENDIAN);
            lowest = lowest.min(address);
            highest = highest.max(address.saturating_add(segment.p_memsz(ENDIAN)));
        }
    }
    // The kernel maps whole pages.
    let base = lowest - lowest % page_size();

    let sections = header.sections(ENDIAN, file)?;
    let mut found = (Vec::new(), 0..0);
    for table in [elf::SHT_SYMTAB, elf::SHT_DYNSYM] {
        found = read_table(&sections, file, table, base..highest)?;
        if !found.0.is_empty() {
            break;
        }
    }
    let (symbols, names) = found;
    Ok(Parsed { symbols, names, build_id, link_address: base })
}

/// Returns the functions in the first section of type `table`, and the range of their string table in the file.
///
/// `image` is the range of the file's addresses in memory.
fn read_table(
    sections: &SectionTable<'_, Header>,
    file: &[u8],
    table: elf::SectionType,
    image: std::ops::Range<u64>,
) -> Result<(Vec<Symbol>, std::ops::Range<usize>), object::Error> {
    let entries = sections.symbols(ENDIAN, file, table)?;
    if entries.is_empty() {
        return Ok((Vec::new(), 0..0));
    }
    let (start, size) = sections.section(entries.string_section())?.file_range(ENDIAN).unwrap_or_default();
    let start = usize::try_from(start).unwrap_or(usize::MAX);
    let names = start..start.saturating_add(usize::try_from(size).unwrap_or(usize::MAX));
    let strings = file.get(names.clone()).unwrap_or_default();

    let mut symbols = Vec::new();
    for entry in entries.iter() {
        let is_function = match entry.st_type() {
            elf::STT_FUNC | elf::STT_GNU_IFUNC => true,
            elf::STT_NOTYPE => false,
            _ => continue,
        };
        let address = entry.st_value(ENDIAN);
        let name = entry.st_name(ENDIAN);
        let section = entry.st_shndx(ENDIAN).0;
        if !image.contains(&address)
            || code_end(sections, section).is_none_or(|end| address >= end)
            || is_label(string_at(strings, name), is_function)
        {
            continue;
        }
        symbols.push(Symbol {
            address,
            size: entry.st_size(ENDIAN),
            name,
            section,
            binding: match entry.st_bind() {
                elf::STB_LOCAL => Binding::Local,
                elf::STB_WEAK => Binding::Weak,
                _ => Binding::Global,
            },
            is_function,
        });
    }
    Ok((tidy(symbols, strings, sections, image.start), names))
}

/// Returns the address after the last one of `section` if it holds code.
fn code_end(sections: &SectionTable<'_, Header>, section: u16) -> Option<u64> {
    // The reserved indices for undefined, absolute and common symbols name no section.
    if section == elf::SHN_UNDEF.0 || section >= elf::SHN_LORESERVE {
        return None;
    }
    let header = sections.section(object::SectionIndex(usize::from(section))).ok()?;
    let code = header.sh_flags(ENDIAN).contains(elf::SHF_ALLOC | elf::SHF_EXECINSTR);
    code.then(|| header.sh_addr(ENDIAN).saturating_add(header.sh_size(ENDIAN)))
}

/// Returns true if this is no function but a mark of a compiler or an assembler: without a name, or a label that starts
/// with the `$` of a mapping symbol or the dot of a local label.
fn is_label(name: &[u8], is_function: bool) -> bool {
    name.is_empty() || !is_function && (name.starts_with(b"$") || name.starts_with(b"."))
}

/// Sorts `symbols`, keeps one for each address, gives each a size, and makes their addresses relative to `base`.
fn tidy(mut symbols: Vec<Symbol>, strings: &[u8], sections: &SectionTable<'_, Header>, base: u64) -> Vec<Symbol> {
    symbols.sort_unstable_by_key(|symbol| symbol.address);
    symbols.dedup_by(|next, kept| {
        if next.address != kept.address {
            return false;
        }
        let size = kept.size.max(next.size);
        if rank(next, strings) < rank(kept, strings) {
            *kept = *next;
        }
        kept.size = size;
        true
    });

    // An untyped label inside of a function is a jump target, not a function.
    let mut covered = 0;
    symbols.retain(|symbol| {
        if symbol.is_function {
            covered = covered.max(symbol.address.saturating_add(symbol.size));
        }
        symbol.is_function || symbol.address >= covered
    });

    let mut next = u64::MAX;
    for symbol in symbols.iter_mut().rev() {
        let room = code_end(sections, symbol.section).unwrap_or(u64::MAX) - symbol.address;
        symbol.size = match symbol.size {
            0 => room.min(next - symbol.address),
            size => size.min(room),
        };
        next = symbol.address;
        symbol.address -= base;
    }
    symbols.shrink_to_fit();
    symbols
}

/// Returns the order of the symbols of one address; the lowest is kept. It depends on nothing but the symbols.
///
/// A function comes before a label, and a visible symbol before a hidden one. Of `write` (weak) and `__write` (global)
/// people know the first, so leading underscores count more than weakness; in mangled names they have no meaning.
fn rank<'a>(symbol: &Symbol, strings: &'a [u8]) -> (bool, bool, usize, bool, usize, &'a [u8]) {
    let name = string_at(strings, symbol.name);
    let mangled = name.starts_with(b"_Z") || name.starts_with(b"_R");
    let underscores = if mangled { 0 } else { name.iter().take_while(|&&byte| byte == b'_').count() };
    (
        !symbol.is_function,
        symbol.binding == Binding::Local,
        underscores,
        symbol.binding == Binding::Weak,
        name.len(),
        name,
    )
}

fn string_at(strings: &[u8], start: u32) -> &[u8] {
    let rest = usize::try_from(start).ok().and_then(|start| strings.get(start..)).unwrap_or_default();
    rest.split(|&byte| byte == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::super::file::build_id;
    use super::super::testutil::{Scratch, run};
    use super::*;

    const C_SOURCE: &str = r#"
#include <stdio.h>
static __attribute__((noinline)) int leaf(int x) { return x + 1; }
int __visible(int x) { return leaf(x) * 2; }
int visible(int x) __attribute__((weak, alias("__visible")));
int __attribute__((weak)) feeble(void) { return 3; }
int data_object = 5;
int main(void) { printf("%d %d\n", visible(data_object), feeble()); return 0; }
"#;

    fn names(table: &SymbolTable) -> Vec<String> {
        table.symbols().iter().map(|symbol| table.name(symbol)).collect()
    }

    fn find<'a>(table: &'a SymbolTable, name: &str) -> &'a Symbol {
        table.symbols().iter().find(|symbol| table.name(symbol) == name).unwrap_or_else(|| panic!("no {name}"))
    }

    /// Checks order and lookup, and that every sized function in the list of `nm` is found at its address.
    fn check_against_nm(path: &Path, base: u64, option: &str) {
        let table = read_symbols(path).unwrap();
        let symbols = table.symbols();
        assert!(symbols.is_sorted_by(|a, b| a.address < b.address));
        for symbol in symbols {
            assert!(symbol.size > 0);
            assert_eq!(table.lookup(symbol.address), Some(symbol));
        }
        let mut checked = 0;
        for line in run(Command::new("nm").args(["-S", "--defined-only", option]).arg(path)).lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let [address, size, "T" | "t" | "W" | "i", name] = fields[..] else {
                continue;
            };
            let address = u64::from_str_radix(address, 16).unwrap() - base;
            let size = u64::from_str_radix(size, 16).unwrap();
            let symbol = table.lookup(address).unwrap_or_else(|| panic!("{name} at {address:x}"));
            assert_eq!(symbol.address, address, "{name}");
            assert!(symbol.size >= size, "{name}");
            checked += 1;
        }
        assert!(checked > 0);
        let notes = run(Command::new("readelf").arg("-nW").arg(path));
        let id = notes.split_once("Build ID: ").map(|(_, rest)| rest.split_whitespace().next().unwrap());
        assert_eq!(table.build_id(), id);
        assert_eq!(build_id(path).unwrap().as_deref(), id);
    }

    #[test]
    fn reads_what_nm_reads() {
        let scratch = Scratch::new("symbols-nm");
        for (name, base, arguments) in [
            ("pie", 0, &["-pie", "-fPIE", "-Wl,--build-id"][..]),
            ("no-pie", 0x40_0000, &["-no-pie", "-Wl,--build-id=md5"]),
            ("odd-base", 0x1234_5000, &["-no-pie", "-Wl,-Ttext-segment=0x12345000", "-Wl,--build-id=0xabcd1234"]),
            ("static", 0x40_0000, &["-static", "-Wl,--build-id=none"]),
            ("shared", 0, &["-shared", "-fPIC"]),
        ] {
            let Some(program) = scratch.compile("a.c", C_SOURCE, name, arguments) else {
                continue;
            };
            check_against_nm(&program, base, "--special-syms");
            if name != "static" {
                let table = read_symbols(&program).unwrap();
                assert_eq!(find(&table, "leaf").binding, Binding::Local);
                assert_eq!(find(&table, "feeble").binding, Binding::Weak);
                // Of two names for one address, the one without underscores.
                find(&table, "visible");
                assert!(
                    !names(&table).iter().any(|name| name == "__visible" || name == "data_object" || name == "etext")
                );
            }
        }
    }

    #[test]
    fn stripped_files_give_their_dynamic_symbols() {
        let scratch = Scratch::new("symbols-stripped");
        let Some(library) = scratch.compile("a.c", C_SOURCE, "lib.so", &["-shared", "-fPIC", "-s"]) else {
            return;
        };
        check_against_nm(&library, 0, "-D");
        let table = read_symbols(&library).unwrap();
        find(&table, "visible");
        assert!(!names(&table).iter().any(|name| name == "leaf"));
        let program = scratch.compile("a.c", C_SOURCE, "prog", &["-s", "-static", "-Wl,--build-id"]).unwrap();
        let table = read_symbols(&program).unwrap();
        assert_eq!(table.symbols(), []);
        assert_eq!(table.lookup(0x1000), None);
        assert_eq!(table.build_id().map(str::len), Some(40));
    }

    #[test]
    fn labels_of_assembly() {
        let source = r#"
    .text
    .globl _start, sized, unsized, after
_start:                         # untyped, far from any other: a function
    call unsized
    call sized
    hlt
    .balign 16
    .type sized, @function
sized:
    nop
inner:                          # a jump target
    jmp inner
    ret
    .size sized, . - sized
    .balign 16
    .type unsized, @function
unsized:
    ret
    nop
after:                          # follows a function without a size
    ret
    .section .rodata
constant:
    .long 1
"#;
        let scratch = Scratch::new("symbols-asm");
        let arguments = ["-nostdlib", "-static", "-no-pie", "-Wl,--build-id=none"];
        let Some(program) = scratch.compile("a.s", source, "prog", &arguments) else {
            return;
        };
        let table = read_symbols(&program).unwrap();
        assert_eq!(names(&table), ["_start", "sized", "unsized", "after"]);
        let sizes: Vec<u64> = table.symbols().iter().map(|symbol| symbol.size).collect();
        assert_eq!(sizes, [16, 4, 2, 1]);
        let sized = find(&table, "sized").address;
        assert_eq!(table.lookup(sized + 3).map(|symbol| table.name(symbol)).as_deref(), Some("sized"));
        // The padding belongs to nothing, nor does what lies around the table.
        assert_eq!(table.lookup(sized + 4), None);
        assert_eq!(table.lookup(0), None);
        assert_eq!(table.lookup(u64::MAX), None);
        assert_eq!(table.build_id(), None);
    }

    #[test]
    fn cpp_names_agree_with_nm() {
        let source = r#"
#include <vector>
#include <string>
namespace ns {
struct Thing {
    Thing(int); ~Thing();
    int operator()(int) const; Thing &operator+=(const Thing &);
    operator bool() const;
    template <typename T> T twice(T value) const;
};
Thing::Thing(int) {} Thing::~Thing() {}
int Thing::operator()(int x) const { return x; }
Thing &Thing::operator+=(const Thing &) { return *this; }
Thing::operator bool() const { return true; }
template <typename T> T Thing::twice(T value) const { return value + value; }
namespace { int hidden(int (*f)(int)) { return f(1); } }
int user(const std::vector<std::string> &v) { return hidden([](int x) { return x; }) + v.size(); }
}
template int ns::Thing::twice<int>(int) const;
template double ns::Thing::twice<double>(double) const;
int main() { return ns::user({}); }
"#;
        let scratch = Scratch::new("symbols-cpp");
        let Some(program) = scratch.compile("a.cpp", source, "prog", &["-O0"]) else {
            return;
        };
        let table = read_symbols(&program).unwrap();
        let ours = names(&table);
        for name in [
            "ns::Thing::~Thing",
            "ns::Thing::operator()",
            "ns::Thing::operator+=",
            "ns::Thing::operator bool",
            "ns::Thing::twice<int>",
            "ns::Thing::twice<double>",
            "ns::(anonymous namespace)::hidden",
            "ns::user",
            "main",
        ] {
            assert!(ours.iter().any(|our| our == name), "{name} not in {ours:#?}");
        }
        // Every name is how that of nm starts, but for return types, and for how blanks are set between brackets.
        let plain = |name: &str| name.replace(' ', "");
        for line in run(Command::new("nm").args(["-C", "--defined-only"]).arg(&program)).lines() {
            let mut fields = line.splitn(3, ' ');
            let address = u64::from_str_radix(fields.next().unwrap(), 16).unwrap();
            let ("W" | "T" | "t", Some(theirs)) = (fields.next().unwrap(), fields.next()) else {
                continue;
            };
            if let Some(symbol) =
                table.lookup(address).filter(|symbol| symbol.address == address && theirs.contains("ns::"))
            {
                let our = table.name(symbol).replace("{lambda(int)#1}", "{lambda");
                assert!(plain(theirs).contains(&plain(our.split("{lambda").next().unwrap())), "{our}\n{theirs}");
            }
        }
    }

    #[test]
    fn the_best_name_does_not_depend_on_the_order() {
        let strings = b"\0__write\0write\0_ZN1A1fEv\0aa\0ab\0";
        let symbol =
            |name, binding, is_function| Symbol { address: 0, size: 1, name, section: 1, binding, is_function };
        let best_first = [
            symbol(9, Binding::Weak, true),
            symbol(1, Binding::Global, true),
            symbol(25, Binding::Local, true),
            symbol(28, Binding::Local, true),
            symbol(15, Binding::Local, true),
            symbol(9, Binding::Global, false),
        ];
        assert!(best_first.is_sorted_by(|a, b| rank(a, strings) < rank(b, strings)));
    }

    #[test]
    fn broken_files_are_errors() {
        let scratch = Scratch::new("symbols-broken");
        let path = scratch.path("file");
        for contents in [&b""[..], b"\x7fELF", b"#!/bin/sh\n", &[0; 4096]] {
            fs::write(&path, contents).unwrap();
            for error in [read_symbols(&path).unwrap_err(), build_id(&path).unwrap_err()] {
                assert_eq!(error.kind(), io::ErrorKind::InvalidData);
                assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
            }
        }
        let missing = read_symbols(&scratch.path("missing")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        assert!(missing.to_string().contains("missing"));
        assert_eq!(read_symbols(Path::new("/dev/null")).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(read_symbols(Path::new("/")).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    /// Reads `file` and everything in the table, and does not care for the result.
    fn exercise(file: &[u8]) {
        if let Ok(Parsed { symbols, names, link_address, .. }) = parse(file) {
            let strings = file.get(names).unwrap_or_default().to_vec();
            let table = SymbolTable {
                file: None,
                symbols,
                names: Names::Owned(strings),
                made_names: Vec::new(),
                build_id: None,
                link_address,
            };
            for symbol in table.symbols() {
                assert!(symbol.size > 0);
                assert!(!table.name(symbol).contains('\n'));
                let _ = table.lookup(symbol.address + symbol.size - 1);
            }
        }
    }

    #[test]
    fn truncated_and_corrupted_files_do_not_panic() {
        let scratch = Scratch::new("symbols-fuzz");
        let Some(program) = scratch.compile("a.c", C_SOURCE, "prog", &[]) else {
            return;
        };
        let intact = fs::read(&program).unwrap();
        for length in (0..1024).chain((1024..intact.len()).step_by(61)) {
            exercise(&intact[..length]);
        }
        let header = Header::parse(&*intact).unwrap();
        let sections = usize::try_from(header.e_shoff(ENDIAN)).unwrap();
        let table = header.sections(ENDIAN, &*intact).unwrap();
        let symbols = table.iter().find(|section| section.sh_type(ENDIAN) == elf::SHT_SYMTAB).unwrap();
        let symbols = usize::try_from(symbols.sh_offset(ENDIAN)).unwrap();
        let mut file = intact.clone();
        let places = (0..1024).chain(sections..intact.len()).chain(symbols..symbols + 1024);
        for place in places {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                file[place] = value;
                exercise(&file);
            }
            file[place] = intact[place];
        }
        // Whole words at once, for sizes and offsets near the end of the address space.
        for place in (0..1024).step_by(8).chain((sections..intact.len() - 8).step_by(8)) {
            for value in [u64::MAX, 1 << 63, u64::MAX - 0xfff] {
                file[place..place + 8].copy_from_slice(&value.to_le_bytes());
                exercise(&file);
            }
            file[place..place + 8].copy_from_slice(&intact[place..place + 8]);
        }
    }
}
