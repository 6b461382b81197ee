//! A statically linked program without symbol table: its functions that can have no branch, and the place of its
//! unwinder, by their conduct.
//!
//! libgcc's unwinder is known by this: some functions read their return address, call another function that notes it
//! with all registers and reads its own, and go on at a computed stack pointer (`__builtin_eh_return`). It is all code
//! between the first and the last of these and of their callees nearby: a linker takes it from one file.
//!
//! Not here: the conduct of a single function (`conduct`); LLVM's unwinder (`messages`).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::Path;

use iced_x86::{Code, Decoder, DecoderOptions, Register};

use super::conduct::Conduct;
use super::messages::{self, Llvm};
use crate::Error;
use crate::elf::file::map_file;
use crate::host::linux::modules;
use crate::patch::frames;
use crate::patch::module::Image;

/// Facts about the functions of a statically linked program without symbol table.
#[derive(Clone, Debug, Default)]
pub struct Unnamed {
    /// Beginnings of functions that return twice, go on on another stack, or ask for their callers.
    special: BTreeSet<usize>,
    unwinder: UnnamedUnwinder,
}

/// The unwinder of such a program.
#[derive(Clone, Debug, Default)]
pub enum UnnamedUnwinder {
    /// The program has no unwinder.
    #[default]
    Nothing,
    /// libgcc's unwinder.
    Libgcc(Libgcc),
    /// LLVM's unwinder.
    Llvm(Llvm),
    /// Another unwinder, or one with functions not found.
    Other,
}

impl UnnamedUnwinder {
    /// Returns the range of the code that throws exceptions, if it is known.
    #[must_use]
    pub fn code(&self) -> Option<Range<u64>> {
        match self {
            Self::Libgcc(Libgcc { code, .. }) | Self::Llvm(Llvm { code, .. }) => Some(code.clone()),
            Self::Nothing | Self::Other => None,
        }
    }
}

/// The addresses of functions of libgcc's unwinder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Libgcc {
    /// The range of the code that throws exceptions.
    pub code: Range<u64>,
    /// The address of `_Unwind_Resume`.
    pub resume: u64,
    /// The address of `_Unwind_SetGR`.
    pub set_register: u64,
    /// The address of `_Unwind_SetIP`.
    pub set_address: u64,
    /// The address of `__register_frame_info`.
    pub registrar: u64,
    /// The range of the code that locks the registered frame information, up to the end of `_Unwind_Find_FDE`.
    pub locking: Range<u64>,
}

/// The maximum distance between functions of one file of libgcc.
const NEAR: usize = 0x6000;
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

impl Unnamed {
    /// Examines the program of the process with the folder `process` in `/proc`.
    ///
    /// # Errors
    ///
    /// [`Error::Read`] if the program cannot be read.
    pub fn look_up(process: &Path) -> Result<Self, Error> {
        let look = || -> io::Result<Self> {
            let all = modules::modules_of_process(process)?;
            let program = all.iter().find(|module| module.is_main);
            let program = program.ok_or_else(|| io::Error::other("the list of modules has no program"))?;
            let path = program.file_in(process).ok_or_else(|| io::Error::other("cannot open the program's file"))?;
            let file = map_file(&path)?;
            // In memory there may be branches.
            let image = Image::of_file(&file, program.start as usize);
            let image = image.ok_or_else(|| io::Error::other("cannot read the program's file"))?;
            Ok(Self::of(&image, &file))
        };
        look().map_err(|source| Error::Read { path: process.to_owned(), source })
    }

    /// Returns the program's unwinder.
    #[must_use]
    pub fn unwinder(&self) -> &UnnamedUnwinder {
        &self.unwinder
    }

    /// True if a function can have no branch.
    pub(super) fn is_special(&self, function: usize) -> bool {
        self.special.contains(&function)
    }

