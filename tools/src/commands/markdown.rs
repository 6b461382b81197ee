//! Tables of Markdown, as GitHub shows them. Names come from elsewhere: nothing in them is Markdown.

use std::io::{self, Write};

use rftrace_read::Shown;

/// A text as code, for a cell of a table.
pub(crate) fn code(text: &str) -> String {
    let text = Shown::new(text).text().replace('|', "\\|");
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    // A space keeps backticks of the text from the fence, and is not shown.
    let space = if longest > 0 { " " } else { "" };
    format!("{fence}{space}{text}{space}{fence}")
}

/// Writes the head of a table: columns of numbers, and a last one of text.
pub(crate) fn write_head(numbers: &[String], text: &str, out: &mut dyn Write) -> io::Result<()> {
    let titles: Vec<_> = numbers.iter().map(|title| title.trim()).chain([text]).collect();
    writeln!(out, "| {} |", titles.join(" | "))?;
    writeln!(out, "|{}---|", "--:|".repeat(numbers.len()))
}

/// Writes a row of it.
pub(crate) fn write_row(numbers: &[String], text: &str, out: &mut dyn Write) -> io::Result<()> {
    let cells: Vec<_> = numbers.iter().map(|cell| cell.trim()).chain([text]).collect();
    writeln!(out, "| {} |", cells.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_cell() {
        for (name, cell) in [
            ("app::main", "`app::main`"),
            ("<a as b|c>::d", "`<a as b\\|c>::d`"),
            ("a`b``c", "``` a`b``c ```"),
            ("a\nb", "`a\\nb`"),
            ("*_[x](y)", "`*_[x](y)`"),
        ] {
            assert_eq!(code(name), cell);
        }
        let mut table = Vec::new();
        write_head(&["  Calls".to_owned(), "after".to_owned()], "Function", &mut table).unwrap();
        write_row(&["    1".to_owned(), String::new()], &code("f"), &mut table).unwrap();
        assert_eq!(String::from_utf8(table).unwrap(), "| Calls | after | Function |\n|--:|--:|---|\n| 1 |  | `f` |\n");
    }
}
