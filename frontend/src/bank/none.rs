//! Systems without processes have no banks.

use crate::Error;
use crate::clock::ClockPair;

/// A bank; there is none on this system.
#[derive(Debug)]
pub enum Bank {}

/// Memory for a tracer's records.
pub(crate) struct Given {
    pub(crate) buffer: *mut u8,
    pub(crate) bytes: usize,
    pub(crate) bank: *const rftrace::abi::Bank,
}

pub(crate) fn begin(bank: &'static Bank) -> Result<Given, Error> {
    match *bank {}
}

pub(crate) fn opened(bank: &Bank, _first: ClockPair) {
    match *bank {}
}

/// There is none.
pub(crate) fn tell_mark(_thread: Option<u32>, _text: &str) -> bool {
    false
}
