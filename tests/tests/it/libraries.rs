//! `rftrace record --resources library`: what `dlopen` has loaded is counted, and found where it is found without.

use std::fs;
use std::path::Path;
use std::process::Command;

use rftrace_tests::fixtures::folder;
use rftrace_tests::require;

use super::resources::{functions, record_kinds, resources, values};

#[track_caller]
fn build(out: &Path, arguments: &[&str]) {
    let mut gcc = Command::new("gcc");
    gcc.args(["-g", "-O1", "-o"]).arg(out).args(arguments).current_dir(folder("c"));
    assert!(gcc.status().unwrap().success(), "{gcc:?}");
}

#[test]
fn libraries_are_there_until_they_were_closed_as_often_as_opened() {
    if !require(&["gcc"]) {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    fs::create_dir(at("sought")).unwrap();
    let shared = ["-shared", "-fPIC"];
    for name in ["libone.so", "libtwo.so", "sought/libsought.so"] {
        build(&at(name), &[&shared[..], &["-x", "c", "/dev/null"]].concat());
    }
    let path = place.path().to_str().unwrap();
    let its_folder = format!("-DFOLDER=\"{path}\"");
    build(&at("libnesting.so"), &[&shared[..], &[&its_folder, "libraries_nesting.c"]].concat());
    // The functions of a specification count for libraries too.
    let specified = at("close.toml");
    fs::write(&specified, super::attach_resources::specified("strdup", "dlclose")).unwrap();
    let both = format!("library,{}", specified.display());
    // The present kind of search paths, and the older one.
    for (tags, kinds) in [("enable", "library"), ("disable", "library"), ("disable", &both)] {
        let program = at(tags);
        build(&program, &["libraries.c", &format!("-Wl,--{tags}-new-dtags,-rpath,$ORIGIN/sought"), "-ldl"]);
        // The program's output is compared with that of a run alone: so each name leads to the same library, or to none.
        let (folder, told) = record_kinds(kinds, &[], &program, &[path]);
        let found = values(&folder, &[]);
        // The first, the second, that in a space of its own, the nesting one, and what that opens. What was sought by the program's own path
        // is not counted; that and the program itself are closed.
        let library = &found["library"];
        let numbers = ["allocations", "releases", "blocks", "unknown_releases", "doubled"];
        assert_eq!(numbers.map(|name| library[name].as_u64().unwrap()), [5, 2, 3, 2, 0], "{found:#}\n{told}");
        let mut held: Vec<(&str, &str)> = Vec::new();
        for stack in found["stacks"].as_array().unwrap() {
            let details = stack["held"].as_array().unwrap().iter().map(|held| held["detail"].as_str().unwrap());
            let callers = functions(stack);
            let caller = if callers[0] == "leaf" { callers[1] } else { callers[0] };
            held.extend(details.map(|detail| (detail.strip_prefix(path).unwrap(), caller)));
        }
        held.sort_unstable();
        assert_eq!(held, [("/libnesting.so", "main"), ("/libone.so", "keep"), ("/libtwo.so", "begin")], "{found:#}");
        let leaks = resources(&folder, &["--leaks"]);
        let told = String::from_utf8_lossy(&leaks.stdout).into_owned();
        assert!(
            leaks.status.code() == Some(1) && told.contains(&format!("    [{path}/libone.so]\n    leaf ")),
            "{told}"
        );
        let told = String::from_utf8_lossy(&leaks.stderr).into_owned();
        assert!(told.contains("rftrace: 3 libraries were not given back"), "{told}");
    }
}
