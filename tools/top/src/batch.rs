//! Tables as text, for files and pipes.

use std::io::{self, Write};

use crate::head::{self, Watched};
use crate::table::Table;

/// Writes a table with at most `limit` rows, and an empty line after it.
///
/// # Errors
///
/// Those of `out`.
pub fn write(out: &mut impl Write, watched: &Watched, table: &Table, limit: usize) -> io::Result<()> {
    let ([first, second], _) = head::lines(watched, table);
    writeln!(out, "{first}\n{second}\n{}", table.title())?;
    for row in table.rows().iter().take(limit) {
        writeln!(out, "{}{}", table.columns(row), row.shown)?;
    }
    if let Some(more) = table.rows().len().checked_sub(limit).filter(|&more| more > 0) {
        writeln!(out, "and {more} more {}", if more == 1 { "function" } else { "functions" })?;
    }
    writeln!(out)?;
    out.flush()
}
