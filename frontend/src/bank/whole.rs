//! All facts about a process, as a text beside its spool, so that both become a trace on another machine. It has lines
//! `key=value`; in values `\n` is the end of a line and `\\` a backslash. The last line is `complete`.
//!
//! Not here: the source of the facts (`collect`, `world`). The texts are untrusted.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rftrace::abi::{MAX_CHUNK_BYTES, MIN_CHUNK_BYTES, RETURN_STACK_ENTRIES};
use rftrace_format::opener::{self, MOST_TEXT};
use rftrace_format::recording::WHOLE;
use rftrace_format::store;

use super::collect::{Banks, Watched};
use super::collected::{Collected, Death};
use super::file::MOST_MINIMA;
use super::spool::whole_file;
use super::told::{self, Marked};
use super::world::{Seen, World};
use crate::clock::ClockPair;
use crate::clock::tsc::TscSource;
use crate::host::linux::modules::Module;
use crate::host::linux::sysinfo;
use crate::host::linux::thread_table::MAX_THREADS;
use crate::host::machine::SystemInfo;
use crate::host::program::Identity;
use crate::image::contents::is_tid;

/// The first line, with the version of the text.
const FIRST: &[u8] = b"rftrace spool 1";
/// The last one.
const LAST: &[u8] = b"complete";
/// More modules than a process has.
const MAX_MODULES: usize = 1 << 16;

impl Banks {
    /// Sets the root directory in which the files of the processes' modules are: that of a container.
    pub fn set_root(&mut self, root: PathBuf) {
        self.root = Some(root);
    }

    /// Returns that directory, if it was set.
    #[must_use]
    pub fn root(&self) -> Option<&Path> {
        self.root.as_deref()
    }

    /// Keeps all facts about processes beside their spools from now on.
    pub fn keep_all_that_is_known(&mut self) {
        self.is_whole = true;
    }

    /// Writes what is known of a process by now, if that is wanted.
    pub(super) fn keep_whole(&self, number: usize, watched: &mut Watched) {
        if self.is_whole {
            let collected = self.collected(number, watched, watched.spool.last_thread);
            self.keep_whole_of(&collected, watched, false);
        }
    }

    /// The same of what was collected of it; after the last time it `is_over`.
    pub(super) fn keep_whole_of(&self, collected: &Collected, watched: &mut Watched, is_over: bool) {
        if !self.is_whole {
            return;
        }
        let world = match watched.world.take() {
            Some(seen) if seen.maps == collected.maps && seen.unloaded == collected.unloaded => seen.world,
            _ => {
                let Collected { maps, unloaded, .. } = collected;
                Box::new(World::here(maps, unloaded, &collected.exe_path(), collected.root()))
            }
        };
        let text = text(collected, &world, is_over);
        let (maps, unloaded) = (collected.maps.clone(), collected.unloaded.clone());
        watched.world = Some(Seen { maps, unloaded, world });
        // At once: a reader has this file or the one before.
        let file = whole_file(&watched.spool.path);
        let new = file.with_extension(format!("{WHOLE}-new"));
        let _ = store::write(&new, text).and_then(|()| fs::rename(&new, file));
    }

    /// Returns the recording in `spool` from another machine, as far as it was received.
    ///
    /// # Errors
    ///
    /// Those of the system; the data beside the spool is missing or cut.
    pub fn collected_elsewhere(spool: &Path) -> io::Result<Collected> {
        let whole = whole_file(spool);
        let text = opener::read(&whole, MOST_TEXT)?;
        let bad = |problem| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {problem}", whole.display()));
        let Some((first, rest)) = split(&text) else { return Err(bad("it is cut")) };
        if first != FIRST {
            return Err(bad("another version of rftrace has written it: that one can make a trace of it"));
        }
        let spool_bytes = fs::metadata(spool).map_or(0, |meta| meta.len());
        Parsed::of(rest).and_then(|parsed| parsed.collected(spool, spool_bytes)).ok_or_else(|| bad("it is damaged"))
    }
}

fn split(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|&byte| byte == b'\n')?;
    Some((&text[..end], &text[end + 1..]))
}

/// A mark: when, in which thread, and its text.
fn mark(value: &[u8]) -> Option<Marked> {
    let text = one_line(value);
    let mut words = text.splitn(3, ' ');
    let (tsc, thread) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let text = words.next()?;
    (text.len() <= told::MOST_BYTES).then(|| Marked {
        tsc,
        thread: Some(thread).filter(|&it| it != 0),
        text: text.to_owned(),
    })
}

