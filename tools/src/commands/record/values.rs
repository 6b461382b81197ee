//! The filter of `rftrace record`, and the types of values: from debug information, and for functions of the C library.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Error, Result, anyhow, bail};
use rftrace_format::passed::Passed;
use rftrace_format::setting::Settings;
use rftrace_format::store::Owned;
use rftrace_format::system;
use rftrace_frontend::Binary;
use rftrace_frontend::Filter;
use rftrace_read::{Pattern, nearest};
use rftrace_record::dumps::DumpOn;
use rftrace_record::told::{RuleEffects, Types};
use rftrace_symbols::ModuleValues;

use super::{dump_on, triggers};

/// The options that say what is recorded, as of `RecordArgs`.
pub(super) struct Options<'a> {
    pub(super) filter: &'a [String],
    pub(super) notrace: &'a [String],
    pub(super) depth: Option<u32>,
    pub(super) time_filter: Option<u64>,
    pub(super) rules: &'a [String],
    pub(super) triggers: &'a [String],
    /// True to begin with recording switched off.
    pub(super) is_disabled: bool,
    pub(super) arguments: &'a [String],
    pub(super) results: &'a [String],
    pub(super) auto_args: bool,
    pub(super) libcalls: bool,
    pub(super) dump_on: &'a [DumpOn],
}

/// A rule in the frontend's language, and the option that stands for it alone.
pub(crate) struct Rule {
    text: String,
    option: Option<String>,
}

impl Rule {
    fn of_option(text: String, option: &str, value: &str) -> Self {
        Self { text, option: Some(format!("{option} {value}")) }
    }

    /// Returns the filter of these rules.
    pub(crate) fn joined(rules: &[Self]) -> String {
        rules.iter().map(|rule| &*rule.text).collect::<Vec<_>>().join("; ")
    }

    /// Returns an error with the options in place of these rules.
    pub(crate) fn as_options(rules: &[Self], error: Error) -> Error {
        let text = Self::in_options(rules, &format!("{error:#}"));
        text.map_or(error, |text| anyhow!(text))
    }

    /// Returns a text with the options in place of these rules, if one is in it.
    fn in_options(rules: &[Self], text: &str) -> Option<String> {
        // `not_below` comes before `below`.
        let mut options = rules.iter().rev().filter_map(|rule| Some((&*rule.text, rule.option.as_ref()?)));
        let (rule, option) = options.find(|(rule, _)| text.contains(rule))?;
        Some(text.replace(&format!("RFTRACE_FILTER: {rule}"), option).replace(rule, option))
    }
}

impl From<String> for Rule {
    fn from(text: String) -> Self {
        Self { text, option: None }
    }
}

/// Recorded functions and values, for the preloaded library, and its reports on them.
pub(super) struct Wanted {
    rules: Vec<Rule>,
    /// All of them; empty for none.
    filter: String,
    program: PathBuf,
    effects: RuleEffects,
    /// Answers what debug information tells, if that is wanted.
    types: Option<Types>,
    known: Arc<Mutex<KnownModules>>,
}

/// Debug information that was read.
#[derive(Default)]
struct KnownModules {
    /// Of each file that was asked for, by path and build-id; `None` where nothing is known.
    modules: HashMap<(PathBuf, Option<String>), Option<ModuleValues>>,
    /// True if the program's calls of library functions are recorded.
    has_library_calls: bool,
    /// Messages on files of which nothing is known.
    notes: BTreeSet<String>,
}

impl KnownModules {
    /// Returns the lines on a loaded file, for the process.
    fn lines(&mut self, path: &Path, build_id: Option<&str>) -> String {
        self.read(path, build_id).map(ModuleValues::lines).unwrap_or_default()
    }

    fn read(&mut self, path: &Path, build_id: Option<&str>) -> Option<&ModuleValues> {
        let Self { modules, has_library_calls, notes } = self;
        let read = || match read_module(path, build_id, *has_library_calls) {
            Ok(Some(module)) => Some(module),
            Ok(None) => {
                notes.insert(format!("{} has no debug information", path.display()));
                None
            }
            Err(error) => {
                notes.insert(format!("{error:#}"));
                None
            }
        };
        modules.entry((path.to_owned(), build_id.map(str::to_owned))).or_insert_with(read).as_ref()
    }
}

/// Reads the types of a file. `None` if it has none.
fn read_module(path: &Path, build_id: Option<&str>, has_library_calls: bool) -> Result<Option<ModuleValues>> {
    let known = rftrace_symbols::read_values(path)?.filter(|module| module.n_functions() > 0);
    let mut module = match known {
        Some(module) => module,
        None if has_library_calls => {
            ModuleValues::unknown(path.to_owned(), Binary::read(path)?.build_id().map(str::to_owned))
        }
        None => return Ok(None),
    };
    if module.build_id() != build_id {
        bail!("{} is not the file that the process has loaded", path.display());
    }
    if has_library_calls {
        module.add_library_calls(Binary::read(path)?.imports());
    }
    Ok((module.n_functions() > 0).then_some(module))
}

