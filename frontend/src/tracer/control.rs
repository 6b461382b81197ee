//! The listener for `rftrace ctl` in a program that records itself.
//!
//! One socket for the program, for each buffer in turn. Not here: the commands and their clients (`rftrace-control`),
//! and the recorder's listener (`rftrace-record`).
//!
//! **Invariant**: these threads are unrecorded from their first instruction on, except for the library function that
//! begins them.

use std::any::Any;
use std::ffi::c_void;
use std::mem::{self, MaybeUninit};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::{fs, io, process, ptr};

use rftrace_control::server::{Place, Server, close_in_child};
use rftrace_control::{BufferKind, Facts, Function, Recording, Text, Trigger, Work, command_line};

use super::{Statistics, Tracer, marks};
use crate::Error;
use crate::backend;
use crate::bank::writer::without_signals;
use crate::host;

/// The listener and its process: the child of a fork has no such thread.
static LISTENING: Mutex<Option<(u32, Server)>> = Mutex::new(None);

/// True once `rftrace ctl` has ended the recording for good.
static IS_STOPPED: AtomicBool = AtomicBool::new(false);

/// The program's listener during an install.
#[derive(Debug)]
#[must_use = "who has begun to listen ends when this is dropped"]
pub(super) struct Begun {
    is_wanted: bool,
    is_new: bool,
}

impl Begun {
    /// Keeps the listener: the buffer is in use.
    pub(super) fn keep(mut self) {
        self.is_new = false;
        IS_STOPPED.store(false, Relaxed);
        if !self.is_wanted {
            end();
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if self.is_new {
            end();
        }
    }
}

/// Starts to listen, if configured and not running yet.
pub(super) fn begin(is_wanted: bool) -> Result<Begun, Error> {
    let mut listening = listening();
    let is_new = is_wanted && listening.is_none();
    if is_new {
        clean_up();
        let own = Arc::new(Own { snapshots: Mutex::default() });
        let server = Server::begin(Place::OfUser, own).map_err(|source| Error::NoControl { source })?;
        *listening = Some((process::id(), server));
    }
    Ok(Begun { is_wanted, is_new })
}

/// Ends the listener.
pub(super) fn end() {
    let listener = listening().take();
    drop(listener);
}

/// Returns the listener of this process, not that of a parent.
fn listening() -> MutexGuard<'static, Option<(u32, Server)>> {
    let mut listening = LISTENING.lock().unwrap_or_else(PoisonError::into_inner);
    if listening.as_ref().is_some_and(|(pid, _)| *pid != process::id()) {
        mem::forget(listening.take());
    }
    listening
}

/// Removes the socket at exit, and closes all of them in children. Otherwise clients wait for an answer from nobody,
/// and do not see this process's end.
fn clean_up() {
    static REGISTERED: Once = Once::new();

    extern "C" fn at_exit() {
        backend::unrecorded(|| {
            if let Ok(listening) = LISTENING.try_lock()
                && let Some((pid, server)) = &*listening
                && *pid == process::id()
            {
                let _ = fs::remove_file(server.path());
            }
        });
    }
    unsafe extern "C" fn in_child() {
        backend::unrecorded(close_in_child);
    }
    // SAFETY: the handlers are made for this.
    REGISTERED.call_once(|| unsafe {
        libc::atexit(at_exit);
        libc::pthread_atfork(None, None, Some(in_child));
    });
}

/// Begins a thread.
extern "C" fn start(work: *mut c_void) -> *mut c_void {
    backend::unrecorded(|| {
        // SAFETY: this thread is its owner, see `spawn`; the name is terminated.
        let work = unsafe {
            libc::pthread_setname_np(libc::pthread_self(), c"rftrace-control".as_ptr());
            Box::from_raw(work.cast::<Work>())
        };
        let _ = panic::catch_unwind(AssertUnwindSafe(work));
    });
    ptr::null_mut()
}

/// The program, which records itself.
struct Own {
    /// Dumps made by `snapshot`.
    snapshots: Mutex<Vec<PathBuf>>,
}

impl Own {
    fn tracer() -> Result<&'static Tracer, String> {
        Tracer::get().ok_or_else(|| "this program does not record now".to_owned())
    }
}

const NO_TEXT: &str = "a program that records itself cannot show calls live; use `dump` to make a trace";

impl Recording for Own {
    fn recorder(&self) -> u32 {
        process::id()
    }

    fn processes(&self) -> Vec<u32> {
        Tracer::get().map(|_| process::id()).into_iter().collect()
    }

    fn facts(&self, pid: u32) -> Result<Facts, String> {
        let tracer = Self::tracer()?;
        let Statistics { chunks, chunks_used, events, full, chunks_overwritten, lost, .. } = tracer.statistics();
        let control = backend::control();
        let (kind, n_bytes, n_used) = match &tracer.stream {
            Some(stream) => (BufferKind::Stream, stream.n_bytes(), backend::chunks().count()),
            None if control.overwriting.load(Relaxed) != 0 => (BufferKind::Ring, 0, chunks_used),
            None => (BufferKind::Own { is_full: full }, 0, chunks_used),
        };
        Ok(Facts {
            command: command_line(pid),
            n_threads: fs::read_dir("/proc/self/task").map_or(0, Iterator::count).try_into().unwrap_or(u32::MAX),
            buffer_bytes: (chunks * control.chunk_bytes.load(Relaxed)) as u64,
            kind,
            n_chunks: chunks as u64,
            n_chunks_used: n_used as u64,
            n_overwritten: chunks_overwritten,
            n_dropped: lost,
            n_records: events,
            n_bytes,
        })
    }

