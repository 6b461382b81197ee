//! Attaching to a process that cannot load a library: it is linked statically, or has another C library than glibc. The
//! tracer alone is mapped into it, and the program's own `mcount` becomes a jump to the tracer. The recorder describes
//! the process.
//!
//! The tracer identifies threads by the ids that C libraries keep with each thread. Exceptions pass hooked functions,
//! as the program's [`unwinder`](super::unwinder) knows the tracer.

use std::mem::offset_of;
use std::ops::Range;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::libc::{self, pid_t};
use rftrace::abi::{Control, ControlShared, Outside as Told, Switch};
use rftrace_frontend::patch::Unnamed;
use rftrace_frontend::{Ends, Filter, Function, Selected};

use super::attached::{Files, State, modules};
use super::bank::{BankPlaces, hide_bank, map_bank, record_into};
use super::borrowed::{Borrowed, Gadgets};
use super::branches::OwnBranches;
use super::confined;
use super::filter::Chosen;
use super::image::Image;
use super::jumps::{self, Hooked};
use super::left;
use super::library::{close, memory_file};
use super::names;
use super::needs::Needs;
use super::place::Places;
use super::process::{Map, OtherRoot, Process};
use super::stacks::Stacks;
use super::started::{Place, Started};
use super::status::{self, Status};
use super::stubs::{self, Entries};
use super::unwinder::Unwinder;
use super::wanted::Wanted;
use super::world::{World, let_late_go};

/// Addresses in a process that cannot report them itself.
#[derive(Clone, Copy, Debug)]
pub struct Mapped {
    /// The address of the bank's file.
    pub bank: u64,
    /// The address of the tracer's [`Control::threads`](rftrace::abi::Control::threads).
    pub threads: u64,
    /// The address of its switch.
    pub switch: u64,
    /// The minimum duration of recorded calls in ticks.
    pub min_ticks: u64,
    /// The tracer's [`ControlShared::first_index`](rftrace::abi::ControlShared::first_index).
    pub first_index: u64,
}

/// The place of a thread's number in C libraries, from its control block on: GNU's, musl's since 1.2, and before.
const TID_AT: [u64; 3] = [0x2d0, 0x30, 0x38];
const OF_MUSL: [u64; 2] = [TID_AT[1], TID_AT[2]];

/// Such a process, recorded now or before by a killed recorder.
#[derive(Debug)]
pub(crate) struct Outside {
    process: Process,
    image: Image,
    /// The return address of signal handlers of the program; 0 if it has none.
    restorer: u64,
    /// The memory of the bank, as mapped.
    bank: Vec<Range<u64>>,
    /// Recorded functions and values; `None` if this process does not record them.
    chosen: Option<Chosen>,
    branches: Option<OwnBranches>,
    modules: Vec<String>,
    late: Vec<pid_t>,
    is_confined: bool,
}

/// Refuses wrong rules, and options that need the library.
fn check_wanted(pid: pid_t, wanted: &Wanted) -> Result<()> {
    let Wanted { filter, has_library_calls, is_patched, resources, .. } = wanted;
    filter.parse::<Filter>().context("cannot read the rules")?;
    let refused =
        [(*has_library_calls, "--libcalls"), (resources.is_some(), "--resources"), (*is_patched, "--patched")];
    if let Some((_, what)) = refused.into_iter().find(|&(is_wanted, _)| is_wanted) {
        bail!(
            "process {pid} is linked statically, or uses musl as its C library, and {what} is only for programs that are linked dynamically with the \
             GNU C library"
        );
    }
    Ok(())
}

