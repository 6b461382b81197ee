//! The meaning of a record's word, for live displays.

use rftrace::abi::{self, ADDRESS_SHIFT, state};

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A function was entered, or runs again after its stack was left.
    Entry {
        /// An address in the function, its identity.
        address: u64,
        /// True if its return is recorded.
        returns: bool,
    },
    /// A function was left.
    Exit {
        /// The address of its entry.
        address: u64,
    },
    /// Calls were nested too deeply.
    Lost {
        /// The number of these calls.
        n_calls: u64,
    },
    /// Functions were left while recording was off.
    Open {
        /// The number of functions still open.
        n_open: u64,
    },
    /// Another record than a call.
    Other,
}

/// Returns the kind of the record with this word.
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
