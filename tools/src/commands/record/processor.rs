//! Features of `rftrace record` by processor.

use anyhow::{Result, bail};
use rftrace_record::Processor;

/// Refuses options that this processor does not support; each comes with true if it is given.
pub(super) fn check(options: &[(&str, bool)]) -> Result<()> {
    let Some(own) = Processor::own().filter(|own| !own.has_all) else { return Ok(()) };
    match options.iter().find(|(_, is_given)| *is_given) {
        None => Ok(()),
        Some((option, _)) => bail!(
            "{option} works only on x86-64, and this rftrace is for {}; leave it out. There rftrace records calls of the \
             tracer, patchable functions, functions of -P and library calls",
            own.name
        ),
    }
}
