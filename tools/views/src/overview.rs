//! The overview of a trace: a person's first questions, on less than a screen.
//!
//! Not here: the sums (`report`, `graph`), the path (`hot`), and a next command (the tools).

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};

use rftrace_format::ending;
use rftrace_format::info::feature;
use rftrace_read::{Demangle, Error, Pattern, Result, ShownNames, Trace, is_nameless};

use crate::collect::OTHERS;
use crate::duration::Duration;
use crate::graph::Graph;
use crate::hot::{CALLS, HotPath, Weight};
use crate::report::Report;
use crate::rows::{Row, is_function};
use crate::words::{count, literal, percent, tenths};

/// The number of listed functions.
const MAX_FUNCTIONS: usize = 5;

/// A function with a larger part of the self time, in tenths of a percent, and calls of at least this duration on average, may well spend
/// it in functions that were not recorded.
const MOST_TIME: u64 = 900;
const LONG_CALL_NS: u64 = 10_000_000;

/// The columns of a chain of functions.
const MAX_COLUMNS: usize = 60;

/// A trace of fewer calls is small, whatever they are of.
const MANY_CALLS: u64 = 100_000;

/// A function with a smaller part of all calls makes no large difference, in tenths of a percent.
const LARGE_PART: u64 = 100;

/// A function with a larger part of the self time is worth seeing, in tenths of a percent.
const MUCH_TIME: u64 = 100;

/// The maximum number of shown kinds of ends, and of named processes for each.
const MAX_ENDS: usize = 5;
const MAX_PROCESSES: usize = 5;

/// The table of all functions below an overview: its first functions need no list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableBelow {
    /// There is none.
    None,
    /// The functions with the largest total time come first.
    ByTotal,
    /// The functions with most self time come first.
    BySelf,
}

/// The overview of a trace: times, how processes ended, the hot path, the functions with most self time, and the function with most calls.
#[derive(Debug)]
pub struct Overview<'a> {
    report: &'a Report,
    weight: Weight,
    path: HotPath<'a>,
    /// The functions with most self time.
    functions: Vec<&'a Row>,
    names: ShownNames,
    /// Processes with another end than status 0, by the status of `wait`; and the number of all processes.
    ends: BTreeMap<i32, Vec<u32>>,
    n_processes: usize,
    /// Nothing was left out of this trace of a program.
    is_whole: bool,
    has_values: bool,
    frequent: Option<Frequent<'a>>,
}

/// The function with most calls in a large trace.
#[derive(Debug)]
struct Frequent<'a> {
    row: &'a Row,
    /// All calls, of any function.
    n_calls: u64,
    /// The option of `rftrace record` against it, and its value.
    option: (&'static str, String),
}

impl<'a> Overview<'a> {
    /// Makes the overview of a trace from its report and its whole graph. `ends`: the status of `wait` of processes, such as
    /// [`Trace::ends`].
    pub fn new(trace: &Trace, report: &'a Report, graph: &'a Graph, ends: &BTreeMap<u32, i32>) -> Self {
        let mut pids: Vec<u32> = trace.tasks().iter().map(|task| task.pid()).collect();
        pids.sort_unstable();
        pids.dedup();
        let mut by_end: BTreeMap<i32, Vec<u32>> = BTreeMap::new();
        for &pid in &pids {
            if let Some(&end) = ends.get(&pid).filter(|&&end| end != 0) {
                by_end.entry(end).or_default().push(pid);
            }
        }
        // The options are not those for functions of the kernel.
        let is_of_program = trace.info().features() & feature::KERNEL == 0;
        let is_whole = !trace.is_chosen() && trace.demangle() == Demangle::Simple && is_of_program;
        let has_values = trace.info().features() & (feature::ARGUMENT | feature::RETURN_VALUE) != 0;
        let frequent = if is_whole { Frequent::find(report, graph) } else { None };
        // A program that wants a processor for less than half of the time is slow by its waits.
        let wants_ns = report
            .cpu_ns()
            .zip(report.preempted_ns())
            .map(|(cpu_ns, preempted_ns)| cpu_ns.saturating_add(preempted_ns));
        let is_busy = wants_ns.is_some_and(|wants_ns| wants_ns >= report.wall_ns() / 2);
        let weight = if is_busy { Weight::Cpu } else { Weight::Total };
        let path = HotPath::of(graph, weight);
        let mut functions: Vec<&Row> = report.rows().iter().filter(|row| row.is_function()).collect();
        functions.sort_by_key(|row| (Reverse(row.self_ns), &row.name));
        let shown = functions.iter().take(MAX_FUNCTIONS).copied().chain(frequent.as_ref().map(|frequent| frequent.row));
        let mut names = report.shown_names(shown);
        names.add_all(path.lines.iter().flat_map(|line| line.names.iter().copied()));
        Self {
            report,
            weight,
            path,
            functions,
            names,
            ends: by_end,
            n_processes: pids.len(),
            is_whole,
            has_values,
            frequent,
        }
    }

