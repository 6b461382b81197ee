//! Stateless encoders for the files of [`format`](super::format). None of them opens a file.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Duration;

use super::format::{
    BUILD_ID_DIGITS, CLASS_64, HEADER_BYTES, LITTLE_ENDIAN, MAGIC, MAX_DEPTH, RECORD_BYTES, VERSION, info_bit, perf,
    record,
};

/// What the machine and the program were, for `info`. All texts are single lines.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SystemInfo {
    /// Path of the program, spelled as in the map.
    pub(crate) exe_name: String,
    /// Build-id of the program in hexadecimal, of any length.
    pub(crate) build_id: Option<String>,
    /// Exit status. A process that writes its own trace has none yet: 0.
    pub(crate) exit_status: i32,
    /// Command line, arguments separated by spaces, not escaped.
    pub(crate) command_line: String,
    /// Number of CPUs in use.
    pub(crate) cpus_online: u64,
    /// Number of CPUs that there could be.
    pub(crate) cpus_possible: u64,
    /// Model of the CPU. uftrace takes the architecture from how it starts: `ARM64`, `RISCV64`, or anything else for x86.
    pub(crate) cpu_description: String,
    /// Free and total memory, such as `22.9 / 23.5 GB`.
    pub(crate) memory: String,
    /// Kernel name and release.
    pub(crate) kernel: String,
    /// Network name of the machine.
    pub(crate) hostname: String,
    /// Name of the distribution in double quotes.
    pub(crate) distribution: String,
    /// Resources that this process has used.
    pub(crate) usage: Usage,
    /// Load of the machine over 1, 5 and 15 minutes.
    pub(crate) load_average: [f64; 3],
    /// Local time as `ctime` writes it, without the newline.
    pub(crate) record_date: String,
    /// Unix time minus `CLOCK_MONOTONIC`, in seconds.
    pub(crate) utc_offset: i64,
}

/// Resources that a process has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// CPU time in the kernel.
    pub(crate) system_time: Duration,
    /// CPU time in the program.
    pub(crate) user_time: Duration,
    /// Context switches because the process waited.
    pub(crate) voluntary_switches: u64,
    /// Context switches because the scheduler took the CPU.
    pub(crate) involuntary_switches: u64,
    /// Largest resident size in KiB.
    pub(crate) max_resident_kib: u64,
    /// Page faults that read from a disk.
    pub(crate) major_faults: u64,
    /// Page faults that did not.
    pub(crate) minor_faults: u64,
    /// Blocks read.
    pub(crate) blocks_read: u64,
    /// Blocks written.
    pub(crate) blocks_written: u64,
}

/// A character of a path as it may stand in a trace directory, where white space and quotes end a path: these and control
/// characters become `_`.
pub(crate) fn spelled(c: char) -> char {
    if c.is_whitespace() || c.is_control() || c == '"' { '_' } else { c }
}

/// One record of a `.dat` file. `kind` is one of the types in [`record`]; a `depth` beyond the format's range is cut.
pub(crate) fn record(nanos: u64, kind: u64, depth: usize, address: u64) -> [u8; RECORD_BYTES] {
    let depth = u64::from(MAX_DEPTH).min(depth as u64);
    let word = address << record::ADDRESS_SHIFT | depth << record::DEPTH_SHIFT | record::MAGIC | kind;
    let mut bytes = [0; RECORD_BYTES];
    bytes[..8].copy_from_slice(&nanos.to_le_bytes());
    bytes[8..].copy_from_slice(&word.to_le_bytes());
    bytes
}

