//! A program's calls in the kernel: `kernel-cpu<N>.dat`, and `rftrace record --kernel`.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rftrace_kernel::header::{Header, What};
use rftrace_kernel::names::syscall_address;
use rftrace_kernel::page::{Layout, Page};
use rftrace_read::{Kind, Trace, Warning};
use rftrace_tests::{golden, tools};

const INSTANCES: &str = "/sys/kernel/tracing/instances";

fn replay(trace: &rftrace_read::Trace) -> String {
    let mut out = Vec::new();
    rftrace_views::replay(trace, &Default::default(), &mut out).expect("a replay");
    String::from_utf8_lossy(&out).into_owned()
}

/// The golden trace, in which a file is changed.
fn changed(name: &str, act: impl FnOnce(&mut Vec<u8>)) -> tempfile::TempDir {
    let dir = golden::copy("kernel");
    let path = dir.path().join(name);
    let mut bytes = fs::read(&path).expect("a file");
    act(&mut bytes);
    fs::write(path, bytes).expect("a writable folder");
    dir
}

#[test]
fn damaged_files() {
    let count = |dir: &tempfile::TempDir, warning| Trace::open(dir.path()).expect("a trace").warnings().count(warning);
    let cut = changed("kernel-cpu0.dat", |bytes| bytes.truncate(40));
    assert_eq!(count(&cut, Warning::CorruptStretch), 1);
    let lost = changed("kernel-cpu0.dat", |bytes| bytes[11] |= 1 << 7);
    assert_eq!(count(&lost, Warning::LostKernelRecord), 1);
    // The length of the first event is wrong.
    let wrong = changed("kernel-cpu0.dat", |bytes| bytes[16] = 0);
    assert!(count(&wrong, Warning::CorruptStretch) > 0);
    // Without the feature bit the files are none of the trace.
    let without = changed("info", |bytes| bytes[16] &= !4);
    assert!(!replay(&Trace::open(without.path()).expect("a trace")).contains("linux:"));
    let no_header = changed("kernel_header", |bytes| bytes.truncate(50));
    let error = Trace::open(no_header.path()).expect_err("no formats").to_string();
    assert!(error.contains("kernel_header"), "{error}");
    // Any file may end anywhere.
    for name in ["kernel_header", "kallsyms", "kernel-cpu1.dat"] {
        let length = fs::metadata(golden::copy("kernel").path().join(name)).expect("a file").len();
        for length in (0..length as usize).step_by(37) {
            let dir = changed(name, |bytes| bytes.truncate(length));
            if let Ok(trace) = Trace::open(dir.path()) {
                replay(&trace);
            }
        }
    }
}

/// Whatever the files hold, they are read or an error, and what is shown is balanced.
#[test]
fn changed_files() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 20).expect("64 bits") % below
    };
    let mut n_opened = 0;
    for _ in 0..300 {
        let name = ["kernel-cpu0.dat", "kernel-cpu0.dat", "kernel-cpu1.dat", "kernel_header", "kallsyms"][random(5)];
        let dir = changed(name, |bytes| {
            for _ in 0..=random(8) {
                // Where there is something in a page.
                let place = random(bytes.len().min(300));
                bytes[place] = [0, 0xff, 11, 10, 29, 30, 31, 128][random(8)];
            }
        });
        let Ok(trace) = Trace::open(dir.path()) else { continue };
        n_opened += 1;
        replay(&trace);
        for task in trace.tasks() {
            let mut depth = 0;
            let mut last_ns = 0;
            for record in trace.records(task).map(|record| record.expect("no error")) {
                assert!(record.time_ns >= last_ns);
                last_ns = record.time_ns;
                depth -= i32::from(record.kind == Kind::Exit);
                if matches!(record.kind, Kind::Entry | Kind::Exit) {
                    assert_eq!(i32::from(record.depth), depth);
                }
                depth += i32::from(record.kind == Kind::Entry);
            }
            assert_eq!(depth, 0);
        }
    }
    assert!(n_opened > 200, "{n_opened}");
}

