//! An instance of tracefs: a private set of buffers, events and a tracer.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::libc;
use rftrace_format::system;

/// The system's possible places for it.
const MOUNTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// The most bytes of a file to read.
const MAX_FILE_BYTES: usize = 64 * 1024;

/// The beginning of an instance's name; the number of its maker follows.
const PREFIX: &str = "rftrace-";

/// Reads a file of the system's tracefs; `None` if there is none, or this user may not read it.
pub(crate) fn read(name: &str) -> Option<String> {
    MOUNTS.iter().find_map(|mount| system::read_text(Path::new(mount).join(name)).ok())
}

/// The instance of this process. It is removed when this is dropped; until then all files in it have to be closed.
#[derive(Debug)]
pub(crate) struct Instance {
    path: PathBuf,
}

impl Instance {
    /// Makes it, and removes those of ended processes.
    pub(crate) fn create() -> Result<Self> {
        let instances = MOUNTS.map(|mount| Path::new(mount).join("instances"));
        let can_see = |path: &&PathBuf| match fs::metadata(path) {
            Err(error) => error.kind() == ErrorKind::PermissionDenied,
            Ok(meta) => meta.is_dir(),
        };
        let Some(instances) = instances.iter().find(can_see) else {
            bail!(
                "tracefs is not mounted, or this kernel has none (CONFIG_FTRACE); as root: mount -t tracefs nodev {}",
                MOUNTS[0]
            );
        };
        remove_stale(instances);
        let path = instances.join(format!("{PREFIX}{}", std::process::id()));
        match fs::create_dir(&path) {
            Ok(()) => Ok(Self { path }),
            Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied) => {
                bail!("only root may trace the kernel; run rftrace record with sudo, or without --kernel and --events")
            }
            Err(error) => Err(error).with_context(|| format!("cannot make the tracefs instance {}", path.display())),
        }
    }

    /// Reads a file of it.
    pub(crate) fn read(&self, name: &str) -> Result<String> {
        let path = self.path.join(name);
        let open = || system::open(&path).with_context(|| format!("cannot read {}", path.display()));
        // Some files give their beginning only to a request for less than all.
        let mut file = BufReader::with_capacity(MAX_FILE_BYTES, open()?.take(MAX_FILE_BYTES as u64));
        let text = file.fill_buf().map(<[u8]>::to_vec).and_then(|mut text| {
            file.consume(text.len());
            file.read_to_end(&mut text).map(|_| text)
        });
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Writes to a file of it, behind its content.
    pub(crate) fn append(&self, name: &str, text: &str) -> io::Result<()> {
        OpenOptions::new().append(true).open(self.path.join(name))?.write_all(text.as_bytes())
    }

    /// Sets the content of a file of it.
    pub(crate) fn set(&self, name: &str, text: &str) -> Result<()> {
        let path = self.path.join(name);
        let written = self.open_to_write(name).and_then(|mut file| file.write_all(text.as_bytes()));
        written.with_context(|| format!("cannot write {text} to {}", path.display()))
    }

    /// Opens a file of it, to be written to.
    pub(crate) fn open_to_write(&self, name: &str) -> io::Result<File> {
        OpenOptions::new().write(true).open(self.path.join(name))
    }

    /// Opens the records of a processor. A read returns an error instead of waiting.
    pub(crate) fn open_records(&self, processor: u32) -> Result<File> {
        let path = self.path.join(format!("per_cpu/cpu{processor}/trace_pipe_raw"));
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
        opened.with_context(|| format!("cannot read {}", path.display()))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Removes an instance. If it cannot be removed now, it is when the next one is made.
fn remove(path: &Path) {
    // An active tracer may refuse to go.
    let _ = fs::write(path.join("tracing_on"), "0");
    let _ = fs::write(path.join("current_tracer"), "nop");
    let _ = fs::remove_dir(path);
}

fn remove_stale(instances: &Path) {
    let Ok(entries) = fs::read_dir(instances) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)).and_then(|pid| pid.parse::<u32>().ok());
        let is_stale = |pid: u32| pid == std::process::id() || !Path::new(&format!("/proc/{pid}")).exists();
        if pid.is_some_and(is_stale) {
            remove(&entry.path());
        }
    }
}
