//! Names of functions and texts of values, each once, with numbers. Several threads may add to it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::values::Texts;

/// The most names. Where addresses have none there may be any number of them.
const MAX_FUNCTIONS: usize = 1 << 20;

/// The most bytes of them all.
const MAX_NAMES_BYTES: usize = 256 << 20;

/// The name for all further functions. `rftrace report` calls them the same.
const OTHERS: &str = "(other functions)";

#[derive(Debug, Default)]
pub(crate) struct Dictionary {
    names: Mutex<Names>,
    texts: Mutex<Texts>,
}

#[derive(Debug, Default)]
struct Names {
    names: Vec<String>,
    bytes: usize,
    numbers: HashMap<String, u32>,
}

impl Dictionary {
    /// The number of a function.
    pub(crate) fn function(&self, name: &str) -> u32 {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).number(name)
    }

    /// The number of a text of values; 0 if there are too many.
    pub(crate) fn text(&self, text: String) -> u32 {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner).number(text)
    }

    /// The names and the texts, each in the order of their numbers.
    pub(crate) fn into_parts(self) -> (Vec<String>, Texts) {
        let names = self.names.into_inner().unwrap_or_else(PoisonError::into_inner);
        (names.names, self.texts.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Names {
    fn number(&mut self, name: &str) -> u32 {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        self.bytes += name.len();
        if (self.names.len() >= MAX_FUNCTIONS || self.bytes > MAX_NAMES_BYTES) && name != OTHERS {
            return self.number(OTHERS);
        }
        let number = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        number
    }
}
