//! `rftrace record --resources`: what the library for it is told, and what is said of it.

use std::ffi::OsString;
use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;
use indicatif::{HumanBytes, HumanCount};
use rftrace_format::resources::Resource;
use rftrace_record::program;
use rftrace_record::resources::{Recorded, ResourceRecorder};

use crate::commands::common::shell_word;
use crate::commands::resources::ResourceKind;

/// How it is found who has called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backtraces {
    /// By the unwind information of programs and libraries.
    Cfi,
    /// By frame pointers, where programs and libraries were built with them: faster.
    Fp,
    /// Not at all.
    None,
}

/// Begins to record these, if there are any.
pub(super) fn begin(kinds: &[ResourceKind], work: &Path, most_bytes: usize) -> Result<Option<ResourceRecorder>> {
    let wanted: Vec<Resource> = kinds.iter().map(|&kind| kind.into()).collect();
    if wanted.is_empty() {
        return Ok(None);
    }
    ResourceRecorder::begin(work, most_bytes as u64, &wanted, false).map(Some)
}

/// What the library is told.
pub(crate) fn environment(recorder: &ResourceRecorder, way: Backtraces) -> Result<[(&'static str, OsString); 3]> {
    let way = match way {
        Backtraces::Cfi => "cfi",
        Backtraces::Fp => "fp",
        Backtraces::None => "none",
    };
    Ok([
        ("RFTRACE_RESOURCES", recorder.path().into()),
        ("RFTRACE_RESOURCES_SPACE", ResourceRecorder::space()?.into()),
        ("RFTRACE_RESOURCES_BACKTRACES", way.into()),
    ])
}

/// Says that the program has an allocator of its own, which nothing outside of it can take the place of.
pub(super) fn tell_of_allocator(program: &Path) {
    if let Some(function) = program::own_allocator(program) {
        say!(
            "rftrace: {} has an allocator of its own (`{function}`): what that gives out is not seen, only what libraries and the \
             rest of the program take from the C library",
            program.display()
        );
    }
}

/// Says what was not recorded.
pub(crate) fn tell_of_losses(recorded: &Recorded, most_bytes: usize) {
    if recorded.is_cut {
        say!(
            "rftrace: resources.dat has its --max-size, {}: what came later is not recorded; raise that",
            HumanBytes(most_bytes as u64)
        );
    } else if recorded.lost > 0 {
        say!(
            "rftrace: {} calls that take something or give it back were not recorded, as too many threads ran at the same time",
            HumanCount(recorded.lost)
        );
    }
    if let Some(error) = &recorded.error {
        say!("rftrace: resources.dat could not be written to its end: {error}");
    }
    if recorded.processes == 0 {
        say!(
            "rftrace: no --resources were recorded: the program did not load the library for it (what runs with other \
             rights than its caller never does), or runs in another space of processes or without /proc"
        );
    }
}

/// Says where it is.
pub(super) fn tell_of_place(dir: &Path) {
    say!("rftrace: who took what: rftrace resources {}", shell_word(dir));
}
