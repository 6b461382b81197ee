//! All modules, their sites, and the passes that change them; stubs, which are only switched.
//!
//! Not here: the change of one site (`change`).

use std::ffi::CString;
use std::io;
use std::ops::Range;

use super::change::{Goal, Kinds, Means, Patch, padded};
use super::code::{Form, MAX_BYTES, Step};
use super::finding::find_calls;
#[cfg(target_arch = "aarch64")]
use super::finding::start_of;
use super::module::{Image, with_modules};
use super::outcome::{PatchedSites, PlainReason};
use super::poke::{Barrier, Pages, ProcMem, Writer, is_only_thread};
#[cfg(target_arch = "aarch64")]
use super::rooms;
use super::shapes::shapes;
use super::sites::{Call, Found, Selection, Site};
use super::states::State;
use super::switches;

/// All modules and their sites.
pub(super) struct Engine {
    modules: Vec<Module>,
    /// Unloaded modules. One back in its place finds its stubs again.
    unloaded: Vec<Module>,
    counters: Option<Counters>,
    goal: Goal,
    are_stubs_on: bool,
    /// True if entries are looked for too.
    has_entries: bool,
    selection: Option<Selection>,
    /// The system's last refusal.
    refusal: Option<io::Error>,
}

/// The numbers of libraries loaded and unloaded by the dynamic linker.
type Counters = (u64, u64);

/// A module and its sites.
struct Module {
    identity: Identity,
    /// Its calls and entries, until there are stubs for them.
    calls: Vec<Call>,
    /// True if its entries were looked for.
    #[cfg_attr(target_arch = "x86_64", allow(dead_code, reason = "others care for them"))]
    has_entries: bool,
    patches: Vec<Patch>,
    n_unconfirmed: usize,
    /// The pages with sites.
    pages: Vec<Pages>,
    /// The way of this pass to write to them.
    access: Access,
}

/// The ways to write code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// There is nothing to write.
    None,
    /// Its pages are writable.
    Memory,
    /// By `/proc/thread-self/mem`, if at all.
    File,
}

/// Identity of a module.
#[derive(PartialEq, Eq)]
struct Identity {
    name: CString,
    range: Range<usize>,
    /// With the build-id.
    notes: Vec<u8>,
}

impl Engine {
    pub(super) const fn new() -> Self {
        Self {
            modules: Vec::new(),
            unloaded: Vec::new(),
            counters: None,
            goal: Goal::Plain,
            are_stubs_on: false,
            has_entries: false,
            selection: None,
            refusal: None,
        }
    }

    /// Returns the last goal of all sites.
    pub(super) fn goal(&self) -> Goal {
        self.goal
    }

    /// Returns all sites, including those of new modules, by address within a module.
    pub(super) fn sites(&mut self) -> Vec<Site> {
        self.find_new_modules();
        self.modules.iter().flat_map(Module::sites).collect()
    }

    /// Sets the choice of sites and stubs to switch on, and switches stubs.
    pub(super) fn select(&mut self, selection: Selection) {
        for module in &mut self.modules {
            module.select(&selection);
        }
        self.selection = Some(selection);
        self.switch_stubs(self.are_stubs_on);
    }

    /// True if the chosen stubs are on.
    pub(super) fn are_stubs_on(&self) -> bool {
        self.are_stubs_on
    }

    /// Switches the chosen stubs on, and the others off; or all off.
    pub(super) fn switch_stubs(&mut self, are_on: bool) {
        self.are_stubs_on = are_on;
        switches::set(|site| are_on && self.selection.as_ref().is_none_or(|selection| selection(site)));
    }

    /// Brings all sites of these kinds to `goal`, including those of new modules.
    pub(super) fn apply(&mut self, goal: Goal, kinds: Kinds) {
        /// Other threads may load libraries all the time.
        const TRIES: usize = 16;

        self.goal = goal;
        if kinds.entries && !self.has_entries {
            self.has_entries = true;
            self.counters = None;
        }
        let barrier = Barrier::prepare();
        for _ in 0..TRIES {
            self.find_new_modules();
            self.make_stubs();
            if let Err(error) = self.read_pages() {
                self.refusal = Some(error);
                return;
            }
            let means = Means { goal, kinds, barrier, is_alone: is_only_thread() };
            let done = with_modules(|info| {
                let is_known = self.counters == Some(counters_of(info));
                if is_known {
                    // SAFETY: what was loaded when the sites were found is so still, and stays so until this returns.
                    unsafe { self.pass(means) };
                }
                Some(is_known)
            });
            if done != Some(false) {
                return;
            }
        }
    }

