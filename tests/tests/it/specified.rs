//! `rftrace record --resources FILE.toml`, and the specifications that are built in: functions of any library are counted, and programs do as
//! they do without.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use rftrace_tests::fixtures::folder;
use rftrace_tests::{CProgram, Program, require, tools};
use serde_json::Value;
use tempfile::TempDir;

use super::record::rftrace;
use super::resources::{functions, record_kinds, resources, sums, values};

/// A C++ program with the library of a pool.
fn pool_user() -> &'static Path {
    static BUILT: OnceLock<[Program; 2]> = OnceLock::new();
    let build = || {
        let library = CProgram::new(&["pool_library.cpp"]).without_hooks().without_library();
        let library = library.with(&["-shared", "-fPIC", "-O1", "-g", "-w"]).build();
        let path = library.path.to_str().unwrap();
        let user = CProgram::new(&["pool_user.cpp"]).without_hooks().without_library();
        let user = user.with(&["-g", "-O1", "-pthread", "-Wl,--no-as-needed", path]).build();
        [library, user]
    };
    &BUILT.get_or_init(build)[1].path
}

fn c_program() -> &'static Path {
    static BUILT: OnceLock<Program> = OnceLock::new();
    let build = || {
        CProgram::new(&["specified.c"])
            .without_hooks()
            .without_library()
            .with(&["-g", "-O1", "-fno-builtin", "-w"])
            .build()
    };
    &BUILT.get_or_init(build).path
}

fn specification() -> PathBuf {
    folder("specifications").join("pool.toml")
}

/// Returns the message about a wrong specification.
#[track_caller]
fn refused(text: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("own.toml"), text).unwrap();
    let mut command = Command::new(rftrace());
    command.args(["record", "--resources", "own.toml", "-o", "trace"]).arg(pool_user()).current_dir(folder.path());
    let output = command.output().unwrap();
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert!(!folder.path().join("trace").exists());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn counted(values: &Value, kind: &str) -> [u64; 4] {
    ["allocations", "allocated_bytes", "blocks", "bytes"].map(|key| values[kind][key].as_u64().unwrap())
}

