//! The rules of a filter, as the API has them.

use std::time::Duration;

use rftrace_format::values::ValueSpec;
use rftrace_pattern::Pattern;

use super::values::AskValues;
use super::watches::WatchRule;
use crate::Error;

/// Which functions and calls are recorded. See [`Config::filter`](crate::Config::filter) and
/// [`Tracer::set_filter`](crate::Tracer::set_filter).
///
/// ```
/// use rftrace_frontend::Filter;
/// use std::time::Duration;
///
/// let filter = Filter::new().include("app::*").exclude("*::fmt").max_depth(5).min_duration(Duration::from_micros(1));
/// // The same, in the language of the variable RFTRACE_FILTER.
/// let filter: Filter = "include=app::*; exclude=*::fmt; depth=5; min=1us".parse()?;
/// # Ok::<(), rftrace_frontend::Error>(())
/// ```
///
/// # What is recorded
///
/// | rule | key | what it does |
/// |---|---|---|
/// | [`include`](Self::include) | `include` | of all functions only these |
/// | [`exclude`](Self::exclude) | `exclude` | all but these; what they call is recorded |
/// | [`include_module`](Self::include_module) | `module` | only functions of these libraries or programs |
/// | [`exclude_module`](Self::exclude_module) | `not_module` | all but those of these |
/// | [`min_code_bytes`](Self::min_code_bytes) | `size` | only functions whose code is this large |
/// | [`below`](Self::below) | `below` | these, and only what is called within them, directly or not |
/// | [`not_below`](Self::not_below) | `not_below` | neither these nor what is called within them |
/// | [`max_depth`](Self::max_depth) | `depth` | so many levels of recorded calls |
/// | [`min_duration`](Self::min_duration) | `min` | only calls that last this long, and what they lie in |
/// | [`values`](Self::values) | `values` | these with arguments and results: `values=open@arg1/s,retval/i32` |
/// | [`trigger`](Self::trigger) | `trigger` | recording goes on or stops at calls of these: `trigger=init@trace_off` |
/// | [`entry_only`](Self::entry_only) | `entry` | the entries of these; their returns are not hooked, so that they cost less |
///
/// A rule can be given several times, for several patterns. A function is recorded if no rule is against it: first counts
/// `not_below`, then what excludes, then `below`, then `entry`. Functions of `below` are recorded whether they are included
/// or not. A filter without rules lets everything pass.
///
/// # Patterns
///
/// A pattern is compared with the whole name of a function as the trace shows it (`app::Work::run`,
/// `<app::Work as core::fmt::Display>::fmt`, `app::generic::<u8>`), or with the file name of a module:
///
/// - `app::run` is this name and no other.
/// - A glob: `*` stands for any characters, `?` for one, `[ab]` for one of these, `[!ab]` for one of all others. Behind `\`
///   a character stands for itself.
/// - `/…/` is a regex, in the syntax of the crate [`regex-lite`](https://docs.rs/regex-lite/#syntax). It may match any part
///   of the name.
///
/// The name of a C++ function has no parameters; a pattern with a parenthesis is compared with the name with parameters
/// too, which tells overloads apart: `draw(int)`, `draw(char\*)`, `draw(*`. `rftrace report --demangle full` shows such names.
///
/// # In text
///
/// Rules are written `key=value` and separated by `;` or line ends; `\;` stands for a `;` in a pattern. Durations have a
/// unit, `ns`, `us`, `ms` or `s`.
///
/// # Where names are not known
///
/// On systems other than Linux only `depth`, `min` and `entry=*` are there.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub(super) rules: Vec<Rule>,
    pub(super) max_depth: Option<u32>,
    pub(super) min_duration: Duration,
    pub(super) min_code_bytes: u64,
    pub(super) values: Vec<ValueRule>,
    /// At which calls something is done.
    pub(super) watches: Vec<WatchRule>,
    /// Nothing is recorded before a trigger says so.
    pub(super) begins_paused: bool,
    /// Source of facts from debug information.
    pub(super) known: Option<AskValues>,
    /// Error of a rule; reported when the filter is used.
    pub(super) flaw: Option<Flaw>,
}

/// A rule about names.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) kind: RuleKind,
    pub(crate) pattern: Pattern,
}

/// Which values are recorded of some functions.
#[derive(Clone, Debug)]
pub(crate) struct ValueRule {
    pub(crate) pattern: Pattern,
    pub(crate) specs: Vec<ValueSpec>,
    /// True to record all arguments that debug information tells of, and to record the result.
    pub(crate) by_type: [bool; 2],
}

