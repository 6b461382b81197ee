//! The short form of a function's name, for tables and lines.
//!
//! Not here: the names themselves (`symbols`), and unique short forms (`shown_names`).
//!
//! Names of Rust and C++ are paths with arguments: `<a::B<c::D> as e::F>::g`. The short form lacks hashes and the default
//! arguments of C++. Then, until it fits, it loses the modules in arguments; the arguments, from the innermost on; the
//! middle of the path; the middle of the function's own name. A name of C stays as it is, if it fits.

use std::borrow::Cow;

use unicode_width::UnicodeWidthChar;

/// The width of a short name in columns.
pub const NAME_COLUMNS: usize = 60;

/// Namespaces of C++ libraries for versions of their types; a program does not name them.
const INLINE_NAMESPACES: [&str; 5] = ["__cxx11", "__1", "__8", "__ndk1", "_V2"];

/// Operators of C++, the longest first: some have brackets in them.
const OPERATORS: [&str; 38] = [
    "->*", "<=>", "<<=", ">>=", "()", "[]", "->", "<<", ">>", "<=", ">=", "++", "--", "&&", "||", "==", "!=", "+=",
    "-=", "*=", "/=", "%=", "^=", "&=", "|=", "+", "-", "*", "/", "%", "^", "&", "|", "~", "!", "=", "<", ">",
];

/// A name in brackets, and no list of arguments.
const ANONYMOUS: &str = "(anonymous namespace)";

/// Returns the short form of a name, at most `columns` wide. A name that fits, without hash and default arguments, is its
/// own short form.
#[must_use]
pub fn short_name(name: &str, columns: usize) -> Cow<'_, str> {
    let name = without_noise(name);
    if fits(&name, columns) { name } else { cut(&name, columns).into() }
}

/// The columns of a character in a terminal.
fn width(c: char) -> usize {
    c.width().unwrap_or(0)
}

fn columns_of(text: &str) -> usize {
    text.chars().map(width).sum()
}

fn fits(text: &str, columns: usize) -> bool {
    text.len() <= columns || columns_of(text) <= columns
}

/// The longest beginning of a text within `columns`.
fn head(text: &str, columns: usize) -> &str {
    let mut left = columns;
    let end = text.char_indices().find(|&(_, c)| {
        let is_over = width(c) > left;
        left = left.saturating_sub(width(c));
        is_over
    });
    &text[..end.map_or(text.len(), |(at, _)| at)]
}

/// The longest end of a text within `columns`.
fn tail(text: &str, columns: usize) -> &str {
    let mut left = columns;
    let last_out = text.char_indices().rev().find(|&(_, c)| {
        let is_over = width(c) > left;
        left = left.saturating_sub(width(c));
        is_over
    });
    &text[last_out.map_or(0, |(at, c)| at + c.len_utf8())..]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bracket {
    Angle,
    Round,
    Square,
    Brace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A list of arguments or parameters begins, or a type with a trait, or a word in braces.
    Open {
        bracket: Bracket,
        is_arguments: bool,
    },
    /// The end of several groups; all but the last lack their own brackets.
    Close {
        n: usize,
    },
    /// `::`
    Path,
    Comma,
    /// A word, or several connected ones.
    Word,
    /// `operator` with its sign.
    Operator,
    /// `operator` before a type.
    Conversion,
    Other,
}

/// A part of a name.
#[derive(Debug, Clone, Copy)]
struct Token<'n> {
    text: &'n str,
    kind: Kind,
}

/// Splits a name into tokens, and pairs the brackets.
#[derive(Debug)]
struct Tokens<'n> {
    rest: &'n str,
    open: Vec<Bracket>,
    /// The number of open brackets of each kind.
    n_open: [usize; 4],
    /// True if arguments may come next.
    takes_arguments: bool,
    /// True behind an operator, and a space behind that.
    is_behind_operator: bool,
}

impl<'n> Tokens<'n> {
    fn new(name: &'n str) -> Self {
        Self { rest: name, open: Vec::new(), n_open: [0; 4], takes_arguments: false, is_behind_operator: false }
    }

