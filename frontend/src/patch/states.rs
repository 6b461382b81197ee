//! Present and future states of sites.

/// State of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// As compiled.
    Plain,
    /// A jump to its stub; for a call on aarch64, the call as compiled.
    On,
    /// A NOP.
    Off,
    /// `67 E8`: a call of the hook by way of the stub area. For an indirect call on x86-64 that cannot take its
    /// compiled form again.
    Thunk,
    /// In between: an unfinished change. The operand is that of another state. On x86-64 only.
    Between,
}
