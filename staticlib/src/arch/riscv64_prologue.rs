//! riscv64: the facts about a function's frame in its prologue, read from the code before its call of the hook.
//!
//! The return address lies in the frame while the function runs, and the trampoline sees the CFA: the stack pointer
//! before the function's first instruction, and again after its `ret`. Functions with a frame pointer, s0, have both at
//! fixed distances from it. These are others in functions with any number of arguments, as they keep their arguments'
//! registers above:
//!
//! ```text
//!   GCC and LLVM                                 GCC, any number of arguments   GCC without frame pointer
//!   addi sp, sp, -48                             addi sp, sp, -112              addi sp, sp, -32
//!   sd   ra, 40(sp)                              sd   s0, 32(sp)                sd   ra, 24(sp)
//!   sd   s0, 32(sp)                              sd   ra, 40(sp)                sd   s0, 16(sp)
//!   addi s0, sp, 48     CFA = s0                 addi s0, sp, 48                ...
//!   ...                 return address: s0 - 8   ...     CFA = s0 + 64          mv   a0, ra      CFA = sp + 32
//!   call _mcount                                 call _mcount                   call _mcount
//! ```
//!
//! Large frames without frame pointer are taken in two steps, the second one by a register set before.
//!
//! Instructions have two or four bytes, so they can only be read forwards. The beginning of a function is not known: it
//! may be any place before the call with a lowering of the stack pointer. It is the nearest one with a way to the call,
//! instruction by instruction, past a store of ra. (Compilers put a few stores and constants between both; none of
//! their halves lowers the stack pointer.)
//!
//! This file knows nothing of the tracer, so tests can compare its results with `.eh_frame`.

/// The frame of a function while the hook runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// True if distances are from s0; else they are from sp.
    pub(crate) has_frame_pointer: bool,
    /// The distance from there up to the CFA, in bytes.
    pub(crate) cfa_offset: u32,
    /// The distance from the CFA down to the return address, in bytes.
    pub(crate) return_offset: u32,
    /// The distances of the two decisive instructions, in halves of one, from their beginning to the call's end, if
    /// there are two: the one that lowers the stack pointer, and the one that sets the frame pointer, or without a
    /// frame pointer the one that stores ra.
    pub(crate) decisive: Option<[usize; 2]>,
}

/// The longest prologue to look at, in halves of an instruction.
const LONGEST: usize = 120;

const RA: u32 = 1;
const SP: u32 = 2;
const S0: u32 = 8;

/// Reads the prologue. `half(i)` is the half of an instruction `i` places before the end of the call, from 1 on, or
/// `None` if nothing is mapped there.
///
/// `None` for anything unknown to this function; then the function's return is not hooked.
pub(crate) fn decode(mut half: impl FnMut(usize) -> Option<u16>) -> Option<Frame> {
    for start in 1..=LONGEST {
        half(start)?; // nothing is mapped before
        if matches!(instruction(&mut half, start), Some(Instruction { effect: Effect::MoveSp(bytes), .. }) if bytes < 0)
            && let Some(frame) = decode_from(&mut half, start)
        {
            return Some(frame);
        }
    }
    None
}

