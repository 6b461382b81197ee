//! The arguments and results of functions, from the debug information of a program: the tracer's instructions for
//! recording, and the form in which readers show the values.
//!
//! A value is recorded only if something proves in which register, or at which place on the stack, it is when the
//! function is entered:
//!
//! - the location list of the parameter, at the function's first instruction; or
//! - in code that is not optimised, the function's first instructions, which store it at the place that the debug
//!   information names.
//!
//! So no calling convention is needed for arguments, and none is relied on. `dwarf` walks through the functions.
//! `types` decides on the display of a type, `shape` of one with fields, and `composed` on the recording of the latter.
//! `results` finds the place of a result, and `returned` proves it. `library` has the values of functions of the C
//! library. `place` finds a parameter, with `entry` for the function's first instructions. `processor` has the
//! differences between processors, and `module` the result.

mod composed;
mod dwarf;
mod entry;
mod entry_aarch64;
mod entry_x86_64;
mod library;
mod module;
mod place;
mod processor;
mod results;
mod returned;
mod shape;
mod types;

use std::fs;
use std::io::Write;
use std::path::Path;

use rftrace_format::files::File as TraceFile;
use rftrace_format::opener::{self, MOST_TEXT};
use rftrace_format::store::Owned;
use rftrace_format::symbols::Head;
use rftrace_read::{Error, Result};

use crate::debug::object::{Bytes, File};

pub use self::module::ModuleValues;
use self::processor::Processor;

/// Reads the values of the functions in an ELF file for x86-64 or aarch64 from its debug information; `None` if it has
/// none.
///
/// # Errors
///
/// [`Error::Binary`] if the file, or its debug information, cannot be read.
pub fn read_values(path: &Path) -> Result<Option<ModuleValues>> {
    // As the system names it in maps.
    let path = &path.canonicalize().map_err(|source| Error::Io { path: path.to_owned(), source })?;
    let bytes = Bytes::read(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
    let wrong = |reason: String| Error::Binary { path: path.to_owned(), reason };
    let file = File::parse(&bytes).map_err(wrong)?;
    let Some(processor) = Processor::of(&file) else {
        return Err(wrong("the file is for another processor than x86-64 and aarch64".to_owned()));
    };
    let Some(debug) = file.debug() else { return Ok(None) };
    let mut module = dwarf::functions(processor, &file, debug)
        .map_err(|error| wrong(format!("cannot read its debug information: {error}")))?;
    module.path.clone_from(path);
    module.build_id = file.build_id();
    Ok(Some(module))
}

/// Writes the names of enumerations into a trace with recorded numbers.
///
/// # Errors
///
/// [`Error::Io`] and [`Error::WriteFile`].
pub fn name_values(owned: &Owned, modules: &[&ModuleValues]) -> Result<()> {
    let dir = owned.path();
    let failed = |source| Error::Io { path: dir.to_owned(), source };
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if TraceFile::of(&name) != Some(TraceFile::SourceLines) {
            continue;
        }
        let text = opener::read(&path, MOST_TEXT).map_err(|source| Error::Io { path: path.clone(), source })?;
        let head = Head::parse(&text);
        let Some(module) = modules.iter().find(|module| module.is_of(&head)) else { continue };
        let text = module.rewrite(&String::from_utf8_lossy(&text));
        let written = owned.replace(&name, |out| out.write_all(text.as_bytes()));
        written.map_err(|source| Error::WriteFile { path, source })?;
    }
    Ok(())
}
