//! The ELF modules mapped in this process, read from `/proc/thread-self/maps`.
//!
//! A module is one load of one file: the run of mappings that the kernel or the dynamic linker made for its segments,
//! merged into one address range. **Invariant:** the range starts where the lowest `PT_LOAD` segment was mapped, and
//! [`elf::table`](crate::elf::table) counts addresses from that same segment, so run-time address = [`Module::start`] + symbol
//! address, for position-independent and fixed-address programs alike.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::elf::file::{self, page_size};
use rftrace_format::recording::{RESOURCES, TRACER};
use rftrace_format::system;
use rftrace_format::text::spelled;

/// The symbolic link to the running program, valid even after its file was deleted. After the end of the main thread,
/// the process as a whole has no program any more; in an emulator a thread's is the emulator.
pub(crate) fn own_exe() -> &'static Path {
    own_file("/proc/self/exe", "/proc/thread-self/exe")
}

fn own_file(of_process: &'static str, of_thread: &'static str) -> &'static Path {
    let of_process = Path::new(of_process);
    if fs::read_link("/proc/self/exe").is_ok() { of_process } else { Path::new(of_thread) }
}

/// The arguments of the running program, each with a NUL behind it.
pub(crate) fn own_command_line() -> Vec<u8> {
    system::read(own_file("/proc/self/cmdline", "/proc/thread-self/cmdline")).unwrap_or_default()
}

/// The kernel's mark behind the path of a deleted file.
const DELETED: &[u8] = b" (deleted)";

/// One load of one ELF file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "std", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Module {
    /// Path of the file, as the kernel names it, without the mark for deleted files.
    #[cfg_attr(feature = "std", serde(with = "any_path"))]
    pub(crate) path: PathBuf,
    /// The address of the lowest mapped segment.
    pub(crate) start: u64,
    /// Address after the last mapped page of the file. Zero-initialised pages beyond the file's data are not counted.
    pub(crate) end: u64,
    /// GNU build-id in lower-case hexadecimal, of any length.
    pub(crate) build_id: Option<String>,
    /// True for the program itself, false for a library.
    pub(crate) is_main: bool,
    /// True if the file's name is gone, so `path` names nothing or another file.
    pub(crate) deleted: bool,
    /// The end of the first mapping, for the file's name under `/proc/self/map_files`.
    first_end: u64,
}

impl Module {
    /// A kernel from elsewhere, under its own name.
    pub(crate) fn of_image(name: &str, range: std::ops::Range<u64>, build_id: Option<String>) -> Self {
        Self {
            path: PathBuf::from(name),
            start: range.start,
            end: range.end,
            build_id,
            is_main: true,
            deleted: false,
            first_end: range.end,
        }
    }

    /// Returns the path as trace files spell it, see [`map_path`].
    pub(crate) fn map_path(&self) -> String {
        map_path(&self.path)
    }

    /// Returns true for a library of `rftrace record`: no call in it is recorded, so nobody asks for its functions.
    pub(crate) fn is_recorders(&self) -> bool {
        let name = self.path.file_name();
        !self.is_main && [TRACER, RESOURCES].iter().any(|&recorders| name == Some(OsStr::new(recorders)))
    }

    /// Returns whether both are one load of one file, seen at different times.
    pub(crate) fn is_same_load(&self, other: &Self) -> bool {
        self.start == other.start && self.path == other.path
    }

    /// Reads the build-id from the file at `path`. Returns false for a readable file that is no ELF file: the program
    /// has mapped it for purposes of its own.
    fn identify(&mut self, path: &Path) -> bool {
        match file::build_id(path) {
            Ok(build_id) => {
                self.build_id = build_id;
                true
            }
            Err(error) => error.kind() != io::ErrorKind::InvalidData,
        }
    }

    /// Returns the path to open for the mapped contents in the process with this folder in `/proc`. `None` if another
    /// file may have that name now. After its end, this process's files are used.
    pub(crate) fn file_in(&self, process: &Path) -> Option<PathBuf> {
        match (self.deleted, self.is_main) {
            // Of a process that has only changed its root, maps that this one reads have paths of its own.
            (false, _) => {
                let path = in_root(&process.join("root"), &self.path);
                Some(if path.exists() { path } else { self.path.clone() })
            }
            (true, true) => Some(process.join("exe")),
            (true, false) => None,
        }
    }

