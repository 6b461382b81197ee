//! The plan that specifications make for a recording: the caught functions, and the table for the library in the
//! program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rftrace_format::recording::Led;
use rftrace_format::resources::{Definition, MAX_SPECIFIED, Resource};
use rftrace_format::specification::{self, BEFORE, Function, MAX_FUNCTIONS};
use rftrace_read::Pattern;

use super::allocator::{Allocator, Own};
use super::functions::{self, Module, OF_LINKER, as_by_cxxfilt, nearest, readable, why_not_caught};
use super::{Described, Specification, Wanted, stubs};

/// The specified resources and functions, for the recorder and the program.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    resources: Vec<Described>,
    functions: Vec<Caught>,
}

/// A caught function.
#[derive(Clone, Debug)]
struct Caught {
    symbol: String,
    /// How it is told of.
    name: String,
    does: Function<Vec<u8>>,
    /// True if calls from one module to another are caught.
    is_exported: bool,
    /// The function's beginnings, by the paths of modules: it gets branches there.
    places: Vec<(PathBuf, u64)>,
}

/// A specified function.
struct Meant {
    symbol: String,
    is_exported: bool,
    places: Vec<(PathBuf, u64)>,
}

impl Plan {
    /// Finds the functions of a program and its libraries that the specifications name.
    ///
    /// # Errors
    ///
    /// A function does not exist or cannot be caught; or there are too many. The message names the place.
    pub fn of(specifications: Vec<Specification>, program: &Path) -> Result<Self> {
        if specifications.is_empty() {
            return Ok(Self::default());
        }
        let mut modules = functions::modules(program)?;
        let mut plan = Self::default();
        let mut caught: BTreeMap<String, String> = BTreeMap::new();
        for Specification { resources, functions } in specifications {
            let first = plan.resources.len() as u32;
            for resource in resources {
                if plan.resources.iter().any(|one| one.name == resource.name) {
                    bail!(
                        "--resources: two specifications have a resource {}; give one of them another name",
                        resource.name
                    );
                }
                plan.resources.push(resource);
            }
            if plan.resources.len() > MAX_SPECIFIED {
                bail!(
                    "--resources: {} specified resources are too many; use at most {MAX_SPECIFIED}",
                    plan.resources.len()
                );
            }
            for wanted in functions {
                for Meant { symbol: name, is_exported, places } in find(&wanted, &mut modules)? {
                    let readable = match wanted.is_shell {
                        true => as_by_cxxfilt(&name).into_owned(),
                        false => readable(&name)[0].clone().unwrap_or_else(|| name.clone()),
                    };
                    // Patterns of one list may have some in common.
                    if wanted.is_shell && caught.get(&name) == Some(&wanted.place) {
                        continue;
                    }
                    if let Some(place) = caught.insert(name.clone(), wanted.place.clone()) {
                        bail!("{}: {readable} is already specified at {place}: remove one of the two", wanted.place);
                    }
                    let number = Resource::ALL.len() as u32 + first + wanted.compiled.resource;
                    let does = Function { resource: number, ..wanted.compiled.clone() };
                    plan.functions.push(Caught { symbol: name, name: readable, does, is_exported, places });
                }
            }
        }
        plan.check_number()?;
        Ok(plan)
    }

    /// Adds the functions of an allocator inside the program, which allocate memory. Functions that are specified
    /// otherwise keep their specification.
    ///
    /// # Errors
    ///
    /// The program cannot be found; there are too many functions.
    pub fn add_allocator(&mut self, allocator: Allocator, program: &Path) -> Result<()> {
        let path = program.canonicalize().with_context(|| format!("cannot find {}", program.display()))?;
        for Own { symbol, does, addresses } in allocator.functions {
            if self.functions.iter().any(|caught| caught.symbol == symbol) {
                continue;
            }
            let name = readable(&symbol)[0].clone().unwrap_or_else(|| symbol.clone());
            let does = Function { resource: Resource::Memory.number(), ..does };
            let places = addresses.into_iter().map(|address| (path.clone(), address)).collect();
            self.functions.push(Caught { symbol, name, does, is_exported: false, places });
        }
        self.check_number()
    }

    fn check_number(&self) -> Result<()> {
        if self.functions.len() > MAX_FUNCTIONS {
            bail!(
                "--resources: {} functions are too many; use narrower globs, for at most {MAX_FUNCTIONS}",
                self.functions.len()
            );
        }
        Ok(())
    }