/// Names of [`ValueRule::by_type`] among the specs.
const BY_TYPE: [&str; 2] = ["args", "result"];

/// Effect of a rule on the functions, or modules, that its pattern matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleKind {
    Include,
    Exclude,
    IncludeModule,
    ExcludeModule,
    Below,
    NotBelow,
    EntryOnly,
}

#[derive(Clone, Debug)]
pub(super) struct Flaw {
    pub(super) place: String,
    pub(super) problem: String,
}

impl RuleKind {
    pub(super) const ALL: [Self; 7] = [
        Self::Include,
        Self::Exclude,
        Self::IncludeModule,
        Self::ExcludeModule,
        Self::Below,
        Self::NotBelow,
        Self::EntryOnly,
    ];

    /// Its key in text.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Include => "include",
            Self::Exclude => "exclude",
            Self::IncludeModule => "module",
            Self::ExcludeModule => "not_module",
            Self::Below => "below",
            Self::NotBelow => "not_below",
            Self::EntryOnly => "entry",
        }
    }

    /// Returns true if its pattern is for modules.
    pub(crate) fn is_for_modules(self) -> bool {
        matches!(self, Self::IncludeModule | Self::ExcludeModule)
    }

    /// Returns true if a rule without a match leaves nothing to record.
    pub(crate) fn is_needed(self) -> bool {
        matches!(self, Self::Include | Self::IncludeModule | Self::Below)
    }
}

impl Rule {
    /// As it is written in text.
    pub(crate) fn text(&self) -> String {
        format!("{}={}", self.kind.key(), self.pattern.text().replace(';', "\\;"))
    }
}

impl ValueRule {
    /// As [`Rule::text`].
    pub(crate) fn text(&self) -> String {
        let specs = self.specs.iter().map(ToString::to_string);
        let by_type = BY_TYPE.iter().zip(self.by_type).filter(|&(_, is_wanted)| is_wanted);
        let all: Vec<String> = specs.chain(by_type.map(|(&word, _)| word.to_owned())).collect();
        format!("values={}@{}", self.pattern.text().replace(';', "\\;"), all.join(","))
    }

    /// Reads what stands behind the `@`.
    fn parse(pattern: Pattern, specs: &str) -> Result<Self, String> {
        let is_type = |spec: &&str| BY_TYPE.contains(&spec.trim());
        let (types, others): (Vec<&str>, Vec<&str>) = specs.split(',').partition(is_type);
        let has = |word: &str| types.iter().any(|spec| spec.trim() == word);
        let specs = if others.is_empty() { Vec::new() } else { ValueSpec::parse_list(&others.join(","))? };
        Ok(Self { pattern, specs, by_type: BY_TYPE.map(has) })
    }
}

impl Filter {
    /// Lets everything pass.
    ///
    /// A pattern that cannot be read is told when the filter is used.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Of all functions only those that match this or another such rule are recorded, as with ftrace's `set_ftrace_filter`.
    #[must_use]
    pub fn include(self, pattern: &str) -> Self {
        self.rule(RuleKind::Include, pattern)
    }

    /// Functions that match are not recorded, as with ftrace's `set_ftrace_notrace`. Their callees are.
    #[must_use]
    pub fn exclude(self, pattern: &str) -> Self {
        self.rule(RuleKind::Exclude, pattern)
    }

    /// Only functions of modules whose file name matches this or another such rule are recorded.
    #[must_use]
    pub fn include_module(self, pattern: &str) -> Self {
        self.rule(RuleKind::IncludeModule, pattern)
    }

    /// Functions of modules whose file name matches are not recorded.
    #[must_use]
    pub fn exclude_module(self, pattern: &str) -> Self {
        self.rule(RuleKind::ExcludeModule, pattern)
    }

    /// Only functions that match this or another such rule, and calls within them, are recorded, as with uftrace's `-F` and
    /// ftrace's `set_graph_function`.
    #[must_use]
    pub fn below(self, pattern: &str) -> Self {
        self.rule(RuleKind::Below, pattern)
    }

    /// Neither functions that match nor calls within them are recorded, as with uftrace's `-N` and ftrace's
    /// `set_graph_notrace`.
    #[must_use]
    pub fn not_below(self, pattern: &str) -> Self {
        self.rule(RuleKind::NotBelow, pattern)
    }

