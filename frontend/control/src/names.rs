//! ftrace's names for readable and settable values: the files of its folder.
//!
//! A name takes several lines if ftrace's file does. Each line is a pattern, as names of functions have spaces. `>` in
//! front of the first one, like no sign, replaces the previous lines; `>>` adds to them. As in ftrace, `!PATTERN`
//! removes a line, and an empty value removes all.

use crate::recording::Recording;
use crate::rules::Rules;
use crate::target::{Target, rules};
use crate::threads::{self, NOT_PIDS, ONLY_PIDS, Threads};
use crate::triggers;

/// A name for a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// The name, as in ftrace.
    pub name: &'static str,
    /// True if the value can be read.
    pub is_read: bool,
    /// True if the value can be set.
    pub is_set: bool,
}

const fn read(name: &'static str) -> Name {
    Name { name, is_read: true, is_set: false }
}

const fn both(name: &'static str) -> Name {
    Name { name, is_read: true, is_set: true }
}

const fn set_only(name: &'static str) -> Name {
    Name { name, is_read: false, is_set: true }
}

/// All names.
pub const NAMES: [Name; 22] = [
    read("available_filter_functions"),
    read("available_tracers"),
    both("current_tracer"),
    both("tracing_on"),
    both("set_ftrace_filter"),
    both("set_ftrace_notrace"),
    both("set_graph_function"),
    both("set_graph_notrace"),
    both("max_graph_depth"),
    both("tracing_thresh"),
    both(ONLY_PIDS),
    both(NOT_PIDS),
    read("trace"),
    read("trace_pipe"),
    set_only("trace_marker"),
    set_only("free_buffer"),
    both("snapshot"),
    both("buffer_size_kb"),
    read("buffer_total_size_kb"),
    read("stats"),
    read("dyn_ftrace_total_info"),
    read("enabled_functions"),
];

/// Returns the keys of rules for a name with patterns: for functions, and behind `:mod:` for modules.
fn keys(name: &str) -> Option<(&'static str, Option<&'static str>)> {
    match name {
        "set_ftrace_filter" => Some(("include", Some("module"))),
        "set_ftrace_notrace" => Some(("exclude", Some("not_module"))),
        "set_graph_function" => Some(("below", None)),
        "set_graph_notrace" => Some(("not_below", None)),
        _ => None,
    }
}

/// `per_cpu/cpuN/NAME`: banks are those of processes, so it is the same for all processors.
fn without_processor(name: &str) -> &str {
    let rest = name.strip_prefix("per_cpu/cpu").and_then(|rest| rest.split_once('/'));
    rest.filter(|(number, _)| number.parse::<u32>().is_ok()).map_or(name, |(_, name)| name)
}

fn unknown(name: &str) -> String {
    let all: Vec<&str> = NAMES.iter().map(|known| known.name).collect();
    format!("no such name: `{name}`; names are {}", all.join(", "))
}

