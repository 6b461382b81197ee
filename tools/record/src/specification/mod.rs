//! Specifications of `--resources FILE.toml`: the functions of a program that take and release resources.
//!
//! - here: the user's files, and their faults;
//! - `expression`: `arg1 * arg2` → steps of the machine that runs in the program (`rftrace_format::specification`);
//! - `audit`: functracer's `-a`, a specification of its own;
//! - `allocator`: an allocator inside the program;
//! - `functions`: the functions of the program and its libraries that a specification names;
//! - `plan`: the plan for a recording; `stubs`: the library that catches the calls.
//!
//! Not here: the work in the program (`rftrace-preload-resources`).

use std::path::Path;

use anyhow::{Context, Result, bail};
use rftrace_format::opener;
use rftrace_format::resources::Resource;
use rftrace_format::specification::{Argument, BEFORE, Does, Function, MAX_ARGUMENTS, MAX_IDS, NESTED};
use serde::Deserialize;
use toml::{Spanned, Table, Value};

mod allocator;
mod audit;
mod expression;
mod functions;
mod plan;
mod stubs;

pub use allocator::Allocator;
pub use plan::Plan;

use expression::Wants;

/// The built-in specifications, by their names.
const BUILT_IN: [(&str, &str); 5] = [
    ("gobject", include_str!("built_in/gobject.toml")),
    ("memtransfer", include_str!("built_in/memtransfer.toml")),
    ("mmap", include_str!("built_in/mmap.toml")),
    ("shmposix", include_str!("built_in/shmposix.toml")),
    ("shmsysv", include_str!("built_in/shmsysv.toml")),
];

/// A specification without faults.
#[derive(Clone, Debug)]
pub struct Specification {
    resources: Vec<Described>,
    functions: Vec<Wanted>,
}

/// A resource that is taken and given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Described {
    name: String,
    description: String,
    has_bytes: bool,
    is_counted: bool,
    has_others: bool,
}

/// Functions that take it or give it back.
#[derive(Clone, Debug)]
struct Wanted {
    /// The place of the specification, for messages.
    place: String,
    /// Names, globs or demangled names; if `is_shell`, compared as functracer does.
    symbols: Vec<String>,
    is_shell: bool,
    /// The library with the functions.
    library: Option<String>,
    /// True if they may be missing.
    is_optional: bool,
    /// With the number of the resource in this file.
    compiled: Function<Vec<u8>>,
}

