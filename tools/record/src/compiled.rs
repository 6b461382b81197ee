//! Functions of precompiled libraries, such as those of Rust's standard library.

use std::fs;
use std::path::Path;

use object::read::archive::ArchiveFile;
use object::{Object, ObjectSymbol, SymbolKind};
use rftrace_read::{Error, Result, files};

/// Returns the symbols of all functions that the `.rlib` files of a folder define, ascending.
///
/// A program that is linked with these libraries has such functions from them. Other instances of their generic
/// functions come from the program's own compilation, and have other symbols.
///
/// # Errors
///
/// The folder or a library cannot be read, or a file is no library.
pub fn compiled_functions(folder: &Path) -> Result<Vec<String>> {
    let io = |source| Error::Io { path: folder.to_owned(), source };
    let mut symbols = Vec::new();
    for entry in fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.extension().is_none_or(|suffix| suffix != "rlib") {
            continue;
        }
        let bytes = files::read(&path, u64::MAX)?;
        let malformed = |error: object::read::Error| Error::malformed(&path, 0, format!("not a library: {error}"));
        let library = ArchiveFile::parse(&*bytes).map_err(malformed)?;
        for member in library.members() {
            let member = member.map_err(malformed)?;
            // There is metadata too.
            let Ok(object) = object::File::parse(member.data(&*bytes).map_err(malformed)?) else { continue };
            let functions =
                object.symbols().filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text);
            symbols.extend(functions.filter_map(|symbol| Some(symbol.name().ok()?.to_owned())));
        }
    }
    symbols.sort_unstable();
    symbols.dedup();
    Ok(symbols)
}
