//! A real piece of work: serde_json parses a few megabytes.

use std::fmt::Write;
use std::hint::black_box;

use serde_json::Value;

/// Records of the text.
const RECORDS: u64 = 12_000;
/// How often it is parsed.
const PASSES: u32 = 4;

/// Parses it, in a `whole_program`.
pub(crate) fn measure() {
    let text = text();
    bench_tracer::whole_program(|| {
        for _ in 0..PASSES {
            let value: Value = serde_json::from_str(black_box(&text)).expect("the text is JSON");
            black_box(value);
        }
    });
}

/// Records as a web service might send them: keys that repeat, short and long strings, some with escapes or beyond ASCII,
/// integers, fractions, booleans, nulls, nested lists and objects. 4.7 MB.
fn text() -> String {
    let mut text = String::from("[");
    let mut random = 1_u64;
    let mut next = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    for id in 0..RECORDS {
        let comma = if id == 0 { "" } else { ",\n" };
        let (x, y) = (next(360_000_000), next(180_000_000));
        let note =
            ["", "says \\\"hello\\\" twice\\n", "gr\u{fc}\u{df}t aus K\u{f6}ln", "\\u00e9t\\u00e9"][next(4) as usize];
        write!(
            text,
            "{comma}{{\"id\": {id}, \"name\": \"user {}\", \"active\": {}, \"score\": {}.{:03}, \"parent\": {}, \
             \"position\": {{\"longitude\": {:.6}, \"latitude\": {:.6}}}, \"note\": \"{note}\", \"tags\": [",
            next(1 << 30),
            next(2) == 0,
            next(1000),
            next(1000),
            if next(3) == 0 { "null".to_owned() } else { next(RECORDS).to_string() },
            x as f64 / 1e6 - 180.0,
            y as f64 / 1e6 - 90.0,
        )
        .expect("a string takes all");
        for number in 0..next(6) {
            let comma = if number == 0 { "" } else { ", " };
            write!(text, "{comma}\"{}\"", ["red", "green", "blue", "a longer tag", "x"][next(5) as usize])
                .expect("a string takes all");
        }
        text.push_str("], \"samples\": [");
        for number in 0..next(16) {
            let comma = if number == 0 { "" } else { ", " };
            write!(text, "{comma}{}", next(100_000) as i64 - 50_000).expect("a string takes all");
        }
        write!(text, "], \"text\": \"{}\"}}", "lorem ipsum dolor ".repeat(next(12) as usize))
            .expect("a string takes all");
    }
    text.push(']');
    text
}
