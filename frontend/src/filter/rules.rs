//! The rules of a filter, as the API has them.

use std::time::Duration;

use rftrace_format::values::ValueSpec;
use rftrace_pattern::Pattern;

use super::values::AskValues;
use super::watches::WatchRule;
use crate::Error;

/// A filter: the choice of recorded functions and calls. [`Config::filter`](crate::Config::filter) and
/// [`Tracer::set_filter`](crate::Tracer::set_filter) take it.
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
/// # Rules
///
/// | rule | key | effect |
/// |---|---|---|
/// | [`include`](Self::include) | `include` | records only matching functions |
/// | [`exclude`](Self::exclude) | `exclude` | records no matching function; calls in it are recorded |
/// | [`include_module`](Self::include_module) | `module` | records only functions of matching libraries or programs |
/// | [`exclude_module`](Self::exclude_module) | `not_module` | records no function of matching libraries or programs |
/// | [`min_code_bytes`](Self::min_code_bytes) | `size` | records only functions with at least so many bytes of code |
/// | [`below`](Self::below) | `below` | records matching functions and all calls within them, and nothing else |
/// | [`not_below`](Self::not_below) | `not_below` | records neither matching functions nor calls within them |
/// | [`max_depth`](Self::max_depth) | `depth` | limits the levels of recorded calls |
/// | [`min_duration`](Self::min_duration) | `min` | records only calls of at least this duration, and their callers |
/// | [`values`](Self::values) | `values` | records arguments and results: `values=open@arg1/s,retval/i32` |
/// | [`trigger`](Self::trigger) | `trigger` | starts or stops recording at matching calls: `trigger=init@trace_off` |
/// | [`entry_only`](Self::entry_only) | `entry` | records only entries, which costs less: returns are not hooked |
///
/// A rule can be given several times, with several patterns. A function is recorded if no rule excludes it. The rules
/// apply in this order: `not_below`, the excluding ones, `below`, `entry`.
///
/// A function of `below` is recorded whether it is included or not. A filter without rules lets every call pass.
///
/// # Patterns
///
/// A pattern matches the whole name of a function as the trace shows it (`app::Work::run`,
/// `<app::Work as core::fmt::Display>::fmt`, `app::generic::<u8>`), or the file name of a module:
///
/// - A name: `app::run` matches only this name.
/// - A glob: `*` matches any characters, `?` one character, `[ab]` one of these, `[!ab]` one of all others. A `\` makes
///   the next character literal.
/// - A regex: `/…/`, in the syntax of the crate [`regex-lite`](https://docs.rs/regex-lite/#syntax). It may match any
///   part of the name.
///
/// The name of a C++ function has no parameters. A pattern with a parenthesis also matches the name with parameters, to
/// tell overloads apart: `draw(int)`, `draw(char\*)`, `draw(*`. `rftrace report --demangle full` shows such names.
///
/// # Text form
///
/// Rules have the form `key=value`. A `;` or the end of a line separates them; `\;` stands for a `;` in a pattern.
/// Durations have a unit: `ns`, `us`, `ms` or `s`.
///
/// # Systems without names
///
/// On systems other than Linux only `depth`, `min` and `entry=*` work.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub(super) rules: Vec<Rule>,
    pub(super) max_depth: Option<u32>,
    pub(super) min_duration: Duration,
    pub(super) min_code_bytes: u64,
    pub(super) values: Vec<ValueRule>,
    /// The actions at calls.
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

/// The recorded values of some functions.
#[derive(Clone, Debug)]
pub(crate) struct ValueRule {
    pub(crate) pattern: Pattern,
    pub(crate) specs: Vec<ValueSpec>,
    /// True to record all arguments known from debug information, and to record the result.
    pub(crate) by_type: [bool; 2],
}

/// Names of [`ValueRule::by_type`] among the specs.
const BY_TYPE: [&str; 2] = ["args", "result"];

/// Effect of a rule on the functions, or modules, within its pattern.
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
    /// Returns the rule as text.
    pub(crate) fn text(&self) -> String {
        format!("{}={}", self.kind.key(), self.pattern.text().replace(';', "\\;"))
    }
}

