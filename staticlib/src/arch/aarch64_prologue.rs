//! aarch64: the facts about a function's frame in its prologue, read backwards from its call of the hook.
//!
//! On aarch64 the return address has no fixed place: `[x29 + 8]` holds it while the function runs, but its distance to
//! the CFA (the stack pointer before the function's first instruction, and again after its `ret`) differs from function
//! to function. The trampoline only sees the CFA, so the hook has to know the distance. It is a constant of the call
//! site:
//!
//! ```text
//!   GCC                               LLVM
//!   sub  sp, sp, #0x8a0               stp  d11, d10, [sp, #-48]!
//!   stp  x29, x30, [sp]               stp  d9, d8, [sp, #16]
//!   mov  x29, sp       CFA = x29      stp  x29, x30, [sp, #32]
//!   ...                  + 0x8a0      add  x29, sp, #0x20     CFA = x29 + 16
//!   bl   _mcount                      bl   _mcount
//! ```
//!
//! This file knows nothing of the tracer, so tests can compare its results with `.eh_frame`.

/// The signature of the return address in the frame: the lowest bit is set if there is one, the next one tells the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    None = 0,
    A = 1,
    B = 3,
}

/// The frame of a function while the hook runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// CFA - x29, a multiple of 8: LLVM saves a lone d register below x29.
    pub(crate) cfa_offset: u32,
    /// The key that has signed the return address at `[x29 + 8]`; the modifier is the CFA.
    pub(crate) key: Key,
    /// The distance of the [`DECISIVE`] instructions, from their beginning to the one behind the call, if they decide
    /// all this: one of them has signed the return address or is in front of the function, and another one has stored
    /// x29 and x30.
    pub(crate) decided: Option<usize>,
}

/// So many instructions in a row decide about a frame, in functions as compilers make them.
pub(crate) const DECISIVE: usize = 4;

/// The longest prologue to look at, in instructions.
const LONGEST: usize = 96;

const PACIASP: u32 = 0xd503_233f;
const PACIBSP: u32 = 0xd503_237f;
const NOP: u32 = 0xd503_201f;
const SP: u32 = 31;

/// Reads the prologue. `word(i)` is the instruction `i + 1` places before the call, or `None` if nothing is mapped
/// there.
///
/// `None` for anything unknown to this function; then the function's return is not hooked.
pub(crate) fn decode(mut word: impl FnMut(usize) -> Option<u32>) -> Option<Frame> {
    // sp - x29 before the instruction in question; known above `add x29, sp, #n`.
    let mut sp: Option<i64> = None;
    // The instruction that stores x29 and x30.
    let mut record: Option<usize> = None;
    // The one in front of the prologue, or the signing one.
    let mut first: Option<usize> = None;
    // `sub sp, sp, xN`: the register, and the known bits of its value.
    let mut wanted: Option<(u32, i64)> = None;
    let mut key = Key::None;

    for i in 0..LONGEST {
        let Some(w) = word(i) else { break };
        let Some(now) = sp else {
            if w & 0xff80_03ff == 0x9100_03fd {
                sp = Some(-add_immediate(w)); // add x29, sp, #n
            } else if leaves(w) && !is_call(w) {
                return None; // calls are there: LLVM outlines pieces of prologues
            }
            continue;
        };
        if w == PACIASP || w == PACIBSP {
            key = if w == PACIASP { Key::A } else { Key::B };
            first = Some(i);
            break;
        }
        if w == NOP || is_bti(w) || leaves(w) || w >> 16 == 0 {
            first = Some(i); // in front of the function
            break;
        }
        if let Some((register, known)) = wanted {
            if w & 0x1f == register && w & 0xff80_0000 == 0xf280_0000 {
                wanted = Some((register, known | move_immediate(w))); // movk
                continue;
            }
            if w & 0x1f == register && w & 0x7f80_0000 == 0x5280_0000 {
                sp = Some(now + (known | move_immediate(w))); // movz
                wanted = None;
                continue;
            }
        }
        if let Some(bytes) = pushed(w) {
            if w & 0xffc0_7fff == 0xa980_7bfd && now == 0 {
                record = Some(i); // stp x29, x30, [sp, #-n]!
            }
            sp = Some(now + bytes);
        } else if w & 0xffc0_7fff == 0xa900_7bfd {
            if now + pair_immediate(w) * 8 == 0 {
                record = Some(i); // stp x29, x30, [sp, #n]
            }
        } else if w & 0xff80_03ff == 0xd100_03ff {
            sp = Some(now + add_immediate(w)); // sub sp, sp, #n
        } else if w & 0xffe0_ffff == 0xcb20_63ff && wanted.is_none() {
            wanted = Some((w >> 16 & 0x1f, 0)); // sub sp, sp, xN
        } else if writes_sp(w) || is_conditional_branch(w) || w & 0xffff_0000 == 0xdac1_0000 {
            return None; // probe loops, SVE frames, signing with the program counter
        }
    }
    let cfa_offset = u32::try_from(sp?).ok()?;
    let record = record?;
    // Changes of sp behind the store are no part of the distance: x29 points at the stored words.
    let decided = first.filter(|first| first - record < DECISIVE).map(|first| first + 2);
    (wanted.is_none() && cfa_offset % 8 == 0).then_some(Frame { cfa_offset, key, decided })
}

