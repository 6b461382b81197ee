//! `rftrace functracer`: its text line by line, for each function of its plugins and each of its options (`fixtures/functracer`).
//!
//! With `RFTRACE_GOLDEN=write` the files are written anew.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use rftrace_tests::fixtures::folder;
use rftrace_tests::{CProgram, Program, require};
use tempfile::TempDir;

use super::record::rftrace;

fn program() -> &'static Path {
    static BUILT: OnceLock<Program> = OnceLock::new();
    let build = || {
        CProgram::new(&["functracer.c"])
            .without_hooks()
            .without_library()
            .with(&["-g", "-O1", "-fno-builtin", "-w", "-lpthread"])
            .build()
    };
    &BUILT.get_or_init(build).path
}

/// Runs it in a folder of its own.
fn run(options: &[&str], way: &str) -> (TempDir, Output) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(rftrace());
    command.arg("functracer").args(options).arg(program()).arg(way).current_dir(folder.path()).env("HOME", ".");
    let output = command.output().unwrap();
    (folder, output)
}

fn text(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Names the parts that differ from run to run, in the order in which they come: processes, addresses, times, offsets within functions.
fn plain(text: &str) -> String {
    let mut pids: HashMap<String, String> = HashMap::new();
    let mut blocks: HashMap<String, String> = HashMap::new();
    let mut n_blocks = 0;
    let mut out = String::new();
    for line in text.lines() {
        // Modules of the machine are many, and not ours.
        if let Some((path, range)) = line.split_once(" => 0x") {
            assert!(path.starts_with('/') && range.contains("-0x"), "{line}");
            if path == program().canonicalize().unwrap().to_str().unwrap() {
                out += "PROGRAM => RANGE\n";
            }
            continue;
        }
        let is_frame = line.starts_with("   ");
        let mut words = Vec::new();
        for word in line.replace(program().to_str().unwrap(), "PROGRAM").split(' ') {
            let digits = word.chars().all(|c| c.is_ascii_digit()) && word.len() > 2;
            let end = word.find(')').unwrap_or(word.len());
            let at = word.find("0x").filter(|&at| end > at + 10);
            words.push(if word.len() == 10 && word.matches('-').count() == 2 {
                "DATE".to_owned()
            } else if word.matches(':').count() == 2 && word.contains('.') {
                if word.starts_with('[') { "[TIME]".to_owned() } else { "TIME".to_owned() }
            } else if is_frame && word.starts_with("0x") {
                if word.ends_with(':') { "ADDRESS:".to_owned() } else { "ADDRESS".to_owned() }
            } else if let Some((name, _)) = word.split_once("+0x").filter(|_| is_frame) {
                format!("{name}+OFFSET")
            } else if let Some(at) = at {
                // The same address is another block when it is given out again.
                if words.last().is_some_and(|word| word == "=") {
                    n_blocks += 1;
                    blocks.insert(word[at..end].to_owned(), format!("<{n_blocks}>"));
                }
                let name = blocks.get(&word[at..end]).map_or("<before>", String::as_str);
                format!("{}{name}{}", &word[..at], &word[end..])
            } else if digits && (line.starts_with("Process") && words.last().is_none_or(|word| word != "code"))
                || word.trim_end_matches(',').len() > 2 && line.starts_with("PID ") && words.len() == 1
            {
                let next = format!("PID-{}", pids.len());
                let comma = if word.ends_with(',') { "," } else { "" };
                format!("{}{comma}", pids.entry(word.trim_end_matches(',').to_owned()).or_insert(next))
            } else {
                word.to_owned()
            });
        }
        out += &words.join(" ");
        out.push('\n');
    }
    out
}

#[track_caller]
fn check(name: &str, text: &str) {
    compare(name, &plain(text));
}

#[track_caller]
fn compare(name: &str, text: &str) {
    let path: PathBuf = folder("functracer").join(name);
    if std::env::var_os("RFTRACE_GOLDEN").is_some_and(|value| value == "write") {
        fs::write(&path, text).unwrap();
    }
    let golden = fs::read_to_string(&path).unwrap();
    for (number, (line, expected)) in text.lines().zip(golden.lines()).enumerate() {
        assert_eq!(line, expected, "line {} of {name} in\n{text}", number + 1);
    }
    assert_eq!(text.lines().count(), golden.lines().count(), "{text}");
}

#[test]
fn each_function_of_each_plugin() {
    if !require(&["gcc"]) {
        return;
    }
    check("memory.txt", &text(&run(&["-s", "-r", "-t", "1"], "memory").1));
    check("file.txt", &text(&run(&["-s", "-r", "-t", "1", "-e", "file"], "file").1));
    let plugin = "/usr/lib/functracer/modules/thread-resource.so";
    let threads = plain(&text(&run(&["-s", "-r", "-t", "1", "-e", plugin], "thread").1));
    // Threads and those who begin them tell of themselves in any order.
    let (mut of_threads, mut others): (Vec<&str>, Vec<&str>) =
        threads.lines().partition(|line| line.starts_with("Process/Thread "));
    of_threads.sort_unstable();
    others.extend(of_threads);
    compare("thread.txt", &(others.join("\n") + "\n"));
}

#[test]
fn functions_are_audited_by_their_names() {
    if !require(&["gcc", "g++"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let names = folder.path().join("names");
    fs::write(&names, "labs\nqsor[t]\n").unwrap();
    let symbols = format!("strtol; str*dup;@{}", names.display());
    check("audit.txt", &text(&run(&["-s", "-r", "-t", "1", "-a", &symbols], "audit").1));
    // Names are those that c++filt writes, with parameters.
    let library = CProgram::new(&["pool_library.cpp"]).without_hooks().without_library();
    let library = library.with(&["-shared", "-fPIC", "-O1", "-g", "-w"]).build();
    let path = library.path.to_str().unwrap();
    let user = CProgram::new(&["pool_user.cpp"]).without_hooks().without_library();
    let user = user.with(&["-g", "-O1", "-pthread", "-Wl,--no-as-needed", path]).build();
    let audited = |symbols: &str| {
        let output =
            Command::new(rftrace()).args(["functracer", "-s", "-t", "0", "-a", symbols]).arg(&user.path).output();
        let output = output.unwrap();
        let [told, said] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let calls = told.lines().filter_map(|line| Some(line.split_once(". ")?.1.to_owned()));
        (calls.collect::<Vec<String>>(), said)
    };
    let (calls, said) = audited("pool::make(*;pool_dro?");
    assert!(calls.contains(&"pool::make(int)(1) = 0x00000001".to_owned()), "{calls:?} {said}");
    assert!(
        calls.iter().all(|call| call.starts_with("pool::make(int)(1) ") || call.starts_with("pool_drop(1) ")),
        "{calls:?}"
    );
    for (symbols, words) in [
        ("pool::make", "there is no function pool::make in the program and its libraries"),
        ("_setjmp", "_setjmp returns twice"),
        ("@/nothing/there", "cannot read /nothing/there"),
        (";", "no function names"),
    ] {
        let (calls, said) = audited(symbols);
        assert!(calls.is_empty() && said.contains(words), "{symbols}: {said}");
    }
    // All that the program calls of libraries: it does what it does without.
    let output =
        Command::new(rftrace()).args(["functracer", "-s", "-t", "1", "-a", "*"]).arg(program()).arg("audit").output();
    let all = text(&output.unwrap());
    assert!(["qsort(1) = ", "strdup(1) = ", "labs(1) = "].iter().all(|call| all.contains(call)), "{all}");
    let mut record = Command::new(rftrace());
    record.args(["record", "--no-schedule", "--resources", "audit:labs;strtol", "-o"]).arg(folder.path().join("trace"));
    assert_eq!(record.arg(program()).arg("audit").output().unwrap().status.code(), Some(7));
    let shown = Command::new(rftrace()).arg("resources").arg(folder.path().join("trace")).output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("virtual: ") && shown.contains("compare ") && shown.contains("audit "), "{shown}");
}

#[test]
fn each_option() {
    if !require(&["gcc"]) {
        return;
    }
    // Callers of releases, times, no names, no callers.
    check("options-b.txt", &text(&run(&["-s", "-b", "-r", "--depth=1"], "last").1));
    check("options-b-file.txt", &text(&run(&["-sbr", "-t1", "-e", "file"], "file").1));
    check("options-i.txt", &text(&run(&["--start", "--time", "-t", "2"], "last").1));
    check("options-t0.txt", &text(&run(&["-s", "-t", "0", "-d"], "last").1));
    // All callers: as many as there are.
    let all = text(&run(&["-s"], "last").1);
    assert!(all.lines().filter(|line| line.starts_with("   0x")).count() > 3, "{all}");
    // Nothing is tracked before somebody says so.
    assert_eq!(text(&run(&[], "last").1), "");
    let told = |options: &[&str]| {
        let output = Command::new(rftrace()).arg("functracer").args(options).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&said).into_owned())
    };
    for (options, code, words) in [
        (&["-t", "65", "true"][..], 2, "Depth must be between 0 and 64"),
        (&["-l", "/nothing", "true"], 2, "Path must be a valid directory path"),
        (&["-e", "audio", "true"], 2, "plugins are memory, file, thread-resource, gobject"),
        (&["-e", "audit", "true"], 2, "-a 'SYMBOL;SYMBOL'"),
        (&["-p", "999999999"], 1, "there is no process 999999999"),
        (&["-p", "1,2,3,4,5,6,7,8,9,10", "-p", "1,2,3,4,5,6,7,8,9,10,11"], 1, "Maximum number of PID exceeded"),
        (&["--usage"], 0, "Usage: rftrace functracer"),
        (&["-V"], 0, "functracer 0.18"),
        (&["-h"], 0, "--resolve-name"),
        (&[], 2, "required"),
    ] {
        let (ended, said) = told(options);
        assert!(ended == Some(code) && said.contains(words), "{options:?}: {ended:?} {said}");
    }
}

