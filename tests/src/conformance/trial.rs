//! Running a case's program with a tracer.

use std::collections::BTreeSet;
use std::env;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rftrace_read::Trace;

use super::seen::plain_name;
use super::{Build, Case, Fault, Hooks, Program, Seen, Tracer, build};
use crate::fixtures::{aarch64, command_line, riscv64};
use crate::{tools, traces};

/// After so long a program counts as hung. What is not optimised takes seconds to name its functions, and other tests leave it, or an emulator,
/// little time.
const LIMIT: Duration = Duration::from_secs(150);
/// The same with other tracers, with which some do hang.
const LIMIT_OF_OTHERS: Duration = Duration::from_secs(20);

/// Makes a program switch its call sites.
const PATCHED: &str = "RFTRACE_PATCHED";
/// Has functions recorded in which a compiler has left room.
const PATCHABLE: &str = "RFTRACE_PATCHABLE";

/// Builds the program of `case`, runs it with `tracer` and looks at the trace. Returns what is wrong; nothing, if all is
/// as it must be. With this repository's tracer it runs twice, as it was compiled and with patched call sites, unless
/// `RFTRACE_PATCHED` is set.
///
/// # Panics
///
/// When that cannot be tried: there is no temporary folder, or the tracer itself cannot be built.
#[must_use]
pub fn try_case(case: &Case, build: Build, tracer: Tracer) -> Vec<Fault> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    if let Err(printed) = build::build(case, build, tracer, folder.path()) {
        let missing = printed.lines().find_map(|line| line.split_once("undefined reference to"));
        let words = missing.map_or("does not build".to_owned(), |(_, symbol)| format!("does not link: no{symbol}"));
        return vec![Fault::new(&words, printed)];
    }
    let mut faults = run_and_look(case, tracer, folder.path(), None);
    if tracer == Tracer::Ours && env::var_os(PATCHED).is_none() {
        let other = tempfile::tempdir().expect("a temporary folder");
        // No copy: a child that another thread is starting could hold it open for writing.
        for name in
            ["program", "library.so"].map(Path::new).into_iter().filter(|name| folder.path().join(name).exists())
        {
            fs::hard_link(folder.path().join(name), other.path().join(name)).expect("a link beside the program");
        }
        let patched = run_and_look(case, tracer, other.path(), Some("1"));
        faults.extend(
            patched
                .into_iter()
                .map(|fault| Fault { detail: format!("With patched call sites:\n{}", fault.detail), ..fault }),
        );
    }
    faults
}

fn run_and_look(case: &Case, tracer: Tracer, folder: &Path, patched: Option<&str>) -> Vec<Fault> {
    match run(case, tracer, folder, patched) {
        Err(fault) => vec![fault],
        Ok(_) if tracer == Tracer::Nobody => Vec::new(),
        Ok(printed) => look(case, tracer, folder, printed),
    }
}

fn run(case: &Case, tracer: Tracer, folder: &Path, patched: Option<&str>) -> Result<String, Fault> {
    let mut command = if tracer == Tracer::Uftrace {
        let mut uftrace = Command::new("uftrace");
        // Calls of libraries' functions are not what the others record.
        uftrace.args(["record", "--no-pager", "--no-libcall", "--no-event", "-d", "trace"]);
        if case.switches {
            uftrace.args([
                "--disable",
                "-T",
                "trace_begin@trace_on",
                "-T",
                "trace_off@trace_off",
                "-T",
                "trace_on@trace_on",
            ]);
        }
        uftrace.arg("./program");
        uftrace
    } else if let Tracer::OursBy(hooks) = tracer {
        recorder(hooks, folder)
    } else if let Some(cpu) = tracer.on_aarch64() {
        let mut emulator = aarch64::emulator(cpu, Path::new("./program"));
        emulator.envs(matches!(tracer, Tracer::EntriesOnAarch64(_)).then_some((PATCHABLE, "1")));
        emulator
    } else if tracer == Tracer::OursOnRiscv64 {
        riscv64::emulator(Path::new("./program"))
    } else {
        Command::new("./program")
    };
    let outputs = ["stdout", "stderr"].map(|name| folder.join(name));
    let [stdout, stderr] = outputs.each_ref().map(|path| File::create(path).expect("a file in a temporary folder"));
    command.current_dir(folder).stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    command.env_remove("RUST_BACKTRACE").envs(patched.map(|sites| (PATCHED, sites)));
    let limit = if tracer.is_ours() { LIMIT } else { LIMIT_OF_OTHERS };
    let status = run_limited(&mut command, limit).unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    let [stdout, stderr] =
        outputs.map(|path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned());
    let fault = |words: &str| Fault::new(words, format!("{status:?}\n{stdout}{stderr}"));
    let Some(status) = status else { return Err(fault("hangs")) };
    // uftrace ends well where the program it runs does not.
    let of_child = stderr.split_once("child terminated by signal: ").and_then(|(_, number)| number.split_once(':'));
    match status.signal().or_else(|| of_child.and_then(|(number, _)| number.trim().parse().ok())) {
        // rftrace aborts by an instruction that there is not.
        Some(4) if tracer.is_ours() => return Err(fault("aborts")),
        Some(6) => return Err(fault("aborts")),
        Some(11) => return Err(fault("crash (SIGSEGV)")),
        Some(signal) => return Err(fault(&format!("crash (signal {signal})"))),
        None => {}
    }
    if let Some((_, reason)) = stderr.split_once("ERROR: ").filter(|_| tracer == Tracer::Uftrace) {
        let reason = reason.lines().next().unwrap_or(reason).split(": ./").next().unwrap_or(reason);
        return Err(fault(&format!("refused: {reason}")));
    }
    if !status.success() || stdout.lines().last() != Some("ok") {
        return Err(fault("wrong result"));
    }
    // rftrace 0.3.2 lets glibc's profiler run, whatever the program.
    if tracer.is_ours() && folder.join("gmon.out").exists() {
        return Err(fault("profiled by gprof"));
    }
    Ok(stdout)
}