    fn opening(&mut self, bracket: Bracket) -> Kind {
        let is_impl = self.rest.starts_with("<impl ");
        let is_arguments = match bracket {
            Bracket::Angle => self.takes_arguments && !is_impl,
            Bracket::Round | Bracket::Square => true,
            Bracket::Brace => false,
        };
        self.open.push(bracket);
        self.n_open[bracket as usize] += 1;
        Kind::Open { bracket, is_arguments }
    }

    /// The end of a group, or a character like others if there is no such group.
    fn closing(&mut self, bracket: Bracket) -> Kind {
        // A sign of comparison in parentheses is no bracket.
        let is_there = if bracket == Bracket::Angle {
            self.open.last() == Some(&bracket)
        } else {
            self.n_open[bracket as usize] > 0
        };
        if !is_there {
            return Kind::Other;
        }
        let mut n = 0;
        while let Some(last) = self.open.pop() {
            self.n_open[last as usize] -= 1;
            n += 1;
            if last == bracket {
                break;
            }
        }
        Kind::Close { n }
    }

    /// Returns the kind and the length of the next token.
    fn kind(&mut self) -> Option<(Kind, usize)> {
        let rest = self.rest;
        let first = rest.chars().next()?;
        if is_word(first) {
            let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            let (word, behind) = rest.split_at(length);
            if word != "operator" {
                return Some((Kind::Word, length));
            }
            let sign = OPERATORS.iter().find(|sign| behind.starts_with(**sign));
            return Some(sign.map_or((Kind::Conversion, length), |sign| (Kind::Operator, length + sign.len())));
        }
        for (text, kind) in [("::", Kind::Path), ("->", Kind::Other), (ANONYMOUS, Kind::Word)] {
            if rest.starts_with(text) {
                return Some((kind, text.len()));
            }
        }
        let kind = match first {
            '<' => self.opening(Bracket::Angle),
            '(' => self.opening(Bracket::Round),
            '[' => self.opening(Bracket::Square),
            '{' => self.opening(Bracket::Brace),
            '>' => self.closing(Bracket::Angle),
            ')' => self.closing(Bracket::Round),
            ']' => self.closing(Bracket::Square),
            '}' => self.closing(Bracket::Brace),
            ',' => Kind::Comma,
            _ => Kind::Other,
        };
        Some((kind, first.len_utf8()))
    }
}

impl<'n> Iterator for Tokens<'n> {
    type Item = Token<'n>;

    fn next(&mut self) -> Option<Token<'n>> {
        let (kind, length) = self.kind()?;
        let (text, rest) = self.rest.split_at(length);
        self.rest = rest;
        self.is_behind_operator = kind == Kind::Operator || (self.is_behind_operator && text == " ");
        self.takes_arguments =
            self.is_behind_operator || matches!(kind, Kind::Word | Kind::Conversion | Kind::Path | Kind::Close { .. });
        Some(Token { text, kind })
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

/// An open list, by places in the shortened text.
struct List {
    /// The beginning of the path before it.
    path: usize,
    /// The beginning of its first argument.
    arguments: usize,
    commas: Vec<usize>,
}

/// A name without hashes, inline namespaces and default arguments.
fn without_noise(name: &str) -> Cow<'_, str> {
    if !name.contains("::") && !name.contains(['[', '.']) {
        return name.into();
    }
    let mut out = String::with_capacity(name.len());
    let mut lists: Vec<List> = Vec::new();
    // The beginning of the present path.
    let mut path = 0;
    let mut tokens = Tokens::new(name);
    loop {
        let noise = noise(tokens.rest, out.ends_with(is_word));
        tokens.rest = &tokens.rest[noise..];
        if noise > 0 {
            continue;
        }
        let Some(Token { text, kind }) = tokens.next() else { break };
        let ended = if let Kind::Close { n } = kind { lists.drain(lists.len() - n..).next() } else { None };
        if let Some(list) = ended.as_ref().filter(|_| text == ">") {
            out.truncate(without_defaults(&out, list));
            // A space keeps two brackets apart.
            if !out.trim_end().ends_with('>') {
                out.truncate(out.trim_end().len());
            }
        }
        out.push_str(text);
        match kind {
            Kind::Open { .. } => {
                lists.push(List { path, arguments: out.len(), commas: Vec::new() });
                path = out.len();
            }
            Kind::Close { .. } => {
                path = ended.map_or(path, |list| list.path);
                if let Some(alias) = alias(&out[path..]).filter(|_| text == ">") {
                    out.replace_range(path.., &alias);
                }
            }
            Kind::Path if out[path..].starts_with("std::") => {
                let is_inline =
                    |name: &&&str| out[..out.len() - 2].strip_suffix(**name).is_some_and(|out| out.ends_with("::"));
                if let Some(name) = INLINE_NAMESPACES.iter().find(is_inline) {
                    out.truncate(out.len() - name.len() - 2);
                }
            }
            Kind::Comma => {
                if let Some(list) = lists.last_mut() {
                    list.commas.push(out.len() - text.len());
                }
                path = out.len();
            }
            Kind::Other => path = out.len(),
            Kind::Path | Kind::Word | Kind::Operator | Kind::Conversion => {}
        }
    }
    if out == name { name.into() } else { out.into() }
}

