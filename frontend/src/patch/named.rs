//! A module and its functions as its file names them.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

use super::entry_outcome::{LeftOut, WholeReason};
use super::module::{Image, with_modules};
use crate::elf::code::Code;
use crate::elf::file::map_file;
use crate::elf::table::{Symbol, SymbolTable, symbols_of};
use crate::host::linux::modules::{exe_path, own_exe};

/// A module and the contents of its file.
pub(super) struct Module<'a> {
    pub(super) image: &'a Image<'a>,
    /// The name of its file.
    pub(super) name: String,
    pub(super) is_program: bool,
    pub(super) file: Option<Arc<Mmap>>,
    pub(super) symbols: Option<SymbolTable>,
    code: Option<Code>,
}

/// A chosen function.
pub(super) struct Function<'m> {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) symbol: Option<&'m Symbol>,
}

impl<'a> Module<'a> {
    pub(super) fn read(image: &'a Image<'a>) -> Self {
        let (path, shown) = if image.name.is_empty() {
            (own_exe().to_owned(), exe_path().unwrap_or_default())
        } else {
            let path = std::path::PathBuf::from(image.name.to_string_lossy().into_owned());
            (path.clone(), path)
        };
        Self::of(image, map_file(&path).ok(), &path, &shown, image.name.is_empty())
    }

    /// A module with its `file` for opening at `path`, under another name.
    pub(super) fn of(
        image: &'a Image<'a>,
        file: Option<Arc<Mmap>>,
        path: &Path,
        shown: &Path,
        is_program: bool,
    ) -> Self {
        let symbols = file.clone().and_then(|file| symbols_of(file, path).ok());
        let code = file.clone().and_then(|file| Code::of(file, path).ok());
        let name = shown.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self { image, name, is_program, file, symbols, code }
    }

    /// Returns the symbol of the function at `address`.
    pub(super) fn symbol(&self, address: usize) -> Option<&Symbol> {
        let relative = (address - self.image.start()) as u64;
        self.symbols.as_ref()?.lookup(relative).filter(|symbol| symbol.address == relative)
    }

    /// A function's name, as the trace shows it.
    pub(super) fn name_of(&self, function: &Function<'_>) -> String {
        match (&self.symbols, function.symbol) {
            (Some(table), Some(symbol)) => table.name(symbol),
            _ => SymbolTable::name_of_unnamed(self.link_address(function.start)),
        }
    }

    /// Its symbol, as it stands in the file.
    pub(super) fn raw_name(&self, function: &Function<'_>) -> Option<&[u8]> {
        self.symbols.as_ref().zip(function.symbol).map(|(table, symbol)| table.raw_name(symbol))
    }

    /// The address as in the file.
    pub(super) fn link_address(&self, address: usize) -> u64 {
        let link_address = self.symbols.as_ref().map_or(0, SymbolTable::link_address);
        (address - self.image.start()) as u64 + link_address
    }

    /// Returns the place in memory of an address in the file.
    pub(super) fn address(&self, link_address: u64) -> Option<usize> {
        let relative = link_address.checked_sub(self.link_address(self.image.start()))?;
        self.image.start().checked_add(usize::try_from(relative).ok()?)
    }

    /// Returns the module's code, without data by the file's sections: linkers may put both into one segment. A word
    /// with some data stays, and so do all parts that differ in memory and file.
    #[cfg(target_arch = "aarch64")]
    pub(super) fn code(&self) -> Vec<(usize, &[u8])> {
        const WORD: usize = size_of::<u32>();
        let whole_words = |data: &Range<u64>| {
            let [start, end] = [self.address(data.start)?.next_multiple_of(WORD), self.address(data.end)?];
            let words = start..end - end % WORD;
            self.is_as_in_file(start, self.image.bytes(words.clone())?)?.then_some(words)
        };
        let data = self.code.as_ref().map_or_else(Vec::new, Code::data);
        let data: Vec<Range<usize>> = data.iter().filter_map(whole_words).collect();
        self.image.texts().flat_map(|(start, code)| pieces_without(&data, start, code)).collect()
    }

