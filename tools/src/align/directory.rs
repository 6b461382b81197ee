//! A merged timeline as one uftrace directory: a session for each source, tasks with numbers of their own.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::clock::NANOS_PER_SECOND;
use super::stage::{Lane, Output};
use super::timeline::{KvmThread, Merge, Of, Source};
use crate::Summary;
use crate::error::{Error, Result, read_file};
use crate::events::{SCHED_IN, SCHED_OUT};
use crate::record::RECORD_SIZE;

/// Records of a task that are collected before they are written. Files are not kept open, as there may be many.
const BLOCK_BYTES: usize = 64 * 1024;
/// The first number of named events.
const FIRST_USER_EVENT: u64 = 1_000_000;
/// Names of events that are told apart; KVM has far fewer.
const MAX_EVENT_NAMES: usize = 100_000;
/// The program that KVM's events are of, its place, and the size of each of its functions.
const KVM: &str = "kvm-events";
const KVM_BASE: u64 = 0x40_0000;
const KVM_FUNCTION_BYTES: u64 = 16;
/// The greatest depth that a record can hold.
const MAX_DEPTH: u64 = 1023;

impl Merge {
    /// Writes the timeline as a directory for uftrace, replacing a trace that is there.
    ///
    /// Each source keeps its addresses and symbols in a session of its own. Events of KVM are events of tasks with the numbers of
    /// the threads that ran the guest; counters are in `extern.dat`.
    ///
    /// # Errors
    ///
    /// A source cannot be read or is malformed, `dir` is one of the sources or holds something else than a trace, or it cannot be
    /// written.
    pub fn write_directory(&self, dir: &Path) -> Result<Summary> {
        self.prepare(dir)?;
        let result = self.write_prepared(dir);
        if result.is_err() {
            // A part of a trace is of no use, and the directory should be free for the next try.
            let _ = remove_trace(dir);
        }
        result
    }

    fn write_prepared(&self, dir: &Path) -> Result<Summary> {
        let mut metadata = Metadata { dir, sids: HashSet::new(), task_txt: String::new() };
        for (idx, source) in self.sources.iter().enumerate() {
            metadata.add(idx, source)?;
        }
        let output = DirectoryOutput::new(dir, self);
        let (mut output, summary) = self.run(output)?;
        output.flush_all()?;
        metadata.add_kvm(self, &output)?;
        write_file(&dir.join("task.txt"), metadata.task_txt.as_bytes())?;
        output.write_events()?;
        write_file(&dir.join("clock.txt"), self.clock_txt(&output).as_bytes())?;
        write_file(&dir.join("info"), &self.info(&output))?;
        Ok(summary)
    }

    /// Makes the directory, or empties it.
    fn prepare(&self, dir: &Path) -> Result<()> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::WriteFile { path, source }
        };
        fs::create_dir_all(dir).map_err(failed(dir))?;
        let same = |other: &Path| dir.canonicalize().ok().is_some_and(|dir| other.canonicalize().ok() == Some(dir));
        if self.sources.iter().any(|source| same(source.trace.dir())) {
            let reason = format!("{}: the output is one of the sources; give another directory", dir.display());
            return Err(Error::Unaligned { reason });
        }
        let is_trace = fs::read(dir.join("info")).is_ok_and(|info| info.starts_with(b"Ftrace!"));
        for entry in fs::read_dir(dir).map_err(failed(dir))? {
            let path = entry.map_err(failed(dir))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !is_trace {
                let reason =
                    format!("{}: it holds `{name}` and is no trace: give an empty or a new directory", dir.display());
                return Err(Error::Unaligned { reason });
            }
        }
        remove_trace(dir)
    }

    /// The clock of the timeline, so that this directory can be merged with others.
    fn clock_txt(&self, output: &DirectoryOutput<'_>) -> String {
        let clock = &self.reference;
        let last_ns = output.lanes.iter().map(|lane| lane.last_ns).max().unwrap_or(clock.nanos);
        format!(
            "first_tsc={}\nfirst_nanos={}\nlast_tsc={}\nlast_nanos={last_ns}\ntsc_hz={}\ntsc_hz_source=merge\n\
             nanos_per_2_32_ticks={}\n",
            clock.tsc,
            clock.nanos,
            clock.ticks(last_ns),
            clock.hz(),
            clock.nanos_per_2_32_ticks
        )
    }

    fn info(&self, output: &DirectoryOutput<'_>) -> Vec<u8> {
        /// TASK_SESSION, SYM_REL_ADDR, MAX_STACK and EVENT.
        const FEATURES: u64 = 1 << 1 | 1 << 5 | 1 << 6 | 1 << 7;
        /// EXE_NAME, CMDLINE, TASKINFO.
        const MASK: u64 = 1 << 0 | 1 << 3 | 1 << 7;
        let tids: Vec<String> =
            output.lanes.iter().filter(|lane| lane.is_written).map(|lane| lane.tid.to_string()).collect();
        let exe_name = self.sources.first().and_then(|source| source.trace.info().get("exename")).unwrap_or("merged");
        let mut info = b"Ftrace!\0\x04\0\0\0\x28\0\x01\x02".to_vec();
        info.extend(FEATURES.to_le_bytes());
        info.extend(MASK.to_le_bytes());
        info.extend(1024_u16.to_le_bytes());
        info.extend([0; 6]);
        let text = format!(
            "exename:{exe_name}\ncmdline:rftrace merge\ntaskinfo:lines=2\ntaskinfo:nr_tid={}\ntaskinfo:tids={}\n",
            tids.len(),
            tids.join(",")
        );
        info.extend(text.bytes());
        info
    }
}

