//! `rftrace symbols`: traces of kernels and of other machines get names, from the right binary only.

use std::fs;
use std::path::Path;
use std::process::Command;

use rftrace_read::maps::Mapping;

use crate::cli::run;
use crate::dir::{self, Files};
use crate::import::{Kernel, REPLAY, image, text, utf8};

const HZ: u64 = 2_000_000_000;

/// The output of `rftrace symbols`, and its exit code.
fn symbols(trace: &Path, arguments: &[&str]) -> (i32, String) {
    let mut rftrace = Command::new(env!("CARGO_BIN_EXE_rftrace"));
    let output = rftrace.arg("symbols").arg(trace).args(arguments).output().expect("the command starts");
    assert!(output.stdout.is_empty());
    (output.status.code().expect("no signal"), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_kernel_that_was_imported_without_its_binary() {
    let Some(kernel) = Kernel::build() else { return };
    let (elf, trace) = (kernel.path("kernel.elf"), kernel.path("trace"));
    // As linked, and moved.
    for (load_address, slide) in [(0, 0), (0x2ff000, 0x20_0000)] {
        let (is_success, said) = kernel.import(&image(load_address, HZ, &kernel.records(slide)), &[]);
        assert!(is_success, "{said}");
        assert!(!kernel.replay().contains("leaf"));
        let (code, said) = symbols(&trace, &["-b", utf8(&elf)]);
        assert_eq!(code, 0, "{said}");
        assert!(said.contains("mykernel.sym: 4 functions, no source lines") && said.lines().count() == 1, "{said}");
        assert_eq!(kernel.replay(), REPLAY);
        // An existing file is found again.
        assert_eq!(symbols(&trace, &["-q", "--binary", utf8(&elf)]), (0, String::new()));
        assert_eq!(kernel.replay(), REPLAY);
        let replayed = text(Command::new("uftrace").args(["replay", "--no-pager", "--color=no", "-d"]).arg(&trace));
        assert!(replayed.is_none_or(|replayed| replayed == REPLAY));
    }
}

#[test]
fn functions_with_several_places_are_counted() {
    let Some(kernel) = Kernel::build() else { return };
    let (elf, branch) = (kernel.path("kernel.elf"), kernel.functions["branch"]);
    // Behind its only call, whether it begins with `endbr64` or not.
    let places = [0, 9, 13].map(|offset| branch + offset);
    let entries = (2_000..).zip(places).map(|(tsc, address)| (tsc, address, false));
    let exits = (3_000..).zip(places.into_iter().rev()).map(|(tsc, address)| (tsc, address, true));
    let (is_success, said) = kernel.import(&image(0, HZ, &entries.chain(exits).collect::<Vec<_>>()), &[]);
    assert!(is_success, "{said}");
    let (code, said) = symbols(&kernel.path("trace"), &["-b", utf8(&elf)]);
    assert!(code == 0 && said.contains(": 1 functions have several hooks"), "{said}");
    assert_eq!(symbols(&kernel.path("trace"), &["-q", "-b", utf8(&elf)]), (0, String::new()));
}

#[test]
fn a_map_that_begins_above_the_binary() {
    let Some(kernel) = Kernel::build() else { return };
    let (elf, trace) = (kernel.path("kernel.elf"), kernel.path("trace"));
    let (is_success, said) = kernel.import(&image(0, HZ, &kernel.records(0)), &["--binary", utf8(&elf)]);
    assert!(is_success, "{said}");
    let map = fs::read_dir(&trace).expect("a trace").map(|entry| entry.expect("an entry").path());
    let map = map.into_iter().find(|path| path.extension().is_some_and(|end| end == "map")).expect("a map");
    let before = fs::read_to_string(&map).expect("text");
    // The start tells nothing, and most of the functions are below it.
    fs::write(&map, before.replace("000000100000-", "ffff80000000-")).expect("a writable file");
    assert_ne!(fs::read_to_string(&map).expect("text"), before);
    let (code, said) = symbols(&trace, &["-b", utf8(&elf)]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(kernel.replay(), REPLAY);
    assert_eq!(fs::read_to_string(&map).expect("text"), before);
}

/// A program at the place that synthetic traces have, with debug information; `None` without a compiler.
fn program(folder: &Path, options: &[&str]) -> Option<String> {
    let source = "void leaf(void) { __asm__ volatile(\"\"); }\n\n\
                  void branch(void) { leaf(); }\n\
                  void _start(void) { branch(); }\n";
    fs::write(folder.join("prog.c"), source).expect("a writable folder");
    let mut gcc = Command::new("gcc");
    gcc.current_dir(folder).args("-O0 -g -nostdlib -static-pie -fPIE -Wl,--build-id=sha1 -o prog prog.c".split(' '));
    text(gcc.args(options))?;
    Some(folder.join("prog").to_str().expect("UTF-8").to_owned())
}

/// Addresses of its functions relative to its beginning.
fn offset(program: &str, name: &str) -> u64 {
    let listed = text(Command::new("nm").arg(program)).unwrap_or_default();
    let line = listed.lines().find(|line| line.ends_with(&format!(" {name}"))).expect("a function");
    u64::from_str_radix(&line[..16], 16).expect("an address")
}

/// A trace of that program, named `/bin/prog`, without symbols.
fn trace_of(program: &str, build_id: Option<&str>) -> dir::Dir {
    let at = |name| dir::BASE + offset(program, name);
    let records = [
        dir::entry(1000, 0, at("branch")),
        dir::entry(2000, 1, at("leaf")),
        dir::exit(3000, 1, at("leaf")),
        dir::exit(5000, 0, at("branch")),
    ];
    let mut files = Files::new(&[(7, &records)]);
    files.0.remove("prog.sym");
    let map = files.0.get_mut(&format!("sid-{}.map", dir::SID)).expect("a map");
    if let Some(id) = build_id {
        *map = String::from_utf8_lossy(map).replace("/bin/prog", &format!("/bin/prog build-id:{id}")).into();
    }
    files.write()
}

fn build_id(program: &str) -> String {
    let notes = text(Command::new("readelf").args(["-nW", program])).unwrap_or_default();
    let (_, id) = notes.split_once("Build ID: ").expect("a build-id");
    id.lines().next().expect("a line").trim().to_owned()
}

#[test]
fn a_program_of_another_machine_with_its_lines() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = program(folder.path(), &[]) else { return };
    let id = build_id(&program);
    // Found by its build-id, by its name, and by its addresses.
    let renamed = folder.path().join("renamed");
    fs::copy(&program, &renamed).expect("a copy");
    for (binary, build_id) in [(program.as_str(), Some(&*id)), (&program, None), (utf8(&renamed), None)] {
        let trace = trace_of(&program, build_id);
        let (code, said) = symbols(trace.path(), &["-b", binary]);
        assert_eq!(code, 0, "{said}");
        assert!(said.contains("prog.sym: 3 functions, source lines of 3"), "{said}");
        let tree = rftrace_views::CallTree::read(&trace.open(), &trace.open().tasks()[0]).expect("records").to_string();
        assert!(tree.contains("branch") && tree.contains("leaf"), "{tree}");
        let lines = fs::read_to_string(trace.file("prog.dbg")).expect("lines");
        let source = folder.path().join("prog.c");
        let expected = format!("F: {:x} branch\nL: 3 {}\n", offset(&program, "branch"), source.display());
        assert!(lines.contains(&expected) && lines.starts_with("# path name: /bin/prog\n"), "{lines}");
        assert_eq!(lines.contains(&format!("# build-id: {id}\n")), build_id.is_some());
        let mut uftrace = Command::new("uftrace");
        uftrace.args(["replay", "--no-pager", "--color=no", "--srcline", "-f", "none", "-d"]).arg(trace.path());
        if let Some(replayed) = text(&mut uftrace) {
            assert!(replayed.contains(&format!("leaf(); /* {}:1 */", source.display())), "{replayed}");
        }
        // Without lines the old ones go only if they are replaced.
        assert_eq!(symbols(trace.path(), &["-b", binary, "--no-lines", "-q"]), (0, String::new()));
        assert!(!trace.file("prog.part").exists());
    }
}

/// The types of values stay in the file that gets source lines.
#[test]
fn values_are_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = program(folder.path(), &[]) else { return };
    let trace = trace_of(&program, None);
    let branch = offset(&program, "branch");
    let values = format!("F: {branch:x} branch\nA: @arg1/t4:P,arg2/e:E\n");
    let named = "# layout P (P|x=i32@0)\nE: enum E {A=1}\n";
    fs::write(trace.file("prog.dbg"), format!("# path name: /bin/prog\n{values}{named}")).expect("a writable file");
    assert_eq!(symbols(trace.path(), &["-b", &program, "-q"]), (0, String::new()));
    let lines = fs::read_to_string(trace.file("prog.dbg")).expect("lines");
    assert!(lines.contains("L: 3 ") && lines.contains(&values) && lines.contains(named), "{lines}");
}

/// Without a file of them in the trace, the program's own debug information tells the lines, if it is still the same.
#[test]
fn lines_of_a_program_that_is_here() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = program(folder.path(), &[]) else { return };
    let id = build_id(&program);
    let here = |id: &str| {
        let trace = trace_of(&program, Some(id));
        let map = trace.file(&format!("sid-{}.map", dir::SID));
        let text = fs::read_to_string(&map).expect("a map").replace("/bin/prog", &program);
        fs::write(&map, text).expect("a writable file");
        trace
    };
    let trace = here(&id);
    assert_eq!(symbols(trace.path(), &["-b", &program, "--no-lines", "-q"]), (0, String::new()));
    let (code, replayed, said) = run(&["replay", "--srcline", utf8(trace.path())]);
    assert_eq!((code, said.as_str()), (Some(0), ""));
    let source = folder.path().join("prog.c");
    assert!(replayed.contains(&format!("| branch() {{ /* {}:3 */\n", source.display())), "{replayed}");
    assert!(replayed.contains(&format!("|   leaf(); /* {}:1 */\n", source.display())), "{replayed}");
    // The program was built again since.
    let module = &trace.open().sessions()[0].mappings[0].clone();
    assert!(rftrace_symbols::source_lines(module, false).is_some());
    for (path, build_id) in
        [(&program, "0123456789012345678901234567890123456789"), (&"/nonexistent".to_owned(), id.as_str())]
    {
        let module = Mapping { path: path.clone(), build_id: Some(build_id.to_owned()), ..module.clone() };
        assert_eq!(rftrace_symbols::source_lines(&module, true), None);
    }
}

