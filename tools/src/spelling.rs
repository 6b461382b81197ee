//! uftrace's options: a tip for each one that a command here does not have.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

/// Commands for recordings, which take the options of uftrace's `record`.
const RECORDERS: [&str; 2] = ["record", "live"];
/// Commands that show traces, as uftrace's do.
const VIEWS: [&str; 8] = ["replay", "report", "graph", "dump", "info", "tui", "view", "script"];

/// Another way to the same, for an option that is not here.
#[derive(Clone, Copy)]
enum Tip {
    /// In this program.
    Here(&'static str),
    /// uftrace shows it of the same directories.
    Uftrace,
}

use Tip::{Here, Uftrace};

/// Options of uftrace (0.13 to 0.18) and of other tools, with tips for recordings, and for traces.
type Row = (&'static [&'static str], Option<Tip>, Option<Tip>);

const fn both(names: &'static [&'static str], tip: &'static str) -> Row {
    (names, Some(Here(tip)), Some(Here(tip)))
}

const fn recording(names: &'static [&'static str], tip: &'static str) -> Row {
    (names, Some(Here(tip)), None)
}

const fn showing(names: &'static [&'static str], tip: &'static str) -> Row {
    (names, None, Some(Here(tip)))
}

const fn of_uftrace(names: &'static [&'static str]) -> Row {
    (names, None, Some(Uftrace))
}

