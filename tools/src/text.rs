//! Lines of a text file, with where they start.

use std::borrow::Cow;

/// The lines of `bytes` without their newlines, each with its byte offset.
///
/// What is not UTF-8 is replaced, and so are control characters but for tabs: lines end up on terminals.
pub(crate) fn lines(bytes: &[u8]) -> impl Iterator<Item = (u64, Cow<'_, str>)> {
    let mut offset = 0;
    bytes.split_inclusive(|&byte| byte == b'\n').map(move |line| {
        let start = offset;
        offset += line.len() as u64;
        (start, clean(String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(line))))
    })
}

fn clean(line: Cow<'_, str>) -> Cow<'_, str> {
    let is_control = |c: char| c.is_control() && c != '\t';
    if line.contains(is_control) { line.replace(is_control, "\u{fffd}").into() } else { line }
}

#[cfg(test)]
mod tests {
    use super::lines;

    #[test]
    fn lines_have_offsets() {
        let found: Vec<_> = lines(b"ab\n\n\xff\x1bc\td").map(|(offset, line)| (offset, line.into_owned())).collect();
        assert_eq!(found, [(0, "ab".into()), (3, String::new()), (4, "\u{fffd}\u{fffd}c\td".into())]);
        assert_eq!(lines(b"").count(), 0);
    }
}
