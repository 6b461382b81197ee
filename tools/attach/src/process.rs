//! A process seen from outside: its mappings, memory, threads, and the functions of its modules.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::libc::{self, pid_t};
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol};
use rftrace_format::branches::RUNTIMES;
use rftrace_format::opener::{self, MOST_PROGRAM};
use rftrace_format::system;
use rftrace_frontend::bank::folder_of;

use super::status;
use super::sys::words;

/// A line of its maps.
#[derive(Clone, Debug)]
pub(crate) struct Map {
    pub(crate) range: Range<u64>,
    pub(crate) is_executable: bool,
    is_readable: bool,
    /// A reader of a file maps it as shared.
    pub(crate) is_private: bool,
    offset: u64,
    /// Device and number of the file.
    id: String,
    pub(crate) path: String,
}

/// A file mapped as a module.
#[derive(Debug)]
pub(crate) struct Module {
    /// Base of its addresses.
    base: u64,
    /// Its code.
    pub(crate) texts: Vec<Range<u64>>,
    bytes: Vec<u8>,
}

/// A process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: pid_t,
    memory: File,
}

/// The root directory of a process in a container. It stays readable after the end of the process.
#[derive(Debug)]
pub struct OtherRoot {
    root: File,
    /// Keeps the file systems mounted below it.
    _namespace: File,
}

impl Process {
    /// Opens its memory.
    ///
    /// # Errors
    ///
    /// It is gone, or not for this user.
    pub(crate) fn open(pid: pid_t) -> io::Result<Self> {
        Ok(Self {
            pid,
            memory: File::options().read(true).write(true).open(folder_of(pid.cast_unsigned()).join("mem"))?,
        })
    }

    /// A file of it in `/proc`.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    /// Its folder there.
    pub(crate) fn folder(&self) -> PathBuf {
        folder_of(self.pid.cast_unsigned())
    }

    /// Returns the present maps.
    pub(crate) fn maps(&self) -> Result<Vec<Map>> {
        let path = self.file("maps");
        let text = system::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(String::from_utf8_lossy(&text).lines().filter_map(Map::parse).collect())
    }

    /// Returns the auxiliary vector from the system at its beginning: keys `AT_…` with values.
    pub(crate) fn told(&self) -> io::Result<Vec<[u64; 2]>> {
        let words: Vec<u64> = words(&system::read(self.file("auxv"))?).collect();
        Ok(words.as_chunks().0.to_vec())
    }

    /// Returns the auxiliary value of a key.
    pub(crate) fn auxiliary(&self, key: u64) -> Option<u64> {
        self.told().ok()?.into_iter().find_map(|[its, value]| (its == key).then_some(value))
    }

    /// A word of its `stat` from the system, by its place as in the system's manual: from 4 on.
    fn stat(&self, place: usize) -> Option<u64> {
        let stat = system::read(self.file("stat")).ok()?;
        let stat = String::from_utf8_lossy(&stat);
        // The second one is a name in parentheses, with anything in it.
        stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(place - 3)?.parse().ok()
    }

    /// The beginning of its first thread's stack: the number of its arguments lies there.
    pub(crate) fn stack_start(&self) -> Option<u64> {
        self.stat(28)
    }

    /// The beginning of its heap, which grows.
    pub(crate) fn heap_start(&self) -> Option<u64> {
        self.stat(47)
    }

    /// Its threads, including ended ones not reaped yet.
    pub(crate) fn threads(&self) -> Result<Vec<pid_t>> {
        status::threads(self.pid).with_context(|| format!("process {} has ended", self.pid))
    }

