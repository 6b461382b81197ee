//! A kernel's image and its import, tried in a program: an import has the tree that a save of the same buffer has.

use std::fs;
use std::path::Path;

use rftrace_frontend::{Image, ImportOptions, Imported};
use rftrace_read::Trace;
use rftrace_tests::traces::{assert_same_lines, outline_where, trees, uftrace};
use rftrace_tests::{Profile, Program, Run, require, rust_program};
use rftrace_views::CallTree;

/// Imports the image of a program that ran.
fn import(run: &Run, program: &Program, options: ImportOptions) -> (Trace, Imported) {
    let mut options = options;
    options.binary = Some(program.path.clone());
    let image = Image::read(&run.path("image")).unwrap();
    assert_eq!(image.name(), "image");
    let imported = image.write_directory(&run.path("imported"), &options).unwrap();
    (run.trace("imported"), imported)
}

/// The options with the counter's frequency that a saved trace tells.
fn hz_of(trace: &Path) -> ImportOptions {
    let clock = fs::read_to_string(trace.join("clock.txt")).unwrap();
    let hz = clock.lines().find_map(|line| line.strip_prefix("tsc_hz=")).unwrap();
    let mut options = ImportOptions::default();
    options.tsc_hz = Some(hz.parse().unwrap());
    options
}

fn whole_outline(tree: &CallTree) -> String {
    outline_where(tree, Some)
}

/// When each call began and ended, from the beginning of the first one on.
fn times(trace: &Trace) -> Vec<u64> {
    let records = trace.tasks().iter().flat_map(|task| trace.records(task));
    let times: Vec<u64> = records.map(|record| record.unwrap().time_ns).collect();
    let first = *times.iter().min().unwrap();
    times.into_iter().map(|time| time - first).collect()
}

#[test]
fn an_import_is_what_a_save_of_the_same_buffer_is() {
    if !require(&["nightly", "uftrace"]) {
        return;
    }
    for (mode, profile) in [("stop", Profile::Debug), ("stop", Profile::Release), ("ring", Profile::Release)] {
        let program = rust_program("image", profile);
        let run = program.run(&[mode]);
        let saved = run.trace("trace");
        let (trace, imported) = import(&run, &program, hz_of(&run.path("trace")));
        let is_ring = mode == "ring";
        assert_eq!(
            imported.warnings.iter().any(|line| line.contains("overwritten")),
            is_ring,
            "{:?}",
            imported.warnings
        );
        assert_eq!(imported.warnings.len(), usize::from(is_ring), "{:?}", imported.warnings);

        let (expected, actual) = (trees(&saved), trees(&trace));
        assert_eq!(actual.len(), expected.len(), "tasks");
        for (actual, expected) in actual.iter().zip(&expected) {
            assert_same_lines(
                &whole_outline(actual),
                &whole_outline(expected),
                &format!("{mode}: task {}", actual.tid),
            );
        }
        let all: String = actual.iter().map(whole_outline).collect();
        let has = |name: &str| all.lines().any(|line| line.trim_start() == name);
        assert!(has("image::worker") && has("image::branch") && has("image::leaf"), "{all}");
        assert!(!all.contains("rftrace_frontend"), "{all}");
        // Each counts from a moment of its own, by a line of the same slope.
        for (actual, expected) in times(&trace).into_iter().zip(times(&saved)) {
            assert!(actual.abs_diff(expected) <= 2 + expected / 1_000_000, "{actual} and {expected}");
        }

        let dir = run.path("imported");
        assert!(uftrace(&["replay"], &dir).contains("image::branch() {"));
        assert!(uftrace(&["report"], &dir).contains("image::branch"));
        assert!(uftrace(&["dump"], &dir).contains("image::leaf"));
        assert!(uftrace(&["info"], &dir).contains("image"));
    }
}

#[test]
fn a_program_needs_no_more_than_memory() {
    if !require(&["nightly"]) {
        return;
    }
    let program = rust_program("image", Profile::Release);
    let run = program.run(&["static"]);
    let mut options = ImportOptions::default();
    options.tsc_hz = Some(1_000_000_000);
    let (trace, imported) = import(&run, &program, options);
    assert_eq!(imported.warnings, [] as [String; 0]);
    let workers: Vec<String> = trees(&trace)
        .iter()
        .map(|tree| outline_where(tree, |name| name.strip_prefix("image::").filter(|name| !name.contains(['<', ':']))))
        .filter(|outline| outline.contains("worker"))
        .collect();
    assert_eq!(workers.len(), 3);
    for outline in &workers {
        let count = |name: &str| outline.lines().filter(|line| line.trim_start() == name).count();
        assert_eq!(["worker", "branch", "recurse", "leaf"].map(count), [1, 300, 21, 601], "{outline}");
    }
}

/// How many chunks of an image are packed, and how many are as they were in memory.
fn n_chunks(image: &[u8]) -> [usize; 2] {
    let mut found = [0; 2];
    // Behind the magic and the versions: tag, length, contents, checksum.
    let mut rest = &image[16..];
    while !rest.is_empty() {
        let n_bytes = u32::from_le_bytes(rest[4..8].try_into().unwrap()) as usize;
        found[0] += usize::from(rest.starts_with(b"CHNZ"));
        found[1] += usize::from(rest.starts_with(b"CHNK"));
        rest = &rest[16 + n_bytes..];
    }
    found
}

#[test]
fn an_image_that_is_sent_amid_another_is_not_packed() {
    if !require(&["nightly"]) {
        return;
    }
    let program = rust_program("image", Profile::Release);
    let run = program.run(&["static"]);
    let images = ["image", "inner"].map(|name| fs::read(run.path(name)).unwrap());
    let [outer, inner] = [&images[0], &images[1]].map(|image| n_chunks(image));
    assert!(outer[0] > 0 && inner[0] == 0 && outer[0] + outer[1] == inner[1], "{outer:?} {inner:?}");
    assert!(2 * images[0].len() < images[1].len(), "{} and {} bytes", images[0].len(), images[1].len());
    let mut options = ImportOptions::default();
    options.tsc_hz = Some(1_000_000_000);
    let outlines = images.map(|image| {
        fs::write(run.path("image"), image).unwrap();
        let (trace, imported) = import(&run, &program, options.clone());
        assert_eq!(imported.warnings, [] as [String; 0]);
        let outlines: Vec<(String, Vec<u64>)> =
            trees(&trace).iter().map(|tree| (whole_outline(tree), times(&trace))).collect();
        outlines
    });
    assert_eq!(outlines[0], outlines[1]);
}

#[test]
fn a_cut_image_has_the_first_part_and_a_wrong_binary_is_noticed() {
    if !require(&["nightly"]) {
        return;
    }
    let program = rust_program("image", Profile::Release);
    let run = program.run(&["static"]);
    let mut image = fs::read(run.path("image")).unwrap();
    image.truncate(image.len() / 2);
    fs::write(run.path("image"), image).unwrap();
    let mut options = ImportOptions::default();
    options.load_address = Some(0x1000);
    let (trace, imported) = import(&run, &program, options);
    assert!(imported.events > 0 && !trace.tasks().is_empty());
    for part in ["ends early", "only 0 of"] {
        assert!(imported.warnings.iter().any(|line| line.contains(part)), "{part}: {:?}", imported.warnings);
    }
}
