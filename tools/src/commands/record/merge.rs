//! One trace directory of what the recorded processes have saved.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rftrace_tools::{Info, RECORD_SIZE};

use super::Ended;

/// The first event id that a program may name, and the first behind these.
const USER_EVENTS: std::ops::Range<u64> = 1_000_000..2_000_000;
/// Bytes of the header of `info`.
const HEADER_BYTES: usize = 40;

/// What was recorded.
#[derive(Debug, Default)]
pub(crate) struct Merged {
    pub(crate) events: u64,
    pub(crate) threads: usize,
    pub(crate) processes: usize,
    /// Calls that were nested too deeply.
    pub(crate) lost: u64,
    /// Processes whose buffer was full.
    pub(crate) full: usize,
    /// Pieces of buffers that were overwritten.
    pub(crate) overwritten: u64,
    pub(crate) untraced_threads: u64,
    /// What could not be saved, and why.
    pub(crate) errors: Vec<String>,
    pub(crate) snapshots: Vec<PathBuf>,
}

/// What a process has saved at some moment.
#[derive(Debug)]
struct Part {
    dir: PathBuf,
    pid: u32,
    /// When it was saved.
    nanos: u64,
    fork: Option<(u32, u64)>,
    fields: HashMap<String, String>,
    tasks: Vec<TaskLine>,
}

/// A line of `task.txt`.
#[derive(Clone, Debug)]
struct TaskLine {
    nanos: u64,
    /// In this order at one time.
    rank: u8,
    text: String,
}

/// Makes one directory of all parts in `work`; `None` if there is nothing.
pub(crate) fn merge(work: &Path, dir: &Path, ended: &Ended) -> Result<Option<Merged>> {
    let mut merged = Merged::default();
    let mut parts = read_parts(work, &mut merged)?;
    if !parts.iter().any(Part::has_trace) {
        if !merged.errors.is_empty() {
            bail!("{}", merged.errors.join("\n"));
        }
        return Ok(None);
    }
    let mut tids = Vec::new();
    let mut events = EventIds::default();
    // Which program a task ran when it was last saved.
    let mut programs = HashMap::new();
    for part in parts.iter().filter(|part| part.has_trace()) {
        let map = events.of_part(part)?;
        for tid in part.tids()? {
            let name = format!("{tid}.dat");
            let program = (part.pid, part.fields.get("program"));
            let goes_on = programs.insert(tid, program) == Some(program);
            append(&part.dir.join(&name), &dir.join(&name), &map, goes_on)?;
            if !tids.contains(&tid) {
                tids.push(tid);
            }
        }
        add_symbols(&part.dir, dir)?;
    }
    if !events.names.is_empty() {
        let lines = events.names.iter().map(|(name, id)| format!("EVENT: {id} {name}\n"));
        write(&dir.join("events.txt"), lines.collect::<String>().as_bytes())?;
    }
    merge_names(&parts, dir)?;
    let lines = merge_tasks(&mut parts, dir)?;
    write(&dir.join("task.txt"), lines.as_bytes())?;
    merged.threads = tids.len();
    let mut pids: Vec<u32> = parts.iter().filter(|part| part.has_trace()).map(|part| part.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    merged.processes = pids.len();
    // That of the program comes first, wherever it was saved.
    let is_main = |part: &&Part| part.has_trace() && part.pid == ended.pid;
    let main = parts.iter().find(is_main).or_else(|| parts.iter().find(|part| part.has_trace()));
    let main = main.context("nothing was recorded")?;
    move_file(&main.dir.join("clock.txt"), &dir.join("clock.txt"))?;
    tids.sort_by_key(|&tid| (tid != main.pid, tid));
    write_info(&parts, main, &tids, dir, ended)?;
    merged.snapshots = take_snapshots(work, dir)?;
    Ok(Some(merged))
}

/// The parts, in the order in which they were saved.
fn read_parts(work: &Path, merged: &mut Merged) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    for entry in fs::read_dir(work).with_context(|| format!("cannot read {}", work.display()))? {
        let dir = entry.with_context(|| format!("cannot read {}", work.display()))?.path();
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(pid) = name.strip_prefix("error-") {
            let text = fs::read_to_string(&dir).unwrap_or_default();
            merged.errors.push(format!("process {pid} was not recorded: {}", text.trim()));
            continue;
        }
        let Some((_, nanos)) = name.strip_prefix("part-").and_then(|name| name.split_once('-')) else { continue };
        let Ok(text) = fs::read_to_string(dir.join("part.txt")) else {
            merged.errors.push(format!("{name} is incomplete: its process was killed while it saved"));
            continue;
        };
        let fields: HashMap<String, String> =
            text.lines().filter_map(|line| line.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        let number = |key: &str| fields.get(key).and_then(|value| value.parse::<u64>().ok());
        let pid = number("pid").and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0);
        let ppid = number("ppid").and_then(|pid| u32::try_from(pid).ok());
        let fork = ppid.zip(number("forked_nanos"));
        if let Some(error) = fields.get("error") {
            merged.errors.push(format!("process {pid}: {error}"));
        }
        let count = |key| number(key).unwrap_or(0);
        merged.events += count("events");
        merged.lost += count("lost");
        merged.full += usize::from(count("full") != 0);
        merged.overwritten += count("chunks_overwritten");
        merged.untraced_threads += count("untraced_threads");
        parts.push(Part { nanos: nanos.parse().unwrap_or(0), dir, pid, fork, fields, tasks: Vec::new() });
    }
    parts.sort_by_key(|part| (part.nanos, part.pid));
    Ok(parts)
}

