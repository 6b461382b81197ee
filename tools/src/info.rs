//! The `info` file: a 40-byte header and sections of text.

use std::io;
use std::path::Path;

use crate::error::{Error, Result};
use crate::text;

const HEADER_SIZE: usize = 40;
const MAGIC: &[u8; 8] = b"Ftrace!\0";
const VERSION: u32 = 4;
const LITTLE_ENDIAN: u8 = 1;
const CLASS_64_BIT: u8 = 2;

/// The feature bit for records of the kernel, in files of their own.
pub(crate) const KERNEL: u64 = 1 << 2;
/// The feature bit for events among the records.
pub(crate) const EVENT: u64 = 1 << 7;
/// The feature bit for events of `perf`, in files of their own.
pub(crate) const PERF_EVENT: u64 = 1 << 8;

/// The section that each bit of the info mask announces, in file order.
const SECTIONS: [Section; 16] = [
    Section::lines(&["exename"]),
    Section::lines(&["build_id"]),
    Section::lines(&["exit_status"]),
    Section::lines(&["cmdline"]),
    Section::block("cpuinfo"),
    Section::lines(&["meminfo"]),
    Section::block("osinfo"),
    Section::block("taskinfo"),
    Section::block("usageinfo"),
    Section::lines(&["loadinfo"]),
    Section::block("argspec"),
    Section::lines(&["record_date", "elapsed_time"]),
    Section::lines(&["pattern_type"]),
    Section::lines(&["uftrace_version"]),
    Section::lines(&["utc_offset"]),
    Section::lines(&["sysctl"]),
];

/// What a section's text looks like.
struct Section {
    /// The keys of its lines, in order.
    keys: &'static [&'static str],
    /// The key of a section that states how many lines follow its first one.
    block: Option<&'static str>,
}

impl Section {
    const fn lines(keys: &'static [&'static str]) -> Self {
        Self { keys, block: None }
    }

    const fn block(key: &'static str) -> Self {
        Self { keys: &[], block: Some(key) }
    }
}

/// What the `info` file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    features: u64,
    mask: u64,
    max_stack: u16,
    fields: Vec<(String, String)>,
    tids: Vec<u32>,
}

impl Info {
    /// Reads an `info` file.
    ///
    /// # Errors
    ///
    /// The file is missing, is not a 64-bit little-endian trace of version 4, or its sections are not those that its
    /// mask announces, in their order.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Error::NotATrace { path: path.to_owned() },
            _ => Error::Io { path: path.to_owned(), source },
        })?;
        Self::parse(path, &bytes)
    }

    /// The feature mask: which kinds of data the trace holds.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// The info mask: which sections the file has.
    pub fn mask(&self) -> u64 {
        self.mask
    }

    /// The deepest call stack that the tracer records.
    pub fn max_stack(&self) -> u16 {
        self.max_stack
    }

    /// The value of a line of text, by its key: `exename`, `cmdline`, `record_date`, `uftrace_version`, …
    ///
    /// A line of a section with several is found by both names, as in `osinfo:kernel`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.fields.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// The tasks that were recorded, in the file's order.
    pub fn tids(&self) -> &[u32] {
        &self.tids
    }

    fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let malformed = |offset: usize, reason: String| Error::malformed(path, offset as u64, reason);
        let Some((header, text)) = bytes.split_first_chunk::<HEADER_SIZE>() else {
            let reason = format!("the header has {HEADER_SIZE} bytes, this file ends before; record the trace again");
            return Err(malformed(bytes.len(), reason));
        };
        if header[..8] != MAGIC[..] {
            return Err(malformed(0, "not a uftrace `info` file: it must start with `Ftrace!`".into()));
        }
        let version = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
        if header[14] != LITTLE_ENDIAN || header[15] != CLASS_64_BIT {
            let reason = "only traces of little-endian 64-bit machines are supported; use uftrace for this one";
            return Err(malformed(14, reason.into()));
        }
        if version != VERSION {
            let reason = format!("format version {version}, but only version {VERSION} is known");
            return Err(malformed(8, reason));
        }
        let header_size = u16::from_le_bytes([header[12], header[13]]);
        if usize::from(header_size) != HEADER_SIZE {
            return Err(malformed(12, format!("header size {header_size}, but version {VERSION} has {HEADER_SIZE}")));
        }
        let (words, _) = header[16..32].as_chunks::<8>();
        let [features, mask] = [words[0], words[1]].map(u64::from_le_bytes);
        let max_stack = u16::from_le_bytes([header[32], header[33]]);

        let fields =
            Parser { path, lines: text::lines(text), end: bytes.len() as u64, fields: Vec::new() }.run(mask)?;
        let mut info = Self { features, mask, max_stack, fields, tids: Vec::new() };
        info.tids = info.parse_tids().map_err(|reason| malformed(HEADER_SIZE, reason))?;
        Ok(info)
    }

    fn parse_tids(&self) -> std::result::Result<Vec<u32>, String> {
        let Some(list) = self.get("taskinfo:tids") else { return Ok(Vec::new()) };
        let tids: Vec<u32> = list
            .split(',')
            .filter(|tid| !tid.is_empty())
            .map(|tid| tid.trim().parse().map_err(|_| format!("taskinfo: `{tid}` is not a task id")))
            .collect::<std::result::Result<_, _>>()?;
        let announced = self.get("taskinfo:nr_tid").and_then(|count| count.trim().parse().ok());
        if announced != Some(tids.len()) {
            return Err(format!("taskinfo: `nr_tid` must be the number of `tids`, {}", tids.len()));
        }
        Ok(tids)
    }
}