/// Reads the filter, and the types of `program` if they are needed. `work`: the folder of the recording.
pub(super) fn wanted(args: &Options<'_>, program: &Path, work: &Path) -> Result<Wanted> {
    let known = Arc::new(Mutex::new(KnownModules { has_library_calls: args.libcalls, ..KnownModules::default() }));
    let rules = rules(args)?;
    let text = Rule::joined(&rules);
    if (args.auto_args || !args.arguments.is_empty())
        && let Some(how) = rftrace_record::program::without_arguments(program)?
    {
        say!("rftrace: {how}");
    }
    let filter: Filter = text.parse().context("cannot read the rules")?;
    let types = if needs_types(args)? {
        // That of one that runs may be deleted.
        let found = program.canonicalize();
        let is_replaced = found.is_err();
        let program = found.unwrap_or_else(|_| program.to_owned());
        let build_id = Binary::read(&program).ok().and_then(|binary| binary.build_id().map(str::to_owned));
        let mut known_now = lock(&known);
        let is_known = known_now.read(&program, build_id.as_deref()).is_some();
        let notes = std::mem::take(&mut known_now.notes);
        // Their results are numbers then.
        if !is_known && (args.auto_args || options(args.arguments).any(|(_, specs)| specs.is_none())) {
            let why = notes.into_iter().next().unwrap_or_default();
            if is_replaced {
                say!(
                    "rftrace: cannot read the types of functions: the program's file was replaced or removed while the \
                     program ran; start the program again, or name the values, as in -A 'open@arg1/s'"
                );
            } else {
                say!(
                    "rftrace: {why}, or the files with it are missing (.dwo, .dwp, .debug); build it with -g (Cargo.toml: `debug = true`), or \
                 name the values, as in -A 'open@arg1/s'"
                );
            }
        }
        drop(known_now);
        let known = Arc::clone(&known);
        Some(Types::begin(work, move |path, build_id| lock(&known).lines(Path::new(path), build_id))?)
    } else {
        None
    };
    let effects = RuleEffects::create(filter.optional_rules())?;
    Ok(Wanted { rules, filter: text, program: program.to_owned(), effects, types, known })
}

fn lock(known: &Mutex<KnownModules>) -> MutexGuard<'_, KnownModules> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg_attr(not(attaching), allow(dead_code, reason = "some is for programs that run already"))]
impl Wanted {
    /// The rules; empty for none.
    pub(super) fn rules(&self) -> &str {
        &self.filter
    }

    /// Returns an error with the user's options in place of rules.
    pub(super) fn as_options(&self, error: Error) -> Error {
        Rule::as_options(&self.rules, error)
    }

    /// Reports errors of a recording.
    pub(super) fn tell_of_errors(&self, errors: &[String]) {
        for error in errors {
            say!("rftrace: {}", Rule::in_options(&self.rules, error).as_ref().unwrap_or(error));
        }
    }

    /// The rules for a program that nothing is preloaded into, and where it is said which of them match anything.
    pub(super) fn rules_outside(&self) -> (&str, &RuleEffects) {
        (&self.filter, &self.effects)
    }

    /// The variable for the preloaded library, and what else that is told. None if there are no rules.
    pub(super) fn tell(&self, settings: &mut Settings) -> Result<Option<(&'static str, OsString)>> {
        if self.filter.is_empty() {
            return Ok(None);
        }
        settings.rules = Some(self.effects.passed()?);
        settings.types = self.types()?;
        Ok(Some(("RFTRACE_FILTER", (&self.filter).into())))
    }

    /// Names the rules that have matched nothing.
    pub(super) fn tell_of_rules(&self, is_quiet: bool) -> Result<()> {
        let has = |rule: &Rule, text: &str| {
            rule.text.parse().is_ok_and(|filter: Filter| filter.optional_rules().iter().any(|found| found == text))
        };
        for text in self.effects.without_effect()?.into_iter().filter(|_| !is_quiet) {
            let rule = self.rules.iter().find(|rule| has(rule, text));
            let named = rule.and_then(|rule| rule.option.as_deref()).unwrap_or(text);
            // The pattern stands behind the rule's key, before its values or its action.
            let pattern = text.split_once('=').map_or(text, |(_, text)| text);
            let pattern = pattern.rsplit_once('@').map_or(pattern, |(pattern, _)| pattern);
            let similar = similar_name(&self.program, pattern).map(|name| format!("; did you mean `{name}`?"));
            say!("rftrace: no function that calls the tracer matches {named}{}", similar.unwrap_or_default());
        }
        Ok(())
    }

    /// Where processes are answered what values functions have, if that is wanted.
    pub(super) fn types(&self) -> Result<Option<Passed>> {
        self.types.as_ref().map(Types::passed).transpose()
    }

