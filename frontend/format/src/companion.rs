//! Companions: the files of a trace that go from one machine to another beside the stream of records. They are made at
//! the end of the recording, or other programs recorded them. They are a closed set, so a number identifies each.
//!
//! Not here: records, tasks, maps, symbols and an index, which the receiver makes itself.

use alloc::format;
use alloc::string::{String, ToString as _};

use crate::files::{self, CLOCK, COUNTERS, EVENTS, File, GAPS, INFO, KERNEL_HEADER, KERNEL_SYMBOLS, RESOURCES};

/// The folder in [`FOLDER`](crate::recording::FOLDER) with the complete companions.
pub const COMPANIONS: &str = "companions";

/// The maximum number of processors, and of modules, with such a file.
const MAX_NUMBER: u32 = 1 << 16;

/// A companion file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Companion {
    /// The file [`EVENTS`].
    Events,
    /// The file [`CLOCK`].
    Clock,
    /// The file [`GAPS`].
    Gaps,
    /// The file [`COUNTERS`].
    Counters,
    /// The file [`KERNEL_HEADER`].
    KernelHeader,
    /// The file [`KERNEL_SYMBOLS`].
    KernelSymbols,
    /// The file [`RESOURCES`].
    Resources,
    /// The records of perf for this processor: context switches.
    Perf(u32),
    /// The records of the kernel for this processor.
    Kernel(u32),
    /// The source lines and the types of values of one module: the module with this number in the sorted list of symbol
    /// files, from 0.
    Lines(u32),
    /// The file [`INFO`]. It is sent last.
    Info,
}

impl Companion {
    /// Returns the companion with this file name, or `None` for other files. For source lines it calls `n_before` with
    /// the name of the module's symbol file; the result is the number of symbol files with smaller names.
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

    /// Returns the number that identifies the file: the kind in the upper half, the index in the lower.
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

    /// Decodes such a number; `None` for other numbers.
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

    /// Returns the file's name in the trace. `symbols` lists the trace's symbol files in order. `None` if there is no
    /// such module.
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
