//! An allocator inside a program (jemalloc, mimalloc and others, linked statically, or a program's own `malloc`). Its
//! functions get branches, as no library can replace them.

use std::path::Path;

use anyhow::Result;
use rftrace_format::specification::{Does, Function};

use super::functions::Module;
use super::{Specification, Wanted};

/// The known functions, as a file in the users' format.
const KNOWN: &str = include_str!("built_in/allocator.toml");

/// A function of it.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) symbol: String,
    pub(super) does: Function<Vec<u8>>,
    pub(super) addresses: Vec<u64>,
}

/// The allocator's functions in a program.
#[derive(Debug)]
pub struct Allocator {
    pub(super) functions: Vec<Own>,
}

impl Allocator {
    /// Finds an allocator in a program, by its functions that allocate and free memory. `None` if the program is no ELF
    /// file, or has none.
    ///
    /// # Errors
    ///
    /// The built-in specification cannot be read.
    pub fn of(program: &Path) -> Result<Option<Self>> {
        let known = Specification::read("allocator", KNOWN)?.functions;
        let Ok(module) = Module::open(program, true) else { return Ok(None) };
        let functions = known.into_iter().flat_map(|Wanted { symbols, compiled, .. }| {
            symbols.into_iter().map(move |symbol| (symbol, compiled.clone()))
        });
        let own = |(symbol, does): (String, _)| Own { addresses: module.addresses(&symbol).collect(), does, symbol };
        let mut functions: Vec<Own> = functions.map(own).collect();
        functions.retain(|own| !own.addresses.is_empty());
        // Operators that go on to the C library's `malloc` are seen there.
        let is_operator = |own: &Own| own.symbol.starts_with("_Z");
        let has = |does: Does| functions.iter().any(|own| own.does.does == does && !is_operator(own));
        let is_one = has(Does::Allocate) && has(Does::Release);
        if !functions.iter().any(|own| own.symbol == "malloc") {
            functions.retain(|own| !is_operator(own));
        }
        Ok(is_one.then_some(Self { functions }))
    }

    /// Returns the name of one of its functions, for messages.
    #[must_use]
    pub fn known_by(&self) -> &str {
        &self.functions[0].symbol
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_read() {
        let known = Specification::read("allocator", KNOWN).unwrap();
        let mut symbols: Vec<String> = known.functions.into_iter().flat_map(|wanted| wanted.symbols).collect();
        let all = symbols.len();
        symbols.sort_unstable();
        symbols.dedup();
        assert_eq!(symbols.len(), all, "a function has two meanings");
        // Neither this program with the C library's memory, nor a file that is no program.
        assert!(Allocator::of(&std::env::current_exe().unwrap()).unwrap().is_none());
        assert!(Allocator::of(Path::new("/etc/passwd")).unwrap().is_none());
    }
}
