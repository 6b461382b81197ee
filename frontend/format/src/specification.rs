//! Specifications: the functions that take and release a resource. The recorder compiles them for the library that it
//! puts into programs: to a table of functions, and to steps of a small machine that compute sizes and ids.
//!
//! The table consists of words of 32 bits and of bytes, little-endian. The recorder has checked it; a reader stays
//! within the table in any case.
//!
//! | offset | contents |
//! |---|---|
//! | 0 | [`MAGIC`], 64 bits |
//! | 8 | the size of the table in bytes; the number of functions |
//! | [`HEAD_BYTES`] | [`FUNCTION_WORDS`] words for each function |
//! | after that | steps and names, to which functions refer by offset and length |
//!
//! Not here: the user's form of a specification and its checks (`rftrace-record`).

use alloc::vec::Vec;

/// The first word of a table.
pub const MAGIC: u64 = u64::from_le_bytes(*b"rftspec1");
/// The number of bytes before the functions.
pub const HEAD_BYTES: usize = 16;
/// The number of words of a function.
pub const FUNCTION_WORDS: usize = 20;
/// The maximum number of functions.
pub const MAX_FUNCTIONS: usize = 4096;
/// The maximum number of resources that one call takes or releases.
pub const MAX_IDS: usize = 4;
/// The maximum number of recorded arguments of a call.
pub const MAX_ARGUMENTS: usize = 8;
/// The maximum number of values on the machine's stack.
pub const MAX_DEPTH: usize = 16;
/// The number of arguments that steps can name.
pub const MAX_PARAMETERS: u8 = 16;

/// The effect of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Does {
    /// It takes a resource.
    Allocate = 0,
    /// It releases a resource.
    Release = 1,
    /// It releases a resource and takes another one.
    Reallocate = 2,
    /// It does neither; its calls are recorded.
    Note = 3,
}

impl Does {
    fn of(word: u32) -> Option<Self> {
        [Self::Allocate, Self::Release, Self::Reallocate, Self::Note].into_iter().find(|&does| does as u32 == word)
    }
}

/// A flag: the function is recorded at its call, not at its return.
pub const BEFORE: u32 = 1;
/// A flag: a call counts even if a function called by it has taken the same resource.
pub const NESTED: u32 = 2;

/// The width and sign of a number in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Width {
    /// 64 bits.
    Word = 0,
    /// 8 bits, unsigned.
    U8 = 1,
    /// 16 bits, unsigned.
    U16 = 2,
    /// 32 bits, unsigned.
    U32 = 3,
    /// 8 bits, signed.
    I8 = 4,
    /// 16 bits, signed.
    I16 = 5,
    /// 32 bits, signed.
    I32 = 6,
}

impl Width {
    /// All widths with their names in specifications.
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::Word, "i64"),
        (Self::U8, "u8"),
        (Self::U16, "u16"),
        (Self::U32, "u32"),
        (Self::I8, "i8"),
        (Self::I16, "i16"),
        (Self::I32, "i32"),
    ];

    fn of(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().map(|(width, _)| width).find(|&width| width as u8 == byte)
    }

    /// Returns the number of bytes in memory.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Word => 8,
            Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 => 4,
        }
    }

    /// Reduces a value to this width, and extends it to 64 bits again.
    #[must_use]
    pub fn cut(self, value: u64) -> u64 {
        match self {
            Self::Word => value,
            Self::U8 => u64::from(value as u8),
            Self::U16 => u64::from(value as u16),
            Self::U32 => u64::from(value as u32),
            Self::I8 => i64::from(value as u8 as i8) as u64,
            Self::I16 => i64::from(value as u16 as i16) as u64,
            Self::I32 => i64::from(value as u32 as i32) as u64,
        }
    }
}

/// An operation on two values with one result. Comparisons are signed, and result in 1 or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    /// The sum.
    Add = 0,
    /// The first value minus the second.
    Subtract = 1,
    /// The product.
    Multiply = 2,
    /// 1 if both are equal.
    Equal = 3,
    /// 1 if they differ.
    Unequal = 4,
    /// 1 if the first one is less.
    Less = 5,
    /// 1 if the first one is less or equal.
    AtMost = 6,
    /// 1 if both are not 0.
    And = 7,
    /// 1 if at least one is not 0.
    Or = 8,
}

