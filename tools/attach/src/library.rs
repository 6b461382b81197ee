//! The tracer's library in a process, and that for resources: files in its memory, loaded by its own dynamic linker.
//! They are found again by their names.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::libc;
use rftrace_format::opener::{self, MOST_PROGRAM};

use super::borrowed::Borrowed;
use super::names::{self, RESOURCES, TRACER, is_mapped_from};
use super::owner::Owner;
use super::process::{Map, Module, Process};

/// Bytes to compare of two files: headers, and the build-id behind them.
const HEAD_BYTES: usize = 4096;
/// Room for the answers of its functions.
const ANSWER_BYTES: u64 = 4096;

/// A library's file.
#[derive(Debug)]
pub(crate) struct LibraryFile {
    /// As it is named in a process.
    name: &'static str,
    /// The folder of its files' numbers: each library has its own spelling, as the dynamic linker takes two libraries
    /// with one path for the same.
    folder: &'static str,
    bytes: Vec<u8>,
}

impl LibraryFile {
    /// The tracer's.
    pub(crate) fn tracer(path: &Path) -> Result<Self> {
        Self::read(TRACER, "/proc/thread-self/fd", path)
    }

    /// The library for resources.
    pub(crate) fn resources(path: &Path) -> Result<Self> {
        Self::read(RESOURCES, "/proc/thread-self/./fd", path)
    }

    fn read(name: &'static str, folder: &'static str, path: &Path) -> Result<Self> {
        Ok(Self {
            name,
            folder,
            bytes: opener::read(path, MOST_PROGRAM).with_context(|| format!("cannot read {}", path.display()))?,
        })
    }
}

/// The library in a process.
#[derive(Debug)]
pub(crate) struct Library {
    module: Module,
}

impl Library {
    /// The library that is there already, of this file.
    ///
    /// # Errors
    ///
    /// It is another one.
    pub(crate) fn find(process: &Process, maps: &[Map], file: &LibraryFile) -> Result<Option<Self>> {
        // A reader of its functions' names maps it once more.
        let of_it: Vec<&Map> =
            maps.iter().filter(|map| is_mapped_from(&map.path, file.name) && map.is_private).collect();
        let Some(start) = of_it.iter().map(|map| map.range.start).min() else { return Ok(None) };
        let head = process.bytes(start, HEAD_BYTES as u64);
        if head.is_empty() {
            bail!("process {} has ended", process.pid);
        }
        if head != file.bytes[..HEAD_BYTES.min(file.bytes.len())] {
            bail!(
                "process {} holds the tracer of another version of rftrace: attach by that version, or restart the process",
                process.pid
            );
        }
        let texts = of_it.iter().filter(|map| map.is_executable).map(|map| map.range.clone()).collect();
        Ok(Some(Self { module: Module::new(file.bytes.clone(), start, texts)? }))
    }

    /// Has a thread load it, by `dlopen`.
    pub(crate) fn load(
        thread: &mut Borrowed<'_>,
        process: &Process,
        dlopen: u64,
        library: &LibraryFile,
    ) -> Result<Self> {
        let (number, mut file) = memory_file(thread, process, library.name)?;
        file.write_all(&library.bytes)
            .with_context(|| format!("cannot write the tracer's library into process {}", process.pid))?;
        let name = thread.string(&format!("{}/{number}", library.folder))?;
        let loaded = thread.call(dlopen, &[name, (libc::RTLD_NOW | libc::RTLD_NODELETE) as u64]);
        close(thread, number)?;
        loaded?;
        let found = Self::find(process, &process.maps()?, library)?;
        found.with_context(|| {
            format!(
                "the dynamic linker of process {} cannot load the tracer's library: libgcc_s.so.1 may be missing there, or memory",
                process.pid
            )
        })
    }

    /// Its code.
    pub(crate) fn texts(&self) -> Vec<Range<u64>> {
        self.module.texts.clone()
    }

    /// Returns the report of the library for resources to the tracer's library: the functions it replaces.
    pub(crate) fn interposed(&self, process: &Process) -> String {
        let Ok(place) = self.function("rftrace_resources_interposed") else { return String::new() };
        let (address, number) = process.word(place).zip(process.word(place + 8)).unwrap_or((0, 0));
        format!("{address:x}:{number:x}")
    }

