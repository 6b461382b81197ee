//! `record.txt`: the losses of a recording, the reason of a dump, and the ends of processes.

use alloc::string::String;
use core::fmt;

use crate::text;

/// The key of the line with the purpose of a dump.
const DUMP: &str = "dump";

/// Returns the line with the reason of a dump.
pub fn dump_line(reason: &str) -> String {
    alloc::format!("{DUMP}={}\n", reason.replace('\n', " "))
}

/// Returns the reason of a dump from the bytes of the file; `None` if the trace is no dump.
pub fn dump_reason(bytes: &[u8]) -> Option<String> {
    text::pairs(bytes).find(|(key, _)| key == DUMP).map(|(_, reason)| reason)
}

/// The key of the lines with the ends of processes.
const END: &str = "end";

/// Returns the line with the status of `wait` at the end of a process.
pub fn end_line(pid: u32, status: i32) -> String {
    alloc::format!("{END}={pid} {status}\n")
}

/// The ends of processes, each with its PID and its status of `wait`.
pub fn ends(bytes: &[u8]) -> impl Iterator<Item = (u32, i32)> {
    text::pairs(bytes).filter(|(key, _)| key == END).filter_map(|(_, end)| {
        let (pid, status) = end.split_once(' ')?;
        Some((pid.parse().ok()?, status.parse().ok()?))
    })
}

/// The key of the lines with processes that went on after their last record.
const CUT_OFF: &str = "cut_off";

/// Returns the line for a process that went on after its last record.
pub fn cut_off_line(pid: u32) -> String {
    alloc::format!("{CUT_OFF}={pid}\n")
}

/// The processes that went on after their last record.
pub fn cut_off(bytes: &[u8]) -> impl Iterator<Item = u32> {
    text::pairs(bytes).filter(|(key, _)| key == CUT_OFF).filter_map(|(_, pid)| pid.parse().ok())
}

/// The losses of a recording. Losses with a place in the trace are also events in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gaps {
    /// The number of processes whose buffer was full before their end, so the rest is missing.
    pub full: u64,
    /// The number of chunks that later records overwrote, so the beginning is missing.
    pub overwritten: u64,
    /// The number of threads beyond the maximum at one time.
    pub untraced_threads: u64,
    /// The number of processes whose rest is missing, as the trace had its maximum size.
    pub too_much: u64,
    /// The number of processes with records or names that are missing, as a file could not be written.
    pub unwritten: u64,
    /// The number of calls and returns that were dropped while the program ran, as no chunk was free.
    pub dropped: u64,
    /// The number of processes that outlived their recorder, or the connection to it, so the rest is missing.
    pub cut: u64,
    /// The number of unreadable chunks, whose calls are missing.
    pub damaged: u64,
    /// True if context switches were recorded, even if there were none. With false the trace cannot show them.
    pub schedule: bool,
    /// True if the program's own library made the trace: only the program can change the size of the buffer.
    pub library: bool,
}

impl Gaps {
    /// Returns true if there are no losses.
    pub fn is_empty(&self) -> bool {
        Self { schedule: false, library: false, ..*self } == Self::default()
    }

    /// Returns true if a process has gone on after its last record.
    pub fn lacks_end(&self) -> bool {
        self.full + self.too_much + self.unwritten + self.cut > 0
    }

    /// Parses the bytes of the file. Missing numbers are 0.
    pub fn parse(bytes: &[u8]) -> Self {
        let mut gaps = Self::default();
        for (key, value) in text::pairs(bytes) {
            let number = value.parse().unwrap_or(0);
            match key.as_str() {
                "full" => gaps.full = number,
                "overwritten" => gaps.overwritten = number,
                "untraced_threads" => gaps.untraced_threads = number,
                "too_much" => gaps.too_much = number,
                "unwritten" => gaps.unwritten = number,
                "dropped" => gaps.dropped = number,
                "cut" => gaps.cut = number,
                "damaged" => gaps.damaged = number,
                "schedule" => gaps.schedule = number == 1,
                "library" => gaps.library = number == 1,
                _ => {}
            }
        }
        gaps
    }
}

impl fmt::Display for Gaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { full, overwritten, untraced_threads, too_much, unwritten, .. } = self;
        let Self { dropped, cut, damaged, schedule, library, .. } = self;
        write!(f, "full={full}\noverwritten={overwritten}\nuntraced_threads={untraced_threads}\n")?;
        write!(f, "too_much={too_much}\nunwritten={unwritten}\ndropped={dropped}\ncut={cut}\ndamaged={damaged}\n")?;
        writeln!(f, "schedule={}\nlibrary={}", u8::from(*schedule), u8::from(*library))
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn a_line_each() {
        let (full, overwritten, untraced_threads, too_much, unwritten, dropped, cut, damaged) =
            (1, 2, 3, 4, 5, 6, 7, 8);
        let gaps = Gaps {
            full,
            overwritten,
            untraced_threads,
            too_much,
            unwritten,
            dropped,
            cut,
            damaged,
            schedule: true,
            library: true,
        };
        assert_eq!(
            gaps.to_string(),
            "full=1\noverwritten=2\nuntraced_threads=3\ntoo_much=4\nunwritten=5\ndropped=6\ncut=7\ndamaged=8\nschedule=1\nlibrary=1\n"
        );
        assert_eq!(Gaps::parse(gaps.to_string().as_bytes()), gaps);
        let dump = gaps.to_string() + &dump_line("slow:a\nb>1ms");
        assert_eq!(
            (Gaps::parse(dump.as_bytes()), dump_reason(dump.as_bytes())),
            (gaps, Some("slow:a b>1ms".to_string()))
        );
        assert_eq!(dump_reason(gaps.to_string().as_bytes()), None);
        let ended = gaps.to_string() + &end_line(7, 139) + "end=8\n" + &end_line(9, 768);
        let found: alloc::vec::Vec<_> = ends(ended.as_bytes()).collect();
        let cut = gaps.to_string() + &cut_off_line(7) + "cut_off=x\n" + &cut_off_line(9);
        let found_cut: alloc::vec::Vec<_> = cut_off(cut.as_bytes()).collect();
        assert_eq!((Gaps::parse(cut.as_bytes()), found_cut), (gaps, alloc::vec![7, 9]));
        assert_eq!((Gaps::parse(ended.as_bytes()), found), (gaps, alloc::vec![(7, 139), (9, 768)]));
        assert!(Gaps::parse(b"full=x\nnonsense\n").is_empty());
        let facts = Gaps::parse(b"schedule=1\nlibrary=1\n");
        assert!(facts.schedule && facts.library && facts.is_empty(), "no gaps");
    }
}
