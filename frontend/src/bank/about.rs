//! The file beside a spool with the facts about its process. Both become a trace after the recorder's end, during its
//! work, or on another machine with untrusted data.
//!
//! The file begins with a [`Head`] of fixed length: its recorder overwrites it while the facts stay the same. The facts
//! follow: [`Collected`] in the encoding of postcard. Each of the two has a checksum.
//!
//! Not here: the source of the facts (`collect`), and the folder of facts about the program at its end (`facts`).

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use postcard::fixint;
use rftrace::abi::{MAX_CHUNK_BYTES, MIN_CHUNK_BYTES, RETURN_STACK_ENTRIES};
use rftrace_format::opener;
use rftrace_format::store;
use serde::{Deserialize, Serialize};

use super::collect::{Banks, Watched};
use super::collected::Collected;
use super::facts::Facts;
use super::spool::{about_file, facts_folder};
use super::told;
use super::world::{Seen, World};
use crate::clock::ClockPair;
use crate::host::linux::modules::Module;
use crate::host::linux::sysinfo::one_line;
use crate::host::machine::SystemInfo;
use crate::image::Checksum;
use crate::image::contents::is_tid;

/// The first bytes.
const MAGIC: [u8; 8] = *b"\x93RFA\r\n\x1a\n";
/// The version of the file. A change of a field of [`Collected`], or of a type in it, raises it.
const VERSION: u64 = 1;
/// The size of a head with its checksum.
const HEAD_BYTES: usize = 64;
/// The maximum size of the file: a process with a million threads and thousands of libraries needs half of it.
const MOST_BYTES: u64 = 64 << 20;

const DAMAGED: &str = "the file is damaged; restore it from a copy";
const OTHER_VERSION: &str = "another version of rftrace has written the file; use that version";

/// The part of a spool to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All of it: its recorder has ended.
    All,
    /// The part that its recorder has described: the recorder may be at work.
    Described,
    /// All data from another machine, maybe less than described. No file of this machine is about its process.
    Received,
}

/// The beginning of the file: its time, and the sizes of the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    magic: [u8; 8],
    #[serde(with = "fixint::le")]
    version: u64,
    /// The size in bytes of the described spool.
    #[serde(with = "fixint::le")]
    spool_bytes: u64,
    /// Calls and returns in them.
    #[serde(with = "fixint::le")]
    n_records: u64,
    #[serde(with = "fixint::le")]
    tsc: u64,
    #[serde(with = "fixint::le")]
    nanos: u64,
    /// The checksum of the facts.
    #[serde(with = "fixint::le")]
    facts: u64,
}

impl Head {
    fn encode(&self) -> io::Result<Vec<u8>> {
        let mut bytes = postcard::to_stdvec(self).map_err(io::Error::other)?;
        bytes.extend(sum_of(&bytes).to_le_bytes());
        Ok(bytes)
    }

    /// Reads the head of a whole file.
    fn decode(bytes: &[u8]) -> io::Result<Self> {
        let (head, facts) = bytes.split_at_checked(HEAD_BYTES).ok_or_else(|| bad(DAMAGED))?;
        let (words, sum) = head.split_at(HEAD_BYTES - size_of::<u64>());
        let this: Self = postcard::from_bytes(words).map_err(|_| bad(DAMAGED))?;
        if this.magic == MAGIC && this.version != VERSION {
            return Err(bad(OTHER_VERSION));
        }
        let is_right = this.magic == MAGIC && sum == sum_of(words).to_le_bytes() && this.facts == sum_of(facts);
        if is_right { Ok(this) } else { Err(bad(DAMAGED)) }
    }
}

/// The content of the file, with right checksums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    head: Head,
    bytes: Vec<u8>,
}

impl About {
    /// Reads the file beside a spool.
    ///
    /// # Errors
    ///
    /// The errors of the system; the file is damaged, or of another version.
    pub fn read(spool: &Path) -> io::Result<Self> {
        let file = about_file(spool);
        let look = || {
            let bytes = opener::read(&file, MOST_BYTES)?;
            Head::decode(&bytes).map(|head| Self { head, bytes })
        };
        // The recorder may write the head while it is read: the second look is at the new one.
        look().or_else(|_| look()).map_err(|error| with_name(spool, &error))
    }

