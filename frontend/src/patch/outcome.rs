//! Outcome for the call sites, as the API shows it.

use std::fmt;

/// Outcome for the calls of the hooks when call sites are patched. See [`Tracer::patched_sites`](crate::Tracer::patched_sites).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PatchedSites {
    /// Sites that are NOPs or, while recording is on, jumps; on aarch64 calls, as compiled.
    pub patched: usize,
    /// Those that are no NOPs now.
    pub on: usize,
    /// Sites that are calls, as compiled. They are recorded too.
    pub left_plain: usize,
    /// Why these were left, and how many for each reason.
    pub reasons: Vec<(PlainReason, usize)>,
    /// Message of the system's last refusal.
    pub refusal: Option<String>,
}

/// Why a call site is not patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlainReason {
    /// The bytes look like a call, but no function is known in which they are one.
    Unconfirmed,
    /// Its bytes are not those of the program: somebody else, such as a debugger, has changed them.
    Changed,
    /// It is a call through a pointer whose first two bytes would have to change at once, while other threads run.
    TwoBytes,
    /// The system does not let code be changed.
    NotWritable,
    /// There is no executable memory for stubs within 2 GiB.
    NoStubs,
    /// Other threads run, and the system has no way to let them know of changed code (`membarrier`).
    NoBarrier,
    /// The system stopped a change half-way, and its way back too. The site is an instruction that does nothing: its function is
    /// not recorded. The next change tries again.
    Unfinished,
}

impl fmt::Display for PlainReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unconfirmed => "not known to be an instruction",
            Self::Changed => "changed by somebody else",
            Self::TwoBytes => "two bytes would have to change at once while threads run",
            Self::NotWritable => "the system does not let code be changed",
            Self::NoStubs => "no executable memory within reach",
            Self::NoBarrier => "threads run and the system has no membarrier",
            Self::Unfinished => "the system stopped a change half-way",
        })
    }
}

impl fmt::Display for PatchedSites {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} call sites patched, {} left as they are", self.patched, self.left_plain)?;
        for (reason, n_sites) in &self.reasons {
            write!(f, "; {n_sites}: {reason}")?;
        }
        if let Some(refusal) = &self.refusal {
            write!(f, " ({refusal})")?;
        }
        Ok(())
    }
}

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
impl PatchedSites {
    /// Counts sites that are left plain for a reason.
    pub(crate) fn leave(&mut self, reason: PlainReason, n_sites: usize) {
        self.left_plain += n_sites;
        match self.reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, n)) => *n += n_sites,
            None if n_sites > 0 => self.reasons.push((reason, n_sites)),
            None => {}
        }
    }
}