pub(crate) fn get(target: &Target<'_>, name: &str) -> Result<String, String> {
    let name = without_processor(name);
    if let Some(keys) = keys(name) {
        return target.one(|recording, pid| {
            let shown = patterns(&rules(recording, pid)?, name, keys);
            let commands = if name == FILTER { commands(recording, pid)? } else { String::new() };
            Ok(shown + &commands)
        });
    }
    match name {
        "available_filter_functions" => target.one(|recording, pid| functions(recording, pid, false)),
        "enabled_functions" => target.one(|recording, pid| functions(recording, pid, true)),
        "available_tracers" => Ok("function_graph nop\n".to_owned()),
        "current_tracer" => target.one(|recording, pid| {
            let is_on = is_on(recording, pid)?;
            Ok(if is_on { "function_graph\n" } else { "nop\n" }.to_owned())
        }),
        "tracing_on" => target.one(|recording, pid| Ok(format!("{}\n", u8::from(is_on(recording, pid)?)))),
        "max_graph_depth" => {
            target.one(|recording, pid| Ok(format!("{}\n", rules(recording, pid)?.get("depth").last().unwrap_or("0"))))
        }
        "tracing_thresh" => target.one(|recording, pid| {
            let rules = rules(recording, pid)?;
            let nanos = rules.get("min").last().and_then(nanos).unwrap_or(0);
            Ok(format!("{}\n", micros(nanos)))
        }),
        ONLY_PIDS | NOT_PIDS => target.one(|recording, pid| Ok(Threads::of(recording, pid)?.shown(name))),
        "snapshot" => {
            Ok("# Write 1 to make a dump: a trace of the records so far, beside the trace of the whole recording.\n"
                .to_owned())
        }
        "buffer_size_kb" => target.one(|recording, pid| Ok(format!("{}\n", recording.facts(pid)?.buffer_bytes >> 10))),
        "buffer_total_size_kb" => {
            let total = std::cell::Cell::new(0);
            target.each(|recording, pid| {
                total.set(total.get() + recording.facts(pid).map_or(0, |facts| facts.buffer_bytes >> 10));
                Ok(String::new())
            })?;
            Ok(format!("{}\n", total.get()))
        }
        "stats" => target.each(stats),
        "dyn_ftrace_total_info" => target.each(|recording, pid| Ok(recording.ask(pid, "patched")? + "\n")),
        _ if NAMES.iter().any(|known| known.name == name) => Err(format!("cannot read {name}: it can only be set")),
        _ => Err(unknown(name)),
    }
}

pub(crate) fn set(target: &Target<'_>, name: &str, values: &[&str]) -> Result<String, String> {
    let name = without_processor(name);
    if name == "trace_marker" {
        let text = values.join(" ");
        let text = text.strip_prefix('>').unwrap_or(&text).trim();
        return target.each(|recording, pid| recording.mark(pid, text));
    }
    let lines: Vec<&str> = values.iter().flat_map(|value| value.lines()).collect();
    if let Some(keys) = keys(name) {
        return set_patterns(target, name, keys, &lines);
    }
    if let ONLY_PIDS | NOT_PIDS = name {
        return threads::set(target, name, &lines);
    }
    let value = match lines.as_slice() {
        [] => "",
        [value] => value.strip_prefix('>').unwrap_or(value).trim(),
        _ => return Err(format!("{name} takes one value")),
    };
    match name {
        "tracing_on" => match value {
            "0" => target.change("off"),
            "1" => target.change("on"),
            _ => Err("tracing_on takes 0 or 1".to_owned()),
        },
        "current_tracer" => match value {
            "nop" => target.each(|recording, pid| {
                recording.ask(pid, "off")?;
                recording.ask(pid, "unpatch")
            }),
            "function_graph" => target.change("on"),
            _ => Err(format!("no such tracer: `{value}`; tracers are function_graph and nop")),
        },
        "max_graph_depth" => target.set_depth(value),
        "tracing_thresh" => {
            let nanos = value.parse::<u64>().ok().and_then(|micros| micros.checked_mul(1000));
            let nanos =
                nanos.ok_or_else(|| "tracing_thresh takes a number of microseconds; 0 removes the limit".to_owned())?;
            target.change_rules(|rules| {
                rules.set("min", (nanos > 0).then(|| format!("{nanos}ns")));
                Ok(())
            })
        }
        "snapshot" => match value {
            "1" => target.each(|recording, pid| recording.dump(pid, "snapshot")),
            "0" | "2" => target.each(|recording, pid| {
                let n_removed = recording.forget_snapshots(pid);
                Ok(format!("removed {n_removed} {}\n", if n_removed == 1 { "dump" } else { "dumps" }))
            }),
            _ => Err("snapshot takes 1 to make a dump, or 0 or 2 to remove the dumps".to_owned()),
        },
        "free_buffer" => target.each(|recording, pid| recording.stop(pid)),
        "buffer_size_kb" => {
            Err("cannot set buffer_size_kb during the recording; use --buffer of `rftrace record`".to_owned())
        }
        _ if NAMES.iter().any(|known| known.name == name) => Err(format!("cannot set {name}: it can only be read")),
        _ => Err(unknown(name)),
    }
}

fn is_on(recording: &dyn Recording, pid: u32) -> Result<bool, String> {
    recording.is_on(pid).ok_or_else(|| format!("the recorder cannot read this from the memory of process {pid}"))
}