#[test]
fn wrong_binaries() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = program(folder.path(), &[]) else { return };
    let refused = |trace: &dir::Dir, arguments: &[&str], parts: &[&str]| {
        let (code, said) = symbols(trace.path(), arguments);
        assert_eq!((code, said.lines().count()), (1, 1), "{said}");
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
        assert!(!trace.file("prog.sym").exists() && !trace.file("prog.dbg").exists(), "nothing is written");
    };
    let other_build = trace_of(&program, Some("0123456789012345678901234567890123456789"));
    refused(&other_build, &["-b", &program], &["/prog: its build-id is ", "is 0123456789", "of that build"]);
    let trace = trace_of(&program, None);
    refused(
        &trace,
        &["-b", &program, "--load-address", "0x10000"],
        &["none of the 2 called addresses", "at 0x10000", "--load"],
    );
    refused(&trace, &["-b", "/nonexistent"], &["/nonexistent: No such file"]);
    let source = folder.path().join("prog.c");
    refused(&trace, &["-b", utf8(&source)], &["prog.c: ", "give a 64-bit ELF file"]);
    // The second one is wrong: nothing is written for the first.
    refused(&trace, &["-b", &program, "-b", &program], &["not one of the trace's modules: prog"]);
    text(Command::new("strip").current_dir(&folder).args(["-o", "stripped", "prog"]));
    refused(&trace, &["-b", utf8(&folder.path().join("stripped"))], &["the file has no symbols"]);
    let no_trace = symbols(folder.path(), &["-b", &program]);
    assert!(no_trace.0 == 1 && no_trace.1.contains("is this a trace directory"), "{}", no_trace.1);
    let (code, said) = symbols(trace.path(), &["-b", &program, "-b", &program, "--load-address", "1"]);
    assert!(code == 2 && said.contains("takes one binary"), "{said}");
    assert_eq!(symbols(trace.path(), &[]).0, 2);
}

#[test]
fn another_module_of_the_same_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = program(folder.path(), &[]) else { return };
    let trace = trace_of(&program, None);
    let other = "# symbols: 1\n# path name: /opt/prog\n0000000000000010 T other\n0000000000000020 ? __func_end\n";
    fs::write(trace.file("prog.sym"), other).expect("a writable folder");
    let (code, said) = symbols(trace.path(), &["-b", &program]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(fs::read_to_string(trace.file("prog.sym")).expect("text"), other);
    assert!(
        rftrace_views::CallTree::read(&trace.open(), &trace.open().tasks()[0])
            .expect("records")
            .to_string()
            .contains("branch")
    );
}

#[test]
fn a_directory_that_cannot_be_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = program(folder.path(), &[]) else { return };
    let trace = trace_of(&program, None);
    // In place of the file that becomes it is a folder.
    fs::create_dir(trace.file(".rftrace-new")).expect("a writable folder");
    let (code, said) = symbols(trace.path(), &["-b", &program]);
    assert!(code == 1 && said.contains("prog.sym: Is a directory"), "{said}");
}
