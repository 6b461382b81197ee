//! Scenarios: runs of programs and expectations of their traces, as data in `tests/scenarios/*.toml`.
//!
//! Each scenario runs by several [`ways`] of building and recording its program, each with several options. [`Family::chosen`] says which of the
//! three go together. `tests/scenarios/MOVED.md` maps older tests to scenarios.

pub mod seen;
pub mod ways;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde::Deserialize;
use toml::{Table, Value};

use self::ways::{By, WAYS, Way};
use crate::running::{Running, stop};

/// The scenarios of one program.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Family {
    /// The program's source, in `fixtures/c`, or, of Rust, in `fixtures`.
    pub source: String,
    /// The ways, by the beginnings of their names.
    ways: Vec<String>,
    /// Further arguments of the compiler.
    #[serde(default)]
    compiler: Vec<String>,
    /// Ways left out, by the beginnings of their names, or of options, and why.
    #[serde(default)]
    not: BTreeMap<String, String>,
    /// Defaults of all scenarios.
    #[serde(default)]
    all: Table,
    /// The scenarios.
    #[serde(rename = "scenario")]
    scenarios: Vec<Table>,
}

/// A run of the program, and expectations of its trace.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    /// Its name, different from all others of the family.
    name: String,
    /// The program's arguments.
    #[serde(default)]
    arguments: Vec<String>,
    /// The recorder's options.
    #[serde(default)]
    options: Vec<String>,
    /// And these.
    #[serde(default)]
    further: Vec<String>,
    /// Input for an attached program, for one line of output.
    #[serde(default)]
    input: String,
    /// How the program ends, as a shell has it.
    #[serde(default)]
    status: i32,
    /// Its output at the end.
    #[serde(default)]
    ends: String,
    /// The output; by default the same as without a recorder.
    output: Option<String>,
    /// How often all functions are called: `branch 4, leaf 20`.
    calls: Option<String>,
    /// How often these are called, among others; `leaf 0` is not called.
    counts: Option<String>,
    /// The calls of the only task, one name a line, two spaces deeper for each level.
    tree: Option<String>,
    /// The functions in the tree, if not all are.
    #[serde(default)]
    own: Vec<String>,
    /// How often functions are called by these: `main leaf 4`.
    edges: Option<String>,
    /// How many tasks there are.
    tasks: Option<usize>,
    /// The program prints its calls, and a replay shows the same.
    values: Option<Values>,
    /// Beginnings of lines of a replay.
    #[serde(default)]
    shows: Vec<String>,
    /// The names of threads.
    #[serde(default)]
    threads: Vec<String>,
    /// Messages of the recorder.
    #[serde(default)]
    says: Vec<String>,
    /// Functions without branches, and why; with an empty reason: functions with branches.
    #[serde(default)]
    left_out: BTreeMap<String, String>,
    /// True if no trace comes of it.
    #[serde(default)]
    untraced: bool,
    /// As of a family.
    #[serde(default, rename = "not")]
    _not: BTreeMap<String, String>,
    /// Changes by some ways, by the beginnings of their names.
    #[serde(default, rename = "by")]
    _by: Table,
}