impl Operation {
    const ALL: [Self; 9] = [
        Self::Add,
        Self::Subtract,
        Self::Multiply,
        Self::Equal,
        Self::Unequal,
        Self::Less,
        Self::AtMost,
        Self::And,
        Self::Or,
    ];

    /// Returns the result for two values.
    #[must_use]
    pub fn of(self, first: u64, second: u64) -> u64 {
        let (signed, other) = (first as i64, second as i64);
        match self {
            Self::Add => first.wrapping_add(second),
            Self::Subtract => first.wrapping_sub(second),
            Self::Multiply => first.wrapping_mul(second),
            Self::Equal => u64::from(first == second),
            Self::Unequal => u64::from(first != second),
            Self::Less => u64::from(signed < other),
            Self::AtMost => u64::from(signed <= other),
            Self::And => u64::from(first != 0 && second != 0),
            Self::Or => u64::from(first != 0 || second != 0),
        }
    }
}

/// A step of the stack machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Pushes a number.
    Number(u64),
    /// Pushes an argument, numbered from 0.
    Argument(u8),
    /// Pushes the function's result.
    Result,
    /// Pops an address, pushes the number at that address.
    Load(Width),
    /// Reduces the top value to a width.
    Cut(Width),
    /// Pops two values, pushes the result.
    Operate(Operation),
    /// Pops an address, pushes the number of bytes before a 0 there.
    TextLength,
    /// Pops an address, pushes the number of 32-bit numbers before a 0 there.
    WideLength,
}

impl Step {
    /// Appends the step's bytes to `out`.
    pub fn encode(self, out: &mut Vec<u8>) {
        match self {
            Self::Number(number) => {
                out.push(0);
                out.extend(number.to_le_bytes());
            }
            Self::Argument(number) => out.extend([1, number]),
            Self::Result => out.push(2),
            Self::Load(width) => out.extend([3, width as u8]),
            Self::Cut(width) => out.extend([4, width as u8]),
            Self::Operate(operation) => out.extend([5, operation as u8]),
            Self::TextLength => out.push(6),
            Self::WideLength => out.push(7),
        }
    }

    /// Decodes the first step of `code`, and returns it with the rest; `None` at the end, and for a malformed step.
    #[must_use]
    #[inline]
    pub fn decode(code: &[u8]) -> Option<(Self, &[u8])> {
        let (&first, rest) = code.split_first()?;
        Some(match (first, rest) {
            (0, _) => {
                let (number, rest) = rest.split_first_chunk::<8>()?;
                (Self::Number(u64::from_le_bytes(*number)), rest)
            }
            (1, &[number, ref rest @ ..]) if number < MAX_PARAMETERS => (Self::Argument(number), rest),
            (2, _) => (Self::Result, rest),
            (3, &[width, ref rest @ ..]) => (Self::Load(Width::of(width)?), rest),
            (4, &[width, ref rest @ ..]) => (Self::Cut(Width::of(width)?), rest),
            (5, &[operation, ref rest @ ..]) => {
                (Self::Operate(Operation::ALL.into_iter().find(|&one| one as u8 == operation)?), rest)
            }
            (6, _) => (Self::TextLength, rest),
            (7, _) => (Self::WideLength, rest),
            _ => return None,
        })
    }

    /// Returns the number of values that the step pops.
    #[must_use]
    pub fn takes(self) -> usize {
        match self {
            Self::Number(_) | Self::Argument(_) | Self::Result => 0,
            Self::Load(_) | Self::Cut(_) | Self::TextLength | Self::WideLength => 1,
            Self::Operate(_) => 2,
        }
    }
}

/// A recorded argument of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Argument<T> {
    /// The argument's name.
    pub name: T,
    /// The steps that compute it.
    pub steps: T,
    /// True if the steps compute the address of a text.
    pub is_text: bool,
}

