//! Calls of one depth, and what they merge into where they are narrower than a pixel; and how both are packed.
//!
//! ```text
//! of each block:
//!   since the end of the one before   nanoseconds
//!   from its start to its end         nanoseconds
//!   calls in it                       not where all are single calls
//!   of one call:                                  of several:
//!     function · 2 + whether it has values          function · 2
//!     time in what it called                        time between the calls
//!     calls of the caller's depth since that        the function's time
//!       of the call before: only of single calls
//!     arguments, result: if it has values
//! ```
//!
//! All of them are numbers (`numbers`).

use crate::numbers::{number, take_number};

/// The most functions whose time is counted in a block while it is made: those that come first.
const MAX_COUNTED: usize = 32;

/// A call, or several that follow each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// How many calls.
    pub(crate) n: u64,
    /// Their time.
    pub(crate) busy: u64,
    /// The function, or the one that took most of the time.
    pub(crate) function: u32,
    /// Of one call its own time, of several how much of it that function took.
    pub(crate) part: u64,
    /// Of one call, the numbers of its arguments and its result; 0 for none.
    pub(crate) values: [u32; 2],
    /// Of one call, which call of the depth above has made it.
    pub(crate) caller: u64,
}

impl Block {
    /// How much of its time its function took.
    fn function_time(&self) -> u64 {
        if self.n == 1 { self.busy } else { self.part }
    }
}

/// The packed items: single calls, with their callers, or blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Calls,
    Blocks,
}

/// Packs blocks.
#[derive(Debug)]
pub(crate) struct Encoder {
    kind: Kind,
    pub(crate) bytes: Vec<u8>,
    pub(crate) count: u32,
    pub(crate) first: Block,
    pub(crate) last_end: u64,
    last_caller: u64,
}

impl Encoder {
    pub(crate) fn new(kind: Kind) -> Self {
        Self { kind, bytes: Vec::new(), count: 0, first: Block::default(), last_end: 0, last_caller: 0 }
    }

    pub(crate) fn add(&mut self, block: &Block) {
        if self.count == 0 {
            (self.first, self.last_end, self.last_caller) = (*block, block.start, block.caller);
        }
        self.count += 1;
        let out = &mut self.bytes;
        let width = block.end - block.start;
        number(out, block.start - self.last_end);
        number(out, width);
        if self.kind == Kind::Blocks {
            number(out, block.n);
        }
        let has_values = block.values != [0; 2];
        number(out, u64::from(block.function) << 1 | u64::from(has_values));
        if block.n == 1 {
            number(out, width - block.part);
        } else {
            number(out, width - block.busy);
            number(out, block.part);
        }
        if self.kind == Kind::Calls {
            number(out, block.caller - self.last_caller);
            self.last_caller = block.caller;
        }
        if has_values {
            block.values.iter().for_each(|&value| number(out, value.into()));
        }
        self.last_end = block.end;
    }

    /// Begins anew.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.count = 0;
    }
}

/// Unpacks what an [`Encoder`] has packed.
#[derive(Debug)]
pub(crate) struct Decoder<'b> {
    kind: Kind,
    bytes: &'b [u8],
    end: u64,
    caller: u64,
}

impl<'b> Decoder<'b> {
    /// `start` is that of the first block, `caller` the caller of the first call.
    pub(crate) fn new(kind: Kind, bytes: &'b [u8], start: u64, caller: u64) -> Self {
        Self { kind, bytes, end: start, caller }
    }

    /// The next block.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Block> {
        let bytes = &mut self.bytes;
        let start = self.end.checked_add(take_number(bytes)?)?;
        let width = take_number(bytes)?;
        let n = if self.kind == Kind::Blocks { take_number(bytes)? } else { 1 };
        let function = take_number(bytes)?;
        let without = width.checked_sub(take_number(bytes)?)?;
        let (busy, part) = if n == 1 { (width, without) } else { (without, take_number(bytes)?) };
        if self.kind == Kind::Calls {
            self.caller = self.caller.checked_add(take_number(bytes)?)?;
        }
        let mut values = [0; 2];
        if function & 1 != 0 {
            for value in &mut values {
                *value = u32::try_from(take_number(bytes)?).ok()?;
            }
        }
        self.end = start.checked_add(width)?;
        let function = u32::try_from(function >> 1).ok()?;
        Some(Block { start, end: self.end, n, busy, function, part, values, caller: self.caller })
    }

    /// The bytes left behind it.
    pub(crate) fn rest(&self) -> &'b [u8] {
        self.bytes
    }
}

