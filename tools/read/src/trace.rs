//! A trace directory.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::BufRead;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rftrace_format::files::{EVENTS, INFO, TASKS, records};
use rftrace_format::info::{Info, feature};
use rftrace_format::items::{Names, read_payload};
use rftrace_format::layout::Layout;
use rftrace_format::record::{ADDRESS_MASK, Kind, RECORD_BYTES, Record};
use rftrace_format::tasks::{MAX_TASKS, TaskLine};
use rftrace_format::values::{MAX_PAYLOAD, ValueSpec};
use rftrace_pattern::{Pattern, nearest};

use crate::chosen::Choice;
use crate::demangle::Demangle;
use crate::error::Result;
use crate::events::EventNames;
use crate::index::Index;
use crate::kernel::{KernelRecords, KernelSymbols};
use crate::lines::Lines;
use crate::maps::Mapping;
use crate::reading::Reading;
use crate::session::{Session, SourceLoader, SymbolLoader};
use crate::shown_names::ShownNames;
use crate::sources::SourcePlace;
use crate::switches::{Switch, Switches};
use crate::symbols::Symbol;
use crate::task::{Processes, Task};
use crate::warning::{Warning, Warnings};
use crate::window::Window;
use crate::{CallCost, files, info};

/// A trace directory with its metadata. Readers load records from their files on demand.
#[derive(Debug)]
pub struct Trace {
    dir: PathBuf,
    info: Info,
    tasks: Vec<Task>,
    sessions: Vec<Session>,
    events: EventNames,
    switches: Switches,
    kernel: KernelRecords,
    kernel_symbols: KernelSymbols,
    folds_inlined: bool,
    shows_inlined: bool,
    shows_full_names: bool,
    has_sources: bool,
    /// Subtracted from sums of times.
    cost: Option<CallCost>,
    choice: Option<Arc<Choice>>,
    reading: Option<Arc<Reading>>,
    /// The index for skipping records outside the choice.
    index: Option<Arc<Index>>,
    /// True if results of all records are kept; and the function to call when one is made.
    keeps_indices: bool,
    tells_of_index: Option<fn()>,
    demangle: Demangle,
    warnings: Warnings,
    /// The last piece of values read of each task, by the task's number.
    payloads: Mutex<HashMap<u32, Window>>,
}

impl Trace {
    /// Reads the metadata of the trace in `dir`: `info`, `task.txt`, the maps, the symbols, the event names, the
    /// context switches, and the functions of tasks in the kernel.
    ///
    /// # Errors
    ///
    /// One of these files is malformed or missing. Symbols and event names may be missing.
    pub fn open(dir: &Path) -> Result<Self> {
        Self::open_named(dir, Demangle::Simple)
    }

