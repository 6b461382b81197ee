//! The conversion of a chunk of the shared memory to the units of a file.

use alloc::vec::Vec;

use super::{Kind, Unit, short};

/// Appends the completely written units of a chunk to `out`, in the form of files. It skips unwritten ones. `taken` is
/// the time in ticks at which the thread got the chunk.
pub fn written(units: &[Unit], taken: u64, out: &mut Vec<Unit>) {
    let mut has_first = false;
    out.reserve(2 * units.len());
    for &unit in units {
        if let Some(long) = short::long(unit, taken) {
            out.extend_from_slice(&long);
            has_first = false;
            continue;
        }
        has_first = match Kind::of(unit[0]) {
            None | Some(Kind::Nothing) => false,
            Some(Kind::More) => has_first,
            Some(_) => true,
        };
        if has_first {
            out.push(unit);
        }
    }
}

/// Returns true if the chunk is written completely.
pub fn is_whole(units: &[Unit]) -> bool {
    units.iter().all(|unit| Kind::of(unit[0]).is_some() || short::is_one(unit[0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_written_to_its_end_is_left_out() {
        let event = [[Kind::Malloc.word(7), 2], [Kind::More.word(64), 9]];
        let units = [event[0], event[1], [0, 3], [Kind::More.word(64), 0], event[0], event[1], [0, 0]];
        let mut out = Vec::new();
        written(&units, 0, &mut out);
        assert_eq!(out, [event, event].concat());
        assert!(!is_whole(&units) && is_whole(&out));
        out.push([Kind::Nothing.word(0), 0]);
        let whole = core::mem::take(&mut out);
        written(&whole, 0, &mut out);
        assert!(is_whole(&whole) && out.len() == 4);
    }

    #[test]
    fn what_is_short_is_as_long_as_others() {
        let short = short::at(short::of(Kind::Malloc, 32, 9, 64).unwrap(), 7).unwrap();
        let event = [[Kind::Malloc.word(107), 32], [Kind::More.word(9), 64]];
        let free = [Kind::Free.word(120), 32];
        // Continuations behind a short unit belong to no event.
        let units = [short, free, short, [Kind::More.word(1), 1], event[0], event[1], short];
        let mut out = Vec::new();
        written(&units, 100, &mut out);
        assert_eq!(out, [&event[..], &[free], &event, &event, &event].concat());
        assert!(is_whole(&units));
    }
}
