//! Recording of a program and its children in the kernel: system calls, functions and events, with an instance of
//! tracefs.

use std::fs::File;
use std::io::{BufWriter, ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::libc::c_int;
use rftrace_format::files::{INFO, KERNEL_HEADER, KERNEL_SYMBOLS, kernel as kernel_file};
use rftrace_format::info::feature;
use rftrace_format::opener;
use rftrace_format::store;
use rftrace_kernel::convert::{Converted, convert};
use rftrace_kernel::header::Header;
use rftrace_kernel::names::Functions;
use rftrace_read::{files, read_clock};

use crate::kept::{Kept, Limited, announce};
use crate::processes::has_own_numbers;
use crate::schedule::processors;
use crate::sys;
use crate::tracefs::Instance;

/// KiB of the kernel's buffer for each processor.
const BUFFER_KIB: &str = "4096";

/// How often the buffers are emptied.
const INTERVAL: Duration = Duration::from_millis(10);

/// The least to keep for each processor.
const MIN_KEPT_BYTES: u64 = 1 << 20;

/// The most bytes of `/proc/kallsyms`.
const MAX_SYMBOLS_BYTES: u64 = 256 << 20;

/// The clock of the program's records, and a near one.
const TSC: &str = "x86-tsc";
const MONOTONIC: &str = "mono";

/// The tracers of functions; the first one records the ends too.
const TRACERS: [&str; 2] = ["function_graph", "function"];

/// A group of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Events {
    /// Context switches of processors.
    Sched,
    /// System calls.
    Syscalls,
    /// Interrupts of devices.
    Irq,
}

impl Events {
    fn names(self) -> &'static [&'static str] {
        match self {
            Self::Sched => &["sched/sched_switch"],
            Self::Syscalls => &["raw_syscalls/sys_enter", "raw_syscalls/sys_exit"],
            Self::Irq => &["irq/irq_handler_entry", "irq/irq_handler_exit"],
        }
    }
}

impl FromStr for Events {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "sched" => Ok(Self::Sched),
            "syscalls" => Ok(Self::Syscalls),
            "irq" => Ok(Self::Irq),
            _ => Err("no such group of events; use sched, syscalls or irq".to_owned()),
        }
    }
}

/// The options for recording the kernel.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// The patterns of functions; an empty list stands for all functions, `None` for no functions.
    pub functions: Option<Vec<String>>,
    /// The events. With functions, system calls are always recorded too.
    pub events: Vec<Events>,
}

/// A prepared instance that does not record yet.
#[derive(Debug)]
pub struct KernelEvents {
    parts: Parts,
    header: Header,
    is_tsc: bool,
    interrupted: Arc<AtomicBool>,
    /// Deviation from the options, and its reason.
    note: Option<String>,
}

/// Files of an instance. They are closed before it goes.
#[derive(Debug)]
struct Parts {
    /// Files for the number of the process.
    numbers: Vec<OwnedFd>,
    /// The file that begins to record.
    switch: OwnedFd,
    sources: Vec<(u32, File)>,
    instance: Instance,
}

impl KernelEvents {
    /// Prepares an instance. From now on signals of `ending` do not end this process: they are handled before the
    /// program starts, when the instance has been removed.
    ///
    /// # Errors
    ///
    /// The kernel does not permit it, or lacks a requested feature.
    pub fn open(wanted: &Wanted, ending: impl Iterator<Item = c_int>) -> Result<Self> {
        prepare(wanted, ending).context("cannot record the kernel")
    }

    /// Returns the difference from the options and its reason, if there is one.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Starts to read the kernel's buffers, into files in the folder `work` with `max_bytes` in total.
    ///
    /// # Errors
    ///
    /// A file cannot be written.
    pub fn record(self, work: &Path, kept: Kept, max_bytes: u64) -> Result<KernelRecorder> {
        let Self { parts: Parts { numbers, switch, sources, instance }, header, is_tsc, interrupted, .. } = self;
        let stop = Arc::new(AtomicBool::new(false));
        let open = Some((numbers, switch));
        let mut running = Running { stop, thread: None, open, instance: Some(instance) };
        let max_bytes = (max_bytes / sources.len().max(1) as u64).max(MIN_KEPT_BYTES);
        let page_bytes = header.layout().page_bytes;
        let (mut pipes, mut files) = (Vec::new(), Vec::new());
        for (processor, source) in sources {
            let path = work.join(kernel_file(processor)).with_extension("raw");
            pipes.push((source, Limited::create(path.clone(), kept, max_bytes)?));
            files.push((processor, path));
        }
        let should_stop = Arc::clone(&running.stop);
        running.thread = Some(thread::spawn(move || {
            let mut page = vec![0; page_bytes];
            loop {
                let is_last = should_stop.load(Relaxed);
                pipes.iter_mut().try_for_each(|(source, out)| empty(source, &mut page, out))?;
                if is_last {
                    let finish = |(_, out): (File, Limited)| Ok(out.finish(|_| [])?);
                    return pipes.into_iter().map(finish).sum();
                }
                thread::park_timeout(INTERVAL);
            }
        }));
        Ok(KernelRecorder { running, files, header, is_tsc, interrupted })
    }
}

