//! Where functions that call no hook are not recorded.

use std::env;

use rftrace_frontend::bank::Bank;
use rftrace_frontend::{Config, Tracer};

/// Whether some were wanted.
#[derive(Debug)]
pub(crate) struct Branches {
    are_wanted: bool,
}

impl Branches {
    pub(crate) fn read() -> Self {
        let variables = ["RFTRACE_RECORD_BRANCHES", "RFTRACE_RECORD_LIBCALLS"];
        Self { are_wanted: variables.iter().any(|name| env::var_os(name).is_some()) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.are_wanted
    }

    pub(crate) fn choose(&self, config: Config) -> Result<Config, String> {
        if self.are_wanted { Err("-P, --libcalls: x86-64 only".to_owned()) } else { Ok(config) }
    }

    pub(crate) fn tell(&self, _tracer: &Tracer, _bank: Option<&Bank>) {}
}
