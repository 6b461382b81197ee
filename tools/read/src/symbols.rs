//! `<module>.sym`: the functions of a module.

use rftrace_format::symbols::{Head, SymbolLine};

use crate::demangle::Demangle;
use crate::error::Result;
use crate::lines::Lines;
use crate::made_names::is_made;
use crate::warning::{Warning, Warnings};

/// The maximum number of symbols of all modules of a trace.
const MAX_SYMBOLS: usize = 1 << 23;

/// The longest name in bytes; of longer ones the beginning is kept.
const MAX_NAME_BYTES: usize = 4096;

/// A function, or whatever else has a name in a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Symbol {
    /// The address of its first byte, relative to its module.
    pub(crate) addr: u64,
    /// Its size in bytes, never 0.
    pub(crate) size: u64,
    /// Its name as it is shown.
    pub(crate) name: Box<str>,
}

/// The symbols of a module, sorted by address.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SymbolTable {
    /// The file's module, by its head.
    pub(crate) head: Head,
    /// True if any line has a mangled name too.
    pub(crate) has_mangled_names: bool,
    symbols: Vec<Symbol>,
}

impl SymbolTable {
    /// Reads a symbol file, with or without the size column. Unknown lines are counted and ignored. Symbols of other
    /// files count for the limit too.
    ///
    /// Without a size a symbol ends at the next line's address. A last line without size or end marker names nothing,
    /// and so does every symbol of size 0, as in uftrace. Behind a tab may be the mangled name, for another form of the
    /// name by `demangle`.
    pub(crate) fn read(mut lines: Lines, n_others: usize, demangle: Demangle, warnings: &mut Warnings) -> Result<Self> {
        let mut table = Self::default();
        let mut previous = None;
        while let Some(line) = lines.next()? {
            if table.head.add(line) {
                continue;
            }
            let Some(symbol) = SymbolLine::parse(line) else {
                warnings.add(Warning::UnknownLine, 1);
                continue;
            };
            let SymbolLine { addr, size, kind, name, mangled } = symbol;
            // One name for each address: the first.
            if previous == Some((addr, kind)) || !SymbolLine::KINDS.contains(kind) {
                continue;
            }
            previous = Some((addr, kind));
            if let Some(last) = table.symbols.last_mut().filter(|last| last.size == 0) {
                last.size = addr.saturating_sub(last.addr);
            }
            table.has_mangled_names |= mangled.is_some();
            if !symbol.is_end() {
                if n_others + table.symbols.len() >= MAX_SYMBOLS {
                    let reason = format!(
                        "the modules have more than {MAX_SYMBOLS} symbols; remove the file, and name the \
                         called functions by `rftrace symbols`"
                    );
                    return Err(lines.error(&reason));
                }
                let name = demangle.name(name, mangled);
                let name = &name[..name.floor_char_boundary(MAX_NAME_BYTES)];
                table.symbols.push(Symbol { addr, size, name: name.into() });
            }
        }
        table.symbols.retain(|symbol| symbol.size > 0);
        table.symbols.sort_by_key(|symbol| symbol.addr);
        table.symbols.shrink_to_fit();
        Ok(table)
    }

    /// Adds the module's name to names made of addresses: `sub_64da0@redis-server`.
    pub(crate) fn add_module_to_made_names(&mut self, module: &str) {
        for symbol in self.symbols.iter_mut().filter(|symbol| is_made(&symbol.name)) {
            symbol.name = format!("{}@{module}", symbol.name).into();
        }
    }

    /// Returns the symbol around `addr`, relative to the module.
    pub(crate) fn find(&self, addr: u64) -> Option<&Symbol> {
        let after = self.symbols.partition_point(|symbol| symbol.addr <= addr);
        let symbol = self.symbols.get(after.checked_sub(1)?)?;
        (addr - symbol.addr < symbol.size).then_some(symbol)
    }