    /// Returns the minimum size of the spool in bytes.
    #[must_use]
    pub fn spool_bytes(&self) -> u64 {
        self.head.spool_bytes
    }

    /// Returns the bytes of the file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns true if both have the same facts, of any moments.
    #[must_use]
    pub fn has_facts_of(&self, other: &Self) -> bool {
        self.bytes[HEAD_BYTES..] == other.bytes[HEAD_BYTES..]
    }

    /// Returns the facts, about as much of `spool` as `extent` says.
    ///
    /// # Errors
    ///
    /// The facts are impossible; the size of the spool is unknown.
    pub fn collected(&self, spool: &Path, extent: Extent) -> io::Result<Collected> {
        let damaged = || with_name(spool, &bad(DAMAGED));
        let mut collected: Collected = postcard::from_bytes(&self.bytes[HEAD_BYTES..]).map_err(|_| damaged())?;
        let Head { spool_bytes, n_records, tsc, nanos, .. } = self.head;
        collected.last = ClockPair { tsc, nanos };
        let is_received = extent == Extent::Received;
        if !collected.is_possible() || is_received && !collected.is_of_a_machine() {
            return Err(damaged());
        }
        collected.spool = spool.to_owned();
        collected.spool_bytes = match extent {
            Extent::All => fs::metadata(spool)?.len(),
            Extent::Described => spool_bytes,
            Extent::Received => fs::metadata(spool).map_or(0, |meta| meta.len()),
        };
        collected.n_records = n_records;
        if is_received {
            for text in [&mut collected.failed, &mut collected.problem].into_iter().flatten() {
                *text = one_line(text);
            }
            return Ok(collected);
        }
        collected.least_bytes = spool_bytes;
        // Otherwise the recorder's end is that of the recording, and the last calls are missing.
        collected.is_over |= extent == Extent::Described;
        // They are written last; names are those of files as they are now, where they are not whole.
        collected.facts = Some(facts_folder(spool)).filter(|facts| facts.is_dir());
        if collected.facts.take_if(|facts| !Facts::are_whole(facts)).is_some() {
            let lost = "the facts about the program at its end are damaged: names come from its present files";
            collected.problem.get_or_insert_with(|| lost.to_owned());
        }
        Ok(collected)
    }
}

impl Collected {
    /// Returns the recording in `spool` of a recorder that is at work or has ended early.
    ///
    /// # Errors
    ///
    /// The errors of [`About::read`] and [`About::collected`].
    pub fn read(spool: &Path, extent: Extent) -> io::Result<Self> {
        About::read(spool)?.collected(spool, extent)
    }

    /// Writes the file beside the spool. Only the head is written if the file has these facts already: those with the checksum `kept`.
    /// Returns the new checksum.
    pub(super) fn keep_beside(&self, kept: Option<u64>) -> io::Result<u64> {
        let facts = postcard::to_stdvec(self).map_err(io::Error::other)?;
        let ClockPair { tsc, nanos } = self.last;
        let &Self { spool_bytes, n_records, .. } = self;
        let sum = sum_of(&facts);
        let head = Head { magic: MAGIC, version: VERSION, spool_bytes, n_records, tsc, nanos, facts: sum }.encode()?;
        let file = about_file(&self.spool);
        if kept == Some(sum) && put_at_beginning(&file, &head).is_ok() {
            return Ok(sum);
        }
        if facts.len() as u64 > MOST_BYTES - HEAD_BYTES as u64 {
            return Err(bad("a process has too many threads, libraries and marks to describe"));
        }
        // At once: a recorder that is killed now leaves the file before.
        let new = file.with_extension("about-new");
        store::write(&new, [head, facts].concat())?;
        fs::rename(new, file).map(|()| sum)
    }

    /// Returns true if the machine is described too, for traces on another one.
    #[must_use]
    pub fn is_for_others(&self) -> bool {
        self.world.is_some()
    }

    /// True if a trace can be made with these facts, whoever wrote them.
    fn is_possible(&self) -> bool {
        let is_size = |bytes: usize| bytes.is_power_of_two() && (MIN_CHUNK_BYTES..=MAX_CHUNK_BYTES).contains(&bytes);
        is_size(self.chunk_bytes) && self.open.values().all(|words| words.len() <= RETURN_STACK_ENTRIES)
    }