/// Fails if the ends of functions can only be seen in a way that the program may not survive, or that does not exist.
fn check_ends(process: &Process, maps: &[Map], wanted: &Wanted) -> Result<()> {
    let pid = process.pid;
    match wanted.ends {
        Some(Ends::Exits) => bail!(
            "process {pid} is linked statically, or uses musl as its C library, and `--ends exits` is only for programs that are linked \
             dynamically with the GNU C library"
        ),
        None if !wanted.branches.is_empty() && process.reads_return_addresses(maps) => bail!(
            "cannot record {} by -P: its runtime reads return addresses, -P replaces these in a program that is linked statically or uses \
             musl, and the program may crash; `--ends returns` records it nevertheless",
            process.program_path()
        ),
        _ => Ok(()),
    }
}

impl Outside {
    /// Has a process record into the bank made by `prepare`.
    ///
    /// # Errors
    ///
    /// Sentences: the process cannot be attached to, or something went wrong; it goes on as it did.
    pub(crate) fn begin(
        process: Process,
        wanted: &Wanted,
        prepare: impl FnOnce(Files) -> Result<BankPlaces>,
    ) -> Result<Self> {
        check_wanted(process.pid, wanted)?;
        let mut late = Vec::new();
        let has_values = confined::check(&process, &Needs::outside(), &mut late)?;
        if let Some(before) = Self::find(Process::open(process.pid)?)? {
            before.leave()?;
        }
        let borrow = |texts, gadgets: Gadgets, locked, late: &mut Vec<pid_t>| {
            let places = Places::for_bare_tracer(&process, texts, gadgets.restorer, locked)?;
            Borrowed::take(&process, &places, &Needs::outside(), gadgets, late)
        };
        let make = |thread: &mut Borrowed<'_>| {
            let (number, banks) = memory_file(thread, &process, names::BANK)?;
            Ok((number, prepare(Files { banks, resources: None })?))
        };
        let put = put_into(&process, &Now { wanted, has_values }, &mut late, borrow, make)?;
        Self::new(process, put, late)
    }

    /// Has a program, held at its beginning, record into a bank with its file at a path. `None` if it has ended before.
    ///
    /// # Errors
    ///
    /// Sentences: it cannot be recorded, or something went wrong.
    pub(crate) fn begin_started(
        started: &mut Started,
        wanted: &Wanted,
        path: &str,
        places: &BankPlaces,
    ) -> Result<Option<Self>> {
        let pid = started.pid();
        check_wanted(pid, wanted)?;
        let process = Process::open(pid)?;
        let own = own_number(pid);
        if started.go_to_beginning(&process, |fs_base| tid_at(&process, fs_base, own).is_some())? == Place::Ended {
            return Ok(None);
        }
        let mut late = Vec::new();
        let borrow = |_, gadgets, _, _: &mut Vec<pid_t>| Borrowed::held(&process, gadgets, pid);
        let open = |thread: &mut Borrowed<'_>| {
            let path = thread.string(path)?;
            let flags = libc::O_RDWR | libc::O_CLOEXEC;
            let number = thread
                .system_call(libc::SYS_open, &[path, flags as u64, 0])
                .context("cannot open the recorder's buffer in the program")?;
            Ok((number, places.clone()))
        };
        // Nobody may be able to tell the effect of a filter of system calls inherited from this process.
        let has_values = Status::of(pid).is_some_and(|status| status.seccomp == 0);
        let put = put_into(&process, &Now { wanted, has_values }, &mut late, borrow, open)?;
        Self::new(process, put, late).map(Some)
    }

    fn new(process: Process, put: Put, late: Vec<pid_t>) -> Result<Self> {
        let Put { image, bank, chosen, branches, restorer, is_confined } = put;
        let modules = modules(&process.maps()?);
        let (bank, chosen) = (vec![bank], Some(chosen));
        Ok(Self { process, image, restorer, bank, chosen, branches, modules, late, is_confined })
    }

    /// A process with the tracer left in it by a recorder.
    pub(crate) fn find(process: Process) -> Result<Option<Self>> {
        let maps = process.maps()?;
        let Some(image) = Image::find(&process, &maps)? else { return Ok(None) };
        let restorer = Gadgets::anywhere(&process, &maps)?.restorer;
        let bank = maps.iter().filter(|map| names::is_bank(&map.path)).map(|map| map.range.clone()).collect();
        let modules = modules(&maps);
        let (chosen, branches, late) = (None, None, Vec::new());
        Ok(Some(Self { process, image, restorer, bank, chosen, branches, modules, late, is_confined: false }))
    }

    /// The places of its parts.
    pub(crate) fn mapped(&self) -> Mapped {
        let switch = self.image.outside(&self.process, offset_of!(Told, switch));
        let control = self.image.control(&self.process);
        let threads = control + offset_of!(Control, threads) as u64;
        let first_index = control + (offset_of!(Control, shared) + offset_of!(ControlShared, first_index)) as u64;
        let first_index = self.process.word(first_index).unwrap_or(0);
        let min_ticks = self.chosen.as_ref().map_or(0, Chosen::min_ticks);
        Mapped { bank: self.bank.first().map_or(0, |bank| bank.start), threads, switch, min_ticks, first_index }
    }

    /// Returns for each of the optional rules whether it has an effect.
    pub(crate) fn rules_in_effect(&self) -> Vec<bool> {
        self.chosen.as_ref().map(Chosen::in_effect).unwrap_or_default()
    }

    /// The functions that can be recorded, and whether the rules in force choose them.
    pub(crate) fn functions(&self) -> Result<Vec<Function>> {
        self.chosen.as_ref().context(NOT_RECORDED)?.functions(&self.process)
    }

    /// Replaces the rules in force; none for everything. Returns their choice, if they are rules.
    pub(crate) fn set_rules(&mut self, rules: &str) -> Result<Option<Selected>> {
        self.let_late_go();
        let Self { process, image, restorer, chosen, late, .. } = self;
        let chosen = chosen.as_mut().context(NOT_RECORDED)?;
        let before = chosen.rules().0.to_owned();
        chosen.change(rules, process, Some(image))?;
        let changed = borrow(process, image, *restorer, late).and_then(|mut thread| {
            let applied = chosen.apply(&mut thread, process, image, false);
            applied.and(thread.give_back())
        });
        if changed.is_err() {
            // They were right before.
            let _ = chosen.change(&before, process, Some(image));
        }
        changed.map(|()| chosen.rules().1.cloned())
    }

    /// True if values are read only from memory that is there for sure, as a filter of system calls might forbid more.
    pub(crate) fn is_confined(&self) -> bool {
        self.is_confined && self.chosen.as_ref().is_some_and(Chosen::wants_values)
    }

    /// Returns the outcome for functions chosen for a branch, if there are any.
    pub(crate) fn branches(&self) -> Option<&OwnBranches> {
        self.branches.as_ref()
    }

    /// As of [`Attached`](super::attached::Attached).
    pub(crate) fn other_root(&self) -> Option<OtherRoot> {
        self.process.other_root()
    }

    /// Threads that could not be recorded.
    pub(crate) fn n_untraced_threads(&self) -> u32 {
        self.image.n_untraced_threads(&self.process)
    }

    /// True if libraries have come or gone.
    pub(crate) fn is_other(&self) -> bool {
        self.process.maps().is_ok_and(|maps| modules(&maps) != self.modules)
    }

    /// As of [`Attached`](super::attached::Attached).
    pub(crate) fn let_late_go(&mut self) {
        let_late_go(&mut self.late);
    }

    /// Looks after the process. New libraries call the program's `mcount`, and so the tracer.
    pub(crate) fn look(&mut self) -> State {
        self.let_late_go();
        let maps = self.process.maps().unwrap_or_default();
        if maps.is_empty() {
            return State::Ended;
        }
        if !maps.iter().any(|map| names::is_outside(&map.path)) {
            return State::OtherProgram;
        }
        let now = modules(&maps);
        if now == self.modules {
            return State::Attached;
        }
        self.modules = now;
        if let Some(chosen) = &mut self.chosen {
            // Errors in the rules were told at the first look-up.
            let _ = chosen.refresh(&self.process, &self.image);
        }
        State::Changed
    }

    /// Switches recording on or off, or to the other one.
    pub(crate) fn switch(&mut self, to: Option<bool>) -> Result<()> {
        self.let_late_go();
        let Self { process, image, restorer, late, .. } = self;
        let mut thread = borrow(process, image, *restorer, late)?;
        let is_on = to.unwrap_or_else(|| !image.is_on(process));
        let switched = switch_on(&mut thread, process, image, is_on);
        switched.and(thread.give_back())
    }

    /// Ends recording. Everything is as before, except for the image, which stays.
    pub(crate) fn leave(mut self) -> Result<()> {
        self.let_late_go();
        let Self { process, image, restorer, bank, late, .. } = &mut self;
        // Before a thread waits for it.
        let stacks = stacks(process, image);
        let mut thread = borrow(process, image, *restorer, late)?;
        let left = end_on(&mut thread, process, image, &stacks, bank, late);
        left.and(thread.give_back())
    }
}

