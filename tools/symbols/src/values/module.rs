//! What was found of a file's functions, and what of it is written.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::path::PathBuf;

use rftrace_format::recording::TypesLine;
use rftrace_format::symbols::{Head, ModuleId, SourcePart, short_build_id};
use rftrace_format::values::{self, ValueSpec};

/// What the debug information of a file tells of its functions' values.
#[derive(Debug, Default)]
pub struct ModuleValues {
    pub(super) path: PathBuf,
    pub(super) build_id: Option<String>,
    /// By address, from where the lowest segment begins.
    pub(super) functions: BTreeMap<u64, FunctionValues>,
    pub(super) enumerations: Vec<Enumeration>,
}

/// The values of a function of which at least one is known.
#[derive(Debug, Default)]
pub(super) struct FunctionValues {
    pub(super) arguments: Vec<Shown>,
    pub(super) result: Option<Shown>,
}

/// A value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shown {
    /// As the tracer knows it.
    pub(super) spec: ValueSpec,
    /// One of the module's, whose names stand for it.
    pub(super) enumeration: Option<usize>,
}

/// The names of numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Enumeration {
    pub(super) name: String,
    /// Each with the number that it has as four bytes of a trace.
    pub(super) names: Vec<(String, i32)>,
}

impl ModuleValues {
    /// A file, canonical as the system names it in maps, of which nothing is known so far.
    pub fn unknown(path: PathBuf, build_id: Option<String>) -> Self {
        Self { path, build_id, ..Self::default() }
    }

    /// How many functions have values that are known.
    pub fn n_functions(&self) -> usize {
        self.functions.len()
    }

    /// What the tracer is told, as [lines](TypesLine).
    pub fn lines(&self) -> String {
        let path = self.path.to_string_lossy();
        let mut text = TypesLine::Module { build_id: self.build_id.as_deref(), path: &path }.to_string();
        for (&address, function) in &self.functions {
            let arguments = function.arguments.iter().map(|shown| shown.spec.code()).collect();
            let result = function.result.map_or(0, |shown| shown.spec.code());
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

    /// Specs with the names of enumerations; those that are used are added to `used`.
    fn named(&self, shown: &[Shown], used: &mut BTreeSet<usize>) -> String {
        let spec =
            |shown: &Shown| match shown.enumeration.and_then(|number| Some((number, self.enumerations.get(number)?))) {
                Some((number, enumeration)) => {
                    used.insert(number);
                    let spec = shown.spec.to_string();
                    format!("{}/e:{}", spec.split('/').next().unwrap_or_default(), enumeration.name)
                }
                None => shown.spec.to_string(),
            };
        let specs: Vec<String> = shown.iter().map(spec).collect();
        format!("@{}", specs.join(","))
    }

    /// The text of a `.dbg` file of this module with the names of enumerations in it.
    pub(super) fn rewrite(&self, text: &str) -> String {
        let list = |shown: &[Shown]| values::list(&shown.iter().map(|shown| shown.spec).collect::<Vec<_>>());
        let (mut rewritten, mut used) = (String::new(), BTreeSet::new());
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
                    if is_wanted(&[*result], specs) =>
                {
                    rewritten += &format!("R: {}\n", self.named(&[*result], &mut used));
                    continue;
                }
                _ => {}
            }
            rewritten += line;
            rewritten.push('\n');
        }
        for number in used {
            let Enumeration { name, names } = &self.enumerations[number];
            let names: Vec<String> = names.iter().map(|(name, value)| format!("{name}={value}")).collect();
            rewritten += &format!("E: enum {name} {{{}}}\n", names.join(","));
        }
        rewritten
    }
}

/// Numbers enumerations: equal ones once, and each with a name of its own that specs can have.
#[derive(Debug, Default)]
pub(super) struct Enumerations {
    numbers: HashMap<Enumeration, usize>,
    pub(super) all: Vec<Enumeration>,
    names: BTreeSet<String>,
}

impl Enumerations {
    pub(super) fn number(&mut self, enumeration: Enumeration) -> usize {
        if let Some(&number) = self.numbers.get(&enumeration) {
            return number;
        }
        let plain = |c: char| if c.is_alphanumeric() || c == '_' || c == ':' { c } else { '_' };
        let name: String = enumeration.name.chars().map(plain).collect();
        let name = if name.is_empty() { "_".to_owned() } else { name };
        let taken = |name: &String| self.names.contains(name);
        let name = (1..).map(|n| if n == 1 { name.clone() } else { format!("{name}_{n}") }).find(|name| !taken(name));
        let name = name.unwrap_or_default();
        self.names.insert(name.clone());
        let number = self.all.len();
        self.all.push(Enumeration { name, names: enumeration.names.clone() });
        self.numbers.insert(enumeration, number);
        number
    }
}