/// The patterns of a name, a line each.
fn patterns(rules: &Rules, name: &str, (key, module_key): (&str, Option<&str>)) -> String {
    let mut text: String = rules.get(key).map(|pattern| format!("{pattern}\n")).collect();
    text.extend(module_key.into_iter().flat_map(|key| rules.get(key).map(|module| format!("*:mod:{module}\n"))));
    match (text.is_empty(), name) {
        (false, _) => text,
        (true, "set_ftrace_filter" | "set_graph_function") => "#### all functions enabled ####\n".to_owned(),
        (true, "set_graph_notrace") => "#### no functions disabled ####\n".to_owned(),
        (true, _) => text,
    }
}

fn set_patterns(
    target: &Target<'_>,
    name: &str,
    (key, module_key): (&'static str, Option<&'static str>),
    lines: &[&str],
) -> Result<String, String> {
    let mut lines = lines.to_vec();
    let mut adds = false;
    if let Some(first) = lines.first_mut() {
        adds = first.starts_with(">>");
        *first = first.trim_start_matches('>');
    }
    let lines: Vec<&str> =
        lines.into_iter().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let is_command = |line: &&str| name == FILTER && split_command(line).is_some();
    let (commanded, patterns): (Vec<&str>, Vec<&str>) = lines.into_iter().partition(is_command);
    let told: String =
        commanded.iter().map(|command| set_command(target, command)).collect::<Result<Vec<_>, _>>()?.concat();
    // As in ftrace a command leaves the filter as it is.
    if !commanded.is_empty() && patterns.is_empty() {
        return Ok(told);
    }
    // A change that only removes keeps the others.
    let adds = adds || !patterns.is_empty() && patterns.iter().all(|pattern| pattern.starts_with('!'));
    target.change_rules(|rules| {
        if !adds {
            rules.set(key, []);
            module_key.into_iter().for_each(|key| rules.set(key, []));
        }
        for &pattern in &patterns {
            let (is_taken_away, pattern) = match pattern.strip_prefix('!') {
                Some(rest) => (true, rest.trim()),
                None => (false, pattern),
            };
            let (key, value) = match (pattern.split_once(":mod:"), module_key) {
                (Some(("" | "*", module)), Some(module_key)) => (module_key, module),
                (Some(_), Some(_)) => {
                    return Err(format!(
                        "{pattern}: rftrace chooses all functions of a module or none; write `*:mod:MODULE`"
                    ));
                }
                (Some(_), None) => return Err(format!("{name} takes no modules")),
                (None, _) => (key, pattern),
            };
            if let Some((function, command)) = split_command(value) {
                return Err(format!("{name} takes no commands; write `{function}:{command}` to {FILTER}"));
            }
            match is_taken_away {
                true if !rules.remove(key, value) => return Err(format!("{name} has no {value}")),
                true => {}
                false => rules.add(key, value.to_owned()),
            }
        }
        Ok(())
    })
}

/// The name for commands too.
const FILTER: &str = "set_ftrace_filter";
/// The key of rules for switching recording.
const TRIGGER: &str = "trigger";
/// The middle of a trigger made by a command: one dump for each time.
const TIMES: &str = ",burst,times=";

/// Returns the actions at calls: `f:traceoff:unlimited`, `f:snapshot:count=3`.
fn commands(recording: &dyn Recording, pid: u32) -> Result<String, String> {
    let switches = rules(recording, pid)?;
    let switches = switches.get(TRIGGER).filter_map(|rule| rule.rsplit_once('@')).filter_map(|(function, action)| {
        let action = action.replace('_', "");
        matches!(&*action, "traceon" | "traceoff").then(|| format!("{function}:{action}:unlimited\n"))
    });
    let dumps = recording.triggers().into_iter().filter_map(|trigger| {
        let function = trigger.text.strip_prefix("call:")?;
        let (function, count) = match function.rsplit_once(TIMES) {
            Some((function, times)) => (function, format!("count={times}")),
            None => (function, "unlimited".to_owned()),
        };
        Some(format!("{function}:snapshot:{count}\n"))
    });
    Ok(switches.chain(dumps).collect())
}

