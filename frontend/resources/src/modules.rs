//! Knowledge of the program and its libraries: their places, and their unwind information.
//!
//! **Invariant**: the unwind information of modules that may be unloaded is a copy. So stale knowledge makes wrong stacks, and nothing worse.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::slice;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr};

use framehop::x86_64::UnwinderX86_64;
use framehop::{ExplicitModuleSectionInfo, Module, Unwinder};
use rftrace_format::recording::{RESOURCES, TRACER};
use rftrace_format::resources::{Kind, MAX_TEXT_BYTES};

use crate::chunks;
use crate::identity;
use crate::memory;
use crate::pool;
use crate::room::Room;
use crate::slots;
use crate::state;
use crate::thread;

pub(crate) type OurUnwinder = UnwinderX86_64<&'static [u8], Room>;

/// All modules at a time. Never freed: others may be reading it.
pub(crate) struct Known {
    pub(crate) unwinder: OurUnwinder,
    /// Begins and ends, in order.
    ranges: Vec<(u64, u64)>,
    functions: Vec<Functions>,
    /// How many modules came and went until then.
    changes: (u64, u64),
}

static KNOWN: AtomicPtr<Known> = AtomicPtr::new(ptr::null_mut());
/// A thread looks at modules, or makes something for good.
static LOCK: AtomicBool = AtomicBool::new(false);

/// Memory for a module beside its copies: what the unwinder has of it, and of those before in its new list.
const BYTES_OF_ONE: usize = 1 << 10;

/// Returns the present knowledge, if there is any.
#[inline(always)]
pub(crate) fn known() -> Option<&'static Known> {
    // SAFETY: null, or what is never freed.
    unsafe { KNOWN.load(Acquire).as_ref() }
}

/// Where a module's functions begin.
#[derive(Clone)]
struct Functions {
    /// That of the module, and that of its code.
    range: (u64, u64),
    code: (u64, u64),
    /// Where the table lies, and of each function its distance from there.
    table_start: u64,
    table: &'static [[[u8; 4]; 2]],
}

impl Functions {
    /// Those of a module with such a `.eh_frame_hdr` at this address.
    fn of(range: (u64, u64), code: (u64, u64), table_start: u64, table: &'static [u8]) -> Option<Self> {
        /// Version 1; an address relative to where it is, a number, and pairs of addresses relative to the beginning: four bytes each.
        const FORM: [u8; 4] = [1, 0x1b, 0x03, 0x3b];

        let (form, rest) = table.split_first_chunk::<4>()?;
        let (_, rest) = rest.split_first_chunk::<4>()?;
        let (n_functions, rest) = rest.split_first_chunk::<4>()?;
        let pairs = rest.as_chunks::<4>().0.as_chunks::<2>().0;
        let table = pairs.get(..u32::from_le_bytes(*n_functions) as usize)?;
        (*form == FORM).then_some(Self { range, code, table_start, table })
    }

    /// Where the function with this address begins.
    fn beginning(&self, address: u64) -> Option<u64> {
        let is_code = (self.code.0..self.code.1).contains(&address);
        let start = |pair: &[[u8; 4]; 2]| self.table_start.wrapping_add_signed(i32::from_le_bytes(pair[0]).into());
        let after = self.table.partition_point(|pair| start(pair) <= address);
        is_code.then(|| self.table[..after].last().map(start))?
    }
}

impl Known {
    /// Where the function with this address begins; what is in no module that tells of its functions is a function of its own. `None` for
    /// what is no code.
    pub(crate) fn function(&self, address: u64) -> Option<u64> {
        let module = self.functions.iter().find(|module| (module.range.0..module.range.1).contains(&address));
        module.map_or(Some(address), |module| module.beginning(address))
    }

    /// True if all these addresses are in modules.
    pub(crate) fn has_all(&self, addresses: &[u64]) -> bool {
        addresses.iter().all(|&address| {
            let after = self.ranges.partition_point(|&(start, _)| start < address);
            after > 0 && address <= self.ranges[after - 1].1
        })
    }
}

/// Runs what allocates memory of this library's own, unless somebody is at such a thing. No signal comes meanwhile: a handler may leave by a jump, and that would
/// be for good, as what the dynamic linker holds would. Where signals may not be blocked nothing is run.
pub(crate) fn alone<T>(work: impl FnOnce() -> Option<T>) -> Option<T> {
    if state::is_confined() || LOCK.load(Acquire) {
        return None;
    }
    thread::without_signals(|| {
        if LOCK.swap(true, AcqRel) {
            return None;
        }
        let result = thread::keeping_errno(work);
        LOCK.store(false, Release);
        result
    })
}

