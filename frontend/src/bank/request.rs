//! Requests of a recorder to a running process: a text in the process's slot, then a signal. Its handler answers there,
//! so the program has neither a thread nor a file for it. An attached program has no handler: one of its threads is
//! borrowed to answer.
//!
//! A request that is not begun in time is taken back: then nothing of it was done, and nothing will be.
//!
//! **Invariant**: the signal is sent only after the process has reported the library's handler for it. Before an exec
//! the process waits for a recorder that is about to send, and takes a pending signal: it would kill the new program.
//!
//! Not here: the meaning of the requests (`rftrace-preload` obeys them, `rftrace-record` makes them), and the time for
//! an answer.

use std::io;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use rftrace::abi::{Switch, chunk_state, enabled, lease};
use rftrace_format::system;

use super::client::Bank;
use super::collect::Banks;
use super::file::{ANSWER_AT, ANSWER_BYTES, ASKED_AT, ASKED_BYTES, MOST_MINIMA, RULES_AT, Slot};
use super::handover::{Unsent, request_phase, slot_state};
use super::numbers::folder_of;
use crate::backend;
use crate::clock::{monotonic_nanos, tsc};

/// The maximum length of an answer in bytes.
pub const MOST_ANSWER_BYTES: usize = ANSWER_BYTES;

/// The maximum time between the announcement of an exec and the new program.
const EXEC: Duration = Duration::from_secs(1);

/// Writes the rules in force to their place in a slot. Rules that are too long are left out.
///
/// # Safety
///
/// `place` is [`RULES_AT`] in the slot, and nobody else writes there.
pub(super) unsafe fn write_rules(slot: &Slot, place: *mut u8, rules: &str) {
    slot.requests.rules_bytes.store(0, Release);
    if rules.len() <= ASKED_BYTES {
        // SAFETY: within the slot; the recorder reads it when its length is there.
        unsafe { ptr::copy_nonoverlapping(rules.as_ptr(), place, rules.len()) };
        slot.requests.rules_bytes.store(rules.len() as u32, Release);
    }
}

/// Writes into a slot how long a call has to be from now on to be recorded, in ticks.
pub(super) fn write_minimum(slot: &Slot, ticks: u64) {
    let n_minima = slot.n_minima.load(Relaxed) as usize;
    if n_minima > 0 && slot.minima[n_minima.min(MOST_MINIMA) - 1][1].load(Relaxed) == ticks {
        return;
    }
    match slot.minima.get(n_minima) {
        Some([since, least]) => {
            since.store(if n_minima == 0 { 0 } else { tsc::ticks() }, Relaxed);
            least.store(ticks, Relaxed);
            slot.n_minima.store(n_minima as u32 + 1, Release);
        }
        // Calls shown although they are too short do no harm.
        None => _ = slot.minima[n_minima.min(MOST_MINIMA) - 1][1].fetch_min(ticks, Relaxed),
    }
}

/// Answers a request for the functions above an address in hexadecimal: as many as fit, each as its address, with the
/// highest bit set if it is recorded.
///
/// # Errors
///
/// The request is no address.
pub fn functions_above(
    above: &str,
    functions: impl IntoIterator<Item = crate::filter::Function>,
) -> Result<Vec<u8>, String> {
    const IS_RECORDED: u64 = 1 << 63;

    let above = u64::from_str_radix(above, 16)
        .map_err(|_| "functions: expected a hexadecimal address to continue at".to_owned())?;
    let mut functions: Vec<(u64, bool)> = functions.into_iter().map(|it| (it.address as u64, it.recorded)).collect();
    functions.sort_unstable();
    functions.dedup_by_key(|function| function.0);
    let next = functions.into_iter().filter(|&(address, _)| address > above).take(MOST_ANSWER_BYTES / size_of::<u64>());
    let words = next.map(|(address, is_recorded)| address | if is_recorded { IS_RECORDED } else { 0 });
    Ok(words.flat_map(u64::to_le_bytes).collect())
}