/// The same `info` file for only these tasks, and with other features.
pub(crate) fn rewrite(info: &[u8], tids: &[u32], features: u64) -> Vec<u8> {
    let mut header = info.to_vec();
    let text = header.split_off(HEADER_SIZE.min(header.len()));
    if let Some(mask) = header.get_mut(16..24) {
        mask.copy_from_slice(&features.to_le_bytes());
    }
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        if line.starts_with(b"taskinfo:nr_tid=") {
            header.extend(format!("taskinfo:nr_tid={}\n", tids.len()).bytes());
        } else if line.starts_with(b"taskinfo:tids=") {
            let tids: Vec<_> = tids.iter().map(u32::to_string).collect();
            header.extend(format!("taskinfo:tids={}\n", tids.join(",")).bytes());
        } else {
            header.extend(line);
        }
    }
    header
}

/// Takes the sections one after the other.
struct Parser<'a, L> {
    path: &'a Path,
    lines: L,
    end: u64,
    fields: Vec<(String, String)>,
}

impl<'a, L: Iterator<Item = (u64, std::borrow::Cow<'a, str>)>> Parser<'_, L> {
    fn run(mut self, mask: u64) -> Result<Vec<(String, String)>> {
        for (bit, section) in SECTIONS.iter().enumerate() {
            if mask & (1 << bit) == 0 {
                continue;
            }
            for key in section.keys {
                let value = self.line(key)?;
                self.fields.push(((*key).to_owned(), value));
            }
            if let Some(key) = section.block {
                self.block(key)?;
            }
        }
        Ok(self.fields)
    }

    /// A section of the form `key:lines=N` and N lines of `key:name=value`, or of other keys for `argspec`.
    fn block(&mut self, key: &str) -> Result<()> {
        let first = self.line(key)?;
        // Old versions of uftrace wrote one line without a count.
        let Some(count) = first.strip_prefix("lines=") else {
            self.fields.push((key.to_owned(), first));
            return Ok(());
        };
        let count: u32 =
            count.trim().parse().map_err(|_| self.error(self.end, &format!("a count after `{key}:lines=`")))?;
        for _ in 0..count {
            let (offset, line) = self.next(key)?;
            let (name, value) = match line.split_once(':') {
                Some((name, rest)) if name == key => match rest.split_once('=') {
                    Some((part, value)) if key != "argspec" => (format!("{name}:{part}"), value),
                    _ => (name.to_owned(), rest),
                },
                Some((name, rest)) => (name.to_owned(), rest),
                None => return Err(self.error(offset, &format!("a line of the section `{key}`"))),
            };
            self.fields.push((name, value.to_owned()));
        }
        Ok(())
    }

    fn line(&mut self, key: &str) -> Result<String> {
        let (offset, line) = self.next(key)?;
        match line.strip_prefix(key).and_then(|rest| rest.strip_prefix(':')) {
            Some(value) => Ok(value.to_owned()),
            None => Err(self.error(offset, &format!("a line `{key}:…`"))),
        }
    }

    fn next(&mut self, key: &str) -> Result<(u64, std::borrow::Cow<'a, str>)> {
        match self.lines.next() {
            Some((offset, line)) => Ok((offset + HEADER_SIZE as u64, line)),
            None => Err(self.error(self.end, &format!("a line `{key}:…`"))),
        }
    }

    fn error(&self, offset: u64, expected: &str) -> Error {
        Error::malformed(self.path, offset, format!("the info mask in the header announces {expected} here"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(mask: u64, text: &str) -> Vec<u8> {
        let mut bytes = b"Ftrace!\0\x04\0\0\0\x28\0\x01\x02\x62\0\0\0\0\0\0\0".to_vec();
        bytes.extend(mask.to_le_bytes());
        bytes.extend(b"\0\x04\0\0\0\0\0\0");
        bytes.extend(text.as_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<Info> {
        Info::parse(Path::new("info"), bytes)
    }

    #[test]
    fn header_and_sections() {
        let text = "exename:/bin/true\ntaskinfo:lines=2\ntaskinfo:nr_tid=2\ntaskinfo:tids=7,9\n\
                    argspec:lines=2\nargspec:f@arg1\nauto-args:1\nutc_offset:5\n";
        let info = parse(&file(1 | 1 << 7 | 1 << 10 | 1 << 14, text)).unwrap();
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
        assert!(parse(&file(1 << 40, "whatever\n")).is_ok());
    }

    #[test]
    fn errors_say_where() {
        let message = |bytes: &[u8]| parse(bytes).unwrap_err().to_string();
        assert!(message(b"Ftrace!").starts_with("info: byte 7: the header has 40 bytes"));
        assert!(message(&[0; 40]).starts_with("info: byte 0: not a uftrace"));
        assert!(message(&file(1 | 2, "exename:a\nfoo:1\n")).starts_with("info: byte 50: the info mask"));
        assert!(message(&file(1 | 2, "exename:a\n")).starts_with("info: byte 50: the info mask"));
        assert!(message(&file(1 << 7, "taskinfo:lines=2\ntaskinfo:nr_tid=3\ntaskinfo:tids=1\n")).contains("nr_tid"));

        let mut big_endian = file(0, "");
        big_endian[14] = 2;
        assert!(message(&big_endian).starts_with("info: byte 14: only traces of little-endian"));
        let mut future = file(0, "");
        future[8] = 5;
        assert!(message(&future).starts_with("info: byte 8: format version 5"));
    }
}