/// State of the walk through the modules.
struct Looking {
    old: Option<&'static Known>,
    new: Option<Box<Known>>,
}

/// Looks for new modules. Returns whether there are any.
pub(crate) fn refresh() -> bool {
    let looked = alone(|| {
        let mut looking = Looking { old: known(), new: None };
        // SAFETY: the callback takes this and does not keep it.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut looking).cast()) };
        let new = looking.new?;
        KNOWN.store(Box::into_raw(new), Release);
        Some(())
    });
    looked.is_some()
}

/// Tells another recorder of the modules that are known, and looks for new ones.
pub(crate) fn tell_again() {
    unsafe extern "C" fn tell(info: *mut libc::dl_phdr_info, _: usize, known: *mut c_void) -> c_int {
        // SAFETY: what the dynamic linker passes, and what it was given.
        let (info, known) = unsafe { (&*info, &*known.cast::<Known>()) };
        // SAFETY: as above: a module that is loaded, as long as this runs.
        if let Some(found) = unsafe { Found::of(info) }
            && known.ranges.contains(&found.range)
        {
            found.tell();
        }
        0
    }

    if let Some(known) = known() {
        // SAFETY: the callback only reads what it is passed.
        unsafe { libc::dl_iterate_phdr(Some(tell), ptr::from_ref(known).cast_mut().cast()) };
    }
    refresh();
}

/// Looks at a module. Returns not 0 where there is nothing more to do.
unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, looking: *mut c_void) -> c_int {
    // SAFETY: what the dynamic linker passes, and what it was given.
    let (info, looking) = unsafe { (&*info, &mut *looking.cast::<Looking>()) };
    let changes = (info.dlpi_adds, info.dlpi_subs);
    let new = match &mut looking.new {
        Some(new) => new,
        none => {
            let n_known = match looking.old {
                Some(old) if old.changes == changes => return 1,
                Some(old) => old.ranges.len(),
                None => 0,
            };
            if !memory::reserve((n_known + 64) * BYTES_OF_ONE) {
                return 1;
            }
            // Something that is gone may have left its place to something new.
            let new = match looking.old {
                Some(old) if old.changes.1 == changes.1 => {
                    let (unwinder, ranges, functions) =
                        (old.unwinder.clone(), old.ranges.clone(), old.functions.clone());
                    Known { unwinder, ranges, functions, changes }
                }
                _ => Known { unwinder: OurUnwinder::new(), ranges: Vec::new(), functions: Vec::new(), changes },
            };
            none.insert(Box::new(new))
        }
    };
    // SAFETY: as above: a module that is loaded, as long as this runs.
    if let Some(found) = unsafe { Found::of(info) }
        && !new.ranges.contains(&found.range)
    {
        // With the program came what is there at first, unless that is long ago.
        let is_lasting = looking.old.is_none() && !state::is_attached();
        if let Some((module, functions)) = found.module(!is_lasting) {
            new.unwinder.add_module(module);
            new.functions.extend(functions);
        }
        let place = new.ranges.partition_point(|&range| range < found.range);
        new.ranges.insert(place, found.range);
        found.tell();
    }
    0
}

/// A module.
struct Found<'a> {
    base: u64,
    range: (u64, u64),
    path: &'a [u8],
    headers: &'a [libc::Elf64_Phdr],
}

impl<'a> Found<'a> {
    /// # Safety
    ///
    /// It is what the dynamic linker says of a module that is loaded.
    unsafe fn of(info: &'a libc::dl_phdr_info) -> Option<Self> {
        // SAFETY: so many headers are there.
        let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        let base = info.dlpi_addr;
        let loads = || headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        let start = loads().map(|header| header.p_vaddr).min()?;
        let end = loads().map(|header| header.p_vaddr + header.p_memsz).max()?;
        // SAFETY: the name ends with a NUL.
        let path = if info.dlpi_name.is_null() { &[] } else { unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes() };
        Some(Self { base, range: (base + start, base + end), path, headers })
    }