impl ValueRule {
    /// Returns the rule as text, like [`Rule::text`].
    pub(crate) fn text(&self) -> String {
        let specs = self.specs.iter().map(ToString::to_string);
        let by_type = BY_TYPE.iter().zip(self.by_type).filter(|&(_, is_wanted)| is_wanted);
        let all: Vec<String> = specs.chain(by_type.map(|(&word, _)| word.to_owned())).collect();
        format!("values={}@{}", self.pattern.text().replace(';', "\\;"), all.join(","))
    }

    /// Reads the text behind the `@`.
    fn parse(pattern: Pattern, specs: &str) -> Result<Self, String> {
        let is_type = |spec: &&str| BY_TYPE.contains(&spec.trim());
        let (types, others): (Vec<&str>, Vec<&str>) = specs.split(',').partition(is_type);
        let has = |word: &str| types.iter().any(|spec| spec.trim() == word);
        let specs = if others.is_empty() { Vec::new() } else { ValueSpec::parse_list(&others.join(","))? };
        Ok(Self { pattern, specs, by_type: BY_TYPE.map(has) })
    }
}

impl Filter {
    /// Creates a filter that lets every call pass.
    ///
    /// A rule with a bad pattern causes an error when the filter is used, not here.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Records only functions that match this or another `include` rule, like ftrace's `set_ftrace_filter`.
    #[must_use]
    pub fn include(self, pattern: &str) -> Self {
        self.rule(RuleKind::Include, pattern)
    }

    /// Excludes functions that match, like ftrace's `set_ftrace_notrace`. Calls in them are still recorded.
    #[must_use]
    pub fn exclude(self, pattern: &str) -> Self {
        self.rule(RuleKind::Exclude, pattern)
    }

    /// Records only functions of modules with a file name that matches this or another such rule.
    #[must_use]
    pub fn include_module(self, pattern: &str) -> Self {
        self.rule(RuleKind::IncludeModule, pattern)
    }

    /// Excludes functions of modules with a matching file name.
    #[must_use]
    pub fn exclude_module(self, pattern: &str) -> Self {
        self.rule(RuleKind::ExcludeModule, pattern)
    }

    /// Records only functions that match this or another such rule, and calls within them, like uftrace's `-F` and
    /// ftrace's `set_graph_function`.
    #[must_use]
    pub fn below(self, pattern: &str) -> Self {
        self.rule(RuleKind::Below, pattern)
    }

    /// Excludes functions that match and all calls within them, like uftrace's `-N` and ftrace's `set_graph_notrace`.
    #[must_use]
    pub fn not_below(self, pattern: &str) -> Self {
        self.rule(RuleKind::NotBelow, pattern)
    }

    /// Records only the entries of functions that match. The trace shows them as calls without duration, beside their
    /// own calls. `*` matches all functions.
    #[must_use]
    pub fn entry_only(self, pattern: &str) -> Self {
        self.rule(RuleKind::EntryOnly, pattern)
    }

    /// Limits the levels of recorded calls, like uftrace's `-D`. With [`below`](Self::below) the levels count from the
    /// outermost chosen function. 0 is an error.
    #[must_use]
    pub fn max_depth(mut self, levels: u32) -> Self {
        self.max_depth = Some(levels);
        if levels == 0 {
            self.refuse(Flaw::new("depth=0", "a depth of 0 levels records nothing; the minimum is 1"));
        }
        self
    }

    /// Removes calls shorter than `duration` without a recorded call in them, like uftrace's `-t`.
    #[must_use]
    pub fn min_duration(mut self, duration: Duration) -> Self {
        self.min_duration = duration;
        self
    }

    /// Excludes functions with fewer bytes of code, like uftrace's `-Z`. Functions of unknown size are recorded.
    #[must_use]
    pub fn min_code_bytes(mut self, bytes: u64) -> Self {
        self.min_code_bytes = bytes;
        self
    }

