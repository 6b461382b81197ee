//! A program's calls in the kernel: `kernel-cpu<N>.dat`, and `rftrace record --kernel`.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rftrace_kernel::convert::convert;
use rftrace_kernel::header::{Header, What};
use rftrace_kernel::names::{Functions, syscall_address};
use rftrace_kernel::page::{Layout, Page, PageWriter};
use rftrace_read::{Kind, Warning};
use rftrace_tests::tools;

use crate::dir::{A, Files, MAIN, entry, exit};

const INSTANCES: &str = "/sys/kernel/tracing/instances";

const COMMON: &str = "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
    \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
    \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
    \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n";
const PAGE: &str = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
    \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
    \tfield: char data;\toffset:16;\tsize:4080;\tsigned:0;\n";

/// A function of the kernel, and one that it calls.
const VFS_WRITE: u64 = 0xffff_ffff_8100_0100;
const SECURITY: u64 = 0xffff_ffff_8100_0200;
const SYMBOLS: &[u8] = b"ffffffff81000100 T vfs_write\nffffffff81000200 t security_file\nffffffff81000300 T other\n";

const SYS_ENTER: u16 = 443;
const SYS_EXIT: u16 = 442;
const FUNCTION: u16 = 1;
const IRQ: u16 = 225;

/// A kernel's description of its events.
fn header() -> Header {
    let format = |name: &str, id: u16, fields: &[&str]| {
        let field = |(place, name): (usize, &&str)| {
            format!("\tfield:unsigned long {name};\toffset:{};\tsize:8;\tsigned:0;\n", 8 + 8 * place)
        };
        let fields: String = fields.iter().enumerate().map(field).collect();
        format!("name: {name}\nID: {id}\nformat:\n{COMMON}{fields}\nprint fmt: \"irq=%d\", REC->common_pid\n")
    };
    let formats = [
        ("raw_syscalls/sys_enter", format("sys_enter", SYS_ENTER, &["id"])),
        ("raw_syscalls/sys_exit", format("sys_exit", SYS_EXIT, &["id"])),
        ("ftrace/function", format("function", FUNCTION, &["ip", "parent_ip"])),
        ("irq/irq_handler_entry", format("irq_handler_entry", IRQ, &["irq"])),
    ];
    Header::new(PAGE, formats).expect("formats")
}

fn record(id: u16, tid: u32, values: &[u64]) -> Vec<u8> {
    let head = [&id.to_le_bytes()[..], &[0, 0], &tid.to_le_bytes()].concat();
    head.into_iter().chain(values.iter().flat_map(|value| value.to_le_bytes())).collect()
}

/// A trace of tasks 7 and 8, with what a kernel has recorded on each processor.
fn files(processors: &[&[(u64, Vec<u8>)]]) -> Files {
    let first = [entry(100, 0, MAIN), entry(200, 1, A), exit(600, 1, A), exit(900, 0, MAIN)];
    let mut files = Files::new(&[(7, &first), (8, &[entry(300, 0, A), exit(500, 0, A)])]);
    files.0.get_mut("info").expect("a file")[16] |= 1 << 2;
    let raw: Vec<Vec<u8>> = processors
        .iter()
        .map(|records| {
            let mut out = PageWriter::new(Vec::new());
            records.iter().for_each(|(time, record)| out.event(*time, record).expect("memory"));
            out.finish().expect("memory")
        })
        .collect();
    let mut outs = vec![Vec::new(); raw.len()];
    let functions = Functions::parse(SYMBOLS);
    let sources = raw.iter().map(Vec::as_slice).zip(&mut outs).collect();
    let converted = convert(sources, &header(), &functions, |time| time).expect("memory");
    for (place, out) in outs.into_iter().enumerate() {
        files.0.insert(format!("kernel-cpu{place}.dat"), out);
    }
    files.0.insert("kernel_header".into(), converted.header.to_string().into());
    files.0.insert("kallsyms".into(), functions.table(converted.addresses).into());
    files
}

fn replay(trace: &rftrace_read::Trace) -> String {
    let mut out = Vec::new();
    rftrace_views::replay(trace, &Default::default(), &mut out).expect("a replay");
    String::from_utf8_lossy(&out).into_owned()
}

/// System calls of a task, one of them with functions of the kernel, on two processors.
fn example() -> Files {
    files(&[
        &[
            (50, record(SYS_ENTER, 7, &[2])),
            (60, record(SYS_EXIT, 7, &[2])),
            (210, record(SYS_ENTER, 7, &[1])),
            (220, record(FUNCTION, 7, &[VFS_WRITE + 4, 0])),
            (230, record(FUNCTION, 7, &[SECURITY, VFS_WRITE + 30])),
            (240, record(FUNCTION, 99, &[SECURITY, VFS_WRITE + 30])),
        ],
        &[
            (250, record(IRQ, 7, &[5])),
            (350, record(SYS_EXIT, 7, &[1])),
            (400, record(FUNCTION, 8, &[VFS_WRITE, 0])),
            // The task has ended without telling.
            (700, record(SYS_ENTER, 7, &[231])),
        ],
    ])
}

