//! `cargo rftrace` on a workspace that knows nothing of rftrace (`fixtures/cargo`): what it prints and how it ends is as
//! without, and what it records is right.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rftrace_read::Trace;
use rftrace_record::CallSites;
use rftrace_tests::fixtures::{self, TARGET, aarch64, command_line, without_settings};
use rftrace_tests::{require, traces};
use tempfile::TempDir;

use super::interrupted::send;

/// A copy of the workspace.
struct Workspace {
    folder: TempDir,
}

/// A command's exit, and its output.
#[derive(Debug)]
struct CargoRun {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Workspace {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        copy(&fixtures::folder("cargo"), folder.path());
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A command in the workspace, as a user's shell would run it.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.as_of_a_user(Command::new(program))
    }

    fn as_of_a_user(&self, mut command: Command) -> Command {
        without_settings(&mut command);
        // Builds share what they have in common.
        command.env("CARGO_TARGET_DIR", self.target_folder()).env("CARGO_INCREMENTAL", "0");
        command.current_dir(self.folder.path());
        command
    }

    fn target_folder(&self) -> PathBuf {
        self.path("target")
    }

    /// `cargo rftrace`.
    fn cargo_rftrace(&self, args: &[&str]) -> Command {
        self.cargo(&[&["rftrace"], args].concat())
    }

    /// A cargo that finds `cargo-rftrace` in the search path.
    fn cargo(&self, args: &[&str]) -> Command {
        let mut cargo = self.command("cargo");
        let paths = std::env::var_os("PATH").unwrap_or_default();
        let paths = std::iter::once(command_line().to_owned()).chain(std::env::split_paths(&paths));
        cargo.env("PATH", std::env::join_paths(paths).unwrap()).args(args);
        cargo
    }

    fn run(&self, args: &[&str]) -> CargoRun {
        ended(&mut self.cargo_rftrace(args))
    }

    /// The trace of a command's program, checked.
    fn trace(&self, name: &str) -> Trace {
        traces::open(&self.target_folder().join("rftrace/traces").join(name))
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            // Somebody may have built it in place.
            true if entry.file_name() == "target" => {}
            true => copy(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).unwrap()),
        }
    }
}

