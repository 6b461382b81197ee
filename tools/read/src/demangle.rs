//! The names of functions in full.

use std::fmt::{self, Write};

use cpp_demangle::{BorrowedSymbol, DemangleOptions};
use rftrace_format::text::is_unseen;

/// The longest name, in bytes: a short mangled name can stand for a very long one.
const MAX_BYTES: usize = 4096;

/// The maximum number of dots in a name at which a compiler's suffix for a clone can begin.
const MAX_DOTS: usize = 16;

/// The form of function names. Symbol files written by rftrace have mangled names for all forms but the first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Demangle {
    /// The names in the symbol files: C++ functions without parameters, Rust functions without hashes.
    #[default]
    Simple,
    /// Names with parameters and hashes; they tell overloads and instances of generic functions apart.
    Full,
    /// Mangled names, as in the linker's symbols.
    No,
}

impl Demangle {
    /// Returns the name of a function from a symbol file, with its readable and perhaps a mangled name.
    pub(crate) fn name(self, readable: &str, mangled: Option<&str>) -> String {
        let other = match self {
            Self::Simple => None,
            Self::Full => mangled.and_then(full),
            Self::No => mangled.map(str::to_owned),
        };
        other.unwrap_or_else(|| readable.to_owned())
    }
}

/// Returns the full name; `None` for text that is no mangled name, or too long.
fn full(mangled: &str) -> Option<String> {
    let mut out = Limited(String::new());
    if let Ok(rust) = rustc_demangle::try_demangle(mangled) {
        write!(out, "{rust}").ok()?;
        return Some(out.0);
    }
    // Mangled names may have dots in them too.
    let ends = mangled.match_indices('.').map(|(at, _)| at).chain([mangled.len()]);
    for end in ends.take(MAX_DOTS) {
        let (name, suffix) = mangled.split_at(end);
        let Ok((symbol, [])) = BorrowedSymbol::with_tail(name.as_bytes()) else { continue };
        out.0.clear();
        // As the filters of the tracer take them.
        let options = DemangleOptions::new().no_return_type();
        if symbol.structured_demangle(&mut out, &options).is_ok() && out.write_str(suffix).is_ok() {
            return Some(out.0);
        }
    }
    None
}

/// Takes no more than [`MAX_BYTES`], and no line ends.
struct Limited(String);

impl Write for Limited {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_BYTES || text.contains(is_unseen) {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_grow() {
        // Each template argument is twice the one before.
        let mut name = "_Z1fI1AIiiE".to_owned();
        for idx in 0..60 {
            let before = if idx == 0 { "S0_".to_owned() } else { format!("S{}_", base36(idx)) };
            name.push_str(&format!("1AI{before}{before}E"));
        }
        name.push_str("Evv");
        assert!(full(&name).is_none_or(|name| name.len() <= MAX_BYTES));
        assert_eq!(Demangle::Full.name("f", Some("_Z1fv")), "f()");
    }

    fn base36(number: usize) -> String {
        let digit = |value: usize| char::from_digit(value as u32, 36).map(|c| c.to_ascii_uppercase());
        [number / 36, number % 36].into_iter().filter_map(digit).collect::<String>().trim_start_matches('0').to_owned()
    }
}
