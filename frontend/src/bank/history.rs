//! The modules of a process over time, from its maps at different times. The kept lines grow with the number of places
//! of modules, not with the number of looks.
//!
//! Not here: the use of the lines (`host/linux/modules.rs`).

use std::collections::HashSet;
use std::ops::Range;

use crate::elf::file::page_size;
use crate::host::linux::modules;

/// The maximum number of vanished modules.
const MOST_GONE: usize = 1 << 12;

/// The lines of maps for files with code, and for the stack.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    /// The lines of each vanished module without a later one in its place.
    gone: Vec<(Range<u64>, Vec<u8>)>,
    /// The lines of the latest look.
    now: Vec<u8>,
    /// Rises with each change.
    n_changes: usize,
}

impl History {
    /// Adds the mappings of a later moment. Changes of memory and of files without code do not count.
    pub(super) fn add(&mut self, maps: &[u8]) {
        let now = lines_of_code(maps);
        if now == self.now {
            return;
        }
        let before = std::mem::replace(&mut self.now, now);
        self.gone.extend(modules_in(&before));
        let has_place = |places: &[Range<u64>], it: &Range<u64>| {
            places.iter().any(|place| place.start < it.end && it.start < place.end)
        };
        let mut places: Vec<Range<u64>> = modules_in(&self.now).map(|(place, _)| place).collect();
        let mut gone: Vec<(Range<u64>, Vec<u8>)> = Vec::new();
        for (place, lines) in std::mem::take(&mut self.gone).into_iter().rev().take(MOST_GONE) {
            if !has_place(&places, &place) {
                places.push(place.clone());
                gone.push((place, lines));
            }
        }
        gone.reverse();
        self.gone = gone;
        self.n_changes += 1;
    }

    /// All of it, the latest last.
    pub(super) fn all(&self) -> impl Iterator<Item = &[u8]> {
        let now = Some(&*self.now).filter(|now| !now.is_empty());
        self.gone.iter().map(|(_, lines)| &**lines).chain(now)
    }

    /// The number of changes.
    pub(super) fn n_changes(&self) -> usize {
        self.n_changes
    }
}

/// The modules in lines of maps, with their places and lines.
fn modules_in(lines: &[u8]) -> impl Iterator<Item = (Range<u64>, Vec<u8>)> {
    modules::parse_maps(lines, page_size()).into_iter().map(|module| {
        let place = module.start..module.end;
        let is_its = |line: &&[u8]| start_of(line).is_some_and(|start| place.contains(&start));
        let its: Vec<&[u8]> = lines.split(|&byte| byte == b'\n').filter(is_its).collect();
        (place.clone(), its.join(&b'\n'))
    })
}

fn start_of(line: &[u8]) -> Option<u64> {
    let end = line.iter().position(|&byte| byte == b'-')?;
    u64::from_str_radix(str::from_utf8(&line[..end]).ok()?, 16).ok()
}

/// Returns the lines for files with code, and for the stack.
fn lines_of_code(maps: &[u8]) -> Vec<u8> {
    let lines = || maps.split(|&byte| byte == b'\n').filter_map(|line| Some((line, parts(line)?)));
    let with_code: HashSet<&[u8]> = lines().filter(|(_, (is_code, _))| *is_code).map(|(_, (_, file))| file).collect();
    let is_kept =
        |line: &[u8], file: &[u8]| with_code.contains(file) && file.contains(&b'/') || line.ends_with(b" [stack]");
    let kept: Vec<&[u8]> = lines().filter(|(line, (_, file))| is_kept(line, file)).map(|(line, _)| line).collect();
    kept.join(&b'\n')
}

/// Returns whether a line of the maps is for code, and its file.
fn parts(line: &[u8]) -> Option<(bool, &[u8])> {
    let mut fields = line.splitn(4, |&byte| byte == b' ');
    let permissions = fields.nth(1)?;
    Some((permissions.get(2) == Some(&b'x'), fields.nth(1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAM: &str = "400000-401000 r-xp 00000000 08:01 1 /bin/p\n401000-402000 rw-p 00001000 08:01 1 /bin/p";
    const STACK: &str = "7f00-7fff rw-p 00000000 00:00 0 [stack]";

    fn library(start: u64, name: &str) -> String {
        format!("{start:x}-{:x} r-xp 00000000 08:01 {} /lib/{name}", start + 0x1000, name.len())
    }

    fn added(texts: &[String]) -> History {
        let mut history = History::default();
        texts.iter().for_each(|text| history.add(text.as_bytes()));
        history
    }

    fn texts(history: &History) -> Vec<String> {
        history.all().map(|text| String::from_utf8_lossy(text).into_owned()).collect()
    }

    #[test]
    fn files_without_code_are_no_change() {
        let with =
            |number: u32| format!("{PROGRAM}\n900000-901000 r--s 00000000 08:01 {number} /tmp/{number}\n{STACK}");
        let history = added(&[with(1), with(2), with(3)]);
        assert_eq!(texts(&history), [format!("{PROGRAM}\n{STACK}")]);
        assert_eq!(history.n_changes(), 1);
    }

    #[test]
    fn each_place_has_one_module() {
        let with = |text: &str| format!("{PROGRAM}\n{text}\n{STACK}");
        // The last one begins where the others end.
        let (one, other, next) = (library(0x10_0000, "a"), library(0x10_0000, "bb"), library(0x10_1000, "ccc"));
        let none = format!("{PROGRAM}\n{STACK}");
        let mut all = Vec::new();
        for _ in 0..100 {
            all.extend([with(&one), none.clone(), with(&other), with(&next)]);
        }
        let history = added(&all);
        assert_eq!(texts(&history), [other, with(&next)]);
    }
}
