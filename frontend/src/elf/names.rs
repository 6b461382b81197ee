//! The readable form of symbol names: demangled, without symbol version and Rust hash, on one line.

use std::fmt::{self, Write as _};

use cpp_demangle::{BorrowedSymbol, DemangleOptions};
use rftrace_format::text::is_unseen;

/// The maximum length of a name in bytes; longer ones are cut.
pub(super) const NAME_MAX_BYTES: usize = 4096;

/// The maximum length in bytes of a name for demangling; longer ones are shown mangled, cut to [`NAME_MAX_BYTES`].
const MANGLED_MAX_BYTES: usize = 4 * NAME_MAX_BYTES;

/// The number of tried places for the suffix of a C++ name.
const CPP_MAX_TRIES: usize = 16;

/// Returns a function's readable name for the linker's name `raw`: demangled, without symbol version and Rust hash, on
/// one line.
pub fn readable_name(raw: &str) -> String {
    let mut name = String::new();
    append_readable(raw.as_bytes(), &mut name);
    name
}

/// Appends the readable form of the symbol name `raw` to `out`.
pub(super) fn append_readable(raw: &[u8], out: &mut String) {
    let raw = String::from_utf8_lossy(raw);
    // The version of the symbol follows `@` or `@@`.
    let name = match raw.split_once('@') {
        Some((name, _)) if !name.is_empty() => name,
        _ => &*raw,
    };
    let name = without_llvm_suffix(name);
    // Errors of the writer mean that the name is longer than shown.
    if name.len() > MANGLED_MAX_BYTES {
        let _ = NameWriter::new(out).write_str(&name);
    } else if let Ok(rust) = rustc_demangle::try_demangle(&name) {
        let _ = write!(NameWriter::new(out), "{rust:#}");
    } else if !append_cpp(&name, DemangleOptions::new().no_params().no_return_type(), out) {
        let _ = NameWriter::new(out).write_str(&name);
    }
}

/// Appends the C++ function with the symbol name `raw`, with its parameters. Returns false for another name.
pub(super) fn append_with_parameters(raw: &str, out: &mut String) -> bool {
    let name = raw.split('@').next().unwrap_or_default();
    append_cpp(&without_llvm_suffix(name), DemangleOptions::new().no_return_type(), out)
}

/// Returns `name` without the `.llvm.` and number, LLVM's suffix for a local function made visible.
fn without_llvm_suffix(name: &str) -> std::borrow::Cow<'_, str> {
    const MARK: &str = ".llvm.";
    if let Some(start) = name.find(MARK) {
        let rest = name[start + MARK.len()..].trim_start_matches(|c: char| c.is_ascii_digit());
        if rest.is_empty() {
            return name[..start].into();
        }
        if rest.starts_with('.') {
            return format!("{}{rest}", &name[..start]).into();
        }
    }
    name.into()
}

/// Appends the C++ function `name`, in the form of `options` (uftrace shows functions without parameters), and with the
/// suffix for its part or clone. Returns false for another name, and leaves `out` unchanged.
fn append_cpp(name: &str, options: DemangleOptions, out: &mut String) -> bool {
    if !name.starts_with("_Z") {
        return false;
    }
    let start = out.len();
    // The suffix starts at a dot, but a dot can also be a part of the mangled name.
    let ends = name.match_indices('.').map(|(at, _)| at).chain([name.len()]);
    for end in ends.take(CPP_MAX_TRIES) {
        let Ok((symbol, [])) = BorrowedSymbol::with_tail(&name.as_bytes()[..end]) else {
            continue;
        };
        let mut writer = NameWriter::new(out);
        if symbol.structured_demangle(&mut writer, &options).is_ok() || writer.full {
            let _ = writer.write_str(&name[end..]);
            return true;
        }
        out.truncate(start);
    }
    false
}

/// Takes text for one line of a file: control characters become `_`, and too long a text ends in `...`.
#[derive(Debug)]
struct NameWriter<'a> {
    out: &'a mut String,
    /// The number of bytes left.
    room: usize,
    /// True if text was left out.
    full: bool,
}

impl<'a> NameWriter<'a> {
    fn new(out: &'a mut String) -> Self {
        Self { out, room: NAME_MAX_BYTES, full: false }
    }
}

