//! Specifications of what is taken and given back by which functions, as the recorder has compiled them for the library that it puts into
//! programs: a table of functions, and steps of a small machine that find out how much and what.
//!
//! The table is words of 32 bits and bytes, little-endian. The recorder has checked it; who reads it takes nothing outside of it anyway.
//!
//! | at | |
//! |---|---|
//! | 0 | [`MAGIC`], 64 bits |
//! | 8 | bytes of all of it; functions |
//! | [`HEAD_BYTES`] | of each function [`FUNCTION_WORDS`] words |
//! | behind | steps and names, to which functions refer by place and length |
//!
//! Not here: how a user writes a specification, and how it is checked (`rftrace-record`).

use alloc::vec::Vec;

/// The first word.
pub const MAGIC: u64 = u64::from_le_bytes(*b"rftspec1");
/// Bytes before the functions.
pub const HEAD_BYTES: usize = 16;
/// Words of a function.
pub const FUNCTION_WORDS: usize = 20;
/// The most functions.
pub const MAX_FUNCTIONS: usize = 4096;
/// The most that one call takes or gives back.
pub const MAX_IDS: usize = 4;
/// The most arguments that are told of a call.
pub const MAX_ARGUMENTS: usize = 8;
/// The most values that the machine has at a time.
pub const MAX_DEPTH: usize = 16;
/// The arguments that steps can name.
pub const MAX_PARAMETERS: u8 = 16;

/// The effect of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Does {
    /// Takes something.
    Allocate = 0,
    /// Gives something back.
    Release = 1,
    /// Gives something back and takes something.
    Reallocate = 2,
    /// Neither: the call is told.
    Note = 3,
}

impl Does {
    fn of(word: u32) -> Option<Self> {
        [Self::Allocate, Self::Release, Self::Reallocate, Self::Note].into_iter().find(|&does| does as u32 == word)
    }
}

/// Recorded when it is called, not when it returns.
pub const BEFORE: u32 = 1;
/// A call counts, also where a function that it has called has taken the same.
pub const NESTED: u32 = 2;

/// How memory is read, and numbers cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Width {
    /// 64 bits.
    Word = 0,
    /// 8 bits.
    U8 = 1,
    /// 16 bits.
    U16 = 2,
    /// 32 bits.
    U32 = 3,
    /// 8 bits with a sign.
    I8 = 4,
    /// 16 bits with a sign.
    I16 = 5,
    /// 32 bits with a sign.
    I32 = 6,
}

impl Width {
    /// All of them, and what they are called in specifications.
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

    /// How many bytes are read.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Word => 8,
            Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 => 4,
        }
    }

    /// Cuts a value to this width.
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

/// An operation on two values with one result. Comparisons are of signed numbers, and result in 1 or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    /// Their sum.
    Add = 0,
    /// The first one less the second.
    Subtract = 1,
    /// Their product.
    Multiply = 2,
    /// 1 if both are equal.
    Equal = 3,
    /// 1 if they differ.
    Unequal = 4,
    /// 1 if the first one is less.
    Less = 5,
    /// 1 if the first one is not more.
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

/// A step of the machine: values lie on each other, the newest on top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Adds a number.
    Number(u64),
    /// Adds an argument, from 0 on.
    Argument(u8),
    /// Adds what the function has returned.
    Result,
    /// Takes an address, adds what is there.
    Load(Width),
    /// Cuts the newest value.
    Cut(Width),
    /// Takes two, adds one.
    Operate(Operation),
    /// Takes an address, adds how many bytes are there before a 0.
    TextLength,
    /// Takes an address, adds how many numbers of 32 bits are there before a 0.
    WideLength,
}

impl Step {
    /// Adds its bytes.
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

    /// Takes the first step off some bytes; `None` where there is none.
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

    /// How many values it takes.
    #[must_use]
    pub fn takes(self) -> usize {
        match self {
            Self::Number(_) | Self::Argument(_) | Self::Result => 0,
            Self::Load(_) | Self::Cut(_) | Self::TextLength | Self::WideLength => 1,
            Self::Operate(_) => 2,
        }
    }
}

/// An argument that is told of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Argument<T> {
    /// Its name.
    pub name: T,
    /// Its steps.
    pub steps: T,
    /// True if the steps lead to the address of a text.
    pub is_text: bool,
}

/// A function. `T` is bytes: owned by whoever writes it, borrowed from the table by whoever reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function<T> {
    /// Of what, by the number of its bit.
    pub resource: u32,
    /// Its effect.
    pub does: Does,
    /// [`BEFORE`], [`NESTED`].
    pub flags: u32,
    /// How much: steps.
    pub size: T,
    /// Test for a failed call, which does not count: steps, or nothing.
    pub failed: T,
    /// The id that [`Does::Reallocate`] gives back: steps.
    pub old: T,
    /// The ids taken or given back: steps of each.
    pub ids: Vec<T>,
    /// Further arguments to record.
    pub arguments: Vec<Argument<T>>,
}

/// The bytes of a table.
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

/// A table that is read. Nothing is allocated for that.
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
    /// How many bytes a table has that begins so; `None` if none does.
    #[must_use]
    pub fn bytes(head: &[u8; HEAD_BYTES]) -> Option<usize> {
        let (words, _) = head.as_chunks::<4>();
        let number = |place: usize| u32::from_le_bytes(words[place]);
        let magic = u64::from(number(0)) | u64::from(number(1)) << 32;
        (magic == MAGIC).then(|| number(2) as usize)
    }

    /// Takes the bytes of a table; `None` if they are none.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        let head = bytes.first_chunk::<HEAD_BYTES>()?;
        let bytes = bytes.get(..Self::bytes(head)?)?;
        let n_functions = u32::from_le_bytes(*head.last_chunk()?) as usize;
        let is_whole = n_functions <= MAX_FUNCTIONS && HEAD_BYTES + n_functions * FUNCTION_WORDS * 4 <= bytes.len();
        is_whole.then_some(Self { bytes, n_functions })
    }

    /// A function.
    #[must_use]
    pub fn function(self, number: usize) -> Option<Entry<'a>> {
        let at = HEAD_BYTES + number * FUNCTION_WORDS * 4;
        let words = self.bytes.get(at..at + FUNCTION_WORDS * 4).filter(|_| number < self.n_functions)?;
        Some(Entry { table: self, words })
    }

    /// How many functions there are.
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
    /// Of what, by the number of its bit.
    #[must_use]
    pub fn resource(self) -> u32 {
        word(self.words, 0)
    }

    /// Its effect.
    #[must_use]
    pub fn does(self) -> Does {
        Does::of(word(self.words, 1)).unwrap_or(Does::Note)
    }

    /// True if it has one of the flags.
    #[must_use]
    pub fn has(self, flag: u32) -> bool {
        word(self.words, 2) & flag != 0
    }

    /// How much: steps.
    #[must_use]
    pub fn size(self) -> &'a [u8] {
        self.table.part(self.words, 3)
    }

    /// Test for a failed call, which does not count: steps, or nothing.
    #[must_use]
    pub fn failed(self) -> &'a [u8] {
        self.table.part(self.words, 5)
    }

    /// The id given back besides: steps, or nothing.
    #[must_use]
    pub fn old(self) -> &'a [u8] {
        self.table.part(self.words, 7)
    }

    /// The ids taken or given back: steps of each.
    pub fn ids(self) -> impl Iterator<Item = &'a [u8]> {
        let n_ids = (word(self.words, 9) as usize).min(MAX_IDS);
        (0..n_ids).map(move |number| self.table.part(self.words, 10 + 2 * number))
    }

    /// Further arguments to record.
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
