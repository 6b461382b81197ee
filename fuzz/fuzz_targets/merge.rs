//! Inputs that are merged with a guest's trace: KVM's events, perf's counters and context switches, the directory's `clock.txt`.

#![no_main]

use std::fs;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rftrace_export::Chrome;
use rftrace_guest::{Merge, MergeOptions};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    clock: &'a [u8],
    kvm: &'a [u8],
    counters: &'a [u8],
    switches: &'a [u8],
    tsc_khz: Option<u32>,
    tsc_offset: Option<i64>,
    cut: bool,
}

fuzz_target!(|input: Input<'_>| {
    let guest = rftrace_fuzz::folder().join("guest");
    fs::create_dir_all(&guest).expect("a writable folder");
    for (name, bytes) in rftrace_fuzz::DIRECTORY {
        rftrace_fuzz::file(&format!("guest/{name}"), bytes);
    }
    rftrace_fuzz::file("guest/clock.txt", input.clock);
    let mut options = MergeOptions::default();
    options.guest = guest;
    options.tsc_khz = input.tsc_khz.map(u64::from);
    options.tsc_offset = input.tsc_offset;
    options.cut = input.cut;
    if !input.kvm.is_empty() {
        options.kvm = vec![rftrace_fuzz::file("kvm.txt", input.kvm)];
    }
    for (name, bytes) in [("counters.txt", input.counters), ("switches.txt", input.switches)] {
        if !bytes.is_empty() {
            options.perf.push(rftrace_fuzz::file(name, bytes));
        }
    }
    if let Ok(merge) = Merge::open(&options) {
        let _ = merge.export(&mut Chrome::new(std::io::sink()));
        let merged = rftrace_fuzz::folder().join("merged");
        if merge.write_directory(&merged).is_ok() {
            rftrace_fuzz::read_directory(&merged);
        }
        let _ = fs::remove_dir_all(&merged);
    }
});