    /// Opens a trace like [`Trace::open`], with this form of function names.
    ///
    /// # Errors
    ///
    /// The errors of [`Trace::open`].
    pub fn open_named(dir: &Path, demangle: Demangle) -> Result<Self> {
        let info = info::read(&dir.join(INFO))?;
        let mut warnings = Warnings::default();

        let mut lines = Lines::open(&dir.join(TASKS))?;
        let mut n_lines = 0;
        let mut processes = Processes::default();
        let mut sessions = Vec::new();
        let mut exe_names = Vec::new();
        let mut idx_of_sid = HashMap::new();
        let mut loader = SymbolLoader::new(demangle);
        while lines.next()?.is_some() {
            let Some(line) = lines.parsed(TaskLine::parse)? else {
                warnings.add(Warning::UnknownLine, 1);
                continue;
            };
            n_lines += 1;
            if n_lines > MAX_TASKS {
                return Err(lines
                    .error(&format!("the trace has more than {MAX_TASKS} tasks and programs; record fewer of them")));
            }
            match line {
                TaskLine::Session { time_ns, pid, sid, exe_name } => {
                    let idx = match idx_of_sid.get(sid) {
                        Some(&idx) => idx,
                        None => {
                            sessions.push(Session::read(dir, sid, &mut loader)?);
                            exe_names.push(exe_name.to_owned());
                            idx_of_sid.insert(sid.to_owned(), sessions.len() - 1);
                            sessions.len() - 1
                        }
                    };
                    processes.sessions.entry(pid).or_default().push((time_ns, idx));
                }
                TaskLine::Task { tid, pid, name, .. } => {
                    processes.add_task(tid, pid);
                    processes.listed.insert(tid);
                    if !name.is_empty() {
                        processes.names.insert(tid, name.to_owned());
                    }
                }
                TaskLine::Fork { time_ns, pid, ppid } => {
                    processes.parents.entry(pid).or_insert((time_ns, ppid));
                    processes.add_task(pid, pid);
                }
                TaskLine::Dlopen { time_ns, sid, base, path, .. } => match idx_of_sid.get(sid) {
                    Some(&idx) => sessions[idx].add_library(dir, time_ns, base, path.to_owned(), &mut loader)?,
                    None => warnings.add(Warning::UnknownLine, 1),
                },
            }
        }
        warnings.merge(&loader.warnings);
        if info.features() & (feature::ARGUMENT | feature::RETURN_VALUE) != 0 {
            // Flaws in these files are reported when source lines are read.
            let mut loader = SourceLoader::of_values(dir, |_: &Mapping| None);
            sessions.iter_mut().try_for_each(|session| session.read_values(&mut loader))?;
        }
        if demangle != Demangle::Simple {
            warnings.add(Warning::NoMangledNames, loader.n_without_mangled_names());
        }

        let mut events = match files::if_present(Lines::open(&dir.join(EVENTS)))? {
            Some(lines) => EventNames::read(lines, &mut warnings)?,
            None => EventNames::default(),
        };
        let switches = match info.features() & feature::PERF_EVENT {
            0 => Switches::default(),
            _ => Switches::read(dir, &mut warnings)?,
        };
        let kernel = match info.features() & feature::KERNEL {
            0 => KernelRecords::default(),
            _ => {
                let (kernel, names) = KernelRecords::read(dir, &mut warnings)?;
                events.add_kernel(names);
                kernel
            }
        };
        let kernel_symbols = KernelSymbols::read(dir, &mut warnings)?;
        let tasks = processes.into_tasks(info.tids(), &exe_names, &mut warnings);
        Ok(Self {
            dir: dir.to_owned(),
            info,
            tasks,
            sessions,
            events,
            switches,
            kernel,
            kernel_symbols,
            folds_inlined: false,
            shows_inlined: false,
            shows_full_names: false,
            has_sources: false,
            cost: None,
            choice: None,
            reading: None,
            index: None,
            keeps_indices: false,
            tells_of_index: None,
            demangle,
            warnings,
            payloads: Mutex::default(),
        })
    }

    /// Sets whether all readers leave out calls of inlined functions: the call of the outer function then stands for
    /// them. This needs names of functions. Off by default.
    pub fn fold_inlined(&mut self, folds: bool) {
        self.folds_inlined = folds;
    }

    /// Sets whether [`Trace::read_sources`] also reads the names of inlined functions. Off by default.
    pub fn show_inlined(&mut self, shows: bool) {
        self.shows_inlined = shows;
    }

    /// Sets whether views show the full names of functions. Off by default: they show [short names](crate::short_name),
    /// except in another form than [`Demangle::Simple`].
    pub fn show_full_names(&mut self, shows: bool) {
        self.shows_full_names = shows;
    }

    /// Returns the names of a new view, without any name in it yet.
    pub fn shown_names(&self) -> ShownNames {
        ShownNames::new(self.shows_full_names || self.demangle != Demangle::Simple)
    }

    /// Sets whether sums of times exclude the measured overhead of recording. Records keep their times. Off by default,
    /// and without effect if the overhead was not measured: [`Trace::cost`] is `None` then.
    pub fn correct_times(&mut self, corrects: bool) {
        self.cost = if corrects { self.measured_cost() } else { None };
    }

    /// Returns the overhead per call, for subtraction from sums of times; `None` if times are not corrected.
    pub fn cost(&self) -> Option<CallCost> {
        self.cost
    }

    /// Limits all readers to a part of the trace, as if nothing else had been recorded. This needs names of functions.
    ///
    /// ```
    /// use rftrace_read::{Choice, Kind, Pattern, Trace};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/directory"));
    /// let mut trace = Trace::open(dir)?;
    /// let mut choice = Choice::default();
    /// choice.below = vec![Pattern::new("main")?];
    /// choice.depth = 1;
    /// trace.choose(choice);
    /// // Only calls of `main` are left.
    /// for (idx, record) in trace.all_records()?.collect::<Result<Vec<_>, _>>()? {
    ///     if record.kind == Kind::Entry {
    ///         assert_eq!(trace.function_name(&trace.tasks()[idx], record.time_ns, record.addr), "main");
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn choose(&mut self, choice: Choice) {
        self.choice = Some(choice).filter(Choice::is_part).map(Arc::new);
    }

