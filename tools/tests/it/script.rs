//! Scripts for uftrace, by `rftrace script`: the same calls as uftrace makes, and what goes wrong.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use rftrace_tests::require;

use crate::cli::{parts, rftrace, utf8};
use crate::dir::{A, B, C, Dir, Files, MAIN, MARK, NAMELESS, RUST, entry, event, exit, trace};

/// Prints all that it is told, as it comes.
const ALL: &str = include_str!("../../../tests/golden/script/tell.py");

/// The command with this script on a trace, with Python in its search path.
fn script(text: &str, dir: &Path, args: &[&str]) -> (Command, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("a script.py");
    std::fs::write(&file, text).expect("a script");
    let mut command = rftrace(&["script", utf8(&file), utf8(dir)]);
    command.args(args).env("PATH", std::env::var_os("PATH").unwrap_or_default());
    (command, folder)
}

/// Exit code, stdout and stderr of it.
fn run_script(text: &str, dir: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let (mut command, _folder) = script(text, dir, args);
    parts(&command.output().expect("the command starts"))
}

fn sample() -> Dir {
    Files::new(&[
        (7, &[entry(10, 0, MAIN), event(15, 1, MARK), entry(20, 1, A), exit(40, 1, A), exit(990, 0, MAIN)]),
        (8, &[entry(20, 0, RUST), entry(40, 1, NAMELESS), exit(51, 1, NAMELESS), exit(67, 0, RUST)]),
    ])
    .write()
}

/// Options choose a part, and UFTRACE_FUNCS functions; what a script lacks is not told.
#[test]
fn parts_and_functions() {
    if !require(&["python3"]) {
        return;
    }
    let dir = sample();
    let names = "names = []\ndef uftrace_entry(ctx): names.append(ctx['name'])\ndef uftrace_end(): print(names)\n";
    for (functions, args, expected) in [
        ("", &["--tid", "7"][..], "['main', 'a']"),
        ("", &["-F", "a"], "['a']"),
        ("", &["-D", "1", "--tid=7,8", "-t", "100ns"], "['main']"),
        ("UFTRACE_FUNCS = ['a']", &[], "['a']"),
        ("UFTRACE_FUNCS = ['a', '^m']", &[], "['main', 'a']"),
        ("UFTRACE_FUNCS = ('^<4.*>$',)", &[], "['<402000>']"),
        ("UFTRACE_FUNCS = []", &["--tid", "7"], "['main', 'a']"),
    ] {
        let (code, stdout, _) = run_script(&format!("{functions}\n{names}"), dir.path(), args);
        assert_eq!((code, stdout), (Some(0), format!("{expected}\n")), "{functions} {args:?}");
    }
    let exits = "def uftrace_exit(ctx): print(ctx['name'], ctx['duration'])";
    assert_eq!(run_script(exits, dir.path(), &["--tid", "7"]).1, "a 20\nmain 980\n");
    assert_eq!(run_script("print(__name__)", dir.path(), &["--tid", "7"]).1, "a script\n");
}

/// It is an ordinary program: it has arguments, imports what lies beside it, and reads nothing of what is rftrace's.
#[test]
fn a_script_is_a_program() {
    if !require(&["python3"]) {
        return;
    }
    let dir = sample();
    let text =
        "import sys, beside\nprint(beside.N, sys.argv[1:], sys.stdin.read() == '', __file__.endswith('a script.py'))";
    let (mut command, folder) = script(text, dir.path(), &["--", "1"]);
    std::fs::write(folder.path().join("beside.py"), "N = 3").expect("a module");
    assert_eq!(parts(&command.output().unwrap()).1, "3 ['1'] True True\n");
    let exits = |text| run_script(&format!("import sys\ndef uftrace_entry(ctx): {text}"), dir.path(), &["--tid", "7"]);
    assert_eq!(exits("sys.exit()"), (Some(0), String::new(), String::new()));
    let (code, _, stderr) = exits("sys.exit('enough')");
    assert_eq!(code, Some(1));
    assert!(stderr.starts_with("enough\nrftrace: the script ") && stderr.contains("exit status: 1"), "{stderr}");
}

/// More than is sent at once, read while it is sent.
#[test]
fn long_traces() {
    if !require(&["python3"]) {
        return;
    }
    let calls = 20_000_u64;
    let records: Vec<_> = (0..calls)
        .flat_map(|call| {
            [entry(call * 5, 0, [A, B, C][call as usize % 3]), exit(call * 5 + 2, 0, [A, B, C][call as usize % 3])]
        })
        .collect();
    let text = "
from collections import Counter
calls, ns = Counter(), Counter()
def uftrace_entry(ctx): calls[ctx['name']] += 1
def uftrace_exit(ctx): ns[ctx['name']] += ctx['duration']
def uftrace_end(): print(sorted(calls.items()), sorted(ns.items()))
";
    let (code, stdout, _) = run_script(text, trace(&records).path(), &[]);
    let expected = "[('a', 6667), ('b', 6667), ('c', 6666)] [('a', 13334), ('b', 13334), ('c', 13332)]\n";
    assert_eq!((code, stdout.as_str()), (Some(0), expected));

    // Nobody reads what it prints any more.
    let dir = trace(&records);
    let (mut command, _folder) = script(ALL, dir.path(), &[]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 10]).unwrap();
    drop(stdout);
    let (code, _, stderr) = parts(&child.wait_with_output().unwrap());
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
}

#[test]
fn errors_in_scripts() {
    if !require(&["python3"]) {
        return;
    }
    let dir = sample();
    for (text, found) in [
        ("def uftrace_entry(ctx):\n    print(ctx['retval'])", "line 2, in uftrace_entry\n    print(ctx['retval'])"),
        ("def uftrace_begin(ctx): x", "NameError"),
        ("def uftrace_end(): x", "NameError"),
        ("def uftrace_end(: x", "SyntaxError"),
        ("UFTRACE_FUNCS = 'main'", "UFTRACE_FUNCS must be a list of strings"),
        ("UFTRACE_FUNCS = 3", "UFTRACE_FUNCS must be a list of strings"),
        ("UFTRACE_FUNCS = ['(']", "cannot read `(` of UFTRACE_FUNCS"),
        ("import os\nos.kill(os.getpid(), 9)", "signal: 9"),
    ] {
        let (code, stdout, stderr) = run_script(text, dir.path(), &[]);
        assert_eq!((code, stdout.as_str()), (Some(1), ""), "{text}");
        assert!(stderr.contains(found) && stderr.lines().last().unwrap().starts_with("rftrace: "), "{text}: {stderr}");
        // Nothing of the lines that call it.
        assert!(!stderr.contains("<string>"), "{stderr}");
    }
    // An unreadable file is an error of the trace, and the script comes to its end.
    let broken = sample();
    std::fs::remove_file(broken.file("8.dat")).unwrap();
    std::fs::create_dir(broken.file("8.dat")).unwrap();
    let (code, stdout, stderr) = run_script(ALL, broken.path(), &[]);
    assert_eq!((code, stdout.lines().last()), (Some(1), Some("end")), "{stderr}");
    assert!(stderr.starts_with("rftrace: ") && stderr.contains("8.dat"), "{stderr}");
    // Its output before that is there.
    let (_, stdout, _) = run_script("def uftrace_exit(ctx): print(ctx['name']); x", dir.path(), &[]);
    assert_eq!(stdout, "a\n");
}
