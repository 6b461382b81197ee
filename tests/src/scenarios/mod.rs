//! Scenarios: what programs do and what their traces must show, as data in `tests/scenarios/*.toml`.
//!
//! Each scenario runs by several [`ways`] of building and running its program, each with several options. [`chosen`] says which of the
//! three go together. `tests/scenarios/MOVED.md` maps older tests to scenarios.

pub mod ways;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde::Deserialize;

use self::ways::{WAYS, Way};
use crate::run::Run;
use crate::{assert_same_lines, outline, traces};

/// The scenarios of one program.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Family {
    /// The program's source, in `fixtures/c`.
    pub source: String,
    /// The scenarios.
    #[serde(rename = "scenario")]
    pub scenarios: Vec<Scenario>,
}

/// A run of the program, and what its trace must show: one of `calls` and `tree`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name, different from all others of the family.
    pub name: String,
    /// The program's arguments.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// How often functions are called: `branch 4, leaf 20`.
    pub calls: Option<String>,
    /// The calls, one name a line, two spaces deeper for each level.
    pub tree: Option<String>,
    /// Ways that do not apply, by the beginnings of their names, and why.
    #[serde(default)]
    pub not: BTreeMap<String, String>,
}

/// A way, and an option of it.
pub type Pair = (&'static Way, &'static str);

impl Family {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// Where the file is wrong.
    pub fn read(file: &Path) -> Result<Self, String> {
        let wrong = |what: &dyn std::fmt::Display| format!("{}: {what}", file.display());
        let text = fs::read_to_string(file).map_err(|error| wrong(&error))?;
        let family: Self = toml::from_str(&text).map_err(|error| wrong(&error))?;
        let mut names = BTreeSet::new();
        for scenario in &family.scenarios {
            if !names.insert(&scenario.name) {
                return Err(wrong(&format!("two scenarios have the name {}", scenario.name)));
            }
            if scenario.calls.is_some() == scenario.tree.is_some() {
                return Err(wrong(&format!("{} needs one of `calls` and `tree`", scenario.name)));
            }
            for begin in scenario.not.keys() {
                if !WAYS.iter().any(|way| way.name.starts_with(begin.as_str())) {
                    return Err(wrong(&format!("{}: there is no way {begin}", scenario.name)));
                }
            }
        }
        Ok(family)
    }
}

impl Scenario {
    /// True if a way applies.
    #[must_use]
    pub fn applies(&self, way: &Way) -> bool {
        !self.not.keys().any(|begin| way.name.starts_with(begin.as_str()))
    }

    /// Builds the program, runs it and looks at its trace.
    ///
    /// # Panics
    ///
    /// When something is wrong.
    pub fn run(&self, source: &str, (way, option): Pair) {
        let mut command = way.command(source, option);
        let run = Run::of(command.args(&self.arguments));
        let trace = run.trace("trace");
        if let Some(calls) = &self.calls {
            let tasks = traces::calls_per_task(&trace);
            let counts: Vec<String> = tasks[0].iter().map(|(name, count)| format!("{name} {count}")).collect();
            assert_eq!(&counts.join(", "), calls, "{:?}", self.arguments);
        }
        if let Some(tree) = &self.tree {
            assert_same_lines(&outline(&trace), tree, &self.arguments.join(" "));
        }
    }
}

/// The scenarios and pairs that run: each pair with the scenario that has fewest, and each scenario in two ways; or all that apply.
#[must_use]
pub fn chosen(scenarios: &[Scenario], all: bool) -> Vec<(&Scenario, Pair)> {
    let pairs: Vec<Pair> = WAYS.iter().flat_map(|way| way.options.iter().map(move |&option| (way, option))).collect();
    let mut of_each: Vec<Vec<Pair>> = vec![Vec::new(); scenarios.len()];
    for &(way, option) in &pairs {
        let mut applying: Vec<usize> = (0..scenarios.len()).filter(|&idx| scenarios[idx].applies(way)).collect();
        if !all {
            applying.sort_by_key(|&idx| of_each[idx].len());
            applying.truncate(1);
        }
        applying.into_iter().for_each(|idx| of_each[idx].push((way, option)));
    }
    for (idx, (scenario, chosen)) in scenarios.iter().zip(&mut of_each).enumerate() {
        // Each scenario begins elsewhere.
        for &(way, option) in pairs.iter().cycle().skip(idx).take(pairs.len()) {
            let ways: BTreeSet<&str> = chosen.iter().map(|(way, _)| way.name).collect();
            if ways.len() < 2 && !ways.contains(way.name) && scenario.applies(way) {
                chosen.push((way, option));
            }
        }
    }
    let with = |(scenario, pairs): (_, Vec<Pair>)| pairs.into_iter().map(move |pair| (scenario, pair));
    scenarios.iter().zip(of_each).flat_map(with).collect()
}
