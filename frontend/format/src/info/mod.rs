//! `info`: a header of 40 bytes and sections of text, which a mask in the header announces.
//!
//! | bytes | header |
//! |---|---|
//! | 0..8 | `Ftrace!\0` |
//! | 8..12 | version 4 |
//! | 12..14 | size of the header |
//! | 14, 15 | 1 for little-endian, 2 for 64 bits |
//! | 16..24 | [`feature`]s |
//! | 24..32 | mask of the sections that follow, in the order of its bits |
//! | 32..34 | the deepest call stack that the tracer records |

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::{self, Write as _};
use core::mem;
use core::time::Duration;

use crate::Malformed;
use crate::files::MAGIC;
use crate::record::MAX_DEPTH;
use crate::symbols::BUILD_ID_DIGITS;
use crate::tasks::MAX_TASKS;
use crate::text;

mod sections;

pub(crate) use sections::HEADER_BYTES;
pub use sections::key;
use sections::{Parser, SECTIONS, Section};

const VERSION: u32 = 4;
const LITTLE_ENDIAN: u8 = 1;
const CLASS_64: u8 = 2;

/// The bits of the feature mask: the kinds of data in a trace.
pub mod feature {
    /// `task.txt` lists sessions and tasks.
    pub const TASK_SESSION: u64 = 1 << 1;
    /// Records of the kernel are in files of their own.
    pub const KERNEL: u64 = 1 << 2;
    /// Arguments follow records of entries.
    pub const ARGUMENT: u64 = 1 << 3;
    /// Return values follow records of exits.
    pub const RETURN_VALUE: u64 = 1 << 4;
    /// Addresses in `.sym` files are relative to the start of the module's map line.
    pub const SYM_REL_ADDR: u64 = 1 << 5;
    /// The maximum stack depth in the header is valid.
    pub const MAX_STACK: u64 = 1 << 6;
    /// The records contain events, which `events.txt` names.
    pub const EVENT: u64 = 1 << 7;
    /// The trace has files of perf.
    pub const PERF_EVENT: u64 = 1 << 8;
    /// The `.dbg` files define the recorded values.
    pub const AUTO_ARGS: u64 = 1 << 9;
    /// The trace has `.dbg` files.
    pub const DEBUG_INFO: u64 = 1 << 10;
    /// The features of a trace with values: they make uftrace look for specs by the functions' addresses.
    pub const VALUES: u64 = ARGUMENT | RETURN_VALUE | AUTO_ARGS | DEBUG_INFO;
}

/// The section for specs in `.dbg` files, and its bit of the mask.
const VALUES_TEXT: &str = "argspec:lines=4\nargauto:\nretauto:\nenumauto:\nauto-args:1\n";
const STATUS_BYTE: usize = 24;
const STATUS_BIT: u8 = 1 << 2;
const VALUES_BYTE: usize = 24 + 1;
const VALUES_BIT: u8 = 1 << (10 - 8);

/// The resource usage of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The processor time in the kernel.
    pub system_time: Duration,
    /// The processor time in the program.
    pub user_time: Duration,
    /// The number of context switches because the program waited.
    pub voluntary_switches: u64,
    /// The number of context switches because the scheduler took the processor.
    pub involuntary_switches: u64,
    /// The maximum resident size in KiB.
    pub max_resident_kib: u64,
    /// The number of page faults that read from a disk.
    pub major_faults: u64,
    /// The number of page faults that read nothing.
    pub minor_faults: u64,
    /// The number of blocks read.
    pub blocks_read: u64,
    /// The number of blocks written.
    pub blocks_written: u64,
}

#[cfg(all(feature = "libc", target_os = "linux"))]
impl From<libc::rusage> for Usage {
    fn from(usage: libc::rusage) -> Self {
        let count = |count: libc::c_long| u64::try_from(count).unwrap_or(0);
        let time =
            |time: libc::timeval| Duration::from_secs(count(time.tv_sec)) + Duration::from_micros(count(time.tv_usec));
        Self {
            system_time: time(usage.ru_stime),
            user_time: time(usage.ru_utime),
            voluntary_switches: count(usage.ru_nvcsw),
            involuntary_switches: count(usage.ru_nivcsw),
            max_resident_kib: count(usage.ru_maxrss),
            major_faults: count(usage.ru_majflt),
            minor_faults: count(usage.ru_minflt),
            blocks_read: count(usage.ru_inblock),
            blocks_written: count(usage.ru_oublock),
        }
    }
}