const NOT_RECORDED: &str = "this rftrace does not record the process";

/// Borrows a thread of a recorded process.
fn borrow<'a>(process: &'a Process, image: &Image, restorer: u64, late: &mut Vec<pid_t>) -> Result<Borrowed<'a>> {
    let places = Places::for_bare_tracer(process, image.texts(), restorer, Vec::new())?;
    Borrowed::take(process, &places, &Needs::outside(), image.gadgets()?, late)
}

/// Options for a process in its present state.
struct Now<'a> {
    wanted: &'a Wanted,
    /// Its filters of system calls, if it has any, let values be read wherever they are.
    has_values: bool,
}

/// Parts put into a process.
struct Put {
    image: Image,
    /// The place of the bank.
    bank: Range<u64>,
    chosen: Chosen,
    branches: Option<OwnBranches>,
    /// The return address of signal handlers.
    restorer: u64,
    /// As of [`What`].
    is_confined: bool,
}

/// Puts the tracer into a process and `open`s a bank, by a thread that `borrow` borrows: one outside the code given to
/// it, and without a lock if the program's unwinder is told. The tracer records as the options say.
fn put_into<'a>(
    process: &'a Process,
    &Now { wanted, has_values }: &Now<'_>,
    late: &mut Vec<pid_t>,
    borrow: impl FnOnce(Vec<Range<u64>>, Gadgets, Vec<Range<u64>>, &mut Vec<pid_t>) -> Result<Borrowed<'a>>,
    open: impl FnOnce(&mut Borrowed<'_>) -> Result<(u64, BankPlaces)>,
) -> Result<Put> {
    let pid = process.pid;
    let maps = process.maps()?;
    let image = Image::find(process, &maps)?;
    check_ends(process, &maps, wanted)?;
    let hooked = jumps::hooked(process, &maps)?;
    if hooked.is_empty() && wanted.branches.is_empty() {
        bail!(
            "process {pid} is linked statically, or uses musl as its C library, and its symbol table has no function mcount or __fentry__: \
             build it with -pg or -mfentry, and with a symbol table (without -s and strip), or choose functions by -P, such as `-P '*'`"
        );
    }
    let unnamed = unnamed(process, &maps)?;
    let unwinder = Unwinder::of(process, &maps, unnamed.as_ref())?;
    let entries = Entries::look_up(process, &maps, wanted, &hooked, unnamed.as_ref())?;
    let mut chosen = Chosen::look_up(wanted, process, image.as_ref(), (&hooked, &entries))?;
    let gadgets = Gadgets::anywhere(process, &maps)?;
    // Also for rules that come later.
    let is_confined = !has_values || confined::may_be_installed(process, &maps)?;
    // The borrowed thread stays in its place until all is written.
    let mut texts = image.as_ref().map_or_else(Vec::new, Image::texts);
    texts.extend(hooked.iter().map(Hooked::inside));
    let mut thread = borrow(texts, gadgets, unwinder.locking(process, &maps), late)?;
    let is_disabled = wanted.is_disabled;
    let what = What { hooked: &hooked, entries: &entries, chosen: &mut chosen, maps: &maps, is_disabled, is_confined };
    let begun = begin_on(&mut thread, process, image, what, &unwinder, late, open);
    let given_back = thread.give_back();
    let (image, bank, branches) = begun?;
    given_back?;
    Ok(Put { image, bank, chosen, branches, restorer: gadgets.restorer, is_confined })
}

