//! The report at the end: the hot functions, the losses and the next commands.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration as StdDuration;

use anstyle::Style;
use anyhow::{Context, Result};
use indicatif::{HumanBytes, HumanCount, ProgressBar};
use rftrace_format::files::INFO;
use rftrace_format::opener::{self, MOST_TEXT};
use rftrace_read::{Gaps, NAME_COLUMNS, Shown, ShownNames, Trace};
use rftrace_record::unfinished::Stage;
use rftrace_views::{Duration, Graph, Report, Row, TableBelow, TaskStats};

use super::by_test::{self, Test};
use super::session::{ProgramRun, bytes_of};
use super::status::{FAINT, GOOD, HEADING, WARNING, status, styled, warning};
use crate::commands::common::{losses, shell_word};
use crate::commands::overview;
use crate::commands::record::summary::{BRANCHES_FILE, ends_to_show};
use crate::commands::unfinished;

/// Columns where the output is no terminal.
const DEFAULT_COLUMNS: usize = 120;
/// Those before a function's name.
const COLUMNS_OF_NUMBERS: usize = 50;

/// Content of one trace.
struct Recorded {
    dir: PathBuf,
    program: String,
    report: Report,
    gaps: Gaps,
    /// The overview of the only trace.
    overview: Option<String>,
    /// The tests in it, the longest first.
    tests: Vec<Test>,
}

/// Reads the traces of all programs and prints their contents.
pub(super) fn print(runs: &[ProgramRun], limit: usize, has_tests: bool, success: bool) -> Result<()> {
    let mut recorded = Vec::new();
    for run in runs {
        let Some(dir) = &run.trace else { continue };
        let name = if runs.len() > 1 { dir.file_name() } else { run.program.file_name() };
        let program = name.unwrap_or_default().to_string_lossy().into_owned();
        match read(dir, program.clone(), runs.len() == 1, has_tests) {
            Ok(found) => recorded.push(found),
            Err(error) => warning(&match Stage::of(dir) {
                // A signal has ended cargo, and not its program.
                Some((Stage::Recorded(_), _)) => {
                    format!("{program} still runs; at its end its trace lies in {}", shell_word(dir))
                }
                // `rftrace record` has said why.
                _ if !dir.join(INFO).exists() => format!("{program} left no trace"),
                _ => format!("cannot read the trace of {program}: {error:#}"),
            }),
        }
    }
    if recorded.is_empty() {
        if success && runs.is_empty() {
            warning("cargo has run no program, so there is nothing to report");
        }
        return Ok(());
    }
    for one in &recorded {
        print_counts(one, recorded.len() > 1, limit);
    }
    let rows = merged(&recorded);
    let all_self = rows.iter().map(|row| row.self_ns).fold(0, u64::saturating_add);
    let of = if recorded.len() > 1 { format!(", sums of all {} binaries", recorded.len()) } else { String::new() };
    print_table(&format!("by self time{of}"), rows.clone(), |row| row.self_ns, all_self, limit);
    // The hot path of the overview has these.
    if recorded.iter().all(|one| one.overview.is_none()) {
        print_table(&format!("by total time{of}"), rows, |row| row.total_ns, all_self, limit);
    }
    print_next(&recorded);
    Ok(())
}

fn read(dir: &Path, program: String, is_alone: bool, has_tests: bool) -> Result<Recorded> {
    let spinner = if io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    spinner.set_message(format!("reading {}", shell_word(dir)));
    spinner.enable_steady_tick(StdDuration::from_millis(100));
    let read = || {
        let mut trace = Trace::open(&unfinished::shown(dir)?)?;
        trace.use_index()?;
        trace.correct_times(true);
        let report = Report::read(&trace)?;
        let graph = (is_alone || has_tests).then(|| Graph::read(&trace, None)).transpose()?;
        let mut overview = None;
        if let Some(graph) = graph.as_ref().filter(|_| is_alone) {
            let mut text = Vec::new();
            overview::write((&trace, dir), &report, graph, &ends_to_show(&trace)?, TableBelow::BySelf, &mut text)?;
            overview = Some(String::from_utf8_lossy(&text).into_owned());
        }
        let tests = graph.as_ref().filter(|_| has_tests).map(by_test::tests).unwrap_or_default();
        Ok::<_, anyhow::Error>(Recorded { dir: dir.to_owned(), program, report, gaps: trace.gaps()?, overview, tests })
    };
    let read = read();
    spinner.finish_and_clear();
    read.with_context(|| dir.display().to_string())
}

