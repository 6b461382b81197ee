//! Stacks of the functions whose calls the tracer records: from the thread's return stack. Of the stack itself the address behind the call
//! alone is read.

use super::extent::Registers;
use super::hash::Hash;
use super::returns::{Call, Returns};
use super::table::{Addresses, Found, found};
use crate::modules;

/// Finds who has called.
#[inline(always)]
pub(super) fn walk(registers: Registers, addresses: Option<&mut Addresses>) -> Found {
    let returns = Returns::of_thread();
    // SAFETY: the return address of a function that is running.
    let word = unsafe { *(registers.sp as *const u64) };
    let caller = returns.original(registers.sp, word).unwrap_or(0);
    let mut hash = Hash::NONE.with(caller);
    let add = |call: Call| hash = hash.with(call.key());
    let n_calls = returns.calls(registers.sp, add);
    found(hash.of(n_calls), || addresses.map_or(0, |addresses| write(&returns, registers, caller, addresses)))
}

/// Writes where each function has called; where that was in another one, which is not recorded, where it begins. Returns how many.
#[cold]
#[inline(never)]
fn write(returns: &Returns, registers: Registers, mut inner: u64, addresses: &mut Addresses) -> usize {
    let known = modules::known();
    let begins = |address| known.map_or(Some(address), |known| known.function(address));
    let mut n_frames = 0;
    returns.calls(registers.sp, |call| {
        // A call through a slot of a table, as of libraries' functions, has the slot's address.
        if let Some(begin) = begins(call.function) {
            // As return addresses do, both lie behind what is meant.
            let is_direct = inner != 0 && begins(inner - 1) == Some(begin);
            addresses[n_frames].write(if is_direct { inner } else { call.function + 1 });
            n_frames += 1;
        }
        inner = call.caller();
    });
    n_frames
}
