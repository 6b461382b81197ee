//! What `rftrace record` wants. Children inherit it.

use std::env;
use std::ffi::c_int;
use std::path::PathBuf;

use rftrace_frontend::Mode;

use crate::arch::branches::Branches;

/// How to record. Filters and patching are read by the frontend itself, branches by `branches`.
#[derive(Debug)]
pub(crate) struct Settings {
    /// `RFTRACE_RECORD`: the folder that saves go to, each into a folder of its own; an absolute path.
    pub(crate) folder: PathBuf,
    /// `RFTRACE_RECORD_BUFFER`: bytes.
    pub(crate) buffer_bytes: usize,
    /// `RFTRACE_RECORD_MOST`: bytes that all processes may write together.
    pub(crate) most_bytes: u64,
    /// `RFTRACE_RECORD_NOTES`: where to tell what cannot be written.
    pub(crate) notes: PathBuf,
    /// `RFTRACE_RECORD_BANK`: the recorder's banks, if what is recorded goes there.
    pub(crate) bank: Option<PathBuf>,
    /// `RFTRACE_RECORD_REQUESTS`: where the recorder only asks, if this process keeps what is recorded.
    pub(crate) requests: Option<PathBuf>,
    /// `RFTRACE_RECORD_MODE`: `ring` or `stop`.
    pub(crate) mode: Mode,
    /// `RFTRACE_RECORD_OFF`: recording is off at first.
    pub(crate) is_off: bool,
    /// `RFTRACE_RECORD_TRIGGER`: the function at which recording begins; empty for none.
    pub(crate) trigger: String,
    /// Which functions get a branch.
    pub(crate) branches: Branches,
    /// `RFTRACE_RECORD_RAISED`: the recorder is told of panics and exceptions.
    pub(crate) tells_of_raised: bool,
    /// `RFTRACE_RECORD_TYPES`: where the recorder answers what the values of functions are; empty for nowhere.
    pub(crate) types: PathBuf,
    /// `RFTRACE_RECORD_RULES`: where to say which rules of the filter match anything; empty for nowhere.
    pub(crate) rules: PathBuf,
    /// `RFTRACE_RECORD_FORCE`: also if nothing calls a hook yet.
    pub(crate) force: bool,
    /// `RFTRACE_RECORD_PARENT`: the process that runs `rftrace record`.
    pub(crate) parent: u32,
    /// `RFTRACE_RECORD_SNAPSHOT`: the signal for a snapshot; 0 for none.
    pub(crate) snapshot: c_int,
    /// `RFTRACE_RECORD_TOGGLE`: the signal that switches recording on and off; 0 for none.
    pub(crate) toggle: c_int,
    /// `RFTRACE_RECORD_CONTROL`: the signal by which the recorder asks for something; 0 for none.
    pub(crate) control: c_int,
    /// `RFTRACE_RECORD_FINISH`: the signal that switches it off; 0 for none.
    pub(crate) finish: c_int,
}

/// Bytes of the buffer where nothing is said.
const DEFAULT_BYTES: usize = 256 << 20;

impl Settings {
    /// Reads them. `None` if this process is not to be recorded.
    pub(crate) fn read() -> Option<Self> {
        let folder = PathBuf::from(env::var_os("RFTRACE_RECORD")?);
        let text = |name: &str| env::var(name).unwrap_or_default();
        let number = |name: &str| text(name).parse().unwrap_or(0);
        folder.is_absolute().then(|| Self {
            folder,
            buffer_bytes: text("RFTRACE_RECORD_BUFFER").parse().unwrap_or(DEFAULT_BYTES),
            most_bytes: text("RFTRACE_RECORD_MOST").parse().unwrap_or(u64::MAX),
            notes: env::var_os("RFTRACE_RECORD_NOTES").unwrap_or_default().into(),
            bank: env::var_os("RFTRACE_RECORD_BANK").map(PathBuf::from),
            requests: env::var_os("RFTRACE_RECORD_REQUESTS").map(PathBuf::from),
            mode: if text("RFTRACE_RECORD_MODE") == "ring" { Mode::Ring } else { Mode::Stop },
            is_off: text("RFTRACE_RECORD_OFF") == "1",
            trigger: text("RFTRACE_RECORD_TRIGGER"),
            branches: Branches::read(),
            tells_of_raised: text("RFTRACE_RECORD_RAISED") == "1",
            types: env::var_os("RFTRACE_RECORD_TYPES").unwrap_or_default().into(),
            rules: env::var_os("RFTRACE_RECORD_RULES").unwrap_or_default().into(),
            force: text("RFTRACE_RECORD_FORCE") == "1",
            parent: text("RFTRACE_RECORD_PARENT").parse().unwrap_or(0),
            snapshot: number("RFTRACE_RECORD_SNAPSHOT"),
            toggle: number("RFTRACE_RECORD_TOGGLE"),
            control: number("RFTRACE_RECORD_CONTROL"),
            finish: number("RFTRACE_RECORD_FINISH"),
        })
    }
}
