//! The effect of a filter of system calls (seccomp) on a partly known call. The instructions of the filter (classic
//! BPF) are followed, both ways where an unknown value decides. They jump forwards only, so each way ends.
//!
//! Not here: reading filters, and the calls in question (`confined`).

use std::collections::HashSet;
use std::fmt;

/// An instruction, as the system has it (`struct sock_filter`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    k: u32,
}

/// A partly known system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The system's number of the call.
    pub number: u32,
    /// The arguments; `None` for any value.
    pub arguments: [Option<u64>; 6],
}

/// Effect of a filter on a call, the worse the later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Action {
    Allows,
    /// The call fails.
    Fails,
    /// Another process decides of it.
    Asks,
    /// It is told by a signal.
    Signals,
    Kills,
    /// There are too many ways through it.
    Unknown,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allows => "allows",
            Self::Fails => "forbids",
            Self::Asks => "asks another process about",
            Self::Signals => "sends a signal (SIGSYS) for",
            Self::Kills => "kills for",
            Self::Unknown => "is too large for rftrace to find its effect on",
        })
    }
}

impl Action {
    /// Decodes a value that a filter returns (`SECCOMP_RET_…`). The system kills for unknown ones.
    fn of(returned: u32) -> Self {
        match returned & 0xffff_0000 {
            0x7fff_0000 | 0x7ffc_0000 => Self::Allows,
            0x7fc0_0000 => Self::Asks,
            // A call that the tracer of the process could decide about fails without a tracer.
            0x0005_0000 | 0x7ff0_0000 => Self::Fails,
            0x0003_0000 => Self::Signals,
            _ => Self::Kills,
        }
    }
}

/// More than any filter takes, unless it is made to take long.
const MOST_STEPS: usize = 1 << 16;
/// `struct seccomp_data`.
const DATA_BYTES: u32 = 64;
const ARCHITECTURE_X86_64: u32 = 0xc000_003e;
/// Returns a constant, or A.
const RETURN: u16 = 0x06;
const RETURN_A: u16 = 0x16;

/// Registers and memory on the way through a filter. `None` is an unknown value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State {
    place: usize,
    a: Option<u32>,
    x: Option<u32>,
    memory: [Option<u32>; 16],
}

/// The worst that a filter may do with a call.
pub(crate) fn action(filter: &[Instruction], call: &Call) -> Action {
    let begin = State { place: 0, a: Some(0), x: Some(0), memory: [None; 16] };
    let (mut ways, mut seen) = (vec![begin], HashSet::from([begin]));
    let (mut worst, mut n_steps) = (Action::Allows, 0);
    while let Some(mut state) = ways.pop() {
        loop {
            n_steps += 1;
            // The system takes no filter that runs over its end.
            let Some(instruction) = filter.get(state.place).filter(|_| n_steps <= MOST_STEPS) else {
                return Action::Unknown;
            };
            match step(*instruction, state, call) {
                Step::On(next) => state = next,
                Step::Either(one, other) => {
                    ways.extend([one, other].into_iter().filter(|&way| seen.insert(way)));
                    break;
                }
                Step::End(end) => {
                    worst = worst.max(end);
                    break;
                }
                Step::EndOr(end, next) => {
                    worst = worst.max(end);
                    state = next;
                }
            }
        }
    }
    worst
}

/// True if a filter may ask another process about any call at all. A stopped thread that waits for the answer asks
/// again.
pub(crate) fn may_ask(filter: &[Instruction]) -> bool {
    let asks = |it: &Instruction| match it.code {
        RETURN => Action::of(it.k) == Action::Asks,
        code => code == RETURN_A,
    };
    filter.iter().any(asks)
}

enum Step {
    On(State),
    Either(State, State),
    End(Action),
    EndOr(Action, State),
}