/// A recorder of the kernel. Dropping it removes the instance.
#[derive(Debug)]
pub struct KernelRecorder {
    running: Running,
    /// By processor.
    files: Vec<(u32, PathBuf)>,
    header: Header,
    is_tsc: bool,
    interrupted: Arc<AtomicBool>,
}

/// The reading thread, and its sources.
#[derive(Debug)]
struct Running {
    stop: Arc<AtomicBool>,
    /// Returns how many pages there was no room for.
    thread: Option<JoinHandle<Result<u64>>>,
    open: Option<(Vec<OwnedFd>, OwnedFd)>,
    instance: Option<Instance>,
}

impl Running {
    /// Ends it: recording, then the thread with its open files, then the instance.
    fn end(&mut self) -> Result<u64> {
        self.open = None;
        let switched_off = self.instance.as_ref().map_or(Ok(()), |instance| instance.set("tracing_on", "0"));
        self.stop.store(true, Relaxed);
        let dropped = self.thread.take().map_or(Ok(0), |thread| {
            thread.thread().unpark();
            thread.join().unwrap_or_else(|_| bail!("the reader thread of the kernel's records has panicked"))
        });
        self.instance = None;
        switched_off.and(dropped)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A caller that needs the result has called it.
        let _ = self.end();
    }
}

impl KernelRecorder {
    /// Has it follow the program started by a command, and its children.
    ///
    /// # Errors
    ///
    /// A signal that ends this process has come.
    pub(crate) fn follow(&self, command: &mut Command) -> Result<()> {
        if self.interrupted.load(Relaxed) {
            bail!("a signal ended rftrace before it started the program");
        }
        if let Some((numbers, switch)) = &self.running.open {
            sys::announce_to(command, numbers, switch);
        }
        Ok(())
    }

    /// Stops the recorder, and removes the instance.
    ///
    /// # Errors
    ///
    /// The records could not be read or written.
    pub fn stop(mut self) -> Result<KernelRecording> {
        let n_dropped_pages = self.running.end().context("cannot save the kernel's records")?;
        Ok(KernelRecording { files: self.files, header: self.header, is_tsc: self.is_tsc, n_dropped_pages })
    }
}

/// A recording of the kernel in the form in which the kernel wrote it.
#[derive(Debug)]
pub struct KernelRecording {
    files: Vec<(u32, PathBuf)>,
    header: Header,
    is_tsc: bool,
    n_dropped_pages: u64,
}

/// The counts of the kernel's records in a trace.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct InKernel {
    /// The number of calls of the system and of functions.
    pub n_calls: u64,
    /// The number of other events.
    pub n_events: u64,
    /// The number of events that the kernel lost.
    pub n_lost: u64,
    /// The number of pages for which there was no room.
    pub n_dropped_pages: u64,
    /// The number of pages that could not be read to their end.
    pub n_wrong_pages: u64,
}

impl KernelRecording {
    /// Makes it a part of the trace in `dir`.
    ///
    /// # Errors
    ///
    /// Files cannot be read or written, or the trace does not tell what its clock is.
    pub(crate) fn finish(self, dir: &Path) -> Result<InKernel> {
        let clock = if self.is_tsc {
            let clock = read_clock(dir)?.context("cannot convert the kernel's times: the trace has no clock.txt")?;
            Some(clock.clock)
        } else {
            None
        };
        let nanos = |time: u64| clock.map_or(time, |clock| clock.nanos(time));
        let functions = Functions::parse(&files::read(Path::new("/proc/kallsyms"), MAX_SYMBOLS_BYTES)?);
        let open = |(processor, from): &(u32, PathBuf)| {
            let to = dir.join(kernel_file(*processor));
            let from = opener::open(from).with_context(|| format!("cannot read {}", from.display()))?;
            let out = store::create(&to).with_context(|| format!("cannot write {}", to.display()))?;
            Ok((std::io::BufReader::new(from), BufWriter::new(out)))
        };
        let processors = self.files.iter().map(open).collect::<Result<Vec<_>>>()?;
        let converted =
            convert(processors, &self.header, &functions, nanos).context("cannot convert the kernel's records")?;
        let Converted { header, addresses, n_calls, n_events, n_lost, n_wrong_pages, .. } = converted;
        let write = |name: &str, text: String| {
            store::write(&dir.join(name), text).with_context(|| format!("cannot write {}", dir.join(name).display()))
        };
        write(KERNEL_HEADER, header.to_string())?;
        write(KERNEL_SYMBOLS, functions.table(addresses))?;
        announce(&dir.join(INFO), feature::KERNEL)?;
        let n_dropped_pages = self.n_dropped_pages;
        Ok(InKernel { n_calls, n_events, n_lost, n_dropped_pages, n_wrong_pages })
    }
}

