//! The text of `info`: sections, as the mask announces them, and the keys of their lines.

use alloc::borrow::{Cow, ToOwned};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::Malformed;

/// Bytes before the text.
pub(crate) const HEADER_BYTES: usize = 40;
/// The maximum number of lines of text; uftrace writes about thirty.
pub(super) const MAX_FIELDS: usize = 10_000;

/// The keys of text lines, for [`Info::get`](super::Info::get).
pub mod key {
    /// The program's path.
    pub const EXE_NAME: &str = "exename";
    /// The program's build-id.
    pub const BUILD_ID: &str = "build_id";
    /// The status of the program's end, as `wait` returns it.
    pub const EXIT_STATUS: &str = "exit_status";
    /// The arguments, as the inside of a JSON string; see [`Info::command_line`](super::super::Info::command_line).
    pub const COMMAND_LINE: &str = "cmdline";
    /// The numbers of processors.
    pub const PROCESSORS: &str = "cpuinfo:nr_cpus";
    /// The model of the processors.
    pub const PROCESSOR: &str = "cpuinfo:desc";
    /// The free and total memory.
    pub const MEMORY: &str = "meminfo";
    /// The kernel's name and release.
    pub const KERNEL: &str = "osinfo:kernel";
    /// The machine's network name.
    pub const HOSTNAME: &str = "osinfo:hostname";
    /// The distribution.
    pub const DISTRIBUTION: &str = "osinfo:distro";
    /// Processor time in the kernel, in seconds.
    pub const SYSTEM_TIME: &str = "usageinfo:systime";
    /// Processor time in the program, in seconds.
    pub const USER_TIME: &str = "usageinfo:usrtime";
    /// The numbers of context switches.
    pub const SWITCHES: &str = "usageinfo:ctxsw";
    /// The maximum resident size in KiB.
    pub const MAX_RESIDENT: &str = "usageinfo:maxrss";
    /// The numbers of page faults.
    pub const PAGE_FAULTS: &str = "usageinfo:pagefault";
    /// The numbers of blocks read and written.
    pub const BLOCKS: &str = "usageinfo:iops";
    /// The machine's load.
    pub const LOAD: &str = "loadinfo";
    /// The date of the trace.
    pub const DATE: &str = "record_date";
    /// The duration of the recording.
    pub const ELAPSED_TIME: &str = "elapsed_time";
    /// The program that wrote the trace.
    pub const TRACER: &str = "uftrace_version";
    /// Unix time minus the trace's clock, in seconds.
    pub const UTC_OFFSET: &str = "utc_offset";
}

/// The section that each bit of the mask announces, in file order.
pub(super) const SECTIONS: [Section; 16] = [
    Section::lines(&[key::EXE_NAME]),
    Section::lines(&[key::BUILD_ID]),
    Section::lines(&[key::EXIT_STATUS]),
    Section::lines(&[key::COMMAND_LINE]),
    Section::block("cpuinfo"),
    Section::lines(&[key::MEMORY]),
    Section::block("osinfo"),
    Section::block("taskinfo"),
    Section::block("usageinfo"),
    Section::lines(&[key::LOAD]),
    Section::block("argspec"),
    Section::lines(&[key::DATE, key::ELAPSED_TIME]),
    Section::lines(&["pattern_type"]),
    Section::lines(&[key::TRACER]),
    Section::lines(&[key::UTC_OFFSET]),
    Section::lines(&["sysctl"]),
];

/// The form of a section's text.
pub(super) struct Section {
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

    /// The key of its first line.
    pub(super) fn first_key(&self) -> &'static str {
        self.block.or(self.keys.first().copied()).unwrap_or_default()
    }
}

/// Takes the sections one after the other.
pub(super) struct Parser<L> {
    /// With the offset of each.
    pub(super) lines: L,
    /// Bytes of the file.
    pub(super) end: u64,
    /// Fields found.
    pub(super) fields: Vec<(String, String)>,
}

impl<'a, L: Iterator<Item = (u64, Cow<'a, str>)>> Parser<L> {
    /// The lines of the sections in a mask, by their keys.
    pub(super) fn run(mut self, mask: u64) -> Result<Vec<(String, String)>, Malformed> {
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
    fn block(&mut self, key: &str) -> Result<(), Malformed> {
        let first = self.line(key)?;
        // Old versions of uftrace wrote one line without a count.
        let Some(count) = first.strip_prefix("lines=") else {
            self.fields.push((key.to_owned(), first));
            return Ok(());
        };
        let count: u32 =
            count.trim().parse().map_err(|_| expected(self.end, &format!("a count after `{key}:lines=`")))?;
        for _ in 0..count {
            let (offset, line) = self.next(key)?;
            let (name, value) = match line.split_once(':') {
                Some((name, rest)) if name == key => match rest.split_once('=') {
                    Some((part, value)) if key != "argspec" => (format!("{name}:{part}"), value),
                    _ => (name.to_owned(), rest),
                },
                Some((name, rest)) => (name.to_owned(), rest),
                None => return Err(expected(offset, &format!("a line of the section `{key}`"))),
            };
            self.fields.push((name, value.to_owned()));
        }
        Ok(())
    }

    fn line(&mut self, key: &str) -> Result<String, Malformed> {
        let (offset, line) = self.next(key)?;
        match line.strip_prefix(key).and_then(|rest| rest.strip_prefix(':')) {
            Some(value) => Ok(value.to_owned()),
            None => Err(expected(offset, &format!("a line `{key}:…`"))),
        }
    }

    fn next(&mut self, key: &str) -> Result<(u64, Cow<'a, str>), Malformed> {
        match self.lines.next() {
            Some((offset, _)) if self.fields.len() >= MAX_FIELDS => {
                let reason = format!("the file has more than {MAX_FIELDS} lines; record the trace again");
                Err(Malformed::new(offset + HEADER_BYTES as u64, reason))
            }
            Some((offset, line)) => Ok((offset + HEADER_BYTES as u64, line)),
            None => Err(expected(self.end, &format!("a line `{key}:…`"))),
        }
    }
}

fn expected(offset: u64, what: &str) -> Malformed {
    Malformed::new(offset, format!("the info mask in the header announces {what} here"))
}