    /// Fills `bytes` from its memory; false if not all can be read.
    pub(crate) fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        self.memory.read_exact_at(bytes, address).is_ok()
    }

    /// A word of its memory.
    pub(crate) fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes).then(|| u64::from_le_bytes(bytes))
    }

    /// So many bytes of its memory, as far as they are there.
    pub(crate) fn bytes(&self, address: u64, most: u64) -> Vec<u8> {
        let mut bytes = vec![0; most as usize];
        let n_bytes = self.memory.read_at(&mut bytes, address).unwrap_or(0);
        bytes.truncate(n_bytes);
        bytes
    }

    /// The address of some bytes in a range of its memory.
    pub(crate) fn find(&self, range: &Range<u64>, wanted: &[u8]) -> Option<u64> {
        let bytes = self.bytes(range.start, range.end - range.start);
        let place = bytes.windows(wanted.len()).position(|window| window == wanted)?;
        Some(range.start + place as u64)
    }

    /// Writes to its memory.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.memory.write_all_at(bytes, address)
    }

    /// True if so many bytes below an address are a thread's own stack: the main thread's, or one with a guard below.
    pub(crate) fn has_stack(&self, address: u64, bytes: u64) -> bool {
        let Ok(maps) = self.maps() else { return false };
        let Some(place) = maps.iter().position(|map| map.range.contains(&address)) else { return false };
        let stack = &maps[place];
        let guard = place.checked_sub(1).map(|below| &maps[below]);
        let is_guarded = guard.is_some_and(|guard| guard.range.end == stack.range.start && !guard.is_readable);
        let is_own = stack.path == "[stack]" || stack.path.is_empty() && is_guarded;
        is_own && address - stack.range.start >= bytes
    }

    /// The path at which a mapped file can be opened.
    fn mapped_file(&self, map: &Map) -> PathBuf {
        // This is always the right one, but root alone may open it.
        let mapped = self.file(&format!("map_files/{:x}-{:x}", map.range.start, map.range.end));
        if map.path.ends_with(" (deleted)") || system::open(&mapped).is_ok() {
            return mapped;
        }
        // The path is in its mount namespace, or in this process's own if the other one has only changed its root.
        let in_root = self.file("root").join(map.path.trim_start_matches('/'));
        if in_root.exists() { in_root } else { PathBuf::from(&map.path) }
    }

    /// The program's file.
    ///
    /// # Errors
    ///
    /// It is not mapped, or not there any more.
    pub(crate) fn program(&self, maps: &[Map]) -> Result<Module> {
        let path = self.program_path();
        // Its path among the maps has this mark too.
        self.module(maps, |other| other == path)?
            .with_context(|| format!("cannot find {path} in the memory of process {}", self.pid))
    }

    /// Its path, in its own mount namespace.
    pub(crate) fn program_path(&self) -> String {
        fs::read_link(self.file("exe")).unwrap_or_default().to_string_lossy().into_owned()
    }

    /// All modules with mapped code.
    pub(crate) fn modules(&self, maps: &[Map]) -> Vec<Module> {
        let mut paths: Vec<&str> =
            maps.iter().filter(|map| map.is_executable && map.path.starts_with('/')).map(|map| &*map.path).collect();
        paths.sort_unstable();
        paths.dedup();
        paths.into_iter().filter_map(|path| self.module(maps, |other| other == path).ok()?).collect()
    }

    /// True if a runtime in it walks stacks by return addresses.
    pub(crate) fn reads_return_addresses(&self, maps: &[Map]) -> bool {
        self.modules(maps).iter().any(|module| !module.definitions(&RUNTIMES).is_empty())
    }

    /// Its root directory, if it is not this process's: a handle on it, even after the process's end, and the place of
    /// its files then.
    pub(crate) fn other_root(&self) -> Option<OtherRoot> {
        let id = |path: PathBuf| fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
        let is_same = |name: &str| id(self.file(name)) == id(Path::new("/proc/self").join(name));
        if is_same("root") && is_same("ns/mnt") {
            return None;
        }
        let root = File::options().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(self.file("root"));
        let namespace = system::open(self.file("ns/mnt"));
        Some(OtherRoot { root: root.ok()?, _namespace: namespace.ok()? })
    }

    /// The module mapped from a path that `is_it`.
    ///
    /// # Errors
    ///
    /// Its file is not there any more.
    pub(crate) fn module(&self, maps: &[Map], is_it: impl Fn(&str) -> bool) -> Result<Option<Module>> {
        let of_it = |map: &&Map| map.is_private && is_it(&map.path);
        // A reader of symbols may have mapped the file once more, as data.
        let text = maps.iter().filter(of_it).find(|map| map.is_executable).map_or(u64::MAX, |map| map.range.start);
        let mut beginnings = maps.iter().filter(of_it).filter(|map| map.offset == 0 && map.range.start <= text);
        let Some(first) = beginnings.next_back() else { return Ok(None) };
        let texts = maps.iter().filter(|map| map.path == first.path && map.is_executable).map(|map| map.range.clone());
        let bytes = opener::read(&self.mapped_file(first), MOST_PROGRAM)
            .with_context(|| format!("cannot read {}", first.path))?;
        Module::new(bytes, first.range.start, texts.collect()).map(Some)
    }
}

