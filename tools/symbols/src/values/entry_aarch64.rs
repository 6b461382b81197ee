//! aarch64: what the first instructions of a function do with its arguments.
//!
//! They are followed in a straight line, up to the first branch: where a function calls the hook none of its arguments is recorded. Of an
//! instruction that is not understood nothing is believed that it might have changed.
//!
//! Source: Arm Architecture Reference Manual for A-profile, C4.1.

use super::entry::{Frame, Source, Stored, Stores};

/// Registers by their numbers; as a base, and in sums, the last one is the stack pointer.
const N_REGISTERS: usize = 32;
/// Of integers, and of vectors, those with arguments.
const N_ARGUMENTS: usize = 8;
/// The number of the frame pointer.
const FRAME_POINTER: u32 = 29;
/// The number of the stack pointer, or of the register that is zero.
const STACK_POINTER: u32 = 31;

/// True if code is nothing but NOPs and landing pads (BTI).
pub(super) fn is_room(code: &[u8]) -> bool {
    const NOP: u32 = 0xd503_201f;
    const LANDING_PAD: u32 = 0xd503_245f;

    code.as_chunks().0.iter().all(|word| [NOP, LANDING_PAD].contains(&u32::from_le_bytes(*word)))
}

/// Follows the code of a function that begins at `address`.
pub(super) fn stores(code: &[u8], address: u64) -> Stores {
    let mut state = State::new();
    let words = (address..).step_by(4).zip(code.as_chunks().0);
    let end = words.into_iter().find(|&(place, word)| state.follow(u32::from_le_bytes(*word), place).is_none());
    // Behind that anything may be written to.
    let end = end.map_or(address.saturating_add(code.len() as u64), |(place, _)| place);
    (1..=N_ARGUMENTS as u8).for_each(|number| state.frame.stores.written_at(number, end));
    state.frame.stores
}

/// The known contents of registers and frame at an instruction.
struct State {
    integers: [Stored; N_REGISTERS],
    vectors: [Stored; N_REGISTERS],
    frame: Frame,
    /// The known distances of sp and x29 from the canonical frame address.
    stack_pointer: Option<i64>,
    frame_pointer: Option<i64>,
}

/// A load or a store of one register, or two.
struct Transfer {
    is_store: bool,
    is_vector: bool,
    n_bytes: u64,
    /// Those with the first bytes first.
    registers: [Option<u32>; 2],
    base: u32,
    offset: i64,
    /// Set if the base is changed by the offset; true if that is before the transfer.
    writes_back: Option<bool>,
}

/// The field of so many bits from a bit on.
const fn field(word: u32, low: u32, n_bits: u32) -> u32 {
    word >> low & ((1 << n_bits) - 1)
}

/// The same with a sign.
fn signed(word: u32, low: u32, n_bits: u32) -> i64 {
    let n_others = 32 - n_bits;
    i64::from((field(word, low, n_bits) << n_others).cast_signed() >> n_others)
}

fn unknown(n_bytes: u64) -> Stored {
    Stored { source: None, n_bytes, is_bit: false }
}

impl State {
    fn new() -> Self {
        let first = |source: fn(u8) -> Source, n_bytes| {
            std::array::from_fn(|number| match number < N_ARGUMENTS {
                true => Stored { source: Some(source(number as u8 + 1)), n_bytes, is_bit: false },
                false => unknown(n_bytes),
            })
        };
        Self {
            integers: first(Source::Integer, 8),
            vectors: first(Source::Float, 16),
            frame: Frame::default(),
            stack_pointer: Some(0),
            frame_pointer: None,
        }
    }

    /// `None`: what comes behind it is not known.
    fn follow(&mut self, word: u32, address: u64) -> Option<()> {
        let target = field(word, 0, 5);
        match field(word, 25, 4) {
            0b1000 | 0b1001 => self.follow_immediate(word, address),
            0b0101 | 0b1101 => {
                // mov: orr with the register that is zero
                let copied = (word & 0x7fe0_ffe0 == 0x2a00_03e0).then(|| self.integer(field(word, 16, 5), word));
                self.set_integer(target, copied.unwrap_or(unknown(8)), address);
            }
            0b0111 | 0b1111 => {
                // fmov between registers
                let copied = (word & 0xffbf_fc00 == 0x1e20_4000).then(|| {
                    let n_bytes = if field(word, 22, 1) == 0 { 4 } else { 8 };
                    cut(self.vectors[field(word, 5, 5) as usize], n_bytes)
                });
                self.vectors[target as usize] = copied.unwrap_or(unknown(16));
                if copied.is_none() {
                    self.set_integer(target, unknown(8), address);
                }
            }
            0b0100 | 0b0110 | 0b1100 | 0b1110 => self.transfer(&Transfer::decode(word)?, address)?,
            // Hints, such as nop and those of signatures and landing pads.
            0b1010 | 0b1011 if word & 0xffff_f01f == 0xd503_201f => {}
            _ => return None,
        }
        Some(())
    }

