//! Functions to be called in place of others in a running program: a table that the library for resources passes to the
//! tracer's library, which writes the slots. Both lie in the same process.
//!
//! Not here: finding and writing slots (`rftrace-frontend`), and the functions themselves
//! (`rftrace-preload-resources`).

/// A function that replaces another one. All fields are addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Interposed {
    /// The address of the name by which other modules refer to the function, with a NUL at its end.
    pub name: usize,
    /// The address of the new function.
    pub function: usize,
    /// The address of the replaced function, as slots hold it.
    pub original: usize,
}