impl fmt::Write for NameWriter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.full {
            return Err(fmt::Error);
        }
        // Nearly every piece of a name.
        if text.len() <= self.room && !text.bytes().any(|byte| byte.is_ascii_control() || !byte.is_ascii()) {
            self.room -= text.len();
            self.out.push_str(text);
            return Ok(());
        }
        for c in text.chars() {
            if c.len_utf8() > self.room {
                self.full = true;
                self.out.push_str("...");
                return Err(fmt::Error);
            }
            self.room -= c.len_utf8();
            self.out.push(if is_unseen(c) { '_' } else { c });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(raw: &str) -> String {
        let mut name = String::new();
        append_readable(raw.as_bytes(), &mut name);
        name
    }

    #[test]
    fn readable_names() {
        for (raw, expected) in [
            ("main", "main"),
            ("_start", "_start"),
            // Rust: v0, with a generic argument and a crate; legacy, with its hash and escapes.
            ("_RNvC6_123foo3bar", "123foo::bar"),
            ("_RINvNtC3std3mem8align_ofdE", "std::mem::align_of::<f64>"),
            ("_RNvNtNtCs1234_7mycrate3foo3bar3baz.llvm.9D1C9369", "mycrate::foo::bar::baz"),
            ("_ZN4core3fmt9Formatter3pad17h05af221e174051e9E", "core::fmt::Formatter::pad"),
            (
                "_ZN60_$LT$alloc..string..String$u20$as$u20$core..fmt..Display$GT$3fmt17h0123456789abcdefE",
                "<alloc::string::String as core::fmt::Display>::fmt",
            ),
            ("_ZN3foo3bar17h05af221e174051e9E.llvm.12345", "foo::bar"),
            // C++.
            ("_ZN2ns3FooC1Ei", "ns::Foo::Foo"),
            ("_Znwm", "operator new"),
            ("_ZN4node8Watchdog7DestroyEv.part.0", "node::Watchdog::Destroy.part.0"),
            ("_ZN1A1fEv.constprop.0.cold", "A::f.constprop.0.cold"),
            ("_Z3barv.llvm.77", "bar"),
            ("_ZNSi6ignoreEl@@GLIBCXX_3.4.5", "std::basic_istream<char, std::char_traits<char> >::ignore"),
            // Neither, though it looks so.
            ("_Z", "_Z"),
            ("_Zfoo.cold", "_Zfoo.cold"),
            ("_R", "_R"),
            // C.
            ("memcpy@@GLIBC_2.14", "memcpy"),
            ("old@V1", "old"),
            ("@odd", "@odd"),
            ("leaf.part.0", "leaf.part.0"),
            ("leaf.constprop.0.isra.0.cold", "leaf.constprop.0.isra.0.cold"),
            ("local.llvm.1234567890", "local"),
            ("local.llvm.123.cold", "local.cold"),
            ("local.llvm.words", "local.llvm.words"),
            ("a\tb\nc\u{7f}", "a_b_c_"),
        ] {
            assert_eq!(readable(raw), expected, "{raw}");
        }
        let mut name = "T ".to_owned();
        append_readable(b"\xff!", &mut name);
        assert_eq!(name, "T \u{fffd}!");
    }

    #[test]
    fn long_names_are_cut() {
        for raw in
            ["x".repeat(NAME_MAX_BYTES + 1), "y".repeat(MANGLED_MAX_BYTES + 1), format!("_Z{}", "z".repeat(5000))]
        {
            assert_eq!(readable(&raw), format!("{}...", &raw[..NAME_MAX_BYTES]));
        }
        assert_eq!(readable(&"x".repeat(NAME_MAX_BYTES)), "x".repeat(NAME_MAX_BYTES));
        // Mangled names can stand for names that are exponentially longer: each pair<T, T> here doubles the last.
        let mut bomb = "_Z1fISt4pairIiiE".to_owned();
        let mut last = "S_".to_owned();
        for idx in 0..40 {
            bomb.push_str(&format!("St4pairI{last}{last}E"));
            last = format!("S{}_", char::from_digit(idx % 36, 36).unwrap().to_ascii_uppercase());
        }
        bomb.push_str("Evv");
        assert!(readable(&bomb).len() <= NAME_MAX_BYTES + 3);
        let mut bomb = "_RIC1f".to_owned();
        for _ in 0..40 {
            bomb.push_str("TB_");
        }
        assert!(readable(&bomb).len() <= NAME_MAX_BYTES + 3);
    }
}