    /// Instructions with a constant.
    fn follow_immediate(&mut self, word: u32, address: u64) {
        let (target, first) = (field(word, 0, 5), field(word, 5, 5));
        if word & 0x1f80_0000 == 0x1100_0000 {
            // add, sub
            let shift = if field(word, 22, 1) == 1 { 12 } else { 0 };
            let by = i64::from(field(word, 10, 12) << shift);
            let by = if field(word, 30, 1) == 1 { -by } else { by };
            let sum = self.base(first).and_then(|base| base.checked_add(by)).filter(|_| field(word, 31, 1) == 1);
            // adds, subs have no stack pointer.
            if target == STACK_POINTER && field(word, 29, 1) == 1 {
                return;
            }
            return self.set_sum(target, sum, address);
        }
        // and with 1
        let is_bit = word & 0x7fff_fc00 == 0x1200_0000 || word & 0xffff_fc00 == 0x9240_0000;
        let cut_down = is_bit.then(|| Stored { is_bit: true, ..self.integer(first, word) });
        self.set_integer(target, cut_down.unwrap_or(unknown(8)), address);
        if target == STACK_POINTER {
            self.stack_pointer = None;
        }
    }

    /// The contents of a register for integers, of which an instruction takes all or the lower half.
    fn integer(&self, number: u32, word: u32) -> Stored {
        let n_bytes = if field(word, 31, 1) == 1 { 8 } else { 4 };
        match number {
            STACK_POINTER => unknown(n_bytes),
            _ => cut(self.integers[number as usize], n_bytes),
        }
    }

    fn set_integer(&mut self, number: u32, stored: Stored, address: u64) {
        if number == STACK_POINTER {
            return;
        }
        if (number as usize) < N_ARGUMENTS {
            self.frame.stores.written_at(number as u8 + 1, address);
        }
        if number == FRAME_POINTER {
            self.frame_pointer = None;
        }
        self.integers[number as usize] = stored;
    }

    /// A register becomes an address in the frame, or something else.
    fn set_sum(&mut self, number: u32, sum: Option<i64>, address: u64) {
        self.set_integer(number, unknown(8), address);
        match number {
            STACK_POINTER => {
                self.stack_pointer = sum;
                let stores = &mut self.frame.stores;
                // It is lowest as long as the function is at work.
                stores.stack_pointer = stores.stack_pointer.into_iter().chain(sum).min();
            }
            FRAME_POINTER => {
                self.frame_pointer = sum;
                let stores = &mut self.frame.stores;
                stores.frame_pointer = stores.frame_pointer.or(sum);
            }
            _ => {}
        }
    }

    /// The distance of a base from the canonical frame address.
    fn base(&self, number: u32) -> Option<i64> {
        match number {
            STACK_POINTER => self.stack_pointer,
            FRAME_POINTER => self.frame_pointer,
            _ => None,
        }
    }

    /// `None`: it has stored nobody knows where in the frame.
    fn transfer(&mut self, transfer: &Transfer, address: u64) -> Option<()> {
        let moved = |base: i64| base.checked_add(transfer.offset);
        let before = self.base(transfer.base);
        let place = match transfer.writes_back {
            Some(false) => before,
            _ => before.and_then(moved),
        };
        for (register, number) in transfer.registers.into_iter().flatten().zip(0..) {
            let n_bytes = transfer.n_bytes;
            let place = place.and_then(|place| place.checked_add_unsigned(number * n_bytes));
            if transfer.is_store {
                let stored = match (transfer.is_vector, register) {
                    (true, _) => self.vectors[register as usize],
                    (false, STACK_POINTER) => unknown(n_bytes),
                    (false, _) => self.integers[register as usize],
                };
                match place {
                    Some(place) => self.frame.put(place, cut(stored, n_bytes)),
                    None if transfer.base == STACK_POINTER || transfer.base == FRAME_POINTER => return None,
                    None => {}
                }
                continue;
            }
            let loaded = match place {
                Some(place) => match self.frame.get(place) {
                    Some(&stored) => cut(stored, n_bytes),
                    None if place >= 0 && place % 8 == 0 => {
                        Stored { source: Some(Source::Stack(place.cast_unsigned() / 8)), n_bytes, is_bit: false }
                    }
                    None => unknown(n_bytes),
                },
                None => unknown(n_bytes),
            };
            match transfer.is_vector {
                true => self.vectors[register as usize] = loaded,
                false => self.set_integer(register, loaded, address),
            }
        }
        if transfer.writes_back.is_some() {
            self.set_sum(transfer.base, before.and_then(moved), address);
        }
        Some(())
    }
}

/// So many bytes of it.
fn cut(stored: Stored, n_bytes: u64) -> Stored {
    Stored { n_bytes: stored.n_bytes.min(n_bytes), ..stored }
}