impl OtherRoot {
    /// Returns its path, which is valid as long as this value lives.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.root.as_raw_fd()))
    }
}

impl Map {
    /// Its file, and the address of the file's beginning.
    pub(crate) fn file(&self) -> (&str, &str, u64) {
        (&self.path, &self.id, self.range.start.wrapping_sub(self.offset))
    }

    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let flags = fields.next()?.as_bytes();
        let offset = fields.next()?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        Some(Self {
            range: address(start)?..address(end)?,
            is_readable: flags.first() == Some(&b'r'),
            is_executable: flags.get(2) == Some(&b'x'),
            is_private: flags.get(3) == Some(&b'p'),
            offset: address(offset)?,
            id: [fields.next()?, fields.next()?].join(" "),
            path: fields.next().unwrap_or_default().trim_start().to_owned(),
        })
    }
}

impl Module {
    /// A file with its beginning mapped at `start`.
    pub(crate) fn new(bytes: Vec<u8>, start: u64, texts: Vec<Range<u64>>) -> Result<Self> {
        const PAGE: u64 = 4096;

        let file: ElfFile64<'_> =
            ElfFile64::parse(&*bytes).context("a module of the process is not a 64-bit ELF file")?;
        let first = file.segments().map(|segment| segment.address()).min().unwrap_or(0);
        Ok(Self { base: start.wrapping_sub(first & !(PAGE - 1)), texts, bytes })
    }

    /// Returns the base of its addresses.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// The addresses of a section, as in the file, and its bytes.
    pub(crate) fn section(&self, name: &str) -> Option<(Range<u64>, Vec<u8>)> {
        let file = ElfFile64::<object::Endianness>::parse(&*self.bytes).ok()?;
        let section = file.section_by_name(name)?;
        let range = section.address()..section.address().checked_add(section.size())?;
        Some((range, section.data().ok()?.to_vec()))
    }

    fn symbols(&self, is_it: impl Fn(&str) -> bool) -> Vec<Range<u64>> {
        let Ok(file) = ElfFile64::<object::Endianness>::parse(&*self.bytes) else { return Vec::new() };
        let found = file.dynamic_symbols().filter(|symbol| symbol.is_definition() && symbol.name().is_ok_and(&is_it));
        let range = |symbol: object::read::elf::ElfSymbol64<'_, '_>| {
            let start = self.base.wrapping_add(symbol.address());
            start..start + symbol.size()
        };
        found.map(range).collect()
    }

    /// The exported functions with these names.
    pub(crate) fn functions(&self, names: &[&str]) -> Vec<Range<u64>> {
        self.symbols(|name| names.contains(&name))
    }

    /// The address of an exported function.
    pub(crate) fn function(&self, name: &str) -> Result<u64> {
        match self.symbols(|other| other == name).first() {
            Some(range) => Ok(range.start),
            None => bail!("the library lacks the function {name}"),
        }
    }

