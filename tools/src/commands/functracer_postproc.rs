//! `rftrace functracer-postproc`: makes less of a trace of functracer or sp-rtrace.
//!
//! Not here: how (`rftrace-resources`).

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, ValueEnum};
use rftrace_resources::{Order, Postprocessor};

use super::common::write_to;

const EXAMPLES: &str = "\
Examples:
  rftrace functracer-postproc -l -c -s size allocs-4711.0.trace   what was not given back, by who took it
  rftrace functracer-postproc -l -r trace.txt                     with functions and source lines
  rftrace resources --text sp-rtrace DIR | rftrace functracer-postproc -l -R memory";

/// Looks through a trace of `rftrace functracer`, functracer or sp-rtrace.
#[derive(Args)]
#[command(after_help = EXAMPLES, args_override_self = true)]
pub(crate) struct PostprocArgs {
    /// Only what was not given back. Of an id that was taken twice the last counts; where references are counted, how many are left.
    #[arg(short, long)]
    leaks: bool,
    /// Each backtrace once, with the calls that had it.
    #[arg(short, long)]
    compress: bool,
    /// With names of functions, and source lines, of the files that the trace names.
    #[arg(short, long)]
    resolve: bool,
    /// With -c: backtraces by their bytes, or their blocks.
    #[arg(short, long, value_name = "ORDER", value_enum, requires = "compress")]
    sort: Option<OrderArg>,
    /// So many functions of a backtrace.
    #[arg(short, long, value_name = "NUMBER")]
    backtrace_depth: Option<usize>,
    /// Only these kinds of what is taken, as the trace names them.
    #[arg(short = 'R', long, value_name = "TYPES", value_delimiter = ',')]
    resource: Vec<String>,
    /// Where to write to instead of stdout.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The trace; without one, stdin.
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
                let file = File::open(path).map_err(|source| rftrace_read::Error::Io { path: path.clone(), source })?;
                postprocessor.run(path, BufReader::new(file), out)?
            }
            None => postprocessor.run(Path::new("stdin"), io::stdin().lock(), out)?,
        };
        Ok(())
    })?;
    for path in missing {
        say!("rftrace: {path} is not here: no names of its functions");
    }
    Ok(())
}
