//! The output of `replay`, exactly.

use rftrace_read::{SCHED_IN, SCHED_OUT, SCHED_OUT_PREEMPTED, Summary, Trace, Warning};
use rftrace_views::ReplayOptions;

use crate::dir::{A, B, C, CPP, Files, MAIN, MARK, NAMELESS, RUST, entry, event, exit, lost, trace};

pub(crate) fn replay(trace: &Trace, color: bool) -> (String, Summary) {
    let mut out = Vec::new();
    let mut options = ReplayOptions::default();
    options.color = color;
    let summary = rftrace_views::replay(trace, &options, &mut out).expect("a readable trace");
    (String::from_utf8(out).expect("text"), summary)
}

/// Checks the output without its header, and that nothing was wrong.
#[track_caller]
fn check(records: &[[u8; 16]], expected: &str) {
    let (text, summary) = replay(&trace(records).open(), false);
    assert_eq!(text, format!("# DURATION     TID     FUNCTION\n{expected}"));
    assert_eq!(summary.records, records.len() as u64);
    assert!(summary.warnings.is_empty(), "{}", summary.warnings);
}

#[test]
fn nothing() {
    check(&[], "");
}

#[test]
fn calls_and_leaves() {
    check(
        &[
            entry(1_000, 0, MAIN),
            entry(1_100, 1, A),
            entry(1_200, 2, RUST),
            exit(1_250, 2, RUST),
            exit(3_500_000, 1, A),
            entry(3_500_001, 1, CPP),
            exit(3_500_002, 1, CPP),
            entry(3_600_000, 1, NAMELESS),
            exit(3_600_000, 1, NAMELESS),
            exit(2_000_001_000, 0, MAIN),
        ],
        "            [     7] | main() {
            [     7] |   a() {
   0.050 us [     7] |     <rftrace::Ring as core::fmt::Debug>::fmt();
   3.498 ms [     7] |   } /* a */
   0.001 us [     7] |   call(int, char*);
   0.000 us [     7] |   <402000>();
   2.000  s [     7] | } /* main */
",
    );
}

#[test]
fn tasks_are_merged_by_time() {
    let files = Files::new(&[
        (7, &[entry(10, 0, MAIN), entry(20, 1, A), exit(40, 1, A), exit(90, 0, MAIN)]),
        (123_456, &[entry(30, 0, B), entry(40, 1, C), exit(50, 1, C), exit(60, 0, B)]),
        (9, &[]),
    ]);
    let (text, _) = replay(&files.write().open(), false);
    assert_eq!(
        text,
        "# DURATION     TID     FUNCTION
            [     7] | main() {
            [     7] |   a() {
            [123456] | b() {
   0.020 us [     7] |   } /* a */
   0.010 us [123456] |   c();
   0.030 us [123456] | } /* b */
   0.080 us [     7] | } /* main */
"
    );
}

#[test]
fn events() {
    check(
        &[
            event(1_000, 0, MARK),
            entry(2_000, 0, MAIN),
            event(3_000, 1, SCHED_OUT),
            event(4_500, 1, SCHED_IN),
            event(5_000, 1, SCHED_OUT_PREEMPTED),
            event(6_000, 1, MARK + 1),
            event(7_000, 1, SCHED_IN),
            event(8_000, 1, SCHED_OUT_PREEMPTED),
            event(9_000, 1, SCHED_IN),
            exit(10_000, 0, MAIN),
        ],
        "            [     7] | /* rftrace:mark */
            [     7] | main() {
   1.500 us [     7] |   /* linux:schedule */
            [     7] |   /* linux:sched-out (pre-empted) */
            [     7] |   /* event:1000001 */
   2.000 us [     7] |   /* linux:sched-in */
   1.000 us [     7] |   /* linux:schedule (pre-empted) */
   8.000 us [     7] | } /* main */
",
    );
}

#[test]
fn functions_that_are_still_open() {
    check(
        &[entry(10, 0, MAIN), entry(20, 1, A)],
        "            [     7] | main() {
            [     7] |   a() {

# Still open at the end of the trace, outermost first:
# [     7] main > a
",
    );
}

#[test]
fn a_trace_that_starts_inside() {
    check(
        &[exit(10, 2, B), entry(15, 2, C), exit(18, 2, C), exit(20, 1, A), exit(30, 0, MAIN)],
        "            [     7] |     } /* b */
   0.003 us [     7] |     c();
            [     7] |   } /* a */
            [     7] | } /* main */
",
    );
}

#[test]
fn flaws() {
    let dir = trace(&[
        entry(10, 0, MAIN),
        entry(20, 1, A),
        exit(30, 2, C),
        entry(40, 2, B),
        exit(50, 1, A),
        entry(60, 1, A),
        lost(70, 12),
        exit(80, 0, MAIN),
    ]);
    let (text, summary) = replay(&dir.open(), false);
    assert_eq!(
        text,
        "# DURATION     TID     FUNCTION
            [     7] | main() {
            [     7] |   a() {
            [     7] |     /* c: exit without entry */
            [     7] |     b() {
            [     7] |     } /* b: exit not recorded */
   0.030 us [     7] |   } /* a */
            [     7] |   a() {
            [     7] |     /* LOST 12 records */
            [     7] |   } /* a: exit not recorded */
   0.070 us [     7] | } /* main */
"
    );
    let counts: Vec<_> = summary.warnings.iter().collect();
    assert_eq!(counts, [(Warning::StrayExit, 1), (Warning::MissingExit, 2), (Warning::LostRecord, 12)]);
    assert_eq!(
        summary.warnings.to_string(),
        "1 function exit had no entry and was ignored\n\
         2 functions ended without a recorded exit\n\
         12 records were lost while tracing: give the tracer a larger buffer"
    );
}

#[test]
fn colors() {
    let dir = trace(&[
        entry(0, 0, MAIN),
        entry(1, 1, A),
        exit(2_000_001, 1, A),
        lost(2_000_002, 1),
        exit(3_000_000_000, 0, MAIN),
    ]);
    let (text, _) = replay(&dir.open(), true);
    assert_eq!(
        text,
        "# DURATION     TID     FUNCTION
            [     7] | main() {
 \x1b[32m  2.000 ms\x1b[m [     7] |   a();
            [     7] |   \x1b[31m/* LOST 1 records */\x1b[m
 \x1b[33m  3.000  s\x1b[m [     7] | } \x1b[90m/* main */\x1b[m
"
    );
}

#[test]
fn indentation_has_an_end() {
    let records: Vec<_> = (0..3000).map(|time| entry(time, 0, A)).collect();
    let (text, _) = replay(&trace(&records).open(), false);
    let widths = text.lines().filter_map(|line| line.find("a() {"));
    assert_eq!(widths.max(), Some("            [     7] | ".len() + 2 * 1024));
}
