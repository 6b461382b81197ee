//! The tracer's overhead per recorded call on this machine: measured in a process of its own, where this library is the program.
//!
//! Not here: the called functions (`arch`), the timing (`rftrace-frontend`), the request (`rftrace-record`).

use rftrace_format::cost::{CallCost, HookKind};
use rftrace_frontend::{Config, Mode};

use crate::arch::hooked;
use crate::memory;

/// Measures a kind of hook. `None` if it cannot be measured here.
#[must_use]
pub fn measure(kind: HookKind) -> Option<CallCost> {
    /// With their returns they fit into a chunk.
    const CALLS: u64 = 1000;
    /// As much as several rounds take.
    const BUFFER_BYTES: usize = 4 << 20;

    if !hooked::ARE_KNOWN {
        return None;
    }
    memory::prepare();
    let config = Config::new().capacity_bytes(BUFFER_BYTES).mode(Mode::Ring).patched(false).save_at_exit(false);
    let tracer = config.install().ok()?;
    tracer.measure_cost(CALLS, hooked::calls(Some(kind)), hooked::calls(None))
}