    /// Writes it. Returns true if it has more than times and ends of processes. `quoted` makes a text a word for a
    /// shell.
    ///
    /// # Errors
    ///
    /// `out` cannot be written.
    pub fn write(&self, below: TableBelow, quoted: fn(&str) -> String, out: &mut dyn Write) -> Result<bool> {
        self.write_all(below, quoted, out).map_err(Error::Write)
    }

    fn write_all(&self, below: TableBelow, quoted: fn(&str) -> String, out: &mut dyn Write) -> io::Result<bool> {
        self.report.write_head(out)?;
        if let Some(busy) = self.report.busy_machine() {
            writeln!(out, "  Note: {busy}")?;
        }
        if self.has_values {
            writeln!(
                out,
                "  Note: recording arguments and results takes 0.1 to 2 us a call, which callers' times contain"
            )?;
        }
        self.write_ends(out)?;
        let has_path = self.write_path(out)?;
        let has_functions = self.write_functions(below, out)?;
        let has_opaque = self.write_opaque(out)?;
        if let Some(text) = self.report.short_calls().filter(|_| below == TableBelow::None) {
            writeln!(out, "\n  {text}")?;
        }
        Ok(self.write_frequent(quoted, out)? || has_path || has_functions || has_opaque)
    }

    /// Returns the function with most self time, as a pattern, if the hot path does not show how it is called.
    pub fn off_path(&self) -> Option<String> {
        let row = self.functions.first()?;
        let is_on_path = self.path.lines.iter().any(|line| line.names.contains(&&*row.name));
        if is_on_path { None } else { pattern_of(&row.name) }
    }

    /// The time of all functions. Waits are no function's own time.
    fn all_ns(&self) -> u64 {
        self.functions.iter().map(|row| row.self_ns).fold(0, u64::saturating_add)
    }

    fn write_ends(&self, out: &mut dyn Write) -> io::Result<()> {
        for (&end, pids) in self.ends.iter().take(MAX_ENDS) {
            let words = ending::in_words(end);
            if self.n_processes == 1 {
                writeln!(out, "  The program: {words}")?;
                continue;
            }
            let named: Vec<_> = pids.iter().take(MAX_PROCESSES).map(u32::to_string).collect();
            let more = if pids.len() > MAX_PROCESSES { ", …" } else { "" };
            let n_processes = count(self.n_processes as u64);
            writeln!(out, "  {} of {n_processes} processes: {words} ({}{more})", pids.len(), named.join(", "))?;
        }
        Ok(())
    }

    /// Returns true if there is one, as the next two do.
    fn write_path(&self, out: &mut dyn Write) -> io::Result<bool> {
        let HotPath { all_ns, lines, is_cut } = &self.path;
        let n_names: usize = lines.iter().map(|line| line.names.len()).sum();
        if n_names < 2 {
            return Ok(false);
        }
        let share_of = if self.weight == Weight::Cpu { "CPU %" } else { "Total %" };
        writeln!(out, "\n  {share_of:>10}  {:>10}  Hot path", "Calls")?;
        for (level, line) in lines.iter().enumerate() {
            let share = percent(line.total_ns, *all_ns);
            let (indent, names) = ("  ".repeat(level), chain(&line.names, &self.names));
            write!(out, "  {share:>10}  {:>10}  {indent}{names}", count(line.calls))?;
            match line.own_ns.max(line.waited_ns) {
                largest if level + 1 < lines.len() || *is_cut || largest == 0 => writeln!(out)?,
                own if own > line.waited_ns => writeln!(out, " ({} in itself)", percent(own, *all_ns))?,
                waited => writeln!(out, " ({} waiting)", percent(waited, *all_ns))?,
            }
        }
        Ok(true)
    }