/// The same for a prologue that begins there.
fn decode_from(half: &mut impl FnMut(usize) -> Option<u16>, start: usize) -> Option<Frame> {
    // CFA - sp; CFA - the place of the return address, with the place of its store; CFA - s0, with the place of its
    // setting.
    let mut depth: i64 = 0;
    let mut n_moves = 0;
    let mut stored: Option<(i64, usize)> = None;
    let mut pointer: Option<(i64, usize)> = None;
    // A register with a known value: large frames are taken from the stack by one, perhaps set directly before.
    let before = [2, 1].into_iter().find_map(|halves| {
        let found = instruction(half, start.wrapping_add(halves)).filter(|found| found.halves == halves);
        found.and_then(
            |found| if let Effect::Set(register, value) = found.effect { Some((register, value)) } else { None },
        )
    });
    let mut constant: Option<(u32, i64)> = before;
    let mut place = start;
    loop {
        let Instruction { halves, effect } = instruction(half, place)?;
        let next = place.checked_sub(halves)?;
        if let Effect::Write(register) | Effect::Set(register, _) | Effect::Add(register, _) = effect {
            // With a frame pointer changes of sp do not matter.
            let is_lost = match register {
                SP => pointer.is_none(),
                S0 => pointer.is_some(),
                RA => stored.is_none(),
                _ => false,
            };
            if is_lost {
                return None;
            }
        }
        match effect {
            Effect::Call if next == 0 => break,
            Effect::Call | Effect::Leave => return None,
            // There may be a loop to touch each page of the frame.
            Effect::Branch if pointer.is_none() => return None,
            Effect::MoveSp(_) | Effect::AddToSp(_) if pointer.is_some() => {}
            Effect::MoveSp(bytes) => {
                depth = depth.wrapping_sub(bytes);
                n_moves += 1;
            }
            Effect::AddToSp(register) => {
                let (_, bytes) = constant.filter(|&(known, _)| known == register)?;
                depth = depth.wrapping_sub(bytes);
                n_moves += 1;
            }
            Effect::StoreRa(offset) if stored.is_none() => stored = Some((depth.wrapping_sub(offset), place)),
            Effect::SetS0(offset) if pointer.is_none() => pointer = Some((depth.wrapping_sub(offset), place)),
            Effect::SetS0(_) => return None,
            Effect::Set(register, value) => constant = Some((register, value)),
            Effect::Add(register, more) => {
                constant = constant
                    .filter(|&(known, _)| known == register)
                    .map(|(_, value)| (register, value.wrapping_add(more)));
            }
            Effect::Write(register) => constant = constant.filter(|&(known, _)| known != register),
            Effect::StoreRa(_) | Effect::Branch | Effect::Other => {}
        }
        place = next;
    }
    let (return_offset, stored_at) = stored?;
    let second = pointer.map_or(stored_at, |(_, at)| at);
    let cfa_offset = u32::try_from(pointer.map_or(depth, |(distance, _)| distance)).ok()?;
    let return_offset = u32::try_from(return_offset).ok()?;
    let is_whole = cfa_offset.is_multiple_of(8) && return_offset.is_multiple_of(8);
    is_whole.then_some(Frame {
        has_frame_pointer: pointer.is_some(),
        cfa_offset,
        return_offset,
        decisive: (pointer.is_some() || n_moves == 1).then_some([start, second]),
    })
}

/// An instruction.
#[derive(Clone, Copy)]
struct Instruction {
    /// How long it is.
    halves: usize,
    effect: Effect,
}

/// The effect of an instruction, as far as it matters here.
#[derive(Clone, Copy)]
enum Effect {
    /// Adds to sp.
    MoveSp(i64),
    /// Adds a register to sp.
    AddToSp(u32),
    /// Stores ra at sp plus so much.
    StoreRa(i64),
    /// Sets s0 to sp plus so much.
    SetS0(i64),
    /// Sets a register to a value.
    Set(u32, i64),
    /// Adds a value to a register.
    Add(u32, i64),
    /// Changes a register otherwise.
    Write(u32),
    /// Goes on elsewhere, or behind it.
    Branch,
    /// Calls, with the return address in ra.
    Call,
    /// Goes on elsewhere, or is none.
    Leave,
    Other,
}

/// The instruction that begins so many halves before the call's end.
fn instruction(half: &mut impl FnMut(usize) -> Option<u16>, place: usize) -> Option<Instruction> {
    let first = u32::from(half(place)?);
    if first & 3 != 3 {
        return Some(Instruction { halves: 1, effect: short(first) });
    }
    if first & 0x1c == 0x1c {
        return None; // longer ones
    }
    let word = u32::from(half(place.checked_sub(1).filter(|&second| second > 0)?)?) << 16 | first;
    Some(Instruction { halves: 2, effect: long(word) })
}