    /// Brings the list of modules up to date if one was loaded or unloaded.
    fn find_new_modules(&mut self) {
        if self.counters != with_modules(|info| Some(counters_of(info))) {
            self.find_modules();
        }
    }

    /// Brings the list of modules up to date. The dynamic linker waits meanwhile.
    fn find_modules(&mut self) {
        let before = self.counters;
        let mut known = std::mem::take(&mut self.modules);
        let mut unloaded = std::mem::take(&mut self.unloaded);
        let mut found = Vec::new();
        // SAFETY: asks for a number.
        let vdso = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
        let mut counters = None;
        with_modules(|info| {
            counters = Some(counters_of(info));
            // SAFETY: in the callback, and not used behind it.
            let image = unsafe { Image::new(info) }?;
            if image.contains(vdso) {
                return None;
            }
            let identity =
                Identity { name: image.name.to_owned(), range: image.start()..image.end(), notes: image.notes() };
            let stayed = before.map(|(_, subs)| subs) == counters.map(|(_, subs)| subs);
            let module = match known.iter().position(|module| module.identity == identity) {
                Some(place) => Some(known.swap_remove(place)).filter(|module| stayed || module.is_in(&image)),
                // The same name at the same place may be another file now.
                None => {
                    let place = unloaded.iter().position(|module| module.identity == identity);
                    place.map(|place| unloaded.swap_remove(place)).filter(|module| module.is_in(&image))
                }
            };
            found.push(module.unwrap_or_else(|| Module::find(identity, &image)));
            #[cfg(target_arch = "aarch64")]
            if self.has_entries {
                found.iter_mut().last()?.find_entries(&image);
            }
            None::<()>
        });
        unloaded.append(&mut known);
        (self.modules, self.unloaded, self.counters) = (found, unloaded, counters);
    }

    /// Makes stubs for modules without stubs.
    fn make_stubs(&mut self) {
        for module in &mut self.modules {
            if module.calls.is_empty() {
                continue;
            }
            let all = std::mem::take(&mut module.calls);
            let (entries, calls): (Vec<Call>, Vec<Call>) = all.into_iter().partition(|call| call.form.is_entry());
            for calls in [calls, entries].into_iter().filter(|calls| !calls.is_empty()) {
                match shapes(&module.identity.range, &calls) {
                    Ok(shapes) => {
                        let patches = calls.iter().zip(shapes).map(|(call, shape)| Patch::new(call.address, shape));
                        module.patches.extend(patches);
                    }
                    Err(error) => {
                        self.refusal = Some(error);
                        module.calls.extend(calls);
                    }
                }
            }
            module.patches.sort_unstable_by_key(|patch| patch.address);
            if let Some(selection) = &self.selection {
                module.select(selection);
            }
        }
    }

    /// Reads the protection of the pages with sites.
    fn read_pages(&mut self) -> io::Result<()> {
        let all = Pages::all()?;
        for module in &mut self.modules {
            let (Some(first), Some(last)) = (module.patches.first(), module.patches.last()) else { continue };
            let sites = first.address..last.address + MAX_BYTES;
            let with_sites = all.iter().filter(|pages| pages.range.start < sites.end && sites.start < pages.range.end);
            module.pages = with_sites.filter_map(|pages| pages.cut_to(&sites)).collect();
        }
        Ok(())
    }

