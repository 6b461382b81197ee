//! Files of a trace that go from one machine to another beside what was recorded while a program ran: what is made of that at its end, and
//! what was recorded by others than the program. They are a closed set, so a number names each of them.
//!
//! Not here: records, tasks, maps, symbols and an index, which the receiver makes itself.

use alloc::format;
use alloc::string::{String, ToString as _};

use crate::files::{self, CLOCK, COUNTERS, EVENTS, File, GAPS, INFO, KERNEL_HEADER, KERNEL_SYMBOLS, RESOURCES};

/// The folder in [`FOLDER`](crate::recording::FOLDER) in which they lie when all have come.
pub const COMPANIONS: &str = "companions";

/// Processors, and modules, that may have such a file.
const MAX_NUMBER: u32 = 1 << 16;

/// Such a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Companion {
    /// [`EVENTS`].
    Events,
    /// [`CLOCK`].
    Clock,
    /// [`GAPS`].
    Gaps,
    /// [`COUNTERS`].
    Counters,
    /// [`KERNEL_HEADER`].
    KernelHeader,
    /// [`KERNEL_SYMBOLS`].
    KernelSymbols,
    /// [`RESOURCES`].
    Resources,
    /// The records of perf for this processor: context switches.
    Perf(u32),
    /// The records of the kernel for this processor.
    Kernel(u32),
    /// Source lines, and types of values, of the module with the symbol file that has this number, from 0 in the order of these files' names.
    Lines(u32),
    /// [`INFO`]. It is sent last.
    Info,
}

impl Companion {
    /// The kind of a file of a trace, by its name. `n_before` counts the symbol files with names before that of this module's; it is called
    /// for source lines alone, with the name of the symbol file.
    pub fn of(name: &str, n_before: impl FnOnce(&str) -> Option<u32>) -> Option<Self> {
        Some(match File::of(name)? {
            File::Info => Self::Info,
            File::Events => Self::Events,
            File::Clock => Self::Clock,
            File::Gaps => Self::Gaps,
            File::Counters => Self::Counters,
            File::KernelHeader => Self::KernelHeader,
            File::KernelSymbols => Self::KernelSymbols,
            File::Resources => Self::Resources,
            File::Perf(processor) => Self::Perf(processor),
            File::Kernel(processor) => Self::Kernel(processor),
            File::SourceLines => Self::Lines(n_before(&format!("{}.sym", name.strip_suffix(".dbg")?))?),
            File::Tasks | File::OldTasks | File::Map | File::Symbols | File::Records(_) | File::Index => return None,
        })
    }

    /// The number that says which it is: the kind in the upper half, of which one in the lower.
    #[must_use]
    pub fn word(self) -> u64 {
        let (kind, number) = match self {
            Self::Info => (1, 0),
            Self::Events => (2, 0),
            Self::Clock => (3, 0),
            Self::Gaps => (4, 0),
            Self::Counters => (5, 0),
            Self::KernelHeader => (6, 0),
            Self::KernelSymbols => (7, 0),
            Self::Resources => (8, 0),
            Self::Perf(number) => (9, number),
            Self::Kernel(number) => (10, number),
            Self::Lines(number) => (11, number),
        };
        kind << 32 | u64::from(number)
    }

    /// Decodes a number; `None` for others.
    #[must_use]
    pub fn of_word(word: u64) -> Option<Self> {
        let number = word as u32;
        let found = match word >> 32 {
            1 => Self::Info,
            2 => Self::Events,
            3 => Self::Clock,
            4 => Self::Gaps,
            5 => Self::Counters,
            6 => Self::KernelHeader,
            7 => Self::KernelSymbols,
            8 => Self::Resources,
            9 => Self::Perf(number),
            10 => Self::Kernel(number),
            11 => Self::Lines(number),
            _ => return None,
        };
        (found.word() == word && number < MAX_NUMBER).then_some(found)
    }

    /// Its name in the trace, which has symbol files of these names, in order; `None` if there is no such module.
    #[must_use]
    pub fn name(self, symbols: &[String]) -> Option<String> {
        Some(match self {
            Self::Info => INFO.to_string(),
            Self::Events => EVENTS.to_string(),
            Self::Clock => CLOCK.to_string(),
            Self::Gaps => GAPS.to_string(),
            Self::Counters => COUNTERS.to_string(),
            Self::KernelHeader => KERNEL_HEADER.to_string(),
            Self::KernelSymbols => KERNEL_SYMBOLS.to_string(),
            Self::Resources => RESOURCES.to_string(),
            Self::Perf(processor) => files::perf(processor),
            Self::Kernel(processor) => files::kernel(processor),
            Self::Lines(number) => format!("{}.dbg", symbols.get(number as usize)?.strip_suffix(".sym")?),
        })
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn names_and_numbers_both_ways() {
        let symbols: Vec<String> = ["a.sym", "libc.so.6.sym"].map(String::from).into();
        let names = [
            "info",
            "events.txt",
            "clock.txt",
            "record.txt",
            "extern.dat",
            "kernel_header",
            "kallsyms",
            "resources.dat",
            "perf-cpu0.dat",
            "kernel-cpu65535.dat",
            "a.dbg",
            "libc.so.6.dbg",
        ];
        let place = |name: &str| symbols.iter().position(|symbol| symbol == name).map(|place| place as u32);
        for name in names {
            let file = Companion::of(name, place).expect(name);
            assert_eq!(Companion::of_word(file.word()), Some(file), "{name}");
            assert_eq!(file.name(&symbols).as_deref(), Some(name));
        }
        for name in ["7.dat", "task.txt", "task", "sid-0123456789abcdef.map", "a.sym", "other.dbg", "x", "../info"] {
            assert_eq!(Companion::of(name, place), None, "{name}");
        }
        for word in [0, 1, 1 << 32 | 1, 8 << 32 | 1, 9 << 32 | 65_536, 10 << 32 | 0xffff_ffff, 12 << 32, u64::MAX] {
            assert_eq!(Companion::of_word(word), None, "{word:x}");
        }
        assert_eq!(Companion::Lines(2).name(&symbols), None);
    }
}