    /// True if a machine may be like this, and run a process like this. A peer may say anything.
    fn is_of_a_machine(&self) -> bool {
        let Self { first, last, .. } = self;
        let mut tids = self.threads.values().map(|thread| thread.tid);
        // A clock goes on.
        first.tsc <= last.tsc
            && first.nanos <= last.nanos
            && [self.pid, self.own_pid].into_iter().chain(&mut tids).all(|tid| is_tid(tid.into()))
            && self.marks.iter().all(|mark| mark.text.len() <= told::MOST_BYTES)
            && self.world.as_ref().is_some_and(|world| world.is_possible())
    }
}

impl World {
    fn is_possible(&self) -> bool {
        let SystemInfo { cpu_description, memory, kernel, hostname, distribution, record_date, .. } = &self.system;
        let texts = [cpu_description, memory, kernel, hostname, distribution, record_date];
        let is_id = |id: &String| id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_module = |it: &Module| {
            let is_named = it.path.is_absolute() && it.path.file_name().is_some();
            it.start < it.end && is_named && it.build_id.as_ref().is_none_or(is_id)
        };
        // Modules that come and go may have one place, but none that of a module that is always there.
        let mut places: Vec<(u64, u64)> = self.modules.iter().map(|it| (it.start, it.end)).collect();
        places.sort_unstable();
        let is_alone = |it: &Module| {
            let next = places.partition_point(|&(_, end)| end <= it.start);
            places.get(next).is_none_or(|&(start, _)| it.end <= start)
        };
        self.all_modules().all(is_module)
            && places.windows(2).all(|pair| pair[0].1 <= pair[1].0)
            && self.opened.iter().all(|(it, _)| is_alone(it))
            && self.opened.is_sorted_by_key(|&(_, since)| since)
            && self.tsc_hz.is_none_or(|(hz, _)| hz > 0)
            && self.system.build_id.as_ref().is_none_or(is_id)
            && self.system.load_average.iter().all(|load| load.is_finite())
            && !texts.into_iter().any(|text| text.contains(char::is_control))
    }
}

impl Banks {
    /// Sets the root directory with the files of the processes' modules: that of a container.
    pub fn set_root(&mut self, root: PathBuf) {
        self.root = Some(root);
    }

    /// Returns that directory, if it was set.
    #[must_use]
    pub fn root(&self) -> Option<&Path> {
        self.root.as_deref()
    }

    /// Describes processes for traces on another machine, from now on.
    pub fn describe_for_others(&mut self) {
        self.is_for_others = true;
    }

    /// Writes the facts about a process beside its spool, for a trace of both after this recorder's end. After a failed
    /// write the trace is made at the end, as ever.
    pub(super) fn keep_about(&self, number: usize, watched: &mut Watched) {
        let collected = self.collected(number, watched, watched.spool.last_thread);
        self.keep_about_of(&mut Collected { is_over: false, ..collected }, watched);
    }

    /// The same for its collected data.
    pub(super) fn keep_about_of(&self, collected: &mut Collected, watched: &mut Watched) {
        if self.is_for_others {
            let Collected { maps, unloaded, .. } = &*collected;
            let before = watched.world.take().filter(|seen| (&seen.maps, &seen.unloaded) == (maps, unloaded));
            let seen = before.unwrap_or_else(|| Seen::of(maps, unloaded, &collected.exe_path(), collected.root()));
            collected.world = Some(seen.world.clone());
            watched.world = Some(seen);
        }
        watched.described = collected.keep_beside(watched.described).ok();
    }
}

fn bad(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

fn with_name(spool: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", about_file(spool).display()))
}

/// The checksum of bytes, filled up with zeros to whole words, and of their number.
fn sum_of(bytes: &[u8]) -> u64 {
    let mut sum = Checksum::default();
    sum.add(bytes.len() as u64);
    for word in bytes.chunks(size_of::<u64>()) {
        sum.add(word.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)));
    }
    sum.0
}

