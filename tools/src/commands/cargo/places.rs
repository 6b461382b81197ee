//! The directories of traces, each for one program: a file beside them names the package of each.
//!
//! Not here: the names of programs (`runner`).

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rftrace_format::opener::{self, MOST_TEXT};
use rftrace_format::store;

/// The file, among the traces.
const FILE: &str = ".packages";

/// Returns the directory for the trace of a program with this name: that of its last run. `package` has the name and the folder of its
/// package. Programs of one name have their package in front, then a number.
pub(super) fn place(traces: &Path, name: &str, package: (&str, &str), taken: &HashSet<PathBuf>) -> Result<PathBuf> {
    let (package, folder) = package;
    let file = traces.join(FILE);
    let cannot = |what: &str| format!("cannot {what} {}", file.display());
    let text = if file.exists() {
        opener::read_text(&file, MOST_TEXT).with_context(|| cannot("read"))?
    } else {
        String::new()
    };
    // A path is the rest of its line.
    let mut owners: BTreeMap<&str, &str> = text.lines().filter_map(|line| line.split_once('\t')).collect();
    let with_package = (package != name && !package.is_empty()).then(|| format!("{package}-{name}"));
    let numbered = (2..).map(|number: u32| format!("{}-{number}", with_package.as_deref().unwrap_or(name)));
    let names = [name.to_owned()].into_iter().chain(with_package.clone()).chain(numbered);
    let is_free = |name: &String| {
        let dir = traces.join(name);
        let is_ours = owners.get(&**name).is_none_or(|&owner| owner == folder || !dir.exists());
        is_ours && !taken.contains(&dir)
    };
    let name = names.into_iter().find(is_free).unwrap_or_else(|| name.to_owned());
    if owners.insert(&name, folder) != Some(folder) && !folder.contains('\n') {
        let lines: String = owners.iter().map(|(name, folder)| format!("{name}\t{folder}\n")).collect();
        let write = || fs::create_dir_all(traces).and_then(|()| store::write(&file, lines));
        write().with_context(|| cannot("write"))?;
    }
    Ok(traces.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_has_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let traces = folder.path().join("a/traces");
        let mut taken = HashSet::new();
        let run = |name: &str, package: (&str, &str), taken: &HashSet<PathBuf>| {
            let dir = place(&traces, name, package, taken).unwrap();
            fs::create_dir_all(&dir).unwrap();
            dir.file_name().unwrap().to_str().unwrap().to_owned()
        };
        let (one, two, three) = (("one", "/w/one"), ("two", "/w/two"), ("two", "/other/two"));
        for _ in 0..2 {
            assert_eq!(run("it", one, &taken), "it");
            assert_eq!(run("it", two, &taken), "two-it");
            assert_eq!(run("it", three, &taken), "two-it-2");
            assert_eq!(run("one", one, &taken), "one");
        }
        // The library and the program of a package, in one run.
        taken.insert(traces.join("one"));
        assert_eq!(run("one", one, &taken), "one-2");
        // A trace that is gone was nobody's.
        fs::remove_dir(traces.join("it")).unwrap();
        assert_eq!(run("it", three, &taken), "it");
    }
}
