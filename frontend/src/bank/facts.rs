//! Facts about a program for a later trace: `info`, and the names of its functions.
//!
//! Not here: the time of their writing (`save`), and other facts about the process (`about`).

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rftrace_format::info::{Changes, Info};
use rftrace_format::opener::{self, MOST_TEXT};
use rftrace_format::{files, symbols};

use crate::Error;
use crate::host::linux::modules::Module;

/// Facts about a program for a later trace: `info`, and the names of its functions.
pub(super) struct Facts {
    folder: PathBuf,
    info: Vec<u8>,
    written: SystemTime,
    /// Build-ids of modules by their paths in the map.
    build_ids: HashMap<String, Option<String>>,
}

impl Facts {
    /// True if the facts in a folder are complete.
    pub(super) fn are_whole(folder: &Path) -> bool {
        opener::read(&folder.join(files::INFO), MOST_TEXT).is_ok_and(|info| Info::parse(&info).is_ok())
    }

    pub(super) fn read(folder: &Path) -> Result<Self, Error> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Read { path, source }
        };
        let path = folder.join(files::INFO);
        let info = opener::read(&path, MOST_TEXT).map_err(failed(&path))?;
        let written = fs::metadata(&path).and_then(|meta| meta.modified()).map_err(failed(&path))?;
        let mut build_ids = HashMap::new();
        for path in symbol_files(folder)? {
            let mut bytes = Vec::new();
            let file = opener::open(&path).map_err(failed(&path))?;
            file.take(symbols::Head::MAX_BYTES as u64).read_to_end(&mut bytes).map_err(failed(&path))?;
            let head = symbols::Head::parse(&bytes);
            build_ids.extend(head.path.map(|path| (path, head.build_id)));
        }
        Ok(Self { folder: folder.to_owned(), info, written, build_ids })
    }

    /// Gives a module its build-id of then. Returns whether its file is the same still.
    pub(super) fn are_of(&self, module: &mut Module) -> bool {
        let Some(build_id) = self.build_ids.get(&module.map_path()) else { return false };
        let short = |id: &Option<String>| id.as_deref().map(|id| symbols::short_build_id(id).to_owned());
        let is_same = short(&module.build_id) == short(build_id)
            && fs::metadata(&module.path).and_then(|meta| meta.modified()).is_ok_and(|time| time <= self.written);
        module.build_id.clone_from(build_id);
        is_same
    }

    /// Adds them to a directory.
    pub(super) fn put_into(&self, directory: &Path) -> Result<(), Error> {
        for from in symbol_files(&self.folder)? {
            let path = directory.join(from.file_name().unwrap_or_default());
            fs::copy(&from, &path).map_err(|source| Error::Write { path, source })?;
        }
        let path = directory.join(files::INFO);
        let failed = |source: io::Error| Error::Write { path: path.clone(), source };
        let own = opener::read(&path, MOST_TEXT).map_err(failed)?;
        let own = Info::parse(&own).map_err(|error| failed(io::Error::other(error.to_string())))?;
        let changes = Changes { features: Some(own.features()), tids: Some(own.tids()), ..Changes::default() };
        fs::write(&path, changes.apply(&self.info)).map_err(failed)
    }
}

/// The files of symbols in a folder.
fn symbol_files(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let read_error = |source| Error::Read { path: folder.to_owned(), source };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(read_error)? {
        let path = entry.map_err(read_error)?.path();
        if path.extension() == Some("sym".as_ref()) {
            found.push(path);
        }
    }
    Ok(found)
}
