//! Calls on aarch64: `bl`, of a function or of a stub in the procedure linkage table.

use std::collections::HashSet;

/// The instructions of a section, each with its address.
fn instructions(section: u64, code: &[u8]) -> impl Iterator<Item = (u64, u32)> {
    let words = code.as_chunks().0.iter().map(|&bytes| u32::from_le_bytes(bytes));
    (0..).map(move |number: u64| section.wrapping_add(4 * number)).zip(words)
}

/// The page of `adrp x16`.
fn page(address: u64, word: u32) -> Option<u64> {
    if word & 0x9f00_001f != 0x9000_0010 {
        return None;
    }
    let pages = (word >> 5 & 0x7_ffff) << 2 | word >> 29 & 3;
    // 21 bits, with a sign.
    let pages = i64::from((pages << 11).cast_signed() >> 11);
    Some((address & !0xfff).wrapping_add_signed(pages << 12))
}

/// The distance in `ldr x17, [x16, #…]`.
fn loaded(word: u32) -> Option<u64> {
    (word & 0xffc0_03ff == 0xf940_0211).then_some(u64::from(word >> 10 & 0xfff) * 8)
}

/// Adds the beginnings of stubs in a procedure linkage table that jump through one of `slots`.
pub(super) fn add_stubs(section: u64, code: &[u8], slots: &HashSet<u64>, stubs: &mut HashSet<u64>) {
    let next = instructions(section, code).skip(1);
    for ((address, word), (_, next)) in instructions(section, code).zip(next) {
        let slot = page(address, word).zip(loaded(next)).map(|(page, distance)| page.wrapping_add(distance));
        if slot.is_some_and(|slot| slots.contains(&slot)) {
            // This, or the landing pad before it.
            stubs.extend([address, address.wrapping_sub(4)]);
        }
    }
}

/// The number of calls of the addresses in `direct`.
pub(super) fn calls(section: u64, code: &[u8], direct: &HashSet<u64>) -> u64 {
    let is_call = |(address, word): (u64, u32)| {
        // 26 bits, with a sign.
        let distance = i64::from((word << 6).cast_signed() >> 6) * 4;
        word >> 26 == 0b10_0101 && direct.contains(&address.wrapping_add_signed(distance))
    };
    instructions(section, code).filter(|&instruction| is_call(instruction)).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn calls_of_stubs() {
        let mut direct = HashSet::new();
        // 0x1000: bti c; adrp x16, 0x2000; ldr x17, [x16, #0xff8]; add x16, x16, #0xff8; br x17, then the same of 0x2ff0
        let plt = code(&[
            0xd503_245f,
            0xb000_0010,
            0xf947_fe11,
            0x913f_e210,
            0xd61f_0220,
            0xb000_0010,
            0xf947_fa11,
            0x913f_c210,
            0xd61f_0220,
        ]);
        add_stubs(0x1000, &plt, &HashSet::from([0x2ff8]), &mut direct);
        assert_eq!(direct, HashSet::from([0x1000, 0x1004]));

        // 0x800: bl 0x1000; bl 0x1014; b 0x1000; bl 0x1004, and a word that is cut
        let mut calling = code(&[0x9400_0200, 0x9400_0204, 0x1400_01fe, 0x9400_01fe]);
        calling.push(0x94);
        assert_eq!(calls(0x800, &calling, &direct), 2);
        // 0x1010: bl 0x1000
        assert_eq!(calls(0x1010, &code(&[0x97ff_fffc]), &direct), 1);
        // 0x5000: adrp x16, 0x2000
        assert_eq!(page(0x5004, 0xb0ff_fff0), Some(0x2000));
    }
}
