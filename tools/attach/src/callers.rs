//! The functions on a stopped thread's stack, by the unwind information of their modules.
//!
//! The words of a stack are only a rough guide: an address that an earlier call left in an unused part of a frame stays
//! as long as the function runs, which may be `main`.

use std::ops::Range;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, Module, Unwinder};
use nix::libc::user_regs_struct;

use super::process::{Map, Process};

/// Frames of a thread to look at.
const MOST_FRAMES: usize = 4096;

/// Facts on a process's modules.
pub(crate) struct Callers {
    unwinder: UnwinderX86_64<Vec<u8>>,
    /// Code with unwind information.
    texts: Vec<Range<u64>>,
}

impl Callers {
    pub(crate) fn new(process: &Process, maps: &[Map]) -> Self {
        let mut paths: Vec<&str> =
            maps.iter().filter(|map| map.is_executable && map.path.starts_with('/')).map(|map| &*map.path).collect();
        paths.sort_unstable();
        paths.dedup();
        let mut callers = Self { unwinder: UnwinderX86_64::new(), texts: Vec::new() };
        for path in paths {
            let Ok(Some(module)) = process.module(maps, |other| other == path) else { continue };
            let sections = [".eh_frame", ".eh_frame_hdr", ".text"].map(|name| module.section(name));
            let [Some((frames_at, frames)), Some((table_at, table)), Some((text_at, _))] = sections else { continue };
            let Some(all) = module.texts.iter().cloned().reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)) else {
                continue;
            };
            let sections = ExplicitModuleSectionInfo {
                base_svma: 0,
                text_svma: Some(text_at),
                eh_frame_svma: Some(frames_at),
                eh_frame: Some(frames),
                eh_frame_hdr_svma: Some(table_at),
                eh_frame_hdr: Some(table),
                ..Default::default()
            };
            callers.unwinder.add_module(Module::new(path.to_owned(), all, module.base(), sections));
            callers.texts.extend(module.texts);
        }
        callers
    }

    /// The return addresses of a thread's functions, out to its beginning. `None` if they are not sure.
    pub(crate) fn of(&self, process: &Process, registers: &user_regs_struct) -> Option<Vec<u64>> {
        let is_known = |address: u64| self.texts.iter().any(|text| text.contains(&address));
        let mut cache = CacheX86_64::new();
        let mut read = |address| process.word(address).ok_or(());
        let state = UnwindRegsX86_64::new(registers.rip, registers.rsp, registers.rbp);
        let mut frames = self.unwinder.iter_frames(registers.rip, state, &mut cache, &mut read);
        let mut found = Vec::new();
        while let Some(frame) = frames.next().ok()? {
            if !is_known(frame.address()) || found.len() == MOST_FRAMES {
                return None;
            }
            found.push(frame.address());
        }
        // The beginning of a program, or of a thread.
        (found.len() > 1).then_some(found)
    }
}

impl std::fmt::Debug for Callers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Callers").field("texts", &self.texts).finish_non_exhaustive()
    }
}
