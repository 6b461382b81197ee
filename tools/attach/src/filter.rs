//! What is recorded of a process that has no library to choose it: the tracer's table of functions, which is made here and written there.
//!
//! The table has its place from the first recorder that chooses anything until the process ends; the next one goes on with it, as a thread may still look
//! into it.

use std::mem::offset_of;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result, bail};
use nix::libc;
use rftrace::abi::{Control, FilterControl};
use rftrace_frontend::{Filter, OutsideChoice};

use super::borrowed::Borrowed;
use super::image::Image;
use super::jumps::Hooked;
use super::library::map;
use super::process::Process;
use super::stubs::Entries;

/// What is recorded; nothing is chosen if it is `None`.
#[derive(Debug)]
pub(crate) struct Chosen(Option<OutsideChoice>);

/// Where the tracer's control block has what is recorded.
const FILTER: usize = offset_of!(Control, filter);

impl Chosen {
    /// Looks up what rules choose in a process, which may have the tracer already. Nothing changes yet.
    ///
    /// # Errors
    ///
    /// Sentences: the rules are wrong, or match nothing.
    pub(crate) fn look_up(
        rules: &str,
        process: &Process,
        image: Option<&Image>,
        (hooked, entries): (&[Hooked], &Entries),
    ) -> Result<Self> {
        if rules.trim().is_empty() {
            return Ok(Self(None));
        }
        let filter: Filter = rules.parse().context("what to record")?;
        let hooks = hooked.iter().map(|it| (it.hook, it.range.start)).collect();
        let slots = image.map_or_else(|| Ok(Vec::new()), |image| published(process, image.control(process)))?;
        let folder = PathBuf::from(format!("/proc/{}", process.pid));
        let functions = (hooks, entries.functions().to_vec());
        Ok(Self(Some(OutsideChoice::new(&filter, &folder, functions, &slots)?)))
    }

    /// Has the tracer record that, which does not record now.
    pub(crate) fn apply(&self, thread: &mut Borrowed<'_>, process: &Process, image: &Image) -> Result<()> {
        let control = image.control(process);
        if self.0.is_some() && table_of(process, control) == 0 {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let bytes = OutsideChoice::TABLE_BYTES as u64;
            let table = map(thread, bytes, protection)?;
            // As for the library: a small table is not to take 2 MiB. It may fail.
            let _ = thread.system_call(libc::SYS_madvise, &[table, bytes, libc::MADV_NOHUGEPAGE as u64]);
            let at = control + (FILTER + offset_of!(FilterControl, sites)) as u64;
            process.write(at, &table.to_le_bytes())?;
        }
        self.write(process, control)?;
        thread.call(image.function("rftrace_backend_filter")?, &[self.0.is_some().into()])
    }

    /// Obeys the rules with what is loaded now.
    pub(crate) fn refresh(&mut self, process: &Process, image: &Image) -> Result<()> {
        let Some(choice) = &mut self.0 else { return Ok(()) };
        choice.refresh()?;
        self.write(process, image.control(process))
    }

    /// Calls that are over earlier, in ticks, are not recorded.
    pub(crate) fn min_ticks(&self) -> u64 {
        self.0.as_ref().map_or(0, |choice| choice.control().min_ticks.load(Relaxed))
    }

    /// Whether each of the rules that may match nothing has an effect.
    pub(crate) fn in_effect(&self) -> &[bool] {
        self.0.as_ref().map_or(&[], OutsideChoice::in_effect)
    }

    /// Writes all of it, the table first: hooks may look into it.
    fn write(&self, process: &Process, control: u64) -> Result<()> {
        let put = |offset: usize, bytes: &[u8]| process.write(control + (FILTER + offset) as u64, bytes);
        put(offset_of!(FilterControl, min_ticks), &self.min_ticks().to_le_bytes())?;
        let Some(choice) = &self.0 else { return Ok(()) };
        let chosen = choice.control();
        let bytes: Vec<u8> = choice.slots().flat_map(u64::to_le_bytes).collect();
        process.write(table_of(process, control), &bytes)?;
        let mask = chosen.sites_mask.load(Relaxed) as u64;
        put(offset_of!(FilterControl, sites_mask), &mask.to_le_bytes())?;
        for (offset, word) in [
            (offset_of!(FilterControl, decisive), &chosen.decisive),
            (offset_of!(FilterControl, wanted), &chosen.wanted),
            (offset_of!(FilterControl, depth), &chosen.depth),
            (offset_of!(FilterControl, depth_limit), &chosen.depth_limit),
        ] {
            put(offset, &word.load(Relaxed).to_le_bytes())?;
        }
        put(offset_of!(FilterControl, default_action), &[chosen.default_action.load(Relaxed)])?;
        Ok(())
    }
}

/// Where the table lies; 0 if there is none.
fn table_of(process: &Process, control: u64) -> u64 {
    process.word(control + (FILTER + offset_of!(FilterControl, sites)) as u64).unwrap_or(0)
}

/// The slots of the table that are published; none if there is no table.
fn published(process: &Process, control: u64) -> Result<Vec<u64>> {
    let table = table_of(process, control);
    if table == 0 {
        return Ok(Vec::new());
    }
    let mask = process.word(control + (FILTER + offset_of!(FilterControl, sites_mask)) as u64).unwrap_or(0);
    let n_bytes = mask.saturating_add(1).saturating_mul(size_of::<u64>() as u64);
    let mut bytes = vec![0; n_bytes.min(OutsideChoice::TABLE_BYTES as u64) as usize];
    if !process.read(table, &mut bytes) {
        bail!("process {} has lost the tracer's memory: start it anew", process.pid);
    }
    Ok(super::sys::words(&bytes).collect())
}
