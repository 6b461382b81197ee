//! Access to banks for other threads than the emptying one, which runs their jobs between two rounds.

use std::sync::mpsc::{self, Sender};

use rftrace_frontend::bank::Banks;

/// Job for the banks, run between two looks at them.
pub(crate) type Job = Box<dyn FnOnce(&mut Banks) + Send>;

/// Has something done with banks while programs are recorded.
#[derive(Clone, Debug)]
pub(crate) struct Access(Sender<Job>);

impl Access {
    /// By way of the thread for jobs.
    pub(crate) fn new(jobs: Sender<Job>) -> Self {
        Self(jobs)
    }

    /// Has a job done, and waits for its result; `None` if recording has ended.
    pub(crate) fn with<T: Send + 'static>(&self, work: impl FnOnce(&mut Banks) -> T + Send + 'static) -> Option<T> {
        let (to, done) = mpsc::sync_channel(1);
        let job = move |banks: &mut Banks| _ = to.send(work(banks));
        self.0.send(Box::new(job)).ok()?;
        done.recv().ok()
    }
}