impl Transfer {
    /// `None` if it is something else. Loads that change what they load are such.
    fn decode(word: u32) -> Option<Self> {
        let is_vector = field(word, 26, 1) == 1;
        let (first, base) = (field(word, 0, 5), field(word, 5, 5));
        if word & 0x3a00_0000 == 0x2800_0000 {
            // Pairs.
            let n_bytes = match (is_vector, field(word, 30, 2)) {
                (false, 0b00) => 4,
                (false, 0b10) => 8,
                (true, size @ 0b00..=0b10) => 4 << size,
                _ => return None,
            };
            let writes_back = match field(word, 23, 2) {
                0b01 => Some(false),
                0b11 => Some(true),
                _ => None,
            };
            return Some(Self {
                is_store: field(word, 22, 1) == 0,
                is_vector,
                n_bytes,
                registers: [Some(first), Some(field(word, 10, 5))],
                base,
                offset: signed(word, 15, 7) * n_bytes.cast_signed(),
                writes_back,
            });
        }
        let (size, kind) = (field(word, 30, 2), field(word, 22, 2));
        let n_bytes: u64 = match (is_vector, kind) {
            (_, 0b00 | 0b01) => 1 << size,
            (true, 0b10 | 0b11) if size == 0 => 16,
            _ => return None,
        };
        let (offset, writes_back) = if word & 0x3b00_0000 == 0x3900_0000 {
            (i64::from(field(word, 10, 12)) * n_bytes.cast_signed(), None)
        } else if word & 0x3b20_0000 == 0x3800_0000 {
            let writes_back = match field(word, 10, 2) {
                0b00 => None,
                0b01 => Some(false),
                0b11 => Some(true),
                _ => return None,
            };
            (signed(word, 12, 9), writes_back)
        } else {
            return None;
        };
        let is_store = kind & 1 == 0;
        Some(Self { is_store, is_vector, n_bytes, registers: [Some(first), None], base, offset, writes_back })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[u32]) -> Stores {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        stores(&code, 0x1000)
    }

    /// As `aarch64-linux-gnu-gcc -O0` has it: nop; stp x29, x30, [sp, #-64]!; mov x29, sp; str x0, [sp, #40]; str w1, [sp, #36];
    /// str d0, [sp, #24]; strb w2, [sp, #23].
    #[test]
    fn frames_of_gcc() {
        let code =
            [0xd503_201f, 0xa9bc_7bfd, 0x9100_03fd, 0xf900_17e0, 0xb900_27e1, 0xfd00_0fe0, 0x3900_5fe2, 0xd65f_03c0];
        let stores = of(&code);
        assert_eq!((stores.frame_pointer, stores.stack_pointer), (Some(-64), Some(-64)));
        assert_eq!(stores.at(40 - 64, 8, false), Some(Source::Integer(1)));
        assert_eq!(stores.at(36 - 64, 4, false), Some(Source::Integer(2)));
        assert_eq!(stores.at(36 - 64, 8, false), None);
        assert_eq!(stores.at(24 - 64, 8, false), Some(Source::Float(1)));
        assert_eq!(stores.at(23 - 64, 1, true), Some(Source::Integer(3)));
        assert!(stores.keeps(1, 0x1010));
    }

    /// As rustc has it: sub sp, sp, #32; str x0, [sp, #8]; str x1, [sp, #16]; and w8, w2, #1; strb w8, [sp, #31]; add sp, sp, #32; ret.
    #[test]
    fn frames_without_pointer() {
        let code = [0xd100_83ff, 0xf900_07e0, 0xf900_0be1, 0x1200_0048, 0x3900_7fe8, 0x9100_83ff, 0xd65f_03c0];
        let stores = of(&code);
        assert_eq!((stores.frame_pointer, stores.stack_pointer), (None, Some(-32)));
        let pieces = stores.within(8 - 32, 16);
        let sources: Vec<Source> = pieces.iter().map(|piece| piece.source).collect();
        assert_eq!(sources, [Source::Integer(1), Source::Integer(2)]);
        assert_eq!(stores.at(31 - 32, 1, true), Some(Source::Integer(3)));
        assert_eq!(stores.at(31 - 32, 1, false), None);
    }

    /// A register that was changed is not the argument: mov x0, x1; add x1, x1, #1; str x0, [sp, #-16]!; str x1, [sp, #8].
    #[test]
    fn what_is_changed_is_another_value() {
        let stores = of(&[0xaa01_03e0, 0x9100_0421, 0xf81f_0fe0, 0xf900_07e1]);
        assert_eq!(stores.at(-16, 8, false), Some(Source::Integer(2)));
        assert_eq!(stores.at(-8, 8, false), None);
        assert!(!stores.keeps(1, 0x1004));
    }

    /// A call by the stack: ldr x8, [sp]; str x8, [sp, #-16]!. And nothing behind a branch: cbz x0, …; str x0, [sp].
    #[test]
    fn words_of_the_stack() {
        let stores = of(&[0xf940_03e8, 0xf81f_0fe8]);
        assert_eq!(stores.at(-16, 8, false), Some(Source::Stack(0)));
        assert!(of(&[0xb400_0040, 0xf900_03e0]).within(0, 8).is_empty());
    }
}