/// Merges what is narrower than a pixel and begins in the same one. Of several such calls all but the last end in it too.
#[derive(Debug)]
pub(crate) struct Merger {
    /// A pixel, in nanoseconds.
    width: u64,
    open: Option<Block>,
    /// The pixel in which it begins, if it is narrow.
    cell: Option<u64>,
    /// The time of each function in it.
    functions: Vec<(u32, u64)>,
}

impl Merger {
    pub(crate) fn new(width: u64) -> Self {
        Self { width: width.max(1), open: None, cell: None, functions: Vec::new() }
    }

    /// True if nothing was added since the last block was whole.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_none()
    }

    /// Takes the next block. Returns the one before, if that is whole.
    pub(crate) fn add(&mut self, block: Block) -> Option<Block> {
        // A block that was merged for narrower pixels is narrow.
        let is_narrow = block.n > 1 || block.end - block.start < self.width;
        let cell = is_narrow.then(|| block.start / self.width);
        if cell.is_some()
            && cell == self.cell
            && let Some(open) = &mut self.open
        {
            if self.functions.is_empty() {
                self.functions.push((open.function, open.function_time()));
            }
            open.end = block.end;
            open.n = open.n.saturating_add(block.n);
            open.busy = open.busy.saturating_add(block.busy);
            match self.functions.iter().position(|(function, _)| *function == block.function) {
                Some(at) => {
                    let time = &mut self.functions[at].1;
                    *time = time.saturating_add(block.function_time());
                }
                None if self.functions.len() < MAX_COUNTED => {
                    self.functions.push((block.function, block.function_time()));
                }
                None => {}
            }
            return None;
        }
        let whole = self.finish();
        (self.open, self.cell) = (Some(block), cell);
        whole
    }

    /// The last one.
    pub(crate) fn finish(&mut self) -> Option<Block> {
        let mut whole = self.open.take()?;
        self.cell = None;
        // The first of those with the most time.
        if let Some(&(function, part)) = self.functions.iter().rev().max_by_key(|(_, time)| *time) {
            whole = Block { function, part, values: [0; 2], caller: 0, ..whole };
        }
        self.functions.clear();
        Some(whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(start: u64, end: u64, function: u32) -> Block {
        Block {
            start,
            end,
            n: 1,
            busy: end - start,
            function,
            part: (end - start) / 2,
            values: [0; 2],
            caller: start / 3,
        }
    }

    fn merge(width: u64, blocks: &[Block]) -> Vec<Block> {
        let mut merger = Merger::new(width);
        let mut found: Vec<_> = blocks.iter().filter_map(|block| merger.add(*block)).collect();
        found.extend(merger.finish());
        found
    }

    #[test]
    fn blocks_are_read_as_they_were_written() {
        let with_values = Block { values: [0, 7], ..call(40, 45, 3) };
        let calls = [call(10, 20, 1), call(20, 20, 2), with_values, call(1 << 50, (1 << 50) + 9, 300_000)];
        for (kind, blocks) in [(Kind::Calls, calls.to_vec()), (Kind::Blocks, merge(16, &calls))] {
            let mut encoder = Encoder::new(kind);
            blocks.iter().for_each(|block| encoder.add(block));
            let mut decoder = Decoder::new(kind, &encoder.bytes, encoder.first.start, encoder.first.caller);
            for block in &blocks {
                let caller = if kind == Kind::Calls { block.caller } else { encoder.first.caller };
                assert_eq!(decoder.next(), Some(Block { caller, ..*block }));
            }
            assert_eq!((decoder.next(), decoder.rest().len()), (None, 0));
            for length in 0..encoder.bytes.len() {
                let mut decoder = Decoder::new(kind, &encoder.bytes[..length], 0, 0);
                assert!(std::iter::from_fn(|| decoder.next()).count() < blocks.len());
            }
        }
    }

    #[test]
    fn what_is_narrow_merges_with_what_begins_in_its_pixel() {
        let calls = [
            call(0, 4, 1),
            call(5, 6, 2),
            call(6, 12, 2),
            call(12, 30, 3),
            call(30, 30, 4),
            call(31, 33, 5),
            call(40, 41, 6),
        ];
        let found = merge(10, &calls);
        let block =
            |start, end, n, busy, function, part| Block { start, end, n, busy, function, part, ..Block::default() };
        let expected = [block(0, 12, 3, 11, 2, 7), call(12, 30, 3), block(30, 33, 2, 2, 5, 2), call(40, 41, 6)];
        assert_eq!(found, expected);
        // In two steps it is the same.
        let steps = merge(80, &found);
        assert_eq!(steps, [block(0, 41, 7, 32, 3, 18)]);
        assert_eq!(merge(80, &calls), steps);
    }
}
