//! The report at the end: where the time went, what was lost, and what to do next.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration as StdDuration;

use anstyle::Style;
use anyhow::{Context, Result};
use indicatif::{HumanCount, ProgressBar};
use rftrace_tools::{Duration, Error, Gaps, Report, Row, TaskStats, Trace};

use super::names::shortened;
use super::session::ProgramRun;
use super::status::{FAINT, GOOD, HEADING, WARNING, status, styled, warning};
use crate::commands::common::{find_program, losses, shell_word};

/// Columns where the output is no terminal.
const DEFAULT_COLUMNS: usize = 120;
/// Those before a function's name.
const COLUMNS_OF_NUMBERS: usize = 50;
/// A time without a processor is no function.
const NO_FUNCTION: &str = "linux:schedule";

/// What one trace has.
struct Recorded {
    dir: PathBuf,
    program: String,
    report: Report,
    gaps: Gaps,
}

/// Reads the traces of what was run and prints what is in them.
pub(super) fn print(runs: &[ProgramRun], limit: usize, success: bool) -> Result<()> {
    let mut recorded = Vec::new();
    for run in runs {
        let Some(dir) = &run.trace else { continue };
        let name = if runs.len() > 1 { dir.file_name() } else { run.program.file_name() };
        let program = name.unwrap_or_default().to_string_lossy().into_owned();
        match read(dir) {
            Ok((report, gaps)) => recorded.push(Recorded { dir: dir.clone(), program, report, gaps }),
            // `rftrace record` has said why.
            Err(_) if !dir.join("info").exists() => warning(&format!("{program} left no trace")),
            Err(error) => warning(&format!("{program} left no trace: {error:#}")),
        }
    }
    if recorded.is_empty() {
        if success && runs.is_empty() {
            warning("no program was run, so there is nothing to report");
        }
        return Ok(());
    }
    for one in &recorded {
        print_counts(one, recorded.len() > 1);
    }
    let rows = merged(&recorded);
    let all_self = rows.iter().map(|row| row.self_ns).fold(0, u64::saturating_add);
    print_table("by self time", rows.clone(), |row| row.self_ns, all_self, limit);
    print_table("by total time", rows, |row| row.total_ns, all_self, limit);
    print_next(&recorded);
    Ok(())
}

fn read(dir: &Path) -> Result<(Report, Gaps)> {
    let spinner = if io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    spinner.set_message(format!("reading {}", shell_word(dir)));
    spinner.enable_steady_tick(StdDuration::from_millis(100));
    let read = || {
        let trace = Trace::open(dir)?;
        Ok::<_, Error>((Report::read(&trace)?, trace.gaps()?))
    };
    let read = read();
    spinner.finish_and_clear();
    read.with_context(|| dir.display().to_string())
}

fn print_counts(recorded: &Recorded, is_one_of_many: bool) {
    let tasks = recorded.report.tasks();
    let sum = |value: fn(&TaskStats) -> u64| tasks.iter().map(value).fold(0, u64::saturating_add);
    let first = tasks.iter().filter(|task| task.records > 0).map(|task| task.first_ns).min().unwrap_or(0);
    let last = tasks.iter().map(|task| task.last_ns).max().unwrap_or(0);
    let n_functions = recorded.report.rows().iter().filter(|row| row.name != NO_FUNCTION).count();
    let n_tasks = tasks.iter().filter(|task| task.records > 0).count();
    let losses = losses(tasks, &recorded.gaps);
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
            Duration(last.saturating_sub(first)).to_string().trim(),
        ),
    );
    for loss in &losses {
        warning(&format!("{of}{loss}"));
    }
    for line in recorded.report.summary().warnings.to_string().lines() {
        warning(&format!("{of}{line}"));
    }
}

fn plural(count: u64, word: &str) -> String {
    if count == 1 { word.to_owned() } else { format!("{word}s") }
}

/// The functions of all traces.
fn merged(recorded: &[Recorded]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let mut idx_of_name = HashMap::new();
    for row in recorded.iter().flat_map(|one| one.report.rows()).filter(|row| row.name != NO_FUNCTION) {
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
    let width = columns.saturating_sub(COLUMNS_OF_NUMBERS).max(20);
    let heading = format!("{:>12} {:>6} {:>12} {:>14}  Function, {title}", "Self time", "", "Total time", "Calls");
    anstream::eprintln!("\n{}", styled(HEADING, heading));
    for row in rows.iter().take(limit) {
        let share = row.self_ns as f64 / all_self.max(1) as f64;
        let percent = format!("{:5.1}%", 100.0 * share);
        anstream::eprintln!(
            "{:>12} {} {:>12} {:>14}  {}",
            Duration(row.self_ns).to_string(),
            styled(style_of(share), percent),
            Duration(row.total_ns).to_string(),
            HumanCount(row.calls).to_string(),
            shortened(&row.name, width)
        );
    }
    if rows.len() > limit {
        anstream::eprintln!(
            "{}",
            styled(FAINT, format!("{:>49} {} more", "…", HumanCount((rows.len() - limit) as u64)))
        );
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
    anstream::eprintln!();
    for one in recorded {
        let of = if recorded.len() > 1 { format!(" ({})", one.program) } else { String::new() };
        status("Trace", &format!("{}{}", shell_word(&one.dir), styled(FAINT, of)));
    }
    let Some(first) = recorded.first() else { return };
    let dir = shell_word(&first.dir);
    let mut next = vec![
        (format!("rftrace replay {dir}"), "every call, in order of time"),
        (format!("rftrace dump {dir} --flamegraph -o f.svg"), "a picture for a browser"),
    ];
    if find_program("uftrace").is_some() {
        next.push((format!("uftrace tui -d {dir}"), "call graph to browse"));
    }
    let width = next.iter().map(|(command, _)| command.chars().count()).max().unwrap_or(0);
    for (idx, (command, what)) in next.iter().enumerate() {
        let word = if idx == 0 { "Next" } else { "" };
        anstream::eprintln!("{GOOD}{word:>12}{GOOD:#} {command:width$}  {}", styled(FAINT, what));
    }
}
