//! The two helps of a command: `-h` fits a screen, `--help` has all options in groups, and all examples.

use clap::Command;

/// No line is longer, however wide the terminal is.
const WIDTH: usize = 100;
/// Lines of examples in `-h`, with their title.
const EXAMPLES: usize = 5;

/// Options that belong to a group are left to `--help`, in all commands.
pub(crate) fn arranged(command: Command) -> Command {
    let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let command = command
        .max_term_width(WIDTH)
        .mut_args(|arg| {
            let is_grouped = arg.get_help_heading().is_some();
            arg.hide_short_help(is_grouped)
        })
        .mut_subcommands(arranged);
    if examples.lines().count() <= EXAMPLES {
        return command;
    }
    let first: Vec<&str> = examples.lines().take(EXAMPLES).collect();
    let short = first.join("\n");
    command.after_help(format!("{}\n\nMore options and examples: --help", short.trim_end())).after_long_help(examples)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::fmt::Write as _;

    use clap::error::{ContextKind, ContextValue, ErrorKind};
    use clap::{Arg, CommandFactory, value_parser};

    use super::*;

    /// A command, and all below it.
    fn with_subcommands(command: &Command) -> Vec<Command> {
        let below = command.get_subcommands().filter(|below| below.get_name() != "help").flat_map(with_subcommands);
        [command.clone()].into_iter().chain(below).collect()
    }

    /// Whatever terminal the test has.
    fn of_full_width(command: Command) -> Command {
        command.term_width(WIDTH).mut_subcommands(of_full_width)
    }

    /// `rftrace`, and `cargo rftrace`, with their subcommands.
    fn all() -> Vec<Command> {
        let mut programs = vec![arranged(crate::Cli::command())];
        #[cfg(all(feature = "full", target_os = "linux"))]
        programs.push(crate::commands::cargo::command());
        let programs = programs.into_iter().map(|program| {
            let mut program = of_full_width(program);
            program.build();
            program
        });
        programs.flat_map(|program| with_subcommands(&program)).collect()
    }

    #[test]
    fn short_help_fits_a_screen() {
        const LINES: usize = 40;

        for mut command in all() {
            let name = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
            let short = command.render_help().to_string();
            let long = command.render_long_help().to_string();
            assert!(short.lines().count() <= LINES, "{name} -h has {} lines:\n{short}", short.lines().count());
            for examples in [command.get_after_help(), command.get_after_long_help()].into_iter().flatten() {
                let wide = examples.to_string().lines().any(|line| line.chars().count() > WIDTH);
                assert!(!wide, "{name}: {examples}");
            }
            for arg in command.get_arguments() {
                let Some(option) = arg.get_long().filter(|_| !arg.is_hide_set()) else { continue };
                assert!(long.contains(&format!("--{option}")), "{name} --help has no --{option}");
            }
        }
    }

    /// `OPTION=x` if it takes a value; `x` for a positional argument.
    fn word(arg: &Arg) -> String {
        let option = arg.get_long().map(|long| format!("--{long}"));
        let option = option.or_else(|| arg.get_short().map(|short| format!("-{short}")));
        match (option, arg.get_action().takes_values()) {
            (Some(option), true) => format!("{option}=x"),
            (Some(option), false) => option,
            (None, _) => "x".to_owned(),
        }
    }

    /// The required options and arguments that these words lack; `None` if the words cannot stand together.
    fn lacking(command: &Command, words: &[String]) -> Option<Vec<String>> {
        let words = ["rftrace".to_owned()].into_iter().chain(words.iter().cloned());
        let Err(error) = command.clone().try_get_matches_from(words) else { return Some(Vec::new()) };
        match (error.kind(), error.get(ContextKind::InvalidArg)) {
            (ErrorKind::MissingRequiredArgument, Some(ContextValue::Strings(lacking))) => Some(lacking.clone()),
            _ => None,
        }
    }

    /// clap does not ask for an option that another one excludes: `--for 1s PROGRAM` without `-p` was accepted.
    #[test]
    fn an_option_that_needs_another_is_refused_without_it() {
        let mut wrong = String::new();
        for command in all() {
            let command = command.mut_args(|arg| {
                if arg.get_action().takes_values() { arg.value_parser(value_parser!(OsString)) } else { arg }
            });
            let of_command = lacking(&command, &[]).unwrap_or_default();
            let args: Vec<&Arg> = command.get_arguments().collect();
            for arg in &args {
                let mut needed = lacking(&command, &[word(arg)]).unwrap_or_default();
                needed.retain(|option| !of_command.contains(option));
                let is_needed = |other: &Arg| needed.contains(&other.to_string());
                for other in args.iter().filter(|other| !needed.is_empty() && !is_needed(other)) {
                    let lacking = lacking(&command, &[word(arg), word(other)]);
                    if lacking.is_some_and(|lacking| !lacking.iter().any(|option| needed.contains(option))) {
                        writeln!(wrong, "{} {} {}", command.get_name(), word(arg), word(other)).unwrap();
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "accepted, and without effect:\n{wrong}");
    }

    /// The page of all options is their help. `UPDATE=1` writes it.
    #[test]
    #[cfg(all(feature = "full", attaching))]
    fn page_of_options_is_the_help() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/book/src/options.md");
        let mut page =
            "# Options\n\n`rftrace COMMAND --help` prints the same text, and `-h` only the everyday options.\n"
                .to_owned();
        for mut command in all() {
            let name = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
            let help = command.render_long_help().to_string();
            let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
            page += &format!("\n## {name}\n\n```text\n{}\n```\n", lines.join("\n"));
        }
        page += &crate::spelling::page();
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        let is = std::fs::read_to_string(path).unwrap_or_default();
        assert!(is == page, "{path} is not the present help: UPDATE=1 cargo test -p rftrace-tools page_of_options");
    }
}
