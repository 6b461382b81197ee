//! Compiles the functions in C, instrumented if those in Rust are, and writes a hundred functions.

use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=src/calls.c");
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let mut c = cc::Build::new();
    c.file("src/calls.c").opt_level(1).force_frame_pointer(false);
    if flags.contains("instrument-mcount") {
        c.flag("-pg");
    }
    c.compile("calls");

    let folder = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    fs::write(Path::new(&folder).join("hundred.rs"), hundred()).expect("OUT_DIR is writable");
}

/// `hundred_0` to `hundred_99`, each some tens of nanoseconds of arithmetic with constants of its own, and a table of
/// them. In those with even numbers each step waits for the one before; beside that a processor has time for a hook. The
/// others have four sums at a time, which keep it busy.
fn hundred() -> String {
    let mut text = String::new();
    let mut names = String::new();
    let mut constant = 0x9e37_79b9_7f4a_7c15_u64;
    for number in 0..100 {
        constant = constant.wrapping_mul(0xd129_0d3b_3b2c_5b9d).rotate_left(29) | 1;
        let (rounds, shift) = (8 + number % 17, 23 + number % 19);
        let body = if number % 2 == 0 {
            format!(
                "let mut n = n;
                for round in 0..{rounds} {{ n = (n ^ (n >> {shift})).wrapping_mul({constant}).wrapping_add(round); }}
                n"
            )
        } else {
            format!(
                "let mut sums = [n, n ^ 1, n ^ 2, n ^ 3];
                for round in 0..{rounds} / 3 {{
                    for sum in &mut sums {{
                        *sum = (*sum ^ (*sum >> {shift})).wrapping_mul({constant}).wrapping_add(round).rotate_left(7);
                        if *sum & 0xffff == round {{ *sum += n; }}
                    }}
                }}
                sums[0] ^ sums[1] ^ sums[2] ^ sums[3]"
            )
        };
        writeln!(
            text,
            "#[unsafe(no_mangle)]\n#[inline(never)]\nextern \"C\" fn hundred_{number}(n: u64) -> u64 {{ {body} }}"
        )
        .expect("a string takes all");
        write!(names, "hundred_{number}, ").expect("a string takes all");
    }
    writeln!(text, "static HUNDRED: [extern \"C\" fn(u64) -> u64; 100] = [{names}];").expect("a string takes all");
    text
}
