//! The measured overhead of the tracer per recorded call: two lines of `clock.txt`.
//!
//! Not here: the measurement (`rftrace-frontend`), and the correction of times (`rftrace-views`).

use core::fmt;
use core::str::FromStr;

use crate::Malformed;
use crate::text;

/// The key of the overhead inside a call's times.
pub const INSIDE: &str = "hook_inside_ps";
/// The key of the overhead outside of them.
pub const OUTSIDE: &str = "hook_outside_ps";

/// More than any hook takes, in picoseconds: 100 µs.
const MOST_PS: u64 = 100_000_000;

/// The overhead of a recorded call, in picoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallCost {
    /// The part between the times of entry and exit.
    pub inside_ps: u64,
    /// The part before and after them, which adds to the caller's time.
    pub outside_ps: u64,
}

impl CallCost {
    /// Parses the lines of `clock.txt`. `None` if they are missing or implausible.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (mut inside_ps, mut outside_ps) = (None, None);
        for (key, value) in text::pairs(bytes) {
            let number = value.parse::<u64>().ok().filter(|&number| number <= MOST_PS);
            match key.as_str() {
                INSIDE => inside_ps = number,
                OUTSIDE => outside_ps = number,
                _ => {}
            }
        }
        Some(Self { inside_ps: inside_ps?, outside_ps: outside_ps? })
    }

    /// Returns the sum of both parts.
    #[must_use]
    pub fn all_ps(self) -> u64 {
        self.inside_ps + self.outside_ps
    }

    /// Returns the smaller value of each part, for calls that may have either cost.
    #[must_use]
    pub fn least(self, other: Self) -> Self {
        Self { inside_ps: self.inside_ps.min(other.inside_ps), outside_ps: self.outside_ps.min(other.outside_ps) }
    }
}

/// The two lines.
impl fmt::Display for CallCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{INSIDE}={}\n{OUTSIDE}={}", self.inside_ps, self.outside_ps)
    }
}

/// The way in which functions call the tracer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookKind {
    /// The compiler put a call into the function.
    Call,
    /// Such a call was patched into a jump.
    Patched,
    /// A branch at the function's beginning, or on the way to it.
    Branch,
}

impl HookKind {
    const NAMES: [(Self, &'static str); 3] =
        [(Self::Call, "call"), (Self::Patched, "patched"), (Self::Branch, "branch")];
}

impl fmt::Display for HookKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(kind, _)| kind == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

impl FromStr for HookKind {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let found = Self::NAMES.iter().find(|(_, name)| *name == text).map(|(kind, _)| *kind);
        found.ok_or_else(|| Malformed::new(0, "no such kind of hook"))
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn two_lines_both_ways() {
        let cost = CallCost { inside_ps: 17_500, outside_ps: 9_000 };
        assert_eq!(cost.to_string(), "hook_inside_ps=17500\nhook_outside_ps=9000\n");
        let file = alloc::format!("first_tsc=1\n{cost}");
        assert_eq!(CallCost::parse(file.as_bytes()), Some(cost));
        assert_eq!(cost.all_ps(), 26_500);
        assert_eq!(cost.least(CallCost { inside_ps: 1, outside_ps: 10_000 }), CallCost { inside_ps: 1, ..cost });
    }

    #[test]
    fn kinds_of_hooks_both_ways() {
        for kind in [HookKind::Call, HookKind::Patched, HookKind::Branch] {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert!("".parse::<HookKind>().is_err());
    }

    #[test]
    fn what_cannot_be_right_is_not_believed() {
        for text in [
            "",
            "hook_inside_ps=1\n",
            "hook_inside_ps=1\nhook_outside_ps=-1\n",
            "hook_inside_ps=100000001\nhook_outside_ps=1\n",
            "hook_inside_ps=1\nhook_outside_ps=18446744073709551616\n",
        ] {
            assert_eq!(CallCost::parse(text.as_bytes()), None, "{text}");
        }
    }
}
