//! The facts of a recording besides its events: processes, modules, stacks, and clocks.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use rftrace_format::recording::{RESOURCES, SPECIFIED};
use rftrace_format::resources::{
    ATTACHED, BlockHead, Definition, Kind, LOW, MAX_FRAMES, MAX_SPECIFIED, Resource, Specified, Unit,
};
use rftrace_format::specification::MAX_FUNCTIONS;
use rftrace_format::text::{Shown, base_name};
use rftrace_read::{Error, Result};

use crate::blocks::{self, Block, Blocks, Item};

/// The most of each: more are an error.
const MAX_BLOCKS: usize = 1 << 26;
const MAX_FRAMES_IN_ALL: usize = 1 << 26;
const MAX_STACKS: usize = 1 << 23;
const MAX_MODULES: usize = 1 << 18;
const MAX_PROCESSES: usize = 1 << 20;
const MAX_THREADS: usize = 1 << 22;

/// A recording of resources in an open file.
#[derive(Debug)]
pub struct Recording {
    /// The directory of its file.
    dir: PathBuf,
    pub(crate) blocks: Blocks,
    /// Those with events, by when their thread got them.
    pub(crate) all: Vec<Block>,
    processes: BTreeMap<u32, Process>,
    modules: Vec<Module>,
    /// The frames of all stacks, and where those of each end; the first one is nobody's.
    frames: Vec<Frame>,
    ends: Vec<usize>,
    /// By process and number for the system; of threads that had the same one after the other, the earlier first.
    threads: BTreeMap<(u32, u32), Vec<Thread>>,
    /// The stack that a process knows by a number.
    numbers: HashMap<(u32, u32), u32>,
    /// Ticks and nanoseconds, at the beginning and the end.
    clock: Option<[(u64, u64); 2]>,
    /// The nanoseconds added to that for the time of day.
    unix_offset: Option<u64>,
    /// Where modules lie in processes, in the order in which they came.
    loaded: Vec<Loaded>,
    bases: HashMap<(u32, u32), u64>,
    /// A bit for each resource that was recorded.
    wanted: u32,
    /// Those of specifications, by their numbers, and which functions are of which.
    specified: BTreeMap<u8, Specified>,
    functions: HashMap<u64, (u8, &'static str)>,
    /// The number of lost events.
    pub lost: u64,
    /// True if the recording ended because its file had the maximum size.
    pub is_cut: bool,
    /// True if the recorder ended regularly.
    pub is_whole: bool,
}

/// A program that ran in a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// The process's PID.
    pub pid: u32,
    /// The parent that forked it, by its number in the recording; 0 for a process without a recorded parent.
    pub parent: u32,
    /// The program's path.
    pub program: String,
    /// The ticks of its first event, and of its last one.
    pub(crate) first: u64,
    pub(crate) last: u64,
}

/// A module in a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loaded {
    pub(crate) process: u32,
    /// When it was first seen.
    pub(crate) ticks: u64,
    /// In the order of [`Recording::modules`].
    pub(crate) module: u32,
    pub(crate) range: (u64, u64),
}

/// A thread that has allocated or released a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// The name at its first event, 15 bytes at most.
    pub name: String,
    /// Its `pthread_t`.
    pub pthread: u64,
    /// The ticks of its first event.
    pub(crate) first: u64,
}

/// A program or library in a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// The file's path.
    pub path: String,
    /// The build-id in hexadecimal digits; empty without one.
    pub build_id: String,
    process: u32,
    base: u64,
    start: u64,
    end: u64,
    ticks: u64,
}

impl Module {
    /// One of which only the file is known.
    pub(crate) fn of_path(path: &str) -> Self {
        Self { path: path.to_owned(), build_id: String::new(), process: 0, base: 0, start: 0, end: 0, ticks: 0 }
    }

    /// The distance of an address of its file from its beginning in memory.
    pub(crate) fn offset(&self, address: u64) -> u64 {
        address.wrapping_add(self.base).wrapping_sub(self.start)
    }
}

/// A return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frame {
    /// The index of its module in [`Recording::modules`].
    pub module: Option<u32>,
    /// The address relative to the module, as in its file; the address itself without a module.
    pub address: u64,
}

