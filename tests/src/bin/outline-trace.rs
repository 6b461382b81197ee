//! Prints what a trace shows of one crate: for each thread the calls of its functions, a name a line, two spaces deeper for
//! each level. Closures and what the crate calls are left out; threads are in the order of their texts.
//!
//! `outline-trace DIRECTORY CRATE`, for `tools/scripts/check-hermit`. Fails if the trace is not well-formed.

use std::env;
use std::path::Path;
use std::process::ExitCode;

use rftrace_tests::traces;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [directory, name] = arguments.as_slice() else {
        eprintln!("usage: outline-trace DIRECTORY CRATE");
        return ExitCode::from(2);
    };
    let trace = match traces::try_open(Path::new(directory)) {
        Ok(trace) => trace,
        Err(flaw) => {
            eprintln!("outline-trace: {directory}: {flaw}");
            return ExitCode::FAILURE;
        }
    };
    let is_name = |text: &&str| text.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric());
    let shown = |function| str::strip_prefix(function, name)?.strip_prefix("::").filter(is_name);
    let trees = traces::trees(&trace);
    let outlines = trees.iter().map(|tree| traces::outline_where(tree, shown));
    let mut outlines: Vec<String> = outlines.filter(|outline| !outline.is_empty()).collect();
    outlines.sort();
    for outline in outlines {
        print!("thread\n{outline}");
    }
    ExitCode::SUCCESS
}