fn ended(command: &mut Command) -> CargoRun {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    CargoRun { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

/// How often functions of the workspace were called, by name without generic arguments.
fn calls(trace: &Trace, name: &str) -> u64 {
    traces::calls_per_task(trace).iter().filter_map(|calls| calls.get(name)).sum()
}

#[test]
fn a_program_runs_as_without_and_is_recorded() {
    if !require(&["nightly"]) {
        return;
    }
    let workspace = Workspace::new();
    let args = ["run", "--features", "shapes/round", "--", "3", "--a", "b c"];
    let plain = ended(workspace.command("cargo").args(args));
    let run = workspace.run(&args);
    assert_eq!((run.code, &run.stdout), (Some(3), &plain.stdout), "{}", run.stderr);
    assert_eq!(plain.code, Some(3));
    assert!(run.stdout.contains("words: [\"--a\", \"b c\"]; flags: round\n"), "{}", run.stdout);

    let trace = workspace.trace("run/app");
    for (function, count) in [("app::main", 1), ("app::sum", 2), ("shapes::area", 10), ("shapes::flags", 1)] {
        assert_eq!(calls(&trace, function), count, "{function}");
    }
    let names: Vec<&str> = trace.tasks().iter().map(rftrace_read::Task::name).collect();
    assert_eq!(names, ["app", "worker"]);
    // The compiler's own functions are for those who ask for them; allocations take time, and are there.
    let is_of_compiler = |name: &&String| name.contains("no_alloc_shim") || name.ends_with("::precondition_check");
    let found = all_calls(&trace);
    assert!(found.contains_key("__rustc::__rust_alloc"), "{found:?}");
    assert_eq!(found.keys().find(is_of_compiler), None);
    for text in [
        "Left out the compiler's shims",
        "Recorded ",
        " in 2 threads over ",
        ", none lost",
        "\n  Wall ",
        "Function, by self time",
    ] {
        assert!(run.stderr.contains(text), "{text:?} in {}", run.stderr);
    }
    assert!(run.stderr.contains(" 1  app::main\n"), "{}", run.stderr);
    for next in ["rftrace replay ", "rftrace view ", "rftrace tui "] {
        assert!(run.stderr.contains(&format!("{next}target/rftrace/traces/run/app")), "{}", run.stderr);
    }

    let all = workspace.run(&["--all-functions", "run", "--features", "shapes/round", "--", "3"]);
    assert!(all.code == Some(3) && !all.stderr.contains("Left out"), "{}", all.stderr);
    let found = all_calls(&workspace.trace("run/app"));
    assert!(found.keys().filter(is_of_compiler).count() >= 2, "{found:?}");
    // Cargo has an option `--all`.
    let run = workspace.run(&["test", "--all", "--no-run"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);

    // Parts of the compiler are not instrumented.
    let of_host = workspace.target_folder().join("rftrace/debug");
    let built: Vec<PathBuf> = files(&of_host)
        .into_iter()
        .filter(|path| path.ends_with("build-script-build") || path.extension().is_some_and(|suffix| suffix == "so"))
        .collect();
    assert!(built.len() >= 2, "a build script and a procedural macro in {}", of_host.display());
    for path in built {
        assert_eq!(CallSites::read(&path).unwrap().count, 0, "{}", path.display());
    }
    // A build of one's own is left alone.
    assert_eq!(CallSites::read(&workspace.target_folder().join("debug/app")).unwrap().count, 0);
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// The end and the snapshots of each program are told, as by `rftrace record`.
#[test]
fn an_end_and_its_snapshots_are_told() {
    if !require(&["nightly"]) {
        return;
    }
    let workspace = Workspace::new();
    let run = workspace.run(&["run", "--", "0", "abort"]);
    assert_eq!(run.code, Some(134), "{}", run.stderr);
    let told: Vec<_> = run.stderr.lines().filter(|line| line.contains("SIGABRT")).collect();
    let is_told = |line: &&str| {
        let place = line.strip_prefix("rftrace: killed by SIGABRT in app::main (");
        place.is_some_and(|place| place.contains("main.rs:") && place.ends_with("; 5 calls did not return"))
    };
    assert!(told.len() == 1 && told.iter().all(is_told), "{told:?} {}", run.stderr);

    let run = workspace.run(&["--dump-on", "panic", "test", "--test", "panics", "caught"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(run.stderr.contains("panics/snapshot-1-panic (panic)\n"), "{}", run.stderr);
}

/// A signal to it alone ends what it would end without it, and the trace is there.
#[test]
fn signals_are_passed_on() {
    if !require(&["nightly"]) {
        return;
    }
    let workspace = Workspace::new();
    let run = ["run", "--", "0", "wait"];
    let test = ["test", "--test", "panics", "waits", "--", "--ignored", "--nocapture"];
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        for (args, ready, trace, function) in
            [(&run[..], "RAN_BY", "run/app", "app::main"), (&test, "asks for input", "test/panics", "shapes::area")]
        {
            let mut command = workspace.cargo_rftrace(args);
            let (mut output, for_child) = io::pipe().unwrap();
            command.stdin(Stdio::piped()).stdout(for_child.try_clone().unwrap()).stderr(for_child);
            let mut running = command.spawn().unwrap();
            drop(command);
            let mut told = String::new();
            let mut lines = BufReader::new(&mut output);
            while !told.contains(ready) {
                assert_ne!(lines.read_line(&mut told).unwrap(), 0, "{told}");
            }
            let input = running.stdin.take();
            send(signal, running.id());
            assert_eq!(running.wait().unwrap().code(), Some(code), "{args:?}");
            // Cargo's tests outlive it, and end by themselves.
            drop(input);
            lines.read_to_string(&mut told).unwrap();
            assert_eq!(told.contains("rftrace: killed by SIG"), args == run, "{told}");
            assert_eq!(told.contains(" still runs; at its end its trace lies in "), args != run, "{told}");
            assert_eq!(calls(&workspace.trace(trace), function), 1, "{told}");
        }
    }
}

#[test]
fn a_stripped_profile_has_names_and_options_are_passed_on() {
    if !require(&["nightly"]) {
        return;
    }
    let workspace = Workspace::new();
    let run = workspace.run(&["-o", "my trace", "-F", "*::sum", "run", "--release"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let trace = traces::open(&workspace.path("my trace"));
    assert_eq!((calls(&trace, "app::sum"), calls(&trace, "shapes::area")), (2, 10));
    assert_eq!(calls(&trace, "app::main"), 0, "not within the chosen function");
    assert!(run.stderr.contains("rftrace replay 'my trace'"), "{}", run.stderr);

    let run = workspace.run(&["--quiet", "run", "--release", "--quiet", "--example", "demo"]);
    assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (Some(0), "demo: 4\n", ""));
    assert_eq!(calls(&workspace.trace("run/demo"), "shapes::area"), 1);
}

#[test]
fn tests_have_the_same_results_and_a_trace_for_each_binary() {
    if !require(&["nightly"]) {
        return;
    }
    let workspace = Workspace::new();
    let args = ["test", "--workspace"];
    let run = workspace.run(&args);
    assert_eq!(run.code, Some(0), "{}{}", run.stdout, run.stderr);
    let plain = ended(workspace.command("cargo").args(args));
    assert_eq!(results(&run.stdout), results(&plain.stdout));
    assert!(results(&run.stdout).iter().any(|line| line.contains("should_panic - should panic ... ok")));
    assert!(results(&run.stdout).iter().any(|line| line.contains("src/lib.rs - area")), "documentation tests run");

    // 21 levels in three tests.
    let trace = workspace.trace("test/panics");
    assert_eq!((calls(&trace, "panics::deep"), calls(&trace, "shapes::area")), (63, 4));
    assert_eq!(calls(&workspace.trace("test/shapes"), "shapes::area"), 2);
    assert_eq!(calls(&workspace.trace("test/app"), "app::sum"), 1);
    assert!(!run.stderr.contains("warning"), "{}", run.stderr);
    // Each test has its calls, and its name as libtest writes it.
    for test in ["panics: caught: ", "panics: in_a_thread: ", "shapes: tests::small: ", "shapes: tests::large: "] {
        assert!(run.stderr.contains(&format!("        Test {test}")), "{test} in {}", run.stderr);
    }
    // The table says that it is of all, and what is suggested is the trace with the most in it.
    for order in ["self", "total"] {
        assert!(run.stderr.contains(&format!("Function, by {order} time, sums of all ")), "{}", run.stderr);
    }
    let next = run.stderr.lines().find_map(|line| line.split_once(" rftrace replay ")).expect("a suggestion").1;
    let next = next.split_whitespace().next().unwrap_or_default();
    let records = |dir: &Path| -> u64 {
        let trace = Trace::open(dir).unwrap();
        trace.tasks().iter().map(|task| trace.records(task).count() as u64).sum()
    };
    let traces = fs::read_dir(workspace.target_folder().join("rftrace/traces/test")).unwrap();
    let most = traces.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).map(|path| records(&path)).max();
    assert_eq!(Some(records(&workspace.path(next))), most, "{next}");

    let run = workspace.run(&["test", "--test", "panics", "--", "--ignored"]);
    assert_eq!(run.code, Some(101), "a test that fails, fails: {}", run.stderr);
    assert!(run.stderr.contains("Recorded "), "{}", run.stderr);
    assert!(run.stderr.contains("exit status 101, as after a panic"), "{}", run.stderr);

    let run = workspace.run(&["bench", "--bench", "areas"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(run.stdout.contains("areas: 999000 in "), "{}", run.stdout);
    assert_eq!(calls(&workspace.trace("bench/areas"), "shapes::area"), 1000);

    // A program and its tests have one name, and a trace each.
    let run = workspace.run(&["run"]);
    assert_eq!((run.code, calls(&workspace.trace("run/app"), "app::sum")), (Some(0), 2), "{}", run.stderr);
    assert_eq!(calls(&workspace.trace("test/app"), "app::sum"), 1);
}

/// The lines about tests, in some order of their own.
fn results(stdout: &str) -> Vec<String> {
    let of_tests = stdout.lines().filter(|line| line.starts_with("test "));
    let mut lines: Vec<String> =
        of_tests.map(|line| line.split("; finished in").next().unwrap_or_default().to_owned()).collect();
    lines.sort();
    assert!(lines.len() > 8, "{stdout}");
    lines
}

#[test]
fn the_users_flags_and_runner_are_kept() {
    if !require(&["nightly"]) {
        return;
    }
    let workspace = Workspace::new();
    fs::create_dir(workspace.path(".cargo")).unwrap();
    let configs = [
        ("[build]\nrustflags = '--cfg one'", " one"),
        ("[build]\nrustflags = ['--cfg', 'two']", " two"),
        ("[target.'cfg(unix)']\nrustflags = ['--cfg', 'one']\n[build]\nrustflags = '--cfg two'", " one"),
        ("[target.'cfg(windows)']\nrustflags = ['--cfg', 'one']\n[build]\nrustflags = '--cfg two'", " two"),
    ];
    let of_target = format!("[target.{TARGET}]\nrustflags = '--cfg two'\nrunner = ['env', 'RAN_BY=a runner']");
    for (config, flags) in configs.into_iter().chain([(of_target.as_str(), " two")]) {
        fs::write(workspace.path(".cargo/config.toml"), config).unwrap();
        let run = workspace.run(&["run"]);
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        assert!(run.stdout.contains(&format!("flags:{flags}\nRUSTFLAGS=None\n")), "{config}: {}", run.stdout);
        assert!(workspace.path("target/rftrace/traces/run/app/info").exists(), "{config}: {}", run.stderr);
        assert_eq!(calls(&workspace.trace("run/app"), "app::sum"), 2, "{config}");
    }
    let run = ended(workspace.cargo_rftrace(&["run"]).env("RUSTFLAGS", "--cfg one"));
    assert!(run.stdout.contains("flags: one\nRUSTFLAGS=Some(\"--cfg one\")\n"), "{}", run.stdout);
    assert!(run.stdout.contains("CARGO_BUILD_RUSTFLAGS=None\nCARGO_PROFILE_RELEASE_STRIP=None\n"), "{}", run.stdout);
    assert!(run.stdout.contains("RAN_BY=Some(\"a runner\")"), "{}", run.stdout);
    assert_eq!(calls(&workspace.trace("run/app"), "app::sum"), 2);
}

/// How often each function was called, in all threads.
fn all_calls(trace: &Trace) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for (name, calls) in traces::calls_per_task(trace).into_iter().flatten() {
        *all.entry(name).or_default() += calls;
    }
    all
}

#[test]
fn each_way_counts_what_mcount_counts() {
    if !require(&["nightly"]) {
        return;
    }
    let workspace = Workspace::new();
    let [mcount, patchable, xray, entry] = ["mcount", "patchable", "xray", "entry"].map(|hooks| {
        let mut run = workspace.cargo_rftrace(&["--hooks", hooks, "run", "--", "3"]);
        let run = ended(run.env("RUSTUP_TOOLCHAIN", "nightly"));
        assert_eq!(run.code, Some(3), "{}", run.stderr);
        assert_eq!(run.stderr.contains(" instrumented functions\n"), hooks != "entry", "{}", run.stderr);
        all_calls(&workspace.trace("run/app"))
    });
    assert!(entry.len() > 100 && entry["app::sum"] == 2, "{entry:?}");
    // All functions, also what is generic in the standard library; and none of what is compiled there already.
    assert_eq!(mcount, entry);
    assert_eq!(mcount, patchable);
    assert_eq!(mcount, xray);
}

#[test]
fn stable_programs_are_recorded_by_branches() {
    if !require(&["stable"]) {
        return;
    }
    let workspace = Workspace::new();
    let stable = |args: &[&str]| ended(workspace.cargo_rftrace(args).env("RUSTUP_TOOLCHAIN", "stable"));
    let args = ["run", "--release", "--", "3", "--a", "b c"];
    let plain = ended(workspace.command("cargo").args(args).env("RUSTUP_TOOLCHAIN", "stable"));
    let run = stable(&[&["--hooks=entry"], &args[..]].concat());
    assert_eq!((run.code, &run.stdout), (Some(3), &plain.stdout), "{}", run.stderr);
    for text in ["Hooks branches at function entries; no records of inlined calls", "Recorded ", "Next "] {
        assert!(run.stderr.contains(text), "{text:?} in {}", run.stderr);
    }
    assert!(!run.stderr.contains("nightly"), "{}", run.stderr);
    // The profile is a stripped one.
    assert_eq!(calls(&workspace.trace("run/app"), "app::main"), 1);

    let run = stable(&["--hooks=entry", "test", "--workspace"]);
    let plain = ended(workspace.command("cargo").args(["test", "--workspace"]).env("RUSTUP_TOOLCHAIN", "stable"));
    assert_eq!(run.code, Some(0), "{}{}", run.stdout, run.stderr);
    assert_eq!(results(&run.stdout), results(&plain.stdout));
    let trace = workspace.trace("test/panics");
    assert_eq!((calls(&trace, "panics::deep"), calls(&trace, "shapes::area")), (63, 4));
    let run = stable(&["--hooks=entry", "bench", "--bench", "areas"]);
    assert_eq!((run.code, calls(&workspace.trace("bench/areas"), "shapes::area")), (Some(0), 1000), "{}", run.stderr);

    // The user's own choice is the only one.
    let run = stable(&["--hooks=entry", "-P", "app::sum", "run"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(all_calls(&workspace.trace("run/app")), BTreeMap::from([("app::sum".to_owned(), 2)]));

    // Where there is no nightly it is what happens. Cargo needs no rustup, only its own.
    let bin = workspace.path("bin");
    fs::create_dir(&bin).unwrap();
    fs::write(bin.join("rustup"), "#!/bin/sh\necho stable-x86_64-unknown-linux-gnu\n").unwrap();
    fs::set_permissions(bin.join("rustup"), fs::Permissions::from_mode(0o755)).unwrap();
    let mut run = workspace.command(command_line().join("cargo-rftrace"));
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let paths = std::iter::once(bin).chain(std::env::split_paths(&paths));
    run.env("PATH", std::env::join_paths(paths).unwrap()).env("RUSTUP_TOOLCHAIN", "stable");
    let run = ended(run.arg("run"));
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(run.stderr.contains("as there is no nightly toolchain (--hooks=entry)"), "{}", run.stderr);
    assert_eq!(calls(&workspace.trace("run/app"), "app::sum"), 2);

    // A named toolchain is the only one, whatever else there is.
    if require(&["nightly"]) {
        let run = ended(&mut workspace.cargo(&["+stable", "rftrace", "run"]));
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        assert!(run.stderr.contains("as the named toolchain is no nightly (--hooks=entry)"), "{}", run.stderr);
        assert!(!run.stderr.contains("Toolchain nightly"), "{}", run.stderr);
        assert_eq!(calls(&workspace.trace("run/app"), "app::sum"), 2);
        let run = ended(&mut workspace.cargo(&["+stable", "rftrace", "--hooks=mcount", "run"]));
        assert_eq!(run.code, Some(1), "{}", run.stderr);
        assert!(run.stderr.contains("use `cargo +nightly rftrace`"), "{}", run.stderr);
    }

    let run = stable(&["--hooks=entry", "build", "--bins"]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(0), ""), "{}", run.stderr);
    let next = run.stderr.lines().find_map(|line| line.split_once("Next ")).expect("what is next").1;
    let mut record = workspace.command("sh");
    let next = next.replacen("rftrace", &command_line().join("rftrace").to_string_lossy(), 1);
    let run = ended(record.arg("-c").arg(next));
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(calls(&traces::open(&workspace.path("uftrace.data")), "app::sum"), 2);
}

#[test]
fn stable_takes_the_flag_if_it_is_asked_to() {
    let workspace = Workspace::new();
    let run = workspace.run(&["--bootstrap", "run"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(calls(&workspace.trace("run/app"), "app::sum"), 2);
}

#[test]
fn programs_that_cannot_be_recorded_run_and_say_why() {
    if !require(&["nightly"]) {
        return;
    }
    let workspace = Workspace::new();
    // Calls of the tracer are recorded in a static program, branches are not.
    for (hooks, is_recorded) in [("mcount", true), ("patchable", false)] {
        let mut run = workspace.cargo_rftrace(&["--hooks", hooks, "run", "--", "3"]);
        let run = ended(run.env("RUSTFLAGS", "-C target-feature=+crt-static"));
        assert_eq!(run.code, Some(3), "{}", run.stderr);
        assert!(run.stdout.contains("sum: 63\n"), "{}", run.stdout);
        let is_refused = run.stderr.contains("it is linked statically, and");
        assert_eq!(is_refused, !is_recorded, "{}", run.stderr);
        if is_recorded {
            assert_eq!(calls(&workspace.trace("run/app"), "app::sum"), 2, "{}", run.stderr);
        }
    }

    // A wrapper that drops the flag.
    let wrapper = workspace.path("wrapper");
    let script = "#!/bin/bash\nargs=()\nfor arg; do case $arg in -Z) ;; instrument-mcount) ;; *) args+=(\"$arg\") ;; esac; done\n\
                  exec \"${args[@]}\"\n";
    fs::write(&wrapper, script).unwrap();
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
    let mut run = workspace.cargo_rftrace(&["run", "--target-dir", "other", "--", "4"]);
    let run = ended(run.env("RUSTC_WRAPPER", &wrapper));
    assert_eq!(run.code, Some(4), "{}", run.stderr);
    let is_refused =
        run.stderr.contains("cannot record ") && run.stderr.contains("the compiler has instrumented no function of it");
    assert!(is_refused, "{}", run.stderr);
}

#[test]
fn building_only() {
    if !require(&["nightly"]) {
        return;
    }
    let workspace = Workspace::new();
    let run = workspace.run(&["build", "--bins"]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(0), ""), "{}", run.stderr);
    let program = format!("target/rftrace/{TARGET}/debug/app");
    assert!(run.stderr.contains(&format!("rftrace record -o uftrace.data -- {program}\n")), "{}", run.stderr);
    let sites = CallSites::read(&workspace.path(&program)).unwrap();
    assert!(sites.count > 10 && sites.is_dynamic && !sites.has_own_hooks, "{sites:?}");
    let count = format!("({} instrumented functions)", sites.count);
    assert!(run.stderr.contains(&count), "{count} in {}", run.stderr);

    // Cargo makes one file of programs of one name in two packages.
    fs::create_dir(workspace.path("shapes/src/bin")).unwrap();
    fs::write(workspace.path("shapes/src/bin/app.rs"), "fn main() {}\n").unwrap();
    let run = workspace.run(&["build", "--bins"]);
    assert_eq!((run.code, run.stderr.matches("Next rftrace").count()), (Some(0), 1), "{}", run.stderr);
}

#[test]
fn mistakes_have_a_remedy() {
    let workspace = Workspace::new();
    let run = workspace.run(&["run", "--limit", "3"]);
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("--limit is an option of rftrace and goes before `run`"), "{}", run.stderr);
    assert_eq!(workspace.run(&["--nonsense", "run"]).code, Some(2));
    let run = workspace.run(&["--bootstrap", "--hooks=entry", "run"]);
    assert!(run.code == Some(1) && run.stderr.contains("--bootstrap works only with --hooks=mcount"), "{}", run.stderr);

    let help = workspace.run(&["--help"]);
    assert_eq!(help.code, Some(0));
    for text in
        ["Usage: cargo rftrace [OPTIONS] <COMMAND>", "\n  cargo rftrace run --release -- ", "--filter <PATTERN>"]
    {
        assert!(help.stdout.contains(text), "{text} in {}", help.stdout);
    }
    for subcommand in ["run", "test", "bench", "build", "check"] {
        let help = workspace.run(&[subcommand, "--help"]);
        let (_, examples) = help.stdout.split_once("\nExample").expect("examples");
        assert!(examples.contains(&format!("\n  cargo rftrace {subcommand} ")), "{}", help.stdout);
    }

    // A rustup with nothing but stable, and a compiler that is stable.
    let bin = workspace.path("bin");
    fs::create_dir(&bin).unwrap();
    for (name, script) in [
        ("rustup", "echo stable-x86_64-unknown-linux-gnu"),
        ("rustc", "echo rustc 1.95.0; echo release: 1.95.0; echo host: x86_64-unknown-linux-gnu"),
    ] {
        fs::write(bin.join(name), format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = workspace.command(command_line().join("cargo-rftrace"));
    let run = ended(command.args(["--hooks=mcount", "run"]).env("PATH", &bin));
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    for remedy in ["`rustup toolchain install nightly`", "--bootstrap", "--hooks=entry"] {
        assert!(run.stderr.contains(remedy), "{remedy} in {}", run.stderr);
    }

    if require(&["nightly"]) {
        let run = workspace.run(&["run", "--target", "x86_64-unknown-linux-musl"]);
        assert_eq!(run.code, Some(1), "{}", run.stderr);
        assert!(run.stderr.contains("global_asm!") && run.stderr.contains("rftrace record"), "{}", run.stderr);
        let run = workspace.run(&["run", "--target", "x86_64-unknown-freebsd"]);
        assert_eq!(run.code, Some(1), "{}", run.stderr);
        assert!(run.stderr.contains("add the crates rftrace and rftrace-frontend"), "{}", run.stderr);
    }
}

#[test]
fn the_traces_of_a_run_have_a_limit() {
    if !require(&["nightly"]) {
        return;
    }
    let workspace = Workspace::new();
    let plain = ended(workspace.command("cargo").args(["test", "--workspace", "--no-fail-fast"]));
    let run = workspace.run(&["--max-size", "64K", "--buffer", "64K", "test", "--workspace", "--no-fail-fast"]);
    assert_eq!(run.code, plain.code, "{}", run.stderr);
    assert!(run.stderr.contains("have reached --max-size"), "{}", run.stderr);
    let traces = fs::read_dir(workspace.target_folder().join("rftrace/traces/test")).unwrap();
    let n_traces = traces.filter(|entry| entry.as_ref().unwrap().path().is_dir()).count();
    assert_eq!(n_traces, 1, "{}", run.stderr);
    assert!(run.stderr.contains("iB)"), "{}", run.stderr);
}

/// For another processor, by a rftrace that is built for it: both run in an emulator, cargo does not.
#[test]
fn programs_for_aarch64() {
    if !aarch64::require_machine() {
        return;
    }
    let workspace = Workspace::new();
    for hooks in ["--hooks=mcount", "--hooks=entry"] {
        let mut rftrace = workspace.as_of_a_user(aarch64::machine(&aarch64::command_line().join("rftrace")));
        // The library for the target is nightly's here.
        rftrace.env("RUSTUP_TOOLCHAIN", "nightly");
        rftrace.args(["cargo", hooks, "run", "--target", aarch64::TARGET, "--", "3", "a"]);
        let run = ended(aarch64::set_linker(&mut rftrace));
        assert_eq!(run.code, Some(3), "{hooks}: {}", run.stderr);
        assert!(run.stdout.contains("words: [\"a\"]"), "{hooks}: {}", run.stdout);
        let trace = workspace.trace("run/app");
        assert_eq!((calls(&trace, "app::sum"), calls(&trace, "shapes::area")), (2, 10), "{hooks}: {}", run.stderr);
        let has_branches = run.stderr.contains("Hooks branches at function entries");
        assert_eq!(has_branches, hooks == "--hooks=entry", "{hooks}: {}", run.stderr);
    }
}

#[test]
fn numbers_are_those_of_a_committed_file() {
    if !require(&["nightly"]) {
        return;
    }
    let workspace = Workspace::new();
    let (file, source) = (workspace.path("rftrace-baseline.json"), workspace.path("app/benches/areas.rs"));
    let edit = |from: &str, to: &str| {
        let text = fs::read_to_string(&source).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(&source, text.replacen(from, to, 1)).unwrap();
    };
    let run = workspace.run(&["check"]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""), "{}", run.stderr);
    assert!(run.stderr.contains("no baseline") && run.stderr.contains("cargo rftrace check --update bench"), "{run:?}");

    let run = workspace.run(&["check", "--update", "-n", "2", "bench", "--bench", "areas"]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(0), ""), "{}", run.stderr);
    assert_eq!(run.stderr.matches("areas: 999000 in ").count(), 2, "{}", run.stderr);
    let first = fs::read_to_string(&file).unwrap();
    assert!(first.contains("\n          \"shapes::area\": {\"calls\":1000,\"depth\":"), "{first}");
    assert_eq!(calls(&workspace.trace("bench/areas"), "shapes::area"), 1000);

    let run = workspace.run(&["check"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(
        run.stdout.starts_with("bench --bench areas: ") && run.stdout.ends_with(", as in the baseline\n"),
        "{run:?}"
    );
    assert_eq!(run.stderr.matches("areas: 999000 in ").count(), 1, "one run is enough: {}", run.stderr);
    let run = workspace.run(&["check", "run"]);
    assert!(run.code == Some(1) && run.stderr.contains("--update run"), "{run:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), first, "nothing but --update writes it");

    // A call more, and what is called by chance.
    edit("fn main() {", "fn main() {\n    std::hint::black_box(shapes::area(1, 1));");
    let run = workspace.run(&["check", "bench", "--bench", "areas"]);
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    let row = run.stdout.lines().find(|line| line.contains("shapes::area")).expect("the row of the call");
    assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["1000", "1001", "calls", "shapes::area", "(areas)"]);
    assert!(run.stderr.contains("cargo rftrace check --update"), "{}", run.stderr);
    let run = workspace.run(&["check", "--format", "markdown"]);
    assert!(run.stdout.contains("\n| 1000 | 1001 | calls | `shapes::area` (areas) |\n"), "{run:?}");

    let chance = "std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 1) % 10_000";
    edit(
        "fn main() {",
        &format!(
            "#[inline(never)]\nfn by_chance(number: u64) {{\n    std::hint::black_box(number);\n}}\n\nfn main() {{\n    (0..{chance}).for_each(by_chance);"
        ),
    );
    let run = workspace.run(&["check", "--update"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(run.stderr.contains("not compared, as ") && run.stderr.contains("areas::by_chance"), "{}", run.stderr);
    let second = fs::read_to_string(&file).unwrap();
    assert!(second.contains("\"areas::by_chance\": {\"calls\":[") && second.contains("\"runs\": 3,"), "{second}");
    let run = workspace.run(&["check"]);
    assert_eq!((run.code, run.stderr.matches("not compared, as ").count()), (Some(0), 1), "{}", run.stderr);

    // A function that the file does not know is new, though it varies.
    fs::write(&file, second.replace("\"areas::by_chance\": {\"calls\":[", "\"areas::other\": {\"calls\":[")).unwrap();
    let run = workspace.run(&["check", "-n", "2"]);
    assert!(run.code == Some(1) && run.stdout.contains("areas::by_chance (new) (areas)"), "{run:?}");

    // Allocations, by the options of the file.
    let run = workspace.run(&["--resources", "memory", "check", "--update", "bench", "--bench", "areas"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let third = fs::read_to_string(&file).unwrap();
    assert!(third.contains("\"(program)\": {\"allocations\":"), "{third}");
    edit("fn main() {", "fn main() {\n    std::hint::black_box(Box::new([1_u8; 77]));");
    let run = workspace.run(&["check"]);
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    let row = |what: &str| -> [u64; 2] {
        let line = run.stdout.lines().find(|line| line.contains(what)).expect(what);
        let mut numbers = line.split_whitespace().map(|word| word.parse().unwrap_or(0));
        [numbers.next().unwrap(), numbers.next().unwrap()]
    };
    assert_eq!(row(" bytes ")[1] - row(" bytes ")[0], 77, "{}", run.stdout);
    assert_eq!(row(" allocations ")[1] - row(" allocations ")[0], 1, "{}", run.stdout);

    let run = workspace.run(&["check", "--update", "test", "--test", "panics", "--", "--ignored"]);
    assert_eq!(run.code, Some(101), "{}", run.stderr);
    assert!(run.stderr.contains("the run has failed"), "{}", run.stderr);
    assert_eq!(fs::read_to_string(&file).unwrap(), third);
}

#[test]
fn leaks_are_told_by_tests() {
    let folder = tempfile::tempdir().unwrap();
    copy(&fixtures::folder("leaks"), folder.path());
    let workspace = Workspace { folder };
    let leaked = |run: &CargoRun| {
        let lines = run.stderr.lines().filter_map(|line| line.trim_start().strip_prefix("Leaked "));
        let mut lines: Vec<String> = lines.map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let expected = [
        "tests::keeps_a_block (leaky): 123 bytes in 1 block",
        "tests::keeps_a_file (leaky): 1 descriptor",
        "tests::keeps_two_in_threads (leaky): 3000 bytes in 2 blocks",
    ];
    // Threads have tests' names, and one thread runs them all; functions are inlined into what libtest calls.
    for args in [&["test", "--leaks"][..], &["test", "--leaks", "--release", "--", "--test-threads=1"]] {
        let run = workspace.run(args);
        assert_eq!((run.code, leaked(&run)), (Some(1), expected.map(str::to_owned).to_vec()), "{}", run.stderr);
        assert!(run.stdout.contains("test tests::panics - should panic ... ok"), "{}", run.stdout);
        assert!(run.stderr.contains("\nerror: 3 tests have leaks"), "{}", run.stderr);
        assert!(run.stderr.contains("leaky::keep  "), "{}", run.stderr);
    }
    let run = workspace.run(&["--resources", "memory", "test", "--leaks", "--suppress", "*::keeps_a_block"]);
    assert_eq!((run.code, leaked(&run)), (Some(1), vec![expected[2].to_owned()]), "{}", run.stderr);
    fs::write(workspace.path("known"), "# on purpose\nleaky::keep\n").unwrap();
    let run = workspace.run(&["--resources=memory", "test", "--leaks", "--suppressions=known"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(leaked(&run), ["nothing: the tests have released all resources"]);
    let run = workspace.run(&["--leaks", "run"]);
    assert!(run.code == Some(1) && run.stderr.contains("--leaks works only with `test`"), "{}", run.stderr);
}