    /// Notes a left-out function.
    pub(super) fn left_out(&self, function: &Function<'_>, reason: WholeReason) -> LeftOut {
        LeftOut {
            module: self.name.clone(),
            address: self.link_address(function.start),
            name: self.name_of(function),
            reason,
        }
    }

    /// Returns true if the file has these bytes at their place in memory.
    pub(super) fn is_as_in_file(&self, start: usize, bytes: &[u8]) -> Option<bool> {
        let told = self.code.as_ref()?.bytes(self.link_address(start), bytes.len())?;
        Some(told == bytes)
    }

    /// Checks that the code for copying is the file's.
    pub(super) fn check_unchanged(&self, code: Range<usize>) -> Result<(), WholeReason> {
        let start = code.start;
        let bytes = self.image.bytes(code).ok_or(WholeReason::Unreadable)?;
        match self.is_as_in_file(start, bytes) {
            None => Err(WholeReason::Unreadable),
            Some(false) => Err(WholeReason::Changed),
            Some(true) => Ok(()),
        }
    }
}

/// Calls `look` with all modules whose functions may have branches to a hook: not the hook's own, nor the dynamic
/// linker, nor the system's (vDSO).
pub(super) fn with_others(hook: usize, mut look: impl FnMut(&Image<'_>)) {
    // SAFETY: asks for numbers.
    let skipped = [libc::AT_SYSINFO_EHDR, libc::AT_BASE].map(|kind| unsafe { libc::getauxval(kind) } as usize);
    with_modules(|info| {
        // SAFETY: in the callback, and not used behind it.
        let image = unsafe { Image::new(info) }?;
        if !image.contains(hook) && !skipped.iter().any(|&address| address != 0 && image.contains(address)) {
            look(&image);
        }
        None::<()>
    });
}

/// Returns the code at `start` without these ascending parts: the rest, with its addresses.
#[cfg(any(test, target_arch = "aarch64"))]
fn pieces_without<'c>(parts: &[Range<usize>], start: usize, code: &'c [u8]) -> Vec<(usize, &'c [u8])> {
    let end = start + code.len();
    let (mut pieces, mut at) = (Vec::new(), start);
    let mut add = |from: usize, to: usize| {
        if from < to {
            pieces.push((from, &code[from - start..to - start]));
        }
    };
    for part in parts.iter().filter(|part| part.start < end) {
        add(at, part.start);
        at = at.max(part.end);
    }
    add(at, end);
    pieces
}

/// True if a compiler has moved this out of a function. Patterns do not mean such a part.
pub(super) fn is_cold(module: &Module<'_>, function: &Function<'_>) -> bool {
    module.raw_name(function).is_some_and(|name| name.windows(5).any(|part| part == b".cold"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_what_is_left() {
        let code: Vec<u8> = (0..16).collect();
        let without = |parts: &[Range<usize>]| -> Vec<(usize, Vec<u8>)> {
            let pieces = pieces_without(parts, 100, &code);
            pieces.into_iter().map(|(at, piece)| (at, piece.to_vec())).collect()
        };
        assert_eq!(without(&[]), [(100, code.clone())]);
        // In front, at the beginning, between, two side by side, behind.
        assert_eq!(
            without(&[40..80, 100..104, 108..112, 112..113, 116..120]),
            [(104, vec![4, 5, 6, 7]), (113, vec![13, 14, 15])]
        );
        assert_eq!(without(&[96..104, 114..130, 300..301]), [(104, (4..14).collect())]);
        // One in another, one that is empty, all.
        assert_eq!(without(&[102..112, 104..106, 112..112]), [(100, vec![0, 1]), (112, vec![12, 13, 14, 15])]);
        assert_eq!(without(&[0..400, 500..501]), []);
    }
}
