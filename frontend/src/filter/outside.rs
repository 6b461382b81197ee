//! The filter of a process unable to apply filters itself: it has the tracer alone, put into it from outside, without
//! this crate. Its recorder looks up the functions, makes the table (otherwise the work of
//! [`control`](super::control)), and writes it into the process.

use std::mem::offset_of;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rftrace::abi::{FilterControl, ValueSite, ValueTable, Watch};

use super::catalogue::Catalogue;
use super::rules::{Filter, Function, Selected};
use super::select::{self, Selection};
use super::table::SiteTable;
use super::values::{KnownValues, SiteValues};
use crate::Error;
use crate::clock;
use crate::host;

/// The filter of a process with the tracer alone. The memory for its table is never freed; only the filled part of the
/// table takes memory.
#[derive(Debug)]
pub struct OutsideChoice {
    filter: Filter,
    process: PathBuf,
    hooks: Vec<(&'static str, u64)>,
    branched: Vec<Range<u64>>,
    table: SiteTable,
    /// As in the process, except for addresses.
    control: FilterControl,
    /// Values from debug information, as far as requested.
    known_values: KnownValues,
    /// The recorded values, and the actions at calls, by address.
    values: Vec<SiteValues>,
    /// The number of changes of these.
    n_changes: u64,
    /// The ranges of [`ValueTable::constant`].
    constant: Vec<[usize; 2]>,
    selected: Selected,
}

impl OutsideChoice {
    /// The size in bytes of the table's address space in the process. It is all zero at first.
    pub const TABLE_BYTES: usize = host::MAX_SITES * size_of::<AtomicU64>();