/// The length of a hash or a tag at the beginning of a text, behind a word or something else.
fn noise(rest: &str, is_behind_word: bool) -> usize {
    let run = |text: &str, is_it: fn(char) -> bool| text.find(|c| !is_it(c)).unwrap_or(text.len());
    let is_hex = |c: char| matches!(c, '0'..='9' | 'a'..='f');
    let is_end = |at: usize| matches!(rest.as_bytes().get(at), None | Some(b'.'));
    // Of Rust's older names.
    if let Some(hash) = rest.strip_prefix("::h")
        && hash.len() >= 16
        && run(&hash[..hash.floor_char_boundary(16)], is_hex) == 16
        && is_end(19)
    {
        return 19;
    }
    // Of functions made visible by optimisation at link time.
    if let Some(number) = rest.strip_prefix(".llvm.") {
        let digits = run(number, |c| c.is_ascii_digit());
        let length = ".llvm.".len() + digits;
        return if digits > 0 && is_end(length) { length } else { 0 };
    }
    let Some(tag) = rest.strip_prefix('[').filter(|_| is_behind_word) else { return 0 };
    // Of crates in Rust's newer names; and of C++ types of one name.
    let length = match tag.strip_prefix("abi:") {
        Some(word) => "abi:".len() + run(word, is_word),
        None => run(&tag[..tag.floor_char_boundary(17)], is_hex),
    };
    let is_tag = tag[length..].starts_with(']') && (tag.starts_with("abi:") || (8..=16).contains(&length));
    if is_tag { length + 2 } else { 0 }
}

/// The length of a text with a list at its end, without the list's default arguments.
fn without_defaults(out: &str, list: &List) -> usize {
    // The number of arguments without a default.
    let needed = match out[list.path..list.arguments - 1].strip_prefix("std::") {
        Some("map" | "multimap" | "unordered_map" | "unordered_multimap") => 2,
        Some(
            "vector"
            | "deque"
            | "list"
            | "forward_list"
            | "set"
            | "multiset"
            | "unordered_set"
            | "unordered_multiset"
            | "unique_ptr"
            | "stack"
            | "queue"
            | "priority_queue"
            | "istreambuf_iterator"
            | "ostreambuf_iterator"
            | "_Vector_base"
            | "_Deque_base"
            | "_List_base",
        ) => 1,
        Some(name) if name.starts_with("basic_") => 1,
        _ => return out.len(),
    };
    let argument = |idx: usize| {
        let start = if idx == 0 { list.arguments } else { list.commas[idx - 1] + 1 };
        out[start..list.commas.get(idx).copied().unwrap_or(out.len())].trim()
    };
    let is_default = |text: &str| {
        let of_first = ["char_traits<", "less<", "equal_to<", "hash<", "default_delete<", "deque<", "vector<"];
        let Some(text) = text.strip_prefix("std::") else { return false };
        let inner = |name: &&str| text.strip_prefix(*name).and_then(|text| text.strip_suffix('>'));
        text.starts_with("allocator<") || of_first.iter().find_map(inner).is_some_and(|of| of.trim() == argument(0))
    };
    let mut n = list.commas.len() + 1;
    while n > needed && is_default(argument(n - 1)) {
        n -= 1;
    }
    list.commas.get(n - 1).copied().unwrap_or(out.len())
}