/// The items collected on the way through the file.
#[derive(Default)]
struct Found {
    all: Vec<Block>,
    processes: BTreeMap<u32, Process>,
    modules: Vec<Module>,
    threads: BTreeMap<(u32, u32), Vec<Thread>>,
    n_threads: usize,
    /// The raw stacks.
    stacks: Vec<(u32, u32, Vec<u64>)>,
    n_frames: usize,
    clock: Option<[(u64, u64); 2]>,
    unix_offset: Option<u64>,
    wanted: u32,
    specified: BTreeMap<u8, Specified>,
    functions: HashMap<u64, (u8, &'static str)>,
    lost: u64,
    is_cut: bool,
    has_end: bool,
}

impl Recording {
    /// Opens the file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is of another kind, or exceeds a limit.
    pub fn open(path: &Path) -> Result<Self> {
        let blocks = Blocks::open(path)?;
        let mut found = Found::default();
        let is_whole = blocks.each(|block, units| {
            found.add(block, units).map_err(|reason| Error::malformed(path, block.offset, reason))
        })?;
        found.all.sort_by_key(|block| block.head.taken);
        found.threads.values_mut().for_each(|threads| threads.sort_by_key(|thread| thread.first));
        found.name_children();
        let mut recording = Self {
            dir: path.parent().unwrap_or(Path::new("")).to_owned(),
            blocks,
            all: found.all,
            processes: found.processes,
            modules: Vec::new(),
            frames: Vec::new(),
            ends: vec![0],
            threads: found.threads,
            numbers: HashMap::new(),
            clock: found.clock,
            unix_offset: found.unix_offset,
            loaded: Vec::new(),
            bases: HashMap::new(),
            wanted: found.wanted,
            specified: found.specified,
            functions: found.functions,
            lost: found.lost,
            is_cut: found.is_cut,
            is_whole: is_whole && found.has_end,
        };
        recording.add_stacks(found.modules, found.stacks);
        Ok(recording)
    }

    /// Returns the directory of the trace.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns true if the process ran before the recording: it may release resources that it allocated earlier.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.wanted & ATTACHED != 0
    }

    /// Returns the recorded resources.
    pub fn resources(&self) -> Vec<Resource> {
        let specified = self.specified.values().map(|&specified| Resource::Specified(specified));
        Resource::ALL.into_iter().chain(specified).filter(|resource| self.wanted & resource.bit() != 0).collect()
    }

    /// A function of a specification: of what, and its name.
    pub(crate) fn specified(&self, function: u64) -> Option<(Resource, &'static str)> {
        let &(resource, name) = self.functions.get(&function)?;
        if resource == Definition::OF_MEMORY {
            return Some((Resource::Memory, name));
        }
        Some((Resource::Specified(*self.specified.get(&resource)?), name))
    }

    /// Returns the processes by their numbers in the recording, from 1.
    pub fn processes(&self) -> &BTreeMap<u32, Process> {
        &self.processes
    }

    /// Returns a thread of a process at a time in ticks, if it is known.
    pub fn thread(&self, process: u32, tid: u32, ticks: u64) -> Option<&Thread> {
        let threads = self.threads.get(&(process, tid))?;
        // It tells of itself a little after the time that its first event has.
        threads.iter().rev().find(|thread| thread.first <= ticks).or(threads.first())
    }

    /// Returns all modules, each once.
    pub fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// Returns the number of stacks. The first one is empty.
    pub fn n_stacks(&self) -> usize {
        self.ends.len()
    }

    /// Returns the frames of a stack, innermost first.
    pub fn stack(&self, stack: u32) -> &[Frame] {
        let stack = stack as usize;
        let start = if stack == 0 { 0 } else { self.ends[stack - 1] };
        &self.frames[start..self.ends[stack]]
    }

    /// The stack that a process, or one that it was forked from, knows by this number.
    pub(crate) fn stack_of(&self, process: u32, number: u32) -> u32 {
        let known = |&process: &u32| self.numbers.get(&(process, number)).copied();
        self.lineage(process).find_map(|process| known(&process)).unwrap_or(0)
    }

    /// Converts the ticks of an event to nanoseconds of `CLOCK_MONOTONIC`.
    pub fn nanos(&self, ticks: u64) -> u64 {
        let Some([(first, first_nanos), (last, last_nanos)]) = self.clock else { return ticks };
        let (all, nanos) = (last.saturating_sub(first), last_nanos.saturating_sub(first_nanos));
        if all == 0 {
            return first_nanos;
        }
        let behind = i128::from(ticks) - i128::from(first);
        let at = i128::from(first_nanos) + behind * i128::from(nanos) / i128::from(all);
        at.clamp(0, i128::from(u64::MAX)) as u64
    }

    /// Converts the ticks of an event to nanoseconds since the recording began.
    pub fn since_start(&self, ticks: u64) -> u64 {
        self.nanos(ticks).saturating_sub(self.clock.map_or(0, |[(_, first), _]| first))
    }

    /// Converts the ticks of an event to nanoseconds since 1970; `None` if the time of day is unknown.
    pub fn unix_nanos(&self, ticks: u64) -> Option<u64> {
        Some(self.nanos(ticks).wrapping_add(self.unix_offset?))
    }

