//! Functions that the library for resources in a program that runs wants to be called in place of others: what it tells the tracer's library,
//! which writes the slots. Both lie in the same process.
//!
//! Not here: how slots are found and written (`rftrace-frontend`), and what the functions do (`rftrace-preload-resources`).

/// A function that takes the place of another one. All are addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Interposed {
    /// The name by which others refer to the function, with a NUL behind it.
    pub name: usize,
    /// The function that is to be called.
    pub function: usize,
    /// The one that it stands for, as slots hold it.
    pub original: usize,
}
