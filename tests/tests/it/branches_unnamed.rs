//! `-P` of programs that are linked statically and have no symbol table, as distributions have them: which functions can have no branch, and where the unwinder
//! is, is known by what functions do.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use rftrace_frontend::patch::{Libgcc, Llvm, Unnamed, UnnamedUnwinder};
use rftrace_tests::{CProgram, Run, fixtures, require, tools};
use tempfile::TempDir;

use crate::attach::{Running, refused};
use crate::attach_branches::{OWN, check_code, exceptions_pass, outlives_recorders, recorded, stop};
use crate::record::{build_plain_rust_for_musl, calls, calls_of, record, rftrace};

/// A program, and the same without names.
struct Pair {
    named: PathBuf,
    stripped: PathBuf,
    _folder: TempDir,
}

impl Pair {
    fn of(folder: TempDir, named: PathBuf) -> Self {
        let stripped = folder.path().join("stripped");
        tools::run(Command::new("strip").arg("-o").arg(&stripped).arg(&named));
        Self { named, stripped, _folder: folder }
    }

    /// One of the C fixtures.
    fn build(source: &str, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let named = folder.path().join("named");
        let program = CProgram::new(&[source]).without_hooks().without_library();
        program.with(&["-O1", "-Wno-infinite-recursion"]).with(options).with(&["-lpthread"]).build_as(&named);
        Self::of(folder, named)
    }

    /// Rust programs for musl, in the ways of linking them statically.
    fn of_rust() -> Vec<Self> {
        let build = |options: &[&str]| {
            let folder = tempfile::tempdir().unwrap();
            let named = folder.path().join("named");
            build_plain_rust_for_musl("outside_panics", options, &named).map(|()| Self::of(folder, named))
        };
        [&[][..], &["-Crelocation-model=static"]].into_iter().filter_map(build).collect()
    }

    /// How often each function was called in a trace of the stripped one.
    fn calls(&self, trace: &Path) -> BTreeMap<String, u64> {
        tools::run(Command::new(rftrace()).arg("symbols").arg(trace).arg("--binary").arg(&self.named));
        calls_of(trace)
    }

    /// The trace's names for the functions of the stripped one, by their real names.
    fn names(&self) -> BTreeMap<String, String> {
        let module = self.stripped.file_name().unwrap().to_str().unwrap();
        self.unnamed().into_iter().map(|(name, unnamed)| (name, format!("{unnamed}@{module}"))).collect()
    }

    /// Their names in patterns and in the list of left-out functions.
    fn unnamed(&self) -> BTreeMap<String, String> {
        self.addresses().into_iter().map(|(name, address)| (name, format!("sub_{address:x}"))).collect()
    }

    fn addresses(&self) -> BTreeMap<String, u64> {
        let symbols = Command::new("nm").arg(&self.named).output().unwrap();
        let symbols = String::from_utf8(symbols.stdout).unwrap();
        let function = |line: &str| {
            let [address, kind, name] = line.split(' ').collect::<Vec<_>>().try_into().ok()?;
            let address = u64::from_str_radix(address, 16).ok().filter(|_| "tTwW".contains(kind))?;
            Some((name.to_owned(), address))
        };
        symbols.lines().filter_map(function).collect()
    }
}

/// The program that does all of it.
fn all() -> &'static Pair {
    static BUILT: OnceLock<Pair> = OnceLock::new();
    BUILT.get_or_init(|| Pair::build("unnamed.cpp", &["-static"]))
}

/// Its answer after each round.
const ROUND: &str = "20 20 20 24 210 42\n";
/// Its functions, and how often each is called in a round.
const COUNTS: [(&str, u64); 14] = [
    ("round_of_all", 1),
    ("by_jump", 1),
    ("jumps_back", 210),
    ("by_signal", 1),
    ("handler", 20),
    ("by_context", 1),
    ("coroutine", 1),
    ("step", 20),
    ("by_process", 1),
    ("by_throw", 20),
    ("descend", 210),
    ("thread", 6),
    ("leaves", 36),
    ("waits", 6),
];