    /// Reads the types of all files that a process has loaded, so that it does not wait for them later.
    pub(super) fn read_ahead(&self, pid: u32) {
        if self.types.is_none() {
            return;
        }
        let maps = system::read_text(format!("/proc/{pid}/maps")).unwrap_or_default();
        let paths: BTreeSet<&str> = maps
            .lines()
            .filter(|line| line.contains(" r-xp "))
            .filter_map(|line| line.find('/').map(|at| &line[at..]))
            .collect();
        for path in paths.into_iter().map(Path::new) {
            let Ok(binary) = Binary::read(path) else { continue };
            lock(&self.known).read(path, binary.build_id());
        }
        // Most of these have no function that is recorded.
        lock(&self.known).notes.clear();
    }

    /// Writes names of enumerations into the trace, and reports files without types.
    pub(super) fn name_values(&self, owned: &Owned, is_quiet: bool) {
        let known = lock(&self.known);
        let modules: Vec<&ModuleValues> = known.modules.values().flatten().collect();
        if !modules.is_empty()
            && let Err(error) = rftrace_symbols::name_values(owned, &modules)
        {
            say!("rftrace: cannot name values of enumerations, which show as numbers: {error}");
        }
        if !known.notes.is_empty() && !is_quiet {
            let notes: Vec<&str> = known.notes.iter().map(String::as_str).collect();
            say!("rftrace: only values with specs in -A and -R were recorded: {}", notes.join("; "));
        }
    }
}

/// Reports that some pointers show as addresses.
#[cfg(attaching)]
pub(super) fn tell_of_addresses(is_confined: bool, is_quiet: bool) {
    if is_confined && !is_quiet {
        say!(
            "rftrace: pointers outside the stack and the constants show as addresses: the program has, or may get, a filter of system \
             calls (seccomp) that forbids reading other memory"
        );
    }
}

/// Each of the options of -A or -R: a pattern, and the specs after its `@`.
fn options(options: &[String]) -> impl Iterator<Item = (&str, Option<&str>)> {
    let split = |wanted| match str::rsplit_once(wanted, '@') {
        Some((pattern, specs)) => (pattern, Some(specs)),
        None => (wanted, None),
    };
    options.iter().flat_map(|wanted| wanted.split(';')).map(split)
}

/// True if the types of debug information are needed.
fn needs_types(args: &Options<'_>) -> Result<bool> {
    let is_bare = options(args.arguments).chain(options(args.results)).any(|(_, specs)| specs.is_none());
    let others: Filter = args.rules.join("; ").parse().context("--rules")?;
    Ok(args.auto_args || is_bare || others.needs_types())
}

/// Returns the rules of -F, -N and -D, in the frontend's language.
pub(crate) fn function_rules(filter: &[String], notrace: &[String], depth: Option<u32>) -> Vec<Rule> {
    let rule = |key: &'static str, option: &'static str| {
        move |pattern: &String| {
            Rule::of_option(format!("{key}={}", pattern.trim().replace(';', "\\;")), option, pattern)
        }
    };
    let mut rules: Vec<Rule> = filter.iter().map(rule("below", "-F")).collect();
    rules.extend(notrace.iter().map(rule("not_below", "-N")));
    rules.extend(depth.map(|levels| format!("depth={levels}").into()));
    rules
}

/// The name of a function in a program most like a pattern, if any is and the pattern matches none.
pub(super) fn similar_name(program: &Path, pattern: &str) -> Option<String> {
    let (binary, pattern) = (Binary::read(program).ok()?, Pattern::new(pattern).ok()?);
    let names: Vec<String> = binary.loaded_at(0).functions(0).map(|(_, _, name)| name).collect();
    if names.iter().any(|name| pattern.matches(name)) { None } else { nearest(&pattern.plain(), names.into_iter()) }
}

/// The filter, in the frontend's language.
pub(super) fn rules(args: &Options<'_>) -> Result<Vec<Rule>> {
    let mut rules = function_rules(args.filter, args.notrace, args.depth);
    rules.extend(args.time_filter.map(|nanos| format!("min={nanos}ns").into()));
    rules.extend(args.rules.iter().cloned().map(Rule::from));
    rules.extend(triggers::read(args.triggers, args.is_disabled, args.depth)?.rules.into_iter().map(Rule::from));
    for (name, specs) in options(args.arguments) {
        let typed = specs.map_or_else(|| name.to_owned(), |specs| format!("{name}@{specs}"));
        rules.push(Rule::of_option(format!("values={name}@{}", specs.unwrap_or("args")), "-A", &typed));
    }
    for (name, spec) in options(args.results) {
        let typed = spec.map_or_else(|| name.to_owned(), |spec| format!("{name}@{spec}"));
        // Without debug information it is a number.
        let spec = spec.unwrap_or("result,retval");
        if !spec.starts_with("result") && !spec.starts_with("retval") {
            bail!("-R {name}@{spec}: write `retval`, as in -R '{name}@retval/i32', or use -A for arguments");
        }
        rules.push(Rule::of_option(format!("values={name}@{spec}"), "-R", &typed));
    }
    if args.auto_args {
        rules.push("values=*@args,result".to_owned().into());
    }
    rules.extend(dump_on::rules(args.dump_on).map(Rule::from));
    Ok(rules)
}
