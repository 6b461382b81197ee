//! `<basename>.sym`: the functions of one module as text.
//!
//! ```text
//! # symbols: 2
//! # path name: /usr/bin/prog
//! # build-id: b43fc9ef81c4e3fe843842c1239349b5998de3c1
//! 00000000000011d9 t leaf
//! 00000000000011f2 ? __func_end
//! 0000000000001211 T main
//! 0000000000001260 ? __func_end
//! ```
//!
//! Addresses are relative to the start of the module's map line. A symbol ends where the next line starts, so a line of
//! type `?` ends it earlier; such lines are not counted in the first line, which only tells the reader how much to allocate.
//! The size column of uftrace 0.14 and later is left out, because older versions drop every line that has one.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read as _, Write};
use std::path::Path;

use crate::linux::symbols::{Binding, Symbol, SymbolTable};

/// Longest build-id that uftrace compares, in hexadecimal digits.
const BUILD_ID_MAX_DIGITS: usize = 40;

/// Name that ends the symbol before it.
const END_MARK: &str = "__func_end";

/// What the name of a symbol file depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ModuleId<'a> {
    /// Path as in the map, see [`map_path`](crate::linux::modules::map_path).
    pub(crate) map_path: &'a str,
    /// Build-id in hexadecimal, of any length.
    pub(crate) build_id: Option<&'a str>,
}

/// Returns what may stand for `build_id` in symbol files and maps: its first 40 digits.
///
/// uftrace keeps no more, and a longer one in a map line overruns a buffer of its reader.
pub(crate) fn short_build_id(build_id: &str) -> &str {
    build_id.get(..BUILD_ID_MAX_DIGITS).unwrap_or(build_id)
}

/// Writes the symbol file of a module in many small pieces to `out`.
///
/// `map_path` is the module's path as in the map. Leave the file out if the table is empty: uftrace takes an empty one
/// for none.
///
/// # Errors
/// Those of `out`.
pub(crate) fn write_symbols(out: &mut impl Write, table: &SymbolTable, map_path: &str) -> io::Result<()> {
    let symbols = table.symbols();
    writeln!(out, "# symbols: {}", symbols.len())?;
    writeln!(out, "# path name: {map_path}")?;
    if let Some(id) = table.build_id() {
        writeln!(out, "# build-id: {}", short_build_id(id))?;
    }

    let mut line = String::new();
    for (symbol_idx, symbol) in symbols.iter().enumerate() {
        line.clear();
        // Writing to a string cannot fail.
        let _ = write!(line, "{:016x} {} ", symbol.address, type_letter(symbol));
        table.append_name(symbol, &mut line);
        line.push('\n');
        let end = symbol.address.saturating_add(symbol.size);
        if symbols.get(symbol_idx + 1).is_none_or(|next| end < next.address) {
            let _ = writeln!(line, "{end:016x} ? {END_MARK}");
        }
        out.write_all(line.as_bytes())?;
    }
    Ok(())
}

/// Returns the name of the symbol file for each of `modules`, in their order.
///
/// The first module with a basename gets `<basename>.sym`. A different one gets what uftrace looks for when it finds that
/// the path or build-id in the plain file is another one: `<basename>-XXXX.sym` with the first four digits of the
/// build-id, or without one a checksum of the path. Several loads of one module share a name, so write a name once.
/// `None`: that name is taken too, and uftrace cannot tell the modules apart.
///
/// Leave out modules that get no file. If the first with a basename had none, uftrace would look only for the plain name.
pub(crate) fn file_names<'a>(modules: impl IntoIterator<Item = ModuleId<'a>>) -> Vec<Option<String>> {
    let mut owners: HashMap<String, ModuleId<'a>> = HashMap::new();
    let mut claim = |name: String, module: ModuleId<'a>| {
        let owner = owners.entry(name.clone()).or_insert(module);
        is_same(*owner, module).then_some(name)
    };
    modules
        .into_iter()
        .map(|module| {
            let base = basename(module.map_path);
            claim(format!("{base}.sym"), module).or_else(|| claim(format!("{base}-{}.sym", mark(module)), module))
        })
        .collect()
}

/// Returns the name of the symbol file for `module` in `directory`, where there may be others already. `None`: see
/// [`file_names`].
///
/// # Errors
/// Those of reading the file that has the plain name.
pub(crate) fn file_name_in(directory: &Path, module: ModuleId<'_>) -> io::Result<Option<String>> {
    let plain = directory.join(format!("{}.sym", basename(module.map_path)));
    let head = match File::open(&plain) {
        Ok(file) => head(file)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Head::default(),
        Err(error) => return Err(error),
    };
    let owner = head.map_path.as_ref().map(|map_path| ModuleId { map_path, build_id: head.build_id.as_deref() });
    Ok(file_names(owner.into_iter().chain([module])).pop().flatten())
}

