//! Trace directories: each file is what the fuzzer makes of a valid one, so that the others' parsers are reached too.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

/// A valid trace of two tasks.
const FILES: [(&str, &[u8]); 9] = [
    ("info", include_bytes!("../seeds/directory/info")),
    ("task.txt", include_bytes!("../seeds/directory/task.txt")),
    ("sid-00c0ffee00c0ffee.map", include_bytes!("../seeds/directory/sid-00c0ffee00c0ffee.map")),
    ("prog.sym", include_bytes!("../seeds/directory/prog.sym")),
    ("prog.dbg", include_bytes!("../seeds/directory/prog.dbg")),
    ("events.txt", include_bytes!("../seeds/directory/events.txt")),
    ("7.dat", include_bytes!("../seeds/directory/7.dat")),
    ("8.dat", include_bytes!("../seeds/directory/8.dat")),
    ("perf-cpu0.dat", include_bytes!("../seeds/directory/perf-cpu0.dat")),
];

#[derive(Arbitrary, Debug)]
struct Change<'a> {
    file: u8,
    /// Where the new bytes go, and how many of the old ones they replace.
    place: u16,
    n_replaced: u16,
    bytes: &'a [u8],
}

fuzz_target!(|changes: Vec<Change<'_>>| {
    let mut files = FILES.map(|(name, bytes)| (name, bytes.to_vec()));
    for change in changes {
        let (_, bytes) = &mut files[usize::from(change.file) % FILES.len()];
        let start = usize::from(change.place).min(bytes.len());
        let end = start.saturating_add(change.n_replaced.into()).min(bytes.len());
        bytes.splice(start..end, change.bytes.iter().copied());
    }
    for (name, bytes) in &files {
        rftrace_fuzz::file(name, bytes);
    }
    rftrace_fuzz::read_directory(rftrace_fuzz::folder());
});