    /// Makes the pending changes. Allocates nothing.
    ///
    /// # Safety
    ///
    /// The modules are loaded and stay so.
    unsafe fn pass(&mut self, means: Means) {
        for module in &mut self.modules {
            // SAFETY: by this function's contract.
            let is_due = unsafe { module.look(means) };
            module.access = match is_due {
                true if module.make_writable(&mut self.refusal) => Access::Memory,
                true => Access::File,
                false => Access::None,
            };
        }
        let mut file = None;
        if self.modules.iter().any(|module| module.access == Access::File) {
            file = ProcMem::open().map_err(|error| self.refusal = Some(error)).ok();
        }
        for module in self.modules.iter_mut().filter(|module| module.access == Access::File) {
            module.patches.iter_mut().for_each(|patch| patch.go_by_file(file.is_some(), means));
        }
        // SAFETY: by this function's contract; `look` and `go_by_file` have decided what can be done.
        unsafe { self.change(file.as_ref(), means) };
        if self.turn_back() {
            // SAFETY: as above.
            unsafe { self.change(file.as_ref(), means) };
        }
        for module in self.modules.iter().filter(|module| module.access == Access::Memory) {
            module.pages.iter().for_each(|pages| pages.restore(&mut self.refusal));
        }
    }

    /// Takes all sites with a pending change through the steps.
    ///
    /// # Safety
    ///
    /// The modules are loaded and stay so, and the new states were chosen for the writable pages.
    unsafe fn change(&mut self, file: Option<&ProcMem>, means: Means) {
        for step in Step::ALL {
            for module in &mut self.modules {
                let Some(writer) = module.writer(file) else { continue };
                for patch in &mut module.patches {
                    // SAFETY: by this function's contract.
                    if let Err(error) = unsafe { patch.write(step, writer) } {
                        self.refusal = Some(error);
                        patch.stop(step, PlainReason::NotWritable);
                    }
                }
            }
            let is_seen = means.barrier.pass() || means.is_alone;
            if !is_seen && !step.is_last() {
                self.refusal = Some(io::Error::last_os_error());
                for module in &mut self.modules {
                    let Some(writer) = module.writer(file) else { continue };
                    for patch in &mut module.patches {
                        // SAFETY: by this function's contract.
                        unsafe { patch.stop_unseen(step, writer) };
                    }
                }
            }
        }
        for patch in self.modules.iter_mut().flat_map(|module| &mut module.patches) {
            patch.state = patch.next.take().or(patch.state);
        }
    }

    /// Makes unfinished sites go back to their earlier states. Returns true if there are any.
    fn turn_back(&mut self) -> bool {
        let mut any = false;
        for patch in self.modules.iter_mut().flat_map(|module| &mut module.patches) {
            patch.next = patch.before.take();
            any |= patch.next.is_some();
        }
        any
    }

    /// Returns the number of sites, by state.
    pub(super) fn counts(&self) -> PatchedSites {
        let mut counts = PatchedSites::default();
        for module in &self.modules {
            counts.leave(PlainReason::Unconfirmed, module.n_unconfirmed);
            let calls = module.calls.iter().filter(|call| !call.form.is_entry());
            counts.leave(PlainReason::NoStubs, calls.count());
            for patch in module.patches.iter().filter(|patch| !patch.shape.form.is_entry()) {
                match (patch.state, patch.reason) {
                    (Some(State::On), _) => {
                        counts.patched += 1;
                        counts.on += 1;
                    }
                    (Some(State::Off), _) => counts.patched += 1,
                    (Some(State::Between), _) => counts.leave(PlainReason::Unfinished, 1),
                    (_, Some(reason)) => counts.leave(reason, 1),
                    (_, None) => counts.left_plain += 1,
                }
            }
        }
        counts.refusal = self.refusal();
        counts
    }

    /// Returns the message of the system's last refusal.
    pub(super) fn refusal(&self) -> Option<String> {
        self.refusal.as_ref().map(io::Error::to_string)
    }

    /// The entries: each with its module's name, and why it is left alone, if it is.
    #[cfg(target_arch = "aarch64")]
    pub(super) fn entries(&self) -> impl Iterator<Item = (&std::ffi::CStr, Site, Option<PlainReason>)> {
        self.modules.iter().flat_map(|module| {
            let (name, start) = (module.identity.name.as_c_str(), module.identity.range.start);
            let calls = module.calls.iter().filter(|call| call.form.is_entry());
            let calls = calls.map(move |call| (call.address, call.form, Some(PlainReason::NoStubs)));
            let patches = module.patches.iter().filter(|patch| patch.shape.form.is_entry());
            let patches = patches.map(move |patch| (patch.address, patch.shape.form, patch.reason));
            calls.chain(patches).map(move |(address, form, reason)| (name, site(address, form, start), reason))
        })
    }
}

