//! What the sites of a module need to become anything, on aarch64: nothing that has to be made.

use std::io;
use std::ops::Range;

use super::code::Shape;
use super::sites::Call;

/// Of the calls of a module.
pub(super) fn shapes(_module: &Range<usize>, calls: &[Call]) -> io::Result<Vec<Shape>> {
    Ok(calls.iter().map(|call| Shape { form: call.form, original: call.original }).collect())
}
