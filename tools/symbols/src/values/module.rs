//! The values found in a file's functions, and their text in a trace.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::slice;

use rftrace_format::composite::Composite;
use rftrace_format::layout::Layout;
use rftrace_format::recording::TypesLine;
use rftrace_format::symbols::{Head, ModuleId, SourcePart, layout_line, short_build_id};
use rftrace_format::values::{self, ValueSpec};

/// The values of a file's functions, from its debug information.
#[derive(Debug, Default)]
pub struct ModuleValues {
    pub(super) path: PathBuf,
    pub(super) build_id: Option<String>,
    /// By address, from where the lowest segment begins.
    pub(super) functions: BTreeMap<u64, FunctionValues>,
    pub(super) enumerations: Vec<Enumeration>,
    pub(super) layouts: Vec<(String, Layout)>,
    pub(super) n_missing_units: usize,
}

/// The values of a function of which at least one is known.
#[derive(Debug, Default)]
pub(super) struct FunctionValues {
    pub(super) arguments: Vec<Shown>,
    pub(super) result: Option<Shown>,
}

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// One without fields, as the tracer knows it, and the enumeration of the module's whose names stand for it.
    Plain(ValueSpec, Option<usize>),
    /// One with fields, and which of the module's layouts it has.
    Fields(Composite, usize),
}

impl Shown {
    /// The value on disk, as a reader without names knows it.
    pub(super) fn spec(&self) -> ValueSpec {
        match self {
            Self::Plain(spec, _) => *spec,
            Self::Fields(composite, _) => composite.spec(),
        }
    }

    /// The codes of the value for the tracer.
    fn codes(&self) -> Vec<u16> {
        match self {
            Self::Plain(spec, _) => vec![spec.code()],
            Self::Fields(composite, _) => composite.codes(),
        }
    }
}

/// The names of numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Enumeration {
    pub(super) name: String,
    /// Each with the number that it has as four bytes of a trace.
    pub(super) names: Vec<(String, i32)>,
}

impl ModuleValues {
    /// Creates the values of a file without known functions. `path` is canonical, in the form in which the system lists
    /// it in maps.
    pub fn unknown(path: PathBuf, build_id: Option<String>) -> Self {
        Self { path, build_id, ..Self::default() }
    }

    /// Returns the build-id of the file.
    pub fn build_id(&self) -> Option<&str> {
        self.build_id.as_deref()
    }

    /// Returns the number of functions with known values.
    pub fn n_functions(&self) -> usize {
        self.functions.len()
    }

    /// Returns the number of units of its debug information whose files are missing.
    pub fn n_missing_units(&self) -> usize {
        self.n_missing_units
    }

    /// Returns the [lines](TypesLine) for the tracer.
    pub fn lines(&self) -> String {
        let path = self.path.to_string_lossy();
        let mut text = TypesLine::Module { build_id: self.build_id.as_deref(), path: &path }.to_string();
        for (&address, function) in &self.functions {
            let arguments = function.arguments.iter().flat_map(Shown::codes).collect();
            let result = function.result.iter().flat_map(Shown::codes).collect();
            // Writing to a string cannot fail.
            let _ = write!(text, "{}", TypesLine::Function { address, arguments, result });
        }
        text
    }

    pub(super) fn is_of(&self, head: &Head) -> bool {
        let path = self.path.to_string_lossy();
        let build_id = self.build_id.as_deref().map(short_build_id);
        head.is_of(ModuleId { path: &path, build_id })
    }

    /// Specs with names; what they name is added to `used`.
    fn named(&self, shown: &[Shown], used: &mut Used) -> String {
        let spec = |shown: &Shown| {
            let spec = shown.spec().to_string();
            let place = spec.split('/').next().unwrap_or_default();
            match *shown {
                Shown::Plain(_, Some(number)) => {
                    used.enumerations.insert(number);
                    format!("{place}/e:{}", self.enumerations[number].name)
                }
                Shown::Plain(_, None) => spec,
                Shown::Fields(_, number) => {
                    used.layouts.insert(number);
                    spec.trim_end_matches('?').to_owned() + &self.layouts[number].0
                }
            }
        };
        let specs: Vec<String> = shown.iter().map(spec).collect();
        format!("@{}", specs.join(","))
    }