const OTHERWISE: [Row; 52] = [
    both(&["--max-stack", "--max-depth", "--level", "--levels"], "`-D`, `--depth` limits the levels of calls"),
    both(&["--hide", "-H"], "`-N`, `--notrace` leaves out a function and its callees"),
    both(&["--caller-filter", "-C"], "`rftrace graph DIR FUNC` shows the callers of a function"),
    both(&["--loc-filter", "-L"], "`-F` selects functions by name: `-F 'module::*'`"),
    both(&["--libname"], "`rftrace replay -f +module` shows the module of each function"),
    both(&["--script", "-S"], "`rftrace script FILE.py DIR` runs a script on a trace"),
    both(&["--record"], "`rftrace record` makes a trace, and other commands show it"),
    both(&["--graphviz", "--mermaid"], "`rftrace graph` and `rftrace dump --flamegraph` show the call graph"),
    both(
        &["--verbose", "-v", "--debug", "--debug-domain"],
        "there are no debug messages; `rftrace info DIR` describes a trace",
    ),
    both(&["--logfile"], "messages go to stderr: `2>FILE`"),
    both(&["--opt-file"], "the shell reads options from a file: `$(cat FILE)`"),
    both(&["--usage"], "`-h` shows the everyday options, `--help` all of them"),
    both(&["--with-syms"], "`rftrace symbols DIR --binary ELF` adds names"),
    (
        &["--no-libcall"],
        Some(Here("library calls are recorded only with `--libcalls`")),
        Some(Here("`-N`, `--notrace` leaves functions out: a name, a glob or `/regex/`")),
    ),
    (
        &["--size-filter", "-Z"],
        Some(Here("`--rules size=64` leaves out functions of fewer bytes")),
        Some(Here("`rftrace record --rules size=64` leaves out functions of fewer bytes")),
    ),
    (
        &["--disable", "--trace"],
        Some(Here("`--disabled` begins with recording off, and `-T FUNCTION@trace_on` switches it on")),
        Some(Here("`--from` and `--to` select a part of a trace")),
    ),
    (&["--kernel-full", "--kernel-only"], Some(Here("`--kernel='vfs_*'` selects kernel functions")), Some(Uftrace)),
    (&["--event-full"], Some(Here("`--events` records kernel events: sched, syscalls, irq")), Some(Uftrace)),
    (&["--task"], None, Some(Here("`rftrace info DIR` lists the threads"))),
    showing(
        &["--no-event", "--no-sched", "--no-sched-preempt"],
        "`rftrace record --no-schedule` records no context switches",
    ),
    showing(&["--min-time", "--threshold"], "`-t`, `--time-filter` shows only calls of at least this duration"),
    showing(&["--sample-time"], "`-t`, `--time-filter` leaves out short calls"),
    showing(&["--symbols"], "`.sym` files in the directory list the symbols"),
    showing(&["--system"], "`rftrace info DIR` describes the system"),
    showing(&["--sort-column", "--diff-policy"], "`rftrace report --diff DIR -s COLUMN` sorts the differences"),
    (
        &["--no-args"],
        Some(Here("arguments are recorded only with `-A` or `--auto-args`, so this needs no option")),
        Some(Uftrace),
    ),
    of_uftrace(&["--no-comment"]),
    of_uftrace(&["--no-callsite"]),
    of_uftrace(&["--no-merge"]),
    of_uftrace(&["--task-newline"]),
    recording(&["--estimate-return", "-e"], "`-P PATTERN --ends exits` leaves return addresses as they are"),
    recording(&["--event", "--Event", "-E", "--list-event"], "`--events` records kernel events: sched, syscalls, irq"),
    recording(&["--no-sched-preempt"], "`--no-schedule` records no context switches"),
    recording(&["--kernel-depth", "-K", "--kernel-skip-out"], "`--kernel='vfs_*'` selects kernel functions"),
    recording(&["--kernel-buffer"], "the summary counts lost kernel events; `--kernel='vfs_*'` makes them fewer"),
    recording(
        &["--nest-libcall", "-l"],
        "`--libcalls` records the program's calls, `-P '*@libNAME'` the functions of a library",
    ),
    recording(&["--unpatch", "-U"], "`--patch-except FILE` lists functions without a branch"),
    recording(&["--agent", "-g"], "`rftrace ctl PID` controls every recording"),
    recording(
        &["--host", "--port"],
        "`--to HOST:PORT` sends records to `rftrace recv`, `--to uftrace://HOST` to `uftrace recv`",
    ),
    recording(&["--clock"], "records have the time stamp counter; `rftrace info DIR` describes the clock"),
    recording(&["--keep-pid"], "the program is a child of rftrace; `-p PID` records a running process"),
    recording(&["--libmcount-path", "--library-path"], "the variable RFTRACE_PRELOAD names the library"),
    recording(&["--libmcount-single"], "threads share no lock, so it needs no option"),
    recording(&["--no-pltbind"], "`--libcalls` sees all calls, so it needs no option"),
    recording(&["--no-randomize-addr"], "`setarch -R PROGRAM` runs a program without address randomization"),
    recording(&["--nop"], "`--ring` keeps records in memory"),
    recording(&["--num-thread"], "one thread takes all records; with `--on-full drop` the program never waits for it"),
    recording(&["--rt-prio"], "`chrt -f 10 rftrace record …` sets a priority"),
    recording(&["--time"], "`time rftrace record …` measures the run"),
    recording(&["--watch", "-W"], "`-A` records arguments, and `rftrace script` compares them"),
    recording(&["--match"], "a pattern between slashes is a regex: `-F '/^app::/'`"),
    recording(&["--report"], "`rftrace report` shows the trace, `rftrace top PID` a running program"),
];

/// Adds a tip to the error for an unknown option. `name` is that of the subcommand, of those that `program` has.
pub(crate) fn explain(mut error: Error, program: &Command, name: Option<&str>) -> Error {
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return error };
    let option = option.split('=').next().unwrap_or(option).to_owned();
    let Some(tip) = name.and_then(|name| tip(program, name, &option)) else {
        if error.get(ContextKind::SuggestedArg).is_none() {
            // That it could be a value behind `--` helps nobody.
            error.remove(ContextKind::Suggested);
        }
        return error;
    };
    error.remove(ContextKind::SuggestedArg);
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
    error
}