    fn of(image: &Image<'_>, file: &[u8]) -> Self {
        let mut ranges = frames::ranges(image);
        ranges.retain(|range| image.text(range.start).is_some_and(|(_, code)| !code.is_empty()));
        let parts: BTreeMap<usize, usize> =
            ranges.iter().filter(|range| !range.is_function).map(|range| (range.start, range.end)).collect();
        let is_part = |address: usize| parts.range(..=address).next_back().is_some_and(|(_, &end)| address < end);
        let code_at = |address: usize| image.text(address).map(|(text, code)| &code[address - text..]);
        let functions = ranges.iter().filter(|range| range.is_function).map(|range| range.start..range.end);
        let conducts = functions.map(|range| (range.start, (Conduct::of(code_at, &range, is_part), range.end)));
        let all = All(conducts.collect());
        let mut special = all.special();
        let has_routines = ranges.iter().any(|range| range.has_routine);
        let has_messages = messages::are_in(file);
        let llvm = has_messages.then(|| messages::unwinder(image, &ranges, |start| all.get(start))).flatten();
        let unwinder = match (all.unwinder(image, file), llvm) {
            (Some(libgcc), None) => UnnamedUnwinder::Libgcc(libgcc),
            (None, Some(llvm)) => UnnamedUnwinder::Llvm(llvm),
            (None, None) if !has_routines && !has_messages && !all.asks_for_registers() => UnnamedUnwinder::Nothing,
            _ => UnnamedUnwinder::Other,
        };
        if let Some(code) = unwinder.code() {
            special.extend(all.0.range(code.start as usize..code.end as usize).map(|(&start, _)| start));
        }
        Self { special, unwinder }
    }
}

/// Conduct and end of each function, by its beginning.
struct All(BTreeMap<usize, (Conduct, usize)>);

impl All {
    fn get(&self, function: usize) -> Option<&Conduct> {
        self.0.get(&function).map(|(conduct, _)| conduct)
    }

    fn that(&self, is_it: impl Fn(&Conduct) -> bool) -> impl Iterator<Item = usize> {
        self.0.iter().filter(move |(_, (conduct, _))| is_it(conduct)).map(|(&start, _)| start)
    }

    /// Returns the functions that can have no branch: by themselves; because they go on at such a function, or come
    /// from it, without a call; or because they call such a function to find their caller, as the hooks of compilers
    /// do.
    fn special(&self) -> BTreeSet<usize> {
        let is_seed = |it: &Conduct| it.reads_return_address || it.changes_stack || it.returns_twice;
        let mut found: BTreeSet<usize> = self.that(is_seed).collect();
        let asks = |function: &usize| self.get(*function).is_some_and(|it| it.reads_return_address && it.reads_callers);
        found.extend(self.that(|it| it.calls.iter().any(asks)));
        let reading = self.that(|it| it.reads_return_address).filter_map(|it| self.get(it));
        found.extend(reading.flat_map(|it| &it.goes_on_at).filter(|target| self.0.contains_key(target)));
        loop {
            let before = found.len();
            let more: Vec<usize> = self.that(|it| it.goes_on_at.iter().any(|target| found.contains(target))).collect();
            found.extend(more);
            if found.len() == before {
                return found;
            }
        }
    }

    /// Returns true if a function makes another one note its return address, like functions that look for callers.
    fn asks_for_registers(&self) -> bool {
        self.that(|it| it.reads_return_address && !it.calls.is_empty() && !it.returns_twice).next().is_some()
    }

    /// Returns libgcc's unwinder, if it is a known one.
    fn unwinder(&self, image: &Image<'_>, file: &[u8]) -> Option<Libgcc> {
        let throws = |it: &Conduct| it.reads_return_address && it.changes_stack && !it.calls.is_empty();
        let throwing: Vec<usize> = self.that(throws).collect();
        let notes = |function: &usize| {
            let it = self.get(*function)?;
            (it.reads_return_address && !it.changes_stack && !it.calls.is_empty()).then_some(*function)
        };
        let mut noting: Vec<usize> = throwing
            .iter()
            .flat_map(|&it| self.get(it).into_iter().flat_map(|it| &it.calls))
            .filter_map(notes)
            .collect();
        noting.sort_unstable();
        noting.dedup();
        let &[noting] = &*noting else { return None };
        let throwing: Vec<usize> =
            throwing.into_iter().filter(|&it| self.get(it).is_some_and(|it| it.calls.contains(&noting))).collect();
        let mut resuming = throwing.iter().filter(|&&it| self.get(it).is_some_and(|it| !it.returns));
        let (&resume, None) = (resuming.next()?, resuming.next()) else { return None };
        let is_near = |&it: &usize| it.abs_diff(resume) < NEAR && self.0.contains_key(&it);
        let called = throwing.iter().filter_map(|&it| self.get(it)).flat_map(|it| &it.calls).copied().filter(is_near);
        let looking = self.that(|it| it.calls.contains(&noting));
        let all: BTreeSet<usize> = called.chain(throwing.iter().copied()).chain(looking).collect();
        let (&first, &last) = all.first().zip(all.last())?;
        let code = first..self.0.get(&last)?.1;
        if last - first > NEAR {
            return None;
        }
        let registrar = registrar(image, file)?;
        Some(Libgcc {
            resume: resume as u64,
            set_register: self.only(image, &code, sets_register)? as u64,
            set_address: self.only(image, &code, sets_address)? as u64,
            locking: registrar as u64..self.looks_up(&code, registrar)? as u64,
            registrar: registrar as u64,
            code: code.start as u64..code.end as u64,
        })
    }