/// The usual name of a type of texts: `std::string` for `std::basic_string<char>`.
fn alias(path: &str) -> Option<String> {
    let (name, arguments) =
        path.strip_prefix("std::basic_")?.split_once('<').filter(|(name, _)| name.chars().all(is_word))?;
    match arguments.strip_suffix('>')?.trim() {
        "char" => Some(format!("std::{name}")),
        "wchar_t" => Some(format!("std::w{name}")),
        _ => None,
    }
}

/// A part of a name to cut.
#[derive(Debug, Clone, Copy)]
struct Item<'n> {
    token: Token<'n>,
    /// The number of argument lists around it.
    depth: usize,
    /// The number of groups of any kind around it.
    nesting: usize,
    /// The columns within a list of arguments, with and without the inner lists.
    inner: usize,
    own: usize,
}

impl Item<'_> {
    fn is_list(&self) -> bool {
        matches!(self.token.kind, Kind::Open { is_arguments: true, .. })
    }
}

/// A name in at most so many columns.
fn cut(name: &str, columns: usize) -> String {
    let mut items = without_modules(name);
    let (level, mut spare) = level(&mut items, columns);
    let mut text = String::new();
    // The path's separators outside of all groups.
    let mut cuts = Vec::new();
    let mut is_behind_conversion = false;
    // The depth of the omitted list, within one.
    let mut left_out = None;
    for (place, item) in items.iter().enumerate() {
        left_out = left_out.filter(|&depth| item.depth > depth);
        if left_out.is_some() {
            continue;
        }
        if item.nesting == 0 {
            is_behind_conversion |= item.token.kind == Kind::Conversion;
            // `f::<A>` is one part of a path.
            let has_arguments = items.get(place + 1).is_some_and(Item::is_list);
            if item.token.kind == Kind::Path && !is_behind_conversion && !has_arguments {
                cuts.push(text.len());
            }
        }
        text.push_str(item.token.text);
        if item.inner <= 1 || item.depth + 1 < level {
            continue;
        }
        // The first lists of the level may fit.
        match spare.checked_sub(item.own - 1).filter(|_| item.depth + 1 == level) {
            Some(rest) => spare = rest,
            None => {
                text.push('…');
                left_out = Some(item.depth);
            }
        }
    }
    if fits(&text, columns) { text } else { cut_path(&text, &cuts, columns) }
}

/// The parts of a name, without the modules of paths in brackets: `<a::B as c::D>::e` becomes `<B as D>::e`. A closure
/// keeps its function.
fn without_modules(name: &str) -> Vec<Item<'_>> {
    /// An open group: the beginning of the path around it, and its kind.
    struct Group {
        path: usize,
        is_arguments: bool,
        is_brace: bool,
    }

    let mut items: Vec<Item<'_>> = Vec::new();
    let mut groups: Vec<Group> = Vec::new();
    let (mut depth, mut n_braces) = (0, 0);
    // The beginning of the present path.
    let mut path = 0;
    let mut tokens = Tokens::new(name);
    while let Some(token) = tokens.next() {
        if let Kind::Close { n } = token.kind {
            for group in groups.drain(groups.len() - n..).rev() {
                depth -= usize::from(group.is_arguments);
                n_braces -= usize::from(group.is_brace);
                path = group.path;
            }
        }
        if token.kind == Kind::Path && groups.len() > n_braces && !tokens.rest.starts_with('{') {
            items.truncate(path);
            continue;
        }
        items.push(Item { token, depth, nesting: groups.len(), inner: 0, own: 0 });
        match token.kind {
            Kind::Open { bracket, is_arguments } => {
                let is_brace = bracket == Bracket::Brace;
                groups.push(Group { path, is_arguments, is_brace });
                depth += usize::from(is_arguments);
                n_braces += usize::from(is_brace);
                path = items.len();
            }
            Kind::Comma | Kind::Other => path = items.len(),
            _ => {}
        }
    }
    items
}