/// An instance of tracefs, without what it is tested with.
struct Instance(PathBuf);

impl Instance {
    /// `None`, and a line that says so, where there is no right to it.
    fn create() -> Option<Self> {
        let path = Path::new(INSTANCES).join(format!("rftrace-test-{}", std::process::id()));
        match fs::create_dir(&path) {
            Ok(()) => Some(Self(path)),
            Err(error) => {
                tools::skip(&format!("there is no right to tracefs: {error}"));
                None
            }
        }
    }

    fn set(&self, name: &str, text: &str) {
        fs::OpenOptions::new()
            .write(true)
            .open(self.0.join(name))
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    /// A file, in one piece.
    fn read(&self, name: &str) -> String {
        let mut bytes = vec![0; 1 << 20];
        let mut file = fs::File::open(self.0.join(name)).expect("a file");
        let mut length = 0;
        loop {
            match file.read(&mut bytes[length..]).expect("text") {
                0 => break,
                n => length += n,
            }
        }
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// The kernel's own text of what it has recorded, and the pages of the same, say the same.
#[test]
fn pages_are_read_as_the_kernel_reads_them() {
    let Some(instance) = Instance::create() else { return };
    instance.set("trace_clock", "x86-tsc");
    let tid = fs::read_link("/proc/thread-self").expect("proc");
    let tid = tid.file_name().and_then(OsStr::to_str).expect("a number").to_owned();
    instance.set("set_event_pid", &tid);
    for event in ["raw_syscalls/sys_enter", "raw_syscalls/sys_exit", "sched/sched_switch"] {
        instance.set(&format!("events/{event}/enable"), "1");
    }
    for _ in 0..300 {
        fs::metadata("/proc/self").expect("proc");
        thread::yield_now();
    }
    let mut sink = fs::OpenOptions::new().write(true).open("/dev/null").expect("a sink");
    for _ in 0..100 {
        sink.write_all(b"x").expect("room");
    }
    // A time that needs more bits than an event has.
    thread::sleep(Duration::from_millis(200));
    instance.set("tracing_on", "0");
    let text = instance.read("trace");
    assert!(!text.contains("LOST"), "{text}");
    let name = instance.0.file_name().and_then(OsStr::to_str).expect("a name");
    if let Some(shown) = crate::import::text(Command::new("trace-cmd").args(["show", "-B", name])) {
        assert_eq!(shown, text, "trace-cmd reads the same");
    }
    // ` tests-123 [001] ..... 60123155530614: sys_enter: NR 72 (…)`
    let line = |line: &str| {
        let (head, rest) = line.split_once(": ")?;
        let (name, _) = rest.split_once(": ")?;
        let mut words = head.split_ascii_whitespace().rev();
        let time: u64 = words.next()?.parse().ok()?;
        let number = rest.split_once("NR ").and_then(|(_, rest)| rest.split([' ', '(']).next()?.parse::<u64>().ok());
        Some((time, name.to_owned(), number))
    };
    let mut expected: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).filter_map(line).collect();
    expected.sort();
    let formats = ["raw_syscalls/sys_enter", "raw_syscalls/sys_exit", "sched/sched_switch"];
    let formats = formats.map(|name| (name, instance.read(&format!("events/{name}/format"))));
    let header = Header::new(&instance.read("events/header_page"), formats).expect("formats");
    assert_eq!(header.layout(), &Layout::USUAL);
    let mut found = Vec::new();
    for processor in fs::read_dir(instance.0.join("per_cpu")).expect("processors") {
        let pipe = processor.expect("a folder").path().join("trace_pipe_raw");
        let mut pipe = fs::OpenOptions::new().read(true).custom_flags(0o4000).open(pipe).expect("records");
        let mut bytes = vec![0; header.layout().page_bytes];
        while let Ok(length @ 1..) = pipe.read(&mut bytes) {
            let mut page = Page::new(&bytes[..length], header.layout()).expect("a page");
            for event in page.by_ref() {
                let told = header.read(event.data).expect("a known event");
                let (name, number) = match told.what {
                    What::Syscall { number } => ("sys_enter", Some(number)),
                    What::SyscallEnd { number } => ("sys_exit", Some(number)),
                    _ => ("sched_switch", None),
                };
                found.push((event.time, name.to_owned(), number));
            }
            assert!(!page.is_wrong() && page.lost().is_none());
        }
    }
    found.sort();
    assert!(found.len() > 800, "{}", found.len());
    let n_writes = found.iter().filter(|(_, name, number)| name == "sys_enter" && *number == Some(1)).count();
    assert!(n_writes >= 100, "{n_writes}");
    assert_eq!(found, expected);
}

const PROGRAM: &str = "#include <fcntl.h>\n#include <pthread.h>\n#include <sys/wait.h>\n#include <unistd.h>\n\
    __attribute__((noinline)) int put(int fd) { return write(fd, \"x\", 1); }\n\
    __attribute__((noinline)) int calc(int n) { volatile int s = 0; while (n--) s += n; return s; }\n\
    void *work(void *fd) { for (int i = 0; i < 50; i++) put(*(int *)fd); return 0; }\n\
    int main(int n, char **arg) {\n\
      int fd = open(\"/dev/null\", O_WRONLY);\n\
      if (n > 1) { put(fd); pause(); }\n\
      for (int i = 0; i < 1000; i++) { put(fd); calc(10); }\n\
      pthread_t t; pthread_create(&t, 0, work, &fd); pthread_join(t, 0);\n\
      if (fork() == 0) { put(fd); _exit(0); }\n\
      wait(0); return 0;\n\
    }\n";

/// The program, built; `None` without a compiler.
fn program() -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("prog.c"), PROGRAM).expect("a writable folder");
    let mut gcc = Command::new("gcc");
    gcc.current_dir(&folder).args(["-pg", "-O1", "-fno-inline", "-o", "prog", "prog.c", "-lpthread"]);
    crate::import::text(&mut gcc).map(|_| folder)
}