    /// Returns true if nothing is specified.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty() && self.resources.is_empty()
    }

    /// Bits of the recorded resources.
    pub(crate) fn bits(&self) -> u32 {
        (0..self.resources.len()).fold(0, |bits, number| bits | 1 << (Resource::ALL.len() + number))
    }

    /// Returns the specified functions for a running program, which calls them through slots; `None` if nothing is
    /// specified.
    #[cfg(attaching)]
    #[must_use]
    pub fn by_slots(&self) -> Option<rftrace_attach::Specified> {
        let exported = self.functions.iter().enumerate().filter(|(_, caught)| caught.is_exported);
        let names = exported.map(|(number, caught)| format!("{number} {}\n", caught.symbol)).collect();
        (!self.is_empty()).then(|| rftrace_attach::Specified { table: self.table(), names })
    }

    /// The table for the program.
    pub(crate) fn table(&self) -> Vec<u8> {
        let functions: Vec<_> = self.functions.iter().map(|caught| caught.does.clone()).collect();
        specification::encode(&functions)
    }

    /// Returns the functions' definitions in the recording.
    pub(crate) fn definitions(&self) -> impl Iterator<Item = (u64, Vec<u8>)> {
        self.functions.iter().enumerate().map(|(number, Caught { name, does, .. })| {
            let resource = (does.resource as usize).checked_sub(Resource::ALL.len());
            let described = resource.map(|resource| &self.resources[resource]);
            let texts = described.map_or(["memory", ""], |described| [&described.name, &described.description]);
            let definition = Definition {
                function: number as u16,
                resource: resource.map_or(Definition::OF_MEMORY, |resource| resource as u8),
                has_bytes: described.is_none_or(|described| described.has_bytes),
                is_counted: described.is_some_and(|described| described.is_counted),
                has_others: described.is_some_and(|described| described.has_others),
                texts: [texts[0], texts[1], name],
            };
            (definition.word(), definition.text())
        })
    }

    /// Returns the library that catches the calls; `None` without such calls.
    #[must_use]
    pub fn library(&self) -> Option<Vec<u8>> {
        let exported = self.functions.iter().enumerate().filter(|(_, caught)| caught.is_exported);
        let names: Vec<(&str, usize)> = exported.map(|(number, caught)| (caught.symbol.as_str(), number)).collect();
        (!names.is_empty()).then(|| stubs::library(&names))
    }

    /// The functions with branches at their beginnings, as the library of the tracer reads them ([`Led`]).
    pub(crate) fn led(&self) -> String {
        let mut lines = String::new();
        for (number, caught) in self.functions.iter().enumerate() {
            for (path, address) in &caught.places {
                // One line each: of a path with a line feed no function has a branch.
                if let Some(path) = path.to_str().filter(|path| !path.contains(['\n', '\t'])) {
                    lines += &Led { number, address: *address, name: &caught.name, path }.to_string();
                }
            }
        }
        lines
    }

    /// Checks that no specified function is only called within a module, for a recorder without branches.
    ///
    /// # Errors
    ///
    /// There is such a function.
    pub fn without_branches(&self) -> Result<()> {
        match self.functions.iter().find(|caught| !caught.is_exported) {
            Some(Caught { name, places, .. }) => {
                let module = places.first().and_then(|(path, _)| path.file_name()).unwrap_or_default();
                bail!(
                    "cannot record {name} in a running program, as only {} calls it: start the program with rftrace \
                     record --resources",
                    module.to_string_lossy()
                )
            }
            None => Ok(()),
        }
    }
}

