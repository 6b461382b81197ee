//! The files of a trace beside its records, on their way from the sender's trace to the receiver's.
//!
//! Not here: the list of these files (`rftrace_format::companion`), and the sending (`sender`).

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rftrace_format::companion::{COMPANIONS, Companion};
use rftrace_format::files::{File as TraceFile, RESOURCES};

use super::output::{entries, link};

/// The companions of a trace that its receiver cannot make from its own files, in the order of sending.
pub(crate) fn files_of(dir: &Path) -> Result<Vec<(Companion, PathBuf)>> {
    let symbols = symbol_files(dir)?;
    let place = |name: &str| symbols.iter().position(|known| known == name).and_then(|place| u32::try_from(place).ok());
    let which = |path: PathBuf| Some((Companion::of(&path.file_name()?.to_string_lossy(), place)?, path));
    let mut files: Vec<_> = entries(dir)?.into_iter().filter_map(which).collect();
    files.sort();
    Ok(files)
}

/// Puts the companions in `work` into the trace made of the rest. If both have one, the sender's is right: it knows
/// more. Returns true if the trace then has recorded resources.
pub(crate) fn put(work: &Path, trace: &Path) -> Result<bool> {
    let dir = work.join(COMPANIONS);
    if !dir.is_dir() {
        return Ok(false);
    }
    let symbols = symbol_files(trace)?;
    for path in entries(&dir)? {
        // The receiver has named it by its number.
        let number = path.file_name().and_then(|name| name.to_str()?.parse().ok());
        let Some(name) = number.and_then(Companion::of_word).and_then(|which| which.name(&symbols)) else { continue };
        let to = trace.join(name);
        match fs::remove_file(&to) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", to.display()));
            }
            _ => link(&path, &to)?,
        }
    }
    Ok(trace.join(RESOURCES).exists())
}

/// The names of the symbol files in a trace, in order: both ends have the same.
fn symbol_files(dir: &Path) -> Result<Vec<String>> {
    let name = |path: PathBuf| Some(path.file_name()?.to_string_lossy().into_owned());
    let mut names: Vec<String> = entries(dir)?.into_iter().filter_map(name).collect();
    names.retain(|name| TraceFile::of(name) == Some(TraceFile::Symbols));
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_files_come_into_the_trace() {
        let folder = tempfile::tempdir().expect("a folder");
        let (work, trace) = (folder.path().join("work"), folder.path().join("trace"));
        fs::create_dir_all(work.join(COMPANIONS)).expect("room");
        fs::create_dir(&trace).expect("room");
        for name in ["a.sym", "b.sym", "info", "7.dat"] {
            fs::write(trace.join(name), "own").expect("room");
        }
        let names = [Companion::Info, Companion::Lines(1), Companion::Lines(2), Companion::Perf(0)]
            .map(|it| it.word().to_string());
        for name in names.iter().map(String::as_str).chain(["7.dat", "x", "-1", "0"]) {
            fs::write(work.join(COMPANIONS).join(name), "sent").expect("room");
        }
        assert!(!put(&work, &trace).expect("all is there"));
        let mut found: Vec<(String, String)> = Vec::new();
        for path in entries(&trace).expect("a folder") {
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            found.push((name, fs::read_to_string(&path).expect("a text")));
        }
        found.sort();
        let wanted = [
            ("7.dat", "own"),
            ("a.sym", "own"),
            ("b.dbg", "sent"),
            ("b.sym", "own"),
            ("info", "sent"),
            ("perf-cpu0.dat", "sent"),
        ];
        assert_eq!(found, wanted.map(|(name, text)| (name.to_owned(), text.to_owned())));
        // Both ends have the same names for the same files.
        let files = files_of(&trace).expect("a folder");
        let numbers: Vec<Companion> = files.iter().map(|(which, _)| *which).collect();
        assert_eq!(numbers, [Companion::Perf(0), Companion::Lines(1), Companion::Info]);
    }
}