fn record_command(folder: &Path, options: &[&str]) -> Command {
    let mut record = Command::new(env!("CARGO_BIN_EXE_rftrace"));
    record.current_dir(folder).arg("record").args(options).args(["-o", "trace", "--", "./prog"]);
    record
}

fn start(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts")
}

/// Waits for its end; its instance is gone then. `None`, and a line that says so, if the kernel may not be traced here.
fn end(child: Child) -> Option<Output> {
    let instance = Path::new(INSTANCES).join(format!("rftrace-{}", child.id()));
    let output = child.wait_with_output().expect("it ends");
    assert!(!instance.exists());
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("cannot record the kernel") && (said.contains("only root") || said.contains("tracefs is")) {
        assert_eq!(said.lines().count(), 1, "{said}");
        assert_eq!(output.status.code(), Some(1));
        tools::skip(said.trim());
        return None;
    }
    Some(output)
}

#[test]
fn system_calls_lie_within_the_functions_that_make_them() {
    let Some(folder) = program() else { return };
    // That of a recorder that is no more: no process has this number.
    let stale = Path::new(INSTANCES).join("rftrace-4194305");
    let _ = fs::create_dir(&stale);
    let options = ["--kernel", "--events=sched,syscalls,irq", "--schedule"];
    let Some(output) = end(start(&mut record_command(folder.path(), &options))) else { return };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains(" calls in the kernel"), "{said}");
    assert!(!stale.exists());
    let dir = folder.path().join("trace");
    let trace = rftrace_read::Trace::open(&dir).expect("a trace");
    assert!(trace.warnings().is_empty(), "{}", trace.warnings());
    let (mut n_writes, mut n_puts, mut n_calcs) = (0, 0, 0);
    for task in trace.tasks() {
        let mut open: Vec<(String, u64, u32)> = Vec::new();
        for record in trace.records(task) {
            let record = record.expect("no error");
            match record.kind {
                Kind::Entry => {
                    let name = trace.function_name(task, record.time_ns, record.addr).into_owned();
                    if name == "linux:sys_write" && open.iter().any(|(name, ..)| name == "put") {
                        // Directly in the function that calls it.
                        assert_eq!(open.last().map(|(name, ..)| name.as_str()), Some("put"));
                        n_writes += 1;
                    }
                    assert_eq!(usize::from(record.depth), open.len());
                    open.last_mut().into_iter().for_each(|around| around.2 += 1);
                    open.push((name, record.time_ns, 0));
                }
                Kind::Exit => {
                    let (name, since, n_calls) = open.pop().expect("an entry");
                    assert!(record.time_ns >= since);
                    match name.as_str() {
                        "put" => {
                            n_puts += 1;
                            assert!(n_calls >= 1);
                        }
                        "calc" => n_calcs += 1,
                        _ => {}
                    }
                }
                Kind::Event | Kind::Lost => {}
            }
        }
        assert!(open.is_empty());
    }
    assert_eq!((n_writes, n_puts, n_calcs), (1051, 1051, 1000));
    let shown = replay(&trace);
    for name in ["linux:sys_wait4", "linux:sys_clone", "/* linux:sched_switch */"] {
        assert!(shown.contains(name), "{name}");
    }
    let mut uftrace = Command::new("uftrace");
    uftrace.args(["replay", "--no-pager", "--color=no", "-d"]).arg(&dir);
    if let Some(replayed) = crate::import::text(&mut uftrace) {
        assert!(replayed.matches("linux:sys_write()").count() >= 1050, "{replayed}");
    }
    let address = syscall_address(1).expect("a call");
    assert!(
        fs::read_to_string(dir.join("kallsyms")).expect("a table").contains(&format!("{address:x} T linux:sys_write"))
    );
}

