//! The recorder's settings for the library in a program: one text, the value of an environment variable.
//!
//! ```text
//! folder=/home/a/trace/.recording
//! buffer=67108864
//! branch=parse*
//! branch=*@libz
//! ```
//!
//! Each value has a line; an unset one has none. A backslash precedes a backslash, and an `n` that stands for a line's
//! end.
//!
//! Not here: the effects of the settings (`rftrace-preload`).

extern crate std;

use alloc::borrow::ToOwned;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::passed::Passed;

/// The name of the environment variable.
pub const VARIABLE: &str = "RFTRACE_RECORD";

/// A kind of values.
trait Setting {
    /// Its texts: one for each value of several.
    fn texts(&self) -> Vec<Vec<u8>>;

    /// Takes a text. `None`: it stands for nothing.
    fn read(&mut self, text: &[u8]) -> Option<()>;
}

macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident: $kind:ty = $key:literal,)*) => {
        /// The settings of a recording.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Settings {
            $($(#[$doc])* pub $name: $kind,)*
        }

        impl Settings {
            fn texts(&self) -> impl Iterator<Item = (&'static str, Vec<u8>)> {
                let all = [$(($key, self.$name.texts()),)*];
                all.into_iter().flat_map(|(key, texts)| texts.into_iter().map(move |text| (key, text)))
            }

            fn read(&mut self, key: &[u8], text: &[u8]) -> Option<()> {
                $(if key == $key.as_bytes() {
                    return self.$name.read(text);
                })*
                None
            }
        }
    };
}

settings! {
    /// The folder for saves, each in a folder of its own; an absolute path.
    folder: PathBuf = "folder",
    /// The size of the buffer in bytes.
    buffer_bytes: usize = "buffer",
    /// True if the buffer is a ring.
    is_ring: bool = "ring",
    /// The maximum number of bytes that all processes may write together.
    most_bytes: u64 = "most",
    /// The process of `rftrace record`.
    recorder: u32 = "recorder",
    /// The file to which processes report data that cannot be written.
    notes: Option<Passed> = "notes",
    /// The file of the recorder's banks, if records go there.
    bank: Option<Passed> = "bank",
    /// The file for the recorder's requests, if each process keeps its own records.
    requests: Option<Passed> = "requests",
    /// The folder of the socket at which the recorder answers questions about functions' values.
    types: Option<Passed> = "types",
    /// The file to which processes report the filter rules that match anything.
    rules: Option<Passed> = "rules",
    /// The list of specified functions that get a branch to the library for resources.
    led: Option<Passed> = "led",
    /// True if recording is off at first.
    is_off: bool = "off",
    /// The function at which recording begins; empty for none.
    trigger: String = "trigger",
    /// True if processes report panics and exceptions to the recorder.
    tells_of_raised: bool = "raised",
    /// True if programs that call no hook are recorded too.
    is_forced: bool = "force",
    /// The signal that takes a snapshot; 0 for none.
    snapshot: i32 = "snapshot",
    /// The signal that starts and stops recording; 0 for none.
    toggle: i32 = "toggle",
    /// The signal of the recorder's requests; 0 for none.
    control: i32 = "control",
    /// The signal that ends recording; 0 for none.
    finish: i32 = "finish",
    /// The patterns of functions that get a branch.
    branches: Vec<String> = "branch",
    /// The way to notice their ends: `exits` (branches; return addresses stay) or `returns`; otherwise the program
    /// decides.
    ends: String = "ends",
    /// The folder of the programs that get branches; empty for all programs.
    branches_within: PathBuf = "within",
    /// A file with the symbols of functions that get no branch, one a line; empty for none.
    branch_exceptions: PathBuf = "except",
    /// The file to which processes report the result for branches.
    branches_told: Option<Passed> = "told",
    /// True if functions with room for a branch are recorded.
    is_patchable: bool = "patchable",
    /// True if calls of library functions are recorded.
    has_library_calls: bool = "libcalls",
}

impl Settings {
    /// Returns the value of the variable.
    #[must_use]
    pub fn value(&self) -> OsString {
        let line = |(key, text): (&str, Vec<u8>)| {
            let escaped = text.iter().flat_map(|byte| match byte {
                b'\n' => b"\\n".as_slice(),
                b'\\' => b"\\\\",
                other => std::slice::from_ref(other),
            });
            [key.as_bytes(), b"="].concat().into_iter().chain(escaped.copied()).chain(*b"\n").collect::<Vec<u8>>()
        };
        OsString::from_vec(self.texts().flat_map(line).collect())
    }