/// Where a module is, and which it is, as [`module`] reads it.
fn module_text(module: &Module) -> Vec<u8> {
    let Module { path, start, end, build_id, is_main, deleted, .. } = module;
    let bits = u8::from(*is_main) | u8::from(*deleted) << 1;
    let head = format!("{start:x} {end:x} {bits} {} ", build_id.as_deref().unwrap_or("-"));
    [head.as_bytes(), path.as_os_str().as_bytes()].concat()
}

/// Lines that are written one behind the other.
struct Lines(Vec<u8>);

impl Lines {
    fn put(&mut self, key: &str, value: impl AsRef<[u8]>) {
        self.0.extend(key.bytes());
        self.0.push(b'=');
        for &byte in value.as_ref() {
            match byte {
                b'\n' => self.0.extend(b"\\n"),
                b'\\' => self.0.extend(b"\\\\"),
                _ => self.0.push(byte),
            }
        }
        self.0.push(b'\n');
    }

    fn rate(&mut self, key: &str, rate: Option<(u64, TscSource)>) {
        if let Some((hz, source)) = rate {
            self.put(key, format!("{hz} {}", source.number()));
        }
    }
}

fn text(collected: &Collected, world: &World, is_over: bool) -> Vec<u8> {
    let mut lines = Lines([FIRST, b"\n"].concat());
    let Collected { first, last, .. } = collected;
    // It is another one each time.
    lines.put("last", format!("{} {}", last.tsc, last.nanos));
    lines.put("pid", collected.own_pid.to_string());
    lines.put("program", collected.program_nanos.to_string());
    if let Some((parent, nanos)) = collected.fork {
        lines.put("fork", format!("{parent} {nanos}"));
    }
    lines.put("records", collected.n_records.to_string());
    lines.put("dropped", collected.n_dropped.to_string());
    lines.put("untold", collected.n_untold.to_string());
    lines.put("overwritten", collected.n_overwritten.to_string());
    lines.put("untraced_threads", collected.n_untraced_threads.to_string());
    if let Some(failed) = &collected.failed {
        lines.put("failed", failed);
    }
    if collected.is_too_large {
        lines.put("too_large", "1");
    }
    match collected.death {
        Some(Death::Signal(signal)) => lines.put("death", signal.to_string()),
        Some(Death::WithoutWord) => lines.put("death", "0"),
        None => {}
    }
    if let Some(status) = collected.status {
        lines.put("status", status.to_string());
    }
    lines.put("chunk_bytes", collected.chunk_bytes.to_string());
    lines.put("first", format!("{} {}", first.tsc, first.nanos));
    lines.put("utc_offset_nanos", collected.utc_offset_nanos.to_string());
    for (since, ticks) in &collected.minima {
        lines.put("minimum", format!("{since} {ticks}"));
    }
    for Marked { tsc, thread, text } in &collected.marks {
        lines.put("mark", format!("{tsc} {} {text}", thread.unwrap_or(0)));
    }
    lines.put("end_tsc", collected.end_tsc.to_string());
    lines.put("exe", &collected.exe);
    lines.put("command_line", &collected.command_line);
    lines.put("hooked", &collected.hooked);
    for (number, Identity { tid, name }) in &collected.threads {
        lines.put("thread", format!("{number} {tid} {name}"));
    }
    for (number, words) in &collected.open {
        let words: Vec<String> = words.iter().map(|word| format!("{word:x}")).collect();
        lines.put("open", format!("{number} {}", words.join(" ")));
    }
    let World { modules, opened, stack, tsc_hz, invariant_tsc, system } = world;
    for module in modules {
        lines.put("module", module_text(module));
    }
    for (module, since) in opened {
        lines.put("opened", [format!("{since} ").as_bytes(), &module_text(module)].concat());
    }
    if let Some((start, end)) = stack {
        lines.put("stack", format!("{start:x} {end:x}"));
    }
    lines.rate("tsc_hz", *tsc_hz);
    lines.put("invariant_tsc", u8::from(*invariant_tsc).to_string());
    let SystemInfo { build_id, cpus_online, cpus_possible, cpu_description, memory, kernel, hostname, .. } = system;
    if let Some(build_id) = build_id {
        lines.put("build_id", build_id);
    }
    lines.put("processors", format!("{cpus_online} {cpus_possible} {cpu_description}"));
    lines.put("memory", memory);
    lines.put("kernel", kernel);
    lines.put("hostname", hostname);
    lines.put("distribution", &system.distribution);
    let [one, five, fifteen] = system.load_average;
    lines.put("load", format!("{one} {five} {fifteen}"));
    lines.put("date", &system.record_date);
    lines.put("utc_offset", system.utc_offset.to_string());
    if is_over {
        lines.put("over", "1");
    }
    lines.0.extend(LAST);
    lines.0.push(b'\n');
    lines.0
}