impl Part {
    fn has_trace(&self) -> bool {
        !self.fields.contains_key("error") && self.dir.join("info").is_file()
    }

    fn tids(&self) -> Result<Vec<u32>> {
        Ok(Info::read(&self.dir.join("info"))?.tids().to_vec())
    }
}

/// Ids of events: the same name has the same id in the whole trace.
#[derive(Default)]
struct EventIds {
    names: BTreeMap<String, u64>,
}

impl EventIds {
    /// What the ids of a part become; those that stay are left out.
    fn of_part(&mut self, part: &Part) -> Result<HashMap<u64, u64>> {
        let path = part.dir.join("events.txt");
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            text => text.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let mut map = HashMap::new();
        for line in text.lines() {
            let Some((id, name)) = line.strip_prefix("EVENT: ").and_then(|rest| rest.split_once(' ')) else { continue };
            let Ok(id) = id.parse::<u64>() else { continue };
            let next = USER_EVENTS.start + self.names.len() as u64;
            let global = *self.names.entry(name.to_owned()).or_insert(next);
            if global != id {
                map.insert(id, global);
            }
        }
        Ok(map)
    }
}

/// A record of a task: its time, and the rest.
type RawRecord = [u64; 2];
/// The bits of the second word.
const TYPE: u64 = 3;
const ENTRY: u64 = 0;
const EXIT: u64 = 1;
const EVENT: u64 = 3;
const DEPTH_SHIFT: u32 = 6;
const ADDRESS_SHIFT: u32 = 16;

fn depth(record: RawRecord) -> u64 {
    record[1] >> DEPTH_SHIFT & ((1 << (ADDRESS_SHIFT - DEPTH_SHIFT)) - 1)
}

