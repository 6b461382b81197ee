//! The beginnings of functions, by the unwind information of a module (`.eh_frame`).
//!
//! A description (FDE) is a function's if, at its first instruction, nothing has been pushed: the frame's address is
//! the stack pointer before the call (on x86-64 rsp + 8, on aarch64 sp), no register has been saved, and the return
//! address is in the place where a call leaves it.
//!
//! So parts that functions jump to (`.cold`), the procedure linkage table and a program's `_start` are no functions.
//!
//! Not here: room for a branch in such a function (`functions`).
//!
//! Sources: DWARF 5 section 6.4, LSB 5.0 10.6.

use super::module::Image;

/// A range of code with a description of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) start: usize,
    pub(super) end: usize,
    /// True for a function, false for a part of one.
    pub(super) is_function: bool,
    /// True with a function to call for a passing exception (a personality routine).
    pub(super) has_routine: bool,
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "is for branches at ends"))]
    pub(super) landings: Landings,
}

/// Landing places of exceptions in a range.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "is for branches at ends"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Landings {
    /// They land nowhere.
    None,
    /// The table at this address.
    Table(usize),
    /// A table in an unknown format at a place.
    Unknown,
}

/// DWARF's numbers of the stack pointer and of the return address; the bytes pushed by a call, and its place for the
/// return address; letters of augmentations without data, for signed return addresses and tagged stacks only.
#[cfg(target_arch = "x86_64")]
mod called {
    use super::Place;
    pub(super) const SP: u64 = 7;
    pub(super) const RETURN_ADDRESS: u64 = 16;
    pub(super) const PUSHED: u64 = 8;
    pub(super) const PLACE: Place = Place::Stack;
    pub(super) const LETTERS: &[u8] = b"";
}
#[cfg(target_arch = "aarch64")]
mod called {
    use super::Place;
    pub(super) const SP: u64 = 31;
    pub(super) const RETURN_ADDRESS: u64 = 30;
    pub(super) const PUSHED: u64 = 0;
    pub(super) const PLACE: Place = Place::Register;
    pub(super) const LETTERS: &[u8] = b"BG";
}
use called::{LETTERS, PLACE, PUSHED, RETURN_ADDRESS, SP};

/// The place of a return address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Register,
    Stack,
    Nowhere,
}

/// Returns all described ranges of a module, ascending, one for each beginning.
pub(super) fn ranges(image: &Image<'_>) -> Vec<Range> {
    let mut ranges: Vec<Range> = match image.unlisted_frames() {
        None => image.frame_descriptions().into_iter().filter_map(|(start, at)| describe(image, start, at)).collect(),
        Some(section) => entries(image, &section).filter_map(|at| described(image, at)).collect(),
    };
    ranges.sort_by_key(|range| range.start);
    ranges.dedup_by_key(|range| range.start);
    ranges
}

/// Returns the places of the entries in a section.
fn entries(image: &Image<'_>, section: &std::ops::Range<usize>) -> impl Iterator<Item = usize> {
    let length = |at: usize| {
        let end = at.checked_add(4).filter(|&end| end <= section.end)?;
        Some(u32::from_le_bytes(image.bytes(at..end)?.try_into().ok()?) as usize)
    };
    // One without length is an end, behind which those of other files may begin.
    std::iter::successors(Some(section.start), move |&at| (at + 4).checked_add(length(at)?))
        .take_while(|&at| at < section.end)
}

/// Reads the description at `at`, if it is that of the code at `start`.
fn describe(image: &Image<'_>, start: usize, at: usize) -> Option<Range> {
    described(image, at).filter(|range| range.start == start)
}

fn described(image: &Image<'_>, at: usize) -> Option<Range> {
    let description = entry(image, at)?;
    let common_at = at.checked_add(4)?.checked_sub(usize::try_from(description.id).ok()?)?;
    let common = entry(image, common_at)?;
    if description.id == 0 || common.id != 0 {
        return None;
    }
    let common = Common::read(common.rest)?;
    let mut reader = Reader(description.rest);
    let start = reader.pointer(common.encoding, at + 8)?;
    // The size is no distance.
    let size = reader.pointer(common.encoding & 0x0f, 0)?;
    if size == 0 {
        return None;
    }
    let mut landings = Landings::None;
    if common.has_data {
        let data_bytes = usize::try_from(reader.unsigned()?).ok()?;
        let place = at + 8 + (description.rest.len() - reader.0.len());
        landings = landings_of(Reader(reader.0.get(..data_bytes)?), common.table_encoding, place);
        reader.skip(data_bytes)?;
    }
    let mut first = Row::default();
    let is_known = first.apply(Reader(common.instructions)).is_some() && first.apply(reader).is_some();
    let is_function = is_known && !common.is_signal_frame && first.is_of_a_beginning();
    Some(Range { start, end: start.checked_add(size)?, is_function, has_routine: common.has_routine, landings })
}

