//! `rftrace record -a`, and `-A` and `-R` without specs: what a replay shows of calls is what the program says that they are, or `?`; in
//! `rftrace replay` and in uftrace's.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use rftrace_tests::fixtures::{self};
use rftrace_tests::traces::{self, uftrace};
use rftrace_tests::{CProgram, Program, require, tools};

use crate::record::{record, replay, rftrace};

/// A call: its arguments, and its result, as far as they are shown.
#[derive(Clone, Debug, Default)]
struct Call {
    arguments: Vec<String>,
    result: Option<String>,
}

/// How many values were shown, and how many not, or not all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) known: usize,
    pub(crate) unknown: usize,
    /// Of texts and integers: how many there were, and of how many nothing was shown.
    plain: usize,
    plain_unknown: usize,
}

impl Shown {
    fn count(&mut self, expected: &str, is_known: bool) {
        let is_plain =
            expected.starts_with(['"', '-']) && expected != "-" || expected.starts_with(|c: char| c.is_ascii_digit());
        let is_plain = is_plain && !expected.contains('.');
        self.known += usize::from(is_known);
        self.unknown += usize::from(!is_known);
        self.plain += usize::from(is_plain);
        self.plain_unknown += usize::from(is_plain && !is_known);
    }

    /// At most a tenth of texts and integers is unknown, of which there are so many at least.
    #[track_caller]
    pub(crate) fn check_plain(self, least: usize) {
        assert!(self.plain >= least && 10 * self.plain_unknown <= self.plain, "{self:?}");
    }
}

fn built(source: &str, options: &[&str]) -> Program {
    CProgram::new(&[source]).without_library().with(options).build()
}

/// A Rust program with some options.
fn rust_program(name: &str, options: &[&str]) -> PathBuf {
    let mut rustc = fixtures::rustc(Some("nightly"), &format!("{name}.rs"));
    fixtures::cache::compile(rustc.args(["-Zinstrument-mcount", "-g"]).args(options), name)
}

