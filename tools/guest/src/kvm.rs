//! KVM's events as text: the file `trace` of a tracefs instance, or the output of `trace-cmd report`.

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rftrace_read::lines::Lines;
use rftrace_read::{Error, Result, files};

/// The first bytes of a file of `trace-cmd record`.
const TRACE_DAT_MAGIC: &[u8] = b"\x17\x08\x44tracing";

/// An event of KVM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KvmEvent<'l> {
    /// The thread's name and number.
    pub(super) comm: &'l str,
    pub(super) tid: u32,
    /// When, in ticks of the host.
    pub(super) tsc: u64,
    /// Its name, such as `kvm_exit`.
    pub(super) name: &'l str,
    /// The rest of the line.
    pub(super) fields: &'l str,
}

impl KvmEvent<'_> {
    /// The virtual CPU, where the event tells it.
    pub(super) fn vcpu(&self) -> Option<u32> {
        let rest = self.fields.split_once("vcpu")?.1.trim_start_matches("_id");
        let digits = rest.trim_start_matches(['=', ' ']);
        digits[..digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len())].parse().ok()
    }

    /// Why a guest was left.
    pub(super) fn reason(&self) -> Option<&str> {
        let (_, rest) = self.fields.split_once("reason ")?;
        Some(rest.split(" rip").next().unwrap_or(rest).trim()).filter(|reason| !reason.is_empty())
    }

    /// The offsets of `kvm_write_tsc_offset`: the virtual CPU's old one, and the new one.
    pub(super) fn offsets(&self) -> Option<(i64, i64)> {
        let number = |key| {
            let value = self.fields.split(' ').find_map(|word| word.strip_prefix(key))?;
            value.parse().map(u64::cast_signed).or_else(|_| value.parse::<i64>()).ok()
        };
        Some((number("prev=")?, number("next=")?))
    }
}

/// A text file of events, or a `trace.dat` that `trace-cmd report` makes text of.
pub(super) struct KvmEvents {
    lines: Lines,
    report: Option<(Child, PathBuf)>,
    /// How many events the file itself says are lost.
    pub(super) lost: u64,
}

impl KvmEvents {
    /// Opens a file; of a tracefs instance's folder, its `trace`.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let path = &if path.is_dir() { path.join("trace") } else { path.to_owned() };
        let io_error = |source| Error::Io { path: path.clone(), source };
        if !files::begins_with(path, TRACE_DAT_MAGIC)? {
            return Ok(Self { lines: Lines::open(path)?, report: None, lost: 0 });
        }
        let mut command = Command::new("trace-cmd");
        command
            .args(["report", "-q", "-i"])
            .arg(path)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| Error::Unaligned {
            reason: format!(
                "{}: cannot run trace-cmd to read this file: {error}; install trace-cmd (apt-get install trace-cmd), or \
                 convert the file on another machine: trace-cmd report -i trace.dat >kvm.txt",
                path.display()
            ),
        })?;
        let Some(output) = child.stdout.take() else { return Err(io_error(std::io::Error::other("no output"))) };
        let lines = Lines::new(path, Box::new(BufReader::with_capacity(256 * 1024, output)));
        Ok(Self { lines, report: Some((child, path.clone())), lost: 0 })
    }

    /// The next event, whatever its name is.
    pub(super) fn next(&mut self) -> Result<Option<KvmEvent<'_>>> {
        loop {
            let Some(line) = self.lines.next()? else { return self.end().map(|()| None) };
            if is_event(line) {
                break;
            }
            match kind_of_other_line(line) {
                Some(lost) => self.lost = self.lost.saturating_add(lost),
                None => {
                    return Err(self.lines.error(
                        "expected an event of ftrace: `TASK-PID [CPU] FLAGS TIME: EVENT: …`, as a tracefs instance's `trace` and \
                         `trace-cmd report` show it",
                    ));
                }
            }
        }
        // Parsed twice, as what was found cannot be kept over the loop's next turn.
        match parse(self.lines.current()) {
            Some(Ok(event)) => Ok(Some(event)),
            _ => Err(self.lines.error(
                "the time is no number of ticks; record with the clock x86-tsc (trace-cmd record -C x86-tsc, or \
                 tools/setup_kvm_tracing.sh)",
            )),
        }
    }

    /// `trace-cmd` must have gone through the whole file.
    fn end(&mut self) -> Result<()> {
        let Some((mut child, path)) = self.report.take() else { return Ok(()) };
        match child.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(Error::Unaligned {
                reason: format!(
                    "{}: `trace-cmd report` cannot read this file ({status}); run it by hand to see the reason",
                    path.display()
                ),
            }),
            Err(source) => Err(Error::Io { path, source }),
        }
    }
}

