//! Behaviour when the buffer is used up.

/// Behaviour when the buffer is used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// Recording stops: the trace is the beginning of what happened.
    #[default]
    Stop,
    /// The oldest records are overwritten: the trace is the end of what happened (a flight recorder).
    Ring,
}