/// Returns the greatest depth for omitting lists of arguments: without those from there on the name fits. It is 1 if even
/// then the name does not fit. Also returns the spare columns, and notes the width of each list.
fn level(items: &mut [Item<'_>], columns: usize) -> (usize, usize) {
    let deepest = items.iter().map(|item| item.depth).max().unwrap_or(0);
    // The columns at each depth, and those of `…` for its lists.
    let (mut of_depth, mut of_lists) = (vec![0; deepest + 2], vec![0; deepest + 2]);
    // Open lists.
    let mut open: Vec<usize> = Vec::new();
    for place in 0..=items.len() {
        let depth = items.get(place).map_or(0, |item| item.depth);
        while let Some(list) = open.pop_if(|list| depth <= items[*list].depth) {
            let Item { depth, inner, .. } = items[list];
            of_lists[depth + 1] += inner.min(1);
            if let Some(&around) = open.last() {
                items[around].inner += inner;
                items[around].own += inner.min(1);
            }
        }
        let Some(item) = items.get(place) else { break };
        let (columns, is_list) = (columns_of(item.token.text), item.is_list());
        of_depth[depth] += columns;
        if let Some(&around) = open.last() {
            items[around].inner += columns;
            items[around].own += columns;
        }
        if is_list {
            open.push(place);
        }
    }
    let mut outer: usize = of_depth.iter().sum();
    for level in (1..=deepest + 1).rev() {
        outer -= of_depth[level];
        if let Some(spare) = columns.checked_sub(outer + of_lists[level]) {
            return (level, spare);
        }
    }
    (1, 0)
}

/// A name without the middle of its path: `a::…::g`. The path's first part and the function's own name stay as long as
/// possible. `cuts` are the places of the path's separators.
fn cut_path(text: &str, cuts: &[usize], columns: usize) -> String {
    // A closure is named after its function.
    let Some(last) = cuts.iter().rposition(|&at| !text[at + 2..].starts_with('{')) else {
        return cut_middle(text, columns);
    };
    let first = &text[..cuts[0]];
    let mut rest = columns_of(&text[cuts[0]..]);
    for place in 1..=last {
        rest -= columns_of(&text[cuts[place - 1]..cuts[place]]);
        if columns_of(first) + "::…".chars().count() + rest <= columns {
            return format!("{first}::…{}", &text[cuts[place]..]);
        }
    }
    let (before, own) = text.split_at(cuts[last]);
    match columns.checked_sub(columns_of(own) + 1) {
        Some(left) if left > 0 => format!("{}…{own}", head(before, left).trim_end()),
        _ => {
            let own = &own[2..];
            if columns_of(own) < columns { format!("…{own}") } else { cut_middle(own, columns) }
        }
    }
}

/// The beginning and the end of a text, unless it fits.
fn cut_middle(text: &str, columns: usize) -> String {
    if fits(text, columns) {
        return text.to_owned();
    }
    let Some(left) = columns.checked_sub(1) else { return String::new() };
    format!("{}…{}", head(text, left - left / 2), tail(text, left / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(columns: usize, names: &[(&str, &str)]) {
        for (name, short) in names {
            assert_eq!(short_name(name, columns), *short, "{name}");
        }
    }

    #[test]
    fn names_of_c_stay() {
        for name in
            ["main", "a.part.0", "f.constprop.0.isra.0", "g.cold", "memcpy@@GLIBC_2.14", "sub_64da0@a", "<402000>"]
        {
            assert!(matches!(short_name(name, NAME_COLUMNS), Cow::Borrowed(same) if same == name), "{name}");
        }
        check(
            20,
            &[
                ("pthread_mutexattr_getprioceiling", "pthread_mu…ioceiling"),
                ("a_b_c_d_e_f_g_h.cold", "a_b_c_d_e_f_g_h.cold"),
            ],
        );
    }

    #[test]
    fn noise_is_always_left_out() {
        check(
            1000,
            &[
                // libstdc++ and libc++
                (
                    "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >::find",
                    "std::string::find",
                ),
                (
                    "std::__1::basic_string<wchar_t, std::__1::char_traits<wchar_t>, std::__1::allocator<wchar_t> >::size",
                    "std::wstring::size",
                ),
                ("std::basic_ostream<char, std::char_traits<char> >::operator<<", "std::ostream::operator<<"),
                ("std::vector<int, std::allocator<int> >::push_back", "std::vector<int>::push_back"),
                (
                    "app::Boxed<std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> > >::~Boxed",
                    "app::Boxed<std::string>::~Boxed",
                ),
                (
                    "std::map<std::string, std::vector<int, std::allocator<int> >, std::less<std::string >, \
                     std::allocator<std::pair<std::string const, int> > >::at",
                    "std::map<std::string, std::vector<int>>::at",
                ),
                (
                    "std::unique_ptr<app::A, std::default_delete<app::A> >::reset(app::A*)",
                    "std::unique_ptr<app::A>::reset(app::A*)",
                ),
                ("std::stack<int, std::deque<int, std::allocator<int> > >::push", "std::stack<int>::push"),
                ("std::chrono::_V2::steady_clock::now", "std::chrono::steady_clock::now"),
                ("app::make[abi:cxx11](int)", "app::make(int)"),
                // Rust
                ("app::main::h0123456789abcdef", "app::main"),
                ("app::main::h0123456789abcdef.llvm.4711", "app::main"),
                ("app::main.llvm.4711.cold", "app::main.cold"),
                ("core[846817f741e54dfd]::slice::sort", "core::slice::sort"),
            ],
        );
    }

    #[test]
    fn what_says_something_stays() {
        for name in [
            "std::vector<int, app::Pool<int> >::push_back",
            "std::map<int, int, std::greater<int>>::at",
            "std::set<int, std::less<void> >::find",
            "std::tuple<int, std::allocator<int> >::tuple",
            "app::vector<int, std::allocator<int> >",
            "app::__1::f",
            "std::vec::Vec<T,A>",
            "app::main::h0123456789abcde",
            "app::main::h0123456789abcdefg",
            "f.llvm.x",
            "<[u8; 4] as Drop>::drop",
            "a[12345678",
        ] {
            assert_eq!(short_name(name, 1000), name);
        }
    }

    /// Of rftrace itself, in both forms of names of Rust.
    #[test]
    fn names_of_rust() {
        check(
            NAME_COLUMNS,
            &[
                (
                    "<core::iter::adapters::map::Map<I,F> as core::iter::traits::iterator::Iterator>::next",
                    "<Map<I,F> as Iterator>::next",
                ),
                (
                    "<core::iter::adapters::map::Map<alloc::vec::into_iter::IntoIter<u8>, app::main::{closure#0}> as \
                     core::iter::traits::iterator::Iterator>::next",
                    "<Map<IntoIter<u8>, main::{closure#0}> as Iterator>::next",
                ),
                (
                    "core::ptr::drop_in_place<core::iter::adapters::filter_map::FilterMap<std::fs::ReadDir,\
                     rftrace_record::follow::threads::{{closure}}>>",
                    "core::ptr::drop_in_place<FilterMap<…>>",
                ),
                (
                    "<<alloc::collections::btree::map::IntoIter<K,V,A> as core::ops::drop::Drop>::drop::\
                     DropGuard<K,V,A> as core::ops::drop::Drop>::drop",
                    "<DropGuard<K,V,A> as Drop>::drop",
                ),
                (
                    "alloc::collections::btree::navigate::<impl alloc::collections::btree::node::Handle<\
                     alloc::collections::btree::node::NodeRef<BorrowType,K,V,\
                     alloc::collections::btree::node::marker::LeafOrInternal>,\
                     alloc::collections::btree::node::marker::KV>>::next_leaf_edge",
                    "alloc::…::btree::navigate::<impl Handle<…>>::next_leaf_edge",
                ),
                (
                    "<rustc_demangle::v0::Printer>::in_binder::<<rustc_demangle::v0::Printer>::print_type::{closure#0}>",
                    "<Printer>::in_binder::<print_type::{closure#0}>",
                ),
                (
                    "addr2line::function::name_attr::<gimli::read::endian_slice::EndianSlice<gimli::LittleEndian>>",
                    "addr2line::function::name_attr::<EndianSlice<LittleEndian>>",
                ),
                (
                    "clap_builder::builder::debug_asserts::_verify_positionals::{{closure}}",
                    "clap_builder::…::_verify_positionals::{{closure}}",
                ),
                (
                    "<std::thread::lifecycle::spawn_unchecked<app::main::{closure#0}, ()>::{closure#1} as \
                     core::ops::function::FnOnce<()>>::call_once::{shim:vtable#0}",
                    "<spawn_unchecked<…>::{closure#1…::call_once::{shim:vtable#0}",
                ),
            ],
        );
        let name = "a::b::<c::D, fn(e::F) -> g::H>::call";
        check(30, &[(name, "a::b::<D, fn(F) -> H>::call")]);
        check(20, &[(name, "a::b::<…>::call")]);
    }

    /// Names in the form of demanglers, with parameters too.
    #[test]
    fn names_of_cpp() {
        check(
            NAME_COLUMNS,
            &[
                (
                    "std::basic_ostream<char, std::char_traits<char> >& std::operator<< <std::char_traits<char> >(\
                     std::basic_ostream<char, std::char_traits<char> >&, char const*)",
                    "std::ostream& std::operator<< <char_traits<…> >(…)",
                ),
                (
                    "app::engine::Scheduler<app::engine::Task>::operator()(std::vector<app::engine::Task, \
                     std::allocator<app::engine::Task> > const&) const",
                    "app::engine::Scheduler<Task>::operator()(…) const",
                ),
                (
                    "app::engine::smart_pointer_to_something<app::engine::Task>::operator->() const::{lambda(int)#1}",
                    "app::…::operator->() const::{lambda(…)#1}",
                ),
                (
                    "(anonymous namespace)::parse_the_whole_configuration_file(std::filesystem::path const&)",
                    "(anonymous namespace)::parse_the_whole_configuration_file(…)",
                ),
                (
                    "app::a_value_with_a_long_name::operator std::vector<app::some_other_type, app::pool>",
                    "app::a_value_with_a_long_name::operator std::vector<…>",
                ),
                ("operator delete(void*, unsigned long)", "operator delete(void*, unsigned long)"),
                (
                    "bool app::operator< <app::very_long_name_of_a_type>(app::very_long_name_of_a_type const&)",
                    "bool app::operator< <very_long_name_of_a_type>(…)",
                ),
            ],
        );
    }

    #[test]
    fn paths_are_cut_in_the_middle() {
        let name = "tokio::runtime::scheduler::multi_thread::worker::Context::run_task";
        check(60, &[(name, "tokio::…::scheduler::multi_thread::worker::Context::run_task")]);
        check(40, &[(name, "tokio::…::worker::Context::run_task")]);
        check(20, &[(name, "tokio::…::run_task")]);
        check(14, &[(name, "tok…::run_task"), ("a::b::c::function::<d::E, F>", "…function::<…>")]);
        check(10, &[(name, "…run_task")]);
        check(8, &[(name, "run_task")]);
        check(5, &[(name, "ru…sk")]);
        check(1, &[(name, "…")]);
        check(0, &[(name, "")]);
        check(31, &[("<a::Type as b::Trait>::the_name_of_a_very_long_method", "…the_name_of_a_very_long_method")]);
    }

    #[test]
    fn wide_characters_take_two_columns() {
        check(
            8,
            &[
                ("日本語日", "日本語日"),
                ("日本語日本", "日本…本"),
                ("e\u{301}e\u{301}abcdef", "e\u{301}e\u{301}abcdef"),
            ],
        );
    }

    /// All names of some pieces, sensible or not.
    #[test]
    fn any_text() {
        const PIECES: [&str; 18] = [
            "a",
            "std",
            "vector",
            "::",
            "<",
            ">",
            "(",
            ")",
            "{",
            "[",
            "]",
            ",",
            " ",
            "->",
            "operator",
            "::h0123456789abcdef",
            "日",
            "…",
        ];
        let n_names = PIECES.len().pow(4);
        for number in 0..n_names {
            let digit = |place: u32| PIECES[number / PIECES.len().pow(place) % PIECES.len()];
            let name = format!("std::vector<{}{}{}{}", digit(0), digit(1), digit(2), digit(3));
            let whole = short_name(&name, usize::MAX);
            assert!(columns_of(&whole) <= columns_of(&name), "{name}: {whole}");
            if whole == name {
                assert_eq!(short_name(&name, columns_of(&name)), name);
            }
            for columns in [0, 1, 2, 5, 9, 14, 20] {
                let short = short_name(&name, columns);
                assert!(columns_of(&short) <= columns, "{name} in {columns}: {short}");
            }
        }
    }

    /// The maximum number of brackets in a name, and more.
    #[test]
    fn deep_names_take_no_longer() {
        for piece in ["a<", "<a", "a::(", "std::map<a,", "operator<", "[abi:a", "::h0", "(a<b)", "<impl ", "a>"] {
            let name = piece.repeat((1 << 20) / piece.len());
            assert!(columns_of(&short_name(&name, NAME_COLUMNS)) <= NAME_COLUMNS, "{piece}");
        }
    }
}
