//! Finding the calls of the hooks in a module's code.
//!
//! A quick search for bytes gives candidates; then the code is decoded from the beginning of the function, to see
//! whether a candidate is an instruction and of which form. Unconfirmed candidates are left alone and counted.

use iced_x86::{Decoder, DecoderOptions};
use object::elf::{R_X86_64_GLOB_DAT, R_X86_64_JUMP_SLOT, RelocationType};

use super::{Found, Targets};
use crate::patch::code::{Bytes, Form, MAX_BYTES};
use crate::patch::poke::OPERAND_BYTES;

/// Target of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::patch) enum Hook {
    /// `mcount`, behind the prologue.
    Mcount,
    /// `__fentry__`, the first instruction.
    Fentry,
}

impl Hook {
    /// The hook with this name.
    pub(in crate::patch) fn named(name: &[u8]) -> Option<Self> {
        match name {
            b"mcount" | b"_mcount" => Some(Self::Mcount),
            b"__fentry__" => Some(Self::Fentry),
            _ => None,
        }
    }
}

/// The relocations of a slot of the global offset table with a function's address.
pub(in crate::patch) const SLOT_RELOCATIONS: [RelocationType; 2] = [R_X86_64_JUMP_SLOT, R_X86_64_GLOB_DAT];

/// A call of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::patch) struct Call {
    pub(in crate::patch) address: usize,
    pub(in crate::patch) form: Form,
    pub(in crate::patch) hook: Hook,
    pub(in crate::patch) original: Bytes,
}

/// The possible instructions of an entry of the procedure linkage table before its jump through a slot: none, a prefix
/// (`bnd`), `endbr64`, both.
const PLT_BEGINNINGS: [&[u8]; 4] = [&[], &[0xf2], &[0xf3, 0x0f, 0x1e, 0xfa], &[0xf3, 0x0f, 0x1e, 0xfa, 0xf2]];
const CALL: u8 = 0xe8;
const PREFIX: u8 = 0x67;
const CALL_SLOT: [u8; 2] = [0xff, 0x15];
const JUMP_SLOT: [u8; 2] = [0xff, 0x25];

impl Targets {
    /// Adds the entries of the procedure linkage table with a jump through one of the slots.
    pub(in crate::patch) fn add_linkage(&mut self, address: usize, code: &[u8]) {
        for (at, target) in operands(address, code, JUMP_SLOT[1]) {
            let Some(start) = at.checked_sub(1).filter(|&start| code[start] == JUMP_SLOT[0]) else { continue };
            let Some(hook) = hook_at(&self.slots, target) else { continue };
            for beginning in PLT_BEGINNINGS {
                if code[..start].ends_with(beginning) {
                    self.functions.push((address + start - beginning.len(), hook));
                }
            }
        }
    }
}

/// Finds the calls in `code` at `address`. `function_start` returns the beginning of the function around an address.
pub(in crate::patch) fn find(
    address: usize,
    code: &[u8],
    targets: &Targets,
    mut function_start: impl FnMut(usize) -> Option<usize>,
) -> Found {
    let mut found = Found::default();
    let mut check = |opcode_at: usize, opcode_bytes: usize, hook: Hook| {
        let start = function_start(address + opcode_at).and_then(|start| start.checked_sub(address));
        match start.and_then(|start| confirm(code, start, opcode_at, opcode_bytes)) {
            Some((start, form)) => {
                let mut original = [0; MAX_BYTES];
                original[..form.len()].copy_from_slice(&code[start..start + form.len()]);
                found.calls.push(Call { address: address + start, form, hook, original });
            }
            None => found.n_unconfirmed += 1,
        }
    };
    if !targets.functions.is_empty() {
        for (at, target) in operands(address, code, CALL) {
            if let Some(hook) = hook_at(&targets.functions, target) {
                check(at, 1, hook);
            }
        }
    }
    if !targets.slots.is_empty() {
        for (at, target) in operands(address, code, CALL_SLOT[1]) {
            let Some(start) = at.checked_sub(1).filter(|&start| code[start] == CALL_SLOT[0]) else { continue };
            if let Some(hook) = hook_at(&targets.slots, target) {
                check(start, 2, hook);
            }
        }
    }
    found.calls.sort_unstable_by_key(|call| call.address);
    found
}