/// The tip for an option that the command does not have.
fn tip(program: &Command, name: &str, option: &str) -> Option<String> {
    let is_recorder = RECORDERS.contains(&name);
    if name == "recv" {
        let is_address = ["--host", "--port"].contains(&option);
        return is_address.then(|| "`--listen HOST:PORT` sets the address".to_owned());
    }
    if name == "ctl" && !option.starts_with('-') {
        let commands = program.find_subcommand(name)?.get_subcommands().map(Command::get_name);
        let commands: Vec<&str> = commands.filter(|command| *command != "help").collect();
        return Some(format!("the commands are {}", commands.join(", ")));
    }
    if !is_recorder && !VIEWS.contains(&name) {
        return None;
    }
    let row = OTHERWISE.iter().filter(|(names, ..)| names.contains(&option));
    let tip = row.filter_map(|&(_, recording, showing)| if is_recorder { recording } else { showing }).next();
    match tip {
        Some(Here(text)) => return Some(text.to_owned()),
        Some(Uftrace) => return Some(format!("`uftrace {name} {option}` has it, and reads the same directories")),
        None => {}
    }
    let others = VIEWS.iter().chain(&RECORDERS[..1]).filter(|other| **other != name);
    let found = others.filter_map(|other| program.find_subcommand(other)).find(|other| has(other, option))?;
    Some(format!("`rftrace {}` has `{option}`", found.get_name()))
}

/// True if a command has an option, and shows it.
fn has(command: &Command, option: &str) -> bool {
    command.get_arguments().filter(|arg| !arg.is_hide_set()).any(|arg| match option.strip_prefix("--") {
        Some(long) => arg.get_long_and_visible_aliases().is_some_and(|names| names.contains(&long)),
        None => {
            let names = arg.get_short_and_visible_aliases().unwrap_or_default();
            option.chars().nth(1).is_some_and(|letter| names.contains(&letter))
        }
    })
}