/// Removes the files of a trace.
fn remove_trace(dir: &Path) -> Result<()> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::WriteFile { path, source }
    };
    for entry in fs::read_dir(dir).map_err(failed(dir))? {
        let path = entry.map_err(failed(dir))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_trace_file = [".dat", ".sym", ".dbg", ".map"].iter().any(|end| name.ends_with(end))
            || ["info", "task.txt", "events.txt", "clock.txt"].contains(&&*name);
        if is_trace_file {
            fs::remove_file(&path).map_err(failed(&path))?;
        }
    }
    Ok(())
}

/// `task.txt`, maps and symbols of all sources.
struct Metadata<'d> {
    dir: &'d Path,
    sids: HashSet<String>,
    task_txt: String,
}

impl Metadata<'_> {
    /// Takes a source's files over.
    fn add(&mut self, idx: usize, source: &Source) -> Result<()> {
        let from = source.trace.dir();
        let prefix = self.copy_symbols(idx, from)?;
        let path = from.join("task.txt");
        let text = read_file(&path)?;
        let text = String::from_utf8_lossy(&text);
        let mut sids = HashMap::new();
        for line in text.lines() {
            if !["SESS", "TASK", "FORK", "DLOP"].iter().any(|kind| line.starts_with(kind)) {
                continue;
            }
            let line = self.task_line(line, source, &prefix, &mut sids);
            self.task_txt.push_str(&line);
            self.task_txt.push('\n');
        }
        for (old, new) in sids {
            let map = read_file(&from.join(format!("sid-{old}.map")))?;
            let map = with_prefix_in_map(&String::from_utf8_lossy(&map), &prefix);
            write_file(&self.dir.join(format!("sid-{new}.map")), map.as_bytes())?;
        }
        Ok(())
    }

    /// A line with the timeline's times and numbers.
    fn task_line(&mut self, line: &str, source: &Source, prefix: &str, sids: &mut HashMap<String, String>) -> String {
        // Names come last, and may hold anything.
        let (words, name) = match line.find("name=\"") {
            Some(quoted) => {
                let start = line[..quoted].rfind(' ').map_or(0, |space| space + 1);
                (&line[..start], &line[start..])
            }
            None => (line, ""),
        };
        let mut found = Vec::new();
        for word in words.split(' ').filter(|word| !word.is_empty()) {
            let changed = word.split_once('=').and_then(|(key, value)| match key {
                "timestamp" => {
                    let (seconds, nanos) = value.split_once('.')?;
                    let time_ns = seconds.parse::<u64>().ok()?.checked_mul(NANOS_PER_SECOND)?;
                    let time_ns = source.times.map(time_ns.checked_add(nanos.parse().ok()?)?);
                    Some(format!("timestamp={}", Seconds(time_ns)))
                }
                "pid" | "tid" | "ppid" => {
                    let number: u32 = value.parse().ok()?;
                    // A parent that is not in the trace stays what it is.
                    Some(format!("{key}={}", number.checked_add(source.shift)?))
                }
                "sid" => {
                    let new = sids.entry(value.to_owned()).or_insert_with(|| unused_sid(&mut self.sids, value));
                    Some(format!("sid={new}"))
                }
                _ => None,
            });
            found.push(changed.unwrap_or_else(|| word.to_owned()));
        }
        if let Some((key, path)) = name.split_once("=\"") {
            found.push(format!("{key}=\"{}", with_prefix(path, prefix)));
        }
        found.join(" ")
    }

    /// Copies symbols and source lines. Returns what the names of modules get in front, so that those of one name do not meet.
    fn copy_symbols(&self, idx: usize, from: &Path) -> Result<String> {
        let mut files = BTreeMap::new();
        let io_error = |source| Error::Io { path: from.to_owned(), source };
        for entry in fs::read_dir(from).map_err(io_error)? {
            let path = entry.map_err(io_error)?.path();
            if path.extension().is_some_and(|end| end == "sym" || end == "dbg")
                && let Some(name) = path.file_name().and_then(|name| name.to_str())
            {
                files.insert(name.to_owned(), path);
            }
        }
        let mut meets_other = false;
        for (name, path) in &files {
            let there = self.dir.join(name);
            meets_other |= there.exists() && read_file(&there)? != read_file(path)?;
        }
        let prefix = if meets_other { format!("{idx}-") } else { String::new() };
        for (name, path) in files {
            let text = read_file(&path)?;
            let text = if prefix.is_empty() { text } else { with_prefix_in_symbols(&text, &prefix) };
            write_file(&self.dir.join(format!("{prefix}{name}")), &text)?;
        }
        Ok(prefix)
    }

    /// A session and tasks for the threads that KVM's events are of.
    fn add_kvm(&mut self, merge: &Merge, output: &DirectoryOutput<'_>) -> Result<()> {
        let lanes = || merge.lanes.iter().zip(&output.lanes).filter(|(info, _)| matches!(info.of, Of::Kvm { .. }));
        let Some(first_ns) = lanes().filter(|(_, lane)| lane.is_written).map(|(_, lane)| lane.first_ns).min() else {
            return Ok(());
        };
        let sid = unused_sid(&mut self.sids, "6b766d6b766d6b76");
        let pid = lanes().next().map_or(1, |(info, _)| info.track.pid);
        let mut text = format!("SESS timestamp={} pid={pid} sid={sid} exename=\"{KVM}\"\n", Seconds(first_ns));
        let mut symbols = format!("# symbols: {}\n# path name: {KVM}\n", lanes().count() + 1);
        let mut end = KVM_BASE;
        for (info, lane) in lanes() {
            if lane.is_written {
                let _ = writeln!(text, "TASK timestamp={} tid={} pid={pid}", Seconds(lane.first_ns), info.track.tid);
            }
            if let (Of::Kvm { tid }, Some(addr)) = (info.of, lane.around) {
                let name = merge.kvm_threads.get(&tid).map_or_else(String::new, KvmThread::function_name);
                let _ = writeln!(symbols, "{:016x} T {name}", addr - KVM_BASE);
                end = addr + KVM_FUNCTION_BYTES;
            }
        }
        let _ = writeln!(symbols, "{:016x} ? __func_end", end - KVM_BASE);
        self.task_txt.push_str(&text);
        write_file(&self.dir.join(format!("{KVM}.sym")), symbols.as_bytes())?;
        let map = format!(
            "{KVM_BASE:x}-{end:x} r-xp 00000000 00:00 0 {KVM}\n\
             ffffffffffff-ffffffffffff rw-p 00000000 00:00 0 [stack]\n"
        );
        write_file(&self.dir.join(format!("sid-{sid}.map")), map.as_bytes())
    }
}

