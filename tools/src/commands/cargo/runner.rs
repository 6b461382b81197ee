//! Runner of cargo's programs: `rftrace record`, in an environment as the user has set it.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, anyhow};
use indicatif::{HumanBytes, HumanCount};
use rftrace_record::CallSites;
use rftrace_record::program::{self, Recorded, Way};

use super::hooks::{self, Hooks};
use super::places;
use super::session::{self, Orders, ProgramRun, bytes_of};
use super::status::{status, warning};

/// Runs the program in `args`; `name` is this program's path, beside the session's files.
pub(super) fn run(name: &Path, args: Vec<OsString>) -> Result<ExitCode> {
    let dir = name.parent().context("the path of rftrace-runner has no directory")?;
    let orders = session::orders(dir)?;
    let mut args = args.into_iter();
    let program = PathBuf::from(args.next().context("cargo has named no program to run")?);

    // The user's runner, then `rftrace record`, then the program.
    let mut words = orders.user_runner.clone();
    if is_of_target(&program, &orders.target) {
        let sites = CallSites::read(&program)?;
        let is_forced = orders.record.iter().any(|option| option == "--force");
        let problem = if is_forced { None } else { problem(&program, &sites, orders.hooks) };
        let left = bytes_left(dir, &orders)?;
        let problem = problem.or_else(|| {
            let most = HumanBytes(orders.max_size);
            (left == 0)
                .then(|| format!("the traces of this run have reached --max-size, {most}; use a larger --max-size"))
        });
        let trace = problem.is_none().then(|| trace_dir(dir, &orders, &program)).transpose()?;
        if let Some(problem) = problem {
            warning(&format!("cannot record {}: {problem}", program.display()));
        }
        if let Some(trace) = &trace {
            if !orders.quiet && !orders.is_leaks {
                let what = match orders.hooks {
                    Hooks::Mcount | Hooks::Patchable | Hooks::Xray => {
                        format!("{} instrumented functions", HumanCount(orders.hooks.prepared(&program, &sites)))
                    }
                    Hooks::Entry => "the program's functions, without those of the standard library".to_owned(),
                };
                status("Tracing", &what);
            }
            words.extend([std::env::current_exe()?.into(), "record".into(), "--quiet".into()]);
            words.extend((!orders.quiet).then(|| "--for-cargo".into()));
            words.extend(orders.record.iter().cloned());
            if orders.hooks == Hooks::Entry && !orders.is_leaks {
                let within = folder_of_target(&program, &orders.target)
                    .context("the path of the program has no folder of the target")?;
                words.extend(hooks::options(&hooks::list_path(dir), within, &orders.record));
            }
            words.extend(["--max-size".into(), format!("{}B", left.max(LEAST_SIZE)).into()]);
            words.extend(["-o".into(), trace.into(), "--".into()]);
        }
        session::add_run(dir, &ProgramRun { program: program.clone(), trace })?;
    }
    words.push(program.into());
    words.extend(args);

    let mut words = words.into_iter();
    let mut command = Command::new(words.next().context("cargo has named no program to run")?);
    command.args(words);
    for (variable, value) in &orders.variables {
        match value {
            Some(value) => command.env(variable, value),
            None => command.env_remove(variable),
        };
    }
    let error = command.exec();
    Err(anyhow!(error).context(format!("cannot run {}", command.get_program().display())))
}

/// The least that `rftrace record` takes for a size.
const LEAST_SIZE: u64 = 64 << 10;

/// Returns the bytes that the run may still write. A trace that is full takes a little more than its records.
fn bytes_left(dir: &Path, orders: &Orders) -> Result<u64> {
    let written = session::runs(dir)?.iter().filter_map(|run| run.trace.as_deref()).map(bytes_of).sum::<u64>();
    Ok(orders.max_size.saturating_sub(written))
}

/// True if a program is the target's. Procedural macros have tests too, but are no part of the program.
fn is_of_target(program: &Path, target: &str) -> bool {
    !is_doctest(program) && folder_of_target(program, target).is_some()
}

/// Where all programs for the target are.
fn folder_of_target<'p>(program: &'p Path, target: &str) -> Option<&'p Path> {
    program.ancestors().find(|folder| folder.file_name().is_some_and(|name| name == target))
}

/// True for a program of documentation tests: there is one for each, which is gone after it.
fn is_doctest(program: &Path) -> bool {
    let parent = program.parent().and_then(Path::file_name).unwrap_or_default();
    parent.to_string_lossy().starts_with("rustdoctest")
}

/// The reason why a program cannot be recorded.
fn problem(program: &Path, sites: &CallSites, hooks: Hooks) -> Option<String> {
    if !sites.is_dynamic {
        // Its hook is its C library's own.
        let is_taken =
            hooks == Hooks::Mcount && program::check(program, Recorded::Calls).is_ok_and(|way| way == Way::Outside);
        (!is_taken).then(|| {
            String::from(
                "it is linked statically, and of such programs rftrace records only calls of the tracer (`--hooks=mcount`), with symbols \
                 (no `strip`). Build it without `-C target-feature=+crt-static`, or add the crates rftrace and rftrace-frontend to it",
            )
        })
    } else if sites.has_own_hooks {
        Some("it has its own tracer, which writes its own trace".to_owned())
    } else {
        let flag = hooks.flag().filter(|_| hooks.prepared(program, sites) == 0)?.concat();
        Some(format!(
            "the compiler has instrumented no function of it: it has inlined them all, or the flag `{flag}` has not reached it. Look with \
             `cargo rftrace build -v`: a compiler wrapper, or `--config …rustflags` with a higher priority, may have replaced the flag. \
             Or use `--hooks=entry`, which needs no flag"
        ))
    }
}

/// The directory for the trace of `program`.
fn trace_dir(dir: &Path, orders: &Orders, program: &Path) -> Result<PathBuf> {
    if orders.one_trace {
        return Ok(orders.traces.clone());
    }
    let file = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let taken = session::runs(dir)?.into_iter().filter_map(|run| run.trace).collect();
    // Cargo sets them for each program.
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let (package, folder) = (variable("CARGO_PKG_NAME"), variable("CARGO_MANIFEST_DIR"));
    places::place(&orders.traces, without_hash(&file), (&package, &folder), &taken)
}

/// A test binary's name without cargo's 16 hexadecimal digits.
pub(super) fn without_hash(name: &str) -> &str {
    match name.rsplit_once('-') {
        Some((short, hash)) if hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => short,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(without_hash("rg"), "rg");
        assert_eq!(without_hash("my-tool"), "my-tool");
        assert_eq!(without_hash("my_tool-0123456789abcdef"), "my_tool");
        assert!(is_doctest(Path::new("/tmp/rustdoctestzbHUbO/rust_out")));
        assert!(!is_doctest(Path::new("/w/target/debug/deps/rust_out-0123456789abcdef")));
    }
}