/// The `info` file.
pub(crate) fn info(
    out: &mut impl Write,
    features: u64,
    system: &SystemInfo,
    tids: &[u32],
    elapsed: Duration,
) -> io::Result<()> {
    let mut sections = Sections::default();
    sections.add(info_bit::EXE_NAME, format_args!("exename:{}", system.exe_name));
    // A shorter or longer id is fatal to the reader.
    let build_id = system.build_id.as_deref().unwrap_or_default();
    let digits = build_id.get(..BUILD_ID_DIGITS).unwrap_or(build_id);
    if !digits.is_empty() {
        sections.add(info_bit::BUILD_ID, format_args!("build_id:{digits:0<BUILD_ID_DIGITS$}"));
    }
    sections.add(info_bit::EXIT_STATUS, format_args!("exit_status:{}", system.exit_status));
    sections.add(info_bit::CMDLINE, format_args!("cmdline:{}", escape_json(&system.command_line)));
    let (online, possible) = (system.cpus_online, system.cpus_possible);
    sections.add(
        info_bit::CPUINFO,
        format_args!(
            "cpuinfo:lines=2\ncpuinfo:nr_cpus={online} / {possible} (online/possible)\ncpuinfo:desc={}",
            system.cpu_description
        ),
    );
    sections.add(info_bit::MEMINFO, format_args!("meminfo:{} (free / total)", system.memory));
    sections.add(
        info_bit::OSINFO,
        format_args!(
            "osinfo:lines=3\nosinfo:kernel={}\nosinfo:hostname={}\nosinfo:distro={}",
            system.kernel, system.hostname, system.distribution
        ),
    );
    let list = tids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    sections.add(
        info_bit::TASKINFO,
        format_args!("taskinfo:lines=2\ntaskinfo:nr_tid={}\ntaskinfo:tids={list}", tids.len()),
    );
    let usage = &system.usage;
    let time = |time: Duration| format!("{}.{:06}", time.as_secs(), time.subsec_micros());
    sections.add(
        info_bit::USAGEINFO,
        format_args!(
            "usageinfo:lines=6\n\
             usageinfo:systime={}\n\
             usageinfo:usrtime={}\n\
             usageinfo:ctxsw={} / {} (voluntary / involuntary)\n\
             usageinfo:maxrss={}\n\
             usageinfo:pagefault={} / {} (major / minor)\n\
             usageinfo:iops={} / {} (read / write)",
            time(usage.system_time),
            time(usage.user_time),
            usage.voluntary_switches,
            usage.involuntary_switches,
            usage.max_resident_kib,
            usage.major_faults,
            usage.minor_faults,
            usage.blocks_read,
            usage.blocks_written,
        ),
    );
    let [one, five, fifteen] = system.load_average;
    sections.add(info_bit::LOADINFO, format_args!("loadinfo:{one:.2} / {five:.2} / {fifteen:.2}"));
    let seconds = elapsed.as_secs_f64();
    sections
        .add(info_bit::RECORD_DATE, format_args!("record_date:{}\nelapsed_time:{seconds:.9} sec", system.record_date));
    sections.add(info_bit::PATTERN_TYPE, format_args!("pattern_type:regex"));
    let version = env!("CARGO_PKG_VERSION");
    sections.add(info_bit::VERSION, format_args!("uftrace_version:rftrace {version}"));
    sections.add(info_bit::UTC_OFFSET, format_args!("utc_offset:{}", system.utc_offset));

    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.extend(MAGIC);
    header.extend(VERSION.to_le_bytes());
    header.extend((HEADER_BYTES as u16).to_le_bytes());
    header.extend([LITTLE_ENDIAN, CLASS_64]);
    header.extend(features.to_le_bytes());
    header.extend(sections.mask.to_le_bytes());
    header.extend((MAX_DEPTH + 1).to_le_bytes());
    header.resize(HEADER_BYTES, 0);
    out.write_all(&header)?;
    out.write_all(sections.text.as_bytes())
}

/// Text sections and the mask that says which are there.
#[derive(Default)]
struct Sections {
    mask: u64,
    text: String,
}

impl Sections {
    /// Adds a section; they must come in the order of their bits.
    fn add(&mut self, bit: u64, text: std::fmt::Arguments<'_>) {
        debug_assert!(bit > self.mask, "sections are in the order of their bits");
        self.mask |= bit;
        // Writing to a String does not fail.
        let _ = writeln!(self.text, "{text}");
    }
}

