//! The keys of sums of calls: functions, or their call paths.
//!
//! Not here: the sums (`blocks`, `paths`).

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use rftrace_read::OffCpu;
use serde::{Deserialize, Serialize};

/// Numbered functions, or ways.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Keys {
    names: Vec<String>,
    /// Each way behind the one around it.
    keys: Vec<Key>,
    #[serde(skip)]
    number_of_name: HashMap<String, u32>,
    #[serde(skip)]
    number: HashMap<Key, u32>,
}

/// A way: a function called from the last one of another way. Keys by name alone have neither a way around nor an
/// address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Key {
    /// The way around it; `None` for an outermost function.
    pub(crate) around: Option<u32>,
    /// With the numbers of names.
    pub(crate) last: Last<u32>,
}

/// The end of a way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Last<Name> {
    /// A function without a recorded entry.
    Assumed,
    /// A function, by its name and its recorded address.
    Called { name: Name, addr: u64 },
    /// Time without a processor.
    OffCpu(OffCpu),
}

impl Hash for Key {
    /// Of two words: each call of a graph is looked up.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let (name, addr) = match self.last {
            Last::Called { name, addr } => (name, addr),
            Last::Assumed => (0, 1),
            Last::OffCpu(kind) => (0, kind.event()),
        };
        state.write_u64(u64::from(self.around.unwrap_or(u32::MAX)) << 32 | u64::from(name));
        state.write_u64(addr);
    }
}

impl<Name> Last<Name> {
    /// The same with the name otherwise.
    pub(crate) fn map<Other>(self, name_of: impl FnOnce(Name) -> Other) -> Last<Other> {
        match self {
            Self::Assumed => Last::Assumed,
            Self::Called { name, addr } => Last::Called { name: name_of(name), addr },
            Self::OffCpu(kind) => Last::OffCpu(kind),
        }
    }
}

impl<'n> Last<&'n str> {
    /// Returns the name for views; none for a function without a recorded entry.
    pub(crate) fn name(self) -> Option<&'n str> {
        match self {
            Self::Assumed => None,
            Self::Called { name, .. } => Some(name),
            Self::OffCpu(kind) => Some(kind.name()),
        }
    }
}

impl PartialEq for Keys {
    fn eq(&self, other: &Self) -> bool {
        (&self.names, &self.keys) == (&other.names, &other.keys)
    }
}

impl Keys {
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn all(&self) -> &[Key] {
        &self.keys
    }

    /// True if each name is there, and each way is behind the one around it.
    pub(crate) fn makes_sense(&self) -> bool {
        self.keys.iter().enumerate().all(|(number, key)| {
            let has_name = match key.last {
                Last::Called { name, .. } => (name as usize) < self.names.len(),
                Last::Assumed | Last::OffCpu(_) => true,
            };
            has_name && key.around.is_none_or(|around| (around as usize) < number)
        })
    }

    /// The end of a way.
    pub(crate) fn last(&self, key: &Key) -> Last<&str> {
        key.last.map(|name| self.names[name as usize].as_str())
    }

    /// The number of a key, if it is there.
    pub(crate) fn find(&self, key: &Key) -> Option<u32> {
        self.number.get(key).copied()
    }

    /// Adds a new key.
    pub(crate) fn push(&mut self, key: Key) -> u32 {
        let number = self.keys.len() as u32;
        self.keys.push(key);
        self.number.insert(key, number);
        number
    }

    /// Returns the number of a key; adds a new one.
    pub(crate) fn number(&mut self, around: Option<u32>, last: Last<&str>) -> u32 {
        let key = Key { around, last: last.map(|name| self.name(name)) };
        self.find(&key).unwrap_or_else(|| self.push(key))
    }

    /// Returns the number of a name; adds a new one. There are at most as many as keys.
    pub(crate) fn name(&mut self, name: &str) -> u32 {
        if let Some(&number) = self.number_of_name.get(name) {
            return number;
        }
        let number = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.number_of_name.insert(name.to_owned(), number);
        number
    }

    /// Builds the tables for finding loaded keys, so more can be added.
    pub(crate) fn find_all(&mut self) {
        self.number_of_name = self.names.iter().cloned().zip(0..).collect();
        self.number = self.keys.iter().copied().zip(0..).collect();
    }

    #[cfg(test)]
    pub(crate) fn rename(&mut self, name: usize, more: &str) {
        self.names[name] += more;
    }
}
