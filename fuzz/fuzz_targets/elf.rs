//! ELF files: functions, build-ids, code, debug information; and what `rftrace symbols` makes of them.

#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use rftrace_frontend::Binary;
use rftrace_symbols::{SymbolOptions, add_symbols};

fuzz_target!(|bytes: &[u8]| {
    let path = rftrace_fuzz::file("prog", bytes);
    if let Ok(binary) = Binary::read(&path) {
        let recorded: HashSet<u64> = (0x1000..0x1400).step_by(5).chain([0, u64::MAX >> 16]).collect();
        let found = binary.find_load_address(&recorded);
        for address in [0, binary.link_address(), 0xffff_ffff_8010_0000, u64::MAX].into_iter().chain(found) {
            let loaded = binary.loaded_at(address);
            let start = loaded.range().start;
            for (_, linked, name) in loaded.functions(start) {
                std::hint::black_box((linked, name));
            }
            let _ = loaded.write_symbols(&mut std::io::sink(), "prog", start);
            std::hint::black_box(recorded.iter().filter(|&&address| loaded.is_recorded_at(address)).count());
        }
    }
    for (name, bytes) in [
        ("info", &include_bytes!("../seeds/directory/info")[..]),
        ("task.txt", include_bytes!("../seeds/directory/task.txt")),
        // Without a build-id, so that any binary of this name may be it.
        ("sid-00c0ffee00c0ffee.map", b"000000400000-000000403000 r-xp 00000000 00:00 0 /bin/prog\n"),
        ("7.dat", include_bytes!("../seeds/directory/7.dat")),
    ] {
        rftrace_fuzz::file(name, bytes);
    }
    let _ = std::fs::remove_file(rftrace_fuzz::folder().join("prog.sym"));
    if add_symbols(rftrace_fuzz::folder(), &SymbolOptions::new(vec![path])).is_ok() {
        rftrace_fuzz::read_directory(rftrace_fuzz::folder());
    }
});
