//! Trace directories to test with, written from scratch: no code is shared with the readers or with rftrace's writer.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rftrace_read::Trace;
use tempfile::TempDir;

/// Where the traced program lies.
pub(crate) const BASE: u64 = 0x40_0000;

/// Functions of 16 bytes, one after the other.
const FUNCTIONS: [&str; 6] = ["main", "a", "b", "c", "<rftrace::Ring as core::fmt::Debug>::fmt", "call(int, char*)"];

pub(crate) const MAIN: u64 = BASE + 0x1000;
pub(crate) const A: u64 = BASE + 0x1010;
pub(crate) const B: u64 = BASE + 0x1020;
pub(crate) const C: u64 = BASE + 0x1030;
pub(crate) const RUST: u64 = BASE + 0x1040;
pub(crate) const CPP: u64 = BASE + 0x1050;
/// In the program, but in no function.
pub(crate) const NAMELESS: u64 = BASE + 0x2000;

pub(crate) const MARK: u64 = 1_000_000;

pub(crate) const SID: &str = "00c0ffee00c0ffee";

const HEADER: &[u8; 16] = b"Ftrace!\0\x04\0\0\0\x28\0\x01\x02";
/// TASK_SESSION, SYM_REL_ADDR, MAX_STACK and EVENT.
const FEATURES: u64 = 1 << 1 | 1 << 5 | 1 << 6 | 1 << 7;
/// EXE_NAME, CMDLINE and TASKINFO.
const INFO_MASK: u64 = 1 << 0 | 1 << 3 | 1 << 7;

/// A directory of files, each of which can be changed before it is read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Files(pub(crate) BTreeMap<String, Vec<u8>>);

impl Files {
    /// A trace of one process, with these tasks' records. The first task's number is that of the process.
    pub(crate) fn new(tasks: &[(u32, &[[u8; 16]])]) -> Self {
        let pid = tasks.first().map_or(1, |(tid, _)| *tid);
        let tids: Vec<_> = tasks.iter().map(|(tid, _)| tid.to_string()).collect();

        let mut info = HEADER.to_vec();
        info.extend(FEATURES.to_le_bytes());
        info.extend(INFO_MASK.to_le_bytes());
        info.extend(1024_u16.to_le_bytes());
        info.extend([0; 6]);
        info.extend(b"exename:/bin/prog\ncmdline:prog\ntaskinfo:lines=2\n");
        info.extend(format!("taskinfo:nr_tid={}\ntaskinfo:tids={}\n", tids.len(), tids.join(",")).bytes());

        let mut task_txt = format!("SESS timestamp=0.000000001 pid={pid} sid={SID} exename=\"/bin/prog\"\n");
        for tid in &tids {
            task_txt.push_str(&format!("TASK timestamp=0.000000002 tid={tid} pid={pid}\n"));
        }

        let mut map = format!("{BASE:x}-{:x} r-xp 00000000 00:00 0 /bin/prog\n", BASE + 0x3000);
        map.push_str("7ffffffde000-7ffffffff000 rw-p 00000000 00:00 0 [stack]\n");

        let mut sym = format!("# symbols: {}\n# path name: /bin/prog\n", FUNCTIONS.len() + 1);
        let addrs = (MAIN - BASE..).step_by(16);
        for (addr, name) in addrs.zip(FUNCTIONS) {
            sym.push_str(&format!("{addr:016x} T {name}\n"));
        }
        sym.push_str(&format!("{:016x} ? __func_end\n", CPP - BASE + 16));

        let mut files = BTreeMap::new();
        for (tid, records) in tasks {
            files.insert(format!("{tid}.dat"), records.concat());
        }
        files.insert("info".into(), info);
        files.insert("task.txt".into(), task_txt.into());
        files.insert(format!("sid-{SID}.map"), map.into());
        files.insert("prog.sym".into(), sym.into());
        files.insert("events.txt".into(), format!("EVENT: {MARK} rftrace:mark\n").into());
        Self(files)
    }

    pub(crate) fn write(&self) -> Dir {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for (name, bytes) in &self.0 {
            fs::write(dir.path().join(name), bytes).expect("a file in it");
        }
        Dir(dir)
    }
}

/// A directory that is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Dir(TempDir);

impl Dir {
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub(crate) fn open(&self) -> Trace {
        Trace::open(self.path()).expect("a valid trace")
    }
}

/// A trace of one task, 7, of process 7.
pub(crate) fn trace(records: &[[u8; 16]]) -> Dir {
    Files::new(&[(7, records)]).write()
}

pub(crate) fn entry(time: u64, depth: u64, addr: u64) -> [u8; 16] {
    record(time, 0, depth, addr)
}

pub(crate) fn exit(time: u64, depth: u64, addr: u64) -> [u8; 16] {
    record(time, 1, depth, addr)
}

pub(crate) fn lost(time: u64, count: u64) -> [u8; 16] {
    record(time, 2, 0, count)
}

pub(crate) fn event(time: u64, depth: u64, id: u64) -> [u8; 16] {
    record(time, 3, depth, id)
}

/// Sets the bit that says that a payload follows.
pub(crate) fn with_payload(mut record: [u8; 16]) -> [u8; 16] {
    record[8] |= 1 << 2;
    record
}

fn record(time: u64, kind: u64, depth: u64, addr: u64) -> [u8; 16] {
    let word = addr << 16 | depth << 6 | 5 << 3 | kind;
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&time.to_le_bytes());
    bytes[8..].copy_from_slice(&word.to_le_bytes());
    bytes
}
