//! LLVM's unwinder in a program without symbol table, by its messages: they contain the names of functions.
//!
//! The place of such a function is known by the one function with a reference to its message. Their conduct must fit:
//! `_Unwind_Resume` never returns, and the function that notes its registers also notes those of
//! `_Unwind_RaiseException`; one of them is the noting function's own return address. Code that sets a register, or the
//! resume address, goes on to `__unw_set_reg`.
//!
//! One common target takes all registers from the notes, including the stack pointer. This function and the noting one
//! are assembly, and may have no unwind information.

use std::collections::BTreeSet;
use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic};

use super::conduct::Conduct;
use crate::patch::frames;
use crate::patch::module::Image;

/// The addresses of functions of LLVM's unwinder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Llvm {
    /// The range of all its code.
    pub code: Range<u64>,
    /// The address of `_Unwind_Resume`.
    pub resume: u64,
    /// The address of `_Unwind_SetGR`.
    pub set_register: u64,
    /// The address of `_Unwind_SetIP`.
    pub set_address: u64,
}

/// Beginning of its messages.
const IN_ALL: &[u8] = b"libunwind: ";
/// Its code is no larger.
const MOST_BYTES: usize = 0x20000;
/// Nor is a function in assembly.
const MOST_ASSEMBLY_BYTES: usize = 0x100;

/// True if a file has messages of LLVM's unwinder.
pub(super) fn are_in(file: &[u8]) -> bool {
    file.windows(IN_ALL.len()).any(|bytes| bytes == IN_ALL)
}

/// Returns its place, if all of this is known. `ranges`: those of the program; `conduct`: the conduct of the function
/// at an address.
pub(super) fn unwinder<'c>(
    image: &Image<'_>,
    ranges: &[frames::Range],
    conduct: impl Fn(usize) -> Option<&'c Conduct>,
) -> Option<Llvm> {
    let saying: Vec<Says> = ranges.iter().map(|range| Says::of(image, range)).filter(|it| !it.0.is_empty()).collect();
    let one = |name: &str| {
        let mut found = saying.iter().filter(|it| it.names(image, name));
        let (Some(one), None) = (found.next(), found.next()) else { return None };
        Some((one.1.start, conduct(one.1.start)?))
    };
    let (resume, resumes) = one("_Unwind_Resume")?;
    let (_, throws) = one("_Unwind_RaiseException")?;
    let (set_register, sets_register) = one("_Unwind_SetGR")?;
    let (set_address, sets_address) = one("_Unwind_SetIP")?;
    let (setter, _) = one("__unw_set_reg")?;
    let goes_to_setter = |it: &Conduct| it.goes_on_at.contains(&setter) || it.calls.contains(&setter);
    if resumes.returns || !goes_to_setter(sets_register) || !goes_to_setter(sets_address) {
        return None;
    }
    let assembly = |start: usize| Assembly::at(image, start);
    let noting = only(resumes.calls.iter().filter(|it| throws.calls.contains(it)).filter_map(|&it| {
        assembly(it).filter(|it| it.conduct.reads_return_address && it.conduct.returns && !it.conduct.changes_stack)
    }))?;
    let first = saying.iter().map(|it| it.1.start).min()?.min(noting.range.start);
    let last = saying.iter().map(|it| it.1.end).max()?.max(noting.range.end);
    let own = ranges.iter().filter(|range| (first..last).contains(&range.start)).filter_map(|it| conduct(it.start));
    let led_to: BTreeSet<usize> = own.flat_map(|it| it.goes_on_at.iter().chain(&it.calls)).copied().collect();
    let is_near = |it: &usize| it.abs_diff(first) < MOST_BYTES;
    let goes_elsewhere = |it: &Assembly| it.conduct.changes_stack && !it.conduct.returns && it.conduct.calls.is_empty();
    let leaving = only(led_to.into_iter().filter(is_near).filter_map(assembly).filter(goes_elsewhere))?;
    let code = first.min(leaving.range.start)..last.max(leaving.range.end);
    let [resume, set_register, set_address] = [resume, set_register, set_address].map(|it| it as u64);
    let code = Some(code).filter(|code| code.len() < MOST_BYTES)?;
    Some(Llvm { code: code.start as u64..code.end as u64, resume, set_register, set_address })
}

/// Returns the only item, if there is exactly one.
fn only<T>(mut found: impl Iterator<Item = T>) -> Option<T> {
    let one = found.next();
    one.filter(|_| found.next().is_none())
}

/// The places of the messages referred to by a range of code.
struct Says(Vec<usize>, Range<usize>);

impl Says {
    fn of(image: &Image<'_>, range: &frames::Range) -> Self {
        let code = image.bytes(range.start..range.end).unwrap_or_default();
        let instructions = Decoder::with_ip(64, code, range.start as u64, DecoderOptions::NONE).into_iter();
        let addresses = instructions
            .filter(|it| it.mnemonic() == Mnemonic::Lea && it.is_ip_rel_memory_operand())
            .map(|it| it.ip_rel_memory_address() as usize);
        let is_message = |&at: &usize| image.bytes(at..at.saturating_add(IN_ALL.len())) == Some(IN_ALL);
        Self(addresses.filter(is_message).collect(), range.start..range.end)
    }

    /// True if such a message names this function.
    fn names(&self, image: &Image<'_>, function: &str) -> bool {
        let bytes = [IN_ALL, function.as_bytes(), b"("].concat();
        self.0.iter().any(|&at| image.bytes(at..at.saturating_add(bytes.len())) == Some(&*bytes))
    }
}

/// A function that may have no unwind information: up to its return, or its jump elsewhere.
struct Assembly {
    range: Range<usize>,
    conduct: Conduct,
}

impl Assembly {
    fn at(image: &Image<'_>, start: usize) -> Option<Self> {
        let (text, code) = image.text(start)?;
        let code = &code[start - text..];
        let code = &code[..code.len().min(MOST_ASSEMBLY_BYTES)];
        let mut instructions = Decoder::with_ip(64, code, start as u64, DecoderOptions::NONE).into_iter();
        let last =
            instructions.find(|it| matches!(it.flow_control(), FlowControl::Return | FlowControl::IndirectBranch))?;
        let range = start..last.next_ip() as usize;
        let code_at = |address: usize| code.get(address.checked_sub(start)?..);
        Some(Self { conduct: Conduct::of(code_at, &range, |_| false), range })
    }
}
