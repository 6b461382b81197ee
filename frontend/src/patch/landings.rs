//! Landing places of exceptions in a function, by the table in its unwind information.
//!
//! Not here: the code called there, and its exceptions.
//!
//! Source: "Exception Handling Tables" of the LSB's Itanium C++ ABI, as GCC and LLVM write them.

use super::frames::Reader;
use super::module::Image;

/// Nothing is written.
const OMITTED: u8 = 0xff;
/// Numbers of variable length.
const ULEB: u8 = 0x01;

/// Returns the landing addresses of exceptions, by the table of the function at `start`. `None` for an unknown format.
pub(super) fn landing_pads(image: &Image<'_>, table: usize, start: usize) -> Option<Vec<usize>> {
    let bytes = image.bytes_from(table)?;
    let mut reader = Reader(bytes);
    let mut base = start;
    let encoding = reader.byte()?;
    if encoding != OMITTED {
        base = reader.pointer(encoding, table + 1)?;
    }
    if reader.byte()? != OMITTED {
        reader.unsigned()?;
    }
    let encoding = reader.byte()?;
    let n_bytes = usize::try_from(reader.unsigned()?).ok()?;
    let mut sites = Reader(reader.0.get(..n_bytes)?);
    let mut pads = Vec::new();
    while !sites.0.is_empty() {
        let mut number = || match encoding {
            ULEB => usize::try_from(sites.unsigned()?).ok(),
            _ => sites.pointer(encoding & 0x0f, 0),
        };
        let (_begin, _length, pad) = (number()?, number()?, number()?);
        sites.unsigned()?; // what is done there
        if pad != 0 {
            pads.push(base.wrapping_add(pad));
        }
    }
    Some(pads)
}
