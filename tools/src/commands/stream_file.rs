//! Files with a stream, as `rftrace ctl PID pipe --rfs` writes it: who is given one in place of a trace says what makes a trace of it.

use std::path::Path;

use anyhow::{Result, bail};
use rftrace_format::files::STREAM_MAGIC;
use rftrace_read::files;

use super::common::shell_word;

/// An error for a file that begins as a stream, whatever its name is.
pub(crate) fn refuse(path: &Path) -> Result<()> {
    // The reader of the file reports that it cannot be read.
    if files::begins_with(path, &STREAM_MAGIC).is_ok_and(|begins| begins) {
        bail!(
            "{} is a stream, not a trace directory: `rftrace recv --stdin -o traces < {}` makes a trace of it, in a folder below `traces`",
            path.display(),
            shell_word(path)
        );
    }
    Ok(())
}
