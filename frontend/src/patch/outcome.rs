//! The result of patching call sites.

use std::fmt;

/// The result of patching the calls of the hooks, from [`Tracer::patched_sites`](crate::Tracer::patched_sites).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PatchedSites {
    /// The number of patched sites: NOPs or, while recording is on, jumps (on aarch64 calls, as compiled).
    pub patched: usize,
    /// The number of patched sites that are not NOPs now.
    pub on: usize,
    /// The number of sites that stay calls, as compiled. Their calls are recorded too.
    pub left_plain: usize,
    /// The number of unpatched sites for each reason.
    pub reasons: Vec<(PlainReason, usize)>,
    /// The message for the last refusal by the system; `None` without one.
    pub refusal: Option<String>,
}

/// The reason why a call site is not patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlainReason {
    /// The bytes look like a call, but no known function contains them as an instruction.
    Unconfirmed,
    /// The bytes differ from the program's file: a debugger or another process has changed them.
    Changed,
    /// The site is a call through a pointer. Its first two bytes would have to change at once while other threads run.
    TwoBytes,
    /// The system refuses changes of code.
    NotWritable,
    /// No executable memory for stubs is available within 2 GiB.
    NoStubs,
    /// Other threads run, and the system cannot announce changed code to them (`membarrier`).
    NoBarrier,
    /// The system refused a change half-way, and refused to take it back. The site is now an instruction without
    /// effect, so its function is not recorded. The next change tries again.
    Unfinished,
}

impl fmt::Display for PlainReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unconfirmed => "perhaps no instruction",
            Self::Changed => "the code differs from its file",
            Self::TwoBytes => "cannot change two bytes at once while threads run",
            Self::NotWritable => "the system refuses changes of code",
            Self::NoStubs => "no executable memory within reach",
            Self::NoBarrier => "threads run and the system has no membarrier",
            Self::Unfinished => "the system refused a part of a change",
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
    /// Counts sites left plain for a reason.
    pub(crate) fn leave(&mut self, reason: PlainReason, n_sites: usize) {
        self.left_plain += n_sites;
        match self.reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, n)) => *n += n_sites,
            None if n_sites > 0 => self.reasons.push((reason, n_sites)),
            None => {}
        }
    }
}