    /// Returns the end of the function that looks up the registrar's data: the one called by `code` behind that.
    fn looks_up(&self, code: &Range<usize>, registrar: usize) -> Option<usize> {
        let calls = self.0.range(code.clone()).flat_map(|(_, (it, _))| &it.calls);
        let called: BTreeSet<usize> = calls.copied().filter(|it| (registrar..registrar + NEAR).contains(it)).collect();
        match (called.first(), called.len()) {
            (Some(one), 1) => Some(self.0.get(one)?.1),
            _ => None,
        }
    }

    /// Returns the one function within `code` with such instructions.
    fn only(&self, image: &Image<'_>, code: &Range<usize>, are_such: impl Fn(&[u8]) -> bool) -> Option<usize> {
        let are_such = |start: usize, end: usize| {
            let bytes = image.bytes(start..end).unwrap_or_default();
            are_such(bytes.strip_prefix(&ENDBR64).unwrap_or(bytes))
        };
        let mut found = self.0.range(code.clone()).filter(|&(&start, &(_, end))| are_such(start, end));
        match (found.next(), found.next()) {
            (Some((&start, _)), None) => Some(start),
            _ => None,
        }
    }
}

/// `_Unwind_SetIP`: writes its second argument into its first one, and nothing else.
fn sets_address(code: &[u8]) -> bool {
    code.starts_with(&[0x48, 0x89, 0xb7, 0x98, 0, 0, 0, 0xc3])
}

/// `_Unwind_SetGR`: compares its second argument with the number of registers, and writes its third one to the place of that register.
fn sets_register(code: &[u8]) -> bool {
    /// `cmp esi, 17`; `mov [rdi + 8 * rsi], rdx`.
    const COMPARES: [u8; 3] = [0x83, 0xfe, 17];
    const WRITES: [u8; 4] = [0x48, 0x89, 0x14, 0xf7];

    code.starts_with(&COMPARES) && code.windows(WRITES.len()).any(|bytes| bytes == WRITES)
}

/// Returns the function that registers unwind information with libgcc: one of the first functions of a program
/// (`frame_dummy`) calls it with the program's own.
fn registrar(image: &Image<'_>, file: &[u8]) -> Option<usize> {
    let frames = image.section(file, b".eh_frame")?;
    let initializers = image.bytes(image.section(file, b".init_array")?)?.as_chunks().0;
    initializers.iter().find_map(|&word| called_with(image, u64::from_le_bytes(word) as usize, &frames))
}

/// Returns the first callee of the function at `start`, if the call has an address in a range and another one.
fn called_with(image: &Image<'_>, start: usize, told: &Range<usize>) -> Option<usize> {
    const MOST_INSTRUCTIONS: usize = 16;

    let (text, code) = image.text(start)?;
    let mut is_told = [false; 2];
    for instruction in
        Decoder::with_ip(64, &code[start - text..], start as u64, DecoderOptions::NONE).iter().take(MOST_INSTRUCTIONS)
    {
        match instruction.code() {
            Code::Mov_r32_imm32 => {
                let address = instruction.immediate32() as usize;
                match instruction.op0_register() {
                    // Nothing may be left of it.
                    Register::EDI => is_told[0] = (told.start..=told.end).contains(&address),
                    Register::ESI => is_told[1] = image.contains(address),
                    _ => {}
                }
            }
            Code::Call_rel32_64 => {
                return (is_told == [true; 2])
                    .then(|| instruction.near_branch_target() as usize)
                    .filter(|&it| image.text(it).is_some());
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_by_their_bytes() {
        assert!(sets_address(&[0x48, 0x89, 0xb7, 0x98, 0, 0, 0, 0xc3, 0x90]));
        assert!(!sets_address(&[0x48, 0x89, 0xb7, 0x90, 0, 0, 0, 0xc3]));
        // `_Unwind_GetGR` compares too, and reads.
        assert!(sets_register(&[0x83, 0xfe, 17, 0x7f, 0, 0x48, 0x89, 0x14, 0xf7, 0xc3]));
        assert!(!sets_register(&[0x83, 0xfe, 17, 0x7f, 0, 0x48, 0x8b, 0x04, 0xf7, 0xc3]));
    }
}