    /// Parses the value of the variable. It skips unknown keys of other versions.
    #[must_use]
    pub fn of_value(value: &OsStr) -> Self {
        let mut settings = Self::default();
        for line in value.as_bytes().split(|&byte| byte == b'\n') {
            let Some(place) = line.iter().position(|&byte| byte == b'=') else { continue };
            let mut bytes = line[place + 1..].iter().copied();
            let unescaped = std::iter::from_fn(|| match bytes.next()? {
                b'\\' => bytes.next().map(|byte| if byte == b'n' { b'\n' } else { byte }),
                other => Some(other),
            });
            let _ = settings.read(&line[..place], &unescaped.collect::<Vec<u8>>());
        }
        settings
    }

    /// Returns the settings in the environment of a process (`/proc/PID/environ`); `None` if it was not started to be
    /// recorded.
    #[must_use]
    pub fn of_environment(environment: &[u8]) -> Option<Self> {
        let value = |variable: &'_ [u8]| {
            let value = variable.strip_prefix(VARIABLE.as_bytes())?.strip_prefix(b"=")?;
            Some(Self::of_value(OsStr::from_bytes(value)))
        };
        environment.split(|&byte| byte == 0).find_map(value)
    }
}

impl Setting for bool {
    fn texts(&self) -> Vec<Vec<u8>> {
        self.then(|| b"1".to_vec()).into_iter().collect()
    }

    fn read(&mut self, text: &[u8]) -> Option<()> {
        *self = text == b"1";
        Some(())
    }
}

macro_rules! numbers {
    ($($kind:ty)*) => {
        $(impl Setting for $kind {
            fn texts(&self) -> Vec<Vec<u8>> {
                vec![self.to_string().into_bytes()]
            }

            fn read(&mut self, text: &[u8]) -> Option<()> {
                *self = std::str::from_utf8(text).ok()?.parse().ok()?;
                Some(())
            }
        })*
    };
}

numbers!(i32 u32 u64 usize);

impl Setting for String {
    fn texts(&self) -> Vec<Vec<u8>> {
        (!self.is_empty()).then(|| self.clone().into_bytes()).into_iter().collect()
    }

    fn read(&mut self, text: &[u8]) -> Option<()> {
        *self = String::from_utf8(text.to_vec()).ok()?;
        Some(())
    }
}

impl Setting for Option<Passed> {
    fn texts(&self) -> Vec<Vec<u8>> {
        self.iter().map(|file| file.to_string().into_bytes()).collect()
    }

    fn read(&mut self, text: &[u8]) -> Option<()> {
        *self = Some(std::str::from_utf8(text).ok()?.parse().ok()?);
        Some(())
    }
}

impl Setting for Vec<String> {
    fn texts(&self) -> Vec<Vec<u8>> {
        self.iter().map(|text| text.clone().into_bytes()).collect()
    }

    fn read(&mut self, text: &[u8]) -> Option<()> {
        self.push(String::from_utf8(text.to_vec()).ok()?);
        Some(())
    }
}

impl Setting for PathBuf {
    fn texts(&self) -> Vec<Vec<u8>> {
        (!self.as_os_str().is_empty()).then(|| self.as_os_str().as_bytes().to_vec()).into_iter().collect()
    }

    fn read(&mut self, text: &[u8]) -> Option<()> {
        *self = Path::new(OsStr::from_bytes(text)).to_owned();
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_understood() {
        let none = Settings::default();
        assert_eq!(Settings::of_value(&none.value()), none);
        let settings = Settings {
            folder: Path::new(OsStr::from_bytes(b"/a \\n=\n\\\xff")).into(),
            buffer_bytes: 4096,
            is_ring: true,
            finish: -1,
            branches: vec!["/^a=b$/".to_owned(), "two\nlines".to_owned()],
            bank: Passed::of(&std::fs::File::open("/proc/self/exe").unwrap()).ok(),
            ..Settings::default()
        };
        assert_eq!(Settings::of_value(&settings.value()), settings);
        let environment = [b"A=b\0RFTRACE_RECORD=".as_slice(), settings.value().as_bytes(), b"\0Z=\0"].concat();
        assert_eq!(Settings::of_environment(&environment), Some(settings));
        assert_eq!(Settings::of_environment(b"RFTRACE_RECORDED=1\0"), None);
    }

    #[test]
    fn what_is_not_understood_is_left_out() {
        let settings = Settings::of_value(OsStr::new("buffer=many\nfuture=1\nnothing\nbank=1:2\noff=1"));
        assert_eq!(settings, Settings { is_off: true, ..Settings::default() });
    }
}