    fn write_functions(&self, below: TableBelow, out: &mut dyn Write) -> io::Result<bool> {
        let is_needed = match below {
            TableBelow::None => self.functions.len() > 1,
            TableBelow::ByTotal => self.functions.len() > MAX_FUNCTIONS,
            TableBelow::BySelf => false,
        };
        if !is_needed {
            return Ok(false);
        }
        let all_ns = self.all_ns();
        writeln!(out, "\n  {:>10}  {:>10}  {:>10}  Most self time", "Self time", "Self %", "Calls")?;
        for row in self.functions.iter().take(MAX_FUNCTIONS) {
            let (time, share) = (Duration(row.self_ns), percent(row.self_ns, all_ns));
            writeln!(out, "  {time}  {share:>10}  {:>10}  {}", count(row.calls), self.names.get(&row.name))?;
        }
        Ok(true)
    }

    /// Names the options for a trace that is nearly all one function, if its time is known to be no wait.
    fn write_opaque(&self, out: &mut dyn Write) -> io::Result<bool> {
        let all_ns = self.all_ns();
        let is_opaque = |row: &&&Row| {
            tenths(row.self_ns, all_ns) >= MOST_TIME && row.self_ns >= LONG_CALL_NS.saturating_mul(row.calls.max(1))
        };
        let Some(row) =
            self.functions.first().filter(is_opaque).filter(|_| self.is_whole && self.report.cpu_ns().is_some())
        else {
            return Ok(false);
        };
        let each = Duration(row.self_ns / row.calls.max(1)).text();
        writeln!(
            out,
            "\n  Time: {} of the self time is in {}, {each} a call; functions that it calls may not be recorded",
            percent(row.self_ns, all_ns),
            self.names.get(&row.name)
        )?;
        writeln!(
            out,
            "    --libcalls   records its calls of library functions, and -P '*@libNAME' all functions of a library"
        )?;
        Ok(true)
    }

    fn write_frequent(&self, quoted: fn(&str) -> String, out: &mut dyn Write) -> io::Result<bool> {
        let Some(Frequent { row, n_calls, option: (option, value) }) = &self.frequent else { return Ok(false) };
        writeln!(
            out,
            "\n  Size: {} of {} calls are of {}",
            percent(row.calls, *n_calls),
            count(*n_calls),
            self.names.get(&row.name)
        )?;
        let each = Duration(row.self_ns / row.calls.max(1)).text();
        let all_ns = self.all_ns();
        // That is what the user may be looking for.
        let counted = match tenths(row.self_ns, all_ns) {
            0..MUCH_TIME => String::new(),
            _ => format!("; callers then count their {} of the self time", percent(row.self_ns, all_ns)),
        };
        writeln!(out, "    {option} {}   leaves them out when recording, {each} each{counted}", quoted(value))?;
        Ok(true)
    }
}

impl<'a> Frequent<'a> {
    /// The function with most calls, if these are a large part of many and an option leaves it out.
    fn find(report: &'a Report, graph: &Graph) -> Option<Self> {
        let rows = || report.rows().iter().filter(|row| row.is_function());
        let n_calls = rows().map(|row| row.calls).fold(0, u64::saturating_add);
        let row = rows().max_by_key(|row| (row.calls, Reverse(&row.name)))?;
        if n_calls < MANY_CALLS || tenths(row.calls, n_calls) < LARGE_PART {
            return None;
        }
        Some(Self { row, n_calls, option: without(&row.name, has_callees(graph, &row.name))? })
    }
}

/// The pattern of a function; `None` if none names it.
fn pattern_of(name: &str) -> Option<String> {
    let is_named = |text: &String| Pattern::new(text).is_ok_and(|pattern| pattern.matches(name));
    Some(literal(name)).filter(|text| name != OTHERS && !is_nameless(name) && is_named(text))
}