    /// The address of the tracer's control block, if it has ever recorded.
    pub(crate) fn control(&self, process: &Process) -> u64 {
        self.function("rftrace_attach_control").ok().and_then(|place| process.word(place)).unwrap_or(0)
    }

    /// Returns the report on functions chosen for a hook.
    pub(crate) fn told(&self, process: &Process) -> String {
        /// More than a line for each function of any program takes.
        const MOST_BYTES: u64 = 1 << 28;

        let Ok(place) = self.function("rftrace_attach_told") else { return String::new() };
        let (address, n_bytes) = process.word(place).zip(process.word(place + 8)).unwrap_or((0, 0));
        String::from_utf8_lossy(&process.bytes(address, n_bytes.min(MOST_BYTES))).into_owned()
    }

    /// The address of a function.
    pub(crate) fn function(&self, name: &str) -> Result<u64> {
        self.module.function(name)
    }

    /// Calls a function that answers with text. `argument` is a string for it, if there is one.
    pub(crate) fn ask(
        &self,
        thread: &mut Borrowed<'_>,
        process: &Process,
        name: &str,
        argument: Option<&str>,
    ) -> Result<String> {
        let function = self.function(name)?;
        let answer = thread.room(ANSWER_BYTES)?;
        let told = argument.map(|text| Told::put(thread, process, text)).transpose()?;
        let mut arguments = told.iter().map(|told| told.place).collect::<Vec<u64>>();
        arguments.extend([answer, ANSWER_BYTES]);
        thread.call(function, &arguments)?;
        told.map_or(Ok(()), |told| told.remove(thread))?;
        let bytes = process.bytes(answer, ANSWER_BYTES);
        let text = String::from_utf8_lossy(bytes.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned();
        match text.strip_prefix("error=") {
            Some(error) => bail!("cannot record process {}: {error}", process.pid),
            None => Ok(text),
        }
    }
}

/// A string of any length in a process.
struct Told {
    memory: u64,
    place: u64,
    n_bytes: u64,
}

impl Told {
    fn put(thread: &mut Borrowed<'_>, process: &Process, text: &str) -> Result<Self> {
        let n_bytes = Owner::BYTES + text.len() as u64 + 1;
        let memory = thread
            .own_memory(n_bytes)
            .with_context(|| format!("cannot map memory for the tracer in process {}", process.pid))?;
        let place = memory + Owner::BYTES;
        // Newly mapped memory is 0.
        process.write(place, text.as_bytes())?;
        Ok(Self { memory, place, n_bytes })
    }

    fn remove(self, thread: &mut Borrowed<'_>) -> Result<()> {
        thread.system_call(libc::SYS_munmap, &[self.memory, self.n_bytes]).map(drop)
    }
}

/// Empty memory of a process; this one can open it too: its number there, and the file.
pub(crate) fn memory_file(thread: &mut Borrowed<'_>, process: &Process, name: &str) -> Result<(u64, File)> {
    let name = thread.string(&names::of_process(name, process.pid))?;
    let number = thread
        .system_call(libc::SYS_memfd_create, &[name, u64::from(libc::MFD_CLOEXEC)])
        .with_context(|| format!("cannot create a file in memory (memfd_create) in process {}", process.pid))?;
    let path: PathBuf = process.file(&format!("fd/{number}"));
    let file = File::options()
        .read(true)
        .write(true)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    Ok((number, file))
}

/// Memory of the process, somewhere.
pub(crate) fn map(thread: &mut Borrowed<'_>, n_bytes: u64, protection: i32) -> Result<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    thread
        .system_call(libc::SYS_mmap, &[0, n_bytes, protection as u64, flags as u64, u64::MAX, 0])
        .context("cannot map memory for the tracer in the process")
}

/// Closes a file of the process.
pub(crate) fn close(thread: &mut Borrowed<'_>, number: u64) -> Result<()> {
    thread.system_call(libc::SYS_close, &[number]).map(drop)
}