/// The inside of a JSON string, for `uftrace dump --chrome`, which copies it.
fn escape_json(text: &str) -> String {
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

/// The `SESS` line of `task.txt`.
pub(crate) fn session(out: &mut impl Write, nanos: u64, pid: u32, sid: &str, exe_name: &str) -> io::Result<()> {
    let (seconds, fraction) = timestamp(nanos);
    writeln!(out, "SESS timestamp={seconds}.{fraction:09} pid={pid} sid={sid} exename=\"{exe_name}\"")
}

/// A `TASK` line of `task.txt`. uftrace reads it up to the pid; `name`, if it is known, is for others.
pub(crate) fn task(out: &mut impl Write, nanos: u64, tid: u32, pid: u32, name: &str) -> io::Result<()> {
    let (seconds, fraction) = timestamp(nanos);
    write!(out, "TASK timestamp={seconds}.{fraction:09} tid={tid} pid={pid}")?;
    if name.is_empty() {
        return writeln!(out);
    }
    let name: String = name.chars().map(|c| if c == '"' || c.is_control() { ' ' } else { c }).collect();
    writeln!(out, " comm=\"{name}\"")
}

/// A record of `perf` that names a thread.
pub(crate) fn thread_name(nanos: u64, tid: u32, pid: u32, name: &str) -> [u8; perf::COMM_BYTES] {
    let mut text = [0; perf::NAME_BYTES];
    let bytes = name.as_bytes();
    let length = bytes.len().min(perf::NAME_BYTES - 1);
    text[..length].copy_from_slice(&bytes[..length]);
    let mut record = [0; perf::COMM_BYTES];
    let fields: [&[u8]; 9] = [
        &perf::COMM.to_le_bytes(),
        &0u16.to_le_bytes(),
        &(perf::COMM_BYTES as u16).to_le_bytes(),
        &pid.to_le_bytes(),
        &tid.to_le_bytes(),
        &text,
        &pid.to_le_bytes(),
        &tid.to_le_bytes(),
        &nanos.to_le_bytes(),
    ];
    let mut rest = &mut record[..];
    for field in fields {
        // The sizes add up to that of the record.
        let _ = rest.write_all(field);
    }
    record
}

fn timestamp(nanos: u64) -> (u64, u64) {
    (nanos / 1_000_000_000, nanos % 1_000_000_000)
}

/// A module's line of the map. `permissions` is as in `/proc/<pid>/maps`.
pub(crate) fn map_line(
    out: &mut impl Write,
    (start, end): (u64, u64),
    permissions: &str,
    path: &str,
    build_id: Option<&str>,
) -> io::Result<()> {
    let space = " ".repeat(26);
    write!(out, "{start:012x}-{end:012x} {permissions} 00000000 00:00 0{space}{path}")?;
    match build_id {
        Some(id) => writeln!(out, " build-id:{id}"),
        None => writeln!(out),
    }
}

/// A line of `events.txt`.
pub(crate) fn event_name(out: &mut impl Write, id: u64, name: &str) -> io::Result<()> {
    writeln!(out, "EVENT: {id} {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_time_then_packed_word() {
        let bytes = record(0x0102_0304_0506_0708, record::EXIT, 2, 0x5555_1234_5678);
        assert_eq!(bytes, [8, 7, 6, 5, 4, 3, 2, 1, 0xa9, 0, 0x78, 0x56, 0x34, 0x12, 0x55, 0x55]);
    }

    #[test]
    fn depth_and_address_are_cut_to_their_bits() {
        let bytes = record(0, record::ENTRY, 5000, 0xffff_8000_0000_1234);
        assert_eq!(bytes[8..], [0xe8, 0xff, 0x34, 0x12, 0, 0, 0, 0x80]);
    }

    #[test]
    fn info_has_the_header_and_the_sections_in_order() {
        let system = SystemInfo { command_line: "a \"b\"\n".to_owned(), ..SystemInfo::default() };
        let mut out = Vec::new();
        info(&mut out, 0x62, &system, &[1, 3], Duration::from_millis(1500)).unwrap();
        assert_eq!(&out[..16], b"Ftrace!\0\x04\0\0\0\x28\0\x01\x02");
        assert_eq!(out[16..24], 0x62u64.to_le_bytes());
        let text = std::str::from_utf8(&out[HEADER_BYTES..]).unwrap();
        let mask = u64::from_le_bytes(out[24..32].try_into().unwrap());
        assert_eq!(mask & info_bit::BUILD_ID, 0, "no build-id, no section");
        assert!(text.contains("cmdline:a \\\"b\\\"\\u000a\n"), "{text}");
        assert!(text.contains("taskinfo:nr_tid=2\ntaskinfo:tids=1,3\n"), "{text}");
        assert!(text.contains("elapsed_time:1.500000000 sec\n"), "{text}");
        assert!(!text.contains("\n\n"), "{text}");
    }

    #[test]
    fn a_build_id_has_40_digits() {
        for id in ["abcd".to_owned(), "0123456789".repeat(5)] {
            let system = SystemInfo { build_id: Some(id), ..SystemInfo::default() };
            let mut out = Vec::new();
            info(&mut out, 0, &system, &[1], Duration::ZERO).unwrap();
            let text = String::from_utf8_lossy(&out);
            let line = text.lines().find_map(|line| line.strip_prefix("build_id:")).unwrap();
            assert_eq!(line.len(), 40);
        }
    }

    #[test]
    fn a_name_is_a_record_of_perf() {
        let bytes = thread_name(0x0102, 7, 5, "a name of many letters");
        let text = b"a name of many \0";
        let expected: [&[u8]; 4] = [
            &[3, 0, 0, 0, 0, 0, 48, 0, 5, 0, 0, 0, 7, 0, 0, 0],
            text,
            &[5, 0, 0, 0, 7, 0, 0, 0],
            &[2, 1, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(bytes[..], expected.concat());
    }

    #[test]
    fn lines_of_task_and_map() {
        let mut out = Vec::new();
        session(&mut out, 1_000_000_002, 42, "0123456789abcdef", "/bin/x").unwrap();
        task(&mut out, 5, 1, 42, "").unwrap();
        task(&mut out, 5, 2, 42, "a \"b\"").unwrap();
        map_line(&mut out, (0x1000, 0x2000), "r-xp", "/bin/x", Some("ab")).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "SESS timestamp=1.000000002 pid=42 sid=0123456789abcdef exename=\"/bin/x\"");
        assert_eq!(lines[1], "TASK timestamp=0.000000005 tid=1 pid=42");
        assert_eq!(lines[2], "TASK timestamp=0.000000005 tid=2 pid=42 comm=\"a  b \"");
        assert!(lines[3].starts_with("000000001000-000000002000 r-xp 00000000 00:00 0 "));
        assert!(lines[3].ends_with(" /bin/x build-id:ab"));
    }
}
