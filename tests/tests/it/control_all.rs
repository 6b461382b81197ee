//! `rftrace ctl`: every name of docs/control.md is used by two clients at the same time, read back, and seen in the trace, while the program and
//! others have the processors.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use rftrace_control::protocol::{Request, read_answer};
use rftrace_tests::{require, traces};

use crate::control::{ALL, Controlled};
use crate::record::rftrace;

/// An action, the question after it, and a part of the answer. Without an action it is only asked.
type Step<'a> = (&'a [&'a str], &'a [&'a str], &'a str);

/// A program that is told what to do by two clients.
struct Both {
    it: Controlled,
    /// The commands and names that were used.
    used: Mutex<BTreeSet<String>>,
}

impl Both {
    fn ctl(&self, words: &[&str]) -> String {
        let name = if let ["get" | "set", name, ..] = words { name } else { words[0] };
        self.used.lock().unwrap().extend([words[0], name].map(str::to_owned));
        self.it.ctl(words)
    }

    fn client(&self, steps: &[Step<'_>]) {
        for (done, asked, expected) in steps {
            if !done.is_empty() {
                self.ctl(done);
            }
            let answer = self.ctl(asked);
            assert!(answer.contains(expected), "{done:?}, {asked:?}: {answer:?} has no {expected:?}");
        }
    }

    /// Both clients do what they are to at the same time.
    fn together(&self, one: &[Step<'_>], other: &[Step<'_>]) {
        thread::scope(|scope| {
            scope.spawn(|| self.client(one));
            self.client(other);
        });
    }
}

/// Others that want the processors.
struct Load(Vec<Child>);

impl Load {
    fn begin() -> Self {
        Self((0..2).map(|_| Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap()).collect())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The commands and names in the first columns of a text's tables.
fn documented(text: &str) -> BTreeSet<String> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let quoted = rows.flat_map(|row| row.split('`').step_by(2).map(str::to_owned).collect::<Vec<_>>());
    quoted.filter_map(|words| words.split_whitespace().next().map(|word| word.replace("cpuN", "cpu0"))).collect()
}

/// How long the recorder takes to have the program switched off and on, without the time that a process of `rftrace ctl` needs to start.
fn switch(it: &Controlled) -> Duration {
    let socket = it.folder.path().join(format!("rftrace/{}.sock", it.recorder.id()));
    let mut stream = BufReader::new(UnixStream::connect(socket).unwrap());
    let times = ["off", "on"].map(|word| {
        let since = Instant::now();
        Request { pid: it.pid, words: vec![word.to_owned()] }.write(stream.get_mut()).unwrap();
        assert_eq!(read_answer(&mut stream).unwrap().unwrap(), Ok(Vec::new()));
        since.elapsed()
    });
    times.into_iter().max().unwrap()
}

#[test]
fn every_name_is_set_read_and_seen_by_two_clients_under_load() {
    /// For a switch, where others have the processors most of the time: of so many pairs one is in time.
    const SWITCHES: usize = 200;
    const IN_TIME: Duration = Duration::from_millis(5);
    const EVERYTHING: &str = "#### all functions enabled ####\n";

    if !require(&["gcc"]) {
        return;
    }
    let _load = Load::begin();
    let both = Both { it: Controlled::ready(&["--buffer", "4M"], &["busy"]), used: Mutex::default() };
    let main = both.it.pid.to_string();
    let tasks = fs::read_dir(format!("/proc/{main}/task")).unwrap();
    let tasks = tasks.map(|task| task.unwrap().file_name().into_string().unwrap());
    let other = tasks.into_iter().find(|task| *task != main).unwrap();
    let mut both = both;
    let round = |both: &mut Both, letter| both.it.round(letter);

    both.together(
        &[
            (&[], &["status"], "recording    on\n"),
            (&[], &["functions", "deep*"], "+ deepest [program]"),
            (&[], &["get", "available_filter_functions"], "leaf [program]"),
            (&[], &["get", "available_tracers"], "function_graph nop"),
            (&[], &["get", "buffer_size_kb"], "4096\n"),
            (&[], &["get", "per_cpu/cpu0/stats"], "dropped events: "),
        ],
        &[
            (&[], &["buffer"], "4096 KiB in "),
            (&[], &["get", "buffer_total_size_kb"], "4096\n"),
            (&[], &["get", "stats"], "read events: "),
            (&[], &["get", "enabled_functions"], "leaf [program]"),
            (&[], &["get", "current_tracer"], "function_graph"),
        ],
    );
    round(&mut both, 'a');
    both.together(
        &[(&["set", "set_ftrace_notrace", "leaf"], &["get", "set_ftrace_notrace"], "leaf\n")],
        &[(&["set", "set_graph_notrace", "deep"], &["get", "set_graph_notrace"], "deep\n")],
    );
    round(&mut both, 'b');
    both.together(
        &[(&["filter", "exclude=deepest"], &["filter"], "exclude=deepest\n")],
        &[(&["patch"], &["get", "dyn_ftrace_total_info"], " call sites patched")],
    );
    assert!(!both.ctl(&["get", "dyn_ftrace_total_info"]).starts_with("0 "));
    round(&mut both, 'c');
    both.ctl(&["filter", ""]);
    both.together(&[(&["depth", "2"], &["depth"], "2\n")], &[(&["min", "2ms"], &["min"], "2ms\n")]);
    round(&mut both, 'd');
    both.together(&[(&["depth", "0"], &["depth"], "0\n")], &[(&["unpatch"], &["get", "tracing_thresh"], "2000\n")]);
    round(&mut both, 'e');
    both.together(
        &[(&["set", "max_graph_depth", "3"], &["get", "max_graph_depth"], "3\n")],
        &[(&["set", "tracing_thresh", "0"], &["get", "tracing_thresh"], "0\n")],
    );
    round(&mut both, 'f');
    both.together(
        &[(&["set", "max_graph_depth", "0"], &["get", "max_graph_depth"], "0\n")],
        &[(&["set", "set_graph_function", "round_g"], &["get", "set_graph_function"], "round_g\n")],
    );
    round(&mut both, 'g');
    round(&mut both, 'h');
    both.together(
        &[(&["set", "set_graph_function", ""], &["get", "set_graph_function"], EVERYTHING)],
        &[(&["set", "set_ftrace_filter", "round_*", "deep*"], &["get", "set_ftrace_filter"], "round_*\ndeep*\n")],
    );
    round(&mut both, 'i');
    both.together(
        &[(&["set", "set_ftrace_filter", ""], &["get", "set_ftrace_filter"], EVERYTHING)],
        &[(&["set", "tracing_on", "0"], &["get", "tracing_on"], "0\n")],
    );
    round(&mut both, 'j');
    both.together(
        &[(&["set", "tracing_on", "1"], &["get", "tracing_on"], "1\n")],
        &[(&["set", "set_ftrace_pid", &main], &["get", "set_ftrace_pid"], &format!("{main}\n"))],
    );
    round(&mut both, 'k');
    both.ctl(&["set", "set_ftrace_pid", &other]);
    round(&mut both, 'l');
    // One after the other: each reads both lists and sets them.
    both.together(
        &[(&["set", "set_ftrace_pid", ""], &["get", "set_ftrace_pid"], "no pid\n")],
        &[(&["set", "set_ftrace_notrace_pid", &main], &["get", "set_ftrace_notrace_pid"], &format!("{main}\n"))],
    );
    round(&mut both, 'm');
    both.together(
        &[(&["set", "set_ftrace_notrace_pid", ""], &["get", "set_ftrace_notrace_pid"], "no pid\n")],
        &[(&["set", "current_tracer", "nop"], &["get", "current_tracer"], "nop\n")],
    );
    round(&mut both, 'n');
    both.together(
        &[(&["set", "current_tracer", "function_graph"], &["get", "current_tracer"], "function_graph\n")],
        &[(&["mark", "of one"], &["status"], "process ")],
    );
    round(&mut both, 'o');
    both.together(
        &[(&["off"], &["status"], "recording    off\n")],
        &[(&["set", "trace_marker", "of", "another"], &["get", "set_ftrace_notrace"], "")],
    );
    round(&mut both, 'p');
    both.together(
        &[(&["on"], &["status"], "recording    on\n")],
        &[(&["flush"], &["flush"], " calls and returns are on the disk, ")],
    );
    // Both see the calls, and what was in memory.
    let pipe = |words: &[&str]| {
        both.used.lock().unwrap().extend(words.iter().map(|&word| word.to_owned()));
        let mut reader = both.it.command(words).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(reader.stdout.take().unwrap()).lines().map(Result::unwrap);
        assert!(lines.next().unwrap().contains("FUNCTION"));
        (reader, lines)
    };
    let mut pipes = [pipe(&["pipe"]), pipe(&["get", "trace_pipe"])];
    both.it.ctl(&["filter", "exclude=spin"]);
    round(&mut both, 'q');
    for (reader, lines) in &mut pipes {
        assert!(lines.any(|line| line.contains("round_q()")));
        reader.kill().unwrap();
        reader.wait().unwrap();
    }
    both.client(&[(&[], &["get", "trace"], "round_q()"), (&["filter", ""], &["filter"], "\n")]);
    both.together(
        &[(&["dump", "of one"], &["get", "snapshot"], "# Write 1")],
        &[(&["set", "snapshot", "1"], &["get", "snapshot"], "# Write 1")],
    );
    let dumps: Vec<_> = fs::read_dir(both.it.trace()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let dumps: Vec<_> = dumps.iter().filter(|path| path.to_string_lossy().contains("/snapshot-")).collect();
    for dump in &dumps {
        let calls = traces::calls_per_task(&traces::open(dump));
        assert!(calls.iter().any(|calls| calls.contains_key("round_q")), "{}", dump.display());
    }
    assert_eq!(dumps.len(), 2);
    assert_eq!(both.ctl(&["set", "snapshot", "0"]), "removed 1 dump\n");
    // A call of a function switches; the filter stays.
    both.ctl(&["set", "set_ftrace_filter", "deep:traceoff"]);
    assert_eq!(both.ctl(&["get", "set_ftrace_filter"]), format!("{EVERYTHING}deep:traceoff:unlimited\n"));
    round(&mut both, 'r');
    both.together(
        &[(&["set", "set_ftrace_filter", "!deep:traceoff"], &["get", "set_ftrace_filter"], EVERYTHING)],
        &[(&[], &["status"], "process ")],
    );
    both.ctl(&["on"]);
    let fastest = (0..SWITCHES).map(|_| switch(&both.it)).find(|time| *time <= IN_TIME);
    assert!(fastest.is_some(), "none of {SWITCHES} times was it switched within {IN_TIME:?}");
    round(&mut both, 's');
    both.together(
        &[(&["stop"], &["status"], "recording    off\n")],
        &[(&["set", "free_buffer", "1"], &["get", "tracing_on"], "0\n")],
    );
    assert!(both.it.refused(&["on"]).contains("for good"));
    round(&mut both, 't');

    let rounds = both.it.rounds();
    let found: String = ('a'..='t').filter(|letter| rounds.contains_key(&format!("round_{letter}"))).collect();
    // Without those while recording was off, what was called below others, and other threads alone.
    assert_eq!(found, "abcdefgikoqrs");
    let without = |names: &[&str]| ALL.into_iter().filter(|name| !names.contains(name)).collect::<Vec<_>>();
    for (letter, expected) in [
        ('b', without(&["leaf", "deep", "deeper", "deepest"])),
        ('c', without(&["deepest"])),
        ('d', vec!["all"]),
        ('e', vec!["all", "slow"]),
        ('f', vec!["all", "leaf", "deep", "slow"]),
        ('i', vec!["deep", "deeper", "deepest"]),
        ('r', vec!["all", "leaf"]),
    ] {
        assert_eq!(rounds[&format!("round_{letter}")], expected, "round_{letter}");
    }
    for letter in ['a', 'g', 'k', 'o', 'q', 's'] {
        assert_eq!(rounds[&format!("round_{letter}")], ALL, "round_{letter}");
    }
    let mut command = Command::new(rftrace());
    command.args(["replay", "--no-pager", "-f", "none", "-N", "spin", "-d"]).arg(both.it.trace());
    let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what} in {text}"));
    assert!(at("round_k()") < at("mark:of_one") && at("round_o()") < at("mark:of_another"), "{text}");
    assert!(at("mark:of_one") < at("mark:of_another") && at("mark:of_another") < at("round_q()"), "{text}");

    // Of a ring dumps are made on events.
    let both = Both { it: Controlled::ready(&["--ring", "-N", "spin"], &["busy"]), used: both.used };
    let mut both = both;
    both.together(
        &[
            (&["trigger", "add", "call:round_b,burst,times=1"], &["trigger", "list"], "call:round_b,burst,times=1\n"),
            (&["trigger", "add", "every:1000s"], &["trigger", "list"], "every:1000s\n"),
            (&["trigger", "del", "every:1000s"], &["trigger", "list"], "call:round_b,burst,times=1\n"),
        ],
        &[(
            &["set", "set_ftrace_filter", "round_c:snapshot:1"],
            &["get", "set_ftrace_filter"],
            "round_c:snapshot:count=1\n",
        )],
    );
    assert!(!both.ctl(&["trigger", "list"]).contains("every"));
    let dumps = |it: &Controlled| {
        let names = fs::read_dir(it.trace()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.starts_with("snapshot-")).collect();
        names.sort();
        names
    };
    for (letter, n_dumps) in [('a', 0), ('b', 1), ('c', 2), ('b', 2), ('c', 2)] {
        both.it.round(letter);
        let since = Instant::now();
        while dumps(&both.it).len() < n_dumps {
            assert!(since.elapsed() < Duration::from_secs(60), "{:?}: {}", dumps(&both.it), both.it.told());
            thread::sleep(Duration::from_millis(5));
        }
    }
    assert_eq!(both.it.rounds()["round_a"], ALL);
    let dumps = dumps(&both.it);
    assert_eq!(dumps.len(), 2, "{dumps:?}");
    assert!(dumps[0].contains("call-round_b") && dumps[1].contains("call-round_c"), "{dumps:?}");

    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/control.md");
    let documented = documented(&fs::read_to_string(docs).unwrap());
    assert!(documented.len() > 35, "{documented:?}");
    let used = both.used.into_inner().unwrap();
    assert_eq!(documented.difference(&used).collect::<Vec<_>>(), <[&String; 0]>::default());
}