fn print_counts(recorded: &Recorded, is_one_of_many: bool, limit: usize) {
    let tasks = recorded.report.tasks();
    let sum = |value: fn(&TaskStats) -> u64| tasks.iter().map(value).fold(0, u64::saturating_add);
    let n_functions = recorded.report.rows().iter().filter(|row| row.is_function()).count();
    let n_tasks = tasks.iter().filter(|task| task.records > 0).count();
    let losses = losses(recorded.report.summary(), &recorded.gaps);
    let of = if is_one_of_many { format!("{}: ", recorded.program) } else { String::new() };
    let none_lost = if losses.is_empty() { ", none lost" } else { "" };
    status(
        "Recorded",
        &format!(
            "{of}{} {} of {} {} in {} {} over {}{none_lost}",
            HumanCount(sum(|task| task.calls)),
            plural(sum(|task| task.calls), "call"),
            HumanCount(n_functions as u64),
            plural(n_functions as u64, "function"),
            n_tasks,
            plural(n_tasks as u64, "thread"),
            Duration(recorded.report.wall_ns()).text(),
        ),
    );
    for Test { name, calls, total_ns } in recorded.tests.iter().take(limit) {
        let (n_calls, time) = (HumanCount(*calls), Duration(*total_ns).text());
        status("Test", &format!("{of}{}: {n_calls} {} in {time}", Shown::new(name), plural(*calls, "call")));
    }
    if let Some(n_more) = recorded.tests.len().checked_sub(limit).filter(|&n_more| n_more > 0) {
        status("Test", &format!("{of}… {n_more} more; --limit N shows them"));
    }
    if recorded.overview.is_none() {
        status("Times", &format!("{of}{}", recorded.report.correction()));
    }
    let list = recorded.dir.join(BRANCHES_FILE);
    if let Ok(text) = opener::read_text(&list, MOST_TEXT) {
        let n = text.lines().count() as u64;
        let text = format!(
            "{of}{} {} not recorded; for the reasons see {}",
            HumanCount(n),
            plural(n, "function"),
            shell_word(&list)
        );
        status("Left out", &text);
    }
    // An overview says it.
    if let Some(busy) = recorded.report.busy_machine().filter(|_| recorded.overview.is_none()) {
        status("Note", &format!("{of}{busy}"));
    }
    for loss in &losses {
        warning(&format!("{of}{loss}"));
    }
    for line in recorded.report.summary().warnings.to_string().lines() {
        warning(&format!("{of}{line}"));
    }
    if let Some(overview) = &recorded.overview {
        say_styled!("\n{}", overview.trim_end());
    }
}

pub(super) fn plural(count: u64, word: &str) -> String {
    if count == 1 { word.to_owned() } else { format!("{word}s") }
}

/// The functions of all traces.
fn merged(recorded: &[Recorded]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let mut idx_of_name = HashMap::new();
    for row in recorded.iter().flat_map(|one| one.report.rows()).filter(|row| row.is_function()) {
        match idx_of_name.get(&row.name) {
            Some(&idx) => {
                let sum: &mut Row = &mut rows[idx];
                sum.total_ns = sum.total_ns.saturating_add(row.total_ns);
                sum.self_ns = sum.self_ns.saturating_add(row.self_ns);
                sum.calls = sum.calls.saturating_add(row.calls);
            }
            None => {
                idx_of_name.insert(row.name.clone(), rows.len());
                rows.push(row.clone());
            }
        }
    }
    rows
}

