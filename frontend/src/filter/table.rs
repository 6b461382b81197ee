//! The hooks' table of call sites. It changes while they read it.
//!
//! A reader loads the table's address and its mask one after the other and goes from [`site_slot`] on until it finds
//! its site or a free slot. For any mix of old and new to be safe:
//!
//! - The table never moves: memory for the largest one is reserved at once, and its address is published before recording
//!   is filtered for the first time. Only the mask grows.
//! - A slot in use keeps its site for ever; only its action changes. When the mask grows, sites with another place now
//!   are written there too, before the new mask is published. A reader with the old mask finds the old copy.
//! - With every published mask, there is a free slot.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

use rftrace::abi::{ADDRESS_SHIFT, FilterControl, site_slot};

/// The number of slots of the first published table.
const MIN_SLOTS: usize = 1024;

/// The writer's side of the table; there is only one.
#[derive(Debug)]
pub(crate) struct SiteTable {
    slots: &'static [AtomicU64],
    /// The number of slots for each published mask, ascending, and the number of free ones.
    published: Vec<(usize, usize)>,
}

impl SiteTable {
    /// A table in these slots, all free; their number is a power of two. Publishes it.
    ///
    /// Recording must not have been filtered before.
    pub(crate) fn publish(slots: &'static [AtomicU64], control: &FilterControl) -> Self {
        let n_slots = MIN_SLOTS.min(slots.len());
        control.sites_mask.store(n_slots - 1, Relaxed);
        control.sites.store(slots.as_ptr().cast_mut(), Release);
        Self { slots, published: vec![(n_slots, n_slots)] }
    }

    /// The table of an earlier writer: these slots, with `n_slots` published last.
    #[cfg(target_os = "linux")]
    pub(crate) fn adopt(slots: &'static [AtomicU64], n_slots: usize, control: &FilterControl) -> Self {
        let sizes = std::iter::successors(Some(MIN_SLOTS.min(n_slots)), |&size| Some(2 * size));
        // Which sizes there were in between is not known.
        let published = sizes.take_while(|&size| size <= n_slots).map(|size| {
            let n_free = slots[..size].iter().filter(|slot| slot.load(Relaxed) == 0).count();
            (size, n_free)
        });
        control.sites_mask.store(n_slots - 1, Relaxed);
        Self { slots, published: published.collect() }
    }

    /// The published slots.
    pub(crate) fn slots(&self) -> &[AtomicU64] {
        &self.slots[..self.n_slots()]
    }

    /// Gives each site of `actions` its action. Other sites get `default`, as if they were absent.
    ///
    /// If the table is full, sites are left out.
    pub(crate) fn update(&mut self, actions: &[(u64, u8)], default: u8, control: &FilterControl) {
        let mut missing: HashMap<u64, u8> = actions.iter().copied().collect();
        let mut n_used = 0;
        for slot in self.slots() {
            let word = slot.load(Relaxed);
            if word != 0 {
                n_used += 1;
                let child_ip = word >> ADDRESS_SHIFT;
                let action = missing.get(&child_ip).copied().unwrap_or(default);
                slot.store(child_ip << ADDRESS_SHIFT | u64::from(action), Relaxed);
            }
        }
        let is_new = |&(child_ip, action): &(u64, u8)| action != default && self.find(child_ip).is_none();
        missing.retain(|&child_ip, &mut action| is_new(&(child_ip, action)));
        self.grow(2 * (n_used + missing.len()), control);
        for (child_ip, action) in missing {
            self.insert(child_ip, action);
        }
    }

    fn n_slots(&self) -> usize {
        self.published.last().map_or(0, |&(n_slots, _)| n_slots)
    }

    /// The slot of a site.
    fn find(&self, child_ip: u64) -> Option<&AtomicU64> {
        let mask = self.n_slots() - 1;
        let mut place = site_slot(child_ip as usize, mask);
        loop {
            let slot = &self.slots[place];
            match slot.load(Relaxed) {
                0 => return None,
                word if word >> ADDRESS_SHIFT == child_ip => return Some(slot),
                _ => place = (place + 1) & mask,
            }
        }
    }

    /// Makes room for so many sites at least, as far as there is any.
    fn grow(&mut self, n_wanted: usize, control: &FilterControl) {
        let before = self.n_slots();
        let after = n_wanted.next_power_of_two().min(self.slots.len());
        if after <= before {
            return;
        }
        let n_used = before - self.published.last().map_or(0, |&(_, n_free)| n_free);
        self.published.push((after, after - n_used));
        for place in 0..before {
            let word = self.slots[place].load(Relaxed);
            if word != 0 {
                self.insert(word >> ADDRESS_SHIFT, word as u8);
            }
        }
        control.sites_mask.store(after - 1, Release);
    }

