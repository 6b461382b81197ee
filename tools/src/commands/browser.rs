//! Has the desktop open an address that nobody else is to know.
//!
//! Other users of the machine may see the words that a program is started with. So the browser gets a file that only this user reads, and
//! that leads to the address. It goes when the browser has come to what it leads to, or with this program.

use std::env;
use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, bail};
use rftrace_format::system;
use rftrace_page::Server;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use tempfile::TempDir;

use super::common::find_program;

/// The file, in a folder of its own.
const NAME: &str = "rftrace.html";

/// The folder, as long as it is there.
type Folder = Arc<Mutex<Option<TempDir>>>;

/// Has the desktop open an address, of what the server has or of a page that gets it from there.
///
/// # Errors
///
/// There is no program for that, or no file.
pub(super) fn open(url: &str, server: &Server) -> Result<()> {
    let Some(program) = find_program("xdg-open") else { bail!("xdg-open is not in PATH") };
    let folder = make_folder().context("cannot make a temporary directory")?;
    let file = folder.path().join(NAME);
    let folder = Arc::new(Mutex::new(Some(folder)));
    remove_at_end(&folder)?;
    write(&file, url).with_context(|| format!("cannot write {}", file.display()))?;
    server.when_loaded(move || remove(&folder));
    // Not waited for: it may be the browser itself.
    let mut command = Command::new(program);
    let command = command.arg(file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().map(drop).context("cannot run xdg-open")
}

fn remove(folder: &Folder) {
    drop(folder.lock().unwrap_or_else(PoisonError::into_inner).take());
}

/// Makes a folder that only this user looks into, where the system has a place for that or else among temporary ones.
fn make_folder() -> io::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix("rftrace-view-").permissions(Permissions::from_mode(0o700));
    let of_user = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_absolute());
    let of_user = of_user.and_then(|folder| builder.tempdir_in(folder).ok());
    of_user.map_or_else(|| builder.tempdir(), Ok)
}

fn write(file: &Path, url: &str) -> io::Result<()> {
    let url = url.replace('&', "&amp;").replace('"', "&quot;");
    let page = format!(
        "<!DOCTYPE html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"referrer\" content=\"no-referrer\">\
         <meta http-equiv=\"refresh\" content=\"0; url={url}\"><title>rftrace</title><p><a href=\"{url}\">The trace</a></p></html>\n"
    );
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?.write_all(page.as_bytes())
}

/// Removes the folder when a signal ends this program. Those that it was started to ignore (`nohup`) do not.
fn remove_at_end(folder: &Folder) -> Result<()> {
    let status = system::read_text("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    let is_ignored = |signal: &i32| ignored.unwrap_or(0) >> (signal - 1) & 1 != 0;
    let ending = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !is_ignored(signal));
    let mut signals = Signals::new(ending).context("cannot handle signals")?;
    let folder = Arc::clone(folder);
    thread::spawn(move || {
        for signal in signals.forever() {
            remove(&folder);
            let _ = emulate_default_handler(signal);
        }
    });
    Ok(())
}