    fn has_thread(&self, _pid: u32, id: u32) -> bool {
        Path::new(&format!("/proc/self/task/{id}")).exists()
    }

    fn is_on(&self, _pid: u32) -> Option<bool> {
        Tracer::get().map(Tracer::is_recording)
    }

    fn rules(&self, _pid: u32) -> Option<String> {
        Tracer::get().map(|tracer| {
            let _at_work = host::at_work();
            tracer.program.choice().rules()
        })
    }

    fn ask(&self, pid: u32, request: &str) -> Result<String, String> {
        let tracer = Self::tracer()?;
        let (command, argument) = request.split_once(' ').unwrap_or((request, ""));
        match command {
            "on" if IS_STOPPED.load(Relaxed) => Err(format!("the recording of process {pid} has ended for good")),
            "filter" => tracer.obey_rules(argument, None),
            _ => tracer.obey(command, argument).unwrap_or_else(|| {
                Err(format!("a program that records itself has no command `{command}`; use `rftrace record`"))
            }),
        }
    }

    fn functions(&self, _pid: u32) -> Result<Vec<Function>, String> {
        let name = |name: String, address| if name.is_empty() { format!("<{address:x}>") } else { name };
        let functions = Self::tracer()?.functions().into_iter();
        Ok(functions
            .map(|it| Function { name: name(it.name, it.address), module: it.module, is_recorded: it.recorded })
            .collect())
    }

    fn pipe(&self, _pid: Option<u32>, _goes_on: bool) -> Result<Text, String> {
        Err(NO_TEXT.to_owned())
    }

    fn stream(&self, _pid: Option<u32>) -> Result<Text, String> {
        Err(NO_TEXT.to_owned())
    }

    fn mark(&self, _pid: u32, text: &str) -> Result<String, String> {
        let text = text.replace(char::is_control, " ");
        if text.trim().is_empty() {
            return Err("a mark needs a text".to_owned());
        }
        if !Self::tracer()?.is_recording() {
            return Err("cannot make a mark: recording is off; switch it on first".to_owned());
        }
        marks::of_nobody(&text);
        Ok(String::new())
    }

    fn flush(&self, _pid: u32) -> Result<String, String> {
        Err(match Self::tracer()?.stream {
            Some(_) => {
                "cannot flush: a program that records itself writes full chunks of its stream within 0.2 s by itself"
            }
            None => "cannot flush: the records stay in the program's buffer until a save; use `dump` to make a trace",
        }
        .to_owned())
    }

    fn stop(&self, pid: u32) -> Result<String, String> {
        IS_STOPPED.store(true, Relaxed);
        self.ask(pid, "off")?;
        Ok(format!(
            "process {pid} has stopped its recording; it saves its trace itself, and may switch recording on again\n"
        ))
    }

    fn triggers(&self) -> Vec<Trigger> {
        Vec::new()
    }

    fn add_trigger(&self, _spec: &str) -> Result<Trigger, String> {
        Err("a program that records itself makes no dumps on events; call `Tracer::dump`, or use `rftrace record --ring`"
            .to_owned())
    }

    fn remove_trigger(&self, _number: usize) {}

    fn forget_snapshots(&self, _pid: u32) -> usize {
        let snapshots = mem::take(&mut *self.snapshots.lock().unwrap_or_else(PoisonError::into_inner));
        snapshots.into_iter().filter(|place| fs::remove_dir_all(place).is_ok()).count()
    }

    fn dump(&self, pid: u32, reason: &str) -> Result<String, String> {
        let shown = reason.replace(char::is_control, " ");
        let saved = Self::tracer()?.dump(&shown);
        let saved = saved.map_err(|error| format!("cannot make a dump of process {pid}: {}", error.with_remedy()))?;
        // The client's directory is another one.
        let place = std::path::absolute(&saved.path).unwrap_or(saved.path);
        let told = format!("a dump of process {pid} lies in {}\n", place.display());
        if reason == "snapshot" {
            self.snapshots.lock().unwrap_or_else(PoisonError::into_inner).push(place);
        }
        Ok(told)
    }

    fn hold_forks(&self) -> Option<Box<dyn Any>> {
        Some(Box::new(host::at_work()))
    }

    fn spawn(&self, _name: &str, work: Work) -> io::Result<()> {
        let work = Box::into_raw(Box::new(work)).cast::<c_void>();
        let mut thread = MaybeUninit::uninit();
        // SAFETY: `start` takes what the box was made of, and is the only one to do so.
        let status = without_signals(|| unsafe { libc::pthread_create(thread.as_mut_ptr(), ptr::null(), start, work) });
        if status != 0 {
            // SAFETY: there is no thread that has taken it.
            drop(unsafe { Box::from_raw(work.cast::<Work>()) });
            return Err(io::Error::from_raw_os_error(status));
        }
        // SAFETY: it was just made, and nobody else has its number.
        unsafe { libc::pthread_detach(thread.assume_init()) };
        Ok(())
    }
}