/// Reads the landing places of exceptions from the data of a description at `place`.
fn landings_of(mut data: Reader<'_>, encoding: Option<u8>, place: usize) -> Landings {
    /// Nothing is written.
    const OMITTED: u8 = 0xff;

    match encoding {
        None | Some(OMITTED) => Landings::None,
        Some(encoding) => {
            let told = Reader(data.0).pointer(encoding, place);
            match (data.pointer(encoding & 0x0f, 0), told) {
                (Some(0), _) => Landings::None,
                (Some(_), Some(table)) => Landings::Table(table),
                _ => Landings::Unknown,
            }
        }
    }
}

/// A CIE or an FDE: its contents behind its length and its id.
struct Entry<'a> {
    id: u32,
    rest: &'a [u8],
}

fn entry<'a>(image: &'a Image<'_>, at: usize) -> Option<Entry<'a>> {
    let word = |at: usize| Some(u32::from_le_bytes(image.bytes(at..at.checked_add(4)?)?.try_into().ok()?));
    let length = word(at)? as usize;
    let end = at.checked_add(4)?.checked_add(length)?;
    // That of the 64-bit form is out of all segments.
    let rest = image.bytes(at.checked_add(8)?..end)?;
    Some(Entry { id: word(at + 4)?, rest })
}

/// Common part of descriptions (CIE).
struct Common<'a> {
    /// The encoding of addresses.
    encoding: u8,
    /// True if descriptions have augmentation data.
    has_data: bool,
    is_signal_frame: bool,
    has_routine: bool,
    /// The encoding of the address of a table of exceptions, if there is one.
    table_encoding: Option<u8>,
    instructions: &'a [u8],
}

impl<'a> Common<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let version = reader.byte()?;
        let end = reader.0.iter().position(|&byte| byte == 0)?;
        let augmentation = &reader.0[..end];
        reader.skip(end + 1)?;
        reader.unsigned()?; // code alignment
        reader.unsigned()?; // data alignment
        let return_address = if version == 1 { u64::from(reader.byte()?) } else { reader.unsigned()? };
        if return_address != RETURN_ADDRESS {
            return None;
        }
        let mut common = Self {
            encoding: 0,
            has_data: false,
            is_signal_frame: false,
            has_routine: false,
            table_encoding: None,
            instructions: &[],
        };
        if augmentation.first() == Some(&b'z') {
            common.has_data = true;
            let data_bytes = usize::try_from(reader.unsigned()?).ok()?;
            let mut data = Reader(reader.0.get(..data_bytes)?);
            reader.skip(data_bytes)?;
            for letter in &augmentation[1..] {
                match letter {
                    b'R' => common.encoding = data.byte()?,
                    b'L' => common.table_encoding = Some(data.byte()?),
                    b'S' => common.is_signal_frame = true,
                    letter if LETTERS.contains(letter) => {}
                    b'P' => {
                        let encoding = data.byte()?;
                        data.pointer(encoding & 0x0f, 0)?;
                        common.has_routine = true;
                    }
                    _ => return None,
                }
            }
        } else if !augmentation.is_empty() {
            return None;
        }
        common.instructions = reader.0;
        Some(common)
    }
}

/// The rules at the first instruction, as far as they show a function.
#[derive(Debug, Default)]
struct Row {
    /// Register and offset; `None` if it is another kind of rule.
    frame: Option<(u64, u64)>,
    return_address: Place,
    saves_registers: bool,
}

impl Row {
    fn is_of_a_beginning(&self) -> bool {
        self.frame == Some((SP, PUSHED)) && self.return_address == PLACE && !self.saves_registers
    }