    /// Returns the path to open for the really mapped contents, deleted files included.
    ///
    /// Opening a deleted library needs `CAP_CHECKPOINT_RESTORE`; a deleted program can always be opened.
    pub(crate) fn file_path(&self) -> PathBuf {
        if self.is_main {
            own_exe().to_owned()
        } else if self.deleted {
            PathBuf::from(format!("/proc/self/map_files/{:x}-{:x}", self.start, self.first_end))
        } else {
            self.path.clone()
        }
    }
}

/// Returns the modules with an executable segment: the program first, then the libraries by address.
///
/// Loads of the same file are kept apart by other modules as far as possible, because uftrace joins neighbouring map
/// lines of one path.
///
/// Modules in `known`, those of an earlier time, are reused: the program may have lost access to the files.
///
/// # Errors
/// The errors of reading the map. Unreadable files lose only their build-id.
pub(crate) fn loaded_modules(known: &[&Module]) -> io::Result<Vec<Module>> {
    let mut modules = parse_maps(&own_maps()?, page_size());

    if let Ok(exe) = exe_path()
        && let Some(main) = modules.iter_mut().find(|module| module.path == exe)
    {
        main.is_main = true;
    }
    modules.retain_mut(|module| {
        if let Some(known) = known.iter().find(|known| known.is_same_load(module)) {
            module.build_id.clone_from(&known.build_id);
            module.is_main = known.is_main;
            return true;
        }
        let path = module.file_path();
        module.identify(&path)
    });
    modules.sort_by_key(|module| !module.is_main);
    Ok(separate_loads(modules))
}

/// An unloaded library.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "std", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Unloaded {
    /// The time of its unload, in ticks.
    pub(crate) tsc: u64,
    pub(crate) start: u64,
    pub(crate) end: u64,
    #[cfg_attr(feature = "std", serde(with = "any_path"))]
    pub(crate) path: PathBuf,
}

impl Unloaded {
    /// Its bytes, as [`decode`](Self::decode) reads them.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let path = self.path.as_os_str().as_bytes();
        let mut bytes: Vec<u8> = [self.tsc, self.start, self.end].iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend((path.len() as u32).to_le_bytes());
        bytes.extend(path);
        bytes
    }

    /// Reads one; `None` at the end and for invalid bytes.
    pub(crate) fn decode(rest: &mut &[u8]) -> Option<Self> {
        let (words, after) = rest.split_first_chunk::<24>()?;
        let (length, after) = after.split_first_chunk()?;
        let (path, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let [tsc, start, end] =
            [0, 8, 16].map(|at| u64::from_le_bytes(words[at..at + 8].try_into().unwrap_or_default()));
        *rest = after;
        (start < end && path.starts_with(b"/")).then(|| Self { tsc, start, end, path: OsStr::from_bytes(path).into() })
    }

    pub(crate) fn is_same_load(&self, other: &Self) -> bool {
        self.start == other.start && self.path == other.path
    }

    fn module(&self) -> Module {
        Module {
            path: self.path.clone(),
            start: self.start,
            end: self.end,
            build_id: None,
            is_main: false,
            deleted: false,
            first_end: self.end,
        }
    }
}

/// Paths in serialised form: any bytes.
#[cfg(feature = "std")]
mod any_path {
    use std::ffi::OsString;
    use std::path::{Path, PathBuf};

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(super) fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        path.as_os_str().serialize(to)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<PathBuf, D::Error> {
        OsString::deserialize(from).map(PathBuf::from)
    }
}

/// The path of a library as the dynamic linker names it.
pub(crate) fn map_lines_path(name: &std::ffi::CStr) -> PathBuf {
    OsStr::from_bytes(name.to_bytes()).into()
}

/// The modules of an ended program.
#[derive(Debug, Default)]
pub(crate) struct ModulesAt {
    /// The only modules in their places.
    pub(crate) always: Vec<Module>,
    /// The others, and since when each is meant, in order of time.
    pub(crate) at_times: Vec<(Module, u64)>,
}

