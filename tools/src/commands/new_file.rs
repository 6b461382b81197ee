//! Output files that a user names: whole, or not there.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
#[cfg(target_os = "linux")]
use std::thread;

use anyhow::{Context, Result};
use rftrace_format::store;
use rftrace_read::Error;
use tempfile::NamedTempFile;

/// A new file. Until it is whole its contents have another name beside it.
pub(crate) struct NewFile {
    path: PathBuf,
    to: To,
}

enum To {
    Beside(NamedTempFile),
    /// A device or a pipe, or a file in a folder that takes no other one.
    Itself(File),
}

impl NewFile {
    /// Begins a file. It is none of those in the directories `sources`.
    pub(crate) fn create(path: &Path, sources: &[&Path]) -> Result<Self> {
        let create = || {
            store::check_output(path, sources)?;
            let there = fs::metadata(path).ok();
            // A link stays one.
            let path = if there.is_some() { fs::canonicalize(path)? } else { path.to_owned() };
            let to = match beside(&path).ok().filter(|_| there.as_ref().is_none_or(fs::Metadata::is_file)) {
                Some(file) => To::Beside(file),
                None => To::Itself(File::create(&path)?),
            };
            Ok::<_, io::Error>(Self { path, to })
        };
        create().with_context(|| format!("cannot write {}", path.display()))
    }

    /// Writes the contents. An error leaves what was there before.
    pub(crate) fn write<T>(self, write: impl FnOnce(&mut dyn Write) -> rftrace_read::Result<T>) -> Result<T> {
        let path = self.path.display();
        let file = match &self.to {
            To::Beside(file) => file.as_file(),
            To::Itself(file) => file,
        };
        let mut out = BufWriter::with_capacity(1 << 18, file);
        let result = write(&mut out).and_then(|value| out.flush().map_err(Error::Write).map(|()| value));
        // A part of a failed output is of no use.
        let _ = out.into_parts();
        let value = match result {
            Err(error @ Error::Write(_)) => Err(error).with_context(|| format!("cannot write {path}")),
            result => Ok(result?),
        }?;
        if let To::Beside(file) = self.to {
            file.persist(&self.path).map_err(|error| error.error).with_context(|| format!("cannot write {path}"))?;
        }
        Ok(value)
    }
}

/// Makes a file in the folder of another one, with the permissions that this has, or would have. It goes with its end, and by a signal.
fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let file = builder.prefix(".rftrace-").tempfile_in(folder)?;
    if let Ok(there) = fs::metadata(path) {
        file.as_file().set_permissions(there.permissions())?;
    }
    #[cfg(target_os = "linux")]
    remove_by_signal(file.path().to_owned())?;
    Ok(file)
}

/// Has a signal that ends this process remove a file before.
#[cfg(target_os = "linux")]
fn remove_by_signal(path: PathBuf) -> io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;
    use signal_hook::low_level::emulate_default_handler;

    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let wait = move || {
        for signal in &mut signals {
            let _ = fs::remove_file(&path);
            let _ = emulate_default_handler(signal);
        }
    };
    thread::Builder::new().spawn(wait).map(drop)
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_file_is_whole_or_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("file"), dir.path().join("link"));
        let names = || fs::read_dir(dir.path()).unwrap().count();
        let write = |path: &Path, text: &str, is_whole: bool| {
            NewFile::create(path, &[]).unwrap().write(|out| {
                out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Error::Write)?;
                if is_whole { Ok(()) } else { Err(Error::Write(io::ErrorKind::StorageFull.into())) }
            })
        };
        write(&path, "part", false).unwrap_err();
        assert_eq!(names(), 0);
        write(&path, "first", true).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        symlink("file", &link).unwrap();
        let error = write(&link, "part", false).unwrap_err();
        assert!(format!("{error:#}").starts_with("cannot write "), "{error:#}");
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), names()), ("first", 2));
        write(&link, "second", true).unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), names()), ("second", 2));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(link.is_symlink());
    }
}