/// The tips as rows of a page.
#[cfg(test)]
pub(crate) fn page() -> String {
    let mut page = "\n## uftrace's options\n\nAn option of uftrace works here, or has a tip:\n\n".to_owned();
    page += "| option | tip |\n|---|---|\n";
    let text = |tip: Option<Tip>| match tip {
        Some(Here(text)) => text.replace('|', "\\|"),
        Some(Uftrace) => "uftrace has it, and reads the same directories".to_owned(),
        None => String::new(),
    };
    for (names, recording, showing) in OTHERWISE {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        let tip = match (text(recording), text(showing)) {
            (recording, showing) if recording == showing => recording,
            (recording, showing) if showing.is_empty() => format!("recording: {recording}"),
            (recording, showing) if recording.is_empty() => format!("trace: {showing}"),
            (recording, showing) => format!("recording: {recording}; trace: {showing}"),
        };
        page += &format!("| {} | {tip} |\n", names.join(", "));
    }
    page
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// Options of uftrace's commands, by its manual pages.
    const UFTRACE: [(&str, &str); 8] = [
        (
            "record",
            "--agent --argument --auto-args --buffer --caller-filter --clock --data --depth --disable --estimate-return --event --filter --force \
             --host --keep-pid --kernel --kernel-buffer --kernel-depth --kernel-full --kernel-only --libmcount-path --libmcount-single --list-event \
             --loc-filter --match --max-stack --nest-libcall --no-event --no-libcall --no-pltbind --no-randomize-addr --no-sched --no-sched-preempt \
             --nop --notrace --num-thread --patch --port --retval --rt-prio --script --signal --size-filter --srcline --time --time-filter --trace \
             --trigger --unpatch --verbose --watch --with-syms --logfile --opt-file -A -C -D -E -F -H -K -L -N -P -R -S -T -U -W -Z -a -b -d -e -g \
             -k -l -t -v",
        ),
        (
            "replay",
            "--caller-filter --color --column-offset --column-view --data --demangle --depth --disable --event-full --filter --flat --hide \
             --kernel-full --kernel-only --libname --loc-filter --match --no-args --no-callsite --no-comment --no-event --no-libcall --no-merge \
             --no-pager --no-sched --no-sched-preempt --notrace --output-fields --size-filter --srcline --task-newline --tid --time-filter \
             --time-range --trace --trigger --with-syms -C -D -F -H -L -N -T -Z -d -f -r -t",
        ),
        (
            "report",
            "--avg-self --avg-total --caller-filter --data --demangle --depth --diff --diff-policy --event-full --filter --format --hide \
             --kernel-full --kernel-only --loc-filter --match --no-event --no-libcall --no-sched --no-sched-preempt --notrace --output-fields \
             --size-filter --sort --sort-column --srcline --tid --time-filter --time-range --trigger --with-syms -C -D -F -H -L -N -T -Z -d -f -r -s -t",
        ),
        (
            "graph",
            "--caller-filter --data --demangle --depth --event-full --filter --hide --kernel-full --kernel-only --loc-filter --match --no-event \
             --no-libcall --no-sched --no-sched-preempt --notrace --output-fields --size-filter --srcline --tid --time-filter --time-range --trigger \
             --with-syms -C -D -F -H -L -N -T -Z -d -f -r -t",
        ),
        (
            "dump",
            "--caller-filter --chrome --data --demangle --depth --event-full --filter --flame-graph --graphviz --hide --kernel-full --kernel-only \
             --loc-filter --match --mermaid --no-args --no-event --no-libcall --no-sched --notrace --sample-time --size-filter --tid --time-filter \
             --time-range --trigger --with-syms -C -D -F -H -L -N -T -Z -d -r -t",
        ),
        ("info", "--data --symbols --system --task -d"),
        ("recv", "--host --port"),
        (
            "script",
            "--caller-filter --data --demangle --depth --filter --hide --kernel-full --kernel-only --loc-filter --match --no-args --no-libcall \
             --notrace --record --script --size-filter --tid --time-filter --time-range --trigger --with-syms -C -D -F -H -L -N -S -T -Z -d -r -t",
        ),
    ];

    /// Each one works, or has a tip.
    #[test]
    #[cfg(all(feature = "full", target_os = "linux"))]
    fn every_option_of_uftrace() {
        let program = crate::Cli::command();
        let works = |command: &Command, option: &str| {
            command.get_arguments().any(|arg| match option.strip_prefix("--") {
                Some(long) => arg.get_long() == Some(long) || arg.get_all_aliases().unwrap_or_default().contains(&long),
                None => {
                    let letter = option.chars().nth(1).unwrap_or_default();
                    arg.get_short() == Some(letter) || arg.get_all_short_aliases().unwrap_or_default().contains(&letter)
                }
            })
        };
        for (name, options) in UFTRACE {
            let command = program.find_subcommand(name).unwrap();
            for option in options.split_whitespace() {
                assert!(works(command, option) || tip(&program, name, option).is_some(), "{name} {option}");
            }
        }
    }

    /// The options in the code of a tip, but for those of other programs.
    fn named(text: &str) -> Vec<&str> {
        let code = text
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|code| !["setarch", "chrt"].iter().any(|tool| code.starts_with(tool)));
        let words = code.flat_map(|code| code.split([' ', '=']));
        words.filter(|word| word.starts_with('-') && word.len() > 1).collect()
    }

    #[test]
    #[cfg(all(feature = "full", target_os = "linux"))]
    fn tips_name_options_that_are_there() {
        let program = crate::Cli::command();
        assert_eq!(
            named("`-D`, `--depth` limits `rftrace record --rules size=64`, `chrt -f 10`"),
            ["-D", "--depth", "--rules"]
        );
        for (names, recording, showing) in OTHERWISE {
            for tip in [recording, showing].into_iter().flatten() {
                let Here(text) = tip else { continue };
                for option in named(text) {
                    let is_there = ["-h", "--help"].contains(&option)
                        || program.get_subcommands().any(|command| has(command, option));
                    assert!(is_there, "{names:?}: {text}");
                }
            }
        }
    }
}