/// Splits a text at commas that are not within something.
fn parts(text: &str) -> Vec<&str> {
    let (mut depth, mut is_quoted, mut is_escaped, mut start) = (0, None, false, 0);
    let mut parts = Vec::new();
    for (at, c) in text.char_indices() {
        match (c, is_quoted) {
            _ if is_escaped => is_escaped = false,
            ('\\', Some(_)) => is_escaped = true,
            (_, Some(quote)) if c == quote => is_quoted = None,
            (_, Some(_)) => {}
            ('"' | '\'', None) => is_quoted = Some(c),
            ('(' | '{' | '[', None) => depth += 1,
            (')' | '}' | ']', None) => depth -= 1,
            (',', None) if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    if !text.is_empty() {
        parts.push(text[start..].trim());
    }
    parts
}

/// True if a value is shown in full. `None`: it is another one than expected.
fn is_known(shown: &str, expected: &str) -> Option<bool> {
    // uftrace shows no fields.
    if matches!(shown, "?" | "?{}") || shown.ends_with("{...}") {
        return Some(false);
    }
    if shown == expected || expected == "*" {
        return Some(true);
    }
    let (shown, expected) = (inner(shown)?, inner(expected)?);
    let (own, others) = (parts(shown.1), parts(expected.1));
    let is_same = shown.0 == expected.0 && own.len() == others.len();
    let each = own.iter().zip(&others).map(|(own, other)| {
        let (own, other) = (own.split_once(": ").unwrap_or(("", own)), other.split_once(": ").unwrap_or(("", other)));
        is_known(own.1, other.1).filter(|_| own.0 == other.0)
    });
    let each: Vec<bool> = each.collect::<Option<_>>()?;
    is_same.then(|| each.iter().all(|&is_known| is_known))
}

/// The name of a value with fields, and these.
fn inner(text: &str) -> Option<(&str, &str)> {
    let (name, rest) = text.split_at_checked(text.find(['(', '{'])?)?;
    let rest = rest.get(1..rest.len() - 1)?;
    (!name.contains(['"', '\''])).then_some((name, rest))
}

/// The calls in a replay, by name.
fn calls(replay: &str) -> HashMap<String, Vec<Call>> {
    let mut calls: HashMap<String, Vec<Call>> = HashMap::new();
    let mut open: Vec<(String, usize)> = Vec::new();
    for line in replay.lines().map(str::trim) {
        if let Some(end) = line.strip_prefix('}') {
            let (name, place) = open.pop().unwrap();
            let result = end.split(" /* ").next().unwrap_or_default().trim();
            let result = result.strip_prefix("= ").map(|result| result.trim_end_matches(';').to_owned());
            calls.get_mut(&name).unwrap()[place].result = result;
            continue;
        }
        // A result may be a text.
        let Some((name, rest)) = line.split_once('(').filter(|(name, _)| !name.is_empty() && !name.starts_with("/*"))
        else {
            continue;
        };
        let (rest, is_open) = match rest.strip_suffix(" {") {
            Some(rest) => (rest, true),
            None => (rest.trim_end_matches(';'), false),
        };
        let (arguments, result) = match rest.rsplit_once(") = ") {
            Some((arguments, result)) => (arguments, Some(result.to_owned())),
            None => (rest.strip_suffix(')').unwrap_or(rest), None),
        };
        let arguments = parts(arguments).into_iter().map(str::to_owned).collect();
        let of_name = calls.entry(name.to_owned()).or_default();
        of_name.push(Call { arguments, result });
        if is_open {
            open.push((name.to_owned(), of_name.len() - 1));
        }
    }
    calls
}

/// Compares what is shown of the program's calls with what it has printed. `*` stands for anything.
#[track_caller]
pub(crate) fn compare(replay: &str, printed: &str, prefix: &str, way: &str) -> Shown {
    let calls = calls(replay);
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut shown = Shown::default();
    for line in printed.lines() {
        let mut words = line.split('\t');
        let name = format!("{prefix}{}", words.next().unwrap());
        let mut expected: Vec<&str> = words.collect();
        let result = expected.pop().unwrap();
        let number = seen.entry(name.clone()).or_default();
        // Functions that an optimiser has inlined are not called.
        let Some(call) = calls.get(&name).and_then(|calls| calls.get(*number)) else { continue };
        *number += 1;
        let complaint = format!("{way}: {name}: {call:?}, it is {line}");
        if call.arguments.is_empty() {
            expected.iter().for_each(|expected| shown.count(expected, false));
        } else {
            assert_eq!(call.arguments.len(), expected.len(), "{complaint}");
        }
        for (argument, expected) in call.arguments.iter().zip(expected) {
            let is_known = is_known(argument, expected);
            assert!(is_known.is_some(), "{complaint}");
            shown.count(expected, is_known == Some(true));
        }
        match &call.result {
            Some(own) => {
                let is_known = is_known(own, result);
                assert!(is_known.is_some(), "{complaint}");
                shown.count(result, is_known == Some(true));
            }
            None if result != "-" => shown.count(result, false),
            None => {}
        }
    }
    shown
}

/// Records all values with `options`, and compares.
#[track_caller]
pub(crate) fn check(program: &Path, options: &[&str], prefix: &str) -> Shown {
    let way = format!("{} {options:?}", program.display());
    let run = record(&[&["-a"], options].concat(), program, &[]);
    assert_eq!(run.status.code(), Some(0), "{way}: {}", run.stderr);
    let shown = compare(&replay(&run), &run.stdout, prefix, &way);
    assert!(traces::open(&run.path("trace")).warnings().is_empty(), "{way}");
    if require(&["uftrace"]) {
        // uftrace shows the first byte of a character, and numbers without a name as sums of names.
        let same = |line: &&str| !line.contains('ß') && !line.starts_with("color\t3\t");
        let printed: String = run.stdout.lines().filter(same).map(|line| format!("{line}\n")).collect();
        compare(&uftrace(&["replay", "-f", "none"], &run.path("trace")), &printed, prefix, &format!("uftrace, {way}"));
    }
    shown
}

#[test]
fn values_of_c_by_type() {
    if !require(&["gcc"]) {
        return;
    }
    let fully = check(&built("typed.c", &["-O0"]).path, &[], "");
    assert!(fully.known >= 140 && fully.unknown <= 12, "all but unions and the like: {fully:?}");
    fully.check_plain(90);
    for options in [&["-O0", "-mfentry"][..], &["-O0", "-no-pie"], &["-O0", "-fno-omit-frame-pointer", "-gdwarf-4"]] {
        assert_eq!(check(&built("typed.c", options).path, &[], ""), fully, "{options:?}");
    }
    for options in [&["-O1"][..], &["-O2"], &["-O3", "-mfentry"], &["-Os"], &["-O2", "-gdwarf-4"]] {
        let shown = check(&built("typed.c", options).path, &[], "");
        assert!(shown.known > 100, "{options:?}: {shown:?}");
        shown.check_plain(70);
    }
}

/// Most functions are other ones then, with names of their own.
#[test]
fn values_after_link_time_optimisation() {
    if require(&["gcc", "g++"]) {
        check(&built("typed.c", &["-O2", "-flto"]).path, &[], "").check_plain(1);
        check(&built("typed.cpp", &["-O2", "-flto", "-std=c++17"]).path, &[], "").check_plain(10);
    }
    if require(&["rustc"]) {
        let options = ["-Copt-level=3", "-Clto=fat"];
        assert!(check(&rust_program("typed", &options), &[], "typed::").known > 15);
        let options = [&options[..], &["-Zmerge-functions=disabled", "--cfg=by_address"]].concat();
        check(&rust_program("fields", &options), &[], "fields::").check_plain(80);
    }
}

#[test]
fn values_of_cpp_by_type() {
    if !require(&["g++"]) {
        return;
    }
    let shown = check(&built("typed.cpp", &["-O0", "-std=c++17"]).path, &[], "");
    assert!(shown.known >= 100 && shown.unknown <= 10, "{shown:?}");
    shown.check_plain(70);
    for options in [&["-O1", "-std=c++17"][..], &["-O2", "-std=c++17"], &["-O3", "-std=c++17"]] {
        let shown = check(&built("typed.cpp", options).path, &[], "");
        assert!(shown.known > 70, "{options:?}: {shown:?}");
        shown.check_plain(45);
    }
}

#[test]
fn values_of_rust_by_type() {
    if !require(&["rustc"]) {
        return;
    }
    let shown = check(&rust_program("typed", &["-Copt-level=0"]), &[], "typed::");
    assert!(shown.known >= 120 && shown.unknown <= 15, "{shown:?}");
    shown.check_plain(85);
    for level in 1..=3 {
        let shown = check(&rust_program("typed", &[&format!("-Copt-level={level}")]), &[], "typed::");
        assert!(shown.known >= 15, "{level}: {shown:?}");
    }
}

/// Variants with their data, and fields.
#[test]
fn fields_of_rust() {
    if !require(&["rustc"]) {
        return;
    }
    for level in 0..=3 {
        // Of functions with the same code one would be left, with the types of one of them.
        let options = [&format!("-Copt-level={level}"), "-Zmerge-functions=disabled"];
        let shown = check(&rust_program("fields", &options), &[], "fields::");
        assert!(shown.known >= 150, "{level}: {shown:?}");
        // Called by their addresses they have the interfaces that they have in the source.
        let shown = check(&rust_program("fields", &[&options[..], &["--cfg=by_address"]].concat()), &[], "fields::");
        assert!(shown.known >= 230 && shown.unknown <= 10, "{level}: {shown:?}");
        shown.check_plain(80);
    }
}

/// GCC tells of a function from behind its room on.
#[test]
fn values_of_functions_with_room() {
    if !require(&["gcc", "g++"]) {
        return;
    }
    for (source, options, known, plain) in [
        ("typed.c", &["-O0", "-fpatchable-function-entry=5"][..], 140, 90),
        ("typed.c", &["-O2", "-fpatchable-function-entry=7,2", "-fcf-protection=branch"], 100, 70),
        ("typed.cpp", &["-O0", "-std=c++17", "-fpatchable-function-entry=5"], 100, 70),
    ] {
        let program = CProgram::new(&[source]).without_library().without_hooks().with(options).build();
        let shown = check(&program.path, &[], "");
        assert!(shown.known >= known, "{options:?}: {shown:?}");
        shown.check_plain(plain);
    }
}

#[test]
fn values_by_type_in_all_modes() {
    if !require(&["gcc"]) {
        return;
    }
    let program = built("typed.c", &["-O0"]);
    for options in [&["--patched"][..], &["--ring"], &["--stream"], &["--srcline"], &["-D", "100"]] {
        assert!(check(&program.path, options, "").known > 100, "{options:?}");
    }
}

/// Debug information in files of its own, compressed, and shared by two programs.
#[test]
fn values_by_separate_debug_information() {
    if !require(&["gcc", "objcopy"]) {
        return;
    }
    let program = built("typed.c", &["-O0"]);
    let program = &program.path;
    let expected = check(program, &[], "");
    assert_eq!(check(&built("typed.c", &["-O0", "-gz"]).path, &[], ""), expected);
    assert_eq!(check(&built("typed.c", &["-O0", "-gsplit-dwarf"]).path, &[], ""), expected);
    assert_eq!(check(&built("typed.c", &["-O0", "-gsplit-dwarf", "-gdwarf-4"]).path, &[], ""), expected);

    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (stripped, debug) = (folder.join("typed"), folder.join("typed.debug"));
    tools::run(Command::new("objcopy").arg("--only-keep-debug").args([program, &debug]));
    tools::run(Command::new("objcopy").arg("--strip-debug").args([program, &stripped]));
    let run = record(&["-a"], &stripped, &[]);
    assert!(run.stderr.contains("has no debug information, or the files with it"), "{}", run.stderr);
    tools::run(Command::new("objcopy").current_dir(folder).arg("--add-gnu-debuglink=typed.debug").arg("typed"));
    assert_eq!(check(&stripped, &[], ""), expected);
    assert!(replay(&record(&["--srcline"], &stripped, &[])).contains("i32()"));
    // Names too.
    tools::run(Command::new("objcopy").current_dir(folder).args(["--strip-all", "typed", "bare"]));
    tools::run(Command::new("objcopy").current_dir(folder).arg("--add-gnu-debuglink=typed.debug").arg("bare"));
    assert_eq!(check(&folder.join("bare"), &[], ""), expected);

    if require(&["dwz"]) {
        let pair = ["one", "two"].map(|name| folder.join(name));
        pair.iter().for_each(|path| _ = std::fs::copy(program, path).unwrap());
        tools::run(Command::new("dwz").current_dir(folder).args(["-m", "common", "one", "two"]));
        assert!(folder.join("common").exists());
        pair.iter().for_each(|path| assert_eq!(check(path, &[], ""), expected));
        // The common file is gone: the rest has no types.
        std::fs::remove_file(folder.join("common")).unwrap();
        let run = record(&["-a"], &pair[0], &[]);
        assert_eq!(run.status.code(), Some(0), "{}", run.stderr);
    }
}

/// Debug information that rustc leaves beside the program.
#[test]
fn values_by_split_debug_information_of_rust() {
    if !require(&["rustc"]) {
        return;
    }
    let options = |split: &'static str| ["-Copt-level=0", split, "-Ccodegen-units=4"];
    let expected = check(&rust_program("typed", &options("-Csplit-debuginfo=off")), &[], "typed::");
    for split in ["-Csplit-debuginfo=packed", "-Csplit-debuginfo=unpacked"] {
        assert_eq!(check(&rust_program("typed", &options(split)), &[], "typed::"), expected, "{split}");
    }
}

#[test]
fn chrome_has_values() {
    if !require(&["gcc"]) {
        return;
    }
    let run = record(&["-a", "--srcline"], &built("typed.c", &["-O0"]).path, &[]);
    let mut command = Command::new(rftrace());
    let output = command.args(["dump", "--chrome", "-d"]).arg(run.path("trace")).output().unwrap();
    let file: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let events = file["traceEvents"].as_array().unwrap();
    let begin = events.iter().position(|event| event["name"] == "string").unwrap();
    assert_eq!(events[begin]["args"]["arguments"], r#""one", "two""#);
    let end = events[begin..].iter().find(|event| event["ph"] == "E" && event["args"] != serde_json::Value::Null);
    assert_eq!(end.unwrap()["args"]["retval"], r#""two""#);
}

#[test]
fn scripts_are_told_values() {
    if !require(&["gcc", "python3"]) {
        return;
    }
    let run = record(&["-a"], &built("typed.c", &["-O0"]).path, &[]);
    let script = run.path("show.py");
    let text = "def uftrace_entry(ctx): print(ctx['name'], ctx.get('args'))\n\
                def uftrace_exit(ctx): print(ctx['name'], '=', repr(ctx.get('retval')))\n";
    std::fs::write(&script, text).unwrap();
    let output = Command::new(rftrace()).arg("script").arg(&script).arg(run.path("trace")).output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    for line in [
        "string ['one', 'two']",
        "string = 'two'",
        "truth ['true', 3]",
        "f32 [1.5, -0.25]",
        "letter ['a']",
        "i64 [-5000000000, 5000000000]",
        "by_value ['two { a: 1, b: 2 }', -4]",
        "nothing = None",
    ] {
        assert!(told.lines().any(|told| told == line), "{line}: {told}");
    }
}

/// Some functions only, some with specs, and what one rule says beside another.
#[test]
fn some_functions_by_type() {
    if !require(&["gcc"]) {
        return;
    }
    let program = built("typed.c", &["-O0"]);
    let run = record(&["-A", "i32;i16@arg1/x16", "-R", "tru*", "-R", "i16"], &program.path, &[]);
    let calls = calls(&replay(&run));
    let text = |name: &str| format!("{:?}", calls[name]);
    assert_eq!(text("i32"), r#"[Call { arguments: ["-70000", "70000"], result: None }]"#);
    assert_eq!(text("i16"), r#"[Call { arguments: ["0xfed4"], result: Some("-300") }]"#);
    assert_eq!(text("truth"), r#"[Call { arguments: [], result: Some("false") }]"#);
    assert_eq!(text("u8"), "[Call { arguments: [], result: None }]");
}

#[test]
fn what_matches_nothing_is_told() {
    if !require(&["gcc"]) {
        return;
    }
    let program = built("typed.c", &["-O0"]);
    let options = [
        "-A",
        "no_args",
        "-R",
        "no_result@retval",
        "-N",
        "nothing_here",
        "-A",
        "i32",
        "--rules",
        "exclude=u8;entry=nowhere",
    ];
    let run = record(&options, &program.path, &[]);
    let told: Vec<&str> = run.stderr.lines().filter(|line| line.contains("matches")).collect();
    let expected = ["-N nothing_here", "entry=nowhere", "-A no_args", "-R no_result@retval"]
        .map(|rule| format!("rftrace: no function that calls the tracer matches {rule}"));
    assert_eq!(told, expected, "{}", run.stderr);
    let run = record(&["-A", "i32", "-N", "u8"], &program.path, &[]);
    assert!(!run.stderr.contains("matches"), "{}", run.stderr);
}

#[test]
fn without_debug_information() {
    if !require(&["gcc"]) {
        return;
    }
    let program = built("typed.c", &["-O0", "-g0"]);
    for option in [&["-a"][..], &["-A", "i32"]] {
        let run = record(option, &program.path, &[]);
        assert_eq!(run.status.code(), Some(0), "{}", run.stderr);
        assert!(run.stderr.contains("has no debug information, or the files with it"), "{option:?}: {}", run.stderr);
        assert!(replay(&run).contains("i32()"));
    }
    let run = record(&["-R", "i32", "--no-schedule"], &program.path, &[]);
    assert!(!run.stderr.contains("debug information"), "{}", run.stderr);
    assert!(replay(&run).contains("i32() = "), "a number");
}