/// Calls with values: lines with this beginning, up to a text.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Values {
    #[serde(default)]
    of: String,
    until: Option<String>,
    /// So many texts may be cut: qemu has no `process_vm_readv`, so the tracer reads the page of the function's stack alone.
    #[serde(default)]
    cut: usize,
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
        for number in 0..family.scenarios.len() {
            if !names.insert(family.name(number)) {
                return Err(wrong(&format!("two scenarios have the name {}", family.name(number))));
            }
            // By the ways with changes, and by one more.
            let others: Vec<&str> = family.others(number).map(|(begin, _)| begin.as_str()).collect();
            for way in WAYS.iter().take(1).chain(WAYS.iter().filter(|way| others.contains(&way.name))) {
                let read = family.scenario(number, way).map_err(|error| error.to_string());
                let checked = read.and_then(|scenario| scenario.check_words());
                checked.map_err(|error| wrong(&format!("{}: {error}", family.name(number))))?;
            }
            if let Some(begin) = others.into_iter().find(|begin| !is_known(begin)) {
                return Err(wrong(&format!("there is no way {begin}")));
            }
        }
        if let Some(begin) = family.ways.iter().find(|begin| !is_known(begin)) {
            return Err(wrong(&format!("there is no way {begin}")));
        }
        Ok(family)
    }

    /// The changes by some ways.
    fn others(&self, number: usize) -> impl Iterator<Item = (&String, &Value)> {
        [&self.all, &self.scenarios[number]].into_iter().flat_map(changes)
    }

    /// A scenario as it is by a way.
    fn scenario(&self, number: usize, way: &Way) -> Result<Scenario, toml::de::Error> {
        let mut merged = Table::new();
        for table in [&self.all, &self.scenarios[number]] {
            merged.extend(table.clone());
            for (_, other) in changes(table).filter(|(begin, _)| way.name.starts_with(begin.as_str())) {
                merged.extend(other.as_table().cloned().unwrap_or_default());
            }
        }
        Scenario::deserialize(merged)
    }

    /// The name of a scenario.
    #[must_use]
    pub fn name(&self, number: usize) -> &str {
        self.scenarios[number].get("name").and_then(|name| name.as_str()).unwrap_or_default()
    }

    /// True if a scenario has a way with an option.
    fn applies(&self, number: usize, (way, option): Pair) -> bool {
        let of_scenario = self.scenarios[number].get("not").and_then(|not| not.as_table());
        let mut not = self.not.keys().chain(of_scenario.into_iter().flat_map(|not| not.keys()));
        let is_named = self.ways.iter().any(|begin| way.name.starts_with(begin.as_str()));
        let is_not = not.any(|begin| [way.name, option].iter().any(|name| name.starts_with(begin.as_str())));
        is_named && !is_not && way.is_for(&self.source)
    }

    /// The scenarios and pairs of a run: each pair with the scenario with fewest, and each scenario in two ways; or all that apply.
    #[must_use]
    pub fn chosen(&self, all: bool) -> Vec<(usize, Pair)> {
        let pairs: Vec<Pair> =
            WAYS.iter().flat_map(|way| way.options.iter().map(move |&option| (way, option))).collect();
        let mut of_each: Vec<Vec<Pair>> = vec![Vec::new(); self.scenarios.len()];
        for &pair in &pairs {
            let mut applying: Vec<usize> = (0..of_each.len()).filter(|&number| self.applies(number, pair)).collect();
            if !all {
                applying.sort_by_key(|&number| of_each[number].len());
                applying.truncate(1);
            }
            applying.into_iter().for_each(|number| of_each[number].push(pair));
        }
        for (number, chosen) in of_each.iter_mut().enumerate() {
            // Each scenario begins elsewhere.
            for &(way, option) in pairs.iter().cycle().skip(number).take(pairs.len()) {
                let ways: BTreeSet<&str> = chosen.iter().map(|(way, _)| way.name).collect();
                if ways.len() < 2 && !ways.contains(way.name) && self.applies(number, (way, option)) {
                    chosen.push((way, option));
                }
            }
        }
        let of_one = |(number, pairs): (usize, Vec<Pair>)| pairs.into_iter().map(move |pair| (number, pair));
        of_each.into_iter().enumerate().flat_map(of_one).collect()
    }

    /// Builds the program, has it recorded by a way, and looks at the trace.
    ///
    /// # Panics
    ///
    /// When something is wrong.
    pub fn run(&self, number: usize, (way, option): Pair) {
        let scenario = |number| self.scenario(number, way).expect("it was read");
        let program = way.build(&self.source, &words(&self.compiler));
        if way.by == By::Attach {
            // Another scenario between leaves nothing behind.
            let others = (1..=self.scenarios.len()).map(|further| (number + further) % self.scenarios.len());
            let other = others.into_iter().find(|&other| self.applies(other, (way, option))).unwrap_or(number);
            attach(&[scenario(number), scenario(other), scenario(number)], way, option, &program);
        } else {
            let scenario = scenario(number);
            let run = way.run(&program, option, &scenario.words(), &words(&scenario.arguments));
            scenario.check_run(&run, way, &program);
        }
    }
}

/// A table's changes for some ways.
fn changes(table: &Table) -> impl Iterator<Item = (&String, &Value)> {
    table.get("by").and_then(Value::as_table).into_iter().flatten()
}

impl Scenario {
    /// The recorder's options.
    fn words(&self) -> Vec<&str> {
        self.options.iter().chain(&self.further).map(String::as_str).collect()
    }
}

/// True if a way's name, or an option, begins so.
fn is_known(begin: &str) -> bool {
    WAYS.iter().any(|way| way.name.starts_with(begin) || way.options.iter().any(|option| option.starts_with(begin)))
}

fn words(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

/// Attaches to one process for one scenario after the other.
fn attach(scenarios: &[Scenario], way: &Way, option: &'static str, program: &Path) {
    let mut running = Running::begin_by(way.plain(program).args(&scenarios[0].arguments));
    let code = running.code();
    let ask = |running: &mut Running, scenario: &Scenario| {
        let output = running.ask(&scenario.input);
        scenario.output.iter().for_each(|expected| assert_eq!(&output, expected, "{}", scenario.name));
    };
    for scenario in scenarios {
        ask(&mut running, scenario);
        let recorder = running.begin_recording(&way.options(option, &scenario.words()));
        ask(&mut running, scenario);
        stop(recorder);
        scenario.check_trace(&running.trace(), way);
        let now = running.code();
        assert!(code.iter().all(|(line, bytes)| now.get(line) == Some(bytes)), "{}: code was changed", scenario.name);
    }
    let (status, said) = running.end();
    assert_eq!((status.code(), said), (Some(scenarios[0].status), scenarios[0].ends.clone()));
}