fn step(instruction: Instruction, state: State, call: &Call) -> Step {
    let Instruction { code, if_true, if_false, k } = instruction;
    let mut next = State { place: state.place + 1, ..state };
    let memory = state.memory.get(k as usize).copied().flatten();
    // The operand is in the instruction or in X.
    let is_x = code & 0x08 != 0;
    let operand = if is_x { state.x } else { Some(k) };
    match code & 0x07 {
        // LD and LDX: immediate, of the call, of the memory, the length of the call's data.
        0x00 | 0x01 => {
            let value = match code & 0xe0 {
                0x00 => Some(k),
                0x20 => word_of(call, k),
                0x60 => memory,
                0x80 => Some(DATA_BYTES),
                _ => return Step::End(Action::Unknown),
            };
            if code & 0x07 == 0 { next.a = value } else { next.x = value }
        }
        // ST and STX.
        0x02 | 0x03 => {
            let Some(place) = next.memory.get_mut(k as usize) else { return Step::End(Action::Unknown) };
            *place = if code & 0x07 == 2 { state.a } else { state.x };
        }
        // ALU.
        0x04 => {
            let of_both = |of: fn(u32, u32) -> u32| Some(of(state.a?, operand?));
            next.a = match code & 0xf0 {
                0x00 => of_both(u32::wrapping_add),
                0x10 => of_both(u32::wrapping_sub),
                0x20 => of_both(u32::wrapping_mul),
                // A division by zero ends the filter, which returns 0.
                0x30 => match operand {
                    Some(0) => return Step::End(Action::of(0)),
                    None => return Step::EndOr(Action::of(0), State { a: None, ..next }),
                    Some(operand) => state.a.map(|a| a / operand),
                },
                0x40 => of_both(|a, operand| a | operand),
                0x50 => match (state.a, operand) {
                    (Some(0), _) | (_, Some(0)) => Some(0),
                    _ => of_both(|a, operand| a & operand),
                },
                0x60 => state.a.zip(operand).and_then(|(a, bits)| a.checked_shl(bits)),
                0x70 => state.a.zip(operand).and_then(|(a, bits)| a.checked_shr(bits)),
                0x80 => state.a.map(u32::wrapping_neg),
                0xa0 => of_both(|a, operand| a ^ operand),
                _ => return Step::End(Action::Unknown),
            };
        }
        // JMP.
        0x05 => {
            if code & 0xf0 == 0 {
                next.place = next.place.saturating_add(k as usize);
                return Step::On(next);
            }
            let to = |offset: u8| State { place: next.place + usize::from(offset), ..next };
            let test: fn(u32, u32) -> bool = match code & 0xf0 {
                0x10 => |a, operand| a == operand,
                0x20 => |a, operand| a > operand,
                0x30 => |a, operand| a >= operand,
                0x40 => |a, operand| a & operand != 0,
                _ => return Step::End(Action::Unknown),
            };
            match state.a.zip(operand) {
                Some((a, operand)) => return Step::On(to(if test(a, operand) { if_true } else { if_false })),
                None => {
                    let mut equal = to(if_true);
                    if code & 0xf0 == 0x10 {
                        equal.a = state.a.or(operand);
                    }
                    return Step::Either(equal, to(if_false));
                }
            }
        }
        // RET: the operand, or A.
        0x06 => {
            let returned = if code == RETURN_A { state.a } else { Some(k) };
            return Step::End(returned.map_or(Action::Unknown, Action::of));
        }
        // MISC: TAX and TXA.
        _ => {
            if code & 0xf8 == 0x80 {
                next.a = state.x
            } else {
                next.x = state.a
            }
        }
    }
    Step::On(next)
}

