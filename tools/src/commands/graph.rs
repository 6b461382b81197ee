//! `rftrace graph`.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
#[cfg(feature = "full")]
use rftrace_read::Error;
use rftrace_views::{Graph, GraphField};
#[cfg(feature = "full")]
use serde_json::{Value, json};

use super::choice::{CorrectionArg, NamesArg, ShownArgs, SourcesArg};
#[cfg(feature = "full")]
use super::common::JSON_VERSION;
use super::common::{MORE, PlainArgs, check_shown, default_dir, no_function, print, print_warnings};

const EXAMPLES: &str = "\
Examples:
  rftrace graph mytrace                    the whole call graph, with times
  rftrace graph mytrace app::work          callers and callees of one function
  rftrace graph -D 4 -t 1ms mytrace        the upper levels, calls of at least 1 ms";

/// Shows the call graph: one line for all calls of a function from one place.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GraphArgs {
    /// Trace directory [default: the current directory if it is a trace, else `uftrace.data`, else the newest of `cargo rftrace`], and a
    /// function: its callers and callees are shown.
    ///
    /// The function is a name, a glob or `/regex/`. A single argument is the directory if there is such a directory, else the function.
    #[arg(value_names = ["DIR", "FUNC"], num_args = 0..=2)]
    subjects: Vec<String>,
    /// Trace directory, in uftrace's syntax.
    #[arg(short, long, value_name = "DIR", help_heading = MORE)]
    data: Option<PathBuf>,
    /// Columns, with commas; or `none`.
    #[arg(
        short = 'f',
        long = "output-fields",
        value_name = "FIELD",
        value_enum,
        value_delimiter = ',',
        default_value = "total"
    )]
    fields: Vec<Field>,
    /// Print JSON.
    #[cfg(feature = "full")]
    #[arg(long, conflicts_with = "fields")]
    json: bool,
    #[command(flatten)]
    shown: ShownArgs,
    #[command(flatten)]
    names: NamesArg,
    #[command(flatten)]
    correction: CorrectionArg,
    #[command(flatten)]
    sources: SourcesArg,
    #[command(flatten)]
    _plain: PlainArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Field {
    /// Time in the function and what it called.
    Total,
    /// Time in the function alone.
    #[value(name = "self")]
    Own,
    /// No columns.
    None,
}

/// Runs it.
pub(crate) fn run(args: GraphArgs) -> Result<()> {
    let Subjects { dir, function } = subjects(args.subjects, args.data)?;
    let function = function.map(|text| args.shown.pattern(&text)).transpose()?;
    let mut trace = args.shown.open(&dir)?;
    args.sources.read(&mut trace)?;
    args.correction.apply(&mut trace);
    args.names.apply(&mut trace);
    let fields: Vec<GraphField> = args
        .fields
        .iter()
        .filter_map(|field| match field {
            Field::Total => Some(GraphField::Total),
            Field::Own => Some(GraphField::Own),
            Field::None => None,
        })
        .collect();
    let graph = Graph::read(&trace, function.as_ref())?;
    if let Some(function) = function.filter(|_| graph.is_empty()) {
        print_warnings(&trace, graph.summary())?;
        return Err(no_function(&trace, &function));
    }
    check_shown(&trace, graph.summary())?;
    #[cfg(feature = "full")]
    if args.json {
        let value = json(&graph);
        print(|out| writeln!(out, "{value:#}").map_err(Error::Write))?;
        return print_warnings(&trace, graph.summary());
    }
    print(|out| graph.write(&fields, out))?;
    print_warnings(&trace, graph.summary())
}

/// The nodes by their numbers, from the root on, and the call paths to the function that was asked for.
#[cfg(feature = "full")]
fn json(graph: &Graph) -> Value {
    let node = |number| {
        let node = graph.node(number);
        json!({
            "function": node.name, "total": node.total_ns, "self": node.self_ns, "call": node.calls,
            "did-not-return": node.did_not_return, "children": node.children,
        })
    };
    let path = |number| {
        let way = graph.way(number);
        json!({ "functions": way.frames, "total": way.total_ns, "call": way.calls })
    };
    json!({
        "version": JSON_VERSION,
        "nodes": (0..graph.n_nodes()).map(node).collect::<Vec<_>>(),
        "paths": (0..graph.n_ways()).map(path).collect::<Vec<_>>(),
        "left-out-calls": graph.left_out(),
    })
}

/// Of what a graph is shown.
#[derive(Debug, PartialEq, Eq)]
struct Subjects {
    dir: PathBuf,
    function: Option<String>,
}

fn subjects(mut named: Vec<String>, data: Option<PathBuf>) -> Result<Subjects> {
    let last = named.pop();
    match (named.pop(), last, data) {
        (Some(first), _, Some(_)) => bail!("{first}: --data names the directory already; name only the function"),
        (None, function, Some(dir)) => Ok(Subjects { dir, function }),
        (Some(dir), function, None) => Ok(Subjects { dir: dir.into(), function }),
        (None, Some(dir), None) if Path::new(&dir).is_dir() || dir.contains('/') => {
            Ok(Subjects { dir: dir.into(), function: None })
        }
        (None, function, None) => Ok(Subjects { dir: default_dir(), function }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_and_functions() {
        let subjects = |named: &[&str], data: Option<&str>| {
            let named = named.iter().map(|&text| text.to_owned()).collect();
            subjects(named, data.map(PathBuf::from)).ok().map(|found| (found.dir, found.function))
        };
        let found = |dir: &str, function: Option<&str>| Some((PathBuf::from(dir), function.map(str::to_owned)));
        assert_eq!(subjects(&["trace", "main"], None), found("trace", Some("main")));
        assert_eq!(subjects(&["main"], Some("trace")), found("trace", Some("main")));
        assert_eq!(subjects(&[], Some("trace")), found("trace", None));
        assert_eq!(subjects(&["src"], None), found("src", None));
        assert_eq!(subjects(&["no/such"], None), found("no/such", None));
        assert_eq!(subjects(&["main"], None), found("uftrace.data", Some("main")));
        assert_eq!(subjects(&["a", "b"], Some("trace")), None);
    }
}