/// The functions that are left out as they return twice and the like, by the names of the trace's list.
fn special(trace: &Path) -> BTreeSet<String> {
    let list = fs::read_to_string(trace.join("entry-branches.txt")).unwrap();
    let special =
        list.lines().filter(|line| line.ends_with("returns twice or on another stack, or asks for its caller"));
    special.map(|line| line.split('\t').nth(2).unwrap_or_else(|| panic!("{line}")).to_owned()).collect()
}

fn right(run: &Run, program: &Path) {
    assert_eq!((run.status.code(), &*run.stdout), (Some(5), ROUND), "{}: {}", program.display(), run.stderr);
}

/// As often as they are called, and as in the same program with names, of which as much is recorded.
#[test]
fn calls_are_those_of_the_program_with_names() {
    if !require(&["g++", "strip", "nm"]) {
        return;
    }
    let pair = all();
    let [named, stripped] = [&pair.named, &pair.stripped].map(|program| {
        let run = record(&["-P", "*"], program, &[]);
        right(&run, program);
        (calls(&run), special(&run.path("trace")))
    });
    let names = pair.names();
    for (function, number) in COUNTS {
        assert_eq!(named.0.get(function), Some(&number), "{function}");
        assert_eq!(stripped.0.get(&names[function]), Some(&number), "{function}");
    }
    for function in ["malloc", "free", "raise", "fork", "__vfprintf_internal", "__cxa_throw", "__gxx_personality_v0"] {
        let other = &names[function];
        assert!(stripped.0.contains_key(other), "{function}: {:?}", stripped.0);
    }
    // These are C functions that go on to such, or are gone on to; they return once, as others do.
    const USUAL: [&str; 6] =
        ["longjmp", "_longjmp", "makecontext", "__spawni_child", "__clone_internal", "_Unwind_Find_FDE"];
    let unnamed = pair.unnamed();
    let other = |name: &String| unnamed.get(name).is_none_or(|other| !stripped.1.contains(other));
    let missing: Vec<&String> = named.1.iter().filter(|name| other(name) && !USUAL.contains(&name.as_str())).collect();
    assert!(missing.is_empty(), "{missing:?}: {:?}", stripped.1);
    for function in ["__sigsetjmp", "_Unwind_Resume", "_Unwind_SetGR", "uw_update_context_1", "vfork", "clone"] {
        assert!(stripped.1.contains(&unnamed[function]), "{function}: {:?}", stripped.1);
    }
    // Few others are.
    assert!(stripped.1.len() < named.1.len() + 30, "{:?}", stripped.1);
}

/// Attached to again and again, and left with the tracer in it.
#[test]
fn a_program_that_runs() {
    if !require(&["g++", "strip", "nm"]) {
        return;
    }
    let pair = all();
    let names = pair.names();
    let mut running = Running::begin(&pair.stripped, "asked");
    for patterns in [&["sub_*"][..], &["*"], &["*"]] {
        let options: Vec<&str> = patterns.iter().flat_map(|pattern| ["-P", pattern]).collect();
        let recorder = running.begin_recording(&options);
        assert_eq!(running.ask("?"), ROUND);
        stop(recorder);
        let found = calls_of(&running.trace());
        for (function, number) in COUNTS {
            // The coroutine was entered before.
            if function != "coroutine" {
                assert_eq!(found.get(&names[function]), Some(&number), "{function} by {patterns:?}");
            }
        }
        check_code(&running);
        assert_eq!(running.ask("?"), ROUND);
    }
    assert_eq!(running.end().0.code(), Some(5));
}

/// Exceptions pass functions with branches at any time.
#[test]
fn exceptions_at_any_time() {
    if !require(&["g++", "strip"]) {
        return;
    }
    let pair = Pair::build("attached_throws.cpp", &["-static"]);
    exceptions_pass(&pair.stripped, &[], 8);
}

