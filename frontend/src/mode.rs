//! Behaviour when the buffer is used up.

/// The behaviour of the tracer when the buffer is used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// Recording stops: the trace holds the beginning of the run.
    #[default]
    Stop,
    /// New records overwrite the oldest ones: the trace holds the end of the run (a flight recorder).
    Ring,
}
