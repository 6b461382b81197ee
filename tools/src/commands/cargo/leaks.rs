//! `cargo rftrace test --leaks`: the tests with leaks.
//!
//! Not here: the search for leaks in a recording (`rftrace-resources`).

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Result, bail};
use rftrace_format::files::RESOURCES;
use rftrace_format::resources::Resource;
use rftrace_read::{Pattern, ShownNames};
use rftrace_resources::{Name, Names, Recording, TestLeaks, Tests, amount, names_of_stacks, of_caller};

use super::session::ProgramRun;
use super::status::{FAINT, error, status, styled, warning};
use crate::commands::choice::parse_pattern;
use crate::commands::common::shell_word;
use crate::commands::resources::suppressions;

/// A group in `--help`.
const LEAKS: &str = "Leaks, with test: --leaks --suppress 'app::cache::*'";

/// Options before `test` or behind it, which cargo does not have.
#[derive(clap::Args, Debug, Default)]
pub(super) struct LeakOptions {
    /// With `test`: show the tests with leaks of memory, files and threads.
    ///
    /// No calls are recorded, and the program is compiled as usual. The exit status is 1 for a leak. Values of a `LazyLock` do not
    /// count.
    #[arg(long, conflicts_with = "hooks")]
    pub(super) leaks: bool,
    /// With --leaks: ignore stacks with this function or module: a name, a glob, or a regex between slashes.
    #[arg(long, value_name = "PATTERN", help_heading = LEAKS)]
    suppress: Vec<String>,
    /// With --leaks: file of such patterns, one a line; # begins a comment.
    #[arg(long, value_name = "FILE", help_heading = LEAKS)]
    suppressions: Vec<PathBuf>,
}

impl LeakOptions {
    /// Takes them out of the arguments of `test`.
    pub(super) fn take(&mut self, args: &mut Vec<OsString>) -> Result<()> {
        let mut rest = Vec::new();
        let mut all = std::mem::take(args).into_iter();
        while let Some(arg) = all.next() {
            let text = arg.to_string_lossy().into_owned();
            let (name, value) = text.split_once('=').map_or((text.as_str(), None), |(name, value)| (name, Some(value)));
            if name == "--leaks" && value.is_none() {
                self.leaks = true;
                continue;
            }
            if !["--suppress", "--suppressions"].contains(&name) {
                rest.push(arg);
                continue;
            }
            let Some(value) = value.map(OsString::from).or_else(|| all.next()) else { bail!("{name} needs a value") };
            match name {
                "--suppress" => self.suppress.push(value.to_string_lossy().into_owned()),
                _ => self.suppressions.push(value.into()),
            }
        }
        *args = rest;
        Ok(())
    }

    /// Checks them.
    pub(super) fn patterns(&self, subcommand: &str) -> Result<Vec<Pattern>> {
        if self.leaks && subcommand != "test" {
            bail!(
                "--leaks works only with `test`; for a program: cargo rftrace --resources memory {subcommand}, then rftrace resources --leaks DIR"
            );
        }
        let has_patterns = !self.suppress.is_empty() || !self.suppressions.is_empty();
        if has_patterns && !self.leaks {
            bail!("--suppress and --suppressions work only with --leaks");
        }
        let mut patterns = Vec::new();
        for pattern in &self.suppress {
            patterns.push(parse_pattern(pattern).map_err(|error| anyhow::anyhow!("--suppress {pattern}: {error}"))?);
        }
        for path in &self.suppressions {
            patterns.extend(suppressions(path)?);
        }
        Ok(patterns)
    }

    /// Adds to the user's options for `rftrace record`. Returns the wanted resources; threads are recorded anyway, to know the test that
    /// began them.
    pub(super) fn record(given: &mut Vec<OsString>) -> Vec<Resource> {
        let value = |option: &OsString| option.to_str()?.strip_prefix("--resources=").map(str::to_owned);
        let values: Vec<String> = given.iter().filter_map(value).collect();
        let names: Vec<&str> = values.iter().flat_map(|value| value.split(',')).collect();
        // Libraries are loaded to stay, mostly: these only if they are asked for.
        let is_usual = |resource: &Resource| names.is_empty() && *resource != Resource::Library;
        let is_wanted = |resource: &Resource| is_usual(resource) || names.contains(&resource.name());
        let wanted: Vec<Resource> = Resource::ALL.into_iter().filter(is_wanted).collect();
        given.extend(wanted.iter().map(|resource| format!("--resources={}", resource.name()).into()));
        given.extend(["--resources=thread".into(), "--no-schedule".into()]);
        wanted
    }
}

