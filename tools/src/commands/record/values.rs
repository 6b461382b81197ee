//! The filter of `rftrace record`, and what is known of values: by debug information, and of functions of the C library.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result, bail};
use rftrace_frontend::Binary;
use rftrace_frontend::Filter;
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
    /// Whether recording begins switched off.
    pub(super) is_disabled: bool,
    pub(super) arguments: &'a [String],
    pub(super) results: &'a [String],
    pub(super) auto_args: bool,
    pub(super) libcalls: bool,
    pub(super) dump_on: &'a [DumpOn],
    /// Whether it is a program that runs.
    pub(super) is_attached: bool,
}

/// What the preloaded library is told to record, and what it says of that.
pub(super) struct Wanted {
    /// The rules; empty for none.
    rules: String,
    effects: RuleEffects,
    /// What the program's debug information tells, if that is wanted.
    modules: Vec<ModuleValues>,
    types: Option<Types>,
}

/// Reads the filter, and what is known of the functions of `program` where it is wanted.
pub(super) fn wanted(args: &Options<'_>, program: &Path) -> Result<Wanted> {
    let mut modules = Vec::new();
    if needs_types(args)? {
        let known = rftrace_symbols::read_values(program);
        let (known, has_calls) = if args.libcalls { with_library_calls(known, program)? } else { (known, false) };
        match known {
            Ok(Some(module)) if module.n_functions() > 0 => modules.push(module),
            Ok(_) if has_calls => {}
            // Their results are numbers then.
            Ok(_) if !args.auto_args && options(args.arguments).all(|(_, specs)| specs.is_some()) => {}
            Ok(_) => say!(
                "rftrace: {} tells of no values: it has no debug information (-g, or `debug = true` in Cargo.toml), or it \
                 lies in files that are not there (.dwo, .dwp, .debug); write which values are wanted, as in -A 'open@arg1/s'",
                program.display()
            ),
            Err(error) => say!("rftrace: values are known only where -A and -R tell of them: {error}"),
        }
    }
    let rules = rules(args, !modules.is_empty())?;
    let filter: Filter = rules.parse().context("what to record")?;
    let effects = RuleEffects::create(filter.optional_rules())?;
    let lines: String = modules.iter().map(ModuleValues::lines).collect();
    let types = filter.needs_types().then(|| Types::create(&lines)).transpose()?;
    Ok(Wanted { rules, effects, modules, types })
}

/// Adds what is known of functions of libraries that the program calls, and says whether there are such.
fn with_library_calls(
    known: rftrace_read::Result<Option<ModuleValues>>,
    program: &Path,
) -> Result<(rftrace_read::Result<Option<ModuleValues>>, bool)> {
    let program = program.canonicalize().with_context(|| program.display().to_string())?;
    let binary = Binary::read(&program)?;
    let mut module = match known {
        Ok(Some(module)) => module,
        Ok(None) => ModuleValues::unknown(program, binary.build_id().map(str::to_owned)),
        Err(_) => return Ok((known, false)),
    };
    let before = module.n_functions();
    module.add_library_calls(binary.imports());
    let has_calls = module.n_functions() > before;
    Ok((Ok(Some(module)), has_calls))
}

impl Wanted {
    /// What the preloaded library is told.
    pub(super) fn variables(&self) -> Vec<(&'static str, OsString)> {
        if self.rules.is_empty() {
            return Vec::new();
        }
        let mut variables: Vec<(&str, OsString)> =
            vec![("RFTRACE_FILTER", (&self.rules).into()), ("RFTRACE_RECORD_RULES", self.effects.path().into())];
        variables.extend(self.types.as_ref().map(|types| ("RFTRACE_RECORD_TYPES", types.path().into())));
        variables
    }

    /// Says which rules have matched nothing.
    pub(super) fn tell_of_rules(&self, is_quiet: bool) -> Result<()> {
        let without = self.effects.without_effect()?;
        if !without.is_empty() && !is_quiet {
            say!("rftrace: no function that calls the tracer matches {}", without.join(", "));
        }
        Ok(())
    }

    /// Writes names of enumerations into the trace in `dir`.
    pub(super) fn name_values(&self, dir: &Path) {
        if !self.modules.is_empty()
            && let Err(error) = rftrace_symbols::name_values(dir, &self.modules)
        {
            say!("rftrace: values of enumerations are shown as numbers: {error}");
        }
    }
}

/// Each of the options of -A or -R: a pattern, and what stands behind its `@`.
fn options(options: &[String]) -> impl Iterator<Item = (&str, Option<&str>)> {
    let split = |wanted| match str::rsplit_once(wanted, '@') {
        Some((pattern, specs)) => (pattern, Some(specs)),
        None => (wanted, None),
    };
    options.iter().flat_map(|wanted| wanted.split(';')).map(split)
}

/// Whether debug information has to tell of values.
fn needs_types(args: &Options<'_>) -> Result<bool> {
    let is_bare = options(args.arguments).chain(options(args.results)).any(|(_, specs)| specs.is_none());
    let others: Filter = args.rules.join("; ").parse().context("--rules")?;
    Ok(args.auto_args || is_bare || others.needs_types())
}

/// What -F, -N and -D say, in the frontend's language.
pub(crate) fn function_rules(filter: &[String], notrace: &[String], depth: Option<u32>) -> Vec<String> {
    let pattern = |key: &'static str| move |pattern: &String| format!("{key}={}", pattern.replace(';', "\\;"));
    let mut rules: Vec<String> = filter.iter().map(pattern("below")).collect();
    rules.extend(notrace.iter().map(pattern("not_below")));
    rules.extend(depth.map(|levels| format!("depth={levels}")));
    rules
}

/// The filter, in the frontend's language. `has_types`: debug information tells of values.
pub(super) fn rules(args: &Options<'_>, has_types: bool) -> Result<String> {
    let mut rules = function_rules(args.filter, args.notrace, args.depth);
    rules.extend(args.time_filter.map(|nanos| format!("min={nanos}ns")));
    rules.extend(args.rules.iter().cloned());
    rules.extend(triggers::read(args.triggers, args.is_disabled, args.depth)?.rules);
    if args.is_attached && needs_types(args)? {
        bail!(
            "with -p debug information is not read: write which values are wanted, as in -A 'open@arg1/s' -R 'open@retval'"
        );
    }
    for (name, specs) in options(args.arguments) {
        rules.push(format!("values={name}@{}", specs.unwrap_or("args")));
    }
    for (name, spec) in options(args.results) {
        let spec = spec.unwrap_or(if has_types { "result" } else { "retval" });
        if spec != "result" && !spec.starts_with("retval") {
            bail!("-R {name}@{spec}: a result is `retval`, as in -R '{name}@retval/i32'; arguments are for -A");
        }
        rules.push(format!("values={name}@{spec}"));
    }
    if args.auto_args && has_types {
        rules.push("values=*@args,result".to_owned());
    }
    rules.extend(dump_on::rules(args.dump_on));
    Ok(rules.join("; "))
}
