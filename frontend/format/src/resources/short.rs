//! Short units: allocations of memory in one unit, in chunks. Most allocations have few bytes and come soon after the
//! thread got its chunk. Files have two units for each.
//!
//! The first word has the kind's number plus 16 in its highest byte; below it, in 32 bits, the ticks since the thread
//! got its chunk, and the number of the stack in 24 bits.
//!
//! The second word has the address in 48 bits and the number of bytes in 16. An allocation that does not fit takes two
//! units in chunks too.

use super::{Kind, LOW, Unit};

/// Bits of each, from the lowest on: of the first word and of the second.
const STACK_BITS: u32 = 24;
const TICKS_BITS: u32 = 32;
const BYTES_BITS: u32 = 16;
const ADDRESS_BITS: u32 = 48;

/// The mark of all allocation kinds below it, and of nothing else.
const MARK: u8 = 16;

/// Returns the short unit of an allocation, without its ticks. `None` if it does not fit.
#[must_use]
#[inline(always)]
pub const fn of(kind: Kind, address: u64, bytes: u64, stack: u32) -> Option<Unit> {
    let fits = address >> ADDRESS_BITS == 0 && bytes >> BYTES_BITS == 0 && stack >> STACK_BITS == 0;
    if !fits || kind as u8 >= MARK {
        return None;
    }
    Some([((kind as u8 | MARK) as u64) << 56 | stack as u64, address << BYTES_BITS | bytes])
}

/// Returns the short unit with its ticks since the thread got its chunk. `None` if they do not fit.
#[must_use]
#[inline(always)]
pub const fn at([first, second]: Unit, since: u64) -> Option<Unit> {
    if since >> TICKS_BITS == 0 { Some([first | since << STACK_BITS, second]) } else { None }
}

/// Returns true if `first` is the first word of a short unit.
#[must_use]
#[inline]
pub const fn is_one(first: u64) -> bool {
    kind_of(first).is_some()
}

#[inline]
const fn kind_of(first: u64) -> Option<Kind> {
    if first >> 56 & !(MARK as u64 - 1) == MARK as u64 { Kind::of(first ^ (MARK as u64) << 56) } else { None }
}

/// Returns the two units for a file. `taken` is the time in ticks at which the thread got the chunk. `None` if this is
/// no short unit.
#[must_use]
#[inline]
pub fn long([first, second]: Unit, taken: u64) -> Option<[Unit; 2]> {
    let kind = kind_of(first)?;
    let part = |word: u64, low: u32, bits: u32| word >> low & ((1 << bits) - 1);
    let ticks = taken.wrapping_add(part(first, STACK_BITS, TICKS_BITS)) & LOW;
    Some([
        [kind.word(ticks), part(second, BYTES_BITS, ADDRESS_BITS)],
        [Kind::More.word(part(second, 0, BYTES_BITS)), part(first, 0, STACK_BITS)],
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: (u64, u64, u32, u64) = ((1 << 48) - 1, (1 << 16) - 1, (1 << 24) - 1, (1 << 32) - 1);

    #[test]
    fn byte_for_byte() {
        let unit = at(of(Kind::Calloc, 0x7f12_3456_7890, 0xabc, 0x1234).unwrap(), 0x8765_4321).unwrap();
        assert_eq!(unit, [0x1287_6543_2100_1234, 0x7f12_3456_7890_0abc]);
    }

    #[test]
    fn both_ways_with_all_that_fits() {
        let taken = (1 << 40) + 5;
        for kind in (1..=8).map(|number| Kind::of(number << 56).unwrap()) {
            for (address, bytes, stack, since) in
                [(0, 0, 0, 0), (1 << 47, 1, 1, 1), (16, 1 << 15, 1 << 23, 1 << 31), MOST]
            {
                let unit = at(of(kind, address, bytes, stack).unwrap(), since).unwrap();
                let first = [kind.word(taken + since), address];
                assert_eq!(long(unit, taken), Some([first, [Kind::More.word(bytes), stack.into()]]));
                assert_eq!(Kind::of(unit[0]), None, "it is not taken for another one");
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let (address, bytes, stack, since) = MOST;
        let unit = of(Kind::Malloc, address, bytes, stack).unwrap();
        assert_eq!(of(Kind::Malloc, address + 1, bytes, stack), None);
        assert_eq!(of(Kind::Malloc, address, bytes + 1, stack), None);
        assert_eq!(of(Kind::Malloc, address, bytes, stack + 1), None);
        assert_eq!(of(Kind::Free, address, bytes, stack), None);
        assert_eq!(of(Kind::More, address, bytes, stack), None);
        assert_eq!(at(unit, since + 1), None);
        // Where the clocks of processors are not the same it may be before the chunk was taken.
        assert_eq!(at(unit, 3u64.wrapping_sub(5)), None);
    }

    #[test]
    fn other_units_are_not_short() {
        for number in 0..=u8::MAX {
            let is_short = long([u64::from(number) << 56, 7], 9).is_some();
            assert_eq!(is_short, (17..=24).contains(&number), "{number}");
        }
    }
}