    /// Records arguments and results of functions that match, like uftrace's `-A` and `-R`. `specs` has uftrace's
    /// syntax: `arg1/i32,arg2/s,retval`.
    ///
    /// The tracer reads values from the places of the C calling convention, on Linux on x86-64 and aarch64 only. On
    /// aarch64 it reads arguments only in functions with patched entries
    /// ([`Config::patchable_entries`](crate::Config::patchable_entries)): other functions move them before they call
    /// the tracer.
    #[must_use]
    pub fn values(mut self, pattern: &str, specs: &str) -> Self {
        let read = Pattern::new(pattern).map_err(|problem| problem.to_string());
        match read.and_then(|pattern| ValueRule::parse(pattern, specs)) {
            Ok(rule) => self.values.push(rule),
            Err(problem) => self.refuse(Flaw::new(format!("values={pattern}@{specs}"), problem)),
        }
        self
    }

    /// Performs an action at each call of a function that matches, like uftrace's `-T`. On Linux on x86-64 and aarch64
    /// only.
    ///
    /// `action` is one of uftrace's words:
    ///
    /// - `trace_off`: excludes this call and all later ones, on every thread. Open functions are recorded to their
    ///   ends.
    /// - `trace_on`: includes this call and all later ones again.
    /// - `finish`: stops recording after the entry of this call, like [`disable`](crate::Tracer::disable).
    /// - `depth=2`: records so many levels of this call, its own included, within the limit of
    ///   [`max_depth`](Self::max_depth).
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

    /// Sets the source of facts from debug information, for the specs `args` and `result` of [`values`](Self::values).
    /// A second result beside `result` applies to modules without such facts. For the preloaded library of a recorder.
    #[doc(hidden)]
    #[must_use]
    pub fn known_values(mut self, ask: AskValues) -> Self {
        self.known = Some(ask);
        self
    }

    /// Returns true if any rule needs the source from [`known_values`](Self::known_values).
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

    /// Returns, as text, the rules about functions and modules that may match nothing without an error.
    #[doc(hidden)]
    #[must_use]
    pub fn optional_rules(&self) -> Vec<String> {
        let rules = self.rules.iter().filter(|rule| !rule.kind.is_needed()).map(Rule::text);
        let values = self.values.iter().map(ValueRule::text);
        rules.chain(values).chain(self.watches.iter().map(WatchRule::text)).collect()
    }

    /// Returns all rules as text for [`parse`](Self::parse).
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

    /// Checks that all rules can be read, and applied here.
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
            let problem = "only `rftrace record -A` reads debug information; write the values, such as arg1/i32";
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

/// A function that can be recorded, from [`Tracer::functions`](crate::Tracer::functions).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Function {
    /// The name as the trace shows it; empty if the file has no name for it.
    pub name: String,
    /// The name with parameters for a C++ function, to tell overloads apart; otherwise the same as `name`.
    pub full_name: String,
    /// The file name of the program or library.
    pub module: String,
    /// The address of the function's first byte in memory.
    pub address: usize,
    /// The size of the function's code in bytes; 0 if unknown.
    pub code_bytes: u64,
    /// True if no rule about functions excludes it. With [`Filter::below`] some functions are recorded only within
    /// calls of others.
    pub recorded: bool,
}

/// The result of setting a filter, from [`Tracer::set_filter`](crate::Tracer::set_filter).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Selected {
    /// The number of functions that can be recorded; 0 on systems that do not report them.
    pub n_functions: usize,
    /// The number of recorded ones; see [`Function::recorded`].
    pub n_recorded: usize,
    /// The text of each rule without a matching function, and so without effect.
    pub without_effect: Vec<String>,
}

impl Selected {
    /// Returns the text for a recorder: the numbers of recorded and of all functions, then the rules without effect, a
    /// line each.
    #[doc(hidden)]
    #[must_use]
    pub fn told(&self) -> String {
        let lines = [format!("{} {}", self.n_recorded, self.n_functions)];
        lines.iter().chain(&self.without_effect).map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}
