//! The search for a binary's debug information: in the binary, in a separate file, and in the files that these name.
//!
//! The order is that of debuggers: by build-id below [`ROOT`], then by the name in `.gnu_debuglink`, beside the binary,
//! in `.debug` there and below [`ROOT`].
//!
//! Not here: reading it (`values`, and addr2line).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::Object;
use object::read::elf::ElfFile64;
use rftrace_format::opener::{self, MOST_PROGRAM};
use rftrace_frontend::places_of_debug_link;

/// Where distributions have separate files.
const ROOT: &str = "/usr/lib/debug";

type Elf<'f> = ElfFile64<'f, object::Endianness>;

/// The files with the debug information of a binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DebugFiles {
    /// The one that has its units; the binary itself if there is no other one.
    pub(crate) units: PathBuf,
    /// The file with entries that several binaries have in common, which the units refer to (`dwz -m`).
    pub(crate) common: Option<PathBuf>,
    /// The package with the parts that are not in the units (`.dwp`).
    pub(crate) package: Option<PathBuf>,
}

impl DebugFiles {
    /// Those of the binary at a canonical path.
    pub(crate) fn of(path: &Path) -> Self {
        Self::below(path, Path::new(ROOT))
    }

    fn below(path: &Path, root: &Path) -> Self {
        let units = separate_file(path, root).unwrap_or_else(|| path.to_owned());
        let common = common_file(&units, root);
        let packages = [path, &units].map(|path| with_suffix(path, ".dwp"));
        let package = packages.into_iter().find(|path| path.is_file());
        Self { units, common, package }
    }
}

/// The file with the debug information of a binary that has none.
fn separate_file(path: &Path, root: &Path) -> Option<PathBuf> {
    let bytes = opener::read(path, MOST_PROGRAM).ok()?;
    let elf = Elf::parse(&*bytes).ok()?;
    if has_units(&elf) {
        return None;
    }
    let build_id = elf.build_id().ok().flatten();
    let by_id = build_id.and_then(|id| by_build_id(id, root)).filter(|path| is_with_units(path, build_id));
    by_id.or_else(|| {
        let (name, checksum) = elf.gnu_debuglink().ok()??;
        let is_it = |candidate: &PathBuf| {
            candidate != path
                && is_with_units(candidate, build_id)
                && (build_id.is_some()
                    || opener::read(candidate, MOST_PROGRAM).is_ok_and(|bytes| crc32fast::hash(&bytes) == checksum))
        };
        places_of_debug_link(path, name, root).into_iter().find(is_it)
    })
}

/// The file that a file's debug information has in common with others.
fn common_file(path: &Path, root: &Path) -> Option<PathBuf> {
    let bytes = opener::read(path, MOST_PROGRAM).ok()?;
    let elf = Elf::parse(&*bytes).ok()?;
    let (name, build_id) = elf.gnu_debugaltlink().ok()??;
    // The name is relative to the file itself, wherever links lead to it from.
    let file = path.canonicalize().ok()?;
    let named = file.parent().map(|folder| folder.join(OsStr::from_bytes(name)));
    let is_it = |path: &PathBuf| is_with_units(path, Some(build_id));
    named.into_iter().chain(by_build_id(build_id, root)).find(is_it)
}

/// Where a separate file is by its build-id.
fn by_build_id(build_id: &[u8], root: &Path) -> Option<PathBuf> {
    let (first, rest) = build_id.split_first()?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(root.join(format!(".build-id/{first:02x}/{rest}.debug")))
}

/// True if a file has debug information, of this build if that is known.
fn is_with_units(path: &Path, build_id: Option<&[u8]>) -> bool {
    let Ok(bytes) = opener::read(path, MOST_PROGRAM) else { return false };
    let Ok(elf) = Elf::parse(&*bytes) else { return false };
    has_units(&elf) && build_id.is_none_or(|id| elf.build_id().is_ok_and(|own| own == Some(id)))
}

fn has_units(elf: &Elf<'_>) -> bool {
    elf.section_by_name(".debug_info").is_some()
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;

    fn run(command: &mut Command) -> bool {
        command.status().is_ok_and(|status| status.success())
    }

    #[test]
    #[expect(clippy::print_stderr, reason = "a test that cannot run says so")]
    fn separate_files_are_those_of_the_same_build() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("a.c"), "int main(void) { return 0; }").unwrap();
        let gcc = ["-g", "a.c", "-o", "a", "-Wl,--build-id=0x0123456789abcdef"];
        if !run(Command::new("gcc").current_dir(dir.path()).args(gcc)) {
            eprintln!("not tested: gcc is not there");
            return;
        }
        let path = at("a").canonicalize().unwrap();
        assert_eq!(DebugFiles::below(&path, dir.path()).units, path);
        let objcopy = |args: &[&str]| assert!(run(Command::new("objcopy").current_dir(dir.path()).args(args)));
        objcopy(&["--only-keep-debug", "a", "whole"]);
        objcopy(&["--strip-debug", "a"]);
        assert_eq!(DebugFiles::below(&path, dir.path()).units, path);
        let by_id = at(".build-id/01/23456789abcdef.debug");
        fs::create_dir_all(by_id.parent().unwrap()).unwrap();
        fs::copy(at("whole"), &by_id).unwrap();
        assert_eq!(DebugFiles::below(&path, dir.path()).units, by_id);

        // One of another build.
        let gcc = ["-g", "a.c", "-o", "b", "-Wl,--build-id=0xffff456789abcdef"];
        assert!(run(Command::new("gcc").current_dir(dir.path()).args(gcc)));
        fs::copy(at("b"), &by_id).unwrap();
        assert_eq!(DebugFiles::below(&path, dir.path()).units, path);

        objcopy(&["--add-gnu-debuglink=whole", "a"]);
        assert_eq!(DebugFiles::below(&path, dir.path()).units, path.with_file_name("whole"));
        fs::create_dir(at(".debug")).unwrap();
        fs::rename(at("whole"), at(".debug/whole")).unwrap();
        assert_eq!(DebugFiles::below(&path, dir.path()).units, path.parent().unwrap().join(".debug/whole"));
        fs::write(at("a.dwp"), "").unwrap();
        assert_eq!(DebugFiles::below(&path, dir.path()).package, Some(path.with_file_name("a.dwp")));
    }
}