/// Returns the place of the file at `path` of a process with the root directory `root`.
pub(crate) fn in_root(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Returns the modules of an ended program, by its maps at different times, the latest last, its `unloaded` libraries,
/// its path, and its root directory.
pub(crate) fn modules_at(maps: &[Vec<u8>], unloaded: &[Unloaded], exe: &Path, root: &Path) -> ModulesAt {
    let mut found = ModulesAt { always: modules_of(maps, exe, root), at_times: Vec::new() };
    let overlap = |one: &Module, other: &Module| one.start < other.end && other.start < one.end;
    // The unloaded ones, in order, with the time at which each was gone.
    let mut gone: Vec<(Module, u64)> = Vec::new();
    for one in unloaded {
        let mut module = one.module();
        if module.identify(&in_root(root, &one.path)) {
            gone.push((module, one.tsc));
        }
    }
    // A module that has its place alone is there all the time.
    let shares = |module: &Module, always: &[Module]| {
        let is_other = |other: &Module| overlap(module, other) && !module.is_same_load(other);
        always.iter().any(is_other) || gone.iter().any(|(other, _)| is_other(other))
    };
    let (at_times, alone): (Vec<_>, Vec<_>) =
        gone.iter().cloned().partition(|(module, _)| shares(module, &found.always));
    for (module, _) in alone {
        if found.always.iter().all(|other| !overlap(&module, other)) {
            found.always.push(module);
        }
    }
    // A library may be seen in maps and be unloaded later: its last load counts as one that stays.
    let (staying, always): (Vec<_>, Vec<_>) =
        found.always.into_iter().partition(|module| at_times.iter().any(|(other, _)| overlap(module, other)));
    let is_back = |module: &Module| {
        let last = at_times.iter().rev().find(|(other, _)| overlap(module, other));
        last.is_none_or(|(last, _)| !last.is_same_load(module))
    };
    let staying = staying.into_iter().filter(is_back).map(|module| (module, u64::MAX)).collect::<Vec<_>>();
    let all: Vec<(Module, u64)> = at_times.into_iter().chain(staying).collect();
    for (place, (module, _)) in all.iter().enumerate() {
        let before = all[..place].iter().rev().find(|(other, _)| overlap(module, other));
        found.at_times.push((module.clone(), before.map_or(0, |&(_, until)| until)));
    }
    found.at_times.sort_by_key(|&(_, since)| since);
    found.always = separate_loads(always);
    found
}

/// Returns the modules of an ended program, by its maps at different times, the latest last, its path, and its root
/// directory. Of several modules in one place, the latest counts.
pub(crate) fn modules_of(maps: &[Vec<u8>], exe: &Path, root: &Path) -> Vec<Module> {
    let mut modules: Vec<Module> = Vec::new();
    for module in maps.iter().rev().flat_map(|text| parse_maps(text, page_size())) {
        if modules.iter().all(|later| module.end <= later.start || later.end <= module.start) {
            modules.push(module);
        }
    }
    modules.retain_mut(|module| {
        module.is_main = module.path == exe;
        let path = in_root(root, &module.path);
        module.identify(&path)
    });
    modules.sort_by_key(|module| (!module.is_main, module.start));
    separate_loads(modules)
}

/// The address range of the main thread's stack.
pub(crate) fn stack(maps: &[u8]) -> Option<(u64, u64)> {
    let line = maps.split(|&byte| byte == b'\n').find(|line| line.ends_with(b" [stack]"))?;
    let range = std::str::from_utf8(line.split(|&byte| byte == b' ').next()?).ok()?;
    let (start, end) = range.split_once('-')?;
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}

/// Returns the modules of the process with this folder in `/proc`: the program first, then the libraries by address,
/// without build-ids.
///
/// # Errors
/// The errors of reading its map.
pub(crate) fn modules_of_process(process: &Path) -> io::Result<Vec<Module>> {
    let path = process.join("maps");
    let maps = system::read(&path).map_err(|error| file::with_path(&path, &error))?;
    let exe = exe_behind(&process.join("exe"))?;
    let mut modules = parse_maps(&maps, page_size());
    modules.iter_mut().for_each(|module| module.is_main = module.path == exe);
    modules.sort_by_key(|module| !module.is_main);
    Ok(modules)
}

/// Returns a reader for the memory of the process with this folder in `/proc`: unmapped parts are empty.
///
/// # Errors
/// The error of opening it.
pub(crate) fn memory_of(process: &Path) -> io::Result<impl Fn(Range<usize>) -> Vec<u8>> {
    let path = process.join("mem");
    let memory = system::open(&path).map_err(|error| file::with_path(&path, &error))?;
    Ok(move |range: Range<usize>| {
        let mut bytes = vec![0; range.len()];
        let is_read = memory.read_exact_at(&mut bytes, range.start as u64);
        is_read.map_or_else(|_| Vec::new(), |()| bytes)
    })
}

/// Returns the map of this process's memory.
///
/// # Errors
/// The errors of reading it.
pub(crate) fn own_maps() -> io::Result<Vec<u8>> {
    // When the main thread has ended, the process as a whole has no memory any more. But in an emulator that is its map.
    let path = Path::new("/proc/thread-self/maps");
    let text = system::read(path).map_err(|error| file::with_path(path, &error))?;
    Ok(if is_own(&text) { text } else { system::read("/proc/self/maps").unwrap_or(text) })
}

/// Returns true if a map is that of this program.
fn is_own(maps: &[u8]) -> bool {
    let own = is_own as *const () as u64;
    parse_maps(maps, page_size()).iter().any(|module| (module.start..module.end).contains(&own))
}

/// Returns true if qemu runs this program, for another processor. Qemu shows a program's own map as that of the process
/// alone; the system shows the map of the emulators for threads and other processes.
pub(crate) fn is_emulated() -> bool {
    static IS_EMULATED: OnceLock<bool> = OnceLock::new();
    *IS_EMULATED.get_or_init(|| system::read("/proc/thread-self/maps").is_ok_and(|maps| !is_own(&maps)))
}

/// Returns the path of the running program, without the mark for deleted files.
///
/// # Errors
/// The errors of reading the link.
pub(crate) fn exe_path() -> io::Result<PathBuf> {
    exe_behind(own_exe())
}

/// The same of any process, by its link.
///
/// # Errors
/// The errors of reading the link.
pub(crate) fn exe_behind(link: &Path) -> io::Result<PathBuf> {
    let target = fs::read_link(link).map_err(|error| file::with_path(link, &error))?;
    Ok(match target.as_os_str().as_bytes().strip_suffix(DELETED) {
        Some(path) => PathBuf::from(OsStr::from_bytes(path)),
        None => target,
    })
}

/// Returns `path` in its form for trace directories, see [`spelled`]; bytes that are not UTF-8 become the replacement
/// character.
///
/// The map, the header of the symbol file and the name of the program must all be spelled this way.
pub(crate) fn map_path(path: &Path) -> String {
    path.to_string_lossy().chars().map(spelled).collect()
}

/// Returns the modules in `text`, in the format of `/proc/<pid>/maps`, by address.
///
/// Build-ids and the program's mark are left out. `page_bytes` is the size of a page.
pub(crate) fn parse_maps(text: &[u8], page_bytes: u64) -> Vec<Module> {
    let mut loads: Vec<Load> = Vec::new();
    // True while the last load may still grow: only unnamed memory has followed it.
    let mut open = false;
    for mapping in text.split(|&byte| byte == b'\n').filter_map(Mapping::parse) {
        if mapping.path.is_empty() {
            continue;
        }
        if !mapping.path.starts_with(b"/") {
            open = false;
            continue;
        }
        match loads.last_mut() {
            Some(load) if open && load.continues(&mapping, page_bytes) => load.extend(&mapping),
            _ => loads.push(Load::new(&mapping)),
        }
        open = true;
    }
    loads.into_iter().filter(|load| load.executable).map(|load| load.into_module()).collect()
}

/// One line of the maps file.
#[derive(Clone, Copy, Debug)]
struct Mapping<'a> {
    start: u64,
    end: u64,
    permissions: &'a [u8],
    offset: u64,
    /// Device and inode.
    file: (&'a [u8], &'a [u8]),
    /// Empty for unnamed memory.
    path: &'a [u8],
}

