//! `sid-<sid>.map`: the place of each module of a program in memory.

use rftrace_format::map::MapLine;
use rftrace_format::record::ADDRESS_MASK;

use crate::error::Result;
use crate::lines::Lines;

/// The place of a module in memory. A symbol lies at `start` plus its own address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// The first address.
    pub start: u64,
    /// The first address after the module.
    pub end: u64,
    /// The path of the file on the traced machine.
    pub path: String,
    /// The build-id in hexadecimal digits, `None` if the map does not have it.
    pub build_id: Option<String>,
}

/// The maximum number of modules of all programs of a trace: ten thousand programs with hundreds of libraries each.
const MAX_MODULES: usize = 1 << 22;

/// Reads a map file. Consecutive lines of one path are one module; mappings without a file (`[stack]`, …) are left out.
/// Modules of other files count for the limit too.
pub(crate) fn read(mut lines: Lines, n_others: usize) -> Result<Vec<Mapping>> {
    let mut found: Vec<Mapping> = Vec::new();
    while lines.next()?.is_some() {
        let line = lines.parsed(MapLine::parse)?;
        // Records hold the low 48 bits of addresses, so modules are placed by those as well.
        let (start, end) = (line.start & ADDRESS_MASK, line.end & ADDRESS_MASK);
        let n_modules = n_others + found.len();
        match found.last_mut() {
            _ if !line.is_file() => {}
            Some(last) if last.path == line.path => last.end = last.end.max(end),
            _ if n_modules >= MAX_MODULES => {
                let reason =
                    format!("the programs have more than {MAX_MODULES} modules; record fewer programs at a time");
                return Err(lines.error(&reason));
            }
            _ => {
                let (path, build_id) = (line.path.to_owned(), line.build_id.map(str::to_owned));
                found.push(Mapping { start, end, path, build_id });
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::error::Error;

    fn parse(text: &'static [u8]) -> Result<Vec<Mapping>> {
        read(Lines::new(Path::new("m"), Box::new(text)), 0)
    }

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
            parse(text).unwrap(),
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
            let error = parse(format!("{good}{bad}\n").leak().as_bytes()).unwrap_err();
            assert!(matches!(error, Error::Malformed { offset: 47, .. }), "{bad}: {error}");
        }
    }
}