/// Answers a request in a slot, if there is one. An error says why nothing was done.
///
/// # Safety
///
/// The places are [`ASKED_AT`] and [`ANSWER_AT`] in the slot, and nobody else answers there.
pub(super) unsafe fn answer_in(
    slot: &Slot,
    (asked_at, answer_at): (*mut u8, *mut u8),
    answer: impl FnOnce(&str) -> Result<Vec<u8>, String>,
) {
    let requests = &slot.requests;
    let Some(number) = requests.begin() else { return };
    let mut request = vec![0; (requests.asked_bytes.load(Relaxed) as usize).min(ASKED_BYTES)];
    // SAFETY: within the slot; nobody writes there until the answer is taken.
    unsafe { ptr::copy_nonoverlapping(asked_at, request.as_mut_ptr(), request.len()) };
    let answered = answer(&String::from_utf8_lossy(&request));
    let is_error = answered.is_err();
    let bytes = answered.unwrap_or_else(String::into_bytes);
    let n_bytes = bytes.len().min(ANSWER_BYTES);
    // SAFETY: as above; it has so many bytes.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), answer_at, n_bytes) };
    requests.finish(number, n_bytes, is_error);
}

/// This process's side.
impl Bank {
    /// Sets the signal of requests; 0 stops them.
    pub fn set_request_signal(&self, signal: u32) {
        let Some(slot) = self.own_slot() else { return };
        slot.requests.signal.store(signal, SeqCst);
    }

    /// Stores the rules in force for the recorder. Rules that are too long are not stored.
    pub fn tell_rules(&self, rules: &str) {
        self.tell_minimum();
        let Some((slot, place)) = self.own_slot().zip(self.own_place(RULES_AT)) else { return };
        // SAFETY: this process's slot.
        unsafe { write_rules(slot, place, rules) };
    }

    /// Reports the minimum duration of recorded calls from now on.
    pub(crate) fn tell_minimum(&self) {
        if let Some(slot) = self.own_slot() {
            write_minimum(slot, backend::control().filter.min_ticks.load(Relaxed));
        }
    }

    /// Answers a pending request. An error is the reason why nothing was done.
    pub fn answer(&self, answer: impl FnOnce(&str) -> Result<Vec<u8>, String>) {
        let Some((slot, asked_at)) = self.own_slot().zip(self.own_place(ASKED_AT)) else { return };
        let Some(answer_at) = self.own_place(ANSWER_AT) else { return };
        // SAFETY: this process's slot; its threads answer one after the other.
        unsafe { answer_in(slot, (asked_at, answer_at), answer) };
    }

    /// Refuses requests, as the signal is about to get another meaning: with `for_good` in this program, otherwise in
    /// another program that may take over this process, so no recorder sends it for a while. Returns the signal; it may
    /// have come once more.
    pub fn refuse_requests(&self, for_good: bool) -> u32 {
        /// A killed recorder sends nothing any more.
        const PATIENCE: Duration = Duration::from_millis(100);

        let Some(slot) = self.own_slot() else { return 0 };
        let requests = &slot.requests;
        let signal = requests.signal.load(Relaxed);
        requests.refuse((!for_good).then(|| monotonic_nanos().max(1)));
        let since = Instant::now();
        while requests.is_sending.load(SeqCst) != 0 && since.elapsed() < PATIENCE {
            thread::yield_now();
        }
        signal
    }
}

/// A request to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The process.
    pub pid: u32,
    /// The sent signal; 0 for none.
    pub signal: u32,
    slot: usize,
    number: u64,
}

/// The reason why a request was not made.
#[derive(Debug)]
pub enum NotAsked {
    /// No such process is recorded.
    NoProcess,
    /// The process has no handler for the signal: it has just begun, has set its own, or wants none.
    NoHandler,
    /// Another program is about to take over the process.
    Exec,
    /// The request is too long.
    TooLong,
    /// A previous request is unanswered.
    Busy,
    /// The signal could not be sent.
    Signal(io::Error),
}