/// Returns the word that a filter sees at an offset of a call. The place of the call is not known.
fn word_of(call: &Call, offset: u32) -> Option<u32> {
    match offset {
        0 => Some(call.number),
        4 => Some(ARCHITECTURE_X86_64),
        16..DATA_BYTES => {
            let argument = call.arguments[(offset as usize - 16) / 8]?;
            Some((argument >> (offset % 8 * 8)) as u32)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: u16 = 0x20;
    const ALLOW: u32 = 0x7fff_0000;
    const KILL: u32 = 0x8000_0000;
    const ERRNO: u32 = 0x0005_0001;

    fn does(code: u16, k: u32) -> Instruction {
        Instruction { code, if_true: 0, if_false: 0, k }
    }

    /// `if_false` and `if_true` are how many instructions are left out.
    fn jump(code: u16, k: u32, if_true: u8, if_false: u8) -> Instruction {
        Instruction { code, if_true, if_false, k }
    }

    const EQUAL: u16 = 0x15;
    const ABOVE: u16 = 0x25;
    const AT_LEAST: u16 = 0x35;
    const ANY_BIT: u16 = 0x45;

    fn call(number: u32) -> Call {
        Call { number, arguments: [None; 6] }
    }

    fn with(number: u32, argument: usize, value: u64) -> Call {
        let mut call = call(number);
        call.arguments[argument] = Some(value);
        call
    }

    #[test]
    fn what_is_known_decides() {
        let filter = [
            does(LOAD, 4),
            jump(EQUAL, ARCHITECTURE_X86_64, 1, 0),
            does(RETURN, KILL),
            does(LOAD, 0),
            jump(AT_LEAST, 0x4000_0000, 0, 1),
            does(RETURN, KILL),
            jump(EQUAL, 9, 0, 1),
            does(RETURN, ALLOW),
            jump(ABOVE, 300, 1, 0),
            does(RETURN, ERRNO),
            does(RETURN, 0x0003_0000),
        ];
        assert_eq!(action(&filter, &call(9)), Action::Allows);
        assert_eq!(action(&filter, &call(10)), Action::Fails);
        assert_eq!(action(&filter, &call(301)), Action::Signals);
        assert_eq!(action(&filter, &call(0x4000_0009)), Action::Kills);
    }

    #[test]
    fn what_is_not_known_goes_both_ways() {
        // Of `mprotect` with PROT_EXEC, and with any of the upper half of the argument.
        let filter = [
            does(LOAD, 36),
            jump(EQUAL, 0, 0, 3),
            does(LOAD, 32),
            jump(ANY_BIT, 4, 1, 0),
            does(RETURN, ALLOW),
            does(RETURN, ERRNO),
        ];
        assert_eq!(action(&filter, &call(10)), Action::Fails);
        assert_eq!(action(&filter, &with(10, 2, 3)), Action::Allows);
        assert_eq!(action(&filter, &with(10, 2, 5)), Action::Fails);
        assert_eq!(action(&filter, &with(10, 2, 1 << 32)), Action::Fails);
        assert_eq!(action(&filter, &with(10, 1, 3)), Action::Fails);
        // The place of the call is not known.
        let by_place = [does(LOAD, 8), jump(ABOVE, 0x1000, 0, 1), does(RETURN, ALLOW), does(RETURN, KILL)];
        assert_eq!(action(&by_place, &call(1)), Action::Kills);
    }

    #[test]
    fn both_ways_may_be_the_same() {
        let filter = [does(LOAD, 16), jump(EQUAL, 7, 0, 0), does(RETURN, ALLOW)];
        assert_eq!(action(&filter, &call(1)), Action::Allows);
        // An equal value is known from there on.
        let filter = [
            does(LOAD, 16),
            jump(EQUAL, 7, 0, 2),
            jump(EQUAL, 7, 0, 1),
            does(RETURN, ALLOW),
            jump(EQUAL, 8, 0, 1),
            does(RETURN, ERRNO),
            does(RETURN, ALLOW),
        ];
        assert_eq!(action(&filter, &with(1, 0, 7)), Action::Allows);
        assert_eq!(action(&filter, &with(1, 0, 8)), Action::Fails);
        assert_eq!(action(&filter, &with(1, 0, 9)), Action::Allows);
        let certain =
            [does(LOAD, 16), jump(EQUAL, 7, 0, 2), jump(EQUAL, 7, 1, 0), does(RETURN, KILL), does(RETURN, ALLOW)];
        assert_eq!(action(&certain, &call(1)), Action::Allows);
    }

    #[test]
    fn it_reckons() {
        // X = 5; A = number; A = (A & 0xff) * X; M[3] = A; A = 0; A = M[3]; A - 45 == 0?
        let filter = [
            does(0x01, 5),
            does(LOAD, 0),
            does(0x54, 0xff),
            does(0x2c, 0),
            does(0x02, 3),
            does(0x00, 0),
            does(0x60, 3),
            does(0x14, 45),
            jump(EQUAL, 0, 0, 1),
            does(RETURN, ALLOW),
            does(RETURN, KILL),
        ];
        assert_eq!(action(&filter, &call(9)), Action::Allows);
        assert_eq!(action(&filter, &call(0x109)), Action::Allows);
        assert_eq!(action(&filter, &call(8)), Action::Kills);
        // A division by an unknown number may be one by zero.
        let divided = [does(LOAD, 16), does(0x07, 0), does(0x00, 8), does(0x3c, 0), does(RETURN, ALLOW)];
        assert_eq!(action(&divided, &call(1)), Action::Kills);
        assert_eq!(action(&divided, &with(1, 0, 2)), Action::Allows);
        assert_eq!(action(&divided, &with(1, 0, 0)), Action::Kills);
        // It returns the value in A.
        assert_eq!(action(&[does(0x00, ALLOW), does(0x16, 0)], &call(1)), Action::Allows);
        assert_eq!(action(&[does(LOAD, 16), does(0x16, 0)], &call(1)), Action::Unknown);
        // The words of an argument, and the length of all there is.
        let half = [does(LOAD, 20), jump(EQUAL, 2, 0, 1), does(RETURN, ALLOW), does(RETURN, KILL)];
        assert_eq!(action(&half, &with(1, 0, 2 << 32 | 1)), Action::Allows);
        let length = [does(0x80, 0), jump(EQUAL, 64, 0, 1), does(RETURN, ALLOW), does(RETURN, KILL)];
        assert_eq!(action(&length, &call(1)), Action::Allows);
    }

    #[test]
    fn the_worst_of_all_ways_counts_and_all_end() {
        let returns = [0x7fff_0000, 0x7ffc_0000, 0x7ff0_0000, 0x7fc0_0000, 0x0005_0026, 0x0003_0000, 0, 0x8000_0000, 1];
        let wanted = [Action::Allows, Action::Allows, Action::Fails, Action::Asks, Action::Fails, Action::Signals];
        let actions = returns.map(|returned| action(&[does(RETURN, returned)], &call(1)));
        assert_eq!(actions[..6], wanted);
        assert_eq!(actions[6..], [Action::Kills; 3]);
        let asking = returns.into_iter().filter(|&returned| may_ask(&[does(LOAD, 0), does(RETURN, returned)]));
        assert_eq!(asking.collect::<Vec<_>>(), [0x7fc0_0000]);
        assert!(may_ask(&[does(LOAD, 16), does(RETURN_A, 0)]));
        assert_eq!(action(&[does(LOAD, 0)], &call(1)), Action::Unknown);
        assert_eq!(action(&[], &call(1)), Action::Unknown);
        // Each of these doubles the ways: equal states are followed once.
        let mut doubling = vec![does(LOAD, 16)];
        doubling.extend([jump(ABOVE, 7, 0, 0)].repeat(4000));
        doubling.push(does(RETURN, ALLOW));
        assert_eq!(action(&doubling, &call(1)), Action::Allows);
        // And here all are different.
        let mut different = Vec::new();
        for bit in 0..30 {
            different.extend([
                does(LOAD, 16),
                jump(ANY_BIT, 1 << bit, 0, 3),
                does(0x60, 0),
                does(0x44, 1 << bit),
                does(0x02, 0),
            ]);
        }
        different.insert(0, does(0x02, 0));
        different.push(does(RETURN, ALLOW));
        assert_eq!(action(&different, &call(1)), Action::Unknown);
    }
}