/// The option to record without a function, and its value: `-N` leaves out its callees, too. `None` if no pattern names it.
fn without(name: &str, has_callees: bool) -> Option<(&'static str, String)> {
    let pattern = pattern_of(name)?;
    Some(if has_callees { ("--rules", format!("exclude={}", pattern.replace(';', "\\;"))) } else { ("-N", pattern) })
}

/// True if a function calls others, as far as is known.
fn has_callees(graph: &Graph, name: &str) -> bool {
    let is_other = |&child: &usize| graph.node(child).name != name && is_function(graph.node(child).name);
    let mut nodes = (1..graph.n_nodes()).map(|node| graph.node(node)).filter(|node| node.name == name);
    graph.left_out() > 0 || nodes.any(|node| node.children.iter().any(is_other))
}

/// The functions of a chain: as many of the innermost ones as there is room for, but one at least.
fn chain(functions: &[&str], names: &ShownNames) -> String {
    let mut text = String::new();
    for name in functions.iter().rev().map(|function| names.get(function)) {
        let longer = if text.is_empty() { name.to_owned() } else { [name, CALLS, &text].concat() };
        if !text.is_empty() && longer.chars().count() > MAX_COLUMNS {
            return ["\u{2026}", CALLS, &text].concat();
        }
        text = longer;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::trace;

    fn text(threads: &[&str], ends: &[(u32, i32)], below: TableBelow) -> String {
        let (_dir, trace) = trace(threads);
        let (report, graph) = (Report::read(&trace).unwrap(), Graph::read(&trace, None).unwrap());
        let mut out = Vec::new();
        let overview = Overview::new(&trace, &report, &graph, &ends.iter().copied().collect());
        overview.write(below, |text| format!("'{text}'"), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    const HEAD: &str =
        "1 thread; waiting counts as self time, as context switches were not recorded; tracing's own time included\n";

    #[test]
    fn only_what_there_is_to_say() {
        assert!(text(&[], &[], TableBelow::None).starts_with("  Wall 0.000 us, 0 threads; "));
        assert_eq!(text(&["main( 10 )"], &[(7, 0)], TableBelow::None), format!("  Wall 0.010 us, {HEAD}"));
        let path = "
     Total %       Calls  Hot path
     100.0 %           1  main
      75.0 %           2    a (75.0 % in itself)
";
        let functions = "
   Self time      Self %       Calls  Most self time
    0.030 us      75.0 %           2  a
    0.010 us      25.0 %           1  main
";
        let calls = ["main( 10 a( 15 ) a( 15 ) )"];
        assert_eq!(text(&calls, &[], TableBelow::None), format!("  Wall 0.040 us, {HEAD}{path}{functions}"));
        assert_eq!(text(&calls, &[], TableBelow::ByTotal), format!("  Wall 0.040 us, {HEAD}{path}"));
    }

    #[test]
    fn a_program_that_others_interrupt_is_busy() {
        let text = text(&["main( a( 10 p60 ) b( 20 ) )"], &[], TableBelow::None);
        assert!(text.contains("CPU %") && text.contains("66.6 %           1    b"), "{text}");
    }

    #[test]
    fn the_five_functions_with_most_self_time() {
        let calls = ["main( a( 1 ) b( 2 ) c( 3 ) d( 4 ) e( 5 ) w20 f( 6 ) )"];
        let listed = |below| {
            let text = text(&calls, &[], below);
            let rows: Vec<_> = text.lines().skip_while(|line| !line.ends_with("Most self time")).skip(1).collect();
            rows.iter().map(|row| row.rsplit(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(listed(TableBelow::None), ["f", "e", "d", "c", "b"], "no waiting, and no more");
        assert_eq!(listed(TableBelow::ByTotal), ["f", "e", "d", "c", "b"]);
        assert_eq!(listed(TableBelow::BySelf), [""; 0]);
    }

    #[test]
    fn the_way_to_the_hottest_function_is_on_the_path_or_asked_for() {
        let off_path = |calls: &str| {
            let (_dir, trace) = trace(&[calls]);
            let (report, graph) = (Report::read(&trace).unwrap(), Graph::read(&trace, None).unwrap());
            Overview::new(&trace, &report, &graph, &BTreeMap::new()).off_path()
        };
        assert_eq!(off_path("main( a( 10 ) b( 5 ) )"), None);
        // Each part is small, all together are not.
        assert_eq!(off_path("main( a( 8 f( 4 ) ) b( 7 f( 6 ) ) )").as_deref(), Some("f"));
        assert_eq!(off_path(""), None);
    }

    #[test]
    fn ends_of_processes() {
        for (end, words) in [(9, "killed by SIGKILL"), (3 << 8, "exit status 3")] {
            let found = text(&["main( 10 )"], &[(7, end)], TableBelow::None);
            assert_eq!(found, format!("  Wall 0.010 us, {HEAD}  The program: {words}\n"));
        }
        // One of which there are no records.
        assert!(!text(&["main( 10 )"], &[(8, 9)], TableBelow::None).contains("SIGKILL"));
    }

    #[test]
    fn a_function_with_most_calls_can_be_left_out() {
        let many = |name: &str, n| format!("main( {} 5000000 )", format!("{name}( 1 ) ").repeat(n));
        let size = |calls: String| {
            let text = text(&[&calls], &[], TableBelow::None);
            text.split_once("Size: ").map(|(_, size)| size.to_owned())
        };
        let expected =
            "100.0 % of 100,000 calls are of shim\n    -N 'shim'   leaves them out when recording, 0.001 us each\n";
        assert_eq!(size(many("shim", 99_999)).as_deref(), Some(&*expected.replace("100.0", "99.9")));
        let hot = size(many("shim", 99_999).replace("5000000 )", ")")).unwrap();
        let counted = "when recording, 0.001 us each; callers then count their 100.0 % of the self time\n";
        assert!(hot.ends_with(counted), "{hot}");
        assert_eq!(size(many("shim", 99_998)), None, "few calls");
        assert_eq!(size(many("sub_401000@p", 99_999)), None, "no name");
    }

    #[test]
    fn a_trace_that_is_nearly_all_one_function_names_the_options_for_what_it_calls() {
        let time = |calls: &str| {
            let text = text(&[calls], &[], TableBelow::None);
            text.split_once("\n  Time: ").map(|(_, time)| time.to_owned())
        };
        let expected =
            "95.2 % of the self time is in main, 20.000 ms a call; functions that it calls may not be recorded
    --libcalls   records its calls of library functions, and -P '*@libNAME' all functions of a library
";
        assert_eq!(time("main( w5 20000000 a( 1000000 ) )").as_deref(), Some(expected));
        assert_eq!(time("main( 20000000 a( 1000000 ) )"), None, "it may have waited");
        assert_eq!(time("main( w5 20000000 a( 3000000 ) )"), None, "two functions");
        assert_eq!(time("main( w5 9000000 a( 100 ) )"), None, "a short call");
    }

    #[test]
    fn chains_keep_the_innermost_functions() {
        let chain = |functions: &[&str]| chain(functions, &ShownNames::default());
        assert_eq!(chain(&["main", "run"]), "main > run");
        let long = "x".repeat(30);
        assert_eq!(chain(&["main", &long, &long[1..]]), format!("\u{2026} > {}", &long[1..]));
        assert_eq!(chain(&["main", &long, &long[5..]]), format!("\u{2026} > {long} > {}", &long[5..]));
        let longer = "x".repeat(100);
        assert_eq!(chain(&[&longer]), longer);
    }

    #[test]
    fn options_for_names() {
        for (name, option) in [
            ("shim", "-N shim"),
            ("app::work<int, long>", "-N app::work<int, long>"),
            ("<[u8; 3] as Speak>::speak", r"-N <\[u8; 3] as Speak>::speak"),
            ("operator*", r"-N operator\*"),
        ] {
            let (found, value) = without(name, false).unwrap();
            assert_eq!(format!("{found} {value}"), option);
        }
        let (option, value) = without("<[u8; 3] as Speak>::speak", true).unwrap();
        assert_eq!((option, &*value), ("--rules", r"exclude=<\[u8\; 3] as Speak>::speak"), "its callees stay");
        for name in ["sub_401000@p", OTHERS, " main", ""] {
            assert_eq!(without(name, false), None, "{name:?}");
        }
    }
}
