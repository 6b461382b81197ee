//! What a command has instead of an option that it does not have: by another spelling, in another command, or in uftrace.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

/// The commands that show traces, as uftrace's do.
const VIEWS: [&str; 8] = ["replay", "report", "graph", "dump", "info", "tui", "view", "script"];

/// Options of uftrace and of other tools for which there is something else here.
const OTHERWISE: [(&[&str], &str); 9] = [
    (&["--max-stack", "--max-depth", "--level", "--levels"], "`-D`, `--depth` limits the levels of calls"),
    (&["--hide", "-H"], "`-N`, `--notrace` leaves a function out, with what it calls"),
    (&["--caller-filter", "-C"], "`rftrace graph DIR FUNC` shows how a function was called"),
    (&["--no-libcall"], "`-N`, `--notrace` leaves functions out: a name, a glob or `/regex/`"),
    (&["--no-event", "--no-sched", "--no-sched-preempt"], "`rftrace record --no-schedule` records no context switches"),
    (
        &["--graphviz", "--mermaid"],
        "`rftrace graph` shows which functions call which; `rftrace dump --flamegraph` is a picture",
    ),
    (&["--script", "-S"], "`rftrace script FILE.py DIR` runs a script on a trace"),
    (&["--record"], "`rftrace record` records a program, and its trace is what is shown"),
    (&["--min-time", "--threshold"], "`-t`, `--time-filter` shows only calls that took so long at least"),
];

/// Options of uftrace for which there is nothing here.
const UFTRACE: [&str; 24] = [
    "--argument",
    "-A",
    "--auto-args",
    "-a",
    "--retval",
    "-R",
    "--libname",
    "--trigger",
    "-T",
    "--kernel",
    "-k",
    "--kernel-full",
    "--kernel-only",
    "--kernel-depth",
    "--event-full",
    "--no-args",
    "--no-comment",
    "--no-merge",
    "--task-newline",
    "--size-filter",
    "-Z",
    "--with-syms",
    "--diff-policy",
    "--sort-column",
];

/// Has the error for an option that is not there say what is. `name` is that of the subcommand, of those that `program` has.
pub(crate) fn explain(mut error: Error, program: &Command, name: Option<&str>) -> Error {
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return error };
    let option = option.split('=').next().unwrap_or(option).to_owned();
    let is_similar = error.get(ContextKind::SuggestedArg).is_some();
    let view = name.filter(|name| VIEWS.contains(name));
    let otherwise = OTHERWISE.iter().find(|(options, _)| options.contains(&option.as_str())).filter(|_| view.is_some());
    let tip = if let Some((_, instead)) = otherwise {
        (*instead).to_owned()
    } else if let Some(other) = program.get_subcommands().find(|other| view.is_some() && has(other, &option)) {
        format!("`rftrace {}` has `{option}`", other.get_name())
    } else if let Some(view) = view.filter(|_| UFTRACE.contains(&option.as_str())) {
        format!("`uftrace {view} {option}` has it, and reads the same directories")
    } else {
        if !is_similar {
            // That it could be a value behind `--` helps nobody.
            error.remove(ContextKind::Suggested);
        }
        return error;
    };
    error.remove(ContextKind::SuggestedArg);
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
    error
}

/// Whether a command that shows traces has an option, and tells of it.
fn has(command: &Command, option: &str) -> bool {
    VIEWS.contains(&command.get_name())
        && option.strip_prefix("--").is_some_and(|long| {
            command.get_arguments().any(|arg| {
                let names = arg.get_long().into_iter().chain(arg.get_visible_aliases().unwrap_or_default());
                !arg.is_hide_set() && names.into_iter().any(|name| name == long)
            })
        })
}
