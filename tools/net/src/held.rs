//! A partly received item of known length: heads, names and contents of both protocols.

/// The bytes that have come. Takes memory only for these.
#[derive(Debug, Default)]
pub(crate) struct Held(Vec<u8>);

impl Held {
    /// Takes what is missing of so many bytes from the beginning of `input`. Returns whether all are there.
    pub(crate) fn fill(&mut self, bytes: usize, input: &mut &[u8]) -> bool {
        let missing = bytes.saturating_sub(self.0.len()).min(input.len());
        if let Some((taken, rest)) = input.split_at_checked(missing) {
            self.0.extend_from_slice(taken);
            *input = rest;
        }
        self.0.len() == bytes
    }

    /// As [`fill`](Self::fill), and hands all out when they are there.
    pub(crate) fn take_filled(&mut self, bytes: usize, input: &mut &[u8]) -> Option<Vec<u8>> {
        self.fill(bytes, input).then(|| self.take())
    }

    /// Hands out what is there.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }

    /// The bytes that have come.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}
