//! The functions of an ELF file for a trace from elsewhere: from a kernel, or from another machine.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rftrace_format::record::ADDRESS_MASK;

use super::code::Code;
use super::file::{map_file, page_size};
use super::imports::imports_of;
use super::symfile;
use super::table::{self, SymbolTable};
use crate::Error;
use rftrace_format::symbols::{ModuleId, short_build_id};

/// An ELF file and its functions, for a trace from a kernel or from another machine.
#[derive(Clone, Debug)]
pub struct Binary {
    path: PathBuf,
    table: SymbolTable,
    code: Option<Code>,
    imports: Vec<(u64, String)>,
}

impl Binary {
    /// Reads the functions of the file at `path`, from `.symtab` or, in a stripped file, from `.dynsym`.
    ///
    /// # Errors
    ///
    /// [`Error::Read`] if the file cannot be read or is no ELF file.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let read = || -> io::Result<Self> {
            let file = map_file(path)?;
            let code = Code::with_calls(Arc::clone(&file), path)?;
            let table = table::symbols_of(Arc::clone(&file), path)?;
            let imports = imports_of(&file).into_iter().map(|import| {
                let name = String::from_utf8_lossy(import.name).into_owned();
                (import.address.saturating_sub(table.link_address()), name)
            });
            Ok(Self { path: path.to_owned(), code, imports: imports.collect(), table })
        };
        read().map_err(|error| unreadable(error, path))
    }

    /// Returns the file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the GNU build-id in lower-case hexadecimal, with as many digits as trace directories have.
    #[must_use]
    pub fn build_id(&self) -> Option<&str> {
        self.table.build_id().map(short_build_id)
    }

    /// Returns the number of functions; 0 for a file without symbols.
    #[must_use]
    pub fn n_functions(&self) -> usize {
        self.table.symbols().len()
    }

    /// Returns the slots for called functions of other modules: the distance of each slot from the beginning of the
    /// lowest segment in bytes, and the function's name. Empty on processors other than x86-64.
    pub fn imports(&self) -> impl Iterator<Item = (u64, &str)> {
        self.imports.iter().map(|(address, name)| (*address, &**name))
    }

    /// Returns the link address of the lowest loadable segment's first page.
    #[must_use]
    pub fn link_address(&self) -> u64 {
        self.table.link_address()
    }

    /// Returns the address of that page at run time, found by the addresses of records: at least half of them must fit.
    /// `None` if no address fits.
    #[must_use]
    pub fn find_load_address(&self, recorded: &HashSet<u64>) -> Option<u64> {
        /// The number of addresses for finding places, and of tried places.
        const SAMPLE: usize = 64;
        const TRIED: usize = 8;
        /// A call to the hook ends within so many bytes of a function's beginning, mostly.
        const PROLOGUE_BYTES: u64 = 64;

        let step = (recorded.len() / SAMPLE).max(1);
        let mut sorted: Vec<u64> = recorded.iter().copied().collect();
        sorted.sort_unstable();
        let mut votes: HashMap<u64, usize> = HashMap::new();
        for address in sorted.into_iter().step_by(step) {
            for symbol in self.table.symbols() {
                let start = address.wrapping_sub(symbol.address) & ADDRESS_MASK;
                if start % page_size() < PROLOGUE_BYTES {
                    *votes.entry(start - start % page_size()).or_default() += 1;
                }
            }
        }
        let mut places: Vec<(usize, u64)> = votes.into_iter().map(|(start, n_votes)| (n_votes, start)).collect();
        places.sort_unstable_by_key(|&(n_votes, start)| (Reverse(n_votes), start));
        let count = |start: u64| {
            let loaded = self.loaded_at(start);
            recorded.iter().filter(|&&address| loaded.is_recorded_at(address)).count()
        };
        let counted = places.into_iter().take(TRIED).map(|(_, start)| (count(start), start));
        let (n_known, start) = counted.reduce(|best, next| if next.0 > best.0 { next } else { best })?;
        (2 * n_known >= recorded.len()).then_some(start)
    }

    /// Its functions alone.
    pub(crate) fn into_table(self) -> SymbolTable {
        self.table
    }

    /// Returns the functions for a run with that page at `address`.
    #[must_use]
    pub fn loaded_at(&self, address: u64) -> LoadedBinary {
        let page = address - address % page_size();
        let (range, table) = self.table.clone().loaded_at(Some(page));
        LoadedBinary { range, table, code: self.code.clone(), slide: page.wrapping_sub(self.link_address()) }
    }
}