#[test]
fn signals_switch_and_files_have_numbers() {
    if !require(&["gcc"]) {
        return;
    }
    let (folder, output) = run(&["-f", "-v", "-r", "-t", "1"], "switched");
    assert_eq!(text(&output), "");
    let mut names: Vec<String> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let pid = said.lines().next().and_then(|line| line.strip_prefix("Started tracing ")).expect("a process");
    assert_eq!(names, [format!("allocs-{pid}.0.trace"), format!("allocs-{pid}.1.trace")]);
    let lines: Vec<String> = names
        .iter()
        .flat_map(|name| [format!("Started tracing {pid}"), format!("Stopped tracing {pid}, trace saved to ./{name}")])
        .collect();
    assert_eq!(said.lines().collect::<Vec<_>>(), lines);
    for (name, golden) in names.iter().zip(["switched-0.txt", "switched-1.txt"]) {
        check(golden, &fs::read_to_string(folder.path().join(name)).unwrap());
    }
}

#[test]
fn processes_have_files_of_their_own() {
    if !require(&["gcc"]) {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let (_folder, output) = run(&["-s", "-f", "-l", place.path().to_str().unwrap(), "-t", "0"], "processes");
    assert_eq!(text(&output), "");
    let mut paths: Vec<PathBuf> = fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let number = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.trim_start_matches("allocs-").split('.').next().unwrap().parse::<u32>().unwrap()
    };
    paths.sort_by_key(number);
    assert_eq!(paths.len(), 3, "{paths:?}");
    for (path, golden) in paths.iter().zip(["processes.txt", "processes-child.txt", "processes-killed.txt"]) {
        check(golden, &fs::read_to_string(path).unwrap());
    }
}