/// Puts a task's records behind those that are there. Times do not go back: two saves know the clock's rate to some digits.
///
/// If the same program `goes_on`, functions that were open at the save are neither left nor entered again.
fn append(from: &Path, to: &Path, ids: &HashMap<u64, u64>, goes_on: bool) -> Result<()> {
    if ids.is_empty() && !to.exists() {
        return move_file(from, to);
    }
    let n_open = if goes_on { open_functions(from, to)? } else { 0 };
    if n_open > 0 {
        let file = OpenOptions::new().write(true).open(to);
        file.and_then(|file| file.set_len(file.metadata()?.len() - n_open * RECORD_SIZE as u64))
            .with_context(|| format!("cannot write {}", to.display()))?;
    }
    let mut last = last_time(to)?;
    let reading = || format!("cannot read {}", from.display());
    let writing = || format!("cannot write {}", to.display());
    let mut input = BufReader::new(File::open(from).with_context(reading)?);
    let output = OpenOptions::new().create(true).append(true).open(to).with_context(writing)?;
    let mut output = BufWriter::with_capacity(256 << 10, output);
    let mut record = [0; RECORD_SIZE];
    input.seek_relative((n_open * RECORD_SIZE as u64).cast_signed()).with_context(reading)?;
    loop {
        match input.read_exact(&mut record) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
            result => result.with_context(reading)?,
        }
        let (words, _) = record.as_chunks::<8>();
        let [time, mut word] = [words[0], words[1]].map(u64::from_le_bytes);
        last = last.max(time);
        if word & TYPE == EVENT
            && let Some(id) = ids.get(&(word >> ADDRESS_SHIFT))
        {
            word = word & ((1 << ADDRESS_SHIFT) - 1) | id << ADDRESS_SHIFT;
        }
        output
            .write_all(&last.to_le_bytes())
            .and_then(|()| output.write_all(&word.to_le_bytes()))
            .with_context(writing)?;
    }
    output.flush().with_context(writing)
}

/// How many functions are open from the end of one file to the beginning of the next: the one ends with their exits, the other
/// begins with their entries.
fn open_functions(from: &Path, to: &Path) -> Result<u64> {
    /// More than are ever open.
    const MOST: usize = 1024;

    let bytes = fs::metadata(to).with_context(|| format!("cannot read {}", to.display()))?.len();
    let n_records = bytes / RECORD_SIZE as u64;
    let n_read = n_records.min(MOST as u64);
    let mut end = read_records(to, n_records - n_read, MOST)?;
    end.reverse();
    let beginning = read_records(from, 0, MOST)?;
    let is_open = |place: usize, exit: RawRecord, entry: RawRecord| {
        let fits =
            exit[1] & TYPE == EXIT && entry[1] & TYPE == ENTRY && exit[1] >> DEPTH_SHIFT == entry[1] >> DEPTH_SHIFT;
        fits && depth(exit) == place as u64 && exit[0] == end[0][0] && entry[0] == beginning[0][0]
    };
    let pairs = end.iter().zip(&beginning).enumerate();
    Ok(pairs.take_while(|&(place, (&exit, &entry))| is_open(place, exit, entry)).count() as u64)
}

/// Some records of a file, from one on.
fn read_records(path: &Path, first: u64, most: usize) -> Result<Vec<RawRecord>> {
    let context = || format!("cannot read {}", path.display());
    let mut file = File::open(path).with_context(context)?;
    file.seek(SeekFrom::Start(first * RECORD_SIZE as u64)).with_context(context)?;
    let mut bytes = Vec::new();
    file.take((most * RECORD_SIZE) as u64).read_to_end(&mut bytes).with_context(context)?;
    let (words, _) = bytes.as_chunks::<8>();
    let (records, _) = words.as_chunks::<2>();
    Ok(records.iter().map(|words| words.map(u64::from_le_bytes)).collect())
}

/// The time of a file's last record; 0 if it has none.
fn last_time(path: &Path) -> Result<u64> {
    use std::os::unix::fs::FileExt;
    let Ok(file) = File::open(path) else { return Ok(0) };
    let context = || format!("cannot read {}", path.display());
    let bytes = file.metadata().with_context(context)?.len();
    let Some(place) = (bytes / RECORD_SIZE as u64).checked_sub(1) else { return Ok(0) };
    let mut time = [0; 8];
    file.read_exact_at(&mut time, place * RECORD_SIZE as u64).with_context(context)?;
    Ok(u64::from_le_bytes(time))
}

