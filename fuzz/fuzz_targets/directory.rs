//! Trace directories: each file is what the fuzzer makes of a valid one, so that the others' parsers are reached too.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rftrace_fuzz::DIRECTORY;

#[derive(Arbitrary, Debug)]
struct Change<'a> {
    file: u8,
    /// Where the new bytes go, and how many of the old ones they replace.
    place: u16,
    n_replaced: u16,
    bytes: &'a [u8],
}

fuzz_target!(|changes: Vec<Change<'_>>| {
    let mut files = DIRECTORY.map(|(name, bytes)| (name, bytes.to_vec()));
    for change in changes {
        let (_, bytes) = &mut files[usize::from(change.file) % DIRECTORY.len()];
        let start = usize::from(change.place).min(bytes.len());
        let end = start.saturating_add(change.n_replaced.into()).min(bytes.len());
        bytes.splice(start..end, change.bytes.iter().copied());
    }
    for (name, bytes) in &files {
        rftrace_fuzz::file(name, bytes);
    }
    rftrace_fuzz::read_directory(rftrace_fuzz::folder());
});