impl Usage {
    /// The lines of its section, without the first one.
    fn lines(&self) -> [String; 6] {
        let time = |time: Duration| format!("{}.{:06}", time.as_secs(), time.subsec_micros());
        [
            format!("usageinfo:systime={}", time(self.system_time)),
            format!("usageinfo:usrtime={}", time(self.user_time)),
            format!(
                "usageinfo:ctxsw={} / {} (voluntary / involuntary)",
                self.voluntary_switches, self.involuntary_switches
            ),
            format!("usageinfo:maxrss={}", self.max_resident_kib),
            format!("usageinfo:pagefault={} / {} (major / minor)", self.major_faults, self.minor_faults),
            format!("usageinfo:iops={} / {} (read / write)", self.blocks_read, self.blocks_written),
        ]
    }
}

/// A writer of `info` files. Its functions add sections in their order here; each section is optional. All texts are
/// single lines.
#[derive(Clone, Debug, Default)]
pub struct InfoWriter {
    mask: u64,
    text: String,
}

impl InfoWriter {
    /// Creates a file without sections.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the program's path, spelled as in the map.
    #[must_use]
    pub fn exe_name(self, path: &str) -> Self {
        self.section(0, format_args!("{path}"))
    }

    /// Adds the program's build-id in hexadecimal, of any length. An empty one adds nothing.
    #[must_use]
    pub fn build_id(self, id: &str) -> Self {
        // A shorter or longer one is fatal to uftrace.
        let digits = id.get(..BUILD_ID_DIGITS).unwrap_or(id);
        if digits.is_empty() { self } else { self.section(1, format_args!("{digits:0<BUILD_ID_DIGITS$}")) }
    }

    /// Adds the status of the program's end as `wait` returns it; 0 for a program that has not ended.
    #[must_use]
    pub fn exit_status(self, status: i32) -> Self {
        self.section(2, format_args!("{status}"))
    }

    /// Adds the arguments, separated by blanks.
    #[must_use]
    pub fn command_line(self, line: &str) -> Self {
        self.section(3, format_args!("{}", escape_json(line)))
    }

    /// Adds the numbers of online and possible processors, and their model. uftrace derives the architecture from the
    /// beginning of the model: `ARM64`, `RISCV64`, or anything else for x86.
    #[must_use]
    pub fn processors(self, online: u64, possible: u64, model: &str) -> Self {
        self.section(
            4,
            format_args!("lines=2\ncpuinfo:nr_cpus={online} / {possible} (online/possible)\ncpuinfo:desc={model}"),
        )
    }

    /// Adds the free and total memory, such as `22.9 / 23.5 GB`.
    #[must_use]
    pub fn memory(self, memory: &str) -> Self {
        self.section(5, format_args!("{memory} (free / total)"))
    }

    /// Adds the kernel's name and release, the machine's network name, and the distribution's name in double quotes.
    #[must_use]
    pub fn system(self, kernel: &str, hostname: &str, distribution: &str) -> Self {
        self.section(
            6,
            format_args!("lines=3\nosinfo:kernel={kernel}\nosinfo:hostname={hostname}\nosinfo:distro={distribution}"),
        )
    }

    /// Adds the tasks that have records.
    #[must_use]
    pub fn tasks(self, tids: &[u32]) -> Self {
        self.section(7, format_args!("lines=2\ntaskinfo:nr_tid={}\ntaskinfo:tids={}", tids.len(), TaskList(tids)))
    }

    /// Adds the resource usage of the program.
    #[must_use]
    pub fn usage(self, usage: &Usage) -> Self {
        self.section(8, format_args!("lines=6\n{}", usage.lines().join("\n")))
    }

    /// Adds the machine's load over 1, 5 and 15 minutes.
    #[must_use]
    pub fn load(self, [one, five, fifteen]: [f64; 3]) -> Self {
        self.section(9, format_args!("{one:.2} / {five:.2} / {fifteen:.2}"))
    }

    /// Adds the statement that only the `.dbg` files define values.
    #[must_use]
    pub fn values(self) -> Self {
        self.section(10, format_args!("{}", VALUES_TEXT.trim_start_matches("argspec:").trim_end()))
    }

