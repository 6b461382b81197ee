//! The names of functions in a running process.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rftrace_format::system;

use super::numbers::folder_of;
use crate::elf::file::map_file;
use crate::elf::table::{self, SymbolTable};
use crate::host::linux::modules::{self, Module};

/// The functions of a process with their addresses, from its maps. An unloaded module keeps its names until another one
/// takes its place.
#[derive(Debug)]
pub struct Names {
    process: PathBuf,
    /// Lines of the maps at different times, the latest last.
    maps: Vec<Vec<u8>>,
    modules: Vec<Named>,
}

/// A module, and its functions once one was asked for; `None` if its file cannot be read.
#[derive(Debug)]
struct Named {
    module: Module,
    table: Option<Option<SymbolTable>>,
}

/// The number of remembered maps. With endless loads and unloads, the oldest are forgotten.
const MOST_MAPS: usize = 16;

impl Names {
    /// Reads the functions of a process.
    #[must_use]
    pub fn of_process(pid: u32) -> Self {
        let mut names = Self { process: folder_of(pid), maps: Vec::new(), modules: Vec::new() };
        names.look();
        names
    }

    /// Reads the functions of a process that may have ended, from the path of its program and lines of its maps, the
    /// latest last.
    #[must_use]
    pub fn of_maps(pid: u32, exe: &[u8], maps: &[Vec<u8>]) -> Self {
        let mut names = Self { process: folder_of(pid), maps: Vec::new(), modules: Vec::new() };
        names.add_maps(exe, maps);
        names
    }

    /// Adds the files of maps from other times.
    pub fn add_maps(&mut self, exe: &[u8], maps: &[Vec<u8>]) {
        let own = std::mem::take(&mut self.maps);
        let maps = maps.iter().map(|maps| files_of_maps(maps)).filter(|maps| !maps.is_empty());
        self.maps = own.into_iter().chain(maps).collect();
        self.maps.dedup();
        self.maps.drain(..self.maps.len().saturating_sub(MOST_MAPS));
        self.find_modules(Path::new(OsStr::from_bytes(exe)));
    }

    /// Reads the present maps. Returns whether there are new modules.
    pub fn look(&mut self) -> bool {
        let maps = system::read(self.process.join("maps")).unwrap_or_default();
        let files = files_of_maps(&maps);
        // One that has ended has none.
        if files.is_empty() || self.maps.last() == Some(&files) {
            return false;
        }
        self.maps.push(files);
        if self.maps.len() > MOST_MAPS {
            self.maps.remove(0);
        }
        self.find_modules(&modules::exe_behind(&self.process.join("exe")).unwrap_or_default());
        true
    }

    fn find_modules(&mut self, exe: &Path) {
        let mut known = std::mem::take(&mut self.modules);
        let named = |module: Module| {
            let place = known.iter().position(|named| named.module == module);
            place.map(|place| known.swap_remove(place)).unwrap_or(Named { module, table: None })
        };
        self.modules = modules::modules_of(&self.maps, exe, &root(&self.process)).into_iter().map(named).collect();
    }

    /// Returns the file name of the module around an address, and where it begins.
    #[must_use]
    pub fn module(&self, address: u64) -> Option<(String, u64)> {
        let is_it = |named: &&Named| (named.module.start..named.module.end).contains(&address);
        let module = &self.modules.iter().find(is_it)?.module;
        Some((module.path.file_name()?.to_string_lossy().into_owned(), module.start))
    }

    /// Returns the name of the function around an address, in the form of `rftrace report`.
    pub fn name(&mut self, address: u64) -> Option<String> {
        let named = self.modules.iter_mut().find(|named| (named.module.start..named.module.end).contains(&address))?;
        let Named { module, table } = named;
        let read = || {
            let file = module.file_in(&self.process)?;
            let mut table = table::symbols_of(map_file(&file).ok()?, &module.path).ok()?;
            // Calls through them may be recorded.
            table.add_imports();
            Some(table)
        };
        let table = table.get_or_insert_with(read).as_ref()?;
        table.lookup(address - module.start).map(|symbol| table.name(symbol))
    }
}

/// Returns the root of a process's files, after its end that of this process.
fn root(process: &Path) -> PathBuf {
    let root = process.join("root");
    if root.exists() { root } else { PathBuf::from("/") }
}

/// Returns the lines of maps for files, and for the stack.
fn files_of_maps(maps: &[u8]) -> Vec<u8> {
    let lines: Vec<&[u8]> =
        maps.split(|&byte| byte == b'\n').filter(|line| line.contains(&b'/') || line.ends_with(b"[stack]")).collect();
    lines.join(&b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_this_program_have_names() {
        let mut names = Names::of_process(std::process::id());
        let own = functions_of_this_program_have_names as *const () as u64;
        let name = names.name(own).unwrap();
        assert!(name.ends_with("functions_of_this_program_have_names"), "{name}");
        assert_eq!((names.name(1), names.module(1)), (None, None));
        let start = names.module(own).unwrap().1;
        assert_eq!(names.module(start), names.module(own));
    }
}
