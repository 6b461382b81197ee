//! What is recorded of a process that cannot choose it itself, as nothing of this crate is in it: the tracer alone was put there from outside. Its
//! recorder looks up the functions and makes the table, which is [`control`](super::control)'s otherwise, and writes it there.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rftrace::abi::FilterControl;

use super::rules::Filter;
use super::select::{self, Selection};
use super::table::SiteTable;
use super::values::KnownValues;
use crate::Error;
use crate::clock;
use crate::host::{self, Catalogue};

/// The filter of such a process. It takes memory of this process, for ever, as far as the table is filled.
#[derive(Debug)]
pub struct OutsideChoice {
    filter: Filter,
    process: PathBuf,
    hooks: Vec<(&'static str, u64)>,
    branched: Vec<Range<u64>>,
    table: SiteTable,
    /// As in the process, but for addresses.
    control: FilterControl,
    in_effect: Vec<bool>,
}

impl OutsideChoice {
    /// Bytes of address space that the table takes in the process, zero at first.
    pub const TABLE_BYTES: usize = host::MAX_SITES * size_of::<AtomicU64>();

    /// Looks up what a filter chooses in the process whose folder in `/proc` this is. `hooks`: its functions that others call at their beginning, by
    /// their names; `branched`: those that get a branch at theirs. `slots`: all that are published of the table that a recorder has left there; empty if none
    /// has.
    ///
    /// # Errors
    ///
    /// [`Error::BadFilter`] and [`Error::NothingMatches`] as of [`Tracer::set_filter`](crate::Tracer::set_filter); [`Error::Read`] if the process has
    /// ended; [`Error::OutOfMemory`].
    pub fn new(
        filter: &Filter,
        process: &Path,
        (hooks, branched): (Vec<(&'static str, u64)>, Vec<Range<u64>>),
        slots: &[u64],
    ) -> Result<Self, Error> {
        let control = FilterControl::new();
        let own: &'static [AtomicU64] = host::reserve_sites()?.unwrap_or_default();
        own.iter().zip(slots).for_each(|(own, &word)| own.store(word, Relaxed));
        let table = match slots.len() {
            0 => SiteTable::publish(own, &control),
            n_slots => SiteTable::adopt(own, n_slots.min(own.len()), &control),
        };
        let (filter, process) = (filter.clone(), process.to_owned());
        let mut this = Self { filter, process, hooks, branched, table, control, in_effect: Vec::new() };
        this.refresh()?;
        Ok(this)
    }

    /// Obeys the filter with what the process has loaded now.
    ///
    /// # Errors
    ///
    /// As of [`new`](Self::new). All is as before then.
    pub fn refresh(&mut self) -> Result<(), Error> {
        let catalogue = Catalogue::of_process(&self.process, &self.hooks, &self.branched)
            .map_err(|source| Error::Read { path: self.process.clone(), source })?;
        let selection = select::select(&self.filter, &catalogue, &KnownValues::default())?;
        let Selection { actions, default_action, decisive, wanted, depth_limit, selected, .. } = selection;
        let control = &self.control;
        self.table.update(&actions, default_action, control);
        control.default_action.store(default_action, Relaxed);
        control.decisive.store(decisive, Relaxed);
        control.wanted.store(wanted, Relaxed);
        control.depth.store(depth_limit, Relaxed);
        control.depth_limit.store(depth_limit, Relaxed);
        control.min_ticks.store(clock::ticks_in(self.filter.shortest()), Relaxed);
        self.in_effect = select::in_effect(&self.filter, &selected);
        Ok(())
    }

    /// The slots of the table that are to be published.
    pub fn slots(&self) -> impl Iterator<Item = u64> {
        self.table.slots().iter().map(|slot| slot.load(Relaxed))
    }

    /// What is to be in the process, but for addresses and whether it is in force.
    #[must_use]
    pub fn control(&self) -> &FilterControl {
        &self.control
    }

    /// Whether each of the filter's optional rules has an effect.
    #[must_use]
    pub fn in_effect(&self) -> &[bool] {
        &self.in_effect
    }
}
