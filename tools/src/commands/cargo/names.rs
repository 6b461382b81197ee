//! Names of functions that fit in a column.

/// `name` in at most `width` characters: first without the modules of types in it, then without generic arguments, then
/// without its beginning.
pub(super) fn shortened(name: &str, width: usize) -> String {
    let fits = |text: &str| text.chars().count() <= width;
    if fits(name) {
        return name.to_owned();
    }
    let without_modules = without_modules(name);
    if fits(&without_modules) {
        return without_modules;
    }
    let without_generics = without_generics(&without_modules);
    if fits(&without_generics) {
        return without_generics;
    }
    let n_chars = without_generics.chars().count();
    let kept = width.saturating_sub(1).max(1);
    let tail: String = without_generics.chars().skip(n_chars.saturating_sub(kept)).collect();
    format!("…{tail}")
}

/// Paths within angle brackets and parentheses lose all but their last part: `<a::B as c::D>::e` becomes `<B as D>::e`.
fn without_modules(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut depth = 0_usize;
    // Where in `out` the path begins that is being read.
    let mut start = 0;
    let mut rest = name;
    while let Some(c) = rest.chars().next() {
        if depth > 0 && rest.starts_with("::") && out.len() > start {
            out.truncate(start);
            rest = &rest[2..];
            continue;
        }
        rest = &rest[c.len_utf8()..];
        match c {
            '<' | '(' | '[' => depth += 1,
            // Not the arrow of a function's type.
            '>' if out.ends_with('-') => {}
            '>' | ')' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        out.push(c);
        // A path goes on behind generic arguments: `a::<B>::c`.
        if !(c.is_alphanumeric() || matches!(c, '_' | ':' | '{' | '}' | '#' | '$')) {
            start = out.len();
        }
    }
    out
}

/// Generic arguments, those in angle brackets behind a name, become `<…>`.
fn without_generics(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    // The depth of brackets within what is left out.
    let mut hidden = 0_usize;
    let mut last = ' ';
    for c in name.chars() {
        let is_arrow = c == '>' && last == '-';
        if hidden > 0 {
            match c {
                '<' => hidden += 1,
                '>' if !is_arrow => hidden -= 1,
                _ => {}
            }
            if hidden == 0 {
                out.push_str("<…>");
            }
        } else if c == '<' && (last.is_alphanumeric() || matches!(last, '_' | ':')) {
            hidden = 1;
        } else {
            out.push(c);
        }
        last = c;
    }
    if hidden > 0 {
        out.push_str("<…");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps() {
        let name = "<core::iter::Map<alloc::vec::IntoIter<u8>, app::main::{closure#0}> as core::iter::Iterator>::next";
        assert_eq!(shortened(name, 200), name);
        assert_eq!(shortened(name, 70), "<Map<IntoIter<u8>, {closure#0}> as Iterator>::next");
        assert_eq!(shortened(name, 40), "<Map<…> as Iterator>::next");
        assert_eq!(shortened(name, 10), "…or>::next");
        assert_eq!(shortened("a::b::<c::D, fn(e::F) -> g::H>::call", 30), "a::b::<D, fn(F) -> H>::call");
        assert_eq!(shortened("a::b::<c::D, fn(e::F) -> g::H>::call", 20), "a::b::<…>::call");
        assert_eq!(shortened("äöü::ßabc", 4), "…abc");
    }

    #[test]
    fn odd_names() {
        for name in ["", "<", ">>>", "a<b", "operator->", "::", "a::", "<a::>", "ns::f(std::vector<int, std::a>)", "…"]
        {
            for width in 0..12 {
                let short = shortened(name, width);
                assert!(short.chars().count() <= width.max(2), "{name:?} {width}: {short:?}");
            }
        }
    }
}
