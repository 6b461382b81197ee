//! Commands of `rftrace ctl` for a tracer. The listener is the program itself, or a recorder with its preloaded
//! library.

use super::{Statistics, Tracer};
use crate::filter::{AskValues, Filter};
#[cfg(target_os = "linux")]
use crate::host::linux::chosen::Threads;

impl Tracer {
    /// Executes a recorder's command; `None` for an unknown one. For the preloaded library of a recorder.
    ///
    /// # Errors
    ///
    /// The reason why the command failed.
    #[doc(hidden)]
    #[cfg_attr(not(target_os = "linux"), expect(unused_variables, reason = "threads are chosen on Linux only"))]
    pub fn obey(&self, command: &str, argument: &str) -> Option<Result<String, String>> {
        let answer = match command {
            "on" => {
                self.enable();
                String::new()
            }
            "off" => {
                self.disable();
                String::new()
            }
            "patch" => self.patch().to_string(),
            "unpatch" => {
                self.unpatch();
                String::new()
            }
            "patched" => self.patched_sites().to_string(),
            "state" => state(self),
            #[cfg(target_os = "linux")]
            "threads" => return Some(threads(self, argument)),
            _ => return None,
        };
        Some(Ok(answer))
    }

    /// Replaces the filter. Returns the numbers of recorded and of all functions, then the rules without effect, a line
    /// each. For the preloaded library of a recorder.
    ///
    /// # Errors
    ///
    /// The fault of the rules.
    #[doc(hidden)]
    pub fn obey_rules(&self, rules: &str, ask: Option<AskValues>) -> Result<String, String> {
        if rules.trim().is_empty() {
            self.clear_filter();
            return Ok(String::new());
        }
        let filter: Filter = rules.parse().map_err(|error: crate::Error| error.with_remedy())?;
        let filter = match ask {
            Some(ask) => filter.known_values(ask),
            None => filter,
        };
        let selected = self.set_filter(&filter).map_err(|error| error.with_remedy())?;
        Ok(selected.told())
    }
}

/// Returns the state of the buffer: all chunks, chunks in use, calls and returns, and whether it is full.
fn state(tracer: &Tracer) -> String {
    let Statistics { chunks, chunks_used, events, full, .. } = tracer.statistics();
    format!("{chunks} {chunks_used} {events} {}", u8::from(full))
}

/// Returns the choice of threads, `ONLY/NOT`, each list with commas. With `lists`, sets it first.
#[cfg(target_os = "linux")]
fn threads(tracer: &Tracer, lists: &str) -> Result<String, String> {
    let read = |list: &str| -> Result<Vec<u32>, String> {
        let ids = list.split(',').filter(|id| !id.is_empty());
        ids.map(|id| id.parse().map_err(|_| format!("{id} is no thread id"))).collect()
    };
    let shown = |ids: &[u32]| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    if let Some((only, not)) = lists.split_once('/') {
        let threads = Threads { only: read(only)?, not: read(not)? };
        tracer.set_threads(&threads).map_err(|error| error.to_string())?;
    }
    let Threads { only, not } = tracer.threads();
    Ok(format!("{}/{}", shown(&only), shown(&not)))
}