/// Sets the action at calls of a function: `f:traceoff`, `f:snapshot:3`; with `!` in front removes it.
fn set_command(target: &Target<'_>, line: &str) -> Result<String, String> {
    let (is_taken_away, line) = match line.strip_prefix('!') {
        Some(rest) => (true, rest.trim()),
        None => (false, line),
    };
    let Some((function, command)) = split_command(line) else { return Err(format!("no such command: {line}")) };
    let (command, count) = command.split_once(':').map_or((command, None), |(command, count)| (command, Some(count)));
    let count = match count {
        None | Some("unlimited") => None,
        Some(count) => match count.trim_start_matches("count=").parse::<u32>() {
            Ok(count @ 1..) => Some(count),
            _ => return Err(format!("{line}: `{count}` is no count; write a number from 1 on, or `unlimited`")),
        },
    };
    match command {
        "traceon" | "traceoff" if count.is_some() => {
            Err(format!("{line}: {command} takes no count; write {function}:{command}"))
        }
        "traceon" | "traceoff" => {
            let rule = format!("{function}@{}", command.replace("trace", "trace_"));
            target.change_rules(|rules| match is_taken_away {
                true if !rules.remove(TRIGGER, &rule) => Err(format!("{FILTER} has no {line}")),
                true => Ok(()),
                false => {
                    rules.add(TRIGGER, rule.clone());
                    Ok(())
                }
            })
        }
        "snapshot" | "dump" => {
            let spec = format!("call:{function}{}", count.map_or_else(String::new, |count| format!("{TIMES}{count}")));
            // Writing the whole list once more changes nothing.
            let is_there = target.recording().triggers().iter().any(|trigger| trigger.text == spec);
            match is_taken_away {
                true => triggers::remove(target, &spec),
                false if is_there => Ok(String::new()),
                false => triggers::add(target, &spec),
            }
        }
        _ => Err(format!("{line}: no such command; commands are traceon, traceoff, snapshot and dump")),
    }
}

/// ftrace's commands for a function: `f:traceoff`, `f:snapshot:3`.
fn split_command(pattern: &str) -> Option<(&str, &str)> {
    const COMMANDS: [&str; 8] =
        ["traceon", "traceoff", "snapshot", "stacktrace", "dump", "cpudump", "enable_event", "disable_event"];
    let (function, command) = pattern.split_once(':')?;
    COMMANDS.contains(&command.split(':').next()?).then_some((function, command))
}

/// Returns the functions in ftrace's form: all, or those within the filter.
fn functions(recording: &dyn Recording, pid: u32, only_recorded: bool) -> Result<String, String> {
    let functions = recording.functions(pid)?;
    let chosen = functions.iter().filter(|function| function.is_recorded || !only_recorded);
    Ok(chosen.map(|function| format!("{} [{}]\n", function.name, function.module)).collect())
}

fn stats(recording: &dyn Recording, pid: u32) -> Result<String, String> {
    let facts = recording.facts(pid)?;
    Ok(format!(
        "process: {pid}\npieces: {}\npieces in use: {}\noverrun: {}\ndropped events: {}\nread events: {}\nbytes: {}\n",
        facts.n_chunks, facts.n_chunks_used, facts.n_overwritten, facts.n_dropped, facts.n_records, facts.n_bytes
    ))
}

/// A duration, as rules have it.
fn nanos(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 4] = [("ns", 1), ("us", 1000), ("ms", 1_000_000), ("s", 1_000_000_000)];
    let (number, unit) = UNITS.iter().find_map(|&(unit, nanos)| Some((text.strip_suffix(unit)?, nanos)))?;
    let nanos = number.trim().parse::<f64>().ok()? * unit as f64;
    (nanos.is_finite() && nanos >= 0.0).then_some(nanos.round() as u64)
}

/// Microseconds, with a fraction only if there is one.
fn micros(nanos: u64) -> String {
    match nanos % 1000 {
        0 => (nanos / 1000).to_string(),
        rest => format!("{}.{rest:03}", nanos / 1000),
    }
}
