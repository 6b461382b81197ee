//! Context switches and wakings: `perf-cpu<N>.dat`, and `rftrace record --schedule`.

use std::fs;
use std::process::Command;

use rftrace_read::{Kind, SCHED_IN, SCHED_OUT, Trace};
use rftrace_tests::{golden, tools};

#[test]
fn a_file_that_is_none_of_the_trace() {
    let dir = golden::copy("switches");
    let path = dir.path().join("perf-cpu0.dat");
    fs::remove_file(&path).expect("a file");
    fs::create_dir(&path).expect("a writable folder");
    let error = Trace::open(dir.path()).expect_err("a folder is no file");
    assert!(error.to_string().contains("perf-cpu0.dat"), "{error}");
    // Without the feature bit nobody reads it.
    let info = dir.path().join("info");
    let mut bytes = fs::read(&info).expect("a file");
    bytes[17] &= !1;
    fs::write(info, bytes).expect("a writable folder");
    assert!(Trace::open(dir.path()).expect("a trace").warnings().is_empty());
}

#[test]
fn a_recorded_program_waits_in_its_functions() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = "#include <pthread.h>\n#include <unistd.h>\n\
                  __attribute__((noinline)) int doze(int n) { usleep(n); return n; }\n\
                  void *work(void *p) { for (int i = 0; i < 3; i++) doze(2000); return p; }\n\
                  int main(void) { pthread_t t; pthread_create(&t, 0, work, 0); work(0); pthread_join(t, 0); return 0; }\n";
    fs::write(folder.path().join("prog.c"), source).expect("a writable folder");
    let mut gcc = Command::new("gcc");
    gcc.current_dir(&folder).args(["-pg", "-O1", "-fno-inline", "-o", "prog", "prog.c", "-lpthread"]);
    if crate::import::text(&mut gcc).is_none() {
        return;
    }
    let mut record = Command::new(env!("CARGO_BIN_EXE_rftrace"));
    record.current_dir(&folder).args(["record", "--schedule", "-o", "trace", "-q", "--", "./prog"]);
    let output = record.output().expect("the command starts");
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && said.contains("cannot record context switches") {
        assert!(said.lines().count() == 1, "{said}");
        tools::skip(said.trim());
        return;
    }
    assert!(output.status.success() && said.is_empty(), "{said}");
    let trace = folder.path().join("trace");
    let opened = rftrace_read::Trace::open(&trace).expect("a trace");
    let mut n_waits = 0;
    for task in opened.tasks() {
        let mut open = Vec::new();
        let mut since = None;
        for record in opened.records(task) {
            let record = record.expect("no error");
            match (record.kind, record.addr) {
                (Kind::Entry, addr) => open.push(opened.function_name(task, record.time_ns, addr).into_owned()),
                (Kind::Exit, _) => drop(open.pop()),
                (Kind::Event, SCHED_OUT) => since = Some(record.time_ns),
                (Kind::Event, SCHED_IN) => {
                    let waited = since.take().map_or(0, |since| record.time_ns - since);
                    n_waits += usize::from(waited > 1_900_000 && open.last().is_some_and(|name| name == "doze"));
                }
                _ => {}
            }
        }
    }
    assert_eq!(n_waits, 6, "each nap of both threads");
    assert!(opened.warnings().is_empty(), "{}", opened.warnings());
    let mut uftrace = Command::new("uftrace");
    uftrace.args(["replay", "--no-pager", "--color=no", "-d"]).arg(&trace);
    if let Some(replayed) = crate::import::text(&mut uftrace) {
        let mut ours = Vec::new();
        rftrace_views::replay(&opened, &Default::default(), &mut ours).expect("a replay");
        assert_eq!(String::from_utf8_lossy(&ours), replayed);
    }
}