/// The bytes taken from the stack by a store with pre-indexing.
fn pushed(w: u32) -> Option<i64> {
    if w >> 5 & 0x1f != SP {
        return None;
    }
    let bytes = match w & 0xffc0_0000 {
        0xa980_0000 | 0x6d80_0000 => pair_immediate(w) * 8,
        0xad80_0000 => pair_immediate(w) * 16,
        _ => match w & 0xffe0_0c00 {
            0xf800_0c00 | 0xfc00_0c00 | 0x3c80_0c00 => i64::from((w as i32) << 11 >> 23),
            _ => return None,
        },
    };
    Some(-bytes)
}

fn pair_immediate(w: u32) -> i64 {
    i64::from((w as i32) << 10 >> 25)
}

fn add_immediate(w: u32) -> i64 {
    i64::from(w >> 10 & 0xfff) << (12 * (w >> 22 & 1))
}

fn move_immediate(w: u32) -> i64 {
    i64::from(w >> 5 & 0xffff) << (16 * (w >> 21 & 3))
}

/// Control goes elsewhere and does not come back to the next instruction by itself: b, bl, br, blr, ret, eret, brk, hlt.
fn leaves(w: u32) -> bool {
    w & 0x7c00_0000 == 0x1400_0000 || w & 0xfe00_0000 == 0xd600_0000 || w & 0xff00_0000 == 0xd400_0000
}

fn is_call(w: u32) -> bool {
    w >> 26 == 0x25 || w & 0xffff_fc1f == 0xd63f_0000
}

fn is_conditional_branch(w: u32) -> bool {
    w & 0xff00_0000 == 0x5400_0000 || w & 0x7c00_0000 == 0x3400_0000
}

fn is_bti(w: u32) -> bool {
    w & 0xffff_ff3f == 0xd503_241f
}

/// Another instruction with sp as a possible destination: add and sub with an immediate or an extended register, a
/// logical one with an immediate, SVE's addvl and addpl; loads and stores with writeback.
fn writes_sp(w: u32) -> bool {
    let to_sp = w & 0x1f == SP;
    let add = w & 0xbf80_0000 == 0x9100_0000 || w & 0xbfe0_0000 == 0x8b20_0000;
    let logical = w & 0xff80_0000 == 0x9200_0000 || w & 0xff80_0000 == 0xb200_0000 || w & 0xff80_0000 == 0xd200_0000;
    let sve = w & 0xffa0_f800 == 0x0420_5000;
    let writeback = w >> 5 & 0x1f == SP && (w & 0x3a80_0000 == 0x2880_0000 || w & 0x3b20_0400 == 0x3800_0400);
    to_sp && (add || logical || sve) || writeback
}