    /// Adds the date of the trace in the form of `ctime`, and the duration of the recording.
    #[must_use]
    pub fn date(self, date: &str, elapsed: Duration) -> Self {
        self.section(11, format_args!("{date}\nelapsed_time:{}", elapsed_time(elapsed)))
    }

    /// Adds the syntax of name patterns, such as `regex`.
    #[must_use]
    pub fn pattern_type(self, kind: &str) -> Self {
        self.section(12, format_args!("{kind}"))
    }

    /// Adds the name and version of the program that wrote the trace.
    #[must_use]
    pub fn tracer(self, version: &str) -> Self {
        self.section(13, format_args!("{version}"))
    }

    /// Adds Unix time minus the trace's clock, in seconds.
    #[must_use]
    pub fn utc_offset(self, seconds: i64) -> Self {
        self.section(14, format_args!("{seconds}"))
    }

    /// Returns the bytes of the file, with these [`feature`]s.
    #[must_use]
    pub fn finish(self, features: u64) -> Vec<u8> {
        let mut file = Vec::with_capacity(HEADER_BYTES + self.text.len());
        file.extend(MAGIC);
        file.extend(VERSION.to_le_bytes());
        file.extend((HEADER_BYTES as u16).to_le_bytes());
        file.extend([LITTLE_ENDIAN, CLASS_64]);
        file.extend(features.to_le_bytes());
        file.extend(self.mask.to_le_bytes());
        file.extend((MAX_DEPTH + 1).to_le_bytes());
        file.resize(HEADER_BYTES, 0);
        file.extend(self.text.bytes());
        file
    }

    fn section(mut self, bit: u32, text: fmt::Arguments<'_>) -> Self {
        debug_assert!(1 << bit > self.mask, "sections are in the order of their bits");
        self.mask |= 1 << bit;
        let key = SECTIONS.get(bit as usize).map_or("", Section::first_key);
        // Writing to a String does not fail.
        let _ = writeln!(self.text, "{key}:{text}");
        self
    }
}

struct TaskList<'a>(&'a [u32]);

impl fmt::Display for TaskList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().enumerate().try_for_each(|(idx, tid)| {
            let separator = if idx == 0 { "" } else { "," };
            write!(f, "{separator}{tid}")
        })
    }
}

fn elapsed_time(elapsed: Duration) -> String {
    format!("{:.9} sec", elapsed.as_secs_f64())
}

/// Returns the inside of a JSON string, for `uftrace dump --chrome`.
pub(crate) fn escape_json(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\\' => escaped.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(escaped, "\\u{:04x}", u32::from(c));
            }
            c => escaped.push(c),
        }
    }
    escaped
}

/// The content of an `info` file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    features: u64,
    mask: u64,
    max_stack: u16,
    fields: Vec<(String, String)>,
    tids: Vec<u32>,
}

impl Info {
    /// Parses the bytes of the file.
    ///
    /// # Errors
    ///
    /// The file is not of a 64-bit little-endian trace of version 4, or its sections do not match its mask.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let malformed = |offset: usize, reason: String| Malformed::new(offset as u64, reason);
        let Some((header, text)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            let reason = format!("the file ends within the header of {HEADER_BYTES} bytes; record the trace again");
            return Err(malformed(bytes.len(), reason));
        };
        if header[..8] != MAGIC[..] {
            return Err(malformed(0, "the file is no uftrace `info` file: it does not start with `Ftrace!`".into()));
        }
        let version = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
        if header[14] != LITTLE_ENDIAN || header[15] != CLASS_64 {
            let reason = "only traces of little-endian 64-bit machines are supported; use uftrace for this one";
            return Err(malformed(14, reason.into()));
        }
        if version != VERSION {
            let reason = format!("the format version is {version}, but this rftrace reads only version {VERSION}");
            return Err(malformed(8, reason));
        }
        let header_bytes = u16::from_le_bytes([header[12], header[13]]);
        if usize::from(header_bytes) != HEADER_BYTES {
            return Err(malformed(
                12,
                format!("the header size is {header_bytes}, but version {VERSION} has {HEADER_BYTES}"),
            ));
        }
        let (words, _) = header[16..32].as_chunks::<8>();
        let [features, mask] = [words[0], words[1]].map(u64::from_le_bytes);
        let max_stack = u16::from_le_bytes([header[32], header[33]]);

