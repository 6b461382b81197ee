//! Sends records to a receiver during the run, or the trace afterwards.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Result;
use indicatif::HumanBytes;
use rftrace_net::{Protocol, Token};
use rftrace_record::output::Output;
use rftrace_record::sender::{Receiver, Sender, Sent};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use super::arguments::RecordArgs;
use crate::commands::common::shell_word;

/// The longest wait for a receiver.
const RECEIVER_PATIENCE: Duration = Duration::from_secs(30);

/// State of the sending.
pub(super) struct Sending {
    pub(super) token: Option<Token>,
    /// The recording, if it was sent while the program ran, or the reason why it was not.
    pub(super) sender: Option<Result<Spooled>>,
}

/// All records were sent; the other files of the trace follow.
pub(super) struct Spooled {
    sender: Sender,
    is_given_up: Arc<AtomicBool>,
}

impl Sending {
    /// Waits until the receiver has all records, and the other files of `trace`. `None` if nothing was sent while the program ran.
    pub(super) fn end(self, args: &RecordArgs, trace: Option<&Path>) -> Option<Result<Sent>> {
        let sent = self.sender?.and_then(|spooled| spooled.sender.finish(trace, &spooled.is_given_up));
        match (&sent, &args.to) {
            (Ok(sent), Some(to)) if !args.quiet => {
                say!("rftrace: sent to {to}: {} of {}", HumanBytes(sent.bytes), sent.name);
            }
            _ => {}
        }
        Some(sent)
    }
}

/// Begins to send records, if an option asks for it and there are banks to take them from.
pub(super) fn begin_to_send(
    args: &RecordArgs,
    has_banks: bool,
    token: Option<Token>,
    output: &Output,
) -> Result<Option<Sender>> {
    let Some(to) = args.to.as_ref().filter(|to| has_banks && to.protocol == Protocol::Own) else { return Ok(None) };
    let (address, name) = (to.address.clone(), rftrace_net::send::name_of(output.dir()));
    let receiver = Receiver { address, token, name, timeout: RECEIVER_PATIENCE };
    Sender::begin(output.work(), receiver).map(Some)
}

/// Waits until all records were sent. A signal ends the wait, and the trace will be here.
pub(super) fn send_spools(sender: Sender) -> Result<Result<Spooled>> {
    let is_given_up = Arc::<AtomicBool>::default();
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register(signal, Arc::clone(&is_given_up))?;
    }
    Ok(sender.finish_spools(&is_given_up).map(|sender| Spooled { sender, is_given_up }))
}

/// Sends the trace where it was wanted, unless it is there already, and removes it then if that was wanted too.
pub(super) fn send_to_receiver(args: &RecordArgs, output: &Output, sending: Sending) {
    let Some(to) = &args.to else { return };
    let token = sending.token.clone();
    match sending.end(args, Some(output.dir())) {
        Some(Ok(_)) => {
            if let Some(error) = args.no_local.then(|| output.remove_trace()).and_then(Result::err) {
                say!("rftrace: {error:#}");
            }
            return;
        }
        Some(Err(error)) => {
            let dir = shell_word(output.dir());
            say!(
                "rftrace: cannot send all records to {to}: {error:#}; the trace lies in {dir}; send it with\n  rftrace send {dir} {to}"
            );
            return;
        }
        None => {}
    }
    let is_kept = !args.live || args.output.is_some();
    let dir = shell_word(output.dir());
    if !args.quiet {
        // A user who presses Ctrl-C gets no other message.
        say!("rftrace: sending {dir} to {to}; Ctrl-C stops the sending, and the trace stays");
    }
    match crate::commands::send::send(output.dir(), to, token.as_ref(), RECEIVER_PATIENCE) {
        Err(error) if is_kept => {
            say!("rftrace: {error:#}; the trace lies in {dir}; send it with\n  rftrace send {dir} {to}");
        }
        Err(error) => say!("rftrace: {error:#}"),
        Ok(sent) => {
            if !args.quiet {
                say!("rftrace: {sent}");
            }
            if let Some(error) = args.no_local.then(|| output.remove_trace()).and_then(Result::err) {
                say!("rftrace: {error:#}");
            }
        }
    }
}