    /// Of functions that match only the entries are recorded. The trace shows them as calls that take no time, and what they
    /// call beside them. `*` is for all functions.
    #[must_use]
    pub fn entry_only(self, pattern: &str) -> Self {
        self.rule(RuleKind::EntryOnly, pattern)
    }

    /// At most so many levels of recorded calls, as with uftrace's `-D`. With [`below`](Self::below) they count from the
    /// outermost chosen function.
    #[must_use]
    pub fn max_depth(mut self, levels: u32) -> Self {
        self.max_depth = Some(levels);
        if levels == 0 {
            self.refuse(Flaw::new("depth=0", "of 0 levels nothing is recorded; 1 is the least"));
        }
        self
    }

    /// Calls that are shorter and in which nothing is recorded are taken back, as with uftrace's `-t`.
    #[must_use]
    pub fn min_duration(mut self, duration: Duration) -> Self {
        self.min_duration = duration;
        self
    }

    /// Functions whose code is smaller are not recorded, as with uftrace's `-Z`. Those of unknown size are.
    #[must_use]
    pub fn min_code_bytes(mut self, bytes: u64) -> Self {
        self.min_code_bytes = bytes;
        self
    }

    /// Records arguments and results of functions that match, as with uftrace's `-A` and `-R`, whose spelling `specs` has:
    /// `arg1/i32,arg2/s,retval`. On Linux on x86-64 and aarch64 only. They are taken from where the C calling convention has them;
    /// on aarch64 arguments only of functions with patched entries ([`Config::patchable_entries`](crate::Config::patchable_entries)), as others
    /// call the tracer when those are elsewhere.
    #[must_use]
    pub fn values(mut self, pattern: &str, specs: &str) -> Self {
        let read = Pattern::new(pattern).map_err(|problem| problem.to_string());
        match read.and_then(|pattern| ValueRule::parse(pattern, specs)) {
            Ok(rule) => self.values.push(rule),
            Err(problem) => self.refuse(Flaw::new(format!("values={pattern}@{specs}"), problem)),
        }
        self
    }

    /// Does something when a function that matches is called, as with uftrace's `-T`, whose words `action` has:
    ///
    /// - `trace_off`: this call is not recorded, nor any after it on any thread; those that are open are recorded to their ends.
    /// - `trace_on`: from this call on they are.
    /// - `finish`: recording stops behind the entry of this call, as by [`disable`](crate::Tracer::disable).
    /// - `depth=2`: of what this call consists of so many levels are recorded, its own included. No more than
    ///   [`max_depth`](Self::max_depth) permits.
    ///
    /// On Linux on x86-64 and aarch64 only.
    #[must_use]
    pub fn trigger(mut self, pattern: &str, action: &str) -> Self {
        match WatchRule::trigger(pattern, action) {
            Ok(rule) => self.watches.push(rule),
            Err(problem) => self.refuse(Flaw::new(format!("trigger={pattern}@{action}"), problem)),
        }
        self
    }

    /// Returns true if triggers switch recording on or off.
    pub(super) fn has_switches(&self) -> bool {
        self.watches.iter().any(WatchRule::is_switch)
    }

    /// Sets the source of facts from debug information: `args` and `result` among the specs of [`values`](Self::values) are for
    /// these. A result that is told beside `result` is for modules without such facts. For the library that a recorder preloads.
    #[doc(hidden)]
    #[must_use]
    pub fn known_values(mut self, ask: AskValues) -> Self {
        self.known = Some(ask);
        self
    }

    /// Returns true if any rule needs the source of [`known_values`](Self::known_values).
    #[doc(hidden)]
    #[must_use]
    pub fn needs_types(&self) -> bool {
        self.rule_by_type().is_some()
    }

    fn rule_by_type(&self) -> Option<&ValueRule> {
        self.values.iter().find(|rule| rule.by_type.contains(&true))
    }

    /// Returns true if any rule is about values.
    #[cfg(target_os = "linux")]
    pub(super) fn has_values(&self) -> bool {
        !self.values.is_empty()
    }

    /// Returns true if any rule is about actions at calls.
    #[cfg(target_os = "linux")]
    pub(super) fn has_watches(&self) -> bool {
        !self.watches.is_empty()
    }

    /// The rules about functions and modules, as text, as far as they may match nothing without an error.
    #[doc(hidden)]
    #[must_use]
    pub fn optional_rules(&self) -> Vec<String> {
        let rules = self.rules.iter().filter(|rule| !rule.kind.is_needed()).map(Rule::text);
        let values = self.values.iter().map(ValueRule::text);
        rules.chain(values).chain(self.watches.iter().map(WatchRule::text)).collect()
    }