/// Returns the known functions of a program without symbol table.
fn unnamed(process: &Process, maps: &[Map]) -> Result<Option<Unnamed>> {
    if process.program(maps)?.has_symbols() {
        return Ok(None);
    }
    Ok(Some(Unnamed::look_up(&process.file(""))?))
}

fn stacks<'a>(process: &'a Process, image: &Image) -> Stacks<'a> {
    /// Each throw goes through one of these.
    const OF_UNWINDER: [&str; 5] = [
        "_Unwind_RaiseException",
        "_Unwind_ForcedUnwind",
        "_Unwind_Resume",
        "_Unwind_Resume_or_Rethrow",
        "_Unwind_Backtrace",
    ];

    let maps = process.maps().unwrap_or_default();
    let modules = process.modules(&maps);
    let unnamed = unnamed(process, &maps).unwrap_or_default();
    let mut unwinder: Vec<Range<u64>> = modules.iter().flat_map(|module| module.definitions(&OF_UNWINDER)).collect();
    unwinder.extend(unnamed.as_ref().and_then(|unnamed| unnamed.unwinder().code()));
    Stacks::new(process, image.control(process), image.texts()).with_unwinder(unwinder)
}

/// Selection recorded of a process.
struct What<'a> {
    hooked: &'a [Hooked],
    entries: &'a Entries,
    chosen: &'a mut Chosen,
    /// Maps at the time of the look-up.
    maps: &'a [Map],
    /// Recording begins switched off.
    is_disabled: bool,
    /// The tracer is to make no system call to read values.
    is_confined: bool,
}