/// The specified functions.
fn find(wanted: &Wanted, modules: &mut Vec<Module>) -> Result<Vec<Meant>> {
    let place = &wanted.place;
    // A library loaded later is named by its path.
    if let Some(path) = wanted.library.as_deref().filter(|library| library.contains('/')) {
        let path = PathBuf::from(path);
        if !modules.iter().any(|module| module.path == path) {
            match Module::open(&path, false) {
                Ok(module) => modules.push(module),
                Err(_) if wanted.is_optional => return Ok(Vec::new()),
                Err(error) => return Err(error.context(format!("{place}: library"))),
            }
        }
    }
    let library = wanted.library.as_deref().map(Pattern::new).transpose();
    let library = library.map_err(|error| anyhow::anyhow!("{place}: library: {error}"))?;
    let is_meant = |module: &&Module| {
        let path = module.path.to_string_lossy();
        library.as_ref().is_none_or(|library| library.matches(&module.name()) || library.matches(&path))
    };
    let meant: Vec<&Module> = modules.iter().filter(is_meant).collect();
    if meant.is_empty() && wanted.is_optional {
        return Ok(Vec::new());
    }
    if meant.is_empty() {
        bail!(
            "{place}: the program loads no library {} at its start; name a library that it loads later by its path, \
             or add `optional = true`",
            library.as_ref().map_or("", |library| library.text())
        );
    }
    // A function recorded at its call takes no other's place.
    let is_early = wanted.compiled.flags & BEFORE != 0;
    let others = || modules.iter().filter(|module| !module.name().starts_with("ld-linux"));
    let why_not = |name: &String| {
        let is_linkers = modules.iter().any(|module| module.is_linkers(name))
            && !others().any(|module| module.exported.binary_search(name).is_ok());
        if is_linkers { Some(OF_LINKER) } else { why_not_caught(name, is_early) }
    };
    let mut found: BTreeMap<String, bool> = BTreeMap::new();
    for (number, symbol) in wanted.symbols.iter().enumerate() {
        let pattern = functions::Wanted::new(symbol, wanted.is_shell).with_context(|| format!("{place}: symbol"))?;
        let outer: Vec<&&Module> = meant.iter().filter(|module| !module.is_program).collect();
        let names = outer.iter().flat_map(|module| &module.exported).filter(|name| pattern.is(name));
        let (uncaught, names): (Vec<&String>, Vec<&String>) = names.partition(|name| why_not(name).is_some());
        // The program's own have branches alone. functracer audits functions of libraries.
        let inner = meant.iter().filter(|module| module.is_program && !wanted.is_shell);
        let inner = inner.flat_map(|module| module.exported.iter().chain(&module.internal));
        let inner: Vec<&String> = inner.filter(|name| pattern.is(name) && why_not(name).is_none()).collect();
        inner.iter().for_each(|name| _ = found.entry((*name).clone()).or_default());
        names.iter().for_each(|name| *found.entry((*name).clone()).or_default() = true);
        if !names.is_empty() || !inner.is_empty() {
            continue;
        }
        if let Some((name, why)) = uncaught.first().and_then(|name| Some((name, why_not(name)?))) {
            bail!("{place}: {name} {why}, so rftrace cannot record it");
        }
        // Aliases are other names it may have.
        if number > 0 || wanted.is_optional {
            continue;
        }
        // Functions named by a library alone.
        let internal: Vec<&String> = outer
            .iter()
            .flat_map(|module| &module.internal)
            .filter(|name| !wanted.is_shell && pattern.is(name))
            .collect();
        internal.iter().for_each(|name| _ = found.entry((*name).clone()).or_default());
        if !internal.is_empty() {
            continue;
        }
        let aliases = &wanted.symbols[1..];
        let is_there = |alias: &String| {
            let pattern = functions::Wanted::new(alias, wanted.is_shell);
            pattern.is_ok_and(|pattern| outer.iter().any(|module| module.exported.iter().any(|name| pattern.is(name))))
        };
        if aliases.iter().any(is_there) {
            continue;
        }
        let near = nearest(symbol, &meant).map_or_else(String::new, |name| format!("; the nearest is {name}"));
        bail!(
            "{place}: there is no function {symbol} in the program and its libraries{near}; correct the name, or add \
             `optional = true`"
        );
    }
    // For functracer's audit only calls from one module to another are noted.
    let own: &[&Module] = if wanted.is_shell { &[] } else { &meant };
    let places = |symbol: &str| {
        let all =
            own.iter().flat_map(|module| module.addresses(symbol).map(move |address| (module.path.clone(), address)));
        all.filter_map(|(path, address)| Some((path.canonicalize().ok()?, address))).collect()
    };
    let first = found.keys().next().cloned();
    let found = found.into_iter().filter(|(symbol, is_exported)| {
        // Functions chosen by processor, and the C library's, are caught by their names alone.
        *is_exported || meant.iter().any(|module| module.addresses(symbol).next().is_some())
    });
    let found: Vec<Meant> =
        found.map(|(symbol, is_exported)| Meant { places: places(&symbol), symbol, is_exported }).collect();
    match first.filter(|_| found.is_empty() && !wanted.is_optional) {
        Some(first) => bail!("{place}: only its own module calls {first}, and rftrace cannot record such calls of it"),
        None => Ok(found),
    }
}
