//! `sid-<SID>.map`: the place of each module of a program in memory.

use core::fmt;

use crate::symbols::short_build_id;

/// The line for a stack that is on no map. uftrace needs a line for a stack; without one it takes every address for the
/// kernel's.
pub const NO_STACK: MapLine<'static> = MapLine::new((0xffff_ffff_ffff, 0xffff_ffff_ffff), "rw-p", STACK, None);

/// The path in the line of the main thread's stack.
pub const STACK: &str = "[stack]";

/// A line of a map: the place of a module. A symbol lies at `start` plus its own address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapLine<'a> {
    /// The module's first address.
    pub start: u64,
    /// The first address after the module.
    pub end: u64,
    /// The permissions of the memory, as in `/proc/<pid>/maps`: `r-xp`.
    pub permissions: &'a str,
    /// The part of the file: offset, device and inode, as in `/proc/<pid>/maps`. Readers ignore it.
    pub part: &'a str,
    /// The file's path, [spelled](crate::text::spelled); empty or in brackets for memory without a file.
    pub path: &'a str,
    /// The build-id in hexadecimal, of any length. The first 40 digits are written.
    pub build_id: Option<&'a str>,
}

impl<'a> MapLine<'a> {
    /// Creates a line without `part`.
    pub const fn new((start, end): (u64, u64), permissions: &'a str, path: &'a str, build_id: Option<&'a str>) -> Self {
        Self { start, end, permissions, part: "00000000 00:00 0", path, build_id }
    }

    /// Parses a line.
    ///
    /// # Errors
    ///
    /// The expected form of a line.
    pub fn parse(line: &'a str) -> Result<Self, &'static str> {
        Self::fields(line)
            .ok_or("expected a line of a memory map: `<start>-<end> <prot> <offset> <major:minor> <inode> <path>`")
    }

    fn fields(line: &'a str) -> Option<Self> {
        let word = |text: &'a str| {
            let (word, after) = text.split_once(' ').unwrap_or((text, ""));
            (word, after.trim_start())
        };
        let (range, rest) = word(line);
        let (start, end) = range.split_once('-')?;
        let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).ok());
        let (permissions, part) = word(rest);
        let (_offset, rest) = word(part);
        let (_device, rest) = word(rest);
        let (inode, rest) = word(rest);
        if inode.is_empty() {
            return None;
        }
        let part = part.get(..part.len() - rest.len())?.trim_end();
        let (path, build_id) = match rest.rsplit_once(" build-id:") {
            Some((path, id)) => (path, Some(id)),
            None => (rest, None),
        };
        Some(Self { start: start?, end: end?, permissions, part, path: path.trim_end(), build_id })
    }

    /// Returns true if the line names a file.
    pub fn is_file(&self) -> bool {
        !self.path.is_empty() && !self.path.starts_with('[')
    }
}

impl fmt::Display for MapLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { start, end, permissions, part, path, build_id } = self;
        write!(f, "{start:012x}-{end:012x} {permissions} {part}{:26}{path}", "")?;
        match build_id {
            Some(id) => writeln!(f, " build-id:{}", short_build_id(id)),
            None => writeln!(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn a_line_both_ways() {
        let line = MapLine::new((0x1000, 0x2000), "r-xp", "/bin/x", Some("ab"));
        let text = "000000001000-000000002000 r-xp 00000000 00:00 0                          /bin/x build-id:ab\n";
        assert_eq!(line.to_string(), text);
        assert_eq!(MapLine::parse(text.trim_end()), Ok(line));
        assert_eq!(
            NO_STACK.to_string(),
            "ffffffffffff-ffffffffffff rw-p 00000000 00:00 0                          [stack]\n"
        );
    }

    #[test]
    fn lines_of_others() {
        let line =
            MapLine::parse("ffffffff80000000-ffffffff80001000 r--p 00001000 08:01 7 /lib/with space.so").unwrap();
        assert_eq!((line.start, line.path, line.build_id), (0xffff_ffff_8000_0000, "/lib/with space.so", None));
        assert_eq!(line.part, "00001000 08:01 7");
        assert!(line.is_file());
        assert!(!MapLine::parse("00402000-00403000 rw-p 00000000 00:00 0 ").unwrap().is_file());
        assert!(!MapLine::parse("00402000-00403000 rw-p 00000000 00:00 0 [stack]").unwrap().is_file());
        for bad in ["", "x-y r--p 0 0:0 0 /a", "00400000 r--p", "00400000-00401000 r--p"] {
            assert!(MapLine::parse(bad).is_err(), "{bad}");
        }
    }
}
