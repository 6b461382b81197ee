//! Meaning of the words of a command.

use std::fmt::Write as _;

use rftrace_pattern::Pattern;

use crate::names;
use crate::recording::{BufferKind, Recording, Text};
use crate::rules::Rules;
use crate::target::{Target, rules};
use crate::triggers;

/// The list of commands, for a request without one.
const COMMANDS: &str = "status, on, off, filter, depth, min, patch, unpatch, functions, dump, trigger, mark, pipe, buffer, flush, stop, get and set";

/// Returns true if a command changes the recording. A dump does not, and may take long.
pub(crate) fn is_change(words: &[String]) -> bool {
    let is_read =
        |word: &str| matches!(word, "knows" | "status" | "functions" | "dump" | "buffer" | "get" | "mark" | "flush");
    match words.first().map(String::as_str) {
        Some("filter" | "depth" | "min") => words.len() > 1,
        Some("set") => words.get(1).is_none_or(|name| !matches!(name.as_str(), "snapshot" | "trace_marker")),
        Some("trigger") => words.get(1).is_some_and(|what| what != "list"),
        Some(word) => !is_read(word),
        None => false,
    }
}

/// Returns the text or stream for a command that reads or writes further data; `None` for other commands.
pub(crate) fn pipe(recording: &dyn Recording, pid: u32, words: &[String]) -> Option<Result<Text, String>> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let of = (pid != recording.recorder()).then_some(pid);
    let begin: &dyn Fn() -> Result<Text, String> = match words.as_slice() {
        ["pipe"] | ["get", "trace_pipe"] => &|| recording.pipe(of, true),
        ["get", "trace"] => &|| recording.pipe(of, false),
        ["pipe", "rfs"] => &|| recording.stream(of),
        _ => return None,
    };
    Some(Target::find(recording, pid).and_then(|_| begin()))
}

/// Executes a command for a process or, with the recorder's number, for all recorded ones.
pub(crate) fn answer(recording: &dyn Recording, pid: u32, words: &[String]) -> Result<String, String> {
    let target = Target::find(recording, pid)?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["knows"] => Ok(String::new()),
        ["status"] => target.each(status),
        ["on"] => target.change("on"),
        ["off"] => target.change("off"),
        ["filter"] => target.one(|recording, pid| Ok(rules(recording, pid)?.shown() + "\n")),
        ["filter", text] => target.change_rules(|rules| {
            *rules = rules.replaced_by(Rules::parse(text));
            Ok(())
        }),
        ["depth" | "min"] => target.one(|recording, pid| {
            let rules = rules(recording, pid)?;
            let value = rules.get(words[0]).last().unwrap_or("0");
            Ok(format!("{value}\n"))
        }),
        ["depth", levels] => target.set_depth(levels),
        ["min", time] => target.change_rules(|rules| {
            rules.set("min", (!is_zero(time)).then(|| (*time).to_owned()));
            Ok(())
        }),
        ["patch"] => target.change("patch"),
        ["unpatch"] => target.change("unpatch"),
        ["functions"] => target.one(|recording, pid| functions(recording, pid, None)),
        ["functions", pattern] => target.one(|recording, pid| functions(recording, pid, Some(pattern))),
        ["dump"] => target.each(|recording, pid| recording.dump(pid, "ctl")),
        ["dump", reason] => target.each(|recording, pid| recording.dump(pid, &format!("ctl: {reason}"))),
        ["trigger"] | ["trigger", "list"] => Ok(triggers::list(&target)),
        ["trigger", "add", spec] => triggers::add(&target, spec),
        ["trigger", "del", which] => triggers::remove(&target, which),
        ["mark", text] => target.each(|recording, pid| recording.mark(pid, text)),
        ["flush"] => target.each(|recording, pid| recording.flush(pid)),
        ["stop"] => target.each(|recording, pid| recording.stop(pid)),
        ["buffer"] => target.one(buffer),
        ["get", name] => names::get(&target, name),
        ["set", name, values @ ..] => names::set(&target, name, values),
        [] => Err(format!("no command is given; commands are {COMMANDS}")),
        [command, ..] => Err(format!("no such command, or wrong arguments: `{command}`; commands are {COMMANDS}")),
    }
}

/// Returns true if a time is 0.
fn is_zero(time: &str) -> bool {
    let digits = time.trim_end_matches(|c: char| c.is_alphabetic() || c == 'µ');
    digits.trim().parse::<f64>().is_ok_and(|number| number == 0.0)
}

/// Returns the names of functions, with a mark for those within the filter.
fn functions(recording: &dyn Recording, pid: u32, pattern: Option<&str>) -> Result<String, String> {
    let pattern = pattern.map(Pattern::new).transpose().map_err(|problem| problem.to_string())?;
    let functions = recording.functions(pid)?;
    let chosen = functions.iter().filter(|it| pattern.as_ref().is_none_or(|pattern| pattern.matches(&it.name)));
    let mut text = String::new();
    for function in chosen {
        let mark = if function.is_recorded { '+' } else { '-' };
        let _ = writeln!(text, "{mark} {} [{}]", function.name, function.module);
    }
    Ok(text)
}

fn status(recording: &dyn Recording, pid: u32) -> Result<String, String> {
    let facts = recording.facts(pid)?;
    let filter = rules(recording, pid)?.shown();
    let mut text = String::new();
    let _ = writeln!(text, "process {pid}: {}", facts.command);
    let is_on = recording
        .is_on(pid)
        .map_or("unknown: the recorder cannot read its memory", |is_on| if is_on { "on" } else { "off" });
    let mut row = |name: &str, value: String| _ = writeln!(text, "  {name:<12} {value}");
    row("recording", is_on.to_owned());
    row("filter", if filter.is_empty() { "none".to_owned() } else { filter });
    row("threads", facts.n_threads.to_string());
    let kind = match facts.kind {
        BufferKind::Stream => "bank",
        BufferKind::Ring => "ring",
        BufferKind::Own { .. } => "buffer",
    };
    let used = format!("{} of {} chunks in use", facts.n_chunks_used, facts.n_chunks);
    row(kind, format!("{} KiB, {used}", facts.buffer_bytes >> 10));
    match facts.kind {
        BufferKind::Ring => row("overwritten", format!("{} chunks", facts.n_overwritten)),
        BufferKind::Stream => {
            let rest = if facts.n_chunks_used > 0 { "; those of chunks in use are not yet written" } else { "" };
            let written =
                format!("{} calls and returns, {} bytes, of all processes{rest}", facts.n_records, facts.n_bytes);
            row("written", written);
        }
        BufferKind::Own { is_full } => {
            let rest = if is_full { "the buffer is full, so recording has stopped" } else { "the program saves them" };
            row("kept", format!("{} calls and returns; {rest}", facts.n_records));
            return Ok(text);
        }
    }
    row("not recorded", format!("{} calls and returns, for lack of room", facts.n_dropped));
    Ok(text)
}

fn buffer(recording: &dyn Recording, pid: u32) -> Result<String, String> {
    let facts = recording.facts(pid)?;
    Ok(format!("{} KiB in {} chunks, {} in use\n", facts.buffer_bytes >> 10, facts.n_chunks, facts.n_chunks_used))
}
