//! sp-rtrace's text, version 2.0 of its protocol, as sp-rtrace-postproc reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use jiff::tz::TimeZone;
use rftrace_format::resources::Resource;
use rftrace_read::{Error, Result};

use super::functracer::absolute;
use super::{Call, calls, is_told, local_time};
use crate::names::Names;
use crate::recording::Recording;

/// Name and description of a resource.
fn words(resource: Resource) -> (&'static str, &'static str) {
    match resource {
        Resource::Memory => ("memory", "memory allocation in bytes"),
        Resource::File => ("fd", "file descriptors"),
        Resource::Thread => ("thread", "joinable threads"),
        Resource::Library => ("library", "opened libraries"),
        Resource::Specified(specified) => (specified.name, specified.description),
    }
}

/// Writes the allocations and releases of these resources in a process, with at most `depth` callers, and with the
/// callers' names if they are requested.
///
/// # Errors
///
/// Those of [`Recording::events`], and [`Error::Write`].
pub fn write_sp_rtrace(
    recording: &Recording,
    resources: &[Resource],
    pid: u32,
    depth: usize,
    mut names: Option<&mut Names>,
    out: &mut dyn Write,
) -> Result<()> {
    let of_pid: BTreeMap<u32, _> = recording
        .processes()
        .iter()
        .filter(|(_, process)| process.pid == pid)
        .map(|(&n, process)| (n, process))
        .collect();
    let processes: BTreeSet<u32> = of_pid.keys().copied().collect();
    let program = of_pid.values().next().map_or("", |process| process.program.as_str());
    let first = of_pid.values().map(|process| process.first).min().unwrap_or(0);
    let zone = TimeZone::system();
    let mut all: Vec<(usize, Call)> = Vec::new();
    for (number, &resource) in resources.iter().enumerate() {
        all.extend(
            calls(recording, (Some(resource), false), &processes, (0, u64::MAX))?
                .into_iter()
                .map(|call| (number, call)),
        );
    }
    all.sort_by_key(|(_, call)| call.ticks);
    let mut write = || -> io::Result<()> {
        write!(out, "version=2.0, arch={}, ", std::env::consts::ARCH)?;
        write!(out, "timestamp={}, ", local_time(recording, first, &zone, "%Y.%-m.%-d %H:%M:%S"))?;
        write!(out, "process={program}, pid={pid}, ")?;
        if names.is_some() {
            write!(out, "filter=resolve, ")?;
        }
        writeln!(out, "backtrace depth={depth}, origin=rftrace, ")?;
        for (number, &resource) in resources.iter().enumerate() {
            let (name, description) = words(resource);
            let counted = if resource.is_counted() { " [refcount]" } else { "" };
            writeln!(out, "<{:x}> : {name} ({description}){counted}", 1u32 << number)?;
        }
        let mut told = BTreeSet::new();
        for loaded in processes.iter().flat_map(|&process| recording.loaded(process)) {
            let path = &recording.modules()[loaded.module as usize].path;
            if is_told(path) && told.insert((path, loaded.range)) {
                writeln!(out, ": {path} => {:#x}-{:#x}", loaded.range.0, loaded.range.1)?;
            }
        }
        for (index, (number, call)) in (1u64..).zip(&all) {
            let kind = if resources.len() > 1 { format!("<{}>", words(resources[*number]).0) } else { String::new() };
            let time = local_time(recording, call.ticks, &zone, "%H:%M:%S%.3f");
            write!(out, "{index}. [{time}] {}{kind}", call.name)?;
            match call.size {
                Some(size) => writeln!(out, "({size}) = {:#x}", call.id)?,
                None => writeln!(out, "({:#x})", call.id)?,
            }
            let arguments = match resources[*number] {
                Resource::Specified(_) => arguments_of_specified,
                _ => arguments,
            };
            for (name, value) in call.details.as_deref().map(arguments).unwrap_or_default() {
                writeln!(out, "\t${name} = {value}")?;
            }
            for frame in call.stack.iter().flat_map(|&stack| recording.stack(stack)).take(depth) {
                write!(out, "\t{:#x}", absolute(recording, call.process, *frame))?;
                if let Some(names) = &mut names {
                    let found = names.of(recording.modules(), *frame);
                    if let Some(name) = found.last() {
                        write!(out, " in {}()", name.function)?;
                        match &name.place {
                            Some((file, line)) => write!(out, " at {file}:{line}")?,
                            None => write!(out, " from {}", name.module)?,
                        }
                    }
                }
                writeln!(out)?;
            }
            writeln!(out)?;
        }
        Ok(())
    };
    write().map_err(Error::Write)
}

/// Arguments by their names. They follow each other in this order, so that a path may have whatever it likes in it.
fn arguments(details: &str) -> Vec<(&str, &str)> {
    let mut rest = details;
    let mut found = Vec::new();
    for (separator, name) in [(", ", "opentype"), (", ", "flags"), (" ", "protocol"), (" ", "style")] {
        let key = format!("{separator}{name}: ");
        if let Some(at) = rest.rfind(&key) {
            found.push((&rest[at + separator.len()..][..name.len()], &rest[at + key.len()..]));
            rest = &rest[..at];
        }
    }
    found.extend(rest.split_once(": "));
    found.reverse();
    found
}

/// The same of a specified function, whose arguments have any names: each is behind a comma.
fn arguments_of_specified(details: &str) -> Vec<(&str, &str)> {
    let is_name = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
    };
    let begins = |text: &str| text.split_once(": ").is_some_and(|(name, _)| is_name(name));
    let mut found = Vec::new();
    let mut rest = details;
    while let Some((name, value)) = rest.split_once(": ") {
        let end = value.match_indices(", ").map(|(at, _)| at).find(|at| begins(&value[at + 2..]));
        let end = end.unwrap_or(value.len());
        found.push((name, &value[..end]));
        rest = value.get(end + 2..).unwrap_or_default();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_have_names() {
        assert_eq!(arguments("filename: /a, flags: b, flags: 2"), [("filename", "/a, flags: b"), ("flags", "2")]);
        let socket = [("namespace", "1"), ("style", "2"), ("protocol", "0")];
        assert_eq!(arguments("namespace: 1 style: 2 protocol: 0"), socket);
        assert_eq!(arguments("socket: 3"), [("socket", "3")]);
        let mapping = [("protection", "3"), ("flags", "34"), ("descriptor", "-1")];
        assert_eq!(arguments_of_specified("protection: 3, flags: 34, descriptor: -1"), mapping);
        assert_eq!(arguments_of_specified("name: a, 1b: c, d, size: "), [("name", "a, 1b: c, d"), ("size", "")]);
        assert_eq!(arguments_of_specified(""), []);
    }
}