    /// The number added to addresses in the file of a module, in a process. Of a module that was loaded twice, the later one counts.
    pub(crate) fn base(&self, process: u32, module: u32) -> Option<u64> {
        self.lineage(process).find_map(|process| self.bases.get(&(process, module)).copied())
    }

    /// Where modules lie in a process, those of the one that it was forked from included, in the order in which they came.
    pub(crate) fn loaded(&self, process: u32) -> Vec<&Loaded> {
        let lineage: Vec<u32> = self.lineage(process).collect();
        let mut loaded: Vec<&Loaded> = self.loaded.iter().filter(|one| lineage.contains(&one.process)).collect();
        loaded.sort_by_key(|one| (one.ticks, one.range));
        loaded
    }

    /// A process, the one that it was forked from, and so on.
    fn lineage(&self, process: u32) -> impl Iterator<Item = u32> {
        let parent = |&process: &u32| self.processes.get(&process).map(|found| found.parent).filter(|&p| p != 0);
        // A file may say that two are each other's parents.
        std::iter::successors(Some(process), parent).take(64)
    }

    fn add_stacks(&mut self, raw: Vec<Module>, stacks: Vec<(u32, u32, Vec<u64>)>) {
        // Modules of one file are one.
        let mut places: HashMap<(String, String), u32> = HashMap::new();
        let mut of_process: HashMap<u32, Vec<(u64, u64, u64, u32)>> = HashMap::new();
        for module in raw {
            let key = (module.path.clone(), module.build_id.clone());
            let place = *places.entry(key).or_insert(self.modules.len() as u32);
            of_process.entry(module.process).or_default().push((module.start, module.end, module.base, place));
            self.bases.insert((module.process, place), module.base);
            self.loaded.push(Loaded {
                process: module.process,
                ticks: module.ticks,
                module: place,
                range: (module.start, module.end),
            });
            if place as usize == self.modules.len() {
                self.modules.push(module);
            }
        }
        let is_own: Vec<bool> =
            self.modules.iter().map(|module| [RESOURCES, SPECIFIED].contains(&base_name(&module.path))).collect();
        let mut known: HashMap<Vec<Frame>, u32> = HashMap::new();
        for (process, number, addresses) in stacks {
            let frame = |&address: &u64| {
                let here = |process: u32| {
                    // Of modules that were there one after the other, the later.
                    let mut modules = of_process.get(&process)?.iter().rev();
                    modules.find(|&&(start, end, ..)| (start..=end).contains(&address))
                };
                match self.lineage(process).find_map(here) {
                    Some(&(_, _, base, module)) => Frame { module: Some(module), address: address.wrapping_sub(base) },
                    None => Frame { module: None, address },
                }
            };
            // Frames of the recording itself, between a function and its caller, belong to neither.
            let is_own = |frame: &Frame| frame.module.is_some_and(|module| is_own[module as usize]);
            let frames: Vec<Frame> = addresses.iter().map(frame).filter(|frame| !is_own(frame)).collect();
            let stack = known.get(&frames).copied().unwrap_or_else(|| {
                self.frames.extend(&frames);
                self.ends.push(self.frames.len());
                let stack = self.ends.len() as u32 - 1;
                known.insert(frames, stack);
                stack
            });
            self.numbers.insert((process, number), stack);
        }
    }
}

impl Found {
    fn add(&mut self, block: Block, units: &[Unit]) -> std::result::Result<(), String> {
        let mut last = None;
        let mut has_events = false;
        for item in blocks::items(units) {
            if let Some((resource, _)) = item.kind.role() {
                has_events = true;
                self.wanted |= resource.bit();
            } else if item.kind.action().is_some() {
                has_events = true;
            } else {
                self.add_item(&block.head, &item)?;
            }
            last = last.max(Some(item.ticks));
        }
        if let Some((last, process)) = last.zip(self.processes.get_mut(&block.head.process)) {
            process.last = process.last.max(last);
        }
        if has_events {
            self.all.push(block);
        }
        check(self.all.len(), MAX_BLOCKS, "blocks")
    }

    /// Takes what is said of a specified function. Its texts stay, as [`Specified`] is to be copied: a recorder tells of few.
    fn define(&mut self, definition: &Definition<'_>) -> std::result::Result<(), String> {
        let stay = |text: &str| -> &'static str { Box::leak(Shown::new(text).to_string().into_boxed_str()) };
        let Definition { function, resource, has_bytes, is_counted, has_others, texts: [name, description, called] } =
            *definition;
        if self.functions.contains_key(&function.into()) {
            return Err(format!("two functions have the number {function}: the file is damaged"));
        }
        check(self.functions.len(), MAX_FUNCTIONS, "specified functions")?;
        self.functions.insert(function.into(), (resource, stay(called)));
        if resource == Definition::OF_MEMORY {
            return Ok(());
        }
        check(self.specified.len(), MAX_SPECIFIED, "specified resources")?;
        self.specified.entry(resource).or_insert_with(|| Specified {
            number: resource,
            name: stay(name),
            description: stay(description),
            has_bytes,
            is_counted,
            has_others,
        });
        Ok(())
    }