#[test]
fn context_switches_are_recorded_unless_that_is_switched_off() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = "#define _GNU_SOURCE\n#include <pthread.h>\n#include <unistd.h>\n\
                  __attribute__((noipa)) int doze(int n) { usleep(n); return n; }\n\
                  __attribute__((noipa)) int work(int n) { return n + 1; }\n\
                  void *run(void *p) { pthread_setname_np(pthread_self(), \"sleeper\");\n\
                    for (int i = 0; i < 500; i++) work(i); doze(20000); return p; }\n\
                  int main(void) { pthread_t t; pthread_create(&t, 0, run, 0); pthread_join(t, 0); return 0; }\n";
    fs::write(folder.path().join("prog.c"), source).expect("a writable folder");
    let mut gcc = Command::new("gcc");
    gcc.current_dir(&folder).args(["-pg", "-O1", "-o", "prog", "prog.c", "-lpthread"]);
    if crate::import::text(&mut gcc).is_none() {
        return;
    }
    let report = |name: &str, options: &[&str]| {
        let mut record = Command::new(env!("CARGO_BIN_EXE_rftrace"));
        record.current_dir(&folder).args(["record", "-o", name, "-q"]).args(options).args(["--", "./prog"]);
        let output = record.output().expect("the command starts");
        assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        let trace = rftrace_read::Trace::open(&folder.path().join(name)).expect("a trace");
        rftrace_views::Report::read(&trace).expect("records")
    };
    let of = |report: &rftrace_views::Report, name: &str| {
        let row = report.rows().iter().find(|row| row.name == name).cloned().unwrap_or_default();
        (row.calls, row.self_ns)
    };
    let (with, without) = (report("with", &[]), report("without", &["--no-schedule"]));
    for name in ["main", "run", "work", "doze"] {
        assert_eq!(of(&with, name).0, of(&without, name).0, "{name}");
    }
    assert_eq!(of(&with, "work").0, 500);
    assert_eq!((without.cpu_ns(), of(&without, "linux:schedule").0), (None, 0));
    assert!(of(&without, "doze").1 >= 20_000_000, "it waits");
    if rftrace_record::ScheduleEvents::open().is_err() {
        tools::skip("the kernel does not permit perf events");
        assert_eq!(with.cpu_ns(), None);
        return;
    }
    // Both threads wait for most of the time.
    let [waited, preempted] = ["linux:schedule", "linux:schedule (pre-empted)"].map(|name| of(&with, name).1);
    assert!(waited >= 20_000_000, "{waited}");
    assert_eq!((with.waiting_ns(), with.preempted_ns()), (Some(waited), Some(preempted)));
    let spans = with.tasks().iter().map(|task| task.last_ns - task.first_ns).sum::<u64>();
    assert_eq!(with.cpu_ns(), Some(spans - waited - preempted));
    // The names that uftrace shows are there as before.
    const COMM: u32 = 3;
    let is_named = |path: &std::path::Path| {
        let bytes = fs::read(path).expect("a file");
        bytes.starts_with(&COMM.to_le_bytes()) && bytes.windows(7).any(|word| word == b"sleeper")
    };
    let files = fs::read_dir(folder.path().join("with")).expect("a folder").map(|entry| entry.expect("a file").path());
    let named =
        files.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("perf-cpu")));
    assert_eq!(named.filter(|path| is_named(path)).count(), 1);
}

/// Two threads: in each of so many rounds the first one waits for a flag, and then for a byte, of the second one. That one goes on once the
/// first one waits.
const ROUNDS: &str = "#define _GNU_SOURCE\n#include <fcntl.h>\n#include <pthread.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n\
    #define F __attribute__((noipa))\n\
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;\n\
    static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;\n\
    static int ready, ends[2], rounds;\n\
    F void await_flag(void) { pthread_mutex_lock(&lock); while (!ready) pthread_cond_wait(&cond, &lock);\n\
      ready = 0; pthread_mutex_unlock(&lock); }\n\
    F void raise_flag(void) { pthread_mutex_lock(&lock); ready = 1; pthread_mutex_unlock(&lock); pthread_cond_signal(&cond); }\n\
    F void await_byte(void) { char c; if (read(ends[0], &c, 1) != 1) _exit(9); }\n\
    F void send_byte(void) { if (write(ends[1], \"x\", 1) != 1) _exit(9); }\n\
    F void doze(void) { usleep(20000); }\n\
    F void until_main_waits(void) { char file[64], text[256] = \"\", *end; int in;\n\
      snprintf(file, sizeof file, \"/proc/self/task/%d/stat\", getpid());\n\
      do { in = open(file, O_RDONLY); if (read(in, text, sizeof text - 1) < 1) _exit(8); close(in); end = strrchr(text, ')');\n\
      } while (!end || end[2] != 'S'); }\n\
    F void *serve(void *p) { pthread_setname_np(pthread_self(), \"server\");\n\
      for (int i = 0; i < rounds; i++) { until_main_waits(); doze(); raise_flag(); until_main_waits(); doze(); send_byte(); } return p; }\n\
    int main(int n, char **words) { pthread_t t; rounds = atoi(words[1]); if (pipe(ends)) return 9;\n\
      pthread_create(&t, 0, serve, 0); for (int i = 0; i < rounds; i++) { await_flag(); await_byte(); }\n\
      pthread_join(t, 0); return 0; }\n";

