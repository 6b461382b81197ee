//! From a filter and the program's functions to the table for the hooks.

use std::cell::OnceCell;

use rftrace::abi::{action, state};
use rftrace_format::values::Place;
use rftrace_pattern::{Pattern, nearest};

use super::catalogue::{Catalogue, TracedFunction};
use super::rules::{Filter, Function, Rule, RuleKind, Selected};
use super::values::{KnownValues, SiteValues};
use super::watches::AtSite;
use crate::Error;
use crate::host::{HAS_NAMES, HAS_VALUES};

/// The maximum number of recorded arguments of a call, by all rules together.
const MAX_ARGUMENTS: usize = 64;

/// Instructions for the hooks, but for the minimum duration.
#[derive(Debug)]
pub(crate) struct Selection {
    /// The [`action`] of each call site, by the address behind the call.
    pub(crate) actions: Vec<(u64, u8)>,
    /// Values of the sites with values by their action.
    pub(crate) values: Vec<SiteValues>,
    /// The action of unknown sites, such as those of libraries loaded later.
    pub(crate) default_action: u8,
    /// The bits of [`FilterControl::decisive`](rftrace::abi::FilterControl::decisive).
    pub(crate) decisive: u32,
    pub(crate) wanted: u32,
    pub(crate) depth_limit: u32,
    pub(crate) selected: Selected,
}

/// Applies `filter` to the functions of `catalogue`, with the known facts about their values.
pub(crate) fn select(filter: &Filter, catalogue: &Catalogue, known: &KnownValues) -> Result<Selection, Error> {
    filter.check()?;
    if !HAS_NAMES {
        refuse_names(filter)?;
    }
    if !HAS_VALUES && let Some(rule) = filter.watches.first() {
        let problem = "rftrace watches calls only on Linux on x86-64 and aarch64".to_owned();
        return Err(Error::BadFilter { place: rule.text(), problem });
    }
    if !HAS_VALUES && let Some(rule) = filter.values.first() {
        let problem = "rftrace records arguments and results only on Linux on x86-64 and aarch64".to_owned();
        return Err(Error::BadFilter { place: rule.text(), problem });
    }
    let mut chooser = Chooser::new(filter);
    chooser.look_at_modules(catalogue);
    let (mut actions, mut values) = (Vec::new(), Vec::new());
    let mut selected = Selected::default();
    for function in catalogue.functions() {
        let mut action = chooser.action(&function);
        // A function that is left out has none: rules about it alone have no effect.
        if let Some(with_values) = with_values(action)
            && let Some(of_function) = chooser.values(&function, known)
        {
            action = with_values;
            let of_site = |&child_ip: &u64| SiteValues { child_ip, ..of_function.clone() };
            values.extend(function.child_ips().iter().map(of_site));
        }
        actions.extend(function.child_ips().iter().map(|&child_ip| (child_ip, action)));
        if !function.is_own() {
            selected.n_functions += 1;
            selected.n_recorded += usize::from(is_recorded(action));
        }
    }
    if HAS_NAMES {
        selected.without_effect = chooser.check_matches(catalogue)?;
    }
    let below = if filter.has(RuleKind::Below) { state::IN as u32 } else { 0 };
    values.sort_by_key(|site| site.child_ip);
    Ok(Selection {
        actions,
        values,
        default_action: chooser.default_action(),
        decisive: state::OUT as u32 | below,
        wanted: below,
        depth_limit: depth_limit(filter.max_depth),
        selected,
    })
}

/// Returns true for each of a filter's [optional rules](Filter::optional_rules) with an effect.
pub(crate) fn in_effect(filter: &Filter, selected: &Selected) -> Vec<bool> {
    filter.optional_rules().iter().map(|rule| !selected.without_effect.contains(rule)).collect()
}

/// Returns all functions, with the filter's choice for each.
pub(crate) fn list(filter: Option<&Filter>, catalogue: &Catalogue) -> Vec<Function> {
    let everything = Filter::new();
    let mut chooser = Chooser::new(filter.unwrap_or(&everything));
    let functions = catalogue.functions().filter(|function| !function.is_own());
    let mut functions: Vec<Function> = functions
        .map(|function| Function {
            name: function.name().to_owned(),
            full_name: function.name_with_parameters().unwrap_or_else(|| function.name().to_owned()),
            module: function.module().to_owned(),
            address: function.address() as usize,
            code_bytes: function.code_bytes().unwrap_or(0),
            recorded: is_recorded(chooser.action(&function)),
        })
        .collect();
    functions.sort_by_key(|function| function.address);
    functions
}