/// A session's name that no other has: its own, if that is free.
fn unused_sid(taken: &mut HashSet<String>, wanted: &str) -> String {
    let number = u64::from_str_radix(wanted, 16).unwrap_or(0);
    let others = (1..).map(|n: u64| format!("{:016x}", number.wrapping_add(n)));
    let free = std::iter::once(wanted.to_owned()).chain(others).find(|sid| !taken.contains(sid)).unwrap_or_default();
    taken.insert(free.clone());
    free
}

/// A module's path with something in front of its file name.
fn with_prefix(path: &str, prefix: &str) -> String {
    if prefix.is_empty() || path.starts_with('[') || path.is_empty() {
        return path.to_owned();
    }
    let start = path.rfind('/').map_or(0, |slash| slash + 1);
    format!("{}{prefix}{}", &path[..start], &path[start..])
}

fn with_prefix_in_map(text: &str, prefix: &str) -> String {
    if prefix.is_empty() {
        return text.to_owned();
    }
    let mut changed = String::new();
    for line in text.lines() {
        // Behind five fields.
        let start = line.match_indices(' ').nth(4).map_or(line.len(), |(space, _)| space);
        let path = line[start..].trim_start();
        let (path, id) = path.split_once(" build-id:").map_or((path, None), |(path, id)| (path, Some(id)));
        let _ = write!(changed, "{} {}", &line[..start], with_prefix(path, prefix));
        if let Some(id) = id {
            let _ = write!(changed, " build-id:{id}");
        }
        changed.push('\n');
    }
    changed
}

