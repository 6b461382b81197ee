//! Files that say who took what, behind the first bytes, without which none is read.

#![no_main]

use std::io::sink;

use libfuzzer_sys::fuzz_target;
use rftrace_resources::{
    Account, Choice, FunctracerText, Names, Recording, Report, Section, Tests, Unit, Until, timeline, write_sp_rtrace,
};

fuzz_target!(|bytes: &[u8]| {
    let path = rftrace_fuzz::file("resources.dat", &[&b"rftrace res. 02\n"[..], bytes].concat());
    let Ok(recording) = Recording::open(&path) else { return };
    for resource in recording.resources() {
        for until in [Until::End, Until::Nanos(1 << 30), Until::Events(3)] {
            let Ok(account) = Account::of(&recording, resource, until, None) else { continue };
            let report = Report::of(&recording, &account, &Choice::default(), &mut Names::default());
            let _ = account.write(&recording, &mut sink());
            let _ = account.json(&recording);
            let _ = report.write(10, 10, &Choice::default(), &mut sink());
            let _ = report.json(10, 10);
            let _ = report.flame_graph("memory", Unit::Bytes, |sums| sums.allocated, &mut sink());
            let _ = report.flame_graph("memory", Unit::Blocks, |sums| sums.temporary, &mut sink());
        }
        for process in recording.processes().values().take(3) {
            let text = FunctracerText {
                resource: Some(resource),
                has_time: true,
                has_names: true,
                has_release_stacks: true,
                depth: 9,
            };
            let section = Section { pid: process.pid, times: (1, u64::MAX), first_index: 0, lines: &[] };
            let _ = text.write(&recording, &section, &mut Names::default(), &mut sink());
            let _ = write_sp_rtrace(&recording, &[resource], process.pid, 9, Some(&mut Names::default()), &mut sink());
        }
        let _ = Tests::of(&recording, &[resource], &[], &mut Names::default());
        let _ = timeline(&recording, resource, |_, _, _| Ok(()));
    }
});
