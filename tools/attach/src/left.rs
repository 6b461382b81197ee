//! Leftovers of recorders that were killed while they had borrowed a thread of a process: open files in its memory, and memory of that thread.
//! The next one removes it.
//!
//! Files are known by their names, which have the number of the process: one that is a recorder itself has files of others too. Memory is known by what it
//! begins with. It is shared, though nobody shares it, as the system joins no other mapping with it.
//!
//! Not here: a bank that is still mapped, slots and branches, which the tracer gives back itself.

use std::fs;

use anyhow::Result;
use nix::libc::{self, pid_t};

use super::borrowed::Borrowed;
use super::library::close;
use super::owner::Owner;
use super::process::Process;
use super::status::Status;
use super::sys;
use super::world::World;

/// The file that memory is mapped from which processes share that one has made.
const SHARED: &str = "/dev/zero (deleted)";
/// How all names of files in its memory begin.
const FILES: &str = "/memfd:rftrace-";

/// Removes it, by a thread that is borrowed. What is not sure to be nobody's stays for the next one.
pub(crate) fn remove(thread: &mut Borrowed<'_>, process: &Process, late: &mut Vec<pid_t>) -> Result<()> {
    if files(process).is_empty() && memories(process, thread)?.is_empty() {
        return Ok(());
    }
    // Nobody closes or opens files meanwhile, and no other recorder has a thread.
    let world = World::stop(process, thread.thread, late)?;
    if world.is_in_doubt() || !late.is_empty() {
        return Ok(());
    }
    for number in files(process) {
        close(thread, number)?;
    }
    for (memory, owner) in memories(process, thread)? {
        let is_there = owner.thread == thread.thread || world.threads.contains(&owner.thread);
        let rsp = || match owner.thread == thread.thread {
            true => Ok(thread.registers.rsp),
            false => sys::registers(owner.thread).map(|registers| registers.rsp),
        };
        let blocked = || match owner.thread == thread.thread {
            true => thread.mask(),
            false => Status::of(owner.thread).map_or(u64::MAX, |status| status.blocked()),
        };
        if !is_there || !owner.is_at_work(&memory, rsp()?, blocked()) {
            thread.system_call(libc::SYS_munmap, &[memory.start, memory.end - memory.start])?;
        }
    }
    Ok(())
}

/// The numbers of its open files that are a recorder's.
fn files(process: &Process) -> Vec<u64> {
    let end = format!(".{} (deleted)", process.pid);
    let is_ours = |entry: &fs::DirEntry| {
        let target = fs::read_link(entry.path()).unwrap_or_default();
        target.to_str().is_some_and(|target| target.starts_with(FILES) && target.ends_with(&end))
    };
    let entries = fs::read_dir(process.file("fd")).into_iter().flatten().flatten();
    entries.filter(is_ours).filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Memory of threads that were borrowed before, and whose it was.
fn memories(process: &Process, thread: &Borrowed<'_>) -> Result<Vec<(std::ops::Range<u64>, Owner)>> {
    let maps = process.maps()?;
    let others =
        maps.into_iter().filter(|map| map.path == SHARED && !map.is_executable && map.range.start != thread.memory());
    Ok(others.filter_map(|map| Some((map.range.clone(), Owner::read(process, map.range.start)?))).collect())
}
