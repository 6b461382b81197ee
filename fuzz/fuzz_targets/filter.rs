//! The language of filters, and its patterns.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rftrace_frontend::Filter;

fuzz_target!(|input: (&str, &str)| {
    let (text, name) = input;
    if let Ok(filter) = text.parse::<Filter>() {
        std::hint::black_box((filter.matches_any(name), filter.matches_any(text)));
    }
    // A name that is no pattern matches itself.
    if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b":<>_ &(),.".contains(&byte)) && name.trim() == name {
        let filter: Filter = format!("include={name}").parse().expect("a plain name is a rule");
        assert!(filter.matches_any(name), "{name}");
    }
});
