//! `sid-<sid>.map`: where each module of a program lies in memory.

use std::path::Path;

use crate::error::{Error, Result};
use crate::text;

/// Records hold the low 48 bits of addresses, so modules are placed by those as well.
pub(crate) const ADDR_MASK: u64 = 0xffff_ffff_ffff;

/// A module's place: symbols lie at `start` plus their own address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    /// The first address after the module.
    pub(crate) end: u64,
    pub(crate) path: String,
    pub(crate) build_id: Option<String>,
}

/// Parses a map file. Consecutive lines of one path are one module; what has no file (`[stack]`, …) is left out.
pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Vec<Mapping>> {
    let mut found: Vec<Mapping> = Vec::new();
    for (offset, line) in text::lines(bytes) {
        let Some(mapping) = mapping(&line) else {
            let reason = "not a line of a memory map: `<start>-<end> <prot> <offset> <major:minor> <inode> <path>`";
            return Err(Error::malformed(path, offset, reason));
        };
        match found.last_mut() {
            _ if mapping.path.is_empty() || mapping.path.starts_with('[') => {}
            Some(last) if last.path == mapping.path => last.end = last.end.max(mapping.end),
            _ => found.push(mapping),
        }
    }
    Ok(found)
}

fn mapping(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let mut word = || {
        let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = after.trim_start();
        word
    };
    let (start, end) = word().split_once('-')?;
    let [start, end] = [start, end].map(|addr| u64::from_str_radix(addr, 16));
    let (_prot, _offset, _device, inode) = (word(), word(), word(), word());
    if inode.is_empty() {
        return None;
    }
    let (path, build_id) = match rest.rsplit_once(" build-id:") {
        Some((path, id)) => (path, Some(id.to_owned())),
        None => (rest, None),
    };
    let (start, end) = (start.ok()? & ADDR_MASK, end.ok()? & ADDR_MASK);
    Some(Mapping { start, end, path: path.trim_end().to_owned(), build_id })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_merged_and_the_rest_left_out() {
        let text = b"00400000-00401000 r--p 00000000 08:01 7          /bin/a build-id:12ab\n\
                     00401000-00402000 r-xp 00001000 08:01 7          /bin/a build-id:12ab\n\
                     00402000-00403000 rw-p 00000000 00:00 0 \n\
                     7f0000000000-7f0000001000 r-xp 00000000 00:00 0 /lib/with space.so\n\
                     ffffffff80000000-ffffffff80001000 r-xp 00000000 00:00 0 kernel\n\
                     ffffffffffff-ffffffffffff rw-p 00000000 00:00 0 [stack]\n";
        let mapping = |start, end, path: &str, build_id: Option<&str>| Mapping {
            start,
            end,
            path: path.into(),
            build_id: build_id.map(Into::into),
        };
        assert_eq!(
            parse(Path::new("m"), text).unwrap(),
            [
                mapping(0x40_0000, 0x40_2000, "/bin/a", Some("12ab")),
                mapping(0x7f00_0000_0000, 0x7f00_0000_1000, "/lib/with space.so", None),
                mapping(0xffff_8000_0000, 0xffff_8000_1000, "kernel", None),
            ]
        );
    }

    #[test]
    fn bad_lines_are_errors_with_their_offset() {
        let good = "00400000-00401000 r--p 00000000 08:01 7 /bin/a\n";
        for bad in ["", "x-y r--p 0 0:0 0 /a", "00400000 r--p", "00400000-00401000 r--p"] {
            let error = parse(Path::new("m"), format!("{good}{bad}\n").as_bytes()).unwrap_err();
            assert!(matches!(error, Error::Malformed { offset: 47, .. }), "{bad}: {error}");
        }
    }
}
