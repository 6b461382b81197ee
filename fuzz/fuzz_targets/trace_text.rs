//! Text of functracer and sp-rtrace, through all that is done to it.

#![no_main]

use std::io::sink;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use rftrace_resources::{Order, Postprocessor};

fuzz_target!(|bytes: &[u8]| {
    for compress in [false, true] {
        let order = compress.then_some(Order::Size);
        let all = Postprocessor { leaks: true, compress, resolve: false, order, depth: Some(2), kinds: Vec::new() };
        let mut once = Vec::new();
        if all.run(Path::new("input"), bytes, &mut once).is_ok() {
            let _ = all.run(Path::new("output"), &once[..], &mut sink());
        }
    }
    let _ = Postprocessor { kinds: vec!["memory".to_owned()], ..Default::default() }.run(
        Path::new("input"),
        bytes,
        &mut sink(),
    );
});
