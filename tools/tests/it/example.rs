//! The example of how the libraries are used.

#[expect(dead_code, reason = "only what is in its `main` is called here")]
#[path = "../../views/examples/hottest.rs"]
mod hottest;

use crate::dir::{A, B, MAIN, entry, exit, lost, trace};

#[test]
fn the_hottest_functions() {
    let records = [
        entry(0, 0, MAIN),
        entry(100, 1, A),
        exit(700, 1, A),
        entry(700, 1, B),
        exit(800, 1, B),
        entry(800, 1, B),
        exit(900, 1, B),
        exit(1_000, 0, MAIN),
        lost(1_000, 2),
    ];
    let dir = trace(&records);
    let mut out = Vec::new();
    let summary = hottest::print_hottest(dir.path(), &mut out).expect("a readable trace");
    let expected = " 60 %           600 ns in        1 calls  a
 20 %           200 ns in        2 calls  b
 20 %           200 ns in        1 calls  main
";
    assert_eq!(String::from_utf8(out).expect("text"), expected);
    assert!(summary.warnings.to_string().starts_with("2 records were lost"), "{}", summary.warnings);
    let error = hottest::print_hottest(&dir.file("none"), &mut Vec::new()).expect_err("no trace");
    assert!(error.to_string().contains("is this a trace directory?"), "{error}");
}