    /// All names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.symbols.iter().map(|symbol| &*symbol.name)
    }

    /// The number of symbols.
    pub(crate) fn len(&self) -> usize {
        self.symbols.len()
    }

    /// True if any name has a path, as those of C++ and Rust have.
    pub(crate) fn has_paths(&self) -> bool {
        self.symbols.iter().any(|symbol| symbol.name.contains("::"))
    }

    /// The first address after all symbols.
    pub(crate) fn end(&self) -> u64 {
        self.symbols.last().map_or(0, |symbol| symbol.addr.saturating_add(symbol.size))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read(text: &'static [u8], demangle: Demangle, warnings: &mut Warnings) -> SymbolTable {
        SymbolTable::read(Lines::new(Path::new("sym"), Box::new(text)), 0, demangle, warnings).unwrap()
    }

    fn parse(text: &'static str) -> SymbolTable {
        let mut warnings = Warnings::default();
        let table = read(text.as_bytes(), Demangle::Simple, &mut warnings);
        assert!(warnings.is_empty(), "{warnings}");
        table
    }

    fn name(table: &SymbolTable, addr: u64) -> &str {
        table.find(addr).map_or("", |symbol| &symbol.name)
    }

    #[test]
    fn without_sizes() {
        let table = parse(
            "# symbols: 5\n# path name: /bin/a\n# build-id: 12\n\
             0000000000001000 T main\n0000000000001010 t <a as b>::c\n0000000000001020 ? __func_end\n\
             0000000000001040 P printf\n0000000000001050 ? __sym_end\n0000000000001060 T dangling\n",
        );
        assert_eq!(table.head.path.as_deref(), Some("/bin/a"));
        assert_eq!(table.head.build_id.as_deref(), Some("12"));
        assert_eq!(name(&table, 0xfff), "");
        assert_eq!(name(&table, 0x1000), "main");
        assert_eq!(name(&table, 0x100f), "main");
        assert_eq!(name(&table, 0x101f), "<a as b>::c");
        assert_eq!(name(&table, 0x1020), "");
        assert_eq!(name(&table, 0x104f), "printf");
        assert_eq!(name(&table, 0x1050), "");
        assert_eq!(name(&table, 0x1060), "");
        assert_eq!(table.end(), 0x1050);
    }

    #[test]
    fn with_sizes_in_any_order() {
        let table = parse("0000000000002000 00000010 T b\n0000000000001000 00000008 T a\n");
        assert_eq!(name(&table, 0x1007), "a");
        assert_eq!(name(&table, 0x1008), "");
        assert_eq!(name(&table, 0x200f), "b");
    }

    #[test]
    fn first_name_of_an_address_wins() {
        let table = parse("1000 T a\n1000 T alias\n1000 X ignored\n1010 ? __func_end\n");
        assert_eq!(name(&table, 0x1000), "a");
    }

    #[test]
    fn mangled_names() {
        let text =
            b"1000 T draw\t_Z4drawi\n1010 T draw\t_Z4drawPKc.isra.0\n1020 T app::id\t_ZN3app2id17h0123456789abcdefE\n\
                     1030 T start\t[ext4]\n1040 T plain\n1050 T wrong\t_Z4dr\n1060 ? __func_end\n";
        let names = |demangle| {
            let table = read(text, demangle, &mut Warnings::default());
            assert!(table.has_mangled_names);
            table.symbols.into_iter().map(|symbol| String::from(symbol.name)).collect::<Vec<_>>()
        };
        assert_eq!(names(Demangle::Simple), ["draw", "draw", "app::id", "start", "plain", "wrong"]);
        let full = ["draw(int)", "draw(char const*).isra.0", "app::id::h0123456789abcdef", "start", "plain", "wrong"];
        assert_eq!(names(Demangle::Full), full);
        let mangled = ["_Z4drawi", "_Z4drawPKc.isra.0", "_ZN3app2id17h0123456789abcdefE", "start", "plain", "_Z4dr"];
        assert_eq!(names(Demangle::No), mangled);
    }

    #[test]
    fn made_names_have_a_module() {
        let mut table = parse("1000 T sub_1000\n1010 T main\n1020 ? __func_end\n");
        table.add_module_to_made_names("redis-server");
        assert_eq!([0x1000, 0x1010].map(|addr| name(&table, addr)), ["sub_1000@redis-server", "main"]);
    }

    #[test]
    fn nonsense_is_counted() {
        let mut warnings = Warnings::default();
        let text = b"\nnonsense\nxyz T f\n10 T\n10 TT f\n10 5zz T f\n\xff\xff\n";
        assert_eq!(read(text, Demangle::Simple, &mut warnings), SymbolTable::default());
        assert_eq!(warnings.count(Warning::UnknownLine), 7);
    }

    #[test]
    fn the_end_of_the_address_space() {
        let table = parse("ffffffffffffffff 00000010 T f\n");
        assert_eq!(name(&table, u64::MAX), "f");
        assert_eq!(table.end(), u64::MAX);
    }
}