/// Without symbols there are no names to compare with.
fn refuse_names(filter: &Filter) -> Result<(), Error> {
    let is_possible = |rule: &Rule| rule.kind == RuleKind::EntryOnly && rule.pattern.is_everything();
    let place = match filter.rules().iter().find(|rule| !is_possible(rule)) {
        Some(rule) => rule.text(),
        None if filter.min_code_bytes > 0 => format!("size={}", filter.min_code_bytes),
        None => return Ok(()),
    };
    let problem = "the tracer knows no names of functions on this system; use depth, min or entry=*";
    Err(Error::BadFilter { place, problem: problem.to_owned() })
}

fn is_recorded(action: u8) -> bool {
    matches!(action, action::RECORD | action::POINT | action::INTO | action::RECORD_VALUES | action::INTO_VALUES)
}

/// Returns the same action with values; `None` if the function's calls are not recorded.
fn with_values(action: u8) -> Option<u8> {
    match action {
        action::RECORD => Some(action::RECORD_VALUES),
        action::INTO => Some(action::INTO_VALUES),
        _ => None,
    }
}

fn depth_limit(max_depth: Option<u32>) -> u32 {
    let most = state::DEPTH_MASK as u32;
    max_depth.map_or(most, |levels| levels.saturating_mul(state::DEPTH_ONE as u32).min(most))
}

/// Compares functions with rules.
struct Chooser<'f> {
    filter: &'f Filter,
    /// The number of functions, or modules, matched by each rule.
    n_matches: Vec<usize>,
    /// The same for rules about values.
    n_with_values: Vec<usize>,
    /// The same for watches.
    n_watched: Vec<usize>,
}

impl<'f> Chooser<'f> {
    fn new(filter: &'f Filter) -> Self {
        let n_with_values = vec![0; filter.values.len()];
        let n_watched = vec![0; filter.watches.len()];
        Self { filter, n_matches: vec![0; filter.rules.len()], n_with_values, n_watched }
    }

    /// Returns the action for unknown functions.
    fn default_action(&self) -> u8 {
        let is_for_all = |rule: &Rule| rule.kind == RuleKind::EntryOnly && rule.pattern.is_everything();
        if self.filter.has(RuleKind::Include) || self.filter.has(RuleKind::IncludeModule) {
            action::SKIP
        } else if self.filter.rules.iter().any(is_for_all) {
            action::POINT
        } else {
            action::RECORD
        }
    }

    fn action(&mut self, function: &TracedFunction<'_>) -> u8 {
        if function.is_own() {
            return action::NOT_INTO;
        }
        let with_parameters = OnceCell::new();
        // Kinds with a rule that matches, and kinds with any rule.
        let mut matched = [false; RuleKind::ALL.len()];
        let mut is_there = matched;
        for (rule, n_matches) in self.filter.rules.iter().zip(&mut self.n_matches) {
            let pattern = &rule.pattern;
            let is_match = if rule.kind.is_for_modules() {
                pattern.matches(function.module())
            } else {
                matches(pattern, function, &with_parameters)
            };
            if !rule.kind.is_for_modules() {
                *n_matches += usize::from(is_match);
            }
            matched[rule.kind as usize] |= is_match;
            is_there[rule.kind as usize] = true;
        }
        let is = |kind: RuleKind| matched[kind as usize];
        let is_in = |kind: RuleKind| matched[kind as usize] || !is_there[kind as usize];
        let is_large = function.code_bytes().is_none_or(|bytes| bytes >= self.filter.min_code_bytes);
        if is(RuleKind::NotBelow) {
            action::NOT_INTO
        } else if is(RuleKind::Exclude) || is(RuleKind::ExcludeModule) {
            action::SKIP
        } else if is(RuleKind::Below) {
            action::INTO
        } else if !is_in(RuleKind::Include) || !is_in(RuleKind::IncludeModule) || !is_large {
            action::SKIP
        } else if is(RuleKind::EntryOnly) {
            action::POINT
        } else {
            action::RECORD
        }
    }