    /// Returns true if only a part of the trace is shown.
    pub fn is_chosen(&self) -> bool {
        self.choice.is_some()
    }

    /// Returns the chosen time in nanoseconds of the trace's clock, if times are chosen and nothing else is.
    pub fn chosen_times(&self) -> Option<Range<u64>> {
        self.choice()?.times_alone()
    }

    /// Returns the name most like a pattern, if any is and the pattern matches none.
    pub fn nearest_name(&self, pattern: &Pattern) -> Option<&str> {
        let names = || self.sessions.iter().flat_map(Session::names);
        if names().any(|name| pattern.matches(name)) { None } else { nearest(&pattern.plain(), names()) }
    }

    /// Returns the patterns of the choice that match no name of the trace: those of functions to show, and those of functions to leave out.
    pub fn unknown(&self) -> [Vec<&Pattern>; 2] {
        let of = |patterns: fn(&Choice) -> &[Pattern]| {
            let unmatched =
                |pattern: &&Pattern| !self.sessions.iter().flat_map(Session::names).any(|name| pattern.matches(name));
            self.choice().into_iter().flat_map(|choice| patterns(choice)).filter(unmatched).collect()
        };
        [of(|choice| &choice.below), of(|choice| &choice.not_below)]
    }

    /// Returns true if functions to show are chosen, and [none of them](Self::unknown) is in the trace.
    pub fn has_none_to_show(&self) -> bool {
        self.choice().is_some_and(|choice| !choice.below.is_empty() && self.unknown()[0].len() == choice.below.len())
    }

    pub(crate) fn choice(&self) -> Option<&Arc<Choice>> {
        self.choice.as_ref()
    }

    pub(crate) fn index(&self) -> Option<&Arc<Index>> {
        self.index.as_ref()
    }

    /// Sets the index for skipping records outside the choice.
    pub(crate) fn set_index(&mut self, index: Index) {
        self.index = Some(Arc::new(index));
    }

    pub(crate) fn keep_indices(&mut self) {
        self.keeps_indices = true;
    }

    pub(crate) fn keeps_indices(&self) -> bool {
        self.keeps_indices
    }

    /// Sets a function to call before a long reading of all records for a kept result.
    pub fn on_index(&mut self, tells: Option<fn()>) {
        self.tells_of_index = tells;
    }

    /// Calls that function. For makers of kept results.
    pub fn tell_of_index(&self) {
        if let Some(tells) = self.tells_of_index {
            tells();
        }
    }

    /// Returns how functions are named.
    pub fn demangle(&self) -> Demangle {
        self.demangle
    }

    /// Makes all readers report their progress to `reading`, and stop when it says so.
    pub fn watch(&mut self, reading: Arc<Reading>) {
        self.reading = Some(reading);
    }

    pub(crate) fn reading(&self) -> Option<&Reading> {
        self.reading.as_deref()
    }

    /// Leaves out all tasks except those with these ids.
    ///
    /// # Errors
    ///
    /// The first id without a task. Then nothing changes.
    pub fn keep_tasks(&mut self, tids: &[u32]) -> std::result::Result<(), u32> {
        match tids.iter().find(|&&tid| !self.tasks.iter().any(|task| task.tid == tid)) {
            Some(&unknown) => Err(unknown),
            None => {
                self.tasks.retain(|task| tids.contains(&task.tid));
                Ok(())
            }
        }
    }

    pub(crate) fn folds_inlined(&self) -> bool {
        self.folds_inlined
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the contents of the file `info`.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Returns the tasks: first those of `info` in its order, then those that only `task.txt` lists.
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// Returns the tasks of `info` without a file of records.
    pub fn tasks_without_file(&self) -> impl Iterator<Item = &Task> {
        self.tasks.iter().filter(|task| task.is_listed && !self.dat_file(task).exists())
    }

    /// Returns the path of a task's file of records.
    pub fn dat_file(&self, task: &Task) -> PathBuf {
        self.dir.join(records(task.tid))
    }

    /// Returns the names of events.
    pub fn events(&self) -> &EventNames {
        &self.events
    }

    /// Returns the flaws found by [`Trace::open`]. Readers of records have their own.
    pub fn warnings(&self) -> &Warnings {
        &self.warnings
    }

    /// Returns the name of the function around `addr` in the task's address space at `time_ns`. A function without a
    /// name has a [made one](crate::made_name); outside of modules it is the address in angle brackets.
    pub fn function_name(&self, task: &Task, time_ns: u64, addr: u64) -> Cow<'_, str> {
        self.name_of(self.symbol(task, time_ns, addr), (task, time_ns, addr))
    }