/// The values of a text, by their keys, in order.
#[derive(Default)]
struct Parsed {
    values: HashMap<Vec<u8>, Vec<Vec<u8>>>,
}

impl Parsed {
    /// Reads all but the first line; `None` if the last one is not there.
    fn of(mut text: &[u8]) -> Option<Self> {
        let mut parsed = Self::default();
        while let Some((line, rest)) = split(text) {
            if line == LAST {
                return Some(parsed);
            }
            text = rest;
            let at = line.iter().position(|&byte| byte == b'=')?;
            parsed.values.entry(line[..at].to_vec()).or_default().push(unescaped(&line[at + 1..]));
        }
        None
    }

    fn all(&self, key: &str) -> &[Vec<u8>] {
        self.values.get(key.as_bytes()).map_or(&[], |values| values)
    }

    fn bytes(&self, key: &str) -> Vec<u8> {
        self.all(key).first().cloned().unwrap_or_default()
    }

    /// On one line, as it comes into one of a file.
    fn text(&self, key: &str) -> String {
        one_line(&self.bytes(key))
    }

    fn number<T: std::str::FromStr>(&self, key: &str) -> Option<T> {
        self.text(key).parse().ok()
    }

    fn pair<T: std::str::FromStr, U: std::str::FromStr>(&self, key: &str) -> Option<(T, U)> {
        let text = self.text(key);
        let (first, second) = text.split_once(' ')?;
        Some((first.parse().ok()?, second.parse().ok()?))
    }

    fn rate(&self, key: &str) -> Option<(u64, TscSource)> {
        let (hz, source) = self.pair(key)?;
        Some((hz, TscSource::from_number(source)?)).filter(|&(hz, _)| hz > 0)
    }

    fn collected(&self, spool: &Path, spool_bytes: u64) -> Option<Collected> {
        let clock_pair = |key| self.pair(key).map(|(tsc, nanos)| ClockPair { tsc, nanos });
        let (first, last) = (clock_pair("first")?, clock_pair("last")?);
        let world = self.world();
        let chunk_bytes = self.number::<usize>("chunk_bytes")?;
        let is_possible = chunk_bytes.is_power_of_two() && (MIN_CHUNK_BYTES..=MAX_CHUNK_BYTES).contains(&chunk_bytes);
        // A clock goes on.
        if !is_possible || last.tsc < first.tsc || last.nanos < first.nanos {
            return None;
        }
        let pid = self.number("pid").filter(|&pid: &u32| is_tid(pid.into()))?;
        Some(Collected {
            unloaded: Vec::new(),
            n_untold: self.number("untold").unwrap_or(0),
            marks: self.all("mark").iter().filter_map(|value| mark(value)).take(told::MOST_MARKS).collect(),
            pid,
            own_pid: pid,
            program_nanos: self.number("program")?,
            fork: self.pair("fork"),
            n_dropped: self.number("dropped")?,
            has_many_threads: false,
            failed: Some(self.text("failed")).filter(|text| !text.is_empty()),
            is_too_large: self.number("too_large") == Some(1),
            dump: None,
            n_overwritten: self.number("overwritten")?,
            death: self
                .number("death")
                .map(|signal| if signal == 0 { Death::WithoutWord } else { Death::Signal(signal) }),
            status: self.number("status"),
            spool: spool.to_owned(),
            _folder: None,
            spool_bytes,
            least_bytes: 0,
            tail: None,
            is_cut: false,
            is_over: self.number("over") == Some(1),
            chunk_bytes,
            first,
            last,
            utc_offset_nanos: self.number("utc_offset_nanos")?,
            minima: self.minima(),
            end_tsc: self.number("end_tsc")?,
            n_untraced_threads: self.number("untraced_threads")?,
            root: None,
            exe: self.bytes("exe"),
            command_line: self.bytes("command_line"),
            maps: Vec::new(),
            hooked: self.bytes("hooked"),
            threads: self.all("thread").iter().filter_map(|value| thread(value)).take(MAX_THREADS).collect(),
            open: self.all("open").iter().filter_map(|value| open(value)).collect(),
            facts: None,
            problem: None,
            n_records: self.number("records")?,
            world: Some(Box::new(world)),
        })
    }

    /// The shortest calls, in order of the moments from which on they were.
    fn minima(&self) -> Vec<(u64, u64)> {
        let pair = |value: &Vec<u8>| {
            let text = one_line(value);
            let (since, ticks) = text.split_once(' ')?;
            Some((since.parse().ok()?, ticks.parse().ok()?))
        };
        let mut minima: Vec<(u64, u64)> = self.all("minimum").iter().filter_map(pair).take(MOST_MINIMA).collect();
        minima.sort_unstable();
        minima
    }