#[test]
fn without_functions_of_that_name_nothing_is_run() {
    let Some(folder) = program() else { return };
    let Some(output) = end(start(&mut record_command(folder.path(), &["--kernel=no_such_function_*"]))) else { return };
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("no_such_function_*") || said.contains("cannot record kernel functions"), "{said}");
    assert!(!folder.path().join("trace").exists());
    let output = record_command(folder.path(), &["--events=blk"]).output().expect("the command starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("use sched, syscalls or irq"));
}

#[test]
fn a_signal_leaves_no_instance() {
    let Some(folder) = program() else { return };
    let child = start(record_command(folder.path(), &["--kernel", "-q"]).arg("wait"));
    let instance = Path::new(INSTANCES).join(format!("rftrace-{}", child.id()));
    let since = Instant::now();
    while !instance.exists() && since.elapsed() < Duration::from_secs(5) {
        thread::sleep(Duration::from_millis(1));
    }
    let mut kill = Command::new("kill");
    kill.args(["-TERM", &child.id().to_string()]).status().expect("kill");
    let Some(output) = end(child) else { return };
    let said = String::from_utf8_lossy(&output.stderr);
    // Before the program was started, or as if it had got the signal.
    assert!(matches!(output.status.code(), Some(1 | 143)), "{:?} {said}", output.status);
}

#[test]
fn what_a_killed_recorder_has_left_is_removed() {
    let Some(folder) = program() else { return };
    let mut child = start(record_command(folder.path(), &["--kernel", "--events=sched", "-q"]).arg("wait"));
    let left = Path::new(INSTANCES).join(format!("rftrace-{}", child.id()));
    // The recorder's children: the program. It is started when all is ready.
    let id = child.id();
    let programs = || fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    while programs().is_empty() && child.try_wait().expect("a child").is_none() {
        thread::sleep(Duration::from_millis(1));
    }
    let program = programs();
    if program.is_empty() {
        end(child);
        return;
    }
    // The program goes on.
    child.kill().expect("a child");
    child.wait().expect("it ends");
    // The program goes on, so its directory is in use.
    let Some(other) = self::program() else { return };
    let Some(output) = end(start(&mut record_command(other.path(), &["--kernel", "-q"]))) else { return };
    assert!(output.status.success(), "{output:?}");
    assert!(!left.exists());
    for pid in program.split_ascii_whitespace() {
        Command::new("kill").args(["-KILL", pid]).status().expect("kill");
    }
}