    /// All rules, in text: what [`parse`](Self::parse) reads as the same.
    #[cfg(any(test, all(feature = "control", target_os = "linux")))]
    pub(crate) fn text(&self) -> String {
        let mut rules: Vec<String> = self.rules.iter().map(Rule::text).collect();
        rules.extend(self.values.iter().map(ValueRule::text));
        rules.extend(self.watches.iter().map(WatchRule::rule));
        rules.extend(self.max_depth.map(|levels| format!("depth={levels}")));
        let nanos = self.min_duration.as_nanos();
        rules.extend((nanos > 0).then(|| {
            if nanos.is_multiple_of(1000) { format!("min={}us", nanos / 1000) } else { format!("min={nanos}ns") }
        }));
        rules.extend((self.min_code_bytes > 0).then(|| format!("size={}", self.min_code_bytes)));
        rules.extend(self.begins_paused.then(|| "paused=1".to_owned()));
        rules.join("; ")
    }

    pub(super) fn rule(mut self, kind: RuleKind, pattern: &str) -> Self {
        match Pattern::new(pattern) {
            Ok(pattern) => self.rules.push(Rule { kind, pattern }),
            Err(problem) => self.refuse(Flaw::new(format!("{}={pattern}", kind.key()), problem.to_string())),
        }
        self
    }

    /// The first flaw counts.
    pub(super) fn refuse(&mut self, flaw: Flaw) {
        self.flaw.get_or_insert(flaw);
    }

    /// Checks that all rules can be read, and obeyed here.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.flaw.clone().map_or(Ok(()), |flaw| Err(flaw.into_error()))
    }

    /// Returns the source of values, if any rule needs it.
    ///
    /// # Errors
    ///
    /// There is no source.
    pub(super) fn asks(&self) -> Result<Option<AskValues>, Error> {
        let Some(rule) = self.rule_by_type() else { return Ok(None) };
        let nobody = || {
            let problem = "debug information is read by `rftrace record -A`; say which values, such as arg1/i32";
            Error::BadFilter { place: rule.text(), problem: problem.to_owned() }
        };
        self.known.ok_or_else(nobody).map(Some)
    }

    /// The minimum duration.
    pub(crate) fn shortest(&self) -> Duration {
        self.min_duration
    }

    /// Returns true if the pattern of any rule matches `name`. For the fuzzer.
    #[cfg(fuzzing)]
    #[doc(hidden)]
    pub fn matches_any(&self, name: &str) -> bool {
        self.rules.iter().any(|rule| rule.pattern.matches(name))
    }

    pub(crate) fn rules(&self) -> &[Rule] {
        &self.rules
    }

    pub(super) fn has(&self, kind: RuleKind) -> bool {
        self.rules.iter().any(|rule| rule.kind == kind)
    }
}

impl Flaw {
    pub(super) fn new(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { place: place.into(), problem: problem.into() }
    }

    pub(super) fn into_error(self) -> Error {
        Error::BadFilter { place: self.place, problem: self.problem }
    }
}

/// A function that can be recorded. See [`Tracer::functions`](crate::Tracer::functions).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Function {
    /// Its name, as the trace shows it; empty if the file does not tell.
    pub name: String,
    /// The name of a C++ function with its parameters, which tells overloads apart; otherwise that name again.
    pub full_name: String,
    /// The file name of the program or library.
    pub module: String,
    /// Where it begins in memory.
    pub address: usize,
    /// The size of its code; 0 if unknown.
    pub code_bytes: u64,
    /// True if it is recorded: no rule about functions is against it. With [`Filter::below`] some functions are recorded
    /// only when they are called from others.
    pub recorded: bool,
}

/// Outcome of a filter. See [`Tracer::set_filter`](crate::Tracer::set_filter).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Selected {
    /// Functions that can be recorded; 0 where they are not known.
    pub n_functions: usize,
    /// Those of them that are; see [`Function::recorded`].
    pub n_recorded: usize,
    /// Rules that match no function and are without effect, as text.
    pub without_effect: Vec<String>,
}

impl Selected {
    /// As a recorder is told of it: how many functions are recorded of how many, and on further lines the rules that match nothing.
    #[doc(hidden)]
    #[must_use]
    pub fn told(&self) -> String {
        let lines = [format!("{} {}", self.n_recorded, self.n_functions)];
        lines.iter().chain(&self.without_effect).map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}
