//! The files of a trace without personal facts: command line, host, folders, texts of values and marks.
//!
//! Not here: the files of a trace, and their writer (`rftrace_export::anonymous`).

use alloc::borrow::{Cow, ToOwned};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::events::EventLine;
use crate::info::{escape_json, key};
use crate::map::MapLine;
use crate::symbols::{SourcePart, with_path};
use crate::tasks::TaskLine;
use crate::text::{self, base_name};

/// The name of each host.
pub const HOST: &str = "anonymous";
/// The name of each mark.
const MARK: &str = "mark:anonymous";
/// The beginning of the names of marks.
const MARKS: &str = "mark:";

/// Paths without folders. Different files of one trace have different ones: symbols belong to a path.
#[derive(Debug, Default)]
pub struct Anonymous {
    /// By the paths of the trace.
    paths: BTreeMap<String, String>,
    taken: BTreeSet<String>,
    /// The name of the file in `info`.
    program: String,
}

impl Anonymous {
    /// `/app` for `/home/user/app`, and `/2/app` for the next file with this name.
    pub fn path(&mut self, path: &str) -> String {
        if let Some(known) = self.paths.get(path) {
            return known.clone();
        }
        let name = base_name(path);
        let numbered = (2..).map(|number: u64| format!("/{number}/{name}"));
        let free = core::iter::once(format!("/{name}")).chain(numbered).find(|path| !self.taken.contains(path));
        let free = free.unwrap_or_default();
        self.taken.insert(free.clone());
        self.paths.insert(path.to_owned(), free.clone());
        free
    }

    /// A line of `info`, without its end; `None` for an unchanged one.
    fn info_line(&mut self, line: &str) -> Option<String> {
        let is = |key: &str, separator: char| line.strip_prefix(key)?.strip_prefix(separator);
        if let Some(path) = is(key::EXE_NAME, ':') {
            self.program = base_name(path).to_owned();
            return Some(format!("{}:{}", key::EXE_NAME, self.path(path)));
        }
        if is(key::COMMAND_LINE, ':').is_some() {
            return Some(format!("{}:{}", key::COMMAND_LINE, escape_json(&self.program)));
        }
        is(key::HOSTNAME, '=').map(|_| format!("{}={HOST}", key::HOSTNAME))
    }

    /// The file `info`.
    pub fn info(&mut self, bytes: &[u8]) -> Vec<u8> {
        let (head, text) = bytes.split_at(bytes.len().min(crate::info::HEADER_BYTES));
        let mut file = head.to_vec();
        for line in text.split_inclusive(|&byte| byte == b'\n') {
            match self.info_line(&text::line(line)) {
                Some(changed) => file.extend(changed.bytes().chain(*b"\n")),
                None => file.extend(line),
            }
        }
        file
    }

    /// A line of `task.txt`, with its end; one of an unknown kind is left out.
    pub fn task_line(&mut self, line: &str) -> String {
        match TaskLine::parse(line) {
            Ok(Some(TaskLine::Session { time_ns, pid, sid, exe_name })) => {
                TaskLine::Session { time_ns, pid, sid, exe_name: &self.path(exe_name) }.to_string()
            }
            Ok(Some(TaskLine::Dlopen { time_ns, tid, sid, base, path })) => {
                TaskLine::Dlopen { time_ns, tid, sid, base, path: &self.path(path) }.to_string()
            }
            Ok(Some(line)) => line.to_string(),
            _ => String::new(),
        }
    }

    /// A line of a map, with its end; one that cannot be read is left out.
    pub fn map_line(&mut self, line: &str) -> String {
        let Ok(line) = MapLine::parse(line) else { return String::new() };
        // Device and inode name a file, too.
        let path = if line.is_file() { self.path(line.path) } else { line.path.to_owned() };
        MapLine::new((line.start, line.end), line.permissions, &path, line.build_id).to_string()
    }

    /// A line of a file of symbols or of source lines, with its end.
    pub fn module_line<'l>(&mut self, line: &'l [u8]) -> Cow<'l, [u8]> {
        match SourcePart::parse(&text::line(line)) {
            Some(SourcePart::Place { line, path }) => format!("L: {line} {}\n", base_name(path)).into_bytes().into(),
            _ => with_path(line, |path| self.path(path)),
        }
    }
}

/// A line of `events.txt`, with its end: marks have no text.
pub fn event_line(line: &str) -> String {
    match EventLine::parse(line) {
        Some(event) if event.name.starts_with(MARKS) => EventLine { name: MARK, ..event }.to_string(),
        _ => format!("{line}\n"),
    }
}

/// A line of another text, with its end: files have no folders.
pub fn text_line(line: &str) -> String {
    let is_end = |c: char| c.is_whitespace() || "\"'(),:;=".contains(c);
    let words: String = line.split_inclusive(is_end).map(base_name).collect();
    words + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::info::{Info, InfoWriter};

    #[test]
    fn files_have_other_paths_in_all_files() {
        let mut anonymous = Anonymous::default();
        let info = InfoWriter::new()
            .exe_name("/home/u/app")
            .command_line("/home/u/app --password=\"x\"")
            .system("Linux 6", "desk", "\"Debian\"")
            .tasks(&[7]);
        let info = Info::parse(&anonymous.info(&info.finish(0))).unwrap();
        assert_eq!((info.get(key::EXE_NAME), info.command_line().as_deref()), (Some("/app"), Some("app")));
        assert_eq!((info.get(key::HOSTNAME), info.get(key::KERNEL)), (Some(HOST), Some("Linux 6")));
        assert_eq!(anonymous.path("/opt/u/app"), "/2/app");
        let line = "SESS timestamp=1.000000000 pid=7 sid=0123456789abcdef exename=\"/home/u/app\"\n";
        assert_eq!(anonymous.task_line(line.trim_end()), line.replace("/home/u", ""));
        let map = "000000400000-000000401000 r-xp 00001000 08:01 7777 /opt/u/app";
        let changed = anonymous.map_line(map);
        assert!(changed.ends_with(" /2/app\n") && !changed.contains("7777"), "{changed}");
        assert_eq!(&*anonymous.module_line(b"# path name: /home/u/app\n"), b"# path name: /app\n");
        assert_eq!(&*anonymous.module_line(b"L: 12 /home/u/src/main.rs\n"), b"L: 12 main.rs\n");
        assert_eq!(&*anonymous.module_line(b"0000000000001000 T main\n"), b"0000000000001000 T main\n");
        assert_eq!(event_line("EVENT: 1000000 mark:order_of_Jane"), "EVENT: 1000000 mark:anonymous\n");
        assert_eq!(event_line("EVENT: 1000001 app:step"), "EVENT: 1000001 app:step\n");
        assert_eq!(text_line("dump=panic at /home/u/a.rs:3 (../b)"), "dump=panic at a.rs:3 (b)\n");
    }
}
