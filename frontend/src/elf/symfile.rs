//! The symbol file of a module, of its table of functions.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read as _, Write};
use std::iter;
use std::path::Path;

use rftrace_format::opener;
use rftrace_format::symbols::{Head, ModuleId, SymbolFileNames, SymbolLine, ValueLines, ValuesOf};
use rftrace_format::values::{self, ValueSpec};

use super::table::{Binding, Symbol, SymbolTable};

/// Writes the symbol file of a module in many small pieces to `out`.
///
/// `map_path` is the module's path as in the map. Leave the file out if the table is empty: uftrace takes an empty one
/// for none.
///
/// # Errors
/// The errors of `out`.
pub(crate) fn write_symbols(out: &mut impl Write, table: &SymbolTable, map_path: &str) -> io::Result<()> {
    let symbols = table.symbols();
    let head = Head {
        n_symbols: Some(symbols.len()),
        path: Some(map_path.to_owned()),
        build_id: table.build_id().map(str::to_owned),
    };
    write!(out, "{head}")?;
    let (mut lines, mut name) = (String::new(), String::new());
    for (symbol_idx, symbol) in symbols.iter().enumerate() {
        lines.clear();
        name.clear();
        table.append_name(symbol, &mut name);
        let line = SymbolLine {
            addr: symbol.address,
            size: symbol.size,
            kind: kind(symbol),
            name: &name,
            mangled: table.mangled_name(symbol),
        };
        // Writing to a string cannot fail.
        let _ = write!(lines, "{line}");
        let end = symbol.address.saturating_add(symbol.size);
        if symbols.get(symbol_idx + 1).is_none_or(|next| end < next.address) {
            let _ = write!(lines, "{}", SymbolLine::end(end));
        }
        out.write_all(lines.as_bytes())?;
    }
    Ok(())
}

/// Returns the text of the `.dbg` file with the values of functions, if this module has any: addresses in it, whether
/// it is the result, and the specs.
pub(crate) fn specs<'a>(
    table: &SymbolTable,
    map_path: &str,
    specs: impl Iterator<Item = (u64, bool, &'a [ValueSpec])>,
) -> Option<String> {
    let mut functions: BTreeMap<u64, ValuesOf> = BTreeMap::new();
    for (address, is_result, specs) in specs {
        let Some(symbol) = table.lookup(address) else { continue };
        let function = functions.entry(symbol.address).or_insert_with(|| ValuesOf {
            name: table.name(symbol),
            arguments: None,
            result: None,
        });
        let part = if is_result { &mut function.result } else { &mut function.arguments };
        part.get_or_insert_with(|| values::list(specs));
    }
    if functions.is_empty() {
        return None;
    }
    let build_id = table.build_id().map(str::to_owned);
    let head = Head { n_symbols: None, path: Some(map_path.to_owned()), build_id };
    let lines = functions.iter().map(|(addr, function)| ValueLines { addr: *addr, function }.to_string());
    Some(iter::once(head.to_string()).chain(lines).collect())
}