    fn world(&self) -> World {
        let mut modules: Vec<Module> = Vec::new();
        let mut places: Vec<(u64, u64)> = Vec::new();
        for module in self.all("module").iter().filter_map(|value| module(value)).take(MAX_MODULES) {
            // One that overlaps another cannot be.
            let place = places.partition_point(|&(start, _)| start < module.start);
            let is_free = place.checked_sub(1).is_none_or(|before| places[before].1 <= module.start)
                && places.get(place).is_none_or(|&(start, _)| module.end <= start);
            if is_free {
                places.insert(place, (module.start, module.end));
                modules.push(module);
            }
        }
        // Of these several may have one place, but none that of a module that is always there.
        let is_alone = |opened: &Module| modules.iter().all(|it| opened.end <= it.start || it.end <= opened.start);
        let opened = self.all("opened").iter().take(MAX_MODULES).filter_map(|value| {
            let end = value.iter().position(|&byte| byte == b' ')?;
            let since = str::from_utf8(&value[..end]).ok()?.parse().ok()?;
            Some((module(&value[end + 1..]).filter(is_alone)?, since))
        });
        let mut opened: Vec<(Module, u64)> = opened.collect();
        opened.sort_by_key(|&(_, since)| since);
        let processors = self.text("processors");
        let mut processors = processors.splitn(3, ' ');
        let mut number = || processors.next().and_then(|text| text.parse().ok()).unwrap_or(1);
        let (cpus_online, cpus_possible) = (number(), number());
        let cpu_description = processors.next().unwrap_or_default().to_owned();
        let load = self.text("load");
        let mut load = load.split(' ').map(|text| text.parse().unwrap_or(0.0));
        let stack = self.text("stack");
        let stack = stack.split_once(' ').and_then(|(start, end)| Some((hex(start)?, hex(end)?)));
        World {
            modules,
            opened,
            stack: stack.filter(|(start, end)| start < end),
            tsc_hz: self.rate("tsc_hz"),
            invariant_tsc: self.number("invariant_tsc") == Some(1),
            system: SystemInfo {
                build_id: Some(self.text("build_id")).filter(|id| is_build_id(id)),
                cpus_online,
                cpus_possible,
                cpu_description,
                memory: self.text("memory"),
                kernel: self.text("kernel"),
                hostname: self.text("hostname"),
                distribution: self.text("distribution"),
                load_average: [(); 3].map(|()| load.next().filter(|number: &f64| number.is_finite()).unwrap_or(0.0)),
                record_date: self.text("date"),
                utc_offset: self.number("utc_offset").unwrap_or(0),
                ..SystemInfo::default()
            },
        }
    }
}

fn thread(value: &[u8]) -> Option<(u32, Identity)> {
    let text = one_line(value);
    let mut words = text.splitn(3, ' ');
    let (number, tid) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    is_tid(u64::from(tid)).then(|| (number, Identity { tid, name: words.next().unwrap_or_default().to_owned() }))
}

fn open(value: &[u8]) -> Option<(u32, Vec<u64>)> {
    let text = str::from_utf8(value).ok()?;
    let mut words = text.split_ascii_whitespace();
    let number = words.next()?.parse().ok()?;
    Some((number, words.map(hex).take(RETURN_STACK_ENTRIES).collect::<Option<_>>()?))
}

fn module(value: &[u8]) -> Option<Module> {
    let mut parts = value.splitn(5, |&byte| byte == b' ');
    let mut word = || str::from_utf8(parts.next()?).ok();
    let (start, end, bits, build_id) = (hex(word()?)?, hex(word()?)?, word()?.parse::<u8>().ok()?, word()?);
    let path = PathBuf::from(OsStr::from_bytes(parts.next()?));
    let is_right = start < end && path.is_absolute() && path.file_name().is_some();
    let build_id = is_build_id(build_id).then(|| build_id.to_owned());
    is_right.then(|| Module::of_text(path, start..end, build_id, (bits & 1 != 0, bits & 2 != 0)))
}

/// True if the text may stand in the name of a file.
fn is_build_id(text: &str) -> bool {
    (1..=256).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

fn one_line(bytes: &[u8]) -> String {
    sysinfo::one_line(&String::from_utf8_lossy(bytes))
}

fn unescaped(value: &[u8]) -> Vec<u8> {
    let mut bytes = value.iter().copied();
    let mut plain = Vec::with_capacity(value.len());
    while let Some(byte) = bytes.next() {
        plain.push(match byte {
            b'\\' => match bytes.next() {
                Some(b'n') => b'\n',
                Some(byte) => byte,
                None => b'\\',
            },
            byte => byte,
        });
    }
    plain
}