        let fields = Parser { lines: text::lines(text), end: bytes.len() as u64, fields: Vec::new() }.run(mask)?;
        let mut info = Self { features, mask, max_stack, fields, tids: Vec::new() };
        info.tids = info.parse_tids().map_err(|reason| malformed(HEADER_BYTES, reason))?;
        Ok(info)
    }

    /// Returns the [`feature`]s: the kinds of data in the trace.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Returns the mask of the file's sections.
    pub fn mask(&self) -> u64 {
        self.mask
    }

    /// Returns the maximum depth of a call stack that the tracer records.
    pub fn max_stack(&self) -> u16 {
        self.max_stack
    }

    /// Returns the value of a line of text, by its [`key`].
    ///
    /// A line of a section with several lines needs both names, as in `osinfo:kernel`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.fields.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// Returns the arguments, separated by blanks. Control characters stay escaped.
    pub fn command_line(&self) -> Option<String> {
        let mut escaped = self.get(key::COMMAND_LINE)?.chars().peekable();
        let next = || {
            let c = escaped.next()?;
            Some(if c == '\\' { escaped.next_if(|&next| next == '"' || next == '\\').unwrap_or(c) } else { c })
        };
        Some(core::iter::from_fn(next).collect())
    }

    /// Returns Unix time minus the trace's clock, in seconds.
    pub fn utc_offset(&self) -> Option<i64> {
        self.get(key::UTC_OFFSET)?.trim().parse().ok()
    }

    /// Returns the ids of the recorded tasks, in the file's order.
    pub fn tids(&self) -> &[u32] {
        &self.tids
    }

    fn parse_tids(&self) -> Result<Vec<u32>, String> {
        let Some(list) = self.get("taskinfo:tids") else { return Ok(Vec::new()) };
        let tids: Vec<u32> = list
            .split(',')
            .filter(|tid| !tid.is_empty())
            .take(MAX_TASKS)
            .map(|tid| tid.trim().parse().map_err(|_| format!("taskinfo: `{tid}` is not a task id")))
            .collect::<Result<_, _>>()?;
        let announced = self.get("taskinfo:nr_tid").and_then(|count| count.trim().parse().ok());
        if announced != Some(tids.len()) {
            return Err(format!("taskinfo: `nr_tid` must be the number of `tids`, {}", tids.len()));
        }
        Ok(tids)
    }
}

/// Changes to an `info` file. All other bytes stay the same.
#[derive(Clone, Copy, Debug, Default)]
pub struct Changes<'a> {
    /// The new [`feature`]s.
    pub features: Option<u64>,
    /// The new tasks.
    pub tids: Option<&'a [u32]>,
    /// The new status, see [`InfoWriter::exit_status`].
    pub exit_status: Option<i32>,
    /// The new duration of the recording.
    pub elapsed: Option<Duration>,
    /// The new resource usage.
    pub usage: Option<&'a Usage>,
}

