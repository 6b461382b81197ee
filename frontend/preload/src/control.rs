//! Requests of `rftrace ctl` to this process: switching, filters, patching, the list of functions. A request lies in the bank, and a
//! signal's handler looks for it; or a borrowed thread, if this process was attached to.
//!
//! Not here: the transport of requests and answers (`rftrace_frontend::bank`), and the handler (`signals`).

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rftrace_frontend::Tracer;
use rftrace_frontend::bank::{Bank, functions_above};

use crate::process;
use crate::save::{self, RECORDING, Recording};
use crate::types;
use crate::work;

/// True if the recorder has asked for reports of panics and exceptions.
pub(crate) static IS_TOLD_OF_RAISED: AtomicBool = AtomicBool::new(false);

/// Answers a request, if there is one.
pub(crate) fn answer() {
    let Some(recording) = RECORDING.get() else { return };
    if let Some(bank) = recording.asked {
        answer_in(bank, recording.tracer);
    }
}

/// Answers a request in a bank, if there is one.
pub(crate) fn answer_in(bank: &Bank, tracer: &Tracer) {
    bank.answer(|request| obey(tracer, bank, request));
}

/// Requests come with this signal, or with none any more: 0.
pub(crate) fn tell_signal(signal: i32) {
    // A child in its parent's memory has handlers of its own.
    if let Some(bank) = RECORDING.get().and_then(|recording| recording.asked).filter(|_| process::is_owner()) {
        bank.set_request_signal(signal.cast_unsigned());
    }
}

/// The rules that are in force from the beginning on.
pub(crate) fn tell_first_rules(recording: &Recording) {
    if let Some(bank) = recording.asked {
        bank.tell_rules(&std::env::var("RFTRACE_FILTER").unwrap_or_default());
    }
}

/// The signal is about to mean something else: to another program that is about to take this process over, or to this one, `for_good`. What was
/// asked is done, and no signal is on its way then.
pub(crate) fn refuse(for_good: bool) {
    let Some(bank) = RECORDING.get().and_then(|recording| recording.asked).filter(|_| process::is_owner()) else {
        return;
    };
    work::alone(|| {
        let signal = bank.refuse_requests(for_good);
        answer();
        work::drop_signal(signal.cast_signed());
    });
}

fn obey(tracer: &Tracer, bank: &Bank, request: &str) -> Result<Vec<u8>, String> {
    let (command, argument) = request.split_once(' ').unwrap_or((request, ""));
    let answer = match command {
        "filter" => filter(tracer, bank, argument)?,
        "raised" => {
            IS_TOLD_OF_RAISED.store(true, Relaxed);
            String::new()
        }
        "mark" if !tracer.is_recording() => {
            return Err("cannot set a mark: recording is off; switch it on first".to_owned());
        }
        "mark" => {
            rftrace_frontend::mark(argument);
            String::new()
        }
        "snapshot" => snapshot()?,
        "functions" => return functions_above(argument, tracer.functions()),
        _ => match tracer.obey(command, argument) {
            Some(done) => done?,
            None => {
                return Err(format!(
                    "the tracer in this program has no command `{command}`: use the version of rftrace that started it"
                ));
            }
        },
    };
    Ok(answer.into_bytes())
}

/// Saves what the buffer of this process holds. Answers where in the folder.
fn snapshot() -> Result<String, String> {
    let recording = RECORDING.get().filter(|recording| recording.bank.is_none());
    save::own_snapshot(recording.ok_or("the recorder has the records, not this program")?)
}

/// Puts a filter in the place of the one in force.
fn filter(tracer: &Tracer, bank: &Bank, rules: &str) -> Result<String, String> {
    let answer = tracer.obey_rules(rules, Some(types::ask))?;
    bank.tell_rules(rules);
    Ok(answer)
}