    /// Has children run their parents' programs that could not ask which one that is.
    fn name_children(&mut self) {
        let numbers: Vec<u32> = self.processes.keys().copied().collect();
        // A parent has its number before its child.
        for number in numbers {
            let process = &self.processes[&number];
            if process.program.is_empty()
                && let Some(program) = self.processes.get(&process.parent).map(|parent| parent.program.clone())
            {
                self.processes.entry(number).and_modify(|process| process.program = program);
            }
        }
    }

    fn add_item(&mut self, head: &BlockHead, item: &Item<'_>) -> std::result::Result<(), String> {
        let number = head.process;
        match (item.kind, item.more) {
            (Kind::Process, &[[_, bytes], ref more @ ..]) => {
                let program =
                    blocks::text(more, bytes).ok_or("the name of a program is too long: the file is damaged")?;
                let program = Shown::new(&String::from_utf8_lossy(&program)).to_string();
                let (pid, parent) = (item.word as u32, (item.word >> 32) as u32);
                let process = Process { pid, parent, program, first: item.ticks, last: item.ticks };
                self.processes.insert(number, process);
                check(self.processes.len(), MAX_PROCESSES, "processes")?;
            }
            (Kind::Module, &[[start, end], [both, id], ref more @ ..]) => {
                let (start, both) = (start & LOW, both & LOW);
                let text = blocks::text(more, both).filter(|text| id as usize <= text.len());
                let text = text.ok_or("the name of a module is too long: the file is damaged")?;
                let (id, path) = text.split_at(id as usize);
                self.modules.push(Module {
                    path: String::from_utf8_lossy(path).into_owned(),
                    build_id: id.iter().map(|byte| format!("{byte:02x}")).collect(),
                    process: number,
                    base: item.word,
                    start,
                    end,
                    ticks: item.ticks,
                });
                check(self.modules.len(), MAX_MODULES, "modules")?;
            }
            (Kind::Stack, more) => {
                let n_frames = (item.word >> 48) as usize;
                if n_frames > MAX_FRAMES || n_frames > more.len() * 2 {
                    return Err(format!("a stack of {n_frames} frames: the file is damaged"));
                }
                let frames = more.iter().flat_map(|unit| [unit[0] & LOW, unit[1]]).take(n_frames).collect();
                self.stacks.push((number, item.word as u32, frames));
                self.n_frames += n_frames;
                check(self.stacks.len(), MAX_STACKS, "stacks")?;
                check(self.n_frames, MAX_FRAMES_IN_ALL, "frames of stacks")?;
            }
            (Kind::Thread, &[[bytes, _], ref more @ ..]) => {
                let name =
                    blocks::text(more, bytes & LOW).ok_or("the name of a thread is too long: the file is damaged")?;
                let name = String::from_utf8_lossy(&name).into_owned();
                let thread = Thread { name, pthread: item.word, first: item.ticks };
                self.threads.entry((number, head.tid)).or_default().push(thread);
                self.n_threads += 1;
                check(self.n_threads, MAX_THREADS, "threads")?;
            }
            (Kind::Definition, &[[_, bytes], ref more @ ..]) => {
                let text = blocks::text(more, bytes).and_then(|text| String::from_utf8(text).ok());
                let text = text.ok_or("a specified function has no name: the file is damaged")?;
                let definition =
                    Definition::of(item.word, &text).ok_or("the entry of a specified function is damaged")?;
                self.define(&definition)?;
            }
            (Kind::Wanted, _) => self.wanted |= item.word as u32,
            (Kind::Clock, more) => {
                if let &[[_, unix], ..] = more {
                    self.unix_offset = Some(unix.wrapping_sub(item.word));
                }
                let now = (item.ticks, item.word);
                self.clock = Some([self.clock.map_or(now, |[first, _]| first), now]);
            }
            (Kind::End, &[[is_cut, _], ..]) => {
                (self.lost, self.is_cut, self.has_end) = (item.word, is_cut & LOW != 0, true);
            }
            _ => {}
        }
        Ok(())
    }
}

fn check(number: usize, most: usize, what: &str) -> std::result::Result<(), String> {
    if number > most { Err(format!("more than {most} {what}; record less at a time")) } else { Ok(()) }
}