#[test]
fn the_kernel_lies_below_the_program() {
    let trace = example().write();
    let opened = trace.open();
    assert!(opened.warnings().is_empty(), "{}", opened.warnings());
    let expected = "\
# DURATION     TID     FUNCTION
            [     7] | main() {
            [     7] |   a() {
            [     7] |     linux:sys_write() {
            [     7] |       vfs_write() {
            [     7] |         security_file() {
            [     7] |           /* linux:irq_handler_entry */
            [     8] | a() {
   0.120 us [     7] |         } /* security_file */
   0.130 us [     7] |       } /* vfs_write */
   0.140 us [     7] |     } /* linux:sys_write */
            [     8] |   vfs_write();
   0.200 us [     8] | } /* a */
   0.400 us [     7] |   } /* a */
            [     7] |   linux:sys_exit_group();
   0.800 us [     7] | } /* main */
";
    let shown = replay(&opened);
    // How long a point takes is shown in one way or another.
    let plain = |text: &str| text.replace("   0.000 us [", "            [");
    assert_eq!(plain(&shown), expected);
    let mut uftrace = Command::new("uftrace");
    uftrace.args(["replay", "--no-pager", "--color=no", "-d"]).arg(trace.path());
    if let Some(replayed) = crate::import::text(&mut uftrace) {
        for call in ["linux:sys_write", "vfs_write", "security_file"] {
            assert_eq!(replayed.matches(&format!("{call}() {{")).count(), 1, "{replayed}");
        }
    }
}

#[test]
fn a_part_of_the_trace_has_the_kernel_too() {
    let trace = example().write();
    let to = tempfile::tempdir().expect("a folder");
    let part = to.path().join("part");
    rftrace_export::write_directory(&trace.open(), &Default::default(), &part).expect("a directory");
    let part = rftrace_read::Trace::open(&part).expect("a trace");
    assert_eq!(replay(&part), replay(&trace.open()));
}

#[test]
fn damaged_files() {
    let whole = example();
    let count = |files: &Files, warning| files.write().open().warnings().count(warning);
    let change = |name: &str, act: &dyn Fn(&mut Vec<u8>)| {
        let mut files = whole.clone();
        act(files.0.get_mut(name).expect("a file"));
        files
    };
    let cut = change("kernel-cpu0.dat", &|bytes| bytes.truncate(40));
    assert_eq!(count(&cut, Warning::CorruptStretch), 1);
    let lost = change("kernel-cpu0.dat", &|bytes| bytes[11] |= 1 << 7);
    assert_eq!(count(&lost, Warning::LostKernelRecord), 1);
    // The length of the first event is wrong.
    let wrong = change("kernel-cpu0.dat", &|bytes| bytes[16] = 0);
    assert!(count(&wrong, Warning::CorruptStretch) > 0);
    // Without the feature bit the files are none of the trace.
    let without = change("info", &|bytes| bytes[16] &= !4);
    assert!(!replay(&without.write().open()).contains("linux:"));
    let no_header = change("kernel_header", &|bytes| bytes.truncate(50));
    let dir = no_header.write();
    let error = rftrace_read::Trace::open(dir.path()).expect_err("no formats").to_string();
    assert!(error.contains("kernel_header"), "{error}");
    // Any file may end anywhere.
    for name in ["kernel_header", "kallsyms", "kernel-cpu1.dat"] {
        for length in (0..whole.0[name].len()).step_by(37) {
            let dir = change(name, &|bytes| bytes.truncate(length)).write();
            if let Ok(trace) = rftrace_read::Trace::open(dir.path()) {
                replay(&trace);
            }
        }
    }
}

/// Whatever the files hold, they are read or an error, and what is shown is balanced.
#[test]
fn changed_files() {
    let whole = example();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 20).expect("64 bits") % below
    };
    let mut n_opened = 0;
    for _ in 0..300 {
        let mut files = whole.clone();
        let name = ["kernel-cpu0.dat", "kernel-cpu0.dat", "kernel-cpu1.dat", "kernel_header", "kallsyms"][random(5)];
        let bytes = files.0.get_mut(name).expect("a file");
        for _ in 0..=random(8) {
            // Where there is something in a page.
            let place = random(bytes.len().min(300));
            bytes[place] = [0, 0xff, 11, 10, 29, 30, 31, 128][random(8)];
        }
        let dir = files.write();
        let Ok(trace) = rftrace_read::Trace::open(dir.path()) else { continue };
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
    if said.contains("in the kernel cannot be recorded") && (said.contains("only root") || said.contains("tracefs is"))
    {
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
    assert!(said.contains("no_such_function_*") || said.contains("functions cannot be"), "{said}");
    assert!(!folder.path().join("trace").exists());
    let output = record_command(folder.path(), &["--events=blk"]).output().expect("the command starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("sched, syscalls and irq are"));
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
