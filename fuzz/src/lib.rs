//! What the targets share.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

extern crate rftrace as _;

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
    let Ok(trace) = rftrace_tools::Trace::open(dir) else { return };
    for task in trace.tasks() {
        let _ = trace.call_tree(task).map(|tree| tree.to_string());
    }
    let _ = rftrace_tools::replay(&trace, &Default::default(), &mut std::io::sink());
    if let Ok(mut report) = rftrace_tools::Report::read(&trace) {
        report.sort(rftrace_tools::SortKey::Own);
        let _ = report.write(usize::MAX, &mut std::io::sink());
    }
}