    /// The text of a `.dbg` file of this module with the names of enumerations in it.
    pub(super) fn rewrite(&self, text: &str) -> String {
        let list = |shown: &[Shown]| values::list(&shown.iter().map(Shown::spec).collect::<Vec<_>>());
        let (mut rewritten, mut used) = (String::new(), Used::default());
        let mut function: Option<&FunctionValues> = None;
        for line in text.lines() {
            let part = SourcePart::parse(line);
            let is_wanted = |shown: &[Shown], specs: &str| list(shown) == specs;
            match (part, function) {
                (Some(SourcePart::Function { addr }), _) => function = self.functions.get(&addr),
                (Some(SourcePart::Arguments(specs)), Some(FunctionValues { arguments, .. }))
                    if is_wanted(arguments, specs) =>
                {
                    rewritten += &format!("A: {}\n", self.named(arguments, &mut used));
                    continue;
                }
                (Some(SourcePart::Result(specs)), Some(FunctionValues { result: Some(result), .. }))
                    if is_wanted(slice::from_ref(result), specs) =>
                {
                    rewritten += &format!("R: {}\n", self.named(slice::from_ref(result), &mut used));
                    continue;
                }
                _ => {}
            }
            rewritten += line;
            rewritten.push('\n');
        }
        let enumeration = |number: u16| self.enumerations.get(usize::from(number));
        for number in used.layouts {
            let (name, layout) = &self.layouts[number];
            let text = layout.to_text(&mut |number| {
                used.enumerations.insert(number.into());
                enumeration(number).map(|enumeration| enumeration.name.clone()).unwrap_or_default()
            });
            rewritten += &layout_line(name, &text);
        }
        for number in used.enumerations {
            let Enumeration { name, names } = &self.enumerations[number];
            let names: Vec<String> = names.iter().map(|(name, value)| format!("{name}={value}")).collect();
            rewritten += &format!("E: enum {name} {{{}}}\n", names.join(","));
        }
        rewritten
    }
}

/// The enumerations and layouts that specs name, by number.
#[derive(Debug, Default)]
struct Used {
    enumerations: BTreeSet<usize>,
    layouts: BTreeSet<usize>,
}

/// Numbers layouts: equal ones of one type once, and each with a name of its own that specs can have.
#[derive(Debug, Default)]
pub(super) struct Layouts {
    numbers: HashMap<(String, Layout), usize>,
    pub(super) all: Vec<(String, Layout)>,
    names: Taken,
}

impl Layouts {
    pub(super) fn number(&mut self, of_type: &str, layout: Layout) -> usize {
        let key = (of_type.to_owned(), layout);
        if let Some(&number) = self.numbers.get(&key) {
            return number;
        }
        let number = self.all.len();
        self.all.push((self.names.unique(of_type, "_:<>&"), key.1.clone()));
        self.numbers.insert(key, number);
        number
    }
}

/// Names that are taken.
#[derive(Debug, Default)]
struct Taken(BTreeSet<String>);

impl Taken {
    /// A name as specs can have it, with letters, digits and what is `allowed`, and with a number if it is taken.
    fn unique(&mut self, name: &str, allowed: &str) -> String {
        let plain = |c: char| if c.is_alphanumeric() || allowed.contains(c) { c } else { '_' };
        let name: String = name.chars().map(plain).collect();
        let name = if name.is_empty() { "_".to_owned() } else { name };
        let names = (1..).map(|n| if n == 1 { name.clone() } else { format!("{name}_{n}") });
        let name = names.into_iter().find(|name| !self.0.contains(name)).unwrap_or_default();
        self.0.insert(name.clone());
        name
    }
}

/// Numbers enumerations: equal ones once, and each with a name of its own that specs can have.
#[derive(Debug, Default)]
pub(super) struct Enumerations {
    numbers: HashMap<Enumeration, usize>,
    pub(super) all: Vec<Enumeration>,
    names: Taken,
}

impl Enumerations {
    pub(super) fn number(&mut self, enumeration: Enumeration) -> usize {
        if let Some(&number) = self.numbers.get(&enumeration) {
            return number;
        }
        let name = self.names.unique(&enumeration.name, "_:");
        let number = self.all.len();
        self.all.push(Enumeration { name, names: enumeration.names.clone() });
        self.numbers.insert(enumeration, number);
        number
    }
}