#[test]
fn a_pool_of_the_users_own_is_counted() {
    if !require(&["g++"]) {
        return;
    }
    let kinds = format!("memory,{}", specification().display());
    let (folder, told) = record_kinds(&kinds, &[], pool_user(), &[]);
    let values = values(&folder, &["--kind", "block,ticket"]);
    // 30 and 16 bytes, 100 that become 200, three objects of 40, and those of the threads.
    let bytes = 30 + 16 + 100 + 200 + 120 + 20_000 * 16;
    assert_eq!(counted(&values, "block"), [20_005, bytes, 1, 30], "{values:#}\n{told}");
    assert_eq!(sums(&values, &["leak", "main"]), [1, 30, 1, 30], "{values:#}");
    let stacks = values["stacks"].as_array().unwrap();
    let stack = stacks.iter().find(|stack| functions(stack).contains(&"leak")).unwrap();
    // Nothing of what records it is in the stack.
    assert_eq!(functions(stack)[..2], ["leak", "main"], "{stack:#}");
    // Both of a pair, of which one is given back, and a note.
    assert_eq!(counted(&values, "ticket")[0], 3, "{values:#}");
    let held: Vec<&Value> = stacks
        .iter()
        .filter(|stack| stack["kind"] == "ticket")
        .flat_map(|stack| stack["held"].as_array().unwrap())
        .collect();
    assert_eq!(held.iter().map(|held| held["id"].as_u64().unwrap()).collect::<Vec<_>>(), [101], "{values:#}");
    assert_eq!(
        (&values["block"]["unknown_releases"], &values["block"]["doubled"]),
        (&0.into(), &0.into()),
        "{values:#}"
    );

    let leaks = resources(&folder, &["--leaks", "--kind", "block"]);
    let told = String::from_utf8_lossy(&leaks.stderr).into_owned();
    assert!(
        leaks.status.code() == Some(1) && told.contains("block: 30 bytes in 1 block were not given back"),
        "{told}"
    );
    // Arguments are told where calls are.
    let text =
        String::from_utf8_lossy(&resources(&folder, &["--text", "functracer", "--kind", "block"]).stdout).into_owned();
    assert!(text.contains(" pool_get(30) = 0x") && text.contains(" (pool: 1)\n"), "{text}");
    let output = resources(&folder, &["--kind", "blocks"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("the trace has no blocks, and has memory, block, ticket: "), "{told}");
}

/// Checks `block` of a specification in a recording: taken, bytes of that, there, bytes of that.
#[track_caller]
fn check_blocks(specification: &Path, program: &Path, arguments: &[&str], expected: [u64; 4]) -> Value {
    let kinds = format!("memory,{}", specification.display());
    let (folder, told) = record_kinds(&kinds, &[], program, arguments);
    assert!(!told.contains("not seen") && !told.contains("cannot record calls"), "{told}");
    let values = values(&folder, &["--kind", "block"]);
    assert_eq!(counted(&values, "block"), expected, "{values:#}\n{told}");
    assert_eq!(
        (&values["block"]["unknown_releases"], &values["block"]["doubled"]),
        (&0.into(), &0.into()),
        "{values:#}"
    );
    values
}

/// Of functions that only their module calls, by a library's own handle, and by names: each call counts, and once.
#[test]
fn calls_within_a_module_are_seen() {
    if !require(&["gcc"]) {
        return;
    }
    let specification = folder("specifications").join("own_pool.toml");
    // Known to its callers a function need not keep to the conventions, and recursion stays one.
    let with = ["-g", "-O2", "-fno-optimize-sibling-calls"];
    let program = CProgram::new(&["own_pool.c"]).without_hooks().without_library();
    let program = program.with(&with).with(&["-DPROGRAM"]).build();
    let values = check_blocks(&specification, &program.path, &[], [103, 1600 + 30 + 30 + 7, 2, 37]);
    assert_eq!(sums(&values, &["use_pool", "main"]), [103, 1667, 2, 37], "{values:#}");
    assert_eq!(functions(&values["stacks"][0])[0], "use_pool", "{values:#}");

    for linkage in [&["-Wl,-Bsymbolic"][..], &[]] {
        let library = CProgram::new(&["own_pool.c"]).without_hooks().without_library();
        let library = library.with(&with).with(&["-shared", "-fPIC"]).with(linkage).build();
        let path = library.path.to_str().unwrap();
        let user =
            CProgram::new(&["own_pool_user.c"]).without_hooks().without_library().with(&with).with(&[path]).build();
        check_blocks(&specification, &user.path, &[path], [105, 1667 + 500 + 600, 3, 637]);
    }
}

#[test]
fn calls_within_programs_in_cpp_and_rust_are_seen() {
    if !require(&["g++", "rustc"]) {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let specify = |make: &str, size: &str, drop: [&str; 2]| {
        let path = place.path().join("own.toml");
        let [drop, id] = drop;
        let text = format!(
            "name = \"pool\"\n[[resource]]\nname = \"block\"\n[[function]]\nsymbol = \"{make}\"\nkind = \"alloc\"\nsize = \"{size}\"\n\
             id = \"ret\"\n[[function]]\nsymbol = \"{drop}\"\nkind = \"free\"\nid = \"{id}\"\n"
        );
        fs::write(&path, text).unwrap();
        path
    };
    let program = CProgram::new(&["own_pool_cpp.cpp"]).without_hooks().without_library().with(&["-g", "-O2"]).build();
    let specification = specify("pool::Pool::make", "arg1", ["pool::Pool::drop", "arg1"]);
    check_blocks(&specification, &program.path, &[], [5, 510, 1, 100]);

    let mut rustc = Command::new("rustc");
    rftrace_tests::fixtures::without_settings(&mut rustc);
    rustc.args(["--edition=2024", "-O", "-g", "--out-dir"]).arg(place.path()).arg(folder("").join("own_pool.rs"));
    tools::run(&mut rustc);
    let specification = specify("own_pool::get", "arg0", ["own_pool::put", "arg0"]);
    check_blocks(&specification, &place.path().join("own_pool"), &[], [10, 550, 2, 30]);
}

/// A function without a branch is named with the reason: here assembly that says nothing of where it ends.
#[test]
fn what_can_have_no_branch_has_its_reason() {
    if !require(&["gcc"]) {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let source = place.path().join("bare.c");
    let text = "asm(\".globl bare\\n.type bare, @function\\nbare: mov $7, %eax\\nret\\n.size bare, . - bare\");\n\
                int bare(void);\nint main(void) { return bare() - 7; }\n";
    fs::write(&source, text).unwrap();
    let program = place.path().join("bare");
    tools::run(Command::new("gcc").arg("-O2").arg("-o").args([&program, &source]));
    let specification = place.path().join("bare.toml");
    let text = "name = \"bare\"\n[[resource]]\nname = \"call\"\n[[function]]\nsymbol = \"bare\"\nkind = \"note\"\n";
    fs::write(&specification, text).unwrap();
    let (_, told) = record_kinds(&specification.display().to_string(), &[], &program, &[]);
    assert!(told.contains("bare") && told.contains("no unwind information names its end"), "{told}");
}

#[test]
fn what_is_wrong_with_a_specification_is_told_before_anything_runs() {
    if !require(&["g++"]) {
        return;
    }
    let text = fs::read_to_string(specification()).unwrap();
    let told = refused(&text.replace("\"pool_get\"", "\"pool_gett\""));
    assert!(
        told.contains("own.toml:11: there is no function pool_gett") && told.contains("the nearest is pool_get"),
        "{told}"
    );
    let told = refused(&text.replace("arg1 * arg2", "arg1 x arg2"));
    assert!(told.contains("own.toml:14: `arg1 x arg2`: unexpected `x`"), "{told}");
    let told = refused(&text.replace("symbol = \"pool_drop\"", "symbol = \"pool_put\""));
    assert!(told.contains("pool_put is already specified at own.toml:28"), "{told}");
    let told = refused(&format!(
        "{text}\n[[function]]\nsymbol = \"f\"\nlibrary = \"libnothing.so*\"\nresource = \"block\"\nkind = \"note\"\n"
    ));
    assert!(told.contains("loads no library libnothing.so*"), "{told}");
    // An optional function may be missing.
    let folder = tempfile::tempdir().unwrap();
    let optional = "[[function]]\nsymbol = \"f\"\noptional = true\nresource = \"block\"\nkind = \"note\"\n";
    fs::write(folder.path().join("own.toml"), format!("{text}\n{optional}")).unwrap();
    let mut command = Command::new(rftrace());
    command.args(["record", "--resources", "own.toml", "-o", "trace"]).arg(pool_user()).current_dir(folder.path());
    assert_eq!(command.output().unwrap().status.code(), Some(3));
}

/// A pattern for everything leaves out functions that nothing can stand for: programs do as they do without.
#[test]
fn all_functions_of_programs_as_distributed() {
    let place = tempfile::tempdir().unwrap();
    let all = place.path().join("all.toml");
    let text = "[[resource]]\nname = \"any\"\n[[function]]\nsymbol = \"*\"\n";
    for rest in ["kind = \"alloc\"\nid = \"ret\"\n", "kind = \"note\"\nbefore = true\n"] {
        fs::write(&all, format!("{text}{rest}")).unwrap();
        for program in [&["/bin/ls", "/"][..], &["/bin/sh", "-c", "echo $((6 * 7)); exit 3"], &["git", "--version"]] {
            if program[0] == "git" && !require(&["git"]) {
                continue;
            }
            let plain = Command::new(program[0]).args(&program[1..]).output().unwrap();
            let trace = place.path().join("trace");
            let _ = fs::remove_dir_all(&trace);
            let mut command = Command::new(rftrace());
            command.args(["record", "--resources"]).arg(&all).arg("-o").arg(&trace).args(program);
            let output = command.output().unwrap();
            assert_eq!((output.status.code(), &output.stdout), (plain.status.code(), &plain.stdout), "{output:?}");
            assert!(trace.join("resources.dat").is_file(), "{output:?}");
        }
    }
}

fn functracer(plugin: &str, way: &str) -> (TempDir, Output) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(rftrace());
    command.args(["functracer", "-s", "-r", "-t", "1", "-e", plugin]).arg(c_program()).arg(way);
    let output = command.current_dir(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    (folder, output)
}

/// The calls of functracer's text: function and size.
fn calls(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let call = |line: &str| {
        let (number, call) = line.split_once(". ")?;
        number.parse::<u64>().ok()?;
        Some(call.split(" = ").next()?.to_owned())
    };
    text.lines().filter_map(call).collect()
}

#[test]
fn what_is_moved_in_memory_is_told_as_by_functracer() {
    if !require(&["gcc"]) {
        return;
    }
    let (_folder, output) = functracer("/usr/lib/functracer/memtransfer.so", "memtransfer");
    let expected = [
        "memcpy(7)",
        "memmove(5)",
        "memset(33)",
        "mempcpy(3)",
        "memccpy(9)",
        "bcopy(4)",
        "bzero(5)",
        "strcpy(10)",
        "strcat(13)",
        // Of these the result's length, which has the rest of what was there.
        "strncpy(13)",
        "strncat(15)",
        "stpcpy(4)",
        "stpncpy(2)",
        "strdup(10)",
        "strndup(4)",
        "wmemcpy(12)",
        "wmemmove(8)",
        "wmemset(32)",
        "wmempcpy(4)",
        "wcscpy(20)",
        "wcscat(28)",
        "wcsncpy(28)",
        "wcsncat(32)",
        "wcsdup(20)",
        "wcpcpy(12)",
        "wcpncpy(8)",
    ];
    // The program's startup may do so too.
    let calls = calls(&output);
    let first = calls.len().saturating_sub(expected.len());
    assert_eq!(calls[first..], expected, "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains(": main+0x"), "{text}");
}

/// Functions that need no specification are recorded as without one, also where a specification has the same functions.
#[test]
fn functions_that_are_recorded_in_any_case() {
    if !require(&["gcc"]) {
        return;
    }
    let own = tempfile::tempdir().unwrap();
    let path = own.path().join("text.toml");
    fs::write(&path, super::attach_resources::specified("strdup", "free")).unwrap();
    for (kind, way, more, specified) in
        [("memory", "memtransfer", path.to_str().unwrap(), "text"), ("file", "shm", "shmposix", "shm-mapping")]
    {
        let alone = values(&record_kinds(kind, &[], c_program(), &[way]).0, &[]);
        let (folder, told) = record_kinds(&format!("{kind},{more}"), &[], c_program(), &[way]);
        let found = values(&folder, &[]);
        let totals = |found: &Value| {
            ["allocations", "releases", "bytes", "failures"].map(|key| found[kind][key].as_u64().unwrap_or_default())
        };
        assert!(totals(&alone)[1] > 0, "{alone:#}");
        assert_eq!(totals(&found), totals(&alone), "{found:#}\n{told}");
        // Frames of what has recorded the call first are none of the stack's.
        assert!(!found.to_string().contains("rftrace-preload") && !found.to_string().contains(".so+0x"), "{found:#}");
        assert!(counted(&found, specified)[0] > 0, "{found:#}");
    }
}

#[test]
fn mappings_and_shared_memory_are_counted() {
    if !require(&["gcc"]) {
        return;
    }
    let (folder, told) = record_kinds("mmap", &[], c_program(), &["mmap"]);
    let found = values(&folder, &[]);
    assert_eq!(sums(&found, &["mappings"]), [3, 3 * 4096 + 4096 + 2 * 4096, 1, 3 * 4096], "{found:#}\n{told}");
    let (folder, told) = record_kinds("shmsysv,shmposix", &[], c_program(), &["shm"]);
    let found = values(&folder, &[]);
    assert_eq!(counted(&found, "shmsysv")[2], 1, "{found:#}\n{told}");
    assert_eq!(counted(&found, "shm-mapping"), [2, 8192 + 4096, 1, 8192], "{found:#}\n{told}");
    let text = String::from_utf8_lossy(&resources(&folder, &["--text", "sp-rtrace"]).stdout).into_owned();
    assert!(
        text.contains(": shm-mapping (mappings of shared memory)\n") && text.contains("\t$name = /rftrace-test-"),
        "{text}"
    );
}

#[test]
fn objects_of_gobject_are_counted_by_their_references() {
    if !require(&["gcc", "pkg-config"]) {
        return;
    }
    let flags = Command::new("pkg-config").args(["--cflags", "--libs", "gobject-2.0"]).output().unwrap();
    if !flags.status.success() {
        tools::missing("libglib2.0-dev");
        return;
    }
    let flags = String::from_utf8(flags.stdout).unwrap();
    let flags: Vec<&str> = ["-g", "-O1", "-Wl,--no-as-needed"].into_iter().chain(flags.split_whitespace()).collect();
    let program = CProgram::new(&["gobject.c"]).without_hooks().without_library().with(&flags).build();
    let (folder, told) = record_kinds("gobject", &[], &program.path, &[]);
    let found = values(&folder, &[]);
    // One is kept; 1000, a holder with its child, and one more are given back.
    assert_eq!(counted(&found, "gobject"), [1004, 4 * 1004, 1, 4], "{found:#}\n{told}");
    assert_eq!(found["gobject"]["unknown_releases"], 0, "{found:#}");
    assert_eq!(sums(&found, &["keep", "main"])[2], 1, "{found:#}");
    let text = String::from_utf8_lossy(&resources(&folder, &["--text", "sp-rtrace"]).stdout).into_owned();
    assert!(text.contains(": gobject (references to objects of GObject) [refcount]\n"), "{text}");
}