impl Drop for KvmEvents {
    fn drop(&mut self) {
        if let Some((child, _)) = &mut self.report {
            // It has ended or is of no use any more.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn is_event(line: &str) -> bool {
    parse(line).is_some()
}

/// How many events a line that is none says were lost; `None` if such a line has no place in the file.
fn kind_of_other_line(line: &str) -> Option<u64> {
    let line = line.trim();
    if let Some((_, lost)) = line.strip_prefix("CPU:").and_then(|rest| rest.split_once('[')) {
        let digits = lost.split(|c: char| !c.is_ascii_digit()).find(|digits| !digits.is_empty());
        return Some(digits.and_then(|digits| digits.parse().ok()).unwrap_or(1));
    }
    let is_header = line.is_empty()
        || line.starts_with(['#', '%'])
        || line.starts_with("cpus=")
        || line.starts_with("version =")
        || line.starts_with("trace-cmd")
        || (line.starts_with("CPU ") && line.ends_with("is empty"));
    is_header.then_some(0)
}

/// Parses a line; `None` if it has not the form of an event, an error if its time is not in ticks.
fn parse(line: &str) -> Option<std::result::Result<KvmEvent<'_>, ()>> {
    let (comm, tid, rest) = task(line)?;
    let mut rest = rest.trim_start();
    let mut word = || {
        let (word, after) = rest.split_once(' ')?;
        rest = after.trim_start();
        Some(word)
    };
    let mut time = word()?;
    if !time.ends_with(':') {
        // Flags.
        time = word()?;
    }
    let time = time.strip_suffix(':')?;
    let (name, fields) = rest.split_once(':')?;
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if !is_name || !time.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let event = time.parse().map(|tsc| KvmEvent { comm, tid, tsc, name, fields: fields.trim_start() });
    Some(event.map_err(|_| ()))
}

/// The name and number of the thread, and what follows the processor's number.
fn task(line: &str) -> Option<(&str, u32, &str)> {
    for (start, _) in line.match_indices('[') {
        let (before, after) = (line[..start].trim_end(), &line[start + 1..]);
        let (cpu, rest) = after.split_once(']')?;
        if cpu.is_empty() || !cpu.bytes().all(|digit| digit.is_ascii_digit()) {
            continue;
        }
        // The process, where it was recorded: `(  123)` or `(-------)`.
        let before = match before.strip_suffix(')').and_then(|before| before.rsplit_once('(')) {
            Some((before, _)) if before.ends_with(' ') => before.trim_end(),
            _ => before,
        };
        if let Some((comm, tid)) = before.rsplit_once('-')
            && let Ok(tid) = tid.parse()
        {
            return Some((comm.trim(), tid, rest));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn events(text: &'static [u8]) -> KvmEvents {
        KvmEvents { lines: Lines::new(Path::new("kvm.txt"), Box::new(text)), report: None, lost: 0 }
    }

    #[test]
    fn text_of_tracefs_and_of_trace_cmd() {
        let text = b"# tracer: nop\n#\n\
            \x20      kvm_guest-4943    [001] dN.1. 64438979257822: kvm_write_tsc_offset: vcpu=0 prev=0 next=18446679634730298864\n\
            version = 7\ncpus=2\nCPU 1 is empty\nCPU:1 [LOST 12 EVENTS]\n\n\
            \x20CPU 0/KVM-77    (    70) [003] d..2. 70: kvm_entry: vcpu 3, rip 0x1000\n\
            \x20<...>-[1]-78  [010] 15813659115036: kvm_exit:             reason EXIT_IOIO rip 0xec08e info cf80140 ec08f\n\
            \x20CPU 0/KVM-77    (-------) [003] ..... 80: kvm_exit: vcpu 1 reason EPT_VIOLATION FAILED_VMENTRY rip 0x0 info1 0x0\n";
        let mut events = events(text);
        let event = events.next().unwrap().unwrap();
        assert_eq!((event.comm, event.tid, event.tsc), ("kvm_guest", 4943, 64_438_979_257_822));
        assert_eq!((event.name, event.vcpu()), ("kvm_write_tsc_offset", Some(0)));
        assert_eq!(event.offsets(), Some((0, -64_438_979_252_752)));
        let event = events.next().unwrap().unwrap();
        assert_eq!((event.comm, event.tid, event.tsc, event.name), ("CPU 0/KVM", 77, 70, "kvm_entry"));
        assert_eq!((event.vcpu(), event.reason(), event.offsets()), (Some(3), None, None));
        let event = events.next().unwrap().unwrap();
        assert_eq!((event.comm, event.tid, event.vcpu()), ("<...>-[1]", 78, None));
        assert_eq!((event.tsc, event.reason()), (15_813_659_115_036, Some("EXIT_IOIO")));
        let event = events.next().unwrap().unwrap();
        assert_eq!((event.vcpu(), event.reason()), (Some(1), Some("EPT_VIOLATION FAILED_VMENTRY")));
        assert_eq!(events.next().unwrap(), None);
        assert_eq!(events.lost, 12);
    }

    #[test]
    fn what_is_no_event_is_told_with_its_place() {
        for (text, reason) in [
            (&b"# header\nnonsense\n"[..], "byte 9: line 2: expected an event of ftrace"),
            (
                b" a-1 [000] d.... 123.456789: kvm_exit: reason HLT rip 0\n",
                "byte 0: line 1: the time is no number of ticks",
            ),
            (b" a-1 [000] d.... 99999999999999999999: kvm_exit: \n", "clock x86-tsc"),
            (b" a-1 [000] d.... 12: kvm_exit", "an event"),
            (b" a-1 [000", "an event"),
            (b" a-1 [000]", "an event"),
            (b"\xff\xfe\x00\x01", "an event"),
        ] {
            let error = loop {
                match events(text).next() {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("{text:?} passes"),
                    Err(error) => break error.to_string(),
                }
            };
            assert!(error.starts_with("kvm.txt: byte ") && error.contains(reason), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_line_makes_it_panic(line in "[ -~]{0,20}-[0-9]{0,3} ?\\[[0-9]{0,3}\\]? [0-9.]{0,5}:? ?[a-z_]{0,8}:? ?[ -~é]{0,20}") {
            if let Some(Ok(event)) = parse(&line) {
                event.vcpu();
                event.reason();
                event.offsets();
            }
        }

        /// Whatever a thread is called, its line is read.
        #[test]
        fn names_of_threads(comm in "[ -~]{0,15}", tid: u32, tsc: u64, cpu in 0..999_u32) {
            let line = format!("{comm:>16}-{tid:<7} [{cpu:03}] d..1. {tsc}: kvm_exit: vcpu 0 reason HLT rip 0x0");
            let event = parse(&line).unwrap().unwrap();
            // A name that looks like the rest of a line cannot be told from it.
            prop_assume!(!comm.contains('['));
            prop_assert_eq!((event.tid, event.tsc, event.name), (tid, tsc, "kvm_exit"));
            prop_assert_eq!(event.comm, comm.trim());
        }
    }
}