/// A program without unwinder: musl's C library is without, and its program too.
#[test]
fn programs_without_exceptions() {
    if !require(&["musl-gcc", "strip", "nm"]) {
        return;
    }
    for linkage in ["-static", "-no-pie"] {
        let folder = tempfile::tempdir().unwrap();
        let named = folder.path().join("named");
        let sources = fixtures::folder("c");
        let mut compiler = Command::new("musl-gcc");
        compiler.args(["-O1", "-w", linkage, "-I"]).arg(&sources).arg(sources.join("attached_plain.c"));
        fixtures::build_as(&mut compiler, &named);
        let pair = Pair::of(folder, named);
        let names = pair.names();
        let mut running = Running::begin(&pair.stripped, "asked");
        let recorder = running.begin_recording(&["-P", "*"]);
        assert_eq!(running.ask("?"), OWN);
        stop(recorder);
        let found = calls_of(&running.trace());
        for (function, number) in [("round_of_work", 1000), ("many", 1000), ("recursive", 3997), ("leaf", 5000)] {
            assert_eq!(found.get(&names[function]), Some(&number), "{function} by {linkage:?}");
        }
        check_code(&running);
        assert_eq!(running.end().0.code(), Some(5));
    }
}

/// The shells of distributions: a script of theirs does and says what it does without, with as good as all functions recorded.
#[test]
fn programs_of_distributions() {
    const SCRIPT: &str = r#"
f() { local n=$1; [ "$n" -gt 0 ] && f $((n - 1)); return $n; }
f 20; echo "returned $?"
trap 'echo caught' USR1; kill -USR1 $$
for word in $(echo one two three); do echo "<$word>" | sed s/o/0/; done
(exit 7); echo "child $?"
echo background & wait; cd /; pwd
x=$(echo deep $(echo deeper)); echo "$x" ${#x}
exit 9
"#;

    for (shell, arguments) in [("bash-static", &[][..]), ("busybox", &["sh"])] {
        // busybox has no option that tells its version.
        let is_there = Path::new("/bin").join(shell).exists();
        if !is_there {
            tools::missing(shell);
            continue;
        }
        let program = Command::new("sh").args(["-c", &format!("command -v {shell}")]).output().unwrap();
        let program = PathBuf::from(String::from_utf8(program.stdout).unwrap().trim());
        let arguments = [arguments, &["-c", SCRIPT]].concat();
        let plain = Command::new(&program).args(&arguments).stdin(Stdio::null()).output().unwrap();
        assert_eq!(plain.status.code(), Some(9), "{shell}");
        let run = record(&["-P", "*"], &program, &arguments);
        assert_eq!((run.status.code(), run.stdout.as_bytes()), (Some(9), &*plain.stdout), "{shell}: {}", run.stderr);
        assert!(calls(&run).values().sum::<u64>() > 3000, "{shell}: {}", run.stderr);
        let branches =
            run.stderr.split_once(" functions have entry branches").and_then(|(said, _)| said.lines().last());
        let numbers = branches.and_then(|said| said.strip_prefix("rftrace: ")?.split_once(" of "));
        let number = |digits: &str| digits.replace(',', "").parse::<f64>().unwrap();
        let share = numbers.map_or(0.0, |(with, all)| number(with) / number(all));
        assert!(share > 0.96, "{shell}: {}", run.stderr);
        let special = special(&run.path("trace"));
        assert!((20..100).contains(&special.len()), "{shell}: {special:?}");
    }
}

/// Their answer after each round: backtraces have no names.
const CAUGHT: &str = "caught 80, shown 0, found 5\n";
const PANICS_COUNTS: [(&str, u64); 5] =
    [("attempts", 4), ("attempt", 80), ("descend", 840), ("inner", 52), ("sink", 156)];

/// Returns the difference between addresses in a process and in its file.
fn base(running: &Running, program: &Path) -> u64 {
    const ET_EXEC: u8 = 2;

    if fs::read(program).unwrap()[16] == ET_EXEC {
        return 0;
    }
    let maps = fs::read_to_string(format!("/proc/{}/maps", running.pid())).unwrap();
    let first = maps.lines().find(|line| line.ends_with(program.to_str().unwrap())).unwrap();
    u64::from_str_radix(first.split('-').next().unwrap(), 16).unwrap()
}

/// Code and messages of functions identify the same unwinder as their names.
#[test]
fn unwinders_are_where_names_say() {
    if !require(&["g++", "strip", "nm"]) {
        return;
    }
    let pair = all();
    let names = pair.addresses();
    let [named, stripped] = [&pair.named, &pair.stripped].map(|program| {
        let running = Running::begin(program, "asked");
        let unnamed = Unnamed::look_up(&PathBuf::from(format!("/proc/{}", running.pid()))).unwrap();
        running.end();
        unnamed.unwinder().clone()
    });
    let (UnnamedUnwinder::Libgcc(named), UnnamedUnwinder::Libgcc(stripped)) = (named, stripped) else {
        panic!("libgcc's is not found")
    };
    assert_eq!(named, stripped);
    let Libgcc { code, resume, set_register, set_address, registrar, locking } = stripped;
    assert_eq!(
        [resume, set_register, set_address, registrar],
        ["_Unwind_Resume", "_Unwind_SetGR", "_Unwind_SetIP", "__register_frame_info"].map(|name| names[name])
    );
    assert!(locking.contains(&names["_Unwind_Find_FDE"]));
    for name in ["_Unwind_RaiseException", "_Unwind_Backtrace", "uw_init_context_1", "uw_update_context_1"] {
        assert!(code.contains(&names[name]), "{name}: {code:x?}");
    }
    for pair in Pair::of_rust() {
        for program in [&pair.named, &pair.stripped] {
            let shown = program.display();
            let running = Running::begin(program, "asked");
            let unnamed = Unnamed::look_up(&PathBuf::from(format!("/proc/{}", running.pid()))).unwrap();
            let base = base(&running, program);
            running.end();
            let UnnamedUnwinder::Llvm(Llvm { code, resume, set_register, set_address }) = unnamed.unwinder() else {
                panic!("{unnamed:?} of {shown}")
            };
            let names = pair.addresses();
            let at = |name: &str| base + names[name];
            assert_eq!(
                [*resume, *set_register, *set_address],
                ["_Unwind_Resume", "_Unwind_SetGR", "_Unwind_SetIP"].map(at),
                "{shown}"
            );
            // All that has such names, and two that have others.
            let has_such = |name: &str| {
                let such =
                    ["_Unwind_", "__unw_", "unw_", "unwind_phase", "__libunwind_", "_ZN9libunwind", "_ZNK9libunwind"];
                such.iter().any(|begin| name.starts_with(begin)) || ["logAPIs", "logUnwinding"].contains(&name)
            };
            for (name, address) in &names {
                assert_eq!(code.contains(&(base + address)), has_such(name), "{name} of {shown}: {code:x?}");
            }
            let first = names.iter().filter(|(name, _)| has_such(name)).map(|(_, address)| address).min();
            assert_eq!(Some(code.start - base), first.copied(), "{shown}");
            // The last one is what goes on elsewhere, with the registers that it takes.
            let leaving = at("__libunwind_Registers_x86_64_jumpto");
            assert!((leaving + 40..leaving + 128).contains(&code.end), "{shown}: {code:x?}");
        }
    }
}

/// As often as they are called, and as in the same program with names, all of which is recorded.
#[test]
fn panics_of_rust_programs() {
    // With names these have branches.
    const OF_UNWINDER: [&str; 2] = ["logAPIs", "logUnwinding"];
    // A jump through a slot is taken for an entry of the linkage table without a name.
    const JUMPS: [&str; 2] = ["__rustc::__rdl_dealloc", "std::env::args"];

    for pair in Pair::of_rust() {
        let shown = pair.stripped.display();
        let [named, run] = [&pair.named, &pair.stripped].map(|program| record(&["-P", "*"], program, &["panics"]));
        for run in [&named, &run] {
            assert_eq!((run.status.code(), &*run.stdout), (Some(5), "80\n"), "{shown}: {}", run.stderr);
        }
        let (named, found) = (calls(&named), pair.calls(&run.path("trace")));
        for (function, number) in PANICS_COUNTS {
            assert_eq!(found.get(&format!("outside_panics::{function}")), Some(&number), "{function} of {shown}");
        }
        // The calls of threads that meet others differ from run to run.
        let other = |(function, number): &(&String, &u64)| {
            let function = function.as_str();
            !OF_UNWINDER.contains(&function) && !JUMPS.contains(&function) && found.get(function) != Some(number)
        };
        let others: Vec<_> = named.iter().filter(other).collect();
        assert!(others.len() < 8 && found.len() > 85, "{shown}: {others:?} of {}: {found:?}", named.len());
        let run = record(&["-P", "*"], &pair.stripped, &["once"]);
        assert_eq!((run.status.code(), &*run.stdout), (Some(5), CAUGHT), "{shown}: {}", run.stderr);
        let run = record(&["-P", "*"], &pair.stripped, &["uncaught"]);
        assert_eq!((run.status.code(), &*run.stdout), (Some(101), ""), "{shown}: {}", run.stderr);
        assert!(run.stderr.contains("assertion `left != right` failed"), "{shown}: {}", run.stderr);
        assert_eq!(pair.calls(&run.path("trace")).get("outside_panics::descend"), Some(&4), "{shown}");
        let run = record(&["-P", "nothing_such"], &pair.stripped, &["panics"]);
        assert_eq!((run.status.code(), &*run.stdout), (Some(5), "80\n"), "{shown}: {}", run.stderr);
        assert!(run.stderr.contains("-P matches no function"), "{shown}: {}", run.stderr);
    }
}

/// Attached to again and again, by recorders that end, and by such that are killed; and while a thread panics all the time.
#[test]
fn panics_of_rust_programs_that_run() {
    for pair in Pair::of_rust() {
        let shown = pair.stripped.display();
        let mut running = Running::begin(&pair.stripped, "asked");
        let descend =
            pair.addresses().into_iter().find(|(name, _)| name.ends_with("14outside_panics7descend")).unwrap();
        let descend = format!("sub_{:x}", descend.1);
        for (pattern, n_counted) in [(&*descend, 1), ("*", 5), ("*", 5)] {
            let recorder = running.begin_recording(&["-P", pattern]);
            assert_eq!(running.ask("?"), CAUGHT, "{shown}");
            stop(recorder);
            let found = pair.calls(&running.trace());
            let is_counted =
                |&&(name, number): &&(&str, u64)| found.get(&format!("outside_panics::{name}")) == Some(&number);
            assert_eq!(PANICS_COUNTS.iter().filter(is_counted).count(), n_counted, "{pattern} of {shown}: {found:?}");
            check_code(&running);
            assert_eq!(running.ask("?"), CAUGHT, "{shown}");
        }
        for is_left in [true, false] {
            let mut recorder = running.begin_recording(&["-P", "*", "--on-full", "drop"]);
            assert_eq!(running.ask("?"), CAUGHT, "{shown}");
            recorder.kill().unwrap();
            recorder.wait().unwrap();
            assert_eq!(running.ask("?"), CAUGHT, "{shown}");
            let changed = running.code();
            match is_left {
                true => drop(running.record_some(&["--leave"])),
                false => {
                    let recorder = running.begin_recording(&["-P", &descend]);
                    assert_eq!(running.ask("?"), CAUGHT, "{shown}");
                    stop(recorder);
                    assert_eq!(pair.calls(&running.trace()).get("outside_panics::descend"), Some(&840), "{shown}");
                }
            }
            assert_ne!(running.code(), changed, "there were no branches");
            check_code(&running);
            assert_eq!(running.ask("?"), CAUGHT, "{shown}");
        }
        assert_eq!(running.end().0.code(), Some(5), "{shown}");
        let mut running = Running::begin(&pair.stripped, "busy");
        for _ in 0..3 {
            recorded(&running, &["-P", "*", "--for", "20ms", "--max-size", "1M", "--on-full", "drop"]);
            check_code(&running);
        }
        assert_eq!(running.ask("?"), CAUGHT, "{shown}");
        assert_eq!(running.end().0.code(), Some(5), "{shown}");
    }
}

/// The program goes on with its branches, and `--leave`, or the next attach, takes them away.
#[test]
fn a_recorder_that_is_killed() {
    if !require(&["gcc", "strip", "nm"]) {
        return;
    }
    let pair = Pair::build("attached_plain.c", &["-static"]);
    let (unnamed, names) = (pair.unnamed(), pair.names());
    let running = Running::begin(&pair.stripped, "asked");
    outlives_recorders(running, &unnamed["leaf"], |function| names[function].clone());
}

/// Functions that call a hook are left whole, as it is not known by name; the others are recorded.
#[test]
fn programs_that_call_a_hook() {
    if !require(&["gcc", "strip", "nm"]) {
        return;
    }
    for hook in [&["-pg"][..], &["-pg", "-mfentry"]] {
        let pair = Pair::build("attached_plain.c", &[&["-static"], hook].concat());
        let names = pair.names();
        let mut running = Running::begin(&pair.stripped, "asked");
        let recorder = running.begin_recording(&["-P", "*"]);
        assert_eq!(running.ask("?"), OWN, "{hook:?}");
        stop(recorder);
        let found = calls_of(&running.trace());
        assert!(found.len() > 5, "{hook:?}: {found:?}");
        assert!(
            ["leaf", "many", "mcount"].iter().all(|function| !found.contains_key(&names[*function])),
            "{hook:?}: {found:?}"
        );
        check_code(&running);
        assert_eq!(running.ask("?"), OWN, "{hook:?}");
        assert_eq!(running.end().0.code(), Some(5), "{hook:?}");
    }
}

/// A program with another unwinder, or with libgcc's at any address, is not changed, or has not begun.
#[test]
fn other_unwinders() {
    if !require(&["g++", "strip"]) {
        return;
    }
    let mut pairs = vec![Pair::build("unnamed.cpp", &["-static-pie"])];
    // One whose functions do not say what they are called.
    for pair in Pair::of_rust() {
        let folder = tempfile::tempdir().unwrap();
        let named = folder.path().join("named");
        let program = fs::read(&pair.stripped).unwrap();
        let message = b"libunwind: _Unwind_SetIP(";
        let at = program.windows(message.len()).position(|bytes| bytes == message).unwrap();
        let other = [&program[..at], b"libunwind: _Unwind_SetLP(", &program[at + message.len()..]].concat();
        fs::copy(&pair.stripped, &named).unwrap();
        fs::write(&named, other).unwrap();
        pairs.push(Pair::of(folder, named));
    }
    for Pair { stripped, .. } in &pairs {
        let running = Running::begin(stripped, "asked");
        refused(running.pid(), |command| _ = command.args(["-P", "*"]), "has no symbol table");
        check_code(&running);
        let maps = fs::read_to_string(format!("/proc/{}/maps", running.pid())).unwrap();
        assert!(!maps.contains("rftrace"), "{maps}");
        assert_eq!(running.end().0.code(), Some(5));
        let run = record(&["-P", "*"], stripped, &["asked"]);
        assert_eq!((run.status.code(), &*run.stdout), (Some(1), ""), "{}", run.stderr);
        assert!(run.stderr.contains("has no symbol table"), "{}", run.stderr);
    }
}
