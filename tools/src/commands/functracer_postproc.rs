//! `rftrace functracer-postproc`: makes less of a trace of functracer or sp-rtrace.
//!
//! Not here: how (`rftrace-resources`).

use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, ValueEnum};
use rftrace_read::files;
use rftrace_resources::{Order, Postprocessor};

use super::common::write_to;

const EXAMPLES: &str = "\
Examples:
  rftrace functracer-postproc -l -c -s size allocs-4711.0.trace   leaks by call stack
  rftrace functracer-postproc -l -r trace.txt                     with functions and source lines
  rftrace resources --text sp-rtrace DIR | rftrace functracer-postproc -l -R memory";

/// Summarizes a text of functracer or sp-rtrace.
#[derive(Args)]
#[command(after_help = EXAMPLES, args_override_self = true)]
pub(crate) struct PostprocArgs {
    /// Show leaks only. Of two blocks with one id the later one counts; of counted references, the remaining ones.
    #[arg(short, long)]
    leaks: bool,
    /// Show each backtrace once, with its calls.
    #[arg(short, long)]
    compress: bool,
    /// Show functions and source lines, from the files named in the trace.
    #[arg(short, long)]
    resolve: bool,
    /// With -c: order of backtraces, by bytes or by blocks.
    #[arg(short, long, value_name = "ORDER", value_enum, requires = "compress")]
    sort: Option<OrderArg>,
    /// Highest number of functions in a backtrace.
    #[arg(short, long, value_name = "NUMBER")]
    backtrace_depth: Option<usize>,
    /// Only these kinds of resources, as the trace names them.
    #[arg(short = 'R', long, value_name = "TYPES", value_delimiter = ',')]
    resource: Vec<String>,
    /// Output file [default: stdout].
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Text file [default: stdin].
    #[arg(value_name = "FILE")]
    input: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OrderArg {
    Size,
    Count,
    SizeAsc,
    CountAsc,
}

impl From<OrderArg> for Order {
    fn from(order: OrderArg) -> Self {
        match order {
            OrderArg::Size => Self::Size,
            OrderArg::Count => Self::Count,
            OrderArg::SizeAsc => Self::SizeAscending,
            OrderArg::CountAsc => Self::CountAscending,
        }
    }
}

/// Runs it.
pub(crate) fn run(args: &PostprocArgs) -> Result<()> {
    let postprocessor = Postprocessor {
        leaks: args.leaks,
        compress: args.compress,
        resolve: args.resolve,
        order: args.sort.map(Order::from),
        depth: args.backtrace_depth,
        kinds: args.resource.clone(),
    };
    let mut missing = Vec::new();
    write_to(args.output.as_deref(), |out| {
        missing = match &args.input {
            Some(path) => {
                let file = files::open(path)?;
                postprocessor.run(path, BufReader::new(file), out)?
            }
            None => postprocessor.run(Path::new("stdin"), io::stdin().lock(), out)?,
        };
        Ok(())
    })?;
    for path in missing {
        say!("rftrace: cannot find {path}: its functions have no names");
    }
    Ok(())
}
