//! Guest and host on one timeline, where the directories are damaged; `tests/golden/merge.txt` has the rest.

use std::fs;

use rftrace_export::Chrome;
use rftrace_guest::{Merge, MergeOptions};
use rftrace_read::Trace;
use rftrace_tests::golden;

/// A copy of a directory in which some bytes are others is read, or is an error that names a file.
#[test]
fn hostile_directories() {
    let whole = golden::copy("merge");
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for _ in 0..300 {
        let copy = golden::copy("merge/guest");
        for file in fs::read_dir(copy.path()).unwrap() {
            let path = file.unwrap().path();
            let mut bytes = fs::read(&path).unwrap();
            if random() % 4 == 0 && !bytes.is_empty() {
                let place = random() as usize % bytes.len();
                bytes[place] = random() as u8;
                bytes.truncate(bytes.len() - random() as usize % (bytes.len() / 4 + 1));
            }
            fs::write(path, bytes).unwrap();
        }
        let mut options = MergeOptions::default();
        options.guest = copy.path().to_owned();
        options.hosts = vec![whole.path().join("host")];
        options.tsc_offset = Some(-1_000_000_007);
        let out = tempfile::tempdir().unwrap();
        let result = Merge::open(&options).and_then(|merge| {
            merge.export(&mut Chrome::new(Vec::new()))?;
            merge.write_directory(&out.path().join("out"))
        });
        if let Err(error) = result {
            let text = error.to_string();
            let names_file = text.contains(copy.path().to_str().unwrap());
            assert!(names_file || text.contains("wall clock") || text.contains("clock.txt"), "{text}");
        } else {
            Trace::open(&out.path().join("out")).unwrap();
        }
    }
}
