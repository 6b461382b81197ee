//! The filter in force, and its way to the hooks.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

use rftrace::abi::action;

use crate::Error;
use crate::backend;
use crate::clock;
use crate::clock::tsc;
use crate::decode::Minima;
use crate::filter::catalogue::Catalogue;
use crate::filter::rules::{Filter, Function, Selected};
use crate::filter::select::{self, Selection};
use crate::filter::table::SiteTable;
use crate::filter::values::{KnownValues, PublishedValues};
use crate::host::{self, Known};
use crate::patch;

/// The choice of functions and values, and its tables.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    /// `None`: everything.
    filter: Option<Filter>,
    catalogue: Catalogue,
    /// Made for the first filter.
    table: Option<SiteTable>,
    minima: Minima,
    /// Values from debug information, as far as requested.
    known_values: KnownValues,
    /// Values as published to the hooks.
    values: PublishedValues,
    /// True for each of the filter's [optional rules](Filter::optional_rules) with an effect.
    in_effect: Vec<bool>,
}

impl Choice {
    /// Looks up the functions of `filter`, and reserves memory for it; nothing changes yet.
    pub(crate) fn prepare(&mut self, filter: &Filter, known: &Known) -> Result<Selection, Error> {
        self.catalogue.refresh(known);
        if let Some(ask) = filter.asks()? {
            self.known_values.ask(ask, self.catalogue.traced_modules());
        }
        let selection = select::select(filter, &self.catalogue, &self.known_values)?;
        // Before recording is filtered for the first time, see `SiteTable::publish`.
        if self.table.is_none() {
            let control = &backend::control().filter;
            self.table = host::reserve_sites()?.map(|slots| SiteTable::publish(slots, control));
        }
        Ok(selection)
    }

    /// A recording begins.
    pub(crate) fn begin(&mut self) {
        self.values.begin();
    }

    /// Applies a filter from now on.
    pub(crate) fn apply(&mut self, filter: &Filter, selection: &Selection) {
        let control = &backend::control().filter;
        self.values.publish(&selection.values, control);
        if let Some(table) = &mut self.table {
            table.update(&selection.actions, selection.default_action, control);
        }
        let min_ticks = clock::ticks_in(filter.shortest());
        control.default_action.store(selection.default_action, Relaxed);
        control.decisive.store(selection.decisive, Relaxed);
        control.wanted.store(selection.wanted, Relaxed);
        let was_paused = control.paused.load(Relaxed) != 0;
        let is_paused = filter.has_switches() && (was_paused || filter.begins_paused);
        control.depth.store(selection.depth_limit, Relaxed);
        control.paused.store(is_paused.into(), Relaxed);
        control.depth_limit.store(if is_paused { 0 } else { selection.depth_limit }, Relaxed);
        control.min_ticks.store(min_ticks, Relaxed);
        self.minima.set(tsc::ticks(), min_ticks);
        backend::set_filtered(true);
        // A function that is not recorded costs no more than its NOP.
        let (actions, default_action) = (selection.actions.iter().copied().collect(), selection.default_action);
        patch::select(move |site| {
            let actions: &HashMap<u64, u8> = &actions;
            actions.get(&(site.child_ip as u64)).copied().unwrap_or(default_action) != action::SKIP
        });
        self.in_effect = select::in_effect(filter, &selection.selected);
        self.filter = Some(filter.clone());
    }

    /// Does both.
    pub(crate) fn set(&mut self, filter: &Filter, known: &Known) -> Result<Selected, Error> {
        let selection = self.prepare(filter, known)?;
        self.apply(filter, &selection);
        Ok(selection.selected)
    }

    /// Records everything from now on.
    pub(crate) fn clear(&mut self) {
        patch::select(|_| true);
        backend::set_filtered(false);
        backend::control().filter.min_ticks.store(0, Relaxed);
        self.minima.set(tsc::ticks(), 0);
        self.filter = None;
        self.in_effect.clear();
    }

    /// Returns true for each of the filter's optional rules with an effect.
    pub(crate) fn in_effect(&self) -> Vec<bool> {
        self.in_effect.clone()
    }

    /// Applies the filter to the modules loaded now.
    pub(crate) fn refresh(&mut self, known: &Known) {
        if let Some(filter) = self.filter.clone() {
            // An error was reported when the filter was set.
            let _ = self.set(&filter, known);
        }
    }

    /// Returns true if there is a filter.
    pub(crate) fn is_filtered(&self) -> bool {
        self.filter.is_some()
    }

    /// The rules of the filter, in text.
    #[cfg(all(feature = "control", target_os = "linux"))]
    pub(crate) fn rules(&self) -> String {
        self.filter.as_ref().map(Filter::text).unwrap_or_default()
    }

    /// The functions that can be recorded.
    pub(crate) fn functions(&mut self, known: &Known) -> Vec<Function> {
        self.catalogue.refresh(known);
        select::list(self.filter.as_ref(), &self.catalogue)
    }

    /// The minimum durations of recorded calls, over time.
    pub(crate) fn minima(&self) -> Minima {
        self.minima.clone()
    }

    /// The buffer was emptied.
    pub(crate) fn forget_past(&mut self) {
        self.minima.forget_past();
    }
}
