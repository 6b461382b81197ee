//! How far one can see on a stack.

/// A call with its frame at most so far below the innermost open function's is taken to be nested in it on the same
/// stack, without a further look. Larger frames and other stacks take the slow path.
pub(crate) const MAX_FRAME_BYTES: usize = 16 * 1024;

/// How far frame pointers lead up a stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    /// The outermost frame they tell of.
    pub(crate) up_to: usize,
    /// They may lead further: they could not be read.
    pub(crate) is_cut: bool,
}
