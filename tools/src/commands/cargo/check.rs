//! `cargo rftrace check`: exact numbers of a program, compared with those that are committed.
//!
//! How often functions are called, and how deep, is the same in each run of a program without chance, on any machine. The times of calls are
//! not looked at.
//!
//! Not here: the committed file, and the comparison (`baseline`); builds and runs (`plan`).

use std::collections::{BTreeSet, HashMap};
use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, ValueEnum};
use rftrace_format::files::RESOURCES;
use rftrace_format::resources::Resource;
use rftrace_read::{Error, Shown, Trace};
use rftrace_resources::{Account, Recording as Resources, Until};
use rftrace_views::Counts;

use super::arguments::CargoArguments;
use super::baseline::{Baseline, CALLS, Change, DEPTH, Numbers, Target, WHOLE};
use super::options::Options;
use super::plan::{Plan, Recording};
use super::process::{code_of, output_of};
use super::runner::without_hash;
use super::session::ProgramRun;
use super::status::{FAINT, error, status, styled, warning};
use super::summary::plural;
use super::toolchain::present_cargo;
use crate::commands::common::{losses, print, shell_word};
use crate::commands::markdown;
use crate::commands::unfinished;

const EXAMPLES: &str = "\
Examples:
  cargo rftrace check --update bench --bench throughput   keeps its numbers in the file
  cargo rftrace check                                     compares all targets of the file
  cargo rftrace check test --lib parser                   compares one
  cargo rftrace --resources memory check --update test    with allocations and their bytes
  cargo rftrace check --format markdown >comment.md       for a comment in a pull request";

/// Compare counts of calls with a committed file.
///
/// The number of calls of each function, and its greatest depth, are the same in each run: no noise hides a change. With `--resources
/// memory` allocations count too. The exit status is 1 for a change. Everything runs in the root folder of the workspace, and what the
/// programs write to stdout goes to stderr.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct CheckArgs {
    /// Write the file instead of comparing with it.
    #[arg(long)]
    update: bool,
    /// Number of runs for --update. Functions that are not called equally often in all of them are not compared.
    ///
    /// Without --update it is the highest number of runs: there is one, and more after a difference.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// The file [default: rftrace-baseline.json in the root of the workspace].
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
    /// `run`, `test` or `bench`, with cargo's arguments [default: each target of the file].
    #[arg(value_name = "COMMAND AND CARGO ARGS", allow_hyphen_values = true)]
    args: Vec<OsString>,
}

impl CheckArgs {
    /// The words of cargo's command.
    pub(super) fn words(&self) -> &[OsString] {
        &self.args
    }
}

/// How a comparison is written.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    Table,
    /// For a comment on GitHub.
    Markdown,
}