    /// Returns the recorded values of a function, and the watches on its calls, if there are any.
    fn values(&mut self, function: &TracedFunction<'_>, known: &KnownValues) -> Option<SiteValues> {
        let mut site =
            SiteValues { child_ip: 0, arguments: Vec::new(), result: Vec::new(), watches: Vec::new(), levels: 0 };
        if function.is_own() || self.filter.values.is_empty() && self.filter.watches.is_empty() {
            return None;
        }
        let with_parameters = OnceCell::new();
        let mut by_type = [false; 2];
        for (rule, n_watched) in self.filter.watches.iter().zip(&mut self.n_watched) {
            if matches(&rule.pattern, function, &with_parameters) {
                *n_watched += 1;
                match rule.wanted {
                    AtSite::Watch(watch) => site.watches.push(watch),
                    AtSite::Levels(levels) => site.levels = levels,
                }
            }
        }
        for (rule, n_matches) in self.filter.values.iter().zip(&mut self.n_with_values) {
            if !matches(&rule.pattern, function, &with_parameters) {
                continue;
            }
            *n_matches += 1;
            by_type = [by_type[0] | rule.by_type[0], by_type[1] | rule.by_type[1]];
            for spec in &rule.specs {
                match spec.place {
                    // That is for what nothing is known of.
                    Place::Result(_) if rule.by_type[1] && function.is_known(known) => {}
                    Place::Result(_) => site.result = vec![spec.code()],
                    _ if site.arguments.len() < MAX_ARGUMENTS && !site.arguments.contains(&spec.code()) => {
                        site.arguments.push(spec.code());
                    }
                    _ => {}
                }
            }
        }
        // Values that a rule names come before those of debug information.
        if by_type != [false; 2]
            && let Some((arguments, result)) = function.known_values(known)
        {
            if by_type[0] && site.arguments.is_empty() {
                site.arguments = arguments.to_vec();
            }
            if by_type[1] && site.result.is_empty() {
                site.result = result.to_vec();
            }
        }
        if !function.has_arguments() {
            site.arguments.clear();
        }
        let is_special = !site.arguments.is_empty() || !site.watches.is_empty() || site.levels > 0;
        (!site.result.is_empty() || is_special).then_some(site)
    }

    fn look_at_modules(&mut self, catalogue: &Catalogue) {
        for (rule, n_matches) in self.filter.rules.iter().zip(&mut self.n_matches) {
            if rule.kind.is_for_modules() {
                *n_matches = catalogue.module_names().filter(|name| rule.pattern.matches(name)).count();
            }
        }
    }

    /// Refuses rules without a match that would leave nothing to record; returns the others.
    fn check_matches(&self, catalogue: &Catalogue) -> Result<Vec<String>, Error> {
        let mut without_effect = Vec::new();
        for (rule, _) in self.filter.rules.iter().zip(&self.n_matches).filter(|&(_, &n_matches)| n_matches == 0) {
            if !rule.kind.is_needed() {
                without_effect.push(rule.text());
                continue;
            }
            let (untraced, similar) = if rule.kind.is_for_modules() {
                (None, nearest(&rule.pattern.plain(), catalogue.module_names().map(str::to_owned)))
            } else {
                let untraced = catalogue.all_names().find(|name| rule.pattern.matches(name));
                let functions = catalogue.functions().filter(|function| !function.is_own());
                let names = functions.map(|function| function.name().to_owned());
                let similar = if untraced.is_none() { nearest(&rule.pattern.plain(), names) } else { None };
                (untraced, similar)
            };
            return Err(Error::NothingMatches { rule: rule.text(), untraced, similar });
        }
        let values = self.filter.values.iter().zip(&self.n_with_values);
        without_effect.extend(values.filter(|&(_, &n_matches)| n_matches == 0).map(|(rule, _)| rule.text()));
        let watches = self.filter.watches.iter().zip(&self.n_watched);
        without_effect.extend(watches.filter(|&(_, &n_matches)| n_matches == 0).map(|(rule, _)| rule.text()));
        Ok(without_effect)
    }
}

/// Returns true if a pattern matches a function's name, or that with parameters, made on demand.
fn matches(pattern: &Pattern, function: &TracedFunction<'_>, with_parameters: &OnceCell<Option<String>>) -> bool {
    let matches_parameters = || {
        let name = with_parameters.get_or_init(|| function.name_with_parameters());
        name.as_ref().is_some_and(|name| pattern.matches(name))
    };
    pattern.matches(function.name()) || pattern.has_parameters() && matches_parameters()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths_are_limited_by_the_format() {
        assert_eq!(depth_limit(None), 0xffc0);
        assert_eq!(depth_limit(Some(1)), 1 << 6);
        assert_eq!(depth_limit(Some(1023)), 0xffc0);
        assert_eq!(depth_limit(Some(u32::MAX)), 0xffc0);
    }
}
