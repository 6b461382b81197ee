//! Shared code of the targets.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rftrace_export::{Chrome, ExportOptions, Firefox, Folded, Perfetto, export};
use rftrace_read::{Choice, Pattern};
use rftrace_views::{CallTree, Field, Graph, GraphField, ReplayField, ReplayOptions, TaskLines};

extern crate rftrace as _;

/// A valid trace of two tasks.
pub const DIRECTORY: [(&str, &[u8]); 12] = [
    ("info", include_bytes!("../seeds/directory/info")),
    ("task.txt", include_bytes!("../seeds/directory/task.txt")),
    ("sid-00c0ffee00c0ffee.map", include_bytes!("../seeds/directory/sid-00c0ffee00c0ffee.map")),
    ("prog.sym", include_bytes!("../seeds/directory/prog.sym")),
    ("prog.dbg", include_bytes!("../seeds/directory/prog.dbg")),
    ("events.txt", include_bytes!("../seeds/directory/events.txt")),
    ("7.dat", include_bytes!("../seeds/directory/7.dat")),
    ("8.dat", include_bytes!("../seeds/directory/8.dat")),
    ("perf-cpu0.dat", include_bytes!("../seeds/directory/perf-cpu0.dat")),
    ("kernel_header", include_bytes!("../seeds/directory/kernel_header")),
    ("kernel-cpu0.dat", include_bytes!("../seeds/directory/kernel-cpu0.dat")),
    ("kallsyms", include_bytes!("../seeds/directory/kallsyms")),
];

/// A folder for the files of this process, in memory where that is possible.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let folder = parent.join(format!("rftrace-fuzz-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a writable folder");
        folder
    })
}

/// Writes a file into the folder and returns its path.
pub fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder().join(name);
    fs::write(&path, bytes).expect("room for a file");
    path
}

/// Reads a trace directory in all ways there are. Errors are fine, panics are not.
pub fn read_directory(dir: &Path) {
    let Ok(mut trace) = rftrace_read::Trace::open(dir) else { return };
    for task in trace.tasks() {
        let _ = CallTree::read(&trace, task).map(|tree| tree.to_string());
    }
    let mut options = ReplayOptions::default();
    let _ = rftrace_views::replay(&trace, &options, &mut std::io::sink());
    (options.fields, options.task_indent) = (ReplayField::ALL.to_vec(), 8);
    let _ = rftrace_views::replay(&trace, &options, &mut std::io::sink());
    options.is_flat = true;
    let _ = rftrace_views::replay(&trace, &options, &mut std::io::sink());
    for task in trace.tasks() {
        let mut lines = TaskLines::new(&trace, task);
        lines.by_ref().take(5).for_each(drop);
        assert!(lines.clone().flatten().eq(lines.flatten()), "a copy goes on otherwise");
    }
    if let Ok(Some(waits)) = rftrace_views::Waits::read(&trace) {
        let _ = waits.write(10, &mut std::io::sink());
    }
    if let Ok(mut report) = rftrace_views::Report::read_spread(&trace) {
        report.sort(&Field::ALL);
        let _ = report.write(&Field::ALL, usize::MAX, &mut std::io::sink());
    }
    let _ = Graph::read(&trace, None).map(|graph| graph.write(&[GraphField::Own], &mut std::io::sink()));
    let options = ExportOptions::default();
    let _ = export(&trace, &options, &mut Chrome::new(std::io::sink()));
    let _ = export(&trace, &options, &mut Perfetto::new(std::io::sink(), None));
    let _ = export(&trace, &options, &mut Folded::new(std::io::sink(), true));
    let _ = export(&trace, &options, &mut Firefox::new(std::io::sink(), "prog", 0, None));

    // A part of it.
    let mut choice = Choice::default();
    choice.below.extend(Pattern::new("*a*"));
    (choice.depth, choice.min_ns, choice.times) = (3, 10, 100..u64::MAX / 2);
    trace.choose(choice);
    let _ = rftrace_views::replay(&trace, &Default::default(), &mut std::io::sink());

    // With places in the source.
    if trace.read_sources(|_| None).is_ok() {
        let _ = rftrace_views::replay(&trace, &Default::default(), &mut std::io::sink());
        let _ = export(&trace, &options, &mut Chrome::new(std::io::sink()));
    }
}

/// The checksum of bytes in the file beside a spool (`frontend/src/bank/about.rs`).
fn about_sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(8).map(|word| word.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)));
    let add = |sum: u64, word: u64| (sum.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    std::iter::once(bytes.len() as u64).chain(words).fold(0, add)
}

/// Makes the checksums in the file beside a spool right.
pub fn seal_about(bytes: &mut [u8]) {
    let Some((head, facts)) = bytes.split_at_mut_checked(64) else { return };
    head[48..56].copy_from_slice(&about_sum(facts).to_le_bytes());
    let sum = about_sum(&head[..56]);
    head[56..].copy_from_slice(&sum.to_le_bytes());
}
