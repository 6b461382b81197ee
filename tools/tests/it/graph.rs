//! Which functions call which.

use rftrace_read::{Pattern, SCHED_IN, SCHED_OUT};
use rftrace_views::{Graph, GraphField};

use crate::cli::{run, utf8};
use crate::dir::{A, B, C, Dir, Files, MAIN, entry, event, exit, trace};

fn text(dir: &Dir, function: Option<&str>, fields: &[GraphField]) -> String {
    let function = function.map(|text| Pattern::new(text).expect("a pattern"));
    let graph = Graph::read(&dir.open(), function.as_ref()).expect("a readable trace");
    let mut out = Vec::new();
    graph.write(fields, &mut out).expect("a vector takes all");
    String::from_utf8(out).expect("text")
}

#[test]
fn calls_from_one_place_are_one_line() {
    let dir = Files::new(&[
        (
            7,
            &[
                entry(0, 0, MAIN),
                entry(1_000, 1, A),
                entry(2_000, 2, B),
                exit(3_000, 2, B),
                exit(4_000, 1, A),
                entry(5_000, 1, A),
                exit(6_000, 1, A),
                event(6_500, 1, SCHED_OUT),
                event(7_000, 1, SCHED_IN),
                entry(8_000, 1, B),
                exit(9_000, 1, B),
                exit(10_000, 0, MAIN),
            ],
        ),
        (8, &[entry(0, 0, MAIN), exit(1_000, 0, MAIN)]),
    ])
    .write();
    let tree = "# TOTAL TIME   SELF TIME   FUNCTION
   11.000 us             : (1) prog
   11.000 us    5.500 us : (2) main
    4.000 us    3.000 us :  +-(2) a
    1.000 us    1.000 us :  | (1) b
                         :  | 
    0.500 us    0.500 us :  +-(1) linux:schedule
                         :  | 
    1.000 us    1.000 us :  +-(1) b
";
    let expected = format!("# Function Call Graph for 'prog'\n========== FUNCTION CALL GRAPH ==========\n{tree}");
    assert_eq!(text(&dir, None, &[GraphField::Total, GraphField::Own]), expected);
}

#[test]
fn how_a_function_is_called() {
    let dir = trace(&[
        // Within something whose entry is not among the records.
        entry(0, 1, B),
        entry(1_000, 2, C),
        exit(2_000, 2, C),
        exit(3_000, 1, B),
        exit(4_000, 0, MAIN),
        entry(5_000, 0, A),
        entry(6_000, 1, B),
        entry(7_000, 2, B),
        exit(8_000, 2, B),
        exit(10_000, 1, B),
        exit(11_000, 0, A),
    ]);
    let expected = format!(
        "# Function Call Graph for 'b'
=============== BACKTRACE ===============
 backtrace #0: hit 1, time   4.000 us
   [0] a ({A:#x})
   [1] b ({B:#x})

 backtrace #1: hit 1, time   3.000 us
   [0] (entered before the trace begins)
   [1] b ({B:#x})

========== FUNCTION CALL GRAPH ==========
# TOTAL TIME   FUNCTION
    7.000 us : (2) b
    1.000 us :  +-(1) c
             :  | 
    1.000 us :  +-(1) b
"
    );
    assert_eq!(text(&dir, Some("b"), &[GraphField::Total]), expected);
    for args in [&["graph", utf8(dir.path()), "b"][..], &["graph", "-d", utf8(dir.path()), "b"]] {
        assert_eq!(run(args).1, expected, "{args:?}");
    }
    let (code, stdout, stderr) = run(&["graph", utf8(dir.path()), "nothing"]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    assert!(stderr.contains("no function `nothing` was called"), "{stderr}");
}

#[test]
fn recursion_without_end() {
    let deep: Vec<_> = (0..60_000).map(|time| entry(time, time.min(1000), [A, B][time as usize % 2])).collect();
    let dir = trace(&deep);
    let text = text(&dir, None, &[]);
    assert_eq!(text.lines().filter(|line| line.ends_with("(1) a") || line.ends_with("(1) b")).count(), 60_000);
}