#[test]
fn traces_are_made_less_of() {
    let run = |options: &[&str], input: &str| {
        let mut command = Command::new(rftrace());
        command.arg("functracer-postproc").args(options).arg(input).current_dir(folder("functracer"));
        command.output().unwrap()
    };
    for dialect in ["functracer", "sp-rtrace"] {
        let input = format!("postproc-{dialect}-input.txt");
        let all = [&["-l"][..], &["-c"], &["-lcssize-asc", "-b2"], &["--compress", "-s", "count", "-b", "1"], &["-r"]];
        for (number, options) in all.into_iter().enumerate() {
            let output = run(options, &input);
            assert!(output.status.success(), "{output:?}");
            compare(&format!("postproc-{dialect}-{number}.txt"), &String::from_utf8_lossy(&output.stdout));
        }
    }
    let output = run(&["-R", "gobject", "-l"], "postproc-sp-rtrace-input.txt");
    compare("postproc-sp-rtrace-kind.txt", &String::from_utf8_lossy(&output.stdout));
    for (options, input, words) in [
        (&["-R", "fd"][..], "postproc-sp-rtrace-input.txt", "the trace has no kind fd; it has memory, gobject"),
        (&["-l"], "postproc-functracer-1.txt", "use the original trace"),
        (&["-l"], "../c/functracer.c", "functracer's begins with `generated by`"),
        (&["-l"], "nothing", "cannot read nothing"),
        (&["-s", "size"], "postproc-functracer-input.txt", "--compress"),
    ] {
        let output = run(options, input);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(words), "{options:?}: {said}");
    }
}

#[test]
fn recordings_as_text_tell_what_is_left() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let rftrace = |arguments: &[&str]| {
        let output = Command::new(rftrace()).args(arguments).current_dir(folder.path()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let program = program().to_str().unwrap();
    let record = ["record", "--resources", "memory,file", "--no-schedule", "-o", "trace", program, "file"];
    assert_eq!(rftrace(&record).0, Some(7));
    for (dialect, kinds) in [("functracer", "file"), ("sp-rtrace", "memory,file")] {
        let text = ["resources", "--text", dialect, "-k", kinds, "trace", "-o", dialect];
        assert_eq!(rftrace(&text).0, Some(0));
        let (code, left) = rftrace(&["functracer-postproc", "-l", "-r", dialect]);
        assert_eq!(code, Some(0));
        // An inotify descriptor, two of a pipe, of a socketpair and of fcntl, a copy, and a listener.
        let names = ["inotify_init", "pipe", "fcntl", "socketpair", "dup2", "socket"];
        assert!(names.iter().all(|name| left.contains(&format!(" {name}"))), "{left}");
        assert!(!left.contains("creat(") && left.contains("functracer.c:"), "{left}");
    }
}