    /// Looks up the functions chosen by a filter in a process.
    ///
    /// - `process`: the process's folder in `/proc`.
    /// - `hooks`: the names of hook functions of the process, called by other functions at their beginning.
    /// - `branched`: the functions with entry branches.
    /// - `slots`: the published slots of another recorder's table in the process; empty without one.
    /// - `ask`: the source of facts about values, see [`Filter::known_values`].
    ///
    /// # Errors
    ///
    /// [`Error::BadFilter`] and [`Error::NothingMatches`] as for [`Tracer::set_filter`](crate::Tracer::set_filter);
    /// [`Error::Read`] if the process has ended; [`Error::OutOfMemory`].
    pub fn new(
        filter: &Filter,
        process: &Path,
        (hooks, branched): (Vec<(&'static str, u64)>, Vec<Range<u64>>),
        slots: &[u64],
        ask: impl FnOnce(&[(String, Option<String>)]) -> String,
    ) -> Result<Self, Error> {
        let control = FilterControl::new();
        let own: &'static [AtomicU64] = host::reserve_sites()?.unwrap_or_default();
        own.iter().zip(slots).for_each(|(own, &word)| own.store(word, Relaxed));
        let table = match slots.len() {
            0 => SiteTable::publish(own, &control),
            n_slots => SiteTable::adopt(own, n_slots.min(own.len()), &control),
        };
        let (filter, process) = (filter.clone(), process.to_owned());
        let constant = host::constant_memory_of(&process);
        let (known_values, values) = (KnownValues::default(), Vec::new());
        let mut this = Self {
            filter,
            process,
            hooks,
            branched,
            table,
            control,
            known_values,
            values,
            n_changes: 0,
            constant,
            selected: Selected::default(),
        };
        this.refresh(ask)?;
        Ok(this)
    }

    /// Replaces the filter and looks up its functions.
    ///
    /// # Errors
    ///
    /// The errors of [`new`](Self::new). The previous filter stays.
    pub fn set_filter(
        &mut self,
        filter: &Filter,
        ask: impl FnOnce(&[(String, Option<String>)]) -> String,
    ) -> Result<(), Error> {
        let before = std::mem::replace(&mut self.filter, filter.clone());
        self.refresh(ask).inspect_err(|_| self.filter = before)
    }

    /// Applies the filter to the modules of the process loaded now.
    ///
    /// # Errors
    ///
    /// The errors of [`new`](Self::new). The previous choice stays.
    pub fn refresh(&mut self, ask: impl FnOnce(&[(String, Option<String>)]) -> String) -> Result<(), Error> {
        let catalogue = Catalogue::of_process(&self.process, &self.hooks, &self.branched)
            .map_err(|source| Error::Read { path: self.process.clone(), source })?;
        if self.filter.needs_types() {
            self.known_values.ask(ask, catalogue.traced_modules());
        }
        let selection = select::select(&self.filter, &catalogue, &self.known_values)?;
        let Selection { actions, values, default_action, decisive, wanted, depth_limit, selected } = selection;
        if values != self.values {
            self.values = values;
            self.n_changes += 1;
        }
        let control = &self.control;
        self.table.update(&actions, default_action, control);
        control.default_action.store(default_action, Relaxed);
        control.decisive.store(decisive, Relaxed);
        control.wanted.store(wanted, Relaxed);
        control.depth.store(depth_limit, Relaxed);
        control.min_ticks.store(clock::ticks_in(self.filter.shortest()), Relaxed);
        self.selected = selected;
        Ok(())
    }

    /// Returns the slots of the table, for the process's memory.
    pub fn slots(&self) -> impl Iterator<Item = u64> {
        self.table.slots().iter().map(|slot| slot.load(Relaxed))
    }

    /// Returns the bytes of the [`ValueTable`] and the data behind it, with pointers for a beginning at the address
    /// `at` of the process, a multiple of 8. `None` if the table is empty.
    #[must_use]
    pub fn values(&self, at: u64) -> Option<Vec<u8>> {
        (!self.values.is_empty()).then(|| lay(&self.values, &self.constant, at as usize))
    }

    /// Returns the number of changes of the table. Between two changes the bytes of [`values`](Self::values) may still
    /// differ: the conversion of durations to ticks becomes more exact.
    #[must_use]
    pub fn n_changes(&self) -> u64 {
        self.n_changes
    }

    /// Returns true if a rule asks for values, maybe only of libraries loaded later.
    #[must_use]
    pub fn wants_values(&self) -> bool {
        self.filter.has_values()
    }

    /// Returns true if a [table](Self::values) may be needed, for values or for actions at calls.
    #[must_use]
    pub fn has_table(&self) -> bool {
        self.filter.has_values() || self.filter.has_watches()
    }

    /// Returns true if recording is paused from now on. `was` is the previous state, `None` at the beginning of
    /// recording.
    #[must_use]
    pub fn is_paused(&self, was: Option<bool>) -> bool {
        self.filter.has_switches() && was.unwrap_or(self.filter.begins_paused)
    }

    /// Returns the control block for the process. Its pointers are null; its flags tell of a filter in force and of a
    /// pause.
    #[must_use]
    pub fn control(&self) -> &FilterControl {
        &self.control
    }

    /// Returns the result of the filter.
    #[must_use]
    pub fn selected(&self) -> &Selected {
        &self.selected
    }

    /// Returns, for each optional rule of the filter, whether it has an effect.
    #[must_use]
    pub fn in_effect(&self) -> Vec<bool> {
        select::in_effect(&self.filter, &self.selected)
    }
}

/// Returns the functions of a process that can be recorded, by address, with the choice of a filter for each. The
/// arguments are those of [`OutsideChoice::new`].
///
/// # Errors
///
/// [`Error::Read`] if the process has ended.
pub fn outside_functions(
    filter: &Filter,
    process: &Path,
    (hooks, branched): (&[(&'static str, u64)], &[Range<u64>]),
) -> Result<Vec<Function>, Error> {
    let catalogue = Catalogue::of_process(process, hooks, branched)
        .map_err(|source| Error::Read { path: process.to_owned(), source })?;
    Ok(select::list(Some(filter), &catalogue))
}

/// A table of values as it is at an address.
fn lay(sites: &[SiteValues], constant: &[[usize; 2]], at: usize) -> Vec<u8> {
    let sites_at = size_of::<ValueTable>();
    let constant_at = sites_at + size_of::<ValueSite>() * sites.len();
    let mut watches_at = constant_at + size_of_val(constant);
    let n_watches: usize = sites.iter().map(|site| site.watches.len()).sum();
    let mut codes_at = watches_at + size_of::<Watch>() * n_watches;
    let n_codes: usize = sites.iter().map(|site| site.arguments.len() + site.result.len()).sum();
    let mut bytes = vec![0; codes_at + size_of::<u16>() * n_codes];
    let mut put = |at: usize, bytes_there: &[u8]| bytes[at..at + bytes_there.len()].copy_from_slice(bytes_there);
    for (offset, word) in [
        (offset_of!(ValueTable, sites), at + sites_at),
        (offset_of!(ValueTable, n_sites), sites.len()),
        (offset_of!(ValueTable, constant), at + constant_at),
        (offset_of!(ValueTable, n_constant), constant.len()),
    ] {
        put(offset, &word.to_le_bytes());
    }
    for (place, site) in sites.iter().enumerate() {
        let site_at = sites_at + size_of::<ValueSite>() * place;
        put(site_at + offset_of!(ValueSite, child_ip), &site.child_ip.to_le_bytes());
        put(site_at + offset_of!(ValueSite, levels), &site.levels.to_le_bytes());
        for (codes, pointer, n_codes) in [
            (&site.arguments, offset_of!(ValueSite, arguments), offset_of!(ValueSite, n_arguments)),
            (&site.result, offset_of!(ValueSite, result), offset_of!(ValueSite, n_result)),
        ] {
            put(site_at + pointer, &(at + codes_at).to_le_bytes());
            put(site_at + n_codes, &codes.len().to_le_bytes());
            for code in codes {
                put(codes_at, &code.to_le_bytes());
                codes_at += size_of::<u16>();
            }
        }
    }
    for (place, site) in sites.iter().enumerate() {
        let site_at = sites_at + size_of::<ValueSite>() * place;
        put(site_at + offset_of!(ValueSite, watches), &(at + watches_at).to_le_bytes());
        put(site_at + offset_of!(ValueSite, n_watches), &site.watches.len().to_le_bytes());
        for watch in site.watches.iter().map(|watch| watch.for_hooks()) {
            put(watches_at + offset_of!(Watch, number), &watch.number.to_le_bytes());
            for (offset, byte) in [
                (offset_of!(Watch, action), watch.action),
                (offset_of!(Watch, on_return), watch.on_return),
                (offset_of!(Watch, is_rising), watch.is_rising),
            ] {
                put(watches_at + offset, &[byte]);
            }
            put(watches_at + offset_of!(Watch, nth), &watch.nth.to_le_bytes());
            put(watches_at + offset_of!(Watch, least_ticks), &watch.least_ticks.load(Relaxed).to_le_bytes());
            watches_at += size_of::<Watch>();
        }
    }
    for (place, range) in constant.iter().enumerate() {
        for (number, word) in range.iter().enumerate() {
            put(constant_at + size_of::<usize>() * (2 * place + number), &word.to_le_bytes());
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::super::watches::{AtSite, SiteWatch, WatchRule};
    use super::*;

    fn watch(text: &str) -> SiteWatch {
        match WatchRule::parse(text).unwrap().wanted {
            AtSite::Watch(watch) => watch,
            AtSite::Levels(levels) => panic!("{levels} levels"),
        }
    }

    /// Hooks read the same tables as written.
    #[test]
    fn tables_are_what_hooks_read() {
        let of = |child_ip, arguments: &[u16], result: &[u16], watches: &[&str], levels| SiteValues {
            child_ip,
            arguments: arguments.to_vec(),
            result: result.to_vec(),
            watches: watches.iter().map(|text| watch(text)).collect(),
            levels,
        };
        let sites = [
            of(0x40_1000, &[4, 0x508, 12], &[2], &[], 0),
            of(0x40_2000, &[], &[0x702], &["3:call:f#100", "4:slow:f>1ms"], 7),
            of(0x40_3000, &[], &[], &["5:slow:g>max"], 0),
            of(0x7fff_0000_1234, &[8], &[], &[], 0),
        ];
        let constant = [[0x40_0000, 0x40_0400], [0x40_1000, 0x40_9000]];
        let n_bytes = lay(&sites, &constant, 0).len();
        let memory = vec![0_u64; n_bytes.div_ceil(8)].leak();
        let at = memory.as_mut_ptr();
        // SAFETY: there is room for so many bytes, which nobody else has.
        unsafe { at.cast::<u8>().copy_from(lay(&sites, &constant, at.expose_provenance()).as_ptr(), n_bytes) };
        // SAFETY: a table was laid there, which nobody writes to.
        let table: &ValueTable = unsafe { &*at.cast() };
        // SAFETY: as the table says.
        let found = unsafe { std::slice::from_raw_parts(table.sites, table.n_sites) };
        assert_eq!(found.len(), sites.len());
        for (found, site) in found.iter().zip(&sites) {
            assert_eq!((found.child_ip as u64, found.levels), (site.child_ip, site.levels));
            // SAFETY: as the table says.
            let codes = |first, n_codes| unsafe { std::slice::from_raw_parts(first, n_codes) };
            assert_eq!(codes(found.arguments, found.n_arguments), site.arguments);
            assert_eq!(codes(found.result, found.n_result), site.result);
            // SAFETY: as the table says.
            let watches = unsafe { std::slice::from_raw_parts(found.watches, found.n_watches) };
            assert_eq!(watches.len(), site.watches.len());
            for (found, watch) in watches.iter().zip(site.watches.iter().map(|watch| watch.for_hooks())) {
                let told = |it: &Watch| (it.number, it.action, it.on_return, it.is_rising, it.nth);
                assert_eq!(told(found), told(&watch));
                assert_eq!(found.n_calls.load(Relaxed), 0);
                // How many ticks a time has is known better and better.
                let [least, now] = [found, &watch].map(|it| it.least_ticks.load(Relaxed));
                assert!(least.abs_diff(now) <= now / 100, "{least} and {now}");
            }
        }
        // SAFETY: as the table says.
        let ranges = unsafe { std::slice::from_raw_parts(table.constant, table.n_constant) };
        assert_eq!(ranges, constant);
    }
}
