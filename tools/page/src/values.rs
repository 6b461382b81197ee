//! Arguments and results of calls.

use std::collections::HashMap;

/// The most different texts, and the bytes of them all. Calls beyond that are there without.
const MAX_TEXTS: usize = 1 << 20;
const MAX_BYTES: usize = 64 << 20;

/// The note about arguments and results that are left out, if there are any.
pub(crate) fn lost_note(n_lost: u64) -> Option<String> {
    let note =
        || format!("{n_lost} arguments and results are not in the page: it holds at most {MAX_TEXTS} different ones");
    (n_lost > 0).then(note)
}

/// Texts of arguments and results, each once.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    pub(crate) texts: Vec<String>,
    bytes: usize,
    /// Of each its number: its index plus 1.
    numbers: HashMap<String, u32>,
    /// How often there was no room.
    pub(crate) n_lost: u64,
}

impl Texts {
    /// The number of a text; 0 if there are too many.
    pub(crate) fn number(&mut self, text: String) -> u32 {
        if let Some(&number) = self.numbers.get(&text) {
            return number;
        }
        if self.texts.len() >= MAX_TEXTS || self.bytes + text.len() > MAX_BYTES {
            self.n_lost += 1;
            return 0;
        }
        self.bytes += text.len();
        self.texts.push(text.clone());
        let number = self.texts.len() as u32;
        self.numbers.insert(text, number);
        number
    }
}

/// The values of a call.
#[derive(Debug)]
pub(crate) struct CallValues {
    /// Which call of its depth it is.
    pub(crate) call: u32,
    /// The numbers of its arguments and of its result; 0 for none.
    pub(crate) numbers: [u32; 2],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_there_once_and_as_many_as_there_is_room_for() {
        let mut texts = Texts::default();
        assert_eq!([1, 2, 1, 2].map(|number: u32| texts.number(number.to_string())), [1, 2, 1, 2]);
        assert_eq!(texts.number("x".repeat(MAX_BYTES - 2)), 3);
        assert_eq!(["3", "4", "1"].map(|text| texts.number(text.to_owned())), [0, 0, 1]);
        assert_eq!((texts.texts.len(), texts.n_lost), (3, 2));
        let mut texts = Texts::default();
        let numbers = (0..MAX_TEXTS + 1).map(|number| texts.number(number.to_string()));
        assert_eq!(numbers.last(), Some(0));
        assert_eq!(texts.texts.len(), MAX_TEXTS);
    }
}