/// A [`Binary`] at its address at run time. All addresses have 48 bits, as in records.
#[derive(Clone, Debug)]
pub struct LoadedBinary {
    range: Range<u64>,
    /// Relative to the beginning of `range`.
    table: SymbolTable,
    code: Option<Code>,
    /// The distance of its address from its link address.
    slide: u64,
}

impl LoadedBinary {
    /// Returns the address range of the binary's functions, in whole pages.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Returns true if a record may hold `address`: the beginning of a function, or a place behind a call in it.
    ///
    /// Functions lie close together, so even in a wrong binary most addresses fall into some function.
    #[must_use]
    pub fn is_recorded_at(&self, address: u64) -> bool {
        let Some(offset) = address.checked_sub(self.range.start) else { return false };
        let Some(symbol) = self.table.lookup(offset) else { return false };
        let is_behind_call = || self.code.as_ref()?.has_call_before(self.linked(address));
        symbol.address == offset || is_behind_call().unwrap_or(true)
    }

    /// The address in the file.
    fn linked(&self, address: u64) -> u64 {
        canonical(address.wrapping_sub(self.slide) & ADDRESS_MASK)
    }

    /// Returns the functions in order, each as its address relative to `start`, its address in the file, and its name.
    ///
    /// `start` must not lie above the beginning of [`range`](Self::range).
    pub fn functions(&self, start: u64) -> impl Iterator<Item = (u64, u64, String)> {
        let offset = self.range.start.saturating_sub(start);
        self.table.symbols().iter().map(move |symbol| {
            (symbol.address + offset, self.linked(self.range.start + symbol.address), self.table.name(symbol))
        })
    }

    /// Writes the symbol file of the module with the path `map_path` and the address `start` in the memory map.
    ///
    /// `start` must not lie above the beginning of [`range`](Self::range).
    ///
    /// # Errors
    ///
    /// The errors of `out`.
    pub fn write_symbols(&self, out: &mut impl Write, map_path: &str, start: u64) -> io::Result<()> {
        let offset = self.range.start.saturating_sub(start);
        symfile::write_symbols(out, &self.table.clone().moved_up(offset), map_path)
    }

    /// Returns the name for a module's symbol file in `directory`, which may hold those of other modules. `None` if
    /// another module's file has the name expected by uftrace.
    ///
    /// # Errors
    ///
    /// The error of reading an existing symbol file.
    pub fn symbol_file(directory: &Path, map_path: &str, build_id: Option<&str>) -> io::Result<Option<String>> {
        symfile::file_name_in(directory, ModuleId { path: map_path, build_id })
    }
}

/// The error of reading the symbols of a binary. It names the path at its beginning.
fn unreadable(error: io::Error, path: &Path) -> Error {
    let text = error.to_string();
    let text = text.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&text);
    let remedy = match error.kind() {
        io::ErrorKind::InvalidData => {
            "; give a 64-bit ELF file; for a kernel, the file before the conversion to a boot image"
        }
        _ => "",
    };
    Error::Read { path: path.to_owned(), source: io::Error::new(error.kind(), format!("{text}{remedy}")) }
}

/// The 64 bits of an address: bit 47 is repeated above.
fn canonical(address: u64) -> u64 {
    const UNUSED_BITS: u32 = rftrace::abi::ADDRESS_SHIFT;
    (address << UNUSED_BITS).cast_signed().wrapping_shr(UNUSED_BITS).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::canonical;

    #[test]
    fn addresses_of_both_halves() {
        assert_eq!(canonical(0x7fff_ffff_f000), 0x7fff_ffff_f000);
        assert_eq!(canonical(0xffff_8010_0000), 0xffff_ffff_8010_0000);
    }
}