fn with_prefix_in_symbols(text: &[u8], prefix: &str) -> Vec<u8> {
    const KEY: &[u8] = b"# path name: ";
    let mut changed = Vec::with_capacity(text.len() + 64);
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        match line.strip_prefix(KEY) {
            Some(path) => {
                changed.extend(KEY);
                changed.extend(with_prefix(&String::from_utf8_lossy(path), prefix).bytes());
            }
            None => changed.extend(line),
        }
    }
    changed
}

/// A time as `task.txt` has it.
struct Seconds(u64);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:09}", self.0 / NANOS_PER_SECOND, self.0 % NANOS_PER_SECOND)
    }
}

/// The records of a lane.
struct LaneFile {
    tid: u32,
    path: PathBuf,
    block: Vec<u8>,
    depth: u64,
    /// A function that all of it happens in: uftrace hides events outside of functions.
    around: Option<u64>,
    is_written: bool,
    first_ns: u64,
    last_ns: u64,
}

struct DirectoryOutput<'d> {
    dir: &'d Path,
    lanes: Vec<LaneFile>,
    /// Names of events, and their numbers.
    events: HashMap<String, u64>,
    counters: Option<BufWriter<File>>,
}

impl<'d> DirectoryOutput<'d> {
    fn new(dir: &'d Path, merge: &Merge) -> Self {
        let mut functions = (KVM_BASE..).step_by(KVM_FUNCTION_BYTES as usize);
        let lanes = merge.lanes.iter().map(|info| LaneFile {
            around: if matches!(info.of, Of::Kvm { .. }) { functions.next() } else { None },
            tid: info.track.tid,
            path: dir.join(format!("{}.dat", info.track.tid)),
            block: Vec::new(),
            depth: 0,
            is_written: false,
            first_ns: 0,
            last_ns: 0,
        });
        Self { dir, lanes: lanes.collect(), events: HashMap::new(), counters: None }
    }

    fn record(&mut self, lane: Lane, time_ns: u64, kind: u64, addr: u64) -> Result<()> {
        let state = &self.lanes[lane];
        match state.around {
            Some(around) if !state.is_written && state.block.is_empty() => self.push(lane, time_ns, ENTRY, around)?,
            _ => {}
        }
        self.push(lane, time_ns, kind, addr)
    }

    fn push(&mut self, lane: Lane, time_ns: u64, kind: u64, addr: u64) -> Result<()> {
        const MAGIC: u64 = 5;
        let lane = &mut self.lanes[lane];
        // An exit has the depth of its entry.
        let depth = if kind == EXIT { lane.depth.saturating_sub(1) } else { lane.depth };
        let word = addr << 16 | depth.min(MAX_DEPTH) << 6 | MAGIC << 3 | kind;
        match kind {
            ENTRY => lane.depth += 1,
            EXIT => lane.depth = depth,
            _ => {}
        }
        if lane.block.is_empty() {
            lane.block.reserve_exact(BLOCK_BYTES);
            if !lane.is_written {
                lane.first_ns = time_ns;
            }
        }
        lane.last_ns = time_ns;
        lane.block.extend_from_slice(&time_ns.to_le_bytes());
        lane.block.extend_from_slice(&word.to_le_bytes());
        if lane.block.len() + RECORD_SIZE > BLOCK_BYTES { lane.flush() } else { Ok(()) }
    }

    fn flush_all(&mut self) -> Result<()> {
        for lane in 0..self.lanes.len() {
            let LaneFile { around, depth, last_ns, .. } = self.lanes[lane];
            if let Some(around) = around.filter(|_| depth > 0) {
                self.push(lane, last_ns, EXIT, around)?;
            }
        }
        self.lanes.iter_mut().try_for_each(LaneFile::flush)?;
        if let Some(counters) = &mut self.counters {
            let path = self.dir.join("extern.dat");
            counters.flush().map_err(|source| Error::WriteFile { path, source })?;
        }
        Ok(())
    }

