//! Small traces for tests, from calls as text.

use std::fs;

use rftrace_format::events::{SCHED_IN, SCHED_OUT, SCHED_OUT_PREEMPTED};
use rftrace_read::{Kind, Record, Trace};
use tempfile::TempDir;

const BASE: u64 = 0x40_0000;

/// Makes a trace of the threads of process 7. `main( 10 a( 5 ) )` enters `main`, calls `a` after 10 ns, and returns
/// from both after 5 more; `w20` waits for 20 ns, `p20` is pre-empted for as long.
pub(crate) fn trace(threads: &[&str]) -> (TempDir, Trace) {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).unwrap();
    let mut info = b"Ftrace!\0\x04\0\0\0\x28\0\x01\x02".to_vec();
    for word in [0_u64, 0, 1024] {
        info.extend(word.to_le_bytes());
    }
    write("info", &info);
    let mut tasks = "SESS timestamp=0.000000001 pid=7 sid=0123456789abcdef exename=\"/p\"\n".to_owned();
    let mut names: Vec<&str> = Vec::new();
    for (tid, calls) in (7..).zip(threads) {
        tasks += &format!("TASK timestamp=0.000000001 tid={tid} pid=7\n");
        let (mut bytes, mut open, mut time_ns) = (Vec::new(), Vec::new(), 1000);
        for token in calls.split_whitespace() {
            let mut record = |time_ns, kind, depth: usize, addr| {
                let depth = depth as u16;
                bytes.extend(Record { time_ns, kind, has_payload: false, payload_at: 0, depth, addr }.encode());
            };
            if let Some(name) = token.strip_suffix('(') {
                let place = names.iter().position(|known| *known == name).unwrap_or_else(|| {
                    names.push(name);
                    names.len() - 1
                });
                let addr = BASE + 16 * place as u64;
                record(time_ns, Kind::Entry, open.len(), addr);
                open.push(addr);
            } else if token == ")" {
                let addr = open.pop().unwrap();
                record(time_ns, Kind::Exit, open.len(), addr);
            } else if let Some(ns) = token.strip_prefix(['w', 'p']) {
                let event = if token.starts_with('w') { SCHED_OUT } else { SCHED_OUT_PREEMPTED };
                record(time_ns, Kind::Event, open.len(), event);
                time_ns += ns.parse::<u64>().unwrap();
                record(time_ns, Kind::Event, open.len(), SCHED_IN);
            } else {
                time_ns += token.parse::<u64>().unwrap();
            }
        }
        write(&format!("{tid}.dat"), &bytes);
    }
    write("task.txt", tasks.as_bytes());
    write("sid-0123456789abcdef.map", b"00400000-00500000 r-xp 00000000 08:01 1 /p\n");
    let symbols: Vec<_> = names.iter().enumerate().map(|(n, name)| format!("{:016x} T {name}\n", 16 * n)).collect();
    write("p.sym", (symbols.concat() + &format!("{:016x} ? __sym_end\n", 16 * names.len())).as_bytes());
    let trace = Trace::open(dir.path()).unwrap();
    (dir, trace)
}
