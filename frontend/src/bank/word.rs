//! Meaning of a record's word, for live displays.

use rftrace::abi::{self, ADDRESS_SHIFT, state};

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A function was entered, again if it was left before.
    Entry {
        /// An address in it, by which it is known.
        address: u64,
        /// True if its return is recorded.
        returns: bool,
    },
    /// A function was left.
    Exit {
        /// That of its entry.
        address: u64,
    },
    /// Calls were nested too deeply.
    Lost {
        /// So many.
        n_calls: u64,
    },
    /// Functions were left while recording was off.
    Open {
        /// So many are open still.
        n_open: u64,
    },
    /// Nothing that a call is.
    Other,
}

/// Returns the kind of record of a word.
#[must_use]
pub fn kind(word: u64) -> Kind {
    use abi::kind;

    let field = word >> ADDRESS_SHIFT;
    match word & kind::MASK {
        kind::ENTRY => Kind::Entry { address: field, returns: word & kind::POINT == 0 },
        kind::EXIT if word & state::HIDDEN != 0 => Kind::Other,
        kind::EXIT => Kind::Exit { address: field },
        kind::LOST => Kind::Lost { n_calls: field },
        _ if word & (kind::VALUES | kind::CORE | kind::NEW_THREAD) != 0 => Kind::Other,
        _ => Kind::Open { n_open: field },
    }
}
