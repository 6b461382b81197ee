//! `rftrace script`.
//!
//! Not here: the Python that runs a script (`python`, `driver.py`), and the steps that it gets (`feed`).

mod feed;
mod python;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use rftrace_format::opener;

use self::feed::{Feed, Stop};
use self::python::Python;
use super::choice::ShownArgs;
use super::common::{MORE, PlainArgs, default_dir, print_warnings, shell_word};

const EXAMPLES: &str = "\
Examples:
  rftrace script count.py mytrace              calls uftrace_entry, uftrace_exit, … of the script
  rftrace script count.py -F app::work -t 1ms  for a part of the trace
  rftrace script -S count.py -d mytrace        the same in uftrace's syntax
  rftrace script count.py mytrace -- 10 json   with arguments, in ctx[\"cmds\"] and sys.argv";

/// Runs a Python script on a trace, as `uftrace script` does.
///
/// A script may define uftrace_begin(ctx), uftrace_entry(ctx), uftrace_exit(ctx), uftrace_event(ctx) and uftrace_end(); the list UFTRACE_FUNCS
/// of names or regular expressions selects functions. Entries of ctx are tid, depth, timestamp, address and name; args at entries, retval and
/// duration at exits, args at events; record, version and cmds in uftrace_begin.
#[derive(Args)]
#[command(after_help = EXAMPLES, override_usage = "rftrace script [OPTIONS] FILE.py [DIR] [-- ARGS...]")]
pub(crate) struct ScriptArgs {
    /// Script, and trace directory [default: the current directory if it is a trace, else `uftrace.data`, else the newest of
    /// `cargo rftrace`].
    #[arg(value_names = ["FILE.py", "DIR"], num_args = 0..=2)]
    paths: Vec<PathBuf>,
    /// Script, in uftrace's syntax.
    #[arg(short = 'S', long, value_name = "FILE.py", help_heading = MORE)]
    script: Option<PathBuf>,
    /// Trace directory, in uftrace's syntax.
    #[arg(short, long, value_name = "DIR", help_heading = MORE)]
    data: Option<PathBuf>,
    /// Arguments of the script.
    #[arg(last = true)]
    args: Vec<String>,
    #[command(flatten)]
    shown: ShownArgs,
    #[command(flatten)]
    _plain: PlainArgs,
}

/// Runs it.
pub(crate) fn run(args: ScriptArgs) -> Result<()> {
    let (script, dir) = subjects(args.paths, args.script, args.data)?;
    check(&script, &dir)?;
    let trace = args.shown.open(&dir)?;
    let (mut python, wanted) = Python::start(&script, &args.args)?;
    let fed = match wanted {
        Some(wanted) => Feed::new(&trace, &mut python, wanted).run(),
        None => Err(Stop::Ended),
    };
    // Data read before an error is worth the script's last words.
    let status = python.end().context("cannot wait for python3")?;
    match fed {
        // If the script failed too, it has said so itself.
        Err(Stop::Unreadable(error)) => Err(error.into()),
        _ if !status.success() => bail!("the script {} failed: {status}", script.display()),
        Ok(summary) => print_warnings(&trace, &summary),
        Err(Stop::Ended) => Ok(()),
    }
}

/// The script and the directory.
fn subjects(paths: Vec<PathBuf>, script: Option<PathBuf>, data: Option<PathBuf>) -> Result<(PathBuf, PathBuf)> {
    let mut paths = paths.into_iter();
    let Some(script) = script.or_else(|| paths.next()) else {
        bail!("the script is missing; name it: rftrace script FILE.py [DIR]");
    };
    let (dir, more) = match data {
        Some(dir) => (dir, paths.next()),
        None => (paths.next().unwrap_or_else(default_dir), paths.next()),
    };
    match more {
        Some(more) => bail!("unexpected argument {}; write the script's arguments after `--`", more.display()),
        None => Ok((script, dir)),
    }
}

/// Refuses files that are no script, before a trace is read.
fn check(script: &Path, dir: &Path) -> Result<()> {
    if script.is_dir() {
        bail!(
            "cannot run {}: it is a directory; name the script first: rftrace script FILE.py [DIR]",
            script.display()
        );
    }
    opener::open(script).with_context(|| format!("cannot open the script {}", script.display()))?;
    if script.extension().is_some_and(|extension| extension == "lua") {
        let (script, dir) = (shell_word(script), shell_word(dir));
        bail!("cannot run {script}: rftrace runs scripts in Python; for Lua: `uftrace script -d {dir} -S {script}`");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_and_directories() {
        let found = |paths: &[&str], script: Option<&str>, data: Option<&str>| {
            let found =
                subjects(paths.iter().map(PathBuf::from).collect(), script.map(Into::into), data.map(Into::into));
            found.ok().map(|(script, dir)| format!("{} {}", script.display(), dir.display()))
        };
        let both = Some("s.py trace".to_owned());
        assert_eq!(found(&["s.py", "trace"], None, None), both);
        assert_eq!(found(&["trace"], Some("s.py"), None), both);
        assert_eq!(found(&["s.py"], None, Some("trace")), both);
        assert_eq!(found(&[], Some("s.py"), Some("trace")), both);
        assert_eq!(found(&["s.py"], None, None), Some("s.py uftrace.data".to_owned()));
        for paths in [&["s.py", "trace", "more"][..], &[]] {
            assert_eq!(found(paths, None, None), None);
        }
        assert_eq!(found(&["s.py", "more"], None, Some("trace")), None);
        assert_eq!(found(&["more"], Some("s.py"), Some("trace")), None);
    }
}