/// The first lines of a symbol file.
#[derive(Default)]
struct Head {
    map_path: Option<String>,
    build_id: Option<String>,
}

fn head(file: File) -> io::Result<Head> {
    /// More than a path and a build-id take.
    const MAX_BYTES: u64 = 16 * 1024;
    let mut text = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let comments = || text.lines().map_while(|line| line.strip_prefix("# "));
    let value = |key: &str| comments().find_map(|line| line.strip_prefix(key)).map(str::to_owned);
    Ok(Head { map_path: value("path name: "), build_id: value("build-id: ") })
}

/// Returns whether uftrace takes the file of `owner` for the file of `module`.
fn is_same(owner: ModuleId<'_>, module: ModuleId<'_>) -> bool {
    let ids_differ = match (owner.build_id, module.build_id) {
        (Some(owner), Some(module)) => short_build_id(owner) != short_build_id(module),
        _ => false,
    };
    owner.map_path == module.map_path && !ids_differ
}

/// Returns what tells modules with one basename apart.
fn mark(module: ModuleId<'_>) -> String {
    match module.build_id {
        Some(id) => id.get(..4).unwrap_or(id).to_owned(),
        // uftrace adds the bytes up as signed numbers.
        None => {
            let sum =
                module.map_path.bytes().fold(0_u16, |sum, byte| sum.wrapping_add_signed(byte.cast_signed().into()));
            format!("{sum:04x}")
        }
    }
}

fn basename(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

fn type_letter(symbol: &Symbol) -> char {
    match symbol.binding {
        Binding::Local => 't',
        Binding::Global => 'T',
        Binding::Weak => 'w',
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::symbols::read_symbols;
    use crate::linux::symbols::testutil::{Scratch, run};
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
00000000000011f2 T mycrate::mid
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
        assert_eq!(short_build_id("abcd"), "abcd");
    }

    #[test]
    fn passes_errors_on() {
        let table = SymbolTable::from_list(&[(0, 1, "a")], None);
        assert_eq!(write_symbols(&mut &mut [0; 30][..], &table, "/a").unwrap_err().kind(), io::ErrorKind::WriteZero);
    }

    #[test]
    fn names_of_files() {
        let module = |map_path, build_id| ModuleId { map_path, build_id };
        let names = file_names([
            module("/bin/prog", Some("aaaa1111")),
            module("/lib/x.so", Some("bbbb1111")),
            // The same module loaded again.
            module("/lib/x.so", Some("bbbb1111")),
            // Same basename, other path; other path without build-id; other file at the same path.
            module("/opt/x.so", Some("cccc1111")),
            module("/usr/x.so", None),
            module("/lib/x.so", Some("dddd1111")),
            // Cannot be told from /opt/x.so.
            module("/srv/x.so", Some("cccc2222")),
            // The name that another file was given.
            module("/bin/x.so-cccc", Some("eeee1111")),
            module("plain", None),
        ]);
        let expected = [
            Some("prog.sym"),
            Some("x.so.sym"),
            Some("x.so.sym"),
            Some("x.so-cccc.sym"),
            Some("x.so-0340.sym"),
            Some("x.so-dddd.sym"),
            None,
            Some("x.so-cccc-eeee.sym"),
            Some("plain.sym"),
        ];
        assert_eq!(names.iter().map(Option::as_deref).collect::<Vec<_>>(), expected);
        assert_eq!(mark(module("/ä", None)), format!("{:04x}", (0x2f + 0xc3 - 0x100 + 0xa4 - 0x100_i32) as u16));
    }

    /// Lets the installed uftrace record a program, puts our symbol files in place of its own, and compares what it shows.
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
            if !record.output().is_ok_and(|output| output.status.success()) {
                // There is no uftrace, or it may not trace here.
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
            let id = crate::linux::symbols::build_id(&program).unwrap();
            if let Some(id) = id.as_deref() {
                fs::write(&file, ours.replace("# path name: ", "# path name: /other")).unwrap();
                let path = program.to_str().unwrap();
                let owner = format!("/other{path}");
                let modules = [&owner, path].map(|map_path| ModuleId { map_path, build_id: Some(id) });
                let marked = data.join(file_names(modules)[1].as_deref().unwrap());
                fs::write(marked, ours.replace(" leaf\n", " marked\n")).unwrap();
                assert_eq!(run(&mut replay), before.replace("leaf()", "marked()"));
            }
        }
    }
}