    /// The same, for a known symbol.
    pub(crate) fn name_of<'t>(
        &self,
        symbol: Option<&'t Symbol>,
        (task, time_ns, addr): (&Task, u64, u64),
    ) -> Cow<'t, str> {
        if let Some(symbol) = symbol {
            return Cow::Borrowed(&symbol.name);
        }
        let session = self.session_at(task, time_ns).and_then(|idx| self.sessions.get(idx));
        let made = session.and_then(|session| session.made_name(time_ns, addr));
        Cow::Owned(made.unwrap_or_else(|| format!("<{addr:x}>")))
    }

    /// Returns the file name of the module around `addr` in the task's address space at `time_ns`.
    pub fn module_name(&self, task: &Task, time_ns: u64, addr: u64) -> Option<&str> {
        self.sessions.get(self.session_at(task, time_ns)?)?.module_name(time_ns, addr)
    }

    /// Returns true if two addresses lie in one function.
    pub fn same_function(&self, task: &Task, time_ns: u64, a: u64, b: u64) -> bool {
        let symbol = |addr| self.symbol(task, time_ns, addr).map(std::ptr::from_ref);
        a == b || symbol(a).is_some_and(|symbol_a| symbol(b) == Some(symbol_a))
    }

    /// Returns true if a function may lie at `addr`: anywhere, if no module is known.
    pub(crate) fn may_be_code(&self, task: &Task, addr: u64) -> bool {
        let mut sessions = task.sessions.iter().filter_map(|&(_, idx)| self.sessions.get(idx)).peekable();
        sessions.peek().is_none() || sessions.any(|session| session.is_empty() || session.is_code(addr))
    }

    /// True if there are context switches in files of their own.
    pub(crate) fn has_switches(&self) -> bool {
        !self.switches.is_empty()
    }

    /// Returns the times at which a task got and lost processors.
    pub(crate) fn switches(&self, task: &Task) -> &[Switch] {
        self.switches.of_task(task.tid)
    }

    /// A task's records in the kernel.
    pub(crate) fn in_kernel(&self, task: &Task) -> &[[u8; RECORD_BYTES]] {
        self.kernel.of_task(task.tid)
    }

    /// Returns all sessions, in the order of `task.txt`.
    pub fn sessions(&self) -> &[Session] {
        &self.sessions
    }

    /// Returns the index of a task's session at `time_ns`.
    pub fn session_at(&self, task: &Task, time_ns: u64) -> Option<usize> {
        let after = task.sessions.partition_point(|&(since, _)| since <= time_ns);
        task.sessions.get(after.saturating_sub(1)).map(|&(_, idx)| idx)
    }

    /// Returns the period around `time_ns` with the same names of a task's functions: the task runs one program, and
    /// loads no library.
    pub(crate) fn names_hold(&self, task: &Task, time_ns: u64) -> Range<u64> {
        let n_begun = task.sessions.partition_point(|&(since, _)| since <= time_ns);
        let begun = |idx: usize| task.sessions.get(idx).map(|&(since, _)| since);
        // Before the first one its names are those of the first one.
        let program = n_begun.checked_sub(1).and_then(begun).unwrap_or(0)..begun(n_begun).unwrap_or(u64::MAX);
        let session = self.session_at(task, time_ns).and_then(|idx| self.sessions.get(idx));
        let libraries = session.map_or(0..u64::MAX, |session| session.libraries_stay(time_ns));
        program.start.max(libraries.start)..program.end.min(libraries.end)
    }

    /// Reads source lines for [`Trace::source`] from the trace's `.dbg` files. For a module without such a file it
    /// calls `others`, which may return a text in that format.
    ///
    /// # Errors
    ///
    /// A `.dbg` file cannot be read, or there are too many.
    pub fn read_sources(&mut self, others: impl FnMut(&Mapping) -> Option<Box<dyn BufRead>>) -> Result<()> {
        let mut loader = SourceLoader::new(&self.dir, self.shows_inlined, others);
        for session in &mut self.sessions {
            session.read_sources(&mut loader)?;
        }
        self.warnings.merge(&loader.warnings);
        self.has_sources = true;
        Ok(())
    }

    /// Returns true after [`Trace::read_sources`].
    pub fn has_sources(&self) -> bool {
        self.has_sources
    }

    /// Returns the source line at which the function around `addr` begins; `None` if it is unknown.
    pub fn source(&self, task: &Task, time_ns: u64, addr: u64) -> Option<SourcePlace<'_>> {
        self.sessions.get(self.session_at(task, time_ns)?)?.source(time_ns, addr)
    }

    /// Returns the specs of the values of calls of the function around `addr`, or with `is_result` of its returns;
    /// `None` if they are unknown.
    pub fn value_specs(&self, task: &Task, time_ns: u64, addr: u64, is_result: bool) -> Option<&[ValueSpec]> {
        self.sessions.get(self.session_at(task, time_ns)?)?.values(time_ns, addr, is_result)
    }

    /// Returns the values behind a record as text; empty if there are none or their specs are unknown. Each read of the
    /// file covers many records, so reading in order is cheap.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn values(&self, task: &Task, record: &Record) -> Result<Vec<String>> {
        let names = NamesAt { trace: self, task, record };
        let texts = self.with_payload(task, record, |specs, bytes| {
            let values = read_payload(specs, bytes).map(|(values, _)| values).unwrap_or_default();
            values.iter().map(|value| value.text(&names)).collect()
        });
        Ok(texts?.unwrap_or_default())
    }

    /// Returns the bytes of the values behind a record, as in the file; empty if there are none or their specs are
    /// unknown. The values of one function have the same form in all traces.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn payload(&self, task: &Task, record: &Record) -> Result<Vec<u8>> {
        let bytes = self.with_payload(task, record, |specs, bytes| {
            bytes[..read_payload(specs, bytes).map_or(0, |(_, length)| length)].to_vec()
        });
        Ok(bytes?.unwrap_or_default())
    }

    /// Passes on the bytes behind a record, and their specs, if both are there.
    fn with_payload<T>(
        &self,
        task: &Task,
        record: &Record,
        each: impl FnOnce(&[ValueSpec], &[u8]) -> T,
    ) -> Result<Option<T>> {
        if record.payload_at == 0 {
            return Ok(None);
        }
        let is_result = record.kind == Kind::Exit;
        let Some(specs) = self.value_specs(task, record.time_ns, record.addr, is_result) else { return Ok(None) };
        let mut payloads = self.payloads.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Window::new(self.dat_file(task), self.tasks.len());
        let window = payloads.entry(task.tid).or_insert_with(new);
        window.seek(record.payload_at);
        window.fill(MAX_PAYLOAD)?;
        Ok(Some(each(specs, window.rest())))
    }

    pub(crate) fn symbol(&self, task: &Task, time_ns: u64, addr: u64) -> Option<&Symbol> {
        let session = self.session_at(task, time_ns).and_then(|idx| self.sessions.get(idx));
        session.and_then(|session| session.symbol(time_ns, addr)).or_else(|| self.kernel_symbols.find(addr))
    }
}

/// Names for numbers, at the place and time of a record.
struct NamesAt<'t> {
    trace: &'t Trace,
    task: &'t Task,
    record: &'t Record,
}

impl NamesAt<'_> {
    fn session(&self) -> Option<&Session> {
        self.trace.sessions.get(self.trace.session_at(self.task, self.record.time_ns)?)
    }

    fn place(&self) -> (u64, u64) {
        (self.record.time_ns, self.record.addr)
    }
}

impl Names for NamesAt<'_> {
    fn function(&self, address: u64) -> Option<String> {
        let symbol = self.trace.symbol(self.task, self.record.time_ns, address & ADDRESS_MASK)?;
        Some(symbol.name.to_string())
    }

    fn enumerator(&self, enumeration: u16, number: i32) -> Option<String> {
        self.session()?.enumerator(self.place(), enumeration, number).map(str::to_owned)
    }

    fn layout(&self, number: u16) -> Option<&Layout> {
        self.session()?.layout(self.place(), number)
    }
}
