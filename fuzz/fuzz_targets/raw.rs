//! Files of records, as `dump_trace` writes them. The import is read as a directory.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use rftrace_frontend::{Image, ImportOptions};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(image) = Image::parse(bytes, Path::new("raw")) {
        let dir = rftrace_fuzz::folder().join("trace");
        if image.write_directory(&dir, &ImportOptions::default()).is_ok() {
            rftrace_fuzz::read_directory(&dir);
            let trace = rftrace_read::Trace::open(&dir).expect("what was imported can be read");
            assert!(trace.warnings().is_empty(), "{}", trace.warnings());
        }
    }
});