    /// Follows instructions up to the first one for a later address. `None` for an unknown one.
    fn apply(&mut self, mut reader: Reader<'_>) -> Option<()> {
        while let Ok(opcode) = reader.byte().ok_or(()) {
            let operand = u64::from(opcode & 0x3f);
            match opcode {
                0x00 => {}                                                   // nop
                0x40..=0x7f | 0x01..=0x04 => return Some(()),                // advance
                0x80..=0xbf => _ = (reader.unsigned()?, self.save(operand)), // offset
                0x05 | 0x11 => {
                    let register = reader.unsigned()?;
                    reader.unsigned()?;
                    self.save(register);
                }
                0x07 => {
                    // undefined
                    if reader.unsigned()? == RETURN_ADDRESS {
                        self.return_address = Place::Nowhere;
                    }
                }
                0x08 => _ = reader.unsigned()?, // same value
                0x0c => self.frame = Some((reader.unsigned()?, reader.unsigned()?)),
                0x0d => self.frame = Some((reader.unsigned()?, self.frame?.1)),
                0x0e => self.frame = Some((self.frame?.0, reader.unsigned()?)),
                0x2e => _ = reader.unsigned()?, // size of arguments
                _ => return None,
            }
        }
        Some(())
    }

    fn save(&mut self, register: u64) {
        if register == RETURN_ADDRESS {
            self.return_address = Place::Stack;
        } else {
            self.saves_registers = true;
        }
    }
}

/// Bytes for reading from the front.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    fn skip(&mut self, bytes: usize) -> Option<()> {
        self.0 = self.0.get(bytes..)?;
        Some(())
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    /// Reads a number in LEB128. Of signed ones only the end counts.
    pub(super) fn unsigned(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// Reads a pointer at `at` in a linker's form: absolute, or relative to its place.
    pub(super) fn pointer(&mut self, encoding: u8, at: usize) -> Option<usize> {
        let origin = match encoding & 0xf0 {
            0x00 => 0,
            0x10 => at,
            // An indirect one: where it is does not matter here.
            _ => return None,
        };
        let value = match encoding & 0x0f {
            0x00 | 0x04 | 0x0c => {
                let value = u64::from_le_bytes(self.0.get(..8)?.try_into().ok()?);
                self.skip(8)?;
                value as usize
            }
            0x03 => {
                let value = u32::from_le_bytes(self.0.get(..4)?.try_into().ok()?);
                self.skip(4)?;
                value as usize
            }
            0x0b => {
                let value = i32::from_le_bytes(self.0.get(..4)?.try_into().ok()?);
                self.skip(4)?;
                value as isize as usize
            }
            _ => return None,
        };
        Some(origin.wrapping_add(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rules of the usual CIE.
    const USUAL: &[u8] =
        if cfg!(target_arch = "x86_64") { &[0x0c, 7, 8, 0x90, 1, 0, 0] } else { &[0x0c, 31, 0, 0, 0, 0, 0] };

    /// A row of these and of `instructions`.
    fn row(instructions: &[u8]) -> Option<Row> {
        let mut row = Row::default();
        row.apply(Reader(USUAL))?;
        row.apply(Reader(instructions))?;
        Some(row)
    }

    #[test]
    fn beginnings_have_pushed_nothing() {
        assert!(row(&[]).unwrap().is_of_a_beginning());
        // advance 1, def_cfa_offset 16: later.
        assert!(row(&[0x41, 0x0e, 16, 0x86, 2]).unwrap().is_of_a_beginning());
        // A part of a function: def_cfa_offset 64, or a saved rbx.
        assert!(!row(&[0x0e, 64]).unwrap().is_of_a_beginning());
        assert!(!row(&[0x83, 2]).unwrap().is_of_a_beginning());
        // `_start`: the return address is undefined.
        assert!(!row(&[0x07, RETURN_ADDRESS as u8]).unwrap().is_of_a_beginning());
        // An expression.
        assert!(row(&[0x0f, 3, 0x77, 8, 6]).is_none());
    }

    #[test]
    fn numbers_and_pointers() {
        assert_eq!(Reader(&[0x80, 0x01]).unsigned(), Some(128));
        assert_eq!(Reader(&[0x80]).unsigned(), None);
        assert_eq!(Reader(&(-16i32).to_le_bytes()).pointer(0x1b, 0x1000), Some(0xff0));
        assert_eq!(Reader(&8u64.to_le_bytes()).pointer(0, 0x1000), Some(8));
        assert_eq!(Reader(&[0; 8]).pointer(0x9b, 0), None);
    }
}