fn hook_at(list: &[(usize, Hook)], target: usize) -> Option<Hook> {
    list.iter().find(|&&(address, _)| address == target).map(|&(_, hook)| hook)
}

/// Returns the places of `byte` in the code with four bytes behind it, and their target, relative to their end.
fn operands(address: usize, code: &[u8], byte: u8) -> impl Iterator<Item = (usize, usize)> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let at = from + find_byte(&code[from..], byte)?;
        from = at + 1;
        let operand = code.get(at + 1..at + 1 + OPERAND_BYTES)?.try_into().ok()?;
        let distance = i32::from_le_bytes(operand) as isize;
        Some((at, (address + at + 1 + OPERAND_BYTES).wrapping_add_signed(distance)))
    })
}

/// The C library's search is quick in programs without optimisation too.
fn find_byte(bytes: &[u8], byte: u8) -> Option<usize> {
    // SAFETY: the range is readable.
    let place = unsafe { libc::memchr(bytes.as_ptr().cast(), byte.into(), bytes.len()) };
    (!place.is_null()).then(|| place as usize - bytes.as_ptr() as usize)
}

/// Decodes from `start` on. Returns the beginning of the instruction with its opcode at `opcode_at`, and its form;
/// `None` for an unknown form.
fn confirm(code: &[u8], start: usize, opcode_at: usize, opcode_bytes: usize) -> Option<(usize, Form)> {
    /// So far a function's call of a hook lies behind its beginning; usually it is among the first ten instructions.
    const LONGEST: usize = 64 * 1024;

    if opcode_at < start || opcode_at - start > LONGEST {
        return None;
    }
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    decoder.set_position(start).ok()?;
    loop {
        let at = decoder.position();
        let instruction = decoder.decode();
        if instruction.is_invalid() || at > opcode_at {
            return None;
        }
        if decoder.position() <= opcode_at {
            continue;
        }
        let form = match (&code[at..opcode_at], opcode_bytes) {
            ([], 1) => Form::Direct,
            ([PREFIX], 1) => Form::Prefixed,
            ([], 2) => Form::Indirect,
            _ => return None,
        };
        return (decoder.position() - at == form.len()).then_some((at, form));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: usize = 0x40_0000;
    const MCOUNT: usize = 0x40_8000;
    const SLOT: usize = 0x41_0000;

    /// Code at `TEXT`.
    #[derive(Default)]
    struct Text {
        code: Vec<u8>,
        /// Beginnings of functions.
        functions: Vec<usize>,
    }

    impl Text {
        fn function(&mut self) -> &mut Self {
            self.functions.push(TEXT + self.code.len());
            self
        }

        fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
            self.code.extend_from_slice(bytes);
            self
        }

        /// Appends an instruction with the distance to `target` at its end.
        fn to(&mut self, opcode: &[u8], target: usize) -> &mut Self {
            self.bytes(opcode);
            let end = TEXT + self.code.len() + 4;
            self.bytes(&(target as i32 - end as i32).to_le_bytes())
        }

        fn find(&self) -> Found {
            let mut targets = Targets { functions: vec![(MCOUNT, Hook::Mcount)], slots: vec![(SLOT, Hook::Fentry)] };
            targets.add_linkage(TEXT, &self.code);
            let start = |address| self.functions.iter().rev().copied().find(|&start| start <= address);
            find(TEXT, &self.code, &targets, start)
        }

        fn calls(&self) -> Vec<(usize, Form, Hook)> {
            self.find().calls.iter().map(|call| (call.address - TEXT, call.form, call.hook)).collect()
        }
    }

    /// `push rbp; mov rbp, rsp`
    const PROLOGUE: &[u8] = &[0x55, 0x48, 0x89, 0xe5];
    const RET: u8 = 0xc3;

    #[test]
    fn every_form_is_found() {
        let mut text = Text::default();
        text.function().bytes(PROLOGUE).to(&[0xe8], MCOUNT).bytes(&[RET]);
        text.function().bytes(PROLOGUE).to(&[0x67, 0xe8], MCOUNT).bytes(&[RET]);
        text.function().to(&[0xff, 0x15], SLOT).bytes(&[RET]);
        let expected =
            [(4, Form::Direct, Hook::Mcount), (14, Form::Prefixed, Hook::Mcount), (21, Form::Indirect, Hook::Fentry)];
        assert_eq!(text.calls(), expected);
        let found = text.find();
        assert_eq!(found.n_unconfirmed, 0);
        for call in found.calls {
            let start = call.address - TEXT;
            assert_eq!(call.original[..call.form.len()], text.code[start..start + call.form.len()]);
        }
    }

    #[test]
    fn linkage_tables_are_followed() {
        for beginning in PLT_BEGINNINGS {
            let mut text = Text::default();
            text.function().bytes(&[0xcc; 16]).bytes(beginning).to(&[0xff, 0x25], SLOT);
            let call = text.code.len();
            text.function().to(&[0xe8], TEXT + 16).bytes(&[RET]);
            assert_eq!(text.calls(), [(call, Form::Direct, Hook::Fentry)], "{beginning:x?}");
        }
    }

    #[test]
    fn other_calls_are_none() {
        let mut text = Text::default();
        text.function()
            .to(&[0xe8], MCOUNT + 1)
            .to(&[0xff, 0x15], SLOT + 8)
            .to(&[0xe9], MCOUNT)
            .to(&[0x0f, 0x84], MCOUNT);
        text.to(&[0xff, 0x25], SLOT);
        let found = text.find();
        assert_eq!((found.calls, found.n_unconfirmed), (Vec::new(), 0));
    }

    /// `mov rax, imm64` holds the bytes of a call.
    #[test]
    fn calls_inside_of_instructions_are_not_confirmed() {
        let mut text = Text::default();
        text.function().bytes(&[0x48, 0xb8]).to(&[0xe8], MCOUNT).bytes(&[0, 0, 0, RET]);
        text.function().bytes(&[0x48, 0xb8]).to(&[0xff, 0x15], SLOT).bytes(&[0, 0, RET]);
        let found = text.find();
        assert_eq!((found.calls, found.n_unconfirmed), (Vec::new(), 2));
    }

    /// The prefix may be the end of the instruction before, and other prefixes make longer instructions.
    #[test]
    fn what_stands_before_a_call_matters() {
        let mut text = Text::default();
        // mov al, 0x67; call
        text.function().bytes(&[0xb0, 0x67]).to(&[0xe8], MCOUNT).bytes(&[RET]);
        assert_eq!(text.calls(), [(2, Form::Direct, Hook::Mcount)]);
        for prefixes in [&[0xf2][..], &[0x67, 0x67], &[0x48]] {
            let mut text = Text::default();
            text.function().bytes(prefixes).to(&[0xe8], MCOUNT).bytes(&[RET]);
            let found = text.find();
            assert_eq!((found.calls, found.n_unconfirmed), (Vec::new(), 1), "{prefixes:x?}");
        }
    }

    #[test]
    fn data_in_text_is_not_confirmed() {
        let mut text = Text::default();
        // No function is known before it.
        text.to(&[0xe8], MCOUNT);
        // Bytes that are no instruction.
        text.function().bytes(&[0x06, 0x06]).to(&[0xe8], MCOUNT);
        let found = text.find();
        assert_eq!((found.calls, found.n_unconfirmed), (Vec::new(), 2));
    }

    #[test]
    fn a_call_that_is_cut_off_is_none() {
        let mut text = Text::default();
        text.function().bytes(PROLOGUE).to(&[0xe8], MCOUNT);
        for length in 0..text.code.len() {
            let cut = Text { code: text.code[..length].to_vec(), functions: text.functions.clone() };
            assert_eq!(cut.calls(), []);
        }
    }
}
