//! The preloaded library: its path, and a link to it for the dynamic linker.

use std::env;
use std::fs::Permissions;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rftrace_format::recording;
use tempfile::TempDir;

/// A library: its file name, and the variable that may name its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Library {
    name: &'static str,
    variable: &'static str,
}

/// The tracer.
pub const TRACER: Library = Library { name: recording::TRACER, variable: "RFTRACE_PRELOAD" };
/// The library for `--resources`, which records allocations.
pub const RESOURCES: Library = Library { name: recording::RESOURCES, variable: "RFTRACE_PRELOAD_RESOURCES" };

/// A preloaded library with a path for the dynamic linker.
#[derive(Debug)]
pub struct Preload {
    path: PathBuf,
    /// The folder with a link to the library, if one is needed.
    folder: Option<TempDir>,
}

impl Preload {
    /// Finds the library.
    pub fn find(wanted: Library) -> Result<Self> {
        let library = find_library(wanted)?;
        if is_plain(&library) {
            return Ok(Self { path: library, folder: None });
        }
        // Temporary folders have such names too.
        let (folder, path) =
            folders().iter().find_map(|folder| link_in(folder, wanted.name, &library)).with_context(|| {
                format!(
                    "cannot preload {}: its path has a space, a colon or a dollar sign, and no temporary directory \
                     has room for a link to it; set TMPDIR",
                    library.display()
                )
            })?;
        Ok(Self { path, folder: Some(folder) })
    }

    /// Writes a library made for this recording.
    ///
    /// # Errors
    ///
    /// The folder for it cannot be made.
    pub fn write(name: &str, library: &[u8]) -> Result<Self> {
        let permissions = Permissions::from_mode(0o711);
        let write = |parent: &PathBuf| {
            let builder = &mut tempfile::Builder::new();
            let builder = builder.prefix("rftrace-preload-").permissions(permissions.clone());
            let folder = builder.tempdir_in(parent).ok().filter(|folder| is_plain(folder.path()))?;
            let path = std::path::absolute(folder.path().join(name)).ok()?;
            // Not to be changed by anybody, and to be read by children that change their user.
            std::fs::write(&path, library).ok()?;
            std::fs::set_permissions(&path, Permissions::from_mode(0o555)).ok()?;
            Some(Self { path, folder: Some(folder) })
        };
        folders()
            .iter()
            .find_map(write)
            .context("cannot write a preloaded library: no temporary directory is writable; set TMPDIR")
    }

    /// Returns the path in the form of `LD_PRELOAD`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps the link, as living processes may start others.
    pub fn keep(self) {
        if let Some(folder) = self.folder {
            let _ = folder.keep();
        }
    }
}

/// Folders for temporary files.
fn folders() -> [PathBuf; 4] {
    [env::temp_dir(), "/tmp".into(), "/var/tmp".into(), "/dev/shm".into()]
}

fn find_library(Library { name, variable }: Library) -> Result<PathBuf> {
    if let Some(path) = env::var_os(variable) {
        let path = PathBuf::from(path);
        if !path.is_file() {
            bail!("{variable} names {}, which does not exist", path.display());
        }
        return std::path::absolute(&path).with_context(|| path.display().to_string());
    }
    let exe = env::current_exe().context("cannot find the path of rftrace itself")?;
    let folder = exe.parent().context("cannot find the path of rftrace itself")?;
    let places = [folder.join(name), folder.join("../lib/rftrace").join(name)];
    places.iter().find(|path| path.is_file()).cloned().with_context(|| {
        format!(
            "the library {name} is not beside {}: install both (`cargo install --path tools` in a checkout of rftrace), or set {variable} to \
             its path",
            exe.display()
        )
    })
}

/// True if `LD_PRELOAD` takes a path as it is: it is split at spaces and colons, and `$ORIGIN` and its like are replaced (ld.so(8)).
fn is_plain(path: &Path) -> bool {
    !path.as_os_str().as_bytes().iter().any(|byte| b" :$".contains(byte))
}

/// Makes a link to the library in a new folder below `parent`.
fn link_in(parent: &Path, name: &str, library: &Path) -> Option<(TempDir, PathBuf)> {
    if !is_plain(parent) || !parent.is_absolute() {
        return None;
    }
    // Others cannot write to it or list it; but a child that changes its user loads the library too.
    let permissions = Permissions::from_mode(0o711);
    let folder =
        tempfile::Builder::new().prefix("rftrace-preload-").permissions(permissions).tempdir_in(parent).ok()?;
    let path = folder.path().join(name);
    symlink(library, &path).ok()?;
    Some((folder, path))
}
