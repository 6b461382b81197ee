//! The functions of an ELF file for a trace that was recorded elsewhere: by a kernel, or on another machine.

use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::symbols::{self, ADDRESS_MASK, SymbolTable};
use super::sysinfo::page_size;
use crate::Error;
use crate::image::import::unreadable;
use crate::uftrace::symfile::{self, ModuleId};

/// An ELF file, and the functions in it.
#[derive(Clone, Debug)]
pub struct Binary {
    path: PathBuf,
    table: SymbolTable,
}

impl Binary {
    /// Reads the functions of the file at `path`, from `.symtab` or, in a stripped file, from `.dynsym`.
    ///
    /// # Errors
    ///
    /// [`Error::Read`].
    pub fn read(path: &Path) -> Result<Self, Error> {
        let table = symbols::read_symbols(path).map_err(|error| unreadable(error, path))?;
        Ok(Self { path: path.to_owned(), table })
    }

    /// The file that was read.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The GNU build-id in lower-case hexadecimal: as many digits as trace directories have.
    #[must_use]
    pub fn build_id(&self) -> Option<&str> {
        self.table.build_id().map(symfile::short_build_id)
    }

    /// How many functions it has; none if it was stripped of all.
    #[must_use]
    pub fn n_functions(&self) -> usize {
        self.table.symbols().len()
    }

    /// The address for which the page of its lowest loadable segment was linked.
    #[must_use]
    pub fn link_address(&self) -> u64 {
        self.table.link_address()
    }

    /// The functions when that page lies at `address`.
    #[must_use]
    pub fn loaded_at(&self, address: u64) -> LoadedBinary {
        let page = address - address % page_size();
        let (range, table) = self.table.clone().loaded_at(Some(page));
        LoadedBinary { range, table, slide: page.wrapping_sub(self.link_address()) }
    }
}

/// A [`Binary`] at an address. All addresses are of 48 bits, as in records.
#[derive(Clone, Debug)]
pub struct LoadedBinary {
    range: Range<u64>,
    /// Relative to the beginning of `range`.
    table: SymbolTable,
    /// How much higher it is than it was linked.
    slide: u64,
}

impl LoadedBinary {
    /// Where its functions lie, in whole pages.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Whether a function is at `address`.
    #[must_use]
    pub fn has_function_at(&self, address: u64) -> bool {
        address.checked_sub(self.range.start).is_some_and(|offset| self.table.lookup(offset).is_some())
    }

    /// The functions in order: address relative to `start`, address as in the file, name.
    ///
    /// `start` must not lie above the beginning of [`range`](Self::range).
    pub fn functions(&self, start: u64) -> impl Iterator<Item = (u64, u64, String)> {
        let offset = self.range.start.saturating_sub(start);
        self.table.symbols().iter().map(move |symbol| {
            let linked = (self.range.start + symbol.address).wrapping_sub(self.slide) & ADDRESS_MASK;
            (symbol.address + offset, canonical(linked), self.table.name(symbol))
        })
    }

    /// Writes the symbol file of the module whose line in the map has the path `map_path` and begins at `start`.
    ///
    /// `start` must not lie above the beginning of [`range`](Self::range).
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn write_symbols(&self, out: &mut impl Write, map_path: &str, start: u64) -> io::Result<()> {
        let offset = self.range.start.saturating_sub(start);
        symfile::write_symbols(out, &self.table.clone().moved_up(offset), map_path)
    }

    /// The name of the symbol file in `directory`, where those of other modules may be. `None`: what uftrace would look for
    /// is taken by another one.
    ///
    /// # Errors
    ///
    /// Those of reading the file that is there.
    pub fn symbol_file(directory: &Path, map_path: &str, build_id: Option<&str>) -> io::Result<Option<String>> {
        symfile::file_name_in(directory, ModuleId { map_path, build_id })
    }
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