/// Of an instruction of two bytes (RISC-V unprivileged specification, the extension C; tables of RV64).
fn short(w: u32) -> Effect {
    let bits = |from: u32, n: u32, to: u32| (w >> from & ((1 << n) - 1)) << to;
    let signed = |value: u32, n_bits: u32| i64::from((value << (32 - n_bits)) as i32 >> (32 - n_bits));
    let register = bits(7, 5, 0);
    let immediate = signed(bits(12, 1, 5) | bits(2, 5, 0), 6);
    match (w & 3, w >> 13) {
        (0, 0) => {
            let offset = bits(7, 4, 6) | bits(11, 2, 4) | bits(5, 1, 3) | bits(6, 1, 2);
            match bits(2, 3, 0) + 8 {
                _ if offset == 0 => Effect::Leave,
                S0 => Effect::SetS0(offset.into()), // c.addi4spn
                other => Effect::Write(other),
            }
        }
        (0, 2 | 3) => Effect::Write(bits(2, 3, 0) + 8), // c.lw, c.ld
        (1, 0) if register == SP => Effect::MoveSp(immediate), // c.addi
        (1, 3) if register == SP => {
            let offset = bits(12, 1, 9) | bits(3, 2, 7) | bits(5, 1, 6) | bits(2, 1, 5) | bits(6, 1, 4);
            Effect::MoveSp(signed(offset, 10)) // c.addi16sp
        }
        (1, 0 | 1) => Effect::Add(register, immediate), // c.addi, c.addiw
        (1, 2) => Effect::Set(register, immediate),     // c.li
        (1, 3) => Effect::Set(register, immediate << 12), // c.lui
        (1, 4) => Effect::Write(bits(7, 3, 0) + 8),
        (1, 5) => Effect::Leave, // c.j
        (1, _) => Effect::Branch,
        (2, 0 | 2 | 3) => Effect::Write(register), // c.slli, c.lwsp, c.ldsp
        (2, 4) => match (bits(12, 1, 0), register, bits(2, 5, 0)) {
            (1, 0, 0) | (0, _, 0) => Effect::Leave,   // c.ebreak, c.jr
            (1, _, 0) => Effect::Call,                // c.jalr
            (1, SP, other) => Effect::AddToSp(other), // c.add
            _ => Effect::Write(register),             // c.mv, c.add
        },
        (2, 7) if bits(2, 5, 0) == RA => Effect::StoreRa((bits(10, 3, 3) | bits(7, 3, 6)).into()), // c.sdsp
        _ => Effect::Other,
    }
}

/// Of an instruction of four bytes (the base instructions; others write to the same place).
fn long(w: u32) -> Effect {
    let (register, source, function) = (w >> 7 & 31, w >> 15 & 31, w >> 12 & 7);
    let immediate = i64::from(w as i32 >> 20);
    match w & 0x7f {
        0x13 if function == 0 && source == SP && register == SP => Effect::MoveSp(immediate), // addi
        0x13 if function == 0 && source == SP && register == S0 => Effect::SetS0(immediate),
        0x13 | 0x1b if function == 0 && source == 0 => Effect::Set(register, immediate),
        0x13 | 0x1b if function == 0 && source == register => Effect::Add(register, immediate), // addi, addiw
        0x37 => Effect::Set(register, i64::from((w & 0xffff_f000) as i32)),                     // lui
        0x33 if w & !(31 << 20) == 0x0001_0133 => Effect::AddToSp(w >> 20 & 31),                // add sp, sp, …
        0x23 if function == 3 && source == SP && w >> 20 & 31 == RA => {
            Effect::StoreRa(i64::from(w as i32 >> 25 << 5 | register as i32)) // sd
        }
        // Branches; stores and fences; floating-point and vector instructions without an integer register as their
        // result.
        0x63 => Effect::Branch,
        0x23 | 0x27 | 0x0f | 0x07 | 0x43 | 0x47 | 0x4b | 0x4f => Effect::Other,
        // Comparisons and moves to s0 have such a result; others only seem to change sp, ra or s0: they change f1, f2
        // or f8.
        0x53 => match w >> 27 {
            0x14 | 0x18 | 0x1c => Effect::Write(register),
            _ => Effect::Other,
        },
        0x6f | 0x67 if register == RA => Effect::Call, // jal, jalr
        0x6f | 0x67 => Effect::Leave,
        0x73 if function == 0 => Effect::Leave, // ecall, ebreak
        _ => Effect::Write(register),
    }
}
