//! The program that shows a long text page by page.

use std::env;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::process::{Child, Command, Stdio};
#[cfg(all(feature = "full", target_os = "linux"))]
use std::sync::{Arc, atomic::AtomicBool};

use anyhow::{Context, Result};
use rftrace_read::Error;

use super::common::{self, find_program};

/// Writes to a pager if one is wanted and stdout is a terminal, otherwise to stdout.
pub(crate) fn print<T>(is_paged: bool, write: impl FnOnce(&mut dyn Write) -> rftrace_read::Result<T>) -> Result<T> {
    Ok(match Pager::start(is_paged)? {
        Some(pager) => pager.print(write)?,
        None => common::print(write)?,
    })
}

/// A pager that runs.
struct Pager {
    child: Child,
    /// While it runs, Ctrl-C is its own matter.
    #[cfg(all(feature = "full", target_os = "linux"))]
    interrupt: Option<signal_hook::SigId>,
}

impl Pager {
    /// Starts `$PAGER`, or `less`; none where none is wanted, stdout is no terminal, or there is no such program.
    fn start(is_wanted: bool) -> Result<Option<Self>> {
        if !is_wanted || !io::stdout().is_terminal() {
            return Ok(None);
        }
        let mut command = match env::var("PAGER") {
            Ok(pager) if pager.trim().is_empty() || pager.trim() == "cat" => return Ok(None),
            // It may have options.
            Ok(pager) => {
                let mut shell = Command::new("/bin/sh");
                shell.arg("-c").arg(pager);
                shell
            }
            Err(_) => match find_program("less") {
                Some(less) => Command::new(less),
                None => return Ok(None),
            },
        };
        // Ends on what fits on a screen, shows colours, and leaves the text there, as git has it.
        if env::var_os("LESS").is_none() {
            command.env("LESS", "FRX");
        }
        let child =
            command.stdin(Stdio::piped()).spawn().context("cannot start the pager (--no-pager writes without one)")?;
        Ok(Some(Self {
            child,
            #[cfg(all(feature = "full", target_os = "linux"))]
            interrupt: signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::new(AtomicBool::new(false))).ok(),
        }))
    }

    /// Has it show what is written, and waits until it ends.
    fn print<T>(mut self, write: impl FnOnce(&mut dyn Write) -> rftrace_read::Result<T>) -> rftrace_read::Result<T> {
        let result = match self.child.stdin.take() {
            Some(stdin) => {
                let mut out = BufWriter::new(stdin);
                let result = write(&mut out);
                // Data read before an error is worth showing.
                out.flush().map_err(Error::Write).and(result)
            }
            None => write(&mut io::sink()),
        };
        let ended = self.child.wait().map_err(Error::Write);
        #[cfg(all(feature = "full", target_os = "linux"))]
        if let Some(interrupt) = self.interrupt {
            signal_hook::low_level::unregister(interrupt);
        }
        ended.and(result)
    }
}