/// Writes the kernel's records of a processor.
fn empty(mut source: &File, page: &mut [u8], out: &mut Limited) -> Result<()> {
    loop {
        match source.read(page) {
            Ok(0) => return Ok(()),
            Ok(n_bytes) => out.write(page.get(..n_bytes).unwrap_or_default())?,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("cannot read the kernel's records"),
        }
    }
}

fn prepare(wanted: &Wanted, ending: impl Iterator<Item = c_int>) -> Result<KernelEvents> {
    if has_own_numbers() {
        bail!(
            "this container numbers processes separately, and the kernel's records have the host's numbers; run \
             rftrace on the host"
        );
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in ending {
        signal_hook::flag::register(signal, Arc::clone(&interrupted)).context("cannot handle signals")?;
    }
    let instance = Instance::create()?;
    instance.set("tracing_on", "0")?;
    instance.set("buffer_size_kb", BUFFER_KIB)?;
    let is_tsc = instance.set("trace_clock", TSC).is_ok();
    if !is_tsc {
        instance.set("trace_clock", MONOTONIC)?;
    }
    instance.set("options/event-fork", "1")?;
    let mut events: Vec<&str> = wanted.events.iter().flat_map(|group| group.names()).copied().collect();
    let mut formats = vec!["ftrace/function", "ftrace/funcgraph_entry", "ftrace/funcgraph_exit"];
    let mut numbers = vec![open(&instance, "set_event_pid")?];
    let mut note = None;
    if let Some(globs) = &wanted.functions {
        events.extend(Events::Syscalls.names());
        match trace_functions(&instance, globs) {
            Ok(file) => numbers.push(file),
            Err(NoFunctions::Unknown(glob)) => {
                bail!(
                    "no traceable kernel function is called `{glob}`; the file available_filter_functions of tracefs \
                     lists their names"
                )
            }
            Err(NoFunctions::Unusable(why)) if globs.is_empty() => {
                note = Some(format!("rftrace records system calls, but no kernel functions: {why}"));
            }
            Err(NoFunctions::Unusable(why)) => {
                bail!("cannot record kernel functions: {why}; use --kernel without names to record system calls")
            }
        }
    }
    events.sort_unstable();
    events.dedup();
    for event in &events {
        instance.set(&format!("events/{event}/enable"), "1")?;
    }
    formats.extend(&events);
    // A kernel does not record events that it does not have.
    let format = |name: &'static str| Some((name, instance.read(&format!("events/{name}/format")).ok()?));
    let formats: Vec<_> = formats.into_iter().filter_map(format).collect();
    let header = Header::new(&instance.read("events/header_page")?, formats);
    let header = header.context("rftrace does not know the format of this kernel's records (events/header_page)")?;
    let sources = processors()?.into_iter().map(|number| Ok((number, instance.open_records(number)?)));
    let sources = sources.collect::<Result<_>>()?;
    let switch = open(&instance, "tracing_on")?;
    Ok(KernelEvents { parts: Parts { numbers, switch, sources, instance }, header, is_tsc, interrupted, note })
}

/// Why functions are not traced.
enum NoFunctions {
    /// None has such a name.
    Unknown(String),
    /// There is no tracer for them, or it may not be used.
    Unusable(String),
}

/// Sets a tracer of functions. Returns the file that takes the numbers of processes.
fn trace_functions(instance: &Instance, globs: &[String]) -> Result<OwnedFd, NoFunctions> {
    let unusable = |error: anyhow::Error| NoFunctions::Unusable(format!("{error:#}"));
    let available = instance.read("available_tracers").map_err(unusable)?;
    let has = |tracer: &&&str| available.split_ascii_whitespace().any(|known| known == **tracer);
    let Some(tracer) = TRACERS.iter().find(has) else {
        let why = "this kernel has no function tracer (CONFIG_FUNCTION_GRAPH_TRACER)";
        return Err(NoFunctions::Unusable(why.to_owned()));
    };
    for glob in globs {
        match instance.append("set_ftrace_filter", glob) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                return Err(NoFunctions::Unknown(glob.clone()));
            }
            Err(error) => {
                let error = anyhow::Error::from(error).context("cannot choose kernel functions (set_ftrace_filter)");
                return Err(unusable(error));
            }
        }
    }
    instance.set("options/function-fork", "1").map_err(unusable)?;
    let file = open(instance, "set_ftrace_pid").map_err(unusable)?;
    instance.set("current_tracer", tracer).map_err(unusable)?;
    Ok(file)
}

fn open(instance: &Instance, name: &str) -> Result<OwnedFd> {
    let file = instance.open_to_write(name).with_context(|| format!("cannot open {name} of tracefs"))?;
    Ok(file.into())
}