/// A function of a specification. `T` is a sequence of bytes: owned by the writer, borrowed from the table by a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function<T> {
    /// The resource, as the number of its bit.
    pub resource: u32,
    /// The effect.
    pub does: Does,
    /// The flags [`BEFORE`] and [`NESTED`].
    pub flags: u32,
    /// The steps that compute the size.
    pub size: T,
    /// The steps that test for a failed call, which does not count; empty for none.
    pub failed: T,
    /// The steps that compute the id that [`Does::Reallocate`] releases.
    pub old: T,
    /// The steps that compute each id taken or released.
    pub ids: Vec<T>,
    /// The further arguments to record.
    pub arguments: Vec<Argument<T>>,
}

/// Encodes a table.
#[must_use]
pub fn encode(functions: &[Function<Vec<u8>>]) -> Vec<u8> {
    let mut words: Vec<u32> = Vec::new();
    let mut behind: Vec<u8> = Vec::new();
    let start = HEAD_BYTES + functions.len() * FUNCTION_WORDS * 4;
    let mut put = |bytes: &[u8]| {
        let at = start + behind.len();
        behind.extend(bytes);
        [at as u32, bytes.len() as u32]
    };
    for function in functions {
        let mut own = Vec::with_capacity(FUNCTION_WORDS);
        own.extend([function.resource, function.does as u32, function.flags]);
        own.extend([&function.size, &function.failed, &function.old].into_iter().flat_map(|code| put(code)));
        own.push(function.ids.len() as u32);
        own.extend((0..MAX_IDS).flat_map(|number| function.ids.get(number).map_or([0, 0], |code| put(code))));
        let arguments: Vec<u8> = function
            .arguments
            .iter()
            .flat_map(|argument| {
                let [[name, name_bytes], [steps, bytes]] = [put(&argument.name), put(&argument.steps)];
                [name, name_bytes, steps, bytes, u32::from(argument.is_text)]
            })
            .flat_map(u32::to_le_bytes)
            .collect();
        own.extend(put(&arguments));
        words.append(&mut own);
    }
    let mut out = Vec::with_capacity(start + behind.len());
    out.extend(MAGIC.to_le_bytes());
    out.extend(((start + behind.len()) as u32).to_le_bytes());
    out.extend((functions.len() as u32).to_le_bytes());
    out.extend(words.into_iter().flat_map(u32::to_le_bytes));
    out.extend(behind);
    out
}

/// A table for reading. Reading allocates nothing.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    bytes: &'a [u8],
    n_functions: usize,
}

/// A function of a table.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    table: Table<'a>,
    words: &'a [u8],
}

impl<'a> Table<'a> {
    /// Returns the size in bytes of the table with this head; `None` if it is no table.
    #[must_use]
    pub fn bytes(head: &[u8; HEAD_BYTES]) -> Option<usize> {
        let (words, _) = head.as_chunks::<4>();
        let number = |place: usize| u32::from_le_bytes(words[place]);
        let magic = u64::from(number(0)) | u64::from(number(1)) << 32;
        (magic == MAGIC).then(|| number(2) as usize)
    }

    /// Creates the reader of a table's bytes; `None` if they are no table.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        let head = bytes.first_chunk::<HEAD_BYTES>()?;
        let bytes = bytes.get(..Self::bytes(head)?)?;
        let n_functions = u32::from_le_bytes(*head.last_chunk()?) as usize;
        let is_whole = n_functions <= MAX_FUNCTIONS && HEAD_BYTES + n_functions * FUNCTION_WORDS * 4 <= bytes.len();
        is_whole.then_some(Self { bytes, n_functions })
    }

    /// Returns a function by its number; `None` for too large numbers.
    #[must_use]
    pub fn function(self, number: usize) -> Option<Entry<'a>> {
        let at = HEAD_BYTES + number * FUNCTION_WORDS * 4;
        let words = self.bytes.get(at..at + FUNCTION_WORDS * 4).filter(|_| number < self.n_functions)?;
        Some(Entry { table: self, words })
    }

    /// Returns the number of functions.
    #[must_use]
    pub fn n_functions(self) -> usize {
        self.n_functions
    }

    fn part(self, words: &[u8], place: usize) -> &'a [u8] {
        let (at, bytes) = (word(words, place) as usize, word(words, place + 1) as usize);
        self.bytes.get(at..at.saturating_add(bytes)).unwrap_or(&[])
    }
}