/// A file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    resource: Vec<Spanned<WrittenResource>>,
    #[serde(default)]
    function: Vec<Spanned<WrittenFunction>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenResource {
    name: String,
    #[serde(default)]
    description: String,
    #[serde(default)]
    refcount: bool,
    #[serde(default)]
    others: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenFunction {
    symbol: Spanned<String>,
    #[serde(default)]
    aliases: Vec<String>,
    library: Option<String>,
    resource: Option<Spanned<String>>,
    kind: Spanned<String>,
    size: Option<Spanned<Value>>,
    id: Option<Spanned<Value>>,
    old: Option<Spanned<String>>,
    failed: Option<Spanned<String>>,
    #[serde(default)]
    before: bool,
    #[serde(default)]
    nested: bool,
    #[serde(default)]
    optional: bool,
    #[serde(default)]
    arguments: Table,
}

/// The most bytes of a user's file.
const MAX_BYTES: u64 = 1 << 20;

/// Reads a user's file.
fn read_text(path: &Path) -> Result<String> {
    Ok(opener::read_text(path, MAX_BYTES)?)
}

impl Specification {
    /// Returns the names of the built-in specifications.
    pub fn built_in() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// Opens a built-in specification, or a file.
    ///
    /// # Errors
    ///
    /// Neither has this name, or the specification has a fault, whose place the message names.
    pub fn open(name: &str) -> Result<Self> {
        if let Some((_, text)) = BUILT_IN.iter().find(|(built_in, _)| *built_in == name) {
            return Self::read(&format!("{name} (built in)"), text);
        }
        let path = Path::new(name);
        if path.extension().is_none_or(|extension| extension != "toml") {
            let names: Vec<&str> = Resource::ALL.iter().map(|one| one.name()).chain(Self::built_in()).collect();
            bail!(
                "no such kind of resource {name}; use {}, audit:SYMBOLS, or your own specification in a file that \
                 ends with .toml",
                names.join(", ")
            );
        }
        let text = read_text(path).with_context(|| format!("cannot read the specification {name}"))?;
        Self::read(name, &text)
    }

    /// Parses the text of a file, which has the name `file` in messages.
    ///
    /// # Errors
    ///
    /// The text has a fault. The message names file and line, and the correct form.
    pub fn read(file: &str, text: &str) -> Result<Self> {
        let at = |offset: usize| {
            let before = text.as_bytes().get(..offset.min(text.len())).unwrap_or_default();
            format!("{file}:{}", before.iter().filter(|&&byte| byte == b'\n').count() + 1)
        };
        let written: Written = toml::from_str(text).map_err(|error| {
            let place = at(error.span().map_or(0, |span| span.start));
            anyhow::anyhow!("{place}: {}", error.message())
        })?;
        let mut resources: Vec<Described> = Vec::new();
        for entry in &written.resource {
            let place = at(entry.span().start);
            let WrittenResource { name, description, refcount, others } = entry.get_ref();
            let is_name = !name.is_empty()
                && name.len() <= 64
                && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
            if !is_name {
                bail!("{place}: invalid name of a resource `{name}`; use at most 64 letters, digits, `-`, `_` and `.`");
            }
            if Resource::ALL.iter().any(|one| one.name() == name) || resources.iter().any(|one| one.name == *name) {
                bail!("{place}: there is a resource {name} already; give this one another name");
            }
            if description.len() > 256 || description.contains(char::is_control) {
                bail!("{place}: the description is longer than 256 bytes or one line: shorten it");
            }
            let description = if description.is_empty() { name } else { description }.clone();
            let (name, is_counted, has_others) = (name.clone(), *refcount, *others);
            resources.push(Described { name, description, has_bytes: false, is_counted, has_others });
        }
        if resources.is_empty() {
            let name = written.name.as_deref().unwrap_or("block");
            bail!("{file}: no [[resource]]: add the resource, as in\n[[resource]]\nname = \"{name}\"");
        }
        if written.function.is_empty() {
            bail!(
                "{file}: no [[function]]: add a function that allocates the resource, as in\n\
                 [[function]]\nsymbol = \"pool_get\"\nkind = \"alloc\"\nid = \"ret\""
            );
        }
        let mut functions = Vec::new();
        for entry in &written.function {
            functions.push(Self::function(entry.get_ref(), &mut resources, &at)?);
        }
        Ok(Self { resources, functions })
    }

    fn function(entry: &WrittenFunction, resources: &mut [Described], at: &dyn Fn(usize) -> String) -> Result<Wanted> {
        let place = at(entry.symbol.span().start);
        let symbol = entry.symbol.get_ref();
        let symbols: Vec<String> = std::iter::once(symbol).chain(&entry.aliases).cloned().collect();
        if symbols.iter().any(|symbol| symbol.is_empty() || symbol.contains('\0')) {
            bail!("{place}: a symbol is empty or has a NUL byte");
        }
        let does = match entry.kind.get_ref().as_str() {
            "alloc" => Does::Allocate,
            "free" => Does::Release,
            "realloc" => Does::Reallocate,
            "note" => Does::Note,
            other => {
                bail!("{}: no such kind `{other}`; use alloc, free, realloc or note", at(entry.kind.span().start))
            }
        };
        let resource = match &entry.resource {
            None if resources.len() == 1 => 0,
            None => bail!(
                "{place}: the function has no resource, and the file has several: add resource = \"{}\"",
                resources[0].name
            ),
            Some(name) => {
                let names: Vec<&str> = resources.iter().map(|one| one.name.as_str()).collect();
                let found = names.iter().position(|one| one == name.get_ref());
                found.with_context(|| {
                    format!(
                        "{}: no such resource `{}`; the file has {}",
                        at(name.span().start),
                        name.get_ref(),
                        names.join(", ")
                    )
                })?
            }
        };
        let is_before = entry.before;
        let compile = |text: &str, offset: usize, wants: Wants| {
            expression::compile(text, wants).map_err(|error| anyhow::anyhow!("{}: `{text}`: {error}", at(offset)))
        };
        // Values known at the evaluation.
        let known = |is_early: bool| if is_early || is_before { Wants::Early } else { Wants::Late };
        let texts = |value: &Spanned<Value>, what: &str| -> Result<Vec<String>> {
            let one = |value: &Value| match value {
                Value::Integer(number) => Some(number.to_string()),
                Value::String(text) => Some(text.clone()),
                _ => None,
            };
            let found = match value.get_ref() {
                Value::Array(values) => values.iter().map(one).collect(),
                value => one(value).map(|text| vec![text]),
            };
            found.with_context(|| format!("{}: {what} needs an expression, such as \"arg0\"", at(value.span().start)))
        };
        let mut ids = Vec::new();
        if let Some(value) = &entry.id {
            for text in texts(value, "id")? {
                ids.push(compile(&text, value.span().start, known(does == Does::Release))?);
            }
        }
        if ids.len() > MAX_IDS {
            bail!("{place}: {} ids are too many; a call has at most {MAX_IDS}", ids.len());
        }
        let is_note = does == Does::Note;
        if ids.is_empty() && !is_note {
            bail!("{place}: {symbol} ({}) has no id: add id = \"ret\" or id = \"arg0\"", entry.kind.get_ref());
        }
        let size = match &entry.size {
            Some(value) if does == Does::Release => {
                bail!("{}: a free takes the size from its alloc: remove `size`", at(value.span().start))
            }
            Some(value) => match texts(value, "size")?.as_slice() {
                [text] => {
                    resources[resource].has_bytes |= text != "1";
                    compile(text, value.span().start, known(false))?
                }
                _ => bail!("{}: a function has one size: remove the others", at(value.span().start)),
            },
            None if is_note => compile("0", 0, Wants::Early)?,
            None => compile("1", 0, Wants::Early)?,
        };
        let old = match &entry.old {
            Some(text) if does == Does::Reallocate => compile(text.get_ref(), text.span().start, Wants::Early)?,
            Some(text) => {
                bail!(
                    "{}: only a realloc has `old`: remove it from this {}",
                    at(text.span().start),
                    entry.kind.get_ref()
                )
            }
            None if does == Does::Reallocate => bail!("{place}: {symbol} (realloc) has no old: add old = \"arg0\""),
            None => Vec::new(),
        };
        let failed = match &entry.failed {
            Some(text) => compile(text.get_ref(), text.span().start, known(false))?,
            None => Vec::new(),
        };
        let mut arguments = Vec::new();
        for (name, value) in &entry.arguments {
            let Value::String(text) = value else {
                bail!("{place}: argument {name} needs an expression, such as \"arg1\" or \"str(arg0)\"");
            };
            let inner = text.trim().strip_prefix("str(").and_then(|rest| rest.strip_suffix(')'));
            let steps = compile(inner.unwrap_or(text), entry.symbol.span().start, known(false))?;
            arguments.push(Argument { name: name.clone().into_bytes(), steps, is_text: inner.is_some() });
        }
        if arguments.len() > MAX_ARGUMENTS {
            bail!("{place}: {} arguments are too many; a function has at most {MAX_ARGUMENTS}", arguments.len());
        }
        let flags = if entry.before { BEFORE } else { 0 } | if entry.nested { NESTED } else { 0 };
        let compiled = Function { resource: resource as u32, does, flags, size, failed, old, ids, arguments };
        let (library, is_optional) = (entry.library.clone(), entry.optional);
        Ok(Wanted { place, symbols, is_shell: false, library, is_optional, compiled })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "name = \"pool\"\n[[resource]]\nname = \"block\"\n";

    fn refused(text: &str) -> String {
        let text = format!("{HEAD}{text}");
        Specification::read("pool.toml", &text).map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn built_in_ones_are_right() {
        for name in Specification::built_in() {
            let specification = Specification::open(name).unwrap();
            assert!(!specification.functions.is_empty(), "{name}");
        }
    }

    #[test]
    fn files_are_read() {
        let text = format!(
            "{HEAD}[[function]]\nsymbol = \"get\"\naliases = [\"get_*\"]\nkind = \"alloc\"\nsize = \"arg1 * arg2\"\nid = [\"*arg0\", \"*(arg0 + 8)\"]\n\
             arguments = {{ path = \"str(arg3)\", flags = \"arg4.i32\" }}\n[[function]]\nsymbol = \"put\"\nkind = \"free\"\nid = \"arg0\"\noptional = true\n"
        );
        let specification = Specification::read("pool.toml", &text).unwrap();
        let [get, put] = specification.functions.as_slice() else { panic!("{specification:?}") };
        assert_eq!(
            (get.symbols.as_slice(), get.place.as_str()),
            (["get".to_owned(), "get_*".to_owned()].as_slice(), "pool.toml:5")
        );
        assert_eq!((get.compiled.ids.len(), get.compiled.arguments.len(), get.compiled.does), (2, 2, Does::Allocate));
        let names: Vec<_> = get.compiled.arguments.iter().map(|one| (&*one.name, one.is_text)).collect();
        assert_eq!(names, [(&b"path"[..], true), (b"flags", false)]);
        assert!(put.is_optional && put.compiled.does == Does::Release);
        assert!(specification.resources[0].has_bytes && !specification.resources[0].is_counted);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, words) in [
            ("", "no [[function]]"),
            ("[[function]]\nsymbol = \"f\"\nkind = \"take\"\n", "pool.toml:6: no such kind `take`; use alloc, free"),
            ("[[function]]\nsymbol = \"f\"\nkind = \"alloc\"\n", "pool.toml:5: f (alloc) has no id: add id"),
            ("[[function]]\nsymbol = \"f\"\nkind = \"alloc\"\nid = \"arg16\"\n", "pool.toml:7: `arg16`: "),
            ("[[function]]\nsymbol = \"f\"\nkind = \"alloc\"\nid = \"ret +\"\n", "pool.toml:7: `ret +`: "),
            ("[[function]]\nsymbol = \"f\"\nkind = \"free\"\nid = \"ret\"\n", "pool.toml:7: `ret`: "),
            ("[[function]]\nsymbol = \"f\"\nkind = \"realloc\"\nid = \"ret\"\n", "add old = "),
            (
                "[[function]]\nsymbol = \"f\"\nkind = \"alloc\"\nid = \"ret\"\nresource = \"x\"\n",
                "pool.toml:8: no such resource `x`; the file has block",
            ),
            ("[[function]]\nsymbol = \"f\"\nkind = \"alloc\"\nid = true\n", "pool.toml:7: id needs an expression"),
            ("[[function]]\nsymbol = \"f\"\nkynd = \"alloc\"\n", "pool.toml:6: unknown field `kynd`"),
            ("[[function]\n", "pool.toml:4: "),
            ("[[resource]]\nname = \"block\"\n", "pool.toml:4: there is a resource block already"),
        ] {
            let told = refused(text);
            assert!(told.contains(words), "{text}: {told}");
        }
        let told = Specification::open("gobjekt").unwrap_err().to_string();
        assert!(told.contains("memory, file, thread, library, gobject") && told.contains(".toml"), "{told}");
    }
}
