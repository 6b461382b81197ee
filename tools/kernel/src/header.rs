//! `kernel_header`: the formats of the records in `kernel-cpu<N>.dat`, in uftrace's form.
//!
//! The file has lines `KEY: value`, and files of tracefs: a line `TRACEFS: name: bytes` followed by that many bytes.

use std::collections::HashMap;
use std::fmt;

use crate::format::{Field, Format};
use crate::page::Layout;

/// The maximum size of the file in bytes.
pub const MAX_BYTES: u64 = 4 << 20;
/// uftrace has a buffer of 4096 bytes for each file of tracefs.
const MAX_FILE_BYTES: usize = 4000;
/// The most formats.
const MAX_FORMATS: usize = 4096;

/// The files of tracefs, below `events`.
const PAGE: &str = "events/header_page";
const ENTRY: &str = "events/ftrace/funcgraph_entry/format";
const EXIT: &str = "events/ftrace/funcgraph_exit/format";
const FUNCTION: &str = "events/ftrace/function/format";
const SYSCALL_ENTER: &str = "events/raw_syscalls/sys_enter/format";
const SYSCALL_EXIT: &str = "events/raw_syscalls/sys_exit/format";

/// The numbers that the kernel has given to entries and exits of functions ever since.
pub(crate) const ENTRY_ID: u16 = 11;
pub(crate) const EXIT_ID: u16 = 10;

/// The meaning of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A function was entered.
    Entry {
        /// The address of the function.
        func: u64,
    },
    /// A function ended.
    Exit {
        /// The address of the function.
        func: u64,
    },
    /// A function was entered; the kernel does not record its end.
    Function {
        /// An address in the function.
        ip: u64,
        /// An address in the caller.
        caller_ip: u64,
    },
    /// A system call began.
    Syscall {
        /// The number of the system call.
        number: u64,
    },
    /// A system call ended.
    SyscallEnd {
        /// The number of the system call.
        number: u64,
    },
    /// Another event.
    Event,
}

/// A decoded record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// The number of the event.
    pub id: u16,
    /// The thread, by the kernel's number.
    pub tid: u32,
    /// The meaning.
    pub what: What,
}

/// How to read what an event says.
#[derive(Debug, Clone, Copy)]
enum Reading {
    Entry(Field),
    Exit(Field),
    Function(Field, Field),
    Syscall(Field),
    SyscallEnd(Field),
    Event,
}

/// The formats of pages and events.
#[derive(Debug, Clone)]
pub struct Header {
    page_text: String,
    layout: Layout,
    /// Names, texts and formats.
    files: Vec<(String, String, Format)>,
    readings: HashMap<u16, Reading>,
    id: Field,
    tid: Field,
}

impl Header {
    /// Creates a header from the layout of pages, the text `events/header_page`, and the formats of events, each with
    /// its name, such as `sched/sched_switch`. `None` if pages or events have an unknown form.
    pub fn new<'a>(page: &str, formats: impl IntoIterator<Item = (&'a str, String)>) -> Option<Self> {
        let file = |(name, text): (&str, String)| (format!("events/{name}/format"), text);
        Self::of_files(page.to_owned(), formats.into_iter().map(file))
    }

    /// That of converted records: entries and exits in a form of their own, and the events of `self` as they are.
    pub(crate) fn converted(&self) -> Option<Self> {
        let is_event = |(name, ..): &&(String, String, Format)| {
            ![ENTRY, EXIT, FUNCTION, SYSCALL_ENTER, SYSCALL_EXIT].contains(&name.as_str())
        };
        let events = self.files.iter().filter(is_event).map(|(name, text, _)| (name.clone(), text.clone()));
        let call = |name: &str, title: &str, id: u16| (name.to_owned(), call_format(title, id));
        let calls = [call(ENTRY, "funcgraph_entry", ENTRY_ID), call(EXIT, "funcgraph_exit", EXIT_ID)];
        Self::of_files(PAGE_TEXT.to_owned(), calls.into_iter().chain(events))
    }

    /// Parses the file; `None` if it has an unknown form.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (mut page, mut files) = (None, Vec::new());
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
            let line = str::from_utf8(&rest[..end]).ok()?;
            rest = &rest[end + 1..];
            let Some((name, n_bytes)) = line.strip_prefix("TRACEFS: ").and_then(|line| line.rsplit_once(": ")) else {
                continue;
            };
            let (text, behind) = rest.split_at_checked(n_bytes.trim().parse().ok()?)?;
            rest = behind;
            let text = String::from_utf8_lossy(text).into_owned();
            if name == PAGE { page = Some(text) } else { files.push((name.to_owned(), text)) }
        }
        Self::of_files(page?, files)
    }

    fn of_files(page_text: String, texts: impl IntoIterator<Item = (String, String)>) -> Option<Self> {
        let layout = Layout::parse(&page_text)?;
        let with_format = |(name, text): (String, String)| {
            let format = Format::parse(&text)?;
            Some((name, text, format))
        };
        let files: Vec<_> = texts.into_iter().filter_map(with_format).take(MAX_FORMATS).collect();
        let common = &files.first()?.2;
        let (id, tid) = (common.field("common_type")?, common.field("common_pid")?);
        let reading = |(name, _, format): &(String, String, Format)| {
            let field = |name| format.field(name);
            let reading = match name.as_str() {
                ENTRY => field("func").map(Reading::Entry),
                EXIT => field("func").map(Reading::Exit),
                FUNCTION => field("ip").zip(field("parent_ip")).map(|(ip, caller)| Reading::Function(ip, caller)),
                SYSCALL_ENTER => field("id").map(Reading::Syscall),
                SYSCALL_EXIT => field("id").map(Reading::SyscallEnd),
                _ => Some(Reading::Event),
            };
            Some((format.id, reading?))
        };
        let readings = files.iter().filter_map(reading).collect();
        Some(Self { page_text, layout, files, readings, id, tid })
    }

    /// Returns the layout of a page.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the numbers and names of the events.
    pub fn events(&self) -> impl Iterator<Item = (u16, &str)> {
        self.files.iter().map(|(_, _, format)| (format.id, format.name.as_str()))
    }

    /// Decodes a record; `None` if it is too short, or its event has no format.
    pub fn read(&self, record: &[u8]) -> Option<Told> {
        let id = self.id.value(record)? as u16;
        let tid = self.tid.value(record)? as u32;
        let value = |field: Field| field.value(record);
        let what = match *self.readings.get(&id)? {
            Reading::Entry(func) => What::Entry { func: value(func)? },
            Reading::Exit(func) => What::Exit { func: value(func)? },
            Reading::Function(ip, caller) => What::Function { ip: value(ip)?, caller_ip: value(caller)? },
            Reading::Syscall(number) => What::Syscall { number: value(number)? },
            Reading::SyscallEnd(number) => What::SyscallEnd { number: value(number)? },
            Reading::Event => What::Event,
        };
        Some(Told { id, tid, what })
    }
}