/// Returns the site at an address, with its module's beginning.
fn site(address: usize, form: Form, module: usize) -> Site {
    Site { address, child_ip: address + form.len(), module, has_arguments: form.has_arguments() }
}

impl Call {
    /// The site, for a selection.
    pub(super) fn site(self, module: usize) -> Site {
        site(self.address, self.form, module)
    }
}

impl Module {
    /// Finds the sites of a new module.
    fn find(identity: Identity, image: &Image<'_>) -> Self {
        let Found { calls, n_unconfirmed } = find_calls(image);
        Self {
            identity,
            calls,
            has_entries: false,
            patches: Vec::new(),
            n_unconfirmed,
            pages: Vec::new(),
            access: Access::None,
        }
    }

    /// Finds its entries too, once.
    #[cfg(target_arch = "aarch64")]
    fn find_entries(&mut self, image: &Image<'_>) {
        if !std::mem::replace(&mut self.has_entries, true) {
            let calls =
                self.calls.iter().map(|call| call.address).chain(self.patches.iter().map(|patch| patch.address));
            let mut functions = None;
            let entries = rooms::find(image, calls, |address| start_of(image, &mut functions, address));
            self.calls.extend(entries);
        }
    }

    /// True if the module has sites and most are in the image: a few may be under somebody's breakpoints.
    fn is_in(&self, image: &Image<'_>) -> bool {
        let calls = self.calls.iter().map(|call| {
            let range = call.address..call.address + call.form.len();
            image.bytes(range).is_some_and(|bytes| call.original.starts_with(bytes))
        });
        let patches = self.patches.iter().map(|patch| {
            let range = patch.address..patch.address + patch.shape.form.len();
            image.bytes(range).is_some_and(|bytes| patch.shape.state(&padded(bytes)).is_some())
        });
        let n_there = calls.chain(patches).filter(|&is_there| is_there).count();
        2 * n_there > self.calls.len() + self.patches.len()
    }

    fn select(&mut self, selection: &Selection) {
        let module = self.identity.range.start;
        for patch in &mut self.patches {
            patch.is_chosen = selection(&site(patch.address, patch.shape.form, module));
        }
    }

    fn sites(&self) -> impl Iterator<Item = Site> {
        let module = self.identity.range.start;
        let without_stubs = self.calls.iter().map(move |call| call.site(module));
        without_stubs.chain(self.patches.iter().map(move |patch| site(patch.address, patch.shape.form, module)))
    }

    /// Reads all sites and chooses their next states. Returns true if any site changes.
    ///
    /// # Safety
    ///
    /// The module is loaded and stays so.
    unsafe fn look(&mut self, means: Means) -> bool {
        let mut any = false;
        for patch in &mut self.patches {
            // SAFETY: by this function's contract.
            unsafe { patch.look(means) };
            any |= patch.next.is_some();
        }
        any
    }

    /// Returns the writer to the sites in this pass, if there is one.
    fn writer<'f>(&self, file: Option<&'f ProcMem>) -> Option<Writer<'f>> {
        match self.access {
            Access::Memory => Some(Writer::Memory),
            Access::File => file.map(Writer::File),
            Access::None => None,
        }
    }

    /// Makes all pages with sites writable. Returns false, with no page writable, if a site's page is unknown or the
    /// system refuses.
    fn make_writable(&mut self, refusal: &mut Option<io::Error>) -> bool {
        let are_known = |address: usize| self.pages.iter().any(|pages| pages.range.contains(&address));
        let mut ends =
            self.patches.iter().flat_map(|patch| [patch.address, patch.address + patch.shape.form.len() - 1]);
        if !ends.all(are_known) {
            return false;
        }
        for (idx, pages) in self.pages.iter().enumerate() {
            if let Err(error) = pages.make_writable() {
                *refusal = Some(error);
                self.pages[..idx].iter().for_each(|pages| pages.restore(refusal));
                return false;
            }
        }
        true
    }
}

fn counters_of(info: &libc::dl_phdr_info) -> Counters {
    (info.dlpi_adds, info.dlpi_subs)
}
