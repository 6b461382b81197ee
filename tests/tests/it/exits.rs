//! `rftrace record -P` with branches at the ends of functions: programs do the same, calls and their nesting are those of other hooks, and return
//! addresses are what they are.
//!
//! Not here: what holds for all entry branches (`entry_branches`).

use std::fs;
use std::path::Path;
use std::process::Command;

use rftrace_tests::{CProgram, require, tools};

use super::attach::{Running, count};
use super::attach_branches::{check_code, stop};
use super::entry_branches::{check_calls, recorded};
use super::record::{calls, record};

fn build(compiler: &str, folder: &Path, arguments: &[&str]) {
    tools::run(Command::new(compiler).current_dir(folder).args(arguments));
}

/// A function that looks at its return address finds its caller: the dynamic linker searches where the calling library says.
#[test]
fn libraries_are_found_by_their_callers() {
    if !require(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let sources = [
        ("inner.c", "int inner(int x) { return x * 8; }\n"),
        (
            "outer.c",
            "#define _GNU_SOURCE\n#include <dlfcn.h>\n\
             int outer2(int x) { return dlsym(RTLD_NEXT, \"outer2\") ? 100 : x + 2; }\n\
             int outer(int x) { void *inner = dlopen(\"libinner.so\", RTLD_NOW); if (!inner) return -1;\n\
             int (*f)(int) = dlsym(inner, \"inner\"); return f(x) + outer2(x); }\n",
        ),
        ("main.c", "#include <stdio.h>\nint outer(int);\nint main(void) { printf(\"%d\\n\", outer(5)); return 0; }\n"),
    ];
    sources.iter().for_each(|(name, text)| fs::write(folder.join(name), text).unwrap());
    fs::create_dir(folder.join("sub")).unwrap();
    build("gcc", folder, &["-O1", "-fPIC", "-shared", "inner.c", "-o", "sub/libinner.so"]);
    let path = ["-Wl,-rpath,$ORIGIN/sub", "-Wl,--enable-new-dtags"];
    build("gcc", folder, &[&["-O1", "-fPIC", "-shared", "outer.c", "-o", "libouter.so"], &path[..]].concat());
    build("gcc", folder, &["-O1", "main.c", "-o", "main", "-L.", "-louter", "-Wl,-rpath,$ORIGIN"]);
    let run = recorded(&["-P", "*", "--ends", "exits", "-P", "*@libouter", "-P", "*@libc"], &folder.join("main"), &[]);
    assert_eq!(run.stdout, "47\n", "{}", run.stderr);
    check_calls(&run, &[("main", 1), ("outer", 1), ("outer2", 1)]);
}

/// A collector that walks the stack, and exceptions that unwind it.
#[test]
fn ocaml_lives() {
    if !require(&["ocamlopt"]) {
        return;
    }
    const SOURCE: &str = "let rec build n = if n = 0 then [] else (string_of_int n, [| n; n*2 |]) :: build (n-1)
let rec sum l = match l with [] -> 0 | (s,a)::t -> String.length s + a.(1) + sum t
exception Stop of int
let () = let t = ref 0 in
  for i = 1 to 10 do
    let l = List.sort compare (build 1000) in
    t := !t + sum l;
    (try List.iter (fun (s,_) -> if s = \"777\" then raise (Stop i)) l with Stop k -> t := !t + k);
    if i mod 5 = 0 then Gc.compact ()
  done;
  Printf.printf \"%d\\n\" !t; exit 3
";
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.ml"), SOURCE).unwrap();
    build("ocamlopt", folder.path(), &["a.ml", "-o", "a"]);
    let run = recorded(&["-P", "*"], &folder.path().join("a"), &[]);
    assert_eq!(run.status.code(), Some(3));
    let calls = calls(&run);
    let of = |name: &str| calls.iter().find(|(known, _)| known.contains(name)).map_or(0, |(_, &calls)| calls);
    assert_eq!(of("camlA__build"), 10_010, "{calls:?}");
}

/// A function of a running program finds its own caller, and a killed recorder leaves what the next one takes away.
#[test]
fn return_addresses_of_running_programs_stay() {
    if !require(&["gcc"]) {
        return;
    }
    let program = CProgram::new(&["attached_returns.c"]).without_hooks().without_library();
    // Behind each function is room.
    let program = program.with(&["-O2", "-fno-toplevel-reorder"]).build();
    let mut running = Running::begin_by(&mut Command::new(&program.path));
    assert_eq!(running.ask("?"), "1000 own\n");
    for options in [&["--ends", "exits"][..], &["--ends", "returns"], &["--ends", "exits"]] {
        let mut recorder = running.begin_recording(&[&["-P", "*"], options].concat());
        let own = if options.contains(&"exits") { "1000 own\n" } else { "0 own\n" };
        assert_eq!(running.ask("?"), own, "{options:?}");
        recorder.kill().unwrap();
        recorder.wait().unwrap();
        assert_eq!(running.ask("?"), own, "{options:?}");
        let recorder = running.begin_recording(&[&["-P", "*"], options].concat());
        assert_eq!(running.ask("?"), own, "{options:?}");
        stop(recorder);
        assert_eq!(count(&running.trace(), "caller"), 1000, "{options:?}");
        check_code(&running);
        assert_eq!(running.ask("?"), "1000 own\n", "{options:?}");
    }
    let (status, said) = running.end();
    assert_eq!((status.code(), said.as_str()), (Some(0), ""));
}

/// A server whose collector moves what the stack points at is recorded again and again while it works.
#[test]
fn a_node_that_runs_lives() {
    if !require(&["node"]) {
        return;
    }
    const SCRIPT: &str = "console.log(process.pid); let n = 0; process.stdin.on('data', (bytes) => { for (let k = 0; k < bytes.length; k++) { \
                          let a = []; for (let i = 0; i < 20000; i++) a.push({i, s: 'x' + i}); n += a.sort((a, b) => b.i - a.i).length; \
                          try { null.x } catch (e) { n += e.stack.length > 0 } gc(); console.log(n); } }); \
                          process.stdin.on('end', () => process.exit(3));";
    let mut running = Running::begin_by(Command::new("node").args(["--expose-gc", "-e", SCRIPT]));
    assert_eq!(running.ask("?"), "20001\n");
    for times in 1..=3 {
        let recorder = running.begin_recording(&["-P", "v8::internal::*", "--max-size", "300M"]);
        for round in [2 * times, 2 * times + 1] {
            assert_eq!(running.ask("?"), format!("{}\n", 20_001 * round));
        }
        stop(recorder);
        assert!(count(&running.trace(), "v8::internal::Heap::CollectGarbage") > 0);
        check_code(&running);
    }
    let (status, said) = running.end();
    assert_eq!((status.code(), said.as_str()), (Some(3), ""));
}

/// A collector that moves what the stack points at.
#[test]
fn node_lives() {
    if !require(&["node"]) {
        return;
    }
    const SCRIPT: &str = "let n = 0; for (let k = 0; k < 20; k++) { let a = []; for (let i = 0; i < 2000; i++) a.push({i, s: 'x' + i}); \
                          n += a.sort((a, b) => b.i - a.i).length; try { null.x } catch (e) { n += e.stack.length > 0 } } console.log(n)";
    let node = Path::new("/usr/bin/node");
    let run = record(&["-P", "v8::internal::*", "--max-size", "300M"], node, &["-e", SCRIPT]);
    assert_eq!((run.stdout.as_str(), run.status.code()), ("40020\n", Some(0)), "{}", run.stderr);
    assert!(run.stderr.contains("the runtime of node reads return addresses; rftrace leaves them"), "{}", run.stderr);
}