/// The state of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The process has not begun.
    Waiting,
    /// The process has begun.
    Begun,
    /// The process has done it, with this answer.
    Done(Vec<u8>),
    /// The process has done nothing, for this reason.
    Refused(String),
    /// The process has ended.
    Ended,
}

/// The fill state of a process's bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The size of all chunks in bytes.
    pub buffer_bytes: usize,
    /// True for a ring.
    pub is_ring: bool,
    /// The number of chunks.
    pub n_chunks: usize,
    /// The number of chunks with records.
    pub n_used: usize,
    /// In a ring, the number of overwritten chunks.
    pub n_overwritten: u64,
    /// The number of calls and returns without room.
    pub n_dropped: u64,
}

/// The recorder's side.
impl Banks {
    /// Returns the fill state of a process's bank.
    #[must_use]
    pub fn state(&self, pid: u32) -> Option<State> {
        let number = self.slot_of(pid)?;
        let slot = self.slot(number);
        let n_chunks = self.layout.n_chunks();
        let (mut n_used, mut newest, mut place) = (0, 0, 0);
        while place < n_chunks {
            let lease = self.chunk(number, place).header.lease.load(Acquire);
            if lease == 0 {
                let Some(next) = self.next_with_memory(number, place + 1) else { break };
                place = next;
                continue;
            }
            n_used += usize::from(lease::state(lease) != chunk_state::FREE);
            newest = newest.max(lease::index(lease));
            place += 1;
        }
        let begun_at = slot.first_index.load(Relaxed) + n_chunks as u64;
        Some(State {
            buffer_bytes: self.layout.buffer_bytes,
            is_ring: self.is_ring,
            n_chunks,
            n_used,
            n_overwritten: if self.is_ring { newest.saturating_sub(begun_at) } else { 0 },
            n_dropped: slot.bank.n_lost.load(Relaxed),
        })
    }

    /// Returns true if the banks are rings.
    #[must_use]
    pub fn is_ring(&self) -> bool {
        self.is_ring
    }

