//! The secret that protects a receiver that other machines can reach.
//!
//! Not here: the file with it (`token_file`).

use std::fmt;

use subtle::ConstantTimeEq;

/// The size of a token in bytes.
pub(crate) const TOKEN_BYTES: usize = 32;

/// The bytes of a secret that both ends know, never all zero: the protocol has zeros for no token.
///
/// A comparison takes constant time.
#[derive(Clone)]
pub struct Token([u8; TOKEN_BYTES]);

impl Token {
    /// Returns a token with these bytes; `None` for zeros.
    #[must_use]
    pub fn new(bytes: [u8; TOKEN_BYTES]) -> Option<Self> {
        (bytes != [0; TOKEN_BYTES]).then_some(Self(bytes))
    }

    /// Returns the bytes, for sending.
    #[must_use]
    pub fn bytes(&self) -> [u8; TOKEN_BYTES] {
        self.0
    }
}

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Token {}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}