impl<'a> Mapping<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.splitn(6, |&byte| byte == b' ');
        let range = fields.next()?;
        let dash = range.iter().position(|&byte| byte == b'-')?;
        let (start, end) = (hex(&range[..dash])?, hex(&range[dash + 1..])?);
        Some(Self {
            start,
            end: Some(end).filter(|&end| end > start)?,
            permissions: fields.next()?,
            offset: hex(fields.next()?)?,
            file: (fields.next()?, fields.next()?),
            path: fields.next().unwrap_or_default().trim_ascii_start(),
        })
    }
}

/// A module during its construction.
#[derive(Debug)]
struct Load<'a> {
    first: Mapping<'a>,
    /// The last mapping of a segment.
    last: Mapping<'a>,
    end: u64,
    executable: bool,
}

impl<'a> Load<'a> {
    fn new(mapping: &Mapping<'a>) -> Self {
        Self { first: *mapping, last: *mapping, end: mapping.end, executable: is_executable(mapping) }
    }

    /// Returns true if `next` belongs to the same load and not to another mapping of the same file.
    ///
    /// Segments have the same order in the file and in memory, and two of them share one page of the file at most.
    ///
    /// So a mapping further back in the file starts a new load, and so does a repetition of the first mapping. (The
    /// mapping of the data read-only after relocation may repeat the last one.)
    fn continues(&self, next: &Mapping<'_>, page_bytes: u64) -> bool {
        let last = &self.last;
        let last_offset_end = last.offset.saturating_add(last.end - last.start);
        last.path == next.path
            && last.file == next.file
            && self.end <= next.start
            && next.offset.saturating_add(page_bytes) >= last_offset_end
            && (next.offset, next.permissions) != (self.first.offset, self.first.permissions)
    }

