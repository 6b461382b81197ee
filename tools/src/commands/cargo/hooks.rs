//! The ways to record calls of a program's functions.
//!
//! By unstable flags the compiler puts into each function a call of the tracer (`mcount`), room for a branch (`patchable`), or room for calls
//! at entry and exits (`xray`). With `entry` it compiles as ever, and functions of the running program get branches. All ways mean the same
//! functions: those that are compiled for this program, without the precompiled standard library.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum;
use rftrace_frontend::patchable_entries;
use rftrace_record::{CallSites, Processor, compiled_functions};
use serde::{Deserialize, Serialize};

/// The ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(super) enum Hooks {
    /// Calls that the compiler makes: a nightly toolchain, and `-Z instrument-mcount`.
    Mcount,
    /// Room for branches that the compiler leaves: a nightly toolchain, and `-Z patchable-function-entry`.
    Patchable,
    /// Room for calls at the beginning and at the ends of functions: a nightly toolchain, and `-Z instrument-xray`.
    Xray,
    /// Branches at the beginning of functions: any toolchain, stable too, without a flag.
    Entry,
}

impl Hooks {
    /// Returns the flag that makes rustc prepare each function.
    pub(super) fn flag(self) -> Option<[String; 2]> {
        let flag = match self {
            Self::Mcount => "instrument-mcount".to_owned(),
            Self::Patchable => format!("patchable-function-entry={}", Processor::own()?.room),
            // Without this one only those that are large or have loops.
            Self::Xray => "instrument-xray=always".to_owned(),
            Self::Entry => return None,
        };
        Some(["-Z".to_owned(), flag])
    }

    /// How many functions of a program it has prepared.
    pub(super) fn prepared(self, program: &Path, sites: &CallSites) -> u64 {
        match self {
            Self::Mcount => sites.count,
            Self::Patchable | Self::Xray => patchable_entries(program),
            Self::Entry => 0,
        }
    }

    /// Describes it in a line. `is_chosen`: the user has named these hooks; `has_toolchain`: the user has named a toolchain.
    pub(super) fn described(self, is_chosen: bool, has_toolchain: bool) -> String {
        let how = match self {
            Self::Mcount => "calls of mcount (-Z instrument-mcount)",
            Self::Patchable => "branches in the room that the compiler leaves (-Z patchable-function-entry)",
            Self::Xray => "calls in the sleds of the compiler (-Z instrument-xray)",
            Self::Entry if is_chosen => "branches at function entries",
            Self::Entry if has_toolchain => {
                "branches at function entries, as the named toolchain is no nightly (--hooks=entry)"
            }
            Self::Entry => "branches at function entries, as there is no nightly toolchain (--hooks=entry)",
        };
        format!("{how}; no records of inlined calls (a debug build has the fewest)")
    }
}

/// Functions that rustc itself writes into a program, beside the libraries.
const OF_THE_COMPILER: [&str; 2] = ["main", "__rust_try"];

/// The file that names the functions of the standard library, below `folder`.
pub(super) fn list_path(folder: &Path) -> PathBuf {
    folder.join("functions-of-std")
}

/// Writes that file. The library is in `libraries`.
pub(super) fn write_list(libraries: &Path, folder: &Path) -> Result<()> {
    let mut symbols = compiled_functions(libraries)
        .context("cannot read the functions of the standard library; is it installed for this target?")?;
    symbols.extend(OF_THE_COMPILER.map(String::from));
    let path = list_path(folder);
    fs::write(&path, symbols.join("\n") + "\n").with_context(|| format!("cannot write {}", path.display()))
}

/// The options of `rftrace record` for a program. `list` is the file of [`write_list`], `within` the folder of all programs that are
/// recorded. Where the user has chosen functions, nothing else is chosen.
pub(super) fn options(list: &Path, within: &Path, given: &[OsString]) -> Vec<OsString> {
    let option = |name: &str, value: &Path| {
        let mut option = OsString::from(name);
        option.push(value);
        option
    };
    if given.iter().any(|option| option.to_string_lossy().starts_with("--patch=")) {
        return Vec::new();
    }
    vec!["--patch=*".into(), option("--patch-except=", list), option("--patch-within=", within)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_choice_is_the_only_one() {
        let options = |given: &[&str]| {
            options(Path::new("l"), Path::new("w"), &given.iter().map(OsString::from).collect::<Vec<_>>())
        };
        assert_eq!(options(&["--ring"]), ["--patch=*", "--patch-except=l", "--patch-within=w"]);
        assert!(options(&["--patch=app::*"]).is_empty());
    }
}
