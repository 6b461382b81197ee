//! The hooks' table of values: each filter gets a new one, and tables in use stay. Also a recorder's facts about
//! functions' values, from debug information.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Release;

use rftrace::abi::{FilterControl, ValueSite, ValueTable, Watch};
use rftrace_format::recording::TypesLine;

use super::watches::SiteWatch;
use crate::host;

/// The recorded values of a function, as codes of [`value`](rftrace::abi::value).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SiteValues {
    pub(crate) child_ip: u64,
    pub(crate) arguments: Vec<u16>,
    /// The codes of one value.
    pub(crate) result: Vec<u16>,
    /// Watches of its calls.
    pub(crate) watches: Vec<SiteWatch>,
    /// The number of recorded levels from it on; 0 without a limit of its own.
    pub(crate) levels: u32,
}

/// The values published last.
#[derive(Debug, Default)]
pub(crate) struct PublishedValues(Vec<SiteValues>);

impl PublishedValues {
    /// Begins a recording: calls count from the first one, so a table with counts is made anew.
    pub(crate) fn begin(&mut self) {
        if self.0.iter().any(|site| !site.watches.is_empty()) {
            self.0.clear();
        }
    }

    /// Publishes the values and watches of these sites, sorted by address. Only changes take memory, for ever.
    pub(crate) fn publish(&mut self, sites: &[SiteValues], control: &FilterControl) {
        if self.0 == sites {
            return;
        }
        self.0 = sites.to_vec();
        let sites: Vec<ValueSite> = sites
            .iter()
            .map(|site| {
                let (arguments, result) = (site.arguments.clone().leak(), site.result.clone().leak());
                let watches: Vec<Watch> = site.watches.iter().map(|watch| watch.for_hooks()).collect();
                let watches = watches.leak();
                ValueSite {
                    child_ip: site.child_ip as usize,
                    arguments: arguments.as_ptr(),
                    n_arguments: arguments.len(),
                    result: result.as_ptr(),
                    n_result: result.len(),
                    watches: watches.as_ptr(),
                    n_watches: watches.len(),
                    levels: site.levels,
                }
            })
            .collect();
        let (sites, constant) = (sites.leak(), host::constant_memory().leak());
        let table = ValueTable {
            sites: sites.as_ptr(),
            n_sites: sites.len(),
            constant: constant.as_ptr(),
            n_constant: constant.len(),
        };
        control.values.store(Box::leak(Box::new(table)), Release);
    }
}

/// A function that asks a recorder for the values of functions in modules, by the modules' paths and build-ids. It
/// returns [lines](TypesLine).
pub type AskValues = fn(&[(String, Option<String>)]) -> String;

/// The values of functions from their debug information.
#[derive(Debug, Default)]
pub(crate) struct KnownValues {
    modules: Vec<KnownModule>,
    /// The requested modules.
    asked: Vec<(String, Option<String>)>,
}

/// The values of a module.
#[derive(Debug)]
struct KnownModule {
    build_id: Option<String>,
    path: String,
    /// By address from the module's beginning: the codes of the arguments and of the result, as in [`SiteValues`].
    functions: HashMap<u64, (Vec<u16>, Vec<u16>)>,
}

impl KnownValues {
    /// Asks for the values of modules, each once.
    pub(crate) fn ask(
        &mut self,
        ask: impl FnOnce(&[(String, Option<String>)]) -> String,
        modules: impl Iterator<Item = (String, Option<String>)>,
    ) {
        let new: Vec<_> = modules.filter(|module| !self.asked.contains(module)).collect();
        if !new.is_empty() {
            self.add(&ask(&new));
            self.asked.extend(new);
        }
    }

    /// Reads [lines](TypesLine). Other lines are left out.
    fn add(&mut self, text: &str) {
        let mut modules: Vec<KnownModule> = Vec::new();
        for line in text.lines().filter_map(TypesLine::parse) {
            match (line, modules.last_mut()) {
                (TypesLine::Module { build_id, path }, _) => modules.push(KnownModule {
                    build_id: build_id.map(str::to_owned),
                    path: path.to_owned(),
                    functions: HashMap::new(),
                }),
                (TypesLine::Function { address, arguments, result }, Some(module)) => {
                    module.functions.insert(address, (arguments, result));
                }
                (TypesLine::Function { .. }, None) => {}
            }
        }
        self.modules.extend(modules);
    }

    /// Returns true if anything is known of a module.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "no module has values"))]
    pub(crate) fn has(&self, module: (&str, Option<&str>)) -> bool {
        self.module(module).is_some()
    }

    /// Returns the codes of the arguments and of the result of the function at an address, relative to the module's
    /// beginning.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "no module has values"))]
    pub(crate) fn of(&self, module: (&str, Option<&str>), address: u64) -> Option<(&[u16], &[u16])> {
        let (arguments, result) = self.module(module)?.functions.get(&address)?;
        Some((arguments, result))
    }

    fn module(&self, (path, build_id): (&str, Option<&str>)) -> Option<&KnownModule> {
        self.modules.iter().find(|module| match (&module.build_id, build_id) {
            (Some(own), Some(id)) => own == id,
            (None, None) => module.path == path,
            _ => false,
        })
    }
}