fn print_table(title: &str, mut rows: Vec<Row>, key: impl Fn(&Row) -> u64, all_self: u64, limit: usize) {
    if limit == 0 {
        return;
    }
    rows.sort_by(|a, b| (Reverse(key(a)), &a.name).cmp(&(Reverse(key(b)), &b.name)));
    let columns = terminal_size::terminal_size_of(io::stderr()).map_or(DEFAULT_COLUMNS, |(width, _)| width.0.into());
    let width = columns.saturating_sub(COLUMNS_OF_NUMBERS).clamp(20, NAME_COLUMNS);
    let heading = format!("{:>12} {:>6} {:>12} {:>14}  Function, {title}", "Self time", "", "Total time", "Calls");
    say_styled!("\n{}", styled(HEADING, heading));
    let n_more = rows.len().saturating_sub(limit);
    rows.truncate(limit);
    let mut names = ShownNames::of_columns(width);
    names.add_all(rows.iter().map(|row| row.name.as_str()));
    for row in &rows {
        let share = row.self_ns as f64 / all_self.max(1) as f64;
        let percent = format!("{:5.1}%", 100.0 * share);
        say_styled!(
            "{:>12} {} {:>12} {:>14}  {}",
            Duration(row.self_ns).to_string(),
            styled(style_of(share), percent),
            Duration(row.total_ns).to_string(),
            HumanCount(row.calls).to_string(),
            names.get(&row.name)
        );
    }
    if n_more > 0 {
        say_styled!("{}", styled(FAINT, format!("{:>49} {} more", "…", HumanCount(n_more as u64))));
    }
}

/// Large shares of the time stand out.
fn style_of(share: f64) -> Style {
    match share {
        0.2.. => anstyle::AnsiColor::Red.on_default(),
        0.05.. => WARNING,
        0.005.. => Style::new(),
        _ => FAINT,
    }
}

fn print_next(recorded: &[Recorded]) {
    say_styled!();
    for one in recorded {
        let of = if recorded.len() > 1 { format!(" ({})", one.program) } else { String::new() };
        let size = format!(" ({})", HumanBytes(bytes_of(&one.dir)));
        status("Trace", &format!("{}{size}{}", shell_word(&one.dir), styled(FAINT, of)));
    }
    // That of a binary without tests may be empty.
    let Some(largest) = largest(recorded) else { return };
    let dir = shell_word(&largest.dir);
    let next = [
        (format!("rftrace replay {dir}"), "every call, in order of time"),
        (format!("rftrace view {dir}"), "timeline, flame graph and call tree, in the browser"),
        (format!("rftrace tui {dir}"), "call graph to browse, in the terminal"),
    ];
    let width = next.iter().map(|(command, _)| command.chars().count()).max().unwrap_or(0);
    for (idx, (command, what)) in next.iter().enumerate() {
        let word = if idx == 0 { "Next" } else { "" };
        say_styled!("{GOOD}{word:>12}{GOOD:#} {command:width$}  {}", styled(FAINT, what));
    }
}

/// The first one with the most records, if any has records.
fn largest(recorded: &[Recorded]) -> Option<&Recorded> {
    let with_records = recorded.iter().filter(|one| one.report.summary().records > 0);
    with_records.rev().max_by_key(|one| one.report.summary().records)
}

#[cfg(test)]
mod tests {
    use rftrace_tests::golden;

    use super::*;

    #[test]
    fn time_without_a_processor_is_no_function() {
        let report = Report::read(&Trace::open(golden::copy("preempted").path()).unwrap()).unwrap();
        assert_eq!(report.rows().len(), 4);
        let functions = report.rows().iter().filter(|row| row.is_function());
        assert_eq!(functions.map(|row| &row.name).collect::<Vec<_>>(), ["main", "c"]);
    }
}
