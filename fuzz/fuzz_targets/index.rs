//! An index of a trace that says what is not so: whatever it says, reading by it ends.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rftrace_fuzz::DIRECTORY;
use rftrace_read::{Choice, Pattern, Trace};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    from: u16,
    /// Which function is chosen, if one is.
    function: Option<bool>,
    /// Where new bytes go, and how many of the old ones they replace.
    changes: Vec<(u16, u8, &'a [u8])>,
}

fuzz_target!(|input: Input<'_>| {
    let n_bytes: usize = DIRECTORY.iter().map(|(_, bytes)| bytes.len()).sum();
    for (name, bytes) in DIRECTORY {
        rftrace_fuzz::file(name, bytes);
    }
    let mut trace = Trace::open(rftrace_fuzz::folder()).expect("it is a trace");
    let start_ns = trace.start_ns().expect("it is read").unwrap_or(0);
    let mut choice = Choice::default();
    choice.times.start = start_ns + u64::from(input.from);
    let name = input.function.map(|is_main| if is_main { "main" } else { "*a*" });
    choice.below = name.map(|name| Pattern::new(name).expect("a pattern")).into_iter().collect();
    trace.choose(choice);
    let used = trace.use_changed_index(|bytes| {
        for (place, n_replaced, new) in &input.changes {
            let start = usize::from(*place).min(bytes.len());
            let end = (start + usize::from(*n_replaced)).min(bytes.len());
            bytes.splice(start..end, new.iter().copied());
        }
    });
    if let Ok(true) = used {
        for task in trace.tasks() {
            // The index may claim functions that are open where the time begins: they come on top of the records.
            let limit = n_bytes + (1 << 22);
            assert!(trace.records(task).take(limit + 1).count() <= limit);
        }
    }
});
