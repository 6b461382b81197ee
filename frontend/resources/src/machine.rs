//! The machine that finds out what a specified function takes: a few steps for each call (`rftrace_format::specification`).
//!
//! **Invariant**: what a specification says may be wrong. So memory is read by the system, which tells what is not there.

use rftrace_format::specification::{MAX_DEPTH, Step};

use crate::state;

/// The known values of a call.
pub(crate) struct Values<'a> {
    /// The first arguments.
    pub(crate) integers: &'a [u64; 6],
    /// Where the others are.
    pub(crate) stack: usize,
    /// The returned value.
    pub(crate) result: u64,
}

/// The result of the steps; `None` if a word cannot be read, or the steps are malformed.
pub(crate) fn run(code: &[u8], values: &Values<'_>) -> Option<u64> {
    let mut stack = [0u64; MAX_DEPTH + 2];
    let (mut top, mut rest) = (0usize, code);
    while !rest.is_empty() {
        let (step, behind) = Step::decode(rest)?;
        rest = behind;
        top = top.checked_sub(step.takes())?;
        let first = *stack.get(top)?;
        let value = match step {
            Step::Number(number) => number,
            Step::Argument(number) => match values.integers.get(usize::from(number)) {
                Some(&value) => value,
                None => word((values.stack + 8 * (usize::from(number) - values.integers.len())) as u64, 8)?,
            },
            Step::Result => values.result,
            Step::Load(width) => width.cut(word(first, width.bytes())?),
            Step::Cut(width) => width.cut(first),
            Step::Operate(operation) => operation.of(first, *stack.get(top + 1)?),
            Step::TextLength => length(first, 1)?,
            Step::WideLength => length(first, 4)?,
        };
        *stack.get_mut(top)? = value;
        top += 1;
    }
    (top == 1).then_some(stack[0])
}

/// Reads memory of this process, as far as it is there, and the system may be asked.
fn read(address: u64, to: &mut [u8]) -> Option<()> {
    if state::is_confined() {
        return None;
    }
    let from = libc::iovec { iov_base: address as *mut _, iov_len: to.len() };
    let into = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    // SAFETY: the system writes only to the buffer, and tells what cannot be read.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const into, 1, &raw const from, 1, 0) };
    (read == to.len() as isize).then_some(())
}

fn word(address: u64, bytes: usize) -> Option<u64> {
    let mut word = [0; 8];
    read(address, word.get_mut(..bytes)?)?;
    Some(u64::from_le_bytes(word))
}

/// So many bytes from an address on are in the same page, and no more than there is room for.
fn up_to_page(address: u64, most: usize) -> usize {
    const PAGE: usize = 4096;
    (PAGE - address as usize % PAGE).min(most)
}

/// How many units of so many bytes are before one that is 0.
fn length(address: u64, unit: usize) -> Option<u64> {
    /// No text is longer.
    const MOST: u64 = 64 << 20;
    let mut n_bytes = 0;
    let mut buffer = [0u8; 1024];
    while n_bytes < MOST {
        let at = address.checked_add(n_bytes)?;
        let part = buffer.get_mut(..up_to_page(at, 1024).next_multiple_of(unit))?;
        read(at, part)?;
        if let Some(place) = part.chunks_exact(unit).position(|unit| unit.iter().all(|&byte| byte == 0)) {
            return Some(n_bytes / unit as u64 + place as u64);
        }
        n_bytes += part.len() as u64;
    }
    None
}

/// The beginning of the text at an address. Returns how much.
pub(crate) fn text(address: u64, to: &mut [u8]) -> usize {
    let mut n_bytes = 0;
    while n_bytes < to.len() {
        let at = address.wrapping_add(n_bytes as u64);
        let room = to.len() - n_bytes;
        let part = &mut to[n_bytes..][..up_to_page(at, room)];
        if read(at, part).is_none() {
            break;
        }
        if let Some(end) = part.iter().position(|&byte| byte == 0) {
            return n_bytes + end;
        }
        n_bytes += part.len();
    }
    n_bytes
}

/// A number as it is written.
pub(crate) fn digits(number: i64, to: &mut [u8; 20]) -> &[u8] {
    let (mut first, mut rest) = (to.len(), number.unsigned_abs());
    while first == to.len() || rest > 0 {
        first -= 1;
        to[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    if number < 0 {
        first -= 1;
        to[first] = b'-';
    }
    &to[first..]
}