/// Prints the leaks of tests. Returns true if there are any.
pub(super) fn print(
    runs: &[ProgramRun],
    wanted: &[Resource],
    suppressed: &[Pattern],
    limit: usize,
    quiet: bool,
) -> Result<bool> {
    let mut n_tests = 0;
    let mut dirs = Vec::new();
    for run in runs {
        let Some(dir) = &run.trace else { continue };
        let program = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let path = dir.join(RESOURCES);
        if !path.exists() {
            // `rftrace record` has said why.
            warning(&format!("{program} left no recording"));
            continue;
        }
        let recording = Recording::open(&path)?;
        if recording.lost > 0 || recording.is_cut || !recording.is_whole {
            warning(&format!("{program}: the recording is incomplete, so the leaks may be wrong"));
        }
        let mut names = Names::of_recording(&recording);
        let tests = Tests::of(&recording, wanted, suppressed, &mut names)?;
        for (name, leaks) in &tests.leaks {
            print_test(&program, name, leaks, limit);
        }
        n_tests += tests.leaks.len();
        if !tests.leaks.is_empty() {
            dirs.push(dir.clone());
        }
        let left_out = |what: &std::collections::BTreeMap<Resource, (u64, u64)>, why: &str| {
            if !quiet && !what.is_empty() {
                let amounts: Vec<String> = what.iter().map(|(&resource, &kept)| words(resource, kept)).collect();
                status("Left out", &format!("{program}: {} {why}", amounts.join(", ")));
            }
        };
        left_out(&tests.outside, "outside the tests");
        left_out(&tests.suppressed, "made once for the process, or suppressed");
    }
    if n_tests > 0 {
        let (s, verb) = if n_tests == 1 { ("", "has") } else { ("s", "have") };
        error(&format!("{n_tests} test{s} {verb} leaks; for all their blocks:"));
        for dir in dirs {
            say_styled!("  {}", styled(FAINT, format!("rftrace resources --leaks {}", shell_word(&dir))));
        }
    } else if !quiet && !runs.is_empty() {
        status("Leaked", "nothing: the tests have released all resources");
    }
    Ok(n_tests > 0)
}

/// The most functions of a stack that are shown.
const DEPTH: usize = 16;

fn print_test(program: &str, name: &str, leaks: &TestLeaks, limit: usize) {
    let kept: Vec<String> = leaks.kept.iter().map(|(&resource, &kept)| words(resource, kept)).collect();
    status("Leaked", &format!("{name} ({program}): {}", kept.join(", ")));
    let stacks = leaks.stacks.iter().take(limit).map(|(.., stack)| of_program(stack));
    let names = names_of_stacks(&ShownNames::default(), stacks, DEPTH);
    for (resource, blocks, bytes, stack) in leaks.stacks.iter().take(limit) {
        say_styled!("{:>13}{}", "", words(*resource, (*blocks, *bytes)));
        for name in of_caller(of_program(stack), DEPTH) {
            say_styled!("{:>15}{}", "", name.line(&names));
        }
    }
    if leaks.stacks.len() > limit {
        say_styled!("{:>13}… {} more; --limit N shows them", "", leaks.stacks.len() - limit);
    }
}

/// A stack without libtest's part, which is the same for all.
fn of_program(stack: &[Name]) -> &[Name] {
    let is_harness = |name: &Name| name.function.contains("__rust_begin_short_backtrace");
    let end = stack.iter().position(is_harness).unwrap_or(stack.len());
    let called = stack[..end].iter().rev().take_while(|name| name.function.contains("FnOnce")).count();
    &stack[..end - called]
}

/// To the byte.
fn words(resource: Resource, (blocks, bytes): (u64, u64)) -> String {
    match resource {
        Resource::Memory => format!("{bytes} bytes in {blocks} block{}", if blocks == 1 { "" } else { "s" }),
        _ => amount(resource, bytes, blocks),
    }
}