    /// Writes a site to its first free place in the search order, unless it is found already.
    fn insert(&mut self, child_ip: u64, action: u8) {
        let mask = self.n_slots() - 1;
        let mut place = site_slot(child_ip as usize, mask);
        loop {
            let word = self.slots[place].load(Relaxed);
            if word == 0 {
                break;
            }
            if word >> ADDRESS_SHIFT == child_ip {
                return;
            }
            place = (place + 1) & mask;
        }
        // The last free slot of a table ends its readers' search.
        if self.published.iter().any(|&(n_slots, n_free)| place < n_slots && n_free == 1) {
            return;
        }
        for (_, n_free) in self.published.iter_mut().filter(|(n_slots, _)| place < *n_slots) {
            *n_free -= 1;
        }
        self.slots[place].store(child_ip << ADDRESS_SHIFT | u64::from(action), Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use proptest::prelude::*;
    use rftrace::abi::action;

    use super::*;

    fn slots(n_slots: usize) -> &'static [AtomicU64] {
        (0..n_slots).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak()
    }

    /// Looks up a site like a hook, with any published mask.
    fn look_up(slots: &[AtomicU64], mask: usize, child_ip: u64, default: u8) -> u8 {
        let mut place = site_slot(child_ip as usize, mask);
        for _ in 0..=mask {
            let word = slots[place].load(Relaxed);
            if word == 0 {
                return default;
            }
            if word >> ADDRESS_SHIFT == child_ip {
                return word as u8;
            }
            place = (place + 1) & mask;
        }
        panic!("no free slot with mask {mask:x}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn it_is_what_was_set_last(
            sets in prop::collection::vec(
                (prop::collection::hash_map(0u64..3000, 1u8..6, 0..2500), 1u8..6), 1..6),
            address in 1u64..1 << 47,
            distance in 1u64..5000,
            has_one_writer in any::<bool>(),
        ) {
            let (slots, control) = (slots(1 << 14), FilterControl::new());
            let mut table = SiteTable::publish(slots, &control);
            let mut masks = vec![control.sites_mask.load(Relaxed)];
            let site = |number: u64| (address + number * distance) & ((1 << 48) - 1);
            for (set, default) in sets {
                if !has_one_writer {
                    table = SiteTable::adopt(slots, table.slots().len(), &control);
                }
                let actions: Vec<(u64, u8)> = set.iter().map(|(&number, &action)| (site(number), action)).collect();
                table.update(&actions, default, &control);
                let mask = control.sites_mask.load(Relaxed);
                masks.push(mask);
                for number in 0..3000 {
                    let expected = set.get(&number).copied().unwrap_or(default);
                    prop_assert_eq!(look_up(slots, mask, site(number), default), expected);
                    // Nor does any other reader run off.
                    for &old in &masks {
                        look_up(slots, old, site(number), default);
                    }
                }
            }
        }
    }

    #[test]
    fn a_full_table_leaves_sites_out() {
        let (slots, control) = (slots(64), FilterControl::new());
        let mut table = SiteTable::publish(slots, &control);
        let actions: Vec<(u64, u8)> = (1..1000).map(|number| (number << 20, action::SKIP)).collect();
        table.update(&actions, action::RECORD, &control);
        let of = |child_ip| look_up(slots, 63, child_ip, action::RECORD);
        let n_found = actions.iter().filter(|&&(child_ip, _)| of(child_ip) == action::SKIP).count();
        assert!((40..64).contains(&n_found), "{n_found}");
        // Its entries can still be changed.
        table.update(&[], action::RECORD, &control);
        assert!(actions.iter().all(|&(child_ip, _)| of(child_ip) == action::RECORD));
    }

    #[test]
    fn readers_find_old_or_new_while_it_grows() {
        const N_SITES: u64 = 3000;
        let (slots, control) = (slots(1 << 15), FilterControl::new());
        let mut table = SiteTable::publish(slots, &control);
        let site = |number: u64| 0x5555_0000_0000 + number * 48;
        let always: Vec<(u64, u8)> = (0..100).map(|number| (site(number), action::INTO)).collect();
        table.update(&always, action::RECORD, &control);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Relaxed) {
                        let mask = control.sites_mask.load(Relaxed);
                        for &(child_ip, action) in &always {
                            assert_eq!(look_up(slots, mask, child_ip, 0), action);
                        }
                        for number in 100..N_SITES {
                            look_up(slots, mask, site(number), 0);
                        }
                    }
                });
            }
            for n_sites in (100..N_SITES).step_by(7) {
                let mut actions = always.clone();
                actions.extend((100..n_sites).map(|number| (site(number), (number % 3) as u8 + 1)));
                table.update(&actions, action::RECORD, &control);
            }
            done.store(true, Relaxed);
        });
    }
}
