//! Announces the stubs to unwinders.
//!
//! A signal may strike in a stub. Its frame is that of the patched site: nothing was pushed, and all registers except
//! r11 are as they are there. (Its CFA must be none of the frames around it, as unwinders would take it for that: it is
//! odd.)
//!
//! So the unwind information of a stub gives the site as return address; as that of a signal frame, so unwinders look
//! up the site itself and not the address before it.
//!
//! gdb would show such a frame as a signal handler's; it gets the address behind the site's first byte and looks up the
//! one before. The site's address is computed from the stub's own bytes, see [`stubs`](super::stubs). A thunk was
//! called; its frame is its return address.
//!
//! Not here: the format and registration of entries (`unwinder`).
//!
//! Source: DWARF 5 sections 2.5 and 6.4.

use std::ops::Range;

use super::stubs::{Area, JUMP_AT, SITE_BYTES_AT, STUB_BYTES, TO_CHILD_AT};
use super::unwinder::{append_cie, append_fde, register_section};

/// DWARF's number of rsp.
const RSP: u8 = 7;
/// DWARF's number of the return address; while a frame is unwound, of its program counter.
const RETURN_ADDRESS: u8 = 16;

/// The rules of a called function: def_cfa rsp 8, offset of the return address -8.
const CALLED: [u8; 5] = [0x0c, RSP, 0x08, 0x80 | RETURN_ADDRESS, 0x01];

/// Computes the address of a stub's site.
#[rustfmt::skip]
const SITE: [u8; 32] = [
    // The unwinder pushed the CFA, which is not needed.
    0x80, 0x00,                              // breg16 0                    pc
    0x09, -(STUB_BYTES as i8) as u8, 0x1a,   // const1s -16, and            stub
    0x12, 0x23, TO_CHILD_AT as u8,           // dup, plus 3
    0x94, 0x04,                              // deref_size 4                stub distance, without its sign
    0x0c, 0x00, 0x00, 0x00, 0x80, 0x27,      // const4u 1 << 31, xor
    0x0c, 0x00, 0x00, 0x00, 0x80, 0x1c,      // const4u 1 << 31, minus      stub distance
    0x14, 0x22,                              // over, plus                  stub stub+distance
    0x23, JUMP_AT as u8,                     // plus 7                      stub child_ip
    0x16, 0x23, SITE_BYTES_AT as u8,         // swap, plus 15
    0x94, 0x01,                              // deref_size 1                child_ip length
    0x1c,                                    // minus                       site
];

/// A section `.eh_frame`, and the beginning of its descriptions (FDEs).
#[derive(Debug)]
pub(super) struct Section {
    pub(super) bytes: Vec<u8>,
    descriptions: [usize; 2],
}

/// Reader of unwind information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    /// An unwinder in this process.
    Unwinder,
    /// gdb.
    Debugger,
}

/// The unwind information of an area.
pub(super) fn section(area: &Area, reader: Reader) -> Section {
    let mut expression = SITE.to_vec();
    let augmentation: &[u8] = match reader {
        Reader::Unwinder => b"zRS\0",
        Reader::Debugger => {
            expression.extend_from_slice(&[0x23, 1]); // plus 1
            b"zR\0"
        }
    };
    let mut bytes = Vec::new();
    // def_cfa rsp 1, val_expression rsp: breg7 0; val_expression
    let mut rules = vec![0x0c, RSP, 0x01, 0x16, RSP, 0x02, 0x77, 0x00, 0x16, RETURN_ADDRESS, expression.len() as u8];
    rules.append(&mut expression);
    let stubs = append_pair(&mut bytes, augmentation, &rules, &area.stubs());
    let thunks = append_pair(&mut bytes, b"zR\0", &CALLED, &area.thunks());
    // The end.
    bytes.extend_from_slice(&[0; 4]);
    Section { bytes, descriptions: [stubs, thunks] }
}

/// Returns the section `.eh_frame` of thunks, which are called and go on elsewhere at once, and the place of their
/// description in it.
pub(super) fn called(thunks: &Range<usize>) -> (Vec<u8>, usize) {
    let mut bytes = Vec::new();
    let description = append_pair(&mut bytes, b"zR\0", &CALLED, thunks);
    // The end.
    bytes.extend_from_slice(&[0; 4]);
    (bytes, description)
}

/// Appends a CIE for stubs, with these rules.
pub(super) fn append_common(bytes: &mut Vec<u8>, reader: Reader, rules: &[u8]) {
    append_cie(bytes, RETURN_ADDRESS, if reader == Reader::Unwinder { b"zRS\0" } else { b"zR\0" }, rules);
}

/// Appends a CIE and an FDE without rules of its own. Returns the FDE's place.
fn append_pair(bytes: &mut Vec<u8>, augmentation: &[u8], rules: &[u8], range: &Range<usize>) -> usize {
    let common = bytes.len();
    append_cie(bytes, RETURN_ADDRESS, augmentation, rules);
    append_fde(bytes, common, range)
}

/// Registers the unwind information of a permanent area.
pub(super) fn register(area: &Area, section: Section) {
    register_section(area.stub(0), section.bytes, &section.descriptions);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_whole() {
        let mut bytes = Vec::new();
        let description = append_pair(&mut bytes, b"zR\0", &[0x0c, 7, 8], &(0x1000..0x1010));
        assert_eq!(bytes.len() % 8, 0);
        let length = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        assert_eq!(length(0) + 4, description);
        assert_eq!(description + length(description) + 4, bytes.len());
        assert_eq!(length(description + 4), description + 4, "the distance to the CIE");
    }
}