/// Returns the name of the symbol file for `module` in `directory`, among those of others. `None` if another module has
/// the name expected by uftrace.
///
/// # Errors
/// The error of reading the file with the plain name.
pub(crate) fn file_name_in(directory: &Path, module: ModuleId<'_>) -> io::Result<Option<String>> {
    let mut names = SymbolFileNames::default();
    let plain = module.plain_name();
    match opener::open(&directory.join(&plain)) {
        Ok(file) => {
            let mut head = Vec::new();
            file.take(Head::MAX_BYTES as u64).read_to_end(&mut head)?;
            names.take(plain, Head::parse(&head));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(names.name(module))
}

fn kind(symbol: &Symbol) -> char {
    match symbol.binding {
        Binding::Local => 't',
        Binding::Global => 'T',
        Binding::Weak => 'w',
        Binding::Imported => 'P',
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::read_symbols;
    use super::super::testutil::{Scratch, run, works};
    use super::*;
    use std::fs;
    use std::process::Command;

    fn text(table: &SymbolTable, map_path: &str) -> String {
        let mut out = Vec::new();
        write_symbols(&mut out, table, map_path).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn writes_symbols_and_the_ends_before_gaps() {
        let list = [
            (0x11d9, 0x19, "leaf"),
            (0x11f2, 0x1f, "_RNvC7mycrate3mid"),
            (0x1220, 0x10, "ends early"),
            // A size that reaches into the next function.
            (0x1240, 0x100, "overlapping"),
            (0x1250, 0x9, "last\twith tab"),
        ];
        let table = SymbolTable::from_list(&list, Some("b43fc9ef81c4e3fe843842c1239349b5998de3c1"));
        assert_eq!(
            text(&table, "/tmp/u/a"),
            "\
# symbols: 5
# path name: /tmp/u/a
# build-id: b43fc9ef81c4e3fe843842c1239349b5998de3c1
00000000000011d9 T leaf
00000000000011f2 T mycrate::mid\t_RNvC7mycrate3mid
0000000000001211 ? __func_end
0000000000001220 T ends early
0000000000001230 ? __func_end
0000000000001240 T overlapping
0000000000001250 T last_with tab
0000000000001259 ? __func_end
"
        );
    }

    #[test]
    fn writes_headers_without_and_with_a_long_build_id() {
        assert_eq!(text(&SymbolTable::from_list(&[], None), "/a"), "# symbols: 0\n# path name: /a\n");
        let long = "0123456789abcdef".repeat(4);
        let table = SymbolTable::from_list(&[(0, u64::MAX, "all")], Some(&long));
        assert_eq!(
            text(&table, "/a"),
            "\
# symbols: 1
# path name: /a
# build-id: 0123456789abcdef0123456789abcdef01234567
0000000000000000 T all
ffffffffffffffff ? __func_end
"
        );
    }

    #[test]
    fn passes_errors_on() {
        let table = SymbolTable::from_list(&[(0, 1, "a")], None);
        assert_eq!(write_symbols(&mut &mut [0; 30][..], &table, "/a").unwrap_err().kind(), io::ErrorKind::WriteZero);
    }

    /// Records a program with the installed uftrace, puts our symbol files in place of its own, and compares the
    /// output.
    #[test]
    fn uftrace_reads_our_files() {
        let source = r#"
int leaf(int x) { return x + 1; }
int mid(int x) { return leaf(x) * 2; }
int main(void) { return mid(3) - 8; }
"#;
        let scratch = Scratch::new("symfile-uftrace");
        for (name, arguments) in [("pie", ["-pg", "-pie", "-fPIE"]), ("fixed", ["-pg", "-no-pie", "-g"])] {
            let Some(program) = scratch.compile("a.c", source, name, &arguments) else {
                return;
            };
            let data = scratch.path("data");
            let mut record = Command::new("uftrace");
            record.args(["record", "--no-libcall", "-d"]).arg(&data).arg(&program);
            if !works(&mut record) {
                return;
            }
            let mut replay = Command::new("uftrace");
            replay.args(["replay", "--no-pager", "-f", "none", "-d"]).arg(&data);
            let before = run(&mut replay);
            assert!(before.contains("leaf();"), "{before}");

            let file = data.join(format!("{name}.sym"));
            let ours = text(&read_symbols(&program).unwrap(), program.to_str().unwrap());
            fs::write(&file, &ours).unwrap();
            assert_eq!(run(&mut replay), before);
            // It really reads that file.
            fs::write(&file, ours.replace(" leaf\n", " <Leaf<A, B> as C>::{closure#0}\n")).unwrap();
            assert_eq!(run(&mut replay), before.replace("leaf()", "<Leaf<A, B> as C>::{closure#0}()"));
            // With another path in the plain file, it reads the one that is named by the build-id.
            let id = super::super::file::build_id(&program).unwrap();
            if let Some(id) = id.as_deref() {
                fs::write(&file, ours.replace("# path name: ", "# path name: /other")).unwrap();
                let path = program.to_str().unwrap();
                let owner = format!("/other{path}");
                let modules = [&owner, path].map(|path| ModuleId { path, build_id: Some(id) });
                let marked = data.join(SymbolFileNames::of(modules)[1].as_deref().unwrap());
                fs::write(marked, ours.replace(" leaf\n", " marked\n")).unwrap();
                assert_eq!(run(&mut replay), before.replace("leaf()", "marked()"));
            }
        }
    }
}