    fn extend(&mut self, mapping: &Mapping<'a>) {
        // A hole between segments still shows the offset of the first, whole mapping that the dynamic linker began with.
        if !mapping.permissions.starts_with(b"---") {
            self.last = *mapping;
        }
        self.end = mapping.end;
        self.executable |= is_executable(mapping);
    }

    fn into_module(self) -> Module {
        let shown = self.first.path;
        let (path, deleted) = match shown.strip_suffix(DELETED) {
            Some(path) => (path, true),
            None => (shown, false),
        };
        Module {
            path: PathBuf::from(OsStr::from_bytes(&unescape_newlines(path))),
            start: self.first.start,
            end: self.end,
            build_id: None,
            is_main: false,
            deleted,
            first_end: self.first.end,
        }
    }
}

fn is_executable(mapping: &Mapping<'_>) -> bool {
    mapping.permissions.get(2) == Some(&b'x')
}

fn hex(digits: &[u8]) -> Option<u64> {
    // `from_str_radix` would accept a sign.
    let digits = str::from_utf8(digits).ok().filter(|text| !text.starts_with('+'))?;
    u64::from_str_radix(digits, 16).ok()
}

/// Turns `\012`, a newline of a path in the maps file, back into a newline.
fn unescape_newlines(path: &[u8]) -> Vec<u8> {
    const ESCAPE: &[u8] = b"\\012";
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, tail)) = rest.split_first() {
        if let Some(tail) = rest.strip_prefix(ESCAPE) {
            plain.push(b'\n');
            rest = tail;
        } else {
            plain.push(byte);
            rest = tail;
        }
    }
    plain
}

