//! The recorded functions and values of a process without a library that could choose them: this module makes the
//! tracer's tables and writes them into the process.
//!
//! The table of functions keeps its place from the first recorder with a filter until the process ends. The next
//! recorder continues it, as a thread may still read it. For the same reason a table of values is never overwritten: a
//! new one gets a new place.

use std::mem::offset_of;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result, bail};
use nix::libc;
use rftrace::abi::{Control, FilterControl, ValueTable};
use rftrace_format::passed::Passed;
use rftrace_frontend::{Filter, Function, OutsideChoice, Selected, outside_functions};

use super::borrowed::Borrowed;
use super::image::Image;
use super::jumps::Hooked;
use super::library::map;
use super::process::Process;
use super::stubs::Entries;
use super::wanted::Wanted;

/// Selection of functions and values to record.
#[derive(Debug)]
pub(crate) struct Chosen {
    /// The functions with calls of a hook, and that hook, and those with a branch.
    functions: (Vec<(&'static str, u64)>, Vec<Range<u64>>),
    /// Empty for everything.
    rules: String,
    /// True if other rules were in force before.
    are_others: bool,
    /// Choice by the rules; `None` if there never were any.
    choice: Option<OutsideChoice>,
    /// The folder with the socket that answers questions about functions' values, if they are needed.
    types: Option<Passed>,
    /// Memory of the process without a table of values yet.
    room: Range<u64>,
    /// The number of changes of the table of values last written.
    written: Option<u64>,
}

/// The place of the choice in the tracer's control block.
const FILTER: usize = offset_of!(Control, filter);
/// There is room for so many tables of values: whenever libraries come, a table of all is made. Unused room is address
/// space alone.
const TABLES: u64 = 8;
/// More than now a table may take then.
const LATER_BYTES: u64 = 1 << 20;

impl Chosen {
    /// Looks up the choice of rules in a process, which may have the tracer already. Nothing changes yet.
    ///
    /// # Errors
    ///
    /// Sentences: the rules are wrong, or match nothing.
    pub(crate) fn look_up(
        wanted: &Wanted,
        process: &Process,
        image: Option<&Image>,
        (hooked, entries): (&[Hooked], &Entries),
    ) -> Result<Self> {
        let hooks = hooked.iter().map(|it| (it.hook, it.range.start)).collect();
        let mut this = Self {
            functions: (hooks, entries.functions().to_vec()),
            rules: String::new(),
            are_others: false,
            choice: None,
            types: wanted.types.clone(),
            room: 0..0,
            written: None,
        };
        this.change(&wanted.filter, process, image)?;
        Ok(this)
    }

    /// Looks up the choice of other rules. Nothing changes in the process yet.
    ///
    /// # Errors
    ///
    /// As of [`look_up`](Self::look_up): all is as before.
    pub(crate) fn change(&mut self, rules: &str, process: &Process, image: Option<&Image>) -> Result<()> {
        if !rules.trim().is_empty() {
            let filter: Filter = rules.parse().context("cannot read the rules")?;
            let types = self.types.as_ref();
            let ask = |modules: &[(String, Option<String>)]| ask(types, modules);
            match &mut self.choice {
                Some(choice) => choice.set_filter(&filter, ask)?,
                None => {
                    let slots =
                        image.map_or_else(|| Ok(Vec::new()), |image| published(process, image.control(process)))?;
                    let functions = self.functions.clone();
                    self.choice = Some(OutsideChoice::new(&filter, &process.folder(), functions, &slots, ask)?);
                }
            }
        }
        self.rules = rules.trim().to_owned();
        Ok(())
    }

    /// Has the tracer record this choice. Recording `begins`, or goes on.
    pub(crate) fn apply(
        &mut self,
        thread: &mut Borrowed<'_>,
        process: &Process,
        image: &Image,
        begins: bool,
    ) -> Result<()> {
        let control = image.control(process);
        if self.in_force().is_some() && table_of(process, control) == 0 {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let bytes = OutsideChoice::TABLE_BYTES as u64;
            let table = map(thread, bytes, protection)?;
            // As for the library: a small table is not to take 2 MiB. It may fail.
            let _ = thread.system_call(libc::SYS_madvise, &[table, bytes, libc::MADV_NOHUGEPAGE as u64]);
            let at = control + (FILTER + offset_of!(FilterControl, sites)) as u64;
            process.write(at, &table.to_le_bytes())?;
        }
        let table_bytes = self.values(0).map_or(0, |table| table.len() as u64);
        if self.in_force().is_some_and(OutsideChoice::has_table) && self.room.end - self.room.start <= table_bytes {
            let n_bytes = TABLES * (table_bytes + LATER_BYTES);
            let start = map(thread, n_bytes, libc::PROT_READ | libc::PROT_WRITE)?;
            self.room = start..start + n_bytes;
        }
        self.write(process, control, begins)?;
        self.are_others |= !begins;
        thread.call(image.function("rftrace_backend_filter")?, &[self.in_force().is_some().into()])
    }

    /// Obeys the rules with the modules loaded now.
    pub(crate) fn refresh(&mut self, process: &Process, image: &Image) -> Result<()> {
        let Self { choice: Some(choice), types, .. } = self else { return Ok(()) };
        if self.rules.is_empty() {
            return Ok(());
        }
        choice.refresh(|modules| ask(types.as_ref(), modules))?;
        self.write(process, image.control(process), false)
    }

    /// True if values are to be recorded, maybe only of functions of libraries that come later.
    pub(crate) fn wants_values(&self) -> bool {
        self.in_force().is_some_and(OutsideChoice::wants_values)
    }

    /// Calls shorter than this, in ticks, are not recorded.
    pub(crate) fn min_ticks(&self) -> u64 {
        self.in_force().map_or(0, |choice| choice.control().min_ticks.load(Relaxed))
    }

    /// Returns for each optional one of the first rules whether it has an effect; empty if other rules are in force.
    pub(crate) fn in_effect(&self) -> Vec<bool> {
        self.in_force().filter(|_| !self.are_others).map(OutsideChoice::in_effect).unwrap_or_default()
    }

    /// The rules, and their choice; `None` for everything.
    pub(crate) fn rules(&self) -> (&str, Option<&Selected>) {
        (&self.rules, self.in_force().map(OutsideChoice::selected))
    }

    /// All functions that can be recorded.
    pub(crate) fn functions(&self, process: &Process) -> Result<Vec<Function>> {
        let filter = self.rules.parse().context("cannot read the rules")?;
        let (hooks, branched) = &self.functions;
        Ok(outside_functions(&filter, &process.folder(), (hooks, branched))?)
    }

    /// Returns the choice by the rules, if there are any.
    fn in_force(&self) -> Option<&OutsideChoice> {
        self.choice.as_ref().filter(|_| !self.rules.is_empty())
    }

    /// The table of values as it is at an address; `None` if there are none.
    fn values(&self, at: u64) -> Option<Vec<u8>> {
        self.in_force()?.values(at)
    }

    /// Writes the table of values, if it has changed: hooks count in it. Without room for it the functions of a new
    /// library get none.
    fn write_values(&mut self, process: &Process, control: u64) -> Result<()> {
        let n_changes = self.in_force().map(OutsideChoice::n_changes);
        if self.written.is_some() && self.written == n_changes {
            return Ok(());
        }
        let at = self.room.start;
        let Some(table) = self.values(at).filter(|table| at + table.len() as u64 <= self.room.end) else {
            return Ok(());
        };
        process.write(at, &table)?;
        process.write(control + (FILTER + offset_of!(FilterControl, values)) as u64, &at.to_le_bytes())?;
        self.room.start = (at + table.len() as u64).next_multiple_of(align_of::<ValueTable>() as u64);
        self.written = n_changes;
        Ok(())
    }

    /// Writes all of it, the tables first: hooks may look into them. Recording `begins`, or goes on.
    fn write(&mut self, process: &Process, control: u64, begins: bool) -> Result<()> {
        self.write_values(process, control)?;
        let put = |offset: usize, bytes: &[u8]| process.write(control + (FILTER + offset) as u64, bytes);
        put(offset_of!(FilterControl, min_ticks), &self.min_ticks().to_le_bytes())?;
        let Some(choice) = self.in_force() else { return Ok(()) };
        let chosen = choice.control();
        let bytes: Vec<u8> = choice.slots().flat_map(u64::to_le_bytes).collect();
        process.write(table_of(process, control), &bytes)?;
        let mask = chosen.sites_mask.load(Relaxed) as u64;
        put(offset_of!(FilterControl, sites_mask), &mask.to_le_bytes())?;
        for (offset, word) in [
            (offset_of!(FilterControl, decisive), &chosen.decisive),
            (offset_of!(FilterControl, wanted), &chosen.wanted),
            (offset_of!(FilterControl, depth), &chosen.depth),
        ] {
            put(offset, &word.load(Relaxed).to_le_bytes())?;
        }
        put(offset_of!(FilterControl, default_action), &[chosen.default_action.load(Relaxed)])?;
        let paused_at = offset_of!(FilterControl, paused);
        let was_paused = (!begins).then(|| process.bytes(control + (FILTER + paused_at) as u64, 1) == [1]);
        let is_paused = choice.is_paused(was_paused);
        put(paused_at, &[is_paused.into()])?;
        let depth_limit = if is_paused { 0 } else { chosen.depth.load(Relaxed) };
        put(offset_of!(FilterControl, depth_limit), &depth_limit.to_le_bytes())?;
        Ok(())
    }
}

/// The address of the table; 0 if there is none.
fn table_of(process: &Process, control: u64) -> u64 {
    address_at(process, control, offset_of!(FilterControl, sites))
}

/// An address in the choice; 0 for none.
fn address_at(process: &Process, control: u64, offset: usize) -> u64 {
    process.word(control + (FILTER + offset) as u64).unwrap_or(0)
}

/// Asks for the values of functions. Without an answer none are known.
fn ask(types: Option<&Passed>, modules: &[(String, Option<String>)]) -> String {
    types.and_then(|folder| rftrace_frontend::ask_values(folder, modules).ok()).unwrap_or_default()
}

/// The published slots of the table; none if there is no table.
fn published(process: &Process, control: u64) -> Result<Vec<u64>> {
    let table = table_of(process, control);
    if table == 0 {
        return Ok(Vec::new());
    }
    let mask = process.word(control + (FILTER + offset_of!(FilterControl, sites_mask)) as u64).unwrap_or(0);
    let n_bytes = mask.saturating_add(1).saturating_mul(size_of::<u64>() as u64);
    let mut bytes = vec![0; n_bytes.min(OutsideChoice::TABLE_BYTES as u64) as usize];
    if !process.read(table, &mut bytes) {
        bail!("cannot read the tracer's table of functions in process {}: restart the process", process.pid);
    }
    Ok(super::sys::words(&bytes).collect())
}
