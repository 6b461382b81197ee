//! `<module>.sym`: the functions of a module.

use crate::text;
use crate::warning::{Warning, Warnings};

/// The types of symbols that count; lines of other types are ignored.
const TYPES: &str = "?TtwPKDdvu";

/// A function, or whatever else has a name in a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Symbol {
    /// Where it starts, relative to its module.
    pub(crate) addr: u64,
    /// Its size in bytes, never 0.
    pub(crate) size: u64,
    /// Its name as it is shown: demangled, if the tracer did that.
    pub(crate) name: String,
}

/// The symbols of a module, sorted by address.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SymbolTable {
    /// The module that the file says it is for.
    pub(crate) path_name: Option<String>,
    pub(crate) build_id: Option<String>,
    symbols: Vec<Symbol>,
}

impl SymbolTable {
    /// Parses a symbol file, with or without the size column. Lines that are not understood are counted and ignored.
    ///
    /// Without a size a symbol ends where the next line's begins. A last line without size or end marker names nothing,
    /// and so does every symbol of size 0; uftrace reads them alike.
    pub(crate) fn parse(bytes: &[u8], warnings: &mut Warnings) -> Self {
        let mut table = Self::default();
        let mut previous = None;
        for (_, line) in text::lines(bytes) {
            if let Some(comment) = line.strip_prefix("# ") {
                table.comment(comment);
                continue;
            }
            let Some((addr, size, kind, name)) = symbol(&line) else {
                warnings.add(Warning::UnknownLine, 1);
                continue;
            };
            // One name for each address: the first.
            if previous == Some((addr, kind)) || !TYPES.contains(kind) {
                continue;
            }
            previous = Some((addr, kind));
            if let Some(last) = table.symbols.last_mut().filter(|last| last.size == 0) {
                last.size = addr.saturating_sub(last.addr);
            }
            let is_end = kind == '?' || matches!(name, "__sym_end" | "__dynsym_end" | "__func_end");
            if !is_end {
                table.symbols.push(Symbol { addr, size, name: name.to_owned() });
            }
        }
        table.symbols.retain(|symbol| symbol.size > 0);
        table.symbols.sort_by_key(|symbol| symbol.addr);
        table
    }

    fn comment(&mut self, comment: &str) {
        if let Some(path) = comment.strip_prefix("path name: ") {
            self.path_name = Some(path.to_owned());
        } else if let Some(id) = comment.strip_prefix("build-id: ") {
            self.build_id = Some(id.to_owned());
        }
    }

    /// The symbol around `addr`, which is relative to the module.
    pub(crate) fn find(&self, addr: u64) -> Option<&Symbol> {
        let after = self.symbols.partition_point(|symbol| symbol.addr <= addr);
        let symbol = self.symbols.get(after.checked_sub(1)?)?;
        (addr - symbol.addr < symbol.size).then_some(symbol)
    }

    /// The number of symbols.
    pub(crate) fn len(&self) -> usize {
        self.symbols.len()
    }

    /// The first address after all symbols.
    pub(crate) fn end(&self) -> u64 {
        self.symbols.last().map_or(0, |symbol| symbol.addr.saturating_add(symbol.size))
    }
}

/// Address, size (0 if the line has none), type and name.
fn symbol(line: &str) -> Option<(u64, u64, char, &str)> {
    let (addr, rest) = line.split_once(' ')?;
    let addr = u64::from_str_radix(addr, 16).ok()?;
    let (size, rest) = match rest.split_once(' ') {
        Some((size, after)) if size.starts_with(|first: char| first.is_ascii_digit()) => {
            (u64::from_str_radix(size, 16).ok()?, after)
        }
        _ => (0, rest),
    };
    let (kind, name) = rest.split_once(' ')?;
    let mut chars = kind.chars();
    let (Some(kind), None) = (chars.next(), chars.next()) else { return None };
    // Kernel symbols have their module after a tab.
    let name = name.split('\t').next().unwrap_or(name);
    Some((addr, size, kind, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> SymbolTable {
        let mut warnings = Warnings::default();
        let table = SymbolTable::parse(text.as_bytes(), &mut warnings);
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
        assert_eq!(table.path_name.as_deref(), Some("/bin/a"));
        assert_eq!(table.build_id.as_deref(), Some("12"));
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
    fn nonsense_is_counted() {
        let mut warnings = Warnings::default();
        let text = b"\nnonsense\nxyz T f\n10 T\n10 TT f\n10 5zz T f\n\xff\xff\n";
        assert_eq!(SymbolTable::parse(text, &mut warnings), SymbolTable::default());
        assert_eq!(warnings.count(Warning::UnknownLine), 7);
    }

    #[test]
    fn the_end_of_the_address_space() {
        let table = parse("ffffffffffffffff 00000010 T f\n");
        assert_eq!(name(&table, u64::MAX), "f");
        assert_eq!(table.end(), u64::MAX);
    }
}