fn word(words: &[u8], place: usize) -> u32 {
    words.get(4 * place..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

impl<'a> Entry<'a> {
    /// Returns the resource, as the number of its bit.
    #[must_use]
    pub fn resource(self) -> u32 {
        word(self.words, 0)
    }

    /// Returns the effect.
    #[must_use]
    pub fn does(self) -> Does {
        Does::of(word(self.words, 1)).unwrap_or(Does::Note)
    }

    /// Returns true if the function has any of these flags.
    #[must_use]
    pub fn has(self, flag: u32) -> bool {
        word(self.words, 2) & flag != 0
    }

    /// Returns the steps that compute the size.
    #[must_use]
    pub fn size(self) -> &'a [u8] {
        self.table.part(self.words, 3)
    }

    /// Returns the steps that test for a failed call, which does not count; empty for none.
    #[must_use]
    pub fn failed(self) -> &'a [u8] {
        self.table.part(self.words, 5)
    }

    /// Returns the steps that compute the id that is released besides; empty for none.
    #[must_use]
    pub fn old(self) -> &'a [u8] {
        self.table.part(self.words, 7)
    }

    /// Returns the steps that compute each id taken or released.
    pub fn ids(self) -> impl Iterator<Item = &'a [u8]> {
        let n_ids = (word(self.words, 9) as usize).min(MAX_IDS);
        (0..n_ids).map(move |number| self.table.part(self.words, 10 + 2 * number))
    }

    /// Returns the further arguments to record.
    pub fn arguments(self) -> impl Iterator<Item = Argument<&'a [u8]>> {
        let (all, _) = self.table.part(self.words, 18).as_chunks::<20>();
        all.iter().take(MAX_ARGUMENTS).map(move |words| Argument {
            name: self.table.part(words, 0),
            steps: self.table.part(words, 2),
            is_text: word(words, 4) != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn tables_both_ways() {
        let code = |steps: &[Step]| {
            let mut out = Vec::new();
            steps.iter().for_each(|step| step.encode(&mut out));
            out
        };
        let function = Function {
            resource: 5,
            does: Does::Reallocate,
            flags: NESTED,
            size: code(&[Step::Argument(1), Step::Number(3), Step::Operate(Operation::Multiply)]),
            failed: Vec::new(),
            old: code(&[Step::Argument(0), Step::Load(Width::I32)]),
            ids: vec![code(&[Step::Result])],
            arguments: vec![Argument { name: b"path".to_vec(), steps: code(&[Step::Argument(2)]), is_text: true }],
        };
        let bytes = encode(&[function.clone(), Function { does: Does::Note, flags: BEFORE, ..function.clone() }]);
        let table = Table::new(&bytes).unwrap();
        assert_eq!(table.n_functions(), 2);
        let entry = table.function(0).unwrap();
        assert_eq!(
            (entry.resource(), entry.does(), entry.has(NESTED), entry.has(BEFORE)),
            (5, Does::Reallocate, true, false)
        );
        assert_eq!((entry.size(), entry.failed(), entry.old()), (&*function.size, &[][..], &*function.old));
        assert_eq!(entry.ids().collect::<Vec<_>>(), function.ids);
        let arguments: Vec<_> = entry.arguments().collect();
        assert_eq!(arguments, [Argument { name: &b"path"[..], steps: &function.arguments[0].steps, is_text: true }]);
        assert!(table.function(1).unwrap().has(BEFORE) && table.function(2).is_none());
        assert!(Table::new(&bytes[..bytes.len() - 1]).is_none() && Table::new(&bytes[1..]).is_none());
        let (step, rest) = Step::decode(&function.old).unwrap();
        assert_eq!((step, Step::decode(rest).map(|(step, _)| step)), (Step::Argument(0), Some(Step::Load(Width::I32))));
        assert_eq!(Step::decode(&[1, MAX_PARAMETERS]), None);
        assert_eq!(Width::I32.cut(0xffff_fffe), u64::MAX - 1);
    }
}
