//! `rftrace ctl`: tells a recorder what to do while the program runs.
//!
//! Not here: how it is told (`rftrace-control`), and what it does then (`rftrace-record`).

use std::io::{self, BufRead, ErrorKind, IsTerminal, Write, stdout};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use rftrace_control::client::{Client, NoRecorder};
use rftrace_control::{NAMES, folder};
use rftrace_net::stream::{Event, Reader};
use rftrace_read::{Error, Shown};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use super::quantity::parse_pid;

const EXAMPLES: &str = "\
Examples:
  rftrace record --disabled ./server &     records nothing yet
  rftrace ctl 4711 on                      a program, or the recorder and all its programs
  rftrace ctl 4711 min 10us                only calls of at least 10 us
  rftrace ctl 4711 dump 'before the restart'
  rftrace ctl 4711 filter 'include=app::*; exclude=*::fmt'
  rftrace ctl 4711 functions 'app::*'      functions of this name; + for recorded ones
  rftrace ctl 4711 set set_graph_function 'app::serve' '*::poll'
  rftrace ctl 4711 set set_ftrace_notrace '>>' '*::drop'
  rftrace ctl 4711 get tracing_on
  rftrace ctl 4711 pipe --rfs | ssh elsewhere rftrace recv --stdin -o traces
  rftrace ctl 4711 --dir ftrace &          then: echo 0 > ftrace/tracing_on";

/// Controls a recording: switches, filters, dumps.
///
/// The recorder is `rftrace record` of the same user. A signal asks the program (--signal-control); it answers at once unless it blocks that
/// signal. An attached program (-p) lends a thread. Each request is done as a whole or not at all.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CtlArgs {
    /// The recorded process, or the process of `rftrace record` for all its programs.
    #[arg(value_parser = parse_pid)]
    pid: u32,
    /// Make a folder with ftrace's files, until Ctrl-C or the end of the program: writing to a file sets its value.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Show the state of the recording.
    Status,
    /// Switch recording on.
    On,
    /// Switch recording off.
    Off,
    /// Set these rules, in the syntax of RFTRACE_FILTER, or show the present ones.
    ///
    /// An empty text removes all rules.
    Filter { rules: Option<String> },
    /// Record only this number of call levels; 0 is all.
    Depth { levels: Option<String> },
    /// Record only calls of at least this duration: 10us; 0 is all.
    Min { time: Option<String> },
    /// Turn call sites into jumps and NOPs: each call costs less.
    Patch,
    /// Turn jumps and NOPs into calls again.
    Unpatch,
    /// List recordable functions: a name, a glob, or a regex between slashes.
    Functions { pattern: Option<String> },
    /// Write a snapshot of the calls so far.
    Dump { reason: Option<String> },
    /// Write snapshots of a ring at events.
    #[command(subcommand)]
    Trigger(Trigger),
    /// Put a text into the trace at this moment.
    Mark { text: String },
    /// Write full chunks to the disk.
    Flush,
    /// End the recording for good; the program goes on, and its end makes the trace.
    Stop,
    /// Show calls as they come, until the program ends.
    Pipe {
        /// Write the stream of each process from its beginning, for `rftrace recv --stdin`.
        #[arg(long)]
        rfs: bool,
    },
    /// Show the size of the buffer.
    Buffer,
    /// Show the value of this ftrace file.
    #[command(after_help = names_help())]
    Get { name: String },
    /// Set the value of this ftrace file; `'>>'` in front appends.
    ///
    /// Each pattern is a word of its own.
    #[command(after_help = names_help())]
    Set {
        name: String,
        #[arg(allow_hyphen_values = true)]
        values: Vec<String>,
    },
}

#[derive(Subcommand)]
enum Trigger {
    /// Add an event, in the syntax of --dump-on: call:FUNCTION, slow:FUNCTION>5ms, stall:2s.
    Add { spec: String },
    /// Remove an event, by its text or by its number in the list.
    Del { spec: String },
    /// List the events.
    List,
}

fn names_help() -> String {
    let row = |name: &rftrace_control::Name| {
        let note = match (name.is_read, name.is_set) {
            (true, true) => "",
            (true, false) => " (can only be read)",
            (false, _) => " (can only be set)",
        };
        format!("  {}{note}", name.name)
    };
    format!("Names:\n{}", NAMES.iter().map(row).collect::<Vec<_>>().join("\n"))
}