/// Overwrites the beginning of a file.
fn put_at_beginning(file: &Path, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).open(file)?.write_all_at(bytes, 0)
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::os::unix::ffi::OsStrExt;
    use std::path::PathBuf;

    use super::super::collected::Death;
    use super::super::told::Marked;
    use super::*;
    use crate::clock::tsc::TscSource;
    use crate::host::linux::modules::Unloaded;
    use crate::host::program::Identity;

    fn module(start: u64, path: &str) -> Module {
        let mut module = Module::of_image(path, start..start + 0x1000, Some("ab".to_owned()));
        module.is_main = start == 0x1000;
        module
    }

    fn world() -> World {
        let texts = ["processor", "memory", "kernel", "host", "distribution", "date"].map(str::to_owned);
        let [cpu_description, memory, kernel, hostname, distribution, record_date] = texts;
        let system = SystemInfo {
            build_id: Some("ab".to_owned()),
            cpus_online: 1,
            cpus_possible: 2,
            cpu_description,
            memory,
            kernel,
            hostname,
            distribution,
            load_average: [0.5, 1.0, 1.5],
            record_date,
            utc_offset: 1,
            ..SystemInfo::default()
        };
        World {
            modules: vec![module(0x1000, "/bin/a"), module(0x3000, "/lib/b")],
            opened: vec![(module(0x5000, "/lib/c"), 100), (module(0x5000, "/lib/d"), 150)],
            stack: Some((0x8000, 0x9000)),
            tsc_hz: Some((1_000_000_000, TscSource::Kernel)),
            invariant_tsc: true,
            system,
        }
    }

    /// Facts with something in each field.
    fn sample(spool: PathBuf) -> Collected {
        let path = Path::new(std::ffi::OsStr::from_bytes(b"/lib/\xff")).to_owned();
        Collected {
            pid: 7,
            own_pid: 1,
            program_nanos: 100,
            fork: Some((5, 90)),
            n_dropped: 3,
            has_many_threads: true,
            failed: Some("no space".to_owned()),
            is_too_large: true,
            dump: None,
            n_overwritten: 4,
            death: Some(Death::Signal(9)),
            status: Some(9),
            problem: None,
            n_records: 1000,
            spool,
            _folder: None,
            spool_bytes: 2000,
            least_bytes: 0,
            tail: None,
            is_cut: false,
            is_over: true,
            chunk_bytes: 1024,
            first: ClockPair { tsc: 100, nanos: 100 },
            last: ClockPair { tsc: 300, nanos: 200 },
            facts: None,
            utc_offset_nanos: -1,
            minima: vec![(100, 10)],
            end_tsc: 290,
            n_untraced_threads: 2,
            root: None,
            exe: b"/bin/a".to_vec(),
            command_line: b"a\0-x\0".to_vec(),
            maps: vec![b"1000-2000 r-xp 00000000 08:01 1 /bin/a".to_vec()],
            unloaded: vec![Unloaded { tsc: 150, start: 0x1000, end: 0x2000, path }],
            marks: vec![Marked { tsc: 160, thread: Some(2), text: "mark".to_owned() }],
            n_untold: 1,
            hooked: vec![1; 16],
            threads: [(2, Identity { tid: 8, name: "worker".to_owned() })].into(),
            open: [(1, vec![0x1000, 0x2000])].into(),
            world: Some(Box::new(world())),
        }
    }

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = env::temp_dir().join(format!("rftrace-about-{name}-{}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }

        fn spool(&self) -> PathBuf {
            self.0.join("spool-7-0-100")
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn what_is_kept_is_read() {
        let folder = Folder::new("read");
        let mut sample = sample(folder.spool());
        let kept = sample.keep_beside(None).unwrap();
        let read = || Collected::read(&folder.spool(), Extent::Described).unwrap();
        sample.least_bytes = 2000;
        assert_eq!(format!("{:?}", read()), format!("{sample:?}"));
        // A later moment is written in its place.
        let file =
            |name: &str| fs::metadata(folder.0.join(name)).map(|meta| std::os::unix::fs::MetadataExt::ino(&meta));
        let before = file("spool-7-0-100.about").unwrap();
        (sample.spool_bytes, sample.last.tsc) = (3000, 400);
        assert_eq!(sample.keep_beside(Some(kept)).unwrap(), kept);
        assert_eq!((read().least_bytes, read().last.tsc, read().n_records), (3000, 400, 1000));
        assert_eq!(file("spool-7-0-100.about").unwrap(), before);
        // Other facts are another file.
        sample.n_dropped += 1;
        assert_ne!(sample.keep_beside(Some(kept)).unwrap(), kept);
        assert!(read().n_dropped == 4 && file("spool-7-0-100.about-new").is_err());
    }

    #[test]
    fn damage_and_other_versions_are_named() {
        let folder = Folder::new("damage");
        sample(folder.spool()).keep_beside(None).unwrap();
        let file = about_file(&folder.spool());
        let whole = fs::read(&file).unwrap();
        let told = |bytes: &[u8]| {
            fs::write(&file, bytes).unwrap();
            let error = Collected::read(&folder.spool(), Extent::Described).unwrap_err();
            assert!(error.to_string().starts_with(file.to_str().unwrap()), "{error}");
            error.to_string()
        };
        for place in 0..whole.len() {
            assert!(told(&whole[..place]).ends_with(DAMAGED), "{place}");
            let mut changed = whole.clone();
            changed[place] ^= 0x41;
            let expected = if (8..16).contains(&place) { OTHER_VERSION } else { DAMAGED };
            assert!(told(&changed).ends_with(expected), "{place}");
        }
        assert!(told(&[&whole[..], b"x"].concat()).ends_with(DAMAGED));
    }

    #[test]
    fn facts_of_no_machine_are_refused() {
        let folder = Folder::new("received");
        let told = |change: &dyn Fn(&mut Collected)| {
            let mut sample = sample(folder.spool());
            change(&mut sample);
            sample.keep_beside(None).unwrap();
            Collected::read(&folder.spool(), Extent::Received).map_err(|error| error.to_string())
        };
        let received = told(&|it| it.failed = Some("a\x1bb\n".to_owned())).unwrap();
        assert_eq!((received.failed.as_deref(), received.spool_bytes, received.least_bytes), (Some("a b "), 0, 0));
        fn of_world(change: impl Fn(&mut World)) -> impl Fn(&mut Collected) {
            move |it| change(it.world.as_mut().unwrap())
        }
        type Change = Box<dyn Fn(&mut Collected)>;
        let changes: [Change; 18] = [
            Box::new(|it| it.world = None),
            Box::new(|it| it.chunk_bytes = 1000),
            Box::new(|it| it.chunk_bytes = 1 << 40),
            Box::new(|it| it.pid = 0),
            Box::new(|it| it.own_pid = 1 << 31),
            Box::new(|it| it.threads.get_mut(&2).unwrap().tid = 0),
            Box::new(|it| it.first.tsc = 301),
            Box::new(|it| it.first.nanos = 201),
            Box::new(|it| it.open.get_mut(&1).unwrap().resize(RETURN_STACK_ENTRIES + 1, 0)),
            Box::new(|it| it.marks[0].text = "x".repeat(told::MOST_BYTES + 1)),
            Box::new(of_world(|it| it.modules[0].path = "a".into())),
            Box::new(of_world(|it| it.modules[0].end = 0x1000)),
            Box::new(of_world(|it| it.modules[0].end = 0x3001)),
            Box::new(of_world(|it| it.modules[0].build_id = Some("../x".to_owned()))),
            Box::new(of_world(|it| it.opened[0].0.start = 0x3fff)),
            Box::new(of_world(|it| it.opened[0].1 = 151)),
            Box::new(of_world(|it| it.system.hostname = "a\nb".to_owned())),
            Box::new(of_world(|it| it.system.load_average[1] = f64::NAN)),
        ];
        for (number, change) in changes.iter().enumerate() {
            assert!(told(change).is_err_and(|error| error.ends_with(DAMAGED)), "{number}");
        }
    }

    /// The test fails after a change of fields: then [`VERSION`] rises, and the number here is the new one.
    #[test]
    fn the_version_follows_the_fields() {
        let facts = postcard::to_stdvec(&sample(PathBuf::new())).unwrap();
        assert_eq!((VERSION, sum_of(&facts)), (1, 17_774_613_256_952_021_057));
    }
}