/// Begins the recording on the borrowed thread. Returns the image, the place of the bank, and the outcome for branches.
fn begin_on(
    thread: &mut Borrowed<'_>,
    process: &Process,
    found: Option<Image>,
    what: What<'_>,
    unwinder: &Unwinder,
    late: &mut Vec<pid_t>,
    open: impl FnOnce(&mut Borrowed<'_>) -> Result<(u64, BankPlaces)>,
) -> Result<(Image, Range<u64>, Option<OwnBranches>)> {
    let What { hooked, entries, chosen, maps, is_disabled, is_confined } = what;
    let tid_at = tid_at(process, thread.registers.fs_base, own_number(thread.thread));
    let tid_at = tid_at.with_context(|| {
        format!("the C library of process {} is unknown: rftrace supports the GNU C library and musl", process.pid)
    })?;
    if unwinder.asks_for_headers() && !OF_MUSL.contains(&tid_at) {
        bail!(
            "cannot add the tracer to the unwinder of process {}: with LLVM's libunwind that needs musl as the C library",
            process.pid
        );
    }
    left::remove(thread, process, late)?;
    let (number, places) = open(thread)?;
    let is_new = found.is_none();
    let ranges: Vec<Range<u64>> =
        hooked.iter().map(|it| it.range.clone()).chain(entries.functions().iter().cloned()).collect();
    let image = match found {
        Some(image) => image,
        None => Image::map(thread, process, &ranges, unwinder.lowest(), |name| unwinder.function(name))?,
    };
    thread.use_gadgets(image.gadgets()?);
    let bank = map_bank(thread, process, image.control(process), number, &places)?;
    close(thread, number)?;
    let begun = record_into(thread, process, &image, &places, bank.start, tid_at, is_new);
    let begun = begun.and_then(|()| match is_confined {
        true => thread.call(image.function("rftrace_backend_confine")?, &[]),
        false => Ok(()),
    });
    let begun = begun.and_then(|()| chosen.apply(thread, process, &image, true));
    let begun = begun.and_then(|()| entries.make(thread, process, &image, unwinder.lowest()));
    let begun = begun.and_then(|made| unwinder.tell(thread, process, &image, late).map(|()| made));
    let begun = begun.and_then(|made| {
        let written = jumps::write(process, thread, &image, hooked, late, |id, registers| {
            let own = own_number(id);
            let told = process.word(registers.fs_base + tid_at).map(|word| word as u32);
            if own.is_some() && told != own {
                bail!("cannot record thread {id} of process {}: its C library did not create it", process.pid);
            }
            Ok(())
        });
        written.map(|()| made)
    });
    let begun = begun.and_then(|made| {
        let written = made.write(thread, process, maps, late);
        if written.is_err() {
            let _ = end_on(thread, process, &image, &stacks(process, &image), &[], late);
        }
        written
    });
    let branches = match begun {
        Ok(branches) => branches,
        Err(error) => {
            // The error to report is the first one.
            let _ = hide_bank(thread, &bank);
            return Err(error);
        }
    };
    match is_disabled {
        true => stubs::switch(process, false)?,
        false => thread.call(image.function("rftrace_backend_enable")?, &[])?,
    }
    Ok((image, bank, branches))
}

/// The place of threads' numbers in the C library, if this thread's is there.
fn tid_at(process: &Process, fs_base: u64, own: Option<u32>) -> Option<u64> {
    let is_it = |&at: &u64| process.word(fs_base.wrapping_add(at)).map(|word| word as u32) == own && own.is_some();
    TID_AT.into_iter().find(is_it)
}

fn own_number(thread: pid_t) -> Option<u32> {
    status::own_number(thread)
}

/// Switches recording. Where it is off nothing leads to the hook but its callers.
fn switch_on(thread: &mut Borrowed<'_>, process: &Process, image: &Image, is_on: bool) -> Result<()> {
    let name = if is_on { "rftrace_backend_enable" } else { "rftrace_backend_disable" };
    thread.call(image.function(name)?, &[])?;
    stubs::switch(process, is_on)
}

/// Takes the tracer out.
fn end_on(
    thread: &mut Borrowed<'_>,
    process: &Process,
    image: &Image,
    stacks: &Stacks<'_>,
    bank: &[Range<u64>],
    late: &mut Vec<pid_t>,
) -> Result<()> {
    /// Passes until no thread is in the tracer.
    const TRIES: usize = 20;
    const PAUSE: Duration = Duration::from_millis(1);

    thread.call(image.function("rftrace_backend_disable")?, &[])?;
    let branches = stubs::prepared(process)?;
    let take_away = || jumps::take_away(process, image).and_then(|()| branches.restore_in(process));
    let mut are_there = jumps::are_there(process, image)? || branches.are_there(process);
    for _ in 0..TRIES {
        let mut world = World::stop(process, thread.thread, late)?;
        if world.settle(process, thread.thread, late) && are_there {
            take_away()?;
            are_there = false;
        }
        let mut registers = world.registers()?;
        registers.push(thread.registers);
        if stacks.give_back(&registers) {
            break;
        }
        drop(world);
        thread::sleep(PAUSE);
    }
    if are_there {
        let _world = World::still(process, thread.thread, late)?;
        take_away()?;
    }
    stubs::switch(process, false)?;
    bank.iter().try_for_each(|bank| hide_bank(thread, bank))?;
    left::remove(thread, process, late)
}

// The switch has a page of its own.
const _: () = assert!(align_of::<Switch>() == 4096);