#[test]
fn a_long_wait_has_the_function_and_the_thread_that_ended_it() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("prog.c"), ROUNDS).expect("a writable folder");
    let mut gcc = Command::new("gcc");
    gcc.current_dir(&folder).args(["-pg", "-O1", "-o", "prog", "prog.c", "-lpthread"]);
    if crate::import::text(&mut gcc).is_none() {
        return;
    }
    if rftrace_record::ScheduleEvents::open().is_err() {
        return tools::skip("the kernel does not permit perf events");
    }
    let record = |options: &[&str]| {
        let mut record = Command::new(env!("CARGO_BIN_EXE_rftrace"));
        let output =
            record.current_dir(&folder).args(["record", "-q", "-o"]).args(options).output().expect("it starts");
        assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let waits = |name: &str| {
        let trace = Trace::open(&folder.path().join(name)).expect("a trace");
        rftrace_views::Waits::read(&trace).expect("records").expect("context switches")
    };
    let of = |waits: &rftrace_views::Waits, function: &str, waker: [Option<&str>; 2]| {
        let row =
            |row: &&rftrace_views::WaitRow| row.function.as_deref() == Some(function) && row.cause.waker() == waker;
        waits.rows().iter().find(row).map_or((0, 0), |row| (row.times.waits, row.times.total_ns))
    };
    record(&["whole", "--", "./prog", "3"]);
    let whole = waits("whole");
    if !whole.has_wakings() {
        tools::skip("the kernel does not permit to record wakings");
        assert!(of(&whole, "await_flag", [None; 2]).0 > 0, "{:?}", whole.rows());
        return;
    }
    let causes = [("await_flag", "raise_flag"), ("await_byte", "send_byte")];
    for (function, waker) in causes {
        let (number, total_ns) = of(&whole, function, [Some(waker), Some("server")]);
        assert!(number == 3 && total_ns >= 30_000_000, "{:?}", whole.rows());
    }
    assert_eq!(of(&whole, "doze", [None; 2]).0, 6, "a timer ends it: {:?}", whole.rows());
    // A running program.
    let mut program = Command::new(folder.path().join("prog")).arg("100000").spawn().expect("it starts");
    record(&["attached", "-p", &program.id().to_string(), "--for", "1s"]);
    program.kill().and_then(|()| program.wait()).expect("its end");
    let attached = waits("attached");
    for (function, waker) in causes {
        assert!(of(&attached, function, [Some(waker), Some("server")]).0 > 0, "{:?}", attached.rows());
    }
}

#[test]
fn a_refusal_is_told_with_its_remedy() {
    let folder = tempfile::tempdir().expect("a folder");
    // This program and its children get no perf events, as in many containers.
    let refuse = "#include <errno.h>\n#include <linux/filter.h>\n#include <linux/seccomp.h>\n#include <stddef.h>\n\
                  #include <sys/prctl.h>\n#include <sys/syscall.h>\n#include <unistd.h>\n\
                  int main(int n, char **words) {\n\
                    struct sock_filter filter[] = {\n\
                      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),\n\
                      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_perf_event_open, 0, 1),\n\
                      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),\n\
                      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};\n\
                    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};\n\
                    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 99;\n\
                    execv(words[1], words + 1); return 98; }\n";
    let program = "__attribute__((noipa)) int work(int n) { return n + 1; }\nint main(void) { return work(4); }\n";
    for (name, source) in [("refuse", refuse), ("prog", program)] {
        let file = folder.path().join(format!("{name}.c"));
        fs::write(&file, source).expect("a writable folder");
        let mut gcc = Command::new("gcc");
        gcc.current_dir(&folder).args(["-O1", if name == "prog" { "-pg" } else { "-w" }, "-o", name]).arg(&file);
        if crate::import::text(&mut gcc).is_none() {
            return;
        }
    }
    let record = |options: &[&str]| {
        let mut record = Command::new(folder.path().join("refuse"));
        record.current_dir(&folder).args([env!("CARGO_BIN_EXE_rftrace"), "record", "-o", "trace"]);
        let output = record.args(options).args(["--", "./prog"]).output().expect("the command starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    const REFUSED: &str = "rftrace: cannot record context switches: ";
    let (code, said) = record(&[]);
    let lines: Vec<_> = said.lines().filter(|line| line.starts_with(REFUSED)).collect();
    let [line] = lines[..] else { panic!("{said}") };
    assert_eq!((code, said.starts_with(line)), (Some(5), true), "{said}");
    let has_remedy = line.contains("seccomp profile") || line.contains("sysctl kernel.perf_event_paranoid=");
    assert!(has_remedy && line.contains("--no-schedule"), "{line}");
    for silent in ["--no-schedule", "--quiet"] {
        let (code, said) = record(&[silent]);
        assert_eq!((code, said.contains(REFUSED)), (Some(5), false), "{silent}: {said}");
    }
    let (code, said) = record(&["--schedule"]);
    assert_eq!((code, said.starts_with(REFUSED)), (Some(1), true), "{said}");
}