/// Takes the symbol files of a part. Files of different modules with one name get names that tell them apart, by uftrace's rule.
fn add_symbols(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let path = entry.with_context(|| format!("cannot read {}", from.display()))?.path();
        if path.extension().is_none_or(|extension| extension != "sym") {
            continue;
        }
        let [module, build_id] = identity(&path)?;
        let base = module.rsplit('/').next().unwrap_or_default();
        let suffix = match build_id.get(..4) {
            Some(digits) => digits.to_owned(),
            None => {
                let sum = module.bytes().fold(0u16, |sum, byte| sum.wrapping_add_signed(i16::from(byte.cast_signed())));
                format!("{sum:04x}")
            }
        };
        for name in [format!("{base}.sym"), format!("{base}-{suffix}.sym")] {
            let place = to.join(name);
            if !place.exists() {
                move_file(&path, &place)?;
                break;
            }
            if identity(&place)? == [module.as_str(), build_id.as_str()] {
                break;
            }
        }
    }
    Ok(())
}

/// The module's path and build-id that a symbol file is for.
fn identity(path: &Path) -> Result<[String; 2]> {
    let mut head = Vec::new();
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    file.take(16 << 10).read_to_end(&mut head).with_context(|| format!("cannot read {}", path.display()))?;
    let head = String::from_utf8_lossy(&head);
    let field = |key: &str| {
        let line = head.lines().take_while(|line| line.starts_with('#')).find_map(|line| line.strip_prefix(key));
        line.unwrap_or_default().trim().to_owned()
    };
    Ok([field("# path name:"), field("# build-id:")])
}

/// The names of threads, in order of time.
fn merge_names(parts: &[Part], dir: &Path) -> Result<()> {
    /// Bytes of a record; the time is at its end.
    const BYTES: usize = 48;
    const NAME: &str = "perf-cpu0.dat";

    let mut records = Vec::new();
    for path in parts.iter().filter(|part| part.has_trace()).map(|part| part.dir.join(NAME)) {
        match fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            bytes => records.extend(bytes.with_context(|| format!("cannot read {}", path.display()))?),
        }
    }
    let (records, _) = records.as_chunks_mut::<BYTES>();
    if records.is_empty() {
        return Ok(());
    }
    records.sort_by_key(|record| record.last_chunk().map(|time| u64::from_le_bytes(*time)));
    write(&dir.join(NAME), records.as_flattened())
}

/// One map for each program that ran, and one `task.txt`.
fn merge_tasks(parts: &mut [Part], dir: &Path) -> Result<String> {
    /// A program in its address space.
    struct Session {
        pid: u32,
        nanos: u64,
        modules: String,
    }

    for part in parts.iter_mut().filter(|part| part.has_trace()) {
        part.tasks = read_tasks(&part.dir.join("task.txt"))?;
    }
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|&place| parts[place].tasks.first().map_or(u64::MAX, |line| line.nanos));
    let mut sessions: Vec<Session> = Vec::new();
    let mut lines = Vec::new();
    let mut forked = Vec::new();
    for part in order.into_iter().map(|place| &parts[place]) {
        if let Some((ppid, nanos)) = part.fork.filter(|_| !forked.contains(&part.pid)) {
            forked.push(part.pid);
            let (seconds, fraction) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
            let text = format!("FORK timestamp={seconds}.{fraction:09} pid={} ppid={ppid}", part.pid);
            lines.push(TaskLine { nanos, rank: 0, text });
        }
        for line in &part.tasks {
            let Some(sid) = line.text.strip_prefix("SESS ").and_then(|rest| field(rest, "sid")) else {
                lines.push(line.clone());
                continue;
            };
            let name = format!("sid-{sid}.map");
            let from = part.dir.join(&name);
            let map = fs::read_to_string(&from).with_context(|| format!("cannot read {}", from.display()))?;
            // The stack grows.
            let modules: String =
                map.lines().filter(|line| !line.ends_with("[stack]")).map(|l| format!("{l}\n")).collect();
            let is_known = |session: &Session| {
                let inherits = part.fork.is_some_and(|(ppid, nanos)| session.pid == ppid && session.nanos <= nanos);
                (session.pid == part.pid || inherits) && session.modules == modules
            };
            if sessions
                .iter()
                .rev()
                .find(|session| session.pid == part.pid)
                .map_or_else(|| sessions.iter().any(is_known), is_known)
            {
                continue;
            }
            move_file(&from, &dir.join(&name))?;
            sessions.push(Session { pid: part.pid, nanos: line.nanos, modules });
            lines.push(line.clone());
        }
    }
    lines.sort_by_key(|line| (line.nanos, line.rank));
    Ok(lines.into_iter().map(|line| line.text + "\n").collect())
}