/// Runs it.
pub(super) fn run(args: CheckArgs, program_args: Vec<OsString>, mut options: Options) -> Result<ExitCode> {
    options.leaks.patterns("check")?;
    if options.view {
        bail!("--view works only with run, test and bench; use `rftrace view DIR` for a trace of check");
    }
    let root = root()?;
    let path = args.baseline.map_or_else(|| Ok(root.join("rftrace-baseline.json")), std::path::absolute)?;
    options.output = options.output.map(std::path::absolute).transpose()?;
    env::set_current_dir(&root).with_context(|| root.display().to_string())?;
    let mut check = Check {
        baseline: Baseline::read(&path)?,
        path,
        most_runs: args.runs,
        record: options.record.texts()?,
        options,
    };
    let words = args.args.into_iter().chain(program_args).map(|word| word.into_string().map_err(not_text));
    let words = words.collect::<Result<Vec<String>>>()?;
    let commands = if words.is_empty() { check.commands(args.update)? } else { vec![words] };
    let mut is_same = true;
    for command in commands {
        let outcome = if args.update { check.update(command)? } else { check.compare(&command, args.format)? };
        match outcome {
            Outcome::Same => {}
            Outcome::Changed => is_same = false,
            Outcome::Failed(code) => return Ok(code),
        }
    }
    if !is_same {
        error("the numbers differ from the baseline; to accept them: cargo rftrace check --update");
    }
    Ok(if is_same { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn not_text(word: OsString) -> anyhow::Error {
    anyhow!("cannot keep {} in the baseline: it is not text (UTF-8)", word.display())
}

/// Splits a command into cargo's subcommand and its arguments.
fn subcommand(command: &[String]) -> Result<(&'static str, &[String])> {
    let (name, rest) = command.split_first().context("no command")?;
    let subcommand = match name.as_str() {
        "run" | "r" => "run",
        "test" | "t" => "test",
        "bench" => "bench",
        other => bail!("cannot check `{other}`: the command is run, test or bench, with cargo's arguments"),
    };
    Ok((subcommand, rest))
}

/// The folder of the workspace's manifest.
fn root() -> Result<PathBuf> {
    let mut cargo = Command::new(present_cargo());
    let manifest = output_of(cargo.args(["locate-project", "--workspace", "--message-format", "plain"]))?;
    Ok(Path::new(manifest.trim_end()).parent().context("cargo names no manifest of the workspace")?.to_owned())
}

/// Outcome of the check of a target.
enum Outcome {
    Same,
    Changed,
    /// Cargo, or a program, has failed.
    Failed(ExitCode),
}

struct Check {
    path: PathBuf,
    baseline: Option<Baseline>,
    most_runs: u32,
    /// The options for `rftrace record`.
    record: Vec<String>,
    options: Options,
}

impl Check {
    /// Those of the file.
    fn commands(&self, is_update: bool) -> Result<Vec<Vec<String>>> {
        let targets = self.baseline.iter().flat_map(|baseline| &baseline.targets);
        let commands: Vec<_> = targets.map(|target| target.command.clone()).collect();
        if commands.is_empty() {
            let update = if is_update { "name a command" } else { "make one" };
            bail!(
                "there is no baseline in {}; {update}, with cargo's arguments: cargo rftrace check --update bench (or test, run)",
                self.path.display()
            );
        }
        Ok(commands)
    }

    fn target(&self, command: &[String]) -> Option<&Target> {
        self.baseline.as_ref()?.target(command)
    }

    /// Runs a command some times and keeps its numbers.
    fn update(&mut self, command: Vec<String>) -> Result<Outcome> {
        let (mut runs, options) = self.runs(&command)?;
        let mut programs = Numbers::default();
        for number in 1..=self.most_runs {
            match runs.next(number)? {
                Ok(numbers) if number == 1 => programs = numbers,
                Ok(numbers) => programs.join(&numbers),
                Err(code) => return Ok(Outcome::Failed(code)),
            }
        }
        let text = format!(
            "{}: {} in {} {} of {}",
            shell_word(&self.path),
            amount(&programs),
            self.most_runs,
            plural(self.most_runs.into(), "run"),
            words(&command)
        );
        self.tell_of_varying(&programs.varying());
        let built = runs.plan.described();
        let target = Target { command, options, built, runs: self.most_runs, programs };
        let baseline = self.baseline.get_or_insert_with(Baseline::empty);
        baseline.replace(target);
        baseline.write(&self.path)?;
        self.status("Baseline", &text);
        Ok(Outcome::Same)
    }

    /// Runs a command and compares its numbers with those of the file. Where they differ it runs more often, and what then varies from run
    /// to run around the old number is no change.
    fn compare(&self, command: &[String], format: Format) -> Result<Outcome> {
        subcommand(command)?;
        let Some(target) = self.target(command) else {
            bail!(
                "{} has no numbers for `{}`; to add them: cargo rftrace check --update {}",
                self.path.display(),
                words(command),
                words(command)
            );
        };
        let (mut runs, _) = self.runs(command)?;
        let mut measured = Numbers::default();
        for number in 1..=self.most_runs {
            match runs.next(number)? {
                Ok(numbers) if number == 1 => measured = numbers,
                Ok(numbers) => measured.join(&numbers),
                Err(code) => return Ok(Outcome::Failed(code)),
            }
            if target.programs.changes(&measured).is_empty() {
                break;
            }
        }
        self.tell_of_varying(&target.programs.varying().union(&measured.varying()).copied().collect());
        let changes = target.programs.changes(&measured);
        print(|out| self.write(target, &measured, &changes, format, out).map_err(Error::Write))?;
        if changes.is_empty() {
            return Ok(Outcome::Same);
        }
        for (program, dir) in &runs.traces {
            if changes.iter().any(|change| change.key.program == *program) {
                self.status("Trace", &format!("{}{}", shell_word(dir), styled(FAINT, format!(" ({program})"))));
            }
        }
        let built = runs.plan.described();
        if built != target.built {
            warning(&format!(
                "the baseline is of {}, this is {built}: the compilers may cause the difference",
                target.built
            ));
        }
        Ok(Outcome::Changed)
    }

    /// Prepares the runs of a command. Returns the options of `rftrace record` too: the given ones, or those of the file.
    fn runs(&self, command: &[String]) -> Result<(Runs<'_>, Vec<String>)> {
        let (subcommand, rest) = subcommand(command)?;
        let (own, program) = rest.split_at(rest.iter().position(|word| word == "--").unwrap_or(rest.len()));
        let texts = |words: &[String]| words.iter().map(OsString::from).collect();
        let args = CargoArguments::new(subcommand, texts(own), texts(program));
        let of_file = self.target(command).map(|target| &target.options).filter(|_| self.record.is_empty());
        let options = of_file.unwrap_or(&self.record).clone();
        let plan = Plan::new(&self.options, &args)?;
        let runs = Runs { plan, args, record: texts(&options), options: &self.options, traces: Vec::new() };
        Ok((runs, options))
    }

    fn write(
        &self,
        target: &Target,
        measured: &Numbers,
        changes: &[Change<'_>],
        format: Format,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let command = words(&target.command);
        let is_markdown = format == Format::Markdown;
        let title = if is_markdown { markdown::code(&command) } else { command };
        if changes.is_empty() {
            return writeln!(out, "{title}: {}, as in the baseline", amount(measured));
        }
        writeln!(
            out,
            "{title}: differs from the baseline ({} of {} numbers)\n",
            changes.len(),
            measured.iter().count()
        )?;
        let headings = ["Baseline", "Now", "of"].map(String::from);
        if is_markdown {
            markdown::write_head(&headings, "Function", out)?;
        } else {
            let [was, is, what] = &headings;
            writeln!(out, "  {was:>14}  {is:>14}  {what:<11}  Function")?;
            writeln!(out, "  {0:=<14}  {0:=<14}  {0:=<11}  ====================", "")?;
        }
        for Change { key, was, is, note } in changes.iter().take(self.options.limit) {
            let of = format!("{note} ({})", Shown::new(&key.program));
            if is_markdown {
                let numbers = [was.to_string(), is.to_string(), key.what.clone()];
                markdown::write_row(&numbers, &(markdown::code(&key.function) + &of), out)?;
            } else {
                let what = Shown::new(&key.what).text();
                writeln!(out, "  {was:>14}  {is:>14}  {what:<11}  {}{of}", Shown::new(&key.function))?;
            }
        }
        let n_more = changes.len().saturating_sub(self.options.limit);
        if n_more > 0 {
            writeln!(out, "\n{n_more} more: cargo rftrace --limit N check")?;
        }
        writeln!(out)
    }

    /// Names the functions whose numbers are not the same in each run.
    fn tell_of_varying(&self, functions: &BTreeSet<&str>) {
        if functions.is_empty() {
            return;
        }
        let named: Vec<_> =
            functions.iter().take(self.options.limit).map(|name| Shown::new(name).to_string()).collect();
        self.status(
            "Varying",
            &format!("not compared, as their numbers vary from run to run: {}", listed(&named, functions.len())),
        );
    }

    fn status(&self, word: &str, text: &str) {
        if !self.options.quiet {
            status(word, text);
        }
    }
}

/// Names the first ones of so many functions, and the number of the others.
fn listed(named: &[String], n_all: usize) -> String {
    let n_more = n_all - named.len();
    let functions = |word: &str| format!("{n_more} {}", plural(n_more as u64, word));
    match (named, n_more) {
        (_, 0) => named.join(", "),
        ([], _) => functions("function"),
        _ => format!("{}, and {}", named.join(", "), functions("other")),
    }
}

/// Runs of one command.
struct Runs<'c> {
    plan: Plan,
    args: CargoArguments,
    /// Options of `rftrace record`.
    record: Vec<OsString>,
    options: &'c Options,
    /// The traces of the last one, by the programs' names.
    traces: Vec<(String, PathBuf)>,
}

impl Runs<'_> {
    /// Runs all programs once. Returns their numbers, or the exit status of a failure.
    fn next(&mut self, number: u32) -> Result<Result<Numbers, ExitCode>> {
        let recording = Recording {
            traces: self.options.output.clone(),
            one_trace: false,
            quiet: self.options.quiet || number > 1,
            max_size: self.options.record.max_size,
            record: [&self.record[..], &["--no-schedule".into()]].concat(),
        };
        let (session, exit) = self.plan.record(&self.args, recording, io::stderr())?;
        if !exit.success() {
            error(&format!("the run has failed ({exit}); check compares only successful runs"));
            return Ok(Err(code_of(exit)));
        }
        self.traces = named(session.runs()?)?;
        if self.traces.is_empty() {
            bail!("cargo has run no program, so there is nothing to compare");
        }
        let mut numbers = Numbers::default();
        for (program, dir) in &self.traces {
            add_calls(&mut numbers, program, dir)?;
            add_memory(&mut numbers, program, dir)?;
        }
        Ok(Ok(numbers))
    }
}

/// The names of programs, without what differs from build to build, with their traces. Programs of one name are numbered.
fn named(runs: Vec<ProgramRun>) -> Result<Vec<(String, PathBuf)>> {
    let mut numbers: HashMap<String, u32> = HashMap::new();
    let named = runs.into_iter().map(|ProgramRun { program, trace }| {
        let file = program.file_name().unwrap_or_default().to_string_lossy();
        let name = without_hash(&file);
        let number = numbers.entry(name.to_owned()).and_modify(|number| *number += 1).or_insert(1);
        let name = if *number > 1 { format!("{name} ({number})") } else { name.to_owned() };
        Ok((
            name,
            trace.with_context(|| {
                format!("rftrace has not recorded {}, so there is nothing to compare", program.display())
            })?,
        ))
    });
    named.collect()
}

/// Adds the calls and depths of all functions.
fn add_calls(numbers: &mut Numbers, program: &str, dir: &Path) -> Result<()> {
    let trace = Trace::open(&unfinished::shown(dir)?).with_context(|| dir.display().to_string())?;
    let Counts { functions, summary, .. } = Counts::read(&trace)?;
    let losses = losses(&summary, &trace.gaps()?);
    if !losses.is_empty() {
        bail!("cannot compare {program}: the trace lacks calls. {}", losses.join(". "));
    }
    for (function, count) in functions {
        numbers.add(program, &function, CALLS, count.calls);
        numbers.add(program, &function, DEPTH, count.depth);
    }
    Ok(())
}

/// Adds the allocations of the program, if they were recorded.
fn add_memory(numbers: &mut Numbers, program: &str, dir: &Path) -> Result<()> {
    let path = dir.join(RESOURCES);
    if !path.exists() {
        return Ok(());
    }
    let resources = Resources::open(&path)?;
    if !resources.resources().contains(&Resource::Memory) {
        return Ok(());
    }
    if resources.lost > 0 || resources.is_cut || !resources.is_whole {
        bail!("cannot compare {program}: the recording lacks allocations; use a larger --max-size");
    }
    let total = Account::of(&resources, Resource::Memory, Until::End, None)?.total;
    numbers.add(program, WHOLE, "allocations", total.allocations);
    numbers.add(program, WHOLE, "bytes", total.allocated);
    Ok(())
}

/// The size of the numbers, in words.
fn amount(numbers: &Numbers) -> String {
    let calls = numbers.iter().filter(|(key, _)| key.what == CALLS);
    let (n_calls, n_functions) = calls
        .fold((0_u64, 0_usize), |(calls, functions), (_, number)| (calls.saturating_add(number.most), functions + 1));
    format!("{n_calls} calls of {n_functions} functions")
}

/// A command for a shell.
fn words(command: &[String]) -> String {
    let words = shlex::try_join(command.iter().map(String::as_str));
    Shown::new(&words.unwrap_or_else(|_| command.join(" "))).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_varying_functions() {
        let named = |n: usize| ["a", "b", "c"][..n].iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        for (n, n_all, text) in [
            (2, 2, "a, b"),
            (2, 3, "a, b, and 1 other"),
            (1, 3, "a, and 2 others"),
            (0, 1, "1 function"),
            (0, 3, "3 functions"),
        ] {
            assert_eq!(listed(&named(n), n_all), text);
        }
    }
}