    /// Returns the processes being recorded.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        let is_in_use = |&number: &usize| self.slot(number).state.load(Acquire) == slot_state::IN_USE;
        (0..self.n_seen()).filter(is_in_use).map(|number| self.pid_in(number)).collect()
    }

    /// Returns the slot of a process; with several programs in turn, that of the last one.
    pub(super) fn slot_of(&self, pid: u32) -> Option<usize> {
        let is_it =
            |&number: &usize| self.slot(number).state.load(Acquire) == slot_state::IN_USE && self.pid_in(number) == pid;
        (0..self.n_seen()).filter(is_it).max_by_key(|&number| self.slot(number).program_nanos.load(Relaxed))
    }

    /// Sends a process a request; `send` sends it the signal.
    ///
    /// # Errors
    ///
    /// The reason why the request was not made.
    pub fn ask(&self, pid: u32, request: &str, send: impl FnOnce(u32) -> io::Result<()>) -> Result<Asked, NotAsked> {
        let number = self.slot_to_ask(pid, request)?;
        let is_exec = |exec_nanos| monotonic_nanos().saturating_sub(exec_nanos) < EXEC.as_nanos() as u64;
        let asked = self.slot(number).requests.send(is_exec, |signal| {
            let asked = Asked { pid, signal, slot: number, number: self.write_request(number, request) };
            send(signal).map(|()| asked).map_err(|error| {
                self.take_back(&asked);
                NotAsked::Signal(error)
            })
        });
        asked.unwrap_or_else(|unsent| {
            Err(match unsent {
                Unsent::Exec => NotAsked::Exec,
                Unsent::NoHandler => NotAsked::NoHandler,
            })
        })
    }

    /// Makes a request like [`ask`](Self::ask), without a signal: the caller has a thread of the process
    /// [answer](Bank::answer).
    ///
    /// # Errors
    ///
    /// The reason why the request was not made.
    pub fn ask_of_thread(&self, pid: u32, request: &str) -> Result<Asked, NotAsked> {
        let number = self.slot_to_ask(pid, request)?;
        Ok(Asked { pid, signal: 0, slot: number, number: self.write_request(number, request) })
    }

    /// Returns the slot of a process ready for this request.
    fn slot_to_ask(&self, pid: u32, request: &str) -> Result<usize, NotAsked> {
        let number = self.slot_of(pid).ok_or(NotAsked::NoProcess)?;
        if self.slot(number).requests.is_busy() {
            return Err(NotAsked::Busy);
        }
        if request.len() > ASKED_BYTES { Err(NotAsked::TooLong) } else { Ok(number) }
    }

    /// Writes a request that fits. Returns its number.
    fn write_request(&self, slot: usize, request: &str) -> u64 {
        let requests = &self.slot(slot).requests;
        // SAFETY: within the slot; the process reads it when it is asked.
        unsafe { ptr::copy_nonoverlapping(request.as_ptr(), self.at(slot, ASKED_AT), request.len()) };
        requests.ask(request.len())
    }

    /// Returns the state of a request.
    #[must_use]
    pub fn answer(&self, asked: &Asked) -> Answer {
        let slot = self.slot(asked.slot);
        let phase = slot.requests.phase(asked.number);
        let is_there = slot.state.load(Acquire) == slot_state::IN_USE && self.pid_in(asked.slot) == asked.pid;
        match phase.filter(|_| is_there) {
            None => Answer::Ended,
            Some(request_phase::ANSWERED) => {
                let bytes = self.read(asked.slot, ANSWER_AT, slot.requests.answer_bytes.load(Relaxed), ANSWER_BYTES);
                match slot.requests.is_error.load(Relaxed) {
                    0 => Answer::Done(bytes),
                    _ => Answer::Refused(String::from_utf8_lossy(&bytes).into_owned()),
                }
            }
            Some(request_phase::BEGUN) => Answer::Begun,
            Some(_) => Answer::Waiting,
        }
    }

    /// Takes back a request before its beginning. Returns true on success.
    pub fn take_back(&self, asked: &Asked) -> bool {
        self.slot(asked.slot).requests.take_back(asked.number)
    }

    /// Returns the rules in force in a process.
    #[must_use]
    pub fn rules(&self, pid: u32) -> Option<String> {
        let number = self.slot_of(pid)?;
        let n_bytes = self.slot(number).requests.rules_bytes.load(Acquire);
        Some(String::from_utf8_lossy(&self.read(number, RULES_AT, n_bytes, ASKED_BYTES)).into_owned())
    }

    /// Returns true if a process records at this moment, from its memory; `None` without access to it.
    #[must_use]
    pub fn is_on(&self, pid: u32) -> Option<bool> {
        let at = self.slot(self.slot_of(pid)?).requests.switch_at.load(Relaxed);
        let mut word = [0; size_of::<u32>()];
        let place = at + std::mem::offset_of!(Switch, enabled) as u64;
        system::open(folder_of(pid).join("mem")).ok()?.read_exact_at(&mut word, place).ok()?;
        Some(u32::from_le_bytes(word) & enabled::MASK != u32::from(enabled::OFF))
    }

    /// Returns the minimum durations of recorded calls in ticks, each with its beginning.
    pub(super) fn minima(&self, number: usize) -> Vec<(u64, u64)> {
        let slot = self.slot(number);
        let minima = slot.minima.iter().take(slot.n_minima.load(Acquire) as usize);
        let mut minima: Vec<_> = minima.map(|[since, ticks]| (since.load(Relaxed), ticks.load(Relaxed))).collect();
        minima.sort_unstable();
        minima
    }

    /// Copies bytes of a slot; the process may change them meanwhile.
    fn read(&self, number: usize, at: usize, n_bytes: u32, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; (n_bytes as usize).min(most)];
        // SAFETY: within the slot, which has room for `most` bytes there.
        unsafe { ptr::copy_nonoverlapping(self.at(number, at), bytes.as_mut_ptr(), bytes.len()) };
        bytes
    }
}