    /// True if it takes a symbol with such a name from elsewhere.
    pub(crate) fn imports(&self, names: &[&str]) -> bool {
        let Ok(file) = ElfFile64::<object::Endianness>::parse(&*self.bytes) else { return false };
        file.dynamic_symbols()
            .any(|symbol| symbol.is_undefined() && symbol.name().is_ok_and(|name| names.contains(&name)))
    }

    /// The functions in it with these names, exported or not, if its file has their names.
    pub(crate) fn definitions(&self, names: &[&str]) -> Vec<Range<u64>> {
        self.named(names.iter().map(|&name| (name, ()))).into_iter().map(|(_, range)| range).collect()
    }

    /// The same with a value for each name. A large program has a million symbols, so each one is looked at once for
    /// all names.
    pub(crate) fn named<'a, T: Copy + Ord>(
        &self,
        names: impl IntoIterator<Item = (&'a str, T)>,
    ) -> Vec<(T, Range<u64>)> {
        let names: Vec<(&str, T)> = names.into_iter().collect();
        let meaning = |name: &str| names.iter().find(|(wanted, _)| *wanted == name).map(|&(_, meaning)| meaning);
        let mut found = self.all_symbols(meaning);
        found.sort_unstable_by_key(|(meaning, range)| (*meaning, range.start));
        found.dedup_by_key(|(meaning, range)| (*meaning, range.start));
        found
    }

    /// True if its file names more than it exports.
    pub(crate) fn has_symbols(&self) -> bool {
        let file = ElfFile64::<object::Endianness>::parse(&*self.bytes);
        file.is_ok_and(|file| file.symbols().next().is_some())
    }

    /// True if any symbol begins in a range.
    pub(crate) fn has_symbol_in(&self, range: &Range<u64>) -> bool {
        self.all_symbols(|_| Some(())).iter().any(|(_, found)| range.contains(&found.start))
    }

    fn all_symbols<T>(&self, wanted: impl Fn(&str) -> Option<T>) -> Vec<(T, Range<u64>)> {
        let Ok(file) = ElfFile64::<object::Endianness>::parse(&*self.bytes) else { return Vec::new() };
        let symbols = file.symbols().chain(file.dynamic_symbols());
        let is_code = |symbol: &object::read::elf::ElfSymbol64<'_, '_>| {
            symbol.is_definition() && symbol.kind() != object::SymbolKind::Tls
        };
        let named = |symbol: object::read::elf::ElfSymbol64<'_, '_>| {
            let start = self.base.wrapping_add(symbol.address());
            Some((wanted(symbol.name().ok()?)?, start..start + symbol.size()))
        };
        symbols.filter(is_code).filter_map(named).collect()
    }

    /// So many bytes of its file mapped at an address.
    pub(crate) fn bytes_at(&self, address: u64, n_bytes: usize) -> Option<Vec<u8>> {
        let file = ElfFile64::<object::Endianness>::parse(&*self.bytes).ok()?;
        let own = address.wrapping_sub(self.base);
        file.segments().find_map(|segment| {
            let at = own.checked_sub(segment.address())? as usize;
            Some(segment.data().ok()?.get(at..at + n_bytes)?.to_vec())
        })
    }

    /// The address of some bytes of its code.
    pub(crate) fn find(&self, process: &Process, wanted: &[u8]) -> Option<u64> {
        self.texts.iter().find_map(|text| process.find(text, wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_maps() {
        let map =
            Map::parse("55c9dc55a000-55c9dc55f000 r-xp 00002000 fe:00 247030         /usr/b n/cat (deleted)").unwrap();
        assert_eq!(
            (map.range.clone(), map.offset, &*map.path),
            (0x55c9_dc55_a000..0x55c9_dc55_f000, 0x2000, "/usr/b n/cat (deleted)")
        );
        assert!(map.is_executable && map.is_private);
        assert_eq!(map.file(), ("/usr/b n/cat (deleted)", "fe:00 247030", 0x55c9_dc55_8000));
        assert_eq!(Map::parse("7f00-7f10 rw-p 00000000 00:00 0").unwrap().path, "");
        assert!(Map::parse("").is_none());
    }
}