/// Reorders `modules` until no two neighbours have the same path, as far as there are others to put between them.
fn separate_loads(modules: Vec<Module>) -> Vec<Module> {
    let mut ordered: Vec<Module> = Vec::with_capacity(modules.len());
    let mut waiting: Vec<Module> = Vec::new();
    let clashes = |ordered: &[Module], module: &Module| ordered.last().is_some_and(|last| last.path == module.path);
    for module in modules {
        if clashes(&ordered, &module) {
            waiting.push(module);
            continue;
        }
        ordered.push(module);
        if let Some(ready) = waiting.iter().position(|module| !clashes(&ordered, module)) {
            ordered.push(waiting.remove(ready));
        }
    }
    // Nothing follows that could separate these at the end: find a place further up, but behind the program.
    for module in waiting {
        let place = (1..ordered.len())
            .find(|&at| ordered[at - 1].path != module.path && ordered[at].path != module.path)
            .unwrap_or(ordered.len());
        ordered.insert(place, module);
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::table;
    use crate::elf::testutil::{Scratch, run};
    use std::process::Command;

    const PAGE: u64 = 4096;

    fn ranges(text: &str) -> Vec<(String, u64, u64)> {
        parse_maps(text.as_bytes(), PAGE)
            .into_iter()
            .map(|module| (module.path.to_str().unwrap().to_owned(), module.start, module.end))
            .collect()
    }

    #[test]
    fn merges_the_segments_of_a_pie_and_its_libraries() {
        let text = "\
55c9dc558000-55c9dc55a000 r--p 00000000 fe:00 247030                     /usr/bin/cat
55c9dc55a000-55c9dc55f000 r-xp 00002000 fe:00 247030                     /usr/bin/cat
55c9dc55f000-55c9dc562000 r--p 00007000 fe:00 247030                     /usr/bin/cat
55c9dc562000-55c9dc563000 r--p 00009000 fe:00 247030                     /usr/bin/cat
55c9dc563000-55c9dc564000 rw-p 0000a000 fe:00 247030                     /usr/bin/cat
55c9f6966000-55c9f6987000 rw-p 00000000 00:00 0                          [heap]
7f480e080000-7f480e0a2000 rw-p 00000000 00:00 0 
7f480e0a2000-7f480e0f9000 r--p 00000000 fe:00 316534                     /usr/lib/locale/C.utf8/LC_CTYPE
7f480e105000-7f480e12b000 r--p 00000000 fe:00 326279                     /usr/lib/libc.so.6
7f480e12b000-7f480e281000 r-xp 00026000 fe:00 326279                     /usr/lib/libc.so.6
7f480e281000-7f480e2d4000 r--p 0017c000 fe:00 326279                     /usr/lib/libc.so.6
7f480e2d4000-7f480e2d8000 r--p 001cf000 fe:00 326279                     /usr/lib/libc.so.6
7f480e2d8000-7f480e2da000 rw-p 001d3000 fe:00 326279                     /usr/lib/libc.so.6
7f480e2da000-7f480e2e7000 rw-p 00000000 00:00 0 
7f480e2f2000-7f480e2f6000 r--p 00000000 00:00 0                          [vvar]
7f480e2f8000-7f480e2fa000 r-xp 00000000 00:00 0                          [vdso]
7ffc9c601000-7ffc9c622000 rw-p 00000000 00:00 0                          [stack]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";
        assert_eq!(
            ranges(text),
            [
                ("/usr/bin/cat".to_owned(), 0x55c9_dc55_8000, 0x55c9_dc56_4000),
                ("/usr/lib/libc.so.6".to_owned(), 0x7f48_0e10_5000, 0x7f48_0e2d_a000),
            ]
        );
    }

    #[test]
    fn segments_may_share_a_page_of_the_file() {
        // Two small segments, as lld lays them out: both start in page 0 of the file.
        let text = "\
200000-201000 r--p 00000000 fe:00 7 /a
201000-202000 r-xp 00000000 fe:00 7 /a
202000-203000 rw-p 00001000 fe:00 7 /a
";
        assert_eq!(ranges(text), [("/a".to_owned(), 0x20_0000, 0x20_3000)]);
    }

    #[test]
    fn gaps_and_holes_belong_to_the_load() {
        let text = "\
400000-401000 r-xp 00000000 fe:00 7 /main
600000-602000 rw-p 00000000 fe:00 7 /main
602000-605000 rw-p 00000000 00:00 0 
700000-701000 r-xp 00000000 fe:00 8 /lib
701000-900000 ---p 00001000 fe:00 8 /lib
900000-901000 r--p 00000000 fe:00 8 /lib
901000-902000 rw-p 00001000 fe:00 8 /lib
";
        assert_eq!(
            ranges(text),
            [("/main".to_owned(), 0x40_0000, 0x60_2000), ("/lib".to_owned(), 0x70_0000, 0x90_2000)]
        );
    }

    #[test]
    fn a_copy_mapped_for_reading_is_not_part_of_the_load() {
        let text = "\
100000-10b000 r--p 00000000 fe:00 7 /lib
10b000-10c000 r--p 00000000 fe:00 7 /lib
10c000-10e000 r-xp 00001000 fe:00 7 /lib
10e000-10f000 rw-p 00003000 fe:00 7 /lib
10f000-11a000 r--p 00000000 fe:00 7 /lib
500000-50b000 r--p 00000000 fe:00 7 /lib
";
        assert_eq!(ranges(text), [("/lib".to_owned(), 0x10_b000, 0x10_f000)]);
        // A copy of the first page alone.
        let text = "\
100000-101000 r--p 00000000 fe:00 7 /lib
10b000-10c000 r--p 00000000 fe:00 7 /lib
10c000-10e000 r-xp 00001000 fe:00 7 /lib
";
        assert_eq!(ranges(text), [("/lib".to_owned(), 0x10_b000, 0x10_e000)]);
    }

    #[test]
    fn two_loads_of_one_file_are_two_modules_and_not_neighbours() {
        let text = "\
100000-101000 r-xp 00000000 fe:00 1 /main
200000-201000 r--p 00000000 fe:00 7 /lib
201000-202000 r-xp 00001000 fe:00 7 /lib
202000-203000 r--p 00000000 fe:00 7 /lib
203000-204000 r-xp 00001000 fe:00 7 /lib
300000-301000 r-xp 00000000 fe:00 8 /other
";
        let modules = parse_maps(text.as_bytes(), PAGE);
        let starts = |modules: &[Module]| modules.iter().map(|module| module.start).collect::<Vec<_>>();
        assert_eq!(starts(&modules), [0x10_0000, 0x20_0000, 0x20_2000, 0x30_0000]);
        assert_eq!(starts(&separate_loads(modules.clone())), [0x10_0000, 0x20_0000, 0x30_0000, 0x20_2000]);
        // The separator comes before the pair.
        let order = [0, 3, 1, 2].map(|at: usize| modules[at].clone());
        assert_eq!(starts(&separate_loads(order.to_vec())), [0x10_0000, 0x20_2000, 0x30_0000, 0x20_0000]);
        // Nothing to put between them: both stay.
        assert_eq!(separate_loads(modules[1..3].to_vec()).len(), 2);
    }

    #[test]
    fn strange_paths() {
        let text = "\
100000-101000 r-xp 00000000 fe:00 1 /tmp/my prog (deleted)
200000-201000 r-xp 00000000 fe:00 2 /tmp/a\\012b/lib one.so
300000-301000 r-xp 00000000 00:05 3 anon_inode:[io_uring]
400000-401000 r-xp 00000000 00:05 4 /memfd:jit (deleted)
";
        let modules = parse_maps(text.as_bytes(), PAGE);
        assert_eq!(modules.len(), 3);
        assert_eq!(modules[0].path, Path::new("/tmp/my prog"));
        assert_eq!(modules[0].map_path(), "/tmp/my_prog");
        assert!(modules[0].deleted);
        assert_eq!(modules[0].file_path(), Path::new("/proc/self/map_files/100000-101000"));
        assert_eq!(modules[1].path, Path::new("/tmp/a\nb/lib one.so"));
        assert_eq!(modules[1].map_path(), "/tmp/a_b/lib_one.so");
        assert_eq!(modules[1].file_path(), modules[1].path);
        assert_eq!(map_path(Path::new(OsStr::from_bytes(b"/x\xff\t\"y\""))), "/x\u{fffd}__y_");
    }

    #[test]
    fn broken_lines_are_skipped() {
        let text = "\n-\n1-\n12 r-xp\n2000-1000 r-xp 0 0:0 1 /a\nzz-10 r-xp 0 0:0 1 /a\n1000-2000 r-xp\n+1-+2 r-xp 0 0:0 1 /a\n";
        assert_eq!(ranges(text), []);
        assert_eq!(ranges("1000-2000 r-xp 0 0:0 1 /a"), [("/a".to_owned(), 0x1000, 0x2000)]);
        assert_eq!(parse_maps(b"1000-2000 r 0 0:0 1 /\xff", PAGE), []);
    }

    #[test]
    fn finds_this_process() {
        let modules = loaded_modules(&[]).unwrap();
        let main = &modules[0];
        assert!(main.is_main && !main.deleted);
        assert_eq!(main.path, std::env::current_exe().unwrap());
        assert_eq!(modules.iter().filter(|module| module.is_main).count(), 1);

        let here = finds_this_process as fn() as usize as u64;
        assert!((main.start..main.end).contains(&here));
        let table = table::read_symbols(&main.file_path()).unwrap();
        let symbol = table.lookup(here - main.start).expect("this function");
        assert_eq!(symbol.address, here - main.start);
        assert!(table.name(symbol).ends_with("finds_this_process"), "{}", table.name(symbol));

        let libc_module = modules.iter().find(|module| module.map_path().contains("libc.so")).expect("libc");
        let getpid = libc::getpid as unsafe extern "C" fn() -> i32 as usize as u64;
        assert!((libc_module.start..libc_module.end).contains(&getpid));
        assert!(libc_module.build_id.is_some());
        assert!(modules.iter().all(|module| !module.path.to_string_lossy().starts_with('[')));
    }

    /// Runs a program that prints its maps and the address of a function, and checks that the function is found.
    fn check_program(name: &str, arguments: &[&str], delete: bool) {
        let source = r#"
#include <stdio.h>
#include <unistd.h>
int target(void) { return 42; }
int main(int argc, char **argv) {
    char line[4096];
    if (argc > 1) unlink(argv[0]);
    printf("%p\n", (void *)target);
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) fputs(line, stdout);
    return 0;
}
"#;
        let scratch = Scratch::new(name);
        let Some(program) = scratch.compile("input.c", source, "my prog", arguments) else {
            return;
        };
        let table = table::read_symbols(&program).unwrap();
        let mut command = Command::new(&program);
        if delete {
            command.arg("delete");
        }
        let output = run(&mut command);
        let (address, maps) = output.split_once('\n').unwrap();
        let address = u64::from_str_radix(address.trim_start_matches("0x"), 16).unwrap();
        let modules = parse_maps(maps.as_bytes(), page_size());
        let module = modules.iter().find(|module| module.path == program).expect("the program");
        assert_eq!(module.deleted, delete);
        assert!((module.start..module.end).contains(&address));
        let symbol = table.lookup(address - module.start).expect("the function");
        assert_eq!((symbol.address, table.name(symbol).as_str()), (address - module.start, "target"));
    }

    #[test]
    fn start_plus_symbol_address_is_the_run_time_address() {
        check_program("maps-pie", &["-pie", "-fPIE"], false);
        check_program("maps-no-pie", &["-no-pie"], false);
        check_program("maps-static", &["-static"], false);
        check_program("maps-static-pie", &["-static-pie"], false);
        check_program("maps-deleted", &[], true);
        check_program("maps-wide", &["-no-pie", "-Wl,-z,max-page-size=0x200000", "-Wl,-z,noseparate-code"], false);
        check_program("maps-odd-base", &["-no-pie", "-Wl,-Ttext-segment=0x12345000"], false);
        check_program("maps-gold", &["-fuse-ld=gold"], false);
    }

    #[test]
    fn real_loads_of_one_library_beside_a_copy() {
        let source = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
int main(void) {
    char line[4096];
    void *first = dlmopen(LM_ID_NEWLM, "libm.so.6", RTLD_NOW);
    void *second = dlmopen(LM_ID_NEWLM, "libm.so.6", RTLD_NOW);
    void *address = dlsym(second, "floor");
    Dl_info info;
    if (!first || !address || !dladdr(address, &info)) return 1;
    int file = open(info.dli_fname, O_RDONLY);
    for (int pages = 1; pages < 200; pages += 60)
        mmap(NULL, pages * 4096, PROT_READ, MAP_PRIVATE, file, 0);
    printf("%p %p\n", info.dli_fbase, dlsym(first, "floor"));
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) fputs(line, stdout);
    return 0;
}
"#;
        let scratch = Scratch::new("maps-twice");
        let Some(program) = scratch.compile("input.c", source, "prog", &["-ldl"]) else {
            return;
        };
        let output = run(&mut Command::new(&program));
        let (addresses, maps) = output.split_once('\n').unwrap();
        let mut addresses = addresses.split(' ').map(|hex| u64::from_str_radix(&hex[2..], 16).unwrap());
        let (base, in_first) = (addresses.next().unwrap(), addresses.next().unwrap());
        let modules = parse_maps(maps.as_bytes(), page_size());
        let loads: Vec<&Module> = modules.iter().filter(|module| module.map_path().contains("libm.so")).collect();
        assert_eq!(loads.len(), 2, "{maps}");
        assert!(loads.iter().any(|load| load.start == base), "{maps}");
        assert!(loads.iter().any(|load| (load.start..load.end).contains(&in_first) && load.start != base));
        assert_eq!(loads[0].end - loads[0].start, loads[1].end - loads[1].start, "{maps}");
        let ordered = separate_loads(modules.clone());
        assert_eq!(ordered.len(), modules.len());
        assert!(ordered.windows(2).all(|pair| pair[0].path != pair[1].path));
    }
}