impl Changes<'_> {
    /// Returns the changed file. It adds no missing lines, with two exceptions: the exit status, before the command
    /// line, and the line of [`InfoWriter::values`] if the trace has values now.
    pub fn apply(&self, info: &[u8]) -> Vec<u8> {
        let mut file = info.to_vec();
        let text = file.split_off(HEADER_BYTES.min(file.len()));
        if let (Some(features), Some(mask)) = (self.features, file.get_mut(16..24)) {
            mask.copy_from_slice(&features.to_le_bytes());
        }
        let mut values = "";
        if self.features.is_some_and(|features| features & feature::VALUES == feature::VALUES)
            && let Some(mask) = file.get_mut(VALUES_BYTE)
            && *mask & VALUES_BIT == 0
        {
            *mask |= VALUES_BIT;
            values = VALUES_TEXT;
        }
        let mut status = String::new();
        if let Some(exit_status) = self.exit_status
            && let Some(mask) = file.get_mut(STATUS_BYTE)
            && *mask & STATUS_BIT == 0
            && text.split(|&byte| byte == b'\n').any(|line| line.starts_with(b"cmdline:"))
        {
            *mask |= STATUS_BIT;
            status = format!("exit_status:{exit_status}\n");
        }
        let usage = self.usage.map(Usage::lines).unwrap_or_default();
        for line in text.split_inclusive(|&byte| byte == b'\n') {
            // The section after it.
            if line.starts_with(b"record_date:") {
                file.extend(mem::take(&mut values).bytes());
            } else if line.starts_with(b"cmdline:") {
                file.extend(mem::take(&mut status).bytes());
            }
            let changed = self.line(&String::from_utf8_lossy(line), &usage);
            match changed {
                Some(changed) => file.extend(changed.bytes().chain(*b"\n")),
                None => file.extend(line),
            }
        }
        file
    }

    fn line(&self, line: &str, usage: &[String; 6]) -> Option<String> {
        let (key, value) = line.split_once(':')?;
        match (key, value.split_once('=').map_or("", |(part, _)| part)) {
            ("exit_status", _) => self.exit_status.map(|status| format!("{key}:{status}")),
            ("elapsed_time", _) => self.elapsed.map(|elapsed| format!("{key}:{}", elapsed_time(elapsed))),
            ("taskinfo", "nr_tid") => self.tids.map(|tids| format!("{key}:nr_tid={}", tids.len())),
            ("taskinfo", "tids") => self.tids.map(|tids| format!("{key}:tids={}", TaskList(tids))),
            ("usageinfo", part) if !part.is_empty() => {
                let is_same =
                    |new: &&String| new.split_once('=').is_some_and(|(name, _)| name == format!("{key}:{part}"));
                usage.iter().find(is_same).map(ToString::to_string)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::sections::MAX_FIELDS;
    use super::*;

    fn file(mask: u64, text: &str) -> Vec<u8> {
        let mut bytes = b"Ftrace!\0\x04\0\0\0\x28\0\x01\x02\x62\0\0\0\0\0\0\0".to_vec();
        bytes.extend(mask.to_le_bytes());
        bytes.extend(b"\0\x04\0\0\0\0\0\0");
        bytes.extend(text.as_bytes());
        bytes
    }

    #[test]
    fn a_file_byte_by_byte() {
        let written = InfoWriter::new().exe_name("/bin/true").command_line("a \"b\"\n").tasks(&[7, 9]).finish(0x62);
        let text = "exename:/bin/true\ncmdline:a \\\"b\\\"\\u000a\n\
                    taskinfo:lines=2\ntaskinfo:nr_tid=2\ntaskinfo:tids=7,9\n";
        assert_eq!(written, file(1 | 1 << 3 | 1 << 7, text));
    }

    #[test]
    fn all_sections_are_read_again() {
        let usage = Usage { system_time: Duration::from_micros(1_000_002), minor_faults: 5, ..Usage::default() };
        let bytes = InfoWriter::new()
            .exe_name("/bin/x")
            .build_id("abcd")
            .exit_status(3)
            .command_line("x \"y\\")
            .processors(2, 4, "AMD")
            .memory("1.0 / 2.0 GB")
            .system("Linux 6", "host", "\"Debian\"")
            .tasks(&[1])
            .usage(&usage)
            .load([0.5, 1.25, 0.0])
            .date("Sat Nov 21 03:38:20 2026", Duration::from_millis(1500))
            .pattern_type("regex")
            .tracer("rftrace 1")
            .utc_offset(-5)
            .finish(feature::EVENT);
        let info = Info::parse(&bytes).unwrap();
        assert_eq!((info.features(), info.mask(), info.max_stack(), info.tids()), (0x80, 0x7bff, 1024, &[1][..]));
        for (key, value) in [
            ("exename", "/bin/x"),
            ("build_id", "abcd000000000000000000000000000000000000"),
            ("exit_status", "3"),
            ("cmdline", "x \\\"y\\\\"),
            ("cpuinfo:nr_cpus", "2 / 4 (online/possible)"),
            ("cpuinfo:desc", "AMD"),
            ("meminfo", "1.0 / 2.0 GB (free / total)"),
            ("osinfo:distro", "\"Debian\""),
            ("usageinfo:systime", "1.000002"),
            ("usageinfo:pagefault", "0 / 5 (major / minor)"),
            ("loadinfo", "0.50 / 1.25 / 0.00"),
            ("record_date", "Sat Nov 21 03:38:20 2026"),
            ("elapsed_time", "1.500000000 sec"),
            ("pattern_type", "regex"),
            ("uftrace_version", "rftrace 1"),
            ("utc_offset", "-5"),
        ] {
            assert_eq!(info.get(key), Some(value), "{key}");
        }
        assert_eq!((info.command_line().as_deref(), info.utc_offset()), (Some("x \"y\\"), Some(-5)));
        let old = Info::parse(&file(1 << 3, "cmdline:a \\u000a \\\n")).unwrap();
        assert_eq!(old.command_line().as_deref(), Some("a \\u000a \\"));
    }

    #[test]
    fn a_build_id_has_40_digits_or_none() {
        let id =
            |id: &str| Info::parse(&InfoWriter::new().build_id(id).finish(0)).unwrap().get("build_id").map(str::len);
        assert_eq!((id("abcd"), id(&"0123456789".repeat(5)), id("")), (Some(40), Some(40), None));
    }

    #[test]
    fn changes_leave_the_rest() {
        let usage = Usage { max_resident_kib: 9, ..Usage::default() };
        let before = InfoWriter::new().exe_name("a").exit_status(0).tasks(&[1, 2]).usage(&Usage::default());
        let before = before.date("then", Duration::ZERO).tracer("t").finish(2);
        assert_eq!(Changes::default().apply(&before), before);
        let changes = Changes {
            features: Some(0x102),
            tids: Some(&[7]),
            exit_status: Some(256),
            elapsed: Some(Duration::from_secs(2)),
            usage: Some(&usage),
        };
        let after = InfoWriter::new().exe_name("a").exit_status(256).tasks(&[7]).usage(&usage);
        let after = after.date("then", Duration::from_secs(2)).tracer("t").finish(0x102);
        assert_eq!(changes.apply(&before), after);
        assert_eq!(changes.apply(b"Ftrace!"), b"Ftrace!");
        let ended = Changes { exit_status: Some(9), ..Changes::default() };
        let named = InfoWriter::new().exe_name("a").command_line("a b");
        let unknown = InfoWriter::new().exe_name("a").command_line("a b").finish(0);
        assert_eq!(ended.apply(&unknown), InfoWriter::new().exe_name("a").exit_status(9).command_line("a b").finish(0));
        assert_eq!(Changes::default().apply(&unknown), named.finish(0));
    }

    #[test]
    fn header_and_sections() {
        let text = "exename:/bin/true\ntaskinfo:lines=2\ntaskinfo:nr_tid=2\ntaskinfo:tids=7,9\n\
                    argspec:lines=2\nargspec:f@arg1\nauto-args:1\nutc_offset:5\n";
        let info = Info::parse(&file(1 | 1 << 7 | 1 << 10 | 1 << 14, text)).unwrap();
        assert_eq!((info.features(), info.mask(), info.max_stack()), (0x62, 0x4481, 1024));
        assert_eq!(info.get("exename"), Some("/bin/true"));
        assert_eq!(info.get("argspec"), Some("f@arg1"));
        assert_eq!(info.get("auto-args"), Some("1"));
        assert_eq!(info.get("utc_offset"), Some("5"));
        assert_eq!(info.get("cmdline"), None);
        assert_eq!(info.tids(), [7, 9]);
    }

    #[test]
    fn unknown_sections_are_ignored() {
        assert!(Info::parse(&file(1 << 40, "whatever\n")).is_ok());
    }

    #[test]
    fn lines_without_end() {
        let text = format!("argspec:lines=4000000000\n{}", "a:b\n".repeat(MAX_FIELDS + 1));
        let error = Info::parse(&file(1 << 10, &text)).unwrap_err().to_string();
        assert!(error.contains("more than 10000 lines"), "{error}");
    }

    #[test]
    fn errors_say_where() {
        let message = |bytes: &[u8]| Info::parse(bytes).unwrap_err().to_string();
        assert!(message(b"Ftrace!").starts_with("byte 7: the file ends within the header of 40 bytes"));
        assert!(message(&[0; 40]).starts_with("byte 0: the file is no uftrace"));
        assert!(message(&file(1 | 2, "exename:a\nfoo:1\n")).starts_with("byte 50: the info mask"));
        assert!(message(&file(1 | 2, "exename:a\n")).starts_with("byte 50: the info mask"));
        assert!(message(&file(1 << 7, "taskinfo:lines=2\ntaskinfo:nr_tid=3\ntaskinfo:tids=1\n")).contains("nr_tid"));

        let mut big_endian = file(0, "");
        big_endian[14] = 2;
        assert!(message(&big_endian).starts_with("byte 14: only traces of little-endian"));
        let mut future = file(0, "");
        future[8] = 5;
        assert!(message(&future).starts_with("byte 8: the format version is 5"));
    }
}