fn read_tasks(path: &Path) -> Result<Vec<TaskLine>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let line = |line: &str| {
        let (seconds, nanos) = field(line, "timestamp")?.split_once('.')?;
        let nanos = seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(nanos.parse().ok()?)?;
        let rank = if line.starts_with("SESS") { 1 } else { 2 };
        Some(TaskLine { nanos, rank, text: line.to_owned() })
    };
    Ok(text.lines().filter_map(line).collect())
}

fn field<'l>(line: &'l str, key: &str) -> Option<&'l str> {
    line.split(' ').find_map(|token| token.strip_prefix(key)?.strip_prefix('='))
}

/// `info`, of that of the program and of what is known now.
fn write_info(parts: &[Part], main: &Part, tids: &[u32], dir: &Path, ended: &Ended) -> Result<()> {
    use std::os::unix::process::ExitStatusExt;

    let mut features = 0;
    for part in parts.iter().filter(|part| part.has_trace()) {
        features |= Info::read(&part.dir.join("info"))?.features();
    }
    let path = main.dir.join("info");
    let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let (header, text) = bytes.split_at_checked(HEADER_BYTES).context("the program's `info` is incomplete")?;
    let mut info = header.to_vec();
    info[16..24].copy_from_slice(&features.to_le_bytes());
    let list: Vec<String> = tids.iter().map(u32::to_string).collect();
    let mut usage = ended.usage.iter();
    for line in String::from_utf8_lossy(text).lines() {
        let new = match line.split_once(['=', ':']) {
            Some(("exit_status", _)) => Some(format!("exit_status:{}", ended.status.into_raw())),
            Some(("elapsed_time", _)) => Some(format!("elapsed_time:{:.9} sec", ended.elapsed.as_secs_f64())),
            Some(("taskinfo", rest)) if rest.starts_with("nr_tid=") => Some(format!("taskinfo:nr_tid={}", tids.len())),
            Some(("taskinfo", rest)) if rest.starts_with("tids=") => Some(format!("taskinfo:tids={}", list.join(","))),
            Some(("usageinfo", rest)) if !rest.starts_with("lines=") => usage.next().cloned(),
            _ => None,
        };
        info.extend(new.as_deref().unwrap_or(line).as_bytes());
        info.push(b'\n');
    }
    write(&dir.join("info"), &info)
}

/// Moves the snapshots into the directory.
fn take_snapshots(work: &Path, dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(work).with_context(|| format!("cannot read {}", work.display()))?;
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    found.retain(|path| path.join("info").is_file() && path.join("part.txt").is_file());
    found.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("snapshot-")));
    found.sort_by_key(|path| path.to_string_lossy().rsplit('-').next().and_then(|nanos| nanos.parse::<u64>().ok()));
    let take = |(place, path): (usize, &PathBuf)| {
        let to = dir.join(format!("snapshot-{}", place + 1));
        fs::remove_file(path.join("part.txt"))
            .and_then(|()| fs::rename(path, &to))
            .with_context(|| format!("cannot move {} to {}", path.display(), to.display()))?;
        Ok(to)
    };
    found.iter().enumerate().map(take).collect()
}

/// Why there is no trace.
pub(crate) fn why_nothing(work: &Path, ended: &Ended) -> &'static str {
    use std::os::unix::process::ExitStatusExt;

    let was_begun = fs::read_dir(work).is_ok_and(|entries| {
        entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("process-"))
    });
    match (was_begun, ended.status.signal()) {
        (true, Some(9)) => {
            "the program was killed by SIGKILL, before which nothing can be saved (but earlier, by a snapshot)"
        }
        (true, _) => {
            "no function that calls the tracer ran while recording was on, or the program ended by a system call of its own"
        }
        (false, _) => "the program did not load the tracer, or nothing in it calls it",
    }
}

fn move_file(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).with_context(|| format!("cannot move {} to {}", from.display(), to.display()))
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}