/// The file.
impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PAGE_SIZE: {}\nLONG_SIZE: 8\nENDIAN: LE\n", self.layout.page_bytes)?;
        let page = (PAGE, &self.page_text);
        let files = self.files.iter().map(|(name, text, _)| (name.as_str(), text));
        for (name, text) in [page].into_iter().chain(files) {
            let shorter = without_flags(text);
            let text = if text.len() > MAX_FILE_BYTES { &shorter } else { text };
            write!(f, "TRACEFS: {name}: {}\n{text}", text.len())?;
        }
        Ok(())
    }
}

/// A format that says nothing of how its fields are shown, in place of one that uftrace has no room for.
fn without_flags(text: &str) -> String {
    let fields = text.split("print fmt:").next().unwrap_or_default();
    format!("{fields}print fmt: \"pid=%d\", REC->common_pid\n")
}

/// The page of converted records.
const PAGE_TEXT: &str = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
    \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
    \tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
    \tfield: char data;\toffset:16;\tsize:4080;\tsigned:0;\n";

fn call_format(name: &str, id: u16) -> String {
    let fields = [
        ("unsigned short common_type", 0, 2, 0),
        ("unsigned char common_flags", 2, 1, 0),
        ("unsigned char common_preempt_count", 3, 1, 0),
        ("int common_pid", 4, 4, 1),
        ("unsigned long func", 8, 8, 0),
        ("int depth", 16, 4, 1),
    ];
    let mut text = format!("name: {name}\nID: {id}\nformat:\n");
    for (place, (declaration, offset, size, signed)) in fields.into_iter().enumerate() {
        // uftrace wants the fields that all events have apart.
        text += if place == 4 { "\n" } else { "" };
        text += &format!("\tfield:{declaration};\toffset:{offset};\tsize:{size};\tsigned:{signed};\n");
    }
    text + "\nprint fmt: \"%lx (%d)\", REC->func, REC->depth\n"
}

/// A record of [`call_format`].
pub(crate) fn call_record(is_entry: bool, tid: u32, addr: u64, depth: usize) -> [u8; 20] {
    let mut record = [0; 20];
    record[..2].copy_from_slice(&(if is_entry { ENTRY_ID } else { EXIT_ID }).to_le_bytes());
    record[4..8].copy_from_slice(&tid.to_le_bytes());
    record[8..16].copy_from_slice(&addr.to_le_bytes());
    record[16..].copy_from_slice(&(depth as u32).to_le_bytes());
    record
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_file_both_ways() {
        let switch = "name: sched_switch\nID: 372\nformat:\n\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
                      \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\nprint fmt: \"x\"\n";
        let long = format!("{}{}", switch.replace("372", "373"), " ".repeat(5000));
        let formats = [("sched/sched_switch", switch.to_owned()), ("sched/long", long)];
        let header = Header::new(PAGE_TEXT, formats).expect("a header").converted().expect("one of its own");
        let text = header.to_string();
        assert!(text.starts_with("PAGE_SIZE: 4096\nLONG_SIZE: 8\nENDIAN: LE\nTRACEFS: events/header_page: "));
        let read = Header::parse(text.as_bytes()).expect("what was written");
        assert_eq!(read.to_string(), text);
        let events: Vec<_> = read.events().collect();
        assert_eq!(
            events,
            [(11, "funcgraph_entry"), (10, "funcgraph_exit"), (372, "sched_switch"), (373, "sched_switch")]
        );
        let told = |what| Told { id: 11, tid: 7, what };
        assert_eq!(read.read(&call_record(true, 7, 99, 1)), Some(told(What::Entry { func: 99 })));
        assert_eq!(read.read(&[0x74, 1, 0, 0, 9, 0, 0, 0]), Some(Told { id: 372, tid: 9, what: What::Event }));
        for short in [&[0x74, 1, 0, 0, 9][..], &[11, 0, 0, 0, 9, 0, 0, 0], &[12, 0, 0, 0, 9, 0, 0, 0]] {
            assert_eq!(read.read(short), None);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_not(text in "(TRACEFS: events/[a-z_/]{0,20}: [0-9]{0,20}\n|\tfield:int [a-z]{1,9};\toffset:[0-9]{0,20};\tsize:[0-9]{0,3};\n){0,9}") {
            let _ = Header::parse(text.as_bytes());
        }
    }
}
