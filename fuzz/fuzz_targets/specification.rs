//! Specifications of users, and tables for programs as somebody else may have written them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rftrace_format::specification::{Step, Table};
use rftrace_record::specification::Specification;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        match Specification::read("own.toml", text) {
            Ok(specification) => drop(std::hint::black_box(specification)),
            Err(error) => assert!(error.to_string().starts_with("own.toml:"), "{error}"),
        }
    }
    let Some(table) = Table::new(bytes) else { return };
    for function in (0..table.n_functions()).filter_map(|number| table.function(number)) {
        let arguments = function.arguments().map(|argument| argument.steps);
        let all =
            [function.size(), function.failed(), function.old()].into_iter().chain(function.ids()).chain(arguments);
        for mut code in all {
            while let Some((step, rest)) = Step::decode(code) {
                std::hint::black_box(step);
                code = rest;
            }
        }
    }
});