impl Command {
    fn words(self) -> Vec<String> {
        let with = |word: &str, rest: Option<String>| [word.to_owned()].into_iter().chain(rest).collect();
        match self {
            Self::Status => with("status", None),
            Self::On => with("on", None),
            Self::Off => with("off", None),
            Self::Filter { rules } => with("filter", rules),
            Self::Depth { levels } => with("depth", levels),
            Self::Min { time } => with("min", time),
            Self::Patch => with("patch", None),
            Self::Unpatch => with("unpatch", None),
            Self::Functions { pattern } => with("functions", pattern),
            Self::Dump { reason } => with("dump", reason),
            Self::Trigger(Trigger::Add { spec }) => ["trigger".to_owned(), "add".to_owned(), spec].into(),
            Self::Trigger(Trigger::Del { spec }) => ["trigger".to_owned(), "del".to_owned(), spec].into(),
            Self::Trigger(Trigger::List) => with("trigger", Some("list".to_owned())),
            Self::Mark { text } => with("mark", Some(text)),
            Self::Flush => with("flush", None),
            Self::Stop => with("stop", None),
            Self::Pipe { rfs } => with("pipe", rfs.then(|| "rfs".to_owned())),
            Self::Buffer => with("buffer", None),
            Self::Get { name } => with("get", Some(name)),
            Self::Set { name, values } => ["set".to_owned(), name].into_iter().chain(values).collect(),
        }
    }
}

/// Runs it.
pub(crate) fn run(args: CtlArgs) -> Result<()> {
    let pid = args.pid;
    let mut client = connect(pid)?;
    let words = match (args.dir, args.command) {
        (Some(dir), None) => return serve(pid, &dir),
        (Some(_), Some(_)) => bail!("--dir takes no command: its files replace the commands"),
        (None, command) => command.map_or_else(|| vec!["status".to_owned()], Command::words),
    };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if words == ["pipe", "rfs"] && stdout().is_terminal() {
        bail!("cannot write a stream to a terminal: write it to a file, or pipe it to `rftrace recv --stdin`");
    }
    let asked = client.ask(&words).with_context(|| format!("cannot talk to the recorder of process {pid}"))?;
    match asked {
        Ok(text) => {
            let mut to = stdout().lock();
            write!(to, "{}", Shown::lines(&String::from_utf8_lossy(&text))).map_err(Error::Write)?;
            match words.as_slice() {
                ["pipe"] | ["get", "trace" | "trace_pipe"] => copy(&mut client.into_stream(), &mut to, |_| Ok(())),
                ["pipe", "rfs"] => copy_stream(&mut client.into_stream(), &mut to),
                _ => Ok(()),
            }
        }
        Err(problem) => bail!("{problem}"),
    }
}

/// Has a folder with ftrace's names as files.
fn serve(pid: u32, dir: &Path) -> Result<()> {
    let is_over = Arc::<AtomicBool>::default();
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register(signal, Arc::clone(&is_over)).context("cannot handle signals")?;
    }
    let connect =
        |pid| Client::connect(pid).map_err(|_| io::Error::new(ErrorKind::NotConnected, "the recorder has ended"));
    folder::serve(pid, connect, dir, &is_over, |text| say!("rftrace: {text}"))
        .with_context(|| format!("cannot make ftrace's files in {}", dir.display()))
}

/// Passes on a stream, and says if it lacks its end.
fn copy_stream(from: &mut impl BufRead, to: &mut impl Write) -> Result<()> {
    let (mut reader, mut is_complete) = (Reader::new(), false);
    copy(from, to, |mut bytes| {
        while let Some(event) = reader.next(&mut bytes).context("the recorder sent no valid stream")? {
            is_complete |= event == Event::End;
        }
        Ok(())
    })?;
    if !is_complete {
        bail!("the stream lacks its end: the recorder has ended, and does not wait for a slow reader");
    }
    Ok(())
}

/// Passes on what comes, at once.
fn copy(from: &mut impl BufRead, to: &mut impl Write, mut look: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    loop {
        let bytes = from.fill_buf().context("cannot read from the recorder")?;
        if bytes.is_empty() {
            return Ok(());
        }
        to.write_all(bytes).and_then(|()| to.flush()).map_err(Error::Write)?;
        look(bytes)?;
        let n_bytes = bytes.len();
        from.consume(n_bytes);
    }
}

/// Connects to the recorder of a process.
pub(crate) fn connect(pid: u32) -> Result<Client> {
    match Client::connect(pid) {
        Ok(client) => Ok(client),
        Err(NoRecorder::NoProcess) => bail!("there is no process {pid}"),
        Err(NoRecorder::NotRecorded) => bail!(
            "process {pid} has no recorder, or a kill has ended it: start the program with `rftrace record`, \
             attach to it with `rftrace record -p {pid}`, or watch it with `rftrace top {pid}`"
        ),
        Err(NoRecorder::Refused(error)) => Err(error).with_context(|| {
            format!("the recorder of process {pid} refuses this user: run the command as the user of the recorder, or as root")
        }),
    }
}