/// `rftrace record` of the program, and of none that it starts.
fn recorder(hooks: Hooks, folder: &Path) -> Command {
    let mut rftrace = Command::new(command_line().join("rftrace"));
    rftrace.args(["record", "--no-schedule", "-o", "trace"]);
    if hooks == Hooks::Branches {
        rftrace.args(["-P", "*", "--patch-within"]).arg(folder);
        let list = folder.join(build::NOT_TRACED);
        if list.exists() {
            rftrace.arg("--patch-except").arg(list);
        }
    }
    if hooks == Hooks::LibraryCalls {
        rftrace.arg("--libcalls");
    }
    rftrace.args(["--", "./program"]);
    rftrace
}

/// Runs `command` and all that it starts; `None` if it took too long. Nothing of it is left behind.
fn run_limited(command: &mut Command, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let mut child = command.process_group(0).spawn()?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if start.elapsed() > limit {
            break None;
        }
        thread::sleep(Duration::from_millis(2));
    };
    // The group lives on as long as any process of it does.
    let group = format!("-{}", child.id());
    let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
    if status.is_none() {
        child.wait()?;
    }
    Ok(status)
}

fn look(case: &Case, tracer: Tracer, folder: &Path, printed: String) -> Vec<Fault> {
    let entries = fs::read_dir(folder).expect("a temporary folder");
    let mut traces: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    traces.retain(|path| path.join("info").exists());
    traces.sort();
    if traces.is_empty() {
        return vec![Fault::new("no trace", "")];
    }
    let has_library_calls = tracer == Tracer::OursBy(Hooks::LibraryCalls);
    let of_libraries = if has_library_calls { called_of_libraries(&folder.join("program")) } else { BTreeSet::new() };
    let mut n_library_calls = 0;
    let mut seen = Seen { printed, tasks: Vec::new() };
    let mut faults = Vec::new();
    for dir in &traces {
        if tracer == Tracer::Published {
            mend_metadata(dir);
        }
        let is_c = matches!(case.program, Program::C { source, .. } if source.ends_with(".c"));
        if tracer == Tracer::Published || !is_c && tracer == Tracer::Uftrace {
            write_symbols(dir);
        }
        match Trace::open(dir) {
            Ok(trace) => faults.extend(seen.add(&trace, case.may_end_open, &of_libraries, &mut n_library_calls)),
            Err(error) => faults.push(Fault::new("unreadable trace", error.to_string())),
        }
        if let Err(flaw) = traces::try_open(dir).map(drop)
            && tracer.is_ours()
        {
            faults.push(Fault::new("malformed trace", flaw));
        }
    }
    if has_library_calls && n_library_calls == 0 {
        faults.push(Fault::new("lost calls", "no call of a library's function is recorded"));
    }
    faults.extend((case.check)(&seen).err());
    faults
}

/// Returns the names of library functions that a program calls.
fn called_of_libraries(program: &Path) -> BTreeSet<String> {
    let listed = tools::text(Command::new("nm").args(["-D", "--undefined-only", "--demangle"]).arg(program));
    // `U malloc@GLIBC_2.2.5`
    let names = listed.lines().filter_map(|line| line.trim_start().split_once(' ')).map(|(_, name)| name);
    names.map(|name| plain_name(name.split('@').next().unwrap_or(name)).to_owned()).collect()
}

/// Gives the metadata that rftrace 0.3.2 writes the form that the reader insists on; uftrace does not.
fn mend_metadata(dir: &Path) {
    const SID: &str = "0000000000000000";
    let path = dir.join("task.txt");
    let Ok(tasks) = fs::read_to_string(&path) else { return };
    let tasks = tasks.replace("timestamp=0.0 ", "timestamp=0.000000000 ").replace("sid=00 ", &format!("sid={SID} "));
    fs::write(path, tasks).expect("a file in a temporary folder");
    // Not there if the trace was cut short.
    let _ = fs::rename(dir.join("sid-00.map"), dir.join(format!("sid-{SID}.map")));
}

/// Writes the symbols of the program and its library, as rftrace 0.3.2 tells its users to do with `nm`. For C++ and Rust
/// that is needed for uftrace too, which leaves some names as they are in the program.
fn write_symbols(dir: &Path) {
    /// Where the linker puts executables that have a fixed place. Addresses of symbols are relative to that.
    const FIXED_BASE: u64 = 0x40_0000;
    for name in ["program", "library.so"] {
        let module = dir.with_file_name(name);
        let Ok(bytes) = fs::read(&module) else { continue };
        // The type of an ELF file: 2 for such executables.
        let base = if bytes.get(16) == Some(&2) { FIXED_BASE } else { 0 };
        let listed = tools::text(Command::new("nm").args(["-n", "--demangle"]).arg(module));
        let functions = listed.lines().filter_map(|line| {
            let (addr, rest) = line.split_once(' ')?;
            let addr = u64::from_str_radix(addr, 16).ok()?.checked_sub(base)?;
            let name = rest.strip_prefix(['T', 't', 'W', 'w'])?;
            Some(format!("{addr:016x} T{name}\n"))
        });
        let functions: String = functions.collect();
        fs::write(dir.join(format!("{name}.sym")), functions).expect("a file in a temporary folder");
    }
}