    /// The bytes of a segment that is loaded.
    fn bytes(&self, start: u64, end: u64) -> &'a [u8] {
        // SAFETY: within a segment, as callers have it from the headers; as long as the module is loaded.
        unsafe { slice::from_raw_parts((self.base + start) as *const u8, (end - start) as usize) }
    }

    /// Its unwind information, if it has any that is understood, and where its functions begin.
    fn module(&self, is_copied: bool) -> Option<(Module<&'static [u8]>, Option<Functions>)> {
        /// `.eh_frame_hdr` has the address of `.eh_frame` as four bytes, relative to where they are.
        const RELATIVE: u8 = 0x1b;

        let table = self.headers.iter().find(|header| header.p_type == libc::PT_GNU_EH_FRAME)?;
        let loads = || self.headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        let text = loads().find(|header| header.p_flags & libc::PF_X != 0)?;
        let table = table.p_vaddr..table.p_vaddr + table.p_memsz;
        let table_bytes = self.bytes(table.start, table.end);
        let (&[_, RELATIVE, _, _], rest) = table_bytes.split_first_chunk::<4>()? else { return None };
        let distance = i32::from_le_bytes(*rest.first_chunk()?);
        let start = (table.start + 4).wrapping_add_signed(i64::from(distance));
        let segment = loads().find(|header| (header.p_vaddr..header.p_vaddr + header.p_filesz).contains(&start))?;
        let end = segment.p_vaddr + segment.p_filesz;
        let frame_bytes = self.bytes(start, end);
        let (table_bytes, frame_bytes) = if is_copied {
            if !memory::reserve(table_bytes.len() + frame_bytes.len() + 4 * BYTES_OF_ONE) {
                return None;
            }
            (&*table_bytes.to_vec().leak(), &*frame_bytes.to_vec().leak())
        } else {
            (lasting(table_bytes), lasting(frame_bytes))
        };
        let code = (self.base + text.p_vaddr, self.base + text.p_vaddr + text.p_memsz);
        let functions = Functions::of(self.range, code, self.base + table.start, table_bytes);
        let sections = ExplicitModuleSectionInfo {
            base_svma: 0,
            text_svma: Some(text.p_vaddr..text.p_vaddr + text.p_memsz),
            eh_frame_svma: Some(start..end),
            eh_frame: Some(frame_bytes),
            eh_frame_hdr_svma: Some(table),
            eh_frame_hdr: Some(table_bytes),
            ..Default::default()
        };
        Some((Module::new(String::new(), self.range.0..self.range.1, self.base, sections), functions))
    }

    fn build_id(&self) -> &'a [u8] {
        const GNU: &[u8; 4] = b"GNU\0";
        const BUILD_ID: u32 = 3;

        for header in self.headers.iter().filter(|header| header.p_type == libc::PT_NOTE) {
            let mut notes = self.bytes(header.p_vaddr, header.p_vaddr + header.p_memsz);
            while let Some((head, rest)) = notes.split_first_chunk::<12>() {
                let (words, _) = head.as_chunks::<4>();
                let [name, bytes, kind] = [0, 1, 2].map(|place| u32::from_le_bytes(words[place]));
                let padded = |length: u32| (length as usize).next_multiple_of(4);
                let Some((name, rest)) = rest.split_at_checked(padded(name)) else { break };
                let Some(id) = rest.get(..bytes as usize) else { break };
                if name == GNU && kind == BUILD_ID {
                    return id;
                }
                notes = rest.get(padded(bytes)..).unwrap_or_default();
            }
        }
        &[]
    }

    /// Tells the recorder of it.
    fn tell(&self) {
        if self.path.is_empty() {
            identity::with_path(|path| self.tell_as(path));
        } else {
            self.tell_as(self.path);
        }
    }

    fn tell_as(&self, mut path: &[u8]) {
        // Those that came into a program that runs have names that say nothing.
        let has = |address: usize| (self.range.0..self.range.1).contains(&(address as u64));
        if state::is_attached() && has(slots::own_address()) {
            path = RESOURCES.as_bytes();
        } else if has(state::tracer()) {
            path = TRACER.as_bytes();
        }
        let id = self.build_id();
        let id = &id[..id.len().min(64)];
        let path = &path[..path.len().min(MAX_TEXT_BYTES - id.len())];
        let length = id.len() + path.len();
        let Some(place) = chunks::reserve(thread::current(), 3 + length.div_ceil(8)) else { return };
        place.more(1, self.range.0, self.range.1);
        place.more(2, length as u64, id.len() as u64);
        chunks::write_text(place, 3, [id, path]);
        place.finish(Kind::Module, pool::ticks_before(), self.base);
    }
}

/// Bytes loaded with the program, which stay as long as it does.
fn lasting(bytes: &[u8]) -> &'static [u8] {
    // SAFETY: what the program begins with is never unloaded.
    unsafe { slice::from_raw_parts(bytes.as_ptr(), bytes.len()) }
}