    fn write_events(&self) -> Result<()> {
        let mut events: Vec<_> = self.events.iter().map(|(name, id)| (id, name)).collect();
        events.sort();
        let lines: String = events.iter().map(|(id, name)| format!("EVENT: {id} {name}\n")).collect();
        write_file(&self.dir.join("events.txt"), lines.as_bytes())
    }

    fn event_id(&mut self, name: &str) -> u64 {
        if let Some(&id) = self.events.get(name) {
            return id;
        }
        // Two words with a colon between them are what uftrace reads.
        let mut clean: String = name.chars().map(|c| if c.is_whitespace() { '_' } else { c }).take(200).collect();
        if !clean.contains(':') {
            clean.insert_str(0, "event:");
        }
        if self.events.len() >= MAX_EVENT_NAMES {
            clean = "rftrace:other_events".to_owned();
        }
        let next = FIRST_USER_EVENT + self.events.len() as u64;
        *self.events.entry(clean).or_insert(next)
    }
}

impl LaneFile {
    fn flush(&mut self) -> Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let mut options = OpenOptions::new();
        if self.is_written {
            options.append(true)
        } else {
            options.write(true).create(true).truncate(true)
        };
        let written = options.open(&self.path).and_then(|mut file| file.write_all(&self.block));
        written.map_err(|source| Error::WriteFile { path: self.path.clone(), source })?;
        self.is_written = true;
        self.block.clear();
        Ok(())
    }
}

const ENTRY: u64 = 0;
const EXIT: u64 = 1;
const EVENT: u64 = 3;

impl Output for DirectoryOutput<'_> {
    const HAS_SLICES: bool = false;

    fn enter(&mut self, lane: Lane, time_ns: u64, addr: u64, _: &str) -> Result<()> {
        self.record(lane, time_ns, ENTRY, addr)
    }

    fn exit(&mut self, lane: Lane, time_ns: u64, addr: u64) -> Result<()> {
        self.record(lane, time_ns, EXIT, addr)
    }

    fn wait(&mut self, lane: Lane, time_ns: u64) -> Result<()> {
        self.record(lane, time_ns, EVENT, SCHED_OUT)
    }

    fn resume(&mut self, lane: Lane, time_ns: u64) -> Result<()> {
        self.record(lane, time_ns, EVENT, SCHED_IN)
    }

    fn instant(&mut self, lane: Lane, time_ns: u64, name: &str) -> Result<()> {
        let id = self.event_id(name);
        self.record(lane, time_ns, EVENT, id)
    }

    fn counter(&mut self, time_ns: u64, name: &str, value: f64) -> Result<()> {
        let path = self.dir.join("extern.dat");
        let failed = |source| Error::WriteFile { path: path.clone(), source };
        let file = match &mut self.counters {
            Some(file) => file,
            None => self.counters.insert(BufWriter::new(File::create(&path).map_err(failed)?)),
        };
        let name: String = name.chars().filter(|c| !c.is_control()).take(200).collect();
        writeln!(file, "{} {name} {value}", Seconds(time_ns)).map_err(failed)
    }
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let result: io::Result<()> = fs::write(path, bytes);
    result.map_err(|source| Error::WriteFile { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_get_prefixes() {
        assert_eq!(with_prefix("/bin/a", "1-"), "/bin/1-a");
        assert_eq!(with_prefix("kernel", "1-"), "1-kernel");
        assert_eq!(with_prefix("[stack]", "1-"), "[stack]");
        let map = "00400000-00401000 r-xp 00000000 08:01 7          /bin/a build-id:12ab\n\
                   ffffffffffff-ffffffffffff rw-p 00000000 00:00 0 [stack]\n";
        assert_eq!(
            with_prefix_in_map(map, "1-"),
            "00400000-00401000 r-xp 00000000 08:01 7 /bin/1-a build-id:12ab\n\
             ffffffffffff-ffffffffffff rw-p 00000000 00:00 0 [stack]\n"
        );
        let symbols = b"# symbols: 1\n# path name: /bin/a\n0000000000001000 T main\n";
        let expected = b"# symbols: 1\n# path name: /bin/1-a\n0000000000001000 T main\n";
        assert_eq!(with_prefix_in_symbols(symbols, "1-"), expected);
    }

    #[test]
    fn sids_are_unique() {
        let mut taken = HashSet::new();
        assert_eq!(unused_sid(&mut taken, "ffffffffffffffff"), "ffffffffffffffff");
        assert_eq!(unused_sid(&mut taken, "ffffffffffffffff"), "0000000000000000");
        assert_eq!(unused_sid(&mut taken, "0000000000000000"), "0000000000000001");
    }
}
